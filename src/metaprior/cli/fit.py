"""`metaprior fit`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from metaprior.cli.console import err, out, print_json, print_note, report_errors, status
from metaprior.cli.info import environment_rows, plot_compared
from metaprior.cli.options import AsJson, DropDuplicates, DropMissing, Environment, Task, X
from metaprior.cli.outputs import check_outputs


class Kind(StrEnum):
    """What y is."""

    auto = "auto"
    regression = "regression"
    classification = "classification"


def fit(
    data: Annotated[
        Path, typer.Argument(help="CSV or Parquet table, one row per reading; or a folder of `metaprior store`.")
    ],
    task: Task = None,
    x: X = None,
    y: Annotated[str | None, typer.Option("--y", help="Output column: numbers, or two labels.")] = None,
    path: Annotated[Path, typer.Option("--out", help="File for the prior.")] = Path("prior.safetensors"),
    environment: Environment = None,
    target: Annotated[str | None, typer.Option(help="The environment to predict in: a value of that column.")] = None,
    kind: Annotated[Kind, typer.Option(help="What y is; auto: labels if it is text, else numbers.")] = Kind.auto,
    alpha: Annotated[str, typer.Option(help="Weight of the other environments: auto, pooled, or 0 to 1.")] = "auto",
    inference: Annotated[str, typer.Option(help="auto, map, svgd or laplace.")] = "auto",
    particles: Annotated[int | None, typer.Option(help="How many (default: 1 for map, 10 for the others).")] = None,
    kernel: Annotated[str | None, typer.Option(help="auto, inducing, mlp, linear, linear+rbf or rbf.")] = None,
    mean: Annotated[str | None, typer.Option(help="auto, inducing, mlp, linear, constant or zero.")] = None,
    noise: Annotated[
        str, typer.Option(help="Standard deviation of the noise in the units of y, or learned.")
    ] = "learned",
    temperature: Annotated[str, typer.Option(help="bayes, effective, paper, auto, or a number.")] = "bayes",
    prior_std: Annotated[str, typer.Option(help="Scale of the hyper-prior: a number, or auto.")] = "1",
    steps: Annotated[int | None, typer.Option(help="Training steps (default: 2000; labels 1000).")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Tasks per step (default: all; 256 of stored tasks).")] = None,
    search_time: Annotated[float | None, typer.Option(help="Seconds that choosing alpha may take.")] = None,
    max_tasks: Annotated[
        int | None, typer.Option(min=1, help="Of an environment; more are left out at random.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same prior.")] = 0,
    drop_missing: DropMissing = False,
    drop_duplicates: DropDuplicates = False,
    plot: Annotated[Path | None, typer.Option(help="Draw what was compared to choose alpha into this file.")] = None,
    as_json: AsJson = False,
):
    """Learn a prior from the tasks of a table and save it.

    What is done is kept beside --out: an interrupted fit, run again, goes on from there to the same result.
    """
    with report_errors():
        check_outputs([data], path, plot)
        labels = None if kind is Kind.auto else kind is Kind.classification
        drops: dict[str, Any] = {"drop_missing": drop_missing, "drop_duplicates": drop_duplicates}
        named = {"task": task, "x": x, "y": y, "environment": environment}
        if data.is_dir():
            told = [*named.values(), *drops.values(), max_tasks]
            columns, environments = _stored(data, target, alpha, any(told))
            is_text = bool(labels)
        else:
            columns, table = _read(data, named, target, alpha, drops, labels)
            environments = _environments(table, environment, target, max_tasks, seed)
            is_text = table.tasks[0].y.dtype.kind not in "fiu" if labels is None else labels
        arguments = {
            "alpha": number_or_word("--alpha", alpha) if target is not None else 0.0,
            "inference": inference,
            "n_particles": particles,
            "kernel": kernel,
            "mean": mean,
            "noise_std": None if is_text else number_or_word("--noise", noise),
            "temperature": number_or_word("--temperature", temperature),
            "prior_std": number_or_word("--prior-std", prior_std),
            "n_steps": steps,
            "batch_size": batch_size,
            "search_time": search_time,
        }
        meta = _fitted(environments, target, arguments, is_text, seed, path)
        meta.training_["columns"] = columns
        meta.training_["data"] = data.name
        meta.save(path)
        checkpoint_of(path).unlink(missing_ok=True)
        drawn = plot is not None and plot_compared(meta.transfer_report(), plot)
    if as_json:
        print_json({"prior": str(path), "alpha": meta.alpha_, "kernel": meta.family_, **meta.training_})
        return
    for name, counts in environment_rows(meta.training_):
        out.print(f"{name}: {counts}", highlight=False, markup=False)
    out.print(str(meta.transfer_report()), highlight=False, markup=False)
    out.print(f"Wrote {path}" + (f" and {plot}." if drawn else "."), highlight=False, markup=False)


def _fitted(
    environments: dict[str, Any], target: str | None, arguments: dict[str, Any], labels: bool, seed: int, path: Path
) -> Any:
    """The estimator, trained; its checkpoint lies beside the file to be."""
    from metaprior import MetaGPClassifier, MetaGPRegressor

    chosen = {name: value for name, value in arguments.items() if value is not None}
    meta = (MetaGPClassifier if labels else MetaGPRegressor)(**chosen, random_state=seed)
    checkpoint = checkpoint_of(path)
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    if checkpoint.exists():
        print_note(f"{checkpoint} is of a fit that was interrupted: if it was this one, it goes on from there.")
    try:
        if target is None:
            return meta.fit(target_tasks=environments[""], checkpoint=checkpoint)
        return meta.fit(environments, target=target, checkpoint=checkpoint)
    except KeyboardInterrupt:
        err.print("What was done is kept: run the same command again.")
        raise


def checkpoint_of(path: Path) -> Path:
    """Where a fit to be written to `path` keeps what it has done."""
    return path.with_name(f".{path.name}.checkpoint")


def _read(
    data: Path, named: dict[str, Any], target: str | None, alpha: str, drops: dict[str, Any], labels: bool | None
) -> tuple[dict[str, Any], Any]:
    """The columns of a table, and its tasks."""
    from metaprior.tables.columns import as_columns
    from metaprior.tables.grouping import group_rows

    lacking = [f"--{name}" for name in ("task", "x", "y") if not named[name]]
    if lacking:
        raise ValueError(f"{' and '.join(lacking)} must name a column of the table.")
    columns = as_columns(**named)
    _check_target(columns.environment, target, alpha)
    with status(f"reading {data}"):
        return columns._asdict(), group_rows(data, columns, **drops, labels=labels)


def _stored(folder: Path, target: str | None, alpha: str, told: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The columns that tasks were stored from, and the tasks by environment."""
    from metaprior.storage.stored_tasks import open_tasks, read_header

    stored, columns = open_tasks(folder), read_header(folder)["columns"]
    if told:
        raise ValueError(
            f"{folder} holds stored tasks: what columns say and which rows are left out was said to `metaprior store`. "
            "Leave out --task, --x, --y, --environment, --drop-missing, --drop-duplicates and --max-tasks."
        )
    _check_target(columns["environment"], target, alpha)
    environments = stored if isinstance(stored, dict) else {"": stored}
    _check_known(target, environments, columns["environment"])
    return columns, environments


def _check_target(environment: str | None, target: str | None, alpha: str) -> None:
    if (environment is None) != (target is None):
        given, lacking = ("--target", "--environment") if environment is None else ("--environment", "--target")
        raise ValueError(
            f"{given} needs {lacking}: the column that says where a task comes from, and the one of its values that "
            "you want to predict in."
        )
    if environment is None and alpha != "auto":
        raise ValueError("--alpha weighs other environments: it needs --environment and --target.")


def _environments(
    table: Any, environment: str | None, target: str | None, most: int | None, seed: int
) -> dict[str, Any]:
    """Tasks by environment, no more than asked for of any."""
    grouped = table.by_environment()
    _check_known(target, grouped, environment)
    rng = np.random.default_rng(seed)
    for name, tasks in grouped.items():
        if most is not None and len(tasks) > most:
            print_note(f"{most} of {len(tasks)} tasks{f' of {name}' if name else ''} are used (--max-tasks).")
            grouped[name] = [tasks[i] for i in np.sort(rng.choice(len(tasks), most, replace=False)).tolist()]
    return grouped


def _check_known(target: str | None, environments: dict[str, Any], column: str | None) -> None:
    import difflib

    if target is not None and target not in environments:
        near = difflib.get_close_matches(target, environments, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        listed = ", ".join(map(repr, list(environments)[:12]))
        raise ValueError(f"--target {target!r} does not occur in column {column!r}, whose values are {listed}.{hint}")


def number_or_word(option: str, text: str) -> float | str:
    """A number where it reads as one; which words are known is for the estimator to say."""
    try:
        return float(text)
    except ValueError:
        if any(character.isdigit() for character in text):
            raise ValueError(f"{option} must be a number or one of its words; got {text!r}.") from None
        return text
