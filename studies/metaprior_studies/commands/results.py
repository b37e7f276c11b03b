"""What the commands share when a study is stopped."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from metaprior.cli.console import err, exit_error


@contextmanager
def keep_results() -> Iterator[None]:
    """What all studies do when they are stopped, or when what they find in their folder is not theirs."""
    from metaprior_studies.results_store import ResultsError

    try:
        yield
    except ResultsError as error:
        raise exit_error(str(error)) from None
    except KeyboardInterrupt:
        err.print("Stopped. What was finished is kept: run the same command with --resume.")
        raise typer.Exit(130) from None
