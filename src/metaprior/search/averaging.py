"""Weights for averaging predictions over candidate settings, from their scores on held-out tasks.

Picking the best-scoring candidate would let noise choose: a handful of held-out tasks can rarely tell two candidates
apart. Instead all are kept, weighted by how probable the scores make each of them. This is pseudo-BMA+ of Yao, Vehtari,
Simpson and Gelman (2018), "Using stacking to average Bayesian predictive distributions", with tasks as
samples.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax, stdtrit

from metaprior.search.weights import Weights


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
