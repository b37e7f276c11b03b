"""Rows of paired differences in a plot: points with intervals, and arrows for points outside of the axes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.lines import Line2D

from metaprior.checks import counted
from metaprior.plots.style import LINE, POINTS, TRUTH, tidy
from metaprior_studies.reproduction.comparisons import FAILS, HOLDS, MIN_DRAWS, Comparison

GRAY = "0.55"
COLORS = {HOLDS: LINE, FAILS: POINTS}  # of verdicts; others are gray
MARGIN = 0.06  # of the range of an axis, at both ends


def color_of(comparison: Comparison) -> str:
    """Return the color of a comparison whose rule holds, does not hold, or is undecided."""
    return COLORS.get(str(comparison.verdict), GRAY)


def interval_of(comparison: Comparison) -> tuple[float, float, float]:
    """Return the mean difference and the ends of its interval."""
    return comparison.difference, comparison.low, comparison.high


def find_limits(values: np.ndarray, equal: float = 0.0) -> tuple[float, float]:
    """Return limits of an axis that shows all intervals of `values` and equality."""
    ends = np.append(values[np.isfinite(values)], equal)
    margin = MARGIN * (np.ptp(ends) or 1.0)
    return float(ends.min() - margin), float(ends.max() + margin)


def describe(n_draws: int) -> str:
    """Return what the rows show, for a title."""
    if n_draws < MIN_DRAWS:
        return f"mean paired differences of {counted(n_draws, 'draw')}, too few for intervals"
    return f"mean paired differences, 95% intervals over {n_draws} draws"


def draw_rows(
    axes: Any,
    places: np.ndarray,
    values: np.ndarray,
    colors: Sequence[str],
    limits: tuple[float, float],
    equal: float = 0.0,
    form: str | None = None,
) -> None:
    """Plot rows of (mean, low, high) at `places`; with `form` (".2f") arrows have their value beside them."""
    axes.axvline(equal, color=TRUTH, linewidth=1.0, linestyle="--", zorder=1)
    axes.hlines(places, values[:, 1], values[:, 2], colors=colors, linewidth=2)
    for place, value, color in zip(places, values[:, 0], colors, strict=True):
        if not np.isfinite(value):
            continue
        shown = limits[0] <= value <= limits[1]
        marker = "o" if shown else "<" if value < limits[0] else ">"
        axes.plot(np.clip(value, *limits), place, marker=marker, color=color, markersize=5, clip_on=shown, zorder=3)
        if form and not shown:
            right = value > limits[1]
            axes.annotate(
                f"{value:+{form}}".replace("-", "−"),
                (limits[int(right)], place),
                xytext=(-7 if right else 7, 0),
                textcoords="offset points",
                ha="right" if right else "left",
                va="center",
                fontsize=9,
                color=color,
                bbox={"color": "white", "pad": 1.0},  # hides the line of equality
            )
    axes.set_xlim(limits)
    tidy(axes, "x")
    axes.tick_params(axis="y", length=0)


def explain_colors(figure: Any, better: str, worse: str) -> None:
    """Draw the legend of a figure of rows."""
    words = {LINE: better, POINTS: worse, GRAY: "undecided"}
    style = {"marker": "o", "markersize": 5, "linewidth": 2}
    handles = [Line2D([], [], color=color, label=label, **style) for color, label in words.items()]
    arrow = Line2D([], [], color=TRUTH, marker=">", markersize=5, linestyle="", label="outside of the axes")
    figure.legend(handles=[*handles, arrow], loc="outside lower center", ncols=4, frameon=False, fontsize=9)
