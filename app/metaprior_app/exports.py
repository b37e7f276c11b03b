"""What leaves the page: predictions and readings as tables, and programs that make them. Contexts that come to it."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from metaprior_app.chart_data import MAX_READINGS, adapt, cells, classes_of, grid
from metaprior_app.chart_inputs import as_coded, as_frame, as_rows, check_levels
from metaprior_app.chart_outputs import typical
from metaprior_app.loaded_prior import LoadedPrior
from metaprior_app.messages import InvalidRequest
from metaprior_app.recipes import command_lines, python_code
from metaprior_app.upload_limits import check_unpacked
from metaprior.checks import counted
from metaprior.predict.ensemble import predicts_labels
from metaprior.tables.columns import as_columns
from metaprior.tables.covariate_columns import group_with_covariates, with_fitted_kinds
from metaprior.tables.csv_files import CsvFormat, TableFile
from metaprior.tables.frames import predict_frame
from metaprior.tables.reading import column_names
from metaprior.tables.sniffing import sniff_format

PRIOR_NAME = "prior.safetensors"  # of the download
MAX_TASKS = 1000  # of a table of contexts


def predictions_csv(prior: LoadedPrior, meta: Any, request: dict[str, Any]) -> bytes:
    """Return what the chart shows as a CSV file, with the columns of `metaprior predict`."""
    columns = prior.columns
    names: Any = {"x": columns["x"], "y": columns["y"]}
    x = cells(meta, request) if request.get("map") else grid(meta, request)
    queries = as_frame(meta, x, columns["x"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the chart tells them
        if predicts_labels(meta) and meta.classes_ is None:
            return _own_classes(meta, request, x, queries).to_csv(index=False).encode()
        context = readings_frame(prior, meta, request)
        frame = predict_frame(meta, context if len(context) else None, queries, coverage=request["coverage"], **names)
    return frame.to_csv(index=False).encode()


def _own_classes(meta: Any, request: dict[str, Any], x: np.ndarray, queries: Any) -> Any:
    """Return the probabilities of the classes that the page gives a task, of which readings may not have all."""
    adapted, classes = adapt(meta, request), classes_of(meta, request)
    places = {str(name): i for i, name in enumerate(adapted.classes_)}
    probabilities = adapted.predict_proba(x)[:, [places[str(name)] for name in classes]]
    best = np.array(classes, object)[np.argmax(probabilities, axis=1)]
    columns = {f"probability_{name}": probabilities[:, i] for i, name in enumerate(classes)}
    return queries.assign(label=best, **columns, extrapolates=meta.features_.outside(x).any(axis=1))


def readings_csv(prior: LoadedPrior, meta: Any, request: dict[str, Any]) -> bytes:
    """Return the readings of a chart as a CSV file."""
    return readings_frame(prior, meta, request).to_csv(index=False).encode()


def readings_frame(prior: LoadedPrior, meta: Any, request: dict[str, Any]) -> Any:
    """Return the readings of a request as a data frame."""
    columns, readings = prior.columns, request["readings"]
    x = as_rows(meta, [reading["x"] for reading in readings], request["fixed"])
    y: list[Any] = [reading["y"] for reading in readings]
    if predicts_labels(meta):
        classes = classes_of(meta, request)
        y = [classes[index] for index in y]
    return as_frame(meta, x, columns["x"]).assign(**{columns["y"]: y})


def code(prior: LoadedPrior, meta: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Return the Python and the command line that predict what the chart shows, from its downloads."""
    alpha, _, _ = prior.at(request.get("alpha"))
    fit = prior.fit
    if fit is not None and alpha is not None:
        fit = [*fit[:-1], f"--alpha={alpha!r}", fit[-1]]
    table = prior.table
    how = CsvFormat()._asdict() if table is None else table.file.format._asdict()
    given = (None if table is None else table.name, prior.settings, how, PRIOR_NAME, prior.columns)
    python = python_code(*given, request["coverage"], predicts_labels(meta), alpha)
    stored = prior.meta.training_.get("csv") or {}  # which `predict` takes, unless told otherwise
    return {"command": command_lines(fit, PRIOR_NAME, request["coverage"], stored), "python": python}


def read_context(prior: LoadedPrior, path: Path, name: str) -> list[dict[str, Any]]:
    """Return the readings of a table, task by task; labels are indices into the classes of their task."""
    columns, file = prior.columns, TableFile(path, sniff_format(path))
    check_unpacked(file, name)
    task = [each for each in columns["task"] if each in column_names(file)]
    named = with_fitted_kinds(prior.meta, as_columns(task=task or None, x=columns["x"], y=columns["y"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        grouped = group_with_covariates(file, named, labels=predicts_labels(prior.meta))
        tasks = as_coded(prior.meta, grouped.tasks, name)
    if len(grouped.tasks) > MAX_TASKS:
        raise InvalidRequest(f"{name} has {counted(len(grouped.tasks), 'task')}; the page takes {MAX_TASKS} at most.")
    return [_task(prior, *each, name) for each in zip(grouped.names, tasks, strict=True)]


def _task(prior: LoadedPrior, task_name: Any, task: Any, name: str) -> dict[str, Any]:
    title = " ".join(map(str, task_name)) if isinstance(task_name, tuple) else str(task_name)
    if len(task.y) > MAX_READINGS:
        found = f"task {title} has {len(task.y)} readings; the page takes {MAX_READINGS} at most"
        raise InvalidRequest(f"{name}: {found}. Use `metaprior predict`.")
    classes, y = None, task.y.tolist()
    if predicts_labels(prior.meta):
        shared = prior.meta.classes_
        words = [str(value) for value in task.y]
        classes = sorted(set(words)) if shared is None else [str(each) for each in shared]
        unknown = next((word for word in words if word not in classes), None)
        if unknown is not None:
            raise InvalidRequest(f"{name}: {unknown!r} is no class of this prior ({', '.join(classes)}).")
        if len(classes) < 2:
            classes = [*classes, "other"]
        y = [classes.index(word) for word in words]
    known = np.where(np.isnan(task.x), typical(prior.inputs), task.x)  # a missing covariate stands for the average
    try:
        check_levels(prior.meta, known.tolist())
    except InvalidRequest:
        unseen = "has a level of a category that the prior was not fitted to, which the page does not show"
        raise InvalidRequest(f"{name}: task {title} {unseen}. Use `metaprior predict`.") from None
    readings = [{"x": x, "y": value} for x, value in zip(known.tolist(), y, strict=True)]
    return {"name": title, "readings": readings, "classes": classes}
