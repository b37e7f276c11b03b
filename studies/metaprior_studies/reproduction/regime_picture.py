"""Draw the regime map: where transfer pays, over the deviation of the source and the number of target tasks."""

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from metaprior_studies.reproduction.tables import regime_table

UNSURE = "n.s."  # not significant: the 95% interval of the gain includes zero


def draw_regime(frame: pd.DataFrame) -> Figure:
    """Draw heat maps: best alpha (left) and gain over target-only (right), a row per scale of the hyper-prior."""
    table: Any = regime_table(frame)
    scales = sorted(table["prior_std"].unique())
    most = max(1.0, float(np.nanmax(table["gain"].to_numpy(), initial=1.0)))
    figure = Figure(figsize=(9.5, 1.6 + 2.3 * len(scales)), layout="constrained")
    panels = figure.subplots(len(scales), 2, squeeze=False, sharex=True, sharey=True)
    columns = (
        ("best_alpha", (0.0, 1.0), "cividis", "best alpha, the weight of the source"),
        ("gain", (0.0, most), "YlGnBu", "RMSE saved over the target tasks alone (%)"),
    )
    for of_column, (column, limits, colors, title) in zip(panels.T, columns, strict=True):
        parts = [table[table["prior_std"] == prior_std] for prior_std in scales]
        images = [_heat(axes, part, column, limits, colors) for axes, part in zip(of_column, parts, strict=True)]
        of_column[0].set_title(title, fontsize=10)
        of_column[-1].set_xlabel("deviation of the source from the target")
        figure.colorbar(images[0], ax=of_column, location="bottom", shrink=0.7, aspect=40)
    for axes, prior_std in zip(panels[:, 0], scales, strict=True):
        axes.set_ylabel(f"$\\sigma_P$ = {prior_std:g}\nnumber of target tasks")
    return figure


def _heat(axes: Any, cells: Any, column: str, limits: tuple[float, float], colors: str) -> Any:
    """Draw a heat map with numbers, or `UNSURE` where the interval of the gain includes zero."""
    grid = cells.pivot(index="n_target", columns="deviation", values=column).sort_index()
    image = axes.imshow(grid, cmap=colors, vmin=limits[0], vmax=limits[1], aspect="auto", origin="lower")
    axes.set_xticks(range(len(grid.columns)), [f"{deviation:g}" for deviation in grid.columns])
    axes.set_yticks(range(len(grid.index)), [f"{count:g}" for count in grid.index])
    axes.spines[:].set_visible(False)
    for cell in cells.itertuples():
        value = getattr(cell, column)
        if math.isnan(value):
            continue
        sure = cell.low > 0.0 or cell.high < 0.0
        text = (
            f"{value:.2g}" if column == "best_alpha" else f"{value:.{0 if abs(value) >= 1 else 1}f}" if sure else UNSURE
        )
        place = (grid.columns.get_loc(cell.deviation), grid.index.get_loc(cell.n_target))
        red, green, blue, _ = image.cmap(image.norm(value))
        color = "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.5 else "black"
        axes.text(*place, text, ha="center", va="center", fontsize=9, color=color)
    return image
