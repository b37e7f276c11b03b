"""Factorizations one by one (large matrices) equal the batched ones (small matrices), with their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from metaprior import MetaGPRegressor
from metaprior.gp import linalg
from metaprior.gp.linalg import cholesky, solve_lower, solve_upper


def through(matrix, right, vector):
    factor = cholesky(matrix)
    forward, back = solve_lower(factor, right), solve_upper(factor, vector)
    return jnp.sum(jnp.log(jnp.diagonal(factor))) + jnp.sum(jnp.sin(forward)) + jnp.sum(jnp.cos(back))


@pytest.mark.usefixtures("x64")
def test_one_by_one_equals_batched_in_value_and_gradient(monkeypatch):
    rng = np.random.default_rng(0)
    root = rng.normal(size=(2, 3, 6, 6))
    matrix = jnp.asarray(root @ np.swapaxes(root, 2, 3) + np.eye(6))
    arguments = matrix, jnp.asarray(rng.normal(size=(2, 3, 6, 4))), jnp.asarray(rng.normal(size=(2, 3, 6)))
    results = []
    for small, batched in ((6, 6), (1, 6), (1, 1)):  # all at once, by batched LAPACK, one by one
        monkeypatch.setattr(linalg, "SMALL", small)
        monkeypatch.setattr(linalg, "BATCHED", batched)
        values = jax.vmap(jax.vmap(jax.value_and_grad(through, argnums=(0, 1, 2))))
        results.append(jax.tree.leaves(jax.jit(values)(*arguments)))
    # A gradient in a symmetric matrix is known up to its antisymmetric part.
    first, *others = ([part if part.shape != matrix.shape else part + part.mT for part in parts] for parts in results)
    for other in others:
        for one, same in zip(first, other, strict=True):
            np.testing.assert_allclose(one, same, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [0, 1, 2, linalg.SMALL, linalg.SMALL + 1, linalg.BATCHED + 1])
@pytest.mark.usefixtures("x64")
def test_log_normal_equals_scipy_and_its_gradient_the_closed_form(n, dtype):
    rng = np.random.default_rng(n)
    root = rng.normal(size=(3, n, n + 2))
    covariances, residuals = root @ np.swapaxes(root, 1, 2) + np.eye(n), rng.normal(size=(3, n))
    function = jax.jit(jax.vmap(jax.value_and_grad(linalg.log_normal, (0, 1))))
    value, (by_covariance, by_residual) = function(jnp.asarray(covariances, dtype), jnp.asarray(residuals, dtype))
    assert value.dtype == by_covariance.dtype == dtype
    inverse = np.linalg.inv(covariances)
    solution = np.einsum("tij,tj->ti", inverse, residuals)
    expected = [
        multivariate_normal(np.zeros(n), c).logpdf(r) if n else 0.0 for c, r in zip(covariances, residuals, strict=True)
    ]
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == "float32" else {"rtol": 1e-10, "atol": 1e-12}
    np.testing.assert_allclose(value, np.array(expected) + 0.5 * n * np.log(2 * np.pi), **tolerance)
    np.testing.assert_allclose(by_residual, -solution, **tolerance)
    outer = solution[:, :, None] * solution[:, None]
    np.testing.assert_allclose(by_covariance, 0.5 * (outer - inverse), **tolerance)


@pytest.mark.parametrize("n", [3, linalg.SMALL + 1, linalg.BATCHED + 1])
def test_what_is_not_positive_definite_is_nan_and_spoils_no_other(n):
    covariances = jnp.stack([jnp.eye(n), jnp.eye(n).at[0, 0].set(-1.0)])
    value, gradient = jax.vmap(jax.value_and_grad(linalg.log_normal))(covariances, jnp.ones((2, n)))
    np.testing.assert_allclose(value[0], -0.5 * n, rtol=1e-6)
    assert np.isfinite(gradient[0]).all()
    assert np.isnan(value[1])


@pytest.mark.parametrize("sizes", [(60,), (1, 5, 30, 100)])
def test_many_large_ragged_tasks_train_and_predict_to_the_end(sizes):
    """jaxlib's batched LAPACK calls wait for each other for ever here, on two cores."""
    rng = np.random.default_rng(0)
    tasks = [(x := rng.normal(size=(sizes[i % len(sizes)], 1)), np.sin(x[:, 0])) for i in range(20)]
    meta = MetaGPRegressor("pooled", inference="svgd", n_steps=10, random_state=0, progress=False).fit(tasks)
    assert np.isfinite(meta.loss_trace_).all()
    assert np.isfinite(meta.evaluate([(*tasks[i], *tasks[i]) for i in range(20)]).nll)
