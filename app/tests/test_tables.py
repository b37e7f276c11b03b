"""Tables that are opened on the page: what is shown of them, what is guessed, and what is refused before it is read."""

import bz2
import decimal
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import time
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from metaprior_app import tables
from page_client import PATIENT_ROLES, PATIENTS, counts_table, csv, readings_table


def columns(state):
    return {column["name"]: column for column in state["table"]["columns"]}


def test_an_empty_page(page):
    state = page.state
    assert (state["table"], state["prior"], state["fit"]) == (None, None, None)
    assert (state["revision"], state["slider"], state["slider_left"], state["has_report"]) == (0, [], 0, False)


def test_the_bundled_examples_their_guesses_and_reasons(page):
    guess = page.post("api/example", {"name": "sinusoid"}).json["table"]["guess"]
    found = (guess["task"], guess["x"], guess["y"], guess["environment"], guess["target"])
    assert found == ("task", ["x"], "y", "environment", "target")
    state = page.post("api/example", {"name": "patients"}).json
    table, guess = state["table"], state["table"]["guess"]
    assert {name: guess[name] for name in PATIENT_ROLES} == {**PATIENT_ROLES, "task": "patient"}
    assert set(guess["reasons"]) == {"task", "x", "y", "environment", "target"}
    frame = pd.read_csv(PATIENTS)
    assert (table["n_rows"], table["n_guessed"], table["is_copy"]) == (len(frame), len(frame), True)
    assert {name: each["n_distinct"] for name, each in columns(state).items()} == frame.nunique().to_dict()
    assert columns(state)["hospital"]["levels"] == ["north", "south"]
    assert table["rows"] == [line.split(",") for line in PATIENTS.read_text().splitlines()[1:9]]


def test_cells_are_shown_as_they_are_written(page):
    content = b"id,x,y\n007,1.50,yes\n007,2.50,\n008,1e3,no\n" + b"008,1,yes\n" * 20
    state = page.upload("api/table", "table.csv", content).json
    assert state["table"]["rows"][:3] == [["007", "1.50", "yes"], ["007", "2.50", ""], ["008", "1e3", "no"]]
    assert len(state["table"]["rows"]) == 8
    assert columns(state)["y"]["n_missing"] == 1


def test_separators_decimal_marks_and_encodings(page):
    content = "Fäll;zeit;wert\na;1,5;2,5\na;2,5;3,5\nb;1,0;1,0\nb;3,0;4,0\n".encode("latin-1")
    page.upload("api/table", "table.csv", content)
    state = page.post("api/format", {"sep": ";", "decimal": ",", "encoding": "latin-1"}).json
    assert columns(state)["zeit"]["kind"] == "numbers"
    assert state["table"]["format"] == {"sep": ";", "decimal": ",", "encoding": "latin-1"}
    for given in ({"sep": ";;"}, {"sep": 1}, {"sep": "\n"}, {"decimal": "x"}, {"encoding": "rot13"}):
        assert page.post("api/format", given).status == 400
        assert page.state == state


def test_a_constant_column_is_no_input_no_output_and_no_task(page):
    state = page.upload("api/table", "table.csv", csv(readings_table().assign(same=1.0, word="a"))).json
    guess = state["table"]["guess"]
    assert columns(state)["same"]["n_distinct"] == 1
    assert (guess["task"], guess["x"], guess["y"], guess["environment"]) == ("task", ["x"], "y", None)


def test_a_table_of_counts_hints_at_their_likelihood(page):
    table = counts_table(n_tasks=20)
    table["calls"] = table["calls"] ** 2 // 20
    found = columns(page.upload("api/table", "t.csv", csv(table)).json)
    assert {name for name, each in found.items() if each["hint"]} == {"calls"}
    assert found["calls"]["hint"].startswith("calls holds counts from 0 to ")
    assert "try likelihood='" in found["calls"]["hint"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.csv", b"", "empty"),
        ("names.csv", b"task,x,y\n", "no rows"),
        ("twice.csv", b"x,x,y\n1,2,3\n", "two columns named 'x'"),
        ("wide.csv", ",".join(f"c{i}" for i in range(600)).encode() + b"\n" + b"1," * 599 + b"1\n", "600 columns"),
        ("binary.csv", bytes(range(256)) * 4, "binary.csv"),
        ("broken.csv", b"a,b\n1,2\n1,2,3\n", "broken.csv"),
        ("cut.csv.gz", gzip.compress(b"task,x,y\n" + b"a,1,2\n" * 5000, mtime=0)[:60], "cut.csv.gz"),
        ("cut.parquet", b"PAR1" + bytes(50), "cut.parquet"),
        ("damaged.safetensors", b"x", "damaged.safetensors"),
    ],
)
def test_files_that_cannot_be_read_are_refused_in_words(page, name, content, said):
    answer = page.upload("api/table", name, content)
    assert answer.status == 400
    assert said in answer.error
    assert str(page.workspace.folder) not in answer.error
    assert page.state["table"] is None
    assert not list(page.workspace.folder.iterdir()), "what was refused is not kept"


PACKED = {
    "gz": lambda content: gzip.compress(content, mtime=0),
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda content: pa.compress(content, codec="zstd", asbytes=True),
    "zip": lambda content: zipped(content),
}


def zipped(content):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("table.csv", content)
    return packed.getvalue()


def as_parquet(table, **options):
    content = io.BytesIO()
    parquet.write_table(table if isinstance(table, pa.Table) else pa.Table.from_pandas(table), content, **options)
    return content.getvalue()


ODD = {
    "nullable": pd.array([1, None, 3, 4], "Int64"),
    "lists": [[1, 2], [3, 4], [], None],
    "categories": pd.Categorical(["a", "b", None, "a"]),
    "dates": pd.to_datetime(["2026-01-01", None, "2026-01-03", "2026-01-04"]),
    "booleans": pd.array([True, None, False, True], "boolean"),
    "times": pd.to_timedelta([1, 2, 3, 4], "h"),
    "decimals": [decimal.Decimal("1.50"), None, decimal.Decimal("2.25"), decimal.Decimal("3.00")],
    "structs": [{"a": 1}, {"a": 2}, None, {"a": 3}],
    "bytes": [b"a", b"\xff", None, b"c"],
}


@pytest.mark.parametrize("kind", ODD)
def test_parquet_columns_of_any_kind_are_shown_or_refused_in_words(page, kind):
    frame = pd.DataFrame({"task": list("aabb"), "x": [1.0, 2.0, 1.0, 2.0], "odd": ODD[kind], "y": [1.0, 2.0, 3.0, 4.0]})
    answer = page.upload("api/table", "table.parquet", as_parquet(frame))
    if answer.status == 400:
        assert answer.error
        return
    rows, missing = answer.json["table"]["rows"], int(frame["odd"].isna().sum())
    assert [row[0] for row in rows] == list("aabb")
    assert columns(answer.json)["odd"]["n_missing"] == sum(row[2] == "" for row in rows) == missing


def test_guesses_come_from_the_first_rows_and_say_so(page, monkeypatch):
    monkeypatch.setattr(tables, "MAX_GUESSED", 20)
    state = page.upload("api/table", "table.tsv", csv(readings_table(10, 5), sep="\t")).json
    assert (state["table"]["n_rows"], state["table"]["n_guessed"]) == (50, 20)
    assert columns(state)["task"]["n_distinct"] == 4  # of the first rows
    assert state["table"]["guess"]["task"] == "task"


@pytest.mark.slow
def test_a_million_rows_are_opened_in_seconds(page, tmp_path):
    rng, n = np.random.default_rng(0), 10**6
    names = np.repeat([f"t{i}" for i in range(n // 10)], 10)
    frame = pd.DataFrame({"task": names, "x": rng.uniform(size=n).round(3), "y": rng.normal(size=n).round(3)})
    frame.to_csv(tmp_path / "large.csv", index=False)
    started = time.monotonic()
    page.workspace.open_path(tmp_path / "large.csv")
    assert time.monotonic() - started < 10.0
    table = page.state["table"]
    assert (table["n_rows"], table["n_guessed"]) == (n, 200_000)
    assert (table["guess"]["task"], table["guess"]["x"], table["guess"]["y"]) == ("task", ["x"], "y")
    assert len(json.dumps(table)) < 20_000


# -------------------------------------------------------------------- small files that unpack to large tables

HEAD, LINE = b"task,x,y\n", b"a,1,2\n"
RUNS, LONG = np.zeros(30_000), "long text " * 100


@pytest.fixture
def small_limits(monkeypatch):
    monkeypatch.setattr(tables, "MAX_UNPACKED", 2**20)
    monkeypatch.setattr(tables, "MAX_CELLS", 60_000)


def refused(page, name, content, path="api/table"):
    before, kept = page.state, list(page.workspace.folder.iterdir())
    answer = page.upload(path, name, content)
    assert answer.status == 413
    assert name in answer.error
    assert "command line" in answer.error
    assert page.state == before
    assert list(page.workspace.folder.iterdir()) == kept
    return answer.error


@pytest.mark.parametrize("ending", PACKED)
def test_packed_tables_are_unpacked_to_a_limit(page, small_limits, ending):
    long = HEAD + b"%b,1,2\n" % (b"a" * 100) * 11_000
    assert "1 MB" in refused(page, f"t.csv.{ending}", PACKED[ending](long))
    assert "60,000 cells" in refused(page, f"t.csv.{ending}", PACKED[ending](HEAD + LINE * 20_001))
    table = page.upload("api/table", f"t.csv.{ending}", PACKED[ending](csv(readings_table()))).json["table"]
    assert (table["guess"]["task"], table["rows"][0][0]) == ("task", "task 1")


def test_an_archive_with_a_password_is_refused_in_words(page):
    content = bytearray(zipped(HEAD + LINE))
    for start, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(start) + flags] |= 1
    assert "password" in page.upload("api/table", "t.csv.zip", bytes(content)).error


def test_packed_contexts_have_the_same_limit(predicting, small_limits):
    refused(predicting(), "t.csv.gz", PACKED["gz"](b"x,y\n" + b"1,2\n" * 30_001), "api/context")


def test_cells_are_counted_as_the_file_is_said_to_be_written(page, small_limits):
    page.upload("api/table", "t.csv", HEAD + b"a,1,::::::2\n" * 10_000)
    answer = page.post("api/format", {"sep": ":"})
    assert (answer.status, "60,000 cells" in answer.error) == (413, True)
    wide = "task,x,y\n" + "a,1,2\n" * 20_001
    for content in (wide.encode("utf-16"), wide.encode("utf-16-le"), wide.replace("\n", "\r").encode()):
        refused(page, "t.csv", content)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"task": RUNS, "x": RUNS, "y": RUNS}, "60,000 cells"),  # a few hundred bytes, of runs
        ({"task": [LONG] * 2000, "x": RUNS[:2000], "y": RUNS[:2000]}, "1 MB"),  # one text, a thousand times
        ({"task": ["a", "b"], "x": [[LONG] * 2000, []], "y": [0.0, 1.0]}, "1 MB"),  # inside a list
        ({"task": ["a", "b"], "x": [[0.0] * 200_000, []], "y": [0.0, 1.0]}, "1 MB"),
        ({"task": ["a"], "x": [os.urandom(2**20).hex()], "y": [0.0]}, "1 MB"),
        ({"task": pa.array([b"a" * 1000] * 2000, pa.binary(1000)), "y": RUNS[:2000]}, "1 MB"),
    ],
    ids=["runs", "text", "texts in a list", "numbers in a list", "one cell", "bytes"],
)
def test_parquet_is_refused_for_what_it_would_be_in_memory(page, small_limits, columns, said):
    assert said in refused(page, "t.parquet", as_parquet(pa.table(columns)))
    fits = readings_table().assign(odd=[["a", "b"]] * 30, when=pd.Timestamp("2024-01-01"))
    assert page.upload("api/table", "t.parquet", as_parquet(fits)).status == 200


MEASURE = """
import resource, sys
from pathlib import Path
from metaprior_app import tables
from metaprior.tables.reading import sniff_format
import pyarrow.csv, pyarrow.parquet, pyarrow.compute, pandas
tables.MAX_UNPACKED, tables.MAX_CELLS = 2**24, 10**6
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
for name in sys.argv[1:]:
    try:
        tables.open_table(Path(name), name, True, sniff_format(Path(name)), 0)
    except tables.InvalidRequest:
        print((peak() - before) // 1024)
"""


def test_memory_stays_small_whatever_the_file_would_unpack_to(tmp_path):
    """Files of less than half a megabyte that unpack to 100 MB and more."""
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(HEAD + LINE * 17_000_000, mtime=0))
    (tmp_path / "line.csv.gz").write_bytes(gzip.compress(b"1," * 50_000_000, mtime=0))
    text = pa.DictionaryArray.from_arrays(np.zeros(10**4, np.int32), ["text" * 10_000])
    (tmp_path / "text.parquet").write_bytes(as_parquet(pa.table({"task": text}), store_schema=False))
    (tmp_path / "runs.parquet").write_bytes(as_parquet(pa.table({"x": np.zeros(2 * 10**7)})))
    assert max(path.stat().st_size for path in tmp_path.iterdir()) < 2**19
    command = [sys.executable, "-c", MEASURE, *map(str, tmp_path.iterdir())]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    megabytes = [int(line) for line in found.stdout.split()]
    assert len(megabytes) == 4, found.stdout
    assert max(megabytes) < 60
