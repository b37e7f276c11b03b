"""Inputs to draw predictions at."""

from typing import Any

import numpy as np

N_GRID = 201
MARGIN = 0.05  # of the range of the points, on either side
RANGE = 2.5  # standard deviations of the meta-training inputs, on either side of their mean


def grid_over(meta: Any, column: int, *inputs: np.ndarray, n_points: int = N_GRID) -> np.ndarray:
    """Return a grid of an input column that covers all points, or without any the meta-training inputs."""
    points = np.concatenate(inputs)[:, column]
    if not len(points):
        return prior_range(meta, column, n_points)
    low, high = float(points.min()), float(points.max())
    margin = MARGIN * (high - low) or float(meta.model_.members[0].scaling.x_std[column])
    return np.linspace(low - margin, high + margin, n_points)


def prior_range(meta: Any, column: int, n_points: int = N_GRID) -> np.ndarray:
    """Return a grid of an input column that covers most of the meta-training inputs."""
    scaling = meta.model_.members[0].scaling
    middle, spread = float(scaling.x_mean[column]), float(scaling.x_std[column])
    return np.linspace(middle - RANGE * spread, middle + RANGE * spread, n_points)
