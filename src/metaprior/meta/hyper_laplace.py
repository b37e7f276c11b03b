"""Laplace's approximation of the Gibbs hyper-posterior: a normal around its mode, and particles drawn from it."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key, PyTree

from metaprior.gp.exact import moments
from metaprior.gp.linalg import cholesky, product, solve_lower
from metaprior.gp.parameters import merge
from metaprior.meta.objective import Problem, full_batch

MAX_PARAMETERS = 2000  # of which the curvature is a matrix
TANGENTS = 8  # columns of it at once
RUNS_AT_ONCE = 64  # on accelerators; CPUs gain nothing from more than one


def sample_around_mode(modes: PyTree, problem: Problem, keys: Key[Array, " runs"], n_draws: int) -> PyTree:
    """Particles from N(mode, H^-1) for every run, at its first particle; H is the curvature of -log Gibbs there.

    No direction is given more variance than the hyper-prior has: where H says otherwise (at a saddle, or where tasks
    say nothing) the hyper-prior's is taken. Draws come in pairs around the mode, and pairs are orthogonal before they
    are scaled, so that ten lie about it evenly; an odd one out is the mode itself.
    """
    modes = jax.tree.map(lambda leaf: leaf[:, 0], modes)
    curvatures = np.asarray(_curvatures(modes, problem), np.float64)
    stds = np.asarray(_flat(_of_leaves(problem.hyperprior.std, modes)), np.float64)
    seeds = np.asarray(jax.vmap(lambda key: jax.random.randint(key, (), 0, 2**31 - 1))(keys))
    runs = zip(curvatures, stds, seeds.tolist(), strict=True)
    moves = [_normal(len(std), n_draws, seed) @ _root(curvature, std) for curvature, std, seed in runs]
    return _moved(modes, jnp.asarray(np.stack(moves), jnp.zeros(()).dtype))


def loss_curvature(theta: PyTree, problem: Problem) -> Float[Array, "p p"]:
    """d^2 (gamma Lbar) / d theta^2 for Gaussian noise.

    Of -log N(y | mu, C), with r = y - mu, a = C^-1 r and derivatives mu_j, C_j, mu_jk, C_jk, it is
    (mu_j + C_j a)^T C^-1 (mu_k + C_k a) - tr(C^-1 C_j C^-1 C_k) / 2   [first derivatives of the moments]
    + tr((C^-1 - a a^T) C_jk) / 2 - a^T mu_jk                          [second derivatives].
    Written out, because differentiating a Cholesky factor twice makes many batched LAPACK calls at once, which can wait
    for each other for ever (see gp.linalg): here each waits for the one before.
    """
    flat, unravel = ravel_pytree(theta)
    batches = full_batch(problem)
    total = jnp.zeros((flat.size, flat.size), flat.dtype)
    for batch, weights in batches:
        sizes = jnp.maximum(jnp.sum(batch.mask, axis=1, dtype=weights.dtype), 1.0)
        counts = problem.temperature * weights / sizes
        inputs, mask = jnp.asarray(batch.x), jnp.asarray(batch.mask)
        of_task = lambda flat, x, mask: moments(merge(unravel(flat), problem.rest), x, mask)  # noqa: E731

        def add(total, task, of_task=of_task):
            x, y, mask, count = task
            first, inverse, a = _first_derivatives(lambda flat: of_task(flat, x, mask), flat, jnp.where(mask, y, 0.0))
            return total + count * first, (count * 0.5 * (inverse - a[:, None] * a[None]), -count * a)

        total, (of_covariance, of_mean) = jax.lax.scan(add, total, (inputs, batch.y, mask, counts))

        def linear(flat, inputs=inputs, mask=mask, of_task=of_task, by=(of_mean, of_covariance)):
            mean, covariance = jax.vmap(of_task, in_axes=(None, 0, 0))(flat, inputs, mask)
            return jnp.sum(by[0] * mean) + jnp.sum(by[1] * covariance)

        column = lambda tangent, linear=linear: jax.jvp(jax.grad(linear), (flat,), (tangent,))[1]  # noqa: E731
        total = total + jax.lax.map(column, jnp.eye(flat.size, dtype=flat.dtype), batch_size=TANGENTS)
    return total


def _first_derivatives(
    of_theta: Callable[[Array], tuple[Array, Array]], flat: Float[Array, " p"], y: Float[Array, " n"]
) -> tuple[Float[Array, "p p"], Float[Array, "n n"], Float[Array, " n"]]:
    """What first derivatives of the moments contribute; C^-1; a."""
    mean, covariance = of_theta(flat)
    mean_j, covariance_j = jax.jacfwd(of_theta)(flat)  # (n, p), (n, n, p)
    whitening = solve_lower(cholesky(covariance), jnp.eye(len(y), dtype=y.dtype))
    inverse = product(whitening.T, whitening)
    a = product(inverse, (y - mean)[:, None])[:, 0]
    n, p = mean_j.shape
    of_mean = product(whitening, mean_j + jnp.einsum("ijp,j->ip", covariance_j, a, precision="highest"))
    half = product(whitening, covariance_j.reshape(n, n * p)).reshape(n, n, p)
    of_covariance = jnp.einsum("ijp,kj->ikp", half, whitening, precision="highest").reshape(n * n, p)
    return product(of_mean.T, of_mean) - 0.5 * product(of_covariance.T, of_covariance), inverse, a


@eqx.filter_jit
def _curvatures(modes: PyTree, problem: Problem) -> Float[Array, "runs p p"]:
    """H of every run."""

    def one_run(run: tuple[PyTree, Problem]) -> Array:
        precision = ravel_pytree(
            jax.tree.map(lambda leaf, std: jnp.full_like(leaf, std**-2), run[0], run[1].hyperprior.std)
        )[0]
        return loss_curvature(*run) + jnp.diag(precision)

    return _over_runs(one_run, (modes, problem))


def _root(curvature: np.ndarray, std: np.ndarray) -> np.ndarray:
    """The root of H^-1, in units of the hyper-prior; zero if the run diverged.

    The symmetric one, which rounding changes little: eigenvectors of near eigenvalues would turn.
    """
    scaled = 0.5 * (curvature + curvature.T) * std * std[:, None]
    if not np.isfinite(scaled).all():
        return np.zeros_like(scaled)
    eigenvalues, vectors = np.linalg.eigh(scaled)
    return (vectors / np.sqrt(np.maximum(eigenvalues, 1.0))) @ vectors.T * std


def _normal(size: int, n_draws: int, seed: int) -> np.ndarray:
    """Standard normal draws in pairs, (draws, size)."""
    normal = np.random.default_rng(seed).standard_normal((n_draws // 2, size))
    if n_draws // 2 <= size:
        normal = np.linalg.qr(normal.T)[0].T * np.linalg.norm(normal, axis=1, keepdims=True)
    return np.concatenate([normal, -normal, np.zeros((n_draws % 2, size))])


def _of_leaves(values: PyTree, modes: PyTree) -> PyTree:
    """One number per run and leaf, repeated for every parameter of the leaf."""
    repeat = lambda value, leaf: jnp.broadcast_to(value.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf.shape)  # noqa: E731
    return jax.tree.map(repeat, values, modes)


def _over_runs(one_run: Callable[[Any], Array], runs: Any) -> Array:
    arrays, static = eqx.partition(runs, eqx.is_array)
    at_once = None if jax.default_backend() == "cpu" else RUNS_AT_ONCE
    return jax.lax.map(lambda run: one_run(eqx.combine(run, static)), arrays, batch_size=at_once)


@jax.jit
def _flat(trees: PyTree) -> Float[Array, "runs p"]:
    return jax.vmap(lambda tree: ravel_pytree(tree)[0])(trees)


@jax.jit
def _moved(modes: PyTree, moves: Float[Array, "runs draws p"]) -> PyTree:
    def one_run(mode: PyTree, moves: Array) -> PyTree:
        flat, unravel = ravel_pytree(mode)
        return jax.vmap(unravel)(flat[None] + moves.astype(flat.dtype))

    return jax.vmap(one_run)(modes, moves)
