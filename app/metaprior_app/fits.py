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
from typing import Any

from metaprior.progress import AS_JSON, VARIABLE
from metaprior.terminal import ENDS_WITH_INPUT, end_with_this
from metaprior_app.tables import spoken

PATIENCE = 2.0  # seconds that a stopped process has to end by itself
MAX_LINE = 1000  # characters of an unexpected error


class Fit:
    """A running or finished `metaprior fit ... --json`. It runs until `finish` has taken its result, if it has one."""

    def __init__(self, arguments: Sequence[str], finish: Callable[[], None] = lambda: None):
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
        self._following = threading.Thread(target=self._follow, args=(finish,), daemon=True)
        self._following.start()

    @property
    def status(self) -> str:
        if self.ended is None:
            return "running"
        return "failed" if self.error is not None else "stopped" if self.result is None else "done"

    def wait(self) -> None:
        self._following.join()

    def stop(self) -> None:
        """End the process, at once if need be, and wait until it has ended."""
        self._stopped = True
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                if self._process.poll() is None:  # afterwards its number may be another's
                    os.killpg(self._process.pid, number)
            self._following.join(PATIENCE)
        self.wait()

    def describe(self) -> dict[str, Any]:
        notes = [note["message"] for note in (self.result or {}).get("notes", [])]
        seconds = round((self.ended or time.monotonic()) - self.started, 1)
        state = {"status": self.status, "seconds": seconds, "progress": self.progress}
        return {**state, "error": self.error, "notes": notes}

    def _follow(self, finish: Callable[[], None]) -> None:
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
        try:
            if self.result is not None:
                finish()
        except Exception as error:  # of a table that was changed meanwhile, or a full disk
            self.error = spoken(error)
        self.ended = time.monotonic()
