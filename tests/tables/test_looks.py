"""Text where numbers are expected: what it looks like, and what helps."""

import datetime

import numpy as np
import pandas as pd
import pytest

from metaprior import tasks_from_frame
from metaprior.cli.console import with_options
from metaprior.tables.columns import as_columns
from metaprior.tables.grouping import group_rows
from metaprior.tables.guesses import look_of

TASKS = ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("cells", "advice"),
    [
        (["31,35", "28,1", "30", "29,99"], "decimal commas: read it with pandas.read_csv and decimal=','"),
        (["1.031,35", "28,1", "30,0", "29,99"], "decimal commas"),
        (
            ["31,350", "28,100", "1,030", "999,999"],
            "commas between thousands: write 31350 for 31,350, or, if",
        ),
        (["31,350,000", "28,100", "1,030", "999"], "commas between thousands: write 31350000 for 31,350,000."),
        (["31.35 EUR", "28 EUR", "30.1EUR", "29 EUR"], "a unit (EUR): write numbers only, as 31.35"),
        (["$31.35", "$28", "$30", "$29"], "a unit ($)"),
        (["12.5%", "28%", "30%", "29 %"], "a unit (%)"),
        (["\u22127.16", "\u22128", "\u22129.1", "3.5"], "write a hyphen, as in -7.16"),
        (["<21.3", "<5", "7.5", "<5"], "limits such as <5"),
        (["1 101", "2 350", "999", "12 400"], "write 1101 for 1 101"),
        (["1_101", "2_350", "9_990", "12_400"], "write 1101 for 1_101"),
        (["0x15", "0X1f", "0x2", "12"], "hexadecimal numbers: write 21 for 0x15"),
    ],
)
@pytest.mark.parametrize("column", ["x", "y"])
def test_numbers_in_another_format_are_not_labels(cells, advice, column):
    table = {"task": TASKS, "x": [1, 2, 3, 4], "y": [1, 2, 3, 4], column: cells}
    with pytest.raises(ValueError, match=rf"row 1, column {column}: ") as raised:
        tasks_from_frame(table, task="task", x="x", y="y")
    assert advice in str(raised.value)


@pytest.mark.parametrize(
    "labels",
    [
        ["fast", "calm"],
        ["1a", "2b"],
        ["5 mg", "10 mg"],
        ["yes, both", "no"],
        ["class 1", "class 2"],
        ["A1", "B2"],
        ["<5", ">=5"],
    ],
)
def test_labels_stay_labels(labels):
    tasks = tasks_from_frame({"task": TASKS, "x": [1, 2, 3, 4], "y": labels * 2}, task="task", x="x", y="y")
    assert tasks[0].y.tolist() == labels
    assert look_of(labels) is None


def test_times_of_day_are_refused_as_dates_are():
    table = {"task": TASKS, "x": [datetime.time(hour, 30) for hour in range(4)], "y": [1, 2, 3, 4]}
    with pytest.raises(ValueError, match=r'"00:30:00" is not a number .* add a column of hours since a start'):
        tasks_from_frame(table, task="task", x="x", y="y")


@pytest.mark.parametrize(
    "cells",
    [
        ["10:30", "11:00", "12:15", "13:20"],
        [datetime.time(hour, 30) for hour in range(4)],
        ["1/2/2026", "1/3/2026", "7", "1/5/2026"],
    ],
)
def test_times_are_no_labels(cells):
    """More than two of them; labels that look like times have to be called labels."""
    table = {"task": TASKS, "x": [1, 2, 3, 4], "y": cells}
    with pytest.raises(ValueError, match=r"frame: row 1, column y: .* is not a number") as raised:
        tasks_from_frame(table, task="task", x="x", y="y")
    assert "seems to hold dates or times: predict a number" in str(raised.value)
    assert str(raised.value).endswith("If these are labels, write them in other words.")
    tasks_from_frame({**table, "y": ["10:30", "12:00"] * 2}, task="task", x="x", y="y")


@pytest.mark.parametrize(
    "cell",
    [pd.Period("2026-01"), pd.Interval(0, 1), b"a", 1j, datetime.timedelta(1), 10**400],
    ids=lambda cell: type(cell).__name__,
)
@pytest.mark.parametrize("labels", [True, None])
def test_what_is_no_label_is_refused_by_column(cell, labels):
    table = pd.DataFrame({"x": [1, 2, 3], "y": pd.Series([cell, "a", "b"], dtype=object)})
    with pytest.raises(ValueError, match=r"frame: row 1, column y: .* is not a number or label\. Labels are text,"):
        group_rows(table, as_columns(x="x", y="y"), labels=labels)


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        (["c1", "c2", "c3", "c1"], "seems to have a unit (c)"),
        (["5 mm", "10 mm", "15 mm", "5 mm"], "seems to have a unit (mm)"),
        (["+", "0", "0", "0"], '"+" is not a number'),
        (["1", "1", "1", "no"], '"no" is not a number'),
    ],
)
def test_text_that_may_be_labels_is_refused_with_a_way_to_say_so(cells, found):
    with pytest.raises(ValueError, match=r"row [14], column y") as raised:
        group_rows({"x": [1, 2, 3, 4], "y": cells}, as_columns(x="x", y="y"))
    assert found in str(raised.value)
    assert with_options(raised.value).endswith("If these are labels, pass --kind classification.")
    assert (
        group_rows({"x": [1, 2, 3, 4], "y": cells}, as_columns(x="x", y="y"), labels=True).tasks[0].y.tolist() == cells
    )


@pytest.mark.parametrize("limit", ["<LOD", "< loq", "ND", "<0.5"])
@pytest.mark.parametrize("n_below", [2, 10, 14])
def test_readings_below_a_limit_are_no_labels_however_many(limit, n_below):
    table = {"x": np.arange(20.0), "y": [limit] * n_below + [f"{1.1 * i:.1f}" for i in range(20 - n_below)]}
    with pytest.raises(ValueError, match=f'"{limit}" is not a number') as raised:
        group_rows(table, as_columns(x="x", y="y"))
    assert ("limits such as <5 among its numbers" in str(raised.value)) == (limit != "ND")


def test_text_as_an_input_is_refused_with_advice_where_categories_are_not_known():
    table = {"task": TASKS, "x": ["low", "high", "low", "mid"], "y": [1, 2, 3, 4]}
    with pytest.raises(ValueError, match=r'text with 3 different values \("low", "high", "mid"\).*pandas.get_dummies'):
        group_rows(table, as_columns(task="task", x="x", y="y"))
