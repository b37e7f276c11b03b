"""What `context="first"` and sizes of contexts refuse and warn about: columns without order, short tasks, the past."""

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
