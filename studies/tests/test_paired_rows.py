"""Pictures of paired differences: what is far away does not stretch the axes, and colors are verdicts."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import same_color
from matplotlib.figure import Figure

from metaprior.plots.style import LINE, POINTS
from metaprior_studies.demo import fewshot_demo
from metaprior_studies.paired_rows import GRAY, color_of, describe, draw_rows, find_limits
from metaprior_studies.real import real_picture
from metaprior_studies.real.real_study import DEFAULT, GP, PER_TASK, POOLED, TARGET_ONLY, wfem
from metaprior_studies.reproduction.comparisons import above, below, difference


@pytest.fixture
def drawn(monkeypatch):
    """Collect the figures that are drawn."""
    figures = []
    for module in (real_picture, fewshot_demo):
        monkeypatch.setattr(module, "as_bytes", lambda figure: figures.append(figure) or b"content")
    return figures


def read_rows(axes):
    """Return the markers of an axes by row: place, marker and color."""
    points = [line for line in axes.lines if line.get_marker() in ("o", "<", ">")]
    return {
        float(line.get_ydata()[0]): (float(line.get_xdata()[0]), line.get_marker(), line.get_color()) for line in points
    }


def make_table(n_draws, **gains):
    """Return results in which a scheme is so much below target-only, up to noise; NaN for a fit that diverged."""
    rng = np.random.default_rng(0)
    level = rng.normal(3.0, 1.0, n_draws)  # a draw is hard or easy for all
    return pd.DataFrame(
        [
            {"scheme": scheme, "metric": metric, "draw": draw, "value": level[draw] - gain + rng.normal(0, 0.01)}
            for scheme, gain in {TARGET_ONLY: 0.0, **gains}.items()
            for metric in ("rmse", "nll")
            for draw in range(n_draws)
        ]
    )


def test_rows_outside_of_the_axes_are_arrows_with_their_value():
    axes = Figure().subplots()
    values = np.array([[0.1, 0.0, 0.2], [7.0, 6.0, 8.0], [-5.0, -6.0, -4.0], [np.nan] * 3])
    limits = find_limits(values[:1])
    assert limits[0] < 0.0 < 0.2 < limits[1] < 0.3
    draw_rows(axes, np.arange(4.0), values, [LINE, POINTS, GRAY, GRAY], limits, form=".1f")
    assert axes.get_xlim() == limits
    assert read_rows(axes) == {0: (0.1, "o", LINE), 1: (limits[1], ">", POINTS), 2: (limits[0], "<", GRAY)}
    assert [text.get_text() for text in axes.texts] == ["+7.0", "−5.0"]
    assert np.isfinite(find_limits(np.full((2, 3), np.nan))).all()


@pytest.mark.parametrize(("rule", "colors"), [(below(0.0), [LINE, POINTS, GRAY]), (above(0.0), [POINTS, LINE, GRAY])])
def test_colors_are_verdicts(rule, colors):
    noise = pd.Series(np.random.default_rng(0).normal(size=20))
    found = [difference("rmse", "a − b", rule, noise - shift, noise * 0) for shift in (5.0, -5.0, 0.0)]
    assert [color_of(each) for each in found] == colors


def test_a_picture_of_a_real_environment_is_of_paired_differences(drawn):
    gains = {PER_TASK: -40.0, GP: -2.0, POOLED: -0.1, wfem(0.5): 0.2, DEFAULT: 0.0}
    assert real_picture.draw_picture("colorado", make_table(12, **gains)) == b"content"
    [figure] = drawn
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "RMSE minus that of target-only (°C)",
        "NLL minus that of target-only (nats per reading)",
    ]
    assert len(figure.legends) == 1
    for axes in figure.axes:
        rows = read_rows(axes)
        low, high = axes.get_xlim()
        assert high - low < 0.5  # draws vary by 1, and the GPs are far away
        np.testing.assert_allclose([rows[2][0], rows[3][0], rows[4][0]], [0.1, -0.2, 0.0], atol=0.02)
        assert [rows[place][1] for place in range(5)] == [">", ">", "o", "o", "o"]
        assert all(same_color(rows[place][2], color) for place, color in enumerate([POINTS] * 3 + [LINE]))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(gains)


def test_few_draws_and_fits_that_diverged_are_drawn(drawn):
    table = make_table(2, **{PER_TASK: 0.0, wfem(0.2): np.nan, DEFAULT: 0.1})
    real_picture.draw_picture("another", table)
    [figure] = drawn
    assert "of 2 draws, too few for intervals" in figure.get_suptitle()
    assert "(units of y)" in figure.axes[0].get_xlabel()
    rows = read_rows(figure.axes[0])
    assert set(rows) == {0.0, 2.0}  # nothing where the fit diverged
    assert {row[2] for row in rows.values()} == {GRAY}
    assert describe(10) == "mean paired differences, 95% intervals over 10 draws"


def test_the_few_shot_picture_is_of_the_default_minus_the_others(drawn, tmp_path):
    rng = np.random.default_rng(0)
    better = {fewshot_demo.CLASS_MEANS: -5.0, "equal": 0.0, fewshot_demo.DEFAULT: 0.2}
    rows = []
    for draw, level in enumerate(rng.normal(0.5, 0.3, 12)):
        for scheme, gain in better.items():
            losses = {metric: float(level - gain + rng.normal(0, 0.01)) for metric in ("log_loss", "calibration_error")}
            rows.append({"scheme": scheme, "draw": draw, "accuracy": float(level + gain), **losses})
    fewshot_demo.draw_figure(rows, "made up", tmp_path / "fewshot.png")
    assert (tmp_path / "fewshot.png").read_bytes() == b"content"
    [figure] = drawn
    for axes, arrow, sign in zip(figure.axes, "><<", (1, -1, -1), strict=True):
        found = read_rows(axes)
        assert [found[place][1] for place in (0, 1)] == [arrow, "o"]
        np.testing.assert_allclose(found[1][0], sign * 0.2, atol=0.02)
        assert found[1][2] == LINE
