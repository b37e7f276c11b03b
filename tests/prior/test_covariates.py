"""Covariates and categories in hierarchical priors: dense Gaussian conditioning, a mixed model."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from covariate_problems import IS_TARGET, NOISE, common_kernel, make_tasks, own_kernel
from scipy.linalg import block_diag
from small_problems import KINDS
from test_member_files import read_back

from metaprior.prior.families import BEND, CURVED, LINEAR, SHIFT, TrainingTasks, fit_families
from metaprior.prior.process import NOISE_FLOOR
from metaprior.tasks.categories import ColumnKinds
from metaprior.tasks.scaling import fit_scaling
from metaprior.tasks.types import Task


@cache
def training(swap=False):
    tasks = make_tasks()
    if swap:  # the codes of levels, in both categories
        tasks = [Task(task.x * [1, -1, 1, -1] + [0, 1, 0, 2], task.y) for task in tasks]
    scaling = fit_scaling([tasks], [1.0], KINDS)
    return TrainingTasks(scaling, [scaling.task(task) for task in tasks], np.ones(6), IS_TARGET)


@cache
def fitted(covariates, swap=False):
    return fit_families(training(swap), False, NOISE * float(training(swap).scaling.y_std), None, 60, None, covariates)


@pytest.mark.parametrize("covariates", [SHIFT, CURVED, BEND])
def test_new_tasks_against_dense_conditioning_on_all_readings(covariates):
    prior, data = fitted(covariates).priors[LINEAR], training()
    new = data.scaling.task(make_tasks(1, seed=3)[0])
    x, y = np.concatenate([task.x for task in data.tasks]), np.concatenate([task.y for task in data.tasks])
    query = data.scaling.inputs(np.array([[0.2, 1, 0.5, 2], [0.2, 2, np.nan, 3], [0.2, 0, 0.1, np.nan]]))
    noise = prior.noise_variance + NOISE_FLOOR
    given = np.concatenate([x, new.x])
    own = block_diag(*(own_kernel(prior, task.x, task.x) for task in (*data.tasks, new)))
    total = common_kernel(prior, given, given) + own + noise * np.eye(len(given))
    cross = common_kernel(prior, query, given)
    cross[:, len(x) :] += own_kernel(prior, query, new.x)
    expected = cross @ np.linalg.solve(total, np.concatenate([y, new.y]))
    variance = common_kernel(prior, query, query) + own_kernel(prior, query, query)
    variance = np.diag(variance - cross @ np.linalg.solve(total, cross.T))
    posterior = prior.condition(new.x[None], new.y[None], np.ones((1, len(new.y)), bool))
    found = prior.marginals(posterior, query[None])
    np.testing.assert_allclose(found.mean[0, 0], data.scaling.undo_mean(expected), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.variance[0, 0], data.scaling.undo_variance(variance), rtol=1e-6)


def test_unseen_levels_and_missing_values_are_the_average_with_the_learned_spread():
    prior = fitted(SHIFT).priors["smooth"]
    average = np.zeros((1, 3, 11))
    average[0, 1, 5] = average[0, 2, 9] = 1.0  # the age is missing; a unit that the fit has not seen
    nothing = prior.condition(np.zeros((1, 0, 11)), np.zeros((1, 0)), np.zeros((1, 0), bool))
    found, scales = prior.marginals(nothing, average), prior.terms.layout.scale(prior.terms.theta, "shift")
    np.testing.assert_allclose(found.mean[0, 0], found.mean[0, 0, 0], rtol=1e-10)
    np.testing.assert_allclose(
        found.variance[0, 0, 1:] - found.variance[0, 0, 0], prior.scaling.undo_variance(scales**2), rtol=1e-8
    )


@pytest.mark.parametrize("covariates", [SHIFT, BEND])
def test_the_order_of_levels_changes_nothing(covariates):
    x = np.array([[0.3, 0.0, 0.4, 0.0], [-1.0, 1.0, 0.4, 0.0]])
    for name, prior in fitted(covariates).priors.items():
        other = fitted(covariates, swap=True).priors[name]
        predictions = []
        for each, inputs in ((prior, x), (other, x * [1, -1, 1, -1] + [0, 1, 0, 2])):
            nothing = each.condition(np.zeros((1, 0, 11)), np.zeros((1, 0)), np.zeros((1, 0), bool))
            found = each.marginals(nothing, each.scaling.inputs(inputs)[None])
            predictions.append(np.concatenate([found.mean, found.variance]))
        np.testing.assert_allclose(*predictions, rtol=0.02, atol=0.02)  # modes are found to 0.01 nats


@pytest.mark.parametrize("covariates", [SHIFT, CURVED, BEND])
def test_files_keep_every_family(covariates):
    for prior in fitted(covariates).priors.values():
        again = read_back(prior, kinds=KINDS)
        for kept, expected in zip(again.process, prior.process, strict=True):
            np.testing.assert_array_equal(kept, expected)


def test_the_effect_is_that_of_a_mixed_model():
    rng, tasks, rows = np.random.default_rng(1), [], []
    for i in range(60):
        x, age = rng.normal(size=5), rng.normal()
        y = 1.0 + 0.5 * x + 0.8 * age + 0.5 * rng.normal() + 0.3 * rng.normal(size=5)
        tasks.append(Task(np.column_stack([x, np.full(5, age)]), y))
        rows.append(pd.DataFrame({"task": i, "x": x, "age": age, "y": y}))
    kinds = ColumnKinds((0, 0), (1,))
    scaling = fit_scaling([tasks], [1.0], kinds)
    data = TrainingTasks(scaling, [scaling.task(task) for task in tasks], np.ones(60), np.ones(60))
    prior = fit_families(data, False, None, None, 60, None, SHIFT).priors[LINEAR]
    nothing = prior.condition(np.zeros((1, 0, 3)), np.zeros((1, 0)), np.zeros((1, 0), bool))
    low, high = prior.marginals(nothing, scaling.inputs(np.array([[0.0, 0.0], [0.0, 1.0]]))[None]).mean[0, 0]
    table = pd.concat(rows)
    mixed = smf.mixedlm("y ~ x + age", table, groups=table["task"]).fit(reml=False)
    assert high - low == pytest.approx(mixed.fe_params["age"], abs=0.1 * mixed.bse_fe["age"])
