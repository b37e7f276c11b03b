"""Likelihoods that users write, averaged over t by quadrature."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import gammaln
from scipy.stats import norm, poisson

from metaprior.likelihoods.base import ConditionalLikelihood
from metaprior.likelihoods.counts import Poisson
from metaprior.predict.predictive import Predictive


class Waiting(ConditionalLikelihood):
    """Exponential waiting times of mean exp(t)."""

    name = "waiting"

    def log_density_given(self, y, t):
        return -t - y * np.exp(-t)

    def cdf_given(self, y, t):
        return -np.expm1(-y * np.exp(-t))

    def moments_given(self, t):
        return np.exp(t), np.exp(2 * t)

    def draw_given(self, t, rng):
        return rng.exponential(np.exp(t))


class Counts(ConditionalLikelihood):
    name, discrete = "counts", True

    def log_density_given(self, y, t):
        return y * t - np.exp(t) - gammaln(y + 1)

    def cdf_given(self, y, t):
        return poisson.cdf(y, np.exp(t))

    def moments_given(self, t):
        return np.exp(t), np.exp(t)

    def draw_given(self, t, rng):
        return rng.poisson(np.exp(t))


MEANS, VARIANCES, WEIGHTS = np.array([[0.3, 1.0], [-0.5, 2.0]]), np.array([[0.2, 1.0], [0.5, 0.01]]), np.log([0.3, 0.7])


def mixture(likelihood):
    return Predictive(likelihood, MEANS, VARIANCES, np.zeros((2, 0)), WEIGHTS)


def test_it_agrees_with_a_likelihood_whose_averages_are_known():
    own, known = mixture(Counts()), mixture(Poisson())
    for y in (0.0, 1.0, 7.0):
        np.testing.assert_allclose(own.log_density(y), known.log_density(y), rtol=1e-8)
        np.testing.assert_allclose(own.cdf(y), known.cdf(y), atol=1e-6)  # which has 20 nodes
    np.testing.assert_allclose(own.mean(), known.mean(), rtol=1e-8)
    np.testing.assert_allclose(own.std(), known.std(), rtol=1e-8)
    np.testing.assert_array_equal(own.interval(0.9), known.interval(0.9))


@pytest.mark.parametrize("point", [0, 1])
def test_averages_are_integrals_over_t(point):
    own, y = mixture(Waiting()), 1.7
    weights = zip(np.exp(WEIGHTS), MEANS[:, point], np.sqrt(VARIANCES[:, point]), strict=True)
    parts = [
        w * quad(lambda t, m=m, s=s: np.exp(-t - y * np.exp(-t)) * norm.pdf(t, m, s), m - 9 * s, m + 9 * s)[0]
        for w, m, s in weights
    ]
    np.testing.assert_allclose(own.log_density(y)[point], np.log(sum(parts)), rtol=1e-8)
    log_normal = np.exp(MEANS[:, point] + 0.5 * VARIANCES[:, point])
    np.testing.assert_allclose(own.mean()[point], np.exp(WEIGHTS) @ log_normal, rtol=1e-8)


def test_quantiles_of_real_numbers_are_no_integers_and_invert_the_distribution_function():
    own = mixture(Waiting())
    for level in (0.001, 0.05, 0.5, 0.95, 0.999):
        np.testing.assert_allclose(own.cdf(own.quantile(level)), level, rtol=1e-10)
    lower, upper = own.interval(0.9)
    assert (lower > 0).all()
    assert (upper % 1 != 0).all()


def test_draws_have_the_mean_of_the_likelihood():
    t = np.full(20_000, 0.4)
    drawn = Waiting().draw(t, np.zeros((1, 0)), np.random.default_rng(0))
    assert abs(drawn.mean() - np.exp(0.4)) < 4 * np.exp(0.4) / len(t) ** 0.5


def test_readings_that_cannot_be_are_far_in_the_tail():
    far = mixture(Waiting()).scores(np.full(2, 1e6))
    assert (far > 7).all()


def test_the_default_does_not_fit_it():
    with pytest.raises(TypeError, match=r"'waiting' is fitted by metaprior\.wfem only"):
        Waiting().initial(np.ones(3), np.ones(3))
