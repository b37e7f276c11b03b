"""The mode of theta given outcomes that are no Gaussian readings, such as counts.

Theta has the parameters of the likelihood, too.

Sites (`sites.py`) stand for the observations of every task, so that the common mean is integrated out as for readings
(`collapse.py`). Given theta, the marginals of task i average over the posterior of the mean's weights m:

    mean r - D C^-1 (r - F E[m]),    variance D - D C^-1 D + (D C^-1 F) Cov[m] (D C^-1 F)'.

The objective is the evidence lower bound of all tasks, weighted by their counts, with sites at their optimum. There its
derivatives are those of the collapsed evidence of the readings r by theta, and of E[log p(y | t)] by the parameters.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from metaprior.prior.blocks import Block
from metaprior.prior.collapse import Collapsed, Gaussians, collapse, slopes
from metaprior.prior.layout import Layout
from metaprior.prior.modes import Mode, climb, extended, find_mode, free_parameters
from metaprior.prior.process import NOISE_FLOOR
from metaprior.prior.sites import Observed, Sites, update

FIRST_UPDATES, MAX_UPDATES = 12, 6  # of the sites, at the first theta and at later ones, from those of the one before
GRADIENT_TOLERANCE = 5e-2  # nats: far below the differences between candidates
TOLERANCE = 2e-3  # nats of the bound of all tasks, below which sites have converged
MAX_ITERATIONS = 40


class HyperPrior(NamedTuple):
    """Independent normals of the likelihood's parameters."""

    center: np.ndarray
    spread: np.ndarray


class Found(NamedTuple):
    """The bound with sites at their optimum."""

    value: float
    given: list[Gaussians]
    collapsed: Collapsed
    marginals: list[tuple[np.ndarray, np.ndarray]]


class Bound:
    """The bound of some tasks. Sites are kept from one theta, and from one family, to the next."""

    def __init__(self, observed: Sequence[Observed], hyper_prior: HyperPrior):
        self.observed = observed
        zeros = [np.zeros(each.mask.shape) for each in observed]
        self.sites = [
            each.start(zero, zero + 1.0, hyper_prior.center) for each, zero in zip(observed, zeros, strict=True)
        ]

    def density(self, layout: Layout, blocks: Sequence[Block], points: np.ndarray):
        """Return the log Gibbs density of theta, bounded from below, as a function that returns its slope too."""
        n_updates = FIRST_UPDATES

        def at(theta: np.ndarray, _: bool = True) -> tuple[float, np.ndarray]:
            nonlocal n_updates
            prior, parameters = layout.at(theta, points), layout.likelihood_parameters(theta)
            parts = [prior.on(block) for block in blocks]
            covariances, features = [part.covariance for part in parts], [part.features for part in parts]
            updates, n_updates = n_updates, MAX_UPDATES
            found = self._optimize(blocks, covariances, features, parameters, updates)
            slope = prior.gradient(parts, slopes(found.given, found.collapsed))
            if place := layout.places.get("likelihood"):
                slope[place] = self._slope_by_parameters(blocks, found.marginals, parameters)
            z = (theta - layout.center) / layout.spread
            return found.value - 0.5 * float(z @ z), slope - z / layout.spread

        return at

    def _slope_by_parameters(
        self, blocks: Sequence[Block], marginals: Sequence[tuple[np.ndarray, np.ndarray]], parameters: np.ndarray
    ) -> np.ndarray:
        total = np.zeros(len(parameters))
        for block, observed, (mean, variance) in zip(blocks, self.observed, marginals, strict=True):
            found = observed.expected(mean, variance, parameters, gradient=True).by_parameters
            assert found is not None
            total += np.tensordot(block.counts[:, None] * block.mask, found, axes=2)
        return total

    def _optimize(
        self,
        blocks: Sequence[Block],
        covariances: Sequence[np.ndarray],
        features: Sequence[np.ndarray],
        parameters: np.ndarray,
        n_updates: int,
    ) -> Found:
        """Update all sites until the bound no longer grows; halve steps that lower it."""
        best, share, found, accepted = -np.inf, 1.0, None, self.sites
        target, proposed = accepted, self.sites
        for _ in range(n_updates):
            given = _given(blocks, covariances, features, proposed)
            collapsed = collapse(given)
            parts = zip(proposed, given, collapsed.precisions, collapsed.projected, strict=True)
            marginals = [_marginals(*part, collapsed) for part in parts]
            value, asked = collapsed.value, []
            for block, observed, sites, moments in zip(blocks, self.observed, proposed, marginals, strict=True):
                correction, new = update(observed, sites, *moments, parameters)
                value += float(block.counts @ correction)
                asked.append(new)
            if not value >= best - TOLERANCE:  # NaN, too
                share *= 0.5
                if share < 0.05:
                    break
            else:
                gain, best = value - best, max(value, best)
                accepted, target, found = proposed, asked, Found(value, given, collapsed, marginals)
                if gain < TOLERANCE:
                    break
                share = min(1.0, 2.0 * share)
            proposed = [old.toward(new, share) for old, new in zip(accepted, target, strict=True)]
        if found is None:
            raise np.linalg.LinAlgError("the evidence is not a number")
        self.sites = list(accepted)
        return found

    def with_sites(self, blocks: Sequence[Block]) -> list[Block]:
        """Return the blocks with the readings of the sites, and their noise."""
        return [
            replace(block, y=sites.reading * block.mask, noise=sites.variance)
            for block, sites in zip(blocks, self.sites, strict=True)
        ]


def _given(
    blocks: Sequence[Block],
    covariances: Sequence[np.ndarray],
    features: Sequence[np.ndarray],
    of_blocks: Sequence[Sites],
) -> list[Gaussians]:
    given = []
    for block, covariance, feature, sites in zip(blocks, covariances, features, of_blocks, strict=True):
        total, diagonal = covariance.copy(), np.arange(covariance.shape[1])
        total[:, diagonal, diagonal] += np.where(block.mask > 0, sites.variance + NOISE_FLOOR, 1.0)
        given.append(Gaussians(sites.reading * block.mask, feature, total, block.counts))
    return given


def _marginals(
    sites: Sites, given: Gaussians, inverse: np.ndarray, solved: np.ndarray, collapsed: Collapsed
) -> tuple[np.ndarray, np.ndarray]:
    """Return means and variances of u at all readings."""
    d = sites.variance
    residual = (inverse @ (given.y - given.features @ collapsed.mean)[..., None])[..., 0]
    mean = given.y - d * residual
    spread = np.sum((solved @ collapsed.root) ** 2, axis=-1)
    variance = d - d**2 * (np.diagonal(inverse, axis1=1, axis2=2) - spread)
    return mean, np.maximum(variance, 1e-12)


def find_mode_with_sites(
    layout: Layout,
    bound: Bound,
    blocks: Sequence[Block],
    points: np.ndarray,
    near: Sequence[Mode] = (),
    max_iterations: int = MAX_ITERATIONS,
) -> Mode:
    """Return the mode of theta, from the first of `near`; without any, from the mode given the first sites."""
    free, density = free_parameters(layout), bound.density(layout, blocks, points)
    if not near:
        of_terms = replace(layout, of_likelihood=((), ()))
        near = [extended(find_mode(of_terms, bound.with_sites(blocks), points), layout)]

    def held(theta: np.ndarray, gradient: bool) -> tuple[float, np.ndarray]:
        value, slope = density(theta, gradient)
        return value, free * slope

    mode = climb(layout, held, near[:1], min(max_iterations, MAX_ITERATIONS), GRADIENT_TOLERANCE)
    with np.errstate(all="ignore"):
        value, _ = density(mode.theta)  # leaves the sites there
    if not np.isfinite(value):
        raise np.linalg.LinAlgError("the evidence is not a number")
    return replace(mode, value=value)
