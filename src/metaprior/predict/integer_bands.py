"""Conformal intervals for counts and ranks, whose scores are probabilities of the model.

The own band of an integer may be a single number, so that distances cannot be measured in its widths. The score of y is
how far out it is under the predictive distribution: s = max(z(P(Y <= y)), z(P(Y >= y)), 0) / 1.645, where
z(p) = -Phi^-1(p). For a single Gaussian it would be the distance from the median in units of the own 90% band, as of
readings. The integers with scores of up to s are a central interval of the model, whose level depends on s: this is
the "distributional conformal prediction" of Chernozhukov, Wuthrich and Zhu (2021).
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from scipy.special import ndtri, ndtri_exp

from metaprior.predict.mixtures import GaussianMixture
from metaprior.predict.rank_responses import Ordinal
from metaprior.predict.response_mixtures import LARGEST_COUNT, ResponseMixture

UNIT = -float(ndtri(0.05))  # score of the ends of the own 90% interval, as a normal score
MAX_SCORE = 1e9  # all beyond are as impossible
TIED = 1e-9  # scores that are as close, relative to one or to themselves, are equal: they may differ by rounding
ROUNDING = 1e-9  # of masses, in tasks

Inside = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of integers, and of the mask of the rows that they are for


@runtime_checkable
class Scored(Protocol):
    """The scores of the held-out readings of a fold."""

    @property
    def scores(self) -> np.ndarray:
        """(scores,), ascending."""
        ...

    @property
    def weights(self) -> np.ndarray:
        """(scores,): the share of its task that each has."""
        ...


def integer_scores(predictive: ResponseMixture, y: np.ndarray) -> np.ndarray:
    """Return how far out integers are: zero for the median, one at the ends of the own 90% interval."""
    return np.maximum(np.maximum(tail_scores(predictive, y, False), tail_scores(predictive, y, True)), 0.0)


def tail_scores(predictive: ResponseMixture, y: np.ndarray, upper: bool) -> np.ndarray:
    """Return the normal score of P(Y <= y), or of P(Y >= y), positive if it is less than 1/2, in units of scores.

    However small tails are, they are known. So scores of counts grow without end, and bands that are
    made from them are finite.
    """
    return np.clip(-ndtri_exp(predictive.log_tail(y, upper)) / UNIT, -MAX_SCORE, MAX_SCORE)


def combine_integers(predictives: Sequence[ResponseMixture], folds: Sequence[Scored], mass: float) -> np.ndarray:
    """Return the ends of CV+ bands, (2, rows), from the predictive distributions of the folds' priors at the rows.

    A score s of a fold gives the end U(s), the largest integer whose score on the upper side is at most s. The upper
    end of the band is the smallest of all U that has a mass of `mass` tasks at or below it. U(s) < y if and only if
    y has a larger score than s. So it is the largest y that scores more than a mass of less than `mass`, which is
    found by bisection: with one evaluation of the distribution functions for all scores. The lower end is its mirror
    image.
    """
    least, most = limits(predictives[0])
    upper = last_inside(_inside(predictives, folds, mass, True), _guess(predictives, folds, mass, 1.0), least, most)
    below = _inside(predictives, folds, mass, False)
    mirrored = last_inside(lambda y, rows: below(-y, rows), -_guess(predictives, folds, mass, -1.0), -most, -least)
    ends = np.stack([-mirrored + 0.0, upper])  # no minus zero
    return np.stack([ends.min(axis=0), ends.max(axis=0)])  # they may cross where less than half is to be covered


def limits(predictive: ResponseMixture) -> tuple[float, float]:
    """Return the smallest and the largest integer that can be observed."""
    response = predictive.response
    if isinstance(response, Ordinal):
        return float(response.lowest), float(response.lowest + response.n_levels - 1)
    return 0.0, LARGEST_COUNT - 1.0


def _inside(predictives: Sequence[ResponseMixture], folds: Sequence[Scored], mass: float, upper: bool) -> Inside:
    """Return a function that tells whether y at some rows are inside: whether they score more than too few others."""
    below = [np.concatenate([[0.0], np.cumsum(fold.weights)]) for fold in folds]

    def inside(y: np.ndarray, rows: np.ndarray) -> np.ndarray:
        total = np.zeros(len(y))
        for predictive, fold, masses in zip(predictives, folds, below, strict=True):
            own = tail_scores(predictive._at(rows), y, upper)
            total += masses[np.searchsorted(fold.scores, own - TIED * np.maximum(np.abs(own), 1.0))]
        return total < mass - ROUNDING

    return inside


def _guess(predictives: Sequence[ResponseMixture], folds: Sequence[Scored], mass: float, side: float) -> np.ndarray:
    """Return about where an end is, (rows,): that of ranks in their middle, that of counts by normal logarithms."""
    least, most = limits(predictives[0])
    response, n_rows = predictives[0].response, predictives[0].means.shape[1]
    if isinstance(response, Ordinal):
        return np.full(n_rows, np.floor(0.5 * (least + most)))
    scores, weights = (np.concatenate([getattr(fold, name) for fold in folds]) for name in ("scores", "weights"))
    order = np.argsort(scores, kind="stable")
    reached = np.searchsorted(np.cumsum(weights[order]), mass - ROUNDING)
    factor = side * UNIT * scores[order][min(int(reached), len(order) - 1)]
    ends = []
    for each in predictives:
        noise = each.response.noise(each.means, each._parameters)
        wide = GaussianMixture(each.means, each.variances + noise, each.log_weights)
        ends.append(wide.mean() + factor * wide.std())
    return np.clip(np.floor(np.exp(np.clip(np.mean(ends, axis=0), -1.0, 36.0))), least, most)


def last_inside(inside: Inside, guess: np.ndarray, least: float, most: float) -> np.ndarray:
    """Return the largest integer that is inside, (rows,), where all smaller ones are; `least` always is.

    From a guess, by steps that double until one is inside and one is not, then by bisection.
    """
    known, beyond = np.full(guess.shape, least), np.full(guess.shape, most + 1.0)
    is_known, is_beyond = np.zeros(guess.shape, bool), np.zeros(guess.shape, bool)  # whether an integer was tried
    y, step = guess, 1.0
    while True:
        rows = beyond - known > 1.0
        if not rows.any():
            return known
        found = inside(y[rows], rows)
        known[rows], beyond[rows] = np.where(found, y[rows], known[rows]), np.where(found, beyond[rows], y[rows])
        is_known[rows] |= found
        is_beyond[rows] |= ~found
        ahead, back = np.minimum(known + step, most), np.maximum(beyond - step, least)
        middle = np.floor(0.5 * known + 0.5 * beyond)
        y, step = np.where(is_known & is_beyond, middle, np.where(is_known, ahead, back)), 2.0 * step
