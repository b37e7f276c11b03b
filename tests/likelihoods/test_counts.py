"""Counts: means that say little, and probabilities under wide latent functions, against scipy's distributions."""

import numpy as np
import pytest
from scipy import stats

from metaprior import HeavyTailWarning
from metaprior.likelihoods import make_likelihood
from metaprior.likelihoods.counts import Poisson
from metaprior.predict.predictive import Predictive


def test_counts_of_any_size_have_quantiles():
    means = np.array([[-30.0, 0.0, 7.0, 14.0, 20.0]])
    mixture = Predictive(Poisson(), means, np.full((1, 5), 0.5), np.zeros((1, 0)))
    lower, upper = mixture.interval(0.9)
    spread = stats.norm.ppf([0.05, 0.95]) * np.sqrt(0.5)
    np.testing.assert_allclose(lower[2:], np.exp(means[0, 2:] + spread[0]), rtol=2e-2)
    np.testing.assert_allclose(upper[2:], np.exp(means[0, 2:] + spread[1]), rtol=2e-2)
    assert lower[0] == upper[0] == 0.0


@pytest.mark.parametrize("variance", [4.0, 15.0, 40.0])
@pytest.mark.parametrize("mean", [-9.0, 0.0, 6.0])
def test_probabilities_of_counts_under_a_wide_latent_function(mean, variance):
    t = np.linspace(mean - 11 * variance**0.5, mean + 11 * variance**0.5, 20001)
    weights = stats.norm.pdf(t, mean, variance**0.5)
    weights /= weights.sum()
    for y in (0.0, 1.0, 3.0, 50.0):
        given = [
            ("poisson", np.zeros((1, 0)), stats.poisson(np.exp(t))),
            *(("negative-binomial", np.log([[r]]), stats.nbinom(r, r / (r + np.exp(t)))) for r in (0.05, 2.0)),
        ]
        for name, parameters, distribution in given:
            expected = np.log(np.sum(weights * distribution.pmf(y)))
            found = make_likelihood(name).log_density(np.array([y]), np.array([mean]), np.array([variance]), parameters)
            assert found == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("name", ["poisson", "negative-binomial"])
def test_a_mean_of_counts_that_says_little_comes_with_a_warning(name):
    means, variances = np.array([[0.0, 700.0, 1.0]]), np.array([[20.0, 100.0, 0.5]])
    mixture = Predictive(make_likelihood(name), means, variances, np.full((1, make_likelihood(name).n_parameters), 0.7))
    with pytest.warns(HeavyTailWarning, match="more than 1000 times their median at 2 points.*Use the median"):
        mean = mixture.mean()
    assert mean[1] == mixture.quantile(0.5)[1] < np.inf
    assert mixture.std()[1] == np.inf
    assert np.isfinite(mixture.std()[[0, 2]]).all()
    ordinary = Predictive(mixture.likelihood, means[:, 2:], variances[:, 2:], mixture.parameters)
    assert ordinary.mean() == pytest.approx(np.exp(1.25))


def test_moments_of_counts_given_a_known_rate():
    likelihood = Poisson()
    mean, variance = likelihood.moments(np.array([720.0, 2.0]), np.zeros(2), np.zeros((1, 0)))
    np.testing.assert_allclose(variance, [np.inf, np.exp(2.0)])
    assert mean[0] == np.inf
