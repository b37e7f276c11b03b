"""The contract of a likelihood p(y | t), and averages over a Gaussian latent function t.

A fit maximizes the expected logarithm of p(y | t) under t ~ N(mean, variance). A prediction is the average of p(y | t).
Arrays broadcast. Parameters, such as the logarithm of the noise, have one more axis than the others, their last. The
exposure e of counts is not among them: log e is a part of t.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np
from scipy.special import logsumexp

from metaprior.checks import Message
from metaprior.linalg import Array
from metaprior.tasks.types import as_numbers

LARGEST_COUNT = 2.0**53  # larger integers have gaps
N_NODES = 20  # of Gauss-Hermite quadrature
NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(N_NODES)
NODE_WEIGHTS = NODE_WEIGHTS / NODE_WEIGHTS.sum()
# The trapezoid rule for log p(y | t) and its derivatives converges exponentially: they are analytic up to about three
# units from the real line, so that a step of 1.5 of t errs by 1e-4 of the curvature. Beyond a standard deviation of
# t of 1.5 * 2**MOST_HALVINGS the step grows.
STEP_OF_T, FARTHEST_OF_T, MOST_HALVINGS = 1.5, 6.0, 5
LEAST = 1e-300  # probability of a tail


class Expected(NamedTuple):
    """E[log p(y | t)] over t ~ N(mean, variance), or a lower bound of it, and its derivatives."""

    value: Array
    slope: Array  # by the mean
    precision: Array  # minus twice the derivative by the variance; positive
    by_parameters: Array | None = None  # (..., parameters), if asked for


class Start(NamedTuple):
    """Gaussian readings of t that stand for y, to start a fit from."""

    reading: Array
    variance: Array


class Broad(NamedTuple):
    """A distribution of y that does not depend on inputs: a likelihood under t ~ N(mean, variance)."""

    likelihood: "Likelihood"
    mean: Array
    variance: float
    parameters: Array


class Prediction(NamedTuple):
    """Gaussian components of the latent function t, in the units of y if the noise is Gaussian."""

    mean: Array  # (components, tasks, queries)
    variance: Array  # the same
    parameters: Array  # of the likelihood, (components, parameters)
    log_weights: Array | None = None  # (components, tasks), normalized over components; None: equal weights
    offset: Array | None = None  # (tasks, queries): log exposure, which is not in the mean yet


class Integers(NamedTuple):
    """Readings that are all integers, from which a likelihood may be suggested."""

    y: Array
    seen: Array  # different values, ascending
    counts: Array  # of each
    skewness: float


@dataclass(frozen=True)
class Likelihood(ABC):
    """The likelihood of an observation y given a latent number t. Its fields are learned from y before a fit."""

    name: ClassVar[str]
    outputs: ClassVar[str] = "readings"  # what messages call y: readings, counts or ranks
    discrete: ClassVar[bool] = False  # whether y are integers
    normal: ClassVar[bool] = False  # whether y is normal given t, so that inference is exact
    takes_exposure: ClassVar[bool] = False
    unit_noise: ClassVar[bool] = False  # whether t has the units of its noise, one
    words: ClassVar[str] = "numbers"  # what the form of the page calls y and its noise, where one is chosen
    without_noise: ClassVar[str] = "y, without noise"  # what E[y | t] is called
    noise_words: ClassVar[str] = "has no noise"  # why its noise cannot be given
    stored_fields: ClassVar[dict[str, Any]] = {}  # types of its fields in files, with their limits, as msgspec has them
    logarithms_of: ClassVar[tuple[str, ...]] = ()  # names of what the parameters are logarithms of

    def __call__(self, values: Any, name: str) -> Array:
        """Return checked values of y, named in errors as given."""
        array = as_numbers(values, name)
        self.check(array, name)
        return array

    def check(self, y: Array, name: str) -> None:  # noqa: B027
        """Raise if a number cannot be observed."""

    def allow(self, y: Array) -> bool:
        """Return whether all numbers can be observed."""
        try:
            self.check(y, "y")
        except ValueError:
            return False
        return True

    def learned(self, y: Iterable[Array]) -> "Likelihood":
        """Return the likelihood with the fields that the checked y of a fit have, given in parts."""
        return self

    @classmethod
    def suggested(cls, given: Integers) -> Message | None:
        """Return a hint in words if readings suggest this likelihood."""
        return None

    @property
    def limits(self) -> tuple[float, float]:
        """The smallest and the largest y that can be observed."""
        return (0.0, LARGEST_COUNT - 1.0) if self.discrete else (-np.inf, np.inf)

    def to_json(self) -> dict[str, Any]:
        """Return the likelihood as JSON values, which `make_likelihood(**values)` reads."""
        return {"name": self.name, **asdict(self)}

    @property
    def n_parameters(self) -> int:
        """Number of parameters."""
        return len(self.logarithms_of)

    def start(self, y: Array, mean: Array, variance: Array, parameters: Array) -> Start:
        """Return Gaussian readings of t ~ N(mean, variance), one by one."""
        self._not_of_the_default()

    def latent(self, y: Array, parameters: Array) -> Array:
        """Return about what t is for all readings of a fit, which give t its units."""
        self._not_of_the_default()

    def initial(self, y: Array, weights: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation of the hyper-prior of the parameters, given all weighted readings."""
        self._not_of_the_default()

    def broad(self, y: Sequence[Array], offsets: Sequence[Array]) -> Broad:
        """Return a distribution as broad as the y of all tasks; `offsets` are their log exposures."""
        self._not_of_the_default()

    def expected(self, y: Array, mean: Array, variance: Array, parameters: Array, gradient: bool = False) -> Expected:
        """Return E[log p(y | t)] over t ~ N(mean, variance), with derivatives by the parameters if asked for."""
        self._not_of_the_default()

    def _not_of_the_default(self) -> NoReturn:
        raise TypeError(f"The likelihood {self.name!r} is fitted by metaprior.wfem only.")

    @abstractmethod
    def log_density(self, y: Array, mean: Array, variance: Array, parameters: Array) -> Array:
        """Return log E[p(y | t)]."""

    @abstractmethod
    def cdf(self, y: Array, mean: Array, variance: Array, parameters: Array) -> Array:
        """Return E[P(Y <= y | t)]."""

    @abstractmethod
    def log_far_tail(self, y: Array, mean: Array, variance: Array, parameters: Array, upper: bool) -> Array:
        """Return about log P(Y >= y), or log P(Y <= y), of y far from the mean on that side, however small."""

    @abstractmethod
    def moments(self, mean: Array, variance: Array, parameters: Array) -> tuple[Array, Array]:
        """Return mean and variance of y."""

    @abstractmethod
    def draw(self, t: Array, parameters: Array, rng: np.random.Generator) -> Array:
        """Draw y given t."""

    @abstractmethod
    def noise(self, mean: Array, parameters: Array) -> Array:
        """Return about the variance of the noise that y has as a reading of t."""

    def quantile(self, means: Array, variances: Array, parameters: Array, weights: Array, level: float) -> Array | None:
        """Return the quantile of mixtures (components, points), if there is a better way than bisection of the cdf."""
        return None

    def doubtful_mean(self, mean: Array, latent: Any, parameters: Array) -> tuple[Array | bool, str]:
        """Return where the mean of y says so little that the median replaces it, and a warning, or nothing.

        `latent` is the mixture of t.
        """
        return False, ""

    def stretched(self, parameters: Array, factor: float) -> Array:
        """Return the parameters of predictions whose latent functions are stretched by a factor."""
        return parameters

    def describe(self, parameters: Array) -> dict[str, float | list[float]]:
        """Return the parameters by the names that users know."""
        return dict(zip(self.logarithms_of, np.exp(parameters).tolist(), strict=True))


def averages_over_t(
    of_t: Callable[..., tuple[Array, ...]], mean: Array, variance: Array, *others: Array
) -> list[Array]:
    """Return the averages of all that `of_t(t, *others)` returns over t ~ N(mean, variance).

    The wider t is, the more nodes it has: where there are too few, precisions err by tens of percent.
    """
    mean, variance, *rest = np.broadcast_arrays(mean, variance, *others)
    std = np.sqrt(variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        halvings = np.nan_to_num(np.clip(np.ceil(np.log2(std / STEP_OF_T)), 0, MOST_HALVINGS))
    found: list[Array] = []
    for n in np.unique(halvings).tolist():
        some = halvings == n
        step = 0.5**n
        nodes = np.arange(-FARTHEST_OF_T, FARTHEST_OF_T + 0.5 * step, step)
        weights = np.exp(-0.5 * nodes**2)
        t = mean[some][:, None] + std[some][:, None] * nodes
        parts = of_t(t, *(each[some][:, None] for each in rest))
        found = found or [np.empty(mean.shape) for _ in parts]
        for whole, part in zip(found, parts, strict=True):
            whole[some] = part @ (weights / weights.sum())
    return found or [np.empty(mean.shape) for _ in of_t(mean[..., None], *(each[..., None] for each in rest))]


def trapezoid(farthest: float, step: float = 0.25) -> tuple[Array, Array]:
    """Return nodes and weights of the trapezoid rule for averages over a standard normal variable."""
    nodes = np.arange(-farthest, farthest + 0.5 * step, step)
    weights = np.exp(-0.5 * nodes**2)
    return nodes, weights / weights.sum()


def nodes_of(mean: Array, variance: Array, nodes: Array = NODES) -> Array:
    """Return nodes of t ~ N(mean, variance), given those of a standard normal variable, (..., nodes)."""
    mean, variance = np.broadcast_arrays(mean, variance)
    return mean[..., None] + np.sqrt(variance)[..., None] * nodes


GRID, GRID_WEIGHTS = trapezoid(14.0)  # so far out that E[exp(2 t)] is precise up to a deviation of 4


class ConditionalLikelihood(Likelihood):
    """A likelihood written as y given t, in NumPy, elementwise. It has no parameters.

    For `metaprior.wfem` a subclass has a `name`, `discrete` (whether y are the integers 0, 1, ...) and the four
    functions with `given`. The default also needs what says where a fit starts: see `Likelihood`. Averages over
    t ~ N(mean, variance) are precise for standard deviations of up to about 4.
    """

    @abstractmethod
    def log_density_given(self, y: Array, t: Array) -> Array:
        """Return log p(y | t)."""

    @abstractmethod
    def cdf_given(self, y: Array, t: Array) -> Array:
        """Return P(Y <= y | t)."""

    @abstractmethod
    def moments_given(self, t: Array) -> tuple[Array, Array]:
        """Return mean and variance of y given t."""

    @abstractmethod
    def draw_given(self, t: Array, rng: np.random.Generator) -> Array:
        """Draw y given t."""

    def log_density(self, y: Array, mean: Array, variance: Array, parameters: Array) -> Array:
        with np.errstate(all="ignore"):  # far from y
            at_nodes = self.log_density_given(np.asarray(y)[..., None], nodes_of(mean, variance, GRID))
        return np.asarray(logsumexp(at_nodes + np.log(GRID_WEIGHTS), axis=-1))

    def cdf(self, y: Array, mean: Array, variance: Array, parameters: Array) -> Array:
        with np.errstate(all="ignore"):  # beyond what y can be
            at_nodes = self.cdf_given(np.asarray(y)[..., None], nodes_of(mean, variance, GRID))
        return np.clip(at_nodes, 0.0, 1.0) @ GRID_WEIGHTS

    def log_far_tail(self, y: Array, mean: Array, variance: Array, parameters: Array, upper: bool) -> Array:
        """Return the tail as far as the distribution function has digits."""
        below = self.cdf(y - 1.0 if upper and self.discrete else y, mean, variance, parameters)
        return np.log(np.maximum(1.0 - below if upper else below, LEAST))

    def moments(self, mean: Array, variance: Array, parameters: Array) -> tuple[Array, Array]:
        """Return mean and variance of y, by the law of total variance."""
        means, variances = self.moments_given(nodes_of(mean, variance, GRID))
        total = means @ GRID_WEIGHTS
        return total, (variances + (means - total[..., None]) ** 2) @ GRID_WEIGHTS

    def draw(self, t: Array, parameters: Array, rng: np.random.Generator) -> Array:
        return self.draw_given(t, rng)

    def noise(self, mean: Array, parameters: Array) -> Array:
        """Return zero: the noise only decides where the search for quantiles starts."""
        return np.zeros(np.shape(mean))
