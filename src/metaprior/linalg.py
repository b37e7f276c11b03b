"""Small dense linear algebra without the checks that would take longer than the work itself."""

import numpy as np
from scipy.linalg import lapack

Array = np.ndarray
ROUNDING = float(np.finfo(np.float64).eps) ** (2 / 3)  # of a variance, below which differences are noise
JITTERS = (0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2)  # tried in turn, of the diagonal
FLOPS = 1.6e10  # operations per second of one core, with large matrices
BLAS_SIZE = 64  # above this, one matrix at a time, skipping zeros, is faster than all at once


def cholesky(matrix: np.ndarray) -> np.ndarray:
    """Return the lower Cholesky factor; raise LinAlgError if the matrix is not positive definite."""
    factor, info = lapack.dpotrf(matrix, lower=1, clean=1)  # type: ignore[attr-defined]
    if info:
        raise np.linalg.LinAlgError("the matrix is not positive definite")
    return factor


def stable_cholesky(matrices: np.ndarray) -> np.ndarray:
    """Return Cholesky factors (..., n, n), with as much added to each diagonal as rounding makes necessary."""
    try:
        return np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        each = matrices.reshape(-1, *matrices.shape[-2:])
        return np.stack([_jittered_cholesky(one) for one in each]).reshape(matrices.shape)


def _jittered_cholesky(matrix: np.ndarray) -> np.ndarray:
    diagonal = np.diagonal(matrix)
    for jitter in JITTERS:
        try:
            return np.linalg.cholesky(matrix + np.diag(jitter * diagonal))
        except np.linalg.LinAlgError:
            continue
    raise np.linalg.LinAlgError("a covariance is not positive definite")


def invert_roots(matrices: np.ndarray) -> None:
    """Overwrite symmetric matrices (..., n, n) with the inverses of their Cholesky factors: large ones have no copies.

    As much is added to each diagonal as rounding makes necessary.
    """
    if matrices.shape[-1] < BLAS_SIZE:
        matrices[...] = triangular_inverses(stable_cholesky(matrices))
        return
    for place in np.ndindex(matrices.shape[:-2]):
        _invert_root(matrices[place])


def _invert_root(matrix: np.ndarray) -> None:
    diagonal, upper = np.diagonal(matrix).copy(), matrix.T  # LAPACK's order of memory, which it overwrites
    for jitter in JITTERS:
        if jitter:  # the other triangle is still that of the matrix
            kept = np.triu(matrix, 1)
            matrix[...] = kept + kept.T
            np.fill_diagonal(matrix, (1.0 + jitter) * diagonal)
        _, failed = lapack.dpotrf(upper, lower=0, clean=0, overwrite_a=1)  # type: ignore[attr-defined]
        if not failed:
            break
    else:
        raise np.linalg.LinAlgError("a covariance is not positive definite")
    lapack.dtrtri(upper, lower=0, overwrite_c=1)  # type: ignore[attr-defined]
    for i, row in enumerate(matrix):
        row[i + 1 :] = 0.0


def triangular_inverse(factor: np.ndarray) -> np.ndarray:
    """Return the inverse of a lower triangular matrix."""
    inverse, info = lapack.dtrtri(factor, lower=1)  # type: ignore[attr-defined]
    if info:
        raise np.linalg.LinAlgError("the factor is singular")
    return inverse


def triangular_inverses(factors: np.ndarray) -> np.ndarray:
    """Return the inverses of lower triangular matrices (..., n, n)."""
    if factors.shape[-1] < BLAS_SIZE:
        return np.linalg.inv(factors)
    inverses = [triangular_inverse(factor) for factor in factors.reshape(-1, *factors.shape[-2:])]
    return np.stack(inverses).reshape(factors.shape)


def positive_inverses(matrices: np.ndarray) -> np.ndarray:
    """Return the inverses of symmetric, positive definite matrices (..., n, n)."""
    if matrices.shape[-1] < BLAS_SIZE:
        return np.linalg.inv(matrices)
    inverses = np.empty(matrices.shape)
    for place in np.ndindex(matrices.shape[:-2]):
        inverse, info = lapack.dpotri(cholesky(matrices[place]), lower=1)  # type: ignore[attr-defined]
        if info:
            raise np.linalg.LinAlgError("the matrix is singular")
        inverses[place] = inverse + np.tril(inverse, -1).T
    return inverses


def log_sum_exp(values: np.ndarray, axis: int) -> np.ndarray:
    """Return log sum exp along an axis; minus infinity where all values are."""
    largest = np.max(values, axis=axis, keepdims=True)
    largest = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.sum(np.exp(values - largest), axis=axis)) + np.squeeze(largest, axis))
