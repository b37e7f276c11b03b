"""`metaprior fit`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from metaprior.cli.console import check_target, err, out, print_json, print_note, report_errors
from metaprior.cli.info import environment_rows, plot_report
from metaprior.cli.options import AsJson, DropDuplicates, DropMissing, Environment, Task, X, check_outputs
from metaprior.interruption import resume_from


class Kind(StrEnum):
    """What y holds."""

    auto = "auto"
    regression = "regression"
    classification = "classification"


# Tasks by environment ({"": tasks} without a column of environments), the columns, and whether y holds labels.
TrainingData = tuple[dict[str, Any], dict[str, Any], bool]


def fit(
    data: Annotated[
        Path, typer.Argument(help="CSV or Parquet table, one row per reading; or a folder of `metaprior store`.")
    ],
    task: Task = None,
    x: X = None,
    y: Annotated[str | None, typer.Option("--y", help="Output column: numbers, or two labels.")] = None,
    path: Annotated[Path, typer.Option("--out", help="File for the prior.")] = Path("prior.safetensors"),
    environment: Environment = None,
    target: Annotated[str | None, typer.Option(help="Environment to predict in: a value of that column.")] = None,
    kind: Annotated[Kind, typer.Option(help="What y holds; auto: labels if it is text, else numbers.")] = Kind.auto,
    alpha: Annotated[str, typer.Option(help="Weight of the other environments: auto, pooled, or 0 to 1.")] = "auto",
    inference: Annotated[str, typer.Option(help="auto, map, svgd or laplace.")] = "auto",
    particles: Annotated[int | None, typer.Option(help="Number of particles (default: 1 for map, else 10).")] = None,
    kernel: Annotated[
        str | None, typer.Option(help="auto (hierarchical), inducing, mlp, linear, linear+rbf or rbf.")
    ] = None,
    mean: Annotated[str | None, typer.Option(help="auto, inducing, mlp, linear, constant or zero.")] = None,
    noise: Annotated[str, typer.Option(help="Noise standard deviation in the units of y, or learned.")] = "learned",
    temperature: Annotated[str, typer.Option(help="bayes, effective, paper, auto, or a number.")] = "bayes",
    prior_std: Annotated[str, typer.Option(help="Scale of the hyper-prior: a number, or auto.")] = "1",
    steps: Annotated[int | None, typer.Option(help="Training steps (default: 2000; for labels 1000).")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Tasks per step (default: all; 256 if stored).")] = None,
    search_time: Annotated[float | None, typer.Option(help="Time limit for choosing alpha, in seconds.")] = None,
    max_tasks: Annotated[int | None, typer.Option(min=1, help="Use at most this many tasks per environment.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same prior.")] = 0,
    drop_missing: DropMissing = False,
    drop_duplicates: DropDuplicates = False,
    plot: Annotated[Path | None, typer.Option(help="Plot the comparison that chose alpha to this file.")] = None,
    as_json: AsJson = False,
):
    """Learn a prior from the tasks of a table and save it.

    The default takes seconds. Priors that are trained by gradients (labels, --kernel, --inference, --steps, ...) keep a
    checkpoint beside --out: re-running an interrupted fit resumes it, with the same result.
    """
    with report_errors():
        check_outputs([data], path, plot)
        if environment is None and target is None and alpha != "auto":
            raise ValueError("--alpha weights other environments: it needs --environment and --target.")
        named = {"task": task, "x": x, "y": y, "environment": environment}
        drops = {"drop_missing": drop_missing, "drop_duplicates": drop_duplicates}
        labels = None if kind is Kind.auto else kind is Kind.classification
        if data.is_dir():
            is_table = any([*named.values(), *drops.values(), max_tasks])
            environments, columns, is_text = _open(data, target, bool(labels), is_table)
        else:
            environments, columns, is_text = _read(data, named, target, max_tasks, seed, labels=labels, **drops)
        settings = {
            "alpha": _number_or_word("--alpha", alpha) if target is not None else 0.0,
            "inference": inference,
            "n_particles": particles,
            "kernel": kernel,
            "mean": mean,
            "noise_std": None if is_text else _number_or_word("--noise", noise),
            "temperature": _number_or_word("--temperature", temperature),
            "prior_std": _number_or_word("--prior-std", prior_std),
            "n_steps": steps,
            "batch_size": batch_size,
            "search_time": search_time,
        }
        meta = _train(environments, target, is_text, settings, seed, path)
        meta.training_.update(columns=columns, data=data.name)
        meta.save(path)
        checkpoint_path(path).unlink(missing_ok=True)
        plotted = plot is not None and plot_report(meta.transfer_report(), plot)
    if as_json:
        print_json({"prior": str(path), "alpha": meta.alpha_, "kernel": meta.family_, **meta.training_})
        return
    rows = [f"{name}: {counts}" for name, counts in environment_rows(meta.training_)]
    out.print(*rows, str(meta.transfer_report()), f"Wrote {path}{f' and {plot}' if plotted else ''}.", sep="\n")


def _train(
    environments: dict[str, Any], target: str | None, labels: bool, settings: dict[str, Any], seed: int, path: Path
) -> Any:
    """Return the fitted estimator; its checkpoint lies beside the file to be written."""
    import metaprior

    given = {name: value for name, value in settings.items() if value is not None}
    kind = metaprior.MetaGPClassifier if labels else metaprior.MetaGPRegressor
    meta = kind(**given, random_state=seed)
    checkpoint = checkpoint_path(path)
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    if checkpoint.exists():
        print_note(f"found a checkpoint of an interrupted fit, {checkpoint}; it is resumed if it belongs to this fit.")
    resume_from(checkpoint)
    if target is None:
        return meta.fit(target_tasks=environments[""], checkpoint=checkpoint)
    return meta.fit(environments, target=target, checkpoint=checkpoint)


def checkpoint_path(path: Path) -> Path:
    """Return the checkpoint of a fit that is to be saved to `path`."""
    return path.with_name(f".{path.name}.checkpoint")


def _read(
    data: Path, named: dict[str, Any], target: str | None, max_tasks: int | None, seed: int, **how: Any
) -> TrainingData:
    """Read the tasks of a table, at most `max_tasks` of each environment."""
    from metaprior.tables.columns import as_columns
    from metaprior.tables.grouping import group_rows

    missing = [f"--{name}" for name in ("task", "x", "y") if not named[name]]
    if missing:
        raise ValueError(f"Missing {', '.join(missing)}: each must name a column of the table.")
    columns = as_columns(**named)
    _check_both(columns.environment, target)
    with err.status(f"reading {data}"):
        table = group_rows(data, columns, **how)
    environments, rng = table.by_environment(), np.random.default_rng(seed)
    if target is not None:
        check_target(target, environments, columns.environment)
    for name, tasks in environments.items():
        if max_tasks is not None and len(tasks) > max_tasks:
            print_note(f"using {max_tasks} of {len(tasks)} tasks{f' of {name}' if name else ''} (--max-tasks).")
            environments[name] = [tasks[i] for i in np.sort(rng.choice(len(tasks), max_tasks, replace=False)).tolist()]
    labels = table.tasks[0].y.dtype.kind not in "fiu" if how["labels"] is None else how["labels"]
    return environments, columns._asdict(), labels


def _open(folder: Path, target: str | None, labels: bool, is_table: bool) -> TrainingData:
    """Open stored tasks; raise if there are options that are for tables."""
    from metaprior.storage.task_folders import open_tasks, read_header

    stored, columns = open_tasks(folder), read_header(folder)["columns"]
    if is_table:
        raise ValueError(
            f"{folder} holds stored tasks, for which `metaprior store` took these options. "
            "Leave out --task, --x, --y, --environment, --drop-missing, --drop-duplicates and --max-tasks."
        )
    _check_both(columns["environment"], target)
    environments = stored if isinstance(stored, dict) else {"": stored}
    if target is not None:
        check_target(target, environments, columns["environment"])
    return environments, columns, labels


def _check_both(environment: str | None, target: str | None) -> None:
    if (environment is None) != (target is None):
        given, lacking = ("--target", "--environment") if environment is None else ("--environment", "--target")
        raise ValueError(
            f"{given} needs {lacking}: --environment is the column that names the environment of a task, --target the "
            "one of them to predict in."
        )


def _number_or_word(option: str, text: str) -> float | str:
    """Return a number if the text reads as one; the estimator checks the words."""
    try:
        return float(text)
    except ValueError:
        if any(character.isdigit() for character in text):
            raise ValueError(f"{option} must be a number or a word that --help lists; got {text!r}.") from None
        return text
