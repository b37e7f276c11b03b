"""Ranks and scores: those of `prediction/rank_responses.py`, in JAX."""

import math
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.special import log_ndtr
from jaxtyping import Array, Float

from metaprior.gp.parameters import Parameter
from metaprior.gp.response_likelihoods import Numbers, ResponseLikelihood, Start, nodes_of


class Ordinal(ResponseLikelihood):
    """P(y <= j | t) = Phi(b_j - t), with levels lowest, lowest + 1, ..."""

    first_cut: Parameter
    log_gaps: Parameter  # (levels - 2,): logarithms of the distances from one cut point to the next
    lowest: int = eqx.field(static=True)
    name: ClassVar[str] = "ordinal"

    @property
    def parameters(self) -> Float[Array, "*batch p"]:
        """The first cut point, and the logarithms of the distances."""
        return jnp.concatenate([jnp.asarray(self.first_cut)[..., None], jnp.asarray(self.log_gaps)], axis=-1)

    @property
    def n_levels(self) -> int:
        """Number of levels."""
        return jnp.shape(self.log_gaps)[-1] + 2

    @property
    def cuts(self) -> Float[Array, " cuts"]:
        """The cut points."""
        gaps = jnp.exp(self.log_gaps)
        return self.first_cut + jnp.concatenate([jnp.zeros(1, gaps.dtype), jnp.cumsum(gaps)])

    def log_density(self, y: Numbers, t: Numbers) -> Numbers:
        """Return log p(y | t)."""
        return self._log_probability(y, t, jnp.ones_like(t))

    def log_average(self, y: Numbers, mean: Numbers, variance: Numbers) -> Numbers:
        """Return the log of the average probability, in closed form."""
        return self._log_probability(y, mean, jnp.sqrt(1.0 + variance))

    def start(self, y: Numbers, mean: Numbers, variance: Numbers) -> Start:
        """Return the middle between the cut points of a level, or half a unit beyond the last; a variance of one."""
        cuts = self.cuts
        middles = jnp.concatenate([cuts[:1] - 0.5, 0.5 * (cuts[1:] + cuts[:-1]), cuts[-1:] + 0.5])
        return Start(middles[self._codes(y)], jnp.ones_like(y))

    def derivatives(self, y: Numbers, mean: Numbers, variance: Numbers) -> tuple[Array, Array, Array]:
        """Return log p(y | t) and two derivatives by t, at the nodes of t: written out, which is many times faster."""
        t, code, cuts = nodes_of(mean, variance), self._codes(y)[..., None], self.cuts
        log_p = self.log_density(y[..., None], t)

        def end(place: Array, exists: Array) -> tuple[Array, Array]:
            z = jnp.where(exists, cuts[place] - t, 0.0)
            density = jnp.exp(-0.5 * z**2 - 0.5 * math.log(2.0 * math.pi) - log_p)
            return z, jnp.where(exists, density, 0.0)

        lower, of_lower = end(jnp.maximum(code - 1, 0), code > 0)
        upper, of_upper = end(jnp.minimum(code, self.n_levels - 2), code < self.n_levels - 1)
        slope = of_lower - of_upper
        return log_p, slope, lower * of_lower - upper * of_upper - slope**2

    def _codes(self, y: Numbers) -> Array:
        return jnp.clip(y - self.lowest, 0, self.n_levels - 1).astype(int)

    def _log_probability(self, y: Numbers, mean: Numbers, std: Numbers) -> Numbers:
        """Return the log probability that t plus noise lies between the cut points of y."""
        code, cuts = self._codes(y), self.cuts
        lower = (cuts[jnp.maximum(code - 1, 0)] - mean) / std
        upper = (cuts[jnp.minimum(code, self.n_levels - 2)] - mean) / std
        is_first, is_last = code == 0, code == self.n_levels - 1
        # Of the two ends between which neither is infinite, both in the lower tail where one can choose.
        flip = lower + upper > 0.0
        low, high = jnp.where(flip, -upper, lower), jnp.where(flip, -lower, upper)
        low, high = jnp.where(is_first | is_last, -1.0, low), jnp.where(is_first | is_last, 1.0, high)
        of_high = log_ndtr(high)
        between = of_high + jnp.log(-jnp.expm1(jnp.minimum(log_ndtr(low) - of_high, -1e-12)))
        one_sided = log_ndtr(jnp.where(is_first, upper, -lower))
        return jnp.where(is_first | is_last, one_sided, between)
