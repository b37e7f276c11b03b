"""The command line: `metaprior --help`. Commands of the package in studies/ are imported when called."""

from collections.abc import Callable
from importlib import import_module
from typing import Annotated, NoReturn

import typer

from metaprior.cli.console import exit_error, exit_with, guard_streams, out
from metaprior.cli.data import app as open_page
from metaprior.cli.data import example, store
from metaprior.cli.evaluate import evaluate
from metaprior.cli.fit import fit
from metaprior.cli.info import info
from metaprior.cli.options import Command, Group
from metaprior.cli.predict import predict
from metaprior.cli.wfem import wfem

STUDIES = {
    "demo": "Compare every scheme on one problem.",
    "reproduce": "Reproduce the paper's experiments and check its claims.",
    "bench-data": "Compare every scheme on real data.",
}
FORWARD = {"ignore_unknown_options": True, "help_option_names": []}


def add_studies(app: typer.Typer) -> None:
    """Register a command for every study, which forwards its arguments."""
    for name, summary in STUDIES.items():
        app.command(name, help=summary, context_settings=FORWARD)(_forward(name))


def _forward(name: str) -> Callable[..., None]:
    def run_study(arguments: Annotated[list[str] | None, typer.Argument(show_default=False)] = None) -> None:
        try:
            import_module("metaprior_studies.commands").app([name, *(arguments or [])], prog_name="metaprior")
        except ModuleNotFoundError as error:
            missing = str(error.name).partition(".")[0]
            advice = "run `pip install ./studies` in a checkout of metaprior."
            raise exit_error(f"metaprior {name} needs the package {missing}: {advice}") from None

    return run_study


app = typer.Typer(cls=Group, no_args_is_help=True, pretty_exceptions_enable=False)
for command in (fit, evaluate, predict, info, store, example, wfem):
    app.command(cls=Command)(command)
app.command("app", cls=Command)(open_page)
add_studies(app)


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False):
    """Learn Gaussian-process priors from many small tasks, most of them from another environment."""
    if version:
        from metaprior import __version__

        out.print(__version__)
        raise typer.Exit


def run() -> NoReturn:
    """Run the command that the arguments of the process name, and end with its exit code."""
    output = guard_streams()
    try:
        app(prog_name="metaprior")
    except SystemExit as ended:
        exit_with(int(ended.code or 0), output)
    exit_with(0, output)
