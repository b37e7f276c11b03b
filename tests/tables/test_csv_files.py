"""CSV files of other countries: separators, decimal commas, encodings, and where messages point."""

import pytest

from metaprior import store_tasks, tasks_from_frame
from metaprior.storage.task_folders import open_tasks
from metaprior.tables.csv_files import CsvFormat, Source, TableFile, as_csv_format

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
