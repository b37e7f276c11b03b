"""Metrics on predictors whose quality is known, and under padding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from metaprior import metrics
from metaprior.predict.predictive import GaussianMixture


def test_metrics_by_hand():
    y = np.array([[1.0, 2.0], [0.0, 0.0]])
    mean = np.array([[0.0, 2.0], [3.0, 4.0]])
    np.testing.assert_allclose(metrics.root_mean_square_error(y, mean), [np.sqrt(0.5), np.sqrt(12.5)])
    np.testing.assert_allclose(metrics.negative_log_likelihood(np.array([[1.0, -4.0]])), [1.5])
    np.testing.assert_allclose(metrics.interval_coverage(y, mean - 1.0, mean + 0.5), [0.5, 0.0])
    np.testing.assert_allclose(metrics.interval_coverage(mean - 1.0, mean - 1.0, mean), [1.0, 1.0])
    np.testing.assert_allclose(metrics.interval_coverage(mean + 1.0, mean, mean + 1.0), [1.0, 1.0])
    np.testing.assert_allclose(metrics.interval_width(y, np.array([[2.0, 5.0], [1.0, 0.0]])), [2.0, 0.5])
    assert metrics.root_mean_square_error(y[0], mean[0]).shape == ()
    # Masked entries, infinite or not a number, are not read.
    y[0, 1], mean[0, 1] = np.inf, np.inf
    mask = np.array([[True, False], [True, True]])
    np.testing.assert_allclose(metrics.root_mean_square_error(y, mean, mask), [1.0, np.sqrt(12.5)])


def test_calibration_error_by_hand():
    assert metrics.calibration_error(np.zeros((2, 3))) == pytest.approx(0.5)
    assert metrics.calibration_error(np.ones(4)) == pytest.approx(0.5)
    assert metrics.calibration_error(np.array([0.0, 1.0])) == pytest.approx(9 / 38)
    # One value in each of twenty equal bins is right at every level; so is its upper end (PIT <= p).
    assert metrics.calibration_error((np.arange(20) + 0.5) / 20) == pytest.approx(0.0, abs=1e-15)
    assert metrics.calibration_error(np.arange(1, 21) / 20) == pytest.approx(0.0, abs=1e-15)


def test_mean_and_standard_error():
    values = np.random.default_rng(0).normal(size=30)
    mean, standard_error = metrics.mean_and_standard_error(values)
    assert mean == pytest.approx(values.mean())
    assert standard_error == pytest.approx(stats.sem(values))
    mean, standard_error = metrics.mean_and_standard_error(np.array([3]))
    assert mean == 3.0
    assert np.isnan(standard_error)


def draw_tasks(rng: np.random.Generator, tasks: int, queries: int) -> tuple[GaussianMixture, np.ndarray]:
    """A three-component mixture with weights per task, and observations from it."""
    means, variances = 2.0 * rng.normal(size=(3, tasks, queries)), rng.gamma(2.0, size=(3, tasks, queries))
    weights = rng.dirichlet(np.ones(3), size=tasks).T
    weights[:, 0] = [0.0, 0.3, 0.7]
    thresholds = np.cumsum(weights, axis=0)[:, :, None]
    component = np.sum(rng.random((tasks, queries)) > thresholds[:-1], axis=0)[None]
    chosen_mean = np.take_along_axis(means, component, axis=0)[0]
    chosen_variance = np.take_along_axis(variances, component, axis=0)[0]
    with np.errstate(divide="ignore"):
        mixture = GaussianMixture(means, variances, np.log(weights))
    return mixture, rng.normal(chosen_mean, np.sqrt(chosen_variance))


def test_the_true_model_is_calibrated_and_covers():
    tasks, queries = 200, 50
    mixture, y = draw_tasks(np.random.default_rng(1), tasks, queries)
    summary = metrics.summarize(mixture, y)
    assert all(summary[name].shape == (tasks,) for name in ["rmse", "nll", "coverage", "width"])
    # E|F̂(p) − p| is sqrt(2/π) standard errors sqrt(p (1 − p) / n); 2.5 times that is far in its tail.
    levels = metrics.CALIBRATION_LEVELS
    expected = np.mean(np.sqrt(2 / np.pi * levels * (1 - levels) / y.size))
    assert summary["calibration_error"] < 2.5 * expected
    coverage, standard_error = metrics.mean_and_standard_error(summary["coverage"])
    assert abs(coverage - 0.9) < 3 * standard_error
    assert standard_error == pytest.approx(np.sqrt(0.09 / y.size), rel=0.3)
    # The predictive variance is the expected squared error, and no other model has a better likelihood.
    errors = (y - mixture.mean()) ** 2 - mixture.variance()
    assert abs(errors.mean()) < 3 * errors.std() / np.sqrt(y.size)
    np.testing.assert_allclose(summary["rmse"] ** 2, np.mean((y - mixture.mean()) ** 2, axis=1), rtol=1e-12)
    moment_matched = GaussianMixture(mixture.mean()[None], mixture.variance()[None])
    gain = metrics.summarize(moment_matched, y)["nll"] - summary["nll"]
    assert gain.mean() > 3 * gain.std() / np.sqrt(tasks)
    half, _ = metrics.mean_and_standard_error(metrics.summarize(mixture, y, coverage=0.5)["coverage"])
    assert abs(half - 0.5) < 3 * np.sqrt(0.25 / y.size)


def test_over_confidence_shows():
    mixture, y = draw_tasks(np.random.default_rng(2), 50, 40)
    narrow = GaussianMixture(mixture.mean()[None], mixture.variance()[None] / 100.0)
    summary, honest = metrics.summarize(narrow, y), metrics.summarize(mixture, y)
    assert summary["calibration_error"] > 0.15 > 5 * honest["calibration_error"]
    assert summary["coverage"].mean() < 0.3
    assert np.all(summary["width"] < honest["width"])
    assert summary["nll"].mean() > honest["nll"].mean() + 5.0
    np.testing.assert_allclose(summary["rmse"], honest["rmse"], rtol=1e-12)


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.sampled_from([np.nan, np.inf, -1e308, 0.5]),
    st.integers(0, 2**32 - 1),
)
def test_padding_influences_nothing(sizes, filler, seed):
    rng = np.random.default_rng(seed)
    shape = (len(sizes), max(sizes) + 2)
    mask = rng.permuted(np.arange(shape[1]) < np.array(sizes)[:, None], axis=1)
    mixture, y = draw_tasks(rng, *shape)
    means, variances = np.where(mask, mixture.means, filler), np.where(mask, mixture.variances, abs(filler))
    padded = GaussianMixture(means, variances, mixture.log_weights)
    summary = metrics.summarize(padded, np.where(mask, y, filler), mask, coverage=0.8)
    transforms = []
    for task, valid in enumerate(mask):
        clean = GaussianMixture(
            mixture.means[:, task, valid], mixture.variances[:, task, valid], mixture.log_weights[:, task]
        )
        alone = metrics.summarize(clean, y[task, valid], coverage=0.8)
        transforms.append(clean.cdf(y[task, valid]))
        for name in ["rmse", "nll", "coverage", "width"]:
            np.testing.assert_allclose(summary[name][task], alone[name], rtol=1e-9, err_msg=name)
    pooled = metrics.calibration_error(np.concatenate(transforms))
    assert summary["calibration_error"] == pytest.approx(pooled, abs=1e-12)


@given(st.integers(0, 2**32 - 1))
def test_each_metric_ignores_padding(seed):
    rng = np.random.default_rng(seed)
    lower, y, upper = np.sort(rng.random((3, 4, 6)), axis=0) + 0.3 * rng.normal(size=(3, 4, 6))
    transform = rng.random((4, 6))
    mask = rng.random((4, 6)) < 0.5
    mask[:, 0] = True
    a, b, c, u = (np.where(mask, array, np.nan) for array in (lower, y, upper, transform))
    results = {
        "rmse": (metrics.root_mean_square_error(b, a, mask), metrics.root_mean_square_error, (y, lower)),
        "nll": (metrics.negative_log_likelihood(b, mask), metrics.negative_log_likelihood, (y,)),
        "coverage": (metrics.interval_coverage(b, a, c, mask), metrics.interval_coverage, (y, lower, upper)),
        "width": (metrics.interval_width(a, c, mask), metrics.interval_width, (lower, upper)),
    }
    for name, (padded, metric, arrays) in results.items():
        alone = [metric(*(array[task, valid] for array in arrays)) for task, valid in enumerate(mask)]
        np.testing.assert_allclose(padded, alone, rtol=1e-12, err_msg=name)
    assert metrics.calibration_error(u, mask) == metrics.calibration_error(transform[mask])


def test_scores_print_as_a_table_that_fits_and_says_what_numbers_mean():
    y = np.random.default_rng(0).normal(size=(40, 60))
    scores = metrics.report(metrics.summarize(GaussianMixture(np.zeros((1, 40, 60)), np.ones((1, 40, 60))), y), 0.9)
    lines = str(scores).splitlines()
    assert len(lines) == 6
    assert max(map(len, lines)) <= 79
    assert lines[0] == "Means over 40 test tasks ± standard error; per_task has the values of each."
    assert lines[1].split() == [
        "rmse",
        f"{scores.rmse:.3g}",
        "±",
        f"{scores.rmse_se:.2g}",
        *["root", "mean", "square", "error,", "in", "the", "units", "of", "y"],
    ]
    assert "nats per reading" in lines[2]
    assert "inside the 0.9 interval" in lines[3]
    assert repr(scores) == str(scores)
    assert scores.per_task.rmse.shape == (40,)
    single = metrics.score_labels(np.array([[1.0]]), np.log([[[0.2]], [[0.8]]]))
    assert "±" not in str(single).split("\n", 1)[1]
    assert "Means over 1 test task " in str(single)
    assert max(map(len, str(single).splitlines())) <= 79


MIXTURE = GaussianMixture(np.zeros((2, 3, 4)), np.ones((2, 3, 4)))
EMPTY_TASK = np.array([[True, True], [False, False]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.root_mean_square_error(np.zeros((2, 3)), np.zeros(3)), r"mean.*y \(2, 3\).*\(3,\)"),
        (lambda: metrics.interval_width(np.zeros(3), np.zeros(2)), r"upper.*lower \(3,\).*\(2,\)"),
        (
            lambda: metrics.interval_coverage(np.zeros(3), np.zeros(2), np.zeros(3)),
            r"lower.*y \(3,\).*\(2,\)",
        ),
        (lambda: metrics.negative_log_likelihood(np.array(1.0)), "log_density.*scalar"),
        (lambda: metrics.negative_log_likelihood(np.zeros(3), np.ones(2, bool)), r"mask.*\(3,\).*\(2,\)"),
        (lambda: metrics.negative_log_likelihood(np.zeros(3), np.ones(3)), "mask must be boolean.*float64"),
        (lambda: metrics.negative_log_likelihood(np.zeros((2, 2)), EMPTY_TASK), "log_density.*valid query"),
        (lambda: metrics.negative_log_likelihood(np.zeros((2, 0))), "log_density.*valid query"),
        (lambda: metrics.calibration_error(np.array([0.5, 1.5])), "probability_integral_transform"),
        (lambda: metrics.calibration_error(np.array([0.5, np.nan])), "probability_integral_transform.*nan"),
        (lambda: metrics.mean_and_standard_error(np.zeros((2, 2))), r"values.*\(2, 2\)"),
        (lambda: metrics.mean_and_standard_error(np.zeros(0)), r"values.*\(0,\)"),
        (lambda: metrics.summarize(MIXTURE, np.zeros(4)), r"y must.*\(3, 4\).*\(4,\)"),
        (lambda: metrics.summarize(MIXTURE, np.zeros((3, 4)), coverage=1.5), "coverage.*1.5"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("outside", [-0.01, 1.01, np.nan])
def test_a_transform_outside_the_unit_interval_is_refused(outside):
    assert metrics.calibration_error(np.array([0.0, 1.0])) == pytest.approx(9 / 38)
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        metrics.calibration_error(np.array([0.5, outside]))
