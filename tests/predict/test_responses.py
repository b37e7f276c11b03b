"""Every response against scipy's distributions: densities, distribution functions, moments, quantiles, expectations."""

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import simpson

from metaprior import HeavyTailWarning
from metaprior.predict.response_mixtures import ResponseMixture, make_response

PARAMETERS = {
    "poisson": np.zeros(0),
    "negative-binomial": np.array([0.7]),
    "student-t": np.log([0.6, 3.3]),
    "ordinal": np.array([-1.0, 0.2, -0.5, 0.1]),
}
NAMES = tuple(PARAMETERS)
LATENT = [(0.0, 0.3), (1.0, 2.0), (3.5, 0.01), (2.0, 4.0)]


def response_of(name, lowest=0):
    return make_response(name, 5, lowest) if name == "ordinal" else make_response(name)


def conditional(name, t):
    """Return scipy's distribution of y given t."""
    parameters = PARAMETERS[name]
    if name == "poisson":
        return stats.poisson(np.exp(t))
    if name == "negative-binomial":
        r = np.exp(parameters[0])
        return stats.nbinom(r, r / (r + np.exp(t)))
    if name == "student-t":
        sigma, nu = np.exp(parameters)
        return stats.t(nu, t, sigma)
    return Levels(t)


class Levels:
    """The ordinal distribution, from normal distribution functions."""

    def __init__(self, t):
        distances = np.concatenate([[0.0], np.cumsum(np.exp(PARAMETERS["ordinal"][1:]))])
        cuts = np.concatenate([[-np.inf], PARAMETERS["ordinal"][0] + distances, [np.inf]])
        below, above = stats.norm.cdf(cuts[:, None] - t), stats.norm.sf(cuts[:, None] - t)
        self.p = np.maximum(np.diff(below, axis=0), -np.diff(above, axis=0))  # one of them is accurate

    def logpmf(self, y):
        with np.errstate(divide="ignore"):
            return np.log(self.p[int(y)])

    def cdf(self, y):
        return self.p[: int(y) + 1].sum(axis=0)


def grid(mean, variance):
    t = np.linspace(mean - 11 * variance**0.5, mean + 11 * variance**0.5, 20001)
    weights = stats.norm.pdf(t, mean, variance**0.5)
    return t, weights / weights.sum()


def observations(name):
    return {"student-t": (-3.0, 0.7, 8.0, 60.0), "ordinal": (0.0, 1.0, 4.0)}.get(name, (0.0, 1.0, 5.0, 40.0))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("latent", LATENT)
def test_density_and_distribution_function(name, latent):
    response, parameters, (t, weights) = response_of(name), PARAMETERS[name], grid(*latent)
    mean, variance = (np.array([number]) for number in latent)
    for y in observations(name):
        given = conditional(name, t)
        log_p = given.logpdf(y) if name == "student-t" else given.logpmf(y)
        expected = np.log(np.sum(weights * np.exp(log_p)))
        if expected > -60.0:  # the grid is too short for observations farther out
            assert response.log_density(np.array([y]), mean, variance, parameters) == pytest.approx(expected, abs=1e-4)
        cdf = np.sum(weights * given.cdf(y))
        assert response.cdf(np.array([y]), mean, variance, parameters) == pytest.approx(cdf, abs=2e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("latent", LATENT)
def test_expected_logarithm_and_its_derivatives(name, latent):
    response, parameters, (t, weights) = response_of(name), PARAMETERS[name], grid(*latent)
    mean, variance = (np.array([number]) for number in latent)

    def value(y, mean, variance, parameters):
        return float(response.expected(np.array([y]), mean, variance, parameters).value[0])

    for y in observations(name):
        found = response.expected(np.array([y]), mean, variance, parameters, gradient=True)
        given = conditional(name, t)
        log_p = given.logpdf(y) if name == "student-t" else given.logpmf(y)
        seen = weights > 1e-18
        exact = np.sum(weights[seen] * np.maximum(log_p[seen], -1e7))
        assert found.value == pytest.approx(exact, rel=2e-3, abs=1e-3)
        h = 1e-5
        slope = (value(y, mean + h, variance, parameters) - value(y, mean - h, variance, parameters)) / (2 * h)
        assert found.slope == pytest.approx(slope, rel=1e-4, abs=1e-4)
        up, down = (value(y, mean, variance * (1 + s * h), parameters) for s in (1, -1))
        assert found.precision > 0
        if name != "student-t":  # whose own may be negative, and whose nodes are few for it
            assert found.precision == pytest.approx(-(up - down) / (h * latent[1]), rel=2e-3, abs=1e-3)
        for i, step in enumerate(h * np.eye(len(parameters))):
            numeric = (value(y, mean, variance, parameters + step) - value(y, mean, variance, parameters - step)) / (
                2 * h
            )
            assert found.by_parameters[0, i] == pytest.approx(numeric, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("variance", [1e-3, 0.1, 1.0, 4.0, 25.0, 100.0])
def test_expectations_are_those_of_fine_quadrature(name, variance):
    """To a percent at most, however wide t is, by Simpson's rule and the identities of Bonnet and Price."""
    response, parameters = response_of(name), PARAMETERS[name]
    for mean in (-3.0, 0.0, 2.5):
        if name == "poisson" and variance > 10.0:
            continue  # in closed form: e^t is too large for the rule
        t, z = np.linspace(mean - 9.0 * variance**0.5, mean + 9.0 * variance**0.5, 3001), np.linspace(-9.0, 9.0, 3001)
        for y in observations(name):
            y = np.array([y])
            log_p = response.log_density(y, t, np.full(t.shape, 1e-12), parameters)  # of t itself
            at_mean = log_p[len(t) // 2]
            rule = [
                simpson(stats.norm.pdf(z) * part, x=z) for part in (log_p, z * log_p, (1 - z**2) * (log_p - at_mean))
            ]
            value, slope, precision = rule[0], rule[1] / variance**0.5, rule[2] / variance
            found = response.expected(y, np.array([mean]), np.array([variance]), parameters)
            assert found.value == pytest.approx(value, rel=1e-3, abs=1e-3)
            assert found.slope == pytest.approx(slope, rel=1e-2, abs=1e-3)
            if name != "student-t":  # whose own may be negative
                assert found.precision == pytest.approx(precision, rel=1e-2, abs=1e-6)


def mixture_of(name, lowest=0, n=7):
    rng = np.random.default_rng(0)
    means, variances = rng.normal(1.0, 0.7, (3, n)), rng.uniform(0.05, 0.6, (3, n))
    parameters = PARAMETERS[name] + 0.1 * rng.normal(size=(3, len(PARAMETERS[name])))
    return ResponseMixture(response_of(name, lowest), means, variances, parameters, np.log([0.5, 0.3, 0.2]))


@pytest.mark.parametrize("name", NAMES)
def test_moments_and_quantiles_agree_with_draws(name):
    mixture, rng, n = mixture_of(name), np.random.default_rng(1), 40_000
    drawn = rng.choice(3, size=n, p=[0.5, 0.3, 0.2])
    t = mixture.means[drawn] + np.sqrt(mixture.variances[drawn]) * rng.normal(size=(n, 7))
    y = mixture.response.draw(t, mixture.parameters[drawn][:, None], rng)
    error = y.std(axis=0) / np.sqrt(n)
    assert (np.abs(y.mean(axis=0) - mixture.mean()) < 4.5 * error).all()
    if name != "student-t":  # whose fourth moment does not exist
        np.testing.assert_allclose(y.std(axis=0), mixture.std(), rtol=0.08)
    for level in (0.05, 0.5, 0.95):
        quantile = mixture.quantile(level)
        below = np.mean(y <= quantile, axis=0)
        assert (below > level - 0.01).all()
        if mixture.response.discrete:  # the smallest such integer
            assert (quantile == np.floor(quantile)).all()
            assert (mixture.cdf(quantile) >= level).all()
            assert (mixture.below(quantile) < level).all()
        else:
            np.testing.assert_allclose(mixture.cdf(quantile), level, atol=1e-8)
    lower, upper = mixture.interval(0.9)
    assert (mixture.cdf(upper) - mixture.below(lower) >= 0.9 - 1e-9).all()


@pytest.mark.parametrize("name", ["poisson", "negative-binomial", "ordinal"])
def test_probabilities_sum_to_one(name):
    mixture = mixture_of(name, lowest=3 if name == "ordinal" else 0)
    values = mixture.response.levels if name == "ordinal" else np.arange(400.0)
    log_p = np.array([mixture.log_density(y) for y in values])
    np.testing.assert_allclose(np.exp(log_p).sum(axis=0), 1.0, atol=1e-4)
    cdf = np.cumsum(np.exp(log_p), axis=0)
    np.testing.assert_allclose(mixture.cdf(values[4]), cdf[4], atol=2e-4)
    assert (mixture.log_density(values[0] - 1.0) == -np.inf).all()
    assert (mixture.log_density(values[0] + 0.5) == -np.inf).all()


def test_counts_of_any_size_have_quantiles():
    means = np.array([[-30.0, 0.0, 7.0, 14.0, 20.0]])
    mixture = ResponseMixture(response_of("poisson"), means, np.full((1, 5), 0.5), np.zeros((1, 0)))
    lower, upper = mixture.interval(0.9)
    spread = stats.norm.ppf([0.05, 0.95]) * np.sqrt(0.5)
    np.testing.assert_allclose(lower[2:], np.exp(means[0, 2:] + spread[0]), rtol=2e-2)
    np.testing.assert_allclose(upper[2:], np.exp(means[0, 2:] + spread[1]), rtol=2e-2)
    assert lower[0] == upper[0] == 0.0


def test_a_tail_without_variance_gives_the_median_and_says_so():
    parameters = np.log([[0.6, 1.5]])
    mixture = ResponseMixture(response_of("student-t"), np.array([[1.0, 2.0]]), np.full((1, 2), 0.1), parameters)
    with pytest.warns(HeavyTailWarning, match="no variance"):
        np.testing.assert_allclose(mixture.mean(), [1.0, 2.0], atol=1e-8)
    assert (mixture.std() == np.inf).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_nan_stays_at_its_point(name):
    mixture = mixture_of(name)
    means = mixture.means.copy()
    means[1, 2] = np.nan
    with_nan = ResponseMixture(mixture.response, means, mixture.variances, mixture.parameters, mixture.log_weights)
    found, expected = with_nan.quantile(0.5), mixture.quantile(0.5)
    assert np.isnan(found[2])
    np.testing.assert_array_equal(np.delete(found, 2), np.delete(expected, 2))


@pytest.mark.parametrize("nu", [0.3, 0.6, 0.9, 1.0, 2.0, 3.3, 8.0, 50.0])
def test_quantiles_of_student_are_those_of_scipy(nu):
    levels = [1e-6, 0.01, 0.3, 0.5, 0.75, 0.95, 0.99]
    parameters = np.log([[1.7, nu]])
    mixture = ResponseMixture(response_of("student-t"), np.full((1, 1), 5.0), np.full((1, 1), 1e-14), parameters)
    expected = stats.t.ppf(levels, nu, 5.0, 1.7)
    found = mixture.quantile(levels)[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    cdf = [mixture.cdf(np.array([y]))[0] for y in expected]
    np.testing.assert_allclose(cdf, levels, rtol=1e-5)


@pytest.mark.parametrize("nu", [0.4, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("ratio", [0.3, 3.0, 30.0])
def test_student_noise_on_a_wide_latent_function(nu, ratio):
    response, parameters = response_of("student-t"), np.log([[1.0, nu]])
    mean, variance, (t, weights) = np.zeros(1), np.array([ratio**2]), grid(0.0, ratio**2)
    for deviation in (0.0, 1.0, 4.0, 11.5):
        y = np.array([deviation * np.sqrt(1.0 + ratio**2)])
        if deviation < 10.0 or nu < 10.0:  # farther out the grid is too short
            expected = np.log(np.sum(weights * stats.t.pdf(y - t, nu)))
            assert response.log_density(y, mean, variance, parameters) == pytest.approx(expected, abs=1e-5)
        expected = np.sum(weights * stats.t.cdf(y - t, nu))
        assert response.cdf(y, mean, variance, parameters) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("nu", [0.3, 1.0, 5.0])
def test_quantiles_invert_the_distribution_function_of_a_mixture(nu):
    rng = np.random.default_rng(0)
    means, variances = 10.0 * rng.normal(size=(3, 9)), rng.choice([1e-8, 0.3, 200.0], (3, 9))
    parameters = np.log([[0.01, nu], [1.0, 2.0 * nu], [3.0, nu]])
    mixture = ResponseMixture(response_of("student-t"), means, variances, parameters, np.log([0.5, 0.3, 0.2]))
    for y in (-1e3, -40.0, -3.0, 0.0, 8.0, 40.0):
        cdf = mixture.cdf(y)
        found = [mixture.quantile(level)[i] for i, level in enumerate(cdf)]
        np.testing.assert_allclose(mixture.cdf(np.array(found)), cdf, rtol=1e-9)
        np.testing.assert_allclose(found, y, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("variance", [4.0, 15.0, 40.0])
@pytest.mark.parametrize("mean", [-9.0, 0.0, 6.0])
def test_probabilities_of_counts_under_a_wide_latent_function(mean, variance):
    t, weights = grid(mean, variance)
    for y in (0.0, 1.0, 3.0, 50.0):
        given = [
            ("poisson", np.zeros((1, 0)), stats.poisson(np.exp(t))),
            *(("negative-binomial", np.log([[r]]), stats.nbinom(r, r / (r + np.exp(t)))) for r in (0.05, 2.0)),
        ]
        for name, parameters, distribution in given:
            expected = np.log(np.sum(weights * distribution.pmf(y)))
            found = response_of(name).log_density(np.array([y]), np.array([mean]), np.array([variance]), parameters)
            assert found == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("ratio", [0.5, 2.0, 9.0, 100.0])
@pytest.mark.parametrize("nu", [0.4, 3.0, 10.0])
def test_expected_logarithm_of_student_where_the_latent_function_is_wide(nu, ratio):
    (t, weights), parameters = grid(0.0, ratio**2), np.log([1.0, nu])
    for y in (0.0, 0.4 * ratio, 3.0 * ratio):
        expected = np.sum(weights * stats.t.logpdf(y - t, nu))
        found = response_of("student-t").expected(np.array([y]), np.zeros(1), np.array([ratio**2]), parameters)
        assert found.value == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", ["poisson", "negative-binomial"])
def test_a_mean_of_counts_that_says_little_comes_with_a_warning(name):
    means, variances = np.array([[0.0, 700.0, 1.0]]), np.array([[20.0, 100.0, 0.5]])
    mixture = ResponseMixture(response_of(name), means, variances, PARAMETERS[name][None])
    with pytest.warns(HeavyTailWarning, match="more than 1000 times their median at 2 points.*Use the median"):
        mean = mixture.mean()
    assert mean[1] == mixture.quantile(0.5)[1] < np.inf
    assert mixture.std()[1] == np.inf
    assert np.isfinite(mixture.std()[[0, 2]]).all()
    ordinary = ResponseMixture(mixture.response, means[:, 2:], variances[:, 2:], mixture.parameters)
    assert ordinary.mean() == pytest.approx(np.exp(1.25))


def test_moments_of_counts_given_a_known_rate():
    response = response_of("poisson")
    mean, variance = response.moments(np.array([720.0, 2.0]), np.zeros(2), np.zeros((1, 0)))
    np.testing.assert_allclose(variance, [np.inf, np.exp(2.0)])
    assert mean[0] == np.inf
