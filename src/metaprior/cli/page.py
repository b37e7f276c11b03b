"""`metaprior app`."""

import threading
from pathlib import Path
from typing import Annotated

import typer

from metaprior.cli.console import out, print_note, report_errors


def app(
    file: Annotated[
        Path | None, typer.Argument(help="A table to fit a prior to, or a saved prior. Both can be chosen on the page.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of this machine (default: the first free from 8460 on).")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
):
    """Open a page in the browser: choose a table, fit a prior, and click readings of a new task into a chart.

    Everything stays on this machine: the page is served to this machine only, at an address with a random token, and
    loads nothing from elsewhere. Ctrl-C ends it.
    """
    with report_errors():
        if file is not None and not file.exists():
            raise ValueError(f"{file} does not exist: expected a CSV or Parquet table, or a prior (.safetensors).")
        from metaprior_app.server import serve

        def started(address: str) -> None:
            out.print(f"The page is at {address}", soft_wrap=True)
            out.print("Open this address in a browser of this machine. Ctrl-C ends the page.")
            if browser:
                threading.Thread(target=_open_browser, args=(address,), daemon=True).start()

        serve(file, port, started)


def _open_browser(address: str) -> None:
    """Open a browser, or say that there is none."""
    import webbrowser

    try:
        opened = webbrowser.open(address)
    except (webbrowser.Error, OSError):
        opened = False
    if not opened:
        print_note("no browser could be opened: copy the address into one.")
