"""Tables in files: CSV, plain or compressed, and Parquet. Only the columns that are needed are read."""

import bz2
import csv
import gzip
import io
import lzma
import os
import re
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from metaprior.tables.columns import Columns, check_known

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
PARQUET = (".parquet", ".pq")
SURROGATE = re.compile("[\udc80-\udcff]")  # how Python reads bytes that are no UTF-8
DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)


def read_table(path: str | os.PathLike, columns: Columns) -> "pd.DataFrame":
    """The given columns of a CSV file (.csv, .tsv, also .csv.gz and the like) or a Parquet file, as a data frame.

    Names of tasks and environments in CSV files stay the text that is written there (007 is not 7), and all text
    becomes categorical, so that tables of ten million rows fit in memory. A cell that is empty, NA, NaN or null is
    missing.
    """
    return _read(
        path,
        lambda file, opener, separator: to_frame(_read_csv(file, opener, separator, columns), file),
        lambda file: to_frame(_read_parquet(file, columns), file),
    )


def column_names(path: str | os.PathLike) -> list[str]:
    """The names of the columns of such a file."""
    return _read(path, _header, _parquet_names)


def _read(path: str | os.PathLike, from_csv: Callable[..., Any], from_parquet: Callable[[Path], Any]) -> Any:
    """What one of the two makes of a file of its kind."""
    file = Path(path)
    if file.is_dir():
        raise ValueError(f"{path} is a folder: expected a CSV or Parquet file.")
    if not file.exists():
        raise ValueError(f"{path} does not exist: expected a CSV or Parquet file.")
    if not file.stat().st_size:
        raise ValueError(f"{path} is empty: expected a table with a line of column names.")
    suffix = file.suffix.lower()
    opener = _openers().get(suffix)
    kind = Path(file.stem).suffix.lower() if opener else suffix
    try:
        if suffix in PARQUET:
            return from_parquet(file)
        if kind in SEPARATORS:
            return from_csv(file, opener or open, SEPARATORS[kind])
    except DAMAGED as error:
        raise ValueError(f"{path} is damaged or cannot be read: {error}.") from None
    known = ", ".join([*SEPARATORS, *PARQUET])
    raise ValueError(f"{path} must be named {known}, or a CSV file with {', '.join(_openers())} after that.")


def _read_csv(file: Path, opener: Callable[[Path, Any], IO[bytes]], separator: str, columns: Columns) -> Any:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    check_known(columns.used, _header(file, opener, separator), str(file))
    names = [*columns.task, *([] if columns.environment is None else [columns.environment])]
    options = arrow_csv.ConvertOptions(
        include_columns=columns.used, strings_can_be_null=True, column_types={name: pa.string() for name in names}
    )
    parse = arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True)
    try:
        with opener(file, "rb") as stream:
            return arrow_csv.read_csv(stream, parse_options=parse, convert_options=options)
    except pa.ArrowInvalid as error:
        if "UTF8" in str(error):
            raise _not_utf8(file) from None
        raise ValueError(_ragged(file, opener, separator) or f"{file} is no CSV table: {error}.") from None


def _header(file: Path, opener: Callable[[Path, Any], IO[bytes]], separator: str) -> list[str]:
    """The names in the first line. What is not UTF-8 below it may be in columns that are not needed."""
    with opener(file, "rb") as stream, io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="") as text:
        try:
            names = next((line for line in csv.reader(text, delimiter=separator) if line), [])
        except csv.Error as error:
            raise ValueError(f"{file} is no CSV table: {error}.") from None
    if not names:
        raise ValueError(f"{file} is empty: expected a table with a line of column names.")
    if any("\0" in name or SURROGATE.search(name) for name in names):
        raise _not_utf8(file)
    return names


def _ragged(file: Path, opener: Callable[[Path, Any], IO[bytes]], separator: str) -> str | None:
    """What to say of the first row that has more or fewer cells than there are columns."""
    with opener(file, "rb") as stream, io.TextIOWrapper(stream, "utf-8-sig", errors="replace", newline="") as text:
        rows = (line for line in csv.reader(text, delimiter=separator) if line)
        width = len(next(rows))
        try:
            for row, cells in enumerate(rows, start=1):
                if len(cells) != width:
                    return (
                        f"{file}: row {row} has {len(cells)} cell(s), and there are {width} columns: "
                        f"{separator.join(cells)[:80]!r}. Mend or quote that line; the file may also be cut short."
                    )
        except csv.Error as error:
            return f"{file} is no CSV table: {error}."
    return None


def _read_parquet(file: Path, columns: Columns) -> Any:
    import pyarrow as pa

    try:
        with _open_parquet(file) as stored:
            check_known(columns.used, stored.schema_arrow.names, str(file))
            return stored.read(columns=columns.used).select(columns.used)
    except pa.ArrowException as error:
        raise ValueError(f"{file} is damaged, or no Parquet file: {str(error)[:200]}.") from None


def _parquet_names(file: Path) -> list[str]:
    with _open_parquet(file) as stored:
        return list(stored.schema_arrow.names)


def _open_parquet(file: Path) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(file)
    except pa.ArrowException as error:
        raise ValueError(f"{file} is damaged, or no Parquet file: {str(error)[:200]}.") from None


def to_frame(table: Any, file: Path) -> "pd.DataFrame":
    """Text as categoricals: a distinct value is stored once. Bytes are text that is not UTF-8."""
    import pyarrow as pa

    for i, field in enumerate(table.schema):
        if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            raise _not_utf8(file, f" in column {field.name!r}")
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            table = table.set_column(i, field.name, table.column(i).dictionary_encode())
    return table.to_pandas(ignore_metadata=True, date_as_object=False, split_blocks=True, self_destruct=True)


def _not_utf8(file: Path, where: str = "") -> ValueError:
    return ValueError(f"{file} is not UTF-8 text{where}. Save it as 'CSV UTF-8', or read it with pandas and pass that.")


def _openers() -> dict[str, Callable[[Path, Any], IO[bytes]]]:
    return {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _open_zstd, ".zip": _open_zip}  # type: ignore[dict-item]


def _open_zstd(file: Path, mode: str) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(pa.OSFile(str(file), mode), "zstd")


def _open_zip(file: Path, mode: str) -> Any:
    archive = zipfile.ZipFile(file)
    inside = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX")]
    if len(inside) != 1:
        raise ValueError(f"{file} must hold one file; it has {len(inside)}. Unpack it and pass the table.")
    return archive.open(inside[0])
