"""Names of tasks, environments, columns, levels and labels that may be the same, written in two ways.

Names that read the same, as 1 and "1", "a" and "a ", or an accent stored in two ways, are refused where both are in one
fit or one table. Names that may be the same, as Yes and yes, are two, with a warning.
"""

import difflib
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from metaprior.checks import counted, warn_caller

EXPONENT = re.compile(r"\d+(\.\d+)?e\+?\d{1,2}")  # as a spreadsheet may write 1000
WHOLE = re.compile(r"([+-]?\d+)\.0+")
SPELLING = "case, typography or .0"  # what names that are `spelled_alike` differ in
ALIKE = 0.75  # of the characters of two names, from which on one may be meant by the other


def plain(value: Any) -> Any:
    """Return text and numbers as Python's own types: those of NumPy and of enumerations are written in other ways."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float.__float__(value)
    return int.__int__(value) if isinstance(value, int) and not isinstance(value, bool) else value


def as_text(name: Any) -> Any:
    """Return a name as text: 7, 7.0 (integers with missing values) and "7" are the same."""
    if isinstance(name, tuple):
        return tuple(as_text(part) for part in name)
    name = plain(name)
    return str(int(name)) if isinstance(name, float) and name.is_integer() else str(name)


def as_read(name: Any) -> Any:
    """Return what a reader sees of a name: without blanks at its ends and invisible characters, accents in one way."""
    if isinstance(name, tuple):
        return tuple(map(as_read, name))
    text = as_text(name)
    if not text.isascii():
        text = "".join(mark for mark in unicodedata.normalize("NFC", text) if unicodedata.category(mark) != "Cf")
    return " ".join(text.split())


def check_spelling(names: Collection[Any], noun: str, where: str = "", category: type[Warning] = UserWarning) -> None:
    """Raise if two names read the same; warn if two may be the same. `where` begins the message."""
    check_reading(names, noun, where)
    if pairs := spelled_alike(names):
        found = f"{where}{noun}s {_in_words(*pairs[0])} differ in {SPELLING} only, and are two {noun}s"
        others = f", and {counted(len(pairs) - 1, 'more name')} of that kind" if len(pairs) > 1 else ""
        warn_caller(f"{found}{others}. Is one misspelled? If they are the same, write them alike.", category)


def check_reading(names: Iterable[Any], noun: str, where: str = "") -> None:
    """Raise if two names read the same: nobody could tell them apart, or which of them is meant."""
    first: dict[Any, Any] = {}
    for name in names:
        other = first.setdefault(as_read(name), name)
        if other != name:
            raise same_reading(f"{where}{noun}s", (other, name))


def same_reading(what: str, pair: tuple[Any, Any], places: tuple[str, str] | None = None) -> ValueError:
    """Return the error about two names that read the same, and about where they are."""
    first, second = spelled_out(*pair)
    named = f"{first} and {second}" if places is None else f"{first} ({places[0]}) and {second} ({places[1]})"
    return ValueError(f"{what} {named}, which read the same. Write them alike or, if they are two, rename one.")


def spelled_alike(names: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return each name that differs from an earlier one only in case, typography or a trailing ".0", after that one."""
    first: dict[Any, Any] = {}
    pairs = ((first.setdefault(_spelling(name), name), name) for name in names)
    return [(earlier, name) for earlier, name in pairs if earlier is not name]


def alike_among(name: Any, others: Iterable[Any]) -> Any | None:
    """Return the one of other names that may be the same, if there is one."""
    spelling = _spelling(name)
    return next((other for other in others if _spelling(other) == spelling), None)


def spelled_out(first: Any, second: Any) -> tuple[str, str]:
    """Return two names as messages quote them: with escapes if they look the same."""
    quoted = repr(first), repr(second)
    return quoted if composed(quoted[0]) != composed(quoted[1]) else (ascii(first), ascii(second))


def nearest(name: Any, others: Sequence[Any]) -> Any | None:
    """Return the one of other names that differs in its spelling only, or else the most similar one."""
    plain = {_plain(other): other for other in reversed(others)}
    near = difflib.get_close_matches(_plain(name), list(plain), n=1, cutoff=ALIKE)
    return plain.get(_plain(name), plain[near[0]] if near else None)


def composed(name: Any) -> str:
    """Return a name as text with accents stored in one way (Unicode NFC)."""
    return unicodedata.normalize("NFC", str(name))


def _in_words(first: Any, second: Any) -> str:
    return " and ".join(spelled_out(first, second))


def _spelling(name: Any) -> Any:
    """Return what names that are certainly distinct differ in; "1-11" and "11-1" are, so only little is left out."""
    if isinstance(name, tuple):
        return tuple(map(_spelling, name))
    text = unicodedata.normalize("NFKC", as_read(name)).casefold()
    return WHOLE.sub(r"\1", text) if WHOLE.fullmatch(text) else text


def _plain(name: Any) -> str:
    """Return a name without what spelling may change: zeros, case, blanks, exponents, the way accents are stored."""
    if isinstance(name, tuple):
        return " ".join(map(_plain, name))
    text = unicodedata.normalize("NFKC", str(name)).casefold()
    if EXPONENT.fullmatch(text.strip()):
        return f"{float(text):.0f}"
    return re.sub(r"\b0+(?=\d)|\.0+\b|[\s_-]", "", text)
