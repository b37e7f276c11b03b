"""`metaprior evaluate`."""

import dataclasses
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

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
    AsJson,
    Decimal,
    DropDuplicates,
    DropMissing,
    Encoding,
    Environment,
    Prior,
    Sep,
    Task,
    X,
    Y,
    check_outputs,
    fitted_columns,
    fitted_format,
    write_results,
)
from metaprior.cli.scores import figures_of, fitted_rule, print_conformal, print_horizons, print_overall, score_horizons
from metaprior.cli.training_data import Place, tasks_by_name
from metaprior.tables.csv_files import Source, TableFile
from metaprior.tasks.splits import FIRST, ContextRule, as_context_rule

SHOWN = 12  # tasks in the terminal; --out writes all


def evaluate(
    prior: Prior,
    data: Annotated[Path, typer.Argument(help="CSV or Parquet table of tasks that the prior was not fitted to.")],
    context: Annotated[
        str | None,
        typer.Option(help="Readings of a task to adapt to, others are scored: 5 (at random), 'first 5', first (half)."),
    ] = None,
    task: Task = None,
    x: X = None,
    y: Y = None,
    environment: Environment = None,
    target: Annotated[str | None, typer.Option(help="Evaluate in this environment (default: that of the fit).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the choice of context readings.")] = 0,
    drop_missing: DropMissing = False,
    drop_duplicates: DropDuplicates = False,
    sep: Sep = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    path: Annotated[Path | None, typer.Option("--out", help="CSV or Parquet file for the scores of all tasks.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Plot the calibration, of labels also the confusion, to this file.")
    ] = None,
    as_json: AsJson = False,
):
    """Adapt a prior to each task of a table, and compare its predictions with those of a mixed model and of others.

    Columns, and how CSV files are written, are those of the fit unless others are named.
    """
    from metaprior import load

    with report_errors(as_json):
        check_outputs([prior, data], path, plot)
        meta = load(prior)
        table = TableFile(data, fitted_format(meta, sep, decimal, encoding))
        columns = _columns(meta, table, (task, x, y, environment))
        rule = fitted_rule(meta) if context is None else as_context_rule(context)
        drops = {"drop_missing": drop_missing, "drop_duplicates": drop_duplicates}
        evaluated = _evaluate(meta, table, columns, target, rule, seed, drops)
        figure = None if plot is None else _picture(meta, evaluated.tests, evaluated.ours)
        write_results((path, evaluated.per_task), (plot, figure))
    if as_json:
        print_result(evaluated.as_json())
    else:
        _print_evaluated(evaluated, path is None)


class Evaluated(NamedTuple):
    """A prior, compared with other models on the tasks of a table."""

    columns: Any
    rule: ContextRule
    tests: list[Any]
    names: list[Any]
    dates: list[str]
    compared: Any
    horizons: list[Any]
    per_task: Any  # a data frame
    output: str  # a reading, label, count or rank

    @property
    def ours(self) -> Any:
        """The scores of the prior."""
        return self.compared.scores["metaprior"]

    def as_json(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        rows, fitted_on = self.per_task.astype(object).to_dict(orient="records"), self.per_task["fitted_on"]
        counts = {"tasks": len(self.tests), "context": self.rule.size, "which": self.rule.kind}
        counts |= {"fitted_on": None if fitted_on.isna().any() else int(fitted_on.sum()), "horizons": self.horizons}
        return {**counts, **figures_of(self.compared), **_extra(self.ours), "per_task": rows}


def _evaluate(
    meta: Any, table: TableFile, columns: Any, target: str | None, rule: ContextRule, seed: int, drops: dict[str, Any]
) -> Evaluated:
    """Compare a prior with other models."""
    with err.status(f"reading {table}"):
        tests, names, place, dates = _test_tasks(meta, table, columns, target, rule, seed, drops)
    with tasks_by_name(Source.of(table, "data"), columns.y, {"test_tasks": place, "tasks": place}):
        fitted_on, n_outside = _fitted_on(meta, tests, names), _outside(meta, tests, columns.x)
        with err.status(f"predicting {counted(len(tests), 'task')}"), _known():
            compared = meta.compare(tests)
            horizons = score_horizons(meta, tests) if rule.kind == FIRST else []
    facts = {"fitted_on": fitted_on, "extrapolates": n_outside}
    per_task = _per_task(names, columns.task, {**compared.scores["metaprior"].per_task, **facts})
    return Evaluated(columns, rule, tests, names, dates, compared, horizons, per_task, _output(meta))


def _print_evaluated(each: Evaluated, short: bool) -> None:
    """Print the comparison, and the scores of the first tasks."""
    x = each.columns.x[0]
    figures, outputs = figures_of(each.compared), f"{each.output}s"
    print_overall(figures, each.columns.y, len(each.tests), each.compared.missing, outputs)
    print_conformal(each.ours)
    print_horizons(each.horizons, x, x in each.dates)
    _print_tasks(each.names, each.ours.per_task)
    n_more = len(each.names) - SHOWN
    more = f" {n_more} more tasks: --out writes all of them." if n_more > 0 and short else ""
    given = f"{counted(len(each.tests), 'task')}, with {each.rule.words(each.output)} of each as context"
    out.print(f"{given}.{more}", soft_wrap=True)


def _picture(meta: Any, tests: list[Any], scores: Any) -> Any:
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


def _fitted_on(meta: Any, tests: list[Any], names: list[Any]) -> np.ndarray:
    """Return which tasks the prior was fitted on, and say so: their scores would be taken for those of new tasks.

    They are None if the prior cannot tell.
    """
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


def _outside(meta: Any, tests: list[Any], names: tuple[str, ...]) -> list[int]:
    """Return how many queries of each task are outside the range of the fit, and warn if any are."""
    from metaprior.tasks.types import as_inputs

    features = dataclasses.replace(meta.features_, names=names)
    inputs = [as_inputs(test.x_query, "query", features) for test in tests]
    features.warn_outside(np.concatenate(inputs))
    return [int(features.outside(x).any(axis=1).sum()) for x in inputs]


@contextmanager
def _known() -> Iterator[None]:
    """Silence the library's warnings about tasks of the fit and inputs outside their range: they have been told."""
    from metaprior.estimators.seen_tasks import SeenTasksWarning
    from metaprior.tasks.columns import ExtrapolationWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeenTasksWarning)
        warnings.simplefilter("ignore", ExtrapolationWarning)
        yield


def _columns(meta: Any, data: TableFile, given: tuple[Any, ...]) -> Any:
    """Return the columns to use, without that of environments if only the fitted table has it."""
    from metaprior.tables.reading import column_names

    columns = fitted_columns(meta, *given)
    if given[-1] is None and columns.environment is not None and columns.environment not in column_names(data):
        target = meta.training_["target"]
        print_note(f"{data} has no column {columns.environment!r}: all its tasks are evaluated as {target!r}.")
        return columns._replace(environment=None)
    return columns


def _test_tasks(
    meta: Any, data: TableFile, columns: Any, target: str | None, rule: ContextRule, seed: int, drops: dict[str, Any]
) -> tuple[list[Any], list[Any], Place, list[str]]:
    """Return the tasks of the target, split into context and queries, their names and places, and columns of dates."""
    from metaprior.predict.ensemble import predicts_labels
    from metaprior.tables.frames import split_table
    from metaprior.tables.grouping import group_with_covariates, warn_if_absent

    table = group_with_covariates(data, columns, **drops, labels=predicts_labels(meta))
    warn_if_absent(columns, data)
    if table.environments is not None:
        target = target or meta.training_["target"]
        check_target(str(target), table.environments, columns.environment)
    features = dataclasses.replace(meta.features_, names=columns.x)
    tests, names, skipped = split_table(table, rule, np.random.default_rng(seed), features, target)
    if skipped:
        few = f"{counted(len(skipped), 'task')} with at most {counted(rule.size or 0, _output(meta))}"
        print_note(f"left out {few}; the first is {skipped[0]!r}.")
    if not tests:
        most = counted(rule.size or 0, _output(meta))
        raise ValueError(f"{data} has no task with more than {most}. Use a smaller --context.")
    rows = dict(zip(table.names, table.rows, strict=True))
    return tests, names, lambda i: (names[i], int(rows[names[i]][0])), table.dates


def _output(meta: Any) -> str:
    """Return what y holds, a reading or a label."""
    return meta.transfer_report().outputs.removesuffix("s")


def _print_tasks(names: list[Any], metrics: dict[str, Any]) -> None:
    """Print the metrics of the first tasks."""
    rows = [
        (task_label(name), *(f"{values[i]:.3g}" for values in metrics.values())) for i, name in enumerate(names[:SHOWN])
    ]
    print_table(("task", *metrics), rows)


def _per_task(names: list[Any], columns: tuple[str, ...], metrics: dict[str, Any]) -> Any:
    """Return a data frame of the metrics of every task, with the columns that name tasks."""
    import pandas as pd

    parts = [name if isinstance(name, tuple) else (name,) for name in names]
    naming = {column: [part[i] for part in parts] for i, column in enumerate(columns)}
    return pd.DataFrame({**naming, **metrics})
