"""The contract of a term of a prior, and the terms of a prior together: at one theta, and for a block of tasks."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from metaprior.linalg import Array, cholesky, triangular_inverse
from metaprior.prior.blocks import Block, Gaussians
from metaprior.prior.columns import Columns, Uncached, group_sums
from metaprior.prior.process import RBF, add_noise, mapped

JITTER = 1e-6  # of the kernel between inducing points, relative to its variance


class Group(NamedTuple):
    """Parameters of one kind, with independent normal hyper-priors. All but correlations are logarithms of scales."""

    name: str
    number: int
    mean: float | Array
    std: float | Array


NOISE = Group("noise", 1, -1.0, 1.5)


class Slopes(NamedTuple):
    """Derivatives of the evidence: by theta, to be added to, and by what it is a function of."""

    gradient: Array
    by_covariance: Array  # (tasks, n, n)
    by_functions: Array  # (tasks, n, points): by the functions of the common curve through other terms; () if none
    by_basis: Array  # (points, points): by the root L of the common curve, which the blocks share; to be added to


class Term(ABC):
    """A part of a prior: functions of the common mean, functions of a task's own, or a covariance.

    Functions have weights of variance one, times a scale of each or a matrix. By default the scales are a group of
    theta, and derivatives by their logarithms follow.
    """

    name: ClassVar[str]
    needs: ClassVar[str] = ""  # another term that has to be there
    mean_group: ClassVar[str] = ""  # scales of functions of the common mean
    own_group: ClassVar[str] = ""  # scales of functions of a task's own

    @abstractmethod
    def groups(self, columns: Columns) -> list[Group]:
        """Return its parameters, with the hyper-prior."""

    def widths(self, columns: Columns, n_points: int) -> Sequence[int]:
        """Return the number of functions of the common mean, for every scale of `mean_group`."""
        return ()

    def mean_map(self, at: "AtTheta") -> Array:
        """Return the map from weights of variance one to those of its functions of the common mean."""
        widths = self.widths(at.columns, at.n_points)
        return np.repeat(at.scale(self.mean_group), widths) if self.mean_group else np.zeros(0)

    def mean_functions(self, on: "OnBlock") -> Array | None:
        """Return its functions of the common mean, (tasks, n, functions), zero for padding."""
        return None

    def common(self, on: "OnBlock") -> Array | None:
        """Return the same with weights of variance one: its columns of F."""
        functions = self.mean_functions(on)
        return None if functions is None else mapped(functions, self.mean_map(on.at))

    def own_map(self, at: "AtTheta") -> Array:
        """Return the map from weights of variance one to those of a task's own functions."""
        return at.scale(self.own_group) if self.own_group else np.zeros(0)

    def own(self, on: "OnBlock") -> Array | None:
        """Return the functions whose weights differ between tasks, (tasks, n, functions)."""
        return None

    def covariance(self, on: "OnBlock") -> Array | None:
        """Return a covariance that is no product of few functions, (tasks, n, n)."""
        return None

    def pull_back(self, on: "OnBlock", slopes: Slopes, by_mean: Array, by_weight: Array) -> None:
        """Add to the gradient, and to what other terms need.

        `by_mean` is the derivative by its columns of F, `by_weight` its product with them, summed over readings: the
        derivative by the logarithms of their scales.
        """
        if self.mean_group:
            widths = tuple(self.widths(on.at.columns, on.at.n_points))
            slopes.gradient[on.at.places[self.mean_group]] += group_sums(by_weight, widths)
        if self.own_group:
            by_scale = column_sums(slopes.by_covariance, self.own(on))
            slopes.gradient[on.at.places[self.own_group]] += 2.0 * on.at.scale(self.own_group) ** 2 * by_scale

    def process_fields(self, at: "AtTheta", fitted: Any) -> dict[str, Any]:
        """Return its fields of the `Process` of a new task, given the `FittedTerms`."""
        return {}


@dataclass(frozen=True)
class Layout(Uncached):
    """Where each parameter stands in theta, with independent normal hyper-priors."""

    terms: tuple[Term, ...]
    columns: Columns
    log_noise: float | None = None  # if the noise is given, in standardized units
    of_likelihood: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())  # hyper-prior of its parameters: means, stds

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
    def center(self) -> Array:
        """Mean of the hyper-prior."""
        return np.concatenate([np.broadcast_to(group.mean, group.number) for group in self.groups])

    @cached_property
    def spread(self) -> Array:
        """Standard deviation of the hyper-prior."""
        return np.concatenate([np.broadcast_to(group.std, group.number) for group in self.groups])

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        """Return the logarithm of the hyper-prior's density, up to a constant, and its derivative."""
        z = (theta - self.center) / self.spread
        return -0.5 * float(z @ z), -z / self.spread

    def scale(self, theta: Array, name: str) -> Array:
        """Return the scales of a group, exp(theta)."""
        return np.exp(theta[self.places[name]])

    def noise_variance(self, theta: Array) -> float:
        """Return the noise variance."""
        return float(np.exp(2.0 * (theta[0] if self.log_noise is None else self.log_noise)))

    def likelihood_parameters(self, theta: Array) -> Array:
        """Return the parameters of the likelihood."""
        return theta[len(theta) - len(self.of_likelihood[0]) :]

    def n_weights(self, n_points: int) -> int:
        """Return the number of weights of the common mean."""
        n_points = n_points if self.has("curve") else 0
        n_weights = sum(sum(term.widths(self.columns, n_points)) for term in self.terms)
        return n_weights * (2 if self.has("environment") else 1)

    @property
    def n_own(self) -> int:
        """Number of functions of a task's own."""
        at = AtTheta(self, self.center, np.zeros((0, 0, 1)))
        return sum(len(term.own_map(at)) for term in self.terms)

    def at(self, theta: Array, points: Array) -> "AtTheta":
        """Return the prior at one theta, given the inducing points, whose distances are kept for the next theta."""
        known, distances = self.__dict__.get("_latest_points", (None, None))
        if known is not points:
            distances = self.columns.squared_distances(points, points)
            self.__dict__["_latest_points"] = points, distances
        return AtTheta(self, theta, distances)

    def starts(self) -> list[Array]:
        """Return starting points: the hyper-prior mean, with length scales from a quarter to twice as long."""
        lengths = [self.places[name] for name in ("mean_lengths", "lengths") if name in self.places]
        starts = []
        for shift in (0.0, -1.4, -0.7, 0.7) if lengths else (0.0,):
            start = self.center.copy()
            for place in lengths:
                start[place] += shift
            starts.append(start)
        return starts


class Basis:
    """The common curve mu as mean weights of whitened functions: s k(x, Z) L^-T, where L L' = k(Z, Z)."""

    def __init__(self, at: "AtTheta"):
        self.lengths, self.scale = at.scale("mean_lengths"), float(at.scale("mean")[0])
        self.kernel = kernel_of_distances(RBF, at.distances, self.lengths)  # k(Z, Z) without jitter
        self.root = cholesky(self.kernel + JITTER * np.eye(len(self.kernel)))  # L
        self.inverse_root = triangular_inverse(self.root)
        self.map = self.scale * self.inverse_root.T  # from kernels k(x, Z) to the functions

    def slope_by_lengths(self, by_root: Array, distances: Array) -> Array:
        """Return the derivative by the logarithms of the length scales through L, given that by L."""
        inner = np.tril(self.root.T @ np.tril(by_root))
        inner[np.diag_indices_from(inner)] *= 0.5
        by_kernel = self.inverse_root.T @ inner @ self.inverse_root
        return total(0.5 * (by_kernel + by_kernel.T) * self.kernel, distances) / self.lengths**2


class AtTheta:
    """The terms of a prior at one theta, and what they share there."""

    def __init__(self, layout: Layout, theta: Array, distances: Array):
        self.layout, self.columns, self.places = layout, layout.columns, layout.places
        self.theta, self.distances = theta, distances  # squared, between the inducing points, (points, points, lengths)
        self.n_points = len(distances) if layout.has("curve") else 0

    @cached_property
    def basis(self) -> Any:
        """The `Basis` of the common curve, None if there is none."""
        return Basis(self) if self.layout.has("curve") else None

    def scale(self, name: str) -> Array:
        """Return the scales of a group, exp(theta)."""
        return np.exp(self.theta[self.places[name]])

    def on(self, block: Block) -> "OnBlock":
        """Return what the terms say of a block of tasks."""
        return OnBlock(self, block)

    def gradient(self, parts: Sequence["OnBlock"], slopes: Sequence[tuple[Array, Array]]) -> Array:
        """Return the derivative by theta, given those by the covariances and mean features of every block."""
        gradient, by_root = np.zeros(len(self.theta)), np.zeros((self.n_points, self.n_points))
        for part, each in zip(parts, slopes, strict=True):
            part.pull_back(*each, gradient, by_root)
        if self.basis is not None:
            gradient[self.places["mean_lengths"]] += self.basis.slope_by_lengths(by_root, self.distances)
        return gradient


class OnBlock:
    """What the terms of a prior at one theta say of a block of tasks."""

    def __init__(self, at: AtTheta, block: Block):
        self.at, self.layout, self.block = at, at.layout, block
        self.kept: dict[str, Any] = {}  # by terms, for their derivatives

    @cached_property
    def kernel(self) -> Array:
        """k(x, Z) of the common curve; zero for padding."""
        return kernel_of_distances(RBF, self.block.to_points, self.at.basis.lengths) * self.block.mask[..., None]

    @cached_property
    def functions(self) -> Array:
        """The whitened functions of the common curve."""
        return self.kernel @ self.at.basis.map

    @cached_property
    def features(self) -> Array:
        """F, the functions of the common mean with weights of variance one, (tasks, n, weights)."""
        environment = self.layout.find("environment")
        return self._shared if environment is None else environment.double(self, self._shared)

    @cached_property
    def _shared(self) -> Array:
        """Those that all environments share."""
        parts = [term.common(self) for term in self.layout.terms]
        return np.concatenate([part for part in parts if part is not None], axis=-1)

    def covariance(self) -> Array:
        """Return a new array of the covariances of tasks around the common mean, without noise, (tasks, n, n)."""
        found = np.zeros((*self.block.mask.shape, self.block.mask.shape[1]))
        for term in self.layout.terms:
            if (functions := term.own(self)) is not None:
                by = term.own_map(self.at)
                scaled = functions * by**2 if by.ndim == 1 else functions @ by @ by.T
                found += scaled @ np.swapaxes(functions, 1, 2)
            if (covariance := term.covariance(self)) is not None:
                found += covariance
        return found

    def given(self, noise: float | None = None, covariance: Array | None = None) -> Gaussians:
        """Return the readings given the weights of the mean, with the noise and covariance of theta by default.

        A covariance that is given is overwritten.
        """
        covariance = self.covariance() if covariance is None else covariance
        variance = self.layout.noise_variance(self.at.theta) if noise is None else noise
        known = variance if self.block.noise is None else variance + self.block.noise
        covariance = add_noise(covariance, self.block.mask, known)
        return Gaussians(self.block.y, self.features, covariance, self.block.counts)

    def pull_back(self, by_covariance: Array, by_features: Array, gradient: Array, by_basis: Array) -> None:
        """Add to the derivative by theta, and to that by the root of the common curve's basis."""
        layout, n_points, at = self.layout, self.at.n_points, self.at
        by_functions = np.zeros((*self.block.mask.shape, n_points) if layout.has("bend") else ())
        slopes = Slopes(gradient, by_covariance, by_functions, by_basis)
        if layout.log_noise is None:
            trace = np.sum(np.diagonal(by_covariance, axis1=1, axis2=2) * self.block.mask)
            gradient[at.places["noise"]] += 2.0 * layout.noise_variance(at.theta) * trace
        if (environment := layout.find("environment")) is not None:
            by_features = environment.fold_back(self, slopes, self._shared, by_features)
        by_weight = np.sum(by_features * self._shared, axis=(0, 1))
        end = len(by_weight)
        for term in reversed(layout.terms):
            first = end - sum(term.widths(at.columns, n_points))
            term.pull_back(self, slopes, by_features[..., first:end], by_weight[first:end])
            end = first


def kernel_of_distances(kernel: Any, squared_distances: Array, lengths: Array) -> Array:
    """Return a kernel from squared distances along every variable, or in all."""
    return kernel.value(squared_distances @ lengths**-2.0)


def column_sums(by_covariance: Array, functions: Any) -> Array:
    """Return f' G f for every function f, summed over tasks."""
    return np.sum((by_covariance @ functions) * functions, axis=(0, 1))


def total(weights: Array, squared_distances: Array) -> Array:
    """Return the weighted sum of squared distances along every variable."""
    return weights.ravel() @ squared_distances.reshape(weights.size, -1)
