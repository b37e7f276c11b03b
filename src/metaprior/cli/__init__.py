"""The command line: `metaprior --help`."""

from typing import Annotated

import typer

from metaprior.cli.console import out
from metaprior.cli.evaluate import evaluate
from metaprior.cli.example import example
from metaprior.cli.fit import fit
from metaprior.cli.info import info
from metaprior.cli.predict import predict
from metaprior.cli.store import store
from metaprior.cli.studies import add_studies

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
for command in (fit, evaluate, predict, info, store, example):
    app.command()(command)
add_studies(app)


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False):
    """Learn Gaussian-process priors from many small tasks, most of them from another environment."""
    if version:
        from metaprior import __version__

        out.print(__version__)
        raise typer.Exit
