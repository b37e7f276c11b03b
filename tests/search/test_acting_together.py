"""Covariates whose product matters: the fit says so, and what to type; without such an effect it hardly ever does."""

import warnings

import numpy as np
import pytest
from scipy import stats

from metaprior import MetaGPRegressor
from metaprior.search.acting_together import LEVEL, _normal_scores, _p_value


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
    with pytest.warns(UserWarning, match=r"columns 1 and 2 of X seem to act together"):
        without = MetaGPRegressor(covariates=[1, 2], random_state=0).fit(target_tasks=train)
    hint = without.transfer_report().hint
    assert "np.column_stack([X, X[:, 1] * X[:, 2]])" in hint
    assert "act together" in str(without.transfer_report())
    more_train, more_new = ([(np.column_stack([x, x[:, 1] * x[:, 2]]), y) for x, y in part] for part in (train, new))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        product = MetaGPRegressor(covariates=[1, 2, 3], random_state=0).fit(target_tasks=more_train)
    assert product.transfer_report().hint == ""
    assert unseen_rmse(product, more_new) < 0.6 * unseen_rmse(without, new)


@pytest.mark.parametrize("n_tasks", [15, 40])
def test_without_a_product_it_is_said_once_in_a_hundred(n_tasks):
    rng, n_draws, said = np.random.default_rng(n_tasks), 600, 0
    for _ in range(n_draws):
        sex, age = rng.permutation(np.arange(n_tasks) % 2) - 0.5, rng.normal(size=n_tasks)
        y = rng.standard_t(3, size=n_tasks) + 0.8 * sex
        said += _p_value(_normal_scores(y), sex, age) < LEVEL
    assert said <= stats.binom.ppf(0.999, n_draws, LEVEL)
