"""Laplace's approximation of the Gibbs hyper-posterior: a normal around its mode, from which particles are drawn."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from metaprior.checks import check_choice, check_integer
from metaprior.wfem.exact import moments
from metaprior.wfem.inference import STARTS, Start
from metaprior.wfem.linalg import cholesky, product, solve_lower
from metaprior.wfem.objective import Gibbs, Problem, full_batch
from metaprior.wfem.parameters import merge

MAX_PARAMETERS = 2000  # the curvature is a square matrix of this size
COLUMNS_AT_ONCE = 8  # of the curvature


@dataclass(frozen=True)
class Laplace:
    """Laplace's approximation, `N(mode, H^-1)` with the curvature H of -log q(theta) at the mode.

    Training finds the mode, as for `MAP`, and the particles are drawn around it. For Gaussian noise, tasks in memory,
    and priors of up to 2000 parameters: `kernel="linear+rbf"`, say, but no networks.

    Parameters
    ----------
    n_draws : int
        Number of draws.
    start : {'initializer', 'hyperprior'}
        As for `MAP`.
    """

    n_draws: int = 10
    start: Start = "initializer"
    n_particles: ClassVar[int] = 1  # that are trained
    interacts: ClassVar[bool] = False

    def __post_init__(self):
        check_integer("n_draws", self.n_draws, least=1)
        check_choice("start", self.start, STARTS)

    def direction(self, particles: PyTree, scores: PyTree) -> PyTree:
        """Return the score of each particle."""
        return scores

    def finish(self, particles: PyTree, gibbs: Gibbs, key: PRNGKeyArray) -> PyTree:
        """Return draws around the mode, the only particle."""
        mode = jax.tree.map(lambda leaf: leaf[0], particles)
        return sample_around_mode(mode, gibbs.problem, key, self.n_draws)


def sample_around_mode(mode: PyTree, problem: Problem, key: PRNGKeyArray, n_draws: int) -> PyTree:
    """Draw particles from N(mode, H^-1), where H is the curvature of -log Gibbs.

    No direction gets more variance than under the hyper-prior, which replaces H^-1 at a saddle or where tasks carry no
    information. Draws come in pairs around the mode, orthogonal before they are scaled, so that ten cover it evenly. An
    odd draw is the mode itself.
    """
    curvature, std = (np.asarray(each, np.float64) for each in _curvature(mode, problem))
    seed = int(jax.random.randint(key, (), 0, 2**31 - 1))
    moves = _paired_normal(len(std), n_draws, seed) @ _covariance_root(curvature, std)
    return _add_moves(mode, jnp.asarray(moves, jnp.zeros(()).dtype))


def loss_curvature(theta: PyTree, problem: Problem) -> Float[Array, "p p"]:
    """Return d^2 (gamma Lbar) / d theta^2 for Gaussian noise.

    Of -log N(y | mu, C), with r = y - mu, a = C^-1 r and derivatives mu_j, C_j, mu_jk, C_jk, it is
    (mu_j + C_j a)^T C^-1 (mu_k + C_k a) - tr(C^-1 C_j C^-1 C_k) / 2   [first derivatives of the moments]
    + tr((C^-1 - a a^T) C_jk) / 2 - a^T mu_jk                          [second derivatives].
    Written out, because differentiating a Cholesky factor twice makes many batched LAPACK calls at once, which can
    deadlock (see wfem.linalg). Here they follow one another.
    """
    flat, unravel = ravel_pytree(theta)
    total = jnp.zeros((flat.size, flat.size), flat.dtype)

    def moments_at(flat: Array, x: Array, mask: Array) -> tuple[Array, Array]:
        return moments(merge(unravel(flat), problem.rest), x, mask)

    for batch, weights in full_batch(problem):
        sizes = jnp.maximum(jnp.sum(batch.mask, axis=1, dtype=weights.dtype), 1.0)
        counts = problem.temperature * weights / sizes
        inputs, mask = jnp.asarray(batch.x), jnp.asarray(batch.mask)

        def add_task(total, task):
            x, y, mask, count = task
            first, inverse, a = _first_order(lambda flat: moments_at(flat, x, mask), flat, jnp.where(mask, y, 0.0))
            return total + count * first, (count * 0.5 * (inverse - a[:, None] * a[None]), -count * a)

        total, (by_covariance, by_mean) = jax.lax.scan(add_task, total, (inputs, batch.y, mask, counts))

        def linear(flat, inputs=inputs, mask=mask, by_mean=by_mean, by_covariance=by_covariance):
            mean, covariance = jax.vmap(moments_at, in_axes=(None, 0, 0))(flat, inputs, mask)
            return jnp.sum(by_mean * mean) + jnp.sum(by_covariance * covariance)

        column = lambda tangent, linear=linear: jax.jvp(jax.grad(linear), (flat,), (tangent,))[1]  # noqa: E731
        total = total + jax.lax.map(column, jnp.eye(flat.size, dtype=flat.dtype), batch_size=COLUMNS_AT_ONCE)
    return total


def _first_order(
    moments_at: Callable[[Array], tuple[Array, Array]], flat: Float[Array, " p"], y: Float[Array, " n"]
) -> tuple[Float[Array, "p p"], Float[Array, "n n"], Float[Array, " n"]]:
    """Return the part of the curvature from first derivatives of the moments, C^-1, and a."""
    mean, covariance = moments_at(flat)
    mean_j, covariance_j = jax.jacfwd(moments_at)(flat)  # (n, p), (n, n, p)
    whitening = solve_lower(cholesky(covariance), jnp.eye(len(y), dtype=y.dtype))
    inverse = product(whitening.T, whitening)
    a = product(inverse, (y - mean)[:, None])[:, 0]
    n, p = mean_j.shape
    of_mean = product(whitening, mean_j + jnp.einsum("ijp,j->ip", covariance_j, a, precision="highest"))
    half = product(whitening, covariance_j.reshape(n, n * p)).reshape(n, n, p)
    of_covariance = jnp.einsum("ijp,kj->ikp", half, whitening, precision="highest").reshape(n * n, p)
    return product(of_mean.T, of_mean) - 0.5 * product(of_covariance.T, of_covariance), inverse, a


@eqx.filter_jit
def _curvature(mode: PyTree, problem: Problem) -> tuple[Float[Array, "p p"], Float[Array, " p"]]:
    """Return H, and the hyper-prior's standard deviation of every parameter."""
    flat, unravel = ravel_pytree(mode)
    of_prior = jax.hessian(lambda flat: -problem.hyperprior.log_density(unravel(flat)))(flat)
    stds = jax.tree.map(lambda leaf, std: jnp.full_like(leaf, std), mode, problem.hyperprior.std)
    return loss_curvature(mode, problem) + of_prior, ravel_pytree(stds)[0]


def _covariance_root(curvature: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Return a root of H^-1, limited by the hyper-prior; zero if the run diverged.

    It is symmetric in units of the hyper-prior: rounding rotates eigenvectors of close eigenvalues, but hardly changes
    the symmetric root.
    """
    scaled = 0.5 * (curvature + curvature.T) * std * std[:, None]
    if not np.isfinite(scaled).all():
        return np.zeros_like(scaled)
    eigenvalues, vectors = np.linalg.eigh(scaled)
    return (vectors / np.sqrt(np.maximum(eigenvalues, 1.0))) @ vectors.T * std


def _paired_normal(size: int, n_draws: int, seed: int) -> np.ndarray:
    """Return standard normal draws in pairs of opposite sign, (draws, size)."""
    normal = np.random.default_rng(seed).standard_normal((n_draws // 2, size))
    if n_draws // 2 <= size:
        normal = np.linalg.qr(normal.T)[0].T * np.linalg.norm(normal, axis=1, keepdims=True)
    return np.concatenate([normal, -normal, np.zeros((n_draws % 2, size))])


@jax.jit
def _add_moves(mode: PyTree, moves: Float[Array, "draws p"]) -> PyTree:
    flat, unravel = ravel_pytree(mode)
    return jax.vmap(unravel)(flat[None] + moves.astype(flat.dtype))
