"""Features of the inputs that all tasks share, computed by a small network and learned together with theta.

They pay where many tasks with several inputs combine the same few nonlinear functions in their own ways. Weights m of
the common mean are integrated out, as always; the network's own weights, standard normal a priori, are at their mode.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from metaprior.prior.blocks import Block
from metaprior.prior.layout import Layout
from metaprior.prior.modes import FARTHEST, Mode, collapse, slopes
from metaprior.prior.process import network
from metaprior.prior.terms import N_FEATURES

WIDTH = 32  # of the two hidden layers
MAX_ITERATIONS = 300


class FeatureNetwork(NamedTuple):
    """A network with two hidden layers of tanh units, see `process.network`."""

    first: np.ndarray  # (n_inputs, width)
    first_bias: np.ndarray  # (width,)
    second: np.ndarray  # (width, width)
    second_bias: np.ndarray  # (width,)
    last: np.ndarray  # (width, n_features)

    def with_pull_back(self, x: np.ndarray) -> tuple[np.ndarray, Callable[[np.ndarray], "FeatureNetwork"]]:
        """Return the features, and a function from derivatives by the features to derivatives by the weights."""
        features, first, second = network(x, *self)

        def pull_back(slopes: np.ndarray) -> FeatureNetwork:
            by_second = (slopes @ self.last.T / np.sqrt(len(self.last))) * (1.0 - second**2)
            by_first = (by_second @ self.second.T / np.sqrt(len(self.second))) * (1.0 - first**2)
            pairs = ((x, by_first), (first, by_second), (second, slopes))
            by_weights = [_rows(inputs).T @ _rows(by) / np.sqrt(inputs.shape[-1]) for inputs, by in pairs]
            biases = [_rows(by).sum(axis=0) for by in (by_first, by_second)]
            return FeatureNetwork(by_weights[0], biases[0], by_weights[1], biases[1], by_weights[2])

        return features, pull_back


def draw_network(input_dim: int, n_features: int, seed: int = 0) -> FeatureNetwork:
    """Draw a network from its prior."""
    rng = np.random.default_rng(seed)
    shapes = ((input_dim, WIDTH), (WIDTH,), (WIDTH, WIDTH), (WIDTH,), (WIDTH, n_features))
    return FeatureNetwork(*(rng.standard_normal(shape) for shape in shapes))


def with_features(blocks: Sequence[Block], weights: FeatureNetwork) -> list[Block]:
    """Return the blocks with the features of their inputs."""
    return [replace(block, features=network(block.inputs, *weights)[0] * block.mask[..., None]) for block in blocks]


def log_density_of_features(
    layout: Layout, theta: np.ndarray, weights: FeatureNetwork, blocks: Sequence[Block], points: np.ndarray
) -> tuple[float, np.ndarray, FeatureNetwork]:
    """Return the log Gibbs density of theta and the network, and its derivatives by both."""
    pairs = [weights.with_pull_back(block.inputs) for block in blocks]
    prior = layout.at(theta, points)
    parts = [
        prior.on(replace(block, features=features * block.mask[..., None]))
        for block, (features, _) in zip(blocks, pairs, strict=True)
    ]
    given = [part.given() for part in parts]
    collapsed = collapse(given)
    z = (theta - layout.center) / layout.spread
    slope = prior.gradient(parts, slopes(given, collapsed)) - z / layout.spread
    by_weights = [-each for each in weights]
    for part, (_, pull_back) in zip(parts, pairs, strict=True):
        added = pull_back(part.kept["features"])
        by_weights = [total + each for total, each in zip(by_weights, added, strict=True)]
    of_weights = -0.5 * sum(float(np.sum(each**2)) for each in weights)
    return collapsed.value - 0.5 * float(z @ z) + of_weights, slope, FeatureNetwork(*by_weights)


def find_features(
    layout: Layout, blocks: Sequence[Block], points: np.ndarray, max_iterations: int = MAX_ITERATIONS
) -> tuple[Mode, FeatureNetwork]:
    """Return the mode of theta and the network, by L-BFGS from the hyper-prior mean and a random network.

    From a mode without features, where other terms explain all there is, the network often vanishes.
    """
    network, n_theta = draw_network(layout.columns.n_inputs, N_FEATURES), len(layout.center)
    ends = np.cumsum([weights.size for weights in network])[:-1]

    def unpack(packed: np.ndarray) -> tuple[np.ndarray, FeatureNetwork]:
        parts = np.split(packed[n_theta:], ends)
        shaped = (part.reshape(weights.shape) for part, weights in zip(parts, network, strict=True))
        return packed[:n_theta], FeatureNetwork(*shaped)

    def loss(packed: np.ndarray) -> tuple[float, np.ndarray]:
        theta, weights = unpack(packed)
        if np.max(np.abs(theta - layout.center) / layout.spread) < FARTHEST:
            try:
                value, by_theta, by_weights = log_density_of_features(layout, theta, weights, blocks, points)
            except np.linalg.LinAlgError:
                return np.inf, np.zeros(len(packed))
            if np.isfinite(value):
                return -value, -_pack(by_theta, by_weights)
        return np.inf, np.zeros(len(packed))

    options = {"maxiter": max_iterations, "maxfun": 2 * max_iterations}
    with np.errstate(all="ignore"):  # steps of the line search may overshoot into infinity
        found = minimize(loss, _pack(layout.center, network), jac=True, method="L-BFGS-B", options=options)
    theta, network = unpack(found.x)
    return Mode(layout, theta, -float(found.fun), np.diag(layout.spread**2)), network


def _pack(theta: np.ndarray, network: FeatureNetwork) -> np.ndarray:
    return np.concatenate([theta, *(weights.ravel() for weights in network)])


def _rows(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1, values.shape[-1])
