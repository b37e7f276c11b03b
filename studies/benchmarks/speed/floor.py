"""The arithmetic floor: the time that the necessary arithmetic takes on this machine.

The floor is operations / attainable rate + tanhs / attainable rate. Both rates are measured in the same run, by
programs that do nothing else on arrays of the same shape. Bytes are the minimum to read and write.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from speed.problem import FEATURES, HIDDEN
from speed.timing import repeat


class Work(NamedTuple):
    """The minimum work of a program."""

    operations: float  # additions and multiplications
    tanhs: float
    bytes: float  # read once and written once

    def times(self, n: float) -> "Work":
        """Return n times this work."""
        return Work(*(n * each for each in self))


class Rates(NamedTuple):
    """Attained rates per second."""

    operations: float
    tanhs: float


def seconds_at_least(work: Work, rates: Rates) -> float:
    """Return the floor in seconds."""
    return work.operations / rates.operations + work.tanhs / rates.tanhs


def network_sizes(input_dim: int, hidden: Sequence[int] = HIDDEN, n_features: int = FEATURES) -> list[tuple[int, ...]]:
    """Return the widths of both networks."""
    return [(input_dim, *hidden, 1), (input_dim, *hidden, n_features)]


def step_work(
    n_tasks: int,
    n_samples: int,
    input_dim: int = 1,
    hidden: Sequence[int] = HIDDEN,
    n_features: int = FEATURES,
) -> Work:
    """Return the work of one meta-training step of one particle: loss, gradient and Adam.

    A layer is one product forward and two backward (by weights and, except in the first layer, by inputs). Adam, the
    hyper-prior and its gradient take 16 operations per parameter.
    """
    sizes = network_sizes(input_dim, hidden, n_features)
    products = sum(_products(widths) for widths in sizes)
    first = sum(widths[0] * widths[1] for widths in sizes)
    points = n_tasks * n_samples
    parameters = sum((a + 1) * b for widths in sizes for a, b in itertools.pairwise(widths))
    operations = points * 2 * (3 * products - first)
    operations += n_tasks * 3 * _task_operations(n_samples, n_features) + 16 * parameters
    tanhs = points * sum(sum(widths[1:-1]) for widths in sizes)
    return Work(operations, tanhs, 4.0 * (points * (input_dim + 1) + 6 * parameters))


def adaptation_work(
    n_tasks: int,
    n_context: int,
    n_queries: int,
    input_dim: int = 1,
    hidden: Sequence[int] = HIDDEN,
    n_features: int = FEATURES,
) -> Work:
    """Return the work of conditioning on every task and predicting mean and variance at its queries."""
    sizes = network_sizes(input_dim, hidden, n_features)
    points = n_tasks * (n_context + n_queries)
    operations = points * 2 * sum(_products(widths) for widths in sizes)
    cross = n_context * n_queries * (3 * n_features + 2)
    solves = n_queries * (n_context**2 + 4 * n_context)
    operations += n_tasks * (_task_operations(n_context, n_features) + cross + solves)
    tanhs = points * sum(sum(widths[1:-1]) for widths in sizes)
    return Work(operations, tanhs, 4.0 * (points * input_dim + n_tasks * (n_context + 2 * n_queries)))


def _products(widths: Sequence[int]) -> int:
    """Return the multiply-adds of a network at one point."""
    return sum(a * b for a, b in itertools.pairwise(widths))


def _task_operations(n: int, n_features: int) -> float:
    """Return the operations of kernel matrix (lower half), Cholesky factor, two triangular solves, determinant."""
    return n * (n + 1) / 2 * (3 * n_features + 2) + n**3 / 3 + 2 * n**2 + 4 * n


def measured_rates(n_rows: int, n_runs: int = 1, budget: float = 2.0) -> Rates:
    """Measure operations per second of `n_runs` products (n_rows x 32) @ (32 x 32), and tanhs per second.

    Small products are repeated within one program, each on the previous result, like the layers of a network.
    """
    numbers = n_rows * n_runs * 32
    enough = (
        20_000_000 if jax.default_backend() == "cpu" else 20_000_000_000
    )  # enough work to make the overhead of a call negligible
    repeats = max(1, enough // numbers)
    rng = np.random.default_rng(0)
    rotations = np.linalg.qr(rng.standard_normal((n_runs, 32, 32)))[0].astype(
        np.float32
    )  # orthogonal, so that values keep their size
    x = jnp.asarray(rng.standard_normal((n_runs, n_rows, 32)), jnp.float32)
    rotations = jnp.asarray(rotations)
    if n_runs == 1:
        x, rotations = x[0], rotations[0]

    @jax.jit
    def products(x: Any, rotations: Any) -> Any:
        return jax.lax.fori_loop(0, repeats, lambda _, x: x @ rotations, x)

    @jax.jit
    def tanhs(x: Any) -> Any:
        return jax.lax.fori_loop(0, repeats, lambda _, x: jnp.tanh(x), x)

    best = []
    for call in (lambda: products(x, rotations).block_until_ready(), lambda: tanhs(x).block_until_ready()):
        call()
        best.append(min(repeat(call, budget / 2, least=9)))  # the best of at least nine
    return Rates(2.0 * 32 * numbers * repeats / best[0], numbers * repeats / best[1])
