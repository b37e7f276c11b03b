"""Exact inference against scipy, dense NumPy, tinygp and finite differences, padded and not."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tinygp
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree
from scipy import stats

from metaprior.wfem import exact
from metaprior.wfem.choices import resolve_kernel, resolve_mean
from metaprior.wfem.hyperprior import merge, split
from metaprior.wfem.kernels import LinearKernel, MLPKernel, RBFKernel
from metaprior.wfem.likelihoods import Gaussian, GaussianNoise, make_likelihood
from metaprior.wfem.linalg import noisy_covariance
from metaprior.wfem.means import MLPMean
from metaprior.wfem.prior import GPPrior, make_prior

MLP_KERNEL = MLPKernel((4,), n_features=3, learn_output_scale=True)

# Built inside the test, so that they have its precision.
KERNELS = {
    "mlp": lambda: MLP_KERNEL,
    "rbf": lambda: RBFKernel(0.8, 1.3),
    "linear": lambda: LinearKernel((4,), n_features=2, learn_output_scale=True, rbf_scale=0.2),
    "mlp residual": lambda: MLPKernel((4,), residual=True),
    "linear+rbf": lambda: resolve_kernel("linear+rbf"),
    "matern": lambda: resolve_kernel(tinygp.kernels.Matern32(scale=0.7)),
    "own with tinygp": lambda: resolve_kernel(build(RBFKernel()) * tinygp.kernels.Matern32() + build(MLP_KERNEL)),
}
MEANS = {
    "mlp": lambda: MLPMean((4,)),
    "constant": lambda: resolve_mean("constant"),
    "linear": lambda: resolve_mean("linear"),
    "zero": lambda: resolve_mean("zero"),
    "own": lambda: lambda x: jnp.sin(jnp.sum(x)),
}


def log_evidence(prior, x, y, mask):
    return exact.log_evidence(prior, prior.points(x), y, mask)


def condition(prior, x, y, mask):
    return exact.condition(prior, prior.points(x), y, mask)


def build(description):
    return eqx.filter_jit(description.build)(jax.random.key(7), 2)


def draw_prior(kernel: str, mean: str):
    """Theta and the rest, with theta moved off its start so that no part of it is zero."""
    return _draw_prior(kernel, mean, jnp.zeros(()).dtype.name)


@cache
def _draw_prior(kernel: str, mean: str, precision: str):
    draw = eqx.filter_jit(make_prior)
    theta, rest = split(draw(jax.random.key(3), 2, MEANS[mean](), KERNELS[kernel](), make_likelihood(Gaussian(), 0.3)))
    rng = np.random.default_rng(0)
    moved = jax.tree.map(lambda leaf: np.asarray(leaf) + rng.uniform(-0.3, 0.3, leaf.shape).astype(leaf.dtype), theta)
    return jax.tree.map(jnp.asarray, moved), rest


def draw_task(rng: np.random.Generator, n: int):
    dtype = jnp.zeros(()).dtype
    return rng.normal(size=(n, 2)).astype(dtype), rng.normal(size=n).astype(dtype), np.ones(n, bool)


@eqx.filter_jit
def evidence_and_gradients(theta, rest, x, y, mask):
    def evidence(theta, x):
        return log_evidence(merge(theta, rest), x, y, mask)

    value, gradients = jax.value_and_grad(evidence, argnums=(0, 1))(theta, x)
    return value, ravel_pytree(gradients[0])[0], gradients[1]


@eqx.filter_jit
def predict(theta, rest, x, y, mask, query):
    prior = merge(theta, rest)
    posterior, points = condition(prior, x, y, mask), prior.points(query)
    return *posterior.marginals(prior, points), *posterior.joint(prior, points)


@eqx.filter_jit
def with_tinygp(x, y, query):
    """Ours, what the dense formulas need, and tinygp's, for one fixed prior."""
    kernel = 1.3 * tinygp.kernels.ExpSquared(scale=0.9) + 0.4 * tinygp.kernels.Matern52(scale=1.7)
    prior = GPPrior(lambda x: 0.5 * jnp.sum(x), kernel, GaussianNoise(jnp.log(jnp.asarray(0.3))))
    posterior = condition(prior, x, y, jnp.ones(y.shape, bool))
    evidence = log_evidence(prior, x, y, jnp.ones(y.shape, bool))
    points = prior.points(query)
    ours = evidence, *posterior.joint(prior, points), *posterior.marginals(prior, points)
    everywhere = jnp.concatenate([x, query])
    noise = jnp.full(y.shape, prior.likelihood.variance)
    process = tinygp.GaussianProcess(kernel, x, diag=noise, mean=prior.mean)
    other = process.condition(y, query, diag=jnp.zeros(())).gp  # less the jitter it adds by default
    theirs = process.log_probability(y), other.loc, other.covariance
    return ours, theirs, (jax.vmap(prior.mean)(everywhere), kernel(everywhere, everywhere))


def check_against_oracles(n: int, input_dim: int, tolerance: float):
    rng = np.random.default_rng(n)
    dtype = jnp.zeros(()).dtype
    x, y, query = (rng.normal(size=shape).astype(dtype) for shape in [(n, input_dim), n, (4, input_dim)])
    ours, theirs, prior = with_tinygp(x, y, query)
    assert ours[0].dtype == dtype
    mean, covariance = (np.asarray(part, np.float64) for part in prior)
    noisy = covariance[:n, :n] + 0.3**2 * np.eye(n)
    gain = covariance[n:, :n] @ np.linalg.inv(noisy)
    dense = (
        stats.multivariate_normal(mean[:n], noisy).logpdf(y),
        mean[n:] + gain @ (y - mean[:n]),
        covariance[n:, n:] - gain @ covariance[:n, n:],
    )
    for oracle in (dense, theirs):
        expected = *oracle, oracle[1], np.diag(oracle[2])  # the marginals are those of the joint
        for got, want in zip(ours, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


SIZES = [(1, 1), (6, 2), (20, 3)]


@pytest.mark.parametrize(("n", "input_dim"), SIZES)
def test_equals_scipy_and_tinygp_in_double_precision(x64, n, input_dim):
    check_against_oracles(n, input_dim, 1e-8)


def test_equals_scipy_and_tinygp_in_single_precision():
    check_against_oracles(*SIZES[-1], 1e-4)


@given(
    sizes=st.sampled_from([(2, 3), (3, 9)]),  # of small matrices, and of large ones
    seed=st.integers(0, 2**16),
    pad_scale=st.sampled_from([0.0, 1.0, 1e6]),
)
@example(sizes=(2, 3), seed=0, pad_scale=1e6)
@example(sizes=(3, 9), seed=1, pad_scale=1e6)
@settings(max_examples=25)
def test_padding_changes_nothing(sizes, seed, pad_scale):
    n, size = sizes
    with jax.enable_x64(True):
        rng = np.random.default_rng(seed)
        prior = draw_prior("linear", "mlp")
        task = draw_task(rng, n)
        query = rng.normal(size=(3, 2))
        where = rng.permutation(size)[:n]  # any positions in any order, not only the first
        padded = pad_scale * rng.normal(size=(size, 2)), pad_scale * rng.normal(size=size), np.zeros(size, bool)
        for array, values in zip(padded, task, strict=True):
            array[where] = values

        value, theta_gradient, x_gradient = evidence_and_gradients(*prior, *padded)
        expected = evidence_and_gradients(*prior, *task)
        np.testing.assert_allclose(value, expected[0], rtol=1e-11)
        np.testing.assert_allclose(theta_gradient, expected[1], rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(x_gradient[where], expected[2], rtol=1e-9, atol=1e-11)
        assert not x_gradient[~padded[2]].any()
        for got, want in zip(predict(*prior, *padded, query), predict(*prior, *task, query), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


def gradient_and_finite_differences(theta, rest, x, y, masks, step=1e-4):
    """For every mask: the gradient in (theta, x), and fourth-order central differences of the value."""
    flat, unravel = ravel_pytree((theta, x))

    def evidence(flat, mask):
        theta, x = unravel(flat)
        return log_evidence(merge(theta, rest), x, jnp.asarray(y), mask)

    every = jax.jit(jax.vmap(jax.vmap(jax.value_and_grad(evidence), (0, None)), (None, 0)))
    moves = np.concatenate([k * step * np.eye(flat.size) for k in (-2, -1, 0, 1, 2)])
    values, gradients = every(np.asarray(flat) + moves, masks)
    values = np.asarray(values).reshape(len(masks), 5, flat.size)
    slopes = (values[:, 0] - values[:, 4] + 8.0 * (values[:, 3] - values[:, 1])) / (12.0 * step)
    return gradients[:, 2 * flat.size], slopes


# Every kernel, and every mean.
PRIORS = list(zip(KERNELS, ["mlp", "constant", "linear", "mlp", "zero", "own", "mlp"], strict=True))
MASKS = {"distinct": [1, 1, 1, 0], "coincident": [1, 1, 1, 1], "one sample": [0, 0, 1, 0]}


@pytest.mark.parametrize(("kernel", "mean"), PRIORS)
def test_gradients_equal_finite_differences(x64, kernel, mean):
    x, y, _ = draw_task(np.random.default_rng(1), 4)
    x[3] = x[0]
    masks = np.array(list(MASKS.values()), bool)
    gradients, slopes = gradient_and_finite_differences(*draw_prior(kernel, mean), x, y, masks)
    for case, gradient, slope in zip(MASKS, gradients, slopes, strict=True):
        assert np.abs(slope).max() > 0.1
        np.testing.assert_allclose(gradient, slope, rtol=1e-7, atol=1e-7, err_msg=case)


def test_empty_context_is_the_prior():
    prior = draw_prior("linear", "mlp")
    x, y, mask = draw_task(np.random.default_rng(1), 5)
    query = x + np.float32(0.3)
    mean, variance, joint_mean, covariance = predict(*prior, x, y, ~mask, query)
    evaluate = eqx.filter_jit(lambda p, q: (jax.vmap(p.mean)(q), p.kernel(q), p.kernel(q, q)))
    for got, want in zip((mean, variance, covariance), evaluate(merge(*prior), query), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)  # rounded otherwise: points are evaluated all at once
    np.testing.assert_array_equal(mean, joint_mean)
    for result in evidence_and_gradients(*prior, x, y, ~mask):
        np.testing.assert_array_equal(result, 0.0)


@pytest.mark.parametrize("kernel", ["rbf", "linear", "matern"])
def test_duplicates_with_hardly_any_noise_stay_finite_in_single_precision(kernel):
    theta, rest = draw_prior(kernel, "mlp")
    rng = np.random.default_rng(2)
    x, y, mask = draw_task(rng, 20)
    x = x[np.arange(20) % 3]
    spread = jax.tree.map(lambda leaf: leaf[None] + jnp.asarray(rng.normal(size=(16, *leaf.shape)), leaf.dtype), theta)
    noise = np.log(np.repeat(np.float32([1e-8, 1e-4]), 8))  # standard deviations, so that a variance is 1e-8 too
    thetas = eqx.tree_at(lambda t: t.likelihood.log_noise_std, spread, noise)
    results = eqx.filter_vmap(evidence_and_gradients, in_axes=(0, None, None, None, None))(thetas, rest, x, y, mask)
    assert all(np.isfinite(result).all() for result in results)


def test_evidence_is_the_product_of_one_step_predictions(x64):
    prior = draw_prior("linear", "mlp")
    x, y, mask = draw_task(np.random.default_rng(4), 9)
    noise = float(merge(*prior).likelihood.variance)
    total = 0.0
    for i in range(9):
        mean, variance, *_ = predict(*prior, x, y, np.arange(9) < i, x[[i, i, i]])
        total += stats.norm(mean[0], np.sqrt(variance[0] + noise)).logpdf(y[i])
    np.testing.assert_allclose(evidence_and_gradients(*prior, x, y, mask)[0], total, rtol=1e-10)


@pytest.mark.parametrize(("dtype", "floor"), [("float32", 4 * 2.0**-23), ("float64", 2.0**-39)])
def test_noise_above_the_floor_is_used_as_it_is_and_below_it_is_raised(x64, dtype, floor):
    """The floor is relative to the variance of each sample: one far away does not blur the others."""
    covariance = jnp.asarray([[1024.0, 1.0, 9.0], [1.0, 1.0, 9.0], [9.0, 9.0, 9.0]], dtype)
    mask, floors = jnp.asarray([True, True, False]), 2 * floor * np.array([1024.0, 1.0])
    for noise in (0.0, 0.5 * floors[0], 2.0 * floors[0], 0.25):
        got = noisy_covariance(covariance, jnp.asarray(noise, dtype), mask)
        want = np.array([[1024, 1, 0], [1, 1, 0], [0, 0, 0]]) + np.diag([*np.maximum(noise, floors), 1.0])
        np.testing.assert_array_equal(got, want.astype(dtype))
