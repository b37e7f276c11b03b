"""Small dense linear algebra for masked tasks."""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Bool, Float


def noisy_covariance(
    covariance: Float[Array, "n n"], noise_variance: Float[Array, ""], mask: Bool[Array, " n"]
) -> Float[Array, "n n"]:
    """K + sigma^2 I with the rows and columns of padding replaced by those of the identity.

    Then padding adds nothing to the determinant, to a solve or to a gradient. The noise variance is floored, not
    jittered: a task with noise above the floor is computed exactly as written, and one below it stays
    factorisable. The floor is what rounding does to the smallest eigenvalue, about eps * n * largest diagonal.
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


def cholesky(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Lower factor; the matrix is symmetric by construction, so it is not symmetrised again."""
    return _cholesky(matrix) if len(matrix) <= BATCHED_UP_TO else _cholesky_alone(matrix)


def solve_lower(factor: Float[Array, "n n"], right: Float[Array, "n *k"]) -> Float[Array, "n *k"]:
    """factor^-1 right."""
    return _solve(factor, right, "N")


def solve_upper(factor: Float[Array, "n n"], right: Float[Array, "n *k"]) -> Float[Array, "n *k"]:
    """factor^-T right, given the lower factor."""
    return _solve(factor, right, "T")


# jaxlib's batched LAPACK calls share large work among the threads of the pool they run on, and block one of them until
# it is done: with few cores they can wait for each other for ever (jaxlib 0.10). Small matrices are not shared.
# Larger ones are factorised one after another, which costs nothing: each is work enough for a call.
BATCHED_UP_TO = 16


def _cholesky(matrix: Array) -> Array:
    return jax.lax.linalg.cholesky(matrix, symmetrize_input=False)


def _triangular(factor: Array, right: Array, trans: str) -> Array:
    return jax.scipy.linalg.solve_triangular(factor, right, lower=True, trans=trans)


_one_cholesky = sequential_vmap(_cholesky)
_one_solve = {
    "N": sequential_vmap(lambda factor, right: _triangular(factor, right, "N")),
    "T": sequential_vmap(lambda factor, right: _triangular(factor, right, "T")),
}


def _solve(factor: Array, right: Array, trans: Literal["N", "T"]) -> Array:
    if len(factor) <= BATCHED_UP_TO:
        return _triangular(factor, right, trans)
    if right.ndim == 1:
        return jnp.ravel(_solve_alone(factor, right[:, None], trans))
    return _solve_alone(factor, right, trans)


@jax.custom_vjp
def _cholesky_alone(matrix: Array) -> Array:
    return _one_cholesky(matrix)


def _cholesky_backward(factor: Array, cotangent: Array) -> tuple[Array]:
    """L^-T phi(L^T Lbar) L^-1, symmetrised, where phi keeps the lower triangle and half the diagonal."""
    inner = jnp.tril(factor.T @ cotangent)
    inner = inner - 0.5 * jnp.diag(jnp.diagonal(inner))
    outer = _one_solve["T"](factor, _one_solve["T"](factor, inner).T).T
    return (0.5 * (outer + outer.T),)


_cholesky_alone.defvjp(lambda matrix: (factor := _one_cholesky(matrix), factor), _cholesky_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _solve_alone(factor: Array, right: Array, trans: str) -> Array:
    return _one_solve[trans](factor, right)


def _solve_forward(factor: Array, right: Array, trans: str) -> tuple[Array, tuple[Array, Array]]:
    solution = _one_solve[trans](factor, right)
    return solution, (factor, solution)


def _solve_backward(trans: str, saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    factor, solution = saved
    right_bar = _one_solve["T" if trans == "N" else "N"](factor, cotangent)
    product = right_bar @ solution.T if trans == "N" else solution @ right_bar.T
    return -jnp.tril(product), right_bar


_solve_alone.defvjp(_solve_forward, _solve_backward)
