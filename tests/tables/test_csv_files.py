"""CSV files of other countries: separators, decimal commas, encodings, and where messages point."""

import bz2
import gzip
import lzma
import os
import re
import threading

import pandas as pd
import pyarrow
import pyarrow.csv
import pytest

from metaprior import store_tasks, tasks_from_frame
from metaprior.storage.task_folders import open_tasks
from metaprior.tables.columns import Columns
from metaprior.tables.reading import CsvFormat, Source, TableFile, as_csv_format, read_table

NAMES = {"task": "café", "x": "week", "y": "price"}
TEXT = "café;week;price\nParis;1;31,35\nParis;2,5;32\nBonn;-1;,5e1\n"


def written(path, text=TEXT, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return TableFile(path, CsvFormat(";", ",", encoding))


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16"])
@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
def test_a_file_as_a_spreadsheet_of_another_country_writes_it(tmp_path, encoding, name):
    paris, bonn = tasks_from_frame(written(tmp_path / name, encoding=encoding), **NAMES)
    assert paris.x[:, 0].tolist() == [1.0, 2.5]
    assert paris.y.tolist() == [31.35, 32.0]
    assert (bonn.x[0, 0], bonn.y[0]) == (-1.0, 5.0)


@pytest.mark.parametrize(
    ("packed", "said"),
    [
        (gzip.compress, "is compressed with gzip, and not the text of a CSV file. Name it .csv.gz."),
        (bz2.compress, "Name it .csv.bz2."),
        (lzma.compress, "Name it .csv.xz."),
        (lambda content: pyarrow.compress(content, codec="zstd", asbytes=True), "Name it .csv.zst."),
        (lambda content: b"PK\x03\x04\x14\0\0\0" + content, "as Excel files are too"),
        (lambda content: b"PAR1\x15\0\x15" + content, "is a Parquet file"),
    ],
    ids=["gzip", "bzip2", "xz", "zstd", "zip", "parquet"],
)
def test_a_file_that_is_no_text_is_told_by_how_it_begins(tmp_path, packed, said):
    path = tmp_path / "t.csv"
    path.write_bytes(packed(b"task,x,y\na,1,2\n"))
    with pytest.raises(ValueError, match=re.escape(said)):
        tasks_from_frame(path, task="task", x="x", y="y")


def test_stored_tasks_are_read_in_the_same_way(tmp_path):
    file = written(tmp_path / "t.csv", encoding="cp1252")
    store_tasks(file, tmp_path / "stored", **NAMES)
    for stored, read in zip(open_tasks(tmp_path / "stored"), tasks_from_frame(file, **NAMES), strict=True):
        assert stored.x.tolist() == read.x.tolist()
        assert stored.y.tolist() == read.y.tolist()


def test_a_point_is_no_decimal_mark_where_commas_are(tmp_path):
    """1.234 is 1234 there: reading 1.234 would be wrong by a factor of 1000."""
    file = written(tmp_path / "t.csv", TEXT.replace("31,35", "1.234"))
    for read in (lambda: tasks_from_frame(file, **NAMES), lambda: store_tasks(file, tmp_path / "s", **NAMES)):
        with pytest.raises(ValueError, match=r"column price: \"1.234\" has a point, but the decimal mark"):
            read()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"sep": ","}, r"separated by ';': read it with pandas.read_csv and sep=';'"),
        ({"decimal": "."}, r"line 3, column week: \"2,5\" is not a number. .* decimal commas: .* decimal=','"),
        ({"encoding": "ascii"}, r"is not ASCII text.* encoding='utf-8'"),
    ],
)
def test_a_wrong_guess_names_the_option_that_helps(tmp_path, how, message):
    file = written(tmp_path / "t.csv")
    with pytest.raises(ValueError, match=message):
        tasks_from_frame(TableFile(file.path, file.format._replace(**how)), **NAMES)


@pytest.mark.parametrize(
    "given", [(";;", None, None), ("a", None, None), ("\n", None, None), (None, ";", None), (None, None, "hex")]
)
def test_formats_that_do_not_exist_are_refused(given):
    with pytest.raises(ValueError, match="must be"):
        as_csv_format(*given)
    assert as_csv_format("\\t", None, None).sep == "\t"


def test_places_are_lines_of_the_file(tmp_path):
    """Cells with line breaks and blank lines count as an editor counts them; tables without lines have rows."""
    (tmp_path / "t.csv").write_text('a,b\n1,"two\nlines"\n\n2,3\n')
    source = Source.of(tmp_path / "t.csv", "frame")
    assert [source.place(row) for row in range(3)] == ["line 2", "line 5", "row 3"]
    assert Source.of({"a": [1]}, "frame").place(0) == "row 1"
    assert Source.of(tmp_path / "t.parquet", "frame").place(0) == "row 1"


@pytest.mark.parametrize("column", ["x", "y"])
@pytest.mark.parametrize(
    ("cell", "said"), [("0x15", '"0x15" is not a number'), ("0X1F", "not a number"), ("10:30", "not a number")]
)
def test_cells_are_read_as_users_write_them(tmp_path, column, cell, said):
    """pyarrow reads 0x15 in a column of integers as 21, and 10:30 as a time."""
    rows = {"task": ["a", "a", "b"], "x": ["1", "2", "3"], "y": ["4", "5", "6"]}
    rows[column][1] = cell
    pd.DataFrame(rows).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(ValueError, match=rf"t\.csv: line 3, column {column}: .*{said}"):
        tasks_from_frame(tmp_path / "t.csv", task="task", x="x", y="y")


def test_a_file_is_parsed_once(tmp_path, monkeypatch):
    """Also where the types of columns are not clear at first sight."""
    (tmp_path / "t.csv").write_text("task,x,y,z,day\n007,1,1.5,yes,2026-01-01\n7,2,2,no,2026-01-02\n")
    read, calls = pyarrow.csv.read_csv, []
    monkeypatch.setattr(pyarrow.csv, "read_csv", lambda *args, **how: (calls.append(args), read(*args, **how))[1])
    columns = Columns(("task",), ("x", "y", "day"), "z")
    frame = read_table(TableFile(tmp_path / "t.csv"), columns)
    assert len(calls) == 1
    kinds = {name: frame[name].dtype.kind for name in frame}
    assert kinds == {"task": "O", "x": "i", "y": "f", "day": "M", "z": "O"}
    assert frame["task"].tolist() == ["007", "7"]


def test_columns_of_times_stay_as_they_are_written(tmp_path):
    (tmp_path / "t.csv").write_text("task,x,y\na,1,10:30\na,2,12:00\n")
    assert tasks_from_frame(tmp_path / "t.csv", task="task", x="x", y="y")[0].y.tolist() == ["10:30", "12:00"]


@pytest.fixture
def pipe():
    """Return a function that makes a pipe of some bytes, as a shell does for `<(command)`."""
    opened = []

    def make(content):
        reader, writer = os.pipe()
        opened.append(reader)
        threading.Thread(target=lambda: (os.write(writer, content), os.close(writer))).start()
        return f"/dev/fd/{reader}"

    yield make
    for reader in opened:
        os.close(reader)


needs_descriptors = pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="has no /dev/fd")


@needs_descriptors
def test_a_pipe_is_a_table(pipe, tmp_path):
    frame = pd.DataFrame({"task": ["a", "a", "b"], "x": [1, 2, 3], "y": [4.5, 5.5, 6.5]})
    names, text = {"task": "task", "x": "x", "y": "y"}, frame.to_csv(index=False).encode()
    for content in (text, frame.to_parquet()):
        assert [task.y.tolist() for task in tasks_from_frame(pipe(content), **names)] == [[4.5, 5.5], [6.5]]
    store_tasks(pipe(text), tmp_path / "stored", **names)
    assert len(open_tasks(tmp_path / "stored")) == 2
    os.mkfifo(tmp_path / "t.tsv")
    threading.Thread(target=(tmp_path / "t.tsv").write_bytes, args=(text.replace(b",", b"\t"),)).start()
    assert len(tasks_from_frame(tmp_path / "t.tsv", **names)) == 2


@needs_descriptors
def test_mistakes_in_a_pipe_are_told_with_their_line(pipe):
    names = {"task": "task", "x": "x", "y": "y"}
    with pytest.raises(ValueError, match=r"/dev/fd/\d+: line 3, column x: \"n/a\?\" is not a number"):
        tasks_from_frame(pipe(b"task,x,y\na,1,2\na,n/a?,3\n"), **names)
    with pytest.raises(ValueError, match=r"/dev/fd/\d+ is empty.* A pipe can be read once only"):
        tasks_from_frame(pipe(b""), **names)
    with pytest.raises(ValueError, match=r"/dev/null is a device"):
        tasks_from_frame("/dev/null", **names)


def test_a_task_is_named_with_its_table_line_and_column(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n\n1,2\n")
    source = Source.of(tmp_path / "t.csv", "frame")
    assert source.task("p1", 0, "b") == f"{tmp_path / 't.csv'}: task 'p1' (from line 3), column b"
    assert Source("frame").task(7) == "frame: task 7"


def test_a_signal_that_pyarrow_notices_is_no_damaged_table(tmp_path, monkeypatch):
    """Its handler for Ctrl-C ends a read with an exception of its own."""
    path = tmp_path / "t.csv"
    path.write_text("task,x,y\n1,2,3\n")

    def cancelled(*_, **__):
        raise pyarrow.ArrowCancelled("Operation cancelled")

    monkeypatch.setattr(pyarrow.csv, "read_csv", cancelled)
    with pytest.raises(KeyboardInterrupt):
        tasks_from_frame(TableFile.of(path), x="x", y="y", task="task")
