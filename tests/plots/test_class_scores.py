"""Reliability diagrams and confusion matrices draw what the scores count."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.special import log_softmax
from scipy.stats import beta
from sklearn.base import BaseEstimator

from metaprior.metrics import score_labels
from metaprior.plots import plot_calibration, plot_confusion
from metaprior.plots.classes import binomial_intervals, draw_confusion, draw_reliability, plot_scores


def make_scores(n_classes, n_tasks=12, shared=True, sharpness=1.5):
    rng = np.random.default_rng(0)
    y = rng.integers(0, n_classes, size=(n_tasks, 20))
    logits = sharpness * (2.0 * (y == np.arange(n_classes)[:, None, None]) + rng.normal(size=(n_classes, *y.shape)))
    mask = np.arange(20) < rng.integers(10, 21, n_tasks)[:, None]
    names = np.array([f"bird {c}" for c in range(n_classes)]) if shared else None
    return score_labels(y, log_softmax(logits, axis=0), mask, names)


class StandIn(BaseEstimator):
    """A fitted estimator whose evaluation is known."""

    def __init__(self, scores=None, likelihood="bernoulli"):
        self.scores, self.likelihood, self.model_ = scores, likelihood, None

    @property
    def likelihood_(self):
        return self.likelihood

    def fit(self):
        return self

    def transfer_report(self):
        raise NotImplementedError

    def evaluate(self, tests):
        return self.scores


def drawn(draw, *arguments):
    axes = Figure().subplots()
    draw(axes, *arguments)
    return axes


@pytest.mark.parametrize("n_classes", [2, 5])
def test_reliability_of_probabilities(n_classes):
    scores = make_scores(n_classes)
    axes = plot_calibration(StandIn(scores), [])
    [line] = [each for each in axes.lines if each.get_label() == "observed"]
    confidence, right = line.get_data()
    [twin] = [other for other in axes.figure.axes if other is not axes]
    counts = np.array([bar.get_height() for bar in twin.patches])
    np.testing.assert_array_equal(counts, scores.reliability.count.sum(axis=0))
    filled = counts[counts > 0]
    error = np.sum(filled * np.abs(confidence - right)) / filled.sum()
    np.testing.assert_allclose(error, scores.calibration_error, atol=1e-12)
    assert f"calibration error {error:.3f}, accuracy {scores.accuracy:.0%}" == axes.get_title()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "perfect",
        "observed",
        "90% interval over tasks",
        "queries",
    ]
    assert axes.get_xlim()[0] == pytest.approx(1 / n_classes, abs=0.02)
    [bars] = axes.collections
    ends = np.array([path.vertices[:, 1] for path in bars.get_paths()])
    assert ((ends[:, 0] <= right) & (right <= ends[:, 1])).all()
    assert (ends[:, 0] < ends[:, 1]).all()


def test_intervals_are_those_of_independent_queries_unless_tasks_differ():
    # One query per task: no task can differ from others.
    right = np.array([1.0] * 30 + [0.0] * 10)[:, None]
    lower, upper = binomial_intervals(np.ones((40, 1)), right)
    np.testing.assert_allclose([lower[0], upper[0]], beta.ppf([0.05, 0.95], 30.5, 10.5), rtol=0.02)
    # Four tasks of ten queries, all right in three and all wrong in one: as many as four queries, not forty.
    right = np.array([10.0, 10.0, 10.0, 0.0])[:, None]
    lower, upper = binomial_intervals(np.full((4, 1), 10.0), right)
    np.testing.assert_allclose([lower[0], upper[0]], beta.ppf([0.05, 0.95], 0.75 * 3 + 0.5, 0.25 * 3 + 0.5), atol=0.03)
    # One query, one task, all right: the interval says how little that is.
    lower, upper = binomial_intervals(np.ones((1, 1)), np.ones((1, 1)))
    assert lower[0] < 0.3
    assert upper[0] > 0.99


def test_intervals_cover_the_share():
    """Queries of tasks that differ: 90% intervals hold the true share about as often as they say."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(300):
        p = rng.beta(4.0, 2.0, size=40)
        lower, upper = binomial_intervals(np.full((40, 1), 8.0), rng.binomial(8, p)[:, None].astype(float))
        hits += lower[0] <= 2 / 3 <= upper[0]
    assert abs(hits / 300 - 0.9) < 3 * np.sqrt(0.09 / 300)


def test_confusion_has_shares_of_rows_and_counts():
    scores = make_scores(3)
    axes = plot_confusion(StandIn(scores), [])
    [image] = axes.images
    np.testing.assert_allclose(image.get_array().sum(axis=1), 1.0)
    cells = {tuple(map(round, text.get_position()[::-1])): text.get_text() for text in axes.texts}
    for (i, j), count in np.ndenumerate(scores.confusion):
        if count:
            assert cells[i, j] == f"{count / scores.confusion[i].sum():.0%}\n{count}"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["bird 0", "bird 1", "bird 2"]
    assert axes.get_ylabel() == "observed"


def test_a_class_that_no_query_has_is_an_empty_row():
    scores = make_scores(3)
    scores.confusion[1] = 0
    axes = drawn(draw_confusion, scores)
    assert not axes.images[0].get_array()[1].any()
    assert {round(text.get_position()[1]) for text in axes.texts} == {0, 2}


def test_of_many_classes_the_most_confused_pairs_are_drawn():
    scores = make_scores(30, n_tasks=40, sharpness=0.5)
    axes = drawn(draw_confusion, scores)
    widths = [bar.get_width() for bar in axes.patches]
    wrong = np.sort((scores.confusion - np.diag(np.diag(scores.confusion))).ravel())[::-1]
    assert widths == wrong[:15].tolist()
    assert " as bird " in axes.get_yticklabels()[0].get_text()


def test_both_in_one_figure_if_classes_are_shared():
    assert len(plot_scores(make_scores(3)).axes) == 3  # with the counts of queries
    assert len(plot_scores(make_scores(3, shared=False)).axes) == 2
    plot_scores(make_scores(12)).draw_without_rendering()
    drawn(draw_reliability, make_scores(2, n_tasks=1)).figure.draw_without_rendering()


def test_confusion_needs_classes_that_tasks_share():
    with pytest.raises(ValueError, match="classes that all tasks share; here every task has its own"):
        plot_confusion(StandIn(make_scores(3, shared=False)), [])
    with pytest.raises(ValueError, match="plot_confusion needs a MetaGPClassifier"):
        plot_confusion(StandIn(likelihood="gaussian"), [])
