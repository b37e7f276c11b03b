"""`metaprior predict`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer

from metaprior.cli.console import err, out, print_note, print_result, print_table, report_errors, task_label
from metaprior.cli.options import (
    DATA,
    MODEL,
    OUTPUT,
    AsJson,
    Csv,
    Drop,
    Prior,
    Task,
    X,
    Y,
    check_outputs,
    columns_for,
    csv_format,
    drops,
    named_or_free,
    option,
    write_results,
)
from metaprior.tables.reading import TableFile

if TYPE_CHECKING:
    from metaprior.cli.console import Estimator
    from metaprior.predict.conformal import Conformal
    from metaprior.tables.columns import Columns
    from metaprior.tables.frames import TablePrediction

SHOWN, DRAWN = 8, 12  # rows in the terminal, tasks in the picture
MAX_CLASSES = 8  # columns of classes in the terminal


def predict(
    prior: Prior,
    context: Annotated[Path, typer.Argument(help="Table of observations of the new tasks; it may have no rows.")],
    query: Annotated[Path, typer.Argument(help="Table of the inputs to predict at.")],
    task: Task = None,
    x: X = None,
    y: Y = None,
    one_task: Annotated[bool, option("--one-task", "All rows are one task; no column names it.", DATA)] = False,
    from_prior: Annotated[
        bool, option("--from-prior", "Predict tasks without context, though others have one.", DATA)
    ] = False,
    drop: Drop = None,
    csv: Csv = None,
    coverage: Annotated[float, option("--coverage", "Probability of the interval from lower to upper.", MODEL)] = 0.9,
    method: Annotated[
        Literal["model", "conformal"],
        option("--method", "`model`: the model's own interval; `conformal`: one with guaranteed coverage.", MODEL),
    ] = "model",
    path: Annotated[
        Path | None,
        option("--out", "File for the predictions, .csv or .parquet (default: predictions.csv, if new).", OUTPUT),
    ] = None,
    plot: Annotated[Path | None, option("--plot", f"Plot the first {DRAWN} tasks to this file.", OUTPUT)] = None,
    as_json: AsJson = False,
):
    """Adapt a prior to the tasks of one table and predict the rows of another.

    Columns, and how CSV files are written, are those of the fit unless others are named. Predictions are in the units
    of y. The column extrapolates marks inputs outside the range of the fit.
    """
    from metaprior import load

    with report_errors(as_json):
        path = named_or_free(path, "predictions.csv")
        check_outputs([prior, context, query], path, plot)
        if path.suffix not in (".csv", ".parquet"):
            raise ValueError(f"--out must end in .csv or .parquet; got {path}.")
        from metaprior.predict.ensemble import predicts_labels
        from metaprior.tables.frames import predict_tables

        meta = load(prior)
        columns = columns_for(meta, task, x, y)._replace(environment=None)
        how = csv_format(csv, meta.training_.get("csv"))
        tables = TableFile(context, how), TableFile(query, how)
        if one_task:
            _note_merged(tables, columns.task)
            columns = columns._replace(task=())
        with err.status(f"predicting {query}"):
            predicted = predict_tables(meta, *tables, columns, coverage, from_prior, method, **drops(drop))
        frame = predicted.frame
        figure = None if plot is None else _plot(meta, predicted, columns, coverage, method)
        write_results((path, frame), (plot, figure))
    if as_json:
        print_result({"predictions": str(path), "rows": frame.astype(object).to_dict(orient="records")})
        return
    at_least = not predicts_labels(meta) and meta.model_.likelihood.discrete  # integers have gaps
    _print_rows(frame, columns.y, coverage, meta.model_.conformal if method == "conformal" else None, at_least)
    rest = f" ({len(frame):,} rows, of which the first {SHOWN} are shown)" if len(frame) > SHOWN else ""
    out.print(f"Wrote {path}{rest}" + (f" and {plot}." if plot else "."), soft_wrap=True)


def _note_merged(tables: tuple[TableFile, ...], task: tuple[str, ...]) -> None:
    """Say so if --one-task makes one task of rows that a table gives several names."""
    from metaprior.tables.columns import Columns
    from metaprior.tables.reading import column_names, read_table

    for table in tables:
        if task and set(task) <= set(column_names(table)):
            n_names = len(read_table(table, Columns(task, (), None)).drop_duplicates())
            if n_names > 1:
                columns = " and ".join(task)
                print_note(f"{table} names {n_names:,} tasks in {columns}, which --one-task predicts as one.")


def _print_rows(frame: Any, y: str | None, coverage: float, conformal: "Conformal | None", at_least: bool) -> None:
    """Print the first predictions, and what they mean."""
    from metaprior.predict.conformal import floored

    of_classes = [name for name in frame if str(name).startswith("probability_")]
    if len(of_classes) > MAX_CLASSES:
        highest = frame[of_classes].max(axis=1)
        frame = frame.drop(columns=["extrapolates", *of_classes]).assign(
            probability=highest, extrapolates=frame["extrapolates"]
        )
    shown = [tuple(map(_cell, row)) for row in frame.head(SHOWN).itertuples(index=False)]
    print_table(tuple(map(str, frame.columns)), shown)
    if len(of_classes) > MAX_CLASSES:
        out.print(f"The file has the probabilities of all {len(of_classes)} classes.", soft_wrap=True)
    if "mean" in frame:
        words = f"Mean and standard deviation (std) of a new reading in the units of {y}"
        if conformal is None:
            words += f"; it is between lower and upper with a probability of {'at least ' * at_least}{coverage:.3g}."
        else:
            proven = floored(conformal.proven(coverage))
            words += (
                f". From lower to upper is a conformal interval: nominal coverage {coverage:.3g}, proven {proven} or "
            )
            words += "more for new tasks like those of the target, whether or not the model is right."
        out.print(words, soft_wrap=True)


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return "" if value is None else str(value)
    return "" if np.isnan(value) else f"{value:.4g}"


def _plot(meta: "Estimator", predicted: "TablePrediction", columns: "Columns", coverage: float, method: str) -> Any:
    """Return a figure with a panel for each of the first tasks."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure

    from metaprior.plots import plot_prediction
    from metaprior.plots.style import as_drawn

    queries = predicted.queries
    n_plotted = min(len(queries.names), DRAWN)
    n_columns = min(n_plotted, 3)
    n_rows = -(-n_plotted // n_columns)
    figure = Figure(figsize=(1 + 3.6 * n_columns, 0.6 + 2.8 * n_rows), layout="constrained")
    panels = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    named: Any = {"names": (columns.x[0], columns.y), "coverage": coverage, "method": method}
    for axes, name, query, (x, y) in zip(panels, queries.names, queries.tasks, predicted.contexts, strict=False):
        plot_prediction(meta, x, y, query.x, **named, axes=axes)
        axes.set_title(as_drawn(task_label(name)), fontsize=10)
        if columns.x[0] in queries.dates:  # matplotlib too counts days since 1970
            locator = AutoDateLocator(maxticks=5)
            axes.xaxis.set_major_locator(locator)
            axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    for axes in panels[n_plotted:]:
        axes.set_visible(False)
    return figure
