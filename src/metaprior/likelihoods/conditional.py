"""Likelihoods that users write for `metaprior.wfem`: what y is given t, averaged over t by quadrature."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import NoReturn

import numpy as np
from scipy.special import logsumexp

from metaprior.likelihoods.base import Broad, Expected, Likelihood, Start

LEAST = 1e-300  # probability of a tail
# Nodes of the trapezoid rule, of a standard normal: so far out that E[exp(2 t)] is precise up to a deviation of 4.
NODES = np.arange(-14.0, 14.125, 0.25)
WEIGHTS = np.exp(-0.5 * NODES**2) / np.sum(np.exp(-0.5 * NODES**2))


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
        return np.asarray(logsumexp(at_nodes + np.log(WEIGHTS), axis=-1))

    def cdf(self, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return E[P(Y <= y | t)]."""
        with np.errstate(all="ignore"):  # beyond what y can be
            at_nodes = self.cdf_given(np.asarray(y)[..., None], _nodes(mean, variance))
        return np.clip(at_nodes, 0.0, 1.0) @ WEIGHTS

    def log_far_tail(
        self, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray, upper: bool
    ) -> np.ndarray:
        """Return log P(Y >= y), or log P(Y <= y), as far as the distribution function has digits."""
        below = self.cdf(y - 1.0 if upper and self.discrete else y, mean, variance, parameters)
        return np.log(np.maximum(1.0 - below if upper else below, LEAST))

    def moments(self, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of y, by the law of total variance."""
        means, variances = self.moments_given(_nodes(mean, variance))
        total = means @ WEIGHTS
        return total, (variances + (means - total[..., None]) ** 2) @ WEIGHTS

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
    return mean[..., None] + np.sqrt(variance)[..., None] * NODES
