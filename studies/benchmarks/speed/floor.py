"""The arithmetic floor: what must be computed, and how fast this machine computes it.

The floor is operations / attainable rate + tanhs / attainable rate, both rates measured in the same run by programs
that do nothing else, on arrays of the same shape. Bytes are the least that must be read and written.
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
    """What a program must do at least."""

    operations: float  # additions and multiplications
    tanhs: float
    bytes: float  # read once and written once

    def times(self, n: float) -> "Work":
        """n times as much."""
        return Work(*(n * each for each in self))


class Rates(NamedTuple):
    """What the machine attains, per second."""

    operations: float
    tanhs: float


def seconds_at_least(work: Work, rates: Rates) -> float:
    """The floor."""
    return work.operations / rates.operations + work.tanhs / rates.tanhs


def network_sizes(input_dim: int, hidden: Sequence[int] = HIDDEN, n_features: int = FEATURES) -> list[tuple[int, ...]]:
    """The widths of both networks."""
    return [(input_dim, *hidden, 1), (input_dim, *hidden, n_features)]


def step_work(
    n_tasks: int,
    n_samples: int,
    input_dim: int = 1,
    hidden: Sequence[int] = HIDDEN,
    n_features: int = FEATURES,
) -> Work:
    """Of one meta-training step of one particle: loss, gradient, Adam.

    A layer is a product forwards and two backwards (by its weights, and by its inputs but for the first layer).
    Adam, the hyper-prior and its gradient take 16 operations a parameter.
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
    """Of conditioning on every task and predicting mean and variance of its queries."""
    sizes = network_sizes(input_dim, hidden, n_features)
    points = n_tasks * (n_context + n_queries)
    operations = points * 2 * sum(_products(widths) for widths in sizes)
    cross = n_context * n_queries * (3 * n_features + 2)
    solves = n_queries * (n_context**2 + 4 * n_context)
    operations += n_tasks * (_task_operations(n_context, n_features) + cross + solves)
    tanhs = points * sum(sum(widths[1:-1]) for widths in sizes)
    return Work(operations, tanhs, 4.0 * (points * input_dim + n_tasks * (n_context + 2 * n_queries)))


def _products(widths: Sequence[int]) -> int:
    """Multiply-adds of a network at one point."""
    return sum(a * b for a, b in itertools.pairwise(widths))


def _task_operations(n: int, n_features: int) -> float:
    """Kernel matrix (its lower half), Cholesky factor, two triangular solves, determinant."""
    return n * (n + 1) / 2 * (3 * n_features + 2) + n**3 / 3 + 2 * n**2 + 4 * n


def measured_rates(n_rows: int, n_runs: int = 1, budget: float = 2.0) -> Rates:
    """Operations a second of (n_rows x 32) @ (32 x 32), `n_runs` of them at once, and tanhs a second of such rows.

    Small ones are repeated within one program, each on the result of the last, as the layers of a network are.
    """
    numbers = n_rows * n_runs * 32
    enough = 20_000_000 if jax.default_backend() == "cpu" else 20_000_000_000  # to outlast the call itself
    repeats = max(1, enough // numbers)
    rng = np.random.default_rng(0)
    rotations = np.linalg.qr(rng.standard_normal((n_runs, 32, 32)))[0].astype(np.float32)  # numbers keep their size
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
        best.append(min(repeat(call, budget / 2, least=9)))  # attained, at a quiet moment of nine or more
    return Rates(2.0 * 32 * numbers * repeats / best[0], numbers * repeats / best[1])
