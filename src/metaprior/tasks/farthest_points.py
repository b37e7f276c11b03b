"""Inputs that cover the range of all others."""

import numpy as np

MAX_INPUTS = 5000  # of more, some are looked at


def farthest_points(inputs: np.ndarray, n_points: int) -> np.ndarray:
    """Return `n_points` inputs by farthest-point sampling, starting with the one closest to the mean."""
    if len(inputs) > MAX_INPUTS:
        inputs = inputs[np.linspace(0, len(inputs) - 1, MAX_INPUTS).astype(int)]
    chosen = [int(np.sum((inputs - inputs.mean(axis=0)) ** 2, axis=1).argmin())]
    distance = np.full(len(inputs), np.inf)
    for _ in range(n_points - 1):
        distance = np.minimum(distance, np.sum((inputs - inputs[chosen[-1]]) ** 2, axis=1))
        chosen.append(int(distance.argmax()))
    return inputs[chosen]
