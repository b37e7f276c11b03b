"""What charts show, of the page and of reports: predictions of a task along one input or over two, training tasks."""

import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from threadpoolctl import threadpool_limits  # a dependency of scikit-learn

from metaprior.estimators.classifier import LabelsPrior
from metaprior.estimators.regressor import ReadingsPrior
from metaprior.likelihoods.counts import MAX_COUNT
from metaprior.predict.adapted import AdaptedClassifier, AdaptedRegressor, draw_means
from metaprior.tasks.categories import Coded
from metaprior.tasks.columns import no_extrapolation_warnings
from metaprior.tasks.types import Task
from metaprior_app.tables import InvalidRequest, spoken

POINTS, SAMPLE_POINTS, CELLS = 120, 48, 28  # along a line, along a drawn function, along each side of a map
N_SAMPLES, SAMPLE_SEED = 6, 0
MAX_READINGS = 500
MAX_LINES = 100  # tasks that are drawn one by one; more are drawn as a density
MAX_POINTS = 4000  # of all drawn tasks
DENSITY = (40, 72)  # cells along y and x
DIGITS = 6

LARGEST = float(np.finfo(float).max)

Prior = ReadingsPrior | LabelsPrior
Finite = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Inputs = Annotated[list[Finite], Meta(min_length=1, max_length=1000)]
Range = tuple[Finite, Finite]


class Reading(msgspec.Struct):
    """A reading of the new task; y is a number, or that of a class."""

    x: Inputs
    y: Finite


class PredictRequest(msgspec.Struct, kw_only=True):
    readings: Annotated[list[Reading], Meta(max_length=MAX_READINGS)]
    coverage: Annotated[float, Meta(ge=0.01, le=0.999)]
    axis: int
    range: Range
    fixed: Inputs
    revision: int | None = None
    alpha: str | None = None
    samples: bool = False
    map: bool = False
    second: int = 0
    second_range: Range = (0.0, 1.0)
    class_: int = msgspec.field(name="class", default=0)
    classes: Annotated[list[str], Meta(min_length=2, max_length=20)] | None = None

    def grid(self, n_points: int = POINTS) -> np.ndarray:
        """Return inputs along the axis of a chart, the others as they are fixed, (points, inputs)."""
        x = np.tile(np.array(self.fixed), (n_points, 1))
        x[:, self.axis] = np.linspace(*self.range, n_points)
        return x

    def cells(self) -> np.ndarray:
        """Return the centers of the cells of a map, row by row from low to high, (cells, inputs)."""
        share = (np.arange(CELLS) + 0.5) / CELLS
        first, other = (low + share * (high - low) for low, high in (self.range, self.second_range))
        x = np.tile(np.array(self.fixed), (CELLS * CELLS, 1))
        x[:, self.axis], x[:, self.second] = np.tile(first, CELLS), np.repeat(other, CELLS)
        return x

    def check(self, meta: Prior) -> None:
        rows = [self.fixed, *(reading.x for reading in self.readings)]
        if any(len(row) != meta.n_features_in_ for row in rows):
            raise InvalidRequest(f"fixed and every x of readings must have {meta.n_features_in_} inputs.")
        for name in ("axis", "second") if self.map else ("axis",):
            if getattr(self, name) not in axes_of(meta):
                raise InvalidRequest(f"{name} must be an input of numbers that is no covariate, by its number.")
        for name in ("range", "second_range"):
            low, high = getattr(self, name)
            if not low < high:
                raise InvalidRequest(f"{name} must go from a smaller to a larger number; got {low:g} to {high:g}.")
        check_levels(meta, rows)
        if isinstance(meta, LabelsPrior):
            classes = classes_of(meta, self)
            if len(set(classes)) < len(classes):
                raise InvalidRequest("The names of classes must differ.")
            for name, number in [("class", self.class_), *(("y of a reading", each.y) for each in self.readings)]:
                if number not in range(len(classes)):
                    most = f"the number of a class, from 0 to {len(classes) - 1}"
                    raise InvalidRequest(f"{name} must be {most}; got {number:g}.")


def axes_of(meta: Prior) -> list[int]:
    """Return the inputs that a chart can be drawn along: numbers that vary within a task, but for an exposure."""
    features = meta.features_
    others = {*features.categories.levels, *features.categories.covariates, features.exposure}
    return [i for i in range(meta.n_features_in_) if i not in others]


def check_levels(meta: Prior, rows: Sequence[Sequence[float]]) -> None:
    """Raise unless every category is the number of one of its levels."""
    for column, levels in meta.features_.categories.levels.items():
        for row in rows:
            if row[column] not in range(len(levels)):
                most = f"a number of a level, from 0 to {len(levels) - 1}"
                raise InvalidRequest(f"Input {column + 1} is a category and must be {most}; got {row[column]:g}.")


def as_rows(meta: Prior, rows: Any, fixed: Sequence[float]) -> np.ndarray:
    """Return inputs that the page sends as a prior takes them: with codes of levels, and the covariates of the task."""
    x = np.array(rows, float).reshape(-1, meta.n_features_in_)
    if meta.features_.kinds is None:
        return x
    for column in meta.features_.categories.covariates:
        x[:, column] = fixed[column]
    return x.view(Coded)


def classes_of(meta: LabelsPrior, asked: PredictRequest) -> list[Any]:
    """Return the classes of the new task, to which the labels of readings are indices."""
    return list(asked.classes or ["A", "B"]) if meta.classes_ is None else meta.classes_.tolist()


def labels_of(meta: LabelsPrior, asked: PredictRequest) -> list[Any]:
    classes = classes_of(meta, asked)
    return [classes[int(reading.y)] for reading in asked.readings]


def adapt(meta: Prior, asked: PredictRequest) -> Any:
    x = as_rows(meta, [reading.x for reading in asked.readings], asked.fixed)
    if not isinstance(meta, LabelsPrior):
        return meta.adapt(x, np.array([reading.y for reading in asked.readings]))
    labels = labels_of(meta, asked)
    if meta.classes_ is None:
        return meta.adapt(x, np.array(labels, object), classes=classes_of(meta, asked))
    return meta.adapt(x, np.array(labels, meta.classes_.dtype))


def predict_chart(meta: Prior, asked: PredictRequest) -> dict[str, Any]:
    """Return what the chart of a new task shows, with the warnings of the prediction as notes."""
    with threadpool_limits(1, user_api="blas"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        adapted = adapt(meta, asked)
        with no_extrapolation_warnings():
            shown = (_map if asked.map else _curve)(meta, adapted, asked)
    return {**shown, "notes": list(dict.fromkeys(spoken(warning.message) for warning in caught))}


def _curve(meta: Prior, adapted: Any, asked: PredictRequest) -> dict[str, Any]:
    x = as_rows(meta, asked.grid(), asked.fixed)
    shown: dict[str, Any] = {"x": rounded(x[:, asked.axis])}
    shown["outside"] = meta.features_.outside(x).any(axis=1).tolist()
    if isinstance(meta, LabelsPrior):
        classes = [str(each) for each in classes_of(meta, asked)]
        return shown | {
            "kind": "probabilities",
            "classes": classes,
            "probabilities": rounded(by_class(adapted, x, classes)),
        }
    shown |= {"kind": "curve", "whole": whole_numbers(meta) is not None, **band(adapted, x, asked.coverage)}
    if asked.samples:
        points = as_rows(meta, asked.grid(SAMPLE_POINTS), asked.fixed)
        drawn = draw_means(adapted, points, N_SAMPLES, SAMPLE_SEED)
        shown |= {"sample_x": rounded(points[:, asked.axis]), "samples": rounded(drawn)}
    return shown


def _map(meta: Prior, adapted: Any, asked: PredictRequest) -> dict[str, Any]:
    """Return values over two inputs: mean and standard deviation, or the probability of a class."""
    x = as_rows(meta, asked.cells(), asked.fixed)
    shown: dict[str, Any] = {"kind": "map", "x": asked.range, "y": asked.second_range}
    if isinstance(meta, LabelsPrior):
        probabilities = by_class(adapted, x, [str(each) for each in classes_of(meta, asked)])
        return shown | {"probability": rounded(probabilities[asked.class_].reshape(CELLS, CELLS))}
    mean, std = adapted.predict(x, return_std=True)
    shown["mean"] = rounded(mean.reshape(CELLS, CELLS))
    # Student's t may have no variance, which a note tells: then there is no map of it.
    return shown | {"std": rounded(std.reshape(CELLS, CELLS)) if np.isfinite(std).all() else None}


def band(adapted: AdaptedRegressor, x: np.ndarray, coverage: float) -> dict[str, list[float]]:
    predictive = adapted.predictive(x)
    return dict(
        zip(("mean", "lower", "upper"), rounded([predictive.mean(), *predictive.interval(coverage)]), strict=True)
    )


def by_class(adapted: AdaptedClassifier, x: np.ndarray, classes: Sequence[str]) -> np.ndarray:
    """Return probabilities (classes, rows) in the order of these classes."""
    known = [str(each) for each in adapted.classes_]
    return adapted.predict_proba(x).T[[known.index(name) for name in classes]]


def whole_numbers(meta: Prior) -> dict[str, float] | None:
    """Return the smallest and the largest y of counts or ranks; None where y may be any number, and for labels."""
    if isinstance(meta, LabelsPrior) or not meta.model_.likelihood.discrete:
        return None
    lowest, highest = meta.model_.likelihood.limits
    return {"lowest": lowest, "highest": min(highest, MAX_COUNT)}


def rounded(values: Any) -> list[Any]:
    """Return numbers to a millionth of their range, which is more than a chart can show, as lists."""
    values = np.asarray(values, float)
    span = float(np.ptp(values)) if values.size else 0.0
    decimals = DIGITS - int(np.floor(np.log10(span))) if 0.0 < span < np.inf else 300
    return (np.round(values, decimals) if -300 < decimals < 300 else values).tolist()


def draw_tasks(tasks: Sequence[Task], axis: int, y_range: Sequence[float]) -> dict[str, Any]:
    """Return training tasks of numbers along an input: their readings if they are few, else how many lie where."""
    if len(tasks) <= MAX_LINES:
        most = max(MAX_POINTS // max(len(tasks), 1), 2)
        return {"tasks": [_line(task, axis, most) for task in tasks], "n_tasks": len(tasks)}
    x, y = np.concatenate([task.x[:, axis] for task in tasks]).astype(float), np.concatenate([task.y for task in tasks])
    low, high = float(x.min()), float(x.max())
    high = high if high > low else low + 1.0
    counts, _, _ = np.histogram2d(y, x, DENSITY, ((y_range[0], y_range[1]), (low, high)))
    return {"x": [low, high], "y": list(y_range), "counts": counts.astype(int).tolist(), "n_tasks": len(tasks)}


def _line(task: Task, axis: int, most: int) -> dict[str, Any]:
    order = np.argsort(task.x[:, axis], kind="stable")
    order = order[np.unique(np.linspace(0, len(order) - 1, min(len(order), most)).astype(int))]
    return {"x": rounded(task.x[order, axis]), "y": rounded(task.y[order])}
