"""Small dense linear algebra for masked tasks."""

import jax
import jax.numpy as jnp
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


def cholesky(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Lower factor; the matrix is symmetric by construction, so it is not symmetrised again."""
    return jax.lax.linalg.cholesky(matrix, symmetrize_input=False)


def solve_lower(factor: Float[Array, "n n"], right: Float[Array, "n *k"]) -> Float[Array, "n *k"]:
    """factor^-1 right."""
    return jax.scipy.linalg.solve_triangular(factor, right, lower=True)


def solve_upper(factor: Float[Array, "n n"], right: Float[Array, "n *k"]) -> Float[Array, "n *k"]:
    """factor^-T right, given the lower factor."""
    return jax.scipy.linalg.solve_triangular(factor, right, lower=True, trans="T")
