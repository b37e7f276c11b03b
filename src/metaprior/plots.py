"""Plots of results, one function each, drawn on axes the caller brings."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from metaprior.predictive import GaussianMixture

BAND, LINE, TRUTH, POINTS = "#9ecae1", "#08519c", "#333333", "#d94801"


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
    axes.plot(x_context, y_context, "o", color=POINTS, markersize=6, markeredgecolor="white", label="context", zorder=5)
    axes.grid(color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


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
        sizes = 4 + 6 * np.sqrt(weights / weights.max())
        left.errorbar(values[kept], rows[kept], xerr=None if errors is None else errors[kept], fmt="none", ecolor=BAND)
        left.scatter(values[kept], rows[kept], s=sizes[kept] ** 2, color=LINE, zorder=3)
        left.axvline(0.0, color=TRUTH, linewidth=1.0, linestyle="--")
    right.barh(rows, weights, color=POINTS, height=0.6)
    right.set_xlabel("weight")
    left.set_yticks(rows, labels)
    left.invert_yaxis()
    for axes in (left, right):
        axes.grid(axis="x", color="0.92", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
