"""Correlations of the intercept and slopes of tasks, as numbers that may have any value.

The root of a correlation matrix has rows r_i = u_i / |u_i|, where u_i = (sinh t_i1, ..., sinh t_i,i-1, 1, 0, ..., 0).
Any t gives a correlation matrix, and t = 0 the identity. Of two, the correlation is tanh t, so that t is Fisher's z.
"""

import numpy as np


def n_correlations(size: int) -> int:
    """Return how many numbers a correlation matrix of a size has."""
    return size * (size - 1) // 2


def correlation_root(t: np.ndarray, size: int) -> np.ndarray:
    """Return the lower triangular root of the correlation matrix, (size, size)."""
    rows = _rows(t, size)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def correlation_slopes(t: np.ndarray, size: int, of_root: np.ndarray) -> np.ndarray:
    """Return the derivative by t, given that by the root.

    With r = u / |u|: dJ/du = (g - r (r . g)) / |u|, where g = dJ/dr.
    """
    rows = _rows(t, size)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    root = rows / norms
    of_rows = (of_root - root * np.sum(root * of_root, axis=1, keepdims=True)) / norms
    return of_rows[np.tril_indices(size, -1)] * np.cosh(t)


def _rows(t: np.ndarray, size: int) -> np.ndarray:
    rows = np.eye(size)
    rows[np.tril_indices(size, -1)] = np.sinh(t)
    return rows
