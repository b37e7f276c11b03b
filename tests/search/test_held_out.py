"""Held-out runs: a fold leaves no trace in training, and is scored as `fit` and `adapt` would score it."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaprior import MetaGPRegressor, MLPMean, RBFKernel
from metaprior.meta.methods import MAP, SVGD
from metaprior.meta.objective import log_gibbs, task_weights, temperature
from metaprior.meta.runs import Settings, scaling_of, set_up, stack_runs
from metaprior.search.averaging import contaminated
from metaprior.search.held_out import (
    Candidate,
    by_task,
    held_out_runs,
    hold_out,
    reference_log_densities,
    train_and_score,
)
from metaprior.tasks.padding import pad_tasks
from metaprior.tasks.types import Task
from metaprior.training.early_stopping import Deadline
from metaprior.training.loop import train
from metaprior.training.steps import TrainConfig

SETTINGS = Settings(mean=MLPMean((4,)), kernel=RBFKernel(), noise_std=0.2)
WEIGHTS = (0.3, 0.7)


def make_tasks(seed, sizes):
    rng = np.random.default_rng(seed)
    return [Task(x, 2.0 + np.sin(2.0 * x[:, 0]) + 0.1 * rng.normal(size=len(x))) for x in _inputs(rng, sizes)]


def _inputs(rng, sizes):
    return [rng.uniform(-2.0, 2.0, (n, 1)) for n in sizes]


SOURCE, TARGET = make_tasks(0, [5, 3, 5]), make_tasks(1, [5, 4, 1])
ENVIRONMENTS = [SOURCE, TARGET]
INCLUDED = [np.ones(3, bool), np.array([True, False, True])]
KEPT = [SOURCE, [TARGET[0], TARGET[2]]]


def test_a_task_held_out_is_as_good_as_absent(x64):
    scaling = scaling_of(KEPT, WEIGHTS, SETTINGS)
    held_out = set_up(ENVIRONMENTS, WEIGHTS, scaling, SETTINGS, 0, INCLUDED)
    absent = set_up(KEPT, WEIGHTS, scaling, SETTINGS, 0)
    theta = jax.tree.map(lambda leaf: leaf[0], held_out.particles)
    for rule in ("paper", "effective", "bayes"):
        gammas = [temperature(rule, run.problem.tasks, jnp.asarray(WEIGHTS)) for run in (held_out, absent)]
        np.testing.assert_allclose(*gammas, rtol=1e-12)
    values = [jax.value_and_grad(log_gibbs)(theta, run.problem) for run in (held_out, absent)]
    np.testing.assert_allclose(values[0][0], values[1][0], rtol=1e-12)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), values[0][1], values[1][1])


def test_weights_of_what_is_left_sum_to_one():
    tasks = pad_tasks(ENVIRONMENTS, included=INCLUDED)
    weights = task_weights(tasks, jnp.asarray(WEIGHTS, jnp.float32))
    np.testing.assert_allclose(sum(float(w.sum()) for w in weights), 1.0, rtol=1e-6)
    flat = sorted(float(value) for bucket in weights for value in bucket)
    np.testing.assert_allclose(flat, [0.0, 0.1, 0.1, 0.1, 0.35, 0.35], rtol=1e-6)


@pytest.mark.parametrize("method", [MAP(), SVGD()], ids=["map", "svgd"])
def test_scores_are_those_of_a_fit_without_the_fold(method):
    """Against the estimator: fitted on the tasks that are left, adapted to each split, its log density."""
    n_particles = 1 if isinstance(method, MAP) else 2
    settings = Settings(mean=MLPMean((4,)), kernel=RBFKernel(), noise_std=0.2, method=method, n_particles=n_particles)
    n_steps, seed = 7, int(np.random.RandomState(3).randint(2**31 - 1))
    with jax.enable_x64(True):
        folds = hold_out(TARGET, seed, labels=False)
        runs = held_out_runs(ENVIRONMENTS, 1, Candidate(WEIGHTS, settings), folds, seed)
        scores, taken = train_and_score(runs, TrainConfig(MAP()), n_steps, 1e-2)
        scored = by_task(scores, runs, folds)
    assert taken == n_steps
    assert scored.shape[:2] == (1, 3)
    for members in folds.members:
        [left_out] = members.tolist()
        meta = MetaGPRegressor(
            WEIGHTS[0], mean=MLPMean((4,)), kernel=RBFKernel(), noise_std=0.2, n_steps=n_steps,
            n_particles=n_particles, dtype="float64", inference="map", random_state=3,
        )  # fmt: skip
        meta.fit(SOURCE, [task for i, task in enumerate(TARGET) if i != left_out])
        splits = folds.splits[left_out]
        expected = [meta.adapt(s.x_context, s.y_context).log_density(s.x_query, s.y_query) for s in splits]
        mine = scored[0, left_out]
        np.testing.assert_allclose(mine[~np.isnan(mine)], np.concatenate(expected), rtol=1e-6)


def test_a_run_that_diverges_is_minus_infinity_and_alone(x64):
    folds = hold_out(TARGET, 0, labels=False)
    good, bad = (
        held_out_runs(ENVIRONMENTS, 1, Candidate(WEIGHTS, Settings(**settings)), folds, 0)
        for settings in ({"temperature": 1.0}, {"temperature": 1e300})
    )
    train_config = TrainConfig(MAP(), optimizer="sgd")
    together, _ = train_and_score([*good, *bad], train_config, 3, 1e-2)
    assert np.isneginf(together[len(good) :][~np.isnan(together[len(good) :])]).all()
    np.testing.assert_allclose(together[: len(good)], train_and_score(good, train_config, 3, 1e-2)[0], rtol=1e-9)


def test_reference_densities_lie_where_queries_do():
    folds = hold_out(TARGET, 0, labels=False)
    reference = reference_log_densities(TARGET, folds, labels=False)
    mean = np.mean([task.y.mean() for task in TARGET])  # every task counts the same
    spread = np.sqrt(np.mean([np.mean((task.y - mean) ** 2) for task in TARGET]))
    counts = [sum(len(split.y_query) for split in splits) for splits in folds.splits]
    np.testing.assert_array_equal((~np.isnan(reference)).sum(axis=1), counts)
    first = folds.splits[0][0].y_query[0]
    expected = -0.5 * ((first - mean) / spread) ** 2 - np.log(spread) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(reference[0, 0], expected)
    constant = [Task(task.x, np.full_like(task.y, 0.1)) for task in TARGET]  # whose std is not quite zero
    of_constant = reference_log_densities(constant, hold_out(constant, 0, labels=False), labels=False)
    np.testing.assert_allclose(of_constant[~np.isnan(of_constant)], -0.5 * np.log(2 * np.pi))
    huge = [Task(task.x, 1e200 * task.y) for task in TARGET]
    assert np.nanmax(reference_log_densities(huge, folds, labels=False)) < -400.0
    labels = reference_log_densities(TARGET, folds, labels=True)
    np.testing.assert_allclose(labels[~np.isnan(labels)], np.log(0.5))
    assert contaminated(np.array([-np.inf]), np.array([0.0]))[0] == pytest.approx(np.log(0.1))


def test_memory_is_bounded_by_training_in_parts(monkeypatch, x64):
    folds = hold_out(TARGET, 0, labels=False)
    runs = held_out_runs(ENVIRONMENTS, 1, Candidate(WEIGHTS, SETTINGS), folds, 0)
    whole, _ = train_and_score(runs, TrainConfig(MAP()), 4, 1e-2)
    monkeypatch.setattr("metaprior.meta.runs.MAX_NUMBERS", 1)
    parts, _ = train_and_score(runs, TrainConfig(MAP()), 4, 1e-2)
    np.testing.assert_allclose(parts, whole, rtol=1e-9)


def test_parts_take_the_same_steps_although_time_runs_out(monkeypatch):
    folds = hold_out(TARGET, 0, labels=False)
    runs = held_out_runs(ENVIRONMENTS, 1, Candidate(WEIGHTS, SETTINGS), folds, 0)
    monkeypatch.setattr("metaprior.meta.runs.MAX_NUMBERS", 1)
    taken = []

    def count(*arguments, **keywords):
        result = train(*arguments, **keywords)
        taken.append(result.loss.shape[1])
        return result

    monkeypatch.setattr("metaprior.search.held_out.train", count)
    _, n_steps = train_and_score(runs, TrainConfig(MAP(), chunk=2), 10, 1e-2, deadline=time.monotonic() - 1.0)
    assert taken == [2, 2, 2]
    assert n_steps == 2


def test_the_clock_cuts_the_schedule_to_the_deadline(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("metaprior.training.early_stopping.time.monotonic", lambda: now[0])
    clock = Deadline(1000, 100, deadline=10.0)
    now[0] = 4.0  # the first chunk compiles
    assert clock.affordable_steps(100) == 1000
    now[0] = 6.0  # two seconds a chunk: two more fit
    assert clock.affordable_steps(200) == 400
    now[0] = 6.5  # faster after all
    assert clock.affordable_steps(300) == 1000
    now[0] = 10.5
    assert clock.affordable_steps(400) == 400
    assert Deadline(1000, 100, None).affordable_steps(400) == 1000


def test_a_cut_schedule_is_annealed_to_its_end(monkeypatch):
    """Training that is told to end early takes the steps of a shorter schedule from there on."""
    run = stack_runs([set_up(ENVIRONMENTS, WEIGHTS, scaling_of(ENVIRONMENTS, WEIGHTS, SETTINGS), SETTINGS, 0)])
    monkeypatch.setattr(Deadline, "affordable_steps", lambda self, done: 6)
    train_config = TrainConfig(MAP(), chunk=3)
    result = train(run.problem, run.particles, run.key, train_config, 100, jnp.full(1, 1e-2), deadline=0.0)
    assert result.loss.shape == (1, 6)
