"""What all commands share: where they write, bars, tables, and how a mistake is told."""

import json
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

out, err = Console(), Console(stderr=True)
# What messages call arguments of Python, as options; the longer first.
OPTIONS = {
    r"drop_missing=True": "--drop-missing",
    r"drop_duplicates=True": "--drop-duplicates",
    r"overwrite=True": "--overwrite",
    r"\bmetaprior\.store_tasks\b": "metaprior store",
    r"^out must": "--out must",
    r"\bfewer tasks \(": "fewer tasks (--max-tasks; ",
    r"\bn_(steps|particles)\b": r"--\1",
    r"\bnoise_std\b": "--noise",
    r"\b(batch|prior|search)_(size|std|time)\b": r"--\1-\2",
    r"(?<![\w-])(inference|kernel|mean|alpha|temperature)='(\w+)'": r"--\1 \2",
    r"(--[a-z-]+)='?(\w+)'?": r"\1 \2",
}
TASK_COLUMNS = re.compile(r"\btask=\[([^]]*)\]")


@contextmanager
def progress(total: int) -> Iterator[Callable[..., None]]:
    """A bar for a known number of things to do, told what is done now and how many are done with that."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as shown:
        bar = shown.add_task("starting", total=total)
        yield lambda name, done=1: shown.update(bar, description=name, advance=done)


def print_table(names: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """A table on standard output, numbers to the right."""
    # As text: the names of people's tasks and columns may look like markup.
    table = Table(*(Column(Text(name), justify="right" if i else "left") for i, name in enumerate(names)))
    for row in rows:
        table.add_row(*map(Text, row))
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
        raise exit_error(f"--out {folder}: cannot write there ({reason}). Choose another folder.") from None


@contextmanager
def report_errors() -> Iterator[None]:
    """What is wrong with arguments or data is said in words, and ends the command with 2; warnings become notes.

    METAPRIOR_TRACEBACK=1 shows where it was found, for what turns out to be no mistake of the user's.
    """
    from metaprior.training.loop import TrainingDiverged

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: print_note(_with_options(str(message)))
        try:
            yield
        except (ValueError, OSError) as error:  # an InvalidFile is a ValueError
            if os.environ.get("METAPRIOR_TRACEBACK"):
                raise
            raise exit_error(_with_options(str(error))) from None
        except TrainingDiverged as error:
            err.print(_with_options(str(error)), style="red", markup=False, highlight=False)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            err.print("Stopped.")
            raise typer.Exit(130) from None


def _with_options(text: str) -> str:
    """Advice for Python as advice for the command line."""
    for argument, option in OPTIONS.items():
        text = re.sub(argument, option, text)
    named = lambda found: " ".join(f"--task {name.strip()}" for name in found[1].replace("'", "").split(","))  # noqa: E731
    return TASK_COLUMNS.sub(named, text)


@contextmanager
def status(what: str) -> Iterator[None]:
    """Says what is being done, on a terminal, while it takes."""
    with err.status(what):
        yield


def print_note(message: str) -> None:
    """Something to know, that stops nothing."""
    err.print(f"Note: {message}", style="yellow", markup=False, highlight=False)


def print_json(value: Any) -> None:
    """One line for machines."""
    from metaprior.files import nan_to_none

    print(json.dumps(nan_to_none(value), default=str))


def task_label(name: Any) -> str:
    """The name of a task, which may be of several columns."""
    return " ".join(map(str, name)) if isinstance(name, tuple) else str(name)


def exit_error(message: str) -> typer.Exit:
    """Say what is wrong, as it is: a file name may look like markup."""
    err.print(message, style="red", markup=False, highlight=False)
    return typer.Exit(2)
