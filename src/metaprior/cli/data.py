"""`metaprior example` and `metaprior store`, which write data, and `metaprior app`."""

import shlex
import threading
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import typer

from metaprior.checks import counted
from metaprior.cli.console import err, out, print_note, report_errors
from metaprior.cli.options import COLUMN, DATA, OUTPUT, Csv, Environment, csv_format, option, write
from metaprior.terminal import last_files

TABLES = ("patients.csv", "test.csv", "readings.csv", "hours.csv")


def example(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the tables.")] = Path("example"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files of these names.")] = False,
):
    """Write small tables to try the other commands on: simulated heart rates after surgery in two hospitals."""
    source = resources.files("metaprior").joinpath("datasets", "example")
    with report_errors():
        contents = {folder / name: source.joinpath(name).read_bytes() for name in TABLES}
        new = {path: content for path, content in contents.items() if not _holds(path, content)}
        others = [str(path) for path in new if path.exists()]
        if others and not overwrite:
            raise ValueError(f"{' and '.join(others)} would be replaced. Pass --overwrite, or another folder as --out.")
        for path, content in new.items():
            write(path, content)
    place = lambda name: shlex.quote(str(folder / name))  # noqa: E731
    out.print(
        f"Wrote {', '.join(TABLES)} to {folder}. To learn a prior, evaluate it and predict with it:\n"
        f"  metaprior fit {place('patients.csv')} --task patient --x hours --y heart_rate "
        f"--environment hospital --target south --out {place('prior.safetensors')}\n"
        f"  metaprior evaluate {place('prior.safetensors')} {place('test.csv')}\n"
        f"  metaprior predict {place('prior.safetensors')} {place('readings.csv')} {place('hours.csv')} "
        f"--out {place('predictions.csv')} --plot {place('predictions.png')}",
        soft_wrap=True,
    )


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content


def store(
    tables: Annotated[
        list[Path], typer.Argument(help="CSV or Parquet tables, one row per reading, or folders of them.")
    ],
    task: Annotated[
        list[str], option("--task", "Column that names the task of a row, or several.", DATA, metavar=COLUMN)
    ],
    x: Annotated[list[str], option("--x", "Input column, or several: --x week price.", DATA, metavar=COLUMN)],
    y: Annotated[str, option("--y", "Output column: numbers, or labels written as numbers.", DATA, metavar=COLUMN)],
    folder: Annotated[Path, option("--out", "Folder for the tasks.", OUTPUT)],
    environment: Environment = None,
    drop: Annotated[
        Literal["missing"] | None, option("--drop", "Rows to leave out: those with missing values.", DATA)
    ] = None,
    csv: Csv = None,
    overwrite: Annotated[bool, option("--overwrite", "Replace tasks stored there.", OUTPUT)] = False,
):
    """Write the tasks of tables of any length to a folder, which `metaprior fit` takes in place of a table."""
    from metaprior.storage.task_folders import open_tasks, store_tasks
    from metaprior.tables.reading import TableFile

    with report_errors():
        columns = {"task": task, "x": x, "y": y, "environment": environment}
        with err.status(f"reading {tables[0]}" + (" and others" if len(tables) > 1 else "")):
            files = [TableFile(path, csv_format(csv)) for path in tables]
            with last_files():
                store_tasks(files, folder, **columns, drop_missing=drop == "missing", overwrite=overwrite)
        stored = open_tasks(folder)
    for name, tasks in stored.items() if isinstance(stored, dict) else [("all", stored)]:
        out.print(f"{name}: {counted(len(tasks), 'task')}, {counted(tasks.n_samples, 'reading')}")
    out.print(f"Wrote {folder}.")


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
