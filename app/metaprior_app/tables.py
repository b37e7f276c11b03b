"""A table that the page has open: its columns, its first rows, and what they are probably for."""

import os
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from metaprior.likelihoods import suggestion
from metaprior.tables.columns import Columns
from metaprior.tables.guesses import guess_roles, summarize_columns
from metaprior.tables.reading import DAMAGED, CsvFormat, TableFile, column_names, read_batches, read_table
from metaprior.tasks.categories import as_text

SHOWN = 8  # rows
MAX_GUESSED = 200_000  # rows that guesses are made from
MAX_COLUMNS = 500
MAX_CELL = 40  # characters
MAX_LEVELS = 50  # values of a column that may name environments
MAX_UNPACKED = 512 * 2**20  # bytes
MAX_CELLS = 20_000_000  # rows times columns: cells take more memory than the one or two bytes they may have in a file
CHUNK = 2**20
CHANGED, TOO_LARGE = 409, 413  # HTTP: the request does not fit the state any more


class InvalidRequest(ValueError):
    """Raised for a request that the page would not send, or that no longer fits what the server has."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


def spoken(error: BaseException | Warning | str) -> str:
    """Return the message of an error or a warning. Options of the command line become names of parameters."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}."
    message = str(error) or type(error).__name__
    message = re.sub(r"--drop (missing|duplicates)", r"drop_\1", message)
    message = re.sub(r"--(?:set|csv) (\w+)", r"\1", message)
    return re.sub(r"--([a-z][a-z-]*)", lambda option: option[1].replace("-", "_"), message)


@dataclass(frozen=True)
class OpenTable:
    """A table, and what the page shows of it. `stamp` tells whether the file has changed since it was read."""

    file: TableFile
    name: str  # that the user gave it
    is_copy: bool  # an upload or an example, rather than a file of the user's
    stamp: tuple[int, int]
    shown: dict[str, Any]
    revision: int

    @property
    def has_changed(self) -> bool:
        return not self.file.path.exists() or _stamp(self.file.path) != self.stamp

    def describe(self) -> dict[str, Any]:
        facts = {"revision": self.revision, "name": self.name, "is_copy": self.is_copy}
        return {**facts, "format": self.file.format._asdict(), **self.shown}


def open_table(path: Path, name: str, is_copy: bool, how: CsvFormat, revision: int) -> OpenTable:
    file = TableFile(path, how)
    if is_copy:
        check_size(file, name)
    names = column_names(file)
    if len(set(names)) < len(names):
        repeated = next(each for each in names if names.count(each) > 1)
        raise InvalidRequest(f"{name} has two columns named {repeated!r}. Rename one.")
    if len(names) > MAX_COLUMNS:
        most = f"the page shows {MAX_COLUMNS} at most. Use `metaprior fit`."
        raise InvalidRequest(f"{name} has {len(names)} columns; {most}")
    stamp = _stamp(path)
    frame = read_table(file, Columns((), tuple(names), None))
    if not len(frame):
        raise InvalidRequest(f"{name} has a line of column names, but no rows.")
    head, texts = frame.head(MAX_GUESSED), _as_names(file, names)
    shown = {
        "n_rows": len(frame),
        "n_guessed": len(head),
        "columns": [
            {**asdict(each), "levels": _levels(texts[each.name]), "hint": _hint(head[each.name], each.kind)}
            for each in summarize_columns(head)
        ],
        "rows": _first_rows(file, frame),
        "guess": asdict(guess_roles(head, texts)),
    }
    return OpenTable(file, name, is_copy, stamp, shown, revision)


def check_size(file: TableFile, name: str) -> None:
    """Raise if a table is too large once it is unpacked, before anything reads it as a whole.

    Whatever else is wrong with the file is told when it is read.
    """
    import pyarrow as pa

    n_bytes = n_cells = 0
    with suppress(*DAMAGED, pa.ArrowException, ValueError):
        for more_bytes, more_cells in _parquet_sizes(file.path) if file.is_parquet else _csv_sizes(file):
            n_bytes, n_cells = n_bytes + more_bytes, n_cells + more_cells
            if n_bytes > MAX_UNPACKED or n_cells > MAX_CELLS:
                break
    if n_bytes > MAX_UNPACKED or n_cells > MAX_CELLS:
        limit = f"{MAX_UNPACKED / 2**20:,.0f} MB" if n_bytes > MAX_UNPACKED else f"{MAX_CELLS:,} cells (rows × columns)"
        found = f"{name} has more than {limit} when it is unpacked, which is the most that the page takes"
        raise InvalidRequest(f"{found}. Use the command line, which has no such limit.", TOO_LARGE)


def _csv_sizes(file: TableFile) -> Iterator[tuple[int, int]]:
    """Yield bytes and cells of pieces of a CSV file; separators inside quotes count as if they were outside."""
    encoding, sep = file.format.encoding, file.separator
    width = len((2 * sep).encode(encoding)) - len(sep.encode(encoding))  # without the mark that UTF-16 begins with
    mark = sep.encode(encoding)[-width:]
    with file.open() as stream:
        while part := bytes(stream.read(CHUNK)):
            yield len(part), part.count(mark) + max(part.count(b"\n"), part.count(b"\r"))


def _parquet_sizes(path: Path) -> Iterator[tuple[int, int]]:
    """Yield bytes and cells of the batches of a Parquet file; repeated texts count as often as they occur."""
    import pyarrow.compute as compute
    from pyarrow import parquet, types

    with parquet.ParquetFile(path) as stored:
        schema = stored.metadata.schema
        texts = [schema.column(i).path for i in range(len(schema)) if schema.column(i).physical_type == "BYTE_ARRAY"]
    with parquet.ParquetFile(path, read_dictionary=texts) as stored:
        for batch in stored.iter_batches(4096):
            n_bytes = batch.nbytes
            for column in batch.columns:
                while types.is_list(column.type) or types.is_large_list(column.type):
                    column = column.flatten()
                if types.is_dictionary(column.type):
                    lengths: Any = compute.binary_length(column.dictionary)  # type: ignore[attr-defined]
                    n_bytes += compute.sum(lengths.take(column.indices)).as_py() or 0  # type: ignore[attr-defined]
            yield n_bytes, batch.num_rows * batch.num_columns


def _stamp(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size


def _as_names(file: TableFile, names: list[str]) -> Any:
    """Return the first rows as a fit reads names: 007 is not 7. The whole table as text would take much memory."""
    import pandas as pd

    parts: list[Any] = []
    batches: Any = read_batches(file, file.path.parent, Columns(tuple(names), (), None))
    with closing(batches):
        for part in batches:
            parts.append(part)
            if sum(map(len, parts)) >= MAX_GUESSED:
                break
    return pd.concat(parts, ignore_index=True).head(MAX_GUESSED)


def _first_rows(file: TableFile, frame: Any) -> list[list[str]]:
    if not file.is_parquet:
        return [[cell[:MAX_CELL] for cell in cells] for _, cells in islice(file.records(), 1, SHOWN + 1)]
    head = frame.head(SHOWN)
    rows = zip(head.astype(object).to_numpy(), head.isna().to_numpy(), strict=True)
    return [["" if missing else str(cell)[:MAX_CELL] for cell, missing in zip(*row, strict=True)] for row in rows]


def _hint(series: Any, kind: str) -> str | None:
    """Return what a fit would say of a column of numbers as output, if its values suggest counts or ranks."""
    if kind != "numbers":
        return None
    y = series.dropna().to_numpy(float)
    found = suggestion(y[np.isfinite(y)])
    return None if found is None else f"{found.replace('y holds', f'{series.name} holds', 1)}, in Options."


def _levels(series: Any) -> list[str]:
    """Return the values of a column that has few, as a fit names environments."""
    try:
        values = series.dropna().unique().tolist()
    except TypeError:  # lists and the like
        return []
    return sorted(str(as_text(value)) for value in values) if len(values) <= MAX_LEVELS else []
