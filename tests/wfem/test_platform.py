"""The compiler this runs on computes what it is told (jaxlib 0.10.2 did not: jax-ml/jax#39103)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.mark.parametrize(("dtype", "n"), [("float64", 16_385), ("float32", 32_769)])
def test_a_fused_product_and_sum_is_right(x64, dtype, n):
    x = np.zeros((n, 3), dtype)
    x[:, 0] = np.arange(n)
    identity = jnp.eye(3, dtype=dtype)
    squares = jax.jit(jax.vmap(lambda row: jnp.sum((identity @ row) ** 2)))(x)
    np.testing.assert_array_equal(squares, x[:, 0] ** 2)


def test_gradients_through_pairs_of_features_are_right_for_many_runs():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 20, 10, 64)).astype(np.float32)
    weight = jnp.zeros((8, 64, 64))

    def loss(weight, x):
        def one_task(x):
            features = jax.vmap(lambda row: row + weight @ row)(x)
            pairs = jax.vmap(lambda a: jax.vmap(lambda b: jnp.sum(a * b))(features))(features)
            return jnp.sum(jnp.sin(pairs))

        return jnp.sum(jax.vmap(one_task)(x))

    ours = jax.jit(jax.vmap(jax.grad(loss)))(weight, x)
    wide = x.astype(np.float64)
    pairs = np.cos(np.einsum("rtid,rtjd->rtij", wide, wide))
    expected = 2.0 * np.einsum("rtij,rtjd,rtie->rde", pairs, wide, wide)
    np.testing.assert_allclose(ours, expected, rtol=2e-3, atol=2e-2)
