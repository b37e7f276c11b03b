"""Regrets of tuning runs: intervals over problems, and curves."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from metaprior.plots.style import LINE, POINTS, TRUTH, as_bytes, tidy

N_RESAMPLES = 4000
TITLES = {"svc": "SVC: C, gamma", "network": "network: learning rate, L2, width, epochs"}
STYLES = {
    "metaprior": (LINE, "-"),
    "metaprior, from its mean": (LINE, ":"),
    "SingleTaskGP, 5 Sobol": (POINTS, "-"),
    "SingleTaskGP, 2 Sobol": (POINTS, "-."),
    "SingleTaskGP, past best": (POINTS, "--"),
    "SingleTaskGP, past mean": (POINTS, ":"),
    "past optima": (TRUTH, "--"),
    "random search": ("0.55", "-"),
}


def regrets_of(frame: pd.DataFrame, space: str, contestant: str) -> np.ndarray:
    """Return the regrets of a contestant, (seeds, problems, evaluations)."""
    rows: Any = frame[(frame["space"] == space) & (frame["contestant"] == contestant)]
    rows = rows.sort_values(["seed", "task"])
    columns = [name for name in frame.columns if name.startswith("regret_")]
    return rows[columns].to_numpy(float).reshape(rows["seed"].nunique(), -1, len(columns))


def bootstrap(of: Sequence[np.ndarray], statistic: Callable[..., Any]) -> tuple[Any, Any, Any]:
    """Return a statistic of regrets (seeds, problems), and its 95% interval.

    Problems are drawn again, with all their seeds: seeds of a problem are not independent of each other.
    """
    rng, n = np.random.default_rng(0), of[0].shape[1]
    draws = [statistic(*(each[:, places] for each in of)) for places in rng.integers(n, size=(N_RESAMPLES, n))]
    return statistic(*of), *np.quantile(draws, [0.025, 0.975], axis=0)


def draw_regrets(frame: pd.DataFrame) -> bytes:
    """Plot mean regrets by the number of evaluations, with 95% intervals over problems, as PNG."""
    spaces = list(frame["space"].unique())
    figure = Figure(figsize=(5.2 * len(spaces), 4.4), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(spaces), sharex=True, sharey=True))
    for axes, space in zip(panels, spaces, strict=True):
        for name, (color, style) in STYLES.items():
            mean, low, high = bootstrap([regrets_of(frame, space, name)], lambda regrets: regrets.mean(axis=(0, 1)))
            evaluations = np.arange(1, len(mean) + 1)
            axes.plot(evaluations, mean, style, color=color, label=name)
            if style == "-":
                axes.fill_between(evaluations, low, high, color=color, alpha=0.15, linewidth=0)
        axes.set_title(TITLES[space])
        axes.set_xlabel("evaluations")
        axes.set_yscale("log")
        tidy(axes)
    panels[0].set_ylabel("accuracy below the best setting's")
    panels[0].set_xticks(range(1, 11))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return as_bytes(figure)
