"""Tables from data frames, mappings and files (CSV, plain or compressed, and Parquet), whole or in batches of rows."""

import csv
import glob
import lzma
import os
import re
import urllib.parse
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from metaprior.checks import Argument, Message
from metaprior.tables.columns import Columns, check_known
from metaprior.tables.csv_files import COMPRESSED, ENDINGS, PARQUET, SEPARATORS, TableFile
from metaprior.terminal import leave_to_signal

Frame = Any  # a data frame: pandas annotates every selection from one as perhaps a series
DAMAGED = (zlib.error, EOFError, OSError, lzma.LZMAError, zipfile.BadZipFile, csv.Error)
DAMAGED += (RuntimeError,)  # of zip archives with a password
ROWS = 2**16  # in a batch
DECIMAL_COMMA = re.compile(r"[+-]?\d*,?\d+([eE][+-]?\d+)?")
POINT = re.compile(r"[+-]?[\d.,]*\d\.\d[\d.,]*")
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


def as_frame(table: Any, columns: Columns, source: str) -> Frame:
    """Return the used columns of a data frame, a mapping from names to arrays, or a file."""
    import pandas as pd

    if isinstance(table, str | os.PathLike):
        return read_table(TableFile.of(table), columns)
    if isinstance(table, pd.DataFrame):
        check_known(columns.read, list(table.columns), source, [name for name in table.index.names if name])
        return table[columns.read]
    if hasattr(table, "to_pandas"):  # Arrow or polars
        return as_frame(table.to_pandas(), columns, source)
    known = list(table) if isinstance(table, Mapping) else list(getattr(table, "columns", []))
    if not known:
        raise ValueError(
            f"{source} must be a DataFrame, a mapping from column names to arrays, or the path of a CSV or Parquet "
            f"file; got {type(table).__name__}."
        )
    check_known(columns.read, known, source)
    arrays = {name: table[name] for name in columns.read}
    shapes = {name: getattr(values, "shape", None) or (len(values),) for name, values in arrays.items()}
    if len({*shapes.values()}) > 1 or any(len(shape) > 1 for shape in shapes.values()):
        raise ValueError(f"{source} must have columns of shape (rows,) and of one length; got {shapes}.")
    return pd.DataFrame({name: pd.Series(values).reset_index(drop=True) for name, values in arrays.items()})


def read_table(file: TableFile, columns: Columns) -> Frame:
    """Read the used columns of a CSV or Parquet file into a data frame.

    In CSV files, names of tasks and environments stay text (007 is not 7), other types are inferred, and a cell that is
    empty, NA, NaN or null is missing. Text becomes categorical, so that tables of ten million rows fit in memory.
    """
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    check_known(columns.read, column_names(file), str(file))
    with _named_errors(file):
        if file.is_parquet:
            with parquet.ParquetFile(file.seekable) as stored:
                return _to_frame(stored.read(columns=columns.read), columns, file)
        with file.open() as stream:
            read = arrow_csv.read_csv(stream, **file.arrow_options(columns.read, [*columns.naming, *columns.aside]))
        return _to_frame(_as_written(read, columns, file), columns, file)


def _as_written(table: Any, columns: Columns, file: TableFile) -> Any:
    """Return a table with text for what pyarrow takes for numbers or times and users may not: 0x15, 10:30."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    compute: Any = import_module("pyarrow.compute")  # its functions are made when it is imported
    types = {field.name: field.type for field in table.schema if field.name not in (*columns.naming, *columns.aside)}
    doubtful = [name for name, kind in types.items() if pa.types.is_integer(kind) or pa.types.is_time(kind)]
    if not doubtful:
        return table
    with file.open() as stream:
        texts = arrow_csv.read_csv(stream, **file.arrow_options(doubtful, doubtful))
    for name in doubtful:
        text = texts.column(name)
        if pa.types.is_time(types[name]) or compute.any(compute.match_substring(text, "x", ignore_case=True)).as_py():
            table = table.set_column(table.schema.get_field_index(name), name, text)
    return table


def read_batches(file: TableFile, root: Path, columns: Columns) -> Iterator[Frame]:
    """Yield the used columns of a file in data frames of at most ROWS rows.

    All cells of CSV files are text, since a type inferred from one batch may not fit the next. Folders named like
    `hospital=south` between `root` and the file are columns.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    folders = dict(part.split("=", 1) for part in file.path.relative_to(root).parts[:-1] if "=" in part)
    inside = [name for name in columns.used if name not in folders]
    check_known(columns.used, [*(name for name in column_names(file) if name not in folders), *folders], str(file))
    with _named_errors(file), parquet.ParquetFile(file.seekable) if file.is_parquet else file.open() as stored:
        parts = stored.iter_batches(ROWS, columns=inside) if file.is_parquet else None
        for batch in parts or arrow_csv.open_csv(stored, **file.arrow_options(inside, inside)):
            for first in range(0, batch.num_rows, ROWS):
                table = pa.Table.from_batches([batch.slice(first, ROWS)])
                for name in set(columns.used) - set(inside):
                    value = None if folders[name] == NULL_FOLDER else urllib.parse.unquote(folders[name])
                    table = table.append_column(name, pa.array([value] * len(table), pa.string()))
                yield _to_frame(table, columns, file)


def table_files(tables: Any) -> list[tuple[TableFile, Path]]:
    """Return the files of paths, folders and patterns, each with the folder below which folders are columns."""
    given = [tables] if isinstance(tables, str | os.PathLike) else tables
    if not isinstance(given, Sequence) or not all(isinstance(each, str | os.PathLike) for each in given) or not given:
        raise ValueError(f"tables must be a path, a pattern, or a sequence of them; got {repr(tables)[:100]}.")
    files: dict[Path, tuple[TableFile, Path]] = {}
    for table in map(TableFile.of, given):
        each = table.path
        exists = table.is_pipe or each.exists()
        paths = [each] if exists else [Path(path) for path in sorted(glob.glob(str(each), recursive=True))]
        found = [file for path in paths for file in (_inside(path) if path.is_dir() else [(path, path.parent)])]
        if not found:
            what = "has no Parquet or CSV file in it" if paths else "does not exist"
            raise ValueError(f"{each} {what}: expected a Parquet or CSV file, a folder of them, or a pattern.")
        for path, root in found:
            whole = path.resolve().with_suffix("") if path.suffix.lower() in COMPRESSED else path.resolve()
            if whole in files:  # t.csv and t.csv.gz are one table too
                raise ValueError(f"tables has {path} twice: its rows would count twice. Leave one out.")
            files[whole] = (table if path == each else replace(table, path=path), root)
            check_file(files[whole][0])
    return list(files.values())


def _inside(folder: Path) -> list[tuple[Path, Path]]:
    """Return the tables in a folder and below; names that begin with a dot or an underscore belong to other tools."""
    hidden = lambda path: any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)  # noqa: E731
    files = sorted(path for path in folder.rglob("*") if path.name.lower().endswith(ENDINGS) and path.is_file())
    return [(path, folder) for path in files if not hidden(path)]


def names_of(table: Any) -> list[Any]:
    """Return the names of the columns of a file, a data frame, or a mapping."""
    if isinstance(table, TableFile):
        return column_names(table)
    return list(getattr(table, "column_names", getattr(table, "columns", table)))


def column_names(file: TableFile) -> list[str]:
    """Return the names of the columns of a CSV or Parquet file."""
    from pyarrow import parquet

    check_file(file)
    with _named_errors(file):
        if file.is_parquet:
            with parquet.ParquetFile(file.seekable) as stored:
                return list(stored.schema_arrow.names)
        _, names = next(file.records(), (0, []))
    if not names:
        raise _empty(file)
    if any("\0" in name or "\ufffd" in name for name in names):
        raise file.wrong_encoding(names)
    return names


def check_file(file: TableFile) -> None:
    """Raise unless a file exists, has content, and is named like a table, or is a pipe with content."""
    if not (file.is_pipe or file.path.is_file()):
        found = "is a folder" if file.path.is_dir() else "is a device" if file.path.exists() else "does not exist"
        raise ValueError(f"{file} {found}: expected a CSV or Parquet file.")
    if not file.name.endswith(ENDINGS):
        known = ", ".join([*SEPARATORS, *PARQUET])
        raise ValueError(f"{file} must be named {known}, or a CSV file with {', '.join(COMPRESSED)} after that.")
    if not (len(file.content) if file.is_pipe else file.path.stat().st_size):
        raise _empty(file)


def _empty(file: TableFile) -> ValueError:
    once = " A pipe can be read once only, as one table." if file.is_pipe else ""
    return ValueError(f"{file} is empty: expected a table with a line of column names.{once}")


def _to_frame(table: Any, columns: Columns, file: TableFile) -> Frame:
    """Return an Arrow table as a data frame with categorical text; a column of bytes is text in another encoding."""
    import pyarrow as pa

    table = table.select(columns.read)
    texts = []
    for i, field in enumerate(table.schema):
        if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            raise file.wrong_encoding(where=f" in column {field.name!r}")
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            table = table.set_column(i, field.name, table.column(i).dictionary_encode())
            texts.append(field.name)
    declared = _declared_categories(table.schema)  # the next line destroys the table
    frame = table.to_pandas(ignore_metadata=True, date_as_object=False, split_blocks=True, self_destruct=True)
    for name in set(declared) - set(texts):
        frame[name] = frame[name].astype("category")
    if file.format.decimal == "," and not file.is_parquet:
        for name in set(texts) - {*columns.naming, *columns.aside}:
            frame[name] = frame[name].cat.rename_categories(lambda cell, name=name: _with_point(cell, name, file))
    return frame


def _declared_categories(schema: Any) -> list[str]:
    """Return the columns that were of pandas' type category: Parquet keeps them as what their levels are."""
    described = (schema.pandas_metadata or {}).get("columns", [])
    wanted = {column.get("name") for column in described if column.get("pandas_type") == "categorical"}
    return [name for name in schema.names if name in wanted]


def _with_point(cell: str, column: str, file: TableFile) -> str:
    """Return a number with a decimal comma as Python writes it; 1.234 would be another number by a factor of 1000."""
    if POINT.fullmatch(cell.strip()):
        found = f'{file}, column {column}: "{cell.strip()}" has a point, but the decimal mark is said to be a comma ('
        raise ValueError(Message(found, Argument("decimal", ","), "). Write numbers without a mark for thousands."))
    return cell.replace(",", ".") if DECIMAL_COMMA.fullmatch(cell.strip()) else cell


@contextmanager
def _named_errors(file: TableFile) -> Iterator[None]:
    """Raise what pyarrow and the decompressors find wrong with a file as errors that name it."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowCancelled:
        leave_to_signal()
    except pa.ArrowException as error:
        if file.is_parquet:
            raise ValueError(f"{file} is damaged, or not a Parquet file: {_reason(error)}.") from None
        if "UTF8" in str(error):
            raise file.wrong_encoding() from None
        raise ValueError(file.ragged() or f"{file} is not a CSV table: {_reason(error)}.") from None
    except UnicodeError:
        raise file.wrong_encoding() from None
    except DAMAGED as error:
        raise ValueError(f"{file} is damaged or cannot be read: {_reason(error)}.") from None


def _reason(error: Exception) -> str:
    """Return the words of another library as the end of a sentence of ours."""
    return " ".join(str(error).split())[:200].rstrip(" .") or type(error).__name__
