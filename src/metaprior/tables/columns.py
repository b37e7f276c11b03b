"""Which columns of a table say what, and the words for a column that is not there."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class TableWarning(UserWarning):
    """Something in a table that was dealt with, and that the user should know of."""


class Columns(NamedTuple):
    """The columns of a table with one row per sample, by name."""

    task: tuple[str, ...]  # together they name a task; none: all rows are one task
    x: tuple[str, ...]
    y: str | None  # None for a table of queries
    environment: str | None = None

    @property
    def used(self) -> list[str]:
        """Every column once: the environment may also be one of those that name the task."""
        last = [name for name in (self.y, self.environment) if name is not None]
        return list(dict.fromkeys([*self.task, *self.x, *last]))


def as_columns(*, task: Any = None, x: Any, y: Any = None, environment: Any = None) -> Columns:
    """Check names of columns: one or several for `task` and `x`, one for `y` and `environment`."""
    columns = Columns(
        task=() if task is None else _names(task, "task"),
        x=_names(x, "x"),
        y=None if y is None else _name(y, "y"),
        environment=None if environment is None else _name(environment, "environment"),
    )
    if not columns.x:
        raise ValueError("x must name one column or more; got none.")
    roles = [("task", name) for name in columns.task] + [("x", name) for name in columns.x]
    roles += [("y", columns.y)] if columns.y is not None else []
    if columns.environment is not None and columns.environment not in columns.task:
        roles.append(("environment", columns.environment))
    first: dict[str, str] = {}
    for role, name in roles:
        if name in first:
            both = f"twice in {role}" if first[name] == role else f"as {first[name]} and as {role}"
            raise ValueError(f"column {name!r} is named {both}: every column has one part to play. Leave one out.")
        first[name] = role
    return columns


def as_text(name: Any) -> Any:
    """The name of a task or environment as text: 7, 7.0 (a column of integers with gaps) and "7" are one."""
    if isinstance(name, tuple):
        return tuple(as_text(part) for part in name)
    return str(int(name)) if isinstance(name, float) and name.is_integer() else str(name)


def check_known(wanted: Iterable[str], known: Sequence[Any], source: str, index: Iterable[Any] = ()) -> None:
    """Every wanted column is there, once; `source` is the file or argument to name, `index` what its index is named."""
    for name in wanted:
        if name in index and name not in known:
            raise ValueError(f"{source} has no column {name!r}: that is its index. Pass it with .reset_index().")
        if name not in known:
            raise ValueError(f"{source} has no column {name!r}{_nearest(name, known)}")
        if list(known).count(name) > 1:
            raise ValueError(f"{source} has {list(known).count(name)} columns named {name!r}. Rename all but one.")


def _nearest(name: str, known: Sequence[Any]) -> str:
    if not len(known):
        return ": it has no columns."
    texts = [str(column) for column in known]
    lower = {text.lower().strip(): text for text in reversed(texts)}
    close = difflib.get_close_matches(name.lower().strip(), list(lower), n=1)
    guess = f"; did you mean {lower[close[0]]!r}? Its" if close else "; its"
    shown = ", ".join(map(repr, texts[:12])) + (f" and {len(texts) - 12} more" if len(texts) > 12 else "")
    separator = next((mark for mark in (";", "\t", "|") if len(texts) == 1 and mark in texts[0]), None)
    advice = "" if separator is None else f" Columns seem to be separated by {separator!r}: they must be by commas."
    return f"{guess} columns are {shown}.{advice}"


def _names(value: Any, role: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return (_name(value, role),)
    if isinstance(value, dict | set | frozenset) or not isinstance(value, Iterable):  # inputs have an order
        raise ValueError(f"{role} must be the name of a column, or several; got {value!r}.")
    return tuple(_name(item, role) for item in value)


def _name(value: Any, role: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{role} must be the name of a column, text that is not empty; got {value!r}.")
    return value
