"""What is observed of a latent function: the contract of a likelihood, and quadrature over Gaussian latent functions.

A likelihood p(y | t) has a few parameters, such as the logarithm of the noise. It knows its expected logarithm under
t ~ N(mean, variance), which a fit maximizes, and its average p(y), which a prediction reports. Arrays broadcast:
parameters have one axis more than the others, their last. An exposure e of counts is no matter of theirs: log e is a
part of t.

Likelihoods that users write for `metaprior.wfem`: what y is given t, averaged over t by quadrature.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np
from scipy.special import logsumexp

from metaprior.checks import Message
from metaprior.tasks.types import as_numbers

LARGEST_COUNT = 2.0**53  # integers from there on have gaps
N_NODES = 20  # of Gauss-Hermite quadrature
NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(N_NODES)
NODE_WEIGHTS = NODE_WEIGHTS / NODE_WEIGHTS.sum()
EVEN_STEP, FARTHEST = 0.25, 7.0
EVEN = np.arange(-FARTHEST, FARTHEST + 0.5 * EVEN_STEP, EVEN_STEP)  # nodes of the trapezoid rule, of a standard normal
EVEN_WEIGHTS = np.exp(-0.5 * EVEN**2) / np.sum(np.exp(-0.5 * EVEN**2))
# The trapezoid rule for log p(y | t) and its derivatives converges exponentially: they are analytic up to about three
# units from the real line, so that a step of 1.5 of t errs by 1e-4 of the curvature. Beyond a standard deviation of
# t of 1.5 * 2**MOST_HALVINGS the step grows.
STEP_OF_T, FARTHEST_OF_T, MOST_HALVINGS = 1.5, 6.0, 5


class Expected(NamedTuple):
    """E[log p(y | t)] over t ~ N(mean, variance), or a lower bound of it, and its derivatives."""

    value: np.ndarray
    slope: np.ndarray  # by the mean
    precision: np.ndarray  # minus twice the derivative by the variance; positive
    by_parameters: np.ndarray | None = None  # (..., parameters), if asked for


class Start(NamedTuple):
    """Gaussian readings of t that stand for y, to start a fit from."""

    reading: np.ndarray
    variance: np.ndarray


class Broad(NamedTuple):
    """A distribution of y that does not depend on inputs: a likelihood under t ~ N(mean, variance)."""

    likelihood: "Likelihood"
    mean: np.ndarray
    variance: float
    parameters: np.ndarray


class Prediction(NamedTuple):
    """Gaussian components of the latent function t of a member that predicts numbers.

    In units of t: of y for Gaussian noise.
    """

    mean: np.ndarray  # (components, tasks, queries)
    variance: np.ndarray  # the same
    parameters: np.ndarray  # of the likelihood, (components, parameters)
    log_weights: np.ndarray | None = None  # (components, tasks), normalized over components; None: equal weights
    offset: np.ndarray | None = None  # (tasks, queries): log exposure, which is not in the mean yet


class Integers(NamedTuple):
    """Readings that are all integers, in which a likelihood looks for its own kind."""

    y: np.ndarray
    seen: np.ndarray  # different values, ascending
    counts: np.ndarray  # of each
    skewness: float


@dataclass(frozen=True)
class Likelihood(ABC):
    """The likelihood of an observation y given a latent number t. Its fields are what is learned of y before a fit."""

    name: ClassVar[str]
    outputs: ClassVar[str] = "readings"  # what messages call y: readings, counts or ranks
    discrete: ClassVar[bool] = False  # whether y are integers
    normal: ClassVar[bool] = False  # whether y is normal given t, so that inference is exact
    takes_exposure: ClassVar[bool] = False
    unit_noise: ClassVar[bool] = False  # whether t has the units of its noise, one
    words: ClassVar[str] = "numbers"  # what the form of the page calls y and its noise, where one is chosen
    without_noise: ClassVar[str] = "y, without noise"  # what E[y | t] is called
    form_words: ClassVar[str] = ""  # what the form of the page calls it, in messages that advise it
    noise_words: ClassVar[str] = "has no noise"  # why its noise cannot be given
    stored_fields: ClassVar[dict[str, Any]] = {}  # types of its fields in files, with their limits, as msgspec has them

    def __call__(self, values: Any, name: str) -> np.ndarray:
        """Return checked values of y, named in errors as given."""
        array = as_numbers(values, name)
        self.check(array, name)
        return array

    def check(self, y: np.ndarray, name: str) -> None:  # noqa: B027
        """Raise if a number cannot be observed."""

    def allow(self, y: np.ndarray) -> bool:
        """Return whether all numbers can be observed."""
        try:
            self.check(y, "y")
        except ValueError:
            return False
        return True

    def learned(self, y: Iterable[np.ndarray]) -> "Likelihood":
        """Return the likelihood with what it learns of all checked y of a fit, given in parts."""
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
    @abstractmethod
    def n_parameters(self) -> int:
        """Number of parameters."""

    @abstractmethod
    def start(self, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray) -> Start:
        """Return Gaussian readings of t ~ N(mean, variance), one by one."""

    @abstractmethod
    def latent(self, y: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return about what t is for all readings of a fit, from which it takes the units of t."""

    @abstractmethod
    def initial(self, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of the hyper-prior of the parameters, given all weighted readings."""

    @abstractmethod
    def broad(self, y: Sequence[np.ndarray], offsets: Sequence[np.ndarray]) -> Broad:
        """Return a distribution as broad as the y of all tasks; `offsets` are their log exposures."""

    @abstractmethod
    def expected(
        self, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray, gradient: bool = False
    ) -> Expected:
        """Return E[log p(y | t)] over t ~ N(mean, variance), with derivatives by the parameters if asked for."""

    @abstractmethod
    def log_density(self, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return log E[p(y | t)]."""

    @abstractmethod
    def cdf(self, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return E[P(Y <= y | t)]."""

    @abstractmethod
    def log_far_tail(
        self, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray, upper: bool
    ) -> np.ndarray:
        """Return about log P(Y >= y), or log P(Y <= y), of y far from the mean on that side, however small."""

    @abstractmethod
    def moments(self, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of y."""

    @abstractmethod
    def draw(self, t: np.ndarray, parameters: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw y given t."""

    @abstractmethod
    def noise(self, mean: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return about the variance of the noise that y has as a reading of t."""

    def quantile(
        self, means: np.ndarray, variances: np.ndarray, parameters: np.ndarray, weights: np.ndarray, level: float
    ) -> np.ndarray | None:
        """Return the quantile of mixtures (components, points), if there is a better way than bisection of the cdf."""
        return None

    def doubtful_mean(self, mean: np.ndarray, latent: Any, parameters: np.ndarray) -> tuple[np.ndarray | bool, str]:
        """Return where the mean of y says so little that the median replaces it, and a warning, or nothing.

        `latent` is the mixture of t.
        """
        return False, ""

    def stretched(self, parameters: np.ndarray, factor: float) -> np.ndarray:
        """Return the parameters of predictions whose latent functions are stretched by a factor."""
        return parameters

    def describe(self, parameters: np.ndarray) -> dict[str, float | list[float]]:
        """Return the parameters by the names that users know."""
        return {}


def averages_over_t(
    of_t: Callable[..., tuple[np.ndarray, ...]], mean: np.ndarray, variance: np.ndarray, *others: np.ndarray
) -> list[np.ndarray]:
    """Return the averages of all that `of_t(t, *others)` returns over t ~ N(mean, variance).

    The wider t is, the more nodes it has: where there are too few, precisions err by tens of percent.
    """
    mean, variance, *rest = np.broadcast_arrays(mean, variance, *others)
    std = np.sqrt(variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        halvings = np.nan_to_num(np.clip(np.ceil(np.log2(std / STEP_OF_T)), 0, MOST_HALVINGS))
    found: list[np.ndarray] = []
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


def nodes_of(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return the nodes of t ~ N(mean, variance) for `NODE_WEIGHTS`, (..., nodes)."""
    return mean[..., None] + np.sqrt(variance)[..., None] * NODES


LEAST = 1e-300  # probability of a tail
# Nodes of the trapezoid rule, of a standard normal: so far out that E[exp(2 t)] is precise up to a deviation of 4.
GRID = np.arange(-14.0, 14.125, 0.25)
GRID_WEIGHTS = np.exp(-0.5 * GRID**2) / np.sum(np.exp(-0.5 * GRID**2))


class ConditionalLikelihood(Likelihood):
    """What y is given t, in NumPy, elementwise. The averages over t ~ N(mean, variance) that predictions need follow.

    A subclass has a `name`, `discrete` (whether y are the integers 0, 1, ...) and the four functions with `given`. It
    has no parameters. Averages are precise for standard deviations of t of up to about 4.
    """

    @abstractmethod
    def log_density_given(self, y: np.ndarray, t: np.ndarray) -> np.ndarray:
        """Return log p(y | t)."""

    @abstractmethod
    def cdf_given(self, y: np.ndarray, t: np.ndarray) -> np.ndarray:
        """Return P(Y <= y | t)."""

    @abstractmethod
    def moments_given(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of y given t."""

    @abstractmethod
    def draw_given(self, t: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw y given t."""

    @property
    def n_parameters(self) -> int:
        """None."""
        return 0

    def log_density(self, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return log E[p(y | t)]."""
        with np.errstate(all="ignore"):  # far from y
            at_nodes = self.log_density_given(np.asarray(y)[..., None], _nodes(mean, variance))
        return np.asarray(logsumexp(at_nodes + np.log(GRID_WEIGHTS), axis=-1))

    def cdf(self, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return E[P(Y <= y | t)]."""
        with np.errstate(all="ignore"):  # beyond what y can be
            at_nodes = self.cdf_given(np.asarray(y)[..., None], _nodes(mean, variance))
        return np.clip(at_nodes, 0.0, 1.0) @ GRID_WEIGHTS

    def log_far_tail(
        self, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray, upper: bool
    ) -> np.ndarray:
        """Return log P(Y >= y), or log P(Y <= y), as far as the distribution function has digits."""
        below = self.cdf(y - 1.0 if upper and self.discrete else y, mean, variance, parameters)
        return np.log(np.maximum(1.0 - below if upper else below, LEAST))

    def moments(self, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of y, by the law of total variance."""
        means, variances = self.moments_given(_nodes(mean, variance))
        total = means @ GRID_WEIGHTS
        return total, (variances + (means - total[..., None]) ** 2) @ GRID_WEIGHTS

    def draw(self, t: np.ndarray, parameters: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw y given t."""
        return self.draw_given(t, rng)

    def noise(self, mean: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return zero: it only tells where to look for quantiles first."""
        return np.zeros(np.shape(mean))

    def start(self, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray) -> Start:
        """Raise: of fits of the default."""
        self._not_of_the_default()

    def latent(self, y: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Raise: of fits of the default."""
        self._not_of_the_default()

    def initial(self, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Raise: of fits of the default."""
        self._not_of_the_default()

    def broad(self, y: Sequence[np.ndarray], offsets: Sequence[np.ndarray]) -> Broad:
        """Raise: of fits of the default."""
        self._not_of_the_default()

    def expected(
        self, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray, gradient: bool = False
    ) -> Expected:
        """Raise: of fits of the default."""
        self._not_of_the_default()

    def _not_of_the_default(self) -> NoReturn:
        raise TypeError(f"The likelihood {self.name!r} is fitted by metaprior.wfem only.")


def _nodes(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    mean, variance = np.broadcast_arrays(mean, variance)
    return mean[..., None] + np.sqrt(variance)[..., None] * GRID
