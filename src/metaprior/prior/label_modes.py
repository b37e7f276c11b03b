"""The mode of the Gibbs density of theta given labels, with latent functions and mean weights integrated out."""

from collections.abc import Sequence

import numpy as np

from metaprior.prior.blocks import Block
from metaprior.prior.label_evidence import LabelBlock, LabelEvidence, label_evidence
from metaprior.prior.label_slopes import label_slopes
from metaprior.prior.layout import Layout, OnBlock
from metaprior.prior.modes import Mode, climb
from metaprior.prior.softmax import Labels


class LabelObjective:
    """The log Gibbs density of theta given the labels of some tasks.

    `blocks` have classes 0, 1, ... in place of readings, `n_classes` the number of classes of every task of each
    block. `common` says whether there is a common mean: only if classes mean the same in all tasks.
    """

    def __init__(
        self,
        layout: Layout,
        blocks: Sequence[Block],
        n_classes: Sequence[np.ndarray],
        points: np.ndarray,
        common: bool,
    ):
        self.layout, self.blocks, self.common, self.points = layout, blocks, common, points
        self.n_classes, self.most = n_classes, max(int(numbers.max()) for numbers in n_classes)
        self._start: list[np.ndarray] | None = None  # near the mode of the latent functions

    def given(self, parts: Sequence[OnBlock]) -> list[LabelBlock]:
        """Return the labels given theta."""
        found = []
        for part, n_classes in zip(parts, self.n_classes, strict=True):
            block = part.block
            labels = Labels.of(block.y, block.mask, n_classes, self.most, part.covariance)
            used = self._unit * part.features if self.common else part.features[..., :0]
            found.append(LabelBlock(labels, used, block.counts))
        return found

    def evidence(self, theta: np.ndarray) -> LabelEvidence:
        """Return the evidence and the mode of the latent functions."""
        prior = self.layout.at(theta, self.points)
        return label_evidence(self.given([prior.on(block) for block in self.blocks]), self._start)

    def __call__(self, theta: np.ndarray, gradient: bool = True) -> tuple[float, np.ndarray]:
        """Return log p(theta) + J, with its derivative by theta unless told otherwise."""
        layout = self.layout
        prior = layout.at(theta, self.points)
        parts = [prior.on(block) for block in self.blocks]
        given = self.given(parts)
        evidence = label_evidence(given, self._start)
        z = (theta - layout.center) / layout.spread
        value, slope = evidence.value - 0.5 * float(z @ z), -z / layout.spread
        if not (np.isfinite(value) and evidence.converged):
            return np.inf, slope  # keep the previous starting point
        self._start = evidence.coefficients
        if not gradient:
            return value, slope
        by_block = []
        for part, (by_covariance, by_features) in zip(parts, label_slopes(given, evidence), strict=True):
            by_mean = self._unit * by_features if self.common else np.zeros_like(part.features)
            by_block.append((self._unit**2 * by_covariance, by_mean))
        return value, slope + prior.gradient(parts, by_block)

    @property
    def _unit(self) -> float:
        """Standard deviation of the difference of two classes that t stands for, or of one class."""
        return 2.0**0.5 if self.most == 2 else 1.0

    def find_mode(self, near: Sequence[Mode], max_iterations: int) -> Mode:
        """Return the mode of theta."""
        return climb(self.layout, self, near, max_iterations)
