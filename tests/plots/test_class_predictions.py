"""Predictions of classes are drawn as they are: lines over one input, a map over two, points along several."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.base import BaseEstimator

from metaprior.plots import plot_prediction
from metaprior.plots.classes import COLORS, OTHERS
from metaprior.tasks.columns import Features


class StandIn(BaseEstimator):
    """A fitted classifier with known probabilities: classes lie along the first input, one apart."""

    likelihood_ = "bernoulli"

    def __init__(self, n_inputs=1, classes=None):
        self.n_inputs, self.classes = n_inputs, classes
        self.classes_, self.n_features_in_, self.features_ = classes, n_inputs, Features(n_inputs)
        scaling = SimpleNamespace(x_mean=np.zeros(n_inputs), x_std=np.ones(n_inputs))
        self.model_ = SimpleNamespace(members=[SimpleNamespace(scaling=scaling)])

    def fit(self):
        return self

    def transfer_report(self):
        raise NotImplementedError

    def adapt(self, X, y, classes=None):
        names = self.classes_ if classes is None else classes
        predict_proba = lambda x: softmax(-2.0 * (x[:, :1] - np.arange(len(names))) ** 2, axis=1)  # noqa: E731
        return SimpleNamespace(classes_=names, predict_proba=predict_proba)


def task(n_inputs, n_classes, n=None, seed=0):
    rng = np.random.default_rng(seed)
    codes = np.arange(n or n_classes) % n_classes
    x = np.column_stack([codes + 0.2 * rng.normal(size=len(codes)), *rng.normal(size=(n_inputs - 1, len(codes)))])
    return x, np.array([f"c{code:02}" for code in codes])


def lines(axes):
    return {each.get_label(): each for each in axes.lines if not each.get_label().startswith("_")}


def test_a_line_for_every_class_of_one_input():
    (x, y), (x_query, y_query), meta = task(1, 3), task(1, 3, 6, 1), StandIn()
    axes = plot_prediction(meta, x, y, x_query, y_query, names=("dose", "state"))
    drawn = lines(axes)
    assert list(drawn) == ["c00", "c01", "c02", "context", "queries"]
    grid = drawn["c00"].get_xdata()
    expected = meta.adapt(x, y, np.unique(y)).predict_proba(grid[:, None])
    for name, of_class in zip(np.unique(y), expected.T, strict=True):
        np.testing.assert_allclose(drawn[name].get_ydata(), of_class)
    assert len({drawn[name].get_color() for name in np.unique(y)}) == 3
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("dose", "probability of each class of state")
    dots = [each for each in axes.lines if each.get_label().startswith("_") and each.get_markerfacecolor() != "none"]
    assert {dot.get_color() for dot in dots} == set(COLORS[:3])


def test_of_many_classes_the_most_probable_have_colors_and_others_are_added():
    names = np.array([f"c{code:02}" for code in range(12)])
    meta = StandIn(classes=names)
    x, y = np.array([[3.0], [5.0]]), names[[3, 5]]
    drawn = lines(plot_prediction(meta, x, y))
    assert list(drawn) == ["c02", "c03", "c04", "c05", "c06", "7 other classes", "context"]
    assert drawn["7 other classes"].get_color() == OTHERS
    total = np.sum([line.get_ydata() for name, line in drawn.items() if name != "context"], axis=0)
    np.testing.assert_allclose(total, 1.0, rtol=1e-10)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_a_map_of_two_inputs(n_classes):
    (x, y), (x_query, y_query) = task(2, n_classes, 8), task(2, n_classes, 4, 1)
    axes = plot_prediction(StandIn(2), x, y, x_query, y_query)
    [image] = axes.images
    left, right, low, high = image.get_extent()
    every = np.concatenate([x, x_query])
    assert (left < every[:, 0].min()) & (right > every[:, 0].max())
    assert (low < every[:, 1].min()) & (high > every[:, 1].max())
    picture = np.asarray(image.get_array())
    # The color of the nearest class, here by column; paler between two classes than at one.
    nearest = int(np.clip(np.round(right), 0, n_classes - 1))
    from matplotlib.colors import to_rgb

    full, corner = np.array(to_rgb(COLORS[nearest])), picture[0, -1]
    strength = (1.0 - corner) / (1.0 - full)
    np.testing.assert_allclose(strength, strength[0], rtol=1e-6)
    columns = np.linspace(left, right, picture.shape[1])
    brightness = picture[0].sum(axis=1)
    between = np.abs(columns - 0.5).argmin()
    assert brightness[between] > brightness[np.abs(columns).argmin()]
    assert list(lines(axes)) == [*np.unique(y), "context", "queries"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("first input", "second input")
    axes.figure.draw_without_rendering()


def test_a_map_needs_no_queries_and_no_context():
    meta = StandIn(2, classes=np.array(["a", "b", "c"]))
    axes = plot_prediction(meta, np.zeros((0, 2)), [])
    assert axes.images
    assert "prior" in axes.get_title()
    asked = np.array([[0.5, 1.0], [2.0, -1.0]])
    np.testing.assert_array_equal(lines(plot_prediction(meta, asked, ["a", "b"], asked))["queries"].get_xydata(), asked)


def test_several_inputs_are_drawn_at_queries():
    (x, y), (x_query, _), meta = task(3, 3), task(3, 3, 6, 1), StandIn(3)
    axes = plot_prediction(meta, x, y, x_query)
    [points] = axes.collections
    probabilities = meta.adapt(x, y, np.unique(y)).predict_proba(x_query)
    np.testing.assert_allclose(points.get_offsets(), np.column_stack([x_query[:, 0], probabilities.max(axis=1)]))
    assert axes.get_xlabel() == "x, one of 3 inputs"
    with pytest.raises(ValueError, match="With 3 input columns predictions are drawn at queries: pass X_query"):
        plot_prediction(meta, x, y)
