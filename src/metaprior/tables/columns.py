"""Columns of a table: which ones are used, and their cells as numbers, dates, labels and names."""

import datetime
import difflib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import Argument, Message


class TableWarning(UserWarning):
    """Warning about rows or columns of a table that were dropped or converted."""


class Columns(NamedTuple):
    """The columns of a table with one row per sample, by name."""

    task: tuple[str, ...]  # together they name a task; none: all rows are one task
    x: tuple[str, ...]
    y: str | None  # None for a table of queries
    environment: str | None = None

    @property
    def naming(self) -> list[str]:
        """The columns that hold names; the environment may also be one of those that name the task."""
        return list(dict.fromkeys([*self.task, *([] if self.environment is None else [self.environment])]))

    @property
    def used(self) -> list[str]:
        """Every column once."""
        return [*self.task, *self.x, *(name for name in (self.y, *self.naming) if name and name not in self.task)]


def as_columns(*, task: Any = None, x: Any, y: Any = None, environment: Any = None) -> Columns:
    """Check names of columns: one or several for `task` and `x`, one for `y` and `environment`."""
    columns = Columns(
        task=() if task is None else _names(task, "task"),
        x=_names(x, "x"),
        y=None if y is None else _name(y, "y"),
        environment=None if environment is None else _name(environment, "environment"),
    )
    if not columns.x:
        raise ValueError(Message(Argument("x"), " must name one column or more; got none."))
    roles = [("task", name) for name in columns.task] + [("x", name) for name in columns.x]
    roles += [("y", columns.y)] if columns.y is not None else []
    if columns.environment is not None and columns.environment not in columns.task:
        roles.append(("environment", columns.environment))
    first: dict[str, str] = {}
    for role, name in roles:
        if name in first:
            both = f"twice in {role}" if first[name] == role else f"as {first[name]} and as {role}"
            raise ValueError(f"column {name!r} is named {both}. A column has one role only: leave one out.")
        first[name] = role
    return columns


def as_text(name: Any) -> Any:
    """Return the name of a task or environment as text: 7, 7.0 (integers with missing values) and "7" are the same."""
    if isinstance(name, tuple):
        return tuple(as_text(part) for part in name)
    return str(int(name)) if isinstance(name, float) and name.is_integer() else str(name)


def check_known(wanted: Iterable[str], known: Sequence[Any], source: str, index: Iterable[Any] = ()) -> None:
    """Raise unless every wanted column exists once; `source` is what errors call the table, `index` names its index."""
    for name in wanted:
        if name in index and name not in known:
            raise ValueError(f"{source} has no column {name!r}: that is its index. Pass it with .reset_index().")
        if name not in known:
            raise ValueError(f"{source} has no column {name!r}{_suggestion(name, known)}")
        if list(known).count(name) > 1:
            raise ValueError(f"{source} has {list(known).count(name)} columns named {name!r}. Rename all but one.")


def _suggestion(name: str, known: Sequence[Any]) -> str:
    if not len(known):
        return ": it has no columns."
    texts = [str(column) for column in known]
    lower = {text.lower().strip(): text for text in reversed(texts)}
    close = difflib.get_close_matches(name.lower().strip(), list(lower), n=1)
    guess = f"; did you mean {lower[close[0]]!r}? Its" if close else "; its"
    shown = ", ".join(map(repr, texts[:12])) + (f" and {len(texts) - 12} more" if len(texts) > 12 else "")
    separator = next((mark for mark in (";", "\t", "|") if len(texts) == 1 and mark in texts[0]), None)
    advice = "" if separator is None else f" Columns seem to be separated by {separator!r}; use commas."
    return f"{guess} columns are {shown}.{advice}"


def _names(value: Any, role: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return (_name(value, role),)
    if isinstance(value, dict | set | frozenset) or not isinstance(value, Iterable):  # inputs have an order
        raise ValueError(Message(Argument(role), f" must be the name of a column, or several; got {value!r}."))
    return tuple(_name(item, role) for item in value)


def _name(value: Any, role: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(Message(Argument(role), f" must be the name of a column, a nonempty string; got {value!r}."))
    return value


Series = Any  # pandas annotates every selection from a frame as perhaps a frame
DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*")
DATE_OR_TIME = re.compile(r"\d{1,4}[/.-]\d{1,2}[/.-]\d{1,4}.*|\d{1,2}:\d{2}(:\d{2}.*)?")
ADVICE = "Fix these cells or leave them empty."


def as_names(series: Series, source: str) -> Series:
    """Return text, or values of any type, as categories in the order of their first rows; blank text is missing."""
    import pandas as pd

    try:
        codes, distinct = pd.factorize(series)
    except TypeError:
        got = repr(series.iloc[0])
        raise ValueError(f"{source}: column {series.name} must hold one value per cell; got {got}.") from None
    names = pd.Series(pd.Categorical.from_codes(codes, pd.Index(distinct).astype(object)))
    blank = [value for value in names.cat.categories if isinstance(value, str) and not value.strip()]
    return names.cat.remove_categories(blank) if blank else names


def as_values(series: Series, source: str) -> Series:
    """Return numbers and dates (in UTC) as such, and everything else as categories."""
    import pandas as pd
    from pandas.api import types

    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype) or types.is_object_dtype(dtype) or types.is_string_dtype(dtype):
        return as_names(series, source)
    if types.is_datetime64_any_dtype(dtype):
        return pd.Series(pd.to_datetime(series, utc=True).dt.tz_convert(None).to_numpy("datetime64[us]"))
    if types.is_any_real_numeric_dtype(dtype) or types.is_bool_dtype(dtype):
        values = series.to_numpy(float, na_value=np.nan) if series.hasnans else series.to_numpy()
        return pd.Series(values.astype(np.float64) if values.dtype == object else values)  # Arrow's decimals
    if types.is_timedelta64_dtype(dtype):
        advice = f"Convert them to numbers, such as hours: frame[{series.name!r}].dt.total_seconds() / 3600."
        raise ValueError(f"{source}: column {series.name} holds durations. {advice}")
    return as_names(series.astype(object), source)


def as_inputs(series: Series, source: str) -> tuple[np.ndarray, bool]:
    """Return a column as floats (bools as 0 and 1, dates as days since 1970), and whether it holds dates."""
    dates = series.dtype.kind == "M"
    if series.dtype.kind != "O":
        return _finite(_days(series) if dates else series.to_numpy(np.float64), series, source), dates
    numbers, days = _parse(series)
    dates = _are_dates(numbers, days)
    found = days if dates else numbers
    if np.isnan(found).any():
        raise _refusal(series, np.isnan(found), source, "date" if dates else "number")
    return _finite(found, series, source), dates


def as_outputs(series: Series, source: str, labels: bool | None) -> np.ndarray:
    """Return a column as numbers, or as labels (`labels=None`: unless most of its cells are numbers)."""
    numbers, days = _parse(series) if series.dtype.kind == "O" else (series.to_numpy(), np.zeros(0))
    if series.dtype.kind == "M" or (_are_dates(numbers, days) and not np.isnan(days).any()):
        raise ValueError(
            f"{source}: y must be numbers or labels; column {series.name} holds dates. Predict a number computed from "
            "them, such as days since each task's first row."
        )
    bad = np.isnan(numbers)
    if not bad.any():
        is_bool = series.dtype.kind == "O" and {type(value) for value in series.cat.categories} <= {bool, np.bool_}
        return numbers.astype(bool) if is_bool else _finite(numbers, series, source)
    if labels or (labels is None and 2 * bad.sum() >= len(bad)):
        return np.asarray(series, object)
    raise _refusal(series, bad, source, "number")


def _parse(series: Series) -> tuple[np.ndarray, np.ndarray]:
    """Return categories, row by row, as numbers and as days since 1970; NaN where they are not."""
    import pandas as pd

    series = series.cat.remove_unused_categories()
    values, codes = series.cat.categories.to_numpy(object), series.cat.codes.to_numpy()
    refused = [isinstance(value, complex) or (isinstance(value, int) and value.bit_length() > 1023) for value in values]
    readable = pd.Series(np.where(refused, None, values), dtype=object)
    numbers, days = np.asarray(pd.to_numeric(readable, errors="coerce"), np.float64), np.full(len(values), np.nan)
    dated = np.array([isinstance(value, str | datetime.date | np.datetime64) for value in values], bool)
    dated &= np.isnan(numbers)
    if dated.any():
        dates = pd.to_datetime(pd.Series(values[dated], dtype=object), format="ISO8601", utc=True, errors="coerce")
        days[dated] = _days(dates.dt.tz_convert(None))
    return numbers[codes], days[codes]


def _days(dates: Series) -> np.ndarray:
    return (dates.to_numpy("datetime64[us]") - np.datetime64(0, "us")) / np.timedelta64(1, "D")


def _are_dates(numbers: np.ndarray, days: np.ndarray) -> bool:
    """Return whether more rows hold dates than numbers, and most of those without a number."""
    is_date, is_number = np.count_nonzero(~np.isnan(days)), np.count_nonzero(~np.isnan(numbers))
    return bool(is_date > is_number and 2 * is_date > len(days) - is_number)


def _finite(values: np.ndarray, series: Series, source: str) -> np.ndarray:
    bad = ~np.isfinite(values)
    if bad.any():
        raise _bad_cell(series, bad, source, f"{values[bad.argmax()]} is not finite", ADVICE)
    return values


def _refusal(series: Series, bad: np.ndarray, source: str, kind: str) -> ValueError:
    """Return an error that names the first cell that is not a number, or not a date."""
    cell, advice = series.iloc[bad.argmax()], ADVICE
    shown = json.dumps(cell[:40], ensure_ascii=False) if isinstance(cell, str) else repr(cell)[:40]
    if isinstance(cell, str) and DECIMAL_COMMA.fullmatch(cell):
        advice = f"Write numbers with a decimal point, as {cell.strip().replace(',', '.')}."
    if isinstance(cell, str) and DATE_OR_TIME.fullmatch(cell.strip()):
        advice = "Write dates as 2026-01-31 or 2026-01-31T12:30, or, better, add a column of hours since a start."
    return _bad_cell(series, bad, source, f"{shown} is not a {kind}", advice)


def _bad_cell(series: Series, bad: np.ndarray, source: str, what: str, advice: str) -> ValueError:
    more = int(bad.sum()) - 1
    others = f" (nor {'are' if more > 1 else 'is'} {more} more)" if more else ""
    row = series.index[bad.argmax()] + 1  # messages count rows from 1
    return ValueError(f"{source}: row {row}, column {series.name}: {what}{others}. {advice}")
