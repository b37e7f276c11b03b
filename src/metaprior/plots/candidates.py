"""Results that are at hand already, drawn on axes the caller brings."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from metaprior.plots.style import BAND, DOTS, LINE, POINTS, TRUTH, marker_sizes, tidy
from metaprior.prediction.mixtures import GaussianMixture


def plot_posterior(
    axes: Any,
    x: np.ndarray,
    predictive: GaussianMixture,
    x_context: np.ndarray,
    y_context: np.ndarray,
    truth: np.ndarray | None = None,
    coverage: float = 0.9,
) -> None:
    """Mean and central band of predictions along one input, with the context and, where known, the truth."""
    lower, upper = predictive.interval(coverage)
    axes.fill_between(x, lower, upper, color=BAND, alpha=0.6, linewidth=0, label=f"{coverage:.0%} band")
    axes.plot(x, predictive.mean(), color=LINE, linewidth=1.8, label="mean")
    if truth is not None:
        axes.plot(x, truth, color=TRUTH, linewidth=1.2, linestyle="--", label="truth")
    if len(x_context):
        axes.plot(x_context, y_context, label="context", **DOTS)
    tidy(axes)


def plot_candidates(
    left: Any,
    right: Any,
    labels: Sequence[str],
    values: np.ndarray | None,
    errors: np.ndarray | None,
    weights: np.ndarray,
) -> None:
    """Values of compared settings with their standard errors (left) and their weights in the average (right)."""
    rows = np.arange(len(labels))
    if values is not None:
        kept = np.isfinite(values)
        sizes = marker_sizes(weights)
        left.errorbar(values[kept], rows[kept], xerr=None if errors is None else errors[kept], fmt="none", ecolor=BAND)
        left.scatter(values[kept], rows[kept], s=sizes[kept] ** 2, color=LINE, zorder=3)
        left.axvline(0.0, color=TRUTH, linewidth=1.0, linestyle="--")
    right.barh(rows, weights, color=POINTS, height=0.6)
    right.set_xlabel("weight")
    left.set_yticks(rows, labels)
    left.invert_yaxis()
    for axes in (left, right):
        tidy(axes, "x")
