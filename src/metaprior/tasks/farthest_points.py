"""Inputs that cover the range of all others."""

import numpy as np

MAX_INPUTS = 5000  # of more, some are looked at
# Points are rounded, to about this share of the standard deviation of each column, because a saved prior holds them: of
# several columns, a row may be the age, weight and ward of a patient. Far less than a length scale.
STEP, STEP_SEVERAL = 1 / 16, 1 / 4


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
