"""Ranks and scores: y <= j if t plus standard normal noise is below the cut point b_j."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta
from scipy.special import log_ndtr, ndtr, ndtri

from metaprior.checks import Argument, Message, warn_caller
from metaprior.likelihoods.base import Broad, Expected, Integers, Likelihood, Start, averages_over_t
from metaprior.linalg import Array

LEAST = 1e-10  # precision
TINY, SMALLEST = 1e-280, -1e4  # probability that is computed by logarithms, and the smallest logarithm
TOTAL_STD = 2.0  # of t and its noise, that the first cut points are made for
MAX_LEVELS = 100
LARGEST_RANK = 1e9  # farther out ranks are codes of something else
MAX_UNSEEN = 0.5  # of the levels between the lowest and the highest
SHOWN = 8  # unseen levels in a warning
SCORES, FEW_SCORES, SHARE_AT_END, SHARE_SEEN = 20, 7, 0.2, 0.8  # of a hint: few, or piled up at one end
BROAD_VARIANCE = 3.0  # of t: with its noise of one, what the first cut points are made for


@dataclass(frozen=True)
class Ordinal(Likelihood):
    """P(y <= j | t) = Phi(b_j - t), with levels lowest, lowest + 1, ...

    Parameters are the first cut point and the logarithms of the distances from one to the next.
    """

    n_levels: int = 0  # not learned yet
    lowest: int = 0
    name = "ordinal"
    words = "ranks or scores (ordinal)"
    outputs = "ranks"
    discrete = True
    unit_noise = True
    without_noise = "expected level of y"
    stored_fields: ClassVar[dict[str, Any]] = {
        "n_levels": Annotated[int, Meta(ge=2, le=MAX_LEVELS)],
        "lowest": Annotated[int, Meta(ge=-(2**31), le=2**31)],
    }

    def check(self, y: Array, name: str) -> None:
        """Raise unless all are integers, not too large, and of the levels once these are learned."""
        given = Argument("likelihood", self.name)
        if (y != np.floor(y)).any():
            found = f"got {y[y != np.floor(y)][0]:g}. Code them 0, 1, 2, ..."
            raise ValueError(Message(f"{name} must hold integer ranks or scores for ", given, f"; {found}"))
        if (np.abs(y) > LARGEST_RANK).any():
            found = f"; got {y[np.abs(y) > LARGEST_RANK][0]:g}. Code the levels 0, 1, 2, ... in their order."
            raise ValueError(Message(f"{name} must hold ranks of at most {LARGEST_RANK:g} in size for ", given, found))
        outside = (y < self.lowest) | (y >= self.lowest + self.n_levels)
        if self.n_levels and outside.any():
            highest = self.lowest + self.n_levels - 1
            known = f"from {self.lowest} to {highest}, those of the tasks that the prior was fitted to"
            raise ValueError(f"{name} must hold levels {known}; got {y[outside][0]:g}.")

    def learned(self, y: Iterable[Array]) -> "Ordinal":
        """Return the likelihood with the levels of all ranks; raise if there is one only, or if most are never seen.

        A warning names the others that are never seen.
        """
        seen = np.zeros(0)
        for part in y:
            seen = np.union1d(seen, part)
        lowest, highest = int(seen[0]), int(seen[-1])
        count = highest - lowest + 1
        given = Argument("likelihood", self.name)
        if count == 1:
            raise ValueError(Message("y must hold at least two levels for ", given, f"; all tasks have {lowest} only."))
        if len(seen) < MAX_UNSEEN * count:
            missing = int(seen[np.flatnonzero(np.diff(seen) > 1.0)[0]]) + 1
            skipped = f": it holds {len(seen)} of the {count} from {lowest} to {highest}, and {missing} is never seen"
            advice = ". Code the levels 0, 1, 2, ... in their order."
            raise ValueError(Message("y must not skip levels for ", given, skipped, advice))
        if count > MAX_LEVELS:
            most = f"y must have at most {MAX_LEVELS} levels for "
            raise ValueError(Message(most, given, f"; it has {count}. Use 'gaussian'."))
        if unseen := [str(level) for level in range(lowest, highest) if level not in seen]:
            named = ", ".join(unseen[:SHOWN]) + f" and {len(unseen) - SHOWN} more" * (len(unseen) > SHOWN)
            are = "levels are" if len(unseen) > 1 else "level is"
            warn_caller(
                f"y holds {len(seen)} of the {count} levels from {lowest} to {highest}: {named} {are} never seen, and "
                "have some probability in predictions all the same. Code the levels 0, 1, 2, ... if these cannot occur."
            )
        return Ordinal(count, lowest)

    @classmethod
    def suggested(cls, given: Integers) -> Message | None:
        """Suggest it for few integers without gaps, very few or piled up at one end."""
        seen, counts = given.seen, given.counts
        few = len(seen) <= FEW_SCORES or max(counts[0], counts[-1]) >= SHARE_AT_END * len(given.y)
        if len(seen) <= SCORES and len(seen) >= SHARE_SEEN * (seen[-1] - seen[0] + 1) and few:
            return Message(f"y holds {len(seen)} integer scores: try ", Argument("likelihood", cls.name))
        return None

    @property
    def limits(self) -> tuple[float, float]:
        return float(self.lowest), float(self.lowest + self.n_levels - 1)

    @property
    def n_parameters(self) -> int:
        return self.n_levels - 1

    @property
    def levels(self) -> Array:
        """All possible y."""
        return self.lowest + np.arange(float(self.n_levels))

    def cuts(self, parameters: Array) -> Array:
        """Return minus infinity, b_0, b_1, ... and infinity, (..., levels + 1)."""
        inner = parameters[..., :1] + np.concatenate(
            [np.zeros_like(parameters[..., :1]), np.cumsum(np.exp(parameters[..., 1:]), axis=-1)], axis=-1
        )
        ends = np.full((*parameters.shape[:-1], 1), np.inf)
        return np.concatenate([-ends, inner, ends], axis=-1)

    def initial(self, y: Array, weights: Array) -> tuple[Array, Array]:
        """Expect the frequencies of all readings, with a total standard deviation of 2."""
        cuts = TOTAL_STD * ndtri(self._cumulative(y, weights)[1:-1])
        center = np.concatenate([cuts[:1], np.log(np.maximum(np.diff(cuts), 0.02))])
        return center, np.concatenate([[2.0], np.full(self.n_levels - 2, 1.0)])

    def broad(self, y: Sequence[Array], offsets: Sequence[Array]) -> Broad:
        levels = np.concatenate(y)
        return Broad(self, np.zeros(()), BROAD_VARIANCE, self.initial(levels, np.ones(len(levels)))[0])

    def _cumulative(self, y: Array, weights: Array) -> Array:
        """Return the smoothed share of readings below each level, and one, (levels + 1,)."""
        counts = np.bincount((y - self.lowest).astype(int), weights, self.n_levels) / np.mean(weights)
        return np.concatenate([[0.0], np.cumsum(counts + 0.5)]) / np.sum(counts + 0.5)

    def start(self, y: Array, mean: Array, variance: Array, parameters: Array) -> Start:
        return Start(self.latent(y, parameters), np.ones(y.shape))

    def latent(self, y: Array, parameters: Array) -> Array:
        """Return the middle between the cut points of a level, or half a unit beyond the last."""
        inner = self.cuts(parameters)[1:-1]
        middles = np.concatenate([inner[:1] - 0.5, 0.5 * (inner[1:] + inner[:-1]), inner[-1:] + 0.5])
        return middles[self._codes(y)]

    def _codes(self, y: Array) -> Array:
        return np.clip(np.where(np.isfinite(y), y, self.lowest) - self.lowest, 0, self.n_levels - 1).astype(int)

    def _ends(self, y: Array, parameters: Array) -> tuple[Array, Array]:
        """Return the cut points below and above every y."""
        code = self._codes(y)
        shape = np.broadcast_shapes(code.shape, parameters.shape[:-1])
        cuts = np.broadcast_to(self.cuts(parameters), (*shape, self.n_levels + 1))
        code = np.broadcast_to(code, shape)[..., None]
        return np.take_along_axis(cuts, code, -1)[..., 0], np.take_along_axis(cuts, code + 1, -1)[..., 0]

    def expected(self, y: Array, mean: Array, variance: Array, parameters: Array, gradient: bool = False) -> Expected:
        value, of_below, of_above, curvature = averages_over_t(_of_t, mean, variance, *self._ends(y, parameters))
        by_cuts = self._by_parameters(self._codes(y), of_below, of_above, parameters) if gradient else None
        return Expected(value, of_below - of_above, np.maximum(curvature, LEAST), by_cuts)

    def _by_parameters(self, code: Array, of_below: Array, of_above: Array, parameters: Array) -> Array:
        """Return derivatives by the parameters, given the densities at the cut points below and above."""
        of_cuts = np.zeros((*code.shape, self.n_levels + 1))
        np.put_along_axis(of_cuts, code[..., None], -of_below[..., None], -1)
        np.put_along_axis(of_cuts, code[..., None] + 1, of_above[..., None], -1)
        later = np.cumsum(of_cuts[..., -2:0:-1], axis=-1)[..., ::-1]  # a distance moves all cut points after it
        later[..., 1:] *= np.exp(parameters[..., 1:])
        return later

    def log_density(self, y: Array, mean: Array, variance: Array, parameters: Array) -> Array:
        lower, upper = self._ends(y, parameters)
        scale = np.sqrt(1.0 + variance)
        possible = np.isin(y, self.levels)
        found = log_difference((lower - mean) / scale, (upper - mean) / scale)
        return np.where(possible, found, np.where(np.isnan(y) | np.isnan(mean), np.nan, -np.inf))

    def cdf(self, y: Array, mean: Array, variance: Array, parameters: Array) -> Array:
        _, upper = self._ends(np.floor(y), parameters)
        found = ndtr((upper - mean) / np.sqrt(1.0 + variance))
        return np.where(np.floor(y) < self.lowest, 0.0, found)

    def log_far_tail(self, y: Array, mean: Array, variance: Array, parameters: Array, upper: bool) -> Array:
        lower, higher = self._ends(y, parameters)
        return log_ndtr((mean - lower if upper else higher - mean) / np.sqrt(1.0 + variance))

    def probabilities(self, mean: Array, variance: Array, parameters: Array) -> Array:
        """Return the probabilities of all levels, (levels, ...)."""
        cuts = np.moveaxis(self.cuts(parameters), -1, 0)
        return np.diff(ndtr((cuts - mean) / np.sqrt(1.0 + variance)), axis=0)

    def quantile(self, means: Array, variances: Array, parameters: Array, weights: Array, level: float) -> Array:
        """Return the first level up to which there is enough probability."""
        p = self.probabilities(means, variances, parameters)
        below = np.cumsum(np.sum(weights * p, axis=1), axis=0)[:-1]
        return self.lowest + np.sum(below < level, axis=0).astype(np.float64)

    def moments(self, mean: Array, variance: Array, parameters: Array) -> tuple[Array, Array]:
        p = self.probabilities(mean, variance, parameters)
        levels = self.levels.reshape(-1, *(1,) * (p.ndim - 1))
        first = np.sum(p * levels, axis=0)
        return first, np.sum(p * (levels - first) ** 2, axis=0)

    def noise(self, mean: Array, parameters: Array) -> Array:
        return np.ones_like(mean)

    def draw(self, t: Array, parameters: Array, rng: np.random.Generator) -> Array:
        noisy = t + rng.standard_normal(t.shape)
        inner = self.cuts(parameters)[..., 1:-1]
        return self.lowest + np.sum(noisy[..., None] > inner, axis=-1).astype(np.float64)

    def describe(self, parameters: Array) -> dict[str, float | list[float]]:
        return {"cut_points": self.cuts(parameters)[1:-1].tolist()}


def _of_t(t: Array, lower: Array, upper: Array) -> tuple[Array, Array, Array, Array]:
    """Return log p(y | t), its slopes by minus the cut point below and by the one above, and minus its curvature."""
    below, above = lower - t, upper - t
    log_p = log_difference(below, above)
    of_below, of_above = (np.exp(-0.5 * z**2 - 0.5 * np.log(2.0 * np.pi) - log_p) for z in (below, above))
    finite = [np.where(np.isfinite(z), z, 0.0) for z in (below, above)]
    curvature = finite[1] * of_above - finite[0] * of_below + (of_below - of_above) ** 2
    return log_p, of_below, of_above, curvature


def log_difference(lower: Array, upper: Array) -> Array:
    """Return log(Phi(upper) - Phi(lower)), accurate in both tails."""
    flip = lower + upper > 0.0  # minus infinity plus infinity is NaN, and is not flipped
    low, high = np.where(flip, -upper, lower), np.where(flip, -lower, upper)
    p = ndtr(high) - ndtr(low)  # both in the lower tail, or on both sides of zero
    with np.errstate(divide="ignore"):
        found = np.log(p)
    tiny = p < TINY
    if tiny.any():  # logarithms take several times as long
        of_low, of_high = log_ndtr(low[tiny]), log_ndtr(high[tiny])
        with np.errstate(divide="ignore"):
            inner = np.log1p(-np.exp(np.minimum(of_low - of_high, 0.0)))
        found[tiny] = np.maximum(of_high + inner, SMALLEST)
    return found
