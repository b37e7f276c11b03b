"""Laplace's approximation for any number of classes against scikit-learn, dense algebra and closed forms."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from label_problems import as_tasks, dense_evidence, kernel, make_block
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from metaprior.likelihoods.softmax import Curvature, Labels, find_modes, softmax
from metaprior.linalg import positive_inverses

SCALES = [1e-3, 1e-1, 1.0, 10.0, 1e3]


def modes(labels, mean=None):
    """Return a, the latent functions at the mode, and the curvature there."""
    mean = np.zeros(labels.y.shape) if mean is None else mean
    a, converged = find_modes(labels, mean)
    assert converged.all()
    t = mean + labels.deviation(a)
    return a, t, Curvature.at(labels, t)


def evidence(labels):
    a, t, found = modes(labels)
    return labels.log_posterior(a, t, labels.deviation(a)) - 0.5 * found.log_determinant(labels)


def one_task(y, covariance, n_classes):
    """Return labels of a single task."""
    y = np.asarray(y, float)[None]
    return Labels.of(y, np.ones(y.shape), np.array([n_classes]), n_classes, covariance[None])


@pytest.mark.parametrize("scale", SCALES)
def test_two_classes_are_the_logistic_model_of_scikit_learn(scale):
    """Whose kernel is that of t_2 - t_1, twice that of either."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 2))
    y = (x[:, 0] + 0.7 * rng.normal(size=12) > 0.0).astype(int)
    peer = GaussianProcessClassifier(ConstantKernel(2.0 * scale) * RBF(1.0), optimizer=None, max_iter_predict=1000)
    peer.fit(x, y)
    labels = one_task(y, scale * kernel(x, x), 2)
    np.testing.assert_allclose(evidence(labels), peer.log_marginal_likelihood_value_, rtol=1e-8)
    _, t, _ = modes(labels)
    np.testing.assert_allclose(t[0, 0], peer.latent_mean_and_variance(x)[0], atol=1e-4, rtol=1e-4)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    n_classes=st.lists(st.integers(2, 6), min_size=1, max_size=4),
    log_scale=st.floats(-3.0, 3.0),
)
@example(seed=0, n_classes=[2, 2], log_scale=-3.0)
@example(seed=0, n_classes=[5, 2], log_scale=3.0)
def test_the_mode_is_where_the_slope_vanishes(seed, n_classes, log_scale):
    sizes = np.random.default_rng(seed).integers(1, 9, len(n_classes))
    labels = make_block(seed, sizes, n_classes, scale=10.0**log_scale).labels
    mean = np.random.default_rng(seed).normal(size=labels.y.shape) * labels.mask[:, None]
    a, t, found = modes(labels, mean)
    np.testing.assert_allclose(a, labels.y - softmax(labels, t), atol=2e-4)
    np.testing.assert_array_equal(found.probabilities, softmax(labels, t))
    if not labels.is_binary:
        np.testing.assert_allclose(found.probabilities.sum(axis=1), labels.mask, atol=1e-12)
    assert (found.probabilities[~labels.possible] == 0.0).all()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_every_task_of_a_block_has_the_evidence_of_dense_algebra(scale):
    block = make_block(3, (7, 2, 1, 5), (2, 3, 4, 4), scale=scale)
    for value, task in zip(evidence(block.labels), as_tasks(block), strict=True):
        np.testing.assert_allclose(value, dense_evidence([task]).value, rtol=1e-9)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("n_classes", [(3, 2, 3), (2, 2, 2)], ids=str)
def test_algebra_of_the_curvature_is_that_of_dense_matrices(n_classes, scale):
    """Far from the mode too, with classes that a task lacks and padding."""
    block = make_block(1, (5, 3, 1), n_classes, scale=scale)
    rng, labels = np.random.default_rng(0), block.labels
    t = 2.0 * rng.normal(size=labels.y.shape)
    found, v = (
        Curvature.at(labels, t),
        rng.normal(size=labels.y.shape) * labels.mask[:, None] * labels.possible[..., None],
    )
    log_determinant = found.log_determinant(labels)
    for i, task in enumerate(as_tasks(block)):
        kept = labels.mask[i] > 0
        w, flat = task.curvature(t[i][:, kept]), v[i][:, kept].ravel()
        both = np.eye(len(w)) + w @ task.covariance  # W is singular: (K + W^-1)^-1 is (I + W K)^-1 W
        np.testing.assert_allclose(log_determinant[i], np.linalg.slogdet(both)[1], rtol=1e-8, atol=1e-12)
        for value, expected in (
            (found.times(v), w @ flat),
            (found.newton(labels, v), np.linalg.solve(both, flat)),
        ):
            np.testing.assert_allclose(value[i][:, kept].ravel(), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
def test_separable_classes_have_finite_latent_functions(scale):
    x, y = np.repeat(np.eye(3), 4, axis=0), np.repeat(np.arange(3), 4)
    labels = one_task(y, scale * (x @ x.T), 3)
    a, t, found = modes(labels)
    assert np.isfinite(t).all()
    assert np.isfinite(found.log_determinant(labels)).all()
    np.testing.assert_array_equal(found.probabilities[0].argmax(axis=0), y)
    np.testing.assert_allclose(a[0].sum(axis=0), 0.0, atol=1e-8)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("scale", [1e4, 1e6, 1e7])
def test_contradicting_labels_of_one_sample_under_a_large_variance(scale, n_classes):
    """The mode is where the probabilities are the shares of the classes, which t = K a leaves no digit of."""
    y = np.resize([0, 0, 1], 9)
    labels = one_task(y, np.full((9, 9), scale), n_classes)
    a, converged = find_modes(labels, np.zeros(labels.y.shape))
    assert converged.all()
    found = softmax(labels, labels.deviation(a))[0, -n_classes + 1]
    np.testing.assert_allclose(found, 1 / 3, atol=1e-3)
    # The same labels of two samples, with a sample without any doubt beside them.
    labels = one_task([*y, 0], scale * np.pad(np.ones((9, 9)), (0, 1)) + 1e-3 * np.eye(10), n_classes)
    assert find_modes(labels, np.zeros(labels.y.shape))[1].all()


@pytest.mark.parametrize("n_classes", [2, 4])
def test_a_mean_of_any_size_that_contradicts_the_labels(n_classes):
    """Far from the tasks of the fit, the mean of a common rule may say anything."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 2))
    y = rng.integers(0, n_classes, 12)
    for size in (1.0, 1e2, 1e4):
        labels = one_task(y, size**2 * (x @ x.T) + kernel(x, x), n_classes)
        mean = size * rng.normal(size=labels.y.shape)
        a, converged = find_modes(labels, mean)
        assert converged.all()
        np.testing.assert_allclose(a, labels.y - softmax(labels, mean + labels.deviation(a)), atol=1e-6)


def test_a_step_that_is_no_number_is_not_taken(monkeypatch):
    labels = make_block(2, (6, 1), (3, 3)).labels
    monkeypatch.setattr(Curvature, "newton", lambda self, labels, v: np.full(v.shape, np.nan))
    a, converged = find_modes(labels, np.zeros(labels.y.shape))
    assert np.isfinite(a).all()
    assert not converged.any()


def test_large_and_small_matrices_have_the_same_inverses():
    """From 64 samples on they are computed one by one."""
    root = np.random.default_rng(0).normal(size=(2, 3, 70, 90))
    matrices = root @ np.swapaxes(root, 2, 3)
    np.testing.assert_allclose(positive_inverses(matrices), np.linalg.inv(matrices), atol=1e-10)
    with pytest.raises(np.linalg.LinAlgError):
        positive_inverses(-matrices)


def test_no_context():
    """Tasks of no samples are all padding."""
    for n_classes in (2, 3):
        zeros = np.zeros((2, 1))
        labels = Labels.of(zeros, zeros, np.array([n_classes, 2]), n_classes, zeros[..., None])
        a, _, found = modes(labels)
        assert not a.any()
        np.testing.assert_array_equal(found.log_determinant(labels), 0.0)


def test_a_mode_that_is_not_found_is_told(monkeypatch):
    block = make_block(2, (6, 1), (3, 3), scale=100.0)
    monkeypatch.setattr("metaprior.likelihoods.softmax.MAX_STEPS", 2)
    assert not find_modes(block.labels, np.zeros(block.labels.y.shape))[1][0]


@pytest.mark.slow
@pytest.mark.parametrize("scale", SCALES)
def test_two_classes_are_those_of_gradient_training(scale):
    """`wfem.gp`, with the kernel of t_2 - t_1."""
    import jax
    import jax.numpy as jnp

    from metaprior.wfem import gp
    from metaprior.wfem.gp import GPPrior
    from metaprior.wfem.kernels import RBF as Kernel
    from metaprior.wfem.likelihoods import Bernoulli
    from metaprior.wfem.networks import MLP, Layer, NetworkMean

    rng = np.random.default_rng(1)
    x = rng.normal(size=(9, 2))
    y = (x[:, 0] + 0.7 * rng.normal(size=9) > 0.0).astype(float)
    with jax.enable_x64(True):
        mean = NetworkMean(MLP((Layer(jnp.zeros((1, 2)), jnp.zeros(1)),), "tanh"))
        prior = GPPrior(mean, Kernel(jnp.zeros(()), jnp.log(jnp.asarray(2.0 * scale))), Bernoulli())
        points, mask = prior.points(jnp.asarray(x)), jnp.ones(9, bool)
        value, _ = gp.log_evidence(prior, points, jnp.asarray(y), mask)
        mode = gp.find_mode(prior, points, jnp.asarray(y), mask)
    labels = one_task(y, scale * kernel(x, x), 2)
    np.testing.assert_allclose(evidence(labels), value, rtol=1e-6)
    a, t, _ = modes(labels)
    np.testing.assert_allclose(t[0, 0], mode.t, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(a[0, 0], mode.a, atol=1e-4)
