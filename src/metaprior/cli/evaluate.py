"""`metaprior evaluate`, and how good a prior is on test tasks: computed, recorded and printed."""

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer

from metaprior.checks import counted
from metaprior.cli.console import (
    check_target,
    err,
    out,
    print_note,
    print_result,
    print_table,
    report_errors,
    task_label,
)
from metaprior.cli.options import (
    DATA,
    OUTPUT,
    AsJson,
    Csv,
    Drop,
    Environment,
    Prior,
    Task,
    X,
    Y,
    check_outputs,
    columns_for,
    csv_format,
    drops,
    option,
    write_results,
)
from metaprior.tables.reading import Source, TableFile
from metaprior.tasks.splits import FIRST, RANDOM, ContextRule, as_context_rule, split_once
from metaprior.tasks.types import TestTask

if TYPE_CHECKING:
    from metaprior.cli.console import Estimator
    from metaprior.cli.training_data import Place
    from metaprior.estimators.base import MetaGP
    from metaprior.tables.columns import Columns

SHOWN = 12  # tasks in the terminal; --out writes all
N_BINS = 4  # of horizons
CONTEXT = 5  # readings of a task to adapt to


def evaluate(
    prior: Prior,
    data: Annotated[Path, typer.Argument(help="CSV or Parquet table of tasks that the prior was not fitted to.")],
    context: Annotated[
        str | None,
        option(
            "--context",
            "Readings of a task to adapt to, others are scored: 5 (at random), 'first 5', first (half).",
            DATA,
        ),
    ] = None,
    task: Task = None,
    x: X = None,
    y: Y = None,
    environment: Environment = None,
    target: Annotated[
        str | None, option("--target", "Evaluate in this environment (default: that of the fit).", DATA)
    ] = None,
    random_state: Annotated[int, option("--random-state", "Seed of the choice of context readings.", DATA, min=0)] = 0,
    drop: Drop = None,
    csv: Csv = None,
    path: Annotated[Path | None, option("--out", "CSV or Parquet file for the scores of all tasks.", OUTPUT)] = None,
    plot: Annotated[
        Path | None, option("--plot", "Plot the calibration, of labels also the confusion, to this file.", OUTPUT)
    ] = None,
    as_json: AsJson = False,
):
    """Adapt a prior to each task of a table, and compare its predictions with those of a mixed model and of others.

    Columns, and how CSV files are written, are those of the fit unless others are named.
    """
    from metaprior import load
    from metaprior.cli.training_data import tasks_by_name  # which imports this module

    with report_errors(as_json):
        check_outputs([prior, data], path, plot)
        meta = load(prior)
        table = TableFile(data, csv_format(csv, meta.training_.get("csv")))
        columns = _columns(meta, table, (task, x, y, environment))
        rule = fitted_rule(meta) if context is None else as_context_rule(context)
        output = meta.transfer_report().outputs.removesuffix("s")
        with err.status(f"reading {table}"):
            tested = _test_tasks(meta, table, columns, target, rule, random_state, drops(drop), output)
        tests, names, place = tested.tests, tested.names, tested.place
        with tasks_by_name(Source.of(table, "data"), columns.y, {"test_tasks": place, "tasks": place}):
            facts = {"fitted_on": _fitted_on(meta, tests, names), "extrapolates": _outside(meta, tests, columns.x)}
            with err.status(f"predicting {counted(len(tests), 'task')}"), _known():
                compared = meta.compare(tests)
                horizons = score_horizons(meta, tests) if rule.kind == FIRST else []
        ours = compared.scores["metaprior"]
        per_task = _per_task(names, columns.task, {**ours.per_task, **facts})
        figure = None if plot is None else _picture(meta, tests, ours)
        write_results((path, per_task), (plot, figure))
    if as_json:
        rows, seen = per_task.astype(object).to_dict(orient="records"), facts["fitted_on"]
        counts = {"tasks": len(tests), "context": rule.size, "which": rule.kind, "horizons": horizons}
        counts["fitted_on"] = None if meta.private_ else int(np.sum(seen))
        print_result({**counts, **figures_of(compared), **_extra(ours), "per_task": rows})
        return
    print_overall(figures_of(compared), columns.y, len(tests), compared.missing, f"{output}s")
    print_conformal(ours)
    print_horizons(horizons, columns.x[0], columns.x[0] in tested.dates)
    shown = [
        (task_label(name), *(f"{ours.per_task[each][i]:.3g}" for each in ours.per_task))
        for i, name in enumerate(names[:SHOWN])
    ]
    print_table(("task", *ours.per_task), shown)
    more = f" {len(names) - SHOWN} more tasks: --out writes all of them." if len(names) > SHOWN and path is None else ""
    given = f"{counted(len(tests), 'task')}, with {rule.words(output)} of each as context"
    out.print(f"{given}.{more}", soft_wrap=True)


class Tested(NamedTuple):
    """Tasks of a table, split into context and queries."""

    tests: list[TestTask]
    names: list[Any]
    place: "Place"
    dates: list[str]  # input columns that hold dates


def _picture(meta: "Estimator", tests: list[Any], scores: Any) -> Any:
    """Return a figure of the calibration and, of labels, of the classes that are confused."""
    from metaprior.plots import plot_calibration
    from metaprior.plots.classes import plot_scores

    if "reliability" in scores:
        return plot_scores(scores)
    with _known():
        return plot_calibration(meta, tests).figure


def _extra(scores: Any) -> dict[str, Any]:
    """Return, as JSON values, how conformal intervals did and which classes were confused, where there are any."""
    if "conformal_coverage" in scores:
        names = ("conformal_coverage", "conformal_coverage_se", "conformal_width", "conformal_width_se")
        return {name: float(scores[name]) for name in names}
    if scores.get("confusion") is None:
        return {}
    return {"confusion": {"classes": scores.classes.tolist(), "counts": scores.confusion.tolist()}}


def _fitted_on(meta: "Estimator", tests: list[Any], names: list[Any]) -> np.ndarray:
    """Return which tasks the prior was fitted on, with a note; None for each task if the prior is private."""
    if meta.private_:
        print_note(
            "the prior was saved with --private: whether it was fitted on some of these tasks cannot be told. If it "
            "was, their scores say little about new tasks."
        )
        return np.full(len(tests), None)
    whole = [(np.concatenate(test[::2]), np.concatenate(test[1::2])) for test in tests]
    seen = meta.fitted_on(whole)
    if seen.any():
        first = task_label(names[int(seen.argmax())])
        print_note(
            f"the prior was fitted on {seen.sum()} of these {counted(len(seen), 'task')} (the first is {first}). Their "
            "scores say how well it fits them, not how well it predicts new tasks. Evaluate other tasks, or hold some "
            "out with `metaprior fit --hold-out 0.2`."
        )
    return seen


def _outside(meta: "Estimator", tests: list[Any], names: tuple[str, ...]) -> list[int]:
    """Return how many queries of each task are outside the range of the fit, and warn if any are."""
    from metaprior.tasks.types import as_inputs

    features = dataclasses.replace(meta.features_, names=names)
    inputs = [as_inputs(test.x_query, "query", features) for test in tests]
    features.warn_outside(np.concatenate(inputs))
    return [int(features.outside(x).any(axis=1).sum()) for x in inputs]


@contextmanager
def _known() -> Iterator[None]:
    """Silence warnings about tasks of the fit and inputs outside their range, which were printed already."""
    from metaprior.estimators.environments import SeenTasksWarning
    from metaprior.tasks.columns import ExtrapolationWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeenTasksWarning)
        warnings.simplefilter("ignore", ExtrapolationWarning)
        yield


def _columns(meta: "Estimator", data: TableFile, given: tuple[Any, ...]) -> "Columns":
    """Return the columns to use, without that of environments if only the fitted table has it."""
    from metaprior.tables.reading import column_names

    columns = columns_for(meta, *given)
    if given[-1] is None and columns.environment is not None and columns.environment not in column_names(data):
        target = meta.training_["target"]
        print_note(f"{data} has no column {columns.environment!r}: all its tasks are evaluated as {target!r}.")
        return columns._replace(environment=None)
    return columns


def _test_tasks(
    meta: "Estimator",
    data: TableFile,
    columns: "Columns",
    target: str | None,
    rule: ContextRule,
    seed: int,
    how: dict[str, Any],
    output: str,
) -> Tested:
    """Return the tasks of the target; `output` is a reading, label, count or rank."""
    from metaprior.predict.ensemble import predicts_labels
    from metaprior.tables.frames import split_table
    from metaprior.tables.grouping import group_with_covariates, warn_if_absent

    table = group_with_covariates(data, columns, labels=predicts_labels(meta), **how)
    warn_if_absent(columns, data)
    if table.environments is not None:
        target = target or meta.training_["target"]
        check_target(str(target), table.environments, columns.environment)
    features = dataclasses.replace(meta.features_, names=columns.x)
    tests, names, skipped = split_table(table, rule, np.random.default_rng(seed), features, target)
    most = counted(rule.size or 0, output)
    if skipped:
        print_note(f"left out {counted(len(skipped), 'task')} with at most {most}; the first is {skipped[0]!r}.")
    if not tests:
        raise ValueError(f"{data} has no task with more than {most}. Use a smaller --context.")
    rows = dict(zip(table.names, table.rows, strict=True))
    return Tested(tests, names, lambda i: (names[i], int(rows[names[i]][0])), table.dates)


def _per_task(names: list[Any], columns: tuple[str, ...], metrics: dict[str, Any]) -> Any:
    """Return a data frame of the metrics of every task, with the columns that name tasks."""
    import pandas as pd

    parts = [name if isinstance(name, tuple) else (name,) for name in names]
    naming = {column: [part[i] for part in parts] for i, column in enumerate(columns)}
    return pd.DataFrame({**naming, **metrics})


def score_horizons(meta: "Estimator", tests: list[Any]) -> list[dict[str, float]]:
    """Return scores of queries by their distance from the last reading of the context, in bins of equal numbers.

    For readings: root mean square error, and the share inside the 90% interval. For labels: the share predicted.
    """
    from metaprior.predict.ensemble import predicts_labels

    tests = [test for test in tests if len(test.y_context)]
    if not tests:
        return []
    horizons = np.concatenate([test.x_query[:, 0] - test.x_context[:, 0].max() for test in tests])
    adapted: Any = meta.adapt_many([test[:2] for test in tests])
    queries = [test.x_query for test in tests]
    y = np.concatenate([test.y_query for test in tests])
    if predicts_labels(meta):
        values = {"accuracy": (np.concatenate(adapted.predict(queries)) == y).astype(float)}
    else:
        lower, upper = (np.concatenate(ends) for ends in adapted.interval(queries))
        squares = (np.concatenate(adapted.predict(queries)) - y) ** 2
        values = {"rmse": squares, "coverage": ((y >= lower) & (y <= upper)).astype(float)}
    edges = np.unique(np.quantile(horizons, np.linspace(0.0, 1.0, N_BINS + 1)))
    bins = np.clip(np.searchsorted(edges, horizons, side="right") - 1, 0, max(len(edges) - 2, 0))
    found = []
    for here in (bins == i for i in np.unique(bins)):
        means = {name: float(np.mean(of_all[here])) for name, of_all in values.items()}
        means |= {"rmse": float(np.sqrt(means["rmse"]))} if "rmse" in means else {}
        near, far = float(horizons[here].min()), float(horizons[here].max())
        found.append({"from": near, "to": far, "readings": int(here.sum()), **means})
    return found


def print_horizons(horizons: list[dict[str, float]], x: str, is_date: bool) -> None:
    """Print a row for every bin, if there are any."""
    if not horizons:
        return
    names = [name for name in horizons[0] if name not in ("from", "to")]
    rows = [(f"{each['from']:.3g} to {each['to']:.3g}", *(f"{each[name]:.3g}" for name in names)) for each in horizons]
    unit = "days" if is_date else f"the units of {x}"
    print_table(("horizon", *names), rows)
    out.print(f"horizon: from the last reading of the context, in {unit}.", soft_wrap=True)


def figures_of(compared: Any) -> dict[str, dict[str, dict[str, float]]]:
    """Return the means over tasks of all models, and what the prior gains over each, as JSON values."""
    scores = compared.scores
    means = [name for name in scores["metaprior"].per_task if name != "width" and not name.startswith("conformal")]
    names = [each for name in means for each in (name, f"{name}_se")]
    of_all = {
        who: {name: float(score[name]) for name in (*names, "calibration_error")} for who, score in scores.items()
    }
    return {"overall": of_all, "gains": {who: dict(gain) for who, gain in compared.gains.items()}}


def print_overall(
    figures: dict[str, Any], y: str | None, n_tasks: int, missing: str = "", outputs: str = "readings"
) -> None:
    """Print the means over tasks of all models, what they mean, and what the prior gains over each.

    `outputs` are readings, labels, counts or ranks.
    """
    from metaprior.estimators.comparison import gain_in_words, with_error
    from metaprior.metrics import meaning_of

    of_all = figures["overall"]
    names = [name for name in of_all["metaprior"] if not name.endswith("_se")]
    rows = [
        (who, *(with_error(score[name], score.get(f"{name}_se")) for name in names)) for who, score in of_all.items()
    ]
    print_table(("mean over tasks", *(name.replace("_", " ") for name in names)), rows)
    unit = f"the units of {y or 'y'}"
    meanings = "; ".join(
        f"{name.replace('_', ' ')}: {meaning_of(name, outputs).replace('the units of y', unit)}" for name in names
    )
    meanings = meanings.replace("inside the interval", "inside the 90% interval")  # what `evaluate` computes
    out.print(f"{meanings}. ±: standard error over tasks.", soft_wrap=True)
    for who, gain in figures.get("gains", {}).items():  # not in files of earlier versions
        out.print(gain_in_words(who, gain, n_tasks), soft_wrap=True)
    if missing:
        out.print(missing, soft_wrap=True)


def print_conformal(scores: Any) -> None:
    """Print the coverage and width of conformal intervals, if there are any."""
    if "conformal_coverage" not in scores:
        return
    inside = f"{100 * scores.conformal_coverage:.3g} ± {100 * scores.conformal_coverage_se:.2g}%"
    wide = f"its width is {scores.conformal_width:.3g}"  # if that of the model is none: a rank that is certain
    if scores.width > 0.0:
        wide = f"it is {scores.conformal_width / scores.width:.3g} times as wide"
    band = f"Inside the conformal interval of nominally {scores.nominal_coverage:.0%}"
    out.print(f"{band}: {inside}; {wide}.", soft_wrap=True)


def hold_out(sizes: Sequence[int], share: float, order: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the places of tasks to fit to and, a share of them in the given order, of those to test on."""
    if not 0.0 < share < 1.0:
        raise ValueError(f"--hold-out must be a share of the tasks, between 0 and 1; got {share:g}.")
    held = set(order[: max(round(share * len(sizes)), 1)])
    if len(sizes) - len(held) < 2:
        found = f"holds out {len(held)} of {counted(len(sizes), 'task')} of the target"
        raise ValueError(f"--hold-out {share:g} {found}. It must leave two or more to fit to.")
    tested = [i for i in sorted(held) if sizes[i] > 1]
    if not tested:
        found = f"{counted(len(held), 'task')} with one reading each"
        raise ValueError(f"--hold-out {share:g} drew {found}: there is none to test on. Hold out a larger share.")
    return [i for i in range(len(sizes)) if i not in held], tested


class HeldOut(NamedTuple):
    """Held-out tasks that the prior was tested on, and how it compares with other models there."""

    places: list[int]  # among all held-out tasks
    tests: list[Any]
    compared: Any
    rule: ContextRule

    def record(self) -> dict[str, Any]:
        """Return what is kept of it in the file of the prior."""
        given = {"context": self.rule.size, "which": self.rule.kind}
        return {"tasks": len(self.tests), **given, **figures_of(self.compared)}


def score_held_out(meta: "Estimator", held: list[Any], rng: np.random.Generator) -> HeldOut | None:
    """Test a prior on held-out tasks, adapted to the readings that `fitted_rule` says.

    Tasks with a class that no task of the fit has are left out; without any other there is nothing to test.
    """
    known = [i for i, task in enumerate(held) if knows_classes(meta, task)]
    if len(known) < len(held):
        what = "label" if hasattr(meta, "classes_") else "level"
        found = f"{counted(len(held) - len(known), 'held-out task')} with a {what} that no task of the fit has"
        print_note(f"the prior is not tested on {found}.")
    if not known:
        return None
    rule = fitted_rule(meta)
    tests = [split_held_out(held[i], rule, rng) for i in known]
    return HeldOut(known, tests, meta.compare(tests), rule)


def fitted_rule(meta: "MetaGP") -> ContextRule:
    """Return which readings are given by default: five at random, unless the fit was told otherwise."""
    rule = as_context_rule(meta.parameters_.get("context", RANDOM))
    return rule._replace(size=CONTEXT) if rule.size is None else rule


def split_held_out(task: Any, rule: ContextRule, rng: np.random.Generator) -> Any:
    """Return a task with the readings of its context, or half of fewer, and the others as queries."""
    assert rule.size is not None
    return split_once(task, rule._replace(size=min(rule.size, len(task.y) // 2)), rng)


def knows_classes(meta: "Estimator", task: Any) -> bool:
    """Return whether a prior of shared classes or of ranks, if it is one, has all classes or levels of a task."""
    if not hasattr(meta, "classes_"):
        return meta.model_.likelihood.allow(np.asarray(task.y, float))
    shared = getattr(meta, "classes_", None)
    return shared is None or set(task.y.tolist()) <= set(shared.tolist())


def print_held_out(held_out: dict[str, Any], y: str | None, outputs: str) -> None:
    """Print the scores on held-out tasks; `outputs` are readings, labels, counts or ranks."""
    tasks = counted(held_out["tasks"], "held-out task")
    first = "the first " if held_out.get("which") == FIRST else ""
    words = f"{tasks} of the target, which the prior has not seen; {first}{held_out['context']} "
    out.print(f"{words}{outputs} of each (half, of shorter ones) as context:", soft_wrap=True)
    print_overall(held_out, y, held_out["tasks"], outputs=outputs)
