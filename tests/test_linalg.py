"""Factorisations one by one (large matrices) equal the batched ones (small matrices), with their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
    for limit in (16, 1):
        monkeypatch.setattr(linalg, "SMALL", limit)
        values = jax.vmap(jax.vmap(jax.value_and_grad(through, argnums=(0, 1, 2))))
        results.append(jax.tree.leaves(jax.jit(values)(*arguments)))
    # A gradient in a symmetric matrix is known up to its antisymmetric part.
    batched, alone = ([part if part.shape != matrix.shape else part + part.mT for part in parts] for parts in results)
    for one, other in zip(batched, alone, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sizes", [(60,), (1, 5, 30, 100)])
def test_many_large_ragged_tasks_train_and_predict_to_the_end(sizes):
    """jaxlib's batched LAPACK calls wait for each other for ever here, on two cores."""
    rng = np.random.default_rng(0)
    tasks = [(x := rng.normal(size=(sizes[i % len(sizes)], 1)), np.sin(x[:, 0])) for i in range(20)]
    meta = MetaGPRegressor("pooled", inference="svgd", n_steps=10, random_state=0, progress=False).fit(tasks)
    assert np.isfinite(meta.loss_trace_).all()
    assert np.isfinite(meta.evaluate([(*tasks[i], *tasks[i]) for i in range(20)]).nll)
