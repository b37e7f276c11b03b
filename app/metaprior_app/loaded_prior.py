"""A prior that the page predicts with, and what the page shows of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from metaprior_app.chart_data import MAX_LINES, draw_tasks
from metaprior_app.chart_inputs import axes_of, describe_inputs
from metaprior_app.chart_outputs import at_exposure, typical, whole_numbers, y_range
from metaprior_app.messages import CHANGED, InvalidRequest
from metaprior_app.open_table import OpenTable
from metaprior.checks import counted
from metaprior.predict.ensemble import predicts_labels
from metaprior.tasks.types import Task

AUTO = "auto"  # the key of the prior whose alpha was chosen by the search


@dataclass
class LoadedPrior:
    """A fitted prior, its variants at other weights of the source, and the tasks it was fitted to, if known."""

    meta: Any
    file: Path
    name: str
    revision: int = 0
    tasks: Sequence[Task] = ()
    dates: Sequence[str] = ()
    fit: list[str] | None = None  # arguments of `metaprior fit`, as the user would write them
    settings: dict[str, Any] | None = None  # of the fit
    table: OpenTable | None = None  # that it was fitted to
    variants: dict[str, tuple[float, Any, Path]] = field(default_factory=dict)  # key to (alpha, meta, file)

    def __post_init__(self) -> None:
        if not axes_of(self.meta):
            raise InvalidRequest(
                f"{self.name} has no input of numbers that varies within a task, which a chart could be drawn along. "
                "Predict with `metaprior predict`, or in Python."
            )

    @property
    def columns(self) -> dict[str, Any]:
        """Names of the inputs and of the output."""
        stored = self.meta.training_.get("columns") or {}
        names = getattr(self.meta, "feature_names_in_", None)
        x = list(names) if names is not None else stored.get("x")
        x = x or [f"input {i + 1}" for i in range(self.meta.n_features_in_)]
        return {"task": stored.get("task") or [], "x": [str(name) for name in x], "y": stored.get("y") or "y"}

    def at(self, key: str | None) -> tuple[float | None, Any, Path]:
        """Return alpha, prior and file at a place of the slider."""
        if key is None or key == AUTO:
            return None, self.meta, self.file
        if not isinstance(key, str) or key not in self.variants:
            raise InvalidRequest(f"There is no prior at alpha = {key} (yet).", CHANGED)
        return self.variants[key]

    def describe(self) -> dict[str, Any]:
        """Return what the page shows."""
        meta, columns = self.meta, self.columns
        labels, report = predicts_labels(meta), meta.transfer_report()
        shown = {
            "revision": self.revision,
            "name": self.name,
            "labels": labels,
            "classes": None if not labels or meta.classes_ is None else [str(name) for name in meta.classes_],
            "inputs": self.inputs,
            "axes": axes_of(meta),
            "output": columns["y"],
            "y_range": None if labels else self.y_range,
            "whole": whole_numbers(meta),
            "likelihood": None if labels else meta.likelihood_,
            "has_conformal": meta.model_.conformal is not None,
            "n_tasks": len(self.tasks),
            "is_density": len(self.tasks) > MAX_LINES,
            "fitted_here": self.fit is not None,
            "words": report.plain_words,
            "environments": _environments(meta.training_, report.outputs),
        }
        return {**shown, "candidates": self._candidates(), "alpha": float(meta.alpha_), "pooled": report.pooled_alpha}

    def draw_tasks(self, axis: int, exposure: float | None = None) -> dict[str, Any] | None:
        """Return training tasks of numbers for the chart along an input, or None if they are not known.

        Counts are those of the exposure of the chart, at the same rates.
        """
        if not self.tasks or predicts_labels(self.meta):
            return None
        fixed, limits, column = typical(self.inputs), self.y_range, self.meta.features_.exposure
        if column is not None and exposure is not None:
            limits = [end * exposure / fixed[column] for end in limits]
            fixed[column] = exposure
        return draw_tasks([at_exposure(self.meta, task, fixed) for task in self.tasks], axis, limits)

    @cached_property
    def inputs(self) -> list[dict[str, Any]]:
        """Names, kinds, ranges and typical values of the inputs."""
        return describe_inputs(self.meta, self.columns["x"], self.dates, self.tasks)

    @cached_property
    def y_range(self) -> list[float]:
        """Limits for the axis of y."""
        return y_range(self.meta, self.tasks, self.inputs)

    def _candidates(self) -> dict[str, Any] | None:
        """Return the rows of the picture of the transfer report."""
        report = self.meta.transfer_report()
        if report.score is None or not report.alpha.any():
            return None
        gains = report.gain is not None
        values, errors = (report.gain, report.gain_standard_error) if gains else (report.score, report.standard_error)
        rows = [
            {
                "label": report.describe(i),
                "value": _or_none(values[i]),
                "error": _or_none(errors[i]),
                "weight": float(w),
            }
            for i, w in enumerate(report.weight)
        ]
        return {
            "rows": rows,
            "label": f"{'gain over target-only in the robust score' if gains else 'robust score'}, {report.unit}",
        }


def _environments(training: dict[str, Any], outputs: str) -> list[str]:
    """Return every environment with the numbers of its tasks and readings, or labels."""
    used = {name: counts for name, counts in training["environments"].items() if counts["tasks"]}
    described = []
    for name, counts in used.items():
        numbers = f"{counted(counts['tasks'], 'task')}, {counted(counts['samples'], outputs.removesuffix('s'))}"
        is_target = name == training["target"]
        described.append(f"{name}{' (target)' * is_target}: {numbers}" if len(used) > 1 else numbers)
    return described


def searched_alphas(meta: Any) -> list[float]:
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


def _or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
