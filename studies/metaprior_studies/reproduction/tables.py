"""Tables of the report: alpha chosen by cross-validation against other schemes, and where transfer helps."""

import math
from typing import Any

import numpy as np
import pandas as pd

from metaprior_studies.reproduction.comparisons import (
    SAME,
    Comparison,
    Table,
    by_alpha,
    difference,
    held_out,
    levels,
    measure,
    one_hot,
    pairs,
    select,
    values,
)
from metaprior_studies.schema import ALL, AUTO, FEW, POOLED

Frames = dict[str, pd.DataFrame]


def auto_table(frames: Frames) -> list[Comparison]:
    """Compare WFEM with alpha chosen by cross-validation with every other scheme, in every setting.

    The best alpha in hindsight is chosen on the same draws that measure it, so no rule is expected to reach it.
    """
    rows: list[Comparison] = []
    for study, column in (("fig1", "deviation"), ("fig3", "beta"), ("fig5", "beta")):
        frame = frames.get(study)
        for point in [] if frame is None else levels(frame, column, AUTO):
            rows += _auto_rows(frame, f"figure {study[3]} · {column} {point:g}", "rmse", **{column: point})
    labeled = frames.get("fig4")
    for data, inference in [] if labeled is None else pairs(labeled):
        where = f"figure 4 · {data} · {inference.upper()}"
        rows += _auto_rows(labeled, where, "accuracy", data=data, inference=inference)
    return rows


def regime_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return best alpha and gain of WFEM over target-only by hyper-prior scale, number of target tasks and deviation.

    `best_alpha` has the lowest mean RMSE over all draws; PACOH on the target tasks counts as alpha 0. The gain is in
    percent of mean RMSE. Alpha is chosen on one half of the draws and measured on the other, both ways, averaged over
    many random halves: chosen on the draws that measure it, noise alone would show a gain. If there is nothing to gain,
    the result is a small loss, the cost of choosing.
    """
    rows = []
    cells: Any = frame.groupby(["prior_std", "n_target", "deviation"])
    for (prior_std, n_target, deviation), cell in cells:
        few = values(cell, FEW).rename(0.0)
        table = pd.concat([few, by_alpha(cell)], axis=1, join="inner").dropna()
        best = float(table.columns[int(np.argmin(table.mean().to_numpy()))]) if len(table) else math.nan
        chosen = held_out(table, lambda means: one_hot(means, np.argmin(means)))
        gain = measure("", "", _gain, None, chosen, few)
        settings = {"prior_std": prior_std, "n_target": n_target, "deviation": deviation, "best_alpha": best}
        rows.append({**settings, "gain": gain.difference, "low": gain.low, "high": gain.high, "n_draws": gain.n_draws})
    columns = ["prior_std", "n_target", "deviation", "best_alpha", "gain", "low", "high", "n_draws"]
    return pd.DataFrame(rows, columns=pd.Index(columns))


def _gain(chosen: np.ndarray, few: np.ndarray, axis: int = -1) -> Any:
    return 100.0 * (1.0 - np.mean(chosen, axis=axis) / np.mean(few, axis=axis))


def _auto_rows(frame: Table, where: str, metric: str, **setting: Any) -> list[Comparison]:
    auto = values(frame, AUTO, metric, **setting)
    if auto.empty:
        return []
    beta = float(select(frame, AUTO, metric, **setting)["beta"].iloc[0])
    others = {scheme: values(frame, scheme, metric, **setting) for scheme in (FEW, POOLED)}
    table = by_alpha(frame, metric, **setting)
    for alpha in table.columns[abs(table.columns - beta) < SAME]:
        others["WFEM at alpha = beta"] = table[alpha]
    if len(table.columns) > 1:
        means = table.mean()
        others["WFEM at the best alpha in hindsight"] = table[means.idxmin() if metric == "rmse" else means.idxmax()]
    others[ALL] = values(frame, ALL, metric, **setting)
    return [
        difference(where, f"{AUTO} − {other}, {metric}", None, auto, found)
        for other, found in others.items()
        if len(found)
    ]
