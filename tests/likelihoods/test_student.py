"""Student's t noise against scipy's, alone and on wide latent functions."""

import numpy as np
import pytest
from scipy import stats

from metaprior import HeavyTailWarning
from metaprior.likelihoods.student import StudentT
from metaprior.predict.predictive import Predictive


def grid(ratio):
    t = np.linspace(-11 * ratio, 11 * ratio, 20001)
    weights = stats.norm.pdf(t, 0.0, ratio)
    return t, weights / weights.sum()


def test_a_tail_without_variance_gives_the_median_and_says_so():
    parameters = np.log([[0.6, 1.5]])
    mixture = Predictive(StudentT(), np.array([[1.0, 2.0]]), np.full((1, 2), 0.1), parameters)
    with pytest.warns(HeavyTailWarning, match="no variance"):
        np.testing.assert_allclose(mixture.mean(), [1.0, 2.0], atol=1e-8)
    assert (mixture.std() == np.inf).all()


@pytest.mark.parametrize("nu", [0.3, 0.6, 0.9, 1.0, 2.0, 3.3, 8.0, 50.0])
def test_quantiles_of_student_are_those_of_scipy(nu):
    levels = [1e-6, 0.01, 0.3, 0.5, 0.75, 0.95, 0.99]
    parameters = np.log([[1.7, nu]])
    mixture = Predictive(StudentT(), np.full((1, 1), 5.0), np.full((1, 1), 1e-14), parameters)
    expected = stats.t.ppf(levels, nu, 5.0, 1.7)
    found = mixture.quantile(levels)[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    cdf = [mixture.cdf(np.array([y]))[0] for y in expected]
    np.testing.assert_allclose(cdf, levels, rtol=1e-5)


@pytest.mark.parametrize("nu", [0.4, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("ratio", [0.3, 3.0, 30.0])
def test_student_noise_on_a_wide_latent_function(nu, ratio):
    likelihood, parameters = StudentT(), np.log([[1.0, nu]])
    mean, variance, (t, weights) = np.zeros(1), np.array([ratio**2]), grid(ratio)
    for deviation in (0.0, 1.0, 4.0, 11.5):
        y = np.array([deviation * np.sqrt(1.0 + ratio**2)])
        if deviation < 10.0 or nu < 10.0:  # farther out the grid is too short
            expected = np.log(np.sum(weights * stats.t.pdf(y - t, nu)))
            assert likelihood.log_density(y, mean, variance, parameters) == pytest.approx(expected, abs=1e-5)
        expected = np.sum(weights * stats.t.cdf(y - t, nu))
        assert likelihood.cdf(y, mean, variance, parameters) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("nu", [0.3, 1.0, 5.0])
def test_quantiles_invert_the_distribution_function_of_a_mixture(nu):
    rng = np.random.default_rng(0)
    means, variances = 10.0 * rng.normal(size=(3, 9)), rng.choice([1e-8, 0.3, 200.0], (3, 9))
    parameters = np.log([[0.01, nu], [1.0, 2.0 * nu], [3.0, nu]])
    mixture = Predictive(StudentT(), means, variances, parameters, np.log([0.5, 0.3, 0.2]))
    for y in (-1e3, -40.0, -3.0, 0.0, 8.0, 40.0):
        cdf = mixture.cdf(y)
        found = [mixture.quantile(level)[i] for i, level in enumerate(cdf)]
        np.testing.assert_allclose(mixture.cdf(np.array(found)), cdf, rtol=1e-9)
        np.testing.assert_allclose(found, y, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("ratio", [0.5, 2.0, 9.0, 100.0])
@pytest.mark.parametrize("nu", [0.4, 3.0, 10.0])
def test_expected_logarithm_of_student_where_the_latent_function_is_wide(nu, ratio):
    (t, weights), parameters = grid(ratio), np.log([1.0, nu])
    for y in (0.0, 0.4 * ratio, 3.0 * ratio):
        expected = np.sum(weights * stats.t.logpdf(y - t, nu))
        found = StudentT().expected(np.array([y]), np.zeros(1), np.array([ratio**2]), parameters)
        assert found.value == pytest.approx(expected, abs=1e-4)
