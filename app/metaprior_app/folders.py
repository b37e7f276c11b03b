"""The private folder of a page, and those of pages that were killed, which could not remove theirs.

Whether a page still runs is told by a lock on its folder, which the system drops when the process ends, however it
does: a process number may be another's by then.
"""

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from metaprior.interruption import unfinished

NAME = "metaprior-app"
PATTERN = re.compile(rf"\.{NAME}\.[0-9a-f]+\.part")
MARK = "folder-of-a-page"  # an empty file, made once the folder is locked: without it a page may be about to start
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder that only this user can read, and remove it afterwards, with what other pages left behind."""
    parent = Path(tempfile.gettempdir())
    with suppress(OSError):  # where files may be made, but not listed
        for name in filter(PATTERN.fullmatch, os.listdir(parent)):
            with suppress(OSError):  # of another user, a link, gone meanwhile, or locked
                _remove_if_left(parent / name)
    with unfinished(parent / NAME) as path:
        os.mkdir(path, mode=0o700)
        descriptor = os.open(path, FOLDER)  # held until the process ends
        try:
            with suppress(OSError):  # where a file system has no locks, nobody can take it for a leftover either
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                Path(path, MARK).touch()
            pages = Path(path, "page")
            pages.mkdir()
            yield pages
        finally:
            os.close(descriptor)


def _remove_if_left(path: Path) -> None:
    """Remove a folder unless it is not a folder of this user's, or the page that it belongs to runs."""
    descriptor = os.open(path, FOLDER)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_uid == os.geteuid() and MARK in os.listdir(descriptor):
            shutil.rmtree(path)
    finally:
        os.close(descriptor)
