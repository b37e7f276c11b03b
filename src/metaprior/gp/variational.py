"""The Gaussian approximation of one task's posterior that is nearest in Kullback-Leibler divergence.

For counts, ranks and readings with outliers. Gaussian sites N(r_j | u_j, 1 / s_j) stand for the observations, and
maximize the evidence lower bound, with l_j(m, v) = E[log p(y_j | u)] over u ~ N(m, v) at the marginals of q:
s_j = -2 dl_j/dv and r_j = m_j + dl_j/dm / s_j. With S = diag(s) and B = I + S^1/2 K S^1/2 the bound is

    -(r - mu)^T S^1/2 B^-1 S^1/2 (r - mu) / 2 - log|B| / 2 + sum_j (l_j + s_j ((r_j - m_j)^2 + v_j) / 2).

It is stationary in the sites. Its derivatives are therefore those of its first two terms by mu and K, and of l_j by the
parameters of the likelihood, with r, s, m and v held constant. `hierarchical/sites.py` is the same in NumPy. Only where
the precision of an outlier is bounded, g_j = dl_j/dv + s_j / 2 is not zero: by K there is sum_j g_j dv_j/dK besides,
with dv = diag(A dK A^T) and A = (I + K S)^-1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from metaprior.gp.exact import Posterior
from metaprior.gp.linalg import cholesky, log_normal, noisy_covariance, product, solve_lower, solve_upper
from metaprior.gp.prior import GPPrior, Points
from metaprior.gp.response_likelihoods import ResponseLikelihood

MOST = 1e8  # precision of a site, and one over it the least
MAX_STEPS = 300  # 10 to 30 are usual; zero counts under a wide prior need most
SMALLEST_STEP, GROWTH = 1e-3, 1.5
TOLERANCE = 1e-9  # of the bound, relative to its size plus one, in double precision


def log_evidence(
    prior: GPPrior, points: Points, y: Float[Array, " n"], mask: Bool[Array, " n"]
) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """Return the evidence lower bound of the samples where `mask` is True; and whether the sites converged."""
    task = _Task.of(prior, points, y, mask)
    constant = jax.lax.stop_gradient(task)
    found = _find_sites(constant)
    sites, at = found.accepted, _moments(constant, found.accepted)
    gaussian = log_normal(task.curvature(sites), task.whitened(sites))
    value = task.likelihood.expected(task.y, at.mean, at.variance).value
    bound = gaussian + jnp.sum(jnp.where(task.mask, value + at.correction, 0.0))
    return bound + _of_bounded(task, sites, at), found.converged


def _of_bounded(task: "_Task", sites: "Sites", at: "_Moments") -> Float[Array, ""]:
    """Return zero, with the derivative by K that bounded precisions add to that of the bound."""
    constant = jax.lax.stop_gradient(task)
    of_variance = jax.grad(lambda v: jnp.sum(constant.likelihood.expected(constant.y, at.mean, v).value))(at.variance)
    slope = jnp.where(task.mask, of_variance + 0.5 * sites.precision, 0.0)
    identity, root = jnp.eye(len(slope), dtype=slope.dtype), constant.root(sites)
    inverse = solve_lower(at.factor, jnp.diag(root))
    a = identity - product(product(constant.covariance, inverse.T), inverse)
    value = jnp.sum(product(a.T, slope[:, None] * a) * task.covariance)
    return value - jax.lax.stop_gradient(value)


def condition(prior: GPPrior, points: Points, y: Float[Array, " n"], mask: Bool[Array, " n"]) -> Posterior:
    """Return the Gaussian approximation of the posterior given one task: R = S^1/2 and L L^T = B."""
    task = _Task.of(prior, points, y, mask)
    found = _find_sites(task)
    at = _moments(task, found.accepted)
    return Posterior(points, mask, at.factor, at.coefficients, task.root(found.accepted), found.converged)


class Sites(NamedTuple):
    """Natural parameters of the sites; padding has a precision of one and no shift."""

    precision: Float[Array, " n"]  # s
    shift: Float[Array, " n"]  # s r


class _Task(NamedTuple):
    """The prior at the points of one task, and what was observed of it."""

    likelihood: ResponseLikelihood
    covariance: Float[Array, "n n"]  # with as much noise as rounding makes necessary; one for padding
    mean: Float[Array, " n"]
    y: Float[Array, " n"]
    mask: Bool[Array, " n"]

    @classmethod
    def of(cls, prior: GPPrior, points: Points, y: Array, mask: Array) -> "_Task":
        if not isinstance(prior.likelihood, ResponseLikelihood):
            kind = type(prior.likelihood).__name__
            raise TypeError(f"Variational inference needs counts, ranks or outliers as prior.likelihood; got {kind}.")
        covariance = noisy_covariance(prior.covariance(points, points), 0.0, mask, prior.magnitude)
        mean = jnp.where(mask, points.mean, 0.0)
        return cls(prior.likelihood, covariance, mean, jnp.where(mask, y, 0.0), mask)

    def sites(self, precision: Float[Array, " n"], reading: Float[Array, " n"]) -> Sites:
        """Return sites with bounded precisions."""
        precision = jnp.where(self.mask, jnp.clip(precision, 1.0 / MOST, MOST), 1.0)
        return Sites(precision, precision * jnp.where(self.mask, reading, 0.0))

    def root(self, sites: Sites) -> Float[Array, " n"]:
        """Return S^1/2, zero for padding."""
        return jnp.where(self.mask, jnp.sqrt(sites.precision), 0.0)

    def curvature(self, sites: Sites) -> Float[Array, "n n"]:
        """Return B = I + S^1/2 K S^1/2."""
        root = self.root(sites)
        return jnp.eye(len(root), dtype=root.dtype) + root[:, None] * self.covariance * root[None, :]

    def whitened(self, sites: Sites) -> Float[Array, " n"]:
        """Return S^1/2 (r - mu)."""
        return jnp.where(self.mask, sites.shift / jnp.sqrt(sites.precision), 0.0) - self.root(sites) * self.mean


class _Moments(NamedTuple):
    """The approximation at some sites."""

    mean: Float[Array, " n"]
    variance: Float[Array, " n"]
    factor: Float[Array, "n n"]  # L
    coefficients: Float[Array, " n"]  # K^-1 (mean - mu)
    gaussian: Float[Array, ""]  # the first two terms of the bound
    correction: Float[Array, " n"]  # s ((r - m)^2 + v) / 2


def _moments(task: _Task, sites: Sites) -> _Moments:
    root, factor = task.root(sites), cholesky(task.curvature(sites))
    whitened = solve_lower(factor, task.whitened(sites))
    coefficients = root * solve_upper(factor, whitened)
    mean = task.mean + product(task.covariance, coefficients[:, None])[:, 0]
    before = jnp.diagonal(task.covariance)
    explained = jnp.sum(solve_lower(factor, root[:, None] * task.covariance) ** 2, axis=0)
    variance = jnp.maximum(before - explained, jnp.finfo(before.dtype).eps * before)
    gaussian = -0.5 * jnp.sum(whitened**2) - jnp.sum(jnp.log(jnp.diagonal(factor)))
    error = sites.shift / jnp.sqrt(sites.precision) - jnp.sqrt(sites.precision) * mean
    correction = 0.5 * (error**2 + sites.precision * variance)
    return _Moments(mean, variance, factor, coefficients, gaussian, correction)


class _Search(NamedTuple):
    accepted: Sites
    target: Sites  # that the marginals at the accepted sites ask for
    best: Float[Array, ""]  # bound
    share: Float[Array, ""]  # of the way to the target that is tried next
    n_steps: Int[Array, ""]
    bounded: Bool[Array, ""]  # whether a step must not lower the bound
    converged: Bool[Array, ""]


def _find_sites(task: _Task) -> _Search:
    """Step to the sites that the marginals ask for, halfway where that lowers the bound.

    The bounded precisions of outliers are not those of its maximum. There the sites are a fixed point, which is
    approached halfway in every step once no step raises the bound any more.
    """
    start = task.likelihood.readings(task.y, task.mean, jnp.diagonal(task.covariance))
    sites = task.sites(1.0 / start.variance, start.reading)
    tolerance = max(TOLERANCE, 10.0 * float(jnp.finfo(task.mean.dtype).eps))

    def step(at: _Search) -> _Search:
        tried = Sites(*(a + at.share * (b - a) for a, b in zip(at.accepted, at.target, strict=True)))
        moments = _moments(task, tried)
        found = task.likelihood.expected(task.y, moments.mean, moments.variance)
        bound = moments.gaussian + jnp.sum(jnp.where(task.mask, found.value + moments.correction, 0.0))
        precision = jnp.maximum(found.precision, 1.0 / MOST)
        asked = task.sites(precision, moments.mean + found.slope / precision)
        gain, least = bound - at.best, tolerance * (1.0 + jnp.abs(bound))
        better = (gain >= -least) | ~at.bounded
        share = jnp.where(better, jnp.minimum(GROWTH * at.share, 1.0), 0.5 * at.share)
        bounded = at.bounded & (share >= SMALLEST_STEP)
        changes = [jnp.max(jnp.abs(a - b) / (1.0 + jnp.abs(a))) for a, b in zip(tried, asked, strict=True)]
        take = lambda new, old: jnp.where(better, new, old)  # noqa: E731
        return _Search(
            Sites(*map(take, tried, at.accepted)),
            Sites(*map(take, asked, at.target)),
            jnp.where(better, bound, at.best),
            jnp.where(bounded, share, 0.5),
            at.n_steps + 1,
            bounded,
            jnp.where(at.bounded, better & (gain <= least), jnp.maximum(*changes) <= tolerance**0.5),
        )

    def unfinished(at: _Search) -> Bool[Array, ""]:
        return ~at.converged & (at.n_steps < MAX_STEPS)

    one, yes = jnp.ones((), task.mean.dtype), jnp.asarray(True)
    last = jax.lax.while_loop(unfinished, step, _Search(sites, sites, -jnp.inf * one, one, jnp.asarray(0), yes, ~yes))
    return last._replace(converged=last.converged & jnp.isfinite(last.best))
