"""What text in a column of numbers looks like, and how to make it numbers.

What the columns of a table seem to hold, and which roles they may have in a fit, with reasons in words.
"""

import datetime
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import Argument, Message, counted
from metaprior.tables.csv_files import read_with
from metaprior.tasks.categories import as_text

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


TASK = re.compile(r"(^|[_\W])(id|ids|task|subject|patient|person|group|unit|tree|school|case|user|site|station)", re.I)
ENVIRONMENT = re.compile(
    r"environment|hospital|source|domain|building|region|center|centre|country|dataset|batch", re.I
)
TIME = re.compile(r"^(x|t)$|time|date|hour|day|week|month|year|age|minute|second|position|dose", re.I)
OUTPUT = re.compile(r"^y$|value|reading|score|label|class|outcome|target|response|result|level|rate|temp|count", re.I)
MAX_ENVIRONMENTS = 20
MAX_INPUTS = 6
MAX_LABELS = 100  # as many as a fit takes
MIN_READINGS = 1.5  # on average, of a task


@dataclass(frozen=True)
class ColumnSummary:
    """What a column holds."""

    name: str
    kind: str  # "numbers", "dates" or "text"
    n_distinct: int
    n_missing: int


@dataclass
class Guess:
    """The probable role of every column; `reasons` has a sentence for each role that was guessed."""

    task: str | None = None
    x: list[str] = field(default_factory=list)
    y: str | None = None
    environment: str | None = None
    target: str | None = None
    reasons: dict[str, str] = field(default_factory=dict)


def summarize_columns(frame: Any) -> list[ColumnSummary]:
    """Return what each column of a data frame holds."""
    return [ColumnSummary(name, _kind(frame[name]), *_counts(frame[name])) for name in frame.columns]


def guess_roles(frame: Any, names: Any = None) -> Guess:
    """Guess the roles of the columns of a data frame, of which the first rows are enough.

    `names` is the same table with text as it is written, as a fit reads the names of tasks and environments.
    """
    names = frame if names is None else names
    guess, columns = Guess(), {column.name: column for column in summarize_columns(frame)}
    guess.task = _guess_task(frame, columns, guess.reasons)
    free = [name for name in columns if name != guess.task and columns[name].n_distinct > 0]
    if guess.task is not None:
        constant = [name for name in free if _is_constant_within(frame, name, guess.task)]
        guess.environment = _guess_environment(columns, constant, guess)
        free = [name for name in free if name not in constant] or [name for name in free if name != guess.environment]
    if guess.environment is not None and guess.task is not None:
        tasks = names.groupby(guess.environment, observed=True)[guess.task].nunique()
        guess.target = str(as_text(tasks.idxmin()))
        few = f"it has the fewest tasks, {int(tasks.min())} of {int(tasks.sum())}"
        guess.reasons["target"] = f"{few}. Choose the one that you want to predict in."
    guess.y = _guess_output(columns, free, guess.reasons)
    guess.x = _guess_inputs(columns, [name for name in free if name != guess.y], guess.reasons)
    return guess


def _kind(series: Any) -> str:
    from pandas.api import types

    if types.is_datetime64_any_dtype(series.dtype):
        return "dates"
    is_number = types.is_any_real_numeric_dtype(series.dtype) or types.is_bool_dtype(series.dtype)
    return "numbers" if is_number else "text"


def _counts(series: Any) -> tuple[int, int]:
    """Return the numbers of different values, none of cells that hold lists and the like, and of missing ones."""
    try:
        return int(series.nunique()), int(series.isna().sum())
    except TypeError:
        return 0, int(series.isna().sum())


def _guess_task(frame: Any, columns: dict[str, ColumnSummary], reasons: dict[str, str]) -> str | None:
    """Return the column whose values repeat most like names of tasks do."""
    n_rows, best, score = len(frame), None, 0.0
    for place, (name, column) in enumerate(columns.items()):
        n = column.n_distinct
        whole = column.kind == "text" or (column.kind == "numbers" and _are_integers(frame[name]))
        if n < 2 or not whole or n_rows / n < MIN_READINGS:
            continue
        named, is_text = bool(TASK.search(name)), column.kind == "text"
        # Tasks are many, their names are text or ids, and their column stands first more often than last.
        found = 3.0 * named + 1.5 * is_text + 0.5 * np.log(n) - 0.1 * place - (2.0 if TIME.search(name) else 0.0)
        found -= 1.5 if n <= 3 and not named else 0.0
        if found > max(score, 0.8):
            best, score = name, found
    if best is not None:
        n = columns[best].n_distinct
        about = f"{n:,} different values, with about {counted(round(n_rows / n), 'row')} each"
        reasons["task"] = f"it has {about}" + (", and is named like an id." if TASK.search(best) else ".")
    return best


def _guess_environment(columns: dict[str, ColumnSummary], constant: list[str], guess: Guess) -> str | None:
    """Return the column with few values, each the same in all rows of a task."""
    possible = [name for name in constant if 2 <= columns[name].n_distinct <= MAX_ENVIRONMENTS]
    possible = [name for name in possible if columns[name].kind == "text" or ENVIRONMENT.search(name)]
    if not possible:
        return None
    best = max(possible, key=lambda name: (bool(ENVIRONMENT.search(name)), -columns[name].n_distinct))
    values = f"{columns[best].n_distinct} different values"
    guess.reasons["environment"] = f"it has {values}, each the same in all rows of a task."
    return best


def _guess_output(columns: dict[str, ColumnSummary], free: list[str], reasons: dict[str, str]) -> str | None:
    possible = [name for name in free if columns[name].kind != "dates"]
    if not possible:
        return None
    named = [name for name in possible if OUTPUT.search(name) and not TIME.search(name)]
    if named:
        reasons["y"] = "its name suggests it."
        return named[-1]
    labels = [name for name in possible if columns[name].kind == "text" and columns[name].n_distinct <= MAX_LABELS]
    if labels:
        reasons["y"] = f"it holds text that varies within tasks: {counted(columns[labels[-1]].n_distinct, 'label')}."
        return labels[-1]
    numeric = [name for name in possible if columns[name].kind == "numbers" and not TIME.search(name)] or possible
    reasons["y"] = "it is the last column without another role."
    return numeric[-1]


def _guess_inputs(columns: dict[str, ColumnSummary], free: list[str], reasons: dict[str, str]) -> list[str]:
    possible = [name for name in free if columns[name].kind != "text"]
    times = [name for name in possible if TIME.search(name) or columns[name].kind == "dates"]
    if times:
        reasons["x"] = "it is named like a time or a position, or holds dates."
        return times[:1]
    if possible:
        reasons["x"] = "the other columns of numbers that vary within tasks."
    return possible[:MAX_INPUTS]


def _are_integers(series: Any) -> bool:
    values = series.dropna().to_numpy(np.float64)
    return bool(np.isfinite(values).all() and (values == np.round(values)).all())


def _is_constant_within(frame: Any, name: str, task: str) -> bool:
    return bool((frame.groupby(task, observed=True)[name].nunique(dropna=False) <= 1).all())
