"""The training loop against the same steps written out by hand, and what users bring to it, through `fit`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tinygp
from jax.flatten_util import ravel_pytree

from metaprior.datasets import Sinusoid
from metaprior.tasks.types import Task
from metaprior.wfem import MAP, SVGD, ConstantMean, Gaussian, MLPKernel, Training, WFEMRegressor
from metaprior.wfem.loop import train
from metaprior.wfem.objective import batch_plan, log_gibbs, sample_indices, select_batch
from metaprior.wfem.runs import Settings, make_run, make_scaling, stack_runs
from metaprior.wfem.steps import TrainConfig

PROBLEM = Sinusoid(0.5)
SMALL = {"mean": "constant", "kernel": "rbf", "temperature": "bayes", "random_state": 0}
SOURCE, TARGET = PROBLEM.source_tasks(4, 5, 0), PROBLEM.target_tasks(3, 5, 1)


def prepare(method):
    settings = Settings(mean=ConstantMean(), kernel=MLPKernel((3,), n_features=2), method=method)
    environments = [SOURCE, TARGET]
    run = make_run(environments, (0.3, 0.7), make_scaling(environments, (0.3, 0.7), settings), settings, 0)
    return run, stack_runs([run])


def trained(stacked, train_config, n_steps, rate):
    rates = jnp.full(1, rate)
    return train(stacked.problem, stacked.particles, stacked.key, train_config, n_steps, rates).particles


def rows(particles):
    return jax.vmap(lambda particle: ravel_pytree(particle)[0])(particles)


@pytest.mark.usefixtures("x64")
def test_svgd_training_equals_its_steps_by_hand():
    run, stacked = prepare(SVGD(3, length_scale=2.0))
    result = trained(stacked, TrainConfig(SVGD(3, length_scale=2.0), "sgd", "constant"), 5, 0.01)
    theta = np.asarray(rows(run.particles))
    _, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], run.particles))
    score = jax.jit(jax.grad(lambda flat: log_gibbs(unravel(flat), run.problem)))
    for _ in range(5):
        scores = np.stack([score(jnp.asarray(row)) for row in theta])
        kernel = np.exp(-((theta[:, None] - theta[None]) ** 2).sum(2) / 4.0)
        repulsion = (kernel[:, :, None] * (theta[:, None] - theta[None]) / 2.0).sum(1)
        theta = theta + 0.01 * (kernel @ scores + repulsion) / 3
    np.testing.assert_allclose(np.asarray(rows(jax.tree.map(lambda leaf: leaf[0], result))), theta, rtol=1e-10)


@pytest.mark.usefixtures("x64")
def test_mini_batch_training_draws_a_new_batch_for_every_step():
    run, stacked = prepare(MAP())
    plan = batch_plan(run.problem.tasks, 3)
    result = trained(stacked, TrainConfig(MAP(), "sgd", "constant", plan), 4, 0.01)

    @eqx.filter_jit
    def step(theta, key, problem):
        indices = sample_indices(key, problem.tasks, plan)
        scores = jax.grad(log_gibbs)(theta, problem, select_batch(problem, indices, plan))
        return jax.tree.map(lambda value, score: value + 0.01 * score, theta, scores), indices

    theta, key, drawn = jax.tree.map(lambda leaf: leaf[0], run.particles), run.key, []
    for _ in range(4):
        key, step_key = jax.random.split(key)
        theta, indices = step(theta, step_key, run.problem)
        drawn.append(tuple(np.concatenate(indices)))
    assert len(set(drawn)) > 1
    expected = ravel_pytree(theta)[0]
    np.testing.assert_allclose(np.asarray(rows(jax.tree.map(lambda leaf: leaf[0], result)))[0], expected, rtol=1e-10)


def test_any_tinygp_kernel_fits_and_evaluates():
    """Products, sums, numbers in place of arrays, and single precision: all at once."""
    polynomial = tinygp.kernels.Polynomial(order=2, scale=1.5, sigma=0.3)
    periodic = tinygp.kernels.ExpSineSquared(scale=2.0, gamma=0.5) + tinygp.kernels.DotProduct()
    rational = tinygp.kernels.RationalQuadratic(scale=np.float32(1.0), alpha=1.5)
    kernel = polynomial + 2 * tinygp.kernels.Matern32(1) + periodic * rational
    meta = WFEMRegressor(**{**SMALL, "kernel": kernel}, alpha=0.3, training=Training(n_steps=5))
    meta.fit(SOURCE, TARGET)
    assert np.isfinite(meta.evaluate(PROBLEM.test_tasks(3, 5, 7, 2)).nll)


class Slope(eqx.Module):
    slope: float = 2.0

    def __call__(self, x):
        return self.slope * x[0]


def test_the_floats_of_an_own_module_are_learned():
    meta = WFEMRegressor(**{**SMALL, "mean": Slope()}, alpha="pooled", training=Training(n_steps=20))
    meta.fit(SOURCE, TARGET)
    assert float(meta.particles_.mean.slope[0]) != pytest.approx(2.0, abs=1e-3)


class Logarithm(eqx.Module):
    slope: jax.Array

    def __call__(self, x):
        return self.slope * jnp.log(x[0])


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_padding_and_weight_zero_evaluate_an_own_mean_only_at_inputs_that_are_there(alpha):
    rng = np.random.default_rng(0)
    tasks = [Task(x := rng.uniform(1, 5, (n, 1)), np.log(x[:, 0])) for n in (5, 4, 5, 5, 4)]
    below = [Task(np.full((n, 1), -1.0), np.ones(n)) for n in (5, 4)] if alpha == 0 else tasks
    own = {**SMALL, "mean": Logarithm(jnp.ones(()))}
    meta = WFEMRegressor(**own, alpha=alpha, training=Training(n_steps=20, standardize=False))
    assert np.isfinite(meta.fit(below, tasks).loss_trace_).all()


@pytest.mark.parametrize(("noise_std", "dtype"), [(0.1, "float32"), (1e-3, "float64")])
def test_noise_too_small_for_single_precision_is_trained_in_double(noise_std, dtype):
    fits = [
        WFEMRegressor(**SMALL, alpha="pooled", likelihood=Gaussian(noise_std), training=Training(n_steps=3, dtype=d))
        for d in ("auto", dtype)
    ]
    auto, given = (meta.fit(SOURCE, TARGET) for meta in fits)
    assert auto.dtype_ == dtype
    np.testing.assert_array_equal(auto.loss_trace_, given.loss_trace_)


@pytest.mark.parametrize("unit", [1e-40, 1e-18, 1e18])
def test_predictions_follow_the_unit_of_y_however_small(unit):
    scaled = [[Task(task.x, task.y * unit) for task in tasks] for tasks in (SOURCE, TARGET)]
    settings = {"alpha": "pooled", **SMALL, "training": Training(n_steps=2)}
    one, other = (WFEMRegressor(likelihood=Gaussian(0.1 * u), **settings) for u in (1.0, unit))
    x = np.linspace(-5, 5, 4)
    expected = one.fit(SOURCE, TARGET).adapt([0.0], [5.0]).predict(x, return_std=True)
    got = other.fit(*scaled).adapt([0.0], [5.0 * unit]).predict(x, return_std=True)
    np.testing.assert_allclose(np.array(got) / unit, expected, rtol=1e-5)
