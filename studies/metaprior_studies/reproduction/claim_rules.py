"""The rules that judge the paper's claims: for each claim, comparisons of schemes and their verdicts."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from metaprior_studies.reproduction.comparisons import (
    FAILS,
    HOLDS,
    SAME,
    UNDECIDED,
    Comparison,
    Table,
    above,
    below,
    by_alpha,
    difference,
    every,
    held_out,
    inside,
    levels,
    measure,
    one_hot,
    pairs,
    relative,
    values,
)
from metaprior_studies.schema import ALL, AUTO, DEFAULT, FEW, GP, POOLED, REGRESSION_METRICS, WFEM

CLOSE = 0.10  # C2, C3: 'close' and 'comparable' mean at most a tenth above the ideal's RMSE
COINCIDES = 0.05  # C2: 'coincides' means within a twentieth of it
ABOUT = (0.1, 0.3)  # C6: the range of a best alpha of 'about 0.2'


def _c1(frame: Table) -> Iterator[Comparison]:
    """Compare RMSE of WFEM and PACOH on few: the difference is below 0 at every deviation."""
    for deviation in levels(frame, "deviation"):
        wfem, few = (values(frame, scheme, deviation=deviation) for scheme in (WFEM, FEW))
        yield difference(f"deviation {deviation:g}", "WFEM − PACOH on (1-beta)N, RMSE", below(0.0), wfem, few)


def _c2(frame: Table) -> Iterator[Comparison]:
    """Compare RMSE with the ideal: at most CLOSE above it at every deviation, within COINCIDES at deviation 0."""
    what = "RMSE of WFEM relative to PACOH on N"
    for deviation in levels(frame, "deviation"):
        pair = [values(frame, scheme, deviation=deviation) for scheme in (WFEM, ALL)]
        yield measure(f"deviation {deviation:g}", f"{what}, below +{CLOSE:g}", relative, below(CLOSE), *pair)
    pair = [values(frame, scheme, deviation=0.0) for scheme in (WFEM, ALL)]
    rule = inside(-COINCIDES, COINCIDES)
    yield measure("deviation 0", f"{what}, within ±{COINCIDES:g}", relative, rule, *pair)


def _c3(frame: Table) -> Iterator[Comparison]:
    """Compare RMSE with the ideal: at most CLOSE above it. The negative log likelihood is for information only."""
    what = f"RMSE of WFEM relative to PACOH on N, below +{CLOSE:g}"
    yield measure("deviation 0.5", what, relative, below(CLOSE), values(frame, WFEM), values(frame, ALL))
    wfem, ideal = (values(frame, scheme, "nll") for scheme in (WFEM, ALL))
    yield difference("deviation 0.5", "WFEM − PACOH on N, NLL", None, wfem, ideal)


def _c4(frame: Table) -> Iterator[Comparison]:
    """Compare the two schemes in every metric and draw: the claim holds only if they are equal to the last bit."""
    # Without tasks nothing is meta-trained: the second holds by definition. The first is computed twice.
    for beta, first, second in ((0.0, WFEM, ALL), (1.0, FEW, GP)):
        tables = [
            pd.concat([values(frame, scheme, metric, beta=beta) for scheme in (first, second)], axis=1, join="inner")
            for metric in REGRESSION_METRICS
        ]
        both = pd.concat(tables).dropna(how="all")
        # A run that diverged in only one of the schemes is a difference too.
        apart = (both.iloc[:, 0] - both.iloc[:, 1]).abs().fillna(math.inf)
        largest, n_draws = float(apart.max()), both.index.nunique()
        verdict = UNDECIDED if n_draws == 0 else HOLDS if largest == 0.0 else FAILS  # an identity needs no interval
        what = f"largest |{first} − {second}| of all draws and metrics" + (", by definition" if beta else "")
        yield Comparison(f"beta {beta:g}", what, largest, largest, largest, n_draws, verdict)


def _c5(frame: Table) -> Iterator[Comparison]:
    """The gap to the ideal increases with beta, and WFEM minus PACOH on few is below 0 at every beta > 0."""
    betas = np.array(levels(frame, "beta"))
    gaps = {beta: values(frame, WFEM, beta=beta) - values(frame, ALL, beta=beta) for beta in betas.tolist()}
    if len(betas) > 1:  # a slope needs two shares of source tasks
        centered = betas - betas.mean()
        slopes = pd.DataFrame(gaps).dropna() @ (centered / (centered @ centered))
        what = "slope over beta of WFEM − PACOH on N, RMSE"
        yield measure(f"beta {betas[0]:g} to {betas[-1]:g}", what, np.mean, above(0.0), slopes)
    for beta in betas[betas > SAME].tolist():  # at beta 0 the three schemes are the same
        wfem, few = (values(frame, scheme, beta=beta) for scheme in (WFEM, FEW))
        yield difference(f"beta {beta:g}", "WFEM − PACOH on (1-beta)N, RMSE", below(0.0), wfem, few)


def _c6(frame: Table) -> Iterator[Comparison]:
    """The worst minus the best alpha is above 0, so alpha matters, and the best alpha's interval is inside ABOUT.

    Best and worst are chosen on one half of the draws and measured on the other, both ways, over many random halves.
    Chosen on the draws that measure them, they would differ by noise alone. A difference below 0 is inconclusive: that
    alpha matters can be shown, but not refuted.
    """
    table = by_alpha(frame).dropna()
    alphas = table.columns.to_numpy(dtype="float64")
    if len(alphas) < 2:
        return
    apart = held_out(table, lambda means: one_hot(means, np.argmax(means)) - one_hot(means, np.argmin(means)))
    where = f"{len(alphas)} alphas from {alphas[0]:g} to {alphas[-1]:g}"
    what = "worst − best alpha on held-out draws, RMSE"
    yield measure(where, what, np.mean, lambda low, _: HOLDS if low > 0.0 else UNDECIDED, apart)

    def best(*columns: np.ndarray, axis: int = -1) -> Any:
        return alphas[np.argmin([np.mean(column, axis=axis) for column in columns], axis=0)]

    columns = [table[alpha] for alpha in table.columns]
    yield measure(where, "best alpha", best, inside(*ABOUT), *columns)


def _c7(frame: Table) -> Iterator[Comparison]:
    """Accuracy of SVGD minus MAP is above 0 for all data run by both, for all trained schemes and alphas.

    The default prior is not the paper's: its rows are for information only.
    """
    what = "SVGD − MAP, accuracy"
    for data in dict.fromkeys(str(name) for name in frame["data"]):
        svgd, mode = (frame[(frame["data"] == data) & (frame["inference"] == name)] for name in ("svgd", "map"))
        if svgd.empty or mode.empty:
            continue
        rule = None if data == DEFAULT else above(0.0)
        for scheme in (FEW, POOLED, AUTO, ALL):
            pair = [values(part, scheme, "accuracy") for part in (svgd, mode)]
            if any(len(found) for found in pair):
                yield difference(f"{data} · {scheme}", what, rule, *pair)
        tables = [by_alpha(part, "accuracy") for part in (svgd, mode)]
        for alpha in tables[0].columns.union(tables[1].columns):
            pair = [table.get(alpha, pd.Series(dtype="float64")) for table in tables]
            yield difference(f"{data} · {WFEM} at alpha {alpha:g}", what, rule, *pair)


def _c8(frame: Table) -> Iterator[Comparison]:
    """Accuracy of WFEM, averaged over all alphas strictly between 0 and 1, is above that of GP and PACOH on few.

    The gap is bridged, partly or wholly, if PACOH on N target tasks and WFEM are both above PACOH on few; the claim
    does not hold if either is below. Single alphas are for information only, because the best of them is chosen in
    hindsight. So is the default prior, which is not the paper's.
    """
    for data, inference in pairs(frame):
        rule = None if data == DEFAULT else above(0.0)
        where = f"{data} · {inference.upper()}"
        part = frame[frame["data"] == data]
        table = by_alpha(part, "accuracy", inference=inference)
        inner = table.loc[:, (table.columns > SAME) & (table.columns < 1.0 - SAME)]
        wfem = inner.mean(axis=1, skipna=False)
        gp, few, ideal = (values(part, scheme, "accuracy", inference=inference) for scheme in (GP, FEW, ALL))
        if gp.empty:  # the rows of an untrained prior may have no inference method
            gp = values(part, GP, "accuracy", inference="none")
        yield difference(where, "WFEM − GP, accuracy", rule, wfem, gp)
        rise = difference(where, "WFEM − PACOH on (1-beta)N, accuracy", rule, wfem, few)
        gap = difference(where, "PACOH on N − PACOH on (1-beta)N, accuracy", None, ideal, few)
        share = measure(where, "share of the gap to PACOH on N bridged", _share, None, wfem, few, ideal)
        bridged = None if rule is None else every([rise.verdict, rule(gap.low, gap.high)])
        yield from (rise, replace(share, verdict=bridged), gap)
        yield difference(where, "WFEM − PACOH on N, accuracy", None, wfem, ideal)
        for alpha in table.columns:
            yield difference(where, f"WFEM at alpha {alpha:g} − PACOH on (1-beta)N, accuracy", None, table[alpha], few)


RULES: dict[str, Callable[[Table], Iterator[Comparison]]] = {
    "C1": _c1,
    "C2": _c2,
    "C3": _c3,
    "C4": _c4,
    "C5": _c5,
    "C6": _c6,
    "C7": _c7,
    "C8": _c8,
}


def _share(wfem: np.ndarray, few: np.ndarray, ideal: np.ndarray, axis: int = -1) -> Any:
    gap = np.mean(ideal - few, axis=axis)
    return np.mean(wfem - few, axis=axis) / np.where(gap == 0.0, math.nan, gap)  # undefined without a gap
