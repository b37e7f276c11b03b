"""Families of hierarchical priors for counts, ranks and readings with outliers: those of `families.py`, with sites."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from metaprior.likelihoods.base import Likelihood
from metaprior.prior.blocks import Block, make_blocks
from metaprior.prior.collapse import Collapsed, Gaussians, information, posterior_of_weights
from metaprior.prior.families import NO_COVARIATES, SMOOTH, Fitter, TrainingTasks
from metaprior.prior.layout import Parts
from metaprior.prior.modes import Mode
from metaprior.prior.response_modes import (
    MAX_ITERATIONS,
    Evidence,
    HyperPrior,
    ResponseMode,
    find_response_mode,
    hold_mean_of_response,
)
from metaprior.prior.response_prior import ResponsePrior
from metaprior.prior.sites import Observed
from metaprior.prior.terms import add_noise
from metaprior.tasks.padding import group_by_size, pad_to
from metaprior.tasks.types import Task

NO_NOISE = 1e-40  # standard deviation: sites have all of it


@dataclass(frozen=True, eq=False)
class TrainingResponses:
    """Tasks with standardized inputs and y as it is, what is observed of them, and log exposures."""

    training: TrainingTasks  # its scaling is that of inputs and of t
    likelihood: Likelihood
    hyper_prior: HyperPrior
    offsets: Sequence[np.ndarray]  # of each task
    exposure: int | None = None  # column of X


@dataclass(frozen=True, eq=False)
class ResponseFit:
    """The priors of all families fitted to the same tasks, and the modes to start similar fits from."""

    priors: dict[str, ResponsePrior]
    modes: dict[str, Mode]
    found: dict[str, ResponseMode]


def fit_response_families(
    given: TrainingResponses,
    environment: bool,
    near: ResponseFit | None = None,
    max_iterations: int = MAX_ITERATIONS,
    separate: bool | None = None,
    covariates: str = NO_COVARIATES,
) -> ResponseFit:
    """Fit every family. Arguments are those of `fit_families`."""
    fitter = _ResponseFitter(given, near, max_iterations, separate)
    processes = fitter.fit_all(environment, covariates=covariates)
    priors = {
        name: ResponsePrior(process, given.likelihood, fitter.found[_mode_of(name, fitter)].parameters, given.exposure)
        for name, process in processes.items()
    }
    return ResponseFit(priors, fitter.modes, fitter.found)


def _mode_of(name: str, fitter: "_ResponseFitter") -> str:
    """Return the family whose mode a family has: shapes are learned at the mode of the curve."""
    return name if name in fitter.found else list(fitter.found)[-1]


class _ResponseFitter(Fitter):
    """The fits of one family after another to the same tasks, with sites in place of readings."""

    def __init__(self, given: TrainingResponses, near: ResponseFit | None, max_iterations: int, separate: bool | None):
        no_noise = NO_NOISE * float(given.training.scaling.y_std)
        super().__init__(given.training, no_noise, None, max_iterations, separate)
        self.nearby, self.hyper_prior = near, given.hyper_prior
        self.observed = observe(given, self.blocks)
        zeros = [np.zeros(block.mask.shape) for block in self.blocks]
        pairs = zip(self.observed, zeros, strict=True)
        self.sites = [observed.start(zero, zero + 1.0, given.hyper_prior.center) for observed, zero in pairs]
        self.found: dict[str, ResponseMode] = {}

    def fit(self, name: str, parts: Parts) -> Collapsed:
        """Find the mode of theta and of the response's parameters, and integrate the mean's weights out there."""
        evidence = Evidence(self.layout(parts), self.blocks, self.observed, self.points, self.hyper_prior, self.sites)
        known = [] if self.nearby is None or name not in self.nearby.found else [self.nearby.found[name]]
        if parts.curve:
            known = [
                hold_mean_of_response(each, evidence, self.checked_smooth) for each in known or [self.found[SMOOTH]]
            ]
        found = find_response_mode(evidence, known, min(self.max_iterations, MAX_ITERATIONS))
        self.found[name], self.sites, self.blocks = found, evidence.sites, evidence.with_sites()
        return self.collapse_at(name, found.mode)

    def _checked(self, name: str, mode: Mode, given: Sequence[Gaussians], collapsed: Collapsed) -> np.ndarray:
        """Return theta as it is: sites are no readings that a mean could be compared with."""
        return mode.theta


def observe(given: TrainingResponses, blocks: Sequence[Block]) -> list[Observed]:
    """Return what was observed of blocks that `make_blocks` has made of the tasks."""
    tasks, scaling = given.training.tasks, given.training.scaling
    sizes = np.array([len(task.y) for task in tasks])
    found = []
    for (size, members), block in zip(group_by_size(sizes, len(blocks)), blocks, strict=True):
        pairs = [Task(tasks[i].x, given.offsets[i]) for i in members.tolist()]
        _, offset, _ = pad_to(pairs, size, np.float64)
        center, scale = float(scaling.y_mean), float(scaling.y_std)
        found.append(Observed(given.likelihood, block.y, offset * block.mask, block.mask, center, scale))
    return found


def with_mean_of_responses(prior: ResponsePrior, chunks: Iterable[TrainingTasks]) -> ResponsePrior:
    """Return the prior with the common mean learned from other tasks, in one pass; all else stays as it is.

    Inputs of tasks must be scaled by the prior's scaling, and have its exposure. Sites are those of each task alone.
    """
    process = prior.process
    precision, linear = np.eye(len(process.weights)), np.zeros(len(process.weights))
    for chunk in chunks:
        points = np.zeros((0, prior.input_dim))
        for block in make_blocks(chunk.tasks, chunk.counts, chunk.is_target, points, separate=False):
            described, found = prior.sites(block.x, block.y, block.mask, block.is_target)
            covariance = np.add(*process.deviations(described, described))
            covariance = add_noise(covariance, block.mask, found.sites.variance)
            readings = found.sites.reading * block.mask
            added = information(Gaussians(readings, described.features, covariance, block.counts))
            precision, linear = precision + added[0], linear + added[1]
    weights, root, _ = posterior_of_weights(precision, linear)
    return replace(prior, process=replace(process, weights=weights, weights_root=root))
