"""How a CSV file is probably written: its encoding, its separator and its decimal mark."""

import re
from pathlib import Path

from metaprior.tables.csv_files import SEPARATORS, UTF_8, CsvFormat, TableFile

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
