"""What every likelihood must do: densities, distribution functions, expectations, moments, quantiles, draws, checks."""

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import simpson

from metaprior.likelihoods import LIKELIHOODS, make_likelihood
from metaprior.predict.predictive import Predictive

PARAMETERS = {
    "gaussian": np.array([-0.4]),
    "poisson": np.zeros(0),
    "negative-binomial": np.array([0.7]),
    "student-t": np.log([0.6, 3.3]),
    "ordinal": np.array([-1.0, 0.2, -0.5, 0.1]),
}
NAMES = tuple(PARAMETERS)
LATENT = [(0.0, 0.3), (1.0, 2.0), (3.5, 0.01), (2.0, 4.0)]


BAD = [
    ("student-t", 1e200, "at most .* in size"),
    ("poisson", -1.0, "counts, the integers 0, 1, 2"),
    ("poisson", 0.5, "Give the exposure as a column of X, not rates"),
    ("negative-binomial", 1e13, "counts of at most 1e.12"),
    ("ordinal", 2.5, "integer ranks or scores"),
    ("ordinal", 1e10, "ranks of at most 1e.09 in size"),
    ("ordinal", 7.0, "levels from 0 to 4, those of the tasks"),
]


def likelihood_of(name):
    return make_likelihood(name).learned([np.arange(5.0)])


def test_all_likelihoods_are_tested():
    assert PARAMETERS.keys() == LIKELIHOODS.keys()


@pytest.mark.parametrize("name", NAMES)
def test_it_is_what_its_json_says(name):
    likelihood = likelihood_of(name)
    assert make_likelihood(**likelihood.to_json()) == likelihood
    assert len(PARAMETERS[name]) == likelihood.n_parameters


@pytest.mark.parametrize(("name", "y", "sentence"), BAD)
def test_bad_y_gives_one_clear_sentence(name, y, sentence):
    likelihood = likelihood_of(name)
    with pytest.raises(ValueError, match=f"^tasks\\[3\\]: y must .*{sentence}[^\\n]*$"):
        likelihood(np.array([1.0, y]), "tasks[3]: y")
    assert not likelihood.allow(np.array([1.0, y]))
    assert likelihood.allow(np.array([1.0, 3.0]))


def conditional(name, t):
    """Return scipy's distribution of y given t."""
    parameters = PARAMETERS[name]
    if name == "poisson":
        return stats.poisson(np.exp(t))
    if name == "negative-binomial":
        r = np.exp(parameters[0])
        return stats.nbinom(r, r / (r + np.exp(t)))
    if name == "gaussian":
        return stats.norm(t, np.exp(parameters[0]))
    if name == "student-t":
        sigma, nu = np.exp(parameters)
        return stats.t(nu, t, sigma)
    assert name == "ordinal", f"conditional() has no independent reference for {name}"
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
    if not LIKELIHOODS[name].discrete:
        return (-3.0, 0.7, 8.0, 60.0)
    return (0.0, 1.0, 4.0) if name == "ordinal" else (0.0, 1.0, 5.0, 40.0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("latent", LATENT)
def test_density_and_distribution_function(name, latent):
    likelihood, parameters, (t, weights) = likelihood_of(name), PARAMETERS[name], grid(*latent)
    mean, variance = (np.array([number]) for number in latent)
    for y in observations(name):
        given = conditional(name, t)
        log_p = given.logpmf(y) if likelihood.discrete else given.logpdf(y)
        expected = np.log(np.sum(weights * np.exp(log_p)) + 1e-300)
        if expected > -60.0:  # the grid is too short for observations farther out
            assert likelihood.log_density(np.array([y]), mean, variance, parameters) == pytest.approx(
                expected, abs=1e-4
            )
        cdf = np.sum(weights * given.cdf(y))
        assert likelihood.cdf(np.array([y]), mean, variance, parameters) == pytest.approx(cdf, abs=2e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("variance", [1e-3, 0.1, 1.0, 4.0, 25.0, 100.0])
def test_expectations_are_those_of_fine_quadrature(name, variance):
    """To a percent at most, however wide t is, by Simpson's rule and the identities of Bonnet and Price."""
    likelihood, parameters, z = likelihood_of(name), PARAMETERS[name], np.linspace(-9.0, 9.0, 3001)
    for mean in (-3.0, 0.0, 2.5):
        if name == "poisson" and variance > 10.0:
            continue  # in closed form: e^t is too large for the rule
        t = mean + z * variance**0.5
        for y in observations(name):
            log_p = likelihood.log_density(np.array([y]), t, np.full(t.shape, 1e-12), parameters)  # of t itself
            parts = log_p, z * log_p, (1 - z**2) * (log_p - log_p[len(t) // 2])
            rule = [simpson(stats.norm.pdf(z) * part, x=z) for part in parts]
            found = likelihood.expected(np.array([y]), np.array([mean]), np.array([variance]), parameters)
            assert found.value == pytest.approx(rule[0], rel=1e-3, abs=1e-3)
            assert found.slope == pytest.approx(rule[1] / variance**0.5, rel=1e-2, abs=1e-3)
            assert found.precision > 0
            if name != "student-t":  # whose own may be negative
                assert found.precision == pytest.approx(rule[2] / variance, rel=1e-2, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("latent", LATENT)
def test_slopes_of_the_expected_logarithm_are_differences(name, latent):
    likelihood, parameters, h = likelihood_of(name), PARAMETERS[name], 1e-5
    mean, variance = (np.array([number]) for number in latent)
    for y in observations(name):
        found = likelihood.expected(np.array([y]), mean, variance, parameters, gradient=True)

        def difference(of_mean, of_parameters, y=y):
            ends = (
                likelihood.expected(np.array([y]), mean + s * of_mean, variance, parameters + s * of_parameters)
                for s in (1, -1)
            )
            up, down = (each.value[0] for each in ends)
            return (up - down) / (2 * h)

        assert found.slope == pytest.approx(difference(h, 0.0 * parameters), rel=1e-4, abs=1e-4)
        by_parameters = [difference(0.0, step) for step in h * np.eye(len(parameters))]
        np.testing.assert_allclose(found.by_parameters[0], by_parameters, rtol=1e-4, atol=1e-4)


def mixture_of(name, n=7):
    rng = np.random.default_rng(0)
    means, variances = rng.normal(1.0, 0.7, (3, n)), rng.uniform(0.05, 0.6, (3, n))
    parameters = PARAMETERS[name] + 0.1 * rng.normal(size=(3, len(PARAMETERS[name])))
    return Predictive(likelihood_of(name), means, variances, parameters, np.log([0.5, 0.3, 0.2]))


@pytest.mark.parametrize("name", NAMES)
def test_moments_and_quantiles_agree_with_draws(name):
    mixture, rng, n = mixture_of(name), np.random.default_rng(1), 40_000
    drawn = rng.choice(3, size=n, p=[0.5, 0.3, 0.2])
    t = mixture.means[drawn] + np.sqrt(mixture.variances[drawn]) * rng.normal(size=(n, 7))
    y = mixture.likelihood.draw(t, mixture.parameters[drawn][:, None], rng)
    assert mixture.likelihood.allow(y)
    error = y.std(axis=0) / np.sqrt(n)
    assert (np.abs(y.mean(axis=0) - mixture.mean()) < 4.5 * error).all()
    if name != "student-t":  # whose fourth moment does not exist
        np.testing.assert_allclose(y.std(axis=0), mixture.std(), rtol=0.08)
    for level in (0.05, 0.5, 0.95):
        quantile = mixture.quantile(level)
        assert (np.mean(y <= quantile, axis=0) > level - 4.5 * np.sqrt(level * (1 - level) / n)).all()
        if mixture.is_discrete:  # the smallest such integer
            assert (quantile == np.floor(quantile)).all()
            assert (mixture.cdf(quantile) >= level).all()
            assert (mixture.below(quantile) < level).all()
        else:
            np.testing.assert_allclose(mixture.cdf(quantile), level, atol=1e-8)
    lower, upper = mixture.interval(0.9)
    assert (mixture.cdf(upper) - mixture.below(lower) >= 0.9 - 1e-9).all()


@pytest.mark.parametrize("name", NAMES)
def test_densities_add_up_to_the_distribution_function(name):
    mixture = mixture_of(name)
    least, most = mixture.likelihood.limits
    if mixture.is_discrete:
        values = np.arange(least, min(most, 400.0) + 1.0)
        steps = np.exp([mixture.log_density(y) for y in values])
        np.testing.assert_allclose(
            np.cumsum(steps, axis=0)[[4, -1]], [mixture.cdf(y) for y in values[[4, -1]]], atol=2e-4
        )
        np.testing.assert_allclose(steps.sum(axis=0), 1.0, atol=1e-4)
        for impossible in (least - 1.0, least + 0.5):
            assert (mixture.log_density(impossible) == -np.inf).all()
        return
    values = np.linspace(-40.0, 40.0, 8001)
    density, below = (
        np.array([of(y) for y in values]) for of in (lambda y: np.exp(mixture.log_density(y)), mixture.cdf)
    )
    np.testing.assert_allclose(simpson(density, x=values, axis=0), below[-1] - below[0], atol=1e-8)
    np.testing.assert_allclose(np.gradient(below, values, axis=0), density, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_tails_are_those_of_the_distribution_function_and_fall_beyond_it(name):
    mixture = mixture_of(name)
    y = mixture.quantile(0.9)
    np.testing.assert_allclose(mixture.log_tail(y, False), np.log(mixture.cdf(y)), atol=1e-7)
    np.testing.assert_allclose(mixture.log_tail(y, True), np.log1p(-mixture.below(y)), atol=1e-7)
    far = np.minimum([y + 10.0, y + 100.0, y + 1e4], mixture.likelihood.limits[1])
    tails = np.array([mixture.log_tail(each, True) for each in far])
    assert (np.diff(tails, axis=0) <= 0).all()
    assert np.isfinite(tails).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_nan_stays_at_its_point(name):
    mixture = mixture_of(name)
    means = mixture.means.copy()
    means[1, 2] = np.nan
    with_nan = Predictive(mixture.likelihood, means, mixture.variances, mixture.parameters, mixture.log_weights)
    found, expected = with_nan.quantile(0.5), mixture.quantile(0.5)
    assert np.isnan(found[2])
    np.testing.assert_array_equal(np.delete(found, 2), np.delete(expected, 2))


@pytest.mark.parametrize("name", NAMES)
def test_a_broad_distribution_holds_most_readings(name):
    rng, mixture = np.random.default_rng(0), mixture_of(name, 60)
    y = mixture.likelihood.draw(mixture.means[0], mixture.parameters[0], rng)
    broad = mixture.likelihood.broad([y[:20], y[20:]], [np.zeros(20), np.zeros(40)])
    moments = np.broadcast_to(broad.mean, (60,)), np.full(60, broad.variance)
    cdf = broad.likelihood.cdf(y, *moments, broad.parameters)
    assert np.mean((cdf > 0.01) & (cdf <= 1.0)) > 0.9
    assert (broad.likelihood.log_density(y, *moments, broad.parameters) > -12.0).all()
