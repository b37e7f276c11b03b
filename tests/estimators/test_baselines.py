import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from metaprior.estimators.comparison import (
    BASELINES,
    MIN_PROBABILITY,
    logistic_regression,
    nearest_class_mean,
    score_baseline,
)
from metaprior.metrics import summarize_labels
from metaprior.tasks.types import TestTask
from metaprior_studies.environments.episodes import FewShot
from metaprior_studies.environments.images import features

SHARED = Path(os.environ.get("METAPRIOR_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


def draw_task(rng, n_context=10, n_query=8, input_dim=3, n_classes=2):
    """Classes two apart along every axis, of which the context has all."""
    y = np.concatenate([np.arange(n_classes), rng.integers(0, n_classes, n_context + n_query - n_classes)])
    x = rng.normal(size=(len(y), input_dim)) + 2.0 * y[:, None]
    return TestTask(x[:n_context], y[:n_context], x[n_context:], y[n_context:])


def test_nearest_class_mean_by_hand():
    x_context = np.array([[0.0, 0.0], [0.0, 2.0], [3.0, 1.0]])  # means (0, 1) and (3, 1)
    x_query = np.array([[1.5, 7.0], [0.0, 1.0], [2.5, -3.0]])
    expected = 1 / (1 + np.exp([0.0, 4.5, -3.0]))
    found = nearest_class_mean(x_context, np.array([0, 0, 1]), x_query, 2)
    np.testing.assert_allclose(found, np.column_stack([1 - expected, expected]), rtol=1e-14)
    np.testing.assert_allclose(nearest_class_mean(x_context, np.array([1, 1, 0]), x_query, 2), found[:, ::-1])


@given(st.integers(5, 12), st.integers(1, 6), st.integers(2, 5), st.integers(0, 2**32 - 1))
def test_nearest_class_mean_equals_a_loop(n_context, input_dim, n_classes, seed):
    rng = np.random.default_rng(seed)
    x_context, y_context, x_query, _ = draw_task(rng, n_context, 5, input_dim, n_classes)
    found = nearest_class_mean(x_context, y_context.astype(np.float64), x_query, n_classes)
    for query, probabilities in zip(x_query, found, strict=True):
        means = [np.mean([x for x, c in zip(x_context, y_context, strict=True) if c == k], 0) for k in range(n_classes)]
        densities = np.exp([-np.sum((query - mean) ** 2) / 2 for mean in means])
        np.testing.assert_allclose(probabilities, densities / np.sum(densities), rtol=1e-8)


def test_which_class_mean_is_nearer_depends_on_neither_scale_nor_origin():
    x_context, y_context, x_query, _ = draw_task(np.random.default_rng(0), n_query=40)
    found = nearest_class_mean(x_context, y_context, x_query, 2)[:, 1]
    assert set(found > 0.5) == {False, True}
    for scale, shift in ((1e-3, 0.0), (1e3, 0.0), (1.0, 1e6)):
        moved = nearest_class_mean(scale * x_context + shift, y_context, scale * x_query + shift, 2)[:, 1]
        np.testing.assert_array_equal(moved > 0.5, found > 0.5)
    np.testing.assert_allclose(moved, found, rtol=1e-7)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_logistic_regression_is_that_of_scikit_learn(n_classes):
    rng = np.random.default_rng(0)
    for input_dim in (1, 3, 64):
        x_context, y_context, x_query, _ = draw_task(rng, input_dim=input_dim, n_classes=n_classes)
        expected = LogisticRegression(max_iter=10_000).fit(x_context, y_context).predict_proba(x_query)
        for labels in (y_context, y_context.astype(np.float64)):
            np.testing.assert_array_equal(logistic_regression(x_context, labels, x_query, n_classes), expected)


@pytest.mark.parametrize("baseline", BASELINES.values(), ids=BASELINES.keys())
class TestEveryBaseline:
    @pytest.mark.parametrize("n_classes", [2, 5])
    def test_far_apart_classes_are_told_apart(self, baseline, n_classes):
        x_context, y_context, x_query, y_query = draw_task(np.random.default_rng(0), 40, 50, 64, n_classes)
        probabilities = baseline(x_context, y_context, x_query, n_classes)
        assert probabilities.shape == (50, n_classes)
        np.testing.assert_array_equal(probabilities.argmax(axis=1), y_query)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)

    @pytest.mark.parametrize(("labels", "expected"), [([], 1 / 2), ([1], 2 / 3), ([1, 1, 1], 4 / 5), ([0, 0], 1 / 4)])
    @pytest.mark.parametrize("dtype", [int, float])
    def test_fewer_than_two_classes_follow_the_rule_of_succession(self, baseline, labels, expected, dtype):
        x_context = np.random.default_rng(0).normal(size=(len(labels), 2))
        found = baseline(x_context, np.array(labels, dtype), np.ones((4, 2)), 2)
        np.testing.assert_allclose(found, np.tile([1 - expected, expected], (4, 1)), rtol=1e-14, strict=True)

    def test_classes_that_the_context_lacks_follow_the_rule_of_succession(self, baseline):
        x_context, y_context, x_query, _ = draw_task(np.random.default_rng(0), 8)
        found = baseline(x_context, 2 * y_context + 1, x_query, 5)  # classes 1 and 3 of five
        np.testing.assert_allclose(found[:, [0, 2, 4]], 1 / (8 + 5))
        present = baseline(x_context, y_context, x_query, 2)
        np.testing.assert_allclose(found[:, [1, 3]], present * (8 + 2) / (8 + 5))
        np.testing.assert_allclose(baseline(x_context[:0], y_context[:0], x_query, 5), 1 / 5)

    def test_ragged_tasks_score_as_each_alone(self, baseline):
        rng = np.random.default_rng(1)
        sizes = [(2, 1), (9, 7), (4, 3)]
        tasks = [draw_task(rng, *size) for size in sizes]
        tasks.append(TestTask(np.empty((0, 3)), np.empty(0), np.ones((2, 3)), np.array([0.0, 1.0])))
        tasks.append(draw_task(rng, 9, 4, n_classes=3))
        n_classes = np.array([2, 2, 2, 2, 3])
        scores = score_baseline(baseline, tasks, n_classes)
        probabilities = [baseline(*task[:3], count) for task, count in zip(tasks, n_classes.tolist(), strict=True)]
        for index, (task, p) in enumerate(zip(tasks, probabilities, strict=True)):
            alone = summarize_labels(task.y_query, np.log(p).T)
            for name in ("accuracy", "probability_accuracy", "log_loss", "brier"):
                assert scores[name].shape == (5,)
                assert scores[name][index] == pytest.approx(float(alone[name]), rel=1e-9), name
        y = np.concatenate([task.y_query for task in tasks])
        log_p = np.full((3, len(y)), -np.inf)
        log_p[:2, :13], log_p[:, 13:] = np.log(np.concatenate(probabilities[:4])).T, np.log(probabilities[4]).T
        assert scores["calibration_error"] == pytest.approx(summarize_labels(y, log_p)["calibration_error"])

    def test_strange_labels_are_named(self, baseline):
        with pytest.raises(ValueError, match="y_context must hold the numbers of classes, 0 to 1; got 2"):
            baseline(np.ones((2, 1)), np.array([1, 2]), np.ones((1, 1)), 2)


@pytest.mark.skipif(not (SHARED / "features").exists(), reason="the features are not here")
def test_real_features():
    tasks = FewShot(features("miniimagenet", SHARED), features("cub", SHARED)).test_tasks(100, 0)
    scores = {name: score_baseline(baseline, tasks) for name, baseline in BASELINES.items()}
    means, regression = scores["nearest class mean"], scores["logistic regression"]
    assert 0.80 < np.mean(means["accuracy"]) < 0.85
    # About as often right, but unit covariance is far too sure of itself in 64 dimensions.
    assert abs(np.mean(regression["accuracy"] - means["accuracy"])) < 0.04
    loss = means["log_loss"] - regression["log_loss"]
    assert np.mean(loss) > 3 * np.std(loss, ddof=1) / np.sqrt(100)


def test_certainty_that_is_wrong_costs_what_the_floor_says():
    task = TestTask(np.array([[0.0], [1e3]]), np.array([0, 1]), np.array([[1e3], [1e3]]), np.array([0, 1]))
    scores = score_baseline(nearest_class_mean, [task])
    np.testing.assert_allclose(scores["log_loss"], [-np.log(MIN_PROBABILITY) / 2], rtol=1e-12)
    np.testing.assert_array_equal(scores["accuracy"], [0.5])


@pytest.mark.parametrize(
    ("baseline", "tasks", "message"),
    [
        (nearest_class_mean, [], "tasks is empty"),
        (
            lambda *_: np.full(3, 0.5),
            [draw_task(np.random.default_rng(0))],
            r"shape \(8, 2\) for tasks\[0\]; got \(3,\)",
        ),
        (lambda *_: np.full((8, 2), 1.5), [draw_task(np.random.default_rng(0))], "must be logarithms of probabilities"),
        (
            nearest_class_mean,
            [draw_task(np.random.default_rng(0), input_dim=d) for d in (2, 3)],
            r"tasks\[1\] context: X must have 2 columns",
        ),
        (
            nearest_class_mean,
            [draw_task(np.random.default_rng(0))._replace(y_query=np.arange(8))],
            r"tasks\[0\]: y must hold the numbers of classes, 0 to 1; got 2",
        ),
    ],
)
def test_what_cannot_be_scored_is_an_error(baseline, tasks, message):
    with pytest.raises(ValueError, match=message):
        score_baseline(baseline, tasks)
