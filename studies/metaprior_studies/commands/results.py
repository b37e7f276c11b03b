"""How the commands end when a study is interrupted or its folder cannot be used."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from metaprior.cli.console import err, exit_error


@contextmanager
def keep_results() -> Iterator[None]:
    """Turn unusable results and interruptions into a message and an exit code."""
    from metaprior_studies.results_store import ResultsError

    try:
        yield
    except ResultsError as error:
        raise exit_error(str(error)) from None
    except KeyboardInterrupt:
        err.print("Interrupted. Finished points are kept: run the same command with --resume to continue.")
        raise typer.Exit(130) from None
