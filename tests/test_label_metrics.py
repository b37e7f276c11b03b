"""Metrics of class probabilities: against scikit-learn, on predictors whose quality is known, and under padding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax
from sklearn.metrics import accuracy_score, brier_score_loss, confusion_matrix
from sklearn.metrics import log_loss as sklearn_log_loss

from metaprior.metrics import (
    confidence_bins,
    expected_calibration_error,
    label_outcomes,
    score_labels,
    summarize_labels,
)

PER_TASK = ["accuracy", "probability_accuracy", "log_loss", "brier"]


def draw_tasks(rng, tasks, queries, n_classes=2):
    """Log probabilities (classes, tasks, queries) of every size, and classes that follow them."""
    log_probabilities = log_softmax(2.0 * rng.normal(size=(n_classes, tasks, queries)), axis=0)
    above = np.cumsum(np.exp(log_probabilities), axis=0) < rng.random((tasks, queries))
    return np.minimum(above.sum(axis=0), n_classes - 1).astype(np.float64), log_probabilities


def of_second(probability):
    """Log probabilities of two classes, given the probability of the second."""
    probability = np.asarray(probability, np.float64)
    with np.errstate(divide="ignore"):
        return np.log(np.stack([1.0 - probability, probability]))


def calibration_error(y, log_probabilities, mask=None, n_bins=15):
    return expected_calibration_error(confidence_bins(label_outcomes(np.array(y), log_probabilities, mask), n_bins))


def two_class_summary(y, probability):
    """The metrics as they were defined for labels 0 and 1 and the probability of 1."""
    confidence = np.maximum(probability, 1.0 - probability)
    right = np.where(probability == 0.5, 0.5, (probability > 0.5) == (y == 1))
    bins = np.searchsorted(np.linspace(0.5, 1.0, 16)[1:-1], confidence.ravel())
    gaps = np.bincount(bins, (confidence - right).ravel())
    return {
        "accuracy": right.mean(axis=-1),
        "probability_accuracy": 1.0 - np.abs(probability - y).mean(axis=-1),
        "log_loss": -np.log(np.where(y == 1, probability, 1.0 - probability)).mean(axis=-1),
        "brier": ((probability - y) ** 2).mean(axis=-1),
        "calibration_error": np.abs(gaps).sum() / y.size,
    }


def calibration_error_by_loops(y, probabilities, n_bins):
    """Bin by bin and query by query, as the definition says."""
    least, total, n_queries = 1.0 / len(probabilities), 0.0, y.size
    for b in range(n_bins):
        lower, upper = (least + (1.0 - least) * edge / n_bins for edge in (b, b + 1))
        confidences, hits = [], []
        for label, p in zip(y.ravel(), probabilities.reshape(len(probabilities), -1).T, strict=True):
            if lower < p.max() <= upper or (b == 0 and p.max() == least):
                confidences.append(p.max())
                hits.append(float(p[int(label)] == p.max()) / np.sum(p == p.max()))
        if hits:
            total += len(hits) / n_queries * abs(np.mean(confidences) - np.mean(hits))
    return total


def test_metrics_by_hand():
    y, p = np.array([[1.0, 0.0], [1.0, 1.0]]), of_second([[0.75, 0.75], [0.5, 0.25]])
    found = summarize_labels(y, p)
    np.testing.assert_allclose(found["accuracy"], [0.5, 0.25], rtol=1e-14)
    np.testing.assert_allclose(found["probability_accuracy"], [0.5, 0.375], rtol=1e-14)
    np.testing.assert_allclose(found["brier"], [0.3125, 0.40625], rtol=1e-14)
    # Logarithms of probabilities that no float holds.
    tiny = np.array([[[-1e-40, -2000.0]], [[-2000.0, -1e-40]]])
    np.testing.assert_array_equal(summarize_labels(np.zeros((1, 2)), tiny)["log_loss"], [1000.0])
    assert summarize_labels(y[0], p[:, 0])["accuracy"].shape == ()
    np.testing.assert_array_equal(summarize_labels(y.astype(int), np.float32(p))["accuracy"], [0.5, 0.25])


def test_three_classes_by_hand():
    y = np.array([[2, 0, 1]])
    with np.errstate(divide="ignore"):
        p = np.log(np.array([[0.2, 0.2, 0.6], [0.4, 0.4, 0.2], [1.0, 0.0, 0.0]]).T[:, None])
    found = summarize_labels(y, p)
    np.testing.assert_allclose(found["accuracy"], [(1 + 1 / 2 + 0) / 3])
    np.testing.assert_allclose(found["probability_accuracy"], [(0.6 + 0.4 + 0.0) / 3])
    np.testing.assert_allclose(found["brier"], [((0.04 + 0.04 + 0.16) + (0.36 + 0.16 + 0.04) + 2.0) / 6])


def test_a_probability_of_zero_has_a_large_but_finite_loss():
    with np.errstate(divide="ignore"):
        p = np.log(np.array([1.0, 0.0, 0.0]))[:, None, None]
    [loss] = summarize_labels(np.array([[2]]), p)["log_loss"]
    assert 700 < loss < 710


@given(st.integers(0, 2**32 - 1))
def test_two_classes_have_the_metrics_of_labels_0_and_1(seed):
    rng = np.random.default_rng(seed)
    y, p = (rng.random((4, 9)) < 0.5).astype(np.float64), rng.beta(0.5, 0.7, size=(4, 9))
    p[0, :2] = 0.5
    found, expected = summarize_labels(y, of_second(p)), two_class_summary(y, p)
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("n_classes", [2, 3, 7])
def test_metrics_agree_with_scikit_learn(n_classes):
    y, log_p = draw_tasks(np.random.default_rng(0), 20, 30, n_classes)
    summary = summarize_labels(y, log_p)
    for task in range(20):
        codes, p, every = y[task], np.exp(log_p[:, task]).T, np.arange(n_classes)
        assert summary["accuracy"][task] == pytest.approx(accuracy_score(codes, p.argmax(axis=1)))
        assert summary["log_loss"][task] == pytest.approx(sklearn_log_loss(codes, p, labels=every))
        error = brier_score_loss(codes, p, labels=every, scale_by_half=True)
        assert summary["brier"][task] == pytest.approx(error)


@pytest.mark.parametrize("n_classes", [2, 5])
def test_a_tie_favors_no_class(n_classes):
    y = np.array([np.arange(10) % n_classes, np.zeros(10, int)])
    log_p = np.full((n_classes, 2, 10), -np.log(n_classes))
    summary = summarize_labels(y, log_p + 1e-12 * np.random.default_rng(0).normal(size=log_p.shape))
    np.testing.assert_allclose(summary["accuracy"], 1 / n_classes)
    assert summary["calibration_error"] == pytest.approx(0.0, abs=1e-9)


def test_calibration_error_by_hand():
    assert calibration_error([1, 0], of_second([1.0, 0.0])) == 0.0
    assert calibration_error([1, 0], of_second([0.0, 1.0])) == 1.0
    # Always 0.8 sure and right half of the time, whichever label it is.
    assert calibration_error([[1, 0], [0, 1]], of_second([[0.8, 0.8], [0.2, 0.2]])) == pytest.approx(0.3)
    # Two bins: 0.6 and the edge 0.75 itself in the first, both 0.9 in the second.
    y, p = [0, 1, 1, 1], of_second([0.6, 0.75, 0.9, 0.9])
    assert calibration_error(y, p, n_bins=2) == pytest.approx((2 * abs(1.35 / 2 - 1 / 2) + 2 * abs(0.9 - 1)) / 4)
    # One bin compares the average confidence and the accuracy.
    assert calibration_error(y, p, n_bins=1) == pytest.approx(3.15 / 4 - 0.75)


@given(st.integers(2, 6), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_calibration_error_equals_loops(n_classes, n_bins, seed):
    y, log_p = draw_tasks(np.random.default_rng(seed), 3, 7, n_classes)
    expected = calibration_error_by_loops(y, np.exp(log_p), n_bins)
    assert calibration_error(y, log_p, n_bins=n_bins) == pytest.approx(expected, abs=1e-9)


def test_bins_by_hand():
    y, p = np.array([[1.0, 0.0, 1.0, np.nan], [0.0, np.nan, np.nan, np.nan]]), np.array([[0.9, 0.8, 0.4, np.nan]])
    p = np.concatenate([p, [[0.3, np.nan, np.nan, np.nan]]])
    bins = confidence_bins(label_outcomes(y, of_second(p), ~np.isnan(y)), n_bins=2)
    np.testing.assert_allclose(bins.edges, [0.5, 0.75, 1.0])
    np.testing.assert_array_equal(bins.count, [[1, 2], [1, 0]])
    np.testing.assert_allclose(bins.confidence, [[0.6, 1.7], [0.7, 0.0]])
    np.testing.assert_array_equal(bins.right, [[0, 1], [1, 0]])


@pytest.mark.parametrize("n_classes", [2, 5])
def test_the_true_probabilities_are_calibrated(n_classes):
    y, log_p = draw_tasks(np.random.default_rng(1), 400, 50, n_classes)
    p, summary = np.exp(log_p), summarize_labels(y, log_p)
    assert all(summary[name].shape == (400,) for name in PER_TASK)
    expected = {
        "accuracy": p.max(axis=0),
        "probability_accuracy": np.sum(p**2, axis=0),
        "log_loss": -np.sum(p * log_p, axis=0),
        "brier": (1.0 - np.sum(p**2, axis=0)) / 2.0,
    }
    for name, value in expected.items():
        excess = summary[name] - value.mean(axis=1)
        assert abs(excess.mean()) < 3 * excess.std(ddof=1) / np.sqrt(400), name
    # The sum of the gaps of a bin is normal with variance Σ c (1 − c), so its size has mean sqrt(2/π) standard
    # deviations and variance (1 − 2/π) times that variance.
    confidence = p.max(axis=0).ravel()
    bins = np.digitize(confidence, np.linspace(1 / n_classes, 1.0, 16)[1:-1], right=True)
    variance = np.bincount(bins, weights=confidence * (1 - confidence))
    mean, spread = np.sqrt(2 / np.pi * variance).sum(), np.sqrt((1 - 2 / np.pi) * variance.sum())
    assert abs(summary["calibration_error"] * y.size - mean) < 3 * spread


@pytest.mark.parametrize("n_classes", [2, 5])
def test_over_confidence_shows(n_classes):
    y, log_p = draw_tasks(np.random.default_rng(2), 400, 50, n_classes)
    log_sharp = log_softmax(3.0 * log_p, axis=0)
    honest, summary = summarize_labels(y, log_p), summarize_labels(y, log_sharp)
    np.testing.assert_array_equal(summary["accuracy"], honest["accuracy"])
    # Within a bin the gap has one sign, so the error is the mean gap up to the noise of the labels.
    confidence = np.exp(log_p).max(axis=0)
    gap = np.exp(log_sharp).max(axis=0) - confidence
    standard_error = np.sqrt(np.mean(confidence * (1 - confidence)) / y.size)
    assert abs(summary["calibration_error"] - gap.mean()) < 3 * standard_error
    assert summary["calibration_error"] > honest["calibration_error"] + 10 * standard_error
    for name in ("log_loss", "brier"):
        loss = summary[name] - honest[name]
        assert loss.mean() > 3 * loss.std() / np.sqrt(400), name


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.sampled_from([np.nan, np.inf, -1e308, 0.5]),
    st.integers(2, 4),
    st.integers(0, 2**32 - 1),
)
def test_padding_influences_nothing(sizes, filler, n_classes, seed):
    """Neither padded queries nor classes that no task has."""
    rng = np.random.default_rng(seed)
    shape = (len(sizes), max(sizes) + 2)
    mask = rng.permuted(np.arange(shape[1]) < np.array(sizes)[:, None], axis=1)
    y, log_p = draw_tasks(rng, *shape, n_classes)
    padded = np.concatenate([np.where(mask, log_p, filler), np.full((2, *shape), -np.inf)])
    summary = summarize_labels(np.where(mask, y, filler), padded, mask)
    for task, valid in enumerate(mask):
        alone = summarize_labels(y[task, valid], log_p[:, task, valid])
        for name in PER_TASK:
            np.testing.assert_allclose(summary[name][task], alone[name], rtol=1e-12, err_msg=name)
    assert summary["calibration_error"] == pytest.approx(calibration_error(y[mask], log_p[:, mask]), abs=1e-12)


def test_scores_keep_what_plots_need():
    y, log_p = draw_tasks(np.random.default_rng(3), 6, 20, 3)
    mask = np.arange(20) < np.arange(15, 21)[:, None]
    classes = np.array(["a", "b", "c", "d"])  # the last of which no task has
    log_p = np.concatenate([log_p, np.full((1, 6, 20), -np.inf)])
    scores = score_labels(y, log_p, mask, classes)
    predicted = log_p.argmax(axis=0)
    np.testing.assert_array_equal(scores.confusion, confusion_matrix(y[mask], predicted[mask], labels=range(4)))
    np.testing.assert_array_equal(scores.reliability.count.sum(axis=1), mask.sum(axis=1))
    np.testing.assert_allclose(scores.reliability.right.sum(axis=1) / mask.sum(axis=1), scores.per_task.accuracy)
    assert expected_calibration_error(scores.reliability) == scores.calibration_error
    assert set(scores.per_task) == set(PER_TASK)
    own = score_labels(y, log_p, mask)  # of tasks with classes of their own: their numbers mean nothing together
    assert own.confusion is None
    assert str(own) == str(scores)
    assert score_labels(y, log_p, mask, classes[:2]).confusion is None  # a task has other classes than those shared


ONE, HALF = np.ones(2), of_second(np.full(2, 0.5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((ONE, HALF + 0.8), "log_probabilities must be logarithms of probabilities, at most 0"),
        ((ONE, HALF * np.nan), "log_probabilities.*nan"),
        ((ONE, np.full((2, 2), -np.inf)), "log_probabilities.*but not for all"),
        ((np.array([-1.0, 1.0]), HALF), r"y must hold the numbers of classes, 0 to 1; got -1\.0"),
        ((np.array([0, 2]), HALF), "y must hold the numbers of classes, 0 to 1; got 2"),
        ((np.array([0.0, 0.5]), HALF), r"y must hold the numbers of classes, 0 to 1; got 0\.5"),
        ((np.array([0.0, np.nan]), HALF), "y must hold the numbers of classes, 0 to 1; got nan"),
        ((ONE, HALF[:, :1]), r"shape \(classes, 2\), as y has the shape \(2,\); got \(2, 1\)"),
        ((ONE, HALF[:0]), r"shape \(classes, 2\).*got \(0, 2\)"),
        ((ONE, HALF, np.zeros(2, bool)), "y must have a valid query"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        summarize_labels(*arguments)


def test_there_are_fifteen_bins_by_default():
    assert score_labels(np.array([[0, 1, 1]]), of_second([[0.1, 0.6, 0.9]])).reliability.count.shape == (1, 15)
