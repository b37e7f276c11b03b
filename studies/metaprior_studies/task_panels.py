"""Pictures of new tasks on shared axes: readings given and held back, and what one or several methods predict."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from metaprior.plots.style import BAND, DOTS, LINE, RINGS, tidy
from metaprior.tasks.columns import ForecastWarning

Curve = Callable[
    [Any, Any, Any], tuple[Any, Any, Any]
]  # context X and y, new X -> mean, lower and upper end of the band
COLORS = (LINE, "#E69F00", "#009E73")  # of the methods of a panel, the first with its band
N_GRID = 120


def draw_tasks(
    tests: Sequence[Any],
    rows: Sequence[Mapping[str, Curve]],
    names: tuple[str, str],
    titles: Sequence[str],
    size: tuple[float, float] = (3.6, 3.6),
) -> Any:
    """Draw a panel per test task and row of methods: the band of the row's first method, and the means of all.

    Test tasks have one input column. Titles are those of the tasks; with several rows, a row is labeled by its method.
    """
    import matplotlib.pyplot as plt  # figures that notebooks and the gallery show

    figure, panels = plt.subplots(
        len(rows),
        len(titles),
        figsize=(size[0] * len(titles), size[1] * len(rows)),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    inputs = np.concatenate([np.concatenate([x, x_new])[:, 0] for x, _, x_new, _ in tests[: len(titles)]])
    grid = np.linspace(inputs.min(), inputs.max(), N_GRID)[:, None]
    for of_row, curves in zip(panels, rows, strict=True):
        for axes, test in zip(of_row, tests, strict=False):
            _draw_panel(axes, test, curves, grid, named=len(rows) == 1)
        name = names[1] if len(rows) == 1 else f"{next(iter(curves))}\n{names[1]}"
        of_row[0].set_ylabel(name)
    for axes, title in zip(panels[0], titles, strict=True):
        axes.set_title(title, fontsize=10)
    for axes in panels[-1]:
        axes.set_xlabel(names[0])
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    return figure


def _draw_panel(axes: Any, test: Any, curves: Mapping[str, Curve], grid: np.ndarray, named: bool) -> None:
    x, y, x_new, y_new = test
    for i, (name, curve) in enumerate(curves.items()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ForecastWarning)  # the curve is drawn through what is given, too
            mean, lower, upper = curve(x, y, grid)
        label = name if named else "predicted"
        if i == 0:
            band = f"{label}, 90% interval" if named else "90% interval"
            axes.fill_between(grid[:, 0], lower, upper, color=BAND, alpha=0.6, linewidth=0, label=band)
        axes.plot(grid[:, 0], mean, color=COLORS[i], linestyle="--" if i else "-", linewidth=1.8, label=label)
    axes.plot(x[:, 0], y, label="given", **DOTS)
    axes.plot(x_new[:, 0], y_new, label="held back", **RINGS)
    tidy(axes)
