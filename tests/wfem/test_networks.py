"""Networks: how they start, and that many points at once are each point alone, gradients included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from metaprior.wfem import MLPEncoder, MLPKernel
from metaprior.wfem.networks import ALIGNMENT, Residual, at_points, make_features, make_mlp

assert_close = np.testing.assert_allclose


def test_weights_and_biases_start_uniform_within_the_inverse_root_of_the_fan_in():
    network = make_mlp(jax.random.key(0), 9, 3, (400, 400), "tanh")
    for layer, (out, fan_in) in zip(network.layers, [(400, 9), (400, 400), (3, 400)], strict=True):
        assert layer.weight.shape == (out, fan_in)
        assert layer.bias.shape == (out,)
        numbers = np.sqrt(fan_in) * np.concatenate([np.ravel(layer.weight), layer.bias])
        assert np.abs(numbers).max() <= 1.0 + 1e-6
        assert abs(numbers.mean()) < 4.0 * np.sqrt(1.0 / 3.0 / numbers.size)
        assert numbers.std() == pytest.approx(np.sqrt(1.0 / 3.0), abs=4.0 * 0.3 / np.sqrt(numbers.size))
        assert len(np.unique(numbers)) > 0.99 * numbers.size  # each its own draw: no bias repeats a weight
    drawn = np.concatenate([ravel_pytree(layer)[0] * np.sqrt(layer.weight.shape[1]) for layer in network.layers])
    assert len(np.unique(drawn)) > 0.9 * drawn.size


def test_the_network_is_that_of_its_layers():
    network = make_mlp(jax.random.key(1), 2, 3, (4, 5), "softplus")
    x = np.array([0.3, -1.2])
    hidden = x
    for layer in network.layers[:-1]:
        hidden = np.log1p(np.exp(np.asarray(layer.weight) @ hidden + np.asarray(layer.bias)))
    last = network.layers[-1]
    assert_close(
        network(jnp.asarray(x, "float32")), np.asarray(last.weight) @ hidden + np.asarray(last.bias), rtol=1e-5
    )


@pytest.mark.parametrize(("n_inputs", "n_outputs", "hidden"), [(1, 1, (3,)), (3, 2, (4, 5)), (2, 1, ())])
@pytest.mark.parametrize("n", [1, ALIGNMENT, ALIGNMENT + 1])
def test_many_points_are_each_alone_with_their_gradients(n_inputs, n_outputs, hidden, n, x64):
    network = make_mlp(jax.random.key(2), n_inputs, n_outputs, hidden, "tanh")
    X, weights = (jnp.asarray(np.random.default_rng(0).normal(size=(n, m))) for m in (n_inputs, n_outputs))

    def total(network, X, many):
        return jnp.sum(weights * (at_points(network, X) if many else jax.vmap(network)(X)))

    assert_close(network.at_points(X), jax.vmap(network)(X), rtol=1e-12)
    ours, expected = (jax.jit(jax.grad(total, (0, 1)), static_argnums=2)(network, X, many) for many in (True, False))
    assert_close(ravel_pytree(ours)[0], ravel_pytree(expected)[0], rtol=1e-10, atol=1e-13)


def test_a_residual_network_starts_as_the_identity_and_adds():
    features = make_features(MLPKernel((4,), residual=True), jax.random.key(0), 3, 7)
    X = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), "float32")
    assert isinstance(features, Residual)
    assert_close(features.at_points(X), X)
    assert_close(features(X[0]), X[0])
    moved = Residual(make_mlp(jax.random.key(1), 3, 3, (4,), "tanh"))
    assert_close(moved.at_points(X), X + moved.network.at_points(X), rtol=1e-6)
    assert_close(moved(X[1]), X[1] + moved.network(X[1]), rtol=1e-6)


def test_numbers_of_features():
    x = jnp.zeros(3)
    assert make_features(MLPEncoder((4,)), jax.random.key(0), 3, 7)(x).shape == (7,)
    assert make_features(MLPEncoder((4,), n_features=2), jax.random.key(0), 3, 7)(x).shape == (2,)
    assert make_features(MLPEncoder((4,), residual=True), jax.random.key(0), 3, 7)(x).shape == (3,)
