"""Tables in long format as tasks, from frames, mappings and files."""

import datetime
import gzip
import re
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprior import MetaGPRegressor, tasks_from_frame
from metaprior.tables.columns import Columns, TableWarning, as_columns
from metaprior.tables.grouping import group_rows
from metaprior.tables.reading import TableFile, read_table

TABLE = {
    "patient": np.array(["p1", "p2", "p1", "p3", "p2", "p1"]),
    "hospital": np.array(["a", "b", "a", "b", "b", "a"]),
    "hours": np.array([0, 1, 2, 3, 4, 5]),
    "dose": np.array([0.5, 0.1, 0.2, 0.3, 0.4, 0.6]),
    "gcs": np.array([15.0, 14.0, 13.0, 12.0, 11.0, 10.0]),
}
NAMES = {"task": "patient", "x": "hours", "y": "gcs"}


def changed(**columns):
    return {**TABLE, **{name: np.asarray(values) for name, values in columns.items()}}


def test_rows_of_one_task_in_their_order():
    tasks = tasks_from_frame(TABLE, task="patient", x=["hours", "dose"], y="gcs")
    assert [task.y.tolist() for task in tasks] == [[15.0, 13.0, 10.0], [14.0, 11.0], [12.0]]
    np.testing.assert_array_equal(tasks[0].x, [[0.0, 0.5], [2.0, 0.2], [5.0, 0.6]])


def test_environments_are_a_dict_for_fit():
    tasks = tasks_from_frame(TABLE, environment="hospital", **NAMES)
    assert {name: [task.y.tolist() for task in group] for name, group in tasks.items()} == {
        "a": [[15.0, 13.0, 10.0]],
        "b": [[14.0, 11.0], [12.0]],
    }
    meta = MetaGPRegressor(alpha="pooled", random_state=0).fit(tasks, target="b")
    assert meta.environment_weights_.shape == (2,)


def test_a_task_in_two_environments():
    table = changed(hospital=["a", "b", "a", "b", "b", "b"])
    with pytest.raises(ValueError, match="'p1' is in two environments, 'a' before and 'b' in row 6") as raised:
        tasks_from_frame(table, environment="hospital", **NAMES)
    assert "task=['hospital', 'patient']" in str(raised.value)
    tasks = tasks_from_frame(table, environment="hospital", **{**NAMES, "task": ["hospital", "patient"]})
    assert [task.y.tolist() for task in tasks["b"]] == [[14.0, 11.0], [12.0], [10.0]]


def test_names_are_as_they_came():
    table = group_rows(TABLE, as_columns(environment="hospital", **NAMES))
    assert table.names == ["p1", "p2", "p3"]
    assert table.environments == ["a", "b", "b"]
    assert [rows.tolist() for rows in table.rows] == [[0, 2, 5], [1, 4], [3]]
    numbers = group_rows(changed(patient=[7, 8, 7, 7, 7, 7]), as_columns(**NAMES))
    assert numbers.names == [7, 8]
    assert type(numbers.names[0]) is int
    both = group_rows(TABLE, as_columns(task=["hospital", "hours"], x="dose", y="gcs"))
    assert both.names[:2] == [("a", 0), ("b", 1)]


@pytest.mark.parametrize(
    ("names", "pair"),
    [
        (["t²", "t2", "t²", "t1", "t1", "t1"], "'t²' and 't2'"),
        (["t0", "T0", "t0", "t1", "t1", "t1"], "'t0' and 'T0'"),
        (["3", "3.0", "3", "13", "13", "13"], "'3' and '3.0'"),
    ],
)
@pytest.mark.parametrize("column", ["patient", "hospital"])
def test_names_that_are_spelled_alike_give_a_warning(names, pair, column):
    """Readings of one task would silently become two tasks, or those of one environment two environments."""
    columns = as_columns(**{**NAMES, "task": ["patient", "hours"], "x": "dose"}, environment="hospital")
    if column == "patient":
        columns = as_columns(**NAMES)
    with pytest.warns(TableWarning, match=f"s {pair} differ in case, typography or .0 only, and are two"):
        group_rows(changed(**{column: names}), columns)


def test_names_that_are_certainly_distinct_give_no_warning():
    group_rows(changed(patient=["1-11", "11-1", "01", "1", "p 1", "p1"]), as_columns(**NAMES))


def test_no_task_column_is_one_task():
    table = group_rows(TABLE, as_columns(x="hours", y=None))
    assert [rows.tolist() for rows in table.rows] == [[0, 1, 2, 3, 4, 5]]
    assert table.tasks[0].y.tolist() == [0.0] * 6  # a table of queries


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from("ab"), st.booleans()), min_size=1, max_size=30))
def test_every_row_is_in_one_task(rows):
    names, places, missing = zip(*rows, strict=True)
    here = np.flatnonzero(~np.array(missing))
    x = np.where(missing, np.nan, np.arange(len(rows)))
    table = {"t": np.array(names), "e": np.array(places), "x": x, "y": np.arange(len(rows)) / 2}
    columns = as_columns(task=["e", "t"], x="x", y="y", environment="e")
    if not len(here):
        with pytest.raises(ValueError, match="at least one row"):
            group_rows(table, columns, drop_missing=True)
        return
    if any(missing):
        with pytest.warns(TableWarning, match=rf"dropped {sum(missing)} of {len(rows)} rows"):
            grouped = group_rows(table, columns, drop_missing=True)
    else:
        grouped = group_rows(table, columns)
    np.testing.assert_array_equal(np.sort(np.concatenate(grouped.rows)), here)
    assert grouped.names == list(dict.fromkeys((places[i], names[i]) for i in here.tolist()))  # order of first rows
    for name, environment, of_task, task in zip(
        grouped.names, grouped.environments, grouped.rows, grouped.tasks, strict=True
    ):
        assert {(places[i], names[i]) for i in of_task.tolist()} == {name}
        assert environment == name[0]
        assert (np.diff(of_task) > 0).all()
        np.testing.assert_array_equal(task.x[:, 0], of_task)
        np.testing.assert_array_equal(task.y, of_task / 2)


def test_missing_values_are_reported_and_dropped_when_asked():
    table = changed(gcs=[15.0, np.nan, 13.0, 12.0, 11.0, 10.0], hours=np.array([0, None, 2, "", 4, 5], object))
    with pytest.raises(ValueError, match=r"2 of 6 rows .*\(2 in hours, 1 in gcs\).* first is row 2.*drop_missing=True"):
        tasks_from_frame(table, **NAMES)
    with pytest.warns(TableWarning, match=r"dropped 2 of 6 rows"):
        tasks = tasks_from_frame(table, drop_missing=True, **NAMES)
    assert [task.y.tolist() for task in tasks] == [[15.0, 13.0, 10.0], [11.0]]
    labels = changed(gcs=np.array(["ill", None, "well", "ill", "ill", "well"], object))
    with pytest.warns(TableWarning, match=r"dropped 1 of 6 rows"):
        tasks = tasks_from_frame(labels, drop_missing=True, **NAMES)
    assert tasks[0].y.tolist() == ["ill", "well", "well"]


@pytest.mark.parametrize("column", ["patient", "hospital"])
def test_missing_names_are_dropped_with_the_rest(column):
    table = changed(**{column: np.array([*TABLE[column][:5], None], object)})
    with pytest.raises(ValueError, match=rf"1 in {column}\); the first is row 6"):
        tasks_from_frame(table, environment="hospital", **NAMES)
    with pytest.warns(TableWarning, match="dropped 1 of 6"):
        tasks = tasks_from_frame(table, environment="hospital", drop_missing=True, **NAMES)
    assert tasks["a"][0].y.tolist() == [15.0, 13.0]


def test_repeated_rows():
    table = changed(hours=[0, 1, 0, 3, 4, 0], gcs=[15, 14, 15, 12, 11, 15])
    with pytest.warns(TableWarning, match=r"2 rows .* first is row 3.*drop_duplicates=True"):
        tasks = tasks_from_frame(table, **NAMES)
    assert [len(task.y) for task in tasks] == [3, 2, 1]
    with pytest.warns(TableWarning, match=r"dropped 2 rows"):
        tasks = tasks_from_frame(table, drop_duplicates=True, **NAMES)
    assert [task.y.tolist() for task in tasks] == [[15], [14, 11], [12]]
    assert len(tasks_from_frame(changed(hours=[0, 0, 1, 0, 1, 2], gcs=np.zeros(6)), **NAMES)) == 3  # of other tasks


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (np.array([True, False, True, False, True, False]), [1, 0, 1, 0, 1, 0]),
        (np.array([True, False, 1, 0, 1.5, 2], object), [1, 0, 1, 0, 1.5, 2]),
        (np.array(["1.5", " 2", "3e2", "-4", "5", "6"]), [1.5, 2, 300, -4, 5, 6]),
        (pd.array([1, 2, 3, 4, 5, 6], dtype="Int64"), [1, 2, 3, 4, 5, 6]),
        (pd.array([1, 2, 3, 4, 5, 6], dtype=pd.ArrowDtype(pa.decimal128(5, 2))), [1, 2, 3, 4, 5, 6]),
        (pd.Categorical(["1", "2", "1", "2", "1", "2"], categories=["1", "2", "unused"]), [1, 2, 1, 2, 1, 2]),
    ],
)
def test_inputs_that_are_numbers(column, expected):
    task = group_rows(pd.DataFrame({**TABLE, "hours": column}), as_columns(x="hours", y="gcs")).tasks[0]
    np.testing.assert_array_equal(task.x[:, 0], expected)
    assert task.x.dtype == np.float64


@pytest.mark.parametrize(
    "column",
    [
        pd.to_datetime(
            ["1970-01-02 12:00", "1970-01-03", "1970-01-04", "1970-01-05", "1970-01-06", "1970-01-07"], format="ISO8601"
        ),
        pd.date_range("1970-01-02 14:00", periods=6, tz="Europe/Berlin") + pd.to_timedelta([-1, *[-13] * 5], unit="h"),
        ["1970-01-02T12:00:00Z", "1970-01-03", "1970-01-04", "1970-01-05", "1970-01-06T02:00+02:00", "1970-01-07"],
        [datetime.datetime(1970, 1, 2, 12), *(datetime.date(1970, 1, day) for day in range(3, 8))],
    ],
)
def test_dates_become_days(column):
    with pytest.warns(TableWarning, match="column hours holds dates, which become days since 1970-01-01"):
        task = group_rows(pd.DataFrame({**TABLE, "hours": column}), as_columns(x="hours", y="gcs")).tasks[0]
    np.testing.assert_allclose(task.x[:, 0], [1.5, 2, 3, 4, 5, 6])


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (["ill", "well", "ill", "ill", "well", "ill"], ["ill", "well", "ill", "ill", "well", "ill"]),
        (["0", "1", "1", "0", "1", "1"], [0, 1, 1, 0, 1, 1]),
        ([True, False, True, True, False, False], [True, False, True, True, False, False]),
        (np.array([True, False, True, True, False, False], object), [True, False, True, True, False, False]),
        ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]),
    ],
)
def test_outputs_may_be_labels(column, expected):
    y = group_rows(changed(gcs=column), as_columns(x="hours", y="gcs")).tasks[0].y
    assert y.tolist() == expected
    assert type(y.tolist()[0]) is type(expected[0]) or column[0] == "0"


def test_labels_or_numbers_when_told():
    mixed, columns = changed(gcs=["1", "2", "3", "4", "5", "n/a?"]), as_columns(x="hours", y="gcs")
    assert group_rows(mixed, columns, labels=True).tasks[0].y.tolist()[-1] == "n/a?"
    with pytest.raises(ValueError, match=r'row 1, column gcs: "ill" is not a number \(nor are 5 more\)'):
        group_rows(changed(gcs=["ill"] * 6), columns, labels=False)


@pytest.mark.parametrize(
    ("changes", "arguments", "parts"),
    [
        ({}, {"y": "gsc"}, ("frame has no column 'gsc'; did you mean 'gcs'? Its columns are 'patient', ",)),
        ({}, {"y": "zzzzz"}, ("frame has no column 'zzzzz'; its columns are",)),
        ({}, {"x": []}, ("x must name",)),
        ({}, {"x": 3}, ("x must be the name of a column", "3")),
        ({}, {"x": ["hours", ""]}, ("x must be the name of a column, a nonempty string", "''")),
        ({}, {"x": ["hours", "hours"]}, ("'hours' is named twice in x",)),
        ({}, {"x": "gcs"}, ("'gcs' is named as x and as y",)),
        ({}, {"environment": "gcs"}, ("'gcs' is named as y and as environment",)),
        ({}, {"y": None}, ("y must be the name of a column",)),
        ({"hours": ["a", 1, 2, 3, 4, 5]}, {}, ('frame: row 1, column hours: "a" is not a number',)),
        ({"hours": ["1", "2", "n/a?", "4", "x", "6"]}, {}, ('row 3, column hours: "n/a?"', "nor is 1 more")),
        (
            {"hours": ["1", "2,5", "3", "4", "5", "6"]},
            {},
            ('"2,5" is not a number', "and decimal=','"),
        ),
        ({"hours": [1, 2, np.inf, 4, 5, 6]}, {}, ("row 3, column hours: inf is not finite",)),
        ({"gcs": [1, 2, 3, -np.inf, 5, 6]}, {}, ("row 4, column gcs: -inf is not finite",)),
        ({"gcs": ["1", "2", "3", "4", "n/a?", "6"]}, {}, ('row 5, column gcs: "n/a?" is not a number',)),
        ({"gcs": ["2020-01-01"] * 6}, {}, ("y must be numbers or labels; column gcs holds dates",)),
        ({"gcs": np.array(["2020-01-01"] * 6, "datetime64[s]")}, {}, ("column gcs holds dates",)),
        ({"hours": [*["2020-01-01"] * 5, "soon"]}, {}, ('row 6, column hours: "soon" is not a date',)),
        ({"hours": np.arange(6).astype("timedelta64[s]")}, {}, ("column hours holds durations",)),
        ({"hours": np.arange(6) * 1j}, {}, ("row 1, column hours: 0j is not a number",)),
        ({"hours": np.zeros(5)}, {}, ("columns of shape (rows,) and of one length", "(5,)")),
        ({"hours": pd.Series([[1], [2, 3]] * 3)}, {}, ("column hours must hold one value per cell",)),
        ({"hours": np.zeros((6, 2))}, {}, ("columns of shape (rows,) and of one length", "'hours': (6, 2)")),
        ({"patient": np.array(["p", None, "p", "p", "p", "p"], object)}, {}, ("1 in patient", "row 2")),
        ({}, {"drop_missing": "yes"}, ("drop_missing must be True or False",)),
        ({}, {"drop_duplicates": 1}, ("drop_duplicates must be True or False",)),
        ({"gcs": np.full(6, np.nan)}, {"drop_missing": True}, ("at least one row",)),
    ],
)
def test_mistakes(changes, arguments, parts):
    with pytest.raises(ValueError, match=r".") as raised:
        tasks_from_frame(changed(**changes), **{**NAMES, **arguments})
    assert all(part in str(raised.value) for part in parts), str(raised.value)


def test_rows_are_counted_in_the_table_with_the_dropped_ones():
    table = changed(hours=np.array([None, "1", None, "2", "x", "3"], object))
    with pytest.raises(ValueError, match="row 5, column hours"):
        tasks_from_frame(table, drop_missing=True, **NAMES)


def test_frames_of_pandas():
    frame = pd.DataFrame(TABLE)
    twice = pd.concat([frame, frame[["hours"]]], axis=1)
    with pytest.raises(ValueError, match="frame has 2 columns named 'hours'"):
        tasks_from_frame(twice, **NAMES)
    with pytest.raises(ValueError, match=r"no column 'patient': that is its index. Pass it with .reset_index"):
        tasks_from_frame(frame.set_index("patient"), **NAMES)
    lists = frame.assign(patient=[[1]] * 6)
    with pytest.raises(ValueError, match="column patient must hold one value per cell"):
        tasks_from_frame(lists, **NAMES)
    shuffled = frame.iloc[[5, 4, 3, 2, 1, 0]]  # places count, not the index
    assert tasks_from_frame(shuffled, **NAMES)[0].y.tolist() == [10.0, 13.0, 15.0]


def test_columns_of_several_lengths():
    with pytest.raises(ValueError, match=r"column hours must hold one value per cell; got \[1\]"):
        tasks_from_frame({**TABLE, "hours": [[1], [2, 3], [4], [5], [6], [7]]}, **NAMES)


def test_not_a_table():
    with pytest.raises(ValueError, match=r"frame must be a DataFrame, a mapping from column names.*got list"):
        tasks_from_frame([1, 2], task="a", x="b", y="c")


@pytest.mark.parametrize(
    "name", ["t.csv", "t.tsv", "t.csv.gz", "t.csv.bz2", "t.csv.xz", "t.csv.zst", "t.csv.zip", "t.CSV", "t.parquet"]
)
def test_files(tmp_path, name):
    frame, path = pd.DataFrame(TABLE), tmp_path / name
    if name == "t.parquet":
        frame.to_parquet(path)
    elif name == "t.csv.zst":
        with pa.CompressedOutputStream(str(path), "zstd") as stream:
            stream.write(frame.to_csv(index=False).encode())
    else:
        frame.to_csv(path, index=False, sep="\t" if name == "t.tsv" else ",")
    arguments = {"task": "patient", "x": ["hours", "dose"], "y": "gcs", "environment": "hospital"}
    found, expected = tasks_from_frame(str(path), **arguments), tasks_from_frame(TABLE, **arguments)
    assert list(found) == list(expected)
    for environment, tasks in expected.items():
        for task, same in zip(found[environment], tasks, strict=True):
            np.testing.assert_array_equal(task.x, same.x)
            np.testing.assert_array_equal(task.y, same.y)


def test_only_the_columns_that_are_needed(tmp_path):
    (tmp_path / "t.csv").write_bytes(b'\xef\xbb\xbfid,comment,hours,gcs\n007,"two\nlines",1,\n\n7,\xe9,2,3\n')
    frame = read_table(TableFile.of(tmp_path / "t.csv"), Columns(("id",), ("hours",), "gcs"))
    assert list(frame.columns) == ["id", "hours", "gcs"]
    assert frame["id"].tolist() == ["007", "7"]  # names are text
    assert isinstance(frame["id"].dtype, pd.CategoricalDtype)
    assert frame["hours"].tolist() == [1, 2]
    assert frame["gcs"].isna().tolist() == [True, False]


GOOD = b"patient,hours,gcs\na,1,2\nb,2,3\n"


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("t.csv", b"", ("is empty",)),
        ("t.csv", b"\n\n", ("is empty",)),
        ("t.csv", b"patient,hours,gcs\n", ("must have at least one row", "got none")),
        ("t.csv", GOOD + b"c,3\n", ("line 4 has 2 cells, but there are 3 columns: 'c,3'",)),
        ("t.csv", GOOD + b"\nc,3,4,5\n", ("line 5 has 4 cells",)),
        ("t.csv", GOOD + b'c,"3,4\n', ("line 4 has 2 cells",)),
        ("t.csv", GOOD + b"c\xff,3,4\n", ("is not UTF-8 text",)),
        ("t.csv", GOOD + b"c,3\xff,4\n", ("is not UTF-8 text in column 'hours'",)),
        ("t.csv", b"\xffpatient,hours,gcs\n", ("is not UTF-8 text",)),
        (
            "t.csv",
            GOOD.decode().encode("utf-16"),
            (
                "is not UTF-8 text",
                "encoding='utf-16'",
            ),
        ),
        ("t.csv", GOOD.decode().encode("utf-16-le"), ("is not UTF-8 text", "encoding='utf-16-le'")),
        ("t.csv", GOOD.decode().encode("utf-16-be"), ("is not UTF-8 text", "encoding='utf-16-be'")),
        ("t.csv", GOOD.replace(b",", b";"), ("no column 'patient'", "separated by ';'", "pandas.read_csv and sep=';'")),
        ("t.csv", GOOD.replace(b"gcs", b"gsc"), ("no column 'gcs'; did you mean 'gsc'?",)),
        ("t.csv", GOOD.replace(b"hours", b"gcs"), ("no column 'hours'",)),
        ("t.csv", GOOD.replace(b"patient", b"hours,patient").replace(b"\n", b",0\n"), ("2 columns named 'hours'",)),
        ("t.csv", GOOD + b"c,n/a?,4\n", ('line 4, column hours: "n/a?" is not a number',)),
        ("t.csv", GOOD + b'c,"1,5",4\n', ('"1,5" is not a number', "decimal commas")),
        ("t.csv", GOOD + b",1,4\n", ("1 in patient", "line 4")),
        ("t.csv", GOOD + b"c,12:30,4\n", ('line 4, column hours: "12:30" is not a number',)),
        ("t.csv.gz", GOOD, ("is damaged or cannot be read",)),
        ("t.csv.gz", gzip.compress(GOOD * 1000, mtime=0)[:-50], ("is damaged or cannot be read",)),
        ("t.csv.bz2", GOOD, ("is damaged or cannot be read",)),
        ("t.csv.xz", GOOD, ("is damaged or cannot be read",)),
        ("t.csv.zst", GOOD, ("is damaged or cannot be read",)),
        ("t.csv.zip", GOOD, ("is damaged or cannot be read",)),
        ("t.parquet", GOOD, ("is damaged, or not a Parquet file",)),
        ("t.xlsx", GOOD, ("must be named .csv, .tsv",)),
    ],
)
def test_files_with_mistakes(tmp_path, name, content, parts):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r".") as raised:
        tasks_from_frame(path, **NAMES)
    assert all(part in str(raised.value) for part in [str(path), *parts]), str(raised.value)


def test_paths_with_mistakes(tmp_path):
    with pytest.raises(ValueError, match=r"none\.csv does not exist"):
        tasks_from_frame(tmp_path / "none.csv", **NAMES)
    with pytest.raises(ValueError, match="is a folder"):
        tasks_from_frame(tmp_path, **NAMES)
    with zipfile.ZipFile(tmp_path / "t.csv.zip", "w") as archive:
        archive.writestr("a.csv", GOOD)
        archive.writestr("b.csv", GOOD)
    with pytest.raises(ValueError, match=r"t\.csv\.zip must hold one file; it has 2"):
        tasks_from_frame(tmp_path / "t.csv.zip", **NAMES)


def test_parquet_with_mistakes(tmp_path):
    path = tmp_path / "t.parquet"
    pd.DataFrame(TABLE).to_parquet(path)
    with pytest.raises(ValueError, match=r"t\.parquet has no column 'gsc'; did you mean 'gcs'"):
        tasks_from_frame(path, task="patient", x="hours", y="gsc")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"t\.parquet is damaged.*[^.]\.$"):  # one full stop
        tasks_from_frame(path, **NAMES)
    middle = bytearray(whole)
    middle[4:200] = bytes(196)
    path.write_bytes(bytes(middle))
    with pytest.raises(ValueError, match=r"t\.parquet is damaged"):
        tasks_from_frame(path, **NAMES)
    pd.DataFrame({"patient": ["a"], "hours": [{"of": 1}], "gcs": [1.0]}).to_parquet(path)
    with pytest.raises(ValueError, match=r"t\.parquet: column hours"):
        tasks_from_frame(path, **NAMES)


def test_a_damaged_zip_file_is_refused_in_words(tmp_path):
    path = tmp_path / "table.csv.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("table.csv", "task,x,y\n" + "".join(f"{i % 3},{i / 7},{i / 11}\n" for i in range(300)))
    content = bytearray(path.read_bytes())
    content[60:68] = bytes(8)
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        tasks_from_frame(path, task="task", x="x", y="y")


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"task": [1, 1, "1", "1"]}, "column 'task' has 1 (row 1) and '1' (row 3), which read the same"),
        ({"task": ["a", 2.0, "2", "a"]}, "column 'task' has 2.0 (row 2) and '2' (row 3), which read the same"),
        ({"task": [True, "True", "a", "b"]}, "column 'task' has True (row 1) and 'True' (row 2)"),
        ({"town": ["7", 7, 7, 7]}, "column 'town' has '7' (row 1) and 7 (row 2), which read the same"),
        ({"task": ["a", "b\0", "b", "b"]}, "row 2, column task: 'b\\x00' has a NUL character"),
        ({"town": ["a\0b", "a", "a", "a"]}, "row 1, column town: 'a\\x00b' has a NUL character"),
        ({"y": ["no", "yes", "yes", "yes\0"]}, "row 4, column y: 'yes\\x00' has a NUL character"),
        ({"x": [0, 1, "2\0", 3]}, "row 3, column x: '2\\x00' has a NUL character"),
    ],
)
def test_names_that_read_the_same_and_text_with_zeros_are_refused(columns, told):
    table = {"task": ["a", "b", "c", "d"], "town": ["n"] * 4, "x": [0, 1, 2, 3], "y": [1.0, 2.0, 3.0, 4.0], **columns}
    with pytest.raises(ValueError, match=re.escape(told)):
        tasks_from_frame(table, task="task", x="x", y="y", environment="town")


def test_numbers_that_are_equal_are_one_name():
    table = {"task": pd.Series([1, 1.0, "a", "a"], dtype=object), "x": range(4), "y": range(4)}
    assert [len(task.y) for task in tasks_from_frame(table, task="task", x="x", y="y")] == [2, 2]


@pytest.mark.parametrize("where", ["week", "a,1"])
def test_a_zero_in_a_file_is_found_in_its_line(where, tmp_path):
    text = "task,week,y\na,1,2\na,2,3\n".replace(where, where[0] + "\0" + where[1:])
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=r"t\.csv: line [12].* has a NUL character") as raised:
        tasks_from_frame(tmp_path / "t.csv", task="task", x="week", y="y")
    assert "\0" not in str(raised.value)
