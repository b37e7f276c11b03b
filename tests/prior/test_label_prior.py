"""Predictions of labels against scikit-learn and dense algebra."""

from dataclasses import replace

import numpy as np
import pytest
from label_problems import Task, dense_evidence
from scipy.special import log_expit, logsumexp
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import Kernel
from small_problems import make_tasks, make_theta

from hand_made_priors import SMOOTH
from metaprior import MetaGPClassifier
from metaprior.likelihoods.softmax import log_logistic
from metaprior.prior.blocks import place_points
from metaprior.prior.columns import Columns
from metaprior.prior.fitted import FittedTerms
from metaprior.prior.label_prior import LabelPrior
from metaprior.prior.layout import Layout
from metaprior.tasks.scaling import identity_scaling

N, QUERIES = 8, 5


class Given(Kernel):
    """A covariance matrix as a kernel, of the places of points in it."""

    def __init__(self, matrix):
        self.matrix = matrix

    def __call__(self, X, Y=None, eval_gradient=False):
        return self.matrix[np.ix_(X[:, 0].astype(int), (X if Y is None else Y)[:, 0].astype(int))]

    def diag(self, X):
        return np.diagonal(self(X))

    def is_stationary(self):
        return False


@pytest.fixture(scope="module")
def prior():
    layout, points = Layout(SMOOTH, Columns(2), 0.0), place_points(make_tasks(2))
    n_weights = 3 + len(points)
    nothing = np.zeros(n_weights), np.zeros((n_weights, n_weights))
    terms = FittedTerms(identity_scaling(2), layout, make_theta(layout, seed=1), points, *nothing)
    return LabelPrior(terms, np.zeros((0, n_weights)))


def draw(n_classes, n_tasks=1, seed=0):
    """Contexts, their labels, and queries."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_tasks, N + QUERIES, 2))
    return x[:, :N], rng.integers(0, n_classes, (n_tasks, N)).astype(float), x[:, N:]


def covariance(prior, x, queries):
    """The covariance of one class at contexts and queries."""
    every = np.concatenate([x, queries], axis=1)
    points = prior.terms.process.describe(every)
    return sum(prior.terms.process.covariance(points, points))


def predict(prior, x, y, queries, n_classes, mask=None, most=0):
    mask, numbers = np.ones(y.shape) if mask is None else mask, np.broadcast_to(n_classes, len(x))
    posterior = prior.condition_labels(x, y, mask, numbers, most)
    assert posterior.converged.all()
    return prior.latent(posterior, queries), prior.class_log_probabilities(posterior, queries)


def test_two_classes_are_those_of_scikit_learn(prior):
    x, y, queries = draw(2)
    peer = GaussianProcessClassifier(Given(2.0 * covariance(prior, x, queries)[0]), optimizer=None)
    peer.fit(np.arange(N)[:, None], y[0])
    mean, variance = peer.latent_mean_and_variance(np.arange(N, N + QUERIES)[:, None])
    latent, log_probabilities = predict(prior, x, y, queries, 2)
    np.testing.assert_allclose(latent.mean[0, :, 1] - latent.mean[0, :, 0], mean, atol=1e-5)
    contrast = np.array([-1.0, 1.0])
    np.testing.assert_allclose(contrast @ latent.covariance[0] @ contrast, variance, atol=1e-5)
    expected = peer.predict_proba(np.arange(N, N + QUERIES)[:, None])  # by five error functions
    np.testing.assert_allclose(np.exp(log_probabilities[:, 0].T), expected, atol=2e-3)


@pytest.mark.parametrize("n_classes", [3, 5])
def test_many_classes_are_those_of_dense_algebra(prior, n_classes):
    """Mean k' a and covariance k - k' R k, with R = (I + W K)^-1 W at the mode."""
    x, y, queries = draw(n_classes, seed=1)
    whole, identity = covariance(prior, x, queries)[0], np.eye(n_classes)
    one_hot = (y == np.arange(n_classes)[:, None]).astype(float)
    context = np.kron(identity, whole[:N, :N])
    task = Task(one_hot, np.ones(n_classes, bool), context, np.zeros((n_classes * N, 0)), 1.0)
    [t] = dense_evidence([task]).latent
    a, w = (one_hot - task.probabilities(t)).ravel(), task.curvature(t)
    latent, _ = predict(prior, x, y, queries, n_classes)
    for i in range(QUERIES):
        cross = np.kron(identity, whole[:N, N + i : N + i + 1])
        np.testing.assert_allclose(latent.mean[0, i], cross.T @ a, atol=1e-5)
        explained = cross.T @ np.linalg.solve(np.eye(len(w)) + w @ context, w @ cross)
        np.testing.assert_allclose(latent.covariance[0, i], whole[N + i, N + i] * identity - explained, atol=1e-5)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_padding_and_classes_that_a_task_lacks_change_nothing(prior, n_classes):
    x, y, queries = draw(n_classes, seed=2)
    latent, log_probabilities = predict(prior, x, y, queries, n_classes)
    mask = np.pad(np.ones(y.shape), [(0, 0), (0, 3)])
    padded = np.pad(x, [(0, 0), (0, 3), (0, 0)]), np.pad(y, [(0, 0), (0, 3)])
    wide, of_wide = predict(prior, *padded, queries, n_classes, mask)
    np.testing.assert_allclose(wide.mean, latent.mean, atol=1e-9)
    np.testing.assert_allclose(wide.covariance, latent.covariance, atol=1e-9)
    np.testing.assert_allclose(of_wide, log_probabilities, atol=1e-9)
    _, more = predict(prior, x, y, queries, n_classes, most=4)
    assert more.shape == (4, 1, QUERIES)
    assert (more[n_classes:] == -np.inf).all()
    np.testing.assert_allclose(np.exp(more[:n_classes]), np.exp(log_probabilities), atol=0.01)  # other points


@pytest.mark.parametrize("n_classes", [2, 3, 4])
def test_without_a_context_every_class_is_equally_probable(prior, n_classes):
    x, y, queries = draw(n_classes)
    _, log_probabilities = predict(prior, x[:, :0], y[:, :0], queries, n_classes)
    np.testing.assert_allclose(np.exp(log_probabilities), 1.0 / n_classes, atol=1e-6)


def test_factor_and_ratio_scale_the_latent_functions(prior):
    x, y, queries = draw(2)
    latent, _ = predict(prior, x, y, queries, 2)
    difference = latent.mean[0, :, 1] - latent.mean[0, :, 0]
    _, certain = predict(replace(prior, factor=3.0, ratio=0.0), x, y, queries, 2)
    np.testing.assert_allclose(certain[1, 0], log_expit(3.0 * difference), rtol=1e-9)
    variance = np.array([-1.0, 1.0]) @ latent.covariance[0] @ np.array([-1.0, 1.0])
    _, both = predict(replace(prior, factor=3.0, ratio=0.5), x, y, queries, 2)
    of_both = [log_logistic(sign * 3.0 * difference, 0.5 * 9.0 * variance) for sign in (-1.0, 1.0)]
    np.testing.assert_allclose(both[:, 0], of_both - logsumexp(of_both, axis=0), rtol=1e-9)
    _, plain = predict(prior, x, y, queries, 2)
    _, scaled = predict(replace(prior, factor=3.0), x, y, queries, 2)
    np.testing.assert_array_equal(plain.argmax(axis=0), scaled.argmax(axis=0))  # accuracy does not change
    assert (plain.max(axis=0) < scaled.max(axis=0)).all()
    _, sharper = predict(replace(prior, ratio=0.1), x, y, queries, 2)
    assert (plain.max(axis=0) < sharper.max(axis=0)).all()


def test_shrunk_latent_functions_are_those_of_scikit_learn_with_a_smaller_covariance(prior):
    x, y, queries = draw(2)
    peer = GaussianProcessClassifier(Given(2.0 * 0.3**2 * covariance(prior, x, queries)[0]), optimizer=None)
    peer.fit(np.arange(N)[:, None], y[0])
    mean, variance = peer.latent_mean_and_variance(np.arange(N, N + QUERIES)[:, None])
    latent, _ = predict(replace(prior, shrink=0.3), x, y, queries, 2)
    np.testing.assert_allclose(latent.mean[0, :, 1], mean, atol=1e-5)
    np.testing.assert_allclose(latent.covariance[0, :, 1, 1], variance, atol=1e-5)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_common_rule_shrinks_too(prior, n_classes):
    """So that without a context factor * shrink is all that counts."""
    rows = 1 if n_classes == 2 else n_classes
    ruled = replace(prior, weights=np.random.default_rng(0).normal(size=(rows, prior.weights.shape[1])))
    x, y, queries = draw(n_classes)
    empty = x[:, :0], y[:, :0], queries, n_classes
    _, plain = predict(ruled, *empty)
    _, shrunk = predict(replace(ruled, factor=4.0, shrink=0.25), *empty)
    np.testing.assert_allclose(shrunk, plain, atol=1e-9)


def test_posteriors_are_joined_and_picked(prior):
    x, y, queries = draw(3, n_tasks=3)
    whole = prior.condition_labels(x, y, np.ones(y.shape), np.array([3, 3, 3]))
    parts = [prior.condition_labels(x[i : i + 1], y[i : i + 1], np.ones((1, N)), np.array([3])) for i in range(3)]
    order = np.array([2, 0])
    expected = prior.class_log_probabilities(whole, queries)[:, order]
    found = prior.class_log_probabilities(prior.take(parts, order), queries[order])
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize(("n_rows", "known", "asked"), [(1, 2, 3), (3, 3, 4)])
def test_a_common_rule_is_not_stretched_to_more_classes(prior, n_rows, known, asked):
    """The single row of two classes would otherwise be added to every one of several."""
    with_rule = replace(prior, weights=np.ones((n_rows, prior.weights.shape[1])))
    x, y, queries = draw(asked)
    with pytest.raises(ValueError, match=f"n_classes must be at most {known}, .*common rule for; got {asked}"):
        predict(with_rule, x, y, queries, asked)
    assert predict(with_rule, x, np.minimum(y, known - 1), queries, known)[1].shape == (known, 1, QUERIES)


def test_a_rule_of_two_classes_has_the_log_odds_of_many_tasks():
    """Its weights are learned in units of the difference of two classes, and predicted as that difference."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 20, 1))
    labels = np.where(rng.random(x.shape[:2]) < 1.0 / (1.0 + np.exp(-2.0 * x[..., 0])), "yes", "no")
    meta = MetaGPClassifier(shared_classes=True, calibrate=False, random_state=0).fit(
        target_tasks=list(zip(x, labels, strict=True))
    )
    no, yes = meta.adapt([], []).predict_proba([[-1.0], [1.0]])[1]
    assert abs(np.log(yes / no) - 2.0) < 0.3  # 1.41 without the root of two
