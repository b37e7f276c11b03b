"""Tables in long format as tasks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprior import MetaGPRegressor, tasks_from_frame

TABLE = {
    "patient": np.array(["p1", "p2", "p1", "p3", "p2", "p1"]),
    "hospital": np.array(["a", "b", "a", "b", "b", "b"]),
    "hours": np.array([0, 1, 2, 3, 4, 5]),
    "dose": np.array([0.5, 0.1, 0.2, 0.3, 0.4, 0.6]),
    "gcs": np.array([15.0, 14.0, 13.0, 12.0, 11.0, 10.0]),
}


def test_rows_of_one_task_in_their_order():
    tasks = tasks_from_frame(TABLE, task="patient", x=["hours", "dose"], y="gcs")
    assert [task.y.tolist() for task in tasks] == [[15.0, 13.0, 10.0], [14.0, 11.0], [12.0]]
    np.testing.assert_array_equal(tasks[0].x, [[0.0, 0.5], [2.0, 0.2], [5.0, 0.6]])


def test_environments_are_a_dict_for_fit():
    tasks = tasks_from_frame(TABLE, task="patient", x="hours", y="gcs", environment="hospital")
    assert {name: [task.y.tolist() for task in group] for name, group in tasks.items()} == {
        "a": [[15.0, 13.0]],
        "b": [[14.0, 11.0], [12.0], [10.0]],  # p1 of hospital b is another task
    }
    arguments = {"mean": "constant", "kernel": "rbf", "n_steps": 4, "random_state": 0}
    meta = MetaGPRegressor(**arguments).fit(tasks, target="b")
    assert meta.environment_weights_.shape == (2,)


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from("ab")), min_size=1, max_size=30))
def test_every_row_is_in_one_task(rows):
    names, places = zip(*rows, strict=True)
    table = {"t": np.array(names), "e": np.array(places), "x": np.arange(len(rows)), "y": np.arange(len(rows)) / 2}
    tasks = tasks_from_frame(table, task="t", x="x", y="y", environment="e")
    assert sum(len(group) for group in tasks.values()) == len(set(rows))
    seen = np.concatenate([task.x[:, 0] for group in tasks.values() for task in group])
    np.testing.assert_array_equal(np.sort(seen), np.arange(len(rows)))
    for name, group in tasks.items():
        for task in group:
            np.testing.assert_array_equal(task.y, task.x[:, 0] / 2)
            assert len({rows[int(i)] for i in task.x[:, 0]}) == 1
            assert {rows[int(i)][1] for i in task.x[:, 0]} == {name}


def test_missing_values_are_reported_and_dropped_when_asked():
    table = {**TABLE, "gcs": np.array([15.0, np.nan, 13.0, 12.0, 11.0, 10.0])}
    with pytest.raises(ValueError, match=r"1 row\(s\) with a missing value, the first is row 1.*drop_missing"):
        tasks_from_frame(table, task="patient", x="hours", y="gcs")
    tasks = tasks_from_frame(table, task="patient", x="hours", y="gcs", drop_missing=True)
    assert [task.y.tolist() for task in tasks] == [[15.0, 13.0, 10.0], [12.0], [11.0]]
    labels = {**TABLE, "gcs": np.array(["ill", None, "well", "ill", "ill", "well"], object)}
    tasks = tasks_from_frame(labels, task="patient", x="hours", y="gcs", drop_missing=True)
    assert tasks[0].y.tolist() == ["ill", "well", "well"]


@pytest.mark.parametrize(
    ("changes", "arguments", "parts"),
    [
        ({}, {"y": "gsc"}, ("no column 'gsc'", "'gcs'")),
        ({}, {"x": []}, ("x must name",)),
        ({"hours": np.array(list("abcdef"))}, {}, ("column 'hours' must hold numbers", "'a'")),
        ({"hours": np.zeros(5)}, {}, ("columns of one length", "5")),
        ({"hours": np.zeros((6, 2))}, {}, ("'hours' must have shape (rows,)", "(6, 2)")),
        ({"patient": np.array(["p", None, "p", "p", "p", "p"], object)}, {}, ("row 1 has none",)),
        ({}, {"drop_missing": "yes"}, ("drop_missing must be True or False",)),
        ({"gcs": np.full(6, np.nan)}, {"drop_missing": True}, ("at least one row",)),
    ],
)
def test_mistakes(changes, arguments, parts):
    with pytest.raises(ValueError, match=r".") as raised:
        tasks_from_frame({**TABLE, **changes}, **{"task": "patient", "x": "hours", "y": "gcs", **arguments})
    assert all(part in str(raised.value) for part in parts), str(raised.value)


def test_not_a_table():
    with pytest.raises(ValueError, match="DataFrame or a mapping from column names to arrays; got list"):
        tasks_from_frame([1, 2], task="a", x="b", y="c")
