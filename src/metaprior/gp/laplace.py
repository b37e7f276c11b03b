"""Laplace's approximation for one task with labels 0 and 1 (paper, appendix on the GP binary classifier).

The mode solves grad log p(Y|t) = K^-1 (t - mu), the appendix's equation with its gradient and prior mean restored. It
is parametrized as t = mu + K a, so that K is never inverted. The mode is differentiable once, not twice.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from metaprior.gp.exact import Posterior
from metaprior.gp.likelihoods import Bernoulli
from metaprior.gp.linalg import cholesky, log_normal, noisy_covariance, solve_lower, solve_upper
from metaprior.gp.prior import GPPrior, Points

MAX_STEPS = 100  # kernels of scale 1e-3 to 1e3 needed fewer than 20
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
    return task.log_posterior(mode.a, mode.t) + log_normal(curvature, jnp.zeros_like(mode.t)), mode.converged


def condition(prior: GPPrior, points: Points, y: Float[Array, " n"], mask: Bool[Array, " n"]) -> Posterior:
    """Return the normal approximation of the posterior given one task: R = W^1/2 and L L^T = B at the mode."""
    task = _Task.of(prior, points, y, mask)
    mode = _find_mode(task)
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
    """The prior at the points of one task and its labels, zero for padding."""

    likelihood: Bernoulli
    covariance: Float[Array, "n n"]
    mean: Float[Array, " n"]
    y: Float[Array, " n"]
    mask: Bool[Array, " n"]

    @classmethod
    def of(cls, prior: GPPrior, points: Points, y: Array, mask: Array) -> "_Task":
        if not isinstance(prior.likelihood, Bernoulli):
            raise TypeError(
                f"Laplace's approximation needs a Bernoulli prior.likelihood; got {type(prior.likelihood).__name__}."
            )
        both = mask[:, None] & mask[None, :]
        covariance = jnp.where(both, prior.covariance(points, points), 0.0)
        mean = jnp.where(mask, points.mean, 0.0)
        return cls(prior.likelihood, covariance, mean, jnp.where(mask, y, 0.0), mask)

    def latent(self, a: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return t = mu + K a."""
        return self.mean + self.times_covariance(a)

    def times_covariance(self, a: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return K a, in full precision on accelerators too."""
        return jnp.matmul(self.covariance, a, precision="highest")

    def residual(self, a: Float[Array, " n"], t: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return grad log p(Y|t) - a, which is zero at the mode."""
        return jnp.where(self.mask, self.likelihood.gradient(self.y, t), 0.0) - a

    def log_posterior(self, a: Float[Array, " n"], t: Float[Array, " n"]) -> Float[Array, ""]:
        """Return log p(Y|t) - (t - mu)^T K^-1 (t - mu) / 2."""
        log_likelihood = jnp.sum(jnp.where(self.mask, self.likelihood.log_density(self.y, t), 0.0))
        return log_likelihood - 0.5 * jnp.sum(a * (t - self.mean))

    def curvature(self, t: Float[Array, " n"]) -> tuple[Float[Array, "n n"], Float[Array, " n"]]:
        """Return B = I + W^1/2 K W^1/2, and W^1/2."""
        root = jnp.where(self.mask, self.likelihood.root_curvature(t), 0.0)
        one = jnp.ones((), root.dtype)
        return noisy_covariance(root[:, None] * self.covariance * root[None, :], one, self.mask), root

    def newton(
        self, factor: Float[Array, "n n"], root: Float[Array, " n"], residual: Float[Array, " n"]
    ) -> Float[Array, " n"]:
        """Return (I + W K)^-1 residual, the Newton step of a."""
        scaled = root * self.times_covariance(residual)
        return residual - root * solve_upper(factor, solve_lower(factor, scaled))


def _find_mode(task: _Task) -> Mode:
    """Return the mode, differentiable with respect to the parameters of the prior.

    Its derivative is that of one Newton step from the mode held constant. At the mode the residual is zero, so the step
    depends neither on its starting point nor on the derivative of the matrix it inverts.
    """
    last = _iterate(jax.lax.stop_gradient(task))
    step = task.newton(last.factor, last.root, task.residual(last.a, task.latent(last.a)))
    a = last.a + jnp.where(last.converged, step, 0.0)
    return Mode(task.latent(a), a, last.n_steps, last.converged)


class _Iterate(NamedTuple):
    a: Float[Array, " n"]
    t: Float[Array, " n"]
    factor: Float[Array, "n n"]
    root: Float[Array, " n"]
    direction: Float[Array, " n"]  # the Newton step of a
    move: Float[Array, " n"]  # and of t
    slope: Float[Array, ""]  # of the log posterior along the step: the squared Newton decrement
    value: Float[Array, ""]
    rounding: Float[Array, ""]  # error of the value
    n_steps: Int[Array, ""]
    converged: Bool[Array, ""]
    stalled: Bool[Array, ""]


def _iterate(task: _Task) -> _Iterate:
    """Maximize the concave log posterior over a by Newton's method with backtracking.

    It has converged when a step would gain no more than rounding. The Newton decrement, the distance to the mode in
    standard deviations of the approximation, is then about the root of the machine precision. One last step squares it,
    which the derivatives need in single precision.
    """

    def arrive(a: Float[Array, " n"], n_steps: Int[Array, ""], stalled: Bool[Array, ""]) -> _Iterate:
        t = task.latent(a)
        curvature, root = task.curvature(t)
        factor = cholesky(curvature)
        residual = task.residual(a, t)
        direction = task.newton(factor, root, residual)
        move = task.times_covariance(direction)
        slope, value = jnp.sum(residual * move), task.log_posterior(a, t)
        rounding = 10.0 * jnp.finfo(value.dtype).eps * (1.0 + jnp.abs(value))
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
