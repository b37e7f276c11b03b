"""What is compared: learned features where they may pay, and covariates that act together."""

import re
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
from running import call, words
from scipy import stats
from searches import search_for, training_tasks
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from metaprior import MetaGPRegressor, load
from metaprior.prior import families
from metaprior.prior.families import FAMILIES, FEATURES, LINEAR, fit_families
from metaprior.prior.features import find_features
from metaprior.search import compare as module
from metaprior.search.averaging import Candidate
from metaprior.search.compare import LEVEL, MAX_READINGS, _normal_scores, _p_value, add_features, are_worth_trying
from metaprior.search.search import choose_members
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
        search.add(Candidate(weights))
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
    search.options = [Candidate((0.0, 1.0)), Candidate((0.2, 0.8))]
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
    search.options = [Candidate((0.0, 1.0))]
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


def draw_tasks(n, rng, effect):
    """Return tasks that the sign of the effect of age depends on, in (time, sex, age)."""
    tasks = []
    for _ in range(n):
        sex, age, x = float(rng.integers(0, 2)), rng.normal(), np.sort(rng.uniform(0, 1, 6))
        y = np.sin(4 * x) + effect * (2 * sex - 1) * age + 0.3 * rng.normal() + 0.2 * rng.normal(size=6)
        tasks.append((np.column_stack([x, np.full(6, sex), np.full(6, age)]), y))
    return tasks


def unseen_rmse(meta, tasks):
    """Root mean squared error of the first readings, without any before them."""
    empty = np.zeros((0, tasks[0][0].shape[1]))
    off = [y - meta.adapt(empty, np.zeros(0)).predict(x) for x, y in tasks]
    return np.sqrt(np.mean(np.concatenate(off) ** 2))


def test_the_fit_says_that_covariates_act_together_and_their_product_helps():
    rng = np.random.default_rng(0)
    train, new = draw_tasks(25, rng, 1.5), draw_tasks(40, rng, 1.5)
    with pytest.warns(UserWarning, match=r"covariates X\[:, 1\] and X\[:, 2\] seem to act together"):
        without = MetaGPRegressor(covariates=[1, 2], random_state=0).fit(target_tasks=train)
    hint = without.transfer_report().hint
    assert "Add a column to X, X[:, 1] * X[:, 2], and name it" in hint
    assert "act together" in str(without.transfer_report())
    more_train, more_new = ([(np.column_stack([x, x[:, 1] * x[:, 2]]), y) for x, y in part] for part in (train, new))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        product = MetaGPRegressor(covariates=[1, 2, 3], random_state=0).fit(target_tasks=more_train)
    assert product.transfer_report().hint == ""
    assert unseen_rmse(product, more_new) < 0.6 * unseen_rmse(without, new)


def test_columns_are_named_and_a_category_is_told_how_to_multiply(tmp_path):
    """In a data frame, and on the command line, where its report is printed and saved."""
    tasks = draw_tasks(25, np.random.default_rng(0), 1.5)
    frames = [pd.DataFrame(x, columns=["time", "sex", "age"]) for x, _ in tasks]
    frames = [frame.assign(sex=np.where(frame["sex"] > 0, "f", "m")) for frame in frames]
    said = r"'sex' and 'age' seem to act together.*Add a column to X, 'sex' \* 'age',.* a category is 1 for one of its"
    meta = MetaGPRegressor(covariates=["sex", "age"], random_state=0)
    with pytest.warns(UserWarning, match=said):
        meta.fit(target_tasks=[(frame, y) for frame, (_, y) in zip(frames, tasks, strict=True)])
    assert re.search(said, meta.transfer_report().hint)
    table = pd.concat([frame.assign(y=y, id=i) for i, (frame, (_, y)) in enumerate(zip(frames, tasks, strict=True))])
    table.to_csv(tmp_path / "t.csv", index=False)
    how = ("--task", "id", "--x", "time", "--y", "y", "--covariates", "age", "sex", "--out", tmp_path / "prior")
    result = call("fit", tmp_path / "t.csv", *how)
    said = "'age' and 'sex' seem to act together, which the default does not model. Add a column to X, 'age' * 'sex'"
    assert words(result).count(said) == 2  # as a note, and in the report
    assert said in load(tmp_path / "prior").transfer_report().hint


@pytest.mark.parametrize("n_tasks", [15, 40])
def test_without_a_product_it_is_said_once_in_a_hundred(n_tasks):
    rng, n_draws, said = np.random.default_rng(n_tasks), 600, 0
    for _ in range(n_draws):
        sex, age = rng.permutation(np.arange(n_tasks) % 2) - 0.5, rng.normal(size=n_tasks)
        y = rng.standard_t(3, size=n_tasks) + 0.8 * sex
        said += _p_value(_normal_scores(y), sex, age) < LEVEL
    assert said <= stats.binom.ppf(0.999, n_draws, LEVEL)


@pytest.mark.parametrize("seed", [0, 5, 100, 105])
def test_a_useless_covariate_has_no_majority(seed):
    rng, tasks = np.random.default_rng(seed), []
    for _ in range(8):
        z, x, center = rng.normal(), np.sort(rng.uniform(0, 1, 10)), 0.5 + 0.12 * rng.normal()
        y = np.tanh((x - center) * 8) * np.exp(0.2 * rng.normal()) + 0.05 * rng.normal(size=10)
        tasks.append((np.column_stack([x, np.full(10, z)]), y))
    meta = MetaGPRegressor(covariates=[1], random_state=0).fit(target_tasks=tasks)
    assert meta.covariate_weights_["none"] > 0.5
