"""What `context="first"` and sizes of contexts refuse and warn about: columns without order, short tasks, the past."""

import warnings

import numpy as np
import pandas as pd
import pytest

from metaprior import MetaGPClassifier, MetaGPRegressor


def make_tasks(n_tasks, seed=0, n=8, labels=False):
    """Tasks with a level, a covariate and hours as columns."""
    rng = np.random.default_rng(seed)
    tasks = []
    for i in range(n_tasks):
        hours = rng.permutation(n).astype(float)
        x = pd.DataFrame({"hours": hours, "ward": np.array(["b", "a"] * (n // 2)), "age": 30.0 + i})
        y = hours + (x["ward"] == "a") + 0.1 * rng.normal(size=n)
        tasks.append((x, np.where(y > n / 2, "high", "low") if labels else y.to_numpy()))
    return tasks


def with_columns(tasks, *names):
    return [(x[list(names)], y) for x, y in tasks]


@pytest.mark.parametrize(("first", "kind"), [("ward", "a category"), ("age", "a covariate")])
@pytest.mark.parametrize("labels", [False, True])
def test_evaluate_refuses_an_order_by_categories_and_covariates(first, kind, labels):
    tasks = with_columns(make_tasks(4, labels=labels), first, "hours")
    covariates = ["age"] if first == "age" else None
    estimator = MetaGPClassifier if labels else MetaGPRegressor
    meta = estimator(alpha=0.0, covariates=covariates, random_state=0).fit(target_tasks=tasks[:3])
    for score in (meta.evaluate, meta.compare):
        with pytest.raises(ValueError, match=f"context='first' needs the first column.*'{first}' is {kind}"):
            score(tasks[3:], context="first")


def test_an_order_by_the_exposure_is_refused():
    rng = np.random.default_rng(0)
    tasks = [(np.column_stack([1.0 + rng.random(6), np.arange(6.0)]), rng.poisson(3.0, 6)) for _ in range(3)]
    given = {"alpha": 0.0, "likelihood": "poisson", "exposure": 0, "random_state": 0}
    refused = r"context='first' needs the first column.*X\[:, 0\] is the exposure"
    with pytest.raises(ValueError, match=refused):
        MetaGPRegressor(context="first", **given).fit(target_tasks=tasks)
    meta = MetaGPRegressor(**given).fit(target_tasks=tasks)
    with pytest.raises(ValueError, match=refused):
        meta.evaluate(tasks, context=("first", 3))


def test_contexts_must_leave_something_to_predict():
    tasks = with_columns(make_tasks(3), "hours")
    for context in (500, ("first", 8)):
        with pytest.raises(ValueError, match=r"context must leave a reading .* longest of the 3 tasks of the target"):
            MetaGPRegressor(context=context).fit(with_columns(make_tasks(3, n=600), "hours"), tasks)
    with pytest.raises(ValueError, match="the longest of the 2 tasks has 8"):  # too few of the target to hold out
        MetaGPRegressor(context=8).fit(tasks[:1], tasks[1:2])


def test_tasks_that_are_too_short_for_the_context_are_counted():
    tasks = with_columns(make_tasks(3) + make_tasks(1, n=4, seed=1), "hours")
    told = "1 of 4 tasks of the target environment have no more than the 5 readings that context gives"
    with pytest.warns(UserWarning, match=told):
        MetaGPRegressor(0.0, context=5, random_state=0).fit(target_tasks=tasks)


def test_contexts_beyond_what_a_fit_uses_of_a_task_are_told():
    tasks = with_columns(make_tasks(2, n=160), "hours")
    with pytest.warns(UserWarning, match="context gives 150 readings, and of each task 100 are used.* gives 99 of"):
        MetaGPRegressor(0.0, context=150, random_state=0).fit(target_tasks=tasks)


@pytest.mark.parametrize("labels", [False, True])
def test_adapted_tasks_warn_about_the_past_once_per_call(labels):
    tasks = with_columns(make_tasks(4, labels=labels), "hours")
    estimator = MetaGPClassifier if labels else MetaGPRegressor
    meta = estimator(0.0, context="first", random_state=0).fit(target_tasks=tasks[:3])
    x, y = tasks[3]
    task = meta.adapt(x[:4], y[:4])
    last = float(x["hours"][:4].max())
    ask = [task.predict, task.predict_proba] if labels else [task.predict, task.interval, task.sample]
    ask.append(lambda queries: meta.predict_many([(x[:4], y[:4], queries), (x[:0], y[:0], queries)]))
    for predict in ask:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            predict([[last - 1.0], [last - 0.5], [last]])
        said = [str(warning.message) for warning in caught if "not forecasts" in str(warning.message)]
        assert len(said) == 1
    task.predict([[last], [7.0]])  # warnings are errors here
    meta.adapt([], []).predict([[0.0]])


def test_other_priors_do_not_look_for_the_past(monkeypatch):
    tasks = with_columns(make_tasks(3), "hours")
    meta = MetaGPRegressor(0.0, random_state=0).fit(target_tasks=tasks)
    monkeypatch.setattr("metaprior.tasks.splits.warn_if_behind", None)
    meta.adapt(*tasks[0]).predict([[0.0]])
