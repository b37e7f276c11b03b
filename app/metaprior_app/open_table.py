"""A table that the page has open: its columns, its first rows, and what they are probably for."""

import os
from contextlib import closing
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from metaprior_app.messages import InvalidRequest, spoken
from metaprior_app.upload_limits import check_unpacked
from metaprior.likelihoods import suggestion
from metaprior.tables.columns import Columns
from metaprior.tables.csv_files import CsvFormat, TableFile
from metaprior.tables.guesses import guess_roles, summarize_columns
from metaprior.tables.reading import column_names, read_batches, read_table
from metaprior.tasks.categories import as_text

SHOWN = 8  # rows
MAX_GUESSED = 200_000  # rows that guesses are made from
MAX_COLUMNS = 500
MAX_CELL = 40  # characters
MAX_LEVELS = 50  # values of a column that may name environments


class OpenTable(NamedTuple):
    """A table, and what the page shows of it. `stamp` tells whether the file has changed since it was read."""

    file: TableFile
    name: str  # that the user gave it
    is_copy: bool  # an upload or an example, rather than a file of the user's
    stamp: tuple[int, int]
    shown: dict[str, Any]
    revision: int = 0

    @property
    def has_changed(self) -> bool:
        """Whether the file is another one than that which was read."""
        return not self.file.path.exists() or _stamp(self.file.path) != self.stamp

    def describe(self) -> dict[str, Any]:
        """Return what the page shows."""
        return {
            "revision": self.revision,
            "name": self.name,
            "is_copy": self.is_copy,
            "format": self.file.format._asdict(),
            **self.shown,
        }


def open_table(path: Path, name: str, is_copy: bool, how: CsvFormat) -> OpenTable:
    """Read a table; raise a ValueError that says what is wrong with it."""
    file = TableFile(path, how)
    if is_copy:
        check_unpacked(file, name)
    names = column_names(file)
    repeated = next((each for i, each in enumerate(names) if each in names[:i]), None)
    if repeated is not None:
        raise InvalidRequest(f"{name} has two columns named {repeated!r}. Rename one.")
    if len(names) > MAX_COLUMNS:
        raise InvalidRequest(
            f"{name} has {len(names)} columns; the page shows {MAX_COLUMNS} at most. Use `metaprior fit`."
        )
    stamp = _stamp(path)
    frame = read_table(file, Columns((), tuple(names), None))
    if not len(frame):
        raise InvalidRequest(f"{name} has a line of column names, but no rows.")
    head = frame.head(MAX_GUESSED)
    as_names = _head_as_names(file, names)
    columns = [
        {**asdict(each), "levels": _levels(as_names[each.name]), "hint": _hint(head[each.name], each.kind)}
        for each in summarize_columns(head)
    ]
    shown = {
        "n_rows": len(frame),
        "n_guessed": len(head),
        "columns": columns,
        "rows": _first_rows(file, frame),
        "guess": asdict(guess_roles(head, as_names)),
    }
    return OpenTable(file, name, is_copy, stamp, shown)


def _stamp(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size


def _head_as_names(file: TableFile, names: list[str]) -> Any:
    """Return the first rows as a fit reads names: 007 is not 7. The whole table as text would take much memory."""
    import pandas as pd

    parts, n_rows = [], 0
    batches: Any = read_batches(file, file.path.parent, Columns(tuple(names), (), None))
    with closing(batches):
        for part in batches:
            parts, n_rows = [*parts, part], n_rows + len(part)
            if n_rows >= MAX_GUESSED:
                break
    return pd.concat(parts, ignore_index=True).head(MAX_GUESSED)


def _first_rows(file: TableFile, frame: Any) -> list[list[str]]:
    """Return the first rows as they are written: 007 is not 7."""
    if file.is_parquet:
        head = frame.head(SHOWN)
        rows = zip(head.astype(object).to_numpy(), head.isna().to_numpy(), strict=True)
        return [["" if missing else str(cell)[:MAX_CELL] for cell, missing in zip(*row, strict=True)] for row in rows]
    return [[cell[:MAX_CELL] for cell in cells] for _, cells in islice(file.records(), 1, SHOWN + 1)]


def _hint(series: Any, kind: str) -> str | None:
    """Return what a fit would say of a column of numbers as output, if its values suggest counts or ranks."""
    if kind != "numbers":
        return None
    y = series.dropna().to_numpy(float)
    found = suggestion(y[np.isfinite(y)])
    if found is None:
        return None
    return f"{spoken(ValueError(found)).replace('y holds', f'{series.name} holds', 1)}, in Options."


def _levels(series: Any) -> list[str]:
    """Return the values of a column that has few, as a fit names environments."""
    try:
        values = series.dropna().unique().tolist()
    except TypeError:  # lists and the like
        return []
    return sorted(str(as_text(value)) for value in values) if len(values) <= MAX_LEVELS else []
