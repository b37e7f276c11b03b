"""`metaprior evaluate`."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from metaprior.cli.console import check_target, err, out, print_json, print_note, print_table, report_errors, task_label
from metaprior.cli.options import (
    AsJson,
    DropDuplicates,
    DropMissing,
    Environment,
    Prior,
    Task,
    X,
    Y,
    check_outputs,
    fitted_columns,
    write_frame,
    write_picture,
)

SHOWN = 12  # tasks in the terminal; --out writes all


def evaluate(
    prior: Prior,
    data: Annotated[Path, typer.Argument(help="CSV or Parquet table of tasks that the prior was not fitted to.")],
    context: Annotated[int, typer.Option(min=0, help="Readings of a task to adapt to; the others are predicted.")] = 5,
    task: Task = None,
    x: X = None,
    y: Y = None,
    environment: Environment = None,
    target: Annotated[str | None, typer.Option(help="Evaluate in this environment (default: that of the fit).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the choice of context readings.")] = 0,
    drop_missing: DropMissing = False,
    drop_duplicates: DropDuplicates = False,
    path: Annotated[Path | None, typer.Option("--out", help="CSV file for the metrics of every task.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot the calibration to this file.")] = None,
    as_json: AsJson = False,
):
    """Adapt a prior to each task of a table, and compare its predictions with those of models without a prior.

    The columns are those of the fit unless others are named.
    """
    from metaprior import load

    with report_errors():
        check_outputs([prior, data], path, plot)
        meta = load(prior)
        columns = _columns(meta, data, (task, x, y, environment))
        drops = {"drop_missing": drop_missing, "drop_duplicates": drop_duplicates}
        with err.status(f"reading {data}"):
            tests, names = _test_tasks(meta, data, columns, target, context, seed, drops)
        with err.status(f"predicting {len(tests)} tasks"):
            scores = {"metaprior": meta.evaluate(tests), **_baselines(meta, tests, context)}
        per_task = _per_task(names, columns.task, scores["metaprior"].per_task)
        if path is not None:
            write_frame(path, per_task)
        if plot is not None:
            from metaprior.plots import plot_calibration

            write_picture(plot, plot_calibration(meta, tests).figure)
    if as_json:
        metrics = (*_metrics(scores), "calibration_error")
        overall = {who: {name: float(score[name]) for name in metrics} for who, score in scores.items()}
        rows = per_task.astype(object).to_dict(orient="records")
        print_json({"tasks": len(tests), "context": context, "overall": overall, "per_task": rows})
        return
    _print_scores(scores, names)
    more = f" {len(names) - SHOWN} more tasks: --out writes all of them." if len(names) > SHOWN and path is None else ""
    out.print(f"{len(tests)} tasks, {context} readings of each as context.{more}")


def _columns(meta: Any, data: Path, given: tuple[Any, ...]) -> Any:
    """Return the columns to use, without that of environments if only the fitted table has it."""
    from metaprior.tables.csv_files import TableFile
    from metaprior.tables.reading import column_names

    columns = fitted_columns(meta, *given)
    if (
        given[-1] is None
        and columns.environment is not None
        and columns.environment not in column_names(TableFile.of(data))
    ):
        target = meta.training_["target"]
        print_note(f"{data} has no column {columns.environment!r}: all its tasks are evaluated as {target!r}.")
        return columns._replace(environment=None)
    return columns


def _test_tasks(
    meta: Any, data: Path, columns: Any, target: str | None, context: int, seed: int, drops: dict[str, Any]
) -> tuple[list[Any], list[Any]]:
    """Return the tasks of the target environment, split into context and queries, and their names."""
    from metaprior.prediction.ensemble import predicts_labels
    from metaprior.tables.frames import split_table
    from metaprior.tables.grouping import group_rows

    table = group_rows(data, columns, **drops, labels=predicts_labels(meta))
    if table.environments is not None:
        target = target or meta.training_["target"]
        check_target(str(target), table.environments, columns.environment)
    tests, names, skipped = split_table(table, context, np.random.default_rng(seed), target)
    if skipped:
        print_note(f"left out {len(skipped)} task(s) with at most {context} readings; the first is {skipped[0]!r}.")
    if not tests:
        raise ValueError(f"{data} has no task with more than {context} readings. Use a smaller --context.")
    return tests, names


def _baselines(meta: Any, tests: list[Any], context: int) -> dict[str, Any]:
    """Return the scores of models that are fitted to the context of each task alone."""
    from metaprior.estimators.baselines import BASELINES, score_baseline, score_per_task_gp
    from metaprior.metrics import report
    from metaprior.prediction.ensemble import predicts_labels
    from metaprior.tasks.labels import as_labeled_tests

    if context == 0:
        print_note("without context there is nothing to compare with.")
        return {}
    if not predicts_labels(meta):
        return {"scikit-learn GP": score_per_task_gp(tests)}
    encoded = as_labeled_tests(tests, "tasks", meta.model_.input_dim, meta.classes_)
    return {name: report(score_baseline(baseline, encoded)) for name, baseline in BASELINES.items()}


def _metrics(scores: dict[str, Any]) -> list[str]:
    return [name for name in scores["metaprior"].per_task if name != "width"]


def _print_scores(scores: dict[str, Any], names: list[Any]) -> None:
    """Print the means of all models, and the metrics of the first tasks."""
    metrics, per_task = _metrics(scores), scores["metaprior"].per_task
    cells = lambda score: [f"{score[name]:.3g} ± {score[f'{name}_se']:.2g}" for name in metrics]  # noqa: E731
    rows = [(who, *cells(score), f"{score.calibration_error:.3f}") for who, score in scores.items()]
    print_table(("mean over tasks", *metrics, "calibration"), rows)
    rows = [
        (task_label(name), *(f"{values[i]:.3g}" for values in per_task.values()))
        for i, name in enumerate(names[:SHOWN])
    ]
    print_table(("task", *per_task), rows)


def _per_task(names: list[Any], columns: tuple[str, ...], metrics: dict[str, Any]) -> Any:
    """Return a data frame of the metrics of every task, with the columns that name tasks."""
    import pandas as pd

    parts = [name if isinstance(name, tuple) else (name,) for name in names]
    naming = {column: [part[i] for part in parts] for i, column in enumerate(columns)}
    return pd.DataFrame({**naming, **metrics})
