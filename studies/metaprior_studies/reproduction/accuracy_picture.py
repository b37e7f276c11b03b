"""Draw figure 4: accuracy of few-shot classification against alpha, as paired differences."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from metaprior.plots.style import DIAGONAL, tidy
from metaprior_studies.reproduction.pictures import COLORS
from metaprior_studies.schema import ALL, AUTO, FEW, GP, POOLED, WFEM

INFERENCES = {"map": "MAP", "svgd": "SVGD"}
LEAST = -6.0  # points of the y axis; the GP is far below, and a note says where
NORMAL_95 = 1.96


def draw_fig4(frame: pd.DataFrame) -> Figure:
    """Plot accuracy minus that of PACOH on the target tasks alone, draw by draw, with 95% intervals.

    A row per inference, a column per data set, all on the same axes.
    """
    names = list(dict.fromkeys(str(name) for name in frame["data"]))
    kinds = [kind for kind in INFERENCES if kind in set(frame["inference"])]
    figure = Figure(figsize=(4.2 * max(len(names), 2), 0.8 + 2.9 * len(kinds)), layout="constrained")
    panels = figure.subplots(len(kinds), len(names), squeeze=False, sharex=True, sharey=True)
    for row, kind in zip(panels, kinds, strict=True):
        for axes, name in zip(row, names, strict=True):
            part: Any = frame[(frame["data"] == name) & frame["inference"].isin([kind, "none"])]
            if (part["scheme"] == FEW).any():
                _draw_differences(axes, part[part["metric"] == "accuracy"], f"{name}, {INFERENCES[kind]}")
            tidy(axes)
    for axes in panels[-1]:
        axes.set_xlabel("alpha, the weight of the source tasks")
    panels[0, 0].set_ylim(max(panels[0, 0].get_ylim()[0], LEAST), None)
    figure.supylabel(f"accuracy minus that of {FEW} (points)", fontsize=10)
    shown = {label: handle for axes in panels.flat for handle, label in zip(*axes.get_legend_handles_labels())}  # noqa: B905
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=5, frameon=False)
    return figure


def _draw_differences(axes: Any, rows: Any, title: str) -> None:
    """Draw WFEM over alpha, and schemes without alpha as horizontal lines with an interval at their ends."""
    base = rows[rows["scheme"] == FEW].set_index("draw")["value"]
    rows = rows.assign(points=100 * (rows["value"] - rows["draw"].map(base))).dropna(subset="points")
    axes.axhline(0.0, label=FEW, **{**DIAGONAL, "color": COLORS[FEW], "linewidth": 1.5})
    for place, scheme in ((1.04, AUTO), (1.08, ALL)):
        found = rows.loc[rows["scheme"] == scheme, "points"]
        if len(found):
            axes.axhline(found.mean(), color=COLORS[scheme], linewidth=1.2, label=scheme)
            axes.errorbar(place, found.mean(), _half(found), color=COLORS[scheme], capsize=2)
    over_alpha = rows[rows["scheme"] == WFEM].groupby("alpha")["points"]
    x, mean, half = np.array(list(over_alpha.groups)), over_alpha.mean().to_numpy(), over_alpha.agg(_half).to_numpy()
    axes.fill_between(x, mean - half, mean + half, color=COLORS[WFEM], alpha=0.2, linewidth=0)
    axes.plot(x, mean, color=COLORS[WFEM], marker="o", markersize=4, linewidth=1.8, label=WFEM)
    pooled: Any = rows[rows["scheme"] == POOLED]
    if len(pooled):  # pooled is WFEM at alpha = beta
        ring = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "markeredgewidth": 1.6, "linestyle": ""}
        axes.plot(pooled["beta"].iloc[0], pooled["points"].mean(), color=COLORS[POOLED], label=POOLED, zorder=4, **ring)
    n_draws = rows["draw"].nunique()
    axes.set_title(f"{title}: {FEW.split(',')[0]} {base.mean():.3f} ({n_draws} draws)", fontsize=9)
    gp = rows.loc[rows["scheme"] == GP, "points"]
    if len(gp):
        axes.text(
            0.02,
            0.03,
            f"{GP}, not meta-trained: {gp.mean():+.1f}",
            transform=axes.transAxes,
            fontsize=8,
            color=COLORS[GP],
        )


def _half(values: Any) -> float:
    """Return half the width of the 95% interval of a mean over draws."""
    return NORMAL_95 * float(values.std(ddof=1)) / np.sqrt(len(values)) if len(values) > 1 else 0.0
