"""Laplace's approximation for one task: labels 0 and 1 (paper, appendix on the GP binary classifier), or others.

The mode solves grad log p(Y|t) = K^-1 (t - mu) = a, the appendix's equation with its gradient and prior mean restored.
It is found as t = mu + F u with F F^T = K, and differentiable once, not twice, as t = mu + K a.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from metaprior.wfem.exact import Posterior
from metaprior.wfem.likelihoods import Bernoulli, GaussianNoise, Observed
from metaprior.wfem.linalg import cholesky, log_normal, noisy_covariance, product, solve_lower, solve_upper
from metaprior.wfem.prior import GPPrior, Points

MAX_STEPS = 600  # about the logarithm of the kernel: 20 for scales of 1e-3 to 1e3, and 470 for 1e200
MAX_HALVINGS = 60


def log_evidence(
    prior: GPPrior, points: Points, y: Float[Array, " n"], mask: Bool[Array, " n"]
) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """Return ln g_theta(Y | X), the approximate evidence of the samples where `mask` is True; and whether it converged.

    If not, the evidence is that of the last iterate.
    """
    task = _Task.of(prior, points, y, mask)
    mode = _find_mode(task)
    curvature, _ = task.curvature(mode.t)
    value = task.log_likelihood(mode.t) - 0.5 * jnp.sum(mode.a * (mode.t - task.mean))
    return value + log_normal(curvature, jnp.zeros_like(mode.t)), mode.converged


def condition(prior: GPPrior, points: Points, y: Float[Array, " n"], mask: Bool[Array, " n"]) -> Posterior:
    """Return the normal approximation of the posterior given one task: R = W^1/2 and L L^T = B at the mode."""
    task = _Task.of(prior, points, y, mask)
    mode = _iterate(task)
    curvature, root = task.curvature(mode.t)
    return Posterior(points, mask, cholesky(curvature), mode.a, root, mode.converged)


class Mode(NamedTuple):
    """The mode of a task's log posterior, and how Newton's method found it."""

    t: Float[Array, " n"]
    a: Float[Array, " n"]  # K^-1 (t - mu) = grad log p(Y | t)
    n_steps: Int[Array, ""]
    converged: Bool[Array, ""]


def find_mode(prior: GPPrior, points: Points, y: Float[Array, " n"], mask: Bool[Array, " n"]) -> Mode:
    """Return the mode of the latent function at the points of one task."""
    return _find_mode(_Task.of(prior, points, y, mask))


class _Task(NamedTuple):
    """The prior at the points of one task and its observations, zero for padding."""

    likelihood: Bernoulli | Observed
    covariance: Float[Array, "n n"]  # with as much noise as rounding makes necessary; one for padding
    mean: Float[Array, " n"]
    y: Float[Array, " n"]
    mask: Bool[Array, " n"]

    @classmethod
    def of(cls, prior: GPPrior, points: Points, y: Array, mask: Array) -> "_Task":
        if isinstance(prior.likelihood, GaussianNoise):
            raise TypeError("Laplace's approximation needs a likelihood with a curvature; got Gaussian noise.")
        covariance = noisy_covariance(prior.covariance(points, points), 0.0, mask)
        mean = jnp.where(mask, points.mean, 0.0)
        return cls(prior.likelihood, covariance, mean, jnp.where(mask, y, 0.0), mask)

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


def _find_mode(task: _Task) -> Mode:
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
