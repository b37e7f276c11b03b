"""A forest plot: one contestant against all others, by environment, in RMSE and NLL."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from metaprior.plots.style import LINE, POINTS, as_bytes
from metaprior_studies.paired_rows import GRAY, draw_rows
from metaprior_studies.peers.comparison import ALL, BETTER, WORSE, compare, found, others
from metaprior_studies.peers.contestants import LABELS

COLORS = {BETTER: LINE, WORSE: POINTS}
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
            colors = [COLORS.get(each.verdicts()[number], GRAY) for each in of_other]
            draw_rows(axes, places, values, colors, RANGES[number], EQUAL[number])
            axes.set_title(LABELS.get(other, other).replace(", ", ",\n"), fontsize=10)
        panels[0].set_xscale("linear" if number else "log")
        panels[0].set_xticks(TICKS[number], [f"{tick:g}" for tick in TICKS[number]])
        panels[0].set_xticks([], minor=True)
        panels[0].set_yticks(places, rows)
        panels[0].set_ylim(places[-1] + 0.6, -0.6)
        part.supxlabel(label.format(reference), fontsize=10)
    words = f"blue: {reference} is better; orange: worse; gray: the 95% interval over draws includes equality"
    figure.suptitle(words, fontsize=10)
    return as_bytes(figure)
