"""Cross-validation: folds and splits; a fold leaves no trace in training, and is scored as `fit` and `adapt` would."""

import time
from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaprior.search.averaging import Candidate
from metaprior.search.held_out import Folds
from metaprior.tasks.types import Task
from metaprior.wfem import MAP, SVGD, ConstantMean, Gaussian, Laplace, RBFKernel, Training, WFEMRegressor, runs
from metaprior.wfem import selection as module
from metaprior.wfem.loop import Deadline, train
from metaprior.wfem.objective import log_gibbs, pad_tasks, task_weights
from metaprior.wfem.runs import Settings, TrainingOptions, make_run, make_scaling, stack_runs
from metaprior.wfem.selection import (
    CrossValidation,
    HeldOutRun,
    gather_by_task,
    held_out_runs,
    score_candidates,
    search_method,
)
from metaprior.wfem.steps import TrainConfig

SETTINGS = Settings(mean=ConstantMean(), kernel=RBFKernel(), likelihood=Gaussian(0.2))
WEIGHTS = (0.3, 0.7)


def make_tasks(seed, sizes):
    rng = np.random.default_rng(seed)
    return [Task(x, 2.0 + np.sin(2.0 * x[:, 0]) + 0.1 * rng.normal(size=len(x))) for x in _inputs(rng, sizes)]


def _inputs(rng, sizes):
    return [rng.uniform(-2.0, 2.0, (n, 1)) for n in sizes]


# Padded to one size, with any task left out: one program trains all.
SOURCE, TARGET = make_tasks(0, [4, 4, 4]), make_tasks(1, [4, 4, 3])
ENVIRONMENTS = [SOURCE, TARGET]
RAGGED = [make_tasks(0, [5, 3, 5]), make_tasks(1, [5, 4, 1])]
INCLUDED = [np.ones(3, bool), np.array([True, False, True])]
KEPT = [RAGGED[0], [RAGGED[1][0], RAGGED[1][2]]]


@pytest.fixture
def log_densities(monkeypatch):
    """Cross-validate candidates and return their log densities, not contaminated, and the validation."""
    monkeypatch.setattr(module, "contaminated", lambda log_density, reference: log_density)

    def validate(candidates, n_steps, seed=0, deadline=None, optimizer="adam"):
        validation = CrossValidation(ENVIRONMENTS, 1, seed, labels=False)
        options = TrainingOptions(n_steps, 1e-2, optimizer, progress=False)
        assert score_candidates([validation], candidates, options, deadline)
        return validation.log_densities, validation

    return validate


def test_a_task_held_out_is_as_good_as_absent(x64):
    scaling = make_scaling(KEPT, WEIGHTS, SETTINGS)
    held_out = make_run(RAGGED, WEIGHTS, scaling, SETTINGS, 0, INCLUDED)
    absent = make_run(KEPT, WEIGHTS, scaling, SETTINGS, 0)
    theta = jax.tree.map(lambda leaf: leaf[0], held_out.particles)
    for rule in ("paper", "effective", "bayes"):
        settings = replace(SETTINGS, temperature=rule)
        first = make_run(RAGGED, WEIGHTS, scaling, settings, 0, INCLUDED).problem.temperature
        np.testing.assert_allclose(first, make_run(KEPT, WEIGHTS, scaling, settings, 0).problem.temperature, rtol=1e-12)
    density = eqx.filter_jit(jax.value_and_grad(log_gibbs))
    values = [density(theta, run.problem) for run in (held_out, absent)]
    np.testing.assert_allclose(values[0][0], values[1][0], rtol=1e-12)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), values[0][1], values[1][1])


def test_weights_of_what_is_left_sum_to_one():
    tasks = pad_tasks(RAGGED, included=INCLUDED)
    weights = task_weights(tasks, jnp.asarray(WEIGHTS, jnp.float32))
    np.testing.assert_allclose(sum(float(w.sum()) for w in weights), 1.0, rtol=1e-6)
    flat = sorted(float(value) for bucket in weights for value in bucket)
    np.testing.assert_allclose(flat, [0.0, 0.1, 0.1, 0.1, 0.35, 0.35], rtol=1e-6)


def test_scores_are_those_of_a_fit_without_the_fold(log_densities):
    """Against the estimator: fitted on the tasks that are left, adapted to each split, its log density."""
    settings = replace(SETTINGS, method=SVGD(2))  # the search trains two particles by MAP
    n_steps, seed = 7, int(np.random.RandomState(3).randint(2**31 - 1))
    with jax.enable_x64(True):
        scored, validation = log_densities([Candidate(WEIGHTS, settings)], n_steps, seed)
    folds = validation.folds
    assert validation.n_steps == n_steps
    assert scored.shape[:2] == (1, 3)
    for members in folds.members:
        [left_out] = members.tolist()
        meta = WFEMRegressor(
            RBFKernel(), ConstantMean(), alpha=WEIGHTS[0], likelihood=Gaussian(0.2), inference=MAP(2),
            temperature="bayes", training=Training(n_steps=n_steps, dtype="float64"), random_state=3,
        )  # fmt: skip
        meta.fit(SOURCE, [task for i, task in enumerate(TARGET) if i != left_out])
        splits = folds.splits[left_out]
        expected = [meta.adapt(s.x_context, s.y_context).log_density(s.x_query, s.y_query) for s in splits]
        mine = scored[0, left_out]
        np.testing.assert_allclose(mine[~np.isnan(mine)], np.concatenate(expected), rtol=1e-6)


def test_the_search_trains_up_to_three_independent_particles():
    assert search_method(SVGD(2, 0.7, "hyperprior")) == MAP(2, "hyperprior")
    assert search_method(MAP(start="hyperprior")) == MAP(start="hyperprior")
    assert search_method(Laplace(n_draws=4)) == Laplace(n_draws=4)
    validation = CrossValidation(ENVIRONMENTS, 1, 0, labels=False)
    for n_particles, trained in ((1, 1), (2, 2), (10, 3)):
        settings = replace(SETTINGS, method=SVGD(n_particles))
        runs = held_out_runs(validation, Candidate(WEIGHTS, settings))
        assert [len(run.run.particles.mean.bias) for run in runs] == [trained] * 3


def test_the_runs_of_a_candidate_hold_out_a_fold_each():
    validation = CrossValidation(RAGGED, 1, 0, labels=False)
    runs = held_out_runs(validation, FIRST)
    assert len(runs) == 3
    for held_out, [left_out] in zip(runs, validation.folds.members, strict=True):
        kept = [RAGGED[0], [task for i, task in enumerate(RAGGED[1]) if i != left_out]]
        included = sum(int(np.sum(bucket.included)) for bucket in held_out.run.problem.tasks.buckets)
        assert included == 5
        scaling = make_scaling(kept, WEIGHTS, SETTINGS)
        assert held_out.log_unit == pytest.approx(np.log(scaling.y_std))
        splits = validation.folds.splits[left_out]
        assert held_out.tasks.tolist() == [left_out] * len(splits) + [-1] * (5 - len(splits))
        queries, y_query, mask = held_out.validation
        assert queries.x_context.shape == (5, 2, 1)
        assert y_query.shape == (5, 3)
        assert mask.sum(axis=1).tolist() == [len(s.y_query) for s in splits] + [0] * (5 - len(splits))
        for row, split in enumerate(splits):
            np.testing.assert_allclose(y_query[row][mask[row]], scaling.outputs(split.y_query), rtol=1e-6)
            of_context = queries.x_context[row][queries.context_mask[row]]
            np.testing.assert_allclose(of_context, scaling.inputs(split.x_context), rtol=1e-6)


def test_queries_are_gathered_by_task():
    """Four runs of two folds, so two candidates; tasks have two splits or one of up to two queries."""
    folds = Folds([np.array([0, 2]), np.array([1])], [[None, None], [None], [None]])
    owners = [np.array([0, 0, 2]), np.array([1, -1, -1])] * 2
    runs = [HeldOutRun(None, None, tasks, 0.0) for tasks in owners]
    gathered = gather_by_task(np.arange(24.0).reshape(4, 3, 2), runs, folds)
    nan = np.nan
    first = [[0, 1, 2, 3], [6, 7, nan, nan], [4, 5, nan, nan]]
    second = [[12, 13, 14, 15], [18, 19, nan, nan], [16, 17, nan, nan]]
    np.testing.assert_array_equal(gathered, [first, second])


def test_a_run_that_diverges_is_minus_infinity_and_does_not_touch_the_others(x64, log_densities):
    good, bad, other = (Candidate(WEIGHTS, replace(SETTINGS, temperature=gamma)) for gamma in (1.0, 1e300, 2.0))
    together, _ = log_densities([good, bad], 3, optimizer="sgd")
    assert np.isneginf(together[1][~np.isnan(together[1])]).all()
    beside, _ = log_densities([good, other], 3, optimizer="sgd")
    np.testing.assert_allclose(together[0], beside[0], rtol=1e-12)
    assert np.isfinite(beside[1][~np.isnan(beside[1])]).all()


class FakeResult(NamedTuple):
    particles: None
    loss: np.ndarray


@pytest.fixture
def rounds(monkeypatch):
    """What every round of training was asked for; a round with a deadline ends after 40 steps and takes 8 seconds."""
    asked, now = [], [1000.0]

    def trained(runs, method, options, deadline, **_):
        asked.append((len(runs), options.n_steps, deadline))
        now[0] += 8.0
        return [FakeResult(None, np.zeros(options.n_steps if deadline is None else 40))] * len(runs)

    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module, "train_runs", trained)
    monkeypatch.setattr(module, "_score", lambda particles, runs: np.zeros((len(runs), 4, 2)))
    return asked, now


FIRST, SECOND = Candidate(WEIGHTS, SETTINGS), Candidate((0.0, 1.0), SETTINGS)


def test_candidates_are_trained_once(rounds):
    asked, _ = rounds
    validation, options = CrossValidation(ENVIRONMENTS, 1, 0, labels=False), TrainingOptions(2, 1e-2, progress=False)
    assert score_candidates([validation], [FIRST], options)
    before = validation.scores([FIRST])
    assert score_candidates([validation], [SECOND, FIRST], options)
    assert [n_runs for n_runs, *_ in asked] == [3, 3]
    assert validation.candidates == [FIRST, SECOND]
    np.testing.assert_array_equal(validation.scores([SECOND, FIRST])[1:], before)
    again = Candidate(WEIGHTS, replace(SETTINGS))  # equal settings, but not the same
    assert validation.unscored([again, FIRST]) == [again]


def test_later_rounds_take_as_many_steps_as_the_first(rounds):
    """Only the first may be cut short by the deadline: scores of different numbers of steps cannot be compared."""
    asked, _ = rounds
    validation, options = CrossValidation(ENVIRONMENTS, 1, 0, labels=False), TrainingOptions(100, 1e-2, progress=False)
    assert score_candidates([validation], [FIRST], options, deadline=5000.0)
    assert (validation.n_steps, validation.seconds_per_run) == (40, pytest.approx(8 / 3))
    assert score_candidates([validation], [SECOND], options, deadline=5000.0)
    assert asked == [(3, 100, 5000.0), (3, 40, None)]
    assert validation.n_steps == 40
    whole = CrossValidation(ENVIRONMENTS, 1, 0, labels=False)
    assert score_candidates([whole], [FIRST], options)
    assert score_candidates([whole], [SECOND], options)
    assert asked[2:] == [(3, 100, None), (3, 100, None)]


@pytest.mark.parametrize(("left", "enough"), [(8.1, True), (7.9, False)])
def test_a_later_round_is_left_out_if_it_would_end_after_the_deadline(rounds, left, enough):
    """By the time that a run of the last round took, eight seconds for three runs."""
    asked, now = rounds
    validation, options = CrossValidation(ENVIRONMENTS, 1, 0, labels=False), TrainingOptions(100, 1e-2, progress=False)
    assert score_candidates([validation], [FIRST], options, deadline=now[0] + 1.0)  # the first is never left out
    assert score_candidates([validation], [SECOND], options, deadline=now[0] + left) is enough
    assert len(asked) == 1 + enough
    assert validation.unscored([FIRST, SECOND]) == ([] if enough else [SECOND])
    assert score_candidates([validation], [FIRST], options, deadline=0.0)  # is scored already


def test_several_data_sets_are_scored_as_each_alone(x64):
    options, candidates = TrainingOptions(3, 1e-2, progress=False), [Candidate(WEIGHTS, SETTINGS)]
    data = [ENVIRONMENTS, [make_tasks(5, [4, 4, 4]), make_tasks(6, [4, 4, 3])]]
    together = [CrossValidation(environments, 1, 0, labels=False) for environments in data]
    score_candidates(together, candidates, options)
    for environments, validation in zip(data, together, strict=True):
        alone = CrossValidation(environments, 1, 0, labels=False)
        score_candidates([alone], candidates, options)
        np.testing.assert_allclose(validation.log_densities, alone.log_densities, rtol=1e-9)


def test_memory_is_bounded_by_training_in_parts(monkeypatch, x64, log_densities):
    whole, _ = log_densities([Candidate(WEIGHTS, SETTINGS)], 4)
    monkeypatch.setattr(runs, "MAX_BYTES", 1)
    parts, _ = log_densities([Candidate(WEIGHTS, SETTINGS)], 4)
    np.testing.assert_allclose(parts, whole, rtol=1e-9)


def test_parts_take_the_same_steps_although_time_runs_out(x64, monkeypatch, log_densities):
    taken = []

    def count(*arguments, **keywords):
        result = train(*arguments, **keywords)
        taken.append(result.loss.shape[1])
        return result

    monkeypatch.setattr(runs, "MAX_BYTES", 1)
    monkeypatch.setattr(runs, "train", count)
    _, validation = log_densities([Candidate(WEIGHTS, SETTINGS)], 250, deadline=time.monotonic() - 1.0)
    assert taken == [100, 100, 100]  # a chunk of steps each
    assert validation.n_steps == 100


def test_the_clock_cuts_the_schedule_to_the_deadline(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("metaprior.wfem.loop.time.monotonic", lambda: now[0])
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
    run = stack_runs([make_run(ENVIRONMENTS, WEIGHTS, make_scaling(ENVIRONMENTS, WEIGHTS, SETTINGS), SETTINGS, 0)])
    monkeypatch.setattr(Deadline, "affordable_steps", lambda self, done: 6)
    train_config = TrainConfig(MAP(), chunk=3)
    result = train(run.problem, run.particles, run.key, train_config, 100, jnp.full(1, 1e-2), deadline=0.0)
    assert result.loss.shape == (1, 6)
