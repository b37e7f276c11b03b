"""Draw the paper's figures 1, 2, 3 and 5 from tidy results: means over draws with 95% bands."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from metaprior.plots.style import BAND, LINE, POINTS, TRUTH, tidy
from metaprior_studies.schema import ALL, AUTO, FEW, GP, ORACLE_BAYES, ORACLE_GP, POOLED, SCHEMES, WFEM

# Okabe and Ito's color-blind-safe palette; a scheme has the same color in every figure.
COLORS = {
    GP: "#7f7f7f",
    FEW: "#E69F00",
    POOLED: "#CC79A7",
    WFEM: "#0072B2",
    AUTO: "#009E73",
    ALL: "#D55E00",
    ORACLE_GP: "#333333",
    ORACLE_BAYES: "#333333",
}
ORACLES = {ORACLE_GP: (0, (1, 1.5)), ORACLE_BAYES: (0, (4, 1.5, 1, 1.5))}  # dotted and dash-dotted
METRICS = {"rmse": "test RMSE", "nll": "negative log likelihood per sample"}
NLL_TICKS = (-2, -1, -0.5, 0, 0.5, 1, 2, 5, 10, 20, 50, 100)


def draw_fig1(frame: pd.DataFrame) -> Figure:
    """Plot RMSE and negative log likelihood against the deviation between source and target."""
    return _two_panels(frame, "deviation", "deviation of the target from the source")


def draw_fig2(frame: pd.DataFrame) -> Figure:
    """Plot predictions of four schemes on one test task, with the 90% band of observations."""
    figure = Figure(figsize=(9.5, 6.6), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    task = frame[frame["scheme"] == "task"]
    for axes, scheme in zip(panels.flat, (GP, FEW, WFEM, ALL), strict=True):
        x, mean, lower, upper = _curves(frame[frame["scheme"] == scheme])
        axes.fill_between(x, lower, upper, color=BAND, alpha=0.6, linewidth=0, label="90% band of observations")
        axes.plot(x, mean, color=LINE, linewidth=1.8, label="mean")
        for metric, style in (("truth", {"color": TRUTH, "linestyle": "--", "linewidth": 1.2}), ("context", _DOTS)):
            found: Any = task[task["metric"] == metric]
            found = found.sort_values("x")
            axes.plot(found["x"], found["value"], label=metric, **style)
        scores = frame.loc[(frame["scheme"] == scheme) & (frame["metric"] == "rmse"), "value"]
        axes.set_title(f"{scheme} (mean RMSE of all draws {scores.mean():.3f})" if len(scores) else scheme, fontsize=10)
        tidy(axes)
    for axes in panels[1]:
        axes.set_xlabel("x")
    _legend(figure, panels[0, 0])
    return figure


def draw_fig3(frame: pd.DataFrame) -> Figure:
    """Plot RMSE and negative log likelihood against the share of source tasks."""
    return _two_panels(frame, "beta", "beta, the share of source tasks (alpha = beta)")


def draw_fig5(frame: pd.DataFrame) -> Figure:
    """Plot RMSE and negative log likelihood of WFEM against alpha; other schemes are horizontal lines."""
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, metric in zip(panels, ("rmse", "nll"), strict=True):
        _against_alpha(axes, frame, metric)
        axes.set_xlabel("alpha, the weight of the source tasks")
        _scale(axes, metric)
        tidy(axes)
    _legend(figure, panels[0])
    return figure


_RING = {"marker": "o", "markersize": 8, "markerfacecolor": "none", "markeredgewidth": 1.6}
_DOTS = {"color": POINTS, "linestyle": "", "marker": "o", "markersize": 6, "markeredgecolor": "white", "zorder": 5}


def _two_panels(frame: Any, column: str, label: str) -> Figure:
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, metric in zip(panels, ("rmse", "nll"), strict=True):
        rows = _finite(frame, metric)
        for scheme in SCHEMES:
            found = rows[rows["scheme"] == scheme]
            if found.empty:
                continue
            x, mean, half = _means(found, column)
            if scheme in ORACLES and len(x) == 1:  # the oracle does not depend on the column and was run once
                x, mean = np.array([rows[column].min(), rows[column].max()]), np.repeat(mean, 2)
            _line(axes, x, mean, half, scheme)
        axes.set_xlabel(label)
        _scale(axes, metric)
        tidy(axes)
    _legend(figure, panels[0])
    return figure


def _line(axes: Any, x: np.ndarray, mean: np.ndarray, half: np.ndarray, scheme: str) -> None:
    color = COLORS[scheme]
    if scheme in ORACLES:
        axes.plot(x, mean, color=color, linestyle=ORACLES[scheme], linewidth=1.2, label=scheme)
    elif scheme == POOLED:
        # Pooled coincides with WFEM if alpha = beta: open markers on top keep WFEM's line visible.
        axes.errorbar(x, mean, yerr=half, color=color, linestyle="", linewidth=1.2, label=scheme, zorder=4, **_RING)
    else:
        axes.plot(x, mean, color=color, linewidth=1.8, marker=".", label=scheme)
        axes.fill_between(x, mean - half, mean + half, color=color, alpha=0.18, linewidth=0)


def _against_alpha(axes: Any, frame: Any, metric: str) -> None:
    """Plot WFEM as a line over alpha, and schemes without alpha as horizontal lines."""
    rows = _finite(frame, metric)
    for scheme in SCHEMES:
        found = rows[rows["scheme"] == scheme]
        if found.empty:
            continue
        if scheme == WFEM:
            x, mean, half = _means(found, "alpha")
        else:
            _, mean, half = _means(found.assign(alpha=0.0), "alpha")
            x, mean, half = np.array([0.0, 1.0]), np.repeat(mean, 2), np.repeat(half, 2)
        if scheme == POOLED:  # pooled is WFEM at alpha = beta
            axes.plot(found["beta"].iloc[0], mean[0], color=COLORS[scheme], zorder=4, **_RING)
        line = ORACLES.get(scheme, "-")
        width, order = 1.2 if scheme in ORACLES else 2.4 if scheme == WFEM else 1.5, 3 if scheme == WFEM else 2
        marker = "o" if scheme == WFEM else ""
        style_of_line = {"color": COLORS[scheme], "linestyle": line, "linewidth": width, "zorder": order}
        axes.plot(x, mean, marker=marker, markersize=4, label=scheme, **style_of_line)
        if scheme not in ORACLES:
            opacity = 0.2 if scheme == WFEM else 0.08  # many bands overlap
            axes.fill_between(x, mean - half, mean + half, color=COLORS[scheme], alpha=opacity, linewidth=0)


def _finite(frame: Any, metric: str) -> Any:
    """Return the rows of a metric, without runs that diverged."""
    return frame[(frame["metric"] == metric) & np.isfinite(frame["value"])]


def _means(rows: Any, column: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the levels of a column, and the mean over draws and the half-width of its 95% interval at each."""
    groups = rows.groupby(rows[column].round(9))["value"]
    half = 1.96 * groups.sem().fillna(0.0)
    return groups.mean().index.to_numpy(), groups.mean().to_numpy(), half.to_numpy()


def _scale(axes: Any, metric: str) -> None:
    """Scale the y axis so that both distant and similar schemes can be distinguished."""
    axes.set_ylabel(METRICS[metric])
    if metric == "rmse":
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)))
    else:  # the negative log likelihood may be negative: linear up to 1, logarithmic above
        axes.set_yscale("symlog", linthresh=1.0)
        low, high = axes.get_ylim()
        axes.set_yticks([tick for tick in NLL_TICKS if low <= tick <= high])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _legend(figure: Figure, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(
        range(len(labels)), key=lambda index: SCHEMES.index(labels[index]) if labels[index] in SCHEMES else 0
    )
    handles, labels = [handles[index] for index in order], [labels[index] for index in order]
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)


def _curves(rows: Any) -> Sequence[np.ndarray]:
    mean, lower, upper = (rows[rows["metric"] == metric].sort_values("x") for metric in ("mean", "lower", "upper"))
    return [part.to_numpy() for part in (mean["x"], mean["value"], lower["value"], upper["value"])]
