"""Categories and covariates among the columns of X, and names that may be the same, written in two ways.

Names that read the same, as 1 and "1", "a" and "a ", or an accent stored in two ways, are refused where both are in one
fit or one table. Names that may be the same, as Yes and yes, are two, with a warning.
Levels are learned in a fit and looked up in new tasks.
"""

import difflib
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from metaprior.checks import Argument, Message, counted, warn_caller

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


MAX_LEVELS = 200  # of a column: each is a column of its own in the model
SHOWN = 5  # rows, or levels, in a message


@dataclass(frozen=True)
class ColumnKinds:
    """The kind of every column of X. In X, a level is its number, and the number of levels is an unseen level."""

    levels: tuple[int, ...]  # of every column the number of its levels; 0: the column holds numbers
    covariates: tuple[int, ...] = ()  # columns that are constant within a task; missing values are NaN

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Columns of X in the order in which they are expanded: numbers, then categories, then covariates."""
        inputs = [i for i in range(len(self.levels)) if i not in self.covariates]
        return (*sorted(inputs, key=lambda i: self.levels[i] > 0), *sorted(self.covariates))

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of columns after expansion, in their order."""
        return tuple((self.levels[i] + 1 if self.levels[i] else 1) + (i in self.covariates) for i in self.order)

    @property
    def input_widths(self) -> tuple[int, ...]:
        """Numbers of columns of each input that is no covariate: 1 for numbers, which come first."""
        return self.widths[: len(self.levels) - len(self.covariates)]

    @property
    def covariate_widths(self) -> tuple[int, ...]:
        """Numbers of columns of each covariate."""
        return self.widths[len(self.levels) - len(self.covariates) :]

    @property
    def is_number(self) -> np.ndarray:
        """Whether each column of X holds numbers."""
        return np.array(self.levels) == 0

    def place(self, column: int) -> int:
        """Return where a column of X begins after expansion."""
        return sum(self.widths[: self.order.index(column)])

    def with_number(self, column: int) -> "ColumnKinds":
        """Return the kinds of X with one more column of numbers, which becomes the one so called."""
        covariates = tuple(i + (i >= column) for i in self.covariates)
        return ColumnKinds((*self.levels[:column], 0, *self.levels[column:]), covariates)

    def expand(self, numbers: Any, x: Any, shares: Any, xp: Any = np) -> Any:
        """Return X (..., columns) as numbers (..., sum of widths), given its standardized numbers and shares of levels.

        `xp` is NumPy or torch; exported files contain this text, too.
        """
        parts: list[Any] = []
        starts = [sum(self.widths[:place]) for place in range(len(self.widths))]
        for i, start in zip(self.order, starts, strict=True):
            column, one = x[..., i : i + 1], xp.ones_like(numbers[..., i : i + 1])
            missing = xp.isnan(column)
            values = numbers[..., i : i + 1]
            if self.levels[i]:
                is_level = [xp.where(column == code, one, 0.0 * one) for code in range(self.levels[i] + 1)]
                values = xp.concatenate(is_level, -1) - shares[start : start + self.levels[i] + 1]
            parts.append(xp.where(missing, 0.0, values))
            if i in self.covariates:
                parts.append(xp.where(missing, one, 0.0 * one))
        return xp.concatenate(parts, -1)

    def shares(self, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return how frequent the levels are among rows with weights, (sum of widths,); 0 for other columns."""
        found = []
        for i, width in zip(self.order, self.widths, strict=True):
            share = np.zeros(width)
            if self.levels[i]:
                present = weights * ~np.isnan(x[:, i])
                total = present @ _is_level(x[:, i], self.levels[i])
                share[: self.levels[i] + 1] = total / max(total.sum(), 1e-300)
            found.append(share)
        return np.concatenate(found)


def without_column(kinds: ColumnKinds | None, column: int | None) -> ColumnKinds | None:
    """Return the kinds of X without a column, such as an exposure; None: all columns are numbers, or are kept."""
    if kinds is None or column is None:
        return kinds
    covariates = tuple(i - (i > column) for i in kinds.covariates if i != column)
    return ColumnKinds((*kinds.levels[:column], *kinds.levels[column + 1 :]), covariates)


def _is_level(codes: np.ndarray, n_levels: int) -> np.ndarray:
    """Return 1.0 where a code is that of a level, (n, levels + 1)."""
    return (codes[:, None] == np.arange(n_levels + 1)).astype(float)


class Coded(np.ndarray):
    """Inputs whose categories are codes already: they are not looked up as levels again. Parts of it are such, too."""


@dataclass
class Categories:
    """Which columns of X are categories, with their levels, and which are covariates, constant within a task."""

    levels: dict[int, dict[Any, int]] = field(default_factory=dict)  # codes of the levels, by column
    covariates: tuple[int, ...] = ()
    unseen: dict[int, dict[Any, None]] = field(default_factory=dict)  # levels met since the last warning

    def codes(self, column: int, cells: Sequence[Any], learning: bool, where: str = "X") -> np.ndarray:
        """Return the codes of cells, NaN for missing ones; without `learning` all new levels have one code."""
        known = self.levels[column]
        texts = {} if learning else {as_text(level): code for level, code in known.items()}
        codes, n_known = np.full(len(cells), np.nan), len(known)
        for row, cell in enumerate(cells):
            if is_missing(cell):
                continue
            level = plain(cell)
            if not isinstance(level, str | int | float) or level in (np.inf, -np.inf):  # what a file can hold
                kind = type(level).__name__
                raise ValueError(f"{where} must hold text, finite numbers or bools; got {level!r}, a {kind}.")
            if learning:
                codes[row] = known.setdefault(level, len(known))
                continue
            # A column of another table may be read as numbers where that of the fit was text: 7, 7.0 and "7" are one.
            code = known.get(level, texts.get(as_text(level)))
            codes[row] = n_known if code is None else code
            if code is None:
                self.unseen.setdefault(column, {})[level] = None
        if learning and (both := bool_and_number(every := [*known, *cells])) is not None:
            found = " and ".join(repr(plain(every[place])) for place in both)
            raise ValueError(f"{where} has the levels {found}, a bool and a number. Make them of one kind.")
        return codes

    def check_constant(self, x: np.ndarray, where: str, name: Any) -> None:
        """Raise if a covariate has two values in the rows of a task; `name` gives the name of a column."""
        for column in self.covariates if len(x) else ():
            values = x[:, column]
            other = np.flatnonzero((values != values[0]) & ~(np.isnan(values) & np.isnan(values[0])))
            if len(other):
                rows = f"{'rows' if len(other) > 1 else 'row'} {', '.join(map(str, other[:SHOWN].tolist()))}"
                rows += ", ..." * (len(other) > SHOWN)
                raise ValueError(
                    Message(
                        f"{where}: covariate {name(column)} must have one value within a task; it differs from the "
                        f"first row in {rows}. Correct these rows, or take the column out of ",
                        *(Argument("covariates"), " to use it as an input."),
                    )
                )

    def kinds(self, count: int) -> ColumnKinds | None:
        """Return the kinds of so many columns; None if all are numbers and inputs."""
        if not (self.levels or self.covariates):
            return None
        return ColumnKinds(tuple(len(self.levels.get(i, ())) for i in range(count)), self.covariates)

    def check_learned(self, name: Any) -> None:
        """Raise if a category has one level only, or too many."""
        for column, levels in self.levels.items():
            if len(levels) < 2:
                found = f"column {name(column)} has one level only, {next(iter(levels), None)!r}, in all tasks"
                raise ValueError(f"{found}: it tells nothing. Leave it out.")
            if len(levels) > MAX_LEVELS:
                found = f"column {name(column)} has {len(levels)} levels; a category may have {MAX_LEVELS}"
                raise ValueError(f"{found}. Group rare levels or, if it names tasks or environments, use it as such.")
            check_spelling(levels, "level", f"column {name(column)}: ")

    def listed(self, column: int) -> list[Any]:
        """Return the levels of a column."""
        return list(self.levels[column])


def bool_and_number(cells: Sequence[Any] | np.ndarray) -> tuple[int, int] | None:
    """Return the places of the first bool and the first number if there are both: as names True and 1 would be one."""
    kinds = list(map(type, cells))
    bools = {kind for kind in {*kinds} if issubclass(kind, bool | np.bool_)}
    numbers = {kind for kind in {*kinds} if issubclass(kind, int | float | np.number)} - bools
    if not (bools and numbers):
        return None
    first_bool = next(row for row, kind in enumerate(kinds) if kind in bools)
    first_number = (row for row, kind in enumerate(kinds) if kind in numbers and not is_missing(cells[row]))
    return next(((first_bool, row) for row in first_number), None)


def is_missing(cell: Any) -> bool:
    """Return whether a cell is None, NaN, or pandas' NA."""
    is_nan = isinstance(cell, float | np.floating) and bool(cell != cell)
    return cell is None or type(cell).__name__ in ("NAType", "NaTType") or is_nan


def column_places(given: Any, name: str, names: Sequence[str] | None, count: int) -> tuple[int, ...]:
    """Return the places of columns that an argument names, by their names or numbers."""
    if given is None:
        return ()
    if not isinstance(given, str | int | np.integer | Iterable):
        raise ValueError(Message(Argument(name), f" must name columns of X, or give their numbers; got {given!r}."))
    items = [given] if isinstance(given, str | int | np.integer) else list(given)
    places = []
    for item in items:
        if isinstance(item, str):
            if names is None:
                unnamed = f" names {item!r}, but X has no column names. Pass data frames, or numbers of columns."
                raise ValueError(Message(Argument(name), unnamed))
            if item not in names:
                known = ", ".join(map(repr, names[:12]))
                raise ValueError(Message(Argument(name), f" names {item!r}, which is no column of X: {known}."))
            places.append(list(names).index(item))
        elif isinstance(item, int | np.integer) and not isinstance(item, bool) and 0 <= item < count:
            places.append(int(item))
        else:
            expected = f" must name columns of X, or give their numbers from 0 to {count - 1}; got {item!r}."
            raise ValueError(Message(Argument(name), expected))
    if len(set(places)) < len(places):
        raise ValueError(Message(Argument(name), f" names a column twice: {items}. Leave one out."))
    if name == "covariates" and len(places) == count:
        few = f" names all {counted(count, 'column')} of X: at least one must be an input that varies within tasks."
        raise ValueError(Message(Argument(name), few))
    return tuple(places)


def text_columns(x: Any) -> tuple[int, ...]:
    """Return the columns of a data frame that hold categories by their type: category, text or bool.

    Text of which most values are numbers is not one of them: it is a column of numbers with some bad cells.
    """
    if not (hasattr(x, "iloc") and hasattr(x, "columns")):
        return ()
    return tuple(i for i in range(x.shape[1]) if _is_category(x.iloc[:, i]))


def _is_category(column: Any) -> bool:
    kind = getattr(column.dtype, "name", "")
    if kind in ("category", "bool", "boolean"):
        return True
    if getattr(column.dtype, "kind", "") != "O":
        return False
    cells = {cell for cell in column.tolist() if isinstance(cell, str | bool)}
    others = any(not (isinstance(cell, str | bool) or is_missing(cell)) for cell in column.tolist())
    numbers = sum(isinstance(cell, str) and _reads_as_number(cell) for cell in cells)
    return bool(cells) and not others and 2 * numbers < len(cells)


def _reads_as_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
