"""`metaprior fit` in a process of its own: its progress, its result, and a stop that always works."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from metaprior.interruption import ENDS_WITH_INPUT, end_with_this
from metaprior.progress import AS_JSON, VARIABLE

PATIENCE = 2.0  # seconds that a stopped process has to end by itself
MAX_LINE = 1000  # characters of an unexpected error


class FitProcess:
    """A running or finished `metaprior fit ... --json`."""

    def __init__(self, arguments: Sequence[str]):
        self.started, self.ended = time.monotonic(), None
        self.progress: dict[str, Any] | None = None
        self.result: dict[str, Any] | None = None  # what --json prints
        self.error: str | None = None
        self._said: list[str] = []  # lines on standard error that are no progress
        self._stopped = False
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "metaprior", "fit", *arguments, "--json"],
            stdin=subprocess.PIPE,  # nothing comes through it; it ends when this process does, also by SIGKILL
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, VARIABLE: AS_JSON, ENDS_WITH_INPUT: "1", "PYTHONUTF8": "1"},
            start_new_session=True,  # Ctrl-C in the terminal reaches the page's server, which then ends this process
        )
        self._forget = end_with_this(self._process.pid)
        reader = threading.Thread(target=self._read_progress, daemon=True)
        reader.start()
        self._waiting = threading.Thread(target=self._wait, args=(reader,), daemon=True)
        self._waiting.start()

    @property
    def status(self) -> str:
        """Return "running", "done", "stopped" or "failed"."""
        if self.ended is None:
            return "running"
        return "done" if self.result is not None else "stopped" if self._stopped else "failed"

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return (time.monotonic() if self.ended is None else self.ended) - self.started

    def stop(self) -> None:
        """End the process, at once if need be, and wait until it has ended."""
        if self.ended is None:
            self._stopped = True
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                if self._process.poll() is None:  # afterwards its number may be another's
                    os.killpg(self._process.pid, number)
            self._waiting.join(PATIENCE)
        self._waiting.join()

    def wait(self) -> None:
        """Wait until the process has ended."""
        self._waiting.join()

    def describe(self) -> dict[str, Any]:
        """Return its state for the page."""
        notes = [note["message"] for note in (self.result or {}).get("notes", [])]
        state = {"status": self.status, "seconds": round(self.seconds, 1), "progress": self.progress}
        return {**state, "error": self.error, "notes": notes}

    def _read_progress(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if line.startswith('{"progress"'):
                with suppress(ValueError):
                    self.progress = json.loads(line)["progress"]
            else:
                self._said.append(line[:MAX_LINE])
                del self._said[:-20]
        self._process.stderr.close()

    def _wait(self, reader: threading.Thread) -> None:
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        printed = self._process.stdout.read()
        code = self._process.wait()
        reader.join()
        self._forget()
        self._process.stdout.close()
        self._process.stdin.close()
        found: Any = None
        with suppress(ValueError, IndexError):
            found = json.loads(printed.splitlines()[-1])
        if code == 0 and isinstance(found, dict):
            self.result = found
        elif not self._stopped:
            said = found.get("error") if isinstance(found, dict) else "".join(self._said[-3:]).strip()
            self.error = said or f"The fit ended with exit code {code}, without a message."
        self.ended = time.monotonic()
