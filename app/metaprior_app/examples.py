"""Held-out tasks as charts: calibration over all of them, and predictions of some."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from metaprior.cli.training_data import Fit
from metaprior.estimators.classifier import LabelsPrior
from metaprior.metrics import Scores
from metaprior.plots.classes import binomial_intervals
from metaprior.tasks.types import TestTask
from metaprior_app.charts import Prior, axes_of, band, by_class, rounded, whole_numbers
from metaprior_app.held_out import COVERAGE, Tested, coverage_of_tasks

LEVELS = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
N_BOOTSTRAP = 2000
MANY_LABELS, JOINED_BINS = 500, 3  # of fewer labels, three bins of confidence are drawn as one
N_EXAMPLES = 6
N_GRID = 80  # inputs that a curve is drawn through
MAX_CURVES = 6  # classes whose probabilities are drawn
MAX_ROWS = 8  # labels of a task in a table
SAME_AXIS = 0.3  # share of the common range that each task must cover for all to have the same axis


def axis(values: Sequence[np.ndarray], label: str, dates: bool = False, margin: float = 0.03) -> dict[str, Any]:
    low, high = min(float(part.min()) for part in values), max(float(part.max()) for part in values)
    room = margin * (high - low)
    return {"domain": [low - room, high + room], "label": label, "dates": dates}


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
        "x": {"domain": [0, 1], "label": "coverage promised"},
        "y": {"domain": [0, 1], "label": "actual coverage"},
        "promised": LEVELS.tolist(),
        "actual": rounded(actual),
        "lower": rounded(lower) if n_tasks > 1 else None,
        "upper": rounded(upper) if n_tasks > 1 else None,
        "highlight": at,
    }


def reliability_chart(scores: Scores) -> dict[str, Any]:
    """Return how often the predicted class was right against its probability, in bins."""
    bins = scores.reliability
    joined = 1 if bins.count.sum() >= MANY_LABELS else JOINED_BINS
    names = ("count", "confidence", "right")
    count, confidence, right = (bins[name].reshape(len(bins.count), -1, joined).sum(axis=2) for name in names)
    filled = count.sum(axis=0) > 0
    total, confidence, share = (each.sum(axis=0)[filled] for each in (count, confidence, right))
    share = share / total
    lower, upper = binomial_intervals(count[:, filled], right[:, filled])
    least = float(bins.edges.min())
    return {
        "kind": "reliability",
        "title": f"Reliability: the predicted label was right {scores.accuracy:.0%} of the time",
        "x": {"domain": [least - 0.03, 1.03], "label": "probability of the predicted label"},
        "y": {"domain": [max(min(least, float(lower.min())) - 0.06, -0.03), 1.03], "label": "how often it was right"},
        "promised": rounded(confidence / total),
        "actual": rounded(share),
        "lower": rounded(np.minimum(lower, share)),
        "upper": rounded(np.maximum(upper, share)),
        "counts": total.tolist(),
    }


class Example:
    """A test task, adapted to its context by a prior that has not seen it."""

    def __init__(self, meta: Prior, test: TestTask, name: str):
        self.meta, self.test, self.name = meta, test, name
        self.x = np.concatenate([np.asarray(test.x_context), np.asarray(test.x_query)])
        self.adapted: Any = None
        given, n = f"{len(test.y_context)} given", len(test.y_query)
        if isinstance(meta, LabelsPrior):
            own = None if meta.classes_ is not None else np.unique(np.concatenate([test.y_context, test.y_query]))
            self.adapted = meta.adapt(test.x_context, test.y_context, own)
            right = int((self.adapted.predict(test.x_query) == test.y_query).sum())
            self.result = f"{given}, {right} of {n} held back predicted"
            return
        self.adapted = meta.adapt(test.x_context, test.y_context)
        lower, upper = self.adapted.interval(test.x_query, COVERAGE)
        inside = int(((lower <= test.y_query) & (test.y_query <= upper)).sum())
        error = np.sqrt(np.mean((test.y_query - self.adapted.predict(test.x_query)) ** 2))
        self.result = f"{given}, {inside} of {n} held back inside the band, RMSE {error:.4g}"

    @property
    def classes(self) -> list[str]:
        return [str(label) for label in self.adapted.classes_.tolist()]

    def codes(self, labels: np.ndarray) -> list[int]:
        return [self.adapted.classes_.tolist().index(label) for label in labels.tolist()]

    def chart(self, kind: str, **parts: Any) -> dict[str, Any]:
        return {"kind": kind, "name": self.name, "title": f"{self.name}: {self.result}", "result": self.result, **parts}

    def along(self, i: int, columns: Sequence[str], dates: Sequence[str]) -> dict[str, Any]:
        """Return a chart along the only input that varies within the task."""
        x = axis([self.x[:, i]], columns[i], columns[i] in dates, margin=0.05)
        return self.chart("", x=x, others=self._others(i, columns))

    def _others(self, along: int, columns: Sequence[str]) -> str:
        categories, said = self.meta.features_.categories, []
        for i, value in enumerate(self.x[-1].tolist()):
            known = f"{value:.4g}"
            if i in categories.levels:
                levels = categories.listed(i)
                known = str(levels[int(value)]) if value < len(levels) else "of a new level"
            said += [f"{columns[i]} {'unknown' if np.isnan(value) else known}"] if i != along else []
        return ", ".join(said)

    def grid(self, along: int, domain: Sequence[float]) -> np.ndarray:
        """Return inputs along an axis; all others are those of the task, where they are constant."""
        low, high = domain
        rows = np.repeat(self.test.x_query[:1], N_GRID, axis=0)  # which keeps codes of levels known as such
        rows[:, along] = np.linspace(low, high if high > low else low + 1.0, N_GRID)
        return rows

    def prediction(self, along: int, x: dict[str, Any], y_name: str) -> dict[str, Any]:
        """Return mean and band along the input, with the readings given and those held back."""
        test, whole = self.test, whole_numbers(self.meta) is not None
        grid = self.grid(along, x["domain"])
        curves = band(self.adapted, grid, COVERAGE)
        beyond = 0.5 if whole else 0.0  # as bands of whole numbers are drawn
        edges = [np.array(curves["lower"]) - beyond, np.array(curves["upper"]) + beyond, test.y_context, test.y_query]
        return {
            "kind": "prediction",
            "y": {**axis(edges, y_name), "whole": whole},
            "grid": rounded(grid[:, along]),
            **curves,
            "given": {"x": rounded(test.x_context[:, along]), "y": rounded(test.y_context)},
            "held_back": {"x": rounded(test.x_query[:, along]), "y": rounded(test.y_query)},
        }

    def probabilities(self, along: int, x: dict[str, Any], y_name: str) -> dict[str, Any]:
        """Return the probabilities of classes along the input; held-back labels lie on the curve of their class."""
        test, classes, grid = self.test, self.classes, self.grid(along, x["domain"])
        curves = by_class(self.adapted, grid, classes)
        given, held_back = self.codes(test.y_context), self.codes(test.y_query)
        seen = np.bincount([*given, *held_back], minlength=len(classes)) > 0
        drawn = np.sort(np.argsort(-(curves.max(axis=1) + seen), kind="stable")[:MAX_CURVES]).tolist()

        def points(inputs: np.ndarray, codes: list[int], heights: np.ndarray) -> dict[str, Any]:
            kept = [i for i, code in enumerate(codes) if code in drawn]
            of_kept = {"x": rounded(inputs[kept, along]), "y": rounded(heights[kept])}
            return {**of_kept, "class": [drawn.index(codes[i]) for i in kept]}

        heights = by_class(self.adapted, test.x_query, classes)[held_back, np.arange(len(held_back))]
        return {
            "kind": "probabilities",
            "y": {"domain": [-0.08, 1.04], "label": f"probability of {y_name}", "dates": False},
            "grid": rounded(grid[:, along]),
            "classes": [classes[code] for code in drawn],
            "n_classes": len(classes),
            "curves": rounded(curves[drawn]),
            "given": points(test.x_context, given, np.full(len(given), -0.04)),
            "held_back": points(test.x_query, held_back, heights),
        }

    def scatter(self, y_name: str) -> dict[str, Any]:
        """Return predictions and intervals of held-back readings against what was observed."""
        curves, observed = band(self.adapted, self.test.x_query, COVERAGE), self.test.y_query
        both = [observed, np.array(curves["lower"]), np.array(curves["upper"])]
        x, y = axis(both, f"{y_name}, observed"), axis(both, f"{y_name}, predicted")
        y["whole"] = whole_numbers(self.meta) is not None
        return self.chart("scatter", x=x, y=y, observed=rounded(observed), **curves)

    def table(self) -> dict[str, Any]:
        """Return observed and predicted labels, with their probabilities."""
        probabilities = self.adapted.predict_proba(self.test.x_query)[:MAX_ROWS]
        classes, observed = self.classes, self.test.y_query[:MAX_ROWS].tolist()
        rows = [
            (str(label), classes[row.argmax()], f"{row.max():.0%}")
            for label, row in zip(observed, probabilities, strict=True)
        ]
        return self.chart("labels", rows=rows)


def examples(fitted: Fit, tested: Tested) -> list[dict[str, Any]]:
    """Return charts or, of labels with several inputs, tables of up to six tasks, from best to worst predicted."""
    every = [(group.meta, *pair) for group in tested.groups for pair in zip(group.tests, group.names, strict=True)]
    scores, columns, labels = tested.compared.scores["metaprior"].per_task, fitted.tasks.columns, fitted.tasks.labels
    order = np.argsort(scores["log_loss" if labels else "nll"], kind="stable")
    places = np.unique(np.linspace(0, len(order) - 1, N_EXAMPLES).round().astype(int))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of inputs outside the range of a fold
        chosen = [Example(*every[i]) for i in order[places].tolist()]
        along = _only_input(chosen)
        if along is None:
            return (
                [each.table() for each in chosen]
                if labels
                else _same_axes([each.scatter(columns["y"]) for each in chosen], ("x", "y"))
            )
        charts = _same_axes([each.along(along, columns["x"], fitted.tasks.dates) for each in chosen], ("x",))
        for each, chart in zip(chosen, charts, strict=True):
            chart.update((each.probabilities if labels else each.prediction)(along, chart["x"], columns["y"]))
        return _same_axes(charts, ("y",))


def _only_input(chosen: Sequence[Example]) -> int | None:
    """Return the only input that varies within the tasks, if it can be drawn along, else None."""
    along, features = axes_of(chosen[0].meta), chosen[0].meta.features_
    if len(along) != 1:
        return None
    others = [i for i in range(chosen[0].x.shape[1]) if i not in (*along, *features.categories.covariates)]
    return along[0] if all((each.x[:, others] == each.x[0, others]).all() for each in chosen) else None


def _same_axes(charts: list[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Give all charts the same ranges, so that they can be compared, unless that would make one of them tiny."""
    for name in names:
        domains = np.array([chart[name]["domain"] for chart in charts])
        low, high = float(domains[:, 0].min()), float(domains[:, 1].max())
        if np.ptp(domains, axis=1).min() >= SAME_AXIS * (high - low):
            for chart in charts:
                chart[name] = {**chart[name], "domain": [low, high]}
    return charts
