"""What text in a column of numbers looks like, and how to make it numbers."""

import datetime
import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from metaprior.checks import Argument, Message
from metaprior.tables.csv_files import read_with

MINUS = re.compile(r"[\u2212\u2013\u2012]\s*\d+([.,]\d+)*")  # typographic signs
HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]+")
LIMITS = r"[LU]?LO[DQ]|M?DL|RL"  # of detection, quantification or reporting
CENSORED = re.compile(rf"[<>\u2264\u2265~]=?\s*([+-]?\d+([.,]\d+)*|{LIMITS})", re.IGNORECASE)
SPACED = re.compile(r"[+-]?\d{1,3}([ _\u00a0\u202f']\d{3})+([.,]\d+)?")
THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
DECIMAL_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d*),\d+([eE][+-]?\d+)?")
UNIT = re.compile(r"(?P<before>[^\s\d.,+-]*)\s*(?P<number>[+-]?\d+([.,]\d+)*)\s*(?P<after>[^\s\d.,:/-]\S*)?")
DATE_OR_TIME = re.compile(r"\d{1,4}[/.-]\d{1,2}[/.-]\d{1,4}.*|\d{1,2}:\d{2}(:\d{2}.*)?")
FIX = "Fix these cells or leave them empty."
MOMENTS = "The column seems to hold dates or times: predict a number computed from them, such as hours since a start."
SHOWN = 4  # values


class Look(NamedTuple):
    """What most cells of a column look like."""

    advice: Message  # a sentence or two
    is_number: bool = True  # rather than a date or a time


def look_of(cells: Sequence[Any]) -> Look | None:
    """Return what the distinct cells of a column that are not numbers have in common, if most have something."""
    texts = [str(cell).strip() for cell in cells if isinstance(cell, str | datetime.time)]
    if not texts:
        return None
    most = lambda pattern: 2 * sum(bool(pattern.fullmatch(text)) for text in texts) > len(cells)  # noqa: E731
    commas = [text for text in texts if "," in text]
    if most(THOUSANDS) and all(THOUSANDS.fullmatch(text) for text in commas):
        plain = commas[0].replace(",", "")
        found = f"The column seems to have commas between thousands: write {plain} for {commas[0]}"
        if len(commas[0].split(",")) == 2 and "." not in commas[0]:
            return Look(Message(found, ", or, if the comma is the decimal mark, read it with ", _comma(), "."))
        return Look(Message(found, "."))
    if most(SPACED):
        plain = re.sub(r"[ _\u00a0\u202f']", "", texts[0])
        return Look(Message(f"The column seems to have marks between thousands: write {plain} for {texts[0]}."))
    if coded := [text for text in texts if HEXADECIMAL.fullmatch(text)]:
        return Look(Message(f"The column has hexadecimal numbers: write {int(coded[0], 16)} for {coded[0]}."))
    if any(MINUS.fullmatch(text) for text in texts):
        return Look(Message("The column has typographic minus signs: write a hyphen, as in -7.16."))
    limits = [text for text in texts if CENSORED.fullmatch(text)]
    signs = {re.sub(r"\d.*", "", text).strip() for text in limits}
    if limits and not len(texts) == len(signs) == 2:  # two labels, such as <5 and >=5, are none
        found = "The column has limits such as <5 among its numbers, which are no readings: "
        return Look(Message(found + "leave these cells empty, or write the value that you want to use."))
    if most(DECIMAL_COMMA):
        return Look(Message("The column seems to have decimal commas: read it with ", _comma(), "."))
    if most(DATE_OR_TIME):
        advice = "Write dates as 2026-01-31 or 2026-01-31T12:30, or, better, add a column of hours since a start."
        return Look(Message(advice), is_number=False)
    unit = _unit(texts)
    if unit is None:
        return None
    example = next(match["number"] for match in map(UNIT.fullmatch, texts) if match)
    where = "and the unit into the name of the column"
    return Look(Message(f"The column seems to have a unit ({unit}): write numbers only, as {example}, {where}."))


def categories(cells: Sequence[Any]) -> Message:
    """Say what can be done with text as an input."""
    values = ", ".join(map(shown, cells[:SHOWN])) + (", ..." if len(cells) > SHOWN else "")
    found = f"Inputs must be numbers; the column holds text with {len(cells)} different values ({values}). Add a "
    instead = "column of 0 and 1 for every value but one (pandas.get_dummies), or, if it groups readings, name it as "
    return Message(found, instead, Argument("task"), " or ", Argument("environment"), " instead.")


def shown(cell: Any) -> str:
    """Return a cell as messages quote it."""
    is_text = isinstance(cell, str | datetime.time)
    return json.dumps(str(cell)[:40], ensure_ascii=False) if is_text else repr(cell)[:40]


def _comma() -> Argument:
    return read_with("decimal", ",")


def _unit(texts: Sequence[str]) -> str | None:
    """Return the one unit, before or after the number, that most cells have; more than two, as labels have two."""
    matches = [match for match in map(UNIT.fullmatch, texts) if match]
    units = {(match["before"] or "", match["after"] or "") for match in matches}
    if len(matches) < 3 or 2 * len(matches) <= len(texts) or len(units) != 1:
        return None
    return "".join(units.pop()) or None
