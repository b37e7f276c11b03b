"""The paper's claims C1 to C8, judged by rules.

All schemes use the same tasks of a draw, so they are compared draw by draw: the mean paired difference with its 95%
bootstrap interval. A comparison holds if the whole interval is on the claimed side, does not hold if all of it is on
the other side, and is inconclusive otherwise. A claim about every point holds if all points do, does not hold if one
does not, and is inconclusive otherwise. Draws with a missing or infinite value are left out where they are needed.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from metaprior_studies.open_settings import SINUSOID
from metaprior_studies.reproduction.claim_rules import ABOUT, CLOSE, COINCIDES, RULES
from metaprior_studies.reproduction.comparisons import (
    FAILS,
    HOLDS,
    LEVEL,
    MIN_DRAWS,
    RESAMPLES,
    UNDECIDED,
    Comparison,
    every,
    signed,
)
from metaprior_studies.schema import CURVES, GENERATED

Frames = dict[str, pd.DataFrame]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, its verdict, and the comparisons behind it."""

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


# Said wherever verdicts are shown: a claim may come out otherwise at other settings.
SCOPE = (
    f"Verdicts are those at the settings of the run, which the paper leaves open: for figures 1, 2, 3 and 5 sigma_P = "
    f"{SINUSOID.prior_std:g}, learning rate {SINUSOID.learning_rate:g} and {SINUSOID.n_steps} steps. With a sigma_P of "
    "1 or 2 or fewer steps they are not mapped yet. In figure 4 the features are ours, the pixels the paper's."
)


def judge(frames: Frames) -> list[Claim]:
    """Judge the claims C1 to C8, in order, from the tidy table of every study that was run."""
    return [_judge_one(name, frames.get(STATEMENTS[name][0])) for name in STATEMENTS]


def claims_json(claims: Sequence[Claim]) -> dict[str, Any]:
    """Return the claims and the constants of their rules as JSON values; NaN and infinity become null."""
    rules = {"close": CLOSE, "coincides": COINCIDES, "about": list(ABOUT), "level": LEVEL, "resamples": RESAMPLES}
    return {"rules": rules, "claims": [_plain(asdict(claim)) for claim in claims]}


def _judge_one(name: str, frame: pd.DataFrame | None) -> Claim:
    figure, statement = STATEMENTS[name]
    if frame is None or frame.empty:
        return Claim(name, figure, statement, UNDECIDED, f"Figure {figure[3]} was not run.", ())
    kept = frame[~frame["metric"].isin(CURVES) & (frame["data"] != GENERATED)]
    if kept.empty:
        summary = "The data are missing: generated images were used instead, and say nothing about this claim."
        return Claim(name, figure, statement, UNDECIDED, summary, ())
    comparisons = tuple(RULES[name](kept))
    verdict = every(row.verdict for row in comparisons)
    summary = _summary(name, comparisons)
    most = max((row.n_draws for row in comparisons), default=0)
    if verdict == UNDECIDED and most < MIN_DRAWS:
        summary = f"Too few draws for an interval: {most}; at least {MIN_DRAWS} are needed."
    return Claim(name, figure, statement, verdict, summary, comparisons)


def _summary(name: str, comparisons: Sequence[Comparison]) -> str:
    """Say where the claim holds: a sentence per compared quantity, or per data set in figure 4."""
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
