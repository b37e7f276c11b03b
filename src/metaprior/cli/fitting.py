"""What `metaprior fit` and `metaprior wfem` share: options, the way from a table to a file, and what is printed."""

import functools
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from metaprior.checks import counted
from metaprior.cli.console import NOTES, err, out, print_note, print_result
from metaprior.cli.info import class_words, conformal_words, environment_rows, plot_report
from metaprior.cli.options import (
    AsJson,
    Categorical,
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
    typed,
    write,
)
from metaprior.cli.scores import print_held_out, score_held_out
from metaprior.cli.training_data import Fit, TrainingData, columns_by_name, read_training_data, tasks_by_name
from metaprior.tables.csv_files import TableFile, as_csv_format
from metaprior.terminal import last_files, tell_on_stop, visible

KINDS = ("covariates", "categorical")


class Kind(StrEnum):
    """What y holds."""

    auto = "auto"
    regression = "regression"
    classification = "classification"


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Options that both commands have."""

    data: Annotated[
        Path, typer.Argument(help="CSV or Parquet table, one row per reading; or a folder of `metaprior store`.")
    ]
    task: Task = None
    x: X = None
    y: Annotated[str | None, typer.Option("--y", help="Output column: numbers, or labels.")] = None
    categorical: Categorical = None
    path: Annotated[
        Path | None, typer.Option("--out", help="File for the prior (default: prior.safetensors, if it is new).")
    ] = None
    environment: Environment = None
    target: Annotated[str | None, typer.Option(help="Environment to predict in: a value of that column.")] = None
    kind: Annotated[Kind, typer.Option(help="What y holds; auto: labels if it is text, else numbers.")] = Kind.auto
    shared_classes: Annotated[
        bool | None,
        typer.Option(
            "--shared-classes/--own-classes",
            help="Labels mean the same in all tasks, or each task has its own (default: shared if one has them all).",
        ),
    ] = None
    context: Annotated[
        str, typer.Option(help="What is given of a task to predict: random, first (forecasting), 5 or 'first 5'.")
    ] = "random"
    search_time: Annotated[float | None, typer.Option(help="Seconds for the comparison that chooses alpha.")] = None
    max_tasks: Annotated[int | None, typer.Option(min=1, help="Use at most this many tasks per environment.")] = None
    held_out: Annotated[
        float | None, typer.Option("--hold-out", help="Share of the target's tasks to test the prior on, such as 0.2.")
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same prior.")] = 0
    private: Annotated[
        bool, typer.Option("--private", help="Write nothing that recognizes the tasks of the fit; coarse ranges.")
    ] = False
    drop_missing: DropMissing = False
    drop_duplicates: DropDuplicates = False
    sep: Sep = None
    decimal: Decimal = None
    encoding: Encoding = None
    plot: Annotated[Path | None, typer.Option(help="Plot the comparison that chose alpha to this file.")] = None
    report: Annotated[
        Path | None,
        typer.Option(help="Write a page on the fit to this .html file: data, comparison, calibration, examples."),
    ] = None
    without_data: Annotated[
        bool, typer.Option("--report-without-data", help="Leave readings and names of tasks out of the report.")
    ] = False
    as_json: AsJson = False


def takes_fit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function that takes FitOptions first, then options of its own by name."""
    shared, own = (inspect.signature(each).parameters for each in (FitOptions, command))

    @functools.wraps(command)
    def called(**given: Any) -> None:
        asked = FitOptions(**{name: given.pop(name) for name in shared})
        command(asked, **given)

    both = inspect.Signature([*shared.values(), *list(own.values())[1:]])
    called.__signature__ = both  # type: ignore[attr-defined]  # what typer reads
    return called


def fit_table(
    asked: FitOptions,
    command: typer.Context,
    make: Callable[[TrainingData], Any],
    covariates: list[str] | None = None,
    exposure: str | None = None,
    resumes: bool = False,
) -> None:
    """Fit the estimator that `make` returns for the tasks of a table; write the prior and print what was fitted.

    With `resumes`, the fit keeps a checkpoint beside the prior.
    """
    path = named_or_free(asked.path, "prior.safetensors")
    check_outputs([asked.data], path, asked.plot, asked.report)
    if asked.without_data and asked.report is None:
        raise ValueError("--report-without-data needs --report: name a file, as in --report fit.html.")
    if asked.report is not None:
        import metaprior_app  # noqa: F401  (raises now, before hours of fitting, if the extra is missing)
    checkpoint = _place_checkpoint(path) if resumes else None
    table = TableFile(asked.data, as_csv_format(asked.sep, asked.decimal, asked.encoding))
    tasks = _read(asked, table, covariates, exposure)
    meta = make(tasks)
    path.parent.mkdir(parents=True, exist_ok=True)
    if checkpoint is not None and checkpoint.exists():
        found = f"found a checkpoint of an interrupted fit, {checkpoint}"
        print_note(f"{found}; it is resumed if it belongs to this fit, and kept if not.")
    _train(meta, tasks, asked.target, {} if checkpoint is None else {"checkpoint": checkpoint})
    meta.training_.update(columns=tasks.columns, data="a pipe" if table.is_pipe else visible(table.path.name))
    meta.training_["csv"] = table.format._asdict()
    meta.feature_names_in_ = np.array(tasks.columns["x"], dtype=object)
    meta.report_ = replace(meta.report_, hint=columns_by_name(meta.report_.hint, tasks.columns["x"]))
    tested = None
    if tasks.held_out:
        with err.status(f"predicting {counted(len(tasks.held_out), 'held-out task')}"):
            tested = score_held_out(meta, tasks.held_out, np.random.default_rng(asked.seed))
        meta.training_["held_out"] = None if tested is None else tested.record()
    plotted = asked.plot is not None and plot_report(meta.transfer_report(), asked.plot)
    with last_files() if asked.report is None else nullcontext():
        meta.save(path, private=asked.private)
        if checkpoint is not None:
            checkpoint.unlink(missing_ok=True)
    if asked.report is not None:
        tell_on_stop(f"{path} is written, {asked.report} is not.")
        again = typed(command, ("plot", "report", "without_data", "as_json"))
        fitted = Fit(meta, tasks, asked.target, asked.seed, tested, again, table.is_pipe)
        _write_report(asked.report, path, fitted, not asked.without_data)
    written = [path, *([asked.plot] if plotted else []), *([asked.report] if asked.report is not None else [])]
    _print_result(asked, meta, tasks, list(map(str, written)))


def alpha_of(asked: FitOptions, alpha: str | None) -> dict[str, Any]:
    """Return the weight of other environments as a parameter; it is 0 if there are none."""
    if asked.target is not None:
        return {} if alpha is None else {"alpha": number_or_word("--alpha", alpha)}
    if asked.environment is None and alpha not in (None, "auto"):
        stored = "--target, and tasks stored with --environment"
        needs = stored if asked.data.is_dir() else "--environment and --target"
        raise ValueError(f"--alpha weights other environments: it needs {needs}.")
    return {"alpha": 0.0}


def number_or_word(option: str, text: str) -> float | str:
    """Return a number if the text reads as one; the estimator checks the words."""
    try:
        return float(text)
    except ValueError:
        if any(character.isdigit() for character in text):
            raise ValueError(f"{option} must be a number or a word that --help lists; got {text!r}.") from None
        return text


def parameters_of(asked: FitOptions, tasks: TrainingData) -> dict[str, Any]:
    """Return parameters that estimators of both commands have."""
    given: dict[str, Any] = {"context": asked.context, "random_state": asked.seed}
    for name in KINDS:
        if names := tasks.columns.get(name):
            given[name] = [tasks.columns["x"].index(each) for each in names]
    if asked.shared_classes is not None:
        check_kind(tasks, for_labels={"--shared-classes" if asked.shared_classes else "--own-classes": True})
        given["shared_classes"] = asked.shared_classes
    return given


def check_kind(
    tasks: TrainingData, for_numbers: dict[str, bool] | None = None, for_labels: dict[str, bool] | None = None
) -> None:
    """Raise for an option that is given (True) and is not for what y holds."""
    given, holds, other, kind = for_numbers, "labels", "numbers", "regression"
    if not tasks.labels:
        given, holds, other, kind = for_labels, "numbers", "labels", "classification"
    for option, is_given in (given or {}).items():
        if is_given:
            raise ValueError(f"{option} is for {other}; y holds {holds}. Pass --kind {kind}, or leave it out.")


def _read(asked: FitOptions, table: TableFile, covariates: list[str] | None, exposure: str | None) -> TrainingData:
    """Read the tasks to fit to, and those to test on."""
    x = asked.x
    if exposure is not None and x is not None and exposure not in x:
        x = [*x, exposure]
    named = {"task": asked.task, "x": x, "y": asked.y, "environment": asked.environment}
    named |= {"covariates": covariates, "categorical": asked.categorical}
    labels = None if asked.kind is Kind.auto else asked.kind is Kind.classification
    how = {"drop_missing": asked.drop_missing, "drop_duplicates": asked.drop_duplicates}
    return read_training_data(table, named, asked.target, labels, asked.max_tasks, asked.held_out, asked.seed, how)


def _place_checkpoint(path: Path) -> Path:
    """Return where the checkpoint of a fit is that is to be saved to `path`; who stops the fit is told of it."""
    checkpoint = path.with_name(f".{path.name}.checkpoint")
    tell_on_stop("The checkpoint is kept: run the same command again to resume.", checkpoint)
    return checkpoint


def _train(meta: Any, tasks: TrainingData, target: str | None, how: dict[str, Any]) -> None:
    arguments = {"target_tasks" if not name else f"source_tasks[{name!r}]": at for name, at in tasks.places.items()}
    with tasks_by_name(tasks.source, tasks.columns["y"], arguments, tasks.columns["x"]):
        if target is None:
            meta.fit(target_tasks=tasks.environments[""], **how)
        else:
            meta.fit(tasks.environments, target=target, **how)


def _write_report(report: Path, prior: Path, fitted: Fit, with_data: bool) -> None:
    """Write the page on a fit whose prior is saved."""
    from metaprior_app.report import fit_report

    try:
        content = fit_report(fitted, NOTES, with_data)
        with last_files():
            write(report, content)
    except Exception:  # whatever it is, the prior is there, and its user should know
        print_note(f"{prior} is written, {report} is not.")
        raise


def _print_result(asked: FitOptions, meta: Any, tasks: TrainingData, written: list[str]) -> None:
    if not asked.as_json:
        _print_fit(meta, tasks.labels)
        out.print(
            f"Wrote {' and '.join([', '.join(written[:-1])] * (len(written) > 1) + written[-1:])}.", soft_wrap=True
        )
        return
    kind = "classification" if tasks.labels else "regression"
    files = {"prior": written[0], **({"report": str(asked.report)} if asked.report is not None else {})}
    print_result({**files, "kind": kind, "alpha": meta.alpha_, "family": meta.family_, **meta.training_})


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
    if (conformal := meta.model_.conformal) is not None:
        words = conformal_words(conformal.n_tasks, len(conformal.folds), conformal.rule)
        out.print(f"Conformal intervals: {words}.", soft_wrap=True)
    if training.get("held_out"):
        print_held_out(training["held_out"], y, outputs)
