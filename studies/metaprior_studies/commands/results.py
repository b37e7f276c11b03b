"""What the commands of the studies share: their folder, a progress bar, and how an interrupted study ends."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from metaprior.cli.console import err, exit_error
from metaprior.terminal import tell_on_stop

KEPT = "Finished points are kept: run the same command with --resume to continue."


@contextmanager
def keep_results() -> Iterator[None]:
    """Turn unusable results and interruptions into a message and an exit code."""
    from metaprior_studies.results_store import ResultsError

    tell_on_stop(KEPT)
    try:
        yield
    except ResultsError as error:
        raise exit_error(str(error)) from None
    except KeyboardInterrupt:
        err.print(f"Stopped. {KEPT}")
        raise typer.Exit(130) from None


@contextmanager
def progress(total: int) -> Iterator[Callable[..., None]]:
    """Show a progress bar; yield a function that takes what is done now, and how many steps that completes."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as shown:
        bar = shown.add_task("starting", total=total)
        yield lambda name, done=1: shown.update(bar, description=name, advance=done)


def make_folder(folder: Path) -> None:
    """Create a folder, and check before any work that files can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".metaprior-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = error.strerror or error
        raise exit_error(f"--out {folder}: cannot write there ({reason}). Choose another folder.") from None
