"""`metaprior evaluate`."""

import dataclasses
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

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
from metaprior.cli.horizons import print_horizons, score_horizons
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
from metaprior.cli.scores import compare, fitted_rule, overall, print_overall
from metaprior.cli.task_names import Place, tasks_by_name
from metaprior.tables.csv_files import Source, TableFile
from metaprior.tasks.context_rules import FIRST, ContextRule, as_context_rule

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
    """Adapt a prior to each task of a table, and compare its predictions with those of models without a prior.

    Columns, and how CSV files are written, are those of the fit unless others are named.
    """
    from metaprior import load

    with report_errors(as_json):
        check_outputs([prior, data], path, plot)
        meta = load(prior)
        table = TableFile(data, fitted_format(meta, sep, decimal, encoding))
        columns = _columns(meta, table, (task, x, y, environment))
        drops = {"drop_missing": drop_missing, "drop_duplicates": drop_duplicates}
        rule = fitted_rule(meta) if context is None else as_context_rule(context)
        with err.status(f"reading {table}"):
            tests, names, place, dates = _test_tasks(meta, table, columns, target, rule, seed, drops)
        with tasks_by_name(Source.of(table, "data"), columns.y, {"test_tasks": place, "tasks": place}):
            fitted_on, n_outside = _fitted_on(meta, tests, names), _outside(meta, tests, columns.x)
            with err.status(f"predicting {counted(len(tests), 'task')}"), _known():
                scores = compare(meta, tests, has_context=rule.size != 0)
                horizons = score_horizons(meta, tests) if rule.kind == FIRST else []
        facts = {"fitted_on": fitted_on, "extrapolates": n_outside}
        per_task = _per_task(names, columns.task, {**scores["metaprior"].per_task, **facts})
        figure = None if plot is None else _picture(meta, tests, scores["metaprior"])
        write_results((path, per_task), (plot, figure))
    if as_json:
        rows, counts = per_task.astype(object).to_dict(orient="records"), {"tasks": len(tests), "context": rule.size}
        counts |= {"which": rule.kind, "fitted_on": int(fitted_on.sum()), "horizons": horizons}
        print_result({**counts, "overall": overall(scores), **_confusion(scores["metaprior"]), "per_task": rows})
        return
    print_overall(overall(scores), columns.y)
    print_horizons(horizons, columns.x[0], columns.x[0] in dates)
    _print_tasks(names, scores["metaprior"].per_task)
    more = f" {len(names) - SHOWN} more tasks: --out writes all of them." if len(names) > SHOWN and path is None else ""
    compared = "" if rule.size != 0 else " Without context there is nothing to compare with."
    given = f"{counted(len(tests), 'task')}, with {rule.words(_output(meta))} of each as context"
    out.print(f"{given}.{compared}{more}", soft_wrap=True)


def _picture(meta: Any, tests: list[Any], scores: Any) -> Any:
    """Return a figure of the calibration and, of labels, of the classes that are confused."""
    from metaprior.plots import plot_calibration
    from metaprior.plots.class_scores import plot_scores

    if "reliability" in scores:
        return plot_scores(scores)
    with _known():
        return plot_calibration(meta, tests).figure


def _confusion(scores: Any) -> dict[str, Any]:
    """Return, as JSON values, how often each class was predicted for queries of each, if tasks share their classes."""
    if scores.get("confusion") is None:
        return {}
    return {"confusion": {"classes": scores.classes.tolist(), "counts": scores.confusion.tolist()}}


def _fitted_on(meta: Any, tests: list[Any], names: list[Any]) -> np.ndarray:
    """Return which tasks the prior was fitted on, and say so: their scores would be taken for those of new tasks."""
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
    features = dataclasses.replace(meta.features_, names=names)
    features.warn_outside(np.concatenate([test.x_query for test in tests]))
    return [int(features.outside(test.x_query).any(axis=1).sum()) for test in tests]


@contextmanager
def _known() -> Iterator[None]:
    """Silence the library's warnings about tasks of the fit and inputs outside their range: they have been told."""
    from metaprior.estimators.seen_tasks import SeenTasksWarning
    from metaprior.tasks.input_columns import ExtrapolationWarning

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
    from metaprior.prediction.ensemble import predicts_labels
    from metaprior.tables.frames import split_table
    from metaprior.tables.grouping import group_rows

    table = group_rows(data, columns, **drops, labels=predicts_labels(meta))
    if table.environments is not None:
        target = target or meta.training_["target"]
        check_target(str(target), table.environments, columns.environment)
    tests, names, skipped = split_table(table, rule, np.random.default_rng(seed), target)
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
