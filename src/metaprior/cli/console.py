"""What commands print: results, tables, errors in one line, to streams that may be full, closed or not UTF-8."""

import codecs
import difflib
import errno
import io
import json
import os
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from metaprior.checks import Argument, Message, MissingExtra
from metaprior.terminal import as_unicode, visible

if TYPE_CHECKING:
    from metaprior import MetaGPClassifier, MetaGPRegressor
    from metaprior.wfem import WFEMClassifier, WFEMRegressor

    Estimator = MetaGPRegressor | MetaGPClassifier | WFEMRegressor | WFEMClassifier

CLOSED = 128 + signal.SIGPIPE  # the exit code of programs whose reader has gone
PLAIN = "metaprior.plain"  # how characters are written that an encoding lacks
INSTEAD = {"±": "+-", "–": "-", "−": "-", "…": "...", "’": "'", "“": '"', "”": '"', "•": "*"}
STRICT = ("strict", "surrogateescape", "backslashreplace")  # what Python chooses, if its user does not


def plain_text(error: UnicodeError) -> tuple[str, int]:
    """Return ASCII for characters that cannot be encoded: `+-` for ±, `\\u60a3` for what has no likeness."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    parts = [INSTEAD.get(each) or _escaped(each) for each in error.object[error.start : error.end]]
    return "".join(parts), error.end


def _escaped(character: str) -> str:
    if "\u2500" <= character <= "\u257f":  # lines of a box
        return {"─": "-", "━": "-", "│": "|", "┃": "|"}.get(character, "+")
    return character.encode("ascii", "backslashreplace").decode("ascii")


codecs.register_error(PLAIN, plain_text)


class Stream(io.FileIO):
    """A file descriptor that keeps its first error and drops what comes later, so that a command completes its work."""

    error: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Write, or remember why that is not possible."""
        try:
            return super().write(data) if self.error is None else len(data)
        except OSError as error:
            self.error = error
            return len(data)


def guard_streams() -> Stream | None:
    """Replace standard output and error by streams whose errors do not end a command; return the output's.

    Characters that the encoding lacks, such as ± in ASCII, are replaced.
    """
    guarded = []
    for name in ("stdout", "stderr"):
        given = getattr(sys, name)
        if given is not getattr(sys, f"__{name}__"):  # captured by a test
            guarded.append(None)
            continue
        # One that was closed from the start cannot be written to: neither can a file that is opened for reading.
        stream = Stream(os.open(os.devnull, os.O_RDONLY) if given is None else given.fileno(), "w", closefd=False)
        text: dict[str, Any] = {"encoding": "utf-8", "errors": PLAIN}
        if given is not None:
            errors = PLAIN if given.errors in STRICT else given.errors
            text = {"encoding": given.encoding, "errors": errors, "line_buffering": given.line_buffering}
        setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(stream), **text))
        guarded.append(stream)
    return guarded[0]


def exit_with(code: int, output: Stream | None) -> NoReturn:
    """End the process, with a special exit code if results could not be written to standard output."""
    if sys.stdout is not None:
        sys.stdout.flush()
    error = None if output is None else output.error
    if error is not None and error.errno != errno.EPIPE:
        print(f"standard output: {error.strerror}", file=sys.stderr)
    sys.exit(code if error is None or code else CLOSED if error.errno == errno.EPIPE else 2)


MAX_MESSAGE = 1000  # characters
MAX_WIDTH = 10_000  # of a table that is not printed to a terminal
UNEXPECTED = 70  # the exit code of a mistake in metaprior: EX_SOFTWARE of sysexits.h
NOTES: list[dict[str, str]] = []  # that the command has printed, for --json


class VisibleConsole(Console):
    """A console that shows names as text: their control characters, and what may look like markup, do nothing."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, with escapes for what a terminal would obey."""
        super().print(*(visible(each) if isinstance(each, str) else each for each in objects), **options)

    def status(self, status: Any, **options: Any) -> Any:
        """Show what the command is doing."""
        return super().status(Text(visible(str(status))), **options)


out, err = VisibleConsole(highlight=False, markup=False), VisibleConsole(stderr=True, highlight=False, markup=False)
CURRENT: set[str] = set()  # names of the options of the command that runs, as parameters are written
FORMAT = ("sep", "decimal", "encoding")
FILE = "pandas.read_csv and "  # how a CSV file is written, in Python
# What messages name that is neither a parameter nor an option.
WORDS = {
    '("first", number)': "'first 5'",
    "classes=...": "classes=... of adapt in Python",
    "extrapolates(X)": "The column extrapolates",
    "use MetaGPRegressor": "pass --kind regression",
    "use a prior of MetaGPRegressor": "use a prior of fit --kind regression",
    "write them in other words": "pass --kind classification",
    "n_draws": "--n-particles",
}


@contextmanager
def report_errors(as_json: bool = False, for_memory: str = "Pass fewer rows at a time.") -> Iterator[None]:
    """End a command with one line and exit code 2 if arguments or data are wrong; print warnings as notes.

    With `as_json` the line is JSON on standard output, where the result would be. METAPRIOR_TRACEBACK=1 shows the
    traceback too. `for_memory` says what helps when memory runs out.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, kind, *_, **__: print_note(with_options(message), kind.__name__)
        try:
            yield
        except (ValueError, OSError, MemoryError, MissingExtra) as error:  # an InvalidFile is a ValueError
            if os.environ.get("METAPRIOR_TRACEBACK"):
                traceback.print_exc()
            if isinstance(error, MemoryError) and not isinstance(next(iter(error.args), None), Message):
                reason = str(error).rstrip(".") or "an array could not be allocated"  # of NumPy, or of Python
                error = MemoryError(Message(f"Out of memory: {reason}. ", for_memory))
            raise exit_error(with_options(error), as_json=as_json) from None
        except KeyboardInterrupt:
            err.print("Stopped.")
            raise typer.Exit(130) from None


def exit_unexpected(error: BaseException, as_json: bool) -> typer.Exit:
    """Show the traceback of a mistake in metaprior, whose exit code nothing else has; return the exception to raise."""
    traceback.print_exception(error)
    what = " ".join(traceback.format_exception_only(error))
    return exit_error(
        f"This is a mistake in metaprior. Please report it, with the traceback: {what}", UNEXPECTED, as_json
    )


def with_options(error: Any) -> str:
    """Return the message of an error or warning, with arguments spelled as options."""
    if isinstance(error, OSError) and error.strerror:
        return ": ".join(str(part) for part in (error.filename, error.strerror) if part)
    message = error.args[0] if error.args else None
    return message.spell(_as_option) if isinstance(message, Message) else str(error) or repr(error)


def _as_option(argument: Argument) -> str:
    """Return an argument as it is typed: `--alpha 0.5`, `--drop missing`, `--csv sep=';'`, `--set noise_std=0.1`."""
    name, value = argument.name.removeprefix(FILE), argument.value
    text = "tab" if value == "\t" else json.dumps(value) if isinstance(value, bool) else str(value)
    if str(argument) in WORDS:
        return WORDS[str(argument)]
    if name in CURRENT:
        values = value if isinstance(value, list) else [] if value in (None, True) else [text]
        return " ".join([f"--{name.replace('_', '-')}", *(shlex.quote(str(each)) for each in values)])
    if name.startswith("drop_"):
        return f"--drop {name.removeprefix('drop_')}"
    holder = "--csv" if argument.name != name or name in FORMAT else "--set" if _is_parameter(name) else None
    if holder is None:
        return str(argument)
    return f"{holder} {name}" + ("" if value is None else f"={shlex.quote(text)}")


def _is_parameter(name: str) -> bool:
    """Return whether an estimator of `metaprior fit` has a parameter."""
    from metaprior import MetaGPClassifier, MetaGPRegressor

    return any(name in estimator._get_param_names() for estimator in (MetaGPClassifier, MetaGPRegressor))


def check_target(target: str, environments: Iterable[str], column: str | None) -> None:
    """Raise if no task comes from the target environment."""
    known = list(dict.fromkeys(environments))
    if target not in known:
        near = difflib.get_close_matches(target, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        listed = ", ".join(map(repr, known[:12])) + (" and others" if len(known) > 12 else "")
        raise ValueError(f"--target {target!r} does not occur in column {column!r}, whose values are {listed}.{hint}")


def exit_error(message: str, code: int = 2, as_json: bool = False) -> typer.Exit:
    """Print what is wrong; return the exception to raise."""
    message = _clipped(message)
    if as_json:
        print_json({"error": message, "exit_code": code})
    else:
        err.print(message, style="red", soft_wrap=True)
    return typer.Exit(code)


def print_note(message: str, kind: str = "note") -> None:
    """Print something that the user should know but that does not stop the command; `kind` is a class of warnings."""
    note = {"kind": kind, "message": _clipped(message)}
    if note in NOTES:
        return
    NOTES.append(note)
    err.print(f"Note: {_clipped(message)}", style="yellow", soft_wrap=True)


def _clipped(message: str) -> str:
    """Return a message of bearable length, in one line: it may quote a cell of a megabyte, or one with line breaks."""
    message = " ".join(message.splitlines())
    return (
        message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE // 2]} ... {message[-MAX_MESSAGE // 2 :]}"
    )


def print_result(figures: dict[str, Any]) -> None:
    """Print the result of a command as JSON, with all notes: programs do not read standard error."""
    print_json({**figures, "notes": NOTES})


def print_json(value: Any) -> None:
    """Print one line of JSON."""
    from metaprior.files import nan_to_none

    print(json.dumps(as_unicode(nan_to_none(value)), default=lambda other: as_unicode(str(other))))


def print_table(names: tuple[str | Text, ...], rows: list[tuple[str, ...]]) -> None:
    """Print a table on standard output, with all columns but the first aligned to the right.

    Nothing is cut off: cells are folded in a terminal that is too narrow; elsewhere lines are as long as they need be.
    A name in two lines is a `Text`; elsewhere line breaks are shown as they are typed.
    """
    # As text: names of tasks and columns may look like markup.
    cell = lambda text: Text(visible(text).replace("\n", "\\n"))  # noqa: E731
    heads = [name if isinstance(name, Text) else cell(name) for name in names]
    table = Table(*(Column(head, justify="right" if i else "left", overflow="fold") for i, head in enumerate(heads)))
    for row in rows:
        table.add_row(*map(cell, row))
    wide = Measurement.get(out, out.options.update(width=MAX_WIDTH), table).maximum
    width = out.width if out.is_terminal else max(wide, out.width)
    Console(highlight=False, markup=False, width=width).print(table)


def task_label(name: Any) -> str:
    """Return the name of a task, which several columns may give, as one string."""
    return " ".join(map(str, name)) if isinstance(name, tuple) else str(name)
