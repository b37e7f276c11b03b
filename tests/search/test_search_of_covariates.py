"""Covariates in a search: useless ones get no weight, and the fit says where the product of two matters."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
from running import call, words
from scipy import stats

from metaprior import MetaGPRegressor, load
from metaprior.search.choice import LEVEL, _normal_scores, _p_value


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
    how = ("--task", "id", "--x", "time", "--y", "y", "--task-covariates", "age", "sex", "--out", tmp_path / "prior")
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
