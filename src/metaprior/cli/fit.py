"""`metaprior fit`, and what `metaprior wfem` shares with it: options, from a table to a file, what is printed."""

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from metaprior.checks import check_integer, counted
from metaprior.cli.console import NOTES, err, out, print_note, print_result, report_errors
from metaprior.cli.evaluate import print_held_out, score_held_out
from metaprior.cli.info import class_words, conformal_words, environment_rows
from metaprior.cli.options import (
    COLUMN,
    DATA,
    MODEL,
    OUTPUT,
    PAIR,
    AsJson,
    Csv,
    Drop,
    Environment,
    Names,
    Task,
    X,
    Y,
    check_outputs,
    csv_format,
    drops,
    named_or_free,
    named_values,
    option,
    typed,
    value_of,
    write,
)
from metaprior.cli.training_data import Fit, TrainingData, columns_by_name, read_training_data, tasks_by_name
from metaprior.tables.reading import TableFile
from metaprior.terminal import last_files, tell_on_stop, visible

if TYPE_CHECKING:
    from metaprior.cli.console import Estimator

OWN = ("alpha", "categorical", "context", "covariates", "likelihood")  # parameters with an option of their own


class Kind(StrEnum):
    """What y holds."""

    auto = "auto"
    regression = "regression"
    classification = "classification"


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Options that both commands have."""

    data: Annotated[
        Path,
        typer.Argument(help="CSV or Parquet table, one row per reading; or a folder of `metaprior store`."),
    ]
    task: Task = None
    x: X = None
    y: Y = None
    categorical: Annotated[
        Names,
        option("--categorical", "Columns of numbers that hold categories; text is recognized.", DATA, metavar=COLUMN),
    ] = None
    environment: Environment = None
    target: Annotated[str | None, option("--target", "Environment to predict in: a value of that column.", DATA)] = None
    drop: Drop = None
    csv: Csv = None
    kind: Annotated[Kind, option("--kind", "What y holds; auto: labels if it is text, else numbers.", MODEL)] = (
        Kind.auto
    )
    context: Annotated[
        str,
        option("--context", "What is given of a task to predict: random, first (forecasting), 5 or 'first 5'.", MODEL),
    ] = "random"
    set: Annotated[Names, option("--set", "Other parameters of the estimator, see above.", MODEL, metavar=PAIR)] = None
    out: Annotated[
        Path | None, option("--out", "File for the prior (default: prior.safetensors, if it is new).", OUTPUT)
    ] = None
    report: Annotated[
        Path | None,
        option("--report", "Write a page on the fit to this .html file: data, comparison, tests, examples.", OUTPUT),
    ] = None
    hold_out: Annotated[
        float | None, option("--hold-out", "Share of the target's tasks to test the prior on, such as 0.2.", OUTPUT)
    ] = None
    private: Annotated[
        bool,
        option("--private", "Write nothing that recognizes the tasks of the fit: coarse ranges, no readings.", OUTPUT),
    ] = False
    as_json: AsJson = False


def takes_fit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function that takes FitOptions first, then other options by name."""
    shared, own = (inspect.signature(each).parameters for each in (FitOptions, command))

    @functools.wraps(command)
    def called(**given: Any) -> None:
        asked = FitOptions(**{name: given.pop(name) for name in shared})
        command(asked, **given)

    both = inspect.Signature([*shared.values(), *list(own.values())[1:]])
    called.__signature__ = both  # type: ignore[attr-defined]  # what typer reads
    return called


@takes_fit_options
def fit(
    asked: FitOptions,
    *,
    command: typer.Context,
    covariates: Annotated[
        Names,
        option("--covariates", "Columns that are constant within a task: --covariates age sex.", DATA, metavar=COLUMN),
    ] = None,
    likelihood: Annotated[
        str,
        option(
            "--likelihood",
            "gaussian, student-t (outliers), poisson or negative-binomial (counts), ordinal (ranks).",
            MODEL,
        ),
    ] = "gaussian",
    alpha: Annotated[
        str, option("--alpha", "Weight of the other environments: auto, pooled, or 0 to 1.", MODEL)
    ] = "auto",
):
    """Learn a prior from the tasks of a table and save it.

    It takes seconds. With --hold-out the prior is also tested, on tasks that it is not fitted to.

    Parameters for --set: noise_std=0.1, exposure=COLUMN, conformal=true, shared_classes=false, calibrate=false,
    search_time=60, progress=false, random_state=1, as of MetaGPRegressor and MetaGPClassifier.
    """
    with report_errors(asked.as_json, "Use fewer tasks."):
        from metaprior import MetaGPClassifier, MetaGPRegressor

        kinds = {False: MetaGPRegressor, True: MetaGPClassifier}
        names = {labels: set(kind._get_param_names()) - set(OWN) for labels, kind in kinds.items()}
        given = named_values("--set", asked.set, sorted(names[False] | names[True]))
        exposure = given.pop("exposure", None)
        settings = {"random_state": 0, **{name: value_of(value) for name, value in given.items()}}
        if asked.private and settings.get("conformal"):
            stored = "fits without each target task, or each few, from which their averages can be told"
            found = f"--private cannot hide what conformal intervals need: {stored}"
            raise ValueError(f"{found}. Leave out one of the two.")

        weight = alpha_of(asked, alpha)

        def make(tasks: TrainingData) -> "Estimator":
            foreign = [name for name in settings if name not in names[tasks.labels]]
            foreign += ["exposure"] if exposure is not None and tasks.labels else []
            check_kind(tasks, [f"--set {name}" for name in foreign])
            if likelihood != "gaussian" and tasks.labels:
                check_kind(tasks, ["--likelihood"])
            own = {**settings, **weight, **parameters_of(asked, tasks)}
            if not tasks.labels:
                place = None if exposure is None else _place_of(exposure, tasks.columns["x"])
                own |= {"likelihood": likelihood, "exposure": place}
            return kinds[tasks.labels](**own)

        fit_table(asked, command, make, settings["random_state"], covariates, exposure)


def fit_table(
    asked: FitOptions,
    command: typer.Context,
    make: Callable[[TrainingData], "Estimator"],
    seed: Any,
    covariates: Sequence[str] | None = None,
    exposure: str | None = None,
    resumes: bool = False,
) -> None:
    """Fit the estimator that `make` returns for the tasks of a table; write the prior and print what was fitted.

    With `resumes`, the fit keeps a checkpoint beside the prior.
    """
    seed, path = check_integer("random_state", seed, least=0), named_or_free(asked.out, "prior.safetensors")
    check_outputs([asked.data], path, None, asked.report)
    if asked.report is not None:
        import metaprior_app  # noqa: F401  (raises now, before hours of fitting, if the extra is missing)
    checkpoint = _place_checkpoint(path) if resumes else None
    table = TableFile(asked.data, csv_format(asked.csv))
    tasks = _read(asked, table, covariates, exposure, seed)
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
            tested = score_held_out(meta, tasks.held_out, np.random.default_rng(seed))
        meta.training_["held_out"] = None if tested is None else tested.record()
    with last_files() if asked.report is None else nullcontext():
        meta.save(path, private=asked.private)
        if checkpoint is not None:
            checkpoint.unlink(missing_ok=True)
    written = [str(path)]
    if asked.report is not None:
        tell_on_stop(f"{path} is written, {asked.report} is not.")
        fitted = Fit(meta, tasks, asked.target, seed, tested, typed(command, ("report", "as_json")), table.is_pipe)
        _write_report(asked.report, path, fitted, not asked.private)
        written.append(str(asked.report))
    _print_result(asked, meta, tasks, written)


def alpha_of(asked: FitOptions, alpha: str | None) -> dict[str, Any]:
    """Return the weight of other environments as a parameter; it is 0 if there are none."""
    if asked.target is not None:
        return {} if alpha is None else {"alpha": value_of(alpha)}
    if asked.environment is None and alpha not in (None, "auto"):
        stored = "--target, and tasks stored with --environment"
        needs = stored if asked.data.is_dir() else "--environment and --target"
        raise ValueError(f"--alpha weights other environments: it needs {needs}.")
    return {"alpha": 0.0}


def parameters_of(asked: FitOptions, tasks: TrainingData) -> dict[str, Any]:
    """Return parameters that estimators of both commands have."""
    given: dict[str, Any] = {"context": asked.context}
    for name in ("covariates", "categorical"):
        if names := tasks.columns.get(name):
            given[name] = [tasks.columns["x"].index(each) for each in names]
    return given


def check_kind(tasks: TrainingData, options: Sequence[str]) -> None:
    """Raise if there is an option that is not for what y holds."""
    holds, other, kind = (
        ("labels", "numbers", "regression") if tasks.labels else ("numbers", "labels", "classification")
    )
    for name in options:
        raise ValueError(f"{name} is for {other}; y holds {holds}. Pass --kind {kind}, or leave it out.")


def _place_of(exposure: str, x: Sequence[str]) -> int:
    """Return the number of the input column with the exposure, which only stored tasks may lack."""
    if exposure not in x:
        known = ", ".join(map(repr, x))
        found = f"--set exposure names {exposure!r}, which is not an input of the stored tasks: {known}"
        raise ValueError(f"{found}. Store the tables again, with this column in --x.")
    return list(x).index(exposure)


def _read(
    asked: FitOptions, table: TableFile, covariates: Sequence[str] | None, exposure: str | None, seed: int
) -> TrainingData:
    """Read the tasks to fit to, and those to test on."""
    x = asked.x
    if exposure is not None and x is not None and exposure not in x:
        x = [*x, exposure]
    named = {"task": asked.task, "x": x, "y": asked.y, "environment": asked.environment}
    named |= {"covariates": covariates, "categorical": asked.categorical}
    labels = None if asked.kind is Kind.auto else asked.kind is Kind.classification
    return read_training_data(table, named, asked.target, labels, asked.hold_out, seed, drops(asked.drop))


def _place_checkpoint(path: Path) -> Path:
    """Return where the checkpoint of a fit is that is to be saved to `path`, which a stopped command mentions."""
    checkpoint = path.with_name(f".{path.name}.checkpoint")
    tell_on_stop("The checkpoint is kept: run the same command again to resume.", checkpoint)
    return checkpoint


def _train(meta: "Estimator", tasks: TrainingData, target: str | None, how: dict[str, Any]) -> None:
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


def _print_result(asked: FitOptions, meta: "Estimator", tasks: TrainingData, written: list[str]) -> None:
    """Print what was fitted to what, whether the source helped, and how well held-out tasks are predicted."""
    training, report = meta.training_, meta.transfer_report()
    if asked.as_json:
        kind = "classification" if tasks.labels else "regression"
        files = dict(zip(("prior", "report"), written, strict=False))
        print_result({**files, "kind": kind, "alpha": meta.alpha_, "family": meta.family_, **training})
        return
    y = training["columns"]["y"]
    what = f"{report.outputs}: {y} holds numbers"
    if tasks.labels:
        classes = getattr(meta, "classes_", None)
        what = f"labels: {y} holds {class_words(None if classes is None else classes.tolist())}"
    elif meta.likelihood_ != "gaussian":
        what += f", with the likelihood {meta.likelihood_}"
    counts = [f"{name}: {count}" for name, count in environment_rows(training, report.outputs)]
    out.print(f"Fitted to {what}.", *counts, sep="\n", soft_wrap=True)
    out.print(str(report), soft_wrap=True)
    if (conformal := meta.model_.conformal) is not None:
        words = conformal_words(conformal.n_tasks, len(conformal.folds), conformal.rule)
        out.print(f"Conformal intervals: {words}.", soft_wrap=True)
    if training.get("held_out"):
        print_held_out(training["held_out"], y, report.outputs)
    out.print(f"Wrote {' and '.join(written)}.", soft_wrap=True)
