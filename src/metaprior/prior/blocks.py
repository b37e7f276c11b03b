"""The tasks of a fit, standardized and padded in blocks of similar sizes, with all that does not depend on theta."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from metaprior.prior.layout import is_separate
from metaprior.tasks.farthest_points import farthest_points
from metaprior.tasks.padding import group_by_size, pad_to
from metaprior.tasks.types import Task

MANY_INPUTS = 32
NEAREST = 1e-3  # distance of two inducing points
N_POINTS, N_POINTS_SEVERAL = 20, 40  # inducing points of the common curve, with one input and with several


@dataclass(frozen=True, eq=False)
class Block:
    """Tasks padded to one size. Padding has a mask of zero, and zeros in `y`, `line`, `curve` and `features`."""

    x: np.ndarray  # (tasks, n, input_dim + columns of covariates)
    y: np.ndarray  # (tasks, n)
    mask: np.ndarray  # (tasks, n), 1.0 where there is a reading
    counts: np.ndarray  # (tasks,): how much the evidence of each task counts
    is_target: np.ndarray  # (tasks,), 1.0 for tasks of the target environment
    line: np.ndarray  # (tasks, n, 1 + input_dim): l(x)
    between: np.ndarray  # (tasks, n, n, d or 1): squared distances of the inputs of a task
    to_points: np.ndarray  # (tasks, n, points, d or 1): squared distances from the inducing points
    curve: np.ndarray | None = None  # (tasks, n, n_curve)
    features: np.ndarray | None = None  # (tasks, n, n_features)
    noise: np.ndarray | None = None  # (tasks, n): a variance that is known of each reading, beside that of theta

    @property
    def inputs(self) -> np.ndarray:
        """(tasks, n, input_dim)."""
        return self.x[..., : self.line.shape[-1] - 1]

    @property
    def covariates(self) -> np.ndarray:
        """(tasks, n, columns of covariates): z, zero for padding."""
        return self.x[..., self.line.shape[-1] - 1 :] * self.mask[..., None]


def make_blocks(
    tasks: Sequence[Task],
    counts: np.ndarray,
    is_target: np.ndarray,
    points: np.ndarray,
    max_blocks: int = 3,
    separate: bool | None = None,
    widths: tuple[int, ...] | None = None,
) -> list[Block]:
    """Pad standardized tasks into at most `max_blocks` sizes. Columns beyond those of the points are covariates."""
    sizes = np.array([len(task.y) for task in tasks])
    blocks = []
    for size, members in group_by_size(sizes, max_blocks):
        x, y, mask = pad_to([tasks[i] for i in members.tolist()], size, np.float64)
        blocks.append(make_block(x, y, mask, counts[members], is_target[members], points, separate, widths))
    return blocks


def make_block(
    x: np.ndarray,
    y: np.ndarray,
    mask: np.ndarray,
    counts: np.ndarray,
    is_target: np.ndarray,
    points: np.ndarray,
    separate: bool | None = None,
    widths: tuple[int, ...] | None = None,
) -> Block:
    """Compute what does not depend on theta."""
    real, inputs = mask.astype(np.float64), x[..., : points.shape[1]]
    between = squared_distances(inputs, inputs, separate, widths)
    to_points = squared_distances(inputs, np.broadcast_to(points, (len(x), *points.shape)), separate, widths)
    return Block(x, y * real, real, counts, is_target.astype(np.float64), line(inputs, real), between, to_points)


def line(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return l(x) = (1, x), zero for padding."""
    return np.concatenate([np.ones((*x.shape[:-1], 1)), x], axis=-1) * mask[..., None]


def squared_distances(
    x: np.ndarray, z: np.ndarray, separate: bool | None = None, widths: tuple[int, ...] | None = None
) -> np.ndarray:
    """Return squared distances (..., n, m, d) along every input, or (..., n, m, 1) in all inputs that share scales.

    With `widths`, d is the number of variables, which have as many columns.
    """
    apart = is_separate(x.shape[-1] if widths is None else len(widths), separate)
    if widths is not None:
        parts = [_summed_distances(*pair) for pair in zip(_groups(x, widths), _groups(z, widths), strict=True)]
        return np.concatenate(parts, axis=-1) if apart else np.sum(parts, axis=0)
    if x.shape[-1] > MANY_INPUTS and not apart:  # differences along each would need as many times the memory
        return _summed_distances(x, z)
    differences = x[..., :, None, :] - z[..., None, :, :]
    return differences**2 if apart else np.sum(differences**2, axis=-1, keepdims=True)


def _summed_distances(x: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return squared distances in all columns, (..., n, m, 1)."""
    if x.shape[-1] == 1:
        return (x[..., :, None, :] - z[..., None, :, :]) ** 2
    norms = np.sum(x**2, axis=-1)[..., :, None] + np.sum(z**2, axis=-1)[..., None, :]
    return np.maximum(norms - 2.0 * x @ np.swapaxes(z, -1, -2), 0.0)[..., None]


def _groups(x: np.ndarray, widths: tuple[int, ...]) -> list[np.ndarray]:
    return np.split(x, np.cumsum(widths)[:-1], axis=-1)


def place_points(tasks: Sequence[Task], n_inputs: int | None = None) -> np.ndarray:
    """Choose inducing points near the distinct inputs, the first columns of x.

    Along one input they are spread over its range and over the ranks of the readings, half and half: a few late
    readings must not leave the others without points.
    """
    readings = np.concatenate([task.x[:, :n_inputs] for task in tasks])
    inputs, counts = np.unique(readings, axis=0, return_counts=True)
    n_points, places = min(N_POINTS_SEVERAL, len(inputs)), inputs
    if inputs.shape[1] == 1:
        ranks = np.cumsum(counts)[:, None] - 0.5 * counts[:, None]
        n_points, places = min(N_POINTS, len(inputs)), inputs / (np.ptp(inputs) or 1.0) + ranks / len(readings)
    points = farthest_points(inputs, n_points, places)
    squared = np.sum((points[:, None] - points) ** 2, axis=-1)
    return points[[i for i in range(len(points)) if i == 0 or squared[i, :i].min() >= NEAREST**2]]
