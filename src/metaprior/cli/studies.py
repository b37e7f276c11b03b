"""`metaprior demo`, `reproduce` and `bench-data`: commands of the package in studies/, imported when called."""

from importlib import import_module

import typer

from metaprior.cli.console import exit_error

STUDIES = {
    "demo": "Compare every scheme on one problem.",
    "reproduce": "Run the experiments of the paper again and check its claims.",
    "bench-data": "Compare every scheme on real data.",
}
FORWARD = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def add_studies(app: typer.Typer) -> None:
    """Register a command for every study that passes its arguments on."""
    for name, summary in STUDIES.items():
        app.command(name, help=summary, context_settings=FORWARD)(_run_study)


def _run_study(context: typer.Context) -> None:
    try:
        studies = import_module("metaprior_studies.commands")
    except ModuleNotFoundError as error:
        raise exit_error(
            f"metaprior {context.info_name} needs the studies, which are not part of the package ({error.name} is not "
            "installed): run `pip install ./studies` in a checkout of metaprior."
        ) from None
    studies.app([str(context.info_name), *context.args], prog_name="metaprior")
