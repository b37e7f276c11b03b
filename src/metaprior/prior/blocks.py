"""The tasks of a fit, padded in blocks of similar sizes with all that does not depend on theta; inducing points."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from metaprior.prior.columns import Columns
from metaprior.prior.process import with_ones
from metaprior.tasks.types import Task, group_by_size, pad_to

MAX_INPUTS = 5000  # of more, some are looked at
# Points are rounded, to about this share of the standard deviation of each column, because a saved prior holds them: of
# several columns, a row may be the age, weight and ward of a patient. Far less than a length scale.
STEP, STEP_SEVERAL = 1 / 16, 1 / 4


class Gaussians(NamedTuple):
    """The readings of a block of tasks given m: y_i ~ N(F_i m, C_i). Padding has y = 0, F = 0 and C = I."""

    y: np.ndarray  # (tasks, n)
    features: np.ndarray  # F, (tasks, n, m)
    covariance: np.ndarray  # C, (tasks, n, n)
    counts: np.ndarray  # c, (tasks,)


def farthest_points(inputs: np.ndarray, n_points: int, places: np.ndarray | None = None) -> np.ndarray:
    """Return `n_points` inputs by farthest-point sampling, rounded, starting with the one closest to the mean.

    Distances are those of `places` if these are given, (n, any).
    """
    places = inputs if places is None else places
    if len(inputs) > MAX_INPUTS:
        some = np.linspace(0, len(inputs) - 1, MAX_INPUTS).astype(int)
        inputs, places = inputs[some], places[some]
    chosen = [int(np.sum((places - places.mean(axis=0)) ** 2, axis=1).argmin())]
    distance = np.full(len(places), np.inf)
    for _ in range(n_points - 1):
        distance = np.minimum(distance, np.sum((places - places[chosen[-1]]) ** 2, axis=1))
        chosen.append(int(distance.argmax()))
    return _rounded(inputs[chosen], inputs.std(axis=0))


def _rounded(points: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Round points to multiples of a power of two; constant columns stay."""
    varies = std > 0
    share = STEP if points.shape[1] == 1 else STEP_SEVERAL
    step = share * 2.0 ** np.round(np.log2(std, where=varies, out=np.zeros_like(std)))
    return np.where(varies, np.round(points / step) * step, points)


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
    columns: Columns,
    max_blocks: int = 3,
) -> list[Block]:
    """Pad standardized tasks into at most `max_blocks` sizes."""
    sizes = np.array([len(task.y) for task in tasks])
    blocks = []
    for size, members in group_by_size(sizes, max_blocks):
        x, y, mask = pad_to([tasks[i] for i in members.tolist()], size, np.float64)
        real, inputs = mask.astype(np.float64), x[..., : columns.n_inputs]
        between = columns.squared_distances(inputs, inputs)
        to_points = columns.squared_distances(inputs, np.broadcast_to(points, (len(x), *points.shape)))
        line = with_ones(inputs) * real[..., None]
        of_tasks = counts[members], is_target[members].astype(np.float64)
        blocks.append(Block(x, y * real, real, *of_tasks, line, between, to_points))
    return blocks


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
