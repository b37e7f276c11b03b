"""Options that commands on tables share, and the columns they name: as given, or as the prior was fitted with."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from metaprior.tables.columns import Columns

Task = Annotated[list[str] | None, typer.Option("--task", help="Column that names the task of a row; may be repeated.")]
X = Annotated[list[str] | None, typer.Option("--x", help="Input column; repeat it for several.")]
Y = Annotated[str | None, typer.Option("--y", help="Output column.")]
Environment = Annotated[
    str | None, typer.Option("--environment", help="Column that names the environment of a task (hospital, building).")
]
DropMissing = Annotated[bool, typer.Option("--drop-missing", help="Drop rows with a missing value.")]
DropDuplicates = Annotated[bool, typer.Option("--drop-duplicates", help="Drop exact repetitions of a row.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of tables.")]
Prior = Annotated[Path, typer.Argument(help="A prior saved by `metaprior fit`, or by `save` in Python.")]


def fitted_columns(
    meta: Any, task: list[str] | None, x: list[str] | None, y: str | None, environment: str | None
) -> "Columns":
    """Return the given columns, and for the others those that the prior was fitted with."""
    from metaprior.tables.columns import as_columns

    stored = meta.training_.get("columns") or {}
    columns = {"task": task, "x": x, "y": y, "environment": environment}
    columns = {name: value or stored.get(name) for name, value in columns.items()}
    if not (columns["x"] and columns["y"]):
        raise ValueError("--x and --y must name columns: this prior was not fitted from a table.")
    return as_columns(**columns)
