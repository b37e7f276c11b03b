"""Laplace's approximation against scikit-learn, scipy, dense integration and finite differences, padded and not."""

import itertools
from functools import cache, partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree
from scipy import optimize
from scipy.special import erfcx, expit, log_expit, log_ndtr, logsumexp
from sklearn.gaussian_process import GaussianProcessClassifier, kernels

from metaprior.predict.adapted_labels import sampled_probability
from metaprior.wfem import laplace
from metaprior.wfem.hyperprior import merge, split
from metaprior.wfem.kernels import RBF, Linear, MLPKernel
from metaprior.wfem.likelihoods import (
    Bernoulli,
    GaussianNoise,
    Observed,
    log_mills_ratio,
    predictive_probability,
)
from metaprior.wfem.linalg import noise_floor
from metaprior.wfem.means import MLPMean, NetworkMean
from metaprior.wfem.networks import MLP, Layer
from metaprior.wfem.prior import GPPrior, make_prior

assert_close = partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6)


def log_evidence(prior, x, y, mask):
    return laplace.log_evidence(prior, prior.points(x), y, mask)[0]


def condition(prior, x, y, mask):
    return laplace.condition(prior, prior.points(x), y, mask)


def find_mode(prior, x, y, mask):
    return laplace.find_mode(prior, prior.points(x), y, mask)


def rbf_prior(scale, slope=0.0, offset=0.0) -> GPPrior:
    """Mean offset + slope * sum(x), kernel scale * exp(-||x - x'||^2 / 2)."""
    mean = NetworkMean(MLP((Layer(jnp.full((1, 2), slope), jnp.full(1, offset)),), "tanh"))
    return GPPrior(mean, RBF(jnp.zeros(()), jnp.log(jnp.asarray(scale))), Bernoulli())


def mlp_prior():
    return _mlp_prior(jnp.zeros(()).dtype.name)


@cache
def _mlp_prior(precision):
    kernel = MLPKernel((4,), n_features=3, learn_output_scale=True)
    return split(eqx.filter_jit(make_prior)(jax.random.key(3), 2, MLPMean((4,)), kernel, Bernoulli()))


def draw_task(rng: np.random.Generator, n: int):
    """Two inputs, and labels that follow the first of them but for some noise."""
    dtype = jnp.zeros(()).dtype
    x = rng.normal(size=(n, 2)).astype(dtype)
    return x, (x[:, 0] + 0.7 * rng.normal(size=n) > 0.0).astype(dtype), np.ones(n, bool)


@eqx.filter_jit
def everything(theta, rest, x, y, mask, query):
    """The evidence, its gradients by theta and x, and the latent function at the queries."""
    evidence = jax.value_and_grad(lambda theta, x: log_evidence(merge(theta, rest), x, y, mask), (0, 1))
    (value, gradients), prior = evidence(theta, x), merge(theta, rest)
    gradients = ravel_pytree(gradients[0])[0], gradients[1]
    posterior, points = condition(prior, x, y, mask), prior.points(query)
    return value, *gradients, *posterior.marginals(prior, points), *posterior.joint(prior, points)


@eqx.filter_jit
def evidence_latent_and_mode(prior, x, y, mask, query):
    posterior, points = condition(prior, x, y, mask), prior.points(query)
    latent = *posterior.marginals(prior, points), *posterior.joint(prior, points)
    return log_evidence(prior, x, y, mask), *latent, find_mode(prior, x, y, mask)


def infer(prior, x, y, query):
    """The evidence, mode and latent, in one size so that one compilation serves several tests."""
    padded = np.resize(x, (40, 2)), np.resize(y, 40), np.arange(40) < len(y)
    evidence, *latent, mode = evidence_latent_and_mode(prior, *padded, query)
    assert mode.converged
    return evidence, mode.t[: len(y)], *latent


@np.vectorize
def dense_moment(mean, variance, power=1):
    """The integral of sigmoid(t)^power over N(mean, variance), by a trapezoidal rule far finer than is needed."""
    deviation = np.sqrt(variance)
    z = np.arange(-12.0, 12.0, min(0.05, 0.1 / max(deviation, 1.0)))
    weights = np.exp(-0.5 * z**2)
    return np.sum(weights * expit(mean + deviation * z) ** power) / np.sum(weights)


@pytest.mark.parametrize(("n", "scale"), [(2, 1.0), (12, 0.1), (12, 30.0), (40, 3.0)])
def test_equals_scikit_learn(x64, n, scale):
    rng = np.random.default_rng(n)
    (x, y, _), query = draw_task(rng, n), rng.normal(size=(7, 2))
    y[:2] = [0.0, 1.0]
    classifier = GaussianProcessClassifier(scale * kernels.RBF(), optimizer=None, warm_start=True).fit(x, y)
    other = classifier.base_estimator_
    for _ in range(4):  # it may stop before the mode, and goes on from there
        other.fit(x, y)
    cross = other.kernel_(x, query)
    whitened = np.linalg.solve(other.L_, other.W_sr_[:, None] * cross)
    evidence, mode, mean, variance, joint_mean, covariance = infer(rbf_prior(scale), x, y, query)
    assert_close(mode, other.f_cached)
    assert_close(evidence, other.log_marginal_likelihood(other.kernel_.theta))
    assert_close(mean, cross.T @ (y - other.pi_))
    assert_close(variance, scale - np.sum(whitened**2, axis=0))
    assert_close(covariance, other.kernel_(query) - whitened.T @ whitened)
    np.testing.assert_array_equal(mean, joint_mean)
    probability = predictive_probability(mean, variance)
    assert_close(probability, classifier.predict_proba(query)[:, 1], atol=0.01)
    assert_close(probability, dense_moment(mean, variance), rtol=0.0)


def test_prior_mean_against_brute_force(x64):
    rng = np.random.default_rng(5)
    (x, y, _), query, scale = draw_task(rng, 6), rng.normal(size=(7, 2)), 4.0
    mu, sign = 1.0 - 2.0 * x.sum(1), 2.0 * y - 1.0
    covariance, cross = scale * kernels.RBF()(x), scale * kernels.RBF()(x, query)
    precision = np.linalg.inv(covariance)

    def negative_log_posterior(t):
        residual = precision @ (t - mu)
        return 0.5 * (t - mu) @ residual - np.sum(log_expit(sign * t)), residual - sign * expit(-sign * t)

    found = optimize.minimize(negative_log_posterior, mu, jac=True, options={"gtol": 1e-9})
    curvature = expit(found.x) * expit(-found.x)
    gain = cross.T @ np.linalg.inv(covariance + np.diag(1.0 / curvature))
    evidence, mode, mean, variance, *_ = infer(rbf_prior(scale, -2.0, 1.0), x, y, query)
    assert_close(mode, found.x)
    assert_close(evidence, -found.fun - 0.5 * np.linalg.slogdet(np.eye(6) + curvature[:, None] * covariance)[1])
    assert_close(mean, 1.0 - 2.0 * query.sum(1) + cross.T @ precision @ (found.x - mu))
    assert_close(variance, scale - np.sum(gain.T * cross, axis=0))


@pytest.mark.parametrize("mean", [-2.0, 0.0, 0.5])
def test_evidence_of_one_point_is_as_near_the_integral_as_laplace_promises(x64, mean):
    scales = np.array([1e-3, 1e-2, 0.1, 1.0])
    one_point = np.zeros((1, 2)), np.ones(1), np.zeros((7, 2))
    evidence = np.array([infer(rbf_prior(scale, 0.0, mean), *one_point)[0] for scale in scales])
    error = np.abs(evidence - np.log(dense_moment(mean, scales)))
    # the next terms of the expansion, of log p's fourth and squared third derivative, at most 1/8 and 1/108
    assert (error <= 1.1 * (scales**2 / 64 + 5 / 24 / 108 * scales**3) + 1e-13).all()


def test_gradients_equal_finite_differences(x64):
    theta, rest = mlp_prior()
    flat, unravel = ravel_pytree(theta)
    x, y, _ = draw_task(np.random.default_rng(1), 4)
    y[:], x[3] = [0.0, 1.0, 1.0, 1.0], x[0]
    cases = {"distinct": "1110", "coincident": "1111", "one class": "0110", "one point": "1000"}
    masks = np.array([[bit == "1" for bit in bits] for bits in cases.values()])
    steps = 1e-3 * np.array([-2.0, -1.0, 1.0, 2.0, 0.0])
    thetas = np.asarray(flat) + (steps[:, None, None] * np.eye(flat.size)).reshape(-1, flat.size)
    evidence = jax.value_and_grad(lambda theta, mask, x, y: log_evidence(merge(unravel(theta), rest), x, y, mask))
    every = jax.jit(jax.vmap(jax.vmap(evidence, (0, None, None, None)), (None, 0, None, None)))
    values, gradients = every(thetas, masks, x, y)
    left2, left, right, right2, _ = np.asarray(values).reshape(4, 5, flat.size).swapaxes(0, 1)
    slopes = (left2 - right2 + 8.0 * (right - left)) / 12e-3
    assert (np.abs(slopes).max(axis=1) > 0.1).all()
    np.testing.assert_allclose(gradients[:, -1], slopes, rtol=1e-7, atol=1e-8)


X = np.random.default_rng(0).normal(size=(60, 2))
GRID = list(itertools.product([1, 2, 10, 60], [False, True], [1e-3, 0.1, 10.0, 1e3]))


@eqx.filter_jit
def on_separable_data(x, offset):
    """For every size, two classes or one, and kernel scale: labels, mode, latent, evidence and its gradient."""

    def infer(n, one_class, log_scale):
        y, mask = jnp.where(one_class | (x[:, 0] > 0.0), 1.0, 0.0).astype(x.dtype), jnp.arange(len(x)) < n
        evidence = jax.value_and_grad(lambda s: log_evidence(rbf_prior(jnp.exp(s), 0.0, offset), x, y, mask))
        prior = rbf_prior(jnp.exp(log_scale), 0.0, offset)
        posterior, mode = condition(prior, x, y, mask), find_mode(prior, x, y, mask)
        found = mode.t, posterior.coefficients, mode.converged, mode.n_steps
        return y, *found, *posterior.marginals(prior, prior.points(x)), *evidence(log_scale)

    n, one_class, scale = map(np.array, zip(*GRID, strict=True))
    return jax.vmap(infer)(jnp.asarray(n), jnp.asarray(one_class), jnp.asarray(np.log(scale), x.dtype))


@pytest.mark.parametrize("offset", [0.0, -30.0])
def test_newton_converges_on_separable_data(x64, offset):
    y, modes, coefficients, converged, n_steps, *_ = map(np.asarray, on_separable_data(X, jnp.asarray(offset)))
    assert (converged & (n_steps < 25)).all()
    for i, (n, _, scale) in enumerate(GRID):
        covariance, a, t = scale * kernels.RBF()(X[:n]), coefficients[i, :n], modes[i, :n]
        covariance += noise_floor(float) * n * scale * np.eye(n)
        assert_close(t, offset + covariance @ a, rtol=1e-9, atol=1e-9)
        residual = y[i, :n] * expit(-t) - (1.0 - y[i, :n]) * expit(t) - a
        whitened_square = residual @ covariance @ residual  # of the gradient of the log posterior
        assert whitened_square < 1e-9**2 * (1.0 + a @ covariance @ a)


def test_single_precision_is_finite_and_near_double():
    results = on_separable_data(X.astype(np.float32), jnp.asarray(-0.5))
    with jax.enable_x64(True):
        expected = on_separable_data(X, jnp.asarray(-0.5))
    assert all(np.isfinite(result).all() and result.dtype != np.float64 for result in results)
    np.testing.assert_allclose(results[-2], expected[-2], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(results[-1], expected[-1], rtol=1e-3, atol=1e-2)


of_three = eqx.filter_jit(jax.vmap(everything, (None, None, 0, 0, 0, None)))


@given(sizes=st.permutations([2, 3, 3]), seed=st.integers(0, 2**16), pad_scale=st.sampled_from([0.0, 1.0, 1e6]))
@settings(max_examples=10)
def test_padded_tasks_under_vmap_equal_each_alone_without_padding(sizes, seed, pad_scale):
    with jax.enable_x64(True):
        rng = np.random.default_rng(seed)
        prior, tasks, query = mlp_prior(), [draw_task(rng, n) for n in sizes], rng.normal(size=(3, 2))
        padded = pad_scale * rng.normal(size=(3, 4, 2)), pad_scale * rng.normal(size=(3, 4)), np.zeros((3, 4), bool)
        where = [rng.permutation(4)[:n] for n in sizes]  # any positions in any order, not only the first
        for i, j in itertools.product(range(3), range(3)):
            padded[j][i, where[i]] = tasks[i][j]
        together = of_three(*prior, *padded, query)
        value, gradient, x_gradient, *latent = map(np.asarray, together)
        assert not x_gradient[~padded[2]].any()
        for i, task in enumerate(tasks):
            results = value[i], gradient[i], x_gradient[i, where[i]], *(part[i] for part in latent)
            for got, want in zip(results, everything(*prior, *task, query), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)


def test_empty_context_is_the_prior(x64):
    prior, (x, y, mask) = mlp_prior(), draw_task(np.random.default_rng(1), 3)
    *evidence, mean, variance, _, covariance = everything(*prior, x, y, ~mask, x)
    evaluate = eqx.filter_jit(lambda p, q: (jax.vmap(p.mean)(q), p.kernel(q), p.kernel(q, q)))
    for got, want in zip((mean, variance, covariance), evaluate(merge(*prior), x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)  # rounded otherwise: points are evaluated all at once
    assert not any(np.any(part) for part in evidence)


@jax.jit
def probability_and_slopes(mean, variance):
    probability, pull = jax.vjp(predictive_probability, mean, variance)
    return probability, jnp.stack(pull(jnp.ones_like(mean)))


@jax.jit
def log_predictive(y, mean, variance):
    return Bernoulli().log_predictive(y, mean, variance)


@pytest.mark.parametrize("double", [True, False])
def test_predictive_probability_equals_dense_integration(double):
    moments = np.meshgrid([-20, -7, -1, 0, 0.3, 3, 12, 20], [0, 1e-4, 0.1, 1, 3.1, 3.2, 10, 100, 1e3, 1e5])
    with jax.enable_x64(double):
        mean, variance = (jnp.asarray(part, jnp.zeros(()).dtype) for part in moments)
        probability, slopes = map(np.asarray, probability_and_slopes(mean, variance))
    np.testing.assert_allclose(probability, dense_moment(*moments), rtol=0.0, atol=1e-7 if double else 5e-7)
    assert ((probability >= 0.0) & (probability <= 1.0) & np.isfinite(slopes)).all()


def test_sampled_probability_is_within_its_standard_error(x64):
    moments = np.meshgrid([-2.0, 0.0, 3.0], [0.1, 1.0, 30.0])
    got = sampled_probability(np.random.default_rng(0), *moments, 4000)
    first, second = (dense_moment(*moments, power) for power in (1, 2))
    score = np.abs(got - first) / np.sqrt((second - first**2) / 4000)
    assert ((score > 1e-3) & (score < 4.0)).all()  # drawn, each on its own, and not integrated


def test_likelihood_is_accurate_in_the_tails(x64):
    t = jnp.asarray([-700.0, -40.0, -1.0, 0.0, 0.5, 40.0, 700.0])
    for sign in (-1.0, 1.0):
        y, signed = jnp.full(7, 0.5 + 0.5 * sign), sign * np.asarray(t)
        np.testing.assert_allclose(Bernoulli().log_density(y, t), log_expit(signed), rtol=1e-14)
        np.testing.assert_allclose(Bernoulli().gradient(y, t), sign * expit(-signed), rtol=1e-14)
    np.testing.assert_allclose(Bernoulli().root_curvature(y, t) ** 2, expit(t) * expit(-t), rtol=1e-12)
    assert np.isfinite(jax.grad(lambda t: jnp.sum(Bernoulli().root_curvature(y, t)))(100.0 * t)).all()


def test_another_likelihood_is_refused():
    prior = eqx.tree_at(lambda p: p.likelihood, rbf_prior(1.0), GaussianNoise(jnp.zeros(())))
    with pytest.raises(TypeError, match="needs a likelihood with a curvature; got Gaussian noise"):
        condition(prior, jnp.zeros((1, 2)), jnp.zeros(1), jnp.ones(1, bool))


class OwnLabels(NamedTuple):
    """The likelihood of labels as a user would write it; JAX differentiates it."""

    def log_density(self, y, t):
        return jax.nn.log_sigmoid((2.0 * y - 1.0) * t)


def test_a_likelihood_of_its_own_is_differentiated_by_jax(x64):
    rng, own = np.random.default_rng(3), Observed(OwnLabels())
    t, y = jnp.asarray(rng.normal(scale=5.0, size=20)), jnp.asarray(rng.integers(0, 2, 20).astype(float))
    for name in ("log_density", "gradient", "root_curvature"):
        np.testing.assert_allclose(getattr(own, name)(y, t), getattr(Bernoulli(), name)(y, t), rtol=1e-9)
    task, query = draw_task(rng, 6), rng.normal(size=(4, 2))
    known = rbf_prior(3.0, 0.5, -0.2)
    for got, want in zip(
        everything(*split(eqx.tree_at(lambda p: p.likelihood, known, own)), *task, query),
        everything(*split(known), *task, query),
        strict=True,
    ):
        np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-10)


class OwnCounts(NamedTuple):
    def log_density(self, y, t):
        return y * t - jnp.exp(t) - jax.scipy.special.gammaln(y + 1.0)


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize(("own", "y"), [(OwnLabels(), [0, 1]), (OwnCounts(), [0, 3, 30, 1000, 100_000])])
def test_predictions_under_a_likelihood_of_its_own_equal_dense_integration(own, y, double):
    """From where y is likely to ten standard deviations from there, of narrow and of wide latent functions."""
    y = [each for each in y if double or each < 10_000]  # the density itself, y t - e^t, has few digits of larger ones
    y, offset, variance = (each.ravel() for each in np.meshgrid(y, [-10, -2, 0, 1, 5], [1e-4, 0.1, 1, 4]))
    mean = np.log(np.maximum(y, 0.5)) + offset * np.sqrt(variance)
    t = mean[:, None] + np.sqrt(variance)[:, None] * np.linspace(-14, 14, 40_001)
    with jax.enable_x64(True):
        log_density = np.asarray(own.log_density(jnp.asarray(y[:, None], float), jnp.asarray(t)))
    log_normal = -0.5 * np.linspace(-14, 14, 40_001) ** 2
    expected = logsumexp(log_density + log_normal, axis=1) - logsumexp(log_normal)
    with jax.enable_x64(double):
        given = (jnp.asarray(part, jnp.zeros(()).dtype) for part in (y, mean, variance))
        found = jax.jit(Observed(own).log_predictive)(*given)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize(
    ("mean", "variance"), [(-15, 4), (-20, 4), (-30, 3.3), (-30, 3.0), (-50, 4), (-300, 30), (-40, 30), (-3, 2), (5, 9)]
)
def test_log_probabilities_are_right_in_the_tails(x64, mean, variance):
    """Against the integral of sigmoid(t) N(t; mean, variance), its logarithms summed on a fine grid."""
    t = np.linspace(mean - 40 * np.sqrt(variance), mean + 60 * np.sqrt(variance) + 2 * variance, 400_001)
    log_normal = -0.5 * (t - mean) ** 2 / variance - 0.5 * np.log(2 * np.pi * variance)
    ours = log_predictive(*(jnp.asarray(float(v))[None] for v in (1.0, mean, variance)))
    truth = logsumexp(log_expit(t) + log_normal) + np.log(t[1] - t[0])
    np.testing.assert_allclose(ours, truth, rtol=1e-3)
    mirrored = log_predictive(*(jnp.asarray(float(v))[None] for v in (0.0, -mean, variance)))
    np.testing.assert_allclose(mirrored, ours, rtol=1e-12)


@pytest.mark.parametrize("mean", [-300.0, -5.0, -1e-9, 0.0, 0.5, 5.0, 300.0])
@pytest.mark.parametrize("variance", [0.0, 1e-300, 1e-12, 1e6])
def test_log_probabilities_of_certain_and_uncertain_latents_are_finite(x64, mean, variance):
    arrays = (jnp.asarray([mean]), jnp.asarray([variance]))
    first, second = (log_predictive(jnp.asarray([y]), *arrays) for y in (0.0, 1.0))
    np.testing.assert_allclose(np.exp(first) + np.exp(second), 1.0, atol=1e-6)
    if variance < 1.0:
        np.testing.assert_allclose((first, second), log_expit([[-mean], [mean]]), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_log_probabilities_of_latents_wider_than_any_number_stay_those_of_their_sign(x64, dtype):
    """For a variance of 1e8 and more, p(y = 1) is p(t > 0)."""
    scores = np.array([-3.0, -1.0, -1e-3, 0.0, 0.5, 2.0])
    for variance in (1e8, 1e12, 1e17, 1e30) if dtype == "float32" else (1e8, 1e17, 1e60, 1e200):
        mean = jnp.asarray(scores * np.sqrt(variance), dtype)
        for y, signed in ((0.0, -scores), (1.0, scores)):
            found = log_predictive(jnp.full_like(mean, y), mean, jnp.full_like(mean, variance))
            np.testing.assert_allclose(found, log_ndtr(signed), rtol=1e-3)


def test_the_mills_ratio_equals_scipy(x64):
    z = np.concatenate([np.linspace(0.0, 6.0, 61), np.geomspace(6.0, 1e100, 40)])
    expected = np.log(np.sqrt(np.pi / 2) * erfcx(z / np.sqrt(2)))
    np.testing.assert_allclose(log_mills_ratio(jnp.asarray(z)), expected, rtol=1e-13, atol=1e-14)


@jax.jit
def with_one_slope(x, y, query):
    prior = GPPrior(lambda x: jnp.zeros((), x.dtype), Linear(jnp.zeros(())), Bernoulli())
    posterior = condition(prior, x, y, jnp.ones(len(y), bool))
    return *posterior.marginals(prior, prior.points(query)), posterior.converged


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e5, 1e8, 1e12, 1e60])
def test_far_from_the_data_a_linear_latent_equals_that_of_its_slope(x64, scale):
    """The oracle is Laplace's approximation of the slope w ~ N(0, 1), in units of the inputs; labels disagree."""
    x, y = np.array([-1.0, -0.5, 0.3, 0.9, 1.2, 2.0]), np.array([1.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    w = optimize.brentq(lambda w: x @ (y - expit(x * w)) - w / scale**2, -50.0, 50.0, xtol=1e-14)
    variance = 1.0 / (scale**-2 + x**2 @ (expit(x * w) * expit(-x * w)))
    mean, found, converged = with_one_slope(scale * x[:, None], y, np.array([[scale]]))
    assert converged
    blur = np.sqrt(noise_floor(float) * 6) * scale  # the standard deviation that rounding may add at this distance
    assert float(mean[0]) == pytest.approx(w, rel=1e-6, abs=blur)
    assert float(found[0]) == pytest.approx(variance, rel=1e-6, abs=blur + 2.0 * blur**2)
