"""What the charts of the page show: predictions of a new task along one input or over two, and training tasks."""

import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from threadpoolctl import threadpool_limits  # a dependency of scikit-learn

from metaprior_app.chart_inputs import as_rows, check_axes, check_levels
from metaprior_app.chart_outputs import whole_numbers
from metaprior_app.messages import InvalidRequest, check, spoken
from metaprior.predict.adapted import draw_means
from metaprior.predict.ensemble import predicts_labels
from metaprior.tasks.input_columns import no_extrapolation_warnings
from metaprior.tasks.types import Task

POINTS, SAMPLE_POINTS, CELLS = 120, 48, 28  # along a line, along a drawn function, along each side of a map
N_SAMPLES, SAMPLE_SEED = 6, 0
MAX_READINGS = 500
MAX_LINES = 100  # tasks that are drawn one by one; more are drawn as a density
MAX_POINTS = 200  # of a drawn task
DENSITY = (40, 72)  # cells along y and x
DIGITS = 6

LARGEST = float(np.finfo(float).max)

Finite = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Inputs = Annotated[list[Finite], Meta(min_length=1, max_length=1000)]
Axis = Annotated[int, Meta(ge=0, le=999)]


class Reading(msgspec.Struct):
    """A reading of the new task; y is a number, or that of a class."""

    x: Inputs
    y: Finite


class PredictRequest(msgspec.Struct, kw_only=True):
    """What the page asks of a chart of predictions."""

    readings: Annotated[list[Reading], Meta(max_length=MAX_READINGS)]
    coverage: Annotated[float, Meta(ge=0.01, le=0.999)]
    axis: Axis
    range: tuple[Finite, Finite]
    fixed: Inputs
    alpha: str | None = None
    samples: bool = False
    map: bool = False
    second: Axis = 0
    second_range: tuple[Finite, Finite] = (0.0, 1.0)
    class_: Annotated[int, Meta(ge=0, le=99)] = msgspec.field(name="class", default=0)
    classes: Annotated[list[str], Meta(min_length=2, max_length=20)] | None = None


def predict_chart(meta: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Return what a chart of a new task shows, given a request that `check_request` lets pass, with notes."""
    with threadpool_limits(1, user_api="blas"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        adapted = adapt(meta, request)
        with no_extrapolation_warnings():
            if request.get("map"):
                shown = _surface(meta, adapted, request)
            else:
                shown = (_probabilities if predicts_labels(meta) else _curve)(meta, adapted, request)
    return {**shown, "notes": list(dict.fromkeys(spoken(warning.message) for warning in caught))}


def adapt(meta: Any, request: dict[str, Any]) -> Any:
    """Condition the prior on the readings of a request."""
    x = as_rows(meta, [reading["x"] for reading in request["readings"]], request["fixed"])
    if not predicts_labels(meta):
        return meta.adapt(x, np.array([reading["y"] for reading in request["readings"]], float))
    classes = classes_of(meta, request)
    labels = [classes[reading["y"]] for reading in request["readings"]]
    if meta.classes_ is None:
        return meta.adapt(x, np.array(labels, object), classes=classes)
    return meta.adapt(x, np.array(labels, meta.classes_.dtype))


def classes_of(meta: Any, request: dict[str, Any]) -> list[Any]:
    """Return the classes of the new task, to which the labels of readings are indices."""
    return list(request.get("classes") or ["A", "B"]) if meta.classes_ is None else meta.classes_.tolist()


def check_request(meta: Any, request: dict[str, Any]) -> None:
    """Raise unless a request is a `PredictRequest` and fits the prior."""
    check(PredictRequest, request)
    n_inputs = meta.n_features_in_
    lengths = {len(reading["x"]) for reading in request["readings"]} | {len(request["fixed"])}
    if lengths != {n_inputs}:
        raise InvalidRequest(f"Every reading must have {n_inputs} inputs, as the prior has; got {sorted(lengths)}.")
    if request.get("map") and not {"second", "second_range"} <= request.keys():
        raise InvalidRequest("A map needs a second input and its range.")
    check_axes(meta, request)
    check_levels(meta, [request["fixed"], *(reading["x"] for reading in request["readings"])])
    for name in ("range", "second_range"):
        low, high = request.get(name, (0.0, 1.0))
        if not low < high:
            raise InvalidRequest(f"{name} must go from a smaller to a larger number; got {low:g} to {high:g}.")
    if predicts_labels(meta):
        classes = classes_of(meta, request)
        most = f"from 0 to {len(classes) - 1}"
        if len(set(classes)) < len(classes):
            raise InvalidRequest("The names of classes must differ.")
        if request.get("class", 0) >= len(classes):
            raise InvalidRequest(f"class must be the number of a class, {most}; got {request['class']}.")
        labels = [reading["y"] for reading in request["readings"]]
        if not all(isinstance(y, int) and 0 <= y < len(classes) for y in labels):
            raise InvalidRequest(f"y of a reading must be the number of a class, {most}; got {labels}.")


def grid(meta: Any, request: dict[str, Any], n_points: int = POINTS) -> np.ndarray:
    """Return inputs along the axis of a chart, the others as they are fixed, (points, inputs)."""
    x = np.tile(np.array(request["fixed"], float), (n_points, 1))
    low, high = request["range"]
    x[:, request["axis"]] = np.linspace(low, high, n_points)
    return as_rows(meta, x, request["fixed"])


def cells(meta: Any, request: dict[str, Any]) -> np.ndarray:
    """Return the centers of the cells of a map, row by row from low to high, (cells, inputs)."""
    first, other = (_centers(*request[name]) for name in ("range", "second_range"))
    x = np.tile(np.array(request["fixed"], float), (CELLS * CELLS, 1))
    x[:, request["axis"]], x[:, request["second"]] = np.tile(first, CELLS), np.repeat(other, CELLS)
    return as_rows(meta, x, request["fixed"])


def _curve(meta: Any, adapted: Any, request: dict[str, Any]) -> dict[str, Any]:
    x, axis = grid(meta, request), request["axis"]
    predictive = adapted.predictive(x)
    lower, upper = predictive.interval(request["coverage"])
    mean, lower, upper = rounded([predictive.mean(), lower, upper])
    shown = {"kind": "curve", "x": rounded(x[:, axis]), "mean": mean, "lower": lower, "upper": upper}
    shown["whole"] = whole_numbers(meta) is not None
    shown["outside"] = _outside(meta, x)
    if request.get("samples"):
        points = grid(meta, request, SAMPLE_POINTS)
        drawn = draw_means(adapted, points, N_SAMPLES, SAMPLE_SEED)
        shown |= {"sample_x": rounded(points[:, axis]), "samples": rounded(drawn)}
    return shown


def _probabilities(meta: Any, adapted: Any, request: dict[str, Any]) -> dict[str, Any]:
    x = grid(meta, request)
    shown = {"kind": "probabilities", "x": rounded(x[:, request["axis"]]), "outside": _outside(meta, x)}
    return {
        **shown,
        "classes": _words(classes_of(meta, request)),
        "probabilities": rounded(_by_class(meta, adapted, x, request)),
    }


def _surface(meta: Any, adapted: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Return values over two inputs: mean and standard deviation, or the probability of a class."""
    x = cells(meta, request)
    shown: dict[str, Any] = {"kind": "map", "x": list(request["range"]), "y": list(request["second_range"])}
    if predicts_labels(meta):
        probabilities = _by_class(meta, adapted, x, request)[request.get("class", 0)]
        return {**shown, "probability": rounded(probabilities.reshape(CELLS, CELLS))}
    mean, std = adapted.predict(x, return_std=True)
    shown["mean"] = rounded(mean.reshape(CELLS, CELLS))
    # Student's t may have no variance, which a note tells: then there is no map of it.
    return {**shown, "std": rounded(std.reshape(CELLS, CELLS)) if np.isfinite(std).all() else None}


def _by_class(meta: Any, adapted: Any, x: np.ndarray, request: dict[str, Any]) -> np.ndarray:
    """Return probabilities (classes, rows) in the order of the request's classes."""
    columns = _words(adapted.classes_)
    order = [columns.index(name) for name in _words(classes_of(meta, request))]
    return adapted.predict_proba(x).T[order]


def _words(classes: Any) -> list[str]:
    return [str(name) for name in classes]


def _centers(low: float, high: float) -> np.ndarray:
    return low + (np.arange(CELLS) + 0.5) * (high - low) / CELLS


def _outside(meta: Any, x: np.ndarray) -> list[bool]:
    return meta.features_.outside(x).any(axis=1).tolist()


def rounded(values: Any) -> list[Any]:
    """Return numbers to a millionth of their range, which is more than a chart can show, as lists."""
    values = np.asarray(values, float)
    span = float(np.ptp(values)) if values.size else 0.0
    decimals = DIGITS - int(np.floor(np.log10(span))) if 0.0 < span < np.inf else 300
    return (np.round(values, decimals) if -300 < decimals < 300 else values).tolist()


def draw_tasks(tasks: Sequence[Task], axis: int, y_range: Sequence[float]) -> dict[str, Any]:
    """Return training tasks of numbers along an input: their readings if they are few, else how many lie where."""
    if len(tasks) <= MAX_LINES:
        return {"tasks": [_line(task, axis) for task in tasks], "n_tasks": len(tasks)}
    x, y = np.concatenate([task.x[:, axis] for task in tasks]), np.concatenate([task.y for task in tasks])
    (low, high), ends = (float(x.min()), float(x.max())), [float(end) for end in y_range]
    high = high if high > low else low + 1.0
    counts, _, _ = np.histogram2d(y, x, DENSITY, ((ends[0], ends[1]), (low, high)))
    return {"x": [low, high], "y": ends, "counts": counts.astype(int).tolist(), "n_tasks": len(tasks)}


def _line(task: Task, axis: int) -> dict[str, Any]:
    order = np.argsort(task.x[:, axis], kind="stable")
    order = order[np.unique(np.linspace(0, len(order) - 1, min(len(order), MAX_POINTS)).astype(int))]
    return {"x": rounded(task.x[order, axis]), "y": rounded(task.y[order])}
