"""Held-out tasks as charts: calibration over all of them, and predictions of some."""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from metaprior_app.chart_inputs import axes_of
from metaprior_app.chart_outputs import whole_numbers
from metaprior_app.report_data import axis, rounded
from metaprior_app.report_tests import COVERAGE, Group, Tested, coverage_of_tasks
from metaprior.cli.training_data import Fit
from metaprior.metrics import Scores
from metaprior.plots.class_scores import binomial_intervals
from metaprior.tasks.types import TestTask

LEVELS = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
N_BOOTSTRAP = 2000
MANY_LABELS, JOINED_BINS = 500, 3  # of fewer labels, three bins of confidence are drawn as one
N_EXAMPLES = 6
N_GRID = 80  # inputs that a curve is drawn through
MAX_CURVES = 6  # classes whose probabilities are drawn
MAX_ROWS = 8  # labels of a task in a table
SAME_AXIS = 0.3  # share of the common range that each task must cover for all to have the same axis


def calibration_chart(tested: Tested) -> dict[str, Any]:
    """Return the share of readings inside intervals of each level, averaged over tasks, with a bootstrap band."""
    shares = coverage_of_tasks(tested.groups, LEVELS)
    n_tasks = len(shares)
    draws = np.random.default_rng(0).multinomial(n_tasks, np.full(n_tasks, 1 / n_tasks), N_BOOTSTRAP)
    lower, upper = np.quantile(draws @ shares / n_tasks, [0.05, 0.95], axis=0)
    at = int(np.flatnonzero(LEVELS == COVERAGE)[0])
    actual, whole = shares.mean(axis=0), whole_numbers(tested.groups[0].meta) is not None
    parts = ", those at its ends in part" if whole else ""
    return {
        "kind": "calibration",
        "title": f"Coverage promised and actual: {actual[at]:.0%} of readings lie inside the 90% interval{parts}",
        "whole": whole,
        "promised": LEVELS.tolist(),
        "actual": rounded(actual, 1.0),
        "lower": rounded(lower, 1.0) if n_tasks > 1 else None,
        "upper": rounded(upper, 1.0) if n_tasks > 1 else None,
        "highlight": at,
    }


def reliability_chart(scores: Scores) -> dict[str, Any]:
    """Return how often the predicted class was right against its probability, in bins."""
    bins = scores.reliability
    joined = 1 if bins.count.sum() >= MANY_LABELS else JOINED_BINS
    of_bins = (each.reshape(len(each), -1, joined).sum(axis=2) for each in (bins.count, bins.confidence, bins.right))
    count, total_confidence, total_right = of_bins
    counts = count.sum(axis=0)
    filled = counts > 0
    confidence, right = (total.sum(axis=0)[filled] / counts[filled] for total in (total_confidence, total_right))
    lower, upper = binomial_intervals(count[:, filled], total_right[:, filled])
    return {
        "kind": "reliability",
        "title": f"Reliability: the predicted label was right {scores.accuracy:.0%} of the time",
        "promised": rounded(confidence, 1.0),
        "actual": rounded(right, 1.0),
        "lower": rounded(np.minimum(lower, right), 1.0),
        "upper": rounded(np.maximum(upper, right), 1.0),
        "counts": counts[filled].tolist(),
        "least": float(bins.edges[0]),
    }


class Example(NamedTuple):
    """A test task, its name, and a prior that has not seen it."""

    meta: Any
    test: TestTask
    name: str
    along: int = 0  # the input that a chart is drawn along
    columns: Sequence[str] = ()

    def grid(self, x: dict[str, Any]) -> np.ndarray:
        """Return inputs along the axis; all others are those of the task, where they are constant."""
        rows = np.repeat(self.test.x_query[:1], N_GRID, axis=0)  # which keeps codes of levels known as such
        rows[:, self.along] = np.linspace(*_ends(x), N_GRID)
        return rows

    @property
    def others(self) -> str:
        """The covariates and the exposure of the task, in words."""
        categories, said = self.meta.features_.categories, []
        for i, value in enumerate(np.asarray(self.test.x_query)[0].tolist()):
            if i == self.along:
                continue
            levels = categories.listed(i) if i in categories.levels else None
            level = "of a new level" if levels is None or not value < len(levels) else levels[int(value)]
            known = level if levels is not None else f"{value:.4g}"
            said.append(f"{self.columns[i]} {'unknown' if np.isnan(value) else known}")
        return ", ".join(said)


def _only_input(chosen: Sequence[Example]) -> int | None:
    """Return the only input that varies within the tasks, if it can be drawn along, else None."""
    along = axes_of(chosen[0].meta)
    if len(along) != 1:
        return None
    features = chosen[0].meta.features_
    others = [i for i in range(features.count) if i not in (*along, *features.categories.covariates)]
    constant = all((_inputs(e.test)[:, others] == _inputs(e.test)[0, others]).all() for e in chosen)
    return along[0] if constant else None


def _inputs(test: TestTask) -> np.ndarray:
    """Return the inputs of context and queries."""
    return np.concatenate([np.asarray(test.x_context), np.asarray(test.x_query)])


def examples(fitted: Fit, tested: Tested) -> list[dict[str, Any]]:
    """Return charts or, of labels with several inputs, tables of up to six tasks, from best to worst predicted."""
    every = [Example(group.meta, *pair) for group in tested.groups for pair in _pairs(group)]
    scores = tested.scores["metaprior"].per_task
    order = np.argsort(scores["log_loss" if fitted.tasks.labels else "nll"], kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, N_EXAMPLES).round().astype(int))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of inputs outside the range of a fold
        return _charts(fitted, [every[i] for i in chosen.tolist()])


def _pairs(group: Group) -> list[tuple[TestTask, str]]:
    return list(zip(group.tests, group.names, strict=True))


def _charts(fitted: Fit, chosen: Sequence[Example]) -> list[dict[str, Any]]:
    columns, dates = fitted.tasks.columns, fitted.tasks.dates
    along = _only_input(chosen)
    if fitted.tasks.labels and along is None:
        return [_label_table(example) for example in chosen]
    if along is None:
        return _same_axes([_scatter(example, columns["y"]) for example in chosen], ("x", "y"))
    name = columns["x"][along]
    chosen = [example._replace(along=along, columns=columns["x"]) for example in chosen]
    axes = [{"x": axis([_inputs(e.test)[:, along]], name, name in dates, margin=0.05)} for e in chosen]
    draw = _probabilities if fitted.tasks.labels else _prediction
    pairs = zip(chosen, _same_axes(axes, ("x",)), strict=True)
    return _same_axes([draw(example, own["x"], columns["y"]) for example, own in pairs], ("y",))


def _prediction(example: Example, x: dict[str, Any], y_name: str) -> dict[str, Any]:
    """Return mean and band of one task along its input, with the readings given and those held back."""
    meta, test, along = example.meta, example.test, example.along
    adapted = meta.adapt(test.x_context, test.y_context)
    grid, whole = example.grid(x), whole_numbers(meta) is not None
    mean, (lower, upper) = adapted.predict(grid), adapted.interval(grid, COVERAGE)
    beyond = 0.5 if whole else 0.0  # as bands of whole numbers are drawn
    y = {**axis([lower - beyond, upper + beyond, test.y_context, test.y_query], y_name), "whole": whole}
    span_x, span_y = (float(np.ptp(each["domain"])) for each in (x, y))
    points = {
        part: {"x": rounded(inputs[:, along], span_x), "y": rounded(outputs, span_y)}
        for part, inputs, outputs in (("given", test[0], test[1]), ("held_back", test[2], test[3]))
    }
    curves = {"mean": mean, "lower": lower, "upper": upper}
    return {
        **_caption(adapted, test, example.name),
        "kind": "prediction",
        "others": example.others,
        "x": x,
        "y": y,
        "grid": rounded(grid[:, along], span_x),
        **{key: rounded(values, span_y) for key, values in curves.items()},
        **points,
    }


def _caption(adapted: Any, test: TestTask, name: str) -> dict[str, Any]:
    """Return what is said of a task: how many readings were given, and how well the others are predicted."""
    lower, upper = adapted.interval(test.x_query, COVERAGE)
    errors = test.y_query - adapted.predict(test.x_query)
    inside = int(((lower <= test.y_query) & (test.y_query <= upper)).sum())
    counts = {"n_given": len(test.y_context), "n_held_back": len(test.y_query), "n_inside": inside}
    return {"name": name, **counts, "rmse": float(np.sqrt(np.mean(errors**2)))}


def _scatter(example: Example, y_name: str) -> dict[str, Any]:
    """Return predictions and intervals of held-back readings against what was observed."""
    meta, test, name, *_ = example
    adapted = meta.adapt(test.x_context, test.y_context)
    mean, (lower, upper) = adapted.predict(test.x_query), adapted.interval(test.x_query, COVERAGE)
    both = [test.y_query, lower, upper]
    whole = {"whole": whole_numbers(meta) is not None}
    x, y = axis(both, f"{y_name}, observed"), {**axis(both, f"{y_name}, predicted"), **whole}
    span = float(np.ptp(x["domain"]))
    values = {"observed": test.y_query, "mean": mean, "lower": lower, "upper": upper}
    return {
        **_caption(adapted, test, name),
        "kind": "scatter",
        "x": x,
        "y": y,
        **{key: rounded(each, span) for key, each in values.items()},
    }


def _adapted_labels(example: Example) -> tuple[Any, list[str]]:
    """Return a task of labels adapted to its context, and the names of its classes."""
    meta, test, *_ = example
    own = None if meta.classes_ is not None else np.unique(np.concatenate([test.y_context, test.y_query]))
    adapted = meta.adapt(test.x_context, test.y_context, own)
    return adapted, [str(label) for label in adapted.classes_.tolist()]


def _label_caption(adapted: Any, test: TestTask, name: str) -> dict[str, Any]:
    right = int((adapted.predict(test.x_query) == test.y_query).sum())
    counts = {"n_given": len(test.y_context), "n_held_back": len(test.y_query), "n_right": right}
    return {"name": name, **counts}


def _probabilities(example: Example, x: dict[str, Any], y_name: str) -> dict[str, Any]:
    """Return the probabilities of classes along the input; held-back labels lie on the curve of their class."""
    _, test, name, along, _ = example
    adapted, classes = _adapted_labels(example)
    grid = example.grid(x)
    curves, at_queries = adapted.predict_proba(grid).T, adapted.predict_proba(test.x_query)
    given, held_back = (_codes(adapted.classes_, labels) for labels in (test.y_context, test.y_query))
    seen = np.bincount([*given, *held_back], minlength=len(classes)) > 0
    drawn = np.sort(np.argsort(-(curves.max(axis=1) + seen), kind="stable")[:MAX_CURVES])
    place = {int(code): i for i, code in enumerate(drawn)}
    span = float(np.ptp(x["domain"]))

    def points(inputs: np.ndarray, codes: list[int], heights: np.ndarray) -> dict[str, Any]:
        kept = [i for i, code in enumerate(codes) if code in place]
        of_kept = rounded(inputs[kept, along], span), rounded(heights[kept], 1.0)
        return {"x": of_kept[0], "y": of_kept[1], "class": [place[codes[i]] for i in kept]}

    heights = at_queries[np.arange(len(held_back)), held_back]
    return {
        **_label_caption(adapted, test, name),
        "kind": "probabilities",
        "others": example.others,
        "x": x,
        "y": {"domain": [-0.08, 1.04], "label": f"probability of {y_name}", "dates": False},
        "grid": rounded(grid[:, along], span),
        "classes": [classes[code] for code in drawn],
        "n_classes": len(classes),
        "curves": [rounded(curves[code], 1.0) for code in drawn],
        "given": points(test.x_context, given, np.full(len(given), -0.04)),
        "held_back": points(test.x_query, held_back, heights),
    }


def _label_table(example: Example) -> dict[str, Any]:
    """Return observed and predicted labels of a task, with their probabilities."""
    _, test, name, *_ = example
    adapted, classes = _adapted_labels(example)
    probabilities = adapted.predict_proba(test.x_query)
    observed = _codes(adapted.classes_, test.y_query)
    rows = [
        [classes[code], classes[int(row.argmax())], float(row.max())]
        for code, row in list(zip(observed, probabilities, strict=True))[:MAX_ROWS]
    ]
    return {**_label_caption(adapted, test, name), "kind": "labels", "rows": rows}


def _codes(classes: np.ndarray, labels: np.ndarray) -> list[int]:
    place = {label: i for i, label in enumerate(classes.tolist())}
    return [place[label] for label in labels.tolist()]


def _ends(of_axis: dict[str, Any]) -> tuple[float, float]:
    low, high = of_axis["domain"]
    return (low, high) if high > low else (low - 1.0, high + 1.0)


def _same_axes(charts: list[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Give all charts the same ranges, so that they can be compared, unless that would make one of them tiny."""
    for name in names:
        domains = np.array([chart[name]["domain"] for chart in charts])
        low, high = float(domains[:, 0].min()), float(domains[:, 1].max())
        if np.ptp(domains, axis=1).min() >= SAME_AXIS * (high - low):
            for chart in charts:
                chart[name] = {**chart[name], "domain": [low, high]}
    return charts
