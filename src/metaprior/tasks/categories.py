"""Categories and covariates among the columns of X: their levels are learned in a fit and looked up ever after."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from metaprior.checks import Argument, Message, counted
from metaprior.tasks.column_kinds import ColumnKinds
from metaprior.tasks.spelling import as_text, check_spelling, plain

MAX_LEVELS = 200  # of a column: each is a column of its own in the model
SHOWN = 5  # rows, or levels, in a message


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
