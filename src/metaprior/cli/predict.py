"""`metaprior predict`."""

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from metaprior.cli.console import out, print_json, print_table, report_errors, status, task_label
from metaprior.cli.options import AsJson, DropDuplicates, DropMissing, Prior, Task, X, Y, known_columns
from metaprior.cli.outputs import check_outputs, write_frame, write_picture

SHOWN, DRAWN = 8, 12  # rows in the terminal, tasks in the picture


def predict(
    prior: Prior,
    context: Annotated[Path, typer.Argument(help="Table of what is known of the new tasks; may have no rows.")],
    query: Annotated[Path, typer.Argument(help="Table of the inputs to predict at.")],
    path: Annotated[Path, typer.Option("--out", help="File for the predictions, .csv or .parquet.")] = Path(
        "predictions.csv"
    ),
    coverage: Annotated[float, typer.Option(help="Of the interval from lower to upper.")] = 0.9,
    task: Task = None,
    x: X = None,
    y: Y = None,
    one_task: Annotated[bool, typer.Option("--one-task", help="All rows are one task; no column names it.")] = False,
    drop_missing: DropMissing = False,
    drop_duplicates: DropDuplicates = False,
    plot: Annotated[Path | None, typer.Option(help=f"Draw the first {DRAWN} tasks into this file.")] = None,
    as_json: AsJson = False,
):
    """Adapt a prior to the tasks of one table and predict the rows of another.

    Columns are those of the fit unless others are named. A task without context is predicted from the prior.
    """
    from metaprior import load
    from metaprior.tables.prediction_frames import predict_frame

    with report_errors():
        check_outputs([prior, context, query], path, plot)
        if path.suffix not in (".csv", ".parquet"):
            raise ValueError(f"--out must end in .csv or .parquet; got {path}.")
        meta = load(prior)
        columns = known_columns(meta, task, x, y, None)
        columns = columns._replace(task=() if one_task else columns.task, environment=None)
        if plot is not None and len(columns.x) > 1:
            raise ValueError(f"--plot draws predictions along one input; these have {len(columns.x)}. Leave it out.")
        arguments: dict[str, Any] = {"task": columns.task or None, "x": columns.x, "y": columns.y}
        drops: dict[str, Any] = {"drop_missing": drop_missing, "drop_duplicates": drop_duplicates}
        with status(f"predicting {query}"):
            frame = predict_frame(meta, context, query, **arguments, coverage=coverage, **drops)
        write_frame(path, frame)
        if plot is not None:
            write_picture(plot, _draw(meta, context, query, columns, coverage, drops))
    if as_json:
        print_json({"predictions": str(path), "rows": frame.astype(object).to_dict(orient="records")})
        return
    shown = [
        tuple(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row)
        for row in frame.head(SHOWN).itertuples(index=False)
    ]
    print_table(tuple(map(str, frame.columns)), shown)
    rest = f" (the first {SHOWN} of {len(frame)} rows)" if len(frame) > SHOWN else ""
    out.print(f"Wrote {path}{rest}" + (f" and {plot}." if plot else "."), highlight=False, markup=False)


def _draw(meta: Any, context: Path, query: Path, columns: Any, coverage: float, drops: dict[str, Any]) -> Any:
    """A panel for each of the first tasks."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure

    from metaprior.plots import plot_prediction
    from metaprior.tables.grouping import group_rows
    from metaprior.tables.prediction_frames import contexts_of

    with warnings.catch_warnings(record=True) as said:  # not again
        warnings.simplefilter("always")
        queries = group_rows(query, columns._replace(y=None))
        contexts = contexts_of(meta, queries, context, columns, **drops)
    dates = any("holds dates" in str(each.message) for each in said)
    n_drawn = min(len(queries.names), DRAWN)
    n_columns = min(n_drawn, 3)
    n_rows = -(-n_drawn // n_columns)
    figure = Figure(figsize=(1 + 3.6 * n_columns, 0.6 + 2.8 * n_rows), layout="constrained")
    panels = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    for axes, name, asked, (x, y) in zip(panels, queries.names, queries.tasks, contexts, strict=False):
        plot_prediction(meta, x, y, asked.x, coverage=coverage, names=(columns.x[0], columns.y), axes=axes)
        axes.set_title(task_label(name), fontsize=10)
        if dates:  # days since 1970 are what matplotlib's are
            locator = AutoDateLocator(maxticks=5)
            axes.xaxis.set_major_locator(locator)
            axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    for axes in panels[n_drawn:]:
        axes.set_visible(False)
    return figure
