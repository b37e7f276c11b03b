"""The inducing prior: its base GP, what it can learn, where its points lie, and its errors."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprior import ConvEncoder, InducingKernel, InducingMean, MetaGPClassifier, MetaGPRegressor, ZeroMean
from metaprior.tasks.types import Task
from metaprior.wfem import exact
from metaprior.wfem.parameters import merge
from metaprior.wfem.runs import Settings, make_run, make_scaling


def tasks_of(n_tasks, input_dim, n_samples=6, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_tasks, n_samples, input_dim))
    return [Task(each, np.sin(each.sum(axis=1)) + rng.normal(scale=0.1, size=n_samples)) for each in x]


SMALL = InducingKernel(6, 2)


def prior_of(tasks, kernel=SMALL, seed=0, move=0.0):
    """The prior set up for the tasks, its parameters at the hyper-prior's mode or `move` standard deviations off."""
    return moved(set_up(tasks, kernel), jax.random.key(seed), np.asarray(move, jnp.zeros(()).dtype))


def set_up(tasks, kernel=SMALL):
    chosen = Settings(mean=kernel.default_mean, kernel=kernel)
    return make_run([tasks], (1.0,), make_scaling([tasks], (1.0,), chosen), chosen, 0).problem


@eqx.filter_jit
def moved(problem, key, move):
    hyperprior = problem.hyperprior
    drawn = hyperprior.sample(key)
    return merge(jax.tree.map(lambda m, d: m + move * (d - m), hyperprior.mean, drawn), problem.rest)


@cache
def problem_of(input_dim):
    with jax.enable_x64(True):
        return set_up(tasks_of(4, input_dim))


@eqx.filter_jit
def evaluate(prior, x1, x2):
    """Covariances between two sets of points and within the first, its variances, and its means."""
    kernel = prior.kernel
    return kernel(x1, x2), kernel(x1, x1), kernel(x1), jax.vmap(prior.mean)(x1)


@eqx.filter_jit
def predict(prior, x, y, query):
    """Mean and standard deviation of the latent function given one task."""
    posterior = exact.condition(prior, prior.points(x), y, jnp.ones(y.shape, bool))
    mean, variance = posterior.marginals(prior, prior.points(query))
    return mean, jnp.sqrt(variance)


def rbf(x1, x2, length_scale):
    return np.exp(-0.5 * np.sum((x1[:, None] - x2[None]) ** 2, axis=2) / length_scale**2)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("input_dim", [1, 3])
def test_without_tasks_it_is_the_base_gp(input_dim):
    """At the mode of the hyper-prior: the RBF, intercept and slopes, and a mean of zero, at any inputs."""
    prior = prior_of(tasks_of(8, input_dim))
    x1, x2 = np.random.default_rng(1).normal(scale=2.0, size=(2, 7, input_dim))
    expected = rbf(x1, x2, np.exp(prior.kernel.basis.log_length_scale)) + 1.0 + x1 @ x2.T
    between, within, variances, means = evaluate(prior, x1, x2)
    np.testing.assert_allclose(between, expected, atol=1e-9)
    np.testing.assert_allclose(variances, np.diag(within), atol=1e-9)
    assert np.all(means == 0.0)


@pytest.mark.usefixtures("x64")
def test_weights_have_the_covariance_that_is_learned():
    """With the residual left out, the kernel is that of the functions with weights ~ N(0, D + V V^T), and a line."""
    prior = prior_of(tasks_of(8, 1), move=0.7)
    prior = eqx.tree_at(lambda prior: prior.kernel.log_residual_scale, prior, np.asarray(-60.0))
    kernel = jax.tree.map(np.asarray, prior.kernel)
    x = np.linspace(-2, 2, 7)[:, None]
    phi = rbf(x, np.asarray(kernel.basis.points), np.exp(kernel.basis.log_length_scale)) @ kernel.basis.whitening.T
    factor = kernel.factor_scale * kernel.weight
    weights = np.diag(np.exp(kernel.log_scale + 2.0 * kernel.log_std)) + factor @ factor.T
    line = np.concatenate([np.ones_like(x), x], axis=1) * np.exp(kernel.log_line_std)[None]
    within, means = evaluate(prior, x, x)[1::2]
    np.testing.assert_allclose(within, phi @ weights @ phi.T + line @ line.T, atol=1e-9)
    pair = eqx.filter_jit(lambda kernel, a, b: kernel.evaluate(a, b))(prior.kernel, x[0], x[3])
    np.testing.assert_allclose(pair, within[0, 3], rtol=1e-12)
    mean = jax.tree.map(np.asarray, prior.mean)
    expected = 2.0 * phi @ mean.weight + mean.line.weight * x[:, 0] + mean.line.bias
    np.testing.assert_allclose(means, expected, rtol=1e-9)


@pytest.mark.usefixtures("x64")
@given(st.integers(0, 1000), st.sampled_from([1, 3]))
def test_it_is_positive_definite_whatever_is_learned(seed, input_dim):
    prior = moved(problem_of(input_dim), jax.random.key(seed), np.asarray(1.5))
    x = jnp.asarray(np.random.default_rng(seed).uniform(-4, 4, size=(20, input_dim)))
    covariance = np.asarray(evaluate(prior, x, x)[1])
    assert np.linalg.eigvalsh(covariance).min() > -1e-8 * np.diag(covariance).max()


@pytest.mark.usefixtures("x64")
def test_far_away_the_base_gp_returns():
    prior = prior_of(tasks_of(8, 1), move=1.0)
    far = np.array([[50.0], [50.3]] + [[60.0]] * 5)
    line = np.exp(2.0 * prior.kernel.log_line_std)
    base = np.exp(prior.kernel.log_residual_scale) * rbf(far, far, np.exp(prior.kernel.basis.log_length_scale))
    np.testing.assert_allclose(evaluate(prior, far, far)[0], base + line[0] + line[1] * far @ far.T, rtol=1e-9)


QUICK = {"kernel": InducingKernel(6, 2), "inference": "map", "random_state": 0, "progress": False}


def test_bands_widen_outside_the_range_of_training():
    """Whatever was learned there: the basis covers the inputs of the tasks only."""
    tasks = tasks_of(20, 1)  # inputs in about -2 to 2
    query = jnp.asarray([[0.0], [1.0], [4.0], [6.0], [12.0]])
    for move in (0.0, 0.5):
        prior = prior_of(tasks, InducingKernel(12, 2), move=move)
        _, std = predict(prior, *(jnp.asarray(part, jnp.float32) for part in tasks[0]), query)
        assert np.all(np.diff(std[1:]) > 0)
        assert std[2] > 2.0 * std[:2].max()


def test_a_constant_column_and_repeated_inputs():
    rng = np.random.default_rng(0)
    tasks = [(np.stack([np.repeat([0.0, 1.0, 2.0], 2), np.full(6, 3.0)], axis=1), rng.normal(size=6)) for _ in range(5)]
    meta = MetaGPRegressor(0.0, **QUICK, n_steps=20).fit(target_tasks=tasks)
    mean, std = meta.adapt(*tasks[0]).predict([[0.5, 3.0], [0.5, 4.0]], return_std=True)
    assert np.isfinite(mean).all()
    assert std[1] > std[0]


def test_one_task_of_one_sample():
    prior = prior_of([Task(np.array([[1.0]]), np.array([2e8]))])
    assert np.isfinite(predict(prior, jnp.zeros((1, 1)), jnp.zeros(1), jnp.asarray([[0.0], [3.0]]))).all()


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


def test_the_mean_of_the_kernel_is_in_the_same_basis():
    assert InducingKernel(7, 1, 0.4).default_mean == InducingMean(7, 0.4)
    chosen = Settings(mean=ZeroMean(), kernel=InducingKernel(7, 1))
    tasks = tasks_of(5, 2)
    rest = make_run([tasks], (1.0,), make_scaling([tasks], (1.0,), chosen), chosen, 0).problem.rest
    assert rest.kernel.basis.points.value.shape == (7, 2)
    assert (np.asarray(rest.kernel.basis.whitening.value) != 0).any()


@pytest.mark.parametrize(("input_dim", "n_points"), [(1, 24), (2, 48), (3, 64), (8, 64)])
def test_default_numbers_of_points(input_dim, n_points):
    kernel = eqx.filter_eval_shape(InducingKernel().build, jax.random.key(0), input_dim)
    assert kernel.basis.points.value.shape == (n_points, input_dim)
    assert kernel.weight.shape == (n_points, 4)
    assert kernel.log_line_std.shape == (input_dim + 1,)
    mean = eqx.filter_eval_shape(InducingMean().build, jax.random.key(0), input_dim)
    assert mean.weight.shape == (n_points,)


def test_where_the_kernel_starts():
    """Entries of V have size 0.1 whatever their scale a priori; scales and line start at the hyper-prior's center."""
    kernel = InducingKernel(100, 30, output_scale=2.0, factor_scale=0.25, line_std=3.0).build(jax.random.key(0), 1)
    factor = np.asarray(kernel.factor_scale * kernel.weight)
    assert factor.std() == pytest.approx(0.1, abs=4 * 0.1 / np.sqrt(2 * factor.size))
    assert abs(factor.mean()) < 4 * 0.1 / np.sqrt(factor.size)
    np.testing.assert_allclose(np.exp([kernel.log_scale, kernel.log_residual_scale]), 2.0, rtol=1e-6)
    np.testing.assert_allclose(np.exp(kernel.log_line_std), 3.0, rtol=1e-6)
    assert not np.any(kernel.log_std)
    mean = InducingMean(5, scale=3.0).build(jax.random.key(0), 4)
    assert (mean.scale, mean.line.scale) == (3.0, 2.0)
    assert not any(np.any(part) for part in (mean.weight, mean.line.weight, mean.line.bias))


def test_limits_of_the_inducing_prior_are_included():
    assert InducingKernel(n_points=1024, rank=1024).rank == 1024
    assert InducingMean(n_points=1024).n_points == 1024
    with pytest.raises(ValueError, match=r"rank must be at most 1024.*got 1025"):
        InducingKernel(rank=1025)
    with pytest.raises(ValueError, match=r"n_points must be at most 1024.*got 1025"):
        InducingMean(n_points=1025)


@pytest.mark.slow
def test_noiseless_outputs_train_to_the_end():
    """The quick relative is `test_it_is_positive_definite_whatever_is_learned`."""
    smooth = [(task.x, np.sin(task.x[:, 0])) for task in tasks_of(8, 1, n_samples=20)]
    meta = MetaGPRegressor(0.0, **{**QUICK, "kernel": "inducing"}, noise_std="learned", n_steps=700, learning_rate=0.03)
    assert np.isfinite(meta.fit(target_tasks=smooth).loss_trace_).all()


@pytest.mark.usefixtures("x64")
def test_equal_points_have_equal_covariances_whichever_array_holds_them():
    kernel = prior_of(tasks_of(4, 1), move=0.5).kernel
    X = jnp.asarray(np.random.default_rng(0).normal(size=(7, 1)))
    np.testing.assert_array_equal(kernel(X, X), kernel(X, jnp.array(X)))
    np.testing.assert_allclose(jnp.diagonal(kernel(X, X)), kernel(X), rtol=1e-12)


def test_rounding_of_a_large_residual_that_cancels_is_below_the_noise():
    """Within the span of the functions k_0 and phi^T phi' are equal: what remains are rounding errors of their size."""
    prior = prior_of(tasks_of(8, 1, n_samples=20), InducingKernel(24, 2, length_scale=2.0))
    places = lambda prior: (prior.kernel.log_residual_scale, prior.kernel.log_scale, prior.kernel.log_line_std)  # noqa: E731
    values = jnp.asarray(9.0), jnp.asarray(-9.0), jnp.full(2, -9.0)
    prior = eqx.tree_at(places, prior, values)
    prior = eqx.tree_at(lambda prior: prior.likelihood.log_noise_std, prior, jnp.asarray(-12.0))
    for seed in range(5):
        x = jnp.asarray(np.random.default_rng(seed).uniform(-1.0, 1.0, (20, 1)), "float32")
        value = eqx.filter_jit(exact.log_evidence)(prior, prior.points(x), jnp.sin(x[:, 0]), jnp.ones(20, bool))
        assert jnp.isfinite(value)
