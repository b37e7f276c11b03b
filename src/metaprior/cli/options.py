"""Options that commands share, and checks and writers of the files that they name."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from metaprior.tables.columns import Columns
    from metaprior.tables.csv_files import CsvFormat
from metaprior.checks import require_matplotlib
from metaprior.cli.console import print_note
from metaprior.interruption import last_files

Task = Annotated[list[str] | None, typer.Option("--task", help="Column that names the task of a row, or several.")]
X = Annotated[list[str] | None, typer.Option("--x", help="Input column, or several: --x week price.")]
Covariates = Annotated[
    list[str] | None,
    typer.Option("--task-covariates", help="Columns that are constant within a task: --task-covariates age sex."),
]
Categorical = Annotated[
    list[str] | None, typer.Option("--categorical", help="Columns of numbers that hold categories; text is recognized.")
]
Y = Annotated[str | None, typer.Option("--y", help="Output column.")]
Environment = Annotated[
    str | None, typer.Option("--environment", help="Column that names the environment of a task (hospital, building).")
]
DropMissing = Annotated[bool, typer.Option("--drop-missing", help="Drop rows with a missing value.")]
DropDuplicates = Annotated[bool, typer.Option("--drop-duplicates", help="Drop exact repetitions of a row.")]
Sep = Annotated[str | None, typer.Option("--sep", help="Separator of CSV files, such as ';' or tab (default: comma).")]
Decimal = Annotated[str | None, typer.Option("--decimal", help="Decimal mark of CSV files, ',' or '.' (default).")]
Encoding = Annotated[str | None, typer.Option("--encoding", help="Encoding of CSV files, such as cp1252.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of tables.")]
Prior = Annotated[Path, typer.Argument(help="A prior saved by `metaprior fit`, or by `save` in Python.")]


def fitted_columns(
    meta: Any, task: list[str] | None, x: list[str] | None, y: str | None, environment: str | None
) -> "Columns":
    """Return the given columns, and for the others those that the prior was fitted with."""
    from metaprior.tables.columns import as_columns, in_fitted_order

    stored = meta.training_.get("columns") or {}
    columns = {"task": task, "x": x, "y": y, "environment": environment}
    columns = {name: value or stored.get(name) for name, value in columns.items()}
    columns |= {name: stored.get(name) or None for name in ("covariates", "categorical")}
    if not (columns["x"] and columns["y"]):
        raise ValueError("--x and --y must name columns: this prior was not fitted from a table.")
    return in_fitted_order(meta, as_columns(**columns))


def fitted_format(meta: Any, sep: str | None, decimal: str | None, encoding: str | None) -> "CsvFormat":
    """Return how CSV files are written, as far as it is not given as in the fit."""
    from metaprior.tables.csv_files import as_csv_format

    stored = meta.training_.get("csv") or {}  # priors fitted in Python have none
    given = {"sep": sep, "decimal": decimal, "encoding": encoding}
    return as_csv_format(**{name: stored.get(name) if value is None else value for name, value in given.items()})


PICTURES = (".png", ".pdf", ".svg", ".jpg", ".jpeg")


def named_or_free(path: Path | None, default: str) -> Path:
    """Return the file to write, with the default name if none was given: one that is there is replaced if named."""
    if path is not None:
        return path
    if Path(default).exists():
        raise ValueError(f"{default} exists already. Pass --out {default} to replace it, or name another file.")
    return Path(default)


def check_outputs(inputs: list[Path], out: Path | None, plot: Path | None = None, report: Path | None = None) -> None:
    """Raise if an output is an input, another output or a folder, or cannot be written."""
    from metaprior.files import check_writable  # imports NumPy, which `--help` does not need

    given = {option: path for option, path in (("--out", out), ("--plot", plot), ("--report", report)) if path}
    for option, path in given.items():
        if path.is_dir():
            raise ValueError(f"{option} {path} is a folder. Name a file.")
        if any(_same(path, read) for read in inputs):
            raise ValueError(f"{option} {path} is a file that this command reads. Name another.")
        if any((read / "tasks.json").is_file() and read.resolve() in path.resolve().parents for read in inputs):
            raise ValueError(f"{option} {path} is in a folder that this command reads. Name a file elsewhere.")
        above = next(folder for folder in path.absolute().parents if folder.exists())
        try:
            check_writable(path if above == path.absolute().parent else above / path.name)
        except OSError as error:
            raise ValueError(f"{option} {path}: {error.strerror}. Name a file elsewhere.") from None
    if plot is not None and plot.suffix.lower() not in PICTURES:
        raise ValueError(f"--plot must end in one of {', '.join(PICTURES)}; got {plot}.")
    if report is not None and report.suffix.lower() != ".html":
        raise ValueError(f"--report must end in .html; got {report}.")
    for (option, path), (other, second) in itertools.combinations(given.items(), 2):
        if _same(path, second):
            raise ValueError(f"{option} and {other} must be two files; got {path} for both.")
    if plot is not None:
        require_matplotlib()


def write(path: Path, content: bytes) -> None:
    """Write a file, and the folders above it, completely or not at all."""
    from metaprior.files import write_atomically

    write_atomically(path, content, make_folders=True)


def write_picture(path: Path, figure: Any) -> None:
    """Write a matplotlib figure in the format that the file's name says."""
    from metaprior.plots.style import as_bytes

    write(path, as_bytes(figure, path.suffix[1:].lower()))


def write_results(table: tuple[Path | None, Any], picture: tuple[Path | None, Any]) -> None:
    """Write a data frame and a figure, each unless its path is None, as the last files of a command."""
    if table[0] is None and picture[0] is None:
        return
    with last_files():
        if table[0] is not None:
            _write_frame(table[0], table[1])
        if picture[0] is not None:
            write_picture(picture[0], picture[1])


def _write_frame(path: Path, frame: Any) -> None:
    """Write a data frame as Parquet if the file's name says so, else as CSV."""
    from metaprior.tables.csv_files import first_formula

    if path.suffix == ".parquet":
        write(path, frame.to_parquet(index=False))
        return
    if (formula := first_formula(frame)) is not None:
        found = f"{path} has cells that a spreadsheet takes for formulas, such as {formula!r}; they are as in the input"
        print_note(f"{found}. Open the file with these columns as text, or pass a name that ends in .parquet.")
    write(path, frame.to_csv(index=False).encode())


def _same(first: Path, second: Path) -> bool:
    return first.absolute() == second.absolute() or (first.exists() and second.exists() and first.samefile(second))
