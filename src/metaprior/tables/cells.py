"""Cells of a table as numbers, labels and names. Rows are counted from 1 in every message."""

import datetime
import decimal
import json
import re
import warnings
from typing import Any, NamedTuple

import numpy as np

from metaprior.tables.columns import TableWarning

Series = Any  # pandas annotates every selection from a frame as perhaps a frame
DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*")
DATE_OR_TIME = re.compile(r"\d{1,4}[/.-]\d{1,2}[/.-]\d{1,4}.*|\d{1,2}:\d{2}(:\d{2}.*)?")


class Column(NamedTuple):
    """A column of a table. Text and objects are stored once each, with the place of every row's value among them."""

    name: str
    source: str  # the file or argument to name in errors
    values: np.ndarray
    codes: np.ndarray | None = None  # None: `values` has one per row; else its places in `values`, -1 where missing

    def missing(self) -> np.ndarray:
        """Rows without a value; blank text is none."""
        if self.codes is None:
            return np.isnat(self.values) if self.values.dtype.kind in "mM" else np.isnan(self.values)
        blank = np.array([isinstance(value, str) and not value.strip() for value in self.values], bool)
        return (self.codes < 0) | (np.append(blank, False)[self.codes] if blank.any() else False)

    def at(self, rows: np.ndarray) -> "Column":
        """The column with these rows only."""
        if self.codes is None:
            return self._replace(values=self.values[rows])
        return self._replace(codes=self.codes[rows])

    def cells(self, rows: np.ndarray) -> list[Any]:
        """The values of these rows, as Python's."""
        return self.values[rows if self.codes is None else self.codes[rows]].tolist()


def read_names(series: Series, name: str, source: str) -> Column:
    """A column of names, each stored once."""
    import pandas as pd

    try:
        codes, distinct = pd.factorize(series)
    except TypeError:
        raise ValueError(f"{source}: column {name} must hold one value per cell; got {series.iloc[0]!r}.") from None
    return Column(name, source, np.asarray(pd.Index(distinct).astype(object)), codes)


def read_values(series: Series, name: str, source: str) -> Column:
    """A column of numbers, dates (in UTC) or labels."""
    import pandas as pd
    from pandas.api import types

    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype) or types.is_object_dtype(dtype) or types.is_string_dtype(dtype):
        return read_names(series, name, source)
    if types.is_datetime64_any_dtype(dtype):
        dates = pd.to_datetime(series, utc=True).dt.tz_convert(None)
        return Column(name, source, dates.to_numpy("datetime64[us]"))
    if types.is_any_real_numeric_dtype(dtype) or types.is_bool_dtype(dtype):
        values = series.to_numpy(float, na_value=np.nan) if series.hasnans else series.to_numpy()
        return Column(name, source, values.astype(np.float64) if values.dtype == object else values)  # Arrow's decimals
    if types.is_timedelta64_dtype(dtype):
        raise ValueError(
            f"{source}: column {name} holds durations. Make numbers of them, such as hours: "
            f"frame[{name!r}].dt.total_seconds() / 3600."
        )
    return read_names(series.astype(object), name, source)


def as_inputs(column: Column, rows: np.ndarray) -> np.ndarray:
    """The column as floats: bools as 0 and 1, dates as days since 1970. `rows` are the places of its cells."""
    if column.codes is None:
        found = _days(column.values) if column.values.dtype.kind == "M" else column.values.astype(np.float64)
        dates = column.values.dtype.kind == "M"
    else:
        numbers, days = _parse(column.values, _used(column))
        dates = _are_dates(numbers, days, column.codes)
        found = (days if dates else numbers)[column.codes]
        if np.isnan(found).any():
            raise _refusal(column, np.isnan(found), rows, "date" if dates else "number")
    if dates:
        warnings.warn(
            f"{column.source}: column {column.name} holds dates, which become days since 1970-01-01 (UTC). If the time "
            "since each task's first row is what matters, make a column of that, such as hours.",
            TableWarning,
            stacklevel=5,
        )
    return _finite(found, column, rows)


def as_outputs(column: Column, rows: np.ndarray, labels: bool | None) -> np.ndarray:
    """The column as numbers, or as labels (None: if not most of its cells are numbers)."""
    if column.codes is None:
        if column.values.dtype.kind == "M":
            raise _date_outputs(column)
        return _finite(column.values, column, rows)
    numbers, days = _parse(column.values, _used(column))
    if _are_dates(numbers, days, column.codes) and not np.isnan(days[column.codes]).any():
        raise _date_outputs(column)
    bad = np.isnan(numbers)[column.codes]
    if not bad.any():
        kinds = {type(value) for value in column.values}
        found = numbers[column.codes]
        return found.astype(bool) if kinds <= {bool, np.bool_} else _finite(found, column, rows)
    if labels or (labels is None and 2 * bad.sum() >= len(bad)):
        return column.values[column.codes]
    raise _refusal(column, bad, rows, "number")


def _used(column: Column) -> np.ndarray:
    """Which of the distinct values some row has."""
    used = np.zeros(len(column.values), bool)
    used[column.codes] = True
    return used


def _parse(values: np.ndarray, used: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values as numbers and as days since 1970, NaN where they are none."""
    import pandas as pd

    numbers, days = np.full(len(values), np.nan), np.full(len(values), np.nan)
    is_text = np.array([isinstance(value, str) for value in values], bool)
    text = used & is_text
    numbers[text] = np.asarray(pd.to_numeric(pd.Series(values[text], dtype=object), errors="coerce"), np.float64)
    for i in np.flatnonzero(used & ~is_text).tolist():
        numbers[i] = _as_float(values[i])
    unread = used & np.isnan(numbers)
    dated = unread & np.array([isinstance(value, str | datetime.date | np.datetime64) for value in values], bool)
    if dated.any():
        dates = pd.to_datetime(pd.Series(values[dated], dtype=object), format="ISO8601", utc=True, errors="coerce")
        days[dated] = _days(dates.dt.tz_convert(None).to_numpy("datetime64[us]"))
    return numbers, days


def _as_float(value: Any) -> float:
    if not isinstance(value, int | float | np.number | np.bool_ | decimal.Decimal) or isinstance(value, complex):
        return np.nan
    try:
        return float(value)
    except OverflowError:
        return np.inf


def _days(dates: np.ndarray) -> np.ndarray:
    return (dates - np.datetime64(0, "us")) / np.timedelta64(1, "D")


def _are_dates(numbers: np.ndarray, days: np.ndarray, codes: np.ndarray) -> bool:
    """More rows hold dates than numbers, and most of those that hold no number."""
    is_date = int(np.count_nonzero(~np.isnan(days)[codes]))
    is_number = int(np.count_nonzero(~np.isnan(numbers)[codes]))
    return is_date > is_number and 2 * is_date > len(codes) - is_number


def _finite(values: np.ndarray, column: Column, rows: np.ndarray) -> np.ndarray:
    bad = ~np.isfinite(values)
    if bad.any():
        first = int(bad.argmax())
        raise ValueError(
            f"{column.source}: row {rows[first] + 1}, column {column.name}: {values[first]} is not finite"
            f"{_others(bad)}. Mend such cells, or make them missing."
        )
    return values


def _refusal(column: Column, bad: np.ndarray, rows: np.ndarray, kind: str) -> ValueError:
    """Name the first cell that is no number, or no date."""
    first = int(bad.argmax())
    cell = column.cells(np.array([first]))[0]
    shown = json.dumps(cell[:40], ensure_ascii=False) if isinstance(cell, str) else repr(cell)[:40]
    advice = "Mend such cells, or make them missing."
    if isinstance(cell, str) and DECIMAL_COMMA.fullmatch(cell):
        advice = f"Write numbers with a decimal point, as {cell.strip().replace(',', '.')}."
    if isinstance(cell, str) and DATE_OR_TIME.fullmatch(cell.strip()):
        advice = "Write dates as 2026-01-31 or 2026-01-31T12:30, or, better, make a column of hours since a start."
    return ValueError(
        f"{column.source}: row {rows[first] + 1}, column {column.name}: {shown} is not a {kind}{_others(bad)}. {advice}"
    )


def _others(bad: np.ndarray) -> str:
    more = int(bad.sum()) - 1
    return f" (nor {'are' if more > 1 else 'is'} {more} more)" if more else ""


def _date_outputs(column: Column) -> ValueError:
    return ValueError(
        f"{column.source}: y must be numbers or labels; column {column.name} holds dates. Predict a number made of "
        "them, such as days since each task's first row."
    )
