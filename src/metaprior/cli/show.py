"""What all commands share: where they write, bars, tables, and how a mistake is told."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

out, err = Console(), Console(stderr=True)


@contextmanager
def progress(total: int) -> Iterator[Callable[..., None]]:
    """A bar for a known number of things to do, told what is done now and how many are done with that."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as shown:
        bar = shown.add_task("starting", total=total)
        yield lambda name, done=1: shown.update(bar, description=name, advance=done)


def print_table(names: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """A table on standard output, numbers to the right."""
    table = Table(names[0], *(Column(name, justify="right") for name in names[1:]))
    for row in rows:
        table.add_row(*row)
    out.print(table)


def make_folder(folder: Path) -> None:
    """Find out before the work, not after it, that results cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".metaprior-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = error.strerror or error
        raise refusal(f"--out {folder}: cannot write there ({reason}). Choose another folder.") from None


def refusal(message: str) -> typer.Exit:
    """Say what is wrong, as it is: a file name may look like markup."""
    err.print(message, style="red", markup=False, highlight=False)
    return typer.Exit(2)
