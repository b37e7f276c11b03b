"""Laplace's approximation for one task with labels 0 and 1 (paper, appendix on the GP binary classifier).

The mode solves grad log p(Y|t) = K^-1 (t - mu): the appendix with its gradient and its prior mean restored. It is
sought as t = mu + K a, so that K is never inverted. First derivatives pass through the mode; second ones do not.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from metaprior.gp.likelihoods import Bernoulli
from metaprior.gp.linalg import cholesky, log_normal, noisy_covariance, solve_lower, solve_upper
from metaprior.gp.posterior import TaskPosterior
from metaprior.gp.prior import GPPrior, Points

MAX_STEPS = 100  # a safety net: fewer than 20 were needed for kernels of scale 1e-3 to 1e3
MAX_HALVINGS = 60


def log_evidence(prior: GPPrior, points: Points, y: Float[Array, " n"], mask: Bool[Array, " n"]) -> Float[Array, ""]:
    """ln g_theta(Y | X), the approximate evidence of the samples where `mask` is True."""
    task = _Task.of(prior, points, y, mask)
    mode = _find_mode(task)
    root_determinant = log_normal(task.curvature(mode.t)[0], jnp.zeros_like(mode.t))
    return task.log_posterior(mode.a, mode.t) + root_determinant


class LaplacePosterior(TaskPosterior):
    """q_theta(t(x) | D) for one task: the context and what conditioning on it costs, done once."""

    prior: GPPrior
    context: Points
    mask: Bool[Array, " n"]
    mode: Float[Array, " n"]
    factor: Float[Array, "n n"]  # lower Cholesky factor of B = I + W^1/2 K W^1/2
    root_curvature: Float[Array, " n"]  # the diagonal of W^1/2
    coefficients: Float[Array, " n"]  # K^-1 (mode - mu(X)) = grad log p(Y | mode)
    n_steps: Int[Array, ""]
    converged: Bool[Array, ""]  # False: the mode was not reached, and all of this is worth less

    def _whiten(self, cross: Float[Array, "n q"]) -> Float[Array, "n q"]:
        return solve_lower(self.factor, self.root_curvature[:, None] * cross)


def condition(prior: GPPrior, points: Points, y: Float[Array, " n"], mask: Bool[Array, " n"]) -> LaplacePosterior:
    """Adapt to one task: find the mode, and the curvature there."""
    task = _Task.of(prior, points, y, mask)
    mode = _find_mode(task)
    factor, root = task.factorize(mode.t)
    return LaplacePosterior(prior, points, mask, mode.t, factor, root, mode.a, mode.n_steps, mode.converged)


class _Task(NamedTuple):
    """What inference needs of a prior and a task, zero where there is padding."""

    likelihood: Bernoulli
    covariance: Float[Array, "n n"]
    mean: Float[Array, " n"]
    y: Float[Array, " n"]
    mask: Bool[Array, " n"]

    @classmethod
    def of(cls, prior: GPPrior, points: Points, y: Array, mask: Array) -> "_Task":
        if not isinstance(prior.likelihood, Bernoulli):
            raise TypeError(f"prior.likelihood must be Bernoulli for Laplace; got {type(prior.likelihood).__name__}.")
        both = mask[:, None] & mask[None, :]
        covariance = jnp.where(both, prior.covariance(points, points), 0.0)
        mean = jnp.where(mask, points.mean, 0.0)
        return cls(prior.likelihood, covariance, mean, jnp.where(mask, y, 0.0), mask)

    def latent(self, a: Float[Array, " n"]) -> Float[Array, " n"]:
        """T = mu + K a."""
        return self.mean + self.times_covariance(a)

    def times_covariance(self, a: Float[Array, " n"]) -> Float[Array, " n"]:
        """K a, not in the reduced precision that is an accelerator's default."""
        return jnp.matmul(self.covariance, a, precision="highest")

    def residual(self, a: Float[Array, " n"], t: Float[Array, " n"]) -> Float[Array, " n"]:
        """Grad log p(Y|t) - a, zero at the mode."""
        return jnp.where(self.mask, self.likelihood.gradient(self.y, t), 0.0) - a

    def log_likelihood(self, t: Float[Array, " n"]) -> Float[Array, ""]:
        """Log p(Y|t)."""
        return jnp.sum(jnp.where(self.mask, self.likelihood.log_density(self.y, t), 0.0))

    def log_posterior(self, a: Float[Array, " n"], t: Float[Array, " n"]) -> Float[Array, ""]:
        """Log p(Y|t) - (t - mu)^T K^-1 (t - mu) / 2."""
        return self.log_likelihood(t) - 0.5 * jnp.sum(a * (t - self.mean))

    def factorize(self, t: Float[Array, " n"]) -> tuple[Float[Array, "n n"], Float[Array, " n"]]:
        """The lower Cholesky factor of B, and W^1/2."""
        curvature, root = self.curvature(t)
        return cholesky(curvature), root

    def curvature(self, t: Float[Array, " n"]) -> tuple[Float[Array, "n n"], Float[Array, " n"]]:
        """B = I + W^1/2 K W^1/2, and W^1/2."""
        root = jnp.where(self.mask, self.likelihood.root_curvature(t), 0.0)
        one = jnp.ones((), root.dtype)
        return noisy_covariance(root[:, None] * self.covariance * root[None, :], one, self.mask), root

    def newton(
        self, factor: Float[Array, "n n"], root: Float[Array, " n"], residual: Float[Array, " n"]
    ) -> Float[Array, " n"]:
        """(I + W K)^-1 residual, the step of a."""
        scaled = root * self.times_covariance(residual)
        return residual - root * solve_upper(factor, solve_lower(factor, scaled))


class _Mode(NamedTuple):
    a: Float[Array, " n"]
    t: Float[Array, " n"]
    n_steps: Int[Array, ""]
    converged: Bool[Array, ""]


def _find_mode(task: _Task) -> _Mode:
    """The mode, with its derivative by the parameters of the prior.

    That is the derivative of one Newton step from the mode as a constant: there the step does not depend on where it
    starts nor, its residual being zero, on the derivative of the matrix it inverts.
    """
    last = _iterate(jax.lax.stop_gradient(task))
    step = task.newton(last.factor, last.root, task.residual(last.a, task.latent(last.a)))
    a = last.a + jnp.where(last.converged, step, 0.0)
    return _Mode(a, task.latent(a), last.n_steps, last.converged)


class _Iterate(NamedTuple):
    a: Float[Array, " n"]
    t: Float[Array, " n"]
    factor: Float[Array, "n n"]
    root: Float[Array, " n"]
    direction: Float[Array, " n"]  # the Newton step of a
    move: Float[Array, " n"]  # and of t
    slope: Float[Array, ""]  # of the log posterior along it: the square of the Newton decrement
    value: Float[Array, ""]
    rounding: Float[Array, ""]  # of the value
    n_steps: Int[Array, ""]
    converged: Bool[Array, ""]
    stalled: Bool[Array, ""]


def _iterate(task: _Task) -> _Iterate:
    """Newton's method on the concave log posterior of a, each step halved until it gains enough.

    It has converged when no step would gain what can be told from rounding. The decrement, which is the distance to the
    mode in standard deviations of the approximation, is then about the root of the machine precision. One last step
    squares it: in single precision the derivatives need that.
    """
    eps = jnp.finfo(task.mean.dtype).eps

    def arrive(a: Float[Array, " n"], n_steps: Int[Array, ""], stalled: Bool[Array, ""]) -> _Iterate:
        t = task.latent(a)
        factor, root = task.factorize(t)
        residual = task.residual(a, t)
        direction = task.newton(factor, root, residual)
        move = task.times_covariance(direction)
        slope, value = jnp.sum(residual * move), task.log_posterior(a, t)
        rounding = 10.0 * eps * (1.0 + jnp.abs(value))
        converged = slope <= rounding
        return _Iterate(a, t, factor, root, direction, move, slope, value, rounding, n_steps, converged, stalled)

    def step(at: _Iterate) -> _Iterate:
        def gains(fraction: Float[Array, ""]) -> Bool[Array, ""]:
            value = task.log_posterior(at.a + fraction * at.direction, at.t + fraction * at.move)
            return value >= at.value + 1e-4 * fraction * at.slope - at.rounding

        def too_long(fraction: Float[Array, ""]) -> Bool[Array, ""]:
            return ~gains(fraction) & (fraction > 0.5**MAX_HALVINGS)

        fraction = jax.lax.while_loop(too_long, lambda fraction: 0.5 * fraction, jnp.ones_like(at.slope))
        fraction = jnp.where(gains(fraction), fraction, 0.0)
        return arrive(at.a + fraction * at.direction, at.n_steps + 1, fraction == 0.0)

    def unfinished(at: _Iterate) -> Bool[Array, ""]:
        return ~at.converged & ~at.stalled & (at.n_steps < MAX_STEPS)

    start = arrive(jnp.zeros_like(task.mean), jnp.asarray(0), jnp.asarray(False))
    last = jax.lax.while_loop(unfinished, step, start)
    polished = arrive(last.a + jnp.where(last.converged, last.direction, 0.0), last.n_steps, last.stalled)
    return polished._replace(converged=last.converged)
