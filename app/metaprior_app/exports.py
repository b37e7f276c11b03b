"""What leaves the page: predictions and readings as tables, and programs that make them. Contexts that come to it."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metaprior.checks import counted
from metaprior.estimators.classifier import LabelsPrior
from metaprior.tables.columns import as_columns
from metaprior.tables.frames import predict_frame
from metaprior.tables.grouping import fitted_columns, group_with_covariates
from metaprior.tables.reading import TableFile, column_names, sniff_format
from metaprior.tasks.types import Task, as_inputs
from metaprior_app.charts import (
    MAX_READINGS,
    PredictRequest,
    Prior,
    adapt,
    as_rows,
    by_class,
    check_levels,
    classes_of,
    labels_of,
)
from metaprior_app.priors import LoadedPrior, Variant
from metaprior_app.recipes import PRIOR_NAME, command_lines, fit_arguments, fit_code, python_code
from metaprior_app.tables import InvalidRequest, check_size

MAX_TASKS = 1000  # of a table of contexts


def predictions_csv(prior: LoadedPrior, place: Variant, asked: PredictRequest) -> str:
    """Return what the chart shows as a CSV file, with the columns of `metaprior predict`."""
    columns, meta = prior.columns, place.meta
    x = as_rows(meta, asked.cells() if asked.map else asked.grid(), asked.fixed)
    queries = _as_frame(meta, x, columns["x"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the chart tells them
        if isinstance(meta, LabelsPrior) and meta.classes_ is None:  # of which readings may not have all
            classes = classes_of(meta, asked)
            probabilities = by_class(adapt(meta, asked), x, classes)  # type: ignore[arg-type]
            best = np.array(classes, object)[probabilities.argmax(axis=0)]
            of_each = {f"probability_{name}": row for name, row in zip(classes, probabilities, strict=True)}
            frame = queries.assign(label=best, **of_each, extrapolates=meta.features_.outside(x).any(axis=1))
        else:
            context = readings_frame(prior, place, asked) if asked.readings else None
            names: Any = {"x": columns["x"], "y": columns["y"]}
            frame = predict_frame(meta, context, queries, coverage=asked.coverage, **names)
    return frame.to_csv(index=False)


def readings_frame(prior: LoadedPrior, place: Variant, asked: PredictRequest) -> Any:
    columns, meta = prior.columns, place.meta
    x = as_rows(meta, [reading.x for reading in asked.readings], asked.fixed)
    y = labels_of(meta, asked) if isinstance(meta, LabelsPrior) else [reading.y for reading in asked.readings]
    return _as_frame(meta, x, columns["x"]).assign(**{columns["y"]: y})


def code(prior: LoadedPrior, place: Variant, asked: PredictRequest) -> dict[str, str]:
    """Return the Python and the command line that predict what the chart shows, from its downloads."""
    fit, lines = None, []
    if prior.settings is not None and prior.table is not None:
        table, how, labels = prior.table.name, prior.table.file.format, isinstance(prior.meta, LabelsPrior)
        fit = fit_arguments(table, how, prior.settings, PRIOR_NAME, place.alpha)
        lines = fit_code(table, how, prior.settings, labels, place.alpha)
    stored = prior.meta.training_.get("csv") or {}  # which `predict` takes, unless told otherwise
    command = command_lines(fit, asked.coverage, stored)
    return {"command": command, "python": python_code(prior.columns, asked.coverage, lines)}


def read_context(prior: LoadedPrior, path: Path, name: str) -> list[dict[str, Any]]:
    """Return the readings of a table, task by task; labels are indices into the classes of their task."""
    columns, file = prior.columns, TableFile(path, sniff_format(path))
    check_size(file, name)
    task = [each for each in columns["task"] if each in column_names(file)]
    named = fitted_columns(prior.meta, as_columns(task=task or None, x=columns["x"], y=columns["y"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        grouped = group_with_covariates(file, named, labels=isinstance(prior.meta, LabelsPrior))
        tasks = as_coded(prior.meta, grouped.tasks, name)
    if len(tasks) > MAX_TASKS:
        raise InvalidRequest(f"{name} has {counted(len(tasks), 'task')}; the page takes {MAX_TASKS} at most.")
    titles = (" ".join(map(str, each)) if isinstance(each, tuple) else str(each) for each in grouped.names)
    return [_context(prior, title, each, name) for title, each in zip(titles, tasks, strict=True)]


def _context(prior: LoadedPrior, title: str, task: Task, name: str) -> dict[str, Any]:
    if len(task.y) > MAX_READINGS:
        found = f"task {title} has {len(task.y)} readings; the page takes {MAX_READINGS} at most"
        raise InvalidRequest(f"{name}: {found}. Use `metaprior predict`.")
    classes, y = None, task.y.tolist()
    if isinstance(prior.meta, LabelsPrior):
        words, shared = [str(value) for value in y], prior.meta.classes_
        classes = sorted(set(words)) if shared is None else [str(each) for each in shared]
        unknown = next((word for word in words if word not in classes), None)
        if unknown is not None:
            raise InvalidRequest(f"{name}: {unknown!r} is no class of this prior ({', '.join(classes)}).")
        y = [classes.index(word) for word in words]
        classes += ["other"] * (len(classes) < 2)
    known = np.where(np.isnan(task.x), prior.typical, task.x).tolist()  # a missing covariate stands for the average
    try:
        check_levels(prior.meta, known)
    except InvalidRequest:
        unseen = "has a level of a category that the prior was not fitted to, which the page does not show"
        raise InvalidRequest(f"{name}: task {title} {unseen}. Use `metaprior predict`.") from None
    readings = [{"x": x, "y": value} for x, value in zip(known, y, strict=True)]
    return {"name": title, "readings": readings, "classes": classes}


def as_coded(meta: Prior, tasks: Sequence[Task], name: str) -> list[Task]:
    """Return tasks of a table with the numbers of levels, as the page has them; covariates may be NaN."""
    if meta.features_.kinds is None:
        return list(tasks)
    return [task._replace(x=np.asarray(as_inputs(task.x, name, meta.features_))) for task in tasks]


def _as_frame(meta: Prior, x: np.ndarray, names: Sequence[str]) -> Any:
    """Return inputs as a data frame, with the levels of categories as the table of the fit has them."""
    import pandas as pd

    frame = pd.DataFrame(np.asarray(x), columns=list(names))
    for column in meta.features_.categories.levels:
        levels = meta.features_.categories.listed(column)
        frame[names[column]] = pd.Series([levels[int(code)] for code in x[:, column]], dtype=object)
    return frame
