"""Tables from data frames, mappings and files (CSV, plain or compressed, and Parquet), whole or in batches of rows."""

import csv
import glob
import io
import lzma
import os
import urllib.parse
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from metaprior.tables.columns import Columns, check_known

Frame = Any  # a data frame: pandas annotates every selection from one as perhaps a series
SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
PARQUET = (".parquet", ".pq")
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
ENDINGS = (*PARQUET, *(f"{ending}{packed}" for ending in SEPARATORS for packed in ("", *COMPRESSED)))
DAMAGED = (zlib.error, EOFError, OSError, lzma.LZMAError, zipfile.BadZipFile, csv.Error)
ROWS = 2**16  # in a batch
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


def as_frame(table: Any, columns: Columns, source: str) -> Frame:
    """Return the used columns of a data frame, a mapping from names to arrays, or a file."""
    import pandas as pd

    if isinstance(table, str | os.PathLike):
        return read_table(Path(table), columns)
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


def read_table(path: Path, columns: Columns) -> Frame:
    """Read the used columns of a CSV or Parquet file into a data frame.

    In CSV files, names of tasks and environments stay text (007 is not 7), other types are inferred, and a cell that is
    empty, NA, NaN or null is missing. Text becomes categorical, so that tables of ten million rows fit in memory.
    """
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    check_known(columns.used, column_names(path), str(path))
    with _named_errors(path):
        if _is_parquet(path):
            with parquet.ParquetFile(path) as stored:
                return _to_frame(stored.read(columns=columns.used), columns, path)
        with _open(path) as stream:
            return _to_frame(arrow_csv.read_csv(stream, **_as_csv(path, columns.used, columns.naming)), columns, path)


def read_batches(path: Path, root: Path, columns: Columns) -> Iterator[Frame]:
    """Yield the used columns of a file in data frames of at most ROWS rows.

    All cells of CSV files are text, since a type inferred from one batch may not fit the next. Folders named like
    `hospital=south` between `root` and the file are columns.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    folders = dict(part.split("=", 1) for part in path.relative_to(root).parts[:-1] if "=" in part)
    inside = [name for name in columns.used if name not in folders]
    check_known(columns.used, [*(name for name in column_names(path) if name not in folders), *folders], str(path))
    with _named_errors(path), parquet.ParquetFile(path) if _is_parquet(path) else _open(path) as stored:
        parts = stored.iter_batches(ROWS, columns=inside) if _is_parquet(path) else None
        for batch in parts or arrow_csv.open_csv(stored, **_as_csv(path, inside, inside)):
            for first in range(0, batch.num_rows, ROWS):
                table = pa.Table.from_batches([batch.slice(first, ROWS)])
                for name in set(columns.used) - set(inside):
                    value = None if folders[name] == NULL_FOLDER else urllib.parse.unquote(folders[name])
                    table = table.append_column(name, pa.array([value] * len(table), pa.string()))
                yield _to_frame(table, columns, path)


def table_files(tables: Any) -> list[tuple[Path, Path]]:
    """Return the files of paths, folders and patterns, each with the folder below which folders are columns."""
    given = [tables] if isinstance(tables, str | os.PathLike) else tables
    if not isinstance(given, Sequence) or not all(isinstance(each, str | os.PathLike) for each in given) or not given:
        raise ValueError(f"tables must be a path, a pattern, or a sequence of them; got {repr(tables)[:100]}.")
    files: dict[Path, tuple[Path, Path]] = {}
    for each in map(Path, given):
        paths = [each] if each.exists() else [Path(path) for path in sorted(glob.glob(str(each), recursive=True))]
        found = [file for path in paths for file in (_inside(path) if path.is_dir() else [(path, path.parent)])]
        if not found:
            what = "has no Parquet or CSV file in it" if paths else "does not exist"
            raise ValueError(f"{each} {what}: expected a Parquet or CSV file, a folder of them, or a pattern.")
        for path, root in found:
            whole = path.resolve().with_suffix("") if path.suffix.lower() in COMPRESSED else path.resolve()
            if whole in files:  # t.csv and t.csv.gz are one table too
                raise ValueError(f"tables has {path} twice: its rows would count twice. Leave one out.")
            check_file(path)
            files[whole] = (path, root)
    return list(files.values())


def _inside(folder: Path) -> list[tuple[Path, Path]]:
    """Return the tables in a folder and below; names that begin with a dot or an underscore belong to other tools."""
    hidden = lambda path: any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)  # noqa: E731
    files = sorted(path for path in folder.rglob("*") if path.name.lower().endswith(ENDINGS) and path.is_file())
    return [(path, folder) for path in files if not hidden(path)]


def column_names(path: Path) -> list[str]:
    """Return the names of the columns of a CSV or Parquet file."""
    from pyarrow import parquet

    check_file(path)
    with _named_errors(path):
        if _is_parquet(path):
            with parquet.ParquetFile(path) as stored:
                return list(stored.schema_arrow.names)
        names = next(_lines(path), [])
    if not names:
        raise ValueError(f"{path} is empty: expected a table with a line of column names.")
    if any("\0" in name or "\ufffd" in name for name in names):
        raise _not_utf8(path)
    return names


def check_file(path: Path) -> None:
    """Raise unless a file exists, has content, and is named like a table."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ValueError(f"{path} {what}: expected a CSV or Parquet file.")
    if not path.name.lower().endswith(ENDINGS):
        known = ", ".join([*SEPARATORS, *PARQUET])
        raise ValueError(f"{path} must be named {known}, or a CSV file with {', '.join(COMPRESSED)} after that.")
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty: expected a table with a line of column names.")


def _is_parquet(path: Path) -> bool:
    return path.name.lower().endswith(PARQUET)


def _open(path: Path) -> Any:
    """Open a CSV file that may be compressed."""
    import pyarrow as pa

    if path.suffix.lower() == ".xz":
        return lzma.open(path)
    if path.suffix.lower() != ".zip":
        return pa.input_stream(str(path), compression="detect")
    archive = zipfile.ZipFile(path)
    inside = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX")]
    if len(inside) != 1:
        raise ValueError(f"{path} must hold one file; it has {len(inside)}. Unpack it and pass the table.")
    return archive.open(inside[0])


def _separator(path: Path) -> str:
    return next(mark for ending, mark in SEPARATORS.items() if ending in map(str.lower, path.suffixes[-2:]))


def _as_csv(path: Path, columns: list[str], text: list[str]) -> dict[str, Any]:
    """Return how pyarrow is to read these columns of a CSV file, some of them as text."""
    import pyarrow as pa
    from pyarrow.csv import ConvertOptions, ParseOptions

    types = {name: pa.string() for name in text}
    return {
        "parse_options": ParseOptions(delimiter=_separator(path), newlines_in_values=True),
        "convert_options": ConvertOptions(include_columns=columns, strings_can_be_null=True, column_types=types),
    }


def _to_frame(table: Any, columns: Columns, path: Path) -> Frame:
    """Return an Arrow table as a data frame with categorical text; a column of bytes is text that is not UTF-8."""
    import pyarrow as pa

    table = table.select(columns.used)
    for i, field in enumerate(table.schema):
        if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            raise _not_utf8(path, f" in column {field.name!r}")
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            table = table.set_column(i, field.name, table.column(i).dictionary_encode())
    return table.to_pandas(ignore_metadata=True, date_as_object=False, split_blocks=True, self_destruct=True)


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    """Raise what pyarrow and the decompressors find wrong with a file as errors that name it."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowException as error:
        if _is_parquet(path):
            raise ValueError(f"{path} is damaged, or not a Parquet file: {str(error)[:200]}.") from None
        if "UTF8" in str(error):
            raise _not_utf8(path) from None
        raise ValueError(_ragged(path) or f"{path} is not a CSV table: {error}.") from None
    except DAMAGED as error:
        raise ValueError(f"{path} is damaged or cannot be read: {error}.") from None


def _lines(path: Path) -> Iterator[list[str]]:
    """Yield the cells of every line of a CSV file that is not blank; bytes that are not UTF-8 become U+FFFD."""
    with _open(path) as stream, io.TextIOWrapper(stream, "utf-8-sig", "replace", newline="") as text:
        yield from filter(None, csv.reader(text, delimiter=_separator(path)))


def _ragged(path: Path) -> str | None:
    """Describe the first row with more or fewer cells than there are columns."""
    width = None
    with suppress(csv.Error):
        for row, cells in enumerate(_lines(path)):
            width = width or len(cells)
            if len(cells) != width:
                found = f"{len(cells)} cell(s), but there are {width} columns: {','.join(cells)[:80]!r}"
                return f"{path}: row {row} has {found}. Fix or quote that line; the file may also be cut short."
    return None


def _not_utf8(path: Path, where: str = "") -> ValueError:
    return ValueError(f"{path} is not UTF-8 text{where}. Save it as 'CSV UTF-8', or pass a data frame of pandas.")
