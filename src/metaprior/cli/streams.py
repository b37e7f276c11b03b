"""Standard output and error that may be full, closed or not UTF-8: `> /dev/full`, `>&-`, `| head -1`."""

import codecs
import errno
import io
import os
import signal
import sys
from typing import Any, NoReturn

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
    """Replace standard output and error by streams whose errors end no command; return that of the output.

    Nor does an encoding that lacks a character, such as ASCII for ±.
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
    """End the process, with an exit code of its own if results could not be written to standard output."""
    if sys.stdout is not None:
        sys.stdout.flush()
    error = None if output is None else output.error
    if error is not None and error.errno != errno.EPIPE:
        print(f"standard output: {error.strerror}", file=sys.stderr)
    sys.exit(code if error is None or code else CLOSED if error.errno == errno.EPIPE else 2)
