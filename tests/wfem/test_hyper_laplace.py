"""Laplace's approximation of the hyper-posterior: its curvature, its draws, and whether particles interact."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from metaprior.datasets import Sinusoid
from metaprior.tasks.types import Task
from metaprior.wfem import (
    MAP,
    SVGD,
    Gaussian,
    HyperPrior,
    Laplace,
    LinearKernel,
    LinearMean,
    LinearRBFKernel,
    MLPMean,
    RBFKernel,
    Training,
    WFEMClassifier,
    WFEMRegressor,
)
from metaprior.wfem.inference import (
    _covariance_root,
    _curvature,
    _paired_normal,
    interaction,
    loss_curvature,
    sample_around_mode,
)
from metaprior.wfem.linalg import MAX_BATCHED_LAPACK, MAX_UNROLLED
from metaprior.wfem.loop import train
from metaprior.wfem.objective import full_batch, weighted_loss
from metaprior.wfem.runs import Settings, make_run, make_scaling, stack_runs
from metaprior.wfem.steps import TrainConfig

PRIORS = {
    "networks, noise learned": Settings(MLPMean((3,)), LinearKernel((3,), n_features=2), likelihood=Gaussian()),
    "rbf": Settings(
        LinearMean(), RBFKernel(), hyperprior=HyperPrior(std={"weights": 2.0, "biases": 0.5, "scales": 0.7})
    ),
}


def set_up_ragged(settings, weights, sizes):
    rng = np.random.default_rng(0)
    groups = [
        [Task(x := rng.normal(size=(size, 1)), np.sin(x[:, 0]) + rng.normal(scale=0.1, size=size)) for size in of_group]
        for of_group in sizes
    ]
    run = make_run(groups, weights, make_scaling(groups, weights, settings), settings, 0)
    move = jax.tree.map(lambda leaf: leaf[0] + 0.3 * jax.random.normal(jax.random.key(1), leaf[0].shape), run.particles)
    return run.problem, move


@eqx.filter_jit
def gradients_at(flats, theta, problem):
    """Gradients of gamma times the weighted loss at many parameters."""
    unravel = ravel_pytree(theta)[1]
    loss_of = lambda flat: weighted_loss(unravel(flat), problem.rest, full_batch(problem))  # noqa: E731
    return problem.temperature * jax.lax.map(jax.grad(loss_of), flats)


curvature_at = eqx.filter_jit(loss_curvature)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", PRIORS)
def test_curvature_is_that_of_the_weighted_loss(name):
    """Against central differences of its gradient; ragged tasks in several buckets, weights that differ."""
    sizes = ((3, 3, 2), (3, 1, 11)) if name == "rbf" else ((3, 3), (3, 3, 2))  # a compilation for every bucket
    for weights in ((0.3, 0.7), (0.0, 1.0)):
        problem, theta = set_up_ragged(PRIORS[name], weights, sizes)
        assert len(problem.tasks.buckets) == (2 if name == "rbf" else 1)
        flat = np.asarray(ravel_pytree(theta)[0])
        step = 1e-5 * np.eye(len(flat))
        after, before = np.split(
            np.asarray(gradients_at(np.concatenate([flat + step, flat - step]), theta, problem)), 2
        )
        expected = (after - before) / 2e-5
        curvature = np.asarray(curvature_at(theta, problem))
        np.testing.assert_allclose(curvature, expected, atol=2e-6 * np.abs(expected).max())
        np.testing.assert_allclose(curvature, curvature.T, atol=1e-10 * np.abs(curvature).max())


@pytest.mark.usefixtures("x64")
def test_draws_have_the_covariance_of_the_conjugate_posterior():
    """A linear mean under a fixed covariance has a normal hyper-posterior, and draws are from it exactly."""
    rng = np.random.default_rng(0)
    tasks = [Task(x := rng.normal(size=(4, 2)), x @ [0.5, -0.2] + rng.normal(scale=0.3, size=4)) for _ in range(6)]
    narrow = {"weights": 2.0, "biases": 0.2, "scales": 1e-6}  # holds the kernel where it is
    about = {"likelihood": Gaussian(0.3), "hyperprior": HyperPrior(std=narrow), "standardize": False}
    settings = Settings(mean=LinearMean(1.0), kernel=RBFKernel(), **about)
    run = make_run([tasks], (1.0,), make_scaling([tasks], (1.0,), settings), settings, 0)
    precision = np.diag([0.25, 0.25, 25.0])
    for task in tasks:
        features = np.concatenate([task.x / np.sqrt(2.0), np.ones((4, 1))], axis=1)
        distance = np.sum((task.x[:, None] - task.x[None]) ** 2, axis=2)
        precision += features.T @ np.linalg.solve(np.exp(-0.5 * distance) + 0.09 * np.eye(4), features)
    mode = jax.tree.map(lambda leaf: leaf[0], run.particles)
    draws = sample_around_mode(mode, run.problem, run.key, 4000)
    curvature, std = _curvature(mode, run.problem)
    np.testing.assert_allclose(curvature[:3, :3], precision, rtol=1e-10)
    np.testing.assert_allclose(np.diag(curvature)[3:], 1e12, rtol=1e-8)
    np.testing.assert_allclose(std, [2.0, 2.0, 0.2, 1e-6, 1e-6, 1e-6], rtol=1e-12)
    sample = np.concatenate([draws.mean.weight, draws.mean.bias[:, None]], axis=1)
    np.testing.assert_allclose(sample.mean(axis=0), 0.0, atol=1e-12)  # pairs around the (initial) parameters
    covariance = np.linalg.inv(precision)
    error = np.sqrt((np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2) / 2000)  # of 2000 pairs
    assert np.all(np.abs(np.cov(sample.T) - covariance) < 4.0 * error)


def test_runs_are_drawn_each_around_its_own_mode_by_its_own_key():
    """With the curvature of -log Gibbs, that of the hyper-prior for the tasks' loss being left out."""
    settings = replace(PRIORS["rbf"], temperature=1e-12)
    tasks = [Task(np.arange(2.0)[:, None], np.arange(2.0))]
    scaling = make_scaling([tasks], (1.0,), settings)
    runs = stack_runs([make_run([tasks], (1.0,), scaling, settings, seed) for seed in (0, 0, 1)])
    moved = jax.tree.map(lambda leaf: leaf + jnp.arange(3.0).reshape(3, *(1,) * (leaf.ndim - 1)), runs.particles)
    draws = train(runs.problem, moved, runs.key, TrainConfig(Laplace(5)), 1, jnp.zeros(3)).particles
    flat = np.stack([np.concatenate([np.ravel(leaf[run, i]) for leaf in jax.tree.leaves(draws)])
                     for run in range(3) for i in range(5)]).reshape(3, 5, -1)  # fmt: skip
    modes = np.stack([np.concatenate([np.ravel(leaf[run, 0]) for leaf in jax.tree.leaves(moved)]) for run in range(3)])
    np.testing.assert_allclose(flat[:, 4], modes, rtol=1e-6)  # the odd one
    moves = (flat - modes[:, None])[:, :4]
    np.testing.assert_allclose(moves[0], moves[1], atol=1e-6)  # equal keys
    assert np.abs(moves[0] - moves[2]).max() > 0.1
    np.testing.assert_allclose(moves[:, :2], -moves[:, 2:], atol=1e-6)
    scaled = moves / np.array([2.0, 0.5, 0.7, 0.7])  # one standard deviation of the hyper-prior in every direction
    normal = _paired_normal(4, 4, int(jax.random.randint(runs.key[0], (), 0, 2**31 - 1)))
    np.testing.assert_allclose(scaled[0], normal, atol=1e-4)


def test_ten_draws_are_even_and_no_wider_than_the_hyperprior():
    normal = _paired_normal(40, 11, 0)
    np.testing.assert_allclose(normal.sum(axis=0), 0.0, atol=1e-12)
    assert np.all(normal[-1] == 0.0)
    products = normal[:5] @ normal[:5].T
    np.testing.assert_allclose(products - np.diag(np.diag(products)), 0.0, atol=1e-10)
    curvature = np.diag([-3.0, 0.2, 4.0, 100.0])  # a saddle, nothing known, known a little, known well
    axes = _covariance_root(curvature, np.array([1.0, 1.0, 1.0, 0.5]))
    np.testing.assert_allclose(np.sqrt(np.diag(axes.T @ axes)), [1.0, 1.0, 0.5, 0.1])
    assert np.all(_covariance_root(np.full((2, 2), np.nan), np.ones(2)) == 0.0)


def test_laplace_in_the_estimator():
    tasks = Sinusoid(0.5).target_tasks(4, 5, 0)
    small = {"kernel": "rbf", "mean": "linear", "alpha": 0.0, "temperature": "bayes", "random_state": 0}
    few = Training(n_steps=5)
    meta = WFEMRegressor(**small, inference="laplace", training=few).fit(target_tasks=tasks)
    assert len(meta.particle_weights_) == 10
    assert meta.particles_.mean.weight.std(axis=0).min() > 0.01
    mode = WFEMRegressor(**small, inference=Laplace(n_draws=1), training=few).fit(target_tasks=tasks)
    plain = WFEMRegressor(**small, training=few).fit(target_tasks=tasks)
    np.testing.assert_allclose(mode.particles_.mean.weight, plain.particles_.mean.weight, rtol=1e-5, atol=1e-6)
    assert np.abs(plain.particles_.mean.weight).max() > 0.01
    untrained = WFEMRegressor(**small, inference="laplace", training=Training(n_steps=0)).fit(target_tasks=tasks)
    initial = WFEMRegressor(**small, training=Training(n_steps=0)).fit(target_tasks=tasks)
    np.testing.assert_array_equal(untrained.particles_.mean.weight, initial.particles_.mean.weight)
    too_many = r"up to 2000 parameters; this one has \d+\. Use inference='map', or kernel='linear\+rbf' with mean="
    with pytest.raises(ValueError, match=too_many):
        WFEMRegressor(alpha=0.0, inference="laplace").fit(target_tasks=tasks)
    with pytest.raises(
        ValueError, match=r"inference='laplace' is for Gaussian noise; for labels .* use inference='map'"
    ):
        WFEMClassifier(alpha=0.0, inference="laplace").fit(target_tasks=[([[0.0], [1.0]], ["a", "b"])] * 3)


def test_many_runs_and_tasks_do_not_deadlock():
    """Differentiating twice through batched LAPACK calls would, on two cores."""
    settings = Settings(mean=LinearMean(), kernel=RBFKernel())
    tasks = Sinusoid(0.5).target_tasks(300, 12, 0)  # of a size that is factorized in batches
    assert MAX_UNROLLED < 12 <= MAX_BATCHED_LAPACK
    run = make_run([tasks], (1.0,), make_scaling([tasks], (1.0,), settings), settings, 0)
    stacked = stack_runs([run] * 4)
    given = stacked.problem, stacked.particles, stacked.key
    draws = train(*given, TrainConfig(Laplace(4)), 1, jnp.full(4, 0.01)).particles
    assert all(np.isfinite(leaf).all() and leaf.shape[:2] == (4, 4) for leaf in jax.tree.leaves(draws))


def test_particle_interaction():
    rng = np.random.default_rng(0)
    apart = {"a": jnp.asarray(rng.normal(size=(5, 400)), jnp.float32), "b": jnp.zeros((5, 3))}
    median = interaction(apart, SVGD())
    np.testing.assert_allclose(np.diag(median.kernel), 1.0)
    # l = median / (2 log(K + 1)) makes the kernel at the median distance 1 / (K + 1), whatever the dimension
    assert 0.3 < median.neighbors < 1.2
    flat = np.concatenate([np.asarray(apart["a"]), np.zeros((5, 3))], axis=1)
    length = np.median([np.sum((flat[i] - flat[j]) ** 2) for i in range(5) for j in range(i)]) / (2 * np.log(6.0))
    force = [
        np.linalg.norm(sum(median.kernel[i, j] * (flat[i] - flat[j]) for j in range(5)) / length) for i in range(5)
    ]
    assert median.repulsion == pytest.approx(np.median(force) / np.sqrt(403), rel=1e-3)
    assert "too weak" in str(median)
    alone = interaction(apart, SVGD(length_scale=1.0))
    assert alone.neighbors < 1e-10
    assert "do not interact" in str(alone)
    assert interaction(apart, MAP()).neighbors == interaction(apart, Laplace()).neighbors == 0.0
    assert "nothing to interact" in str(interaction({"a": jnp.zeros((1, 3))}, SVGD()))
    about = {"kernel": "rbf", "mean": "linear", "inference": SVGD(4), "training": Training(n_steps=5)}
    fitted = WFEMRegressor(alpha=0.0, **about, random_state=0).fit(target_tasks=Sinusoid(0.5).target_tasks(4, 5, 0))
    assert fitted.particle_interaction().kernel.shape == (4, 4)


def test_a_task_without_weight_that_overflows_does_not_change_the_curvature():
    tasks = Sinusoid(0.5).target_tasks(4, 5, 0)
    far = [Task(1e25 * task.x, task.y) for task in tasks]
    settings = Settings(mean=LinearMean(), kernel=LinearRBFKernel())
    scaling = make_scaling([tasks], (1.0,), settings)
    curvatures = []
    for environments, weights in (([tasks], (1.0,)), ([far, tasks], (0.0, 1.0))):
        run = make_run(environments, weights, scaling, settings, 0)
        theta = jax.tree.map(lambda leaf: leaf[0], run.particles)
        curvatures.append(np.asarray(curvature_at(theta, run.problem)))
    assert np.abs(curvatures[0]).max() > 1.0
    np.testing.assert_allclose(curvatures[1], curvatures[0], rtol=1e-3, atol=1e-3)
