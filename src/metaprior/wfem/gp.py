"""The Gaussian process of all tasks, and the evidence and posterior of one task.

They are exact under Gaussian noise (paper, section 2.1), and Laplace approximations under other likelihoods (paper,
appendix on the GP binary classifier). The mode solves grad log p(Y|t) = K^-1 (t - mu) = a, the appendix's equation with
its gradient and prior mean restored. It is found as t = mu + F u with F F^T = K, and differentiable once, not twice, as
t = mu + K a.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, Shaped

from metaprior.checks import counted
from metaprior.tasks.scaling import Scaling
from metaprior.tasks.types import Task, TestTask, pad_to
from metaprior.wfem.kernels import compare, embed
from metaprior.wfem.likelihoods import Bernoulli, GaussianNoise, Observation, Observed
from metaprior.wfem.linalg import (
    cholesky,
    log_normal,
    noise_floor,
    noisy_covariance,
    product,
    solve_lower,
    solve_upper,
)
from metaprior.wfem.networks import at_points, cast, merge, split

MAX_STEPS = 600  # about the logarithm of the kernel: 20 for scales of 1e-3 to 1e3, and 470 for 1e200
MAX_HALVINGS = 60


class Points(NamedTuple):
    """All that a prior computes per input point."""

    mean: Float[Array, " n"]
    embedded: PyTree[Shaped[Array, "n ..."]]  # what the kernel compares: (encoded) inputs, or features of them


class GPPrior(eqx.Module):
    """t(x) ~ GP(mu_theta(z), k_theta(z, z')) with z = encoder(x) or z = x, and y ~ p(y | t(x)).

    Theta is every float outside `Fixed`.
    """

    mean: Callable[..., Array]
    kernel: Callable[..., Array]
    likelihood: Observation
    encoder: Callable[..., Array] | None = None

    def encode(self, x: Float[Array, "n d"]) -> Float[Array, "n z"]:
        """Return the inputs of mean and kernel; differentiable any number of times."""
        return x if self.encoder is None else jax.vmap(self.encoder)(x)

    def points(self, x: Float[Array, "n d"]) -> Points:
        """Evaluate mean and features at every point, of one task or of all tasks of a batch in a row."""
        encoded = x if self.encoder is None else at_points(self.encoder, x)
        return Points(at_points(self.mean, encoded), embed(self.kernel, encoded))

    def points_of_tasks(self, x: Float[Array, "tasks n d"]) -> Points:
        """Evaluate the points of many tasks, all at once: every leaf is (tasks, n, ...)."""
        n_tasks, size, input_dim = x.shape
        points = self.points(x.reshape(n_tasks * size, input_dim))
        return jax.tree.map(lambda leaf: leaf.reshape(n_tasks, size, *leaf.shape[1:]), points)

    def covariance(self, points: Points, others: Points | None = None) -> Float[Array, "n ..."]:
        """Return the covariances between two sets of points, or the variances of one."""
        return compare(self.kernel, points.embedded, None if others is None else others.embedded)


def make_prior(
    key: PRNGKeyArray, input_dim: int, mean: Any, kernel: Any, likelihood: Observation, encoder: Any = None
) -> GPPrior:
    """Draw a prior from a mean, a kernel and an encoder, each a description (with `build`) or a module."""
    mean_key, kernel_key = jax.random.split(key)
    if hasattr(encoder, "build"):
        encoder = encoder.build(jax.random.fold_in(key, 2), input_dim)  # 0 and 1 are the keys of the split above
    if encoder is not None:
        input_dim = _encoded_dim(encoder, input_dim)
    mean = mean.build(mean_key, input_dim) if hasattr(mean, "build") else mean
    kernel = kernel.build(kernel_key, input_dim) if hasattr(kernel, "build") else kernel
    return GPPrior(mean, kernel, likelihood, encoder)


def check_prior(prior: GPPrior, input_dim: int) -> None:
    """Raise if a custom mean or kernel fails or returns the wrong shape. Nothing is computed."""
    prior = merge(*split(prior))
    if prior.encoder is not None:
        input_dim = _encoded_dim(prior.encoder, input_dim)
    x1, x2 = jnp.zeros((2, input_dim)), jnp.zeros((3, input_dim))
    for call, expected, evaluate in (
        ("mean(x) of one point", (), lambda: prior.mean(x1[0])),
        ("kernel(X1, X2) of 2 and 3 points", (2, 3), lambda: prior.kernel(x1, x2)),
        ("kernel(X) of 2 points", (2,), lambda: prior.kernel(x1)),
    ):
        shape = _output_shape(call, input_dim, evaluate)
        if shape != expected:
            raise ValueError(f"{call.partition('(')[0]}: {call} must have shape {expected}; got {shape}.")


def _encoded_dim(encoder: Callable[..., Array], input_dim: int) -> int:
    """Return the number of features of one encoded point."""
    x = jnp.zeros(input_dim)
    encoder = cast(encoder, x.dtype)  # a custom module may come in another precision
    shape = _output_shape("encoder(x) of one point", input_dim, lambda: merge(*split(encoder))(x))
    if len(shape) != 1 or shape[0] == 0:
        raise ValueError(f"encoder: encoder(x) of one point must have shape (n_features,), at least one; got {shape}.")
    return shape[0]


def _output_shape(call: str, input_dim: int, evaluate: Callable[[], Array]) -> tuple[int, ...]:
    try:
        return jax.eval_shape(evaluate).shape
    except Exception as error:
        failed = f"{call.partition('(')[0]}: {call} with {counted(input_dim, 'input dimension')} failed: "
        raise ValueError(f"{failed}{type(error).__name__}: {error}") from error


class Posterior(eqx.Module):
    """Normal posterior of the latent function of one task, exact or approximate.

    It holds only what depends on the task, so that posteriors of many tasks stack; methods take the prior. The context
    explains k(x, X) R (L L^T)^-1 R k(X, x') of the prior covariance.
    """

    context: Points
    mask: Bool[Array, " n"]
    factor: Float[Array, "n n"]  # L, lower: L L^T = K + sigma^2 I (exact) or B (Laplace)
    coefficients: Float[Array, " n"]  # K^-1 (E[t(X)] - mu(X)); exact: (K + sigma^2 I)^-1 (Y - mu(X))
    root: Float[Array, " n"] | None = None  # diagonal of R; None: R = I
    converged: Bool[Array, ""] | None = None  # whether Laplace's approximation found the mode; None: exact

    def marginals(self, prior: GPPrior, points: Points) -> tuple[Float[Array, " q"], Float[Array, " q"]]:
        """Return the mean and variance of the latent function at each point."""
        mean, whitened = self._project(prior, points)
        before = prior.covariance(points)
        least = noise_floor(before.dtype) * jnp.sum(self.mask, dtype=before.dtype) * before  # the rest is rounding
        return mean, jnp.maximum(before - jnp.sum(whitened**2, axis=0), least)

    def joint(self, prior: GPPrior, points: Points) -> tuple[Float[Array, " q"], Float[Array, "q q"]]:
        """Return the mean and covariance of the latent function at all points."""
        mean, whitened = self._project(prior, points)
        return mean, prior.covariance(points, points) - product(whitened.T, whitened)

    def _project(self, prior: GPPrior, points: Points) -> tuple[Float[Array, " q"], Float[Array, "n q"]]:
        """Return the mean, and L^-1 R k(X, x)."""
        cross = jnp.where(self.mask[:, None], prior.covariance(self.context, points), 0.0)
        scaled = cross if self.root is None else self.root[:, None] * cross
        return points.mean + jnp.sum(self.coefficients[:, None] * cross, axis=0), solve_lower(self.factor, scaled)


def log_evidence(
    prior: GPPrior, points: Points, y: Float[Array, " n"], mask: Bool[Array, " n"]
) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """Return ln p_theta(Y | X), equation (evidence), of the samples where `mask` is True; and whether it converged.

    Laplace's approximation ln g_theta(Y | X) may not have: then it is that of the last iterate.
    """
    if isinstance(prior.likelihood, GaussianNoise):
        n_samples = jnp.sum(mask, dtype=y.dtype)
        value = log_normal(*_centered(prior, points, y, mask)) - 0.5 * math.log(2.0 * math.pi) * n_samples
        return value, jnp.asarray(True)
    task = _Task.of(prior, points, y, mask)
    mode = _differentiable_mode(task)
    curvature, _ = task.curvature(mode.t)
    value = task.log_likelihood(mode.t) - 0.5 * jnp.sum(mode.a * (mode.t - task.mean))
    return value + log_normal(curvature, jnp.zeros_like(mode.t)), mode.converged


def condition(prior: GPPrior, points: Points, y: Float[Array, " n"], mask: Bool[Array, " n"]) -> Posterior:
    """Return the posterior given one task, or its normal approximation: R = W^1/2 and L L^T = B at the mode."""
    if isinstance(prior.likelihood, GaussianNoise):
        covariance, residual = _centered(prior, points, y, mask)
        factor = cholesky(covariance)
        return Posterior(points, mask, factor, solve_upper(factor, solve_lower(factor, residual)))
    task = _Task.of(prior, points, y, mask)
    mode = _iterate(task)
    curvature, root = task.curvature(mode.t)
    return Posterior(points, mask, cholesky(curvature), mode.a, root, mode.converged)


def moments(
    prior: GPPrior, x: Float[Array, "n d"], mask: Bool[Array, " n"]
) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """Return mean and covariance of Gaussian readings at x where `mask` is True; zero and identity elsewhere.

    Evaluated point by point, which is differentiable to any order in forward and reverse mode.
    """
    x = prior.encode(x)
    mean = jnp.where(mask, jax.vmap(prior.mean)(x), 0.0)
    return mean, noisy_covariance(prior.kernel(x, x), prior.likelihood.variance, mask)  # type: ignore[union-attr]


def _centered(
    prior: GPPrior, points: Points, y: Float[Array, " n"], mask: Bool[Array, " n"]
) -> tuple[Float[Array, "n n"], Float[Array, " n"]]:
    """Return K + sigma^2 I and Y - mu(X)."""
    noise = prior.likelihood.variance  # type: ignore[union-attr]
    return noisy_covariance(prior.covariance(points, points), noise, mask), jnp.where(mask, y - points.mean, 0.0)


class Mode(NamedTuple):
    """The mode of a task's log posterior, and how Newton's method found it."""

    t: Float[Array, " n"]
    a: Float[Array, " n"]  # K^-1 (t - mu) = grad log p(Y | t)
    n_steps: Int[Array, ""]
    converged: Bool[Array, ""]


def find_mode(prior: GPPrior, points: Points, y: Float[Array, " n"], mask: Bool[Array, " n"]) -> Mode:
    """Return the mode of the latent function at the points of one task."""
    return _differentiable_mode(_Task.of(prior, points, y, mask))


class _Task(NamedTuple):
    """The prior at the points of one task and its observations, zero for padding."""

    likelihood: Bernoulli | Observed
    covariance: Float[Array, "n n"]  # with as much noise as rounding makes necessary; one for padding
    mean: Float[Array, " n"]
    y: Float[Array, " n"]
    mask: Bool[Array, " n"]

    @classmethod
    def of(cls, prior: GPPrior, points: Points, y: Array, mask: Array) -> "_Task":
        covariance = noisy_covariance(prior.covariance(points, points), 0.0, mask)
        mean = jnp.where(mask, points.mean, 0.0)
        return cls(prior.likelihood, covariance, mean, jnp.where(mask, y, 0.0), mask)  # type: ignore[arg-type]

    def take(self, order: Int[Array, " n"]) -> "_Task":
        """Return the task with its samples in another order."""
        covariance = self.covariance[order][:, order]
        return _Task(self.likelihood, covariance, self.mean[order], self.y[order], self.mask[order])

    def latent(self, a: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return t = mu + K a."""
        return self.mean + _times(self.covariance, a)

    def gradient(self, t: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return grad log p(Y|t), which is a at the mode."""
        return jnp.where(self.mask, self.likelihood.gradient(self.y, t), 0.0)

    def log_likelihood(self, t: Float[Array, " n"]) -> Float[Array, ""]:
        """Return log p(Y|t)."""
        return jnp.sum(jnp.where(self.mask, self.likelihood.log_density(self.y, t), 0.0))

    def root_curvature(self, t: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return W^1/2, where W = -d^2 log p(Y|t) / dt^2."""
        return jnp.where(self.mask, self.likelihood.root_curvature(self.y, t), 0.0)

    def curvature(self, t: Float[Array, " n"]) -> tuple[Float[Array, "n n"], Float[Array, " n"]]:
        """Return B = I + W^1/2 K W^1/2, and W^1/2."""
        root = self.root_curvature(t)
        return jnp.eye(len(root), dtype=root.dtype) + root[:, None] * self.covariance * root[None, :], root


def _differentiable_mode(task: _Task) -> Mode:
    """Return the mode, differentiable with respect to the parameters of the prior.

    Its derivative is that of one Newton step of a, (I + W K)^-1 (grad log p(Y|t) - a), from the mode held constant. At
    the mode the step is zero, so that it depends neither on its starting point nor on the derivative of the matrix.
    """
    mode = _iterate(jax.lax.stop_gradient(task))
    curvature, root = jax.lax.stop_gradient(task.curvature(mode.t))
    factor = cholesky(curvature)
    residual = task.gradient(task.latent(mode.a)) - mode.a
    scaled = root * _times(jax.lax.stop_gradient(task.covariance), residual)
    step = residual - root * solve_upper(factor, solve_lower(factor, scaled))
    a = mode.a + jnp.where(mode.converged, _only_derivative(step), 0.0)
    return mode._replace(a=a, t=mode.t + _only_derivative(task.latent(a)))


class _Iterate(NamedTuple):
    u: Float[Array, " n"]
    t: Float[Array, " n"]
    direction: Float[Array, " n"]  # the Newton step of u
    move: Float[Array, " n"]  # and of t
    slope: Float[Array, ""]  # of the log posterior along the step: the squared Newton decrement
    value: Float[Array, ""]
    rounding: Float[Array, ""]  # error of the value
    n_steps: Int[Array, ""]
    converged: Bool[Array, ""]
    stalled: Bool[Array, ""]


def _iterate(task: _Task) -> Mode:
    """Maximize the concave log posterior over u by Newton's method with backtracking, where t = mu + F u, F F^T = K.

    It has converged when a step would gain no more than rounding. The Newton decrement, the distance to the mode in
    standard deviations of the approximation, is then about the root of the machine precision. One last step squares it,
    which the derivatives need in single precision.

    Far from the data K may be 1e17 and more, and t = mu + K a the small difference of large numbers. F has the root of
    that size. Its columns are graded if samples of large variance come first: then t, and the matrix I + F^T W F of a
    step, are accurate.
    """
    order = jnp.argsort(-jnp.diagonal(task.covariance))
    back = jnp.argsort(order)
    task = task.take(order)
    factor = cholesky(task.covariance)

    def log_posterior(u: Float[Array, " n"], t: Float[Array, " n"]) -> Float[Array, ""]:
        return task.log_likelihood(t) - 0.5 * jnp.sum(u**2)

    def arrive(u: Float[Array, " n"], n_steps: Int[Array, ""], stalled: Bool[Array, ""]) -> _Iterate:
        t = task.mean + _times(factor, u)
        scaled = task.root_curvature(t)[:, None] * factor
        curvature = jnp.eye(len(u), dtype=u.dtype) + product(scaled.T, scaled)
        newton = cholesky(noisy_covariance(curvature, 0.0, task.mask))  # damped by no more than rounding
        gradient = _times(factor.T, task.gradient(t)) - u
        direction = solve_upper(newton, solve_lower(newton, gradient))
        slope, value = jnp.sum(gradient * direction), log_posterior(u, t)
        rounding = 10.0 * jnp.finfo(value.dtype).eps * (1.0 + jnp.abs(value))
        move = _times(factor, direction)
        return _Iterate(u, t, direction, move, slope, value, rounding, n_steps, slope <= rounding, stalled)

    def step(at: _Iterate) -> _Iterate:
        def gains(fraction: Float[Array, ""]) -> Bool[Array, ""]:
            value = log_posterior(at.u + fraction * at.direction, at.t + fraction * at.move)
            return value >= at.value + 1e-4 * fraction * at.slope - at.rounding

        def too_long(fraction: Float[Array, ""]) -> Bool[Array, ""]:
            return ~gains(fraction) & (fraction > 0.5**MAX_HALVINGS)

        fraction = jax.lax.while_loop(too_long, lambda fraction: 0.5 * fraction, jnp.ones_like(at.slope))
        fraction = jnp.where(gains(fraction), fraction, 0.0)
        return arrive(at.u + fraction * at.direction, at.n_steps + 1, fraction == 0.0)

    def unfinished(at: _Iterate) -> Bool[Array, ""]:
        return ~at.converged & ~at.stalled & (at.n_steps < MAX_STEPS)

    start = arrive(jnp.zeros_like(task.mean), jnp.asarray(0), jnp.asarray(False))
    last = jax.lax.while_loop(unfinished, step, start)
    u = last.u + jnp.where(last.converged, last.direction, 0.0)
    t, a = task.mean + _times(factor, u), solve_upper(factor, u)
    return Mode(t[back], a[back], last.n_steps, last.converged)


def _times(matrix: Float[Array, "n n"], vector: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return the product, in full precision on accelerators too."""
    return jnp.matmul(matrix, vector, precision="highest")


def _only_derivative(value: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return zero, with the derivative of a value that is known more accurately elsewhere."""
    return value - jax.lax.stop_gradient(value)


class Queries(NamedTuple):
    """Padded meta-test tasks: context to adapt to, queries to predict."""

    x_context: Any  # (tasks, context, input_dim)
    y_context: Any  # (tasks, context)
    context_mask: Any  # (tasks, context)
    x_query: Any  # (tasks, queries, input_dim)


def pad_queries(
    tasks: Sequence[TestTask], scaling: Scaling, n_context: int, n_query: int, dtype: Any
) -> tuple[Queries, np.ndarray, np.ndarray]:
    """Return meta-test tasks scaled and padded to these sizes: queries, y_query and the mask of queries."""
    x_context, y_context, context_mask = pad_to([scaling.task(Task(*task[:2])) for task in tasks], n_context, dtype)
    x_query, y_query, mask = pad_to([scaling.task(Task(*task[2:])) for task in tasks], n_query, dtype)
    return Queries(x_context, y_context, context_mask, x_query), y_query, mask


@eqx.filter_jit
def condition_particles(particles: PyTree, rest: GPPrior, x: Any, y: Any, mask: Any) -> Posterior:
    """Return the posteriors of all particles and tasks, in the precision of x; leaves are (particles, tasks, ...)."""

    def one_particle(theta: PyTree) -> Posterior:
        prior = cast(merge(theta, rest), x.dtype)
        return jax.vmap(lambda *task: condition(prior, *task))(prior.points_of_tasks(x), y, mask)

    return jax.vmap(one_particle)(particles)


@eqx.filter_jit
def predict_particles(
    particles: PyTree, rest: GPPrior, posteriors: Posterior, x: Any, joint: bool = False
) -> tuple[Float[Array, "particles tasks queries"], Array]:
    """Predict x (tasks, queries, input_dim): the means of all particles, and variances or `joint` covariances."""

    def one_particle(theta: PyTree, of_tasks: Posterior) -> tuple[Array, Array]:
        prior = cast(merge(theta, rest), x.dtype)
        moments = Posterior.joint if joint else Posterior.marginals
        return jax.vmap(lambda posterior, at: moments(posterior, prior, at))(of_tasks, prior.points_of_tasks(x))

    return jax.vmap(one_particle)(particles, posteriors)


def adapt_and_predict(particles: PyTree, rest: GPPrior, queries: Queries) -> tuple[Array, Array]:
    """Condition every particle on every task and predict the queries."""
    *contexts, x_query = queries
    return predict_particles(particles, rest, condition_particles(particles, rest, *contexts), x_query)
