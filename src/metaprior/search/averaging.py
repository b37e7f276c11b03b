"""Weights for averaging predictions over candidate settings, from their scores on held-out tasks.

Picking the best-scoring candidate would let noise choose: a handful of held-out tasks can seldom tell two candidates
apart. Instead all are kept, and weighed by how probable the scores make each of them. That is pseudo-BMA+ of Yao,
Vehtari, Simpson and Gelman (2018), "Using stacking to average Bayesian predictive distributions", with tasks in the
place of samples.
"""

import numpy as np
from scipy.special import softmax

N_BOOTSTRAP = 2000
CONTAMINATION = 0.1
NEGLIGIBLE = 0.02
MOST_MEMBERS = 6
CLEARLY = 2.0  # standard errors


def contaminated(log_density: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """log(0.9 p + 0.1 p_0): the log density of queries that are now and then drawn from a broad reference p_0.

    Few tasks decide, and the log density of one query that an overconfident candidate misses by ten standard deviations
    would outweigh all others.
    """
    with np.errstate(invalid="ignore"):  # NaN where there is no query
        return np.logaddexp(np.log1p(-CONTAMINATION) + log_density, np.log(CONTAMINATION) + reference)


def averaging_weights(scores: np.ndarray) -> np.ndarray:
    """Weights on the simplex from scores (candidates, tasks), each the mean log density of a task's queries.

    Every task counts as one observation, since its queries share a function. The weights are softmax(sum over tasks of
    the score), averaged over the Bayesian bootstrap: tasks are given random weights, so that candidates whose scores
    differ by less than their standard error share the weight. A candidate with a score of minus infinity gets none.
    """
    finite = np.isfinite(scores).all(axis=1)
    n_tasks = scores.shape[1]
    resampled = np.random.default_rng(0).dirichlet(np.ones(n_tasks), N_BOOTSTRAP)  # (bootstrap, tasks)
    weights = np.zeros(len(scores))
    weights[finite] = softmax(n_tasks * resampled @ scores[finite].T, axis=1).mean(axis=0)
    return weights


def clearly_worse(scores: np.ndarray, than: int) -> np.ndarray:
    """Which candidates score less than candidate `than` by over two standard errors of the paired difference.

    Averaging weights alone would let a loss that is small but certain stay.
    """
    with np.errstate(invalid="ignore"):  # of what diverged
        difference = scores - scores[than]
        error = difference.std(axis=1, ddof=1) / np.sqrt(scores.shape[1])
        worse = difference.mean(axis=1) < -CLEARLY * error
    worse[than] = False
    return worse


def choose_weights(scores: np.ndarray, target_only: int | None) -> np.ndarray:
    """The weights of candidates that predictions are averaged over, from scores (candidates, tasks).

    What is clearly worse than target-only as it is goes, whatever its weight in the average.
    """
    weights = averaging_weights(scores)
    if target_only is not None and np.isfinite(scores[target_only]).all():
        weights = np.where(clearly_worse(scores, target_only), 0.0, weights)
    return without_negligible(weights)


def without_negligible(weights: np.ndarray) -> np.ndarray:
    """The six largest weights of 2% or more, scaled up: each one kept costs a fit, and time in every prediction."""
    kept = np.where(weights < min(NEGLIGIBLE, weights.max()), 0.0, weights)
    kept[np.argsort(-kept, kind="stable")[MOST_MEMBERS:]] = 0.0
    return kept / kept.sum()
