"""Weights of the environments, on the simplex: as given, or as candidates to choose from.

Candidates are described by the discount r of a source task: it weighs r times as much as a target task. With N_e tasks,
environment e weighs w_e = r_e N_e / sum of r N. r = 0 is target-only, r = 1 is pooled, r -> infinity is source-only.

Weights for averaging predictions over candidate settings, from their scores on held-out tasks.

Picking the best-scoring candidate would let noise choose: a handful of held-out tasks can rarely tell two candidates
apart. Instead all are kept, weighted by how probable the scores make each of them. This is pseudo-BMA+ of Yao, Vehtari,
Simpson and Gelman (2018), "Using stacking to average Bayesian predictive distributions", with tasks as
samples.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax, stdtrit

from metaprior.checks import Argument, Message, is_number

Weights = tuple[float, ...]
ALPHA = Argument("alpha")

DISCOUNTS = (0.0, 0.02, 0.1, 0.4, 1.0, math.inf)
DISCOUNTS_SINGLE = (0.1, 0.4, 1.0)  # of one source among several
DISCOUNTS_UNTRIED = (0.1, 0.4, 1.0)  # averaged over if nothing can be held out


def discounted(counts: Sequence[int], target: int, discounts: float | Sequence[float]) -> Weights:
    """Return the weights with which a task of environment e weighs r_e times as much as a target task."""
    of_task = np.broadcast_to(np.asarray(discounts, float), len(counts)).copy()
    of_task = np.where(np.isinf(of_task), 1.0, of_task)
    of_task[target] = 0.0 if np.isinf(discounts).any() else 1.0
    weights = of_task * np.asarray(counts, float)
    return tuple((weights / weights.sum()).tolist())


def resolve_weights(alpha: Any, names: Sequence[str], counts: Sequence[int], target: int) -> list[Weights]:
    """Return the environment weights to choose from; only one if `alpha` determines them.

    alpha is a number (sources share it in proportion to their numbers of tasks), 'pooled', a mapping from environments
    to weights, 'auto', or a sequence of numbers to choose from.
    """
    has_source = sum(counts) > counts[target]
    if isinstance(alpha, str) and alpha == "auto":
        if not counts[target]:
            return [discounted(counts, target, math.inf)]
        return [discounted(counts, target, r) for r in (DISCOUNTS if has_source else (0.0,))]
    if isinstance(alpha, str) and alpha == "pooled":
        return [discounted(counts, target, 1.0)]
    if isinstance(alpha, Mapping):
        return [_of_names(alpha, names, counts)]
    several = isinstance(alpha, Sequence | np.ndarray) and not isinstance(alpha, str) and np.ndim(alpha)
    grid: list[Any] = list(alpha) if several else [alpha]
    if not grid or not all(is_number(value) and 0 <= value <= 1 for value in grid):
        raise ValueError(
            Message(
                ALPHA,
                " must be a number in [0, 1], 'pooled', 'auto', a sequence of numbers in [0, 1] to choose from, or a "
                f"mapping from environments to weights; got {repr(alpha)[:100]}.",
            )
        )
    options = {float(value): _of_alpha(float(value), counts, target) for value in grid}
    pooled = (" (or ", Argument("alpha", "pooled"), ")")
    instead = [Message(Argument("alpha", int(e == target)), *pooled) for e in range(len(counts))]
    for value, weights in options.items():
        _check_counts(Argument("alpha", value), weights, names, counts, instead)
    return list(options.values())


def single_source_weights(counts: Sequence[int], target: int) -> list[tuple[int, float, Weights]]:
    """With several sources, return (source, discount, weights) for each source alone with the target."""
    sources = [e for e, count in enumerate(counts) if e != target and count]
    if len(sources) < 2:
        return []
    only = [
        (e, r, [r if other == e else 0.0 for other in range(len(counts))]) for e in sources for r in DISCOUNTS_SINGLE
    ]
    return [(e, r, discounted(counts, target, discounts)) for e, r, discounts in only]


def combined_source_weights(
    counts: Sequence[int], target: int, of_target: float, scores: Sequence[tuple[int, float, float]]
) -> list[Weights]:
    """Combine the best two helpful sources, the best three, and so on, each at its best discount alone.

    `of_target` is the score of target-only; `scores` are (source, discount, score) of each source alone.
    """
    best: dict[int, tuple[float, float]] = {}
    for source, discount, score in scores:
        if score > max(of_target, best.get(source, (-math.inf, 0.0))[0]):
            best[source] = (score, discount)
    ranked = sorted(best, key=lambda source: -best[source][0])
    several = []
    for n_sources in range(2, len(ranked) + 1):
        discounts = [best[e][1] if e in ranked[:n_sources] else 0.0 for e in range(len(counts))]
        several.append(discounted(counts, target, discounts))
    return several


def _of_alpha(alpha: float, counts: Sequence[int], target: int) -> Weights:
    """Give the target 1 - alpha; all source tasks share alpha equally."""
    n_source = sum(counts) - counts[target]
    if alpha > 0 and len(counts) == 1:
        only = f" must be 0, 'pooled' or 'auto' if the target is the only environment; got {alpha:g}."
        raise ValueError(Message(ALPHA, only))
    shares = [alpha * (count / n_source) if n_source else alpha / max(len(counts) - 1, 1) for count in counts]
    return tuple(1.0 - alpha if e == target else share for e, share in enumerate(shares))


def _of_names(alpha: Mapping[str, Any], names: Sequence[str], counts: Sequence[int]) -> Weights:
    unknown = [name for name in alpha if name not in names]
    if unknown:
        raise ValueError(f"alpha has weights for {', '.join(map(repr, unknown))}; the environments are {_list(names)}.")
    if not all(is_number(weight) and weight >= 0 for weight in alpha.values()):
        raise ValueError(f"alpha must map environments to weights of at least 0; got {dict(alpha)!r}.")
    total = math.fsum(alpha.values())
    if abs(total - 1.0) > 1e-6:
        raise ValueError(f"alpha must have weights that sum to one; {dict(alpha)!r} sums to {total:g}.")
    weights = tuple(float(alpha.get(name, 0.0)) / total for name in names)
    _check_counts(ALPHA, weights, names, counts, [Message("leave it out of ", ALPHA)] * len(counts))
    return weights


def _check_counts(
    alpha: Argument, weights: Weights, names: Sequence[str], counts: Sequence[int], instead: Sequence[Message]
) -> None:
    """Raise if an environment without tasks has weight; `instead` is the advice for each environment."""
    for name, weight, count, other in zip(names, weights, counts, instead, strict=True):
        if weight > 0 and count == 0:
            tasks = f"{name}_tasks" if tuple(names) == ("source", "target") else "tasks of it"
            given = f" gives weight {weight:g} to the {name} environment, which has no tasks. Pass {tasks}, or "
            raise ValueError(Message(alpha, given, other, "."))


def _list(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)


@dataclass(frozen=True)
class Candidate:
    """Environment weights and settings. Candidates that are trained together differ in numbers only."""

    weights: Weights
    settings: Any  # of the prior that is fitted
    from_scores: bool = False  # made from the scores of other candidates, on the same target tasks


class Choice(NamedTuple):
    """The candidates that were compared, their weights in the average (zero: dropped), and their scores."""

    candidates: list[Candidate]
    weights: np.ndarray  # (candidates,)
    # (candidates, target tasks): mean contaminated log density per query of each held-out task. None if nothing was
    # held out.
    scores: np.ndarray | None
    densities: np.ndarray | None = None  # the same, of plain log densities
    free_energy: np.ndarray | None = None  # (candidates,): nats per reading, where it is known

    @property
    def members(self) -> list[tuple[Candidate, float]]:
        """Return the candidates that predictions are averaged over, with their weights."""
        pairs = zip(self.candidates, self.weights.tolist(), strict=True)
        return [(candidate, weight) for candidate, weight in pairs if weight > 0]


N_BOOTSTRAP = 2000
CONTAMINATION = 0.1
NEGLIGIBLE = 0.02
MAX_MEMBERS = 6
CLEARLY_WORSE = 2.0  # standard errors


def contaminated(log_density: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return log(0.9 p + 0.1 p_0), the log density if a tenth of the queries came from a broad reference p_0.

    Otherwise one query that an overconfident candidate misses by ten standard deviations would outweigh all others.
    """
    with np.errstate(invalid="ignore"):  # NaN where there is no query
        return np.logaddexp(np.log1p(-CONTAMINATION) + log_density, np.log(CONTAMINATION) + reference)


def averaging_weights(scores: np.ndarray, per_task: float = 1.0) -> np.ndarray:
    """Return weights on the simplex from scores (candidates, tasks), the mean log density of each task's queries.

    Every task counts as `per_task` observations, since its queries share a function. The weights are softmax(sum
    over tasks of the score), averaged over the Bayesian bootstrap: random weights of the tasks make candidates whose
    scores differ by less than their standard error share the weight. A candidate with a score of minus infinity gets
    none.
    """
    finite = np.isfinite(scores).all(axis=1)
    n_tasks = scores.shape[1]
    resampled = np.random.default_rng(0).dirichlet(np.ones(n_tasks), N_BOOTSTRAP)  # (bootstrap, tasks)
    weights = np.zeros(len(scores))
    weights[finite] = softmax(per_task * n_tasks * resampled @ scores[finite].T, axis=1).mean(axis=0)
    return weights


def clearly_worse(scores: np.ndarray, than: int, level: float | None = None) -> np.ndarray:
    """Return which candidates score below candidate `than` by more than two standard errors of the paired difference.

    With a `level`, by as many standard errors as Student's t test at that level asks for: more with few tasks.
    The averaging weights alone would keep a candidate whose loss is small but certain. One task says nothing.
    """
    if scores.shape[1] < 2:
        return np.zeros(len(scores), bool)
    with np.errstate(invalid="ignore"):  # diverged candidates
        difference = scores - scores[than]
        error = difference.std(axis=1, ddof=1) / np.sqrt(scores.shape[1])
        n_errors = CLEARLY_WORSE if level is None else float(stdtrit(scores.shape[1] - 1, 1.0 - level))
        worse = difference.mean(axis=1) < -n_errors * error
    worse[than] = False
    return worse


def select_weights(weights: np.ndarray, scores: np.ndarray, target_only: int | None) -> np.ndarray:
    """Drop candidates clearly worse than target-only, whatever their weight, and keep the six largest of the others."""
    kept = drop_worse(weights, scores, target_only)
    kept[np.argsort(-kept, kind="stable")[MAX_MEMBERS:]] = 0.0  # each costs a fit, and time in every prediction
    return kept / kept.sum()


def drop_worse(
    weights: np.ndarray,
    scores: np.ndarray,
    target_only: int | None,
    negligible: float = NEGLIGIBLE,
    level: float | None = None,
) -> np.ndarray:
    """Drop candidates clearly worse than target-only, whatever their weight, and candidates of negligible weight."""
    if target_only is not None and np.isfinite(scores[target_only]).all():
        weights = np.where(clearly_worse(scores, target_only, level), 0.0, weights)
    kept = np.where(weights < min(negligible, weights.max()), 0.0, weights)
    return kept / kept.sum()


def merge_similar(
    weights: np.ndarray, distances: np.ndarray, n_members: int = MAX_MEMBERS, negligible: float = 0.0
) -> np.ndarray:
    """Reduce the members to a few by giving the weight of one to a similar one, the pair with the least loss first.

    Merging members i and j loses about w_i w_j / (w_i + w_j) d_ij (Ward's criterion), where d_ij (members, members) is
    the squared distance of their predictions. Dropping the members of small weight would instead lose the diversity
    that averaging lives on. Losses below `negligible` make them still fewer.
    """
    weights = weights.copy()
    while len(alive := np.flatnonzero(weights)) > 1:
        w, d = weights[alive], distances[np.ix_(alive, alive)]
        loss = np.outer(w, w) / np.add.outer(w, w) * d + np.where(np.tri(len(w), dtype=bool), np.inf, 0.0)
        if len(alive) <= n_members and not loss.min() < negligible:
            break
        first, second = alive[list(np.unravel_index(int(np.argmin(loss)), loss.shape))]
        stays, goes = (first, second) if weights[first] >= weights[second] else (second, first)
        weights[stays] += weights[goes]
        weights[goes] = 0.0
    return weights
