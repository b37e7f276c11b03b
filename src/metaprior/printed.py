"""Names from tables and of files, which may hold any character, as they are printed: nothing in them is invisible."""

from typing import Any

JOINERS = "\u200c\u200d"  # of letters and pictures: text without them reads otherwise
KEPT = frozenset(" \n\t\u00a0\u202f" + JOINERS)


def visible(text: str) -> str:
    r"""Return text with escapes for what a terminal would obey or not show: "\x1b", "\r", marks of direction.

    Bytes of a file's name that are not UTF-8, which Python keeps as halves of a character, are written as "\xff".
    """
    if text.isascii() and text.isprintable():  # fast path
        return text
    return "".join(mark if mark.isprintable() or mark in KEPT else _escaped(mark) for mark in text)


def as_unicode(value: Any) -> Any:
    """Return a value for JSON whose text any program can read: bytes of names that are not UTF-8 as by `visible`."""
    if isinstance(value, dict):
        return {as_unicode(key): as_unicode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_unicode(item) for item in value]
    is_whole = not isinstance(value, str) or value.isascii() or not any(map(_is_half, value))
    return value if is_whole else "".join(_escaped(mark) if _is_half(mark) else mark for mark in value)


def _is_half(mark: str) -> bool:
    return "\ud800" <= mark <= "\udfff"


def _escaped(mark: str) -> str:
    if "\udc80" <= mark <= "\udcff":  # of os.fsdecode
        return f"\\x{ord(mark) - 0xDC00:02x}"
    return mark.encode("unicode_escape").decode()
