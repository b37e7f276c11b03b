"""The cells of a column as numbers, dates, labels and names."""

import datetime
from typing import Any

import numpy as np

from metaprior.checks import Argument, Message
from metaprior.tables.csv_files import Source
from metaprior.tables.guesses import FIX, MOMENTS, categories, look_of, shown
from metaprior.tasks.categories import bool_and_number, plain

Series = Any  # pandas annotates every selection from a frame as perhaps a frame


def as_names(series: Series, source: Source) -> Series:
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


def check_kinds(series: Series, source: Source) -> None:
    """Raise if a column has bools among its numbers: True and 1 would be one name, or level."""
    if series.dtype != object:
        return
    values = series.to_numpy()
    if (both := bool_and_number(values)) is not None:
        found = " and ".join(f"{plain(values[row])!r} ({source.place(row)})" for row in both)
        raise ValueError(f"{source}: column {series.name!r} has {found}, a bool and a number. Make them of one kind.")


def check_text(series: Series, source: Source) -> None:
    """Raise if a cell has a NUL character, which no text has: NumPy would drop it from the end of a label."""
    if series.dtype.kind != "O":
        return
    series = series.cat.remove_unused_categories()
    bad = [value for value in series.cat.categories if isinstance(value, str) and "\0" in value]
    if bad:
        row = int((series == bad[0]).idxmax())
        advice = "Remove it; the table may be damaged, or in another encoding."
        raise ValueError(
            f"{source}: {source.place(row)}, column {series.name}: {bad[0]!r} has a NUL character. {advice}"
        )


def as_values(series: Series, source: Source) -> Series:
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


def as_inputs(series: Series, source: Source) -> tuple[np.ndarray, bool]:
    """Return a column as floats (bools as 0 and 1, dates as days since 1970), and whether it holds dates."""
    dates = series.dtype.kind == "M"
    if series.dtype.kind != "O":
        return _finite(_days(series) if dates else series.to_numpy(np.float64), series, source), dates
    numbers, days = _parse(series)
    dates = _are_dates(numbers, days)
    found = days if dates else numbers
    bad = np.isnan(found)
    if bad.any():
        kind = "date" if dates else "number"
        cells = _distinct(series, bad)
        look = look_of(cells)
        otherwise = categories(cells) if bad.all() else Message(FIX)
        raise _not_a(series, bad, source, kind, otherwise if look is None else look.advice)
    return _finite(found, series, source), dates


def is_declared_category(series: Series, source: Source) -> bool:
    """Return whether the type of a column says that it holds categories, of any values but dates.

    Text of files is of that type to save memory, so there it says nothing.
    """
    import pandas as pd

    if not isinstance(series.dtype, pd.CategoricalDtype):
        return False
    levels = series.cat.categories
    return levels.dtype.kind != "M" and (source.file is None or not all(isinstance(level, str) for level in levels))


def is_category(series: Series) -> bool:
    """Return whether a column holds text that is neither numbers nor dates nor looks like them in other writing."""
    if series.dtype.kind != "O" or not len(series):
        return False
    if not all(isinstance(cell, str) for cell in series.cat.remove_unused_categories().cat.categories):
        return False
    numbers, days = _parse(series)
    bad = np.isnan(numbers)
    return bool(bad.all()) and not _are_dates(numbers, days) and look_of(_distinct(series, bad)) is None


def as_levels(series: Series) -> np.ndarray:
    """Return a column of categories as objects, None where they are missing."""
    cells = np.array(series, object)
    cells[np.asarray(series.isna())] = None
    return cells


def as_outputs(series: Series, source: Source, labels: bool | None) -> np.ndarray:
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
    cells = _distinct(series, bad)
    look = look_of(cells)
    is_moment = look is not None and not look.is_number
    may_be = (look is None and not _are_readings(numbers[~bad], cells)) or (is_moment and len(cells) == 2)
    if labels or (labels is None and 2 * bad.sum() >= len(bad) and may_be):
        return _as_labels(series, bad, source)
    advice = Message(MOMENTS) if is_moment else Message(FIX) if look is None else look.advice
    meant: Any = (" If these are labels, ", Argument("write them in other words"), ".") if labels is None else ()
    raise _not_a(series, bad, source, "number", Message(advice, *meant))


def _are_readings(numbers: np.ndarray, texts: list[Any]) -> bool:
    """Return whether the numbers among text, as in a column of readings and ND, are more varied than labels are."""
    return len(np.unique(numbers)) > max(2, len(texts))


def _as_labels(series: Series, bad: np.ndarray, source: Source) -> np.ndarray:
    """Return text, numbers and bools as they are; raise for everything else that a data frame may hold."""
    odd = bad & np.array([not isinstance(cell, str) for cell in series.cat.categories])[series.cat.codes.to_numpy()]
    if odd.any():
        raise _not_a(series, odd, source, "number or label", Message("Labels are text, numbers or bools."))
    return np.asarray(series, object)


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


def _distinct(series: Series, rows: np.ndarray) -> list[Any]:
    return series[rows].cat.remove_unused_categories().cat.categories.tolist()


def _finite(values: np.ndarray, series: Series, source: Source) -> np.ndarray:
    bad = ~np.isfinite(values)
    if bad.any():
        raise _bad_cell(series, bad, source, f"{values[bad.argmax()]} is not finite", Message(FIX))
    return values


def _not_a(series: Series, bad: np.ndarray, source: Source, kind: str, advice: Message) -> ValueError:
    """Return an error that names the first cell that is not a number, or not a date, and says what may help."""
    return _bad_cell(series, bad, source, f"{shown(series.iloc[bad.argmax()])} is not a {kind}", advice)


def _bad_cell(series: Series, bad: np.ndarray, source: Source, what: str, advice: Message) -> ValueError:
    more = int(bad.sum()) - 1
    others = f" (nor {'are' if more > 1 else 'is'} {more} more)" if more else ""
    place = source.place(int(series.index[bad.argmax()]))
    return ValueError(Message(f"{source}: {place}, column {series.name}: {what}{others}. ", advice))
