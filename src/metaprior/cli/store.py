"""`metaprior store`."""

from pathlib import Path
from typing import Annotated

import typer

from metaprior.cli.console import err, out, report_errors
from metaprior.cli.options import DropMissing, Environment


def store(
    tables: Annotated[
        list[Path], typer.Argument(help="CSV or Parquet tables, one row per reading, or folders of them.")
    ],
    task: Annotated[list[str], typer.Option("--task", help="Column that names the task of a row; may be repeated.")],
    x: Annotated[list[str], typer.Option("--x", help="Input column; repeat it for several.")],
    y: Annotated[str, typer.Option("--y", help="Output column: numbers, or the labels 0 and 1.")],
    folder: Annotated[Path, typer.Option("--out", help="Folder for the tasks.")],
    environment: Environment = None,
    drop_missing: DropMissing = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace tasks stored there.")] = False,
):
    """Write the tasks of tables of any length to a folder, which `metaprior fit` takes in place of a table."""
    from metaprior.storage.task_folders import open_tasks, store_tasks

    with report_errors():
        columns = {"task": task, "x": x, "y": y, "environment": environment}
        with err.status(f"reading {tables[0]}" + (" and others" if len(tables) > 1 else "")):
            store_tasks(tables, folder, **columns, drop_missing=drop_missing, overwrite=overwrite)
        stored = open_tasks(folder)
    for name, tasks in stored.items() if isinstance(stored, dict) else [("all", stored)]:
        out.print(f"{name}: {len(tasks):,} tasks, {tasks.n_samples:,} readings")
    out.print(f"Wrote {folder}.")
