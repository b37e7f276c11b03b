"""Files of a folder of stored tasks, and whether they still hold what was written.

Folders of stored tasks: written from tables of any length, whose rows come in any order, and opened.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from metaprior.checks import Argument, Message, check_bool
from metaprior.files import InvalidFile, as_struct, name_in_errors, read_json, reading, reserve
from metaprior.storage.stored_tasks import StoredFiles, StoredTasks, damaged, record_of
from metaprior.tables.columns import as_columns
from metaprior.tables.csv_files import Source, TableFile
from metaprior.tables.grouping import TaskIndex
from metaprior.tables.reading import read_batches, table_files
from metaprior.terminal import unfinished

HEADER, FORMAT, FORMAT_VERSION = "tasks.json", "metaprior tasks", 2
OFFSETS = "offsets.npy"
FILES = ("x.npy", "y.npy", OFFSETS)
BLOCK = 2**20  # numbers moved at once
COLUMNS = ("task", "x", "y", "environment")
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Names = Annotated[list[str], Meta(min_length=1)]


class _Part(msgspec.Struct, forbid_unknown_fields=True):
    pass


class _Columns(_Part):
    task: Names
    x: Names
    y: str
    environment: str | None


class _Environment(_Part):
    name: str | None  # none if there is no column of environments
    tasks: Positive
    samples: Positive


class _File(_Part):
    bytes: Positive
    sha256: str


class Header(_Part):
    """What tasks.json holds."""

    format: str
    version: int
    columns: _Columns
    environments: Annotated[list[_Environment], Meta(min_length=1)]
    files: dict[Literal["x.npy", "y.npy", "offsets.npy"], _File]
    digest: str

    def __post_init__(self) -> None:
        if lacking := [name for name in FILES if name not in self.files]:
            raise ValueError(f"lacks files.{lacking[0]}")


def store_tasks(
    tables: Any,
    out: str | os.PathLike,
    *,
    task: Any,
    x: Any,
    y: Any,
    environment: Any = None,
    drop_missing: Any = False,
    overwrite: Any = False,
) -> None:
    """Write the tasks of tables of any length to a folder, for `open_tasks` and `fit`.

    The rows of a task may be anywhere in the tables; they keep their order. Memory is needed for a batch of rows and
    for the names of the tasks, about 200 bytes each. The folder takes eight bytes a number, and twice that while it is
    written. It appears under its name once it is complete.

    Parameters
    ----------
    tables : path or sequence of paths
        CSV or Parquet files with one row per sample, patterns such as "readings/*.parquet", or folders. A file
        `hospital=south/part-0.parquet` in a folder has a column `hospital`.
    out : path
        The new folder.
    task, x, y, environment : str or list of str
        Columns, as for `tasks_from_frame`. y must be numbers; write classes as numbers too: the same two in all tasks,
        or each task's own two.
    drop_missing : bool, default=False
        Drop rows with a missing value, instead of raising an error.
    overwrite : bool, default=False
        Replace stored tasks in `out`. A folder that holds anything else is never replaced, also if it holds stored
        tasks too.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from metaprior import open_tasks, store_tasks
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "readings.csv").write_text("patient,hours,rate\\na,0,80\\na,1,82\\nb,0,95\\n")
    >>> store_tasks(folder / "readings.csv", folder / "stored", task="patient", x="hours", y="rate")
    >>> open_tasks(folder / "stored")
    StoredTasks(2 tasks, 3 samples, 1 input column)
    """
    check_bool("overwrite", overwrite)
    columns = as_columns(task=task, x=x, y=y, environment=environment)
    if columns.y is None or not columns.task:
        lacking = Argument("y" if columns.y is None else "task")
        raise ValueError(Message(lacking, " must be the name of a column; got None."))
    index = TaskIndex(columns, drop_missing, labels=False)
    _check_free(Path(out), overwrite)
    files = table_files(tables)
    with _new_folder(Path(out), overwrite) as new:
        _write_rows(new, files, index)
        environments, order = _by_environment(index)
        _place_rows(new, order, index.counts, len(columns.x) + 1)
        named = {name: getattr(columns, name) for name in COLUMNS}
        header = {"format": FORMAT, "version": FORMAT_VERSION, "columns": named, "environments": environments}
        header["files"] = {name: record_of(new / name) for name in FILES}
        header["digest"] = header_digest(header)
        (new / HEADER).write_text(json.dumps(header, indent=1) + "\n", encoding="utf-8")


def open_tasks(folder: Any) -> Any:
    """Open the tasks that `store_tasks` has written to a folder. They stay on disk until they are needed.

    The sizes of the files are checked here, and their content, by checksums, when a `fit` is given the tasks.

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
    files = StoredFiles(Path(folder).absolute(), header["files"])
    with reading(folder):
        files.verify([OFFSETS])  # which is small, and read now
        x, y, offsets = (_open_array(files, name) for name in FILES)
        counts = [environment["tasks"] for environment in header["environments"]]
        together = (x.ndim, y.ndim, offsets.ndim) == (2, 1, 1) and len(offsets) == sum(counts) + 1
        if not (together and x.shape[1] > 0 and len(x) == len(y) == offsets[-1] and offsets[0] == 0):
            raise ValueError("its files do not belong together")
        if not (np.diff(offsets) > 0).all():
            raise ValueError("offsets.npy must increase")
    ends = np.cumsum(counts).tolist()
    stored = {}
    for environment, first, last in zip(header["environments"], [0, *ends], ends, strict=False):
        digest = f"{header['digest']} {first} {last}"
        stored[environment["name"]] = StoredTasks(x, y, np.array(offsets[first : last + 1]), digest, files=files)
    return stored[None] if list(stored) == [None] else stored


def _open_array(files: StoredFiles, name: str) -> np.ndarray:
    """Map an array into memory; raise unless it has the size and the type that were written."""
    files.check_size(name)
    path = files.folder / name
    with reading(path, "cannot be read"):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    expected = np.dtype(np.int64 if name == OFFSETS else np.float64)
    if array.dtype != expected:
        raise ValueError(f"{name} must be {expected}; it is {array.dtype}")
    return array


def read_header(folder: Path) -> dict[str, Any]:
    """Return the header of a folder of stored tasks; raise if it is something else."""
    expected = Message(": expected a folder that ", Argument("metaprior.store_tasks"), " has written.")
    if not folder.exists():
        raise ValueError(Message(f"{folder} does not exist", expected))
    if not (folder / HEADER).is_file():
        raise ValueError(Message(f"{folder} {'has no tasks.json' if folder.is_dir() else 'is a file'}", expected))
    with reading(folder / HEADER, "cannot be read"):
        header = read_json((folder / HEADER).read_text(encoding="utf-8"))
        if header.get("format") != FORMAT:
            raise InvalidFile(Message(f"{folder / HEADER} is not of stored tasks", expected))
        if header.get("version") != FORMAT_VERSION:
            found = f"{folder} has format version {header.get('version')!r}; this metaprior reads {FORMAT_VERSION}"
            raise InvalidFile(f"{found}. Update metaprior, or store the tasks again.")
        as_struct(header, Header)
        names = [environment["name"] for environment in header["environments"]]
        if len(set(names)) != len(names) or (None in names and len(names) > 1):
            raise ValueError("its environments must have names that differ")
        if header["digest"] != header_digest(header):
            raise damaged(folder / HEADER, "its content is not what was written")
    return header


def header_digest(header: dict[str, Any]) -> str:
    """Return the checksum of everything else in a header, and by its checksums of all files."""
    content = {name: value for name, value in header.items() if name != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _write_rows(folder: Path, files: list[tuple[TableFile, Path]], index: TaskIndex) -> None:
    """Write the numbers of all rows and of their tasks as they come."""
    with open(folder / "rows", "wb") as rows, open(folder / "tasks", "wb") as tasks:
        for file, root in files:
            first = 0
            for frame in read_batches(file, root, index.columns):
                batch = index.add(frame, Source.of(file, "table"), first)
                first += len(frame)
                for stream, array in ((tasks, batch.tasks), (rows, np.column_stack([batch.x, batch.y]))):
                    stream.write(array.data)
    index.finish(Source(str(files[0][0]) if len(files) == 1 else f"tables ({len(files)} files)"))


def _by_environment(index: TaskIndex) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Return the environments, and the tasks in their order, environment after environment."""
    names, of_task = list(index.environments), index.task_environments
    if index.columns.environment is None:
        names, of_task = [None], np.zeros_like(of_task)
    counted = zip(names, np.bincount(of_task).tolist(), np.bincount(of_task, index.counts).tolist(), strict=True)
    listed = [{"name": name, "tasks": tasks, "samples": int(samples)} for name, tasks, samples in counted]
    return listed, np.argsort(of_task, kind="stable")


def _place_rows(folder: Path, order: np.ndarray, counts: np.ndarray, width: int) -> None:
    """Move every row to its task: from the order of the tables to that of the tasks."""
    offsets = np.concatenate([[0], np.cumsum(counts[order])])
    free = np.empty(len(order), np.int64)  # where the next row of each task goes
    free[order] = offsets[:-1]
    np.save(folder / OFFSETS, offsets)
    n_rows, block = int(offsets[-1]), max(BLOCK // width, 1)
    for name, shape in {"x.npy": (n_rows, width - 1), "y.npy": (n_rows,)}.items():
        np.lib.format.open_memmap(folder / name, "w+", np.float64, shape)
        reserve(folder / name)
    with open(folder / "rows", "rb") as rows, open(folder / "tasks", "rb") as tasks:
        for _ in range(0, n_rows, block):
            numbers = np.fromfile(tasks, np.int64, block)
            values = np.fromfile(rows, np.float64, width * len(numbers)).reshape(-1, width)
            # Mapped anew for every block: pages that were written stay with the system, not with us.
            x, y = (np.load(folder / name, mmap_mode="r+") for name in ("x.npy", "y.npy"))
            by_task = np.argsort(numbers, kind="stable")
            found, first, of_task = np.unique(numbers[by_task], return_index=True, return_counts=True)
            place = np.repeat(free[found] - first, of_task) + np.arange(len(numbers))
            x[place], y[place] = values[by_task, :-1], values[by_task, -1]
            free[found] += of_task
            del x, y
    for name in ("rows", "tasks"):
        (folder / name).unlink()


def _check_free(folder: Path, overwrite: bool) -> None:
    """Raise if the folder exists, unless it holds stored tasks that may be replaced, and nothing else."""
    if not folder.exists():
        return
    found = Message(Argument("out"), f" must be a new folder; {folder} ")
    try:
        read_header(folder)
    except ValueError:
        unknown = "exists, and holds no stored tasks that can be read. Remove it, or name another folder."
        raise ValueError(Message(found, unknown)) from None
    if not overwrite:
        replace = Argument("overwrite", True)
        raise ValueError(Message(found, "holds stored tasks. Pass ", replace, " to replace them."))
    ours = {HEADER, *FILES}
    others = sorted(each.name for each in os.scandir(folder) if each.name not in ours or each.is_dir())
    if others:
        listed = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        advice = "Move what is not of stored tasks elsewhere, or name another folder."
        raise ValueError(Message(found, f"holds more than stored tasks: {listed}. {advice}"))


@contextmanager
def _new_folder(folder: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary folder that gets its name once all is written, and is removed after an error or a signal."""
    target = folder.resolve()  # a link stays, and what it leads to is replaced
    with name_in_errors(folder), unfinished(target) as new:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.mkdir(new)
        yield Path(new)
        _check_free(folder, overwrite)  # again: writing may have taken hours
        old = Path(f"{new}.old")
        if target.exists():
            os.replace(target, old)
        os.replace(new, target)
        with suppress(OSError):  # only what was written here goes, and a folder that is empty then
            for name in (HEADER, *FILES):
                (old / name).unlink(missing_ok=True)
            old.rmdir()
