"""Data frames of any library: the same tasks, and predictions in a frame of the same kind."""

import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from metaprior import MetaGPRegressor, TableWarning, open_tasks, predict_frame, store_tasks, tasks_from_frame

duckdb, pl = pytest.importorskip("duckdb"), pytest.importorskip("polars")
NAMES = {"task": "patient", "x": ["hours", "ward"], "y": "rate"}


def modin(frame):
    return pytest.importorskip("modin.pandas").DataFrame(frame)


# How to make a frame of pandas into one of each kind, and the type of the result.
KINDS = {
    "pandas": (lambda frame: frame, pd.DataFrame),
    "polars": (pl.from_pandas, pl.DataFrame),
    "lazy polars": (lambda frame: pl.from_pandas(frame).lazy(), pl.LazyFrame),
    "Arrow": (lambda frame: pa.Table.from_pandas(frame, preserve_index=False), pa.Table),
    "DuckDB": (lambda frame: duckdb.from_arrow(pa.Table.from_pandas(frame, preserve_index=False)), None),
    "Modin": (modin, None),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def made(kind, frame):
    return KINDS[kind][0](frame)


def as_pandas(frame):
    """Return a frame of any kind as one of pandas."""
    if isinstance(frame, pl.LazyFrame):
        frame = frame.collect()
    for name in ("to_pandas", "df", "_to_pandas"):
        if hasattr(frame, name):
            return getattr(frame, name)()
    return frame


def readings(n_tasks=6):
    """Readings of tasks whose rows are mixed, with integers, text, numbers and dates."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"patient": np.repeat(np.arange(101, 101 + n_tasks), 4), "hours": np.tile(range(4), n_tasks)})
    frame["ward"] = np.where(frame["patient"] % 2, "east", "west")
    frame["age"] = frame["patient"] - 60.5
    frame["rate"] = 80.0 + frame["hours"] + rng.normal(size=len(frame))
    frame["day"] = pd.to_datetime("2026-01-01") + pd.to_timedelta(frame["hours"], unit="D")
    return frame.sample(frac=1, random_state=1, ignore_index=True)


def assert_same(tasks, expected):
    assert len(tasks) == len(expected)
    for (x, y), (x_expected, y_expected) in zip(tasks, expected, strict=True):
        pd.testing.assert_frame_equal(pd.DataFrame(x), pd.DataFrame(x_expected))
        assert y.tolist() == y_expected.tolist()


@pytest.mark.filterwarnings("ignore::metaprior.TableWarning")
@pytest.mark.parametrize("x", [["hours"], ["hours", "ward"], ["day"], ["age", "hours"]], ids=" ".join)
@pytest.mark.parametrize("y", ["rate", "ward", "hours"])
def test_tasks_are_the_same(kind, x, y):
    names = {"task": "patient", "x": x, "y": y}
    if y in x:
        return
    assert_same(tasks_from_frame(made(kind, readings()), **names), tasks_from_frame(readings(), **names))


def test_categories_covariates_and_environments_are_the_same(kind):
    frame = readings().assign(level=pd.Categorical(readings()["hours"].map({0: "a", 1: "b", 2: "a", 3: "c"})))
    names = {"task": "patient", "x": ["hours", "level"], "y": "rate", "covariates": "age", "environment": "ward"}
    with pytest.warns(TableWarning, match="column level"):
        found = tasks_from_frame(made(kind, frame), **names)
    with pytest.warns(TableWarning, match="column level has the type category"):
        expected = tasks_from_frame(frame, **names)
    assert list(found) == list(expected)
    for name, tasks in found.items():
        for (x, y), (x_expected, y_expected) in zip(tasks, expected[name], strict=True):
            pd.testing.assert_frame_equal(x, x_expected, check_categorical=False)
            assert y.tolist() == y_expected.tolist()


def test_missing_values_are_told_and_dropped(kind):
    frame = readings()
    frame["rate"] = frame["rate"].where(frame.index != 3)
    frame["patient"] = frame["patient"].astype("Int64").where(frame.index != 5)
    with pytest.raises(ValueError, match=r"frame has missing values in 2 of 24 rows .*1 in patient, 1 in rate"):
        tasks_from_frame(made(kind, frame), task="patient", x="hours", y="rate")
    with pytest.warns(TableWarning, match="dropped 2 of 24 rows"):
        tasks = tasks_from_frame(made(kind, frame), task="patient", x="hours", y="rate", drop_missing=True)
    assert sum(len(task.y) for task in tasks) == 22


def test_unknown_columns_and_cells_are_named(kind):
    with pytest.raises(ValueError, match="frame has no column 'rte'; did you mean 'rate'"):
        tasks_from_frame(made(kind, readings()), task="patient", x="hours", y="rte")
    bad = readings().assign(hours=[*["1"] * 23, "n/a?"])
    with pytest.raises(ValueError, match=r'frame: row 24, column hours: "n/a\?" is not a number'):
        tasks_from_frame(made(kind, bad), task="patient", x="hours", y="rate")


@pytest.fixture(scope="module")
def meta():
    with pytest.warns(TableWarning, match="ward holds text"):
        tasks = tasks_from_frame(readings(), **NAMES)
    return MetaGPRegressor(alpha=0.0, random_state=0).fit(target_tasks=tasks)


def test_predictions_come_in_a_frame_of_the_same_kind(kind, meta):
    context, query = readings(3), readings(3).drop(columns=["rate", "day"])
    expected = predict_frame(meta, context, query, **NAMES)
    given = made(kind, query)
    found = predict_frame(meta, made(kind, context), given, **NAMES)
    assert type(found) is (KINDS[kind][1] or type(given))
    found = as_pandas(found)
    assert list(found.columns) == list(expected.columns)
    assert found["patient"].tolist() == query["patient"].tolist()  # whole numbers, in the order of the rows
    assert found["ward"].tolist() == query["ward"].tolist()
    for name in ("mean", "std", "lower", "upper"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12)
    assert found["extrapolates"].tolist() == expected["extrapolates"].tolist()


def test_columns_keep_their_types_and_frames_of_several_kinds_match():
    tasks = [(np.arange(4.0), np.arange(4.0) + i) for i in range(4)]
    meta = MetaGPRegressor(alpha=0.0, random_state=0).fit(target_tasks=tasks)
    context = {"bed": [7, 7, 8], "x": [0, 1, 0], "y": [1.0, 2.0, 3.0]}
    query = pl.DataFrame({"bed": pl.Series([8, 7], dtype=pl.Int8), "x": pl.Series(["1", "2"])})
    names = {"task": "bed", "x": "x", "y": "y"}
    found = predict_frame(meta, context, query, **names)
    assert found.schema["bed"] == pl.Int8
    assert found["x"].to_list() == ["1", "2"]
    by_name = predict_frame(meta, pd.DataFrame(context), pa.table({"bed": ["8", "7"], "x": [1, 2]}), **names)
    assert found["mean"].to_list() == by_name["mean"].to_pylist()


def test_labels_are_predicted_in_the_same_kind(kind):
    from metaprior import MetaGPClassifier

    rows = readings().assign(rate=lambda frame: np.where(frame["hours"] > 1, "high", "low"))
    names = {"task": "patient", "x": "hours", "y": "rate"}
    meta = MetaGPClassifier(alpha=0.0, random_state=0).fit(target_tasks=tasks_from_frame(rows, **names))
    found = as_pandas(predict_frame(meta, made(kind, rows), made(kind, rows.drop(columns="day")), **names))
    expected = predict_frame(meta, rows, rows, **names)
    assert found["label"].tolist() == expected["label"].tolist()
    np.testing.assert_allclose(found["probability_low"], expected["probability_low"])


def test_frames_are_stored_as_tasks(kind, tmp_path):
    store_tasks(made(kind, readings()), tmp_path / "stored", task="patient", x="hours", y="rate")
    expected = tasks_from_frame(readings(), task="patient", x="hours", y="rate")
    for stored, task in zip(open_tasks(tmp_path / "stored"), expected, strict=True):
        assert stored.x.tolist() == task.x.tolist()
        assert stored.y.tolist() == task.y.tolist()


def test_dates_of_any_kind_are_days(kind):
    dates = pd.DataFrame({"day": [datetime.date(1970, 1, 2), datetime.date(1970, 1, 4)], "y": [1.0, 2.0]})
    with pytest.warns(TableWarning, match="column day holds dates"):
        store = tasks_from_frame(made(kind, dates.assign(t="a")), task="t", x="day", y="y")
    assert store[0].x[:, 0].tolist() == [1.0, 3.0]


def test_what_is_no_frame_is_refused():
    for frame in (pl.Series([1]), [1], 7, {}):
        with pytest.raises(ValueError, match="frame must be a DataFrame, a mapping from column names"):
            tasks_from_frame(frame, task="a", x="b", y="c")


def test_columns_of_one_name_are_refused():
    frame = pa.table([[1.0], [2.0], [3.0]], names=["t", "x", "x"])
    with pytest.raises(ValueError, match=r"frame has columns of the same name\. Rename all but one\."):
        tasks_from_frame(frame, task="t", x="x", y="y")
