"""A forest plot: one contestant against all others, by environment, in RMSE and NLL."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from metaprior.plots.style import LINE, POINTS, TRUTH, as_bytes, tidy
from metaprior_studies.peers.comparison import ALL, BETTER, WORSE, compare, found, others
from metaprior_studies.peers.contestants import LABELS

GRAY = "0.55"
RATIO_RANGE, RATIO_TICKS = (0.45, 1.35), (0.5, 0.7, 1.0, 1.3)
NLL_RANGE, NLL_TICKS = (-1.3, 0.5), (-1.0, -0.5, 0.0, 0.5)


def draw_forest(frame: Any, reference: str) -> bytes:
    """Plot a column per other contestant and a row of panels per metric, as PNG.

    A point is the mean over draws and a line its 95% interval. What lies outside of the axes is an arrow at their end.
    """
    columns, rows = others(frame, reference), [*found(frame, "data"), ALL]
    figure = Figure(figsize=(2.0 + 2.0 * len(columns), 1.6 + 0.5 * len(rows)), layout="constrained")
    panels = figure.subplots(2, len(columns), sharex="row", sharey=True, squeeze=False)
    places = np.arange(len(rows), dtype=float)
    places[-1] += 0.4
    for column, other in enumerate(columns):
        differences = [compare(frame, data, reference, other) for data in rows]
        ratios = np.array([(each.ratio, each.ratio_low, each.ratio_high) for each in differences])
        nlls = np.array([(each.nll, each.nll_low, each.nll_high) for each in differences])
        top, bottom = panels[:, column]
        _draw(top, places, ratios, [each.verdicts()[0] for each in differences], 1.0, RATIO_RANGE)
        _draw(bottom, places, nlls, [each.verdicts()[1] for each in differences], 0.0, NLL_RANGE)
        top.set_title(LABELS.get(other, other).replace(", ", ",\n"), fontsize=10)
    for axes in panels[0]:
        axes.set_xscale("log")
        axes.set_xticks(RATIO_TICKS, [f"{tick:g}" for tick in RATIO_TICKS], minor=False)
        axes.set_xticks([], minor=True)
        axes.set_xlim(RATIO_RANGE)
        axes.tick_params(labelbottom=True)
    for axes in panels[1]:
        axes.set_xticks(NLL_TICKS, [f"{tick:g}" for tick in NLL_TICKS])
        axes.set_xlim(NLL_RANGE)
    panels[0, 0].set_yticks(places, rows)
    panels[0, 0].set_ylim(places[-1] + 0.6, -0.6)
    for row, label in enumerate((f"RMSE of {reference} / RMSE of the other", f"NLL of {reference} − NLL of the other")):
        panels[row, len(columns) // 2].set_xlabel(label + ": left is better")
    return as_bytes(figure)


def _draw(axes: Any, places: Any, values: Any, verdicts: list[str], equal: float, limits: tuple[float, float]) -> None:
    colors = [{BETTER: LINE, WORSE: POINTS}.get(verdict, GRAY) for verdict in verdicts]
    axes.axvline(equal, color=TRUTH, linewidth=1.0, linestyle="--", zorder=1)
    axes.hlines(places, values[:, 1], values[:, 2], colors=colors, linewidth=2)
    inside = (values[:, 0] >= limits[0]) & (values[:, 0] <= limits[1])
    for place, value, shown, color in zip(places, values[:, 0], inside, colors, strict=True):
        if not np.isfinite(value):
            continue
        marker = "o" if shown else "<" if value < limits[0] else ">"
        axes.plot(np.clip(value, *limits), place, marker=marker, color=color, markersize=5, clip_on=shown, zorder=3)
    tidy(axes, "x")
    axes.tick_params(axis="y", length=0)
