"""The terms of a prior together: where the parameters of each stand in theta, and what they say of a block of tasks."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from metaprior.prior.blocks import Block, Gaussians
from metaprior.prior.columns import Columns
from metaprior.prior.process import add_noise
from metaprior.prior.terms import AtBlock, Basis, Environment, Group, Parameters, Slopes, Term, total

NOISE = Group("noise", 1, -1.0, 1.5)


@dataclass(frozen=True)
class Layout:
    """Where each parameter stands in theta, with independent normal hyper-priors."""

    terms: tuple[Term, ...]
    columns: Columns
    log_noise: float | None = None  # if the noise is given, in standardized units
    of_likelihood: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())  # hyper-prior of its parameters: means, stds

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # without what is cached

    def has(self, name: str) -> bool:
        """Return whether there is a term."""
        return self.find(name) is not None

    def find(self, name: str) -> Any:
        """Return a term, None if there is none of this name."""
        return next((term for term in self.terms if term.name == name), None)

    @cached_property
    def groups(self) -> list[Group]:
        """The parameters, in the order of theta: of the noise, of the terms, and of the likelihood."""
        groups = [NOISE] if self.log_noise is None else []
        groups += [group for term in self.terms for group in term.groups(self.columns)]
        means, stds = self.of_likelihood
        return [*groups, Group("likelihood", len(means), np.array(means), np.array(stds))] if means else groups

    @cached_property
    def places(self) -> dict[str, slice]:
        """The slice of theta of every group."""
        ends = np.cumsum([group.number for group in self.groups]).tolist()
        return {group.name: slice(end - group.number, end) for group, end in zip(self.groups, ends, strict=True)}

    @cached_property
    def center(self) -> np.ndarray:
        """Mean of the hyper-prior."""
        return np.concatenate([np.broadcast_to(group.mean, group.number) for group in self.groups])

    @cached_property
    def spread(self) -> np.ndarray:
        """Standard deviation of the hyper-prior."""
        return np.concatenate([np.broadcast_to(group.std, group.number) for group in self.groups])

    def scale(self, theta: np.ndarray, name: str) -> np.ndarray:
        """Return the scales of a group, exp(theta)."""
        return np.exp(theta[self.places[name]])

    def noise_variance(self, theta: np.ndarray) -> float:
        """Return the noise variance."""
        return float(np.exp(2.0 * (theta[0] if self.log_noise is None else self.log_noise)))

    def likelihood_parameters(self, theta: np.ndarray) -> np.ndarray:
        """Return the parameters of the likelihood."""
        return theta[len(theta) - len(self.of_likelihood[0]) :]

    def n_weights(self, n_points: int) -> int:
        """Return the number of weights of the common mean."""
        n_points = n_points if self.has("curve") else 0
        n_weights = sum(term.n_weights(self.columns, n_points) for term in self.terms)
        return n_weights * (2 if self.has(Environment.name) else 1)

    def at(self, theta: np.ndarray, points: np.ndarray) -> "AtTheta":
        """Return the prior at one theta, given the inducing points, whose distances are kept for the next theta."""
        known, distances = self.__dict__.get("_latest_points", (None, None))
        if known is not points:
            distances = self.columns.squared_distances(points, points)
            self.__dict__["_latest_points"] = points, distances
        return AtTheta(self, theta, distances)

    def starts(self) -> list[np.ndarray]:
        """Return starting points: the hyper-prior mean, with length scales from a quarter to twice as long."""
        lengths = [self.places[name] for name in ("mean_lengths", "lengths") if name in self.places]
        starts = []
        for shift in (0.0, -1.4, -0.7, 0.7) if lengths else (0.0,):
            start = self.center.copy()
            for place in lengths:
                start[place] += shift
            starts.append(start)
        return starts


class AtTheta:
    """The terms of a prior at one theta."""

    def __init__(self, layout: Layout, theta: np.ndarray, distances: np.ndarray):
        self.layout, self.theta = layout, theta
        self.parameters = Parameters(layout.columns, theta, layout.places, distances)
        self.basis = Basis(self.parameters) if layout.has("curve") else None

    def on(self, block: Block) -> "OnBlock":
        """Return what the terms say of a block of tasks."""
        return OnBlock(self, block)

    def gradient(self, blocks: Sequence["OnBlock"], slopes: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """Return the derivative by theta, given those by the covariances and mean features of every block."""
        gradient, n_points = np.zeros(len(self.theta)), 0 if self.basis is None else len(self.basis.root)
        by_basis = np.zeros((n_points, n_points))
        for block, (by_covariance, by_features) in zip(blocks, slopes, strict=True):
            added = block.pull_back(by_covariance, by_features)
            gradient += added.gradient
            by_basis += added.by_basis
        if self.basis is not None:
            gradient[self.layout.places["mean_lengths"]] += self._lengths_slope(by_basis)
        return gradient

    def _lengths_slope(self, by_root: np.ndarray) -> np.ndarray:
        """Return the derivative by the logarithm of the common curve's length scales through L, given that by L."""
        assert self.basis is not None
        inner = np.tril(self.basis.root.T @ np.tril(by_root))
        inner[np.diag_indices_from(inner)] *= 0.5
        by_kernel = self.basis.inverse_root.T @ inner @ self.basis.inverse_root
        by_kernel = 0.5 * (by_kernel + by_kernel.T) * self.basis.kernel
        return total(by_kernel, self.parameters.distances) / self.basis.lengths**2


class OnBlock(AtBlock):
    """What the terms of a prior at one theta say of a block of tasks."""

    def __init__(self, prior: AtTheta, block: Block):
        super().__init__(prior.parameters, prior.basis, block)
        self.layout, self.theta = prior.layout, prior.theta

    @cached_property
    def features(self) -> np.ndarray:
        """F, the functions of the common mean with weights of variance one, (tasks, n, weights)."""
        environment = self.layout.find("environment")
        return self._shared if environment is None else environment.double(self, self._shared)

    @cached_property
    def _shared(self) -> np.ndarray:
        """Those that all environments share."""
        parts = [term.common(self) for term in self.layout.terms]
        return np.concatenate([part for part in parts if part is not None], axis=-1)

    def covariance(self) -> np.ndarray:
        """Return a new array of the covariances of tasks around the common mean, without noise, (tasks, n, n)."""
        found = np.zeros((*self.block.mask.shape, self.block.mask.shape[1]))
        for term in self.layout.terms:
            if (functions := term.own(self)) is not None:
                by = term.own_map(self.parameters)
                scaled = functions * by**2 if by.ndim == 1 else functions @ by @ by.T
                found += scaled @ np.swapaxes(functions, 1, 2)
            if (covariance := term.covariance(self)) is not None:
                found += covariance
        return found

    def given(self, noise: float | None = None) -> Gaussians:
        """Return the readings given the weights of the mean, with the noise of theta unless told otherwise."""
        variance = self.layout.noise_variance(self.theta) if noise is None else noise
        known = variance if self.block.noise is None else variance + self.block.noise
        covariance = add_noise(self.covariance(), self.block.mask, known)
        return Gaussians(self.block.y, self.features, covariance, self.block.counts)

    def pull_back(self, by_covariance: np.ndarray, by_features: np.ndarray) -> Slopes:
        """Return the derivative by theta, and by the root of the common curve's basis."""
        n_theta, shared, terms = len(self.theta), self._shared, self.layout.terms
        n_points = 0 if self.basis is None else len(self.basis.root)
        by_functions = np.zeros((*self.block.mask.shape, n_points) if self.layout.has("bend") else ())
        slopes = Slopes(np.zeros(n_theta), by_covariance, by_functions, np.zeros((n_points, n_points)))
        if self.layout.log_noise is None:
            trace = np.sum(np.diagonal(by_covariance, axis1=1, axis2=2) * self.block.mask)
            slopes.gradient[self.places["noise"]] = 2.0 * self.layout.noise_variance(self.theta) * trace
        if (environment := self.layout.find("environment")) is not None:
            by_features = environment.fold_back(self, slopes, shared, by_features)
        by_weight = np.sum(by_features * shared, axis=(0, 1))
        ends = np.cumsum([term.n_weights(self.columns, n_points) for term in terms]).tolist()
        for term, first, end in reversed(list(zip(terms, [0, *ends], ends, strict=False))):
            term.pull_back(self, slopes, by_features[..., first:end], by_weight[first:end])
        return slopes
