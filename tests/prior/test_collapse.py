"""The mean's weights integrated out: against scipy, quadrature over the weights, and finite differences."""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from metaprior.linalg import cholesky, log_sum_exp, triangular_inverse
from metaprior.prior.blocks import Gaussians
from metaprior.prior.evidence import collapse, slopes


def make_block(rng, sizes, n_features, counts):
    """Random tasks, padded to the largest size."""
    n = max(sizes)
    y, features = rng.normal(size=(len(sizes), n)), rng.normal(size=(len(sizes), n, n_features))
    covariance = np.tile(np.eye(n), (len(sizes), 1, 1))
    for i, size in enumerate(sizes):
        root = rng.normal(size=(size, size))
        covariance[i, :size, :size] = root @ root.T + 0.5 * np.eye(size)
        y[i, size:], features[i, size:] = 0.0, 0.0
    return Gaussians(y, features, covariance, np.array(counts, float))


def make_blocks(n_features=3, counts=((1.0, 1.0, 1.0), (1.0, 1.0))):
    rng = np.random.default_rng(0)
    return [make_block(rng, sizes, n_features, c) for sizes, c in zip([(2, 1, 3), (5, 4)], counts, strict=True)]


UNEVEN = ((1.0, 0.3, 2.5), (0.1, 0.7))


def test_value_and_posterior_equal_quadrature_over_the_weights():
    blocks = make_blocks(n_features=2, counts=UNEVEN)
    nodes = np.arange(-6.0, 6.0, 0.05)
    m = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    log_values = multivariate_normal.logpdf(m, cov=np.eye(2)) + 2.0 * np.log(0.05)
    for b in blocks:
        for y, f, c, count in zip(*b, strict=True):
            constant = 0.5 * len(y) * np.log(2.0 * np.pi)
            log_values += count * (multivariate_normal.logpdf(y - m @ f.T, cov=c) + constant)
    total = logsumexp(log_values)
    probabilities = np.exp(log_values - total)
    mean = probabilities @ m
    found = collapse(blocks)
    np.testing.assert_allclose(found.value, total, rtol=1e-9)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-9)
    covariance = (m - mean).T @ (probabilities[:, None] * (m - mean))
    np.testing.assert_allclose(found.root @ found.root.T, covariance, rtol=1e-9)


@pytest.mark.parametrize("which", ["covariance", "features"])
def test_slopes_against_finite_differences(which):
    blocks = make_blocks(counts=UNEVEN)
    rng, step = np.random.default_rng(1), 1e-5
    found = slopes(blocks, collapse(blocks))
    for place, block in enumerate(blocks):
        for task in range(len(block.y)):
            change = np.zeros_like(getattr(block, which))
            change[task] = rng.normal(size=change.shape[1:])
            if which == "covariance":
                change += np.swapaxes(change, 1, 2)
            values = []
            for sign in (1.0, -1.0):
                moved = block._replace(**{which: getattr(block, which) + sign * step * change})
                values.append(collapse([*blocks[:place], moved, *blocks[place + 1 :]]).value)
            slope = np.sum(found[place][which == "features"] * change)
            np.testing.assert_allclose(slope, (values[0] - values[1]) / (2.0 * step), rtol=1e-6, atol=1e-7)


def test_covariances_that_are_not_positive_definite_raise():
    blocks = make_blocks()
    blocks[1].features[1] = 0.0
    blocks[1].covariance[1] = np.diag([1.0, 1.0, -0.1, 1.0, -0.1])  # a positive determinant, and an inverse
    with pytest.raises(np.linalg.LinAlgError):
        collapse(blocks)


def test_cholesky_and_triangular_inverse_against_numpy():
    root = np.random.default_rng(2).normal(size=(5, 5))
    matrix = root @ root.T
    factor = cholesky(matrix)
    np.testing.assert_allclose(factor, np.linalg.cholesky(matrix), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(triangular_inverse(factor) @ factor, np.eye(5), atol=1e-9)
    with pytest.raises(np.linalg.LinAlgError, match="positive definite"):
        cholesky(matrix - 2.0 * np.trace(matrix) * np.eye(5))
    with pytest.raises(np.linalg.LinAlgError, match="singular"):
        triangular_inverse(np.diag([1.0, 0.0]))


def test_log_sum_exp_against_scipy():
    values = np.array([[-1e4, -1e4 + 1.0, -np.inf], [-np.inf, 3.0, -np.inf]])
    for axis in (0, 1):
        with np.errstate(divide="ignore"):
            np.testing.assert_allclose(log_sum_exp(values, axis), logsumexp(values, axis=axis), rtol=1e-12)
    assert log_sum_exp(np.array([[-np.inf] * 2]), 1).tolist() == [-np.inf]
