"""How arguments are read: several values after one option, options that commands share, and files that they name."""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from metaprior.checks import require_matplotlib
from metaprior.cli.console import CURRENT, FORMAT, NOTES, exit_error, exit_unexpected, print_note
from metaprior.terminal import last_files

if TYPE_CHECKING:
    from metaprior.predict.ensemble import FittedEstimator
    from metaprior.tables.columns import Columns
    from metaprior.tables.reading import CsvFormat

UsageError: Any = typer.BadParameter.__mro__[1]  # of click, which later versions of typer contain
AS_JSON = "metaprior.as_json"  # the place of it in what a context remembers
PICTURES = (".png", ".pdf", ".svg", ".jpg", ".jpeg")
PAIR, COLUMN = "NAME=VALUE", "COLUMN"
DATA, MODEL, OUTPUT = "Data", "Model", "Output"  # groups of options in --help


class Command(TyperCommand):
    """A command with `--x week price` for `--x week --x price`, and usage errors like all others."""

    context_class = typer.Context  # what commands that ask for one declare; by default it is click's

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments."""
        NOTES.clear()
        CURRENT.clear()
        CURRENT.update(name.lstrip("-").replace("-", "_") for name in _names_of(self))
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
        """Run the command; an exception that it does not handle is a mistake in metaprior."""
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
        message = " ".join(f"{error.format_message().replace('Value error, ', '')}{_elsewhere(error, context)}".split())
        end = "" if message.endswith((".", "?")) else "."
        raise exit_error(f"{message}{end} See {command} --help.", as_json=as_json) from None


def _elsewhere(error: Any, context: Any) -> str:
    """Return, in words, how to give an option that this command lacks: by --set, or to another command."""
    name, group = getattr(error, "option_name", None), getattr(context.parent, "command", None)
    asked = (name or "").lstrip("-").replace("-", "_")
    texts = [
        ("--set", context.command.help or ""),
        *((each.opts[0], each.help or "") for each in _options_of(context.command)),
    ]
    for option, text in texts if asked else ():
        meant = [each for each in re.findall(r"(\w+)=", text) if each.startswith(asked)]
        if meant and option in _names_of(context.command):
            return f" (write {option} {meant[0]}=...)"
        if f"`{asked}`:" in text:  # one of its values
            return f" (write {option} {asked})"
    having = [each for each, command in getattr(group, "commands", {}).items() if name in _names_of(command)]
    if not having or context.info_name in having:
        return ""
    return f" (metaprior {' and '.join(having)} {'has' if len(having) == 1 else 'have'} it)"


def _options_of(command: Any) -> list[Any]:
    return [each for each in command.params if each.param_type_name == "option"]


def _names_of(command: Any) -> list[str]:
    return [name for each in _options_of(command) for name in (*each.opts, *each.secondary_opts)]


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


def option(name: str, words: str, panel: str, **how: Any) -> Any:
    """Return an option of one of the groups that --help shows."""
    return typer.Option(name, help=words, rich_help_panel=panel, **how)


Names = list[str] | None
Task = Annotated[Names, option("--task", "Column that names the task of a row, or several.", DATA, metavar=COLUMN)]
X = Annotated[Names, option("--x", "Input column, or several: --x week price.", DATA, metavar=COLUMN)]
Y = Annotated[str | None, option("--y", "Output column: numbers, or labels.", DATA, metavar=COLUMN)]
Environment = Annotated[
    str | None,
    option("--environment", "Column that names the environment of a task (hospital, building).", DATA, metavar=COLUMN),
]


class Dropped(StrEnum):
    """Rows that may be left out."""

    missing = "missing"
    duplicates = "duplicates"


Drop = Annotated[
    list[Dropped] | None,
    option(
        "--drop",
        "Rows to leave out: with missing values, exact duplicates of others, or both.",
        DATA,
        metavar="missing|duplicates",
    ),
]
Csv = Annotated[
    Names,
    option("--csv", "How CSV files are written: sep=';' (or tab) decimal=, encoding=cp1252.", DATA, metavar=PAIR),
]
AsJson = Annotated[bool, option("--json", "Print one line of JSON instead of tables.", OUTPUT)]
Prior = Annotated[Path, typer.Argument(help="A prior saved by `metaprior fit`, or by `save` in Python.")]


def named_values(option: str, given: Sequence[str] | None, known: Sequence[str]) -> dict[str, str]:
    """Return the values of an option that takes NAME=VALUE, by name."""
    values = {}
    for text in given or ():
        name, is_pair, value = text.partition("=")
        if name not in known or not is_pair:
            raise ValueError(f"{option} takes NAME=VALUE, with the names {', '.join(known)}; got {text!r}.")
        if values.setdefault(name, value) != value:
            raise ValueError(f"{option} {name} is given twice, as {values[name]!r} and {value!r}. Leave one out.")
    return values


def value_of(text: str) -> Any:
    """Return a number, true, false or none as such, and other text as it is."""
    for read in (int, float):
        with suppress(ValueError):
            return read(text)
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def drops(given: Sequence[str] | None) -> dict[str, bool]:
    """Return the rows to leave out, as arguments of functions that read tables."""
    return {f"drop_{what}": what in (given or ()) for what in ("missing", "duplicates")}


def csv_format(given: Sequence[str] | None, stored: dict[str, str] | None = None) -> "CsvFormat":
    """Return how CSV files are written, where it is not said as in `stored`."""
    from metaprior.tables.reading import as_csv_format

    return as_csv_format(**{**(stored or {}), **named_values("--csv", given, FORMAT)})


def columns_for(
    meta: "FittedEstimator", task: Names, x: Names, y: str | None, environment: str | None = None
) -> "Columns":
    """Return the given columns, and for the others those that the prior was fitted with."""
    from metaprior.tables.columns import as_columns
    from metaprior.tables.grouping import fitted_columns

    stored = meta.training_.get("columns") or {}
    columns = {"task": task, "x": x, "y": y, "environment": environment}
    columns = {name: value or stored.get(name) for name, value in columns.items()}
    if not (columns["x"] and columns["y"]):
        raise ValueError("--x and --y must name columns: this prior was not fitted from a table.")
    return fitted_columns(meta, as_columns(**columns, covariates=stored.get("covariates") or None))


def named_or_free(path: Path | None, default: str) -> Path:
    """Return the file to write, with the default name if none was given: one that is there is replaced if named."""
    if path is None and Path(default).exists():
        raise ValueError(f"{default} exists already. Pass --out {default} to replace it, or name another file.")
    return Path(default) if path is None else path


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


def _same(first: Path, second: Path) -> bool:
    return first.absolute() == second.absolute() or (first.exists() and second.exists() and first.samefile(second))


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
    from metaprior.tables.reading import first_formula

    if path.suffix == ".parquet":
        write(path, frame.to_parquet(index=False))
        return
    if (formula := first_formula(frame)) is not None:
        found = f"{path} has cells that a spreadsheet takes for formulas, such as {formula!r}; they are as in the input"
        print_note(f"{found}. Open the file with these columns as text, or pass a name that ends in .parquet.")
    write(path, frame.to_csv(index=False).encode())
