"""A fitted prior of labels: for a new task a Gaussian process for the latent function of every class."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from metaprior.linalg import FLOPS
from metaprior.prior.fitted import FittedTerms, taken_points
from metaprior.prior.label_process import LabelPosterior, LabelProcess, Latent
from metaprior.tasks.scaling import Scaling

NEWTON_STEPS = 8  # until a large context is conditioned on
MAX_WORK = 6.5e9  # of a step: 2,000 labels of two classes, 1,000 of five, 400 of a hundred


@dataclass(frozen=True, eq=False)
class LabelPrior:
    """A prior of the latent functions of classes, and how their scale is calibrated, see `LabelProcess`."""

    terms: FittedTerms  # of the latent function of each class; the weights of its own mean are not used
    weights: np.ndarray  # (classes, m): mean weights; (1, m) of the difference of two; (0, m) without a common rule
    factor: float = 1.0
    ratio: float = 1.0
    shrink: float = 1.0

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # without what is cached

    @property
    def scaling(self) -> Scaling:
        """The scaling of the tasks it was fitted to."""
        return self.terms.scaling

    @property
    def input_dim(self) -> int:
        """Number of input columns."""
        return self.terms.n_inputs

    @property
    def n_components(self) -> int:
        """One: theta is a point."""
        return 1

    @property
    def counts(self) -> np.ndarray | None:
        """(environments,): how much the evidence of a task of each has counted."""
        return self.terms.counts

    @cached_property
    def process(self) -> LabelProcess:
        """The latent functions of a new task."""
        fold = self.terms.target_map
        root = fold @ self.terms.weights_root if len(self.weights) else np.zeros((len(fold), 0))
        calibration = self.factor, self.ratio, self.shrink
        return LabelProcess(self.terms.process_with(self.weights @ fold.T, root), *calibration)

    def condition_labels(
        self, x: np.ndarray, y: np.ndarray, mask: np.ndarray, n_classes: np.ndarray, most: int = 0
    ) -> LabelPosterior:
        """Condition on standardized contexts, see `LabelProcess.condition`."""
        return self.process.condition(x, y, mask, n_classes, most)

    def latent(self, posterior: LabelPosterior, x: np.ndarray) -> Latent:
        """Predict the latent functions at standardized queries x (tasks, queries, columns), before calibration."""
        return self.process.latent(posterior, x)

    def class_log_probabilities(self, posterior: LabelPosterior, x: np.ndarray) -> np.ndarray:
        """Return the log probabilities of all classes at x (tasks, queries, columns), (classes, tasks, queries)."""
        return np.moveaxis(self.process.log_probabilities(posterior, x), -1, 0)

    def take(self, posteriors: Sequence[LabelPosterior], places: np.ndarray) -> LabelPosterior:
        """Join posteriors and pick tasks."""
        context = taken_points([posterior.context for posterior in posteriors], places)
        _, *rest, converged = zip(*posteriors, strict=True)
        joined: list[Any] = [None if parts[0] is None else np.concatenate(parts)[places] for parts in rest]
        return LabelPosterior(context, *joined, converged=np.concatenate(converged, axis=1)[:, places])

    def most_labels(self, n_classes: np.ndarray) -> np.ndarray:
        """Return how many labels of tasks with so many classes can be conditioned on in seconds, in hundreds."""
        return ((MAX_WORK / _latent_functions(n_classes)) ** (1.0 / 3.0) // 100 * 100).astype(int)

    def expected_seconds(self, sizes: np.ndarray, n_classes: np.ndarray) -> float:
        """Return about how long contexts of such sizes take, one after the other."""
        operations = NEWTON_STEPS * _latent_functions(n_classes) * sizes.astype(np.float64) ** 3
        return float(np.sum(operations)) / FLOPS

    def float32_problem(self, largest_context: int, standardized: bool) -> str | None:
        """Return None: hierarchical priors always compute in double precision."""
        return None


def _latent_functions(n_classes: np.ndarray) -> np.ndarray:
    """Return how much work tasks are, in units of one latent function of several; measured for two classes."""
    return np.where(n_classes == 2, 0.8, n_classes + 2.0 / 3.0)
