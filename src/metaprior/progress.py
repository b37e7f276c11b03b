"""Progress bars on standard error, numbered where a computation has several phases."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Move = Callable[[float, str], None]  # of (units done, detail)


class Phases:
    """How many phases a computation has, and the names of those that have begun."""

    def __init__(self, total: int):
        self.total, self.begun = total, []

    def label(self, name: str) -> str:
        """Return the name with its number; bars of one name are one phase."""
        if name not in self.begun:
            self.begun.append(name)
        return f"{self.begun.index(name) + 1}/{max(self.total, len(self.begun))} {name}"


_current: list[Phases] = []


@contextmanager
def phases(total: int) -> Iterator[None]:
    """Number the progress bars that are shown inside; some of the phases may be skipped."""
    _current.append(Phases(total))
    try:
        yield
    finally:
        _current.pop()


@contextmanager
def progress_bar(
    description: str, total: float | None, unit: str, show: bool | None = None, detail: str = ""
) -> Iterator[Move | None]:
    """Yield a function of (units done, detail) that moves a progress bar, or None if no bar is shown.

    A total of None shows that something happens, not how far it is. `show=None` shows the bar if standard error is a
    terminal.
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    counts: list[Any] = [] if total is None else [TextColumn(f"{{task.completed:.0f}}/{{task.total:.0f}} {unit}")]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        *counts,
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    label = _current[-1].label(description) if _current else description
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total, detail=detail)
        yield lambda done, detail: progress.update(task, completed=done, detail=detail)
