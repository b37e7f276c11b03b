"""Class probabilities against dense quadrature, in the tails too."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_expit, logsumexp

from metaprior.likelihoods.softmax import log_logistic, log_probabilities

Z = np.linspace(-40.0, 40.0, 200_001)
MEANS = [-300.0, -50.0, -20.0, -5.0, -1.0, 0.0, 0.5, 3.0, 30.0]


def dense_logistic(mean, variance):
    """log E[sigmoid(t)] by the trapezoidal rule over 40 standard deviations."""
    density = -0.5 * Z**2 - 0.5 * np.log(2.0 * np.pi) + np.log(Z[1] - Z[0])
    return logsumexp(log_expit(mean + np.sqrt(variance) * Z) + density)


def dense_of_three(mean, covariance, n_points=201):
    """Log E[softmax(t)] of three classes by a grid over the differences t_2 - t_1 and t_3 - t_1."""
    differences = np.array([[-1.0, 1.0, 0.0], [-1.0, 0.0, 1.0]])
    root = np.linalg.cholesky(differences @ covariance @ differences.T)
    z = np.linspace(-9.0, 9.0, n_points)
    grid = np.stack(np.meshgrid(z, z, indexing="ij"), axis=-1).reshape(-1, 2)
    t = np.pad(differences @ mean + grid @ root.T, [(0, 0), (1, 0)])
    density = -0.5 * np.sum(grid**2, axis=1) - np.log(2.0 * np.pi) + 2.0 * np.log(z[1] - z[0])
    return logsumexp(t - logsumexp(t, axis=1, keepdims=True) + density[:, None], axis=0)


def draw(seed, n_classes, scale, n=()):
    """Means and covariances, of about the given variance."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(*n, n_classes, n_classes)) * np.sqrt(scale / n_classes)
    return np.sqrt(scale) * rng.normal(size=(*n, n_classes)), root @ np.swapaxes(root, -1, -2)


@pytest.mark.parametrize("variance", [1e-8, 0.1, 1.0, 3.1, 3.2, 10.0, 100.0, 1e3, 1e5])
def test_two_classes(variance):
    """Within 2e-5 of the logarithm, at probabilities of e^-300 too."""
    means = np.array(MEANS)
    expected = [dense_logistic(mean, variance) for mean in MEANS]
    np.testing.assert_allclose(log_logistic(means, np.full(len(means), variance)), expected, atol=2e-5)
    covariance = np.broadcast_to(np.diag([0.25 * variance, 0.75 * variance]), (len(means), 2, 2))
    pairs = np.stack([np.zeros(len(means)), means], axis=1)
    np.testing.assert_allclose(log_probabilities(pairs, covariance)[:, 1], expected, atol=2e-5)


def test_two_classes_with_correlated_latent_functions():
    covariance = np.array([[[2.0, 0.9], [0.9, 1.0]]])
    [found] = log_probabilities(np.array([[1.0, 0.3]]), covariance)
    np.testing.assert_allclose(found, [dense_logistic(0.7, 1.2), dense_logistic(-0.7, 1.2)], atol=1e-8)


@pytest.mark.parametrize(("scale", "atol"), [(1e-4, 2e-6), (0.1, 2e-3), (1.0, 0.008), (10.0, 0.02), (1e3, 0.05)])
def test_three_classes(scale, atol):
    """About 128 points err by up to 0.006 at unit variance, and 0.04 at a thousand."""
    errors = []
    for seed in range(6):
        mean, covariance = draw(seed, 3, scale)
        found = np.exp(log_probabilities(mean, covariance))
        errors.append(np.abs(found - np.exp(dense_of_three(mean, covariance))).max())
    assert max(errors) < atol


@given(seed=st.integers(0, 10_000), n_classes=st.integers(2, 8), log_scale=st.floats(-6.0, 6.0))
def test_probabilities_sum_to_one(seed, n_classes, log_scale):
    mean, covariance = draw(seed, n_classes, 10.0**log_scale, (3,))
    for found in (log_probabilities(mean, covariance), log_probabilities(mean, None)):
        assert found.shape == (3, n_classes)
        np.testing.assert_allclose(np.exp(found).sum(axis=-1), 1.0, atol=1e-12)


def test_without_a_covariance_it_is_softmax():
    mean, _ = draw(0, 4, 1.0, (5,))
    np.testing.assert_allclose(log_probabilities(mean, None), mean - logsumexp(mean, axis=1, keepdims=True))
    nothing = np.zeros((5, 4, 4))
    np.testing.assert_allclose(log_probabilities(mean, nothing), log_probabilities(mean, None), atol=1e-12)


@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_classes_that_a_task_lacks_have_no_probability(scale):
    """The others are exactly as without them, in one array with tasks that have more."""
    mean, covariance = draw(1, 4, scale, (6,))
    numbers = np.array([3, 2, 4, 3, 2, 4])
    found = log_probabilities(np.where(np.arange(4) < numbers[:, None], mean, -np.inf), covariance)
    for row, k in enumerate(numbers.tolist()):
        assert (found[row, k:] == -np.inf).all()
        alone = log_probabilities(mean[row : row + 1, :k], covariance[row : row + 1, :k, :k])
        np.testing.assert_allclose(found[row : row + 1, :k], alone, rtol=1e-12)


@pytest.mark.parametrize("n_classes", [2, 3, 5, 10])
def test_equal_classes_have_equal_probabilities(n_classes):
    """Before any sample is seen no class is preferred."""
    covariance = 4.0 * np.eye(n_classes) + 0.7
    found = np.exp(log_probabilities(np.zeros((1, n_classes)), covariance[None]))
    np.testing.assert_allclose(found, 1.0 / n_classes, atol=1e-6 if n_classes == 2 else 1e-12)
    mean = np.eye(n_classes)[:1]
    found = np.exp(log_probabilities(np.stack([np.roll(mean[0], by) for by in range(n_classes)]), covariance[None]))
    np.testing.assert_allclose(np.diagonal(found), found[0, 0], rtol=1e-9)


@pytest.mark.parametrize("variance", [0.1, 3.0, 100.0])
def test_what_classes_are_called_does_not_matter(variance):
    rng = np.random.default_rng(0)
    root, mean, order = rng.normal(size=(20, 5, 5)), rng.normal(size=(20, 5)), np.array([3, 0, 4, 1, 2])
    covariance = variance * root @ np.swapaxes(root, 1, 2)
    renamed = log_probabilities(mean[:, order], covariance[:, order][:, :, order])
    np.testing.assert_allclose(renamed, log_probabilities(mean, covariance)[:, order], atol=1e-6)


@pytest.mark.parametrize(("variance", "atol", "rtol"), [(1.0, 0.01, 0.1), (30.0, 0.03, 0.7), (1e4, 0.03, 2.0)])
def test_small_probabilities_of_wide_latent_functions(variance, atol, rtol):
    """Against draws: probabilities of one in a thousand must not vanish between the points."""
    rng = np.random.default_rng(1)
    for _ in range(3):
        root, mean = np.sqrt(variance / 5.0) * rng.normal(size=(5, 5)), np.sqrt(variance) * rng.normal(size=5)
        t = mean + rng.normal(size=(100_000, 5)) @ root.T
        expected = np.exp(t - logsumexp(t, axis=1, keepdims=True)).mean(axis=0)
        found = np.exp(log_probabilities(mean[None], (root @ root.T)[None])[0])
        np.testing.assert_allclose(found, expected, atol=atol)
        likely = expected > 1e-3
        np.testing.assert_allclose(np.log(found[likely]), np.log(expected[likely]), atol=rtol)
