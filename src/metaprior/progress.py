"""Progress on standard error, in numbered phases where there are several: bars in a terminal, JSON for programs."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Move = Callable[[float, str], None]  # of (units done, detail)
VARIABLE, AS_JSON = "METAPRIOR_PROGRESS", "json"  # the environment variable, and its value that asks for lines of JSON
MIN_SECONDS = 0.1  # from one such line to the next


class Phases:
    """How many phases a computation has, and the names of the phases that have begun."""

    def __init__(self, total: int):
        self.total, self.begun = total, []

    def place(self, name: str) -> tuple[int, int]:
        """Return the number of a phase, and how many there are; bars of one name are one phase."""
        if name not in self.begun:
            self.begun.append(name)
        return self.begun.index(name) + 1, max(self.total, len(self.begun))


_current: list[Phases | None] = []  # None: nothing is shown


@contextmanager
def phases(total: int) -> Iterator[None]:
    """Number the progress bars that are shown inside: some of the phases may be skipped, others be added inside."""
    if _current:
        if _current[-1] is not None:
            _current[-1].total += total
        yield
        return
    _current.append(Phases(total))
    try:
        yield
    finally:
        _current.pop()


@contextmanager
def silent() -> Iterator[None]:
    """Show no progress of what is computed inside."""
    _current.append(None)
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
    terminal. With METAPRIOR_PROGRESS=json a program that runs metaprior gets lines of JSON instead.
    """
    known = _current[-1] if _current else Phases(1)
    if known is None:
        yield None
        return
    number, of = known.place(description)
    if os.environ.get(VARIABLE) == AS_JSON:
        described = {"phase": description, "number": number, "of": of, "total": total, "unit": unit}
        with _as_json(described, detail) as move:
            yield move
        return
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
    label = f"{number}/{of} {description}" if _current else description
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total, detail=detail)
        yield lambda done, detail: progress.update(task, completed=done, detail=detail)


@contextmanager
def _as_json(known: dict[str, Any], detail: str) -> Iterator[Move]:
    """Yield a function that prints progress: at the beginning, at the end, and not too often between."""
    latest = 0.0

    def move(done: float, detail: str) -> None:
        nonlocal latest
        if time.monotonic() - latest > MIN_SECONDS:
            latest = time.monotonic()
            print(json.dumps({"progress": {**known, "done": done, "detail": detail}}), file=sys.stderr, flush=True)

    move(0, detail)
    yield move
    latest = 0.0
    move(known["total"] or 0, "")
