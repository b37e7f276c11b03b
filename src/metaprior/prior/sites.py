"""Gaussian sites: readings of a latent function, with a variance each, that take the place of a likelihood.

The posterior of t is approximated by q(t) proportional to p(t) prod_j N(r_j | t_j, d_j). Sites are those that maximize
the evidence lower bound E_q[log p(y | t)] - KL(q || p): with l_j(m, v) = E[log p(y_j | t)] over t ~ N(m, v) at the
marginals of q, 1 / d_j = -2 dl_j/dv and r_j = m_j + d_j dl_j/dm (Opper and Archambeau, 2009; Khan and Lin, 2017). The
bound is then also the evidence of the readings r_j, with a correction for every reading:

    log N(r | prior mean, K + D) + sum_j (l_j - E_q[log N(r_j | t_j, d_j)]).

Its derivative by what the prior depends on is that of the first term alone, because it is stationary in the sites.

In a fit, theta has the parameters of the likelihood, too. Sites stand for the observations of every task, so that the
common mean is integrated out as for readings (`modes.py`). Given theta, the marginals of task i average over the
posterior of the mean's weights m:

    mean r - D C^-1 (r - F E[m]),    variance D - D C^-1 D + (D C^-1 F) Cov[m] (D C^-1 F)'.

The objective is the evidence lower bound of all tasks, weighted by their counts, with sites at their optimum. There its
derivatives are those of the collapsed evidence of the readings r by theta, and of E[log p(y | t)] by the parameters.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from metaprior.likelihoods.base import Expected, Likelihood
from metaprior.linalg import ROUNDING, Array, stable_cholesky, triangular_inverses
from metaprior.prior.blocks import Block, Gaussians
from metaprior.prior.evidence import Collapsed, collapse, slopes
from metaprior.prior.layout import Layout, OnBlock
from metaprior.prior.modes import Evidence, Mode, extended, find_mode, log_density
from metaprior.prior.process import NOISE_FLOOR

MOST = 1e8  # precision of a site, and one over it the least, in standardized units
MAX_STEPS = 60
TOLERANCE = 1e-6  # nats of the bound of a task
SMALLEST_STEP = 1e-3
LEAST = 1e-12  # variance


class Observed(NamedTuple):
    """What was observed of a block of tasks, and how t and the standardized latent function u go together."""

    likelihood: Likelihood
    y: Array  # (tasks, n)
    offset: Array  # (tasks, n): log exposure, added to t; zero without
    mask: Array  # (tasks, n)
    center: float  # t = center + scale u
    scale: float

    def expected(self, mean: Array, variance: Array, parameters: Array, gradient: bool = False) -> Expected:
        """Return E[log p(y | t)] and its derivatives by the moments of u, given these."""
        t, own = self.center + self.scale * mean + self.offset, self.scale**2 * variance
        found = self.likelihood.expected(self.y, t, own, parameters, gradient)
        return found._replace(slope=self.scale * found.slope, precision=self.scale**2 * found.precision)

    def start(self, mean: Array, variance: Array, parameters: Array) -> "Sites":
        """Return sites to start from, given the prior's moments of u."""
        t, own = self.center + self.scale * mean + self.offset, self.scale**2 * variance
        found = self.likelihood.start(self.y, t, own, parameters)
        reading = (found.reading - self.offset - self.center) / self.scale
        return Sites.of(1.0 / found.variance * self.scale**2, reading, self.mask)

    def take(self, tasks: Array) -> "Observed":
        """Return some of the tasks."""
        return self._replace(y=self.y[tasks], offset=self.offset[tasks], mask=self.mask[tasks])


class Sites(NamedTuple):
    """Natural parameters of Gaussian sites of u, (tasks, n) each; padding has a precision of one and no shift."""

    precision: Array  # 1 / d
    shift: Array  # r / d

    @classmethod
    def of(cls, precision: Array, reading: Array, mask: Array) -> "Sites":
        """Make them from readings."""
        precision = np.where(mask > 0, np.clip(precision, 1.0 / MOST, MOST), 1.0)
        return cls(precision, precision * np.where(mask > 0, reading, 0.0))

    @property
    def variance(self) -> Array:
        """The variance d of every reading."""
        return 1.0 / self.precision

    @property
    def reading(self) -> Array:
        """The readings r."""
        return self.shift / self.precision

    def toward(self, other: "Sites", share: Array | float) -> "Sites":
        """Return sites on the way to others."""
        return Sites(*(a + share * (b - a) for a, b in zip(self, other, strict=True)))

    def take(self, tasks: Array) -> "Sites":
        """Return those of some tasks."""
        return Sites(self.precision[tasks], self.shift[tasks])

    def put(self, tasks: Array, other: "Sites") -> "Sites":
        """Return the sites with those of some tasks replaced."""
        parts = [part.copy() for part in self]
        for part, new in zip(parts, other, strict=True):
            part[tasks] = new
        return Sites(*parts)


def update(observed: Observed, sites: Sites, mean: Array, variance: Array, parameters: Array) -> tuple[Array, Sites]:
    """Return the corrections of the bound, (tasks,), and the sites that the marginals of q ask for."""
    found = observed.expected(mean, variance, parameters)
    d = sites.variance
    of_site = -0.5 * (((sites.reading - mean) ** 2 + variance) / d + np.log(d))
    correction = np.sum((found.value - of_site) * observed.mask, axis=1)
    precision = np.maximum(found.precision, 1.0 / MOST)
    return correction, Sites.of(precision, mean + found.slope / precision, observed.mask)


class SitePosterior(NamedTuple):
    """Tasks conditioned on their observations, given the prior's mean and covariance."""

    sites: Sites
    inverse_root: Array  # L^-1, where L L' = K + D, (tasks, n, n)
    residual: Array  # L^-1 (r - prior mean), (tasks, n)
    bound: Array  # evidence lower bound, (tasks,)
    converged: Array  # (tasks,)


def find_sites(observed: Observed, parameters: Array, mean: Array, covariance: Array) -> SitePosterior:
    """Return the posterior of tasks with the prior mean (tasks, n) and covariance (tasks, n, n) of u.

    Every task steps to the sites that its marginals ask for, halfway where that lowers its bound.
    """
    variance = np.diagonal(covariance, axis1=1, axis2=2)
    accepted = proposed = observed.start(mean, variance, parameters)
    target, n_tasks = accepted, len(mean)
    best, share = np.full(n_tasks, -np.inf), np.ones(n_tasks)
    active = np.arange(n_tasks)
    for _ in range(MAX_STEPS):
        part, current = observed.take(active), proposed.take(active)
        bound, asked = _step(part, current, parameters, mean[active], covariance[active])
        gain = bound - best[active]
        better = gain >= -TOLERANCE
        moved = active[better]
        accepted, target = accepted.put(moved, current.take(better)), target.put(moved, asked.take(better))
        best[moved] = np.maximum(bound[better], best[moved])
        share[active] = np.where(better, np.minimum(2.0 * share[active], 1.0), 0.5 * share[active])
        done = (better & (gain < TOLERANCE)) | (share[active] < SMALLEST_STEP)
        active = active[~done]
        if not len(active):
            break
        step = share[active][:, None]
        proposed = proposed.put(active, accepted.take(active).toward(target.take(active), step))
    _, inverse, residual = _factors(accepted, mean, covariance, observed.mask)
    converged = np.ones(n_tasks, bool)
    converged[active] = False
    return SitePosterior(accepted, inverse, residual, best, converged)


def _factors(sites: Sites, mean: Array, covariance: Array, mask: Array) -> tuple[Array, Array, Array]:
    """Return L, its inverse, and L^-1 (r - mean)."""
    diagonal, total = np.arange(covariance.shape[1]), covariance.copy()
    floor = ROUNDING * mask.sum(axis=1, keepdims=True) * covariance[:, diagonal, diagonal]
    total[:, diagonal, diagonal] += np.where(mask > 0, np.maximum(sites.variance + NOISE_FLOOR, floor), 1.0)
    root = stable_cholesky(total)
    inverse = triangular_inverses(root)
    return root, inverse, (inverse @ ((sites.reading - mean) * mask)[..., None])[..., 0]


def _step(observed: Observed, sites: Sites, parameters: Array, mean: Array, covariance: Array) -> tuple[Array, Sites]:
    """Return the bound of every task, and the sites that its marginals ask for."""
    root, inverse, residual = _factors(sites, mean, covariance, observed.mask)
    solved = (np.swapaxes(inverse, 1, 2) @ residual[..., None])[..., 0]  # (K + D)^-1 (r - mean)
    d = sites.variance
    means = sites.reading - d * solved
    variances = np.maximum(d - d**2 * np.sum(inverse**2, axis=1), LEAST)
    correction, asked = update(observed, sites, means, variances, parameters)
    log_determinant = np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
    return correction - 0.5 * np.sum(residual**2, axis=1) - log_determinant, asked


FIRST_UPDATES, MAX_UPDATES = 12, 6  # of the sites, at the first theta and at later ones, from those of the one before
GRADIENT_TOLERANCE = 5e-2  # nats: far below the differences between candidates
BOUND_TOLERANCE = 2e-3  # nats of the bound of all tasks, below which sites have converged
SMALLEST_SHARE = 0.05  # of a step of all sites
MAX_ITERATIONS = 40


class HyperPrior(NamedTuple):
    """Independent normals of the likelihood's parameters."""

    center: Array
    spread: Array


class Found(NamedTuple):
    """The bound with sites at their optimum."""

    value: float
    given: list[Gaussians]
    collapsed: Collapsed
    marginals: list[tuple[Array, Array]]


class Bound:
    """The bound of some tasks. Sites are kept from one theta, and from one family, to the next."""

    def __init__(self, observed: Sequence[Observed], hyper_prior: HyperPrior):
        self.observed, self.n_updates = observed, FIRST_UPDATES
        zeros = [np.zeros(each.mask.shape) for each in observed]
        self.sites = [
            each.start(zero, zero + 1.0, hyper_prior.center) for each, zero in zip(observed, zeros, strict=True)
        ]

    def __call__(self, parts: Sequence[OnBlock], gradient: bool = True) -> Evidence:
        """Return the bound at a theta, with its derivatives; the sites there are kept."""
        layout, by_parameters = parts[0].layout, None
        parameters = layout.likelihood_parameters(parts[0].at.theta)
        found = self._optimize(parts, parameters)
        self.n_updates = MAX_UPDATES
        if "likelihood" in layout.places:
            by_parameters = np.zeros(len(parameters))
            for part, observed, moments in zip(parts, self.observed, found.marginals, strict=True):
                each = observed.expected(*moments, parameters, gradient=True).by_parameters
                weights = part.block.counts[:, None] * part.block.mask
                by_parameters += np.tensordot(weights, np.asarray(each), axes=2)
        return Evidence(found.value, slopes(found.given, found.collapsed), by_parameters)

    def _optimize(self, parts: Sequence[OnBlock], parameters: Array) -> Found:
        """Update all sites until the bound no longer grows; halve steps that lower it."""
        best, share, found, target = -np.inf, 1.0, None, self.sites
        accepted = proposed = self.sites
        covariances = [part.covariance() for part in parts]
        for _ in range(self.n_updates):
            given = [_given(*each) for each in zip(parts, covariances, proposed, strict=True)]
            collapsed = collapse(given)
            each = zip(proposed, given, collapsed.precisions, collapsed.projected, strict=True)
            marginals = [_marginals(*one, collapsed.mean, collapsed.root) for one in each]
            updated = [
                update(observed, sites, *moments, parameters)
                for observed, sites, moments in zip(self.observed, proposed, marginals, strict=True)
            ]
            corrections = [part.block.counts @ added for part, (added, _) in zip(parts, updated, strict=True)]
            value = collapsed.value + float(sum(corrections))
            if not value >= best - BOUND_TOLERANCE:  # NaN, too
                share *= 0.5
                if share < SMALLEST_SHARE:
                    break
            else:
                gain, best, found = value - best, max(value, best), Found(value, given, collapsed, marginals)
                accepted, target = proposed, [asked for _, asked in updated]
                if gain < BOUND_TOLERANCE:
                    break
                share = min(1.0, 2.0 * share)
            proposed = [old.toward(new, share) for old, new in zip(accepted, target, strict=True)]
        if found is None:
            raise np.linalg.LinAlgError("the evidence is not a number")
        self.sites = accepted
        return found

    def with_sites(self, blocks: Sequence[Block]) -> list[Block]:
        """Return the blocks with the readings of the sites, and their noise."""
        return [
            replace(block, y=sites.reading * block.mask, noise=sites.variance)
            for block, sites in zip(blocks, self.sites, strict=True)
        ]


def _given(part: OnBlock, covariance: Array, sites: Sites) -> Gaussians:
    """Return the readings of sites given the weights of the mean."""
    block, total, diagonal = part.block, covariance.copy(), np.arange(covariance.shape[1])
    total[:, diagonal, diagonal] += np.where(block.mask > 0, sites.variance + NOISE_FLOOR, 1.0)
    return Gaussians(sites.reading * block.mask, part.features, total, block.counts)


def _marginals(
    sites: Sites, given: Gaussians, inverse: Array, solved: Array, mean: Array, root: Array
) -> tuple[Array, Array]:
    """Return means and variances of u at all readings, given mean and root of the posterior of the mean's weights."""
    d = sites.variance
    residual = (inverse @ (given.y - given.features @ mean)[..., None])[..., 0]
    spread = np.sum((solved @ root) ** 2, axis=-1)
    variance = d - d**2 * (np.diagonal(inverse, axis1=1, axis2=2) - spread)
    return given.y - d * residual, np.maximum(variance, LEAST)


def find_mode_with_sites(
    layout: Layout,
    bound: Bound,
    blocks: Sequence[Block],
    points: Array,
    near: Sequence[Mode] = (),
    max_iterations: int = MAX_ITERATIONS,
) -> Mode:
    """Return the mode of theta, from the first of `near`; without any, from the mode given the first sites."""
    if not near:
        of_terms = replace(layout, of_likelihood=((), ()))
        near = [extended(find_mode(of_terms, bound.with_sites(blocks), points), layout)]
    bound.n_updates, most = FIRST_UPDATES, min(max_iterations, MAX_ITERATIONS)
    mode = find_mode(layout, blocks, points, near[:1], most, bound, GRADIENT_TOLERANCE)
    with np.errstate(all="ignore"):
        value = log_density(layout, mode.theta, blocks, points, True, bound).value  # leaves the sites there
    if not np.isfinite(value):
        raise np.linalg.LinAlgError("the evidence is not a number")
    return replace(mode, value=value)
