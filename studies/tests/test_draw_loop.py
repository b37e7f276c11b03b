"""Results of the benchmark scripts: rows in a CSV file, resumed runs, and means over draws."""

import numpy as np
import pandas as pd
import pytest
from draw_loop import ResultTable, summarize

from metaprior_studies.drawn_tasks import DrawnTasks

TASKS = DrawnTasks([], ["target"], ["test"])


class Counting:
    """In place of an estimator: counts its fits, and scores a third."""

    fits = 0

    def fit(self, source, target):
        assert (source, target) == (None, ["target"])
        Counting.fits += 1

    def evaluate(self, tests):
        assert tests == ["test"]
        return {"rmse": 1 / 3, "nll": np.float32(-1)}


def measure(table, draws, metrics=("rmse", "nll")):
    for draw in draws:
        table.measure({"scheme": "a, b", "draw": draw}, Counting(), TASKS, metrics, lambda meta: {"alpha": 0.5})


def test_rows_are_written_and_only_missing_ones_are_computed_when_resumed(tmp_path):
    path, Counting.fits = tmp_path / "new" / "table.csv", 0
    measure(ResultTable(path, ("scheme", "draw")), (0, 1))
    assert path.read_text() == 'scheme,draw,alpha,rmse,nll\n"a, b",0,0.5,0.3333,-1.0\n"a, b",1,0.5,0.3333,-1.0\n'
    resumed = ResultTable(path, ("scheme", "draw"), resume=True)
    measure(resumed, (0, 1, 2))
    assert Counting.fits == 3
    assert path.read_text().count("\n") == 4
    frame = resumed.frame()
    assert frame["draw"].tolist() == [0, 1, 2]
    assert frame["rmse"].dtype == float
    measure(ResultTable(path, ("scheme", "draw")), (7,))  # without resume it starts over
    assert pd.read_csv(path)["draw"].tolist() == [7]


def test_seconds_are_recorded_if_asked_for_and_nothing_is_written_without_a_path(tmp_path):
    table = ResultTable(None, ("scheme", "draw"), resume=True)
    measure(table, (0,), ("rmse", "seconds"))
    assert 0.0 <= table.rows[0]["seconds"] < 1.0
    assert list(tmp_path.iterdir()) == []


def test_columns_that_a_row_lacks_are_empty():
    table = ResultTable(None, ("draw",))
    table.add({"draw": 0}, {"draw": 1, "loss": 2.5})
    np.testing.assert_array_equal(table.frame()["loss"], [np.nan, 2.5])


def test_means_have_standard_errors_and_differences_are_paired_by_draw():
    values = {"base": [1.0, 2.0, 4.0], "other": [2.0, 2.5, 5.0]}
    frame = pd.DataFrame(
        [
            {"candidate": name, "draw": draw, "rmse": value, "seconds": 2.0 * draw}
            for name, of_name in values.items()
            for draw, value in enumerate(of_name)
        ]
    )
    base, other = summarize(frame, "candidate", ("rmse",), "rmse", "minus_base", means=("seconds",))
    assert list(base) == ["candidate", "draws", "rmse", "rmse_se", "seconds", "minus_base", "minus_base_se"]
    assert (base["minus_base"], base["minus_base_se"]) == (0.0, 0.0)
    gains = np.array([1.0, 0.5, 1.0])
    assert other["draws"] == 3
    assert other["rmse"] == pytest.approx(np.mean(values["other"]), rel=1e-3)
    assert other["minus_base"] == pytest.approx(gains.mean(), rel=1e-3)
    assert other["minus_base_se"] == pytest.approx(gains.std(ddof=1) / np.sqrt(3), rel=1e-3)
