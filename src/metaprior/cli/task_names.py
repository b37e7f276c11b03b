"""What messages call tasks: the library counts them, `source_tasks['north'][3]`; users know the rows of their table."""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from metaprior.checks import Argument, Message
from metaprior.tables.csv_files import Source

Place = Callable[[int], tuple[Any, int | None]]  # from the number of a task to its name and first row


@contextmanager
def tasks_by_name(source: Source, y: str | None, places: Mapping[str, Place], x: Sequence[str] = ()) -> Iterator[None]:
    """Show errors and warnings of the library with the table, the line, the column and the name of a task.

    `places` has an entry for every argument of the library that tasks are passed as, `x` the names of input columns.
    """

    def rename(error: Any) -> None:
        if error.args and isinstance(error.args[0], str):
            message = error.args[0]
            parts = message.parts if isinstance(message, Message) else (message,)
            renamed = (part if isinstance(part, Argument) else _renamed(part, source, y, places, x) for part in parts)
            error.args = (Message(*renamed), *error.args[1:])

    show = warnings.showwarning
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *rest, **more: (rename(message), show(message, *rest, **more))[1]
        try:
            yield
        except ValueError as error:
            rename(error)
            raise


def columns_by_name(text: str, x: Sequence[str]) -> str:
    """Return text with the input columns that it counts, as X[:, 0], by name."""
    return re.sub(r"X\[:, (\d+)\]", lambda found: repr(x[int(found[1])]) if int(found[1]) < len(x) else found[0], text)


def _renamed(text: str, source: Source, y: str | None, places: Mapping[str, Place], x: Sequence[str]) -> str:
    """Return text with the tasks and input columns that it counts by name."""
    text = columns_by_name(text, x)
    for argument, place in places.items():
        counted = rf"(?<!\w){re.escape(argument)}\[(?P<number>\d+)\](?P<part> context| query)?(?P<y>(?=:? y\b))?"

        def named(found: re.Match[str], place: Place = place) -> str:
            name, row = place(int(found["number"]))
            column = "" if found["y"] is None else f", column {y}"
            return f"{source.task(name, row)}{found['part'] or ''}{column}"

        text = re.sub(counted, named, text)
    return re.sub(r"^y (?=must|has|is)", f"{source}: column {y}: y ", text)
