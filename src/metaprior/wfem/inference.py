"""Approximations of the Gibbs hyper-posterior by particles: MAP, and Stein variational gradient descent.

A method gives the ascent direction of a set of particles from the score of the Gibbs density at each. Optimizer,
mini-batches and loop are shared. A single SVGD particle follows its score, which is MAP.

Laplace's approximation of the Gibbs hyper-posterior: a normal around its mode, from which particles are drawn.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from metaprior.checks import check_choice, check_integer, check_positive
from metaprior.wfem.exact import moments
from metaprior.wfem.hyperprior import Density, merge
from metaprior.wfem.linalg import cholesky, product, solve_lower
from metaprior.wfem.objective import Gibbs, Problem, full_batch

Start = Literal["initializer", "hyperprior"]
STARTS = ("initializer", "hyperprior")
SCATTER = 0.1  # hyper-prior standard deviations between particles that would start at the same point


@runtime_checkable
class Method(Protocol):
    """How particles approximate the Gibbs hyper-posterior q(theta).

    A method of your own is a frozen dataclass like these. It may also have `finish(particles, gibbs, key)`, which
    returns the particles that are kept when training has ended: draws around them, say, or a Markov chain from there.
    Its `gibbs` has `log_density(theta)`, and `theta` is one particle.
    """

    interacts: ClassVar[bool]  # whether the direction of a particle depends on the others

    @property
    def n_particles(self) -> int:
        """Number of particles that are trained."""
        ...

    @property
    def start(self) -> Start:
        """Where they start."""
        ...

    def direction(self, particles: PyTree, scores: PyTree) -> PyTree:
        """Return where particles move, given grad log q at each; leaves are (particles, ...)."""
        ...


@dataclass(frozen=True)
class MAP:
    """Maximum a posteriori, `argmax log q(theta)` of the Gibbs hyper-posterior q.

    Parameters
    ----------
    n_particles : int
        Number of particles. Several are independent solutions: an ensemble.
    start : {'initializer', 'hyperprior'}
        Draw the initial particles from the initializers of mean and kernel, or from the hyper-prior.
    """

    n_particles: int = 1
    start: Start = "initializer"
    interacts: ClassVar[bool] = False

    def __post_init__(self):
        check_integer("n_particles", self.n_particles, least=1)
        check_choice("start", self.start, STARTS)

    def direction(self, particles: PyTree, scores: PyTree) -> PyTree:
        """Return the score of each particle."""
        return scores


@dataclass(frozen=True)
class SVGD:
    """Stein variational gradient descent with the kernel `exp(-||theta - theta'||^2 / (2 l))`.

    Parameters
    ----------
    n_particles : int
        Number of particles. One is MAP.
    length_scale : float or 'median'
        The number l itself, not its square root. 'median' is the median of the squared distances between K particles
        over 2 log(K + 1), with which the kernel values of a typical particle sum to about one.
    start : {'initializer', 'hyperprior'}
        As for `MAP`.
    """

    n_particles: int = 10
    length_scale: float | Literal["median"] = "median"
    start: Start = "initializer"
    interacts: ClassVar[bool] = True

    def __post_init__(self):
        check_integer("n_particles", self.n_particles, least=1)
        check_choice("start", self.start, STARTS)
        if not (isinstance(self.length_scale, str) and self.length_scale == "median"):
            check_positive("length_scale", self.length_scale, ", or 'median'")

    def direction(self, particles: PyTree, scores: PyTree) -> PyTree:
        """Return (1/K) sum_j [k(theta_j, theta_k) score_j + grad_{theta_j} k(theta_j, theta_k)] for every particle k.

        The gradient by theta_j alone, k_jk (theta_k - theta_j) / l, pushes particle k away from j.
        """
        flat, unravel = _flatten(particles)
        kernel, length_scale = self.kernel(flat)
        repulsion = jax.lax.map(lambda pair: pair[0] @ (pair[1][None] - flat), (kernel, flat)) / length_scale
        return unravel((kernel @ _flatten(scores)[0] + repulsion) / len(flat))

    def kernel(self, flat: Float[Array, "k size"]) -> tuple[Float[Array, "k k"], Float[Array, ""]]:
        """Return the kernel matrix of the particles, and l."""
        distances = squared_distances(flat)
        length_scale = self._length_scale(distances)
        return jnp.exp(-distances / (2.0 * length_scale)), length_scale

    def _length_scale(self, distances: Float[Array, "k k"]) -> Float[Array, ""]:
        n_particles = distances.shape[0]
        if not isinstance(self.length_scale, str):
            return jnp.asarray(self.length_scale, distances.dtype)
        if n_particles == 1:
            return jnp.ones((), distances.dtype)
        median = jnp.median(distances[jnp.triu_indices(n_particles, 1)])
        tiny = jnp.finfo(distances.dtype).tiny
        return jnp.maximum(median / (2.0 * math.log(n_particles + 1)), tiny)


def squared_distances(flat: Float[Array, "k size"]) -> Float[Array, "k k"]:
    """Return ||theta_j - theta_k||^2 for all pairs.

    From differences, one particle after another: expanding the square would cancel for close particles, and all
    differences at once would need too much memory for many.
    """
    return jax.lax.map(lambda particle: jnp.sum((flat - particle[None]) ** 2, axis=1), flat)


def _flatten(particles: PyTree) -> tuple[Float[Array, "k size"], Callable[[Array], PyTree]]:
    """Return particles as rows of a matrix, and the inverse function."""
    _, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], particles))
    return jax.vmap(lambda particle: ravel_pytree(particle)[0])(particles), jax.vmap(unravel)


class Interaction(NamedTuple):
    """How strongly SVGD particles interact.

    Attributes
    ----------
    kernel : ndarray of shape (n_particles, n_particles)
        Values of the SVGD kernel between particles.
    neighbors : float
        Sum of the kernel values with all others, for the median particle: 0 without interaction, at most K - 1.
    repulsion : float
        Repulsion of the median particle relative to sqrt(n_parameters), the score of the hyper-prior one standard
        deviation from its mode in every parameter. Below one, particles cannot spread over the hyper-posterior.
    """

    kernel: np.ndarray
    neighbors: float
    repulsion: float

    def __str__(self) -> str:
        if len(self.kernel) == 1:
            return "One particle: nothing to interact with."
        if self.neighbors < 0.01:
            return f"Particles do not interact (their kernel values sum to {self.neighbors:.2g}): they are like MAP's."
        weak = "too weak to spread them over the hyper-posterior" if self.repulsion < 1.0 else "enough to spread them"
        return f"Particles have {self.neighbors:.2g} neighbors each; their repulsion is {self.repulsion:.2g}, {weak}."


def interaction(particles: PyTree, method: Method) -> Interaction:
    """Return how strongly particles interact. Those of other methods than SVGD do not."""
    flat, _ = _flatten(particles)
    n_particles, size = flat.shape
    if not isinstance(method, SVGD):
        return Interaction(np.eye(n_particles), 0.0, 0.0)
    kernel, length_scale = (np.asarray(value, float) for value in method.kernel(flat))
    others = kernel - np.diag(np.diag(kernel))
    forces = (others.sum(axis=1)[:, None] * np.asarray(flat) - others @ np.asarray(flat)) / length_scale
    repulsion = float(np.median(np.linalg.norm(forces, axis=1)) / math.sqrt(size))
    return Interaction(kernel, float(np.median(others.sum(axis=1))), repulsion)


def place_particles(key: PRNGKeyArray, initial: PyTree, hyperprior: Density, start: Start) -> PyTree:
    """Return K initial particles, given K draws from the initializer: these draws, or draws from the hyper-prior.

    Leaves that the initializer does not randomize (scales, custom modules) are scattered around their value by
    `SCATTER` hyper-prior standard deviations, since particles that coincide would never separate. The first particle is
    the start of MAP.
    """
    n_particles = len(jax.tree.leaves(initial)[0])
    if n_particles == 1 and start == "initializer":
        return initial
    draws = jax.vmap(hyperprior.sample)(jax.random.split(key, n_particles))
    if start == "hyperprior":
        return draws

    def scatter(leaf: Array, draw: Array, mean: Array) -> Array:
        coincide = jnp.all(leaf == leaf[:1])
        moved = leaf + jnp.where(coincide, SCATTER, 0.0).astype(leaf.dtype) * (draw - mean[None])
        return leaf.at[1:].set(moved[1:])

    return jax.tree.map(scatter, initial, draws, hyperprior.mean)


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
