"""Tables of any length as stored tasks: rows are read a batch at a time, and may come in any order."""

import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from metaprior.checks import check_bool
from metaprior.storage.stored_tasks import FILES, FORMAT, FORMAT_VERSION, HEADER, read_header
from metaprior.storage.task_index import TaskIndex
from metaprior.tables.batch_reading import table_files
from metaprior.tables.columns import as_columns

BLOCK = 2**20  # numbers moved at once


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

    `tables` is a Parquet or CSV file, a folder of them (`hospital=south/part-0.parquet` gives a column `hospital`), a
    pattern such as "readings/*.parquet", or a sequence of these. Columns are named as for `tasks_from_frame`, with one
    row per sample; the rows of a task may be anywhere in the tables, and keep their order. y must be numbers; labels of
    two classes are stored as 0 and 1. `drop_missing` leaves out rows in which a value is missing.

    Memory is needed for the names of the tasks, about 200 bytes each, and for a batch of rows. The folder takes eight
    bytes a number, and twice that while it is written. It appears under its name once it is whole; one that is there
    already is refused, unless it holds stored tasks and `overwrite=True`.
    """
    check_bool("drop_missing", drop_missing)
    check_bool("overwrite", overwrite)
    columns = as_columns(task=task, x=x, y=y, environment=environment)
    if columns.y is None or not columns.task:
        raise ValueError(f"{'y' if columns.y is None else 'task'} must be the name of a column; got None.")
    folder = Path(out)
    _check_free(folder, overwrite)
    files = table_files(tables)
    with _new_folder(folder) as new:
        tasks = TaskIndex(columns, drop_missing)
        digest = hashlib.sha256()
        with open(new / "rows", "wb") as rows, open(new / "codes", "wb") as codes, _once():
            for file, root in files:
                for numbers, values in tasks.read(file, root):
                    for stream, array in ((codes, numbers), (rows, values)):
                        stream.write(array.data)
                        digest.update(array.data)
        tasks.check(files)
        environments, order = tasks.grouped()
        _place_rows(new, order, tasks.counts[: len(tasks)], len(columns.x) + 1)
        digest.update(repr(environments).encode())
        header = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "columns": columns._asdict(),
            "environments": environments,
            "bytes": {name: (new / name).stat().st_size for name in FILES},
            "digest": digest.hexdigest(),
        }
        (new / HEADER).write_text(json.dumps(header, indent=1) + "\n", encoding="utf-8")


def _place_rows(folder: Path, order: np.ndarray, counts: np.ndarray, width: int) -> None:
    """Move every row to its task: from the order of the tables to that of the tasks."""
    offsets = np.concatenate([[0], np.cumsum(counts[order])])
    free = np.empty(len(order), np.int64)  # where the next row of each task goes
    free[order] = offsets[:-1]
    n_rows = int(offsets[-1])
    np.save(folder / "offsets.npy", offsets)
    shapes = {"x.npy": (n_rows, width - 1), "y.npy": (n_rows,)}
    block = max(BLOCK // width, 1)
    with open(folder / "rows", "rb") as rows, open(folder / "codes", "rb") as codes:
        for _ in range(0, n_rows, block):
            numbers = np.fromfile(codes, np.int64, block)
            values = np.fromfile(rows, np.float64, width * len(numbers)).reshape(-1, width)
            # Mapped anew for every block: pages that were written stay with the system, not with us.
            x, y = (_mapped(folder / name, shape) for name, shape in shapes.items())
            by_task = np.argsort(numbers, kind="stable")
            tasks, first, of_task = np.unique(numbers[by_task], return_index=True, return_counts=True)
            place = np.repeat(free[tasks] - first, of_task) + np.arange(len(numbers))
            x[place], y[place] = values[by_task, :-1], values[by_task, -1]
            free[tasks] += of_task
            del x, y
    for name in ("rows", "codes"):
        (folder / name).unlink()


def _mapped(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    if not path.exists():
        return np.lib.format.open_memmap(path, "w+", np.float64, shape)
    return np.load(path, mmap_mode="r+")


def _check_free(folder: Path, overwrite: bool) -> None:
    """The folder may be written, as it is not there or holds stored tasks that are not needed."""
    if not folder.exists():
        return
    try:
        read_header(folder)
    except ValueError:
        raise ValueError(f"out must be a new folder; {folder} is there, and holds no stored tasks.") from None
    if not overwrite:
        raise ValueError(f"out must be a new folder; {folder} holds stored tasks. Pass overwrite=True to replace them.")


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder that gets its name once all is written; nothing is left of it otherwise."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".part"))
    except OSError as error:
        raise ValueError(f"out must be a folder that can be written; {folder}: {error.strerror or error}.") from None
    try:
        yield new
        os.umask(umask := os.umask(0))  # mkdtemp makes private folders
        os.chmod(new, 0o777 & ~umask)
        old = new.with_suffix(".old")
        if folder.exists():
            os.replace(folder, old)
        os.replace(new, folder)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


@contextmanager
def _once() -> Iterator[None]:
    """Tell every warning once, not once a batch."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for message in {str(warning.message): warning.category for warning in caught}.items():
        warnings.warn(*message, stacklevel=4)
