"""Tables of any length become folders of tasks that are read a few at a time."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from metaprior import StoredTasks, open_tasks, store_tasks, tasks_from_frame
from metaprior.storage import stored_tasks, task_folders
from metaprior.storage.stored_tasks import stored_scaling
from metaprior.tables import reading
from metaprior.tables.columns import TableWarning
from metaprior.tasks.scaling import fit_scaling
from metaprior.tasks.types import Task, pad_to

COLUMNS = {"task": "patient", "x": ["hours", "dose"], "y": "rate", "environment": "hospital"}


def make_frame(n_tasks=30, rng=0):
    """Rows of all tasks in random order."""
    rng = np.random.default_rng(rng)
    sizes = rng.integers(1, 6, n_tasks)
    frame = pd.DataFrame({"patient": np.repeat(np.arange(n_tasks), sizes)})
    frame["hospital"] = np.where(frame["patient"] % 3 == 0, "south", "north")
    for name in ("hours", "dose", "rate"):
        frame[name] = rng.normal(size=len(frame))
    return frame.sample(frac=1.0, random_state=1).reset_index(drop=True)


def same_tasks(stored, expected):
    assert len(stored) == len(expected)
    for first, second in zip(stored, expected, strict=True):
        np.testing.assert_array_equal(first.x, second.x)
        np.testing.assert_array_equal(first.y, second.y)


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(reading, "ROWS", 7)
    monkeypatch.setattr(task_folders, "BLOCK", 50)
    monkeypatch.setattr(stored_tasks, "BLOCK", 12)
    monkeypatch.setattr(stored_tasks, "GATHERED", 4)
    monkeypatch.setattr(stored_tasks, "KEPT", 0)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_scattered_rows_of_several_files_are_the_tasks_of_the_whole_table(suffix, tmp_path):
    frame = make_frame()
    for i, part in enumerate(np.array_split(np.arange(len(frame)), 3)):
        path = tmp_path / f"part-{i}.{suffix}"
        _ = frame.iloc[part].to_parquet(path) if suffix == "parquet" else frame.iloc[part].to_csv(path, index=False)
    store_tasks(str(tmp_path / f"*.{suffix}"), tmp_path / "out", **COLUMNS)
    stored, expected = open_tasks(tmp_path / "out"), tasks_from_frame(frame, **COLUMNS)
    assert list(stored) == list(expected)
    for name, tasks in expected.items():
        same_tasks(stored[name], tasks)
        same_tasks(stored[name][2:4], tasks[2:4])
        same_tasks([stored[name][-1]], tasks[-1:])
    assert sorted(path.name for path in tmp_path.iterdir() if "part-" not in path.name) == ["out"]


def test_tasks_named_by_several_columns_without_environments(tmp_path):
    frame = make_frame()
    frame["patient"] %= 11
    frame.to_parquet(tmp_path / "all.pq")
    columns = {**COLUMNS, "task": ["hospital", "patient"], "environment": None}
    store_tasks(tmp_path / "all.pq", tmp_path / "out", **columns)
    same_tasks(open_tasks(tmp_path / "out"), tasks_from_frame(frame, **columns))


def test_folders_named_by_a_column(tmp_path):
    frame = make_frame()
    for name, part in frame.groupby("hospital"):
        (tmp_path / f"hospital={name}").mkdir()
        part.drop(columns="hospital").to_parquet(tmp_path / f"hospital={name}" / "part.parquet")
    (tmp_path / "_metadata.parquet").write_bytes(b"of another tool")
    store_tasks(tmp_path, tmp_path / "out", **COLUMNS)
    expected = tasks_from_frame(frame, **COLUMNS)
    same_tasks(open_tasks(tmp_path / "out")["south"], expected["south"])


@pytest.mark.usefixtures("small_batches")
def test_gathered_tasks_are_padded_ones(tmp_path):
    make_frame().to_parquet(tmp_path / "all.parquet")
    store_tasks(tmp_path / "all.parquet", tmp_path / "out", **{**COLUMNS, "environment": None})
    tasks = tasks_from_frame(make_frame(), **{**COLUMNS, "environment": None})
    stored = open_tasks(tmp_path / "out")
    indices = np.array([[3, 0, 7], [2, 2, 29]])
    gathered = stored.gather(indices, 6)
    padded = pad_to([tasks[i] for i in indices.ravel().tolist()], 6, np.float64)
    for one, other in zip(gathered, padded, strict=True):
        np.testing.assert_array_equal(one.reshape(other.shape), other)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("weights", [(0.3, 0.7), (0.0, 1.0), (1.0, 0.0)])
def test_scaling_found_by_blocks_is_that_of_the_tasks(weights):
    rng = np.random.default_rng(0)
    scales, shifts = np.array([1.0, 1e200, 1e-200, 0.0, 1.0]), np.array([1e2, 0.0, 0.0, 7.0, -10.0])

    def draw(n):
        sizes = rng.integers(1, 9, n).tolist()
        return [Task(shifts + scales * rng.normal(size=(m, 5)), 100 + rng.normal(size=m)) for m in sizes]

    environments = [draw(11), draw(5)]
    expected = fit_scaling(environments, weights)
    found = stored_scaling([StoredTasks.from_tasks(tasks, 5)[:] for tasks in environments], weights)
    for one, other in zip(found[:4], expected[:4], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_what_is_in_tables_is_checked(tmp_path):
    out = tmp_path / "out"

    def refused(frame, match, **more):
        frame.to_parquet(tmp_path / "bad.parquet")
        with pytest.raises(ValueError, match=match):
            store_tasks(tmp_path / "bad.parquet", out, **{**COLUMNS, **more})
        assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.parquet"]

    frame = make_frame()
    refused(frame, "no column 'heart_rate'", y="heart_rate")
    refused(frame, "did you mean 'hours'", x="hour")
    refused(
        frame.assign(rate=frame["rate"].where(frame.index != 4)),
        r"missing values in 1 of 96 rows read \(1 in rate\); the first is row 5",
    )
    refused(frame.assign(dose=frame["dose"].where(frame.index != 4, np.inf)), "row 5, column dose: inf is not finite")
    refused(frame.assign(rate="high"), 'row 1, column rate: "high" is not a number')
    refused(frame.assign(patient=frame["patient"] % 8), "is in two environments")
    refused(frame[:0], "at least one row without missing values; got none")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(ValueError, match="damaged, or not a Parquet file"):
        store_tasks(tmp_path / "bad.parquet", out, **COLUMNS)
    for tables, match in (
        (tmp_path / "none.parquet", "does not exist"),
        ([], "must be a path"),
        (3, "must be a path"),
        (__file__, "named"),
    ):
        with pytest.raises(ValueError, match=match):
            store_tasks(tables, out, **COLUMNS)
    frame.assign(patient=frame["patient"].astype(str)).to_parquet(tmp_path / "bad.parquet")
    frame.to_parquet(tmp_path / "good.parquet")
    with pytest.raises(ValueError, match="column 'patient' must be of one kind in all tables; it is text in"):
        store_tasks(tmp_path, out, **COLUMNS)


@pytest.mark.usefixtures("small_batches")
def test_missing_rows_are_dropped_and_dates_become_days_with_one_warning_each(tmp_path):
    frame = make_frame()
    frame.loc[[4, 40], "rate"] = np.nan
    frame["hours"] = pd.Timestamp("2026-03-01") + pd.to_timedelta(frame["hours"], unit="h")
    frame.to_parquet(tmp_path / "all.parquet")
    with pytest.warns(TableWarning) as caught:
        store_tasks(tmp_path / "all.parquet", tmp_path / "out", **COLUMNS, drop_missing=True)
    messages = sorted(str(warning.message) for warning in caught)
    assert len(messages) == 2
    assert "column hours holds dates" in messages[0]
    assert f"dropped 2 of {len(frame)} rows" in messages[1]
    with pytest.warns(TableWarning):
        expected = tasks_from_frame(frame, **COLUMNS, drop_missing=True)
    same_tasks(open_tasks(tmp_path / "out")["north"], expected["north"])


def test_a_folder_that_is_there_is_kept_unless_it_may_go(tmp_path):
    make_frame().to_parquet(tmp_path / "all.parquet")
    make_frame(5).to_parquet(tmp_path / "few.parquet")
    out = tmp_path / "out"
    store_tasks(tmp_path / "all.parquet", out, **COLUMNS)
    with pytest.raises(ValueError, match="overwrite=True"):
        store_tasks(tmp_path / "few.parquet", out, **COLUMNS)
    with pytest.raises(ValueError, match="holds no stored tasks"):
        store_tasks(tmp_path / "few.parquet", tmp_path, **COLUMNS, overwrite=True)
    before = open_tasks(out)["south"].digest
    store_tasks(tmp_path / "few.parquet", out, **COLUMNS, overwrite=True)
    stored = open_tasks(out)
    assert sum(map(len, stored.values())) == 5
    assert stored["south"].digest not in (before, stored["north"].digest)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.parquet", "few.parquet", "out"]


def test_a_folder_that_is_not_whole_is_refused(tmp_path):
    make_frame().to_parquet(tmp_path / "all.parquet")
    out = tmp_path / "out"

    def damage(name, change, match):
        store_tasks(tmp_path / "all.parquet", out, **COLUMNS, overwrite=out.exists())
        content = (out / name).read_bytes()
        (out / name).write_bytes(change(content))
        with pytest.raises(ValueError, match=match):
            open_tasks(out)
        (out / name).write_bytes(content)

    damage("x.npy", lambda content: content[:-8], r"x.npy is damaged: it has [0-9,]+ bytes, but")
    damage("offsets.npy", lambda content: content[:-8] + b"\1" + bytes(7), "offsets.npy is damaged: its content")
    damage("y.npy", lambda content: b"junk" + content[4:], "y.npy cannot be read")
    damage("tasks.json", lambda content: content[:-9], "tasks.json cannot be read")
    newer = lambda content: json.dumps({**json.loads(content), "version": 99}).encode()  # noqa: E731
    damage("tasks.json", newer, "has format version 99; this metaprior reads 2")
    other = lambda content: json.dumps({**json.loads(content), "format": "else"}).encode()  # noqa: E731
    damage("tasks.json", other, "is not of stored tasks")
    with pytest.raises(ValueError, match=re.escape("has no tasks.json: expected a folder that metaprior.store_tasks")):
        open_tasks(tmp_path)
    with pytest.raises(ValueError, match="does not exist"):
        open_tasks(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"x": np.array([[0.0], [np.nan], [1.0]])}, "x must be finite; row 1"),
        ({"y": np.array([0.0, 1.0, np.inf])}, "y must be finite; row 2"),
        ({"y": np.zeros(2)}, "x has 3 and y has 2"),
        ({"x": np.array(["a", "b", "c"])}, "x must be numbers of shape"),
        ({"x": np.zeros((3, 1, 1))}, "x must be numbers of shape"),
        ({"offsets": [0, 2, 4]}, "end with the number of rows, 3; got 0 to 4"),
        ({"offsets": [0.0, 3.0]}, "offsets must be integers"),
        ({"offsets": [0, 2, 2, 3]}, "task 1 has rows 2 to 2"),
    ],
)
def test_arrays_of_ones_own_are_checked(changed, match):
    with pytest.raises(ValueError, match=match):
        StoredTasks.from_arrays(**{"x": np.zeros(3), "y": np.zeros(3), "offsets": [0, 1, 3], **changed})


def test_arrays_of_ones_own():
    stored = StoredTasks.from_arrays(np.arange(3, dtype=np.float32), [1, 2, 3], [0, 1, 3])
    same_tasks(stored, [Task(np.zeros((1, 1)), np.ones(1)), Task(np.array([[1.0], [2.0]]), np.array([2.0, 3.0]))])
    assert repr(stored) == "StoredTasks(2 tasks, 3 samples, 1 input column)"
    with pytest.raises(IndexError, match="there are 2 tasks; got index 2"):
        stored[2]
    assert StoredTasks.from_arrays([0.0, 1.0, 2.0], [1, 2, 3], [0, 2, 3]).digest != stored.digest


def test_folders_are_text_and_no_table_counts_twice(tmp_path):
    frame = make_frame(6).drop(columns="hospital", errors="ignore")
    for i, name in enumerate(("1", "2b")):
        (tmp_path / "in" / f"site={name}").mkdir(parents=True)
        part = frame.assign(patient=frame.patient.astype(str) + name)
        part.to_parquet(tmp_path / "in" / f"site={name}" / f"{i}.parquet")
    columns = {"task": "patient", "x": "hours", "y": "rate"}
    store_tasks(tmp_path / "in", tmp_path / "out", **columns, environment="site")
    assert set(open_tasks(tmp_path / "out")) == {"1", "2b"}
    with pytest.raises(ValueError, match="twice: its rows would count twice"):
        store_tasks([tmp_path / "in", tmp_path / "in" / "*"], tmp_path / "other", **columns, environment="site")
    with pytest.raises(ValueError, match="folder must be a path"):
        open_tasks(5)


def test_compressed_tables_are_stored_and_not_taken_twice(tmp_path):
    frame = make_frame(6)
    frame.to_csv(tmp_path / "all.csv.gz", index=False)
    store_tasks(tmp_path / "all.csv.gz", tmp_path / "out", **COLUMNS)
    same_tasks(open_tasks(tmp_path / "out")["south"], tasks_from_frame(frame, **COLUMNS)["south"])
    frame.to_csv(tmp_path / "all.csv", index=False)
    with pytest.raises(ValueError, match=r"all\.csv(\.gz)? twice: its rows would count twice"):
        store_tasks(tmp_path, tmp_path / "other", **COLUMNS)


def test_a_column_of_dates_in_one_table_and_numbers_in_the_next(tmp_path):
    frame = make_frame(6)
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.assign(hours="2026-03-01").to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(
        ValueError, match=r"'hours' must be of one kind in all tables; it is numbers in .*a\.csv and dates"
    ):
        store_tasks(tmp_path / "*.csv", tmp_path / "out", **COLUMNS)


def test_names_of_folders_are_decoded(tmp_path):
    frame = make_frame(6).drop(columns="hospital")
    for name in ("St%20Mary", "__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / "in" / f"site={name}").mkdir(parents=True)
        part = frame.assign(patient=frame.patient.astype(str) + name)
        part.to_csv(tmp_path / "in" / f"site={name}" / "part.csv", index=False)
    columns = {"task": "patient", "x": "hours", "y": "rate", "environment": "site"}
    with pytest.raises(ValueError, match=rf"{len(frame)} in site"):
        store_tasks(tmp_path / "in", tmp_path / "out", **columns)
    with pytest.warns(TableWarning, match=rf"dropped {len(frame)} of {2 * len(frame)} rows"):
        store_tasks(tmp_path / "in", tmp_path / "out", **columns, drop_missing=True)
    assert list(open_tasks(tmp_path / "out")) == ["St Mary"]
