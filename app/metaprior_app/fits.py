"""`metaprior fit` in a process of its own: its progress, its result, and a stop that always works."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from metaprior.interruption import ENDS_WITH_INPUT, end_with_this
from metaprior.progress import AS_JSON, VARIABLE
from metaprior_app.messages import spoken
from metaprior_app.recipes import FitRequest
from metaprior_app.tables import OpenTable

PATIENCE = 2.0  # seconds that a stopped process has to end by itself
MAX_LINE = 1000  # characters of an unexpected error


class FitProcess:
    """A running or finished `metaprior fit ... --json`."""

    def __init__(self, arguments: Sequence[str]):
        self.started, self.ended = time.monotonic(), None
        self.progress: dict[str, Any] | None = None
        self.result: dict[str, Any] | None = None  # what --json prints
        self.error: str | None = None
        self._stopped = False
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  (closed once the process has ended)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "metaprior", "fit", *arguments, "--json"],
            stdin=subprocess.PIPE,  # nothing comes through it; it ends when this process does, also by SIGKILL
            stdout=self._printed,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, VARIABLE: AS_JSON, ENDS_WITH_INPUT: "1", "PYTHONUTF8": "1"},
            start_new_session=True,  # Ctrl-C in the terminal reaches the page's server, which then ends this process
        )
        self._forget = end_with_this(self._process.pid)
        self._following = threading.Thread(target=self._follow, daemon=True)
        self._following.start()

    @property
    def status(self) -> str:
        """Return "running", "done", "stopped" or "failed"."""
        if self.ended is None:
            return "running"
        return "done" if self.result is not None else "stopped" if self._stopped else "failed"

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return (self.ended or time.monotonic()) - self.started

    def wait(self) -> None:
        """Wait until the process has ended."""
        self._following.join()

    def stop(self) -> None:
        """End the process, at once if need be, and wait until it has ended."""
        if self.ended is None:
            self._stopped = True
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                if self._process.poll() is None:  # afterwards its number may be another's
                    os.killpg(self._process.pid, number)
            self._following.join(PATIENCE)
        self.wait()

    def _follow(self) -> None:
        """Read progress until the process ends, then its result."""
        assert self._process.stderr is not None
        assert self._process.stdin is not None
        said: list[str] = []  # the last lines on standard error that are no progress
        for line in self._process.stderr:
            if line.startswith('{"progress"'):
                with suppress(ValueError):
                    self.progress = json.loads(line)["progress"]
            else:
                said = [*said[-2:], line[:MAX_LINE]]
        code = self._process.wait()
        self._forget()
        found: Any = None
        with self._process.stderr, self._process.stdin, self._printed as printed, suppress(ValueError, IndexError):
            printed.seek(0)
            found = json.loads(printed.read().splitlines()[-1])
        if code == 0 and isinstance(found, dict):
            self.result = found
        elif not self._stopped:
            reason = found.get("error") if isinstance(found, dict) else "".join(said).strip()
            self.error = reason or f"The fit ended with exit code {code}, without a message."
        self.ended = time.monotonic()


class Fit:
    """A fit, or the report of one. `finish` takes its result; until it has, the fit is running for the page."""

    def __init__(
        self,
        arguments: list[str],
        what: str,
        settings: FitRequest,
        table: OpenTable,
        file: Path,
        finish: Callable[["Fit"], None],
    ):
        self.what, self.settings, self.table, self.file = what, settings, table, file  # what: "fit" or "report"
        self.problem: str | None = None  # of taking the result
        self.process = FitProcess(arguments)
        self._finishing = threading.Thread(target=self._finish, args=(finish,), daemon=True)
        self._finishing.start()

    def _finish(self, finish: Callable[["Fit"], None]) -> None:
        self.process.wait()
        try:
            finish(self)
        except Exception as error:  # of a table that was changed meanwhile, or a full disk
            self.problem = spoken(error)

    def stop(self) -> None:
        """Stop the process, and wait until that is known."""
        self.process.stop()
        self._finishing.join()

    @property
    def is_running(self) -> bool:
        """Whether its result is yet to come."""
        return self._finishing.is_alive()

    def describe(self) -> dict[str, Any]:
        """Return its state for the page."""
        process, error = self.process, self.problem or self.process.error
        status = "running" if self.is_running else "failed" if self.problem else process.status
        notes = [note["message"] for note in (process.result or {}).get("notes", [])]
        return {
            "what": self.what,
            "status": status,
            "seconds": round(process.seconds, 1),
            "progress": process.progress,
            "error": None if error is None else self._spell(error),
            "notes": [self._spell(note) for note in notes],
        }

    def _spell(self, message: str) -> str:
        """Return a message of the command, which calls the table by its path."""
        return spoken(message.replace(str(self.table.file.path), self.table.name))
