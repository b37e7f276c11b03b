"""What exported tasks have in place of scipy's functions and of LAPACK's: the same numbers, with NumPy alone."""

import math
from statistics import NormalDist

import numpy as np

from metaprior.linalg import stable_cholesky

FAR_LEFT = -35.0  # from which on the distribution function has an asymptotic series


def ndtr(z: np.ndarray) -> np.ndarray:
    """Return the standard normal distribution function."""
    return 0.5 * np.vectorize(math.erfc, otypes=[float])(-np.asarray(z) / math.sqrt(2.0))


def log_ndtr(z: np.ndarray) -> np.ndarray:
    """Return its logarithm."""
    w = 1.0 / np.minimum(z, FAR_LEFT) ** 2
    series = 1.0 - w * (1.0 - 3.0 * w * (1.0 - 5.0 * w * (1.0 - 7.0 * w)))
    tail = -0.5 / w + 0.5 * np.log(w / (2.0 * math.pi)) + np.log(series)
    return np.where(z < FAR_LEFT, tail, np.log(ndtr(np.maximum(z, FAR_LEFT))))


def ndtri(p: np.ndarray | float) -> np.ndarray:
    """Return its inverse."""
    inner = lambda each: NormalDist().inv_cdf(each) if 0.0 < each < 1.0 else math.copysign(math.inf, each - 0.5)  # noqa: E731
    return np.vectorize(inner, otypes=[float])(p)


def expit(t: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-t))."""
    return np.exp(log_expit(t))


def log_expit(t: np.ndarray) -> np.ndarray:
    """Return its logarithm."""
    return -np.logaddexp(0.0, -np.asarray(t, float))


def invert_roots(matrices: np.ndarray) -> None:
    """Overwrite symmetric matrices (..., n, n) with the inverses of their Cholesky factors."""
    matrices[...] = np.linalg.inv(stable_cholesky(matrices))


def triangular_inverses(factors: np.ndarray) -> np.ndarray:
    """Return the inverses of lower triangular matrices (..., n, n)."""
    return np.linalg.inv(factors)


def positive_inverses(matrices: np.ndarray) -> np.ndarray:
    """Return the inverses of symmetric, positive definite matrices (..., n, n)."""
    return np.linalg.inv(matrices)
