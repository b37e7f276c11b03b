"""How arguments are read: several columns after one option, and mistakes told in one line of text or JSON.

Options that commands share, and checks and writers of the files that they name.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from metaprior.cli.console import NOTES, exit_error, exit_unexpected, print_note

if TYPE_CHECKING:
    from metaprior.tables.columns import Columns
    from metaprior.tables.csv_files import CsvFormat
from metaprior.checks import require_matplotlib
from metaprior.terminal import last_files

UsageError: Any = typer.BadParameter.__mro__[1]  # of click, which later versions of typer contain
AS_JSON = "metaprior.as_json"  # the place of it in what a context remembers


class Command(TyperCommand):
    """A command with `--x week price` for `--x week --x price`, and usage errors like all others."""

    context_class = typer.Context  # what commands that ask for one declare; by default it is click's

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments."""
        NOTES.clear()
        _note_overridden(args, self.params)
        with _one_line(args, ctx):
            return super().parse_args(ctx, repeat_options(args, self.params))


class Group(TyperGroup):
    """The commands, with errors about their names like all others."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before a command."""
        ctx.meta[AS_JSON] = "--json" in args
        with _one_line(args, ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an exception that it does not know of is a mistake in metaprior."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, UsageError.__mro__[1]):  # how commands of typer end
            raise
        except Exception as error:
            raise exit_unexpected(error, ctx.meta[AS_JSON]) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command."""
        with _one_line(args, ctx):
            return super().resolve_command(ctx, args)


@contextmanager
def _one_line(args: Sequence[str], context: Any) -> Iterator[None]:
    as_json = "--json" in args  # it is not parsed yet
    try:
        yield
    except UsageError as error:
        command = "metaprior" if context.parent is None else f"metaprior {context.info_name}"
        message = " ".join(f"{error.format_message()}{_elsewhere(error, context)}".split())
        end = "" if message.endswith((".", "?")) else "."
        raise exit_error(f"{message}{end} See {command} --help.", as_json=as_json) from None


def _elsewhere(error: Any, context: Any) -> str:
    """Return, in words, which other command has an option that this one lacks."""
    name, group = getattr(error, "option_name", None), getattr(context.parent, "command", None)
    having = [each for each, command in getattr(group, "commands", {}).items() if name in _names_of(command)]
    if not having or context.info_name in having:
        return ""
    return f" (metaprior {' and '.join(having)} {'has' if len(having) == 1 else 'have'} it)"


def _names_of(command: Any) -> list[str]:
    return [name for each in command.params for name in (*each.opts, *each.secondary_opts)]


def repeat_options(args: Sequence[str], parameters: Sequence[Any]) -> list[str]:
    """Repeat an option that may be given several times before each further value that follows it.

    Values are taken from arguments that there would otherwise be too many of. A command that takes any number of paths
    keeps those that exist.
    """
    options = {name: each for each in parameters for name in each.opts if each.param_type_name == "option"}
    counts = [each.nargs for each in parameters if each.param_type_name == "argument"]
    places, follows = _positionals(args, options)
    surplus = len(places) - sum(counts)
    is_value: Callable[[str], bool] = lambda text: -1 not in counts or not (text == "-" or Path(text).exists())  # noqa: E731
    values = [i for i in places if follows.get(i) and is_value(args[i])]
    values = values if -1 in counts else values[: max(surplus, 0)]
    return [part for i, text in enumerate(args) for part in ([follows[i], text] if i in values else [text])]


def _note_overridden(args: Sequence[str], parameters: Sequence[Any]) -> None:
    """Say so if an option that has one value is given several: the last of them counts, as elsewhere."""
    once = [each for each in parameters if each.param_type_name == "option" and not each.multiple]
    named = {name: each for each in once for name in (*each.opts, *each.secondary_opts)}
    given: dict[Any, str] = {}
    for i, text in enumerate(args[: args.index("--")] if "--" in args else args):
        name, is_joined, value = text.partition("=")
        option = named.get(name)
        if option is None:
            continue
        words = name if option.is_flag else f"{name} {value if is_joined else ' '.join(args[i + 1 : i + 2])}"
        if given.setdefault(option.name, words) != words:
            print_note(f"{given[option.name]} does not count: {words} comes later.")
        given[option.name] = words


def typed(context: Any, leave_out: Sequence[str] = ()) -> list[str]:
    """Return the command with the options that were typed, but for those to leave out."""
    words = ["metaprior", str(context.info_name)]
    for parameter in context.command.params:
        value, source = context.params.get(parameter.name), context.get_parameter_source(parameter.name)
        if getattr(source, "name", "") != "COMMANDLINE" or parameter.name in leave_out:
            continue
        is_flag = isinstance(value, bool)
        names = parameter.secondary_opts if value is False else parameter.opts
        option = [names[0]] if parameter.param_type_name == "option" else []
        for each in value if isinstance(value, list | tuple) else [value]:
            words += [*option, *([] if is_flag else [str(each)])]
    return words


def _positionals(args: Sequence[str], options: dict[str, Any]) -> tuple[list[int], dict[int, str]]:
    """Return the places of arguments that belong to no option, and the repeatable option that some of them follow."""
    places, follows, i, latest = [], {}, 0, ""
    while i < len(args) and args[i] != "--":
        name, given, _ = args[i].partition("=")
        if not args[i].startswith("-") or args[i] == "-":
            places.append(i)
            follows[i] = latest
        else:
            option = options.get(name)
            latest = name if option is not None and option.multiple else ""
            i += option is not None and not option.is_flag and not given
        i += 1
    return places + list(range(i + 1, len(args))), follows


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
