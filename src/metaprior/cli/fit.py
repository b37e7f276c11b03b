"""`metaprior fit`."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from metaprior.checks import counted
from metaprior.cli.console import NOTES, err, out, print_note, print_result, report_errors
from metaprior.cli.info import class_words, environment_rows, guarantee_words, plot_report
from metaprior.cli.options import (
    AsJson,
    Categorical,
    Covariates,
    Decimal,
    DropDuplicates,
    DropMissing,
    Encoding,
    Environment,
    Sep,
    Task,
    X,
    check_outputs,
    named_or_free,
    refuse_several,
    write,
)
from metaprior.cli.scores import HeldOut, print_held_out, score_held_out
from metaprior.cli.task_names import columns_by_name, tasks_by_name
from metaprior.cli.training_data import Fit, TrainingData, read_training_data
from metaprior.cli.usage import typed
from metaprior.interruption import last_files, tell_on_stop
from metaprior.memory import RUN_ADVICE
from metaprior.printed import visible
from metaprior.tables.columns import output_names
from metaprior.tables.csv_files import TableFile, as_csv_format

FOR_LABELS = {
    ("shared_classes", True): "--shared-classes",
    ("shared_classes", False): "--own-classes",
    ("calibrate", False): "--no-calibrate",
}


KINDS = ("covariates", "categorical")


class Kind(StrEnum):
    """What y holds."""

    auto = "auto"
    regression = "regression"
    classification = "classification"


def fit(
    command: typer.Context,
    data: Annotated[
        Path, typer.Argument(help="CSV or Parquet table, one row per reading; or a folder of `metaprior store`.")
    ],
    task: Task = None,
    x: X = None,
    covariates: Covariates = None,
    categorical: Categorical = None,
    y: Annotated[
        list[str] | None, typer.Option("--y", help="Output column: numbers, or labels. Several: --y hct gcs.")
    ] = None,
    path: Annotated[
        Path | None, typer.Option("--out", help="File for the prior (default: prior.safetensors, if it is new).")
    ] = None,
    environment: Environment = None,
    target: Annotated[str | None, typer.Option(help="Environment to predict in: a value of that column.")] = None,
    kind: Annotated[Kind, typer.Option(help="What y holds; auto: labels if it is text, else numbers.")] = Kind.auto,
    shared_classes: Annotated[
        bool | None,
        typer.Option(
            "--shared-classes/--own-classes",
            help="Labels mean the same in all tasks, or each task has its own (default: shared if one has them all).",
        ),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate/--no-calibrate", help="Calibrate class probabilities on held-out tasks.")
    ] = True,
    alpha: Annotated[str, typer.Option(help="Weight of the other environments: auto, pooled, or 0 to 1.")] = "auto",
    inference: Annotated[str, typer.Option(help="auto, map, svgd or laplace.")] = "auto",
    particles: Annotated[int | None, typer.Option(help="Number of particles (default: 1 for map, else 10).")] = None,
    kernel: Annotated[
        str | None, typer.Option(help="auto (hierarchical), inducing, mlp, linear, linear+rbf or rbf.")
    ] = None,
    mean: Annotated[str | None, typer.Option(help="auto, inducing, mlp, linear, constant or zero.")] = None,
    noise: Annotated[str, typer.Option(help="Noise standard deviation in the units of y, or learned.")] = "learned",
    likelihood: Annotated[
        str,
        typer.Option(help="gaussian, student-t (outliers), poisson or negative-binomial (counts), ordinal (ranks)."),
    ] = "gaussian",
    exposure: Annotated[
        str | None, typer.Option(help="Column with the exposure of counts, such as days of observation.")
    ] = None,
    temperature: Annotated[str, typer.Option(help="bayes, effective, paper, auto, or a number.")] = "bayes",
    prior_std: Annotated[str, typer.Option(help="Scale of the hyper-prior: a number, or auto.")] = "1",
    steps: Annotated[int | None, typer.Option(help="Training steps (default: 2000; for labels 1000).")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Tasks per step (default: all; 256 if stored).")] = None,
    context: Annotated[
        str, typer.Option(help="What is given of a task to predict: random, first (forecasting), 5 or 'first 5'.")
    ] = "random",
    guarantee: Annotated[
        bool,
        typer.Option(
            "--guarantee", help="Repeat the fit without held-out tasks, for conformal intervals: predict --guarantee."
        ),
    ] = False,
    search_time: Annotated[float | None, typer.Option(help="Seconds for the comparison that chooses alpha.")] = None,
    max_tasks: Annotated[int | None, typer.Option(min=1, help="Use at most this many tasks per environment.")] = None,
    held_out: Annotated[
        float | None, typer.Option("--hold-out", help="Share of the target's tasks to test the prior on, such as 0.2.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same prior.")] = 0,
    private: Annotated[
        bool, typer.Option("--private", help="Write nothing that recognizes the tasks of the fit; coarse ranges.")
    ] = False,
    drop_missing: DropMissing = False,
    drop_duplicates: DropDuplicates = False,
    sep: Sep = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    plot: Annotated[Path | None, typer.Option(help="Plot the comparison that chose alpha to this file.")] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Write a page on the fit to this .html file: data, comparison, calibration, examples."),
    ] = None,
    without_data: Annotated[
        bool, typer.Option("--report-without-data", help="Leave readings and names of tasks out of the report.")
    ] = False,
    as_json: AsJson = False,
):
    """Learn a prior from the tasks of a table and save it.

    The default takes seconds. With --hold-out the prior is also tested, on tasks that it is not fitted to. Priors that
    are trained by gradients (--kernel, --inference, --steps, ...) keep a checkpoint beside --out: re-running an
    interrupted fit resumes it, with the same result.
    """
    with report_errors(as_json, RUN_ADVICE):
        path = named_or_free(path, "prior.safetensors")
        check_outputs([data], path, plot, report)
        if without_data and report is None:
            raise ValueError("--report-without-data needs --report: name a file, as in --report fit.html.")
        if private and guarantee:
            stored = "fits without each target task, or each few, from which their averages can be told"
            raise ValueError(f"--private cannot hide what --guarantee needs: {stored}. Leave out one of the two.")
        if environment is None and target is None and alpha != "auto":
            needs = "--target, and tasks stored with --environment" if data.is_dir() else "--environment and --target"
            raise ValueError(f"--alpha weights other environments: it needs {needs}.")
        if exposure is not None and x is not None and exposure not in x:
            x = [*x, exposure]
        outputs = output_names(y or None) or (None,)
        refuse_several(outputs, plot=plot, report=report)
        how: Any = {"drop_missing": drop_missing, "drop_duplicates": drop_duplicates, "sparse_y": len(outputs) > 1}
        labels = None if kind is Kind.auto else kind is Kind.classification
        table = TableFile(data, as_csv_format(sep, decimal, encoding))
        settings = {
            "alpha": _number_or_word("--alpha", alpha) if target is not None else 0.0,
            "inference": inference,
            "n_particles": particles,
            "kernel": kernel,
            "mean": mean,
            "noise_std": _number_or_word("--noise", noise) if noise != "learned" else None,
            "likelihood": likelihood if likelihood != "gaussian" else None,
            "exposure": exposure,
            "temperature": _number_or_word("--temperature", temperature),
            "prior_std": _number_or_word("--prior-std", prior_std),
            "n_steps": steps,
            "batch_size": batch_size,
            "search_time": search_time,
            "context": context,
            "shared_classes": shared_classes,
            "calibrate": None if calibrate else False,
            "guarantee": True if guarantee else None,
        }
        named = {"task": task, "x": x, "environment": environment}
        named |= {"covariates": covariates, "categorical": categorical}
        of_outputs = {name: {**named, "y": name} for name in outputs}
        data_of = {  # all of it first: a column that cannot be read is told before the first fit
            name: read_training_data(table, columns, target, labels, max_tasks, held_out, seed, how)
            for name, columns in of_outputs.items()
        }
        fits = {
            name: _fit_output(tasks, table, target, settings, seed, _checkpoint_of(path, i, len(outputs)))
            for i, (name, tasks) in enumerate(data_of.items())
        }
        meta, tasks, tested = next(iter(fits.values()))
        plotted = plot is not None and plot_report(meta.transfer_report(), plot)
        with last_files() if report is None else nullcontext():
            _save({str(name): each.meta for name, each in fits.items()}, path, private)
        if report is not None:
            tell_on_stop(f"{path} is written, {report} is not.")
            again = typed(command, ("plot", "report", "without_data", "as_json"))
            _write_report(report, path, Fit(meta, tasks, target, seed, tested, again, table.is_pipe), not without_data)
    written = [str(path), *([str(plot)] if plotted else []), *([str(report)] if report is not None else [])]
    if as_json:
        results = {str(name): _figures(each.meta, each.tasks) for name, each in fits.items()}
        found = _figures(meta, tasks) if len(fits) == 1 else {"outputs": results}
        print_result({"prior": str(path), **({"report": str(report)} if report is not None else {}), **found})
        return
    for each in fits.values():
        _print_fit(each.meta, each.tasks.labels)
    out.print(f"Wrote {' and '.join([', '.join(written[:-1])] * (len(written) > 1) + written[-1:])}.", soft_wrap=True)


class FittedOutput(NamedTuple):
    """The prior of one output, what it was fitted to, and the result of --hold-out."""

    meta: Any
    tasks: TrainingData
    tested: HeldOut | None


def _fit_output(
    tasks: TrainingData, table: TableFile, target: str | None, settings: dict[str, Any], seed: int, checkpoint: Path
) -> FittedOutput:
    """Fit the prior of an output, and test it on held-out tasks."""
    exposure = None if settings["exposure"] is None else _place_of(settings["exposure"], tasks.columns["x"])
    meta = _train(tasks, target, {**settings, **_kinds_of(tasks), "exposure": exposure}, seed, checkpoint)
    meta.training_.update(columns=tasks.columns, data="a pipe" if table.is_pipe else visible(table.path.name))
    meta.training_["csv"] = table.format._asdict()
    meta.feature_names_in_ = np.array(tasks.columns["x"], dtype=object)
    meta.report_ = replace(meta.report_, hint=columns_by_name(meta.report_.hint, tasks.columns["x"]))
    tested = None
    if tasks.held_out:
        with err.status(f"predicting {counted(len(tasks.held_out), 'held-out task')}"):
            tested = score_held_out(meta, tasks.held_out, np.random.default_rng(seed))
        meta.training_["held_out"] = None if tested is None else tested.record()
    return FittedOutput(meta, tasks, tested)


def _kinds_of(tasks: TrainingData) -> dict[str, list[int]]:
    """Return the places of the inputs that are covariates or categories, as parameters of an estimator."""
    places = {name: [tasks.columns["x"].index(each) for each in tasks.columns.get(name, ())] for name in KINDS}
    return {name: found for name, found in places.items() if found}


def _save(metas: dict[str, Any], path: Path, private: bool) -> None:
    """Write the priors of all outputs to one file, and remove the checkpoints of their fits."""
    if len(metas) == 1:
        next(iter(metas.values())).save(path, private=private)
    else:
        from metaprior.estimators.persistence import write_priors

        write_priors(metas, path, private)
    for i, meta in enumerate(metas.values()):
        if meta.engine_ != "hierarchical":  # which has none: there may be one of another fit
            _checkpoint_of(path, i, len(metas)).unlink(missing_ok=True)


def _checkpoint_of(path: Path, i: int, n_outputs: int) -> Path:
    """Return the checkpoint of the i-th of the outputs that are saved to `path`."""
    return checkpoint_path(path if n_outputs == 1 else path.with_name(f"{path.name}.{i + 1}"))


def _figures(meta: Any, tasks: TrainingData) -> dict[str, Any]:
    """Return what --json prints of a fit."""
    kind = "classification" if tasks.labels else "regression"
    return {"kind": kind, "alpha": meta.alpha_, "family": meta.family_, **meta.training_}


def _write_report(report: Path, prior: Path, fitted: Fit, with_data: bool) -> None:
    """Write the page on a fit whose prior is saved."""
    from metaprior.app.fit_report import fit_report

    try:
        content = fit_report(fitted, NOTES, with_data)
        with last_files():
            write(report, content)
    except Exception:  # whatever it is, the prior is there, and its user should know
        print_note(f"{prior} is written, {report} is not.")
        raise


def _print_fit(meta: Any, labels: bool) -> None:
    """Print what was fitted to what, whether the source helped, and how well held-out tasks are predicted."""
    training = meta.training_
    y = training["columns"]["y"]
    outputs = meta.transfer_report().outputs
    what = f"{outputs}: {y} holds numbers"
    if labels:
        what = f"labels: {y} holds {class_words(None if meta.classes_ is None else meta.classes_.tolist())}"
    elif meta.likelihood_ != "gaussian":
        what += f", with the likelihood {meta.likelihood_}"
    counts = [f"{name}: {count}" for name, count in environment_rows(training, outputs)]
    out.print(f"Fitted to {what}.", *counts, sep="\n", soft_wrap=True)
    out.print(str(meta.transfer_report()), soft_wrap=True)
    if (guarantee := meta.model_.guarantee) is not None:
        words = guarantee_words(guarantee.n_tasks, len(guarantee.folds), guarantee.rule)
        out.print(f"Conformal intervals: {words}.", soft_wrap=True)
    if training.get("held_out"):
        print_held_out(training["held_out"], y, outputs)


def _train(tasks: TrainingData, target: str | None, settings: dict[str, Any], seed: int, checkpoint: Path) -> Any:
    """Return the fitted estimator."""
    import metaprior

    given = {name: value for name, value in settings.items() if value is not None}
    if tasks.labels and "noise_std" in given:
        raise ValueError("--noise is the noise of readings; y holds labels. Leave it out.")
    for name in ("likelihood", "exposure"):
        if tasks.labels and name in given:
            raise ValueError(f"--{name} is for numbers; y holds labels. Pass --kind regression, or leave it out.")
    if tasks.labels and "guarantee" in given:
        raise ValueError("--guarantee is for intervals of readings; y holds labels. Leave it out.")
    for_labels = [option for item, option in FOR_LABELS.items() if item in given.items()]
    if for_labels and not tasks.labels:
        raise ValueError(
            f"{for_labels[0]} is for labels; y holds numbers. Pass --kind classification, or leave it out."
        )
    kind = metaprior.MetaGPClassifier if tasks.labels else metaprior.MetaGPRegressor
    meta = kind(**given, random_state=seed)
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    tell_on_stop("The checkpoint is kept: run the same command again to resume.", checkpoint)
    if checkpoint.exists():
        found = f"found a checkpoint of an interrupted fit, {checkpoint}"
        print_note(f"{found}; it is resumed if it belongs to this fit, and kept if not.")
    arguments = {"target_tasks" if not name else f"source_tasks[{name!r}]": at for name, at in tasks.places.items()}
    with tasks_by_name(tasks.source, tasks.columns["y"], arguments, tasks.columns["x"]):
        if target is None:
            return meta.fit(target_tasks=tasks.environments[""], checkpoint=checkpoint)
        return meta.fit(tasks.environments, target=target, checkpoint=checkpoint)


def checkpoint_path(path: Path) -> Path:
    """Return the checkpoint of a fit that is to be saved to `path`."""
    return path.with_name(f".{path.name}.checkpoint")


def _place_of(exposure: str, x: Sequence[str]) -> int:
    """Return the number of the input column with the exposure, which only stored tasks may lack."""
    if exposure not in x:
        known = ", ".join(map(repr, x))
        found = f"--exposure names {exposure!r}, which is no input of the stored tasks: {known}"
        raise ValueError(f"{found}. Store the tables again, with this column in --x.")
    return list(x).index(exposure)


def _number_or_word(option: str, text: str) -> float | str:
    """Return a number if the text reads as one; the estimator checks the words."""
    try:
        return float(text)
    except ValueError:
        if any(character.isdigit() for character in text):
            raise ValueError(f"{option} must be a number or a word that --help lists; got {text!r}.") from None
        return text
