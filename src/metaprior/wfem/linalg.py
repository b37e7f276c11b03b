"""Small dense linear algebra for masked tasks.

Functions are for one task. Under vmap, small matrices are factorized all at once, column by column, with the tasks
along the last axis, which vectorizes well; larger ones by LAPACK or cuSOLVER (`docs/results/performance.md`).
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap, sequential_vmap
from jaxtyping import Array, Bool, Float

# Largest number of rows for which all matrices of a batch are factorized at once, on CPUs and on accelerators. Above,
# LAPACK and cuSOLVER are faster and compile sooner (studies/benchmarks/crossover.py).
MAX_UNROLLED, MAX_UNROLLED_ACCELERATOR = 8, 16
SINGLE_EPS = float(np.finfo(np.float32).eps)
MAX_BATCHED_LAPACK = 16  # largest number of rows for which LAPACK is called with a batch on CPUs

Matrix = Float[Array, "n n"]
Matrices = Float[Array, "n n *batch"]  # with batch axes last
Columns = Float[Array, "n k *batch"]


def noisy_covariance(
    covariance: Matrix,
    noise_variance: Float[Array, ""] | float,
    mask: Bool[Array, " n"],
) -> Matrix:
    """Return K + sigma^2 I, with an identity block for padding, which then has no effect on solves and determinants.

    The noise is not jittered but floored, at `noise_floor` times the number of samples times the variance of each.
    Rounding errors of K and of its factor are relative to the variances of their row and column, so that a sample far
    away need not blur the others.
    """
    n_samples = jnp.sum(mask, dtype=covariance.dtype)  # not the padded size: padding changes nothing
    both = mask[:, None] & mask[None, :]
    covariance = jnp.where(both, covariance, 0.0)
    variance = jax.lax.stop_gradient(jnp.diagonal(covariance))
    least = noise_floor(covariance.dtype) * n_samples * variance
    return covariance + jnp.diag(jnp.where(mask, jnp.maximum(noise_variance, least), 1.0))


def noise_floor(dtype: Any) -> float:
    """Return the least noise variance, relative to that of the function and the number of samples.

    In single precision there is no room for more than the effect of rounding on eigenvalues, 4 eps. That keeps factors
    finite, but where samples contradict each other the posterior depends on how it was rounded. In double precision
    the floor is eps^3/4: however it is computed, the posterior has a relative error of about eps^1/4, or 1e-4.
    """
    eps = float(jnp.finfo(dtype).eps)
    return 4.0 * eps if eps > SINGLE_EPS / 2 else eps**0.75


def float32_resolves(noise_std: float, n_samples: int) -> bool:
    """Return whether float32 resolves the noise of a task: its variance is well above the floor of 4 eps n."""
    return noise_std**2 > 100 * SINGLE_EPS * n_samples


def product(left: Float[Array, "n k"], right: Float[Array, "k m"]) -> Float[Array, "n m"]:
    """Return left @ right in full precision, which is not the default on accelerators."""
    return jnp.matmul(left, right, precision="highest")


@jax.custom_vjp
def log_normal(covariance: Matrix, residual: Float[Array, " n"]) -> Float[Array, ""]:
    """Return -r^T C^-1 r / 2 - log|C| / 2: log N(r | 0, C) up to a constant, differentiable once."""
    factor = cholesky(covariance)
    whitened = solve_lower(factor, residual)
    return -0.5 * jnp.sum(whitened**2) - jnp.sum(jnp.log(jnp.diagonal(factor)))


def _log_normal_forward(covariance: Array, residual: Array) -> tuple[Array, tuple[Array, Array]]:
    if _is_small(covariance):
        value, by_covariance, by_residual = _batch_last(_log_normal_and_gradients)(covariance, residual)
        return value, (by_covariance, by_residual)
    factor = cholesky(covariance)
    inverse_root = solve_lower(factor, jnp.eye(len(covariance), dtype=covariance.dtype))
    whitened = product(inverse_root, residual[:, None])
    solution = product(inverse_root.T, whitened)
    value = -0.5 * jnp.sum(whitened**2) - jnp.sum(jnp.log(jnp.diagonal(factor)))
    by_covariance = 0.5 * (solution * solution.T - product(inverse_root.T, inverse_root))
    return value, (by_covariance, -solution[:, 0])


# The gradient by C is (C^-1 r r^T C^-1 - C^-1) / 2, which costs less than differentiating a factor.
log_normal.defvjp(_log_normal_forward, lambda saved, cotangent: (cotangent * saved[0], cotangent * saved[1]))


def cholesky(matrix: Matrix) -> Matrix:
    """Return the lower Cholesky factor of a symmetric matrix. For gradients use `log_normal`."""
    if _is_small(matrix):
        return _batch_last(_unrolled_cholesky)(matrix)
    return _lapack(_lapack_cholesky, len(matrix))(matrix)


def solve_lower(factor: Matrix, right: Float[Array, "n *k"]) -> Float[Array, "n *k"]:
    """Return factor^-1 right."""
    return _solve(factor, right, "N")


def solve_upper(factor: Matrix, right: Float[Array, "n *k"]) -> Float[Array, "n *k"]:
    """Return factor^-T right, given the lower factor."""
    return _solve(factor, right, "T")


def _solve(factor: Array, right: Array, trans: Literal["N", "T"]) -> Array:
    columns = right if right.ndim == 2 else right[:, None]
    solution: Any = _solve_columns(factor, columns, trans)
    return solution.reshape(right.shape)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _solve_columns(factor: Array, right: Array, trans: Literal["N", "T"]) -> Array:
    if _is_small(factor):
        return _batch_last(_forward_substitution if trans == "N" else _back_substitution)(factor, right)
    return _lapack(_lapack_solve[trans], len(factor))(factor, right)


def _solve_forward(factor: Array, right: Array, trans: Literal["N", "T"]) -> tuple[Array, tuple[Array, Array]]:
    solution = _solve(factor, right, trans)
    return solution, (factor, solution)


def _solve_backward(trans: Literal["N", "T"], saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    factor, solution = saved
    by_right = _solve(factor, cotangent, "T" if trans == "N" else "N")
    outer = product(by_right, solution.T) if trans == "N" else product(solution, by_right.T)
    return -jnp.tril(outer), by_right


_solve_columns.defvjp(_solve_forward, _solve_backward)


def _is_small(matrix: Array) -> bool:
    return len(matrix) <= (MAX_UNROLLED if jax.default_backend() == "cpu" else MAX_UNROLLED_ACCELERATOR)


def _lapack(function: Callable[..., Array], size: int) -> Callable[..., Array]:
    """Return `function`, applied to the large matrices of a batch one after another on CPUs."""
    # Batched LAPACK calls split large work among the threads of the pool they run on, and block one of them until it is
    # done: with few cores they can deadlock (jaxlib 0.10). Sequential calls cannot, and are as fast for large matrices.
    return _one_by_one(function) if size > MAX_BATCHED_LAPACK and jax.default_backend() == "cpu" else function


_one_by_one = cache(sequential_vmap)


def _lapack_cholesky(matrix: Array) -> Array:
    return jax.lax.linalg.cholesky(matrix, symmetrize_input=False)


_lapack_solve: dict[str, Callable[[Array, Array], Array]] = {
    "N": lambda factor, right: jax.scipy.linalg.solve_triangular(factor, right, lower=True, trans="N"),
    "T": lambda factor, right: jax.scipy.linalg.solve_triangular(factor, right, lower=True, trans="T"),
}


@cache
def _batch_last(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with vmap adding batch axes at the end, where it must accept any number of them."""
    batched = custom_vmap(function)

    @batched.def_vmap
    def _(axis_size: int, in_batched: list[bool], *arguments: Array) -> tuple[Any, Any]:
        moved = [
            jnp.moveaxis(argument, 0, -1)
            if is_batched
            else jnp.broadcast_to(argument[..., None], (*argument.shape, axis_size))
            for argument, is_batched in zip(arguments, in_batched, strict=True)
        ]
        results = batched(*moved)
        return jax.tree.map(lambda result: jnp.moveaxis(result, -1, 0), results), jax.tree.map(lambda _: True, results)

    return batched


def _eliminate(matrix: Matrices, right: Columns) -> tuple[Array, Array]:
    """Return L and L^-1 right for matrix = L L^T, one column at a time."""
    n = len(matrix)
    if n == 0:
        return matrix, right
    rest = jnp.concatenate([matrix, right], axis=1)  # rows and columns from the j-th on
    columns, solved = [], []
    for j in range(n):
        row = rest[0] / jnp.sqrt(rest[0, 0])[None]
        columns.append(jnp.pad(row[: n - j], ((j, 0), *((0, 0),) * (row.ndim - 1))))
        solved.append(row[n - j :])
        rest = rest[1:, 1:] - row[1 : n - j, None] * row[None, 1:]
    return jnp.stack(columns, axis=1), jnp.stack(solved)


def _unrolled_cholesky(matrix: Matrices) -> Array:
    return _eliminate(matrix, matrix[:, :0])[0]


def _forward_substitution(factor: Matrices, right: Columns) -> Array:
    solved = [right[:0]]
    for j in range(len(factor)):
        row = right[:1] / factor[j : j + 1, j, None]
        solved.append(row)
        right = right[1:] - factor[j + 1 :, j, None] * row
    return jnp.concatenate(solved)


def _back_substitution(factor: Matrices, right: Columns) -> Array:
    solved = [right[:0]]
    for j in reversed(range(len(factor))):
        row = right[-1:] / factor[j : j + 1, j, None]
        solved.insert(0, row)
        right = right[:-1] - factor[j, :j, None] * row
    return jnp.concatenate(solved)


def _log_normal_and_gradients(covariance: Matrices, residual: Float[Array, "n *batch"]) -> tuple[Array, Array, Array]:
    identity = jnp.expand_dims(jnp.eye(len(covariance), dtype=covariance.dtype), tuple(range(2, covariance.ndim)))
    right = jnp.concatenate([jnp.broadcast_to(identity, covariance.shape), residual[:, None]], axis=1)
    factor, solved = _eliminate(covariance, right)
    inverse_root, whitened = solved[:, :-1], solved[:, -1]
    diagonal = jnp.diagonal(factor)  # along the last axis
    value = -0.5 * jnp.sum(whitened**2, axis=0) - jnp.sum(jnp.log(diagonal), axis=-1)
    solution = jnp.sum(inverse_root * whitened[:, None], axis=0)
    inverse = jnp.sum(inverse_root[:, :, None] * inverse_root[:, None], axis=0)
    return value, 0.5 * (solution[:, None] * solution[None] - inverse), -solution
