"""The nearest Gaussian posterior of counts, ranks and outliers, against NumPy, quadrature, BlackJAX and differences."""

import blackjax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.integrate import quad
from scipy.special import logsumexp

from metaprior.gp import variational
from metaprior.gp.kernels import RBF
from metaprior.gp.means import ConstantMean
from metaprior.gp.parameters import merge, split
from metaprior.gp.prior import GPPrior, ResponseStart, make_likelihood, make_prior
from metaprior.hierarchical.sites import Observed, find_sites
from metaprior.prediction.response_mixtures import make_response

PARAMETERS = {
    "student-t": np.array([-1.0, 1.2]),
    "poisson": np.zeros(0),
    "negative-binomial": np.array([0.7]),
    "ordinal": np.array([-1.0, 0.2, -0.5]),
}
NAMES = tuple(PARAMETERS)
LOWEST, CENTER, SCALE = 2, 0.3, 1.4

pytestmark = pytest.mark.usefixtures("x64")


def response_of(name):
    return make_response(name, 4, LOWEST) if name == "ordinal" else make_response(name)


def make_whole_prior(name, exposure=None, variance=1.5):
    start = ResponseStart(PARAMETERS[name], np.asarray(CENTER), np.asarray(SCALE))
    likelihood = make_likelihood(name, 1.0, False, start, LOWEST)
    drawn = make_prior(jax.random.key(0), 1, ConstantMean(), RBF(jnp.zeros(()), jnp.log(variance)), likelihood)
    return GPPrior(drawn.mean, drawn.kernel, likelihood, exposure=exposure)


def draw(name, n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (n, 1))
    t = CENTER + SCALE * np.sin(2.0 * x[:, 0]) + 0.3 * rng.normal(size=n)
    return x, response_of(name).draw(t, PARAMETERS[name], rng)


def evidence(prior, x, y, mask=None):
    mask = np.ones(len(y), bool) if mask is None else mask
    return _evidence(prior, jnp.asarray(x), jnp.asarray(y), jnp.asarray(mask))


@eqx.filter_jit
def _evidence(prior, x, y, mask):
    return variational.log_evidence(prior, prior.points(x), y, mask)


def posterior(prior, x, y, at):
    *moments, converged = _posterior(prior, jnp.asarray(x), jnp.asarray(y), jnp.asarray(at))
    assert bool(converged)
    return moments


@eqx.filter_jit
def _posterior(prior, x, y, at):
    found = variational.condition(prior, prior.points(x), y, jnp.ones(len(y), bool))
    return *found.marginals(prior, prior.points(at)), found.converged


@pytest.mark.parametrize("name", NAMES)
def test_expectations_and_predictive_densities_are_those_of_numpy(name):
    rng, response = np.random.default_rng(0), response_of(name)
    mean, variance = rng.normal(0.5, 1.0, 60), rng.uniform(0.01, 0.5, 60)
    y = response.draw(rng.normal(0.5, 2.0, 60), PARAMETERS[name], rng)
    if name == "student-t":
        y[:3] = 40.0, -300.0, 1e5
    likelihood = merge(*split(make_whole_prior(name))).likelihood
    found = likelihood.expected_of_t(*map(jnp.asarray, (y, mean, variance)))
    expected = response.expected(y, mean, variance, PARAMETERS[name])
    for ours, theirs in zip(found, expected[:3], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-8)
    densities = likelihood.log_average(*map(jnp.asarray, (y, mean, variance)))
    np.testing.assert_allclose(densities, response.log_density(y, mean, variance, PARAMETERS[name]), rtol=1e-4)
    of_u = map(jnp.asarray, (y, (mean - CENTER) / SCALE, variance / SCALE**2))
    shifted = likelihood.log_predictive(*of_u)
    np.testing.assert_allclose(shifted, densities, rtol=1e-9)
    np.testing.assert_allclose(likelihood.parameters, PARAMETERS[name])


@pytest.mark.parametrize("name", NAMES)
def test_sites_are_those_of_hierarchical_priors(name):
    prior, (x, y) = merge(*split(make_whole_prior(name))), draw(name, 7)
    ones = np.ones((1, 7))
    observed = Observed(response_of(name), y[None], 0.0 * ones, ones, CENTER, SCALE)
    points = prior.points(jnp.asarray(x))
    covariance = np.asarray(prior.covariance(points, points))[None]
    found = find_sites(observed, PARAMETERS[name], np.asarray(points.mean)[None], covariance)
    value, converged = evidence(prior, x, y)
    assert bool(converged)
    np.testing.assert_allclose(value, found.bound[0], rtol=1e-5)
    mean, variance = posterior(prior, x, y, x)
    solved = found.inverse_root[0] @ covariance[0]
    np.testing.assert_allclose(mean, np.asarray(points.mean) + solved.T @ found.residual[0], atol=2e-3)
    np.testing.assert_allclose(variance, np.diag(covariance[0]) - np.sum(solved**2, axis=0), rtol=5e-3)


@pytest.mark.parametrize("name", NAMES)
def test_one_sample_against_quadrature(name):
    """The bound is below the evidence, by little; the moments are near those of the posterior."""
    prior, response = merge(*split(make_whole_prior(name, variance=0.8))), response_of(name)
    x, y = np.zeros((1, 1)), np.array([1.2 if name == "student-t" else 3.0])  # an outlier makes two modes
    center = float(prior.points(jnp.asarray(x)).mean[0])

    def density(u, power):
        t = np.array(CENTER + SCALE * u)
        of_y = response.log_density(y, t[None], np.full(1, 1e-14), PARAMETERS[name])[0]
        return u**power * np.exp(of_y - 0.5 * (u - center) ** 2 / 0.8) / np.sqrt(2.0 * np.pi * 0.8)

    total, first, second = (quad(density, -8, 8, args=(power,), limit=200)[0] for power in range(3))
    bound, _ = evidence(prior, x, y)
    assert -0.03 < float(bound) - np.log(total) < 1e-6
    mean, variance = posterior(prior, x, y, x)
    exact = second / total - (first / total) ** 2
    np.testing.assert_allclose(mean[0], first / total, atol=0.05 * np.sqrt(exact))
    np.testing.assert_allclose(variance[0], exact, rtol=0.2)


@pytest.mark.parametrize("name", NAMES)
def test_posterior_is_near_that_of_elliptical_slice_sampling(name):
    prior, (x, y) = merge(*split(make_whole_prior(name, variance=0.6))), draw(name, 5, seed=3)
    points = prior.points(jnp.asarray(x))
    covariance = prior.covariance(points, points) + 1e-9 * jnp.eye(5)

    def log_likelihood(u):
        return jnp.sum(prior.likelihood.log_density(jnp.asarray(y), CENTER + SCALE * u))

    sampler = blackjax.elliptical_slice(log_likelihood, mean=points.mean, cov=covariance)

    def step(state, key):
        state, _ = sampler.step(key, state)
        return state, state.position

    n = 20_000
    run = jax.jit(lambda keys: jax.lax.scan(step, sampler.init(points.mean), keys)[1])
    draws = np.asarray(run(jax.random.split(jax.random.key(1), n)))[500:]
    mean, variance = posterior(prior, x, y, x)
    error = np.sqrt(draws.var(axis=0) / (len(draws) / 20))  # of dependent draws
    assert (np.abs(draws.mean(axis=0) - mean) < 4 * error + 0.05 * draws.std(axis=0)).all()
    # Where readings with outliers contradict each other, the posterior has several modes, and is wider.
    np.testing.assert_allclose(np.sqrt(variance), draws.std(axis=0), rtol=0.2 if name == "student-t" else 0.1)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_by_everything_that_is_learned(name):
    theta, rest = split(make_whole_prior(name))
    x, y = draw(name, 6, seed=1)
    error = 0.03 if name == "student-t" else 1e-4  # how bounds of the precisions of outliers move is left out
    flat, unravel = ravel_pytree(theta)

    def value(flat):
        return evidence(merge(unravel(flat), rest), x, y)[0]

    gradient = jax.jit(jax.grad(value))(flat)
    value = jax.jit(value)
    for j, move in enumerate(1e-4 * np.eye(len(flat))):
        by_differences = (value(flat + move) - value(flat - move)) / 2e-4
        np.testing.assert_allclose(gradient[j], by_differences, rtol=error, atol=error)


@pytest.mark.parametrize("name", NAMES)
def test_padding_has_no_effect(name):
    theta, rest = split(make_whole_prior(name))
    x, y = draw(name, 5, seed=2)
    wide_x, wide_y = np.concatenate([x, np.zeros((4, 1))]), np.concatenate([y, np.zeros(4)])
    mask = np.arange(9) < 5

    @jax.jit
    def of(theta, x, y, mask):
        return jax.value_and_grad(lambda theta: evidence(merge(theta, rest), x, y, mask)[0])(theta)

    whole, padded = of(theta, x, y, np.ones(5, bool)), of(theta, wide_x, wide_y, mask)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(padded), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    nothing, converged = evidence(merge(theta, rest), wide_x, wide_y, np.zeros(9, bool))
    assert float(nothing) == 0.0
    assert bool(converged)


@pytest.mark.parametrize("name", ["poisson", "negative-binomial"])
def test_an_exposure_multiplies_the_rate(name):
    prior, (x, y) = merge(*split(make_whole_prior(name, exposure=1))), draw(name, 6)
    likelihood = prior.likelihood
    tripled = type(likelihood)(likelihood.center + np.log(3.0), likelihood.scale, *likelihood.parameters)
    same = GPPrior(prior.mean, prior.kernel, tripled)
    with_exposure = np.column_stack([x, np.full(6, 3.0)])
    np.testing.assert_allclose(evidence(prior, with_exposure, y)[0], evidence(same, x, y)[0], rtol=1e-8)
    mean, variance = posterior(prior, with_exposure, y, np.column_stack([x, np.full(6, 30.0)]))
    other_mean, other_variance = posterior(same, x, y, x)
    np.testing.assert_allclose(mean - np.log(30.0) / SCALE, other_mean, atol=1e-7)  # u has the exposure, t / SCALE
    np.testing.assert_allclose(variance, other_variance, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_extreme_observations_converge(name):
    prior = merge(*split(make_whole_prior(name, variance=30.0)))
    y = {"student-t": [1e4, -1e4, 0.0], "ordinal": [2.0, 5.0, 2.0]}.get(name, [0.0, 1e6, 0.0])
    value, converged = evidence(prior, np.array([[0.0], [0.5], [9.0]]), np.array(y))
    assert np.isfinite(float(value))
    assert bool(converged)


def test_predictive_density_of_outliers_against_quadrature():
    response, likelihood = response_of("student-t"), merge(*split(make_whole_prior("student-t"))).likelihood
    nodes = np.linspace(-12.0, 12.0, 40_001)
    for y, variance in [(0.5, 0.01), (3.0, 4.0), (30.0, 4.0), (-6.0, 100.0)]:
        t = np.sqrt(variance) * nodes
        of_y = response.log_density(np.full(t.shape, y), t, np.full(t.shape, 1e-14), PARAMETERS["student-t"])
        exact = logsumexp(of_y - 0.5 * nodes**2) + np.log((nodes[1] - nodes[0]) / np.sqrt(2.0 * np.pi))
        found = likelihood.log_average(jnp.asarray([y]), jnp.zeros(1), jnp.asarray([variance]))
        np.testing.assert_allclose(found[0], exact, atol=1e-3)
