"""`metaprior evaluate`."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from metaprior.cli.console import out, print_json, print_note, print_table, report_errors, status, task_label
from metaprior.cli.options import AsJson, DropDuplicates, DropMissing, Environment, Prior, Task, X, Y, known_columns
from metaprior.cli.outputs import check_outputs, write_frame, write_picture

SHOWN = 12  # tasks in the terminal; all are in the file


def evaluate(
    prior: Prior,
    data: Annotated[Path, typer.Argument(help="CSV or Parquet table of tasks that the prior has not seen.")],
    context: Annotated[int, typer.Option(min=0, help="Readings of a task to adapt to; the others are predicted.")] = 5,
    task: Task = None,
    x: X = None,
    y: Y = None,
    environment: Environment = None,
    target: Annotated[str | None, typer.Option(help="Evaluate in this environment (default: that of the fit).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Other seeds choose other readings as context.")] = 0,
    drop_missing: DropMissing = False,
    drop_duplicates: DropDuplicates = False,
    path: Annotated[Path | None, typer.Option("--out", help="CSV file for the metrics of every task.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw how well it is calibrated into this file.")] = None,
    as_json: AsJson = False,
):
    """Adapt a prior to each task of a table, and score its predictions against those of models without a prior.

    Columns are those of the fit unless others are named.
    """
    from metaprior import load
    from metaprior.plots import plot_calibration
    from metaprior.tables.prediction_frames import split_table

    with report_errors():
        check_outputs([prior, data], path, plot)
        meta = load(prior)
        with status(f"reading {data}"):
            table, columns = _table(meta, data, (task, x, y, environment), target, drop_missing, drop_duplicates)
        tests, names, skipped = split_table(table, context, np.random.default_rng(seed))
        if skipped:
            print_note(
                f"{len(skipped)} task(s) with no more than {context} readings are left out, {skipped[0]!r} first."
            )
        if not tests:
            raise ValueError(f"{data} has no task with more than {context} readings. Take a smaller --context.")
        with status(f"predicting {len(tests)} tasks"):
            scores = {"metaprior": meta.evaluate(tests), **_baselines(meta, tests, context)}
        per_task = dict(scores["metaprior"].per_task)
        if path is not None:
            write_frame(path, _frame(names, columns.task, per_task))
        if plot is not None:
            write_picture(plot, plot_calibration(meta, tests).figure)
    metrics = [name for name in per_task if name != "width"]
    if as_json:
        overall = {who: {m: float(score[m]) for m in (*metrics, "calibration_error")} for who, score in scores.items()}
        rows = _frame(names, columns.task, per_task).astype(object).to_dict(orient="records")
        print_json({"tasks": len(tests), "context": context, "overall": overall, "per_task": rows})
        return
    rows = [(who, *(_cell(s, name) for name in metrics), f"{s.calibration_error:.3f}") for who, s in scores.items()]
    print_table(("mean over tasks", *metrics, "calibration"), rows)
    shown = list(enumerate(names))[:SHOWN]
    print_table(("task", *per_task), [(task_label(n), *(f"{v[i]:.3g}" for v in per_task.values())) for i, n in shown])
    left = f" {len(names) - SHOWN} more tasks: --out writes all of them." if len(names) > SHOWN and path is None else ""
    out.print(f"{len(tests)} tasks, {context} readings of each as context.{left}", highlight=False)


def _table(
    meta: Any, data: Path, given: tuple[Any, ...], target: str | None, drop_missing: bool, drop_duplicates: bool
) -> Any:
    """The tasks of the table that belong to the environment predicted in, and the columns that are used."""
    from metaprior import MetaGPClassifier
    from metaprior.tables.grouping import group_rows
    from metaprior.tables.reading import column_names

    columns = known_columns(meta, *given)
    if given[-1] is None and columns.environment is not None and columns.environment not in column_names(data):
        print_note(
            f"{data} has no column {columns.environment!r}: all its tasks are taken as {meta.training_['target']!r}."
        )
        columns = columns._replace(environment=None)
    labels = isinstance(meta, MetaGPClassifier)
    table = group_rows(data, columns, drop_missing=drop_missing, drop_duplicates=drop_duplicates, labels=labels)
    if table.environments is None:
        return table, columns
    target = target or meta.training_["target"]
    if target not in table.environments:
        known = ", ".join(map(repr, sorted(set(table.environments))[:12]))
        raise ValueError(
            f"{data} has no task of {target!r} in column {columns.environment!r}, only of {known}. See --target."
        )
    return table.of_environment(target), columns


def _baselines(meta: Any, tests: list[Any], context: int) -> dict[str, Any]:
    """What can be had from the context of a task alone."""
    from metaprior import MetaGPClassifier
    from metaprior.estimators.classification_baselines import BASELINES, score
    from metaprior.estimators.regression_baselines import score_per_task_gp
    from metaprior.metrics.summary import report
    from metaprior.tasks.labels import as_labeled_tests

    if context == 0:
        print_note("without context there is nothing to compare with.")
        return {}
    if not isinstance(meta, MetaGPClassifier):
        return {"scikit-learn GP": score_per_task_gp(tests)}
    encoded = as_labeled_tests(tests, "tasks", meta.model_.input_dim, meta.classes_)
    return {name: report(score(baseline, encoded)) for name, baseline in BASELINES.items()}


def _cell(score: Any, name: str) -> str:
    return f"{score[name]:.3g} ± {score[f'{name}_se']:.2g}"


def _frame(names: list[Any], columns: tuple[str, ...], per_task: dict[str, Any]) -> Any:
    """The metrics of every task, named by the columns that name tasks."""
    import pandas as pd

    parts = [name if isinstance(name, tuple) else (name,) for name in names]
    naming = {column: [part[i] for part in parts] for i, column in enumerate(columns)}
    return pd.DataFrame({**naming, **per_task})
