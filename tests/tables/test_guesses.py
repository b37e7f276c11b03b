"""Which columns are probably what: named tables, and any table at all without an exception."""

import string
from importlib import resources

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.pandas import column, data_frames, range_indexes

from metaprior.tables.guesses import guess_roles, summarize_columns

PATIENTS = resources.files("metaprior").joinpath("datasets", "example", "patients.csv")


def readings_table(n_tasks=6, n_readings=5):
    """Tasks of numbers along one input."""
    rng = np.random.default_rng(0)
    tasks = np.repeat([f"task {i + 1}" for i in range(n_tasks)], n_readings)
    x = rng.uniform(0.0, 10.0, len(tasks)).round(3)
    return pd.DataFrame({"task": tasks, "x": x, "y": np.sin(x).round(4)})


def roles(frame):
    guess = guess_roles(frame)
    check(frame, guess)
    return guess.task, guess.x, guess.y, guess.environment, guess.target


def check(frame, guess):
    """Roles are columns, each has one at most, every guess has a reason, and the target is an environment."""
    given = [each for each in (guess.task, guess.y, guess.environment, *guess.x) if each is not None]
    assert len(given) == len(set(given))
    assert set(given) <= set(frame.columns)
    named = {name for name in ("task", "y", "environment", "target") if getattr(guess, name) is not None}
    named |= {"x"} if guess.x else set()
    assert set(guess.reasons) == named
    assert (guess.target is None) == (guess.environment is None)
    if guess.environment is not None:
        assert guess.target in {str(value) for value in frame[guess.environment].dropna()}
        per_task = frame.groupby(guess.task, observed=True)[guess.environment].nunique()
        assert per_task.max() <= 1


def test_patients():
    found = roles(pd.read_csv(str(PATIENTS)))
    assert found == ("patient", ["hours"], "heart_rate", "hospital", "south")


def test_labels():
    frame = readings_table()
    frame = frame.assign(word=np.where(frame.pop("y") > 0.0, "high", "low"))
    assert roles(frame) == ("task", ["x"], "word", None, None)


def test_dates():
    frame = readings_table().assign(when=pd.date_range("2026-01-01", periods=30))
    task, x, y, *_ = roles(frame.drop(columns="x"))
    assert (task, x, y) == ("task", ["when"], "y")
    assert {each.name: each.kind for each in summarize_columns(frame)}["when"] == "dates"


def test_ids_that_are_whole_numbers():
    frame = readings_table().assign(subject_id=np.repeat(np.arange(100, 106), 5)).drop(columns="task")
    assert roles(frame)[:3] == ("subject_id", ["x"], "y")


def test_a_wide_table():
    rng = np.random.default_rng(0)
    wide = {f"f{i}": rng.normal(size=60) for i in range(30)}
    frame = pd.DataFrame({"school": np.repeat(list("abcdef"), 10), **wide, "score": rng.normal(size=60)})
    task, x, y, *_ = roles(frame)
    assert (task, y) == ("school", "score")
    assert 1 <= len(x) <= 6
    assert set(x) <= set(wide)


def test_no_column_names_tasks():
    rng = np.random.default_rng(0)
    task, _, y, environment, target = roles(pd.DataFrame({"a": rng.normal(size=20), "b": rng.normal(size=20)}))
    assert (task, environment, target) == (None, None, None)
    assert y == "b"


def test_the_target_is_the_environment_with_the_fewest_tasks():
    frame = readings_table(9, 4)
    number = frame["task"].str.extract(r"(\d+)")[0].astype(int)
    frame["region"] = np.where(number <= 2, "few", "many")
    assert roles(frame)[3:] == ("region", "few")


def test_a_column_that_varies_within_tasks_is_no_environment():
    frame = readings_table().assign(region=["north", "south"] * 15)
    assert roles(frame)[3] is None


@pytest.mark.parametrize(
    "frame", [pd.DataFrame({"a": []}), pd.DataFrame({"a": [1.0]}), pd.DataFrame({"a": [None, None]}), pd.DataFrame()]
)
def test_hardly_a_table(frame):
    task, _, _, environment, target = roles(frame)
    assert (task, environment, target) == (None, None, None)


def test_missing_names_of_tasks_and_environments():
    frame = readings_table().assign(hospital="a")
    frame.loc[:4, "task"] = None
    frame.loc[10:, "hospital"] = None
    roles(frame)


WORDS = st.text(string.ascii_lowercase[:3], min_size=1, max_size=2)
CELLS = {
    "integers": st.integers(-3, 3),
    "floats": st.floats(width=32),
    "booleans": st.booleans(),
    "words": st.one_of(WORDS, st.none()),
    "dates": st.datetimes(pd.Timestamp("2000-01-01"), pd.Timestamp("2030-01-01")),
}
NAMES = ["task", "subject id", "x", "time", "y", "score", "hospital", "é", "a b", "label"]


@st.composite
def tables(draw):
    kinds = draw(st.lists(st.sampled_from(sorted(CELLS)), min_size=1, max_size=5))
    names = draw(st.permutations(NAMES))[: len(kinds)]
    dtypes = {"integers": int, "floats": float, "booleans": bool, "words": object, "dates": "datetime64[ns]"}
    made = [column(name, elements=CELLS[kind], dtype=dtypes[kind]) for name, kind in zip(names, kinds, strict=True)]
    return draw(data_frames(made, index=range_indexes(max_size=12)))


@given(frame=tables(), as_category=st.booleans())
def test_any_table_gives_a_guess(frame, as_category):
    if as_category:
        text = [name for name in frame.columns if frame[name].dtype == object]
        frame = frame.astype(dict.fromkeys(text, "category"))
    roles(frame)
    for each in summarize_columns(frame):
        assert each.n_missing == frame[each.name].isna().sum()
        assert each.n_distinct == frame[each.name].nunique()
