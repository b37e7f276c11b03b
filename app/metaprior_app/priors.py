"""A prior that the page predicts with, and what the page shows of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from metaprior.checks import counted
from metaprior.estimators.classifier import LabelsPrior
from metaprior.estimators.regressor import ReadingsPrior
from metaprior.likelihoods.counts import MAX_COUNT
from metaprior.tasks.columns import no_extrapolation_warnings
from metaprior.tasks.types import Task
from metaprior_app.charts import MAX_LINES, Prior, as_rows, axes_of, draw_tasks, whole_numbers
from metaprior_app.recipes import FitRequest
from metaprior_app.tables import CHANGED, InvalidRequest, OpenTable

AUTO = "auto"  # the place on the slider of the prior whose alpha was chosen by the search
ROOM = 0.12  # of the range of y, beyond it
N_PLACES = 15  # along an input, to see where the prior expects y


@dataclass(frozen=True)
class Variant:
    """A prior at a place of the slider, and its file; alpha is None where the search chose it."""

    alpha: float | None
    meta: Prior
    file: Path


@dataclass
class LoadedPrior:
    """A fitted prior, its variants at other weights of the source, and the tasks it was fitted to, if known."""

    meta: Prior
    file: Path
    name: str
    revision: int = 0
    tasks: Sequence[Task] = ()
    dates: Sequence[str] = ()
    settings: FitRequest | None = None  # of a fit on this page
    table: OpenTable | None = None  # that it was fitted to
    variants: dict[str, Variant] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not axes_of(self.meta):
            raise InvalidRequest(
                f"{self.name} has no input of numbers that varies within a task, which a chart could be drawn along. "
                "Predict with `metaprior predict`, or in Python."
            )

    @property
    def columns(self) -> dict[str, Any]:
        stored = self.meta.training_.get("columns") or {}
        names = getattr(self.meta, "feature_names_in_", None)
        x = stored.get("x") if names is None else list(names)
        x = x or [f"input {i + 1}" for i in range(self.meta.n_features_in_)]
        return {"task": stored.get("task") or [], "x": [str(name) for name in x], "y": stored.get("y") or "y"}

    def at(self, key: str | None) -> Variant:
        if key is None or key == AUTO:
            return Variant(None, self.meta, self.file)
        if key not in self.variants:
            raise InvalidRequest(f"There is no prior at alpha = {key} (yet).", CHANGED)
        return self.variants[key]

    def describe(self) -> dict[str, Any]:
        meta, report, labels = self.meta, self.meta.transfer_report(), isinstance(self.meta, LabelsPrior)
        classes = meta.classes_ if isinstance(meta, LabelsPrior) else None
        return {
            "revision": self.revision,
            "name": self.name,
            "labels": labels,
            "classes": None if classes is None else [str(name) for name in classes],
            "inputs": self.inputs,
            "axes": axes_of(meta),
            "output": self.columns["y"],
            "y_range": None if labels else self.y_range,
            "whole": whole_numbers(meta),
            "has_conformal": meta.model_.conformal is not None,
            "n_tasks": len(self.tasks),
            "is_density": len(self.tasks) > MAX_LINES,
            "fitted_here": self.settings is not None,
            "words": report.plain_words,
            "environments": environments_of(meta),
            "candidates": candidates_of(meta) if report.alpha.any() else None,
            "alpha": float(meta.alpha_),
            "pooled": report.pooled_alpha,
        }

    def draw_tasks(self, axis: int, exposure: float | None = None) -> dict[str, Any] | None:
        """Return training tasks of numbers for the chart along an input, or None if they are not known.

        Counts are those of the exposure of the chart, at the same rates.
        """
        if not self.tasks or isinstance(self.meta, LabelsPrior):
            return None
        fixed, limits, column = self.typical, self.y_range, self.meta.features_.exposure
        if column is not None and exposure is not None:
            limits = [end * exposure / fixed[column] for end in limits]
            fixed[column] = exposure
        return draw_tasks([self._at_exposure(task, fixed) for task in self.tasks], axis, limits)

    @property
    def typical(self) -> list[float]:
        return [each["typical"] for each in self.inputs]

    @cached_property
    def inputs(self) -> list[dict[str, Any]]:
        return [self._describe_input(i, name) for i, name in enumerate(self.columns["x"])]

    def _describe_input(self, i: int, name: str) -> dict[str, Any]:
        categories, scaling = self.meta.features_.categories, self.meta.model_.members[0].scaling
        is_exposure = i == self.meta.features_.exposure
        ranges = getattr(self.meta, "feature_range_", None)
        if ranges is not None:
            low, high = ranges[:, i].tolist()
        else:
            low, high = (float(scaling.x_mean[i] + sign * 2.0 * scaling.x_std[i]) for sign in (-1.0, 1.0))
        levels = [str(level) for level in categories.listed(i)] if i in categories.levels else None
        if levels is not None:  # the most common one
            assert scaling.kinds is not None
            assert scaling.shares is not None
            start = scaling.kinds.place(i)
            typical = float(np.argmax(scaling.shares[start : start + len(levels)]))
        elif i in categories.covariates:
            typical = float(scaling.x_mean[i])
        elif is_exposure:  # one or, if the fit has none of about that size, the nearest that it has
            typical = float(np.clip(1.0, low, high))
        else:
            typical = float(np.median(np.concatenate([task.x[:, i] for task in self.tasks] or [[low, high]])))
        return {
            "name": name,
            "dates": name in self.dates,
            "low": low,
            "high": high if high > low else low + 1.0,
            "typical": typical,
            "levels": levels,
            "covariate": i in categories.covariates,
            "exposure": is_exposure,
        }

    @cached_property
    def y_range(self) -> list[float]:
        """Limits for the axis of y: about what training tasks have, or the prior expects, and some room."""
        whole = whole_numbers(self.meta)
        if whole is not None and whole["highest"] < MAX_COUNT:  # all levels
            return [whole["lowest"] - 0.6, whole["highest"] + 0.6]
        if self.tasks:
            y = np.concatenate([self._at_exposure(task, self.typical).y for task in self.tasks]).astype(float)
            low, high = np.percentile(y, [0.2, 99.8]).tolist()
        else:
            low, high = self._expected()
        if whole is not None:  # with room for readings of zero
            return [-max(0.6, 0.05 * max(high, 3.0)), (1.0 + ROOM) * max(high, 3.0)]
        room = ROOM * (high - low) or 1.0
        return [low - room, high + room]

    def _expected(self) -> tuple[float, float]:
        """Return where the prior expects y along every input, the others being typical."""
        assert isinstance(self.meta, ReadingsPrior)
        rows = np.tile(self.typical, (len(axes_of(self.meta)), N_PLACES, 1))
        for along, axis in zip(rows, axes_of(self.meta), strict=True):
            along[:, axis] = np.linspace(self.inputs[axis]["low"], self.inputs[axis]["high"], N_PLACES)
        with no_extrapolation_warnings():
            low, high = self.meta.adapt([], []).quantile(as_rows(self.meta, rows, self.typical), (0.01, 0.99))
        return float(low.min()), float(high.max())

    def _at_exposure(self, task: Task, fixed: Sequence[float]) -> Task:
        """Return a task of counts as if all had the exposure of a chart: counts of it at the same rates."""
        column = self.meta.features_.exposure
        return task if column is None else task._replace(y=task.y * (fixed[column] / task.x[:, column]))


def environments_of(meta: Prior) -> list[str]:
    training, output = meta.training_, meta.transfer_report().outputs.removesuffix("s")
    used = {name: counts for name, counts in training["environments"].items() if counts["tasks"]}
    described = []
    for name, counts in used.items():
        numbers = f"{counted(counts['tasks'], 'task')}, {counted(counts['samples'], output)}"
        target = " (target)" if name == training["target"] else ""
        described.append(f"{name}{target}: {numbers}" if len(used) > 1 else numbers)
    return described


def candidates_of(meta: Prior) -> dict[str, Any] | None:
    """Return the rows of the chart of the transfer report: gains or scores of the settings that were compared."""
    report = meta.transfer_report()
    values, errors, what = report.gain, report.gain_standard_error, "gain over target-only in the robust score"
    if values is None:
        values, errors, what = report.score, report.standard_error, "robust score"
    if values is None or errors is None:
        return None
    columns = zip(values.tolist(), errors.tolist(), report.weight.tolist(), strict=True)
    rows = [
        {"label": report.describe(i), "value": value, "error": error, "weight": weight}
        for i, (value, error, weight) in enumerate(columns)
    ]
    return {"rows": rows, "label": f"{what}, {report.unit}"}


def searched_alphas(meta: Prior) -> list[float]:
    """Return the weights of the source that were compared, each once, from target-only upwards."""
    report = meta.transfer_report()
    if report.score is None or not report.alpha.any():
        return []
    plain = np.ones(len(report.alpha), bool) if report.environment_effect is None else ~report.environment_effect
    # Of several sources, only weights in proportion to their tasks: those that a number for alpha stands for.
    sources = np.array([name != report.target for name in report.names])
    counts = np.array([meta.training_["environments"][name]["tasks"] for name in report.names], float) * sources
    shared = np.outer(report.alpha, counts / max(counts.sum(), 1.0))
    plain &= np.isclose(shared, report.environment_weights * sources, atol=1e-6).all(axis=1)
    return sorted({round(float(alpha), 12) for alpha in report.alpha[plain]})
