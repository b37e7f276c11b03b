"""Names and labels that may be the same, written in two ways."""

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

EXPONENT = re.compile(r"\d+(\.\d+)?e\+?\d{1,2}")  # as a spreadsheet may write 1000
WHOLE = re.compile(r"([+-]?\d+)\.0+")
SPELLING = "case, spaces or .0"  # what names that are `spelled_alike` differ in
ALIKE = 0.75  # of the characters of two names, from which on one may be meant by the other


def spelled_alike(names: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return each name that differs from an earlier one only in case, blanks or a trailing ".0", after that one.

    Numbers are what they are: only text, and names of several columns, are compared.
    """
    first: dict[Any, Any] = {}
    texts = (name for name in names if isinstance(name, str | tuple))
    pairs = ((first.setdefault(_spelling(name), name), name) for name in texts)
    return [(earlier, name) for earlier, name in pairs if earlier is not name]


def nearest(name: Any, others: Sequence[Any]) -> Any | None:
    """Return the one of other names that differs in its spelling only, or else the most similar one."""
    plain = {_plain(other): other for other in reversed(others)}
    near = difflib.get_close_matches(_plain(name), list(plain), n=1, cutoff=ALIKE)
    return plain.get(_plain(name), plain[near[0]] if near else None)


def composed(name: Any) -> str:
    """Return a name as text with accents stored in one way (Unicode NFC)."""
    return unicodedata.normalize("NFC", str(name))


def _spelling(name: Any) -> Any:
    """Return what names that are certainly distinct differ in; "1-11" and "11-1" are, so only little is left out."""
    if isinstance(name, tuple):
        return tuple(map(_spelling, name))
    if not isinstance(name, str):
        return name
    text = " ".join(unicodedata.normalize("NFKC", name).split()).casefold()
    return WHOLE.sub(r"\1", text) if WHOLE.fullmatch(text) else text


def _plain(name: Any) -> str:
    """Return a name without what spelling may change: zeros, case, blanks, exponents, the way accents are stored."""
    if isinstance(name, tuple):
        return " ".join(map(_plain, name))
    text = unicodedata.normalize("NFKC", str(name)).casefold()
    if EXPONENT.fullmatch(text.strip()):
        return f"{float(text):.0f}"
    return re.sub(r"\b0+(?=\d)|\.0+\b|[\s_-]", "", text)
