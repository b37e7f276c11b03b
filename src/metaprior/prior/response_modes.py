"""The mode of theta and of a response's parameters, given counts, ranks or readings with outliers.

Sites (`sites.py`) stand for the observations of every task, so that the common mean is integrated out as for readings
(`collapse.py`). Given theta, the marginals of task i average over the posterior of the mean's weights m:

    mean r - D C^-1 (r - F E[m]),    variance D - D C^-1 D + (D C^-1 F) Cov[m] (D C^-1 F)'.

The objective is the evidence lower bound of all tasks, weighted by their counts, with sites at their optimum. There its
derivatives are those of the collapsed evidence of the readings r by theta, and of E[log p(y | t)] by the parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from metaprior.prior.blocks import Block, squared_distances
from metaprior.prior.collapse import Collapsed, Gaussians, collapse, slopes
from metaprior.prior.layout import Layout
from metaprior.prior.modes import FARTHEST, Mode, extended, find_mode, free_parameters, hold_mean, slope_by_theta
from metaprior.prior.sites import Observed, Sites, update
from metaprior.prior.terms import NOISE_FLOOR, deviations, make_basis, mean_features

FIRST_UPDATES, MAX_UPDATES = 12, 6  # of the sites, at the first theta and at later ones, from those of the one before
GRADIENT_TOLERANCE = 5e-2  # nats: far below the differences between candidates
TOLERANCE = 2e-3  # nats of the bound of all tasks, below which sites have converged
MAX_ITERATIONS = 40
START_VARIANCE = 0.1  # of the response's parameters, in squared standard deviations of the hyper-prior


class HyperPrior(NamedTuple):
    """Independent normals of the response's parameters."""

    center: np.ndarray
    spread: np.ndarray


@dataclass(frozen=True, eq=False)
class ResponseMode:
    """The mode of theta and of the response's parameters, and the inverse Hessian of both."""

    mode: Mode  # of theta; its value is the bound
    parameters: np.ndarray
    inverse_hessian: np.ndarray


class Bound(NamedTuple):
    """The log Gibbs density, bounded from below, at one theta."""

    value: float
    slope: np.ndarray  # by theta and the parameters


class Evidence:
    """The bound of some tasks as a function of theta and parameters. Sites are kept from one call to the next."""

    def __init__(
        self,
        layout: Layout,
        blocks: Sequence[Block],
        observed: Sequence[Observed],
        points: np.ndarray,
        hyper_prior: HyperPrior,
        sites: Sequence[Sites],
    ):
        self.layout, self.blocks, self.observed, self.points = layout, blocks, observed, points
        self.hyper_prior, self.sites = hyper_prior, list(sites)
        self.point_distances = squared_distances(points, points, layout.ard, layout.widths)
        self.n_updates = FIRST_UPDATES

    def __call__(self, packed: np.ndarray) -> Bound:
        """Return the bound with sites at their optimum, and its derivatives."""
        layout, n_theta = self.layout, len(self.layout.center)
        theta, parameters = packed[:n_theta], packed[n_theta:]
        basis = make_basis(layout, theta, self.point_distances)
        pairs = [deviations(layout, theta, block) for block in self.blocks]
        features = [mean_features(layout, theta, basis, block) for block in self.blocks]
        own = [covariance for covariance, _ in pairs]
        value, given, collapsed, marginals = self._optimize(own, features, parameters)
        parts = [(of_block, smooth) for of_block, (_, smooth) in zip(given, pairs, strict=True)]
        by_block = slopes(given, collapsed)
        by_theta = slope_by_theta(layout, theta, basis, self.blocks, parts, by_block, self.point_distances)
        by_parameters = np.zeros(len(parameters))
        if len(parameters):
            for block, observed, (mean, variance) in zip(self.blocks, self.observed, marginals, strict=True):
                found = observed.expected(mean, variance, parameters, gradient=True).by_parameters
                assert found is not None
                by_parameters += np.tensordot(block.counts[:, None] * block.mask, found, axes=2)
        z = np.concatenate([(theta - layout.center) / layout.spread, self._scores(parameters)])
        spread = np.concatenate([layout.spread, self.hyper_prior.spread])
        slope = np.concatenate([by_theta, by_parameters]) - z / spread
        return Bound(value - 0.5 * float(z @ z), slope)

    def _scores(self, parameters: np.ndarray) -> np.ndarray:
        return (parameters - self.hyper_prior.center) / self.hyper_prior.spread

    def _optimize(
        self, own: Sequence[np.ndarray], features: Sequence[np.ndarray], parameters: np.ndarray
    ) -> tuple[float, list[Gaussians], Collapsed, list[tuple[np.ndarray, np.ndarray]]]:
        """Update all sites until the bound no longer grows; halve steps that lower it."""
        best, share, found, accepted = -np.inf, 1.0, None, self.sites
        target, proposed = accepted, self.sites
        n_updates, self.n_updates = self.n_updates, MAX_UPDATES
        for _ in range(n_updates):
            given = self._given(own, features, proposed)
            collapsed = collapse(given)
            marginals = [
                _marginals(block, of_block, inverse, solved, collapsed)
                for block, of_block, inverse, solved in zip(
                    proposed, given, collapsed.precisions, collapsed.projected, strict=True
                )
            ]
            value, asked = collapsed.value, []
            for block, observed, sites, moments in zip(self.blocks, self.observed, proposed, marginals, strict=True):
                correction, new = update(observed, sites, *moments, parameters)
                value += float(block.counts @ correction)
                asked.append(new)
            if not value >= best - TOLERANCE:  # NaN, too
                share *= 0.5
                if share < 0.05:
                    break
            else:
                gain, best = value - best, max(value, best)
                accepted, target, found = proposed, asked, (value, given, collapsed, marginals)
                if gain < TOLERANCE:
                    break
                share = min(1.0, 2.0 * share)
            proposed = [old.toward(new, share) for old, new in zip(accepted, target, strict=True)]
        if found is None:
            raise np.linalg.LinAlgError("the evidence is not a number")
        self.sites = list(accepted)
        return found

    def _given(
        self, own: Sequence[np.ndarray], features: Sequence[np.ndarray], sites: Sequence[Sites]
    ) -> list[Gaussians]:
        given = []
        for block, covariance, feature, of_block in zip(self.blocks, own, features, sites, strict=True):
            total, diagonal = covariance.copy(), np.arange(covariance.shape[1])
            total[:, diagonal, diagonal] += np.where(block.mask > 0, of_block.variance + NOISE_FLOOR, 1.0)
            given.append(Gaussians(of_block.reading * block.mask, feature, total, block.counts))
        return given

    def with_sites(self) -> list[Block]:
        """Return the blocks with the readings of the sites, and their noise."""
        return [
            replace(block, y=sites.reading * block.mask, noise=sites.variance)
            for block, sites in zip(self.blocks, self.sites, strict=True)
        ]


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


def find_response_mode(
    evidence: Evidence, near: Sequence[ResponseMode] = (), max_iterations: int = MAX_ITERATIONS
) -> ResponseMode:
    """Return the mode, by BFGS from the first of `near`; without any, from the mode given the first sites."""
    layout, hyper_prior = evidence.layout, evidence.hyper_prior
    center = np.concatenate([layout.center, hyper_prior.center])
    spread = np.concatenate([layout.spread, hyper_prior.spread])
    free = np.concatenate([free_parameters(layout), np.ones(len(hyper_prior.center))])

    def loss(packed: np.ndarray) -> tuple[float, np.ndarray]:
        if np.max(np.abs(packed - center) / spread) < FARTHEST:
            try:
                value, slope = evidence(packed)
            except np.linalg.LinAlgError:
                return np.inf, np.zeros(len(packed))
            if np.isfinite(value) and np.isfinite(slope).all():
                return -value, -free * slope
        return np.inf, np.zeros(len(packed))

    first = _extended(near[0], layout, hyper_prior) if near else _first_mode(evidence)
    start = np.concatenate([first.mode.theta, first.parameters])
    options = {"maxiter": max_iterations, "gtol": GRADIENT_TOLERANCE, "hess_inv0": first.inverse_hessian}
    with np.errstate(all="ignore"):  # steps of the line search may overshoot into infinity
        found = minimize(loss, start, jac=True, method="BFGS", options=options)
        packed = found.x if np.isfinite(found.fun) else start
        value = -loss(packed)[0]  # leaves the sites there
    if not np.isfinite(value):
        raise np.linalg.LinAlgError("the evidence is not a number")
    n_theta = len(layout.center)
    hessian = 0.5 * (found.hess_inv + found.hess_inv.T) + 1e-8 * np.eye(len(packed))
    mode = Mode(layout, packed[:n_theta], value, hessian[:n_theta, :n_theta])
    return ResponseMode(mode, packed[n_theta:], hessian)


def hold_mean_of_response(near: ResponseMode, evidence: Evidence, smooth: Mode) -> ResponseMode:
    """Return a mode as a start for the curve family, with the prior of the common curve of the smooth one."""
    return _joined(hold_mean(near.mode, evidence.layout, smooth), near.parameters, evidence.hyper_prior)


def _first_mode(evidence: Evidence) -> ResponseMode:
    """Return the mode of theta given the readings of the first sites."""
    mode = find_mode(evidence.layout, evidence.with_sites(), evidence.points)
    return _joined(mode, evidence.hyper_prior.center, evidence.hyper_prior)


def _joined(mode: Mode, parameters: np.ndarray, hyper_prior: HyperPrior) -> ResponseMode:
    n_theta, n = len(mode.theta), len(parameters)
    hessian = np.zeros((n_theta + n, n_theta + n))
    hessian[:n_theta, :n_theta] = mode.inverse_hessian
    hessian[n_theta:, n_theta:] = np.diag(START_VARIANCE * hyper_prior.spread**2)
    return ResponseMode(mode, parameters, hessian)


def _extended(near: ResponseMode, layout: Layout, hyper_prior: HyperPrior) -> ResponseMode:
    """Return a mode as a starting point for a prior with other parts."""
    if near.mode.layout.places == layout.places:
        return near
    return _joined(extended(near.mode, layout), near.parameters, hyper_prior)
