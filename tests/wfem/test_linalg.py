"""Factorizations, solves and their gradients, unrolled (small matrices) or by LAPACK (large ones)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from metaprior.wfem import SVGD, Training, WFEMRegressor, linalg
from metaprior.wfem.linalg import cholesky, solve_lower, solve_upper

PATHS = {"unrolled": (6, 6), "batched LAPACK": (1, 6), "one by one": (1, 1)}  # MAX_UNROLLED, MAX_BATCHED_LAPACK


def jax_solve_lower(factor, right):
    return jax.scipy.linalg.solve_triangular(factor, right, lower=True)


def jax_solve_upper(factor, right):
    return jax.scipy.linalg.solve_triangular(factor, right, lower=True, trans="T")


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", [(6,), (6, 4)])
def test_factors_and_solves_equal_those_of_jax_with_their_gradients(path, shape, monkeypatch):
    """The gradients of a solve by the factor and by the right-hand side, under two vmaps."""
    for name, size in zip(("MAX_UNROLLED", "MAX_BATCHED_LAPACK"), PATHS[path], strict=True):
        monkeypatch.setattr(linalg, name, size)
    rng = np.random.default_rng(0)
    root, right = rng.normal(size=(2, 3, 6, 6)), jnp.asarray(rng.normal(size=(2, 3, *shape)))
    matrix = jnp.asarray(root @ np.swapaxes(root, 2, 3) + np.eye(6))
    factor = jax.jit(jax.vmap(jax.vmap(cholesky)))(matrix)
    np.testing.assert_allclose(factor, np.linalg.cholesky(matrix), rtol=1e-10, atol=1e-12)
    for ours, expected in ((solve_lower, jax_solve_lower), (solve_upper, jax_solve_upper)):
        results = []
        for solve in (ours, expected):
            total = lambda factor, right, solve=solve: jnp.sum(jnp.sin(solve(factor, right)))  # noqa: E731
            values = jax.jit(jax.vmap(jax.vmap(jax.value_and_grad(total, argnums=(0, 1)))))
            results.append(jax.tree.leaves(values(factor, right)))
        for one, same in zip(*results, strict=True):
            np.testing.assert_allclose(one, same, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [0, 1, 2, linalg.MAX_UNROLLED, linalg.MAX_UNROLLED + 1, linalg.MAX_BATCHED_LAPACK + 1])
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


@pytest.mark.parametrize("n", [3, linalg.MAX_UNROLLED + 1, linalg.MAX_BATCHED_LAPACK + 1])
def test_a_matrix_that_is_not_positive_definite_gives_nan_and_affects_no_other(n):
    covariances = jnp.stack([jnp.eye(n), jnp.eye(n).at[0, 0].set(-1.0)])
    value, gradient = jax.jit(jax.vmap(jax.value_and_grad(linalg.log_normal)))(covariances, jnp.ones((2, n)))
    np.testing.assert_allclose(value[0], -0.5 * n, rtol=1e-6)
    assert np.isfinite(gradient[0]).all()
    assert np.isnan(value[1])


@pytest.mark.parametrize(
    ("sizes", "arguments"),
    [
        ((30, 60), {"kernel": "rbf", "mean": "constant", "inference": SVGD(4), "training": Training(n_steps=3)}),
        pytest.param((60,), {"inference": SVGD(), "training": Training(n_steps=10)}, marks=pytest.mark.slow),
        pytest.param((1, 5, 30, 100), {"inference": SVGD(), "training": Training(n_steps=10)}, marks=pytest.mark.slow),
    ],
)
def test_many_large_ragged_tasks_train_and_predict_to_the_end(sizes, arguments):
    """jaxlib's batched LAPACK calls deadlock here, on two cores."""
    rng = np.random.default_rng(0)
    tasks = [(x := rng.normal(size=(sizes[i % len(sizes)], 1)), np.sin(x[:, 0])) for i in range(20)]
    meta = WFEMRegressor(alpha="pooled", random_state=0, **arguments).fit(tasks)
    assert np.isfinite(meta.loss_trace_).all()
    assert np.isfinite(meta.evaluate([(*task, *task) for task in tasks]).nll)
