"""Names from tables and of files, which may hold any character, as they are printed: nothing in them is invisible.

Ctrl-C and SIGTERM end a command at once, at any moment: one line, an exit code, and no half-written file.

A KeyboardInterrupt cannot do this. Python raises it in whatever code the main thread runs next: callbacks of JAX's
garbage collector swallow it, XLA's threads crash the process while it unwinds, and imports end in a traceback. Here a
thread waits for the signal and ends the process, also while the main thread compiles or computes.
"""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NoReturn

JOINERS = "\u200c\u200d"  # of letters and pictures: text without them reads otherwise
KEPT = frozenset(" \n\t\u00a0\u202f" + JOINERS)


def visible(text: str) -> str:
    r"""Return text with escapes for what a terminal would obey or not show: "\x1b", "\r", marks of direction.

    Bytes of a file's name that are not UTF-8, which Python keeps as halves of a character, are written as "\xff".
    """
    if text.isascii() and text.isprintable():  # fast path
        return text
    return "".join(mark if mark.isprintable() or mark in KEPT else _escaped(mark) for mark in text)


def as_unicode(value: Any) -> Any:
    """Return a value for JSON whose text any program can read: bytes of names that are not UTF-8 as by `visible`."""
    if isinstance(value, dict):
        return {as_unicode(key): as_unicode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_unicode(item) for item in value]
    is_whole = not isinstance(value, str) or value.isascii() or not any(map(_is_half, value))
    return value if is_whole else "".join(_escaped(mark) if _is_half(mark) else mark for mark in value)


def _is_half(mark: str) -> bool:
    return "\ud800" <= mark <= "\udfff"


def _escaped(mark: str) -> str:
    if "\udc80" <= mark <= "\udcff":  # of os.fsdecode
        return f"\\x{ord(mark) - 0xDC00:02x}"
    return mark.encode("unicode_escape").decode()


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE = 0.5  # seconds that a file in the making has to be completed, unless a second signal comes
CLEAR_LINE = "\r\x1b[2K\x1b[?25h"  # of a progress bar, which also hides the cursor

ENDS_WITH_INPUT = "METAPRIOR_ENDS_WITH_INPUT"  # environment variable

_unfinished: set[str] = set()  # files and folders that are being written
_beginning = threading.Lock()
_last: list[str] = []  # stages of a command: "begun" while its last files are written, then also "complete"
_advice: list[tuple[str, str]] = []  # on what is kept, and where
_waiting: list[threading.Thread] = []  # for signals
_children: set[int] = set()  # process groups that end with this process


def exit_on_signals() -> None:
    """From now on end the process with exit code 128 + signal, unless the signal was ignored (nohup)."""
    _hold_descriptors()
    received, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # what matters is the byte that Python writes to `wake`
    _waiting.append(threading.Thread(target=_wait_and_exit, args=(received,), daemon=True))
    _waiting[-1].start()


def end_with_input() -> None:
    """End as by SIGTERM once standard input ends, if the program that started this process asks for it.

    Of a pipe from that program, which writes nothing to it, this is when the program ends, however it does.
    """
    if os.environ.pop(ENDS_WITH_INPUT, None):  # processes that this one starts have another standard input
        threading.Thread(target=_wait_for_end_of_input, daemon=True).start()


def _wait_for_end_of_input() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def leave_to_signal() -> NoReturn:
    """Stop where another library has noticed a signal: a command waits for its own end, Python gets its exception."""
    for thread in _waiting:
        thread.join(2.0 * PATIENCE)
    raise KeyboardInterrupt


def _hold_descriptors() -> None:
    """Open what is closed of standard input, output and error, lest what libraries print there lands in other files."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def ignore_signals() -> None:
    """Let a command that has done its work end in peace; Python, while it exits, would die of a signal."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def tell_on_stop(advice: str, kept: str | os.PathLike = ".") -> None:
    """Add a sentence to the line for users who stop this command, if a file that is to be kept exists by then."""
    _advice.append((advice, os.fspath(kept)))


def end_with_this(group: int) -> Callable[[], None]:
    """End a process group too if a signal ends this process; call what is returned once the group has ended."""
    _children.add(group)
    return lambda: _children.discard(group)


@contextmanager
def unfinished(target: str | os.PathLike) -> Iterator[str]:
    """Yield a hidden path beside the target, for a file or folder that is renamed once it is complete.

    Whatever is still there afterwards, or when a signal ends the process, is removed.
    """
    folder, name = os.path.split(os.fspath(target))
    path = os.path.join(folder, f".{name[:60]}.{os.urandom(4).hex()}.part")
    with nullcontext() if _last else _beginning:
        _unfinished.add(path)
    try:
        yield path
    finally:
        _remove(path)
        _unfinished.discard(path)


@contextmanager
def last_files() -> Iterator[None]:
    """Write the last files of a command: once all are in place, it ends as if no signal had come.

    A signal that comes meanwhile waits for them, as for any file in the making.
    """
    with _beginning:
        _last[:] = ["begun"]
    try:
        yield
        _last.append("complete")
    except BaseException:
        _last.clear()
        raise


def _wait_and_exit(received: int) -> None:
    (number,) = os.read(received, 1)
    _beginning.acquire()  # for good: no other file is begun
    deadline = time.monotonic() + PATIENCE
    while _is_writing() and time.monotonic() < deadline and not select.select([received], [], [], 0.005)[0]:
        pass
    if "complete" in _last:
        return  # and let later signals pass
    for group in list(_children):
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    for path in list(_unfinished):
        _remove(path)
    line = " ".join(["Stopped.", *(advice for advice, kept in _advice if os.path.exists(kept))])
    with suppress(OSError, AttributeError, ValueError):  # standard error may be closed
        clear = CLEAR_LINE if os.isatty(sys.stderr.fileno()) else ""
        os.write(sys.stderr.fileno(), f"{clear}{visible(line)}\n".encode())
    os._exit(128 + number)


def _is_writing() -> bool:
    return "complete" not in _last and bool(_unfinished or _last)


def _remove(path: str) -> None:
    if os.path.isdir(path):
        import shutil  # not above: a signal that comes before `exit_on_signals` ends in a traceback

        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            os.unlink(path)
