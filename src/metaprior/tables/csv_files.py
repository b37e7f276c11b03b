"""CSV files, plain or compressed: how they are written, their header and lines, and what is wrong with them.

How a CSV file is probably written: its encoding, its separator and its decimal mark.
"""

import csv
import io
import itertools
import lzma
import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from metaprior.checks import Argument, Message, counted
from metaprior.terminal import as_unicode

SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
PARQUET = (".parquet", ".pq")
ENDINGS = (*PARQUET, *(f"{ending}{packed}" for ending in SEPARATORS for packed in ("", *COMPRESSED)))
FORMULA = re.compile(r"\s*[=+@-]|[\t\r]")  # how a cell begins that a spreadsheet runs
STANDARD_INPUT = "-"
DESCRIPTORS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")  # what shells pass for `< table.csv` and `<(command)`
UTF_8 = "utf-8"
# How files begin that are no text, and what they are.
BEGINNINGS = {
    b"\x1f\x8b": ("compressed with gzip", ".csv.gz"),
    b"BZh": ("compressed with bzip2", ".csv.bz2"),
    b"\xfd7zXZ\0": ("compressed with xz", ".csv.xz"),
    b"\x28\xb5\x2f\xfd": ("compressed with zstd", ".csv.zst"),
    b"PK\x03\x04": ("a zip archive, as Excel files are too", ".csv.zip if it holds a CSV file"),
    b"PAR1": ("a Parquet file", ".parquet"),
}
SPELLED = {"\\t": "\t", "tab": "\t"}  # as typed in a shell


class CsvFormat(NamedTuple):
    """How a CSV file is written."""

    sep: str | None = None  # None: a comma, or a tab in files named .tsv and .tab
    decimal: str = "."
    encoding: str = UTF_8


def first_formula(frame: Any) -> str | None:
    """Return the first text of a data frame, or name of a column, that a spreadsheet takes for a formula."""
    texts = (frame[name].drop_duplicates() for name in frame.columns if frame[name].dtype.kind not in "biufcmM")
    cells = itertools.chain(frame.columns, *texts)
    formulas = (cell for cell in cells if isinstance(cell, str) and FORMULA.match(cell) and not _is_number(cell))
    return next(formulas, None)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def as_csv_format(sep: str | None, decimal: str | None, encoding: str | None) -> CsvFormat:
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


def read_with(option: str, value: str) -> Argument:
    """Return what tells the reader of a CSV file how it is written: an option here, an argument of pandas in Python."""
    return Argument(f"pandas.read_csv and {option}", value)


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

    def arrow_options(self, columns: list[str], text: list[str]) -> dict[str, Any]:
        """Return how pyarrow is to read these columns, some of them as text."""
        import pyarrow as pa
        from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions

        types: Any = {name: pa.string() for name in text}
        converted = {"include_columns": columns, "column_types": types, "decimal_point": self.format.decimal}
        return {
            "read_options": ReadOptions(encoding=self.format.encoding),
            "parse_options": ParseOptions(delimiter=self.separator, newlines_in_values=True),
            "convert_options": ConvertOptions(strings_can_be_null=True, **converted),
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
        other = _wide_encoding(start)
        damaged = next((name for name in names if "\0" in name), None)
        if other is None and damaged is not None:
            return ValueError(f"{self}: line 1: the column {damaged!r} has a NUL character. Remove it.")
        other = other or ("cp1252" if self.format.encoding == UTF_8 else UTF_8)
        advice = "Save it as 'CSV UTF-8', or, if you know its encoding, read it with "
        found = f"{self} is not {self.format.encoding.upper()} text{where}. {advice}"
        return ValueError(Message(found, read_with("encoding", other), "."))

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __str__(self) -> str:
        return "standard input" if str(self.path) == STANDARD_INPUT else str(self.path)


def _wide_encoding(start: bytes) -> str | None:
    """Return the encoding of text with two bytes per character, which begins with a mark or has many NUL bytes."""
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    first, second = start[::2].count(0), start[1::2].count(0)
    return None if 3 * (first + second) < len(start) else "utf-16-le" if second > first else "utf-16-be"


def as_table(table: Any) -> Any:
    """Return a path as a table file, so that a pipe is read once; a table of another kind stays what it is."""
    return TableFile.of(table) if isinstance(table, str | os.PathLike) else table


@dataclass(frozen=True)
class Source:
    """What messages call a table, and the file that it was read from."""

    name: str
    file: TableFile | None = None

    @classmethod
    def of(cls, table: Any, name: str) -> "Source":
        """Return the source of a table, which has the given name unless it is a file."""
        table = as_table(table)
        return cls(str(table), table) if isinstance(table, TableFile) else cls(name)

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


START = 2**16  # bytes to look at
LINES = 50
MARKS = (b"\xff\xfe", b"\xfe\xff")  # of UTF-16
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


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
    sep = max((usual, *(each for each in ",;\t|" if each != usual)), key=lambda each: _columns(lines, each))
    cells = [cell.strip().strip('"') for line in lines[1:] for cell in line.split(sep)]
    commas, points = (sum(bool(pattern.fullmatch(cell)) for cell in cells) for pattern in (DECIMAL_COMMA, NUMBER))
    with_points = sum("." in cell and bool(NUMBER.fullmatch(cell)) for cell in cells)
    decimal = "," if sep != "," and commas > with_points and commas + points > 0 else "."
    return CsvFormat(None if sep == usual else sep, decimal, encoding)


def _encoding(start: bytes) -> str:
    """Return the encoding of bytes, the last character of which may be cut off."""
    if start.startswith(MARKS):
        return "utf-16"
    for end in range(4):
        try:
            start[: len(start) - end].decode(UTF_8)
        except UnicodeDecodeError:
            continue
        return UTF_8
    return "cp1252"


def _columns(lines: list[str], sep: str) -> float:
    """Return how many columns a separator gives: of the header, if most lines have as many."""
    count = lines[0].count(sep)
    agree = sum(line.count(sep) == count for line in lines)
    return count if 2 * agree > len(lines) else 0.5 * min(count, 1)
