"""The paper's claims C1 to C8, judged by rules.

Every scheme of a draw saw the same tasks, so schemes are compared draw by draw: the mean paired difference with its 95%
bootstrap interval. A point holds where the whole interval is on the claimed side, does not hold where all of it is on
the other, and is inconclusive else. A claim about every point does not hold if one point does not, holds if all do,
and is inconclusive else. Draws with a missing or infinite value are left out of the comparisons that need it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from metaprior_studies.reproduction.comparisons import (
    FAILS,
    HOLDS,
    LEVEL,
    MIN_DRAWS,
    RESAMPLES,
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
    signed,
    values,
)
from metaprior_studies.schema import ALL, AUTO, CURVES, DEFAULT, FEW, GENERATED, GP, POOLED, REGRESSION_METRICS, WFEM

CLOSE = 0.10  # C2, C3: 'close' and 'comparable' are less than a tenth above the ideal's RMSE
COINCIDES = 0.05  # C2: 'coincides' is within a twentieth of it, either way
ABOUT = (0.1, 0.3)  # C6: a best alpha of 'about 0.2'

Frames = dict[str, pd.DataFrame]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, what became of it, and the comparisons that say so."""

    id: str
    figure: str
    statement: str
    verdict: str
    summary: str
    comparisons: tuple[Comparison, ...]


STATEMENTS = {
    "C1": ("fig1", "WFEM has a lower test RMSE than PACOH on (1-beta)N target tasks at every deviation"),
    "C2": ("fig1", "WFEM is close to PACOH on N target tasks, and coincides with it at deviation 0"),
    "C3": (
        "fig2",
        "At deviation 0.5 and alpha = beta = 0.2, WFEM's predictions are comparable to PACOH on N target tasks",
    ),
    "C4": ("fig3", "WFEM is PACOH on N target tasks at beta = 0; PACOH on no target task is the GP at beta = 1"),
    "C5": (
        "fig3",
        "WFEM moves away from the ideal as beta grows, and beats PACOH on (1-beta)N target tasks at every beta",
    ),
    "C6": ("fig5", "alpha matters, and the best alpha is about 0.2 at beta = 0.4 and deviation 0.75"),
    "C7": ("fig4", "SVGD has a higher accuracy than MAP for every scheme"),
    "C8": (
        "fig4",
        "WFEM beats the GP and PACOH on (1-beta)N target tasks, and partly bridges the gap to N target tasks",
    ),
}


def judge(frames: Frames) -> list[Claim]:
    """The claims C1 to C8 in order, from the tidy frame of every study that was run."""
    return [_judge_one(name, frames.get(STATEMENTS[name][0])) for name in STATEMENTS]


def claims_json(claims: Sequence[Claim]) -> dict[str, Any]:
    """The claims and the constants of their rules as plain values; numbers that do not exist become null."""
    rules = {"close": CLOSE, "coincides": COINCIDES, "about": list(ABOUT), "level": LEVEL, "resamples": RESAMPLES}
    return {"rules": rules, "claims": [_plain(asdict(claim)) for claim in claims]}


def _share(wfem: np.ndarray, few: np.ndarray, ideal: np.ndarray, axis: int = -1) -> Any:
    gap = np.mean(ideal - few, axis=axis)
    return np.mean(wfem - few, axis=axis) / np.where(gap == 0.0, math.nan, gap)  # no gap has no share


def _judge_one(name: str, frame: pd.DataFrame | None) -> Claim:
    figure, statement = STATEMENTS[name]
    if frame is None or frame.empty:
        return Claim(name, figure, statement, UNDECIDED, f"Figure {figure[3]} was not run.", ())
    kept = frame[~frame["metric"].isin(CURVES) & (frame["data"] != GENERATED)]
    if kept.empty:
        summary = "The data are not here: generated images stand in for them and say nothing about this claim."
        return Claim(name, figure, statement, UNDECIDED, summary, ())
    comparisons = tuple(_RULES[name](kept))
    verdict = every(row.verdict for row in comparisons)
    summary = _summary(name, comparisons)
    most = max((row.n_draws for row in comparisons), default=0)
    if verdict == UNDECIDED and most < MIN_DRAWS:
        summary = f"Too few draws for an interval: {most}, where {MIN_DRAWS} are the least."
    return Claim(name, figure, statement, verdict, summary, comparisons)


def _c1(frame: Table) -> Iterator[Comparison]:
    """RMSE of WFEM minus PACOH on few: below 0 at every deviation."""
    for deviation in levels(frame, "deviation"):
        wfem, few = (values(frame, scheme, deviation=deviation) for scheme in (WFEM, FEW))
        yield difference(f"deviation {deviation:g}", "WFEM − PACOH on (1-beta)N, RMSE", below(0.0), wfem, few)


def _c2(frame: Table) -> Iterator[Comparison]:
    """Close: RMSE at most CLOSE above the ideal at every deviation. Coincides at deviation 0: within COINCIDES."""
    what = "RMSE of WFEM relative to PACOH on N"
    for deviation in levels(frame, "deviation"):
        pair = [values(frame, scheme, deviation=deviation) for scheme in (WFEM, ALL)]
        yield measure(f"deviation {deviation:g}", f"{what}, below +{CLOSE:g}", relative, below(CLOSE), *pair)
    pair = [values(frame, scheme, deviation=0.0) for scheme in (WFEM, ALL)]
    rule = inside(-COINCIDES, COINCIDES)
    yield measure("deviation 0", f"{what}, within ±{COINCIDES:g}", relative, rule, *pair)


def _c3(frame: Table) -> Iterator[Comparison]:
    """RMSE at most CLOSE above the ideal; the negative log likelihood informs."""
    what = f"RMSE of WFEM relative to PACOH on N, below +{CLOSE:g}"
    yield measure("deviation 0.5", what, relative, below(CLOSE), values(frame, WFEM), values(frame, ALL))
    wfem, ideal = (values(frame, scheme, "nll") for scheme in (WFEM, ALL))
    yield difference("deviation 0.5", "WFEM − PACOH on N, NLL", None, wfem, ideal)


def _c4(frame: Table) -> Iterator[Comparison]:
    """Equal to the last bit in every metric and draw, or the claim does not hold."""
    # Without tasks nothing is meta-trained, so that the second holds by definition; the first is computed twice.
    for beta, first, second in ((0.0, WFEM, ALL), (1.0, FEW, GP)):
        tables = [
            pd.concat([values(frame, scheme, metric, beta=beta) for scheme in (first, second)], axis=1, join="inner")
            for metric in REGRESSION_METRICS
        ]
        both = pd.concat(tables).dropna(how="all")
        # A run that diverged in one scheme alone is a difference, too.
        apart = (both.iloc[:, 0] - both.iloc[:, 1]).abs().fillna(math.inf)
        largest, n_draws = float(apart.max()), both.index.nunique()
        verdict = UNDECIDED if n_draws == 0 else HOLDS if largest == 0.0 else FAILS  # an identity needs no interval
        what = f"largest |{first} − {second}| of all draws and metrics" + (", by definition" if beta else "")
        yield Comparison(f"beta {beta:g}", what, largest, largest, largest, n_draws, verdict)


def _c5(frame: Table) -> Iterator[Comparison]:
    """The gap to the ideal has a slope over beta above 0; WFEM minus PACOH on few is below 0 wherever beta > 0."""
    betas = np.array(levels(frame, "beta"))
    gaps = {beta: values(frame, WFEM, beta=beta) - values(frame, ALL, beta=beta) for beta in betas.tolist()}
    if len(betas) > 1:  # one share of source tasks has no slope
        centered = betas - betas.mean()
        slopes = pd.DataFrame(gaps).dropna() @ (centered / (centered @ centered))
        what = "slope over beta of WFEM − PACOH on N, RMSE"
        yield measure(f"beta {betas[0]:g} to {betas[-1]:g}", what, np.mean, above(0.0), slopes)
    for beta in betas[betas > SAME].tolist():  # at beta 0 all three are one scheme
        wfem, few = (values(frame, scheme, beta=beta) for scheme in (WFEM, FEW))
        yield difference(f"beta {beta:g}", "WFEM − PACOH on (1-beta)N, RMSE", below(0.0), wfem, few)


def _c6(frame: Table) -> Iterator[Comparison]:
    """alpha matters: the worst minus the best alpha is above 0. The best alpha's interval is inside ABOUT.

    Best and worst are chosen on one half of the draws and measured on the other, both ways, over many random halves:
    chosen on the draws that measure them, they would differ by noise alone. Below 0 the choice did not carry over to
    other draws, which leaves the claim open: whether alpha matters can be shown, not refuted.
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
    """Accuracy of SVGD minus MAP: above 0 for all data run by both, trained schemes and alphas.

    The default prior is not the paper's, and informs only.
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
    """Accuracy of WFEM, the mean of all alphas strictly between 0 and 1, minus GP and minus PACOH on few: above 0.

    The gap is bridged, partly or wholly, where PACOH on N target tasks and WFEM both are above PACOH on few; that
    does not hold where either is below. Single alphas inform: the best of them would be a choice made in hindsight.
    So does the default prior, which is not the paper's.
    """
    for data, inference in pairs(frame):
        rule = None if data == DEFAULT else above(0.0)
        where = f"{data} · {inference.upper()}"
        part = frame[frame["data"] == data]
        table = by_alpha(part, "accuracy", inference=inference)
        inner = table.loc[:, (table.columns > SAME) & (table.columns < 1.0 - SAME)]
        wfem = inner.mean(axis=1, skipna=False)
        gp, few, ideal = (values(part, scheme, "accuracy", inference=inference) for scheme in (GP, FEW, ALL))
        if gp.empty:  # an untrained prior has no inference to speak of
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


_RULES = {"C1": _c1, "C2": _c2, "C3": _c3, "C4": _c4, "C5": _c5, "C6": _c6, "C7": _c7, "C8": _c8}


def _summary(name: str, comparisons: Sequence[Comparison]) -> str:
    """Where the claim holds and where not, a sentence per compared quantity, or per data in figure 4."""
    judged = [row for row in comparisons if row.verdict is not None]
    if name == "C8":
        places = dict.fromkeys(row.where for row in judged)
        return " ".join(_place_sentence(where, [row for row in judged if row.where == where]) for where in places)
    topics: dict[str, list[Comparison]] = {}
    for row in judged:
        topics.setdefault(row.where.split(" · ")[0] if name == "C7" else row.what, []).append(row)
    return " ".join(_topic_sentence(topic, rows) for topic, rows in topics.items())


def _topic_sentence(topic: str, rows: Sequence[Comparison]) -> str:
    parts = []
    for verdict in (HOLDS, FAILS, UNDECIDED):
        found = [row for row in rows if row.verdict == verdict]
        if found:
            places = [row.where.split(" · ")[-1] for row in found]
            word = places[0].split(" ")[0] + " "
            if len(places) > 1 and all(place.startswith(word) for place in places):
                places[1:] = [place.removeprefix(word) for place in places[1:]]
            named = ", ".join(places)
            if len(named) > 80:
                named = f"{len(places)} of {len(rows)} places"
            parts.append(f"{verdict} at {named} ({_numbers(found)})")
    return f"{topic[0].upper()}{topic[1:]}: {'; '.join(parts)}."


def _place_sentence(where: str, rows: Sequence[Comparison]) -> str:
    numbers = ", ".join(f"{row.what.removesuffix(', accuracy')} {signed(row.difference)}" for row in rows)
    return f"{where.replace(' · ', ', ')}: {every(row.verdict for row in rows)} ({numbers})."


def _numbers(rows: Sequence[Comparison]) -> str:
    if len(rows) == 1 and rows[0].low == rows[0].high:
        return signed(rows[0].difference)
    if len(rows) == 1:
        return f"{signed(rows[0].difference)} [{signed(rows[0].low)}, {signed(rows[0].high)}]"
    numbers = [row.difference for row in rows]
    return f"{signed(min(numbers))} to {signed(max(numbers))}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
