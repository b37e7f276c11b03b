"""A progress bar for people, nothing for pipes."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(
    description: str, total: int, show: bool | None = None
) -> Iterator[Callable[[int, float], None] | None]:
    """Yield a function of (steps done, loss) that moves the bar; None where nobody looks.

    `show=None` shows the bar only if standard error is a terminal.
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} steps"),
        TextColumn("loss {task.fields[loss]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(description, total=total, loss="compiling")
        yield lambda done, loss: progress.update(task, completed=done, loss=f"{loss:.4f}")
