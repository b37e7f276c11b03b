"""A forest plot: one contestant against all others, by environment, in RMSE and NLL."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from metaprior.plots.style import LINE, POINTS, TRUTH, as_bytes, tidy
from metaprior_studies.peers.comparison import ALL, BETTER, WORSE, compare, found, others
from metaprior_studies.peers.contestants import LABELS

GRAY = "0.55"
# Of both metrics: a ratio of RMSE, a difference of NLL.
XLABELS = ("RMSE of {} / RMSE of the other (left is better)", "NLL of {} − NLL of the other (left is better)")
EQUAL, RANGES = (1.0, 0.0), ((0.45, 1.35), (-1.3, 0.5))
TICKS = ((0.5, 0.7, 1.0, 1.3), (-1.0, -0.5, 0.0, 0.5))


def draw_forest(frame: Any, reference: str) -> bytes:
    """Plot a column per other contestant and a row of panels per metric, as PNG.

    A point is the mean over draws and a line its 95% interval. What lies outside of the axes is an arrow at their end.
    """
    columns, rows = others(frame, reference), [*found(frame, "data"), ALL]
    figure = Figure(figsize=(2.0 + 2.0 * len(columns), 1.8 + 0.5 * len(rows)), layout="constrained")
    places = np.arange(len(rows), dtype=float)
    places[-1] += 0.4
    differences = [[compare(frame, data, reference, other) for data in rows] for other in columns]
    halves: Any = figure.subfigures(2, 1)
    for number, (part, label) in enumerate(zip(halves, XLABELS, strict=True)):
        panels = part.subplots(1, len(columns), sharex=True, sharey=True, squeeze=False)[0]
        for axes, other, of_other in zip(panels, columns, differences, strict=True):
            values = np.array([each[3 * number : 3 * number + 3] for each in of_other])
            _draw(axes, places, values, [each.verdicts()[number] for each in of_other], EQUAL[number], RANGES[number])
            axes.set_title(LABELS.get(other, other).replace(", ", ",\n"), fontsize=10)
        panels[0].set_xscale("linear" if number else "log")
        panels[0].set_xticks(TICKS[number], [f"{tick:g}" for tick in TICKS[number]])
        panels[0].set_xticks([], minor=True)
        panels[0].set_xlim(RANGES[number])
        panels[0].set_yticks(places, rows)
        panels[0].set_ylim(places[-1] + 0.6, -0.6)
        part.supxlabel(label.format(reference), fontsize=10)
    colors = f"blue: {reference} is better; orange: worse; gray: the 95% interval over draws includes equality"
    figure.suptitle(colors, fontsize=10)
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
