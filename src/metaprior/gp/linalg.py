"""Small dense linear algebra for masked tasks.

Functions are for one task. Under vmap small matrices are factorized all at once, column by column, with the tasks along
the last axis, where processors take many numbers at a time; larger ones by LAPACK or cuSOLVER (`docs/performance.md`).
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap, sequential_vmap
from jaxtyping import Array, Bool, Float

# Rows up to which all matrices of a batch are factorized at once, on CPUs and on accelerators. Beyond, LAPACK and
# cuSOLVER are faster, and compile sooner (studies/benchmarks/crossover.py).
SMALL, ACCELERATOR_SMALL = 8, 16
BATCHED = 16  # rows up to which LAPACK is given a batch


def noisy_covariance(
    covariance: Float[Array, "n n"], noise_variance: Float[Array, ""], mask: Bool[Array, " n"]
) -> Float[Array, "n n"]:
    """K + sigma^2 I with the rows and columns of padding replaced by those of the identity.

    Then padding adds nothing to the determinant, to a solve or to a gradient. The noise variance is floored, not
    jittered: a task with noise above the floor is computed exactly as written, and one below it stays
    factorizable. The floor is what rounding does to the smallest eigenvalue, about eps * n * largest diagonal.
    """
    n_samples = jnp.sum(mask, dtype=covariance.dtype)  # not the padded size: padding changes nothing
    both = mask[:, None] & mask[None, :]
    covariance = jnp.where(both, covariance, 0.0)
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(jnp.diagonal(covariance)), initial=0.0))
    floor = 4.0 * n_samples * jnp.finfo(covariance.dtype).eps * largest
    diagonal = jnp.where(mask, jnp.maximum(noise_variance, floor), 1.0)
    return covariance + jnp.diag(diagonal)


def product(left: Float[Array, "n k"], right: Float[Array, "k m"]) -> Float[Array, "n m"]:
    """left @ right in full precision, where accelerators would round to 10 bits."""
    return jnp.matmul(left, right, precision="highest")


@jax.custom_vjp
def log_normal(covariance: Float[Array, "n n"], residual: Float[Array, " n"]) -> Float[Array, ""]:
    """-r^T C^-1 r / 2 - log|C| / 2: log N(r | 0, C) but for the constant. Only first derivatives pass."""
    factor = cholesky(covariance)
    whitened = solve_lower(factor, residual)
    return -0.5 * jnp.sum(whitened**2) - jnp.sum(jnp.log(jnp.diagonal(factor)))


def _log_normal_forward(covariance: Array, residual: Array) -> tuple[Array, tuple[Array, Array]]:
    if _is_small(covariance):
        value, by_covariance, by_residual = _on_last_axes(_differentiated_log_normal, 0)(covariance, residual)
        return value, (by_covariance, by_residual)
    factor = cholesky(covariance)
    inverse_root = solve_lower(factor, jnp.eye(len(covariance), dtype=covariance.dtype))
    whitened = product(inverse_root, residual[:, None])
    solution = product(inverse_root.T, whitened)
    value = -0.5 * jnp.sum(whitened**2) - jnp.sum(jnp.log(jnp.diagonal(factor)))
    by_covariance = 0.5 * (solution * solution.T - product(inverse_root.T, inverse_root))
    return value, (by_covariance, -solution[:, 0])


# The gradient by C is (C^-1 r r^T C^-1 - C^-1) / 2, and costs less than differentiating a factor.
log_normal.defvjp(_log_normal_forward, lambda saved, cotangent: (cotangent * saved[0], cotangent * saved[1]))


@jax.custom_vjp
def cholesky(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Lower factor; the matrix is symmetric by construction, so it is not symmetrized again."""
    return _factorize(matrix)


def solve_lower(factor: Float[Array, "n n"], right: Float[Array, "n *k"]) -> Float[Array, "n *k"]:
    """factor^-1 right."""
    return _solve_any(factor, right, "N")


def solve_upper(factor: Float[Array, "n n"], right: Float[Array, "n *k"]) -> Float[Array, "n *k"]:
    """factor^-T right, given the lower factor."""
    return _solve_any(factor, right, "T")


def _solve_any(factor: Array, right: Array, trans: Literal["N", "T"]) -> Array:
    columns = right if right.ndim == 2 else right[:, None]
    solution: Any = _solve(factor, columns, trans)
    return solution.reshape(right.shape)


def _cholesky_backward(factor: Array, cotangent: Array) -> tuple[Array]:
    """L^-T phi(L^T Lbar) L^-1, symmetrized, where phi keeps the lower triangle and half the diagonal."""
    inner = jnp.tril(product(factor.T, cotangent))
    inner = inner - 0.5 * jnp.diag(jnp.diagonal(inner))
    outer = solve_upper(factor, solve_upper(factor, inner).T).T
    return (0.5 * (outer + outer.T),)


cholesky.defvjp(lambda matrix: (factor := _factorize(matrix), factor), _cholesky_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _solve(factor: Array, right: Array, trans: Literal["N", "T"]) -> Array:
    if _is_small(factor):
        return _on_last_axes(_forward_substitution if trans == "N" else _back_substitution, 0)(factor, right)
    return _by_lapack(_triangular[trans], len(factor))(factor, right)


def _solve_backward(trans: Literal["N", "T"], saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    factor, solution = saved
    right_bar = _solve_any(factor, cotangent, "T" if trans == "N" else "N")
    outer = product(right_bar, solution.T) if trans == "N" else product(solution, right_bar.T)
    return -jnp.tril(outer), right_bar


def _solve_forward(factor: Array, right: Array, trans: Literal["N", "T"]) -> tuple[Array, tuple[Array, Array]]:
    solution = _solve_any(factor, right, trans)
    return solution, (factor, solution)


_solve.defvjp(_solve_forward, _solve_backward)


def _is_small(matrix: Array) -> bool:
    return len(matrix) <= (SMALL if jax.default_backend() == "cpu" else ACCELERATOR_SMALL)


def _factorize(matrix: Array) -> Array:
    if _is_small(matrix):
        return _on_last_axes(_factor_of, 0)(matrix)
    return _by_lapack(_lapack_cholesky, len(matrix))(matrix)


def _lapack_cholesky(matrix: Array) -> Array:
    return jax.lax.linalg.cholesky(matrix, symmetrize_input=False)


_triangular: dict[str, Callable[[Array, Array], Array]] = {
    "N": lambda factor, right: jax.scipy.linalg.solve_triangular(factor, right, lower=True, trans="N"),
    "T": lambda factor, right: jax.scipy.linalg.solve_triangular(factor, right, lower=True, trans="T"),
}


def _by_lapack(function: Callable[..., Array], size: int) -> Callable[..., Array]:
    """On CPUs large matrices come one after another.

    jaxlib's batched LAPACK calls share large work among the threads of the pool they run on, and block one of them
    until it is done: with few cores they can wait for each other for ever (jaxlib 0.10). Small work is not shared. One
    by one they do not wait, and it costs nothing: each is work enough for a call.
    """
    return _one_by_one(function) if size > BATCHED and jax.default_backend() == "cpu" else function


_one_by_one = cache(sequential_vmap)


@cache
def _on_last_axes(function: Callable[..., Any], n_axes: int) -> Callable[..., Any]:
    """`function` of matrices with `n_axes` axes of a batch behind them; vmap adds another there, not in front."""
    batched = custom_vmap(function)

    @batched.def_vmap
    def _(axis_size: int, in_batched: list[bool], *arguments: Array) -> tuple[Any, Any]:
        moved = [
            jnp.moveaxis(argument, 0, -1)
            if is_batched
            else jnp.broadcast_to(argument[..., None], (*argument.shape, axis_size))
            for argument, is_batched in zip(arguments, in_batched, strict=True)
        ]
        results = _on_last_axes(function, n_axes + 1)(*moved)
        return jax.tree.map(lambda result: jnp.moveaxis(result, -1, 0), results), jax.tree.map(lambda _: True, results)

    return batched


def _eliminate(matrix: Float[Array, "n n *batch"], right: Float[Array, "n k *batch"]) -> tuple[Array, Array]:
    """L and L^-1 right for matrix = L L^T, a column at a time."""
    n = len(matrix)
    rest = jnp.concatenate([matrix, right], axis=1)  # what is left to eliminate: rows and columns from the j-th on
    columns, solved = [], []
    if n == 0:
        return matrix, right
    for j in range(n):
        row = rest[0] / jnp.sqrt(rest[0, 0])[None]
        columns.append(jnp.pad(row[: n - j], ((j, 0), *((0, 0),) * (row.ndim - 1))))
        solved.append(row[n - j :])
        rest = rest[1:, 1:] - row[1 : n - j, None] * row[None, 1:]
    return jnp.stack(columns, axis=1), jnp.stack(solved)


def _factor_of(matrix: Float[Array, "n n *batch"]) -> Array:
    return _eliminate(matrix, matrix[:, :0])[0]


def _forward_substitution(factor: Float[Array, "n n *batch"], right: Float[Array, "n k *batch"]) -> Array:
    if len(factor) == 0:
        return right
    solved = []
    for j in range(len(factor)):
        row = right[0] / factor[j, j][None]
        solved.append(row)
        right = right[1:] - factor[j + 1 :, j, None] * row[None]
    return jnp.stack(solved)


def _back_substitution(factor: Float[Array, "n n *batch"], right: Float[Array, "n k *batch"]) -> Array:
    if len(factor) == 0:
        return right
    solved = []
    for j in reversed(range(len(factor))):
        row = right[-1] / factor[j, j][None]
        solved.insert(0, row)
        right = right[:-1] - factor[j, :j, None] * row[None]
    return jnp.stack(solved)


def _differentiated_log_normal(
    covariance: Float[Array, "n n *batch"], residual: Float[Array, "n *batch"]
) -> tuple[Array, Array, Array]:
    """`log_normal` and its gradients."""
    identity = jnp.eye(len(covariance), dtype=covariance.dtype).reshape(
        *covariance.shape[:2], *(1,) * (covariance.ndim - 2)
    )
    right = jnp.concatenate([jnp.broadcast_to(identity, covariance.shape), residual[:, None]], axis=1)
    factor, solved = _eliminate(covariance, right)
    inverse_root, whitened = solved[:, :-1], solved[:, -1]
    diagonal = jnp.diagonal(factor)  # along the last axis
    value = -0.5 * jnp.sum(whitened**2, axis=0) - jnp.sum(jnp.log(diagonal), axis=-1)
    solution = jnp.sum(inverse_root * whitened[:, None], axis=0)
    inverse = jnp.sum(inverse_root[:, :, None] * inverse_root[:, None], axis=0)
    return value, 0.5 * (solution[:, None] * solution[None] - inverse), -solution
