"""Small uploads that unpack to large tables are refused in one sentence, before they fill the memory."""

import bz2
import gzip
import io
import lzma
import os
import subprocess
import sys
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from metaprior_app import tables
from page_client import readings_table

LINE = b"a,1,2\n"
HEAD = b"task,x,y\n"


def zipped(content):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("table.csv", content)
    return packed.getvalue()


PACKED = {
    "gz": lambda content: gzip.compress(content, mtime=0),
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda content: pa.compress(content, codec="zstd", asbytes=True),
    "zip": zipped,
}


def as_parquet(table, **options):
    content = io.BytesIO()
    parquet.write_table(table, content, **options)
    return content.getvalue()


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
    fits = readings_table().to_csv(index=False).encode()
    assert page.upload("api/table", f"t.csv.{ending}", PACKED[ending](fits)).status == 200


def test_an_archive_with_a_password_is_refused_in_words(page):
    content = bytearray(zipped(HEAD + LINE))
    for start, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(start) + flags] |= 1
    answer = page.upload("api/table", "t.csv.zip", bytes(content))
    assert answer.status == 400
    assert "password" in answer.error


def test_packed_contexts_have_the_same_limit(predicting, small_limits):
    refused(predicting(), "t.csv.gz", PACKED["gz"](b"x,y\n" + b"1,2\n" * 30_001), "api/context")


def test_cells_are_counted_as_the_file_is_said_to_be_written(page, small_limits):
    content = HEAD + b"a,1,::::::2\n" * 10_000
    assert page.upload("api/table", "t.csv", content).status == 200
    answer = page.post("api/format", {"sep": ":"})
    assert answer.status == 413
    assert "60,000 cells" in answer.error
    wide = "task,x,y\n" + "a,1,2\n" * 20_001
    for encoding in ("utf-16", "utf-16-le"):
        refused(page, "t.csv", wide.encode(encoding))
    refused(page, "t.csv", wide.replace("\n", "\r").encode())


RUNS = np.zeros(30_000)
LONG = "long text " * 100


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
    content = as_parquet(pa.table(columns))
    assert said in refused(page, "t.parquet", content)


def test_parquet_within_the_limits(page, small_limits):
    table = pa.Table.from_pandas(readings_table().assign(odd=[["a", "b"]] * 30, when=pd.Timestamp("2024-01-01")))
    assert page.upload("api/table", "t.parquet", as_parquet(table)).status == 200


MEASURE = """
import resource, sys
from pathlib import Path
from metaprior_app import tables
from metaprior_app.messages import InvalidRequest
from metaprior.tables.sniffing import sniff_format
import pyarrow.csv, pyarrow.parquet, pyarrow.compute, pandas
tables.MAX_UNPACKED, tables.MAX_CELLS = 2**24, 10**6
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
for name in sys.argv[1:]:
    try:
        tables.open_table(Path(name), name, True, sniff_format(Path(name)), 0)
    except InvalidRequest:
        print((peak() - before) // 1024)
"""


def test_memory_stays_small_whatever_the_file_would_unpack_to(tmp_path):
    """Files of less than half a megabyte that unpack to 100 MB and more."""
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(HEAD + LINE * 17_000_000, mtime=0))
    (tmp_path / "line.csv.gz").write_bytes(gzip.compress(b"1," * 50_000_000, mtime=0))
    text = pa.DictionaryArray.from_arrays(np.zeros(10**4, np.int32), ["text" * 10_000])
    parquet.write_table(pa.table({"task": text}), tmp_path / "text.parquet", store_schema=False)
    parquet.write_table(pa.table({"x": np.zeros(2 * 10**7)}), tmp_path / "runs.parquet")
    assert max(path.stat().st_size for path in tmp_path.iterdir()) < 2**19
    command = [sys.executable, "-c", MEASURE, *map(str, tmp_path.iterdir())]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    megabytes = [int(line) for line in found.stdout.split()]
    assert len(megabytes) == 4, found.stdout
    assert max(megabytes) < 60
