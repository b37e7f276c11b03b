"""The same losses, as a user of `jax.numpy` and optax would write them."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_solve, solve_triangular

from speed.problem import LEARNING_RATE, NOISE_STD, OUTPUT_SCALE, Data, Networks

CHUNK = 100


def network(layers: Any, x: Any) -> Any:
    """Evaluate a network with tanh between the layers."""
    for weight, bias in layers[:-1]:
        x = jnp.tanh(x @ weight.T + bias)
    weight, bias = layers[-1]
    return x @ weight.T + bias


def squared_distances(a: Any, b: Any) -> Any:
    """Return the squared distances of all pairs of two sets of points."""
    return jnp.sum((a[:, None, :] - b[None, :, :]) ** 2, axis=-1)


def kernel(a: Any, b: Any) -> Any:
    """Return the paper's kernel on features."""
    return OUTPUT_SCALE * jnp.exp(-squared_distances(a, b))


def negative_log_evidence(networks: Networks, x: Any, y: Any) -> Any:
    """Return the negative log evidence of one task."""
    features = network(networks.features, x)
    factor = jnp.linalg.cholesky(kernel(features, features) + NOISE_STD**2 * jnp.eye(len(y)))
    whitened = solve_triangular(factor, y - network(networks.mean, x)[:, 0], lower=True)
    constant = 0.5 * len(y) * math.log(2.0 * math.pi)
    return 0.5 * jnp.sum(whitened**2) + jnp.sum(jnp.log(jnp.diagonal(factor))) + constant


def log_hyperprior(parameters: Any) -> Any:
    """Return the log density of N(0, I) over all parameters."""
    leaves = jax.tree.leaves(parameters)
    return sum(-0.5 * jnp.sum(leaf**2) - 0.5 * leaf.size * math.log(2.0 * math.pi) for leaf in leaves)


def loss(networks: Networks, data: Data) -> Any:
    """Return the negative log Gibbs density."""
    evidences = jax.vmap(negative_log_evidence, in_axes=(None, 0, 0))(networks, data.x, data.y)
    return data.temperature * jnp.sum(data.weights * evidences) / data.y.shape[1] - log_hyperprior(networks)


def stein_direction(particles: Networks, gradients: Networks) -> Networks:
    """Return the descent direction (k @ gradient - repulsion) / K, with the median heuristic."""
    _, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], particles))
    rows = jax.vmap(lambda tree: ravel_pytree(tree)[0])
    theta, gradient = rows(particles), rows(gradients)
    n_particles = len(theta)
    distances = squared_distances(theta, theta)
    length_scale = jnp.median(distances[jnp.triu_indices(n_particles, 1)]) / (2.0 * math.log(n_particles + 1))
    values = jnp.exp(-distances / (2.0 * length_scale))
    repulsion = (jnp.sum(values, axis=1)[:, None] * theta - values @ theta) / length_scale
    return jax.vmap(unravel)((values @ gradient - repulsion) / n_particles)


def map_gradient(parameters: Any, objective: Callable[[Any], Any]) -> Any:
    """Return the gradient for MAP."""
    return jax.grad(objective)(parameters)


def stein_gradient(particles: Any, objective: Callable[[Any], Any]) -> Any:
    """Return the descent direction of SVGD."""
    return stein_direction(particles, jax.vmap(jax.grad(objective))(particles))


class Training:
    """Adam on an objective, by scans of 100 steps or by one call per step; `gradient` is that of MAP or SVGD."""

    def __init__(self, parameters: Any, objective: Callable[[Any], Any], gradient: Callable[..., Any] = map_gradient):
        optimizer = optax.adam(LEARNING_RATE)

        def step(state: Any, _: Any = None) -> Any:
            parameters, optimizer_state = state
            updates, optimizer_state = optimizer.update(gradient(parameters, objective), optimizer_state)
            return (optax.apply_updates(parameters, updates), optimizer_state), None

        self.state = jax.device_put((parameters, optimizer.init(parameters)))
        self._step = jax.jit(lambda state: step(state)[0], donate_argnums=0)
        self._chunk = jax.jit(lambda state: jax.lax.scan(step, state, None, CHUNK)[0], donate_argnums=0)

    def in_chunks(self, n_chunks: int) -> None:
        """Train in chunks of 100 steps."""
        for _ in range(n_chunks):
            self.state = self._chunk(self.state)
        jax.block_until_ready(self.state)

    def in_steps(self, n_steps: int) -> None:
        """Train with a call per step; JAX dispatches them asynchronously."""
        for _ in range(n_steps):
            self.state = self._step(self.state)
        jax.block_until_ready(self.state)


@jax.jit
def predict(networks: Networks, x: Any, y: Any, x_query: Any) -> Any:
    """Return mean and variance of new observations at the queries of many tasks."""

    def one_task(x: Any, y: Any, x_query: Any) -> Any:
        features, at_query = network(networks.features, x), network(networks.features, x_query)
        factor = jnp.linalg.cholesky(kernel(features, features) + NOISE_STD**2 * jnp.eye(len(y)))
        cross = kernel(features, at_query)
        weights = cho_solve((factor, True), y - network(networks.mean, x)[:, 0])
        mean = network(networks.mean, x_query)[:, 0] + weights @ cross
        projected = solve_triangular(factor, cross, lower=True)
        return mean, OUTPUT_SCALE - jnp.sum(projected**2, axis=0) + NOISE_STD**2

    return jax.vmap(one_task)(x, y, x_query)


def unrolled_log_evidence(covariance: Any, mean: Any, y: Any, n_newton: int = 10) -> Any:
    """Return the Laplace approximation for labels 0 and 1 (Rasmussen and Williams, algorithm 3.1), differentiable.

    Full Newton steps reach the mode of a logistic likelihood from zero unless the prior is extreme; `check_agreement`
    would detect that.
    """

    def factorize(t: Any) -> Any:
        probability = jax.nn.sigmoid(t)
        root = jnp.sqrt(probability * (1.0 - probability))
        return probability, root, jnp.linalg.cholesky(jnp.eye(len(y)) + root[:, None] * covariance * root[None, :])

    def newton(state: Any, _: None) -> Any:
        _, t = state
        probability, root, factor = factorize(t)
        right = root**2 * (t - mean) + y - probability
        a = right - root * cho_solve((factor, True), root * (covariance @ right))
        return (a, mean + covariance @ a), None

    (a, t), _ = jax.lax.scan(newton, (jnp.zeros_like(mean), mean), None, n_newton)
    factor = factorize(t)[2]
    log_likelihood = jnp.sum(y * jax.nn.log_sigmoid(t) + (1.0 - y) * jax.nn.log_sigmoid(-t))
    return log_likelihood - 0.5 * jnp.sum(a * (t - mean)) - jnp.sum(jnp.log(jnp.diagonal(factor)))
