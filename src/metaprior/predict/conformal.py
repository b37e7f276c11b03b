"""Conformal intervals: hierarchical conformal prediction over held-out tasks, cross-validated (CV+).

Tasks are exchangeable, readings of one task are not. So each of K held-out tasks has mass 1 / (K + 1), shared by its
readings, and what is missing to one lies at infinity: Lee, Barber and Willett (arXiv 2306.06342), after Dunn,
Wasserman and Ramdas (arXiv 1809.07441). Every task is predicted by a prior whose whole fit has not seen it, and bands
are made from the same priors: Barber, Candes, Ramdas and Tibshirani (2021), "Predictive inference with the jackknife+".
Scores of readings are distances in units of the model's own band.

The own band of an integer may be a single number, so that distances cannot be measured in its widths. The score of y is
how far out it is under the predictive distribution: s = max(z(P(Y <= y)), z(P(Y >= y)), 0) / 1.645, where
z(p) = -Phi^-1(p). For a single Gaussian it would be the distance from the median in units of the own 90% band, as of
readings. The integers with scores of up to s are a central interval of the model, whose level depends on s: this is
the "distributional conformal prediction" of Chernozhukov, Wuthrich and Zhu (2021).
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri, ndtri_exp

from metaprior.checks import Argument, Message, check_choice, counted, is_number, warn_caller
from metaprior.predict.batches import Posteriors, components, pad_rows, predict_rows, read_tests
from metaprior.predict.ensemble import Ensemble
from metaprior.predict.predictive import Predictive
from metaprior.tasks.splits import ContextRule
from metaprior.tasks.types import Ragged, TestTask

MIN_FOLDS, MAX_FOLDS = 6, 10  # each costs a fit; with up to ten tasks every task is a fold
METHODS = ("model", "conformal")  # of an interval
USUAL_COVERAGE = 0.9  # that messages speak of; a fit warns if its intervals cannot have it
OWN_BAND = (0.05, 0.5, 0.95)  # the quantiles that scores are relative to
MAX_SCORES = 500  # of a fold; more are rounded up to as many, which widens bands a little
# Scores are rounded up to multiples of this, which widens bands by a sixty-fourth of their half-width on average. A
# saved prior holds them, and whoever knows the inputs can undo the score of a reading that was predicted from nothing:
# exact scores gave back heart rates of held-out patients, which are the integers among all solutions.
STEP, MAX_ON_GRID = 1.0 / 32.0, 2.0**40
CHUNK_NUMBERS = 2**22  # of ends that are sorted at once
CHUNK_ROWS = 2048  # of counts and ranks: their quadratures have up to 57 nodes for each component of each row
ROUNDING = 1e-9  # of masses, in tasks
UNIT = -float(ndtri(0.05))  # score of the ends of the own 90% interval, as a normal score
MAX_SCORE = 1e9  # all beyond are as impossible
TIED = 1e-9  # scores that are as close, relative to one or to themselves, are equal: they may differ by rounding
MANY = 1e6  # integers, from which on their middle is no guess

Inside = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of integers, and of the mask of the rows that they are for


class Fold(NamedTuple):
    """A prior that has not seen some target tasks, and the scores of the readings of these tasks."""

    model: Ensemble
    scores: np.ndarray  # (scores,), ascending
    weights: np.ndarray  # (scores,): the share of its task that a score has; their sum is the number of tasks


class Conformal(NamedTuple):
    """What conformal intervals are made of."""

    folds: tuple[Fold, ...]
    n_tasks: int  # held-out tasks, of all folds
    rule: ContextRule  # by which they were split into context and queries

    @property
    def max_coverage(self) -> float:
        """The highest coverage that a finite band can have."""
        return highest_coverage(self.n_tasks)

    def proven(self, coverage: float) -> float:
        """Return the coverage that is proven for an interval of this nominal coverage."""
        return proven_coverage(coverage, self.n_tasks, len(self.folds))

    def mass(self, coverage: Any) -> float:
        """Return the mass, in tasks, that a band of this coverage must hold; raise if there are too few tasks."""
        if not (is_number(coverage) and 0 < coverage < 1):
            raise ValueError(Message(Argument("coverage"), f" must lie strictly between 0 and 1; got {coverage!r}."))
        mass = coverage * (self.n_tasks + 1)
        if mass > self.n_tasks + ROUNDING:
            given = (
                f"a conformal interval from {counted(self.n_tasks, 'held-out target task')} has a coverage of at most "
            )
            needed = least_tasks(math.ceil(coverage / (1.0 - coverage) - ROUNDING))
            advice = f"Ask for less, or fit with {needed} target tasks or more."
            raise ValueError(
                Message(
                    *(Argument("coverage", coverage), " is out of reach: ", given),
                    f"{floored(self.max_coverage)}. {advice}",
                )
            )
        return mass


def highest_coverage(n_tasks: int) -> float:
    """Return the highest coverage of a finite interval, given the number of held-out tasks."""
    return n_tasks / (n_tasks + 1.0)


def proven_coverage(coverage: float, n_tasks: int, n_folds: int) -> float:
    """Return the coverage that is proven for a nominal coverage, if all folds have as many tasks.

    The larger of the two bounds behind theorem 4 of Barber et al., before they are simplified. With m tasks per fold,
    at most m + 2 (alpha (K + 1) - 1) of K + m exchangeable tasks can lie above all but alpha (K + 1) - 1 of those of
    other folds. And twice the average of valid p-values, one of each of the F folds, is a valid p-value.
    """
    alpha, of_fold = 1.0 - coverage, n_tasks / n_folds
    by_counting = (of_fold + 2.0 * (alpha * (n_tasks + 1) - 1.0)) / (n_tasks + of_fold)
    by_averaging = 2.0 * (alpha * (n_tasks + 1) + n_folds - 1.0) / (n_tasks + n_folds)
    return float(np.clip(1.0 - min(by_counting, by_averaging), 0.0, 1.0))


def coverage_words(n_tasks: int, n_folds: int) -> str:
    """Return the usual nominal coverage, or the highest if that is lower, and what is proven of it."""
    nominal = min(USUAL_COVERAGE, highest_coverage(n_tasks))
    return f"nominal coverage {floored(nominal)}, proven {floored(proven_coverage(nominal, n_tasks, n_folds))} or more"


def equal_folds(n_tasks: int) -> tuple[int, int]:
    """Return the number of folds and of the tasks of each: the proof needs folds of equal size.

    A few tasks may be left over: of 19 tasks, 18 are held out.
    """
    sizes = {n: n_tasks // n for n in range(min(MIN_FOLDS, n_tasks), min(MAX_FOLDS, n_tasks) + 1)}
    n_folds = max(sizes, key=lambda n: (n * sizes[n], n))
    return n_folds, sizes[n_folds]


def least_tasks(n_held_out: int) -> int:
    """Return the least number of tasks of which as many are held out."""
    return next(n for n in itertools.count(n_held_out) if math.prod(equal_folds(n)) >= n_held_out)


def floored(level: float) -> str:
    """Return a level with three decimals, never rounded up."""
    return f"{math.floor(1000.0 * level + 1e-9) / 1000.0:g}"


def check_method(method: Any, latent: Any, model: Any, labels: bool = False) -> bool:
    """Return whether a conformal interval is asked for; raise if there cannot be one."""
    if check_choice("method", method, METHODS) == "model":
        return False
    asked = Argument("method", "conformal")
    if labels:
        raise ValueError(Message(asked, " is for intervals of readings; this prior predicts labels. Leave it out."))
    if latent:
        raise ValueError(Message(asked, " is about new readings; latent=True asks for the function without noise."))
    if model.conformal is None:
        fit = Argument("conformal", True)
        raise ValueError(Message("This prior was fitted without conformal intervals. Fit it again with ", fit, "."))
    return True


def own_band(predictive: Any, _: Any = None) -> np.ndarray:
    """Return lower end, median and upper end of the model's own 90% band, (3, *points)."""
    return predictive.quantile(OWN_BAND)


def score(y: np.ndarray, band: np.ndarray) -> np.ndarray:
    """Return how far readings lie from the median, in units of the distance from the median to the end of the band."""
    below, above = half_widths(band)
    return np.maximum((band[1] - y) / below, (y - band[1]) / above)


def half_widths(band: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distances from the median to both ends, which are never zero."""
    least = np.maximum(np.spacing(np.abs(band[1])), np.finfo(np.float64).tiny)
    return np.maximum(band[1] - band[0], least), np.maximum(band[2] - band[1], least)


def held_out_scores(model: Ensemble, tests: Sequence[Sequence[TestTask]]) -> tuple[np.ndarray, np.ndarray]:
    """Return scores of the readings of tasks that a prior has not seen, split in several ways, and their weights.

    The splits of a task have equal shares of it, and so have the queries of a split.
    """
    splits = [split for of_task in tests for split in of_task]
    y = np.concatenate([split.y_query for split in splits])
    if model.likelihood.discrete:
        scores = predict_rows(*read_tests(model, splits), lambda predictive, rows: integer_scores(predictive, y[rows]))
    else:
        bands = predict_rows(*read_tests(model, splits), own_band)
        with np.errstate(over="ignore"):
            scores = score(y, bands)
    shares = [1.0 / (len(of_task) * len(split.y_query)) for of_task in tests for split in of_task]
    weights = np.repeat(shares, [len(split.y_query) for split in splits])
    return rounded_up(*_on_grid(np.minimum(scores, np.finfo(np.float64).max), weights))


def _on_grid(scores: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round scores up to a grid, and add the weights of those that are equal: both would tell readings."""
    small = scores < MAX_ON_GRID
    up = np.where(small, np.ceil(np.where(small, scores, 0.0) / STEP) * STEP, scores)
    scores, place = np.unique(up, return_inverse=True)
    return scores, np.bincount(place, weights)


def rounded_up(scores: np.ndarray, weights: np.ndarray, most: int = MAX_SCORES) -> tuple[np.ndarray, np.ndarray]:
    """Return ascending scores and their weights, at most so many: others are replaced by the next larger one kept.

    Most are kept among large scores, which the ends of bands depend on.
    """
    order = np.argsort(scores, kind="stable")
    scores, weights, n = scores[order], weights[order], len(scores)
    if n <= most:
        return scores, weights
    part = np.linspace(0.0, 1.0, most + 1)[1:]
    last = np.unique(np.ceil(n * (1.0 - (1.0 - part) ** 2)).astype(int)) - 1  # of each group of equal scores
    return scores[last], np.diff(np.cumsum(weights)[last], prepend=0.0)


def conformal_band(posteriors: Posteriors, queries: Ragged, coverage: Any) -> np.ndarray:
    """Return the ends of conformal intervals at all query rows, (2, rows)."""
    conformal: Conformal = posteriors.model.conformal
    mass = conformal.mass(coverage)
    _warn_of_other_contexts(conformal.rule, posteriors.x.sizes)
    if posteriors.model.likelihood.discrete:
        return _integer_band(posteriors, queries, conformal.folds, mass)
    bands = np.stack(
        [
            predict_rows(Posteriors(fold.model, posteriors.x, posteriors.y, posteriors.dtype), queries, own_band)
            for fold in conformal.folds
        ]
    )
    return combine(bands, conformal.folds, mass)


def _warn_of_other_contexts(rule: ContextRule, sizes: np.ndarray) -> None:
    """Warn if contexts have another size than those that bands were calibrated with."""
    others = sizes[sizes != rule.size] if rule.size is not None else sizes[:0]
    if len(others):
        tasks = "the context has" if len(sizes) == 1 else f"{len(others)} of {len(sizes)} contexts have others, such as"
        calibrated = f"Conformal intervals were calibrated with contexts of {counted(rule.size or 0, 'reading')}"
        advice = "Fit with a context of the size that will be given, or of random sizes."
        warn_caller(f"{calibrated}; {tasks} {others[0]}. For these their coverage is not proven. {advice}")


def _integer_band(posteriors: Posteriors, queries: Ragged, folds: Sequence[Fold], mass: float) -> np.ndarray:
    """Return the ends of the bands of counts and ranks, (2, rows), computed for some rows at a time."""
    ends = np.empty((2, queries.n_rows))
    for first in range(0, queries.n_rows, CHUNK_ROWS):
        rows = slice(first, min(first + CHUNK_ROWS, queries.n_rows))
        inner = np.clip(queries.starts, rows.start, rows.stop)
        some = Ragged.of_rows(queries.rows[rows], np.diff(inner))
        predictives = []
        for fold in folds:
            own = Posteriors(fold.model, posteriors.x, posteriors.y, posteriors.dtype)
            means, variances, *log_weights = predict_rows(own, some, components)
            weights = log_weights[0] if log_weights else np.log(fold.model.component_weights)
            predictives.append(fold.model.predictive(means, variances, weights, latent=False))
        ends[:, rows] = combine_integers(predictives, folds, mass)
    return ends


def predict_bands(model: Ensemble, tests: Sequence[TestTask], coverage: Any) -> np.ndarray:
    """Return the ends of conformal intervals, (2, tasks, queries), NaN where there is no query."""
    return pad_rows(conformal_band(*read_tests(model, tests), coverage), tests)[0]


def combine(bands: np.ndarray, folds: Sequence[Fold], mass: float) -> np.ndarray:
    """Return the ends of CV+ bands, (2, rows), from the own bands of the folds' priors, (folds, 3, rows).

    Every score s of a fold gives the ends m - s (m - lower) and m + s (upper - m). The upper end of the band is the
    smallest of them that has a mass of `mass` tasks at or below it, and the lower end is its mirror image.
    """
    ends = np.empty((2, bands.shape[2]))
    scores, weights = [fold.scores for fold in folds], np.concatenate([fold.weights for fold in folds])
    at_once = max(CHUNK_NUMBERS // max(len(weights), 1), 1)
    for first in range(0, bands.shape[2], at_once):
        part = bands[:, :, first : first + at_once]
        below, above = half_widths(np.swapaxes(part, 0, 1))
        rows = slice(first, first + at_once)
        ends[0, rows] = -_upper_ends(-part[:, 1], below, scores, weights, mass)
        ends[1, rows] = _upper_ends(part[:, 1], above, scores, weights, mass)
    return np.stack([ends.min(axis=0), ends.max(axis=0)])  # they may cross where less than half is to be covered


def _upper_ends(
    medians: np.ndarray, widths: np.ndarray, scores: Sequence[np.ndarray], weights: np.ndarray, mass: float
) -> np.ndarray:
    """Return the smallest end with enough mass at or below it, (rows,), given (folds, rows) medians and widths."""
    triples = zip(medians, widths, scores, strict=True)
    with np.errstate(over="ignore"):
        ends = np.concatenate([m + s[:, None] * width for m, width, s in triples])  # (scores, rows)
    order = np.argsort(ends, axis=0, kind="stable")
    reached = np.cumsum(weights[order], axis=0) >= mass - ROUNDING
    place = np.take_along_axis(order, np.argmax(reached, axis=0)[None], axis=0)
    return np.take_along_axis(ends, place, axis=0)[0]


def integer_scores(predictive: Predictive, y: np.ndarray) -> np.ndarray:
    """Return how far out integers are: zero for the median, one at the ends of the own 90% interval."""
    return np.maximum(np.maximum(tail_scores(predictive, y, False), tail_scores(predictive, y, True)), 0.0)


def tail_scores(predictive: Predictive, y: np.ndarray, upper: bool) -> np.ndarray:
    """Return the normal score of P(Y <= y), or of P(Y >= y), positive if it is less than 1/2, in units of scores.

    However small tails are, they are known. So scores of counts grow without end, and bands that are
    made from them are finite.
    """
    return np.clip(-ndtri_exp(predictive.log_tail(y, upper)) / UNIT, -MAX_SCORE, MAX_SCORE)


def combine_integers(predictives: Sequence[Predictive], folds: Sequence[Fold], mass: float) -> np.ndarray:
    """Return the ends of CV+ bands, (2, rows), from the predictive distributions of the folds' priors at the rows.

    A score s of a fold gives the end U(s), the largest integer whose score on the upper side is at most s. The upper
    end of the band is the smallest of all U that has a mass of `mass` tasks at or below it. U(s) < y if and only if
    y has a larger score than s. So it is the largest y that scores more than a mass of less than `mass`, which is
    found by bisection: with one evaluation of the distribution functions for all scores. The lower end is its mirror
    image.
    """
    least, most = predictives[0].likelihood.limits
    upper = last_inside(_inside(predictives, folds, mass, True), _guess(predictives, folds, mass, 1.0), least, most)
    below = _inside(predictives, folds, mass, False)
    mirrored = last_inside(lambda y, rows: below(-y, rows), -_guess(predictives, folds, mass, -1.0), -most, -least)
    ends = np.stack([-mirrored + 0.0, upper])  # no minus zero
    return np.stack([ends.min(axis=0), ends.max(axis=0)])  # they may cross where less than half is to be covered


def _inside(predictives: Sequence[Predictive], folds: Sequence[Fold], mass: float, upper: bool) -> Inside:
    """Return a function that tells whether y at some rows are inside: whether they score more than too few others."""
    below = [np.concatenate([[0.0], np.cumsum(fold.weights)]) for fold in folds]

    def inside(y: np.ndarray, rows: np.ndarray) -> np.ndarray:
        total = np.zeros(len(y))
        for predictive, fold, masses in zip(predictives, folds, below, strict=True):
            own = tail_scores(predictive._at(rows), y, upper)
            total += masses[np.searchsorted(fold.scores, own - TIED * np.maximum(np.abs(own), 1.0))]
        return total < mass - ROUNDING

    return inside


def _guess(predictives: Sequence[Predictive], folds: Sequence[Fold], mass: float, side: float) -> np.ndarray:
    """Return about where an end is, (rows,): in the middle of few integers, by normal logarithms of counts."""
    least, most = predictives[0].likelihood.limits
    if most - least < MANY:
        return np.full(predictives[0].means.shape[1], np.floor(0.5 * (least + most)))
    scores, weights = (np.concatenate([getattr(fold, name) for fold in folds]) for name in ("scores", "weights"))
    order = np.argsort(scores, kind="stable")
    reached = np.searchsorted(np.cumsum(weights[order]), mass - ROUNDING)
    factor = side * UNIT * scores[order][min(int(reached), len(order) - 1)]
    wide = [each.noisy() for each in predictives]
    ends = [each.mean() + factor * each.std() for each in wide]
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
