"""Curves along covariates that are numbers: few smooth functions, whose weights are integrated out.

They make the mean a Gaussian process of a covariate z, with the RBF kernel of length one between points that cover
standardized values. The functions are those of the kernel less their average over z ~ N(0, 1), so that a task without
the covariate, for which they are zero, gets about the average, and a function of its own makes its band wider.
"""

import numpy as np

POINTS = np.linspace(-2.4, 2.4, 7)
RANK = 5  # those of the largest eigenvalues of the kernel between the points
N_FUNCTIONS = RANK + 1  # the last for tasks without the covariate, whose curve may be anywhere
AVERAGES = np.sqrt(0.5) * np.exp(-0.25 * POINTS**2)  # of the kernels over z ~ N(0, 1)


def _whitening() -> np.ndarray:
    """Return the map from kernels to functions with independent weights of variance one, (points, RANK)."""
    eigenvalues, vectors = np.linalg.eigh(np.exp(-0.5 * np.subtract.outer(POINTS, POINTS) ** 2))
    return vectors[:, -RANK:] / np.sqrt(eigenvalues[-RANK:])


WHITENING = _whitening()


def kernels(z: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Return the centered kernels between values of a covariate and the points, (..., points); zero where missing."""
    centered = np.exp(-0.5 * (z[..., None] - POINTS) ** 2) - AVERAGES
    return centered * (1.0 - missing[..., None])


def functions(covariates: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the functions of covariates, each a column of values before one that tells missing ones."""
    parts = []
    for column in columns.tolist():
        missing = covariates[..., column + 1]
        parts += [kernels(covariates[..., column], missing) @ WHITENING, missing[..., None]]
    return np.concatenate(parts, axis=-1)
