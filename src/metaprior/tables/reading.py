"""Tables as users pass them: data frames of any library, mappings, and CSV or Parquet files, whole or in batches."""

import csv
import glob
import io
import itertools
import lzma
import os
import re
import urllib.parse
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from metaprior.checks import Argument, Message, counted
from metaprior.tables.columns import Columns, check_known, read_with
from metaprior.terminal import as_unicode, leave_to_signal

if TYPE_CHECKING:
    import narwhals as nw

Frame = Any  # a data frame: pandas annotates every selection from one as perhaps a series
SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
PARQUET = (".parquet", ".pq")
ENDINGS = (*PARQUET, *(f"{ending}{packed}" for ending in SEPARATORS for packed in ("", *COMPRESSED)))
FORMULA = re.compile(r"\s*[=+@-]|[\t\r]")  # how a cell begins that a spreadsheet runs
NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*|\s*[+-]?(inf(inity)?|nan)\s*", re.IGNORECASE)
DECIMAL_COMMA = re.compile(r"[+-]?\d*,?\d+([eE][+-]?\d+)?")
POINT = re.compile(r"[+-]?[\d.,]*\d\.\d[\d.,]*")
STANDARD_INPUT = "-"
DESCRIPTORS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")  # what shells pass for `< table.csv` and `<(command)`
UTF_8 = "utf-8"
# How files begin that are not text, and what they are.
BEGINNINGS = {
    b"\x1f\x8b": ("compressed with gzip", ".csv.gz"),
    b"BZh": ("compressed with bzip2", ".csv.bz2"),
    b"\xfd7zXZ\0": ("compressed with xz", ".csv.xz"),
    b"\x28\xb5\x2f\xfd": ("compressed with zstd", ".csv.zst"),
    b"PK\x03\x04": ("a zip archive, as Excel files are too", ".csv.zip if it holds a CSV file"),
    b"PAR1": ("a Parquet file", ".parquet"),
}
SPELLED = {"\\t": "\t", "tab": "\t"}  # as typed in a shell
DAMAGED = (zlib.error, EOFError, OSError, lzma.LZMAError, zipfile.BadZipFile, csv.Error)
DAMAGED += (RuntimeError,)  # of zip archives with a password
ROWS = 2**16  # in a batch
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
START, LINES = 2**16, 50  # bytes and lines of a file that its format is guessed from


class CsvFormat(NamedTuple):
    """How a CSV file is written."""

    sep: str | None = None  # None: a comma, or a tab in files named .tsv and .tab
    decimal: str = "."
    encoding: str = UTF_8


def as_csv_format(sep: str | None = None, decimal: str | None = None, encoding: str | None = None) -> CsvFormat:
    """Check how a CSV file is said to be written."""
    sep = None if sep is None else SPELLED.get(sep, sep)
    if sep is not None and (len(sep) != 1 or sep.isalnum() or sep in '"\r\n'):
        raise ValueError(Message(Argument("sep"), f" must be one character, such as ; or | (or tab); got {sep!r}."))
    if decimal not in (None, ".", ","):
        raise ValueError(Message(Argument("decimal"), f" must be . or , (the decimal mark); got {decimal!r}."))
    try:
        "".encode(encoding or UTF_8)
    except (LookupError, ValueError):
        known = "such as utf-8, latin-1, cp1252 or utf-16"
        raise ValueError(Message(Argument("encoding"), f" must be an encoding, {known}; got {encoding!r}.")) from None
    return CsvFormat(sep, decimal or ".", encoding or UTF_8)


@dataclass(frozen=True)
class TableFile:
    """The path of a CSV or Parquet file, and how it is written if it is CSV; or a pipe, read once and kept."""

    path: Path
    format: CsvFormat = CsvFormat()

    @classmethod
    def of(cls, path: Any) -> "TableFile":
        """Return a path as a table file; a table file stays what it is."""
        return path if isinstance(path, TableFile) else cls(Path(path))

    @property
    def separator(self) -> str:
        """The character between cells."""
        endings = map(str.lower, Path(self.name).suffixes[-2:])
        return self.format.sep or next(SEPARATORS[ending] for ending in endings if ending in SEPARATORS)

    @property
    def name(self) -> str:
        """The name of the file in lower case; pipes without one are CSV or, as their first bytes tell, Parquet."""
        name = self.path.name.lower()
        if not self.is_pipe or name.endswith(ENDINGS):
            return name
        return "pipe.parquet" if self.content.startswith(b"PAR1") else "pipe.csv"

    @property
    def is_parquet(self) -> bool:
        """Whether the table is a Parquet file."""
        return self.name.endswith(PARQUET)

    @property
    def is_pipe(self) -> bool:
        """Whether the table can be read once only: standard input, `<(command)`, a named pipe."""
        return str(self.path) == STANDARD_INPUT or str(self.path).startswith(DESCRIPTORS) or self.path.is_fifo()

    @cached_property
    def content(self) -> bytes:
        """All that comes through a pipe."""
        if str(self.path) != STANDARD_INPUT:
            return self.path.read_bytes()
        with open(0, "rb", closefd=False) as stream:
            return stream.read()

    @property
    def seekable(self) -> Any:
        """The path, or a stream of what came through a pipe or from a file whose name is not UTF-8, as Arrow needs."""
        if self.is_pipe:
            return io.BytesIO(self.content)
        return self.path if as_unicode(str(self.path)) == str(self.path) else io.BytesIO(self.path.read_bytes())

    def check(self) -> None:
        """Raise unless the file exists, has content, and is named like a table, or is a pipe with content."""
        if not (self.is_pipe or self.path.is_file()):
            found = "is a folder" if self.path.is_dir() else "is a device" if self.path.exists() else "does not exist"
            raise ValueError(f"{self} {found}: expected a CSV or Parquet file.")
        if not self.name.endswith(ENDINGS):
            known = ", ".join([*SEPARATORS, *PARQUET])
            raise ValueError(f"{self} must be named {known}, or a CSV file with {', '.join(COMPRESSED)} after that.")
        if not (len(self.content) if self.is_pipe else self.path.stat().st_size):
            raise self.empty()

    def empty(self) -> ValueError:
        """Return the error about a file without a table."""
        once = " A pipe can be read once only, as one table." if self.is_pipe else ""
        return ValueError(f"{self} is empty: expected a table with a line of column names.{once}")

    def open(self) -> Any:
        """Open the file as bytes, uncompressed."""
        import pyarrow as pa

        packed = Path(self.name).suffix
        if packed == ".xz":
            return lzma.open(self.seekable)
        if packed != ".zip":
            kind = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}.get(packed)
            return pa.input_stream(self.seekable, compression=kind)
        archive = zipfile.ZipFile(self.seekable)
        inside = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX")]
        if len(inside) != 1:
            raise ValueError(f"{self} must hold one file; it has {len(inside)}. Unpack it and pass the table.")
        return archive.open(inside[0])

    def records(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the line and the cells of every record that is not blank; bytes of another encoding become U+FFFD."""
        encoding = "utf-8-sig" if self.format.encoding == UTF_8 else self.format.encoding
        with self.open() as stream, io.TextIOWrapper(stream, encoding, "replace", newline="") as text:
            lines, first = csv.reader(text, delimiter=self.separator), 1
            for cells in lines:
                if cells:
                    yield first, cells
                first = lines.line_num + 1

    def text_options(self, columns: list[str]) -> dict[str, Any]:
        """Return how pyarrow is to read these columns of a CSV file: as text."""
        import pyarrow as pa
        from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions

        types: Any = dict.fromkeys(columns, pa.string())
        return {
            "read_options": ReadOptions(encoding=self.format.encoding),
            "parse_options": ParseOptions(delimiter=self.separator, newlines_in_values=True),
            "convert_options": ConvertOptions(strings_can_be_null=True, include_columns=columns, column_types=types),
        }

    def ragged(self) -> str | None:
        """Describe the first record with more or fewer cells than there are columns."""
        width = None
        with suppress(csv.Error):
            for line, cells in self.records():
                width = width or len(cells)
                if len(cells) != width:
                    found = f"{counted(len(cells), 'cell')}, but there are {width} columns: {','.join(cells)[:80]!r}"
                    return f"{self}: line {line} has {found}. Fix or quote that line; the file may also be cut short."
        return None

    def wrong_encoding(self, names: Sequence[str] = (), where: str = "") -> ValueError:
        """Return the error about text that is not in the encoding of the file, such as these names of columns."""
        with self.open() as stream:
            start = bytes(stream.read(1000))
        for beginning, (what, ending) in BEGINNINGS.items():
            if start.startswith(beginning):
                advice = "Unpack it first" if self.is_pipe else f"Name it {ending}"
                return ValueError(f"{self} is {what}, and not the text of a CSV file. {advice}.")
        other = _encoding(start)
        if not other.startswith("utf-16"):
            if damaged := [name for name in names if "\0" in name]:
                return ValueError(f"{self}: line 1: the column {damaged[0]!r} has a NUL character. Remove it.")
            other = "cp1252" if self.format.encoding == UTF_8 else UTF_8
        advice = "Save it as 'CSV UTF-8', or, if you know its encoding, read it with "
        found = f"{self} is not {self.format.encoding.upper()} text{where}. {advice}"
        return ValueError(Message(found, read_with("encoding", other), "."))

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __str__(self) -> str:
        return "standard input" if str(self.path) == STANDARD_INPUT else str(self.path)


@dataclass(frozen=True)
class Source:
    """What messages call a table, and the file that it was read from."""

    name: str
    file: TableFile | None = None

    @classmethod
    def of(cls, table: Any, name: str) -> "Source":
        """Return the source of a table, which has the given name unless it is a file."""
        if not isinstance(table, str | os.PathLike):
            return cls(name)
        return cls(str(TableFile.of(table)), TableFile.of(table))

    def place(self, row: int) -> str:
        """Return where a row (counted from 0) is: the line of a CSV file, where an editor shows it, or the row."""
        if self.file is not None and not self.file.is_parquet:
            for i, (line, _) in enumerate(self.file.records()):
                if i == row + 1:  # the first record has the names of the columns
                    return f"line {line}"
        return f"row {row + 1}"

    def task(self, name: Any, row: int | None = None, column: str | None = None) -> str:
        """Return what messages call a task: its table, its name, where it begins, and the column they are about."""
        begins = "" if row is None else f" (from {self.place(row)})"
        return f"{self}: task {name!r}{begins}" + ("" if column is None else f", column {column}")

    def __str__(self) -> str:
        return self.name


def as_table(table: Any, name: str) -> "TableFile | Mapping[str, Any] | Frame | nw.DataFrame[Any]":
    """Return a path as a table file, and data frames of other libraries than pandas as eager frames of narwhals.

    `name` is what errors call the table.
    """
    if isinstance(table, str | os.PathLike):
        return TableFile.of(table)  # so that a pipe is read once
    if isinstance(table, Mapping) and table:
        return table
    import pandas as pd

    if isinstance(table, pd.DataFrame):
        return table
    import narwhals as nw  # its import takes a while

    try:
        frame = nw.from_native(table, pass_through=True)
        frame = frame.collect() if isinstance(frame, nw.LazyFrame) else frame
    except nw.exceptions.DuplicateError:
        raise ValueError(f"{name} has columns of the same name. Rename all but one.") from None
    if isinstance(frame, nw.DataFrame):
        return frame
    raise ValueError(
        f"{name} must be a DataFrame, a mapping from column names to arrays, or the path of a CSV or Parquet "
        f"file; got {type(table).__name__}."
    )


def columns_of(table: Any) -> list[Any]:
    """Return the names of the columns of a table that `as_table` has returned."""
    return column_names(table) if isinstance(table, TableFile) else list(getattr(table, "columns", table))


def as_frame(table: Any, columns: Columns, source: str) -> Frame:
    """Return the used columns of a table that `as_table` has returned, as a data frame of pandas."""
    import pandas as pd

    if isinstance(table, TableFile):
        return read_table(table, columns)
    index = table.index.names if isinstance(table, pd.DataFrame) else ()
    check_known(columns.read, columns_of(table), source, index)
    if isinstance(table, pd.DataFrame):
        return table[columns.read]
    if not isinstance(table, Mapping):
        return table.select(columns.read).to_arrow().to_pandas(ignore_metadata=True, date_as_object=False)
    arrays = {name: table[name] for name in columns.read}
    shapes = {name: getattr(values, "shape", None) or (len(values),) for name, values in arrays.items()}
    if len({*shapes.values()}) > 1 or any(len(shape) > 1 for shape in shapes.values()):
        raise ValueError(f"{source} must have columns of shape (rows,) and of one length; got {shapes}.")
    return pd.DataFrame({name: pd.Series(values).reset_index(drop=True) for name, values in arrays.items()})


def like_table(frame: Frame, table: Any, given: Any) -> Any:
    """Return a data frame of pandas, with the rows of a table and more columns, as a frame of the library of the table.

    `given` is what `as_table` has made the table of. Files and mappings stay data frames of pandas.
    """
    import pandas as pd

    if isinstance(table, TableFile | Mapping | pd.DataFrame):
        return frame
    import narwhals as nw

    kept = [name for name in frame if name in table.columns]
    added = frame.drop(columns=kept).astype(object)
    added = added.where(added.notna(), None)
    series = [nw.new_series(name, added[name].tolist(), backend=table.implementation) for name in added]
    result, given = table.select(kept).with_columns(*series), nw.from_native(given)
    return (result.lazy(given.implementation) if isinstance(given, nw.LazyFrame) else result).to_native()


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
            table = arrow_csv.read_csv(stream, **file.text_options(columns.read))
        return _to_frame(table, columns, file, infer=True)


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
        for batch in parts or arrow_csv.open_csv(stored, **file.text_options(inside)):
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
        expected = "a path, a pattern, a sequence of them, or a data frame"
        raise ValueError(f"tables must be {expected}; got {repr(tables)[:100]}.")
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
            files[whole][0].check()
    return list(files.values())


def _inside(folder: Path) -> list[tuple[Path, Path]]:
    """Return the tables in a folder and below; names that begin with a dot or an underscore belong to other tools."""
    hidden = lambda path: any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)  # noqa: E731
    files = sorted(path for path in folder.rglob("*") if path.name.lower().endswith(ENDINGS) and path.is_file())
    return [(path, folder) for path in files if not hidden(path)]


def column_names(file: TableFile) -> list[str]:
    """Return the names of the columns of a CSV or Parquet file."""
    from pyarrow import parquet

    file.check()
    with _named_errors(file):
        if file.is_parquet:
            with parquet.ParquetFile(file.seekable) as stored:
                return list(stored.schema_arrow.names)
        _, names = next(file.records(), (0, []))
    if not names:
        raise file.empty()
    if any("\0" in name or "\ufffd" in name for name in names):
        raise file.wrong_encoding(names)
    return names


def _to_frame(table: Any, columns: Columns, file: TableFile, infer: bool = False) -> Frame:
    """Return an Arrow table as a data frame with categorical text; `infer` what else a column of text holds."""
    import pyarrow as pa

    table = table.select(columns.read)
    declared = _declared_categories(table.schema)
    for i, field in enumerate(table.schema):
        column = table.column(i)
        if not (pa.types.is_string(field.type) or pa.types.is_large_string(field.type)):
            continue
        if field.name not in (*columns.naming, *columns.aside):
            if file.format.decimal == "," and not file.is_parquet:
                column = _with_points(column, field.name, file)
            column = _inferred(column) if infer else column
        is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        table = table.set_column(i, field.name, column.dictionary_encode() if is_text else column)
    numbers = [name for name in declared if not pa.types.is_dictionary(table.schema.field(name).type)]
    frame = table.to_pandas(ignore_metadata=True, date_as_object=False, split_blocks=True, self_destruct=True)
    for name in numbers:
        frame[name] = frame[name].astype("category")
    return frame


def _inferred(text: Any) -> Any:
    """Return a column of text as numbers, bools or dates if all of its cells are."""
    import pyarrow as pa
    import pyarrow.compute as compute

    if compute.any(compute.match_substring(text, "x", ignore_case=True)).as_py():  # type: ignore[attr-defined]
        return text  # 0x15 is a number for Arrow
    for kind in (pa.int64(), pa.float64(), pa.bool_(), pa.timestamp("us"), pa.timestamp("us", "UTC")):
        with suppress(pa.ArrowInvalid):
            return text.cast(kind)
    return text


def _with_points(text: Any, column: str, file: TableFile) -> Any:
    """Return a column of text with numbers as Python writes them; 1.234 would be wrong by a factor of 1000."""
    import pyarrow as pa

    encoded, cells = text.combine_chunks().dictionary_encode(), []
    for cell in encoded.dictionary.to_pylist():
        if POINT.fullmatch(cell.strip()):
            found = (
                f'{file}, column {column}: "{cell.strip()}" has a point, but the decimal mark is said to be a comma ('
            )
            raise ValueError(Message(found, Argument("decimal", ","), "). Write numbers without a mark for thousands."))
        cells.append(cell.replace(",", ".") if DECIMAL_COMMA.fullmatch(cell.strip()) else cell)
    return pa.chunked_array([pa.array(cells, pa.string()).take(encoded.indices)])


def _declared_categories(schema: Any) -> list[str]:
    """Return the columns that were of pandas' type category: Parquet keeps them as what their levels are."""
    described = (schema.pandas_metadata or {}).get("columns", [])
    wanted = {column.get("name") for column in described if column.get("pandas_type") == "categorical"}
    return [name for name in schema.names if name in wanted]


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
            column = re.search(r"CSV column #(\d+)", str(error))
            where = "" if column is None else f" in column {column_names(file)[int(column[1])]!r}"
            raise file.wrong_encoding(where=where) from None
        raise ValueError(file.ragged() or f"{file} is not a CSV table: {_reason(error)}.") from None
    except UnicodeError:
        raise file.wrong_encoding() from None
    except DAMAGED as error:
        raise ValueError(f"{file} is damaged or cannot be read: {_reason(error)}.") from None


def _reason(error: Exception) -> str:
    """Return the words of another library as the end of a sentence of ours."""
    return " ".join(str(error).split())[:200].rstrip(" .") or type(error).__name__


def first_formula(frame: Any) -> str | None:
    """Return the first text of a data frame, or name of a column, that a spreadsheet takes for a formula."""
    texts = (frame[name].drop_duplicates() for name in frame.columns if frame[name].dtype.kind not in "biufcmM")
    cells = (cell for cell in itertools.chain(frame.columns, *texts) if isinstance(cell, str))
    return next((cell for cell in cells if FORMULA.match(cell) and not NUMBER.fullmatch(cell)), None)


def sniff_format(path: Path) -> CsvFormat:
    """Return how a CSV file seems to be written; the usual way where nothing else is clear, and for other files."""
    file = TableFile(path)
    if file.is_parquet or not any(ending in file.name for ending in SEPARATORS):
        return CsvFormat()
    try:
        with file.open() as stream:
            start = bytes(stream.read(START))
    except Exception:  # of a damaged archive, which reading it will tell
        return CsvFormat()
    encoding = _encoding(start)
    lines = [line for line in start.decode(encoding, "replace").splitlines() if line.strip()][: LINES + 1]
    if not lines:
        return CsvFormat()
    lines = lines[:-1] if len(lines) > 2 and len(start) == START else lines  # the last may be cut
    usual = file.separator
    sep = max((usual, *(each for each in ",;\t|" if each != usual)), key=lambda each: _n_columns(lines, each))
    cells = [cell.strip().strip('"') for line in lines[1:] for cell in line.split(sep)]
    commas = sum("," in cell and bool(DECIMAL_COMMA.fullmatch(cell)) for cell in cells)
    points = sum("." in cell and bool(NUMBER.fullmatch(cell)) for cell in cells)
    return CsvFormat(None if sep == usual else sep, "," if sep != "," and commas > points else ".", encoding)


def _n_columns(lines: list[str], sep: str) -> float:
    """Return how many columns a separator gives: of the header, if most lines have as many."""
    count = lines[0].count(sep)
    agree = sum(line.count(sep) == count for line in lines)
    return count if 2 * agree > len(lines) else 0.5 * min(count, 1)


def _encoding(start: bytes) -> str:
    """Return the probable encoding of bytes; the last character may be cut off."""
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    first, second = start[::2].count(0), start[1::2].count(0)
    if 3 * (first + second) >= len(start) > 0:  # two bytes per character
        return "utf-16-le" if second > first else "utf-16-be"
    for end in range(4):
        with suppress(UnicodeDecodeError):
            start[: len(start) - end].decode(UTF_8)
            return UTF_8
    return "cp1252"
