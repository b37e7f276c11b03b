"""Names that read the same are refused, and names that may be the same are told, wherever names enter."""

import unicodedata

import numpy as np
import pandas as pd
import pytest

from metaprior import ExtrapolationWarning, MetaGPClassifier, MetaGPRegressor, tasks_from_frame
from metaprior.tables.columns import as_columns
from metaprior.tasks.categories import alike_among, as_read, spelled_alike

COMPOSED, DECOMPOSED = unicodedata.normalize("NFC", "Köln"), unicodedata.normalize("NFD", "Köln")
SAME = [("a", "a "), (COMPOSED, DECOMPOSED), ("ward 1", "ward\u00a01"), ("a  b", "a b"), ("a", "a\u200b")]
MAY_BE = [("Yes", "yes"), ("7", "7.0"), ("m²", "m2")]
KINDS = [(1, "1"), (2.0, "2"), (True, 1), (0, False), (True, "True")]


def fit_levels(first, second):
    """Fit a prior to tasks with a category of two levels."""
    ward = pd.Series([first, second] * 4, dtype=object)
    tasks = [(pd.DataFrame({"hours": np.arange(8.0), "ward": ward}), np.arange(8.0))] * 2
    return MetaGPRegressor(0.0, categorical=["ward"], random_state=0).fit(target_tasks=tasks)


def fit_labels(first, second):
    """Fit a prior to tasks with three labels."""
    tasks = [(np.arange(8.0), np.array([first, second, "other", "other"] * 2))] * 2
    return MetaGPClassifier(0.0, random_state=0).fit(target_tasks=tasks)


def fit_own_labels(first, second):
    """Fit a prior to tasks that spell a label in one way each, and have others too."""
    tasks = [(np.arange(8.0), np.array([name, *others] * 2)) for name in (first, second) for others in ("bcd", "cde")]
    return MetaGPClassifier(0.0, random_state=0).fit(target_tasks=tasks)


def read_table(**columns):
    """Read the tasks of a table with these columns."""
    table = {"task": ["p", "q"] * 4, "place": ["here"] * 8, "x": np.arange(8.0), "y": np.arange(8.0), **columns}
    names = {name: name for name in ("task", "x", "y")}
    return tasks_from_frame(pd.DataFrame(table), **names, environment="place")


def read_tasks(first, second):
    """Read a table whose tasks have these names."""
    return read_table(task=pd.Series([first, second] * 4, dtype=object))


def read_environments(first, second):
    """Read a table whose environments have these names."""
    return read_table(place=pd.Series([first, second] * 4, dtype=object))


def fit_environments(first, second):
    """Fit a prior to environments of these names."""
    tasks = [(np.arange(3.0), np.arange(3.0))] * 2
    return MetaGPRegressor({first: 0.5, second: 0.5}, random_state=0).fit({first: tasks, second: tasks}, target=first)


def fit_columns(first, second):
    """Fit a prior to inputs of these names."""
    x = pd.DataFrame(np.eye(4)[:, :2], columns=[first, second])
    return MetaGPRegressor(0.0, random_state=0).fit(target_tasks=[(x, np.arange(4.0))] * 2)


def name_columns(first, second):
    """Name columns of a table."""
    return as_columns(x=[first, second], y="y")


TEXT = [fit_labels, fit_own_labels, fit_environments, fit_columns, name_columns]
ANY = [fit_levels, read_tasks, read_environments]
TOLD = [fit_labels, fit_levels, read_tasks, read_environments, fit_environments]


@pytest.mark.parametrize("pair", SAME, ids=ascii)
@pytest.mark.parametrize("door", [*TEXT, *ANY])
@pytest.mark.filterwarnings("ignore:Most tasks")
def test_names_that_read_the_same_are_refused(door, pair):
    with pytest.raises(ValueError, match=r"which read the same\. Write them alike") as told:
        door(*pair)
    quoted = [f"{each!r}" in str(told.value) or f"{each!a}" in str(told.value) for each in pair]
    assert all(quoted)
    assert len({repr(each) for each in pair} | {unicodedata.normalize("NFC", repr(each)) for each in pair}) > 1


@pytest.mark.parametrize("pair", KINDS, ids=ascii)
@pytest.mark.parametrize("door", ANY)
def test_names_of_two_kinds_that_are_one_are_refused(door, pair):
    """In Python True equals 1: they were one level, or task, without a word."""
    with pytest.raises(ValueError, match=r"which read the same|a bool and a number"):
        door(*pair)


@pytest.mark.parametrize("pair", MAY_BE, ids=ascii)
@pytest.mark.parametrize("door", TOLD)
def test_names_that_may_be_the_same_are_told(door, pair):
    with pytest.warns(UserWarning, match="differ in case, typography or .0 only, and are two") as told:
        door(*pair)
    assert any(all(repr(each) in str(warning.message) for each in pair) for warning in told)
    assert not any("has the" in str(warning.message) for warning in told)  # one sentence with one verb


@pytest.mark.parametrize("pair", [("1-11", "11-1"), ("01", "1"), ("a b", "ab"), ("a", "b"), ("e", "é")])
def test_names_that_are_distinct_are_quiet(pair):
    assert not spelled_alike(pair)
    assert as_read(pair[0]) != as_read(pair[1])
    for door in (read_tasks, read_environments, name_columns):
        door(*pair)


def test_columns_may_differ_in_case():
    """t and T may be a time and a temperature, and nothing is merged or split."""
    fit_columns("t", "T")


@pytest.mark.parametrize(("new", "known"), [("North ", "North"), ("north", "North"), (DECOMPOSED, COMPOSED)])
def test_a_new_level_that_may_be_a_known_one_is_told_with_it(new, known):
    meta = fit_levels("North", COMPOSED)
    x = pd.DataFrame({"hours": [1.0], "ward": [new]})
    with pytest.warns(ExtrapolationWarning, match="the fit has") as told:
        meta.adapt([], []).predict(x)
    assert ascii(known) in ascii(str(told[0].message)).replace("\\\\", "\\")


def test_a_column_that_may_be_a_known_one_is_told_with_it():
    task = fit_columns("hours", "dose").adapt([], [])
    x = pd.DataFrame({"hours ": [1.0], "dose": [1.0]})
    with pytest.raises(ValueError, match="Is 'hours ' the same as 'hours'"):
        task.predict(x)


def test_tables_in_batches_find_names_of_earlier_ones(tmp_path):
    from metaprior import store_tasks

    for name, task in (("one", "a"), ("two", "a ")):
        (tmp_path / f"{name}.csv").write_text(f"task,x,y\n{task},0.0,0.0\n{task},1.0,1.0\n")
    with pytest.raises(ValueError, match=r"two\.csv: column 'task' has 'a' \(before\) and 'a ' \(line 2\), which read"):
        store_tasks([tmp_path / "one.csv", tmp_path / "two.csv"], tmp_path / "out", task="task", x="x", y="y")


def test_lookups_by_spelling():
    assert alike_among("north ", ["South", "North"]) == "North"
    assert alike_among("east", ["South", "North"]) is None


@pytest.mark.parametrize("dtype", ["string", "Int64", "boolean", object])
def test_missing_labels_of_pandas_are_refused(dtype):
    cells = {"string": ["a", "b"], "Int64": [1, 2], "boolean": [True, False]}.get(dtype, ["a", "b"])
    y = pd.Series([*cells, *cells, pd.NA], dtype=dtype)
    with pytest.raises(ValueError, match=r"target_tasks\[0\]: y must not have (missing|NaN)"):
        MetaGPClassifier(0.0).fit(target_tasks=[(np.arange(5.0), y)])
