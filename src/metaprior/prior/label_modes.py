"""The mode of the Gibbs density of theta given labels, with latent functions and mean weights integrated out."""

from collections.abc import Sequence

import numpy as np

from metaprior.prior.blocks import Block, squared_distances
from metaprior.prior.label_evidence import LabelBlock, LabelEvidence, label_evidence
from metaprior.prior.label_slopes import label_slopes
from metaprior.prior.layout import Layout
from metaprior.prior.modes import Mode, climb
from metaprior.prior.softmax import Labels
from metaprior.prior.terms import deviations, make_basis, mean_features, point_slopes, pull_back


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
        self.layout, self.blocks, self.common = layout, blocks, common
        self.point_distances = squared_distances(points, points, layout.ard)
        self.n_classes, self.most = n_classes, max(int(numbers.max()) for numbers in n_classes)
        self._start: list[np.ndarray] | None = None  # near the mode of the latent functions

    def given(self, theta: np.ndarray) -> tuple[list[LabelBlock], list[np.ndarray], list[np.ndarray | None]]:
        """Return the labels given theta, their mean features, and the smooth parts of their covariances."""
        basis = make_basis(self.layout, theta, self.point_distances)
        given, features, smooth = [], [], []
        for block, n_classes in zip(self.blocks, self.n_classes, strict=True):
            covariance, part = deviations(self.layout, theta, block)
            of_block = mean_features(self.layout, theta, basis, block)
            labels = Labels.of(block.y, block.mask, n_classes, self.most, covariance)
            used = self._unit * of_block if self.common else of_block[..., :0]
            given.append(LabelBlock(labels, used, block.counts))
            features.append(of_block)
            smooth.append(part)
        return given, features, smooth

    def evidence(self, theta: np.ndarray) -> LabelEvidence:
        """Return the evidence and the mode of the latent functions."""
        return label_evidence(self.given(theta)[0], self._start)

    def __call__(self, theta: np.ndarray, gradient: bool = True) -> tuple[float, np.ndarray]:
        """Return log p(theta) + J, with its derivative by theta unless told otherwise."""
        layout = self.layout
        given, features, smooth = self.given(theta)
        evidence = label_evidence(given, self._start)
        z = (theta - layout.center) / layout.spread
        value, slope = evidence.value - 0.5 * float(z @ z), -z / layout.spread
        if not (np.isfinite(value) and evidence.converged):
            return np.inf, slope  # the next start is that of before
        self._start = evidence.coefficients
        if not gradient:
            return value, slope
        basis, of_root = make_basis(layout, theta, self.point_distances), 0.0
        parts = zip(self.blocks, features, smooth, label_slopes(given, evidence), strict=True)
        for block, of_block, part, (by_covariance, by_features) in parts:
            by_features = self._unit * by_features if self.common else np.zeros_like(of_block)
            by_covariance = self._unit**2 * by_covariance
            by_theta, by_root = pull_back(layout, theta, basis, block, of_block, part, by_covariance, by_features)
            slope += by_theta
            of_root = of_root + by_root
        if basis is not None:
            slope[layout.places["mean_lengths"]] += point_slopes(basis, np.asarray(of_root), self.point_distances)
        return value, slope

    @property
    def _unit(self) -> float:
        """Standard deviation of the difference of two classes that t stands for, or of one class."""
        return 2.0**0.5 if self.most == 2 else 1.0

    def find_mode(self, near: Sequence[Mode], max_iterations: int) -> Mode:
        """Return the mode of theta."""
        return climb(self.layout, self, near, max_iterations)
