"""Files of a folder of stored tasks, and whether they still hold what was written."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from metaprior.checks import Argument, Message
from metaprior.files import InvalidFile


class StoredFiles:
    """Files of a folder, with their sizes and checksums as they were when the folder was written."""

    def __init__(self, folder: Path, records: Mapping[str, Mapping[str, Any]]):
        self.folder, self.records = folder, records
        self._verified: dict[str, tuple[int, ...]] = {}  # the state in which a file was verified

    def verify(self, names: Iterable[str] | None = None) -> None:
        """Raise unless files, by default all, hold what was written. One that has not changed since is not read again.

        A file of 1 GB takes about a second if the machine has it in memory.
        """
        for name in self.records if names is None else names:
            path = self.folder / name
            state = self.check_size(name)
            if self._verified.get(name) == state:
                continue
            with open(path, "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != self.records[name]["sha256"]:
                raise damaged(path, "its content is not what was written")
            self._verified[name] = state

    def check_size(self, name: str) -> tuple[int, ...]:
        """Raise if a file is missing or has another size; return what changes when it is written to."""
        path, written = self.folder / name, self.records[name]["bytes"]
        if not path.is_file():
            raise damaged(path, "it is missing")
        state = path.stat()
        if state.st_size != written:
            raise damaged(path, f"it has {state.st_size:,} bytes, but {written:,} were written")
        return state.st_size, state.st_mtime_ns, state.st_ino


def record_of(path: Path) -> dict[str, Any]:
    """Return the size and the checksum of a file."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": os.path.getsize(path), "sha256": digest}


def damaged(path: Path, why: str) -> InvalidFile:
    """Return the error that a file is not as it was written."""
    again = Argument("metaprior.store_tasks")
    return InvalidFile(Message(f"{path} is damaged: {why}. Store the tasks again (", again, "), or use another copy."))
