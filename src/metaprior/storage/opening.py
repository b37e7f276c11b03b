"""Folders of stored tasks, opened as memory maps. `metaprior.storage.writing` makes them from tables."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from metaprior.checks import Argument, Message
from metaprior.storage.stored_tasks import StoredTasks

HEADER, FORMAT, FORMAT_VERSION = "tasks.json", "metaprior tasks", 1
FILES = ("x.npy", "y.npy", "offsets.npy")


def open_tasks(folder: Any) -> Any:
    """Open the tasks that `store_tasks` has written to a folder. They stay on disk until they are needed.

    Parameters
    ----------
    folder : path
        The folder.

    Returns
    -------
    StoredTasks, or dict from environment to StoredTasks
        The dict, for `fit(tasks, target=...)`, if a column of environments was stored.
    """
    if not isinstance(folder, str | os.PathLike):
        raise ValueError(f"folder must be a path that store_tasks has written to; got {type(folder).__name__}.")
    header = read_header(Path(folder))
    arrays = {}
    for name in FILES:
        path = Path(folder) / name
        size = path.stat().st_size if path.exists() else None
        if size != header["bytes"][name]:
            found = "is missing" if size is None else f"has {size:,} bytes"
            raise _damaged(folder, f"{name} {found}, but {header['bytes'][name]:,} were written")
        try:
            arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise _damaged(folder, f"{name} cannot be read ({error})") from None
    x, y, offsets = (arrays[name] for name in FILES)
    counts = [environment["tasks"] for environment in header["environments"]]
    whole = StoredTasks(x, y, np.array(offsets))
    if not (x.ndim == 2 and len(x) == len(y) == offsets[-1] and len(whole) == sum(counts) and whole.sizes.min() > 0):
        raise _damaged(folder, "its files do not belong together")
    ends = np.cumsum(counts).tolist()
    stored = {}
    for environment, first, last in zip(header["environments"], [0, *ends], ends, strict=False):
        digest = f"{header['digest']} {first} {last}"
        stored[environment["name"]] = StoredTasks(x, y, whole.offsets[first : last + 1], digest)
    return stored[None] if list(stored) == [None] else stored


def read_header(folder: Path) -> dict[str, Any]:
    """Return the header of a folder of stored tasks; raise if it is something else."""
    expected = Message(": expected a folder that ", Argument("metaprior.store_tasks"), " has written.")
    if not folder.exists():
        raise ValueError(Message(f"{folder} does not exist", expected))
    if not (folder / HEADER).is_file():
        raise ValueError(Message(f"{folder} {'has no tasks.json' if folder.is_dir() else 'is a file'}", expected))
    try:
        header = json.loads((folder / HEADER).read_text(encoding="utf-8"))
        if header["format"] != FORMAT:
            raise ValueError(Message(f"{folder / HEADER} is not of stored tasks", expected))
        if header["version"] != FORMAT_VERSION:
            found = f"{folder} has format version {header['version']!r}; this metaprior reads {FORMAT_VERSION}"
            raise ValueError(f"{found}. Update metaprior, or store the tasks again.")
        sound = header["digest"] and all(header["bytes"][name] for name in FILES)
        if not (sound and all(each["tasks"] > 0 and "name" in each for each in header["environments"])):
            raise KeyError("environments")
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise _damaged(folder, f"tasks.json cannot be read ({error!r})") from None
    return header


def _damaged(folder: Any, why: str) -> ValueError:
    return ValueError(f"{folder} is damaged: {why}. Store the tasks again, or use another copy.")
