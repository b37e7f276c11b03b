"""Conformal intervals for counts and ranks: scores against scipy, ends against brute force, validity, far tails."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ndtri_exp

from metaprior.likelihoods import make_likelihood
from metaprior.likelihoods.base import LARGEST_COUNT
from metaprior.predict.conformal import (
    Conformal,
    Fold,
    combine_integers,
    integer_scores,
    last_inside,
    rounded_up,
    tail_scores,
)
from metaprior.predict.ensemble import Ensemble
from metaprior.predict.predictive import Predictive
from metaprior.tasks.splits import ContextRule

NOTHING = Ensemble((), np.empty(0))
CUTS = np.array([-1.0, 0.2, -0.5, 0.1])
PARAMETERS = {"poisson": np.zeros(0), "negative-binomial": np.array([0.7]), "ordinal": CUTS}
NAMES = tuple(PARAMETERS)
ALMOST_NOTHING = 1e-12  # variance


def predictive(name, means, variances=ALMOST_NOTHING, parameters=None):
    """Return a mixture at points, given (components, points) or (points,) moments of t; levels are 3, ..., 7."""
    means = np.atleast_2d(np.asarray(means, float))
    parameters = np.broadcast_to(
        PARAMETERS[name] if parameters is None else parameters, (len(means), len(PARAMETERS[name]))
    )
    likelihood = make_likelihood(name).learned([np.arange(3.0, 8.0)])
    return Predictive(likelihood, means, np.broadcast_to(np.asarray(variances, float), means.shape), parameters)


def normal_score(tail):
    return -stats.norm.ppf(tail) / stats.norm.ppf(0.95)


def test_a_score_is_the_normal_score_of_the_smaller_tail():
    rate, y = 4.2, np.arange(0.0, 14.0)
    known = stats.poisson(rate)
    expected = np.maximum(normal_score(np.minimum(known.cdf(y), known.sf(y - 1))), 0.0)
    np.testing.assert_allclose(integer_scores(predictive("poisson", np.full(14, np.log(rate))), y), expected, atol=1e-6)
    r = np.exp(0.7)
    known = stats.nbinom(r, r / (r + rate))
    expected = np.maximum(normal_score(np.minimum(known.cdf(y), known.sf(y - 1))), 0.0)
    found = integer_scores(predictive("negative-binomial", np.full(14, np.log(rate))), y)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    levels = np.arange(3.0, 8.0)
    inner = CUTS[0] + np.concatenate([[0.0], np.cumsum(np.exp(CUTS[1:]))])
    below = stats.norm.cdf((np.concatenate([[-np.inf], inner, [np.inf]]) - 0.4) / np.sqrt(1.5))
    expected = np.maximum(normal_score(np.minimum(below[1:], 1.0 - below[:-1])), 0.0)
    found = integer_scores(predictive("ordinal", np.full(5, 0.4), 0.5), levels)
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_the_own_central_interval_has_scores_of_up_to_one(name):
    """One is the end of the central 90% interval, as of readings: no farther out, and farther if one is added."""
    means = np.array([[-1.0, 0.5, 2.0, 3.0], [-0.5, 0.0, 2.5, 3.5]])
    own = predictive(name, means, 0.3)
    lower, upper = own.quantile([0.05, 0.95])
    assert (integer_scores(own, lower) <= 1.0).all()
    assert (integer_scores(own, upper) <= 1.0).all()
    assert (tail_scores(own, upper + 1.0, True) > 1.0)[(upper < 7.0) | (name != "ordinal")].all()
    least = 3.0 if name == "ordinal" else 0.0
    assert (tail_scores(own, np.maximum(lower - 1.0, least), False) > 1.0)[lower > least].all()


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(NAMES),
    st.lists(st.integers(1, 5), min_size=1, max_size=5),
    st.integers(0, 10_000),
    st.integers(1, 99),
)
def test_the_band_is_the_weighted_quantile_of_its_definition(name, sizes, seed, percent):
    """Each task has mass 1 / (K + 1), shared by its readings, and the rest lies at infinity: masses are fractions."""
    rng, n_tasks, level = np.random.default_rng(seed), len(sizes), Fraction(percent, 100)
    if level > Fraction(n_tasks, n_tasks + 1):
        level = Fraction(n_tasks, n_tasks + 1)
    folds = [Fold(NOTHING, np.sort(rng.integers(0, 8, n) / 4), np.full(n, 1.0 / n)) for n in sizes]
    of_folds = [predictive(name, rng.normal(0.7, 0.5, 3), 0.2) for _ in sizes]
    found = combine_integers(of_folds, folds, Conformal(tuple(folds), n_tasks, ContextRule()).mass(float(level)))
    integers = np.arange(3.0, 8.0) if name == "ordinal" else np.arange(0.0, 200.0)
    for row in range(3):
        ends = []
        for upper, best in ((False, max), (True, min)):
            of_scores, masses = [], []
            for fold, own in zip(folds, of_folds, strict=True):
                at = predictive(name, np.full(len(integers), own.means[0, row]), 0.2)
                tails = tail_scores(at, integers, upper)
                for each in fold.scores:
                    inside = integers[tails <= each + 1e-9]
                    of_scores.append(inside[-1] if upper else inside[0])
                    masses.append(Fraction(1, (n_tasks + 1) * len(fold.scores)))
            side = 1.0 if upper else -1.0
            pairs = list(zip(masses, of_scores, strict=True))
            held = {end: sum(m for m, v in pairs if side * v <= side * end) for end in of_scores}
            ends.append(best(end for end, mass in held.items() if mass >= level))
        assert found[:, row].tolist() == sorted(ends)


@pytest.mark.parametrize("guess", [0.0, 7.0, 12.0, 40.0])
def test_the_search_finds_the_last_integer_from_any_guess(guess):
    last = np.array([0.0, 1.0, 11.0, 12.0, 13.0, 39.0, 40.0])
    found = last_inside(lambda y, rows: y <= last[rows], np.full(7, guess), 0.0, 40.0)
    np.testing.assert_array_equal(found, last)
    huge = np.array([0.0, 2.0**40 + 1.0, LARGEST_COUNT - 2.0, LARGEST_COUNT - 1.0])
    found = last_inside(lambda y, rows: y <= huge[rows], np.full(4, guess), 0.0, LARGEST_COUNT - 1.0)
    np.testing.assert_array_equal(found, huge)


def simulate(name, n_tasks, n_folds, rng, n_new=20):
    """Return the share of readings of new tasks inside 90% bands of a model that knows the average of others alone.

    Tasks differ far more than readings of one task, and than the model believes.
    """
    levels, sizes = 1.0 + rng.standard_normal(n_tasks + n_new), rng.integers(1, 6, n_tasks + n_new)
    likelihood = predictive(name, [0.0]).likelihood
    tasks = [
        likelihood.draw(level + 0.2 * rng.normal(size=n), PARAMETERS[name], rng)
        for level, n in zip(levels, sizes, strict=True)
    ]
    folds, of_folds = [], []
    for own in np.split(rng.permutation(n_tasks), n_folds):
        center = np.mean([levels[i] for i in range(n_tasks) if i not in own])
        y = np.concatenate([tasks[i] for i in own])
        weights = np.concatenate([np.full(sizes[i], 1.0 / sizes[i]) for i in own])
        scores = integer_scores(predictive(name, np.full(len(y), center), 0.05), y)
        folds.append(Fold(NOTHING, *rounded_up(scores, weights)))
        of_folds.append(predictive(name, [center], 0.05))
    lower, upper = combine_integers(of_folds, folds, Conformal(tuple(folds), n_tasks, ContextRule()).mass(0.9))
    return np.mean([lower[0] <= task[0] <= upper[0] for task in tasks[n_tasks:]])


SLOW_CASES = [
    pytest.param(*case, marks=pytest.mark.slow) for case in (("poisson", 9, 9), ("negative-binomial", 20, 10))
]


@pytest.mark.parametrize(
    ("name", "n_tasks", "n_folds"),
    [*SLOW_CASES, ("ordinal", 12, 6)],
)
def test_nine_of_ten_readings_of_new_tasks_are_inside(name, n_tasks, n_folds):
    rng = np.random.default_rng(n_tasks)
    inside = [simulate(name, n_tasks, n_folds, rng) for _ in range(60)]
    error = np.std(inside) / np.sqrt(60)
    assert np.mean(inside) > 0.9 - 3.0 * error
    assert error < 0.02
    if name != "ordinal":  # whose five levels leave large gaps
        assert np.mean(inside) < 0.9 + 2.0 / (n_tasks + 1) + 3.0 * error


def band_of(name, means, scores, mass=0.9, variances=ALMOST_NOTHING):
    folds = [Fold(NOTHING, np.array([float(each)]), np.ones(1)) for each in scores]
    return combine_integers([predictive(name, means, variances)] * len(scores), folds, mass)


def test_degenerate_own_bands_have_finite_scores_and_sensible_bands():
    sure = predictive("ordinal", [60.0])  # certainly 7
    assert sure.interval(0.9)[0] == sure.interval(0.9)[1] == 7.0
    assert integer_scores(sure, np.array([7.0])) == 0.0
    assert 30.0 < integer_scores(sure, np.array([6.0])) < integer_scores(sure, np.array([3.0])) < 100.0
    assert band_of("ordinal", [60.0, 0.0], [0.6]).tolist() == [[7.0, 4.0], [7.0, 6.0]]
    assert band_of("ordinal", [60.0, 0.0, -60.0], [500.0]).tolist() == [[3.0] * 3, [7.0] * 3]  # within the levels
    rare = predictive("poisson", [-20.0])  # a count of zero, almost certainly
    assert integer_scores(rare, np.array([0.0])) == 0.0
    once = integer_scores(rare, np.array([1.0]))[0]
    assert once == pytest.approx(normal_score(np.exp(-20.0)), rel=0.05)
    assert band_of("poisson", [-20.0], [once]).tolist() == [[0.0], [1.0]]
    assert band_of("poisson", [np.log(100.0)], [once])[1] < 200.0


@pytest.mark.parametrize("log_rate", [-20.0, 0.0, 5.0])
def test_far_scores_are_about_those_of_exact_tails(log_rate):
    """Where 1 - cdf has no digits left: within 5% of scipy's logarithms, and exact for ranks."""
    r, rate = np.exp(0.7), np.exp(log_rate)
    known = {"poisson": stats.poisson(rate), "negative-binomial": stats.nbinom(r, r / (r + rate))}
    for name, distribution in known.items():
        for upper in (False, True):
            y = np.floor(rate * np.array([20.0, 40.0, 80.0]) + [3.0, 6.0, 12.0]) if upper else np.array([0.0, 2.0, 5.0])
            tails = distribution.logsf(y - 1.0) if upper else distribution.logcdf(y)
            some = (tails < np.log(1e-9)) & (tails > -600.0)
            found = tail_scores(predictive(name, np.full(3, log_rate)), y, upper)[some]
            np.testing.assert_allclose(found, -ndtri_exp(tails[some]) / stats.norm.ppf(0.95), rtol=0.05)
    inner = CUTS[0] + np.concatenate([[0.0], np.cumsum(np.exp(CUTS[1:]))])
    above = tail_scores(predictive("ordinal", np.full(4, log_rate - 40.0)), np.arange(4.0, 8.0), True)
    np.testing.assert_allclose(above, (inner - log_rate + 40.0) / stats.norm.ppf(0.95), rtol=1e-9)


@pytest.mark.parametrize("name", ["poisson", "negative-binomial"])
@pytest.mark.parametrize("log_rate", [-10.0, 1.0, 7.0, 20.0])
@pytest.mark.parametrize("variance", [1e-8, 0.05, 3.0])
def test_scores_of_counts_grow_without_end(name, log_rate, variance):
    y = np.unique(np.floor(np.concatenate([np.arange(40.0), np.exp(np.linspace(0.0, np.log(1e12), 400))])))
    at = np.full(len(y), log_rate)
    low, high = (tail_scores(predictive(name, at, variance), y, upper) for upper in (False, True))
    assert (np.diff(low) <= 1e-6).all()
    assert (np.diff(high) >= -1e-6).all()
    assert np.isfinite(np.maximum(low, high)).all()
    assert (np.diff(high[high > 10.0]) > 0.0).all()  # no two are alike, far out
    assert high[-1] > high[-100]


def test_an_outlier_of_a_trillion_makes_wide_bands_but_finite_ones():
    outlier = integer_scores(predictive("poisson", [1.0], 0.1), np.array([1e12]))[0]
    assert np.isfinite(outlier)
    lower, upper = band_of("poisson", [1.0, 0.0, 3.0], [0.1, outlier], 1.9, 0.1)
    assert upper[0] == pytest.approx(1e12, rel=1e-6)
    assert (upper < LARGEST_COUNT).all()
    assert (lower == 0.0).all()
    large = predictive("poisson", [np.log(1e9)], 1e-6)  # a million give or take
    below = integer_scores(large, np.array([9e8]))[0]
    lower, upper = band_of("poisson", [np.log(1e9)], [below], 0.9, 1e-6)
    assert lower[0] == pytest.approx(9e8, rel=1e-6)
    assert 1.1e9 < upper[0] < 1.2e9


@pytest.mark.parametrize("name", NAMES)
def test_rounding_does_not_break_ties(name):
    """The score of a reading that equals a held-out one in everything may differ in its last digits."""
    y = np.array([5.0])
    exact = integer_scores(predictive(name, [0.0], 0.1), y)[0]
    bands = [band_of(name, [0.0], [exact * (1.0 + off)], 0.9, 0.1) for off in (-1e-13, 0.0, 1e-13)]
    assert bands[0].tolist() == bands[1].tolist() == bands[2].tolist()
    assert bands[1][1] == 5.0


def test_low_coverage_and_no_rows():
    band = band_of("poisson", [[0.0, 3.0]], [0.0, 0.0, 0.0], 0.3)
    assert (band[0] <= band[1]).all()
    assert band_of("poisson", np.empty((1, 0)), [1.0]).shape == (2, 0)
