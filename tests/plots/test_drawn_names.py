"""Names are drawn letter by letter: $ begins no formula, and _ hides nothing."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.cbook import is_math_text
from matplotlib.text import Text

from metaprior import MetaGPClassifier, MetaGPRegressor
from metaprior.plots import plot_alpha_path, plot_confusion, plot_prediction
from metaprior.plots.style import as_drawn

COST, PRICE = "$cost$", "$\\nope$"


@pytest.fixture(scope="module")
def readings():
    x = np.arange(6.0)
    tasks = {name: [(x, shift + x + 0.1 * np.sin(9 * x)) for shift in range(3)] for name in (COST, PRICE, "_")}
    alpha = {COST: 0.2, PRICE: 0.5, "_": 0.3}
    return MetaGPRegressor(alpha, random_state=0).fit(tasks, target=PRICE)


def labels(n_columns, classes):
    rng = np.random.default_rng(0)
    y = np.array(classes)[np.arange(24) % len(classes)]
    x = pd.DataFrame(rng.normal(size=(24, n_columns)), columns=[COST, PRICE][:n_columns])
    return MetaGPClassifier(0.0, random_state=0).fit(target_tasks=[(x, y)] * 2), x, y


def drawn(figure):
    """Draw a figure, and return its texts, which must be none of TeX's."""
    figure.canvas.draw()  # raises where TeX cannot be read
    texts = [text.get_text() for text in figure.findobj(Text) if text.get_text()]
    assert not [text for text in texts if is_math_text(text)]
    return [text.replace("\\$", "$") for text in texts]


def test_environments(readings):
    assert any(COST in text for text in drawn(readings.transfer_report().plot()))
    drawn(plot_alpha_path(readings).figure)


def test_axes(readings):
    texts = drawn(plot_prediction(readings, [1.0], [2.0], names=(COST, PRICE)).figure)
    assert {COST, PRICE} <= set(texts)


TWO, THREE = [COST, PRICE], [COST, PRICE, "_c"]


@pytest.mark.parametrize(("n_columns", "classes"), [(1, TWO), (1, THREE), (2, THREE)])
def test_classes(n_columns, classes):
    meta, x, y = labels(n_columns, classes)
    texts = drawn(plot_prediction(meta, x[:8], y[:8], names=(COST, PRICE)).figure)
    assert all(any(name in text for text in texts) for name in [*classes, COST])
    test = [(x[:8], y[:8], x[8:], y[8:])]
    assert {as_drawn(name).replace("\\$", "$") for name in classes} <= set(drawn(plot_confusion(meta, test).figure))
