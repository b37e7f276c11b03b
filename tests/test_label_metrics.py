"""Metrics of label probabilities: against scikit-learn, on predictors whose quality is known, and under padding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, brier_score_loss
from sklearn.metrics import log_loss as sklearn_log_loss

from metaprior import metrics as label_metrics

PER_TASK = ["accuracy", "probability_accuracy", "log_loss", "brier"]


def draw_tasks(rng: np.random.Generator, tasks: int, queries: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of every size, and labels that follow them."""
    probability = rng.beta(0.5, 0.7, size=(tasks, queries))
    return (rng.random((tasks, queries)) < probability).astype(np.float64), probability


def log_of_observed(y: np.ndarray, probability: np.ndarray) -> np.ndarray:
    return np.log(np.where(y == 1, probability, 1.0 - probability))


def calibration_error_by_loops(y: np.ndarray, probability: np.ndarray, n_bins: int) -> float:
    """Bin by bin and query by query, as the definition says."""
    total = 0.0
    for b in range(n_bins):
        lower, upper = 0.5 + 0.5 * b / n_bins, 0.5 + 0.5 * (b + 1) / n_bins
        confidences, hits = [], []
        for label, p in zip(y.ravel(), probability.ravel(), strict=True):
            confidence = p if p > 0.5 else 1.0 - p
            if lower < confidence <= upper or (b == 0 and confidence == 0.5):
                confidences.append(confidence)
                hits.append(0.5 if p == 0.5 else float(label == (1.0 if p > 0.5 else 0.0)))
        if hits:
            total += len(hits) / y.size * abs(np.mean(confidences) - np.mean(hits))
    return total


def test_metrics_by_hand():
    y, probability = np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([[0.75, 0.75], [0.5, 0.25]])
    np.testing.assert_array_equal(label_metrics.accuracy(y, probability), [0.5, 0.25])
    np.testing.assert_array_equal(label_metrics.probability_accuracy(y, probability), [0.5, 0.375])
    np.testing.assert_array_equal(label_metrics.brier_score(y, probability), [0.3125, 0.40625])
    # Logarithms of probabilities that no float holds.
    np.testing.assert_array_equal(label_metrics.log_loss(y[:1], np.array([[-1e-40, -2000.0]])), [1000.0])
    np.testing.assert_array_equal(label_metrics.log_loss(y[0], np.array([-1.0, -np.inf])), np.inf)
    assert label_metrics.accuracy(y[0], probability[0]).shape == ()
    np.testing.assert_array_equal(label_metrics.accuracy(y.astype(int), np.float32(probability)), [0.5, 0.25])


def test_a_tie_favors_neither_class():
    y = np.array([[1, 1, 1, 0], [0, 0, 0, 1]])
    np.testing.assert_array_equal(label_metrics.accuracy(y, np.full((2, 4), 0.5)), [0.5, 0.5])
    assert label_metrics.expected_calibration_error(y[0], np.full(4, 0.5)) == 0.0


def test_metrics_agree_with_scikit_learn():
    y, probability = draw_tasks(np.random.default_rng(0), 20, 30)
    summary = label_metrics.summarize_labels(y, probability, log_of_observed(y, probability))
    for task in range(20):
        labels, p = y[task], probability[task]
        assert summary["accuracy"][task] == pytest.approx(accuracy_score(labels, p > 0.5))
        assert summary["log_loss"][task] == pytest.approx(sklearn_log_loss(labels, p, labels=[0, 1]))
        assert summary["brier"][task] == pytest.approx(brier_score_loss(labels, p, labels=[0, 1]))
    # Hard labels are probabilities too, and then accuracy, its reading with probabilities, and 1 − Brier are one.
    hard = (probability > 0.5).astype(np.float64)
    np.testing.assert_allclose(label_metrics.probability_accuracy(y, hard), summary["accuracy"])
    np.testing.assert_allclose(1.0 - label_metrics.brier_score(y, hard), summary["accuracy"])


def test_calibration_error_by_hand():
    error = label_metrics.expected_calibration_error
    assert error(np.array([1.0, 0.0]), np.array([1.0, 0.0])) == 0.0
    assert error(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 1.0
    # Always 0.8 sure and right half of the time, whichever label it is.
    assert error(np.array([[1, 0], [0, 1]]), np.array([[0.8, 0.8], [0.2, 0.2]])) == pytest.approx(0.3)
    # Two bins: 0.6 and the edge 0.75 itself in the first, both 0.9 in the second.
    y, probability = np.array([0, 1, 1, 1]), np.array([0.6, 0.75, 0.9, 0.9])
    assert error(y, probability, n_bins=2) == pytest.approx((2 * abs(1.35 / 2 - 1 / 2) + 2 * abs(0.9 - 1)) / 4)
    # One bin compares the average confidence and the accuracy.
    assert error(y, probability, n_bins=1) == pytest.approx(3.15 / 4 - 0.75)


@given(st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_calibration_error_equals_loops(n_bins, seed):
    y, probability = draw_tasks(np.random.default_rng(seed), 3, 7)
    probability[0, :2] = 0.5
    probability[1, :2] = [0.0, 1.0]
    found = label_metrics.expected_calibration_error(y, probability, n_bins=n_bins)
    assert found == pytest.approx(calibration_error_by_loops(y, probability, n_bins), abs=1e-12)


def test_the_true_probabilities_are_calibrated():
    y, p = draw_tasks(np.random.default_rng(1), 400, 50)
    summary = label_metrics.summarize_labels(y, p, log_of_observed(y, p))
    assert all(summary[name].shape == (400,) for name in PER_TASK)
    expected = {
        "accuracy": np.maximum(p, 1 - p),
        "probability_accuracy": p**2 + (1 - p) ** 2,
        "log_loss": -p * np.log(p) - (1 - p) * np.log1p(-p),
        "brier": p * (1 - p),
    }
    for name, value in expected.items():
        excess = summary[name] - value.mean(axis=1)
        assert abs(excess.mean()) < 3 * excess.std(ddof=1) / np.sqrt(400), name
    # The sum of the gaps of a bin is normal with variance Σ c (1 − c), so its size has mean sqrt(2/π) standard
    # deviations and variance (1 − 2/π) times that variance.
    bins = np.minimum((30 * (np.maximum(p, 1 - p) - 0.5)).astype(int), 14)
    variance = np.bincount(bins.ravel(), weights=(p * (1 - p)).ravel())
    mean, spread = np.sqrt(2 / np.pi * variance).sum(), np.sqrt((1 - 2 / np.pi) * variance.sum())
    assert abs(summary["calibration_error"] * p.size - mean) < 3 * spread


def test_over_confidence_shows():
    y, p = draw_tasks(np.random.default_rng(2), 400, 50)
    odds = (p / (1 - p)) ** 3
    sharp = odds / (1 + odds)
    honest = label_metrics.summarize_labels(y, p, log_of_observed(y, p))
    # log p^3/(p^3 + (1 − p)^3) with the probability of the label observed, which 1 − sharp may round to zero.
    observed = np.where(y == 1, p, 1 - p)
    log_sharp = 3 * np.log(observed) - np.log(observed**3 + (1 - observed) ** 3)
    summary = label_metrics.summarize_labels(y, sharp, log_sharp)
    np.testing.assert_array_equal(summary["accuracy"], honest["accuracy"])
    # Within a bin the gap has one sign, so the error is the mean gap up to the noise of the labels.
    gap = np.maximum(sharp, 1 - sharp) - np.maximum(p, 1 - p)
    standard_error = np.sqrt(np.mean(p * (1 - p)) / p.size)
    assert abs(summary["calibration_error"] - gap.mean()) < 3 * standard_error
    assert summary["calibration_error"] > honest["calibration_error"] + 10 * standard_error
    for name in ("log_loss", "brier"):
        loss = summary[name] - honest[name]
        assert loss.mean() > 3 * loss.std() / np.sqrt(400), name


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.sampled_from([np.nan, np.inf, -1e308, 0.5]),
    st.integers(0, 2**32 - 1),
)
def test_padding_influences_nothing(sizes, filler, seed):
    rng = np.random.default_rng(seed)
    shape = (len(sizes), max(sizes) + 2)
    mask = rng.permuted(np.arange(shape[1]) < np.array(sizes)[:, None], axis=1)
    y, probability = draw_tasks(rng, *shape)
    arrays = (y, probability, log_of_observed(y, probability))
    summary = label_metrics.summarize_labels(*(np.where(mask, array, filler) for array in arrays), mask)
    for task, valid in enumerate(mask):
        alone = label_metrics.summarize_labels(*(array[task, valid] for array in arrays))
        for name in PER_TASK:
            np.testing.assert_allclose(summary[name][task], alone[name], rtol=1e-12, err_msg=name)
    pooled = label_metrics.expected_calibration_error(y[mask], probability[mask])
    assert summary["calibration_error"] == pytest.approx(pooled, abs=1e-12)


ONE, HALF, NO_QUERY = np.ones(2), np.full(2, 0.5), np.zeros(2, bool)


@pytest.mark.parametrize("metric", ["accuracy", "probability_accuracy", "brier_score", "expected_calibration_error"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((ONE, np.array([0.5, 1.1])), r"probability must lie in \[0, 1\]"),
        ((ONE, np.array([0.5, -0.1])), r"probability must lie in \[0, 1\]"),
        ((ONE, np.array([0.5, np.nan])), "probability.*nan"),
        ((np.array([-1.0, 1.0]), HALF), r"y must hold labels 0 and 1; got -1\.0"),
        ((np.array([0, 2]), HALF), "y must hold labels 0 and 1; got 2"),
        ((np.array([0.0, np.nan]), HALF), "y must hold labels 0 and 1; got nan"),
        ((ONE, np.zeros(3)), r"probability.*y \(2,\).*\(3,\)"),
        ((ONE, HALF, NO_QUERY), "y must have a valid query"),
    ],
)
def test_bad_input_is_named(metric, arguments, message):
    with pytest.raises(ValueError, match=message):
        getattr(label_metrics, metric)(*arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: label_metrics.log_loss(ONE, np.array([0.5, -1.0])), "log_probability.*at most 0"),
        (lambda: label_metrics.log_loss(ONE, np.array([np.nan, -1.0])), "log_probability.*nan"),
        (lambda: label_metrics.log_loss(2 * ONE, -ONE), r"y must hold labels 0 and 1; got 2\.0"),
        (lambda: label_metrics.log_loss(ONE, np.zeros(3)), r"log_probability.*y \(2,\).*\(3,\)"),
        (lambda: label_metrics.expected_calibration_error(ONE, HALF, n_bins=0), "n_bins.*at least 1; got 0"),
    ],
)
def test_bad_input_of_one_metric_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_there_are_fifteen_bins_by_default():
    y, probability = np.array([[0, 1, 1]]), np.array([[0.1, 0.6, 0.9]])
    assert all(len(part) == 15 for part in label_metrics.confidence_bins(y, probability))
