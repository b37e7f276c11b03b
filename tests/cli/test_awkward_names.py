"""Names with anything in them: what is printed, drawn and written of tasks, environments, columns and files."""

import json
import os

import pandas as pd
import pytest
from running import call, words

from metaprior.checks import Message
from metaprior.cli.console import err
from metaprior.tables.csv_files import first_formula
from metaprior.terminal import as_unicode, visible

TITLE, RED, LEFT = "\x1b]0;owned\x07", "\x1b[31m", "\u202e"
IDS = [f"{TITLE}p0", f"{RED}p1", "$\\nope$ p2", f"p3{LEFT}", '=HYPERLINK("http://x","p4")', "@p5", "-7", "[red]p7"]
NORTH, Y = f"{RED}north$\\nope$", "ra\x1bte$\\nope$"
COLUMNS = ["--task", "id", "--x", "hours$\\nope$", "--y", Y, "--environment", "place"]


def write_table(path, ids=IDS):
    """Write readings of tasks of these names, of two environments."""
    rows = [
        {"id": name, "place": NORTH if i % 2 else "[/south]", "hours$\\nope$": float(x), Y: i % 3 + 0.1 * x * (i % 4)}
        for i, name in enumerate(ids)
        for x in range(4)
    ]
    pd.DataFrame(rows).to_csv(path, index=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a name that is not UTF-8, in it a table of such a name and a prior."""
    folder = tmp_path_factory.mktemp("names") / os.fsdecode(b"f\xff[red]")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("the file system takes names in UTF-8 only")
    write_table(folder / "table.csv")
    arguments = [*COLUMNS, "--target", NORTH, "--alpha", "0.5", "--out", folder / "prior.safetensors"]
    said = call("fit", folder / "table.csv", *arguments)
    assert_visible(said)
    assert "f\\xff[red]" in words(said)
    return folder


def assert_visible(result):
    """Assert that nothing printed is a command to a terminal, or invisible."""
    for text in (result.stdout, result.stderr):
        assert not [mark for mark in text if not (mark.isprintable() or mark == "\n")]


def test_names_are_printed_and_drawn_letter_by_letter(folder):
    prior, table = folder / "prior.safetensors", folder / "table.csv"
    said = call("predict", prior, table, table, "--out", folder / "out.csv", "--plot", folder / "out.png")
    assert_visible(said)
    assert "\\x1b]0;owned\\x07p0" in words(said)
    for arguments in (["evaluate", prior, table, "--context", 2, "--plot", folder / "scores.png"], ["info", prior]):
        assert_visible(call(*arguments))
    said = call("info", prior, "--plot", folder / "info.png", "--json")
    json.loads(said.stdout)["notes"].clear()
    assert {path.name for path in folder.glob("*.png")} >= {"out.png", "scores.png"}


def test_ids_are_written_as_they_came_and_formulas_are_told_once(folder):
    prior, table, out = folder / "prior.safetensors", folder / "table.csv", folder / "again.csv"
    said = call("predict", prior, table, table, "--out", out, "--json")
    notes = [note["message"] for note in json.loads(said.stdout)["notes"]]
    [told] = [note for note in notes if "formulas" in note]
    assert "such as '=HYPERLINK" in told
    assert "f\\xff[red]/again.csv" in told
    assert json.loads(said.stdout)["predictions"].endswith("f\\xff[red]/again.csv")
    json.dumps(json.loads(said.stdout), ensure_ascii=False).encode()  # raises for half a character
    assert list(dict.fromkeys(pd.read_csv(out, dtype={"id": str})["id"])) == IDS
    call("predict", prior, table, out, "--out", folder / "third.csv")  # its rows are queries of the same tasks
    assert (folder / "third.csv").read_bytes() == out.read_bytes()


def test_errors_show_names_that_are_not_utf_8(folder):
    missing = folder / os.fsdecode(b"no\xe9.csv")
    said = call("predict", folder / "prior.safetensors", missing, missing, code=2)
    assert "no\\xe9.csv does not exist" in words(said)
    said = call("predict", folder / "prior.safetensors", missing, missing, "--json", code=2)
    assert "no\\xe9.csv does not exist" in json.loads(said.stdout)["error"]
    json.loads(said.stdout)["error"].encode()


def test_statuses_show_markup_as_text(capsys):
    with err.status(f"reading a[/b]{RED}.csv"):
        pass
    assert "\x1b[31m" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 日本 \u00a0", "plain é 日本 \u00a0"),
        ("a\x1b[0m\x07\r\x00", "a\\x1b[0m\\x07\\r\\x00"),
        ("a\u202eb\u2066\ufeff", "a\\u202eb\\u2066\\ufeff"),
        (os.fsdecode(b"\xff\x80"), "\\xff\\x80"),
        ("\ud83d", "\\ud83d"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
    ],
)
def test_what_is_shown_of_text(text, shown):
    assert visible(text) == shown
    visible(text).encode()


def test_values_for_json_are_unicode():
    value = {"pa\udcff": ["\udce9", ("a\x1b", 1, None)], "message": Message("é")}
    assert as_unicode(value) == {"pa\\xff": ["\\xe9", ["a\x1b", 1, None]], "message": "é"}


def test_formulas_among_cells():
    frame = pd.DataFrame({"id": ["-7", "+1e3", "a=b"], "mean": [-1.0, 2.0, 3.0], "level": pd.Categorical(list("abc"))})
    assert first_formula(frame) is None
    for cell in ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", " =1"):
        for name in ("id", "level"):
            assert first_formula(frame.assign(**{name: pd.Series([cell, "a", "b"], dtype="category")})) == cell
        assert first_formula(frame.rename(columns={"id": cell})) == cell
