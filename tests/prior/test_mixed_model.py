"""The mixed model is statsmodels', by REML: on generated tables, and where the likelihood has no finite mode."""

import time

import numpy as np
import pytest
from small_problems import COUNTS, IS_TARGET, make_tasks
from statsmodels.regression.mixed_linear_model import MixedLM
from statsmodels.tools.sm_exceptions import ConvergenceWarning
from test_family_fits import DEGENERATE
from test_member_files import read_back, with_terms
from test_terms import finite_differences

from hand_made_priors import LINES, make_terms
from metaprior.predict.batches import predict_tasks
from metaprior.predict.ensemble import Ensemble
from metaprior.prior.blocks import make_blocks
from metaprior.prior.columns import Columns
from metaprior.prior.families import SHIFT, VAGUE, TrainingTasks, fit_mixed_model, restricted_likelihood, rotate
from metaprior.prior.layout import Layout
from metaprior.prior.modes import log_density
from metaprior.prior.terms import MAX_CORRELATED, correlation_root
from metaprior.tasks.categories import ColumnKinds
from metaprior.tasks.scaling import fit_scaling
from metaprior.tasks.types import Task, TestTask

CORRELATED = make_terms(correlated=True)


def draw_lines(n_tasks, sizes, rng, stds=(0.8, 0.5), correlation=0.5):
    """Draw tasks of lines whose intercepts and slopes are correlated where x is zero, far from the mean of x."""
    correlations = np.full((len(stds), len(stds)), correlation) + (1 - correlation) * np.eye(len(stds))
    root, tasks = np.array(stds)[:, None] * np.linalg.cholesky(correlations), []
    for _ in range(n_tasks):
        x, own = rng.uniform(-0.5, 1.5, (rng.choice(sizes), len(stds) - 1)), root @ rng.normal(size=len(stds))
        tasks.append(Task(x, 1 + own[0] + x @ (2 + own[1:]) + 0.3 * rng.normal(size=len(x))))
    return tasks


def draw_fan(n_tasks, n_readings, rng):
    tasks = []
    for _ in range(n_tasks):
        t, (u, v) = rng.uniform(0, 10, (n_readings, 1)), rng.normal(size=2)
        tasks.append(Task(t, 5 + 0.3 * u + (1 + 0.5 * v) * t[:, 0] + 0.5 * rng.normal(size=n_readings)))
    return tasks


def fit(tasks, noise_std=None, kinds=None):
    scaling = fit_scaling([tasks], [1.0], kinds)
    training = TrainingTasks(scaling, [scaling.task(task) for task in tasks], np.ones(len(tasks)), np.ones(len(tasks)))
    return fit_mixed_model(training, noise_std, SHIFT if kinds is not None and kinds.covariates else "none")


def fit_statsmodels(tasks, random_slopes=True):
    design = np.concatenate([np.column_stack([np.ones(len(task.y)), task.x]) for task in tasks])
    group = np.repeat(np.arange(len(tasks)), [len(task.y) for task in tasks])
    varying = design if random_slopes else None
    return MixedLM(np.concatenate([task.y for task in tasks]), design, group, exog_re=varying).fit(reml=True)


def best_linear_unbiased_prediction(result, test):
    """Predict a new group from statsmodels' estimates: fixed effects with their covariance, random effects, noise."""
    x = np.concatenate([test.x_context, test.x_query])
    design, n = np.column_stack([np.ones(len(x)), x]), len(test.y_context)
    k = design.shape[1]  # of MixedLM, `cov_params` has the fixed effects first
    effects = np.asarray(result.cov_params())[:k, :k] + np.asarray(result.cov_re)
    covariance = design @ effects @ design.T + result.scale * np.eye(len(x))
    mean = design @ np.asarray(result.fe_params)
    gain = np.linalg.solve(covariance[:n, :n], covariance[:n, n:])
    variance = np.diag(covariance)[n:] - np.sum(gain * covariance[:n, n:], axis=0)
    return mean[n:] + gain.T @ (test.y_context - mean[:n]), np.sqrt(variance)


def both(tasks, new, n_context):
    """Return means, standard deviations and y of all queries: ours, then statsmodels'."""
    tests = [TestTask(task.x[:n_context], task.y[:n_context], task.x[n_context:], task.y[n_context:]) for task in new]
    predictive, y, mask = predict_tasks(Ensemble((fit(tasks),), np.ones(1)), tests)
    result = fit_statsmodels(tasks)
    expected = [best_linear_unbiased_prediction(result, test) for test in tests]
    means, stds = (np.concatenate(each) for each in zip(*expected, strict=True))
    return predictive.mean()[mask], predictive.std()[mask], y[mask], means, stds


def nll(mean, std, y):
    return float(np.mean(0.5 * ((y - mean) / std) ** 2 + np.log(std)))


@pytest.mark.parametrize(
    ("n_tasks", "sizes", "stds", "correlation"),
    [
        (60, [8], (0.8, 0.5), 0.5),
        (12, [4], (0.8, 0.5), 0.5),
        (100, [1, 2, 3, 9], (0.8, 0.5), -0.3),
        (40, [8, 12], (0.8, 0.5, 0.3), 0.3),
    ],
    ids=["many", "few", "of several sizes", "two inputs"],
)
def test_predictions_are_those_of_statsmodels(n_tasks, sizes, stds, correlation):
    rng = np.random.default_rng(0)
    tasks, new = (draw_lines(*each, rng, stds, correlation) for each in ((n_tasks, sizes), (20, [10])))
    mean, std, y, expected_mean, expected_std = both(tasks, new, 3)
    np.testing.assert_allclose((mean - expected_mean) / expected_std, 0.0, atol=0.01)
    np.testing.assert_allclose(std, expected_std, rtol=0.01)
    assert nll(mean, std, y) == pytest.approx(nll(expected_mean, expected_std, y), abs=0.002)


@pytest.mark.filterwarnings("ignore::statsmodels.tools.sm_exceptions.ConvergenceWarning")
def test_a_fan_whose_correlation_is_estimated_as_one():
    """The likelihood rises up to a correlation of one: we stop before."""
    rng = np.random.default_rng(0)
    mean, std, y, expected_mean, expected_std = both(draw_fan(40, 5, rng), draw_fan(100, 5, rng), 2)
    assert np.sqrt(np.mean(((mean - expected_mean) / expected_std) ** 2)) < 0.01
    assert np.sqrt(np.mean((mean - y) ** 2)) == pytest.approx(np.sqrt(np.mean((expected_mean - y) ** 2)), rel=0.01)
    assert nll(mean, std, y) == pytest.approx(nll(expected_mean, expected_std, y), abs=0.01)


def test_slopes_that_do_not_differ():
    rng = np.random.default_rng(0)
    tasks, new = (draw_lines(n, [6], rng, (0.8, 0.0), 0.0) for n in (40, 20))
    with pytest.warns(ConvergenceWarning):
        mean, std, _, expected_mean, expected_std = both(tasks, new, 3)
    np.testing.assert_allclose((mean - expected_mean) / expected_std, 0.0, atol=0.01)
    np.testing.assert_allclose(std, expected_std, rtol=0.01)


@pytest.mark.parametrize(("input_dim", "log_noise"), [(1, None), (1, -1.3), (3, None), (7, None)])
def test_rotated_readings_have_the_evidence_of_all(input_dim, log_noise):
    tasks = make_tasks(input_dim, (1, 3, 17, 2, 12, 16))
    layout = Layout(CORRELATED, Columns(input_dim), log_noise)
    points, rotated = np.zeros((1, input_dim)), rotate(tasks, COUNTS, input_dim)
    blocks = make_blocks(tasks, COUNTS, IS_TARGET, points, layout.columns)
    for seed in (0, 1):
        z = np.random.default_rng(seed).normal(size=len(layout.center))
        theta = layout.center + layout.spread * z
        value, slope = restricted_likelihood(layout, theta, rotated)
        expected = log_density(layout, theta, blocks, points).value + 0.5 * (1.0 - VAGUE) * z @ z
        assert value == pytest.approx(expected, rel=1e-9)
        differences = finite_differences(lambda t: restricted_likelihood(layout, t, rotated, gradient=False)[0], theta)
        np.testing.assert_allclose(slope, differences, rtol=1e-5, atol=1e-6)


def test_correlations_of_any_numbers_are_a_correlation_matrix():
    assert (correlation_root(np.array([0.7]), 2) @ correlation_root(np.array([0.7]), 2).T)[0, 1] == pytest.approx(
        np.tanh(0.7)
    )
    np.testing.assert_array_equal(correlation_root(np.zeros(6), 4), np.eye(4))
    root = correlation_root(np.random.default_rng(0).normal(0.0, 3.0, 6), 4)
    np.testing.assert_array_equal(root, np.tril(root))
    np.testing.assert_allclose(np.diag(root @ root.T), 1.0)


def test_slopes_of_numbers_are_correlated_unless_they_are_many():
    def n_correlations(input_dim, widths=None):
        places = Layout(CORRELATED, Columns(input_dim, widths=widths)).places
        return len(range(100)[places["correlations"]]) if "correlations" in places else 0

    assert [n_correlations(d) for d in (1, 2, MAX_CORRELATED, MAX_CORRELATED + 1)] == [1, 3, 15, 0]
    assert n_correlations(6, (1, 1, 4)) == 3  # levels of a category are independent
    assert n_correlations(4, (4,)) == 0
    assert "correlations" not in Layout(LINES, Columns(1)).places


@pytest.mark.parametrize("make", DEGENERATE)
def test_degenerate_data_gives_finite_predictions(make):
    tasks = make(np.random.default_rng(0))
    prior = fit(tasks)
    x, y = prior.scaling.task(tasks[0])
    for n in (0, len(y)):
        posterior = prior.condition(x[None], y[None], np.arange(len(y))[None] < n)
        found = prior.marginals(posterior, np.concatenate([x, x + 3.0])[None])
        assert np.isfinite(found.mean).all()
        assert np.isfinite(found.variance).all()


def test_categories_covariates_and_a_given_noise():
    rng, tasks = np.random.default_rng(0), []
    for i in range(40):
        x = np.column_stack([rng.uniform(0, 1, 6), rng.integers(0, 2, 6), np.full(6, i % 3)])
        tasks.append(Task(x, 2.0 * x[:, 0] + 3.0 * x[:, 1] + x[:, 2] + rng.normal() + 0.1 * rng.normal(size=6)))
    prior = fit(tasks, noise_std=0.1, kinds=ColumnKinds((0, 2, 0), (2,)))
    assert prior.noise_variance == pytest.approx((0.1 / prior.scaling.y_std) ** 2)
    x = np.array([[0.5, 0, 0], [0.5, 1, 0], [0.5, 0, 2], [1.0, 0, 0]])
    nothing = prior.condition(np.zeros((1, 0, 6)), np.zeros((1, 0)), np.zeros((1, 0), bool))
    mean = prior.marginals(nothing, prior.scaling.inputs(x)[None]).mean[0, 0]
    effects = fit_statsmodels(tasks, random_slopes=False).fe_params
    np.testing.assert_allclose(mean[1:] - mean[0], effects[[2, 3, 1]] * [1.0, 2.0, 0.5], rtol=0.01)


def test_files_keep_correlations():
    prior = fit(draw_lines(10, [4], np.random.default_rng(0)))
    np.testing.assert_array_equal(read_back(prior).process.own, prior.process.own)
    assert np.count_nonzero(prior.process.own) == 3  # a triangular root of two
    without = with_terms(lambda terms: [{**terms[0], "correlated": False}])
    with pytest.raises(ValueError, match="theta must be float64"):
        read_back(prior, change=without)


def test_hundreds_of_tasks_take_well_under_a_second():
    tasks = draw_lines(300, [100], np.random.default_rng(0), (0.8, 0.5, 0.3))
    fit(tasks[:10])
    started = time.perf_counter()
    fit(tasks)
    assert time.perf_counter() - started < 1.0
