"""The family of learned features in the search: when it is tried, on which tasks, and when it is given up."""

from functools import partial

import numpy as np
import pytest
from searches import search_for, training_tasks
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from metaprior import MetaGPRegressor, load
from metaprior.prior import families
from metaprior.prior.families import FAMILIES, FEATURES, LINEAR, fit_families
from metaprior.prior.features import find_features
from metaprior.search import compare as module
from metaprior.search.choice import choose_members
from metaprior.search.compare import MAX_READINGS, add_features, are_worth_trying
from metaprior.search.search import Option
from metaprior.tasks.types import Task


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    with threadpool_limits(1, user_api="blas"):
        yield


def make_tasks(n_tasks, n_samples, seed, input_dim=2):
    """Tasks that weigh one feature of their inputs in their own way."""
    rng = np.random.default_rng(seed)
    tasks = []
    for _ in range(n_tasks):
        x = rng.normal(size=(n_samples, input_dim))
        feature = np.tanh(2.0 * x[:, 0] * x[:, -1] + x[:, 1:-1].sum(axis=1))
        tasks.append(Task(x, rng.normal(1.0, 2.0) * feature + 0.1 * rng.normal(size=n_samples)))
    return tasks


@pytest.fixture(scope="module")
def small():
    """A search over two options, and the predictive distributions that its best candidate has."""
    search = search_for([make_tasks(4, 6, 0), make_tasks(7, 6, 1)])
    for weights in ((0.0, 1.0), (0.2, 0.8)):
        search.add(Option(weights))
    return search


class Recorder:
    """Stands in for fits of features: records the tasks of each, and returns a prior that is known already."""

    def __init__(self, prior):
        self.prior, self.trainings = prior, []

    def __call__(self, training, environment, noise_std, covariates):
        self.trainings.append(training)
        return self.prior


@pytest.mark.parametrize(("n_tasks", "input_dim", "expected"), [(50, 2, True), (49, 2, False), (50, 1, False)])
def test_tried_with_many_tasks_and_several_inputs(small, n_tasks, input_dim, expected, monkeypatch):
    monkeypatch.setattr(module, "_best_option", lambda search: 1)
    environments = [make_tasks(n_tasks - 7, 1, 0, input_dim), make_tasks(7, 1, 1, input_dim)]
    search = search_for(environments)
    search.options = [Option((0.0, 1.0)), Option((0.2, 0.8))]
    assert are_worth_trying(search) == expected
    monkeypatch.setattr(module, "_best_option", lambda search: 0)  # target-only: the source does not count
    assert not are_worth_trying(search)


def test_every_task_is_predicted_without_it(small, monkeypatch):
    best = int(np.argmax(small.option_scores().mean(axis=1)))
    before = list(small.scored)
    known = max(before, key=lambda each: small.queries.scores(each.held_out).mean()).prior
    recorder = Recorder(known)
    monkeypatch.setattr(module, "fit_features", recorder)
    monkeypatch.setattr(module, "HOPELESS", 0.0)
    try:
        add_features(small)
        [added] = small.scored[len(before) :]
    finally:
        del small.scored[len(before) :]
    assert (added.option, added.family, added.prior) == (best, FEATURES, known)
    assert np.isfinite(added.held_out.means[0][np.isfinite(small.queries.y)]).all()
    left_out = []
    n_source = 4 if small.options[best].weights[0] > 0 else 0
    for training in recorder.trainings:
        seen = [task.y[0] * float(training.scaling.y_std) + float(training.scaling.y_mean) for task in training.tasks]
        left_out.append([i for i, task in enumerate(small.tasks) if np.min(np.abs(np.array(seen) - task.y[0])) > 1e-9])
        assert len(training.tasks) == n_source + 7 - len(left_out[-1])
    assert sorted(i for part in left_out for i in part) == list(range(7))
    assert sorted(len(part) for part in left_out) == [0, 2, 2, 3]  # seven folds in three parts, and all tasks


def test_given_up_after_a_first_part(small, monkeypatch):
    before, worst = len(small.scored), min(small.scored, key=lambda each: small.queries.scores(each.held_out).mean())
    recorder = Recorder(worst.prior)
    monkeypatch.setattr(module, "fit_features", recorder)
    monkeypatch.setattr(module, "HOPELESS", 0.9)
    add_features(small)
    assert len(recorder.trainings) == 1
    assert len(small.scored) == before
    assert choose_members(small).families[FEATURES] == 0.0


def test_a_fit_that_fails_is_left_out(small, monkeypatch):
    def fail(*arguments):
        raise np.linalg.LinAlgError

    before = len(small.scored)
    monkeypatch.setattr(small, "families", dict.fromkeys(FAMILIES))
    monkeypatch.setattr(module, "fit_features", fail)
    with pytest.warns(ConvergenceWarning, match="features could not be fitted, and are left out"):
        add_features(small)
    assert len(small.scored) == before
    assert FEATURES not in choose_members(small).families


def test_long_tasks_are_thinned(monkeypatch):
    search = search_for([[], [*make_tasks(2, MAX_READINGS + 20, 0), *make_tasks(2, 5, 1)]])
    search.options = [Option((0.0, 1.0))]
    recorder = Recorder(
        fit_families(training_tasks(search.environments, 1, search.options[0]), False, None).priors[LINEAR]
    )
    monkeypatch.setattr(module, "fit_features", recorder)
    module._fit(search, 0, np.zeros(0, int))
    [training] = recorder.trainings
    assert [len(task.y) for task in training.tasks] == [MAX_READINGS, MAX_READINGS, 5, 5]
    first = training.scaling.undo_mean(training.tasks[0].y)
    assert all(np.min(np.abs(search.tasks[0].y - y)) < 1e-9 for y in first)


def test_a_fit_with_features_predicts_well_and_is_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(families, "find_features", partial(find_features, max_iterations=120))
    monkeypatch.setattr(module, "MIN_TASKS", 50)
    target, test = make_tasks(50, 12, 0, 3), make_tasks(40, 16, 1, 3)
    tests = [(task.x[:6], task.y[:6], task.x[6:], task.y[6:]) for task in test]
    meta = MetaGPRegressor(0.0, random_state=0, progress=False).fit([], target)
    assert meta.family_weights_[FEATURES] > 0.5
    assert "features" in str(meta.transfer_report())
    scores = meta.evaluate(tests)
    assert scores.rmse < 0.35  # 0.5 without features
    assert 0.85 < scores.coverage < 0.95
    meta.save(tmp_path / "prior.safetensors")
    again = load(tmp_path / "prior.safetensors")
    x, y, x_query, _ = tests[0]
    np.testing.assert_array_equal(again.adapt(x, y).predict(x_query), meta.adapt(x, y).predict(x_query))
