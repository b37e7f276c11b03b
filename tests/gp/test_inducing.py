"""The inducing prior: its base GP, what it can learn, where its points lie, and its errors."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from metaprior import ConvEncoder, InducingKernel, InducingMean, MetaGPClassifier, MetaGPRegressor, ZeroMean
from metaprior.datasets import Sinusoid
from metaprior.gp.parameters import merge
from metaprior.gp.placement import (
    DEVIATION_VARIANCES,
    LENGTH_SCALE_FACTOR,
    LENGTH_SCALES,
    LINE_VARIANCE,
    MEAN_STD,
    TaskSample,
    choose_length_scale,
    farthest_points,
    whitening_matrix,
)
from metaprior.meta.runs import Settings, make_run, make_scaling
from metaprior.tasks.types import Task


def tasks_of(n_tasks, input_dim, n_samples=6, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_tasks, n_samples, input_dim))
    return [Task(each, np.sin(each.sum(axis=1)) + rng.normal(scale=0.1, size=n_samples)) for each in x]


SMALL = InducingKernel(6, 2)


def prior_of(tasks, kernel=SMALL, seed=0, move=0.0):
    """The prior set up for the tasks, its parameters at the hyper-prior's mode or `move` standard deviations off."""
    chosen = Settings(mean=kernel.default_mean, kernel=kernel)
    run = make_run([tasks], (1.0,), make_scaling([tasks], (1.0,), chosen), chosen, seed)
    hyperprior = run.problem.hyperprior
    drawn = hyperprior.sample(jax.random.key(seed))
    return merge(jax.tree.map(lambda m, d: m + move * (d - m), hyperprior.mean, drawn), run.problem.rest)


def rbf(x1, x2, length_scale):
    return np.exp(-0.5 * np.sum((x1[:, None] - x2[None]) ** 2, axis=2) / length_scale**2)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("input_dim", [1, 2, 5])
def test_without_tasks_it_is_the_base_gp(input_dim):
    """At the mode of the hyper-prior: the RBF, intercept and slopes, and a mean of zero, at any inputs."""
    prior = prior_of(tasks_of(8, input_dim))
    x1, x2 = jnp.asarray(np.random.default_rng(1).normal(scale=2.0, size=(2, 7, input_dim)))
    expected = rbf(x1, x2, np.exp(prior.kernel.basis.log_length_scale)) + 1.0 + x1 @ x2.T
    np.testing.assert_allclose(prior.kernel(x1, x2), expected, atol=1e-9)
    np.testing.assert_allclose(prior.kernel(x1), np.diag(prior.kernel(x1, x1)), atol=1e-9)
    assert np.all(jax.vmap(prior.mean)(x1) == 0.0)


@pytest.mark.usefixtures("x64")
def test_weights_have_the_covariance_that_is_learned():
    """With the residual left out, the kernel is that of the functions with weights ~ N(0, D + V V^T), and a line."""
    prior = prior_of(tasks_of(8, 1), move=0.7)
    kernel = eqx.tree_at(lambda k: k.log_residual_scale, prior.kernel, jnp.asarray(-60.0))
    x = jnp.linspace(-2, 2, 9)[:, None]
    phi = rbf(x, np.asarray(kernel.basis.points), np.exp(kernel.basis.log_length_scale)) @ kernel.basis.whitening.T
    factor = kernel.factor_scale * kernel.weight
    weights = np.diag(np.exp(kernel.log_scale + 2.0 * kernel.log_std)) + factor @ factor.T
    line = np.concatenate([np.ones_like(x), x], axis=1) * np.exp(kernel.log_line_std)[None]
    np.testing.assert_allclose(kernel(x, x), phi @ weights @ phi.T + line @ line.T, atol=1e-9)
    np.testing.assert_allclose(kernel.evaluate(x[0], x[3]), kernel(x, x)[0, 3], rtol=1e-12)
    mean = prior.mean
    expected = 2.0 * phi @ mean.weight + mean.line.weight * x[:, 0] + mean.line.bias
    np.testing.assert_allclose(jax.vmap(mean)(x), expected, rtol=1e-9)


@pytest.mark.usefixtures("x64")
@given(st.integers(0, 1000), st.sampled_from([1, 2, 3]))
def test_it_is_positive_definite_whatever_is_learned(seed, input_dim):
    prior = prior_of(tasks_of(4, input_dim), seed=seed, move=1.5)
    x = jnp.asarray(np.random.default_rng(seed).uniform(-4, 4, size=(20, input_dim)))
    covariance = np.asarray(prior.kernel(x, x))
    assert np.linalg.eigvalsh(covariance).min() > -1e-8 * np.diag(covariance).max()


@pytest.mark.usefixtures("x64")
def test_far_away_the_base_gp_returns():
    prior = prior_of(tasks_of(8, 1), move=1.0)
    far = jnp.array([[50.0], [50.3]])
    line = np.exp(2.0 * prior.kernel.log_line_std)
    base = np.exp(prior.kernel.log_residual_scale) * rbf(far, far, np.exp(prior.kernel.basis.log_length_scale))
    np.testing.assert_allclose(prior.kernel(far, far), base + line[0] + line[1] * far @ far.T, rtol=1e-9)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("length_scale", [0.2, 1.0, 3.0])
def test_functions_are_independent_with_unit_variance_under_the_base_kernel(length_scale):
    points = farthest_points(np.random.default_rng(0).uniform(-2, 2, size=(100, 1)), 24)
    whitening = whitening_matrix(points, length_scale)
    covariance = whitening @ rbf(points, points, length_scale) @ whitening.T
    rank = np.count_nonzero(np.any(whitening != 0, axis=1))
    np.testing.assert_allclose(covariance[:rank, :rank], np.eye(rank), atol=1e-8)
    assert np.all(whitening[rank:] == 0)
    assert rank >= 4


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 3), st.integers(0, 100))
def test_points_are_inputs_and_spread(n_inputs, n_points, input_dim, seed):
    inputs = np.random.default_rng(seed).normal(size=(n_inputs, input_dim))
    points = farthest_points(inputs, n_points)
    assert points.shape == (n_points, input_dim)
    assert all((point == inputs).all(axis=1).any() for point in points)
    assert len(np.unique(points, axis=0)) == min(n_inputs, n_points)


def test_points_cover_the_range_evenly():
    points = np.sort(farthest_points(np.random.default_rng(0).uniform(-1, 1, size=(2000, 1)), 17)[:, 0])
    gaps = np.diff(points)
    assert gaps.max() < 2.5 * gaps.min()
    assert (np.abs(points[[0, -1]]) > 0.99).all()


def test_the_length_scale_of_most_evidence_is_that_of_the_joint_normal():
    """All samples of all tasks are jointly normal; a task that counts twice is as good as observed twice."""
    rng = np.random.default_rng(3)
    x, y = rng.uniform(-2, 2, size=(5, 4, 1)), rng.normal(size=(5, 4))
    mask = rng.uniform(size=(5, 4)) < 0.8
    mask[:, 0] = True
    points = farthest_points(x.reshape(-1, 1), 8)
    evidence = []
    for length_scale in LENGTH_SCALES:
        whitening, of_sizes = whitening_matrix(points, length_scale), []
        flat, owner, readings = x[mask], np.nonzero(mask)[0], y[mask]
        phi = rbf(flat, points, length_scale) @ whitening.T
        line = np.concatenate([np.ones_like(flat), flat], axis=1)
        for variance in DEVIATION_VARIANCES:
            own = (owner[:, None] == owner[None]) * (variance * phi @ phi.T + LINE_VARIANCE * line @ line.T)
            covariance = MEAN_STD**2 * phi @ phi.T + line @ line.T + own + 0.3**2 * np.eye(len(flat))
            of_sizes.append(multivariate_normal(cov=covariance).logpdf(readings))
        evidence.append(max(of_sizes))
    chosen = choose_length_scale(points, [TaskSample(x, y, mask, np.ones(5))], [0.3])
    assert chosen == pytest.approx(LENGTH_SCALE_FACTOR * LENGTH_SCALES[np.argmax(evidence)])
    twice = TaskSample(*(np.concatenate([part, part]) for part in (x, y, mask)), np.ones(10))
    weighted = TaskSample(x, y, mask, np.full(5, 2.0))
    assert choose_length_scale(points, [twice], [0.3]) == choose_length_scale(points, [weighted], [0.3])


@pytest.mark.parametrize(("frequency", "expected"), [(0.4, (0.9, 5.0)), (6.0, (0.1, 0.6))])
def test_the_length_scale_follows_the_data(frequency, expected):
    rng = np.random.default_rng(0)
    tasks = [
        Task(x := rng.uniform(-2, 2, (8, 1)), np.sin(frequency * x[:, 0] + rng.normal(scale=0.2))) for _ in range(20)
    ]
    prior = prior_of(tasks, InducingKernel())
    assert expected[0] < np.exp(prior.kernel.basis.log_length_scale) < expected[1]
    assert prior.kernel.basis.log_length_scale == prior.mean.basis.log_length_scale
    given_scale = prior_of(tasks, InducingKernel(length_scale=0.37))
    np.testing.assert_allclose(np.exp(given_scale.kernel.basis.log_length_scale), 0.37, rtol=1e-6)


def test_tasks_without_weight_have_no_effect():
    target, other = tasks_of(6, 1), tasks_of(6, 1, seed=1)
    settings = Settings(mean=InducingMean(6), kernel=InducingKernel(6, 2))
    scaling = make_scaling([target], (1.0,), settings)
    alone = make_run([target], (1.0,), scaling, settings, 0).problem.rest
    shifted = [Task(task.x + 100.0, task.y) for task in other]
    both = make_run([shifted, target], (0.0, 1.0), scaling, settings, 0).problem.rest
    for one, two in zip(jax.tree.leaves(alone), jax.tree.leaves(both), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.fixture(scope="module")
def fitted():
    environment = Sinusoid(0.5)
    meta = MetaGPRegressor(0.0, kernel="inducing", n_steps=300, random_state=0, progress=False)
    return meta.fit(target_tasks=environment.target_tasks(20, 5, 0)), environment


def test_bands_widen_outside_the_range_of_training(fitted):
    meta, environment = fitted
    x, y, _, _ = environment.test_tasks(1, 5, 5, 1)[0]
    _, std = meta.adapt(x, y).predict(np.array([[0.0], [4.0], [7.0], [10.0], [20.0]]), return_std=True)
    assert np.all(np.diff(std[1:]) > 0)
    assert std[2] > 2.0 * std[:2].max()


def test_a_constant_column_and_repeated_inputs():
    rng = np.random.default_rng(0)
    tasks = [(np.stack([np.repeat([0.0, 1.0, 2.0], 2), np.full(6, 3.0)], axis=1), rng.normal(size=6)) for _ in range(5)]
    meta = MetaGPRegressor(0.0, kernel="inducing", n_steps=20, random_state=0, progress=False).fit(target_tasks=tasks)
    mean, std = meta.adapt(*tasks[0]).predict([[0.5, 3.0], [0.5, 4.0]], return_std=True)
    assert np.isfinite(mean).all()
    assert std[1] > std[0]


def test_one_task_of_one_sample():
    meta = MetaGPRegressor(0.0, n_steps=20, random_state=0, progress=False).fit(target_tasks=[([[1.0]], [2.0])])
    assert np.isfinite(meta.adapt([[1.0]], [2.5]).predict([[1.0], [3.0]])).all()


def test_bad_arguments_of_the_inducing_prior():
    wide = [(np.random.default_rng(0).normal(size=(4, 9)), np.arange(4.0))] * 3
    with pytest.raises(
        ValueError, match=r"kernel='inducing' supports at most 8 input dimensions.*have 9\. Use kernel='linear\+rbf'"
    ):
        MetaGPRegressor(0.0, kernel="inducing", mean="zero", n_steps=0).fit(target_tasks=wide)
    images = [(np.random.default_rng(0).normal(size=(4, 16, 16, 1)), ["a", "b"] * 2)] * 3
    with pytest.raises(ValueError, match="kernel='inducing' cannot be combined with an encoder"):
        MetaGPClassifier(0.0, kernel="inducing", encoder=ConvEncoder((4,)), n_steps=0).fit(target_tasks=images)
    with pytest.raises(ValueError, match="at most 8 input dimensions"):
        MetaGPClassifier(0.0, kernel="inducing", n_steps=0).fit(target_tasks=images)
    with pytest.raises(ValueError, match="mean='inducing' cannot be combined with an encoder"):
        MetaGPRegressor(0.0, mean="inducing", encoder="mlp", n_steps=0).fit(target_tasks=wide)
    with pytest.raises(ValueError, match=r"n_points must be at most 1024.*got 5000"):
        InducingKernel(n_points=5000)
    for description in (InducingKernel, InducingMean):
        with pytest.raises(ValueError, match="length_scale must be a positive number, or None"):
            description(length_scale=-1.0)
    with pytest.raises(ValueError, match="rank must be an integer"):
        InducingKernel(rank=0)
    with pytest.raises(ValueError, match="scale must be a positive number"):
        InducingMean(scale=0.0)


def test_the_kernel_with_another_mean():
    tasks = tasks_of(5, 2)
    settings = {"n_steps": 10, "random_state": 0, "progress": False, "inference": "map"}
    meta = MetaGPRegressor(0.0, kernel=InducingKernel(7, 1), mean=ZeroMean(), **settings).fit(target_tasks=tasks)
    assert meta.model_.members[0].rest.kernel.basis.points.value.shape == (7, 2)
    matched = MetaGPRegressor(0.0, kernel=InducingKernel(7, 1), **settings).fit(target_tasks=tasks)
    assert matched.model_.members[0].rest.mean.basis.points.value.shape == (7, 2)


def test_target_tasks_are_subsampled_however_many_sources_there_are():
    rng = np.random.default_rng(0)
    draw = lambda n, shift: [Task(x := rng.uniform(-2, 2, (4, 1)) + shift, np.sin(3 * x[:, 0])) for _ in range(n)]  # noqa: E731
    groups, weights = [draw(203, 0.0), draw(3, 10.0), draw(200, 0.0)], (0.05, 0.9, 0.05)
    settings = Settings(mean=InducingMean(), kernel=InducingKernel(), standardize=False)
    scales = []
    for order in ((0, 1, 2), (0, 2, 1)):
        mixed, shares = [groups[i] for i in order], [weights[i] for i in order]
        basis = make_run(mixed, shares, make_scaling(mixed, shares, settings), settings, 0).problem.rest.kernel.basis
        assert (np.asarray(basis.points.value) > 8).sum() >= 3
        scales.append(float(basis.log_length_scale.value))
    assert scales[0] == pytest.approx(scales[1])


def test_noiseless_outputs_and_huge_units():
    tasks = [(task.x, 1e8 * task.y) for task in tasks_of(4, 1, n_samples=12)]
    quick = {"kernel": "inducing", "random_state": 0, "progress": False}
    assert np.isfinite(
        MetaGPRegressor(0.0, n_steps=5, **quick).fit(target_tasks=tasks).adapt(*tasks[0]).predict([[0.0]])
    )
    smooth = [(task.x, np.sin(task.x[:, 0])) for task in tasks_of(8, 1, n_samples=20)]
    meta = MetaGPRegressor(0.0, noise_std="learned", inference="map", n_steps=700, learning_rate=0.03, **quick)
    assert np.isfinite(meta.fit(target_tasks=smooth).loss_trace_).all()
