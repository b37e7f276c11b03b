"""Levels are looked up once, in whatever way tasks come; covariates of queries are those of the context."""

import numpy as np
import pandas as pd
import pytest

from metaprior import MetaGPClassifier, MetaGPRegressor
from metaprior.tasks.splits import as_context_rule as rule_of
from metaprior.tasks.splits import split_once
from metaprior.tasks.types import Task

EFFECT = np.array([0.0, 3.0, -3.0])  # of the levels 0, 1 and 2, which the fit meets in another order


def make_task(rng, labels=False, n=8):
    level = np.array([2, 0, 1, *rng.integers(0, 3, n - 3)])
    x = np.column_stack([rng.uniform(0, 1, n), level])
    y = x[:, 0] + EFFECT[level] + 0.1 * rng.normal(size=n)
    return x, np.where(y > 0.5, "high", "low") if labels else y


@pytest.fixture(scope="module")
def numbers():
    rng = np.random.default_rng(0)
    tasks = [make_task(rng) for _ in range(14)]
    return MetaGPRegressor(alpha=0.0, categorical=[1], random_state=0).fit(target_tasks=tasks[:10]), tasks[10:]


def test_evaluate_splits_tasks_with_categories_as_by_hand(numbers):
    meta, tests = numbers
    rng = np.random.default_rng(0)
    by_hand = [split_once(Task(*test), rule_of(3), rng) for test in tests]
    assert meta.evaluate(tests, context=3).nll == meta.evaluate(by_hand).nll
    assert meta.compare(tests, context=3).scores["metaprior"].nll == meta.evaluate(by_hand).nll
    expected = [np.mean(-meta.adapt(*test[:2]).log_density(*test[2:])) for test in by_hand]
    assert meta.evaluate(by_hand).nll == pytest.approx(np.mean(expected), rel=1e-9)


def test_a_classifier_scores_tasks_with_categories_as_by_hand():
    rng = np.random.default_rng(1)
    tasks = [make_task(rng, labels=True) for _ in range(12)]
    meta = MetaGPClassifier(alpha=0.0, categorical=[1], shared_classes=True, random_state=0).fit(target_tasks=tasks[:8])
    losses = []
    for x, y in tasks[8:]:
        adapted = meta.adapt(x[:4], y[:4])
        place = [adapted.classes_.tolist().index(label) for label in y[4:]]
        losses.append(-np.mean(adapted.predict_log_proba(x[4:])[np.arange(4), place]))
    tests = [(x[:4], y[:4], x[4:], y[4:]) for x, y in tasks[8:]]
    assert meta.evaluate(tests).log_loss == pytest.approx(np.mean(losses), rel=1e-6)
    assert meta.evaluate(tasks[8:], context=4).log_loss < 2 * np.mean(losses)
    assert meta.compare(tests).scores["metaprior"].log_loss == meta.evaluate(tests).log_loss


def frames(levels, n=8):
    rng, tasks = np.random.default_rng(2), []
    for i in range(n):
        x = pd.DataFrame({"hours": rng.uniform(0, 5, 5), "ward": rng.choice(levels, 5), "age": 40.0 + 5.0 * i})
        tasks.append((x, x["hours"] + x["age"] / 10 + 0.1 * rng.normal(size=5)))
    return tasks


@pytest.fixture(scope="module")
def wards():
    tasks = frames(["1", "2", "A"])
    return MetaGPRegressor(alpha=0.0, covariates="age", categorical="ward", random_state=0).fit(target_tasks=tasks)


@pytest.mark.parametrize("given", [[1, 2], [1.0, 2.0], ["1", "2"]])
def test_levels_are_known_however_a_table_was_read(wards, given):
    x = pd.DataFrame({"hours": [1.0, 2.0], "ward": ["1", "2"], "age": 50.0})
    np.testing.assert_array_equal(wards.adapt([], []).predict(x.assign(ward=given)), wards.adapt([], []).predict(x))


def test_covariates_of_queries_are_those_of_the_context(wards):
    x, y = frames(["1", "2", "A"])[2]
    task = wards.adapt(x[:3], y[:3])
    np.testing.assert_array_equal(task.predict(x[3:].assign(age=np.nan)), task.predict(x[3:]))
    with pytest.raises(ValueError, match="predict: covariate 'age' must be that of the context"):
        task.predict(x[3:].assign(age=25.0))
    with pytest.raises(ValueError, match="update: covariate 'age' must be that of the context"):
        task.update(x[3:].assign(age=25.0), y[3:])
    many = wards.adapt_many([(x[:0], y[:0]), (x[:3], y[:3])])
    with pytest.raises(ValueError, match=r"X\[1\]: covariate 'age'"):
        many.predict([x[3:].assign(age=25.0)] * 2)
    free = many.predict([x[3:].assign(age=25.0), x[3:]])
    np.testing.assert_allclose(free[0], wards.adapt([], []).predict(x[3:].assign(age=25.0)))


def test_what_has_no_order_cannot_be_first_in_forecasts():
    tasks = [(x[["ward", "hours"]], y) for x, y in frames(["a", "b"])]
    with pytest.raises(ValueError, match="needs the first column of X to be a number that varies"):
        MetaGPRegressor(context="first").fit(target_tasks=tasks)


def test_levels_that_no_file_could_hold_are_refused():
    tasks = [(x.assign(ward=pd.cut(x["hours"], [-1, 2, 6])), y) for x, y in frames(["a", "b"])]
    with pytest.raises(ValueError, match=r"column 'ward' of X must hold text, finite numbers or bools; got Interval"):
        MetaGPRegressor().fit(target_tasks=tasks)


def test_mistakes_are_named(wards):
    with pytest.raises(ValueError, match=r"covariates must name columns of X.*got 1\.0"):
        MetaGPRegressor(covariates=1.0).fit(target_tasks=frames(["a", "b"]))
    with pytest.raises(ValueError, match="X has categories, 'ward'"):
        wards.to_sklearn()
    tasks = frames(["a", "b"])
    first = (tasks[0][0].assign(sex=np.nan), tasks[0][1])
    rest = [(x.assign(sex="m"), y) for x, y in tasks[1:]]
    with pytest.raises(ValueError, match="if it holds categories, name it in categorical"):
        MetaGPRegressor(covariates=["age", "sex"]).fit(target_tasks=[first, *rest])
