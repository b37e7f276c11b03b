"""Tables from data frames, mappings and files (CSV, plain or compressed, and Parquet), whole or in batches of rows."""

import bz2
import csv
import gzip
import io
import lzma
import os
import urllib.parse
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from metaprior.tables.columns import Columns, check_known

Frame = Any  # a data frame: pandas annotates every selection from one as perhaps a series
ROWS = 2**16  # in a batch
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, csv.Error)


def _open_zstd(path: Path, mode: str) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(pa.OSFile(str(path), mode), "zstd")


def _open_zip(path: Path, mode: str) -> Any:
    archive = zipfile.ZipFile(path)
    inside = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX")]
    if len(inside) != 1:
        raise ValueError(f"{path} must hold one file; it has {len(inside)}. Unpack it and pass the table.")
    return archive.open(inside[0])


SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
PARQUET = (".parquet", ".pq")
OPENERS: dict[str, Callable[..., Any]] = {
    "": open, ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _open_zstd, ".zip": _open_zip
}  # fmt: skip
ENDINGS = (*PARQUET, *(separated + packed for separated in SEPARATORS for packed in OPENERS))


class TableFile(NamedTuple):
    """A file whose format is known by the ending of its name."""

    path: Path
    separator: str | None  # of a CSV file; None: Parquet
    open: Callable[..., Any]


def find_table(path: str | os.PathLike) -> TableFile:
    """Return an existing file that is not empty."""
    file = Path(path)
    if not file.is_file():
        what = "is a folder" if file.is_dir() else "does not exist"
        raise ValueError(f"{path} {what}: expected a CSV or Parquet file.")
    if not file.name.lower().endswith(ENDINGS):
        known, packed = ", ".join([*SEPARATORS, *PARQUET]), ", ".join(filter(None, OPENERS))
        raise ValueError(f"{path} must be named {known}, or a CSV file with {packed} after that.")
    if not file.stat().st_size:
        raise _empty(file)
    suffix = file.suffix.lower()
    packed = suffix if suffix in OPENERS else ""
    separator = SEPARATORS.get(Path(file.stem).suffix.lower() if packed else suffix)
    return TableFile(file, separator, OPENERS[packed])


def column_names(path: str | os.PathLike) -> list[str]:
    """Return the names of the columns of a CSV or Parquet file."""
    file = find_table(path)
    with _named_errors(file):
        return _column_names(file)


def as_frame(table: Any, columns: Columns, source: str) -> Frame:
    """Return the used columns of a data frame, a mapping from names to arrays, or a file."""
    import pandas as pd

    if isinstance(table, str | os.PathLike):
        return read_table(table, columns)
    if isinstance(table, pd.DataFrame):
        check_known(columns.used, list(table.columns), source, [name for name in table.index.names if name])
        return table[columns.used]
    if hasattr(table, "to_pandas"):  # Arrow or polars
        return as_frame(table.to_pandas(), columns, source)
    known = list(table) if isinstance(table, Mapping) else list(getattr(table, "columns", []))
    if not known:
        raise ValueError(
            f"{source} must be a DataFrame, a mapping from column names to arrays, or the path of a CSV or Parquet "
            f"file; got {type(table).__name__}."
        )
    check_known(columns.used, known, source)
    arrays = {name: table[name] for name in columns.used}
    shapes = {name: getattr(values, "shape", None) or (len(values),) for name, values in arrays.items()}
    if len({*shapes.values()}) > 1 or any(len(shape) > 1 for shape in shapes.values()):
        raise ValueError(f"{source} must have columns of shape (rows,) and of one length; got {shapes}.")
    return pd.DataFrame({name: pd.Series(values).reset_index(drop=True) for name, values in arrays.items()})


def read_table(path: str | os.PathLike, columns: Columns) -> Frame:
    """Read the used columns of a CSV or Parquet file into a data frame.

    In CSV files, names of tasks and environments stay text (007 is not 7), other types are inferred, and a cell that is
    empty, NA, NaN or null is missing. Text becomes categorical, so that tables of ten million rows fit in memory.
    """
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    file = find_table(path)
    with _named_errors(file):
        check_known(columns.used, _column_names(file), str(path))
        if file.separator is None:
            with parquet.ParquetFile(file.path) as stored:
                return _to_frame(stored.read(columns=columns.used), columns, file)
        with file.open(file.path, "rb") as stream:
            return _to_frame(arrow_csv.read_csv(stream, **_as_csv(file, columns.used, columns.naming)), columns, file)


def read_batches(path: Path, root: Path, columns: Columns) -> Iterator[Frame]:
    """Yield the used columns of a file in data frames of at most ROWS rows.

    All cells of CSV files are text, since a type inferred from one batch may not fit the next. Folders named like
    `hospital=south` between `root` and the file are columns.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    file = find_table(path)
    folders = dict(part.split("=", 1) for part in path.relative_to(root).parts[:-1] if "=" in part)
    inside = [name for name in columns.used if name not in folders]
    with _named_errors(file):
        names = [name for name in _column_names(file) if name not in folders]
        check_known(columns.used, [*names, *folders], str(path))
        with parquet.ParquetFile(path) if file.separator is None else file.open(path, "rb") as stored:
            parts = stored.iter_batches(ROWS, columns=inside) if file.separator is None else None
            for batch in parts or arrow_csv.open_csv(stored, **_as_csv(file, inside, inside)):
                for first in range(0, batch.num_rows, ROWS):
                    table = pa.Table.from_batches([batch.slice(first, ROWS)])
                    for name in set(columns.used) - set(inside):
                        value = None if folders[name] == NULL_FOLDER else urllib.parse.unquote(folders[name])
                        table = table.append_column(name, pa.array([value] * len(table), pa.string()))
                    yield _to_frame(table, columns, file)


@contextmanager
def _named_errors(file: TableFile) -> Iterator[None]:
    """Raise what pyarrow and the decompressors find wrong with a file as errors that name it."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowException as error:
        if file.separator is None:
            raise ValueError(f"{file.path} is damaged, or not a Parquet file: {str(error)[:200]}.") from None
        if "UTF8" in str(error):
            raise _not_utf8(file) from None
        raise ValueError(_ragged(file) or f"{file.path} is not a CSV table: {error}.") from None
    except DAMAGED as error:
        raise ValueError(f"{file.path} is damaged or cannot be read: {error}.") from None


def _column_names(file: TableFile) -> list[str]:
    from pyarrow import parquet

    if file.separator is None:
        with parquet.ParquetFile(file.path) as stored:
            return list(stored.schema_arrow.names)
    names = next(_lines(file), [])
    if not names:
        raise _empty(file.path)
    if any("\0" in name or "\ufffd" in name for name in names):
        raise _not_utf8(file)
    return names


def _lines(file: TableFile) -> Iterator[list[str]]:
    """Yield the cells of every line of a CSV file that is not blank; bytes that are not UTF-8 become U+FFFD."""
    with file.open(file.path, "rb") as stream, io.TextIOWrapper(stream, "utf-8-sig", "replace", newline="") as text:
        yield from filter(None, csv.reader(text, delimiter=file.separator or ","))


def _ragged(file: TableFile) -> str | None:
    """Describe the first row with more or fewer cells than there are columns."""
    width = None
    with suppress(csv.Error):
        for row, cells in enumerate(_lines(file)):
            width = width or len(cells)
            if len(cells) != width:
                found = f"{len(cells)} cell(s), but there are {width} columns: {','.join(cells)[:80]!r}"
                return f"{file.path}: row {row} has {found}. Fix or quote that line; the file may also be cut short."
    return None


def _as_csv(file: TableFile, columns: list[str], text: list[str]) -> dict[str, Any]:
    """Return how pyarrow is to read these columns of a CSV file, some of them as text."""
    import pyarrow as pa
    from pyarrow.csv import ConvertOptions, ParseOptions

    types = {name: pa.string() for name in text}
    return {
        "parse_options": ParseOptions(delimiter=file.separator, newlines_in_values=True),
        "convert_options": ConvertOptions(include_columns=columns, strings_can_be_null=True, column_types=types),
    }


def _to_frame(table: Any, columns: Columns, file: TableFile) -> Frame:
    """Return an Arrow table as a data frame with categorical text; a column of bytes is text that is not UTF-8."""
    import pyarrow as pa

    table = table.select(columns.used)
    for i, field in enumerate(table.schema):
        if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            raise _not_utf8(file, f" in column {field.name!r}")
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            table = table.set_column(i, field.name, table.column(i).dictionary_encode())
    return table.to_pandas(ignore_metadata=True, date_as_object=False, split_blocks=True, self_destruct=True)


def _empty(path: Path) -> ValueError:
    return ValueError(f"{path} is empty: expected a table with a line of column names.")


def _not_utf8(file: TableFile, where: str = "") -> ValueError:
    return ValueError(f"{file.path} is not UTF-8 text{where}. Save it as 'CSV UTF-8', or pass a data frame of pandas.")
