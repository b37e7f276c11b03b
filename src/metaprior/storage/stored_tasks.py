"""Tasks in memory maps: more of them than memory holds. `storing` writes a folder of them from tables."""

import functools
import hashlib
import json
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from metaprior.tasks.types import Task

HEADER, FORMAT, FORMAT_VERSION = "tasks.json", "metaprior tasks", 1
FILES = ("x.npy", "y.npy", "offsets.npy")
BLOCK = 2**20  # numbers looked at in one go: 8 MB in float64
KEPT = 2**28  # bytes of a file that may stay mapped
GATHERED = 2**11  # tasks read at once: a system may map 64 kB around each of them


class Moments(NamedTuple):
    """Mean and variance of the columns of x, and of y, when every task counts the same."""

    size: np.ndarray  # (columns + 1,): the largest magnitude; mean and variance are in units of it
    mean: np.ndarray
    variance: np.ndarray
    first: np.ndarray  # the first row, in the units of the data


class StoredTasks(Sequence[Task]):
    """Tasks of one environment in memory maps. `fit` takes them like a list of (X, y), and reads few at a time.

    Made by `open_tasks`, or by `StoredTasks.from_arrays` from arrays of one's own. `len(tasks)`, `tasks[i]` and
    `tasks[a:b]` are as for a list; what a slice gives is stored too.
    """

    def __init__(self, x: np.ndarray, y: np.ndarray, offsets: np.ndarray, digest: str | None = None):
        self.x, self.y, self.offsets = x, y, offsets
        self._digest = digest

    @classmethod
    def from_arrays(cls, x: Any, y: Any, offsets: Any) -> "StoredTasks":
        """Tasks in one's own arrays or memory maps, which must not change from now on.

        x has shape (rows, inputs), y has shape (rows,), and the rows of task i are offsets[i] to offsets[i + 1]:
        `offsets` begins with 0 and ends with the number of rows. All numbers are looked at once, a block at a time.
        """
        x, y, offsets = (value if isinstance(value, np.ndarray) else np.asarray(value) for value in (x, y, offsets))
        x = x[:, None] if x.ndim == 1 else x
        for name, array, dims in (("x", x, 2), ("y", y, 1)):
            if array.dtype.kind not in "biuf" or array.ndim != dims or 0 in array.shape[1:]:
                shape = "(rows, inputs)" if dims == 2 else "(rows,)"
                raise ValueError(f"{name} must be numbers of shape {shape}; got {array.dtype} of {array.shape}.")
        if len(x) != len(y):
            raise ValueError(f"x and y must have the same number of rows; x has {len(x)} and y has {len(y)}.")
        if offsets.dtype.kind not in "iu" or offsets.ndim != 1 or not len(offsets):
            raise ValueError(f"offsets must be integers of shape (tasks + 1,); got {offsets.dtype} of {offsets.shape}.")
        if offsets[0] != 0 or offsets[-1] != len(x):
            came = f"{offsets[0]} to {offsets[-1]}"
            raise ValueError(f"offsets must begin with 0 and end with the number of rows, {len(x)}; got {came}.")
        stored = cls(x, y, offsets.astype(np.int64))
        if len(stored) and stored.sizes.min() < 1:
            at = int(np.argmax(stored.sizes < 1))
            raise ValueError(
                f"offsets must increase: task {at} has rows {offsets[at]} to {offsets[at + 1]}, and a meta-training "
                "task needs at least one sample; leave it out."
            )
        stored._check_finite()
        return stored

    @classmethod
    def from_tasks(cls, tasks: Sequence[Task], input_dim: int) -> "StoredTasks":
        """Checked tasks in memory, in the same form."""
        if isinstance(tasks, StoredTasks):
            return tasks
        offsets = np.cumsum([0, *(len(task.y) for task in tasks)])
        x = np.concatenate([np.empty((0, input_dim)), *(task.x for task in tasks)])
        return cls(x, np.concatenate([np.empty(0), *(task.y for task in tasks)]), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            if step != 1:
                return [self[i] for i in range(first, last, step)]
            digest = None if self._digest is None else f"{self._digest}[{first}:{last}]"
            return StoredTasks(self.x, self.y, self.offsets[first : max(first, last) + 1], digest)
        index = int(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} tasks; got index {index}.")
        first, last = self.offsets[index % len(self) :][:2]
        return Task(np.array(self.x[first:last], np.float64), np.array(self.y[first:last], np.float64))

    def __repr__(self) -> str:
        inputs = f"{self.input_dim} input column{'s' * (self.input_dim != 1)}"
        return f"StoredTasks({len(self):,} tasks, {self.n_samples:,} samples, {inputs})"

    @property
    def input_dim(self) -> int:
        """Number of input columns."""
        return self.x.shape[1]

    @property
    def n_samples(self) -> int:
        """Of all tasks together."""
        return int(self.offsets[-1] - self.offsets[0])

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """(tasks,): the number of samples of each."""
        return np.diff(np.asarray(self.offsets))

    @functools.cached_property
    def digest(self) -> str:
        """Of the content: known where `store_tasks` has written it, else found by reading all of it."""
        if self._digest is not None:
            return self._digest
        digest = hashlib.sha256(f"{self.x.dtype.str} {self.x.shape} {self.y.dtype.str}".encode())
        digest.update(self.sizes.tobytes())
        for first, last in self.blocks():
            digest.update(np.ascontiguousarray(self.x[first:last]).data)
            digest.update(np.ascontiguousarray(self.y[first:last]).data)
        return digest.hexdigest()

    def gather(self, indices: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tasks padded to one size, as by `pad_to`: x, y and mask, with the axes of `indices` in front."""
        flat, steps = indices.ravel(), np.arange(size)
        x, y = np.empty((len(flat), size, self.input_dim)), np.empty((len(flat), size))
        mask = np.empty(y.shape, bool)
        for first in range(0, len(flat), GATHERED):
            part = slice(first, first + GATHERED)
            starts = self.offsets[flat[part]]
            mask[part] = steps < (self.offsets[flat[part] + 1] - starts)[:, None]
            rows = starts[:, None] + np.where(mask[part], steps, 0)
            x[part], y[part] = self.x[rows], np.where(mask[part], self.y[rows], 0.0)
            self.release()
        return tuple(array.reshape(*indices.shape, *array.shape[1:]) for array in (x, y, mask))  # type: ignore

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Ranges of rows to look at one after another, (first, last), that together are all."""
        first, end = int(self.offsets[0]), int(self.offsets[-1])
        step = max(BLOCK // (self.input_dim + 1), 1)
        for start in range(first, end, step):
            yield start, min(start + step, end)
            self.release()

    @functools.cached_property
    def moments(self) -> Moments:
        """Found in two passes over blocks of rows: magnitudes, then means and variances, merged as by Chan et al."""
        size, last_task = np.zeros(self.input_dim + 1), 0
        for block in self.blocks():
            size = np.maximum(size, np.max(np.abs(self._rows(*block)), axis=0))
        size = np.where(size > 0, size, 1.0)
        total, mean, squares = 0.0, np.zeros_like(size), np.zeros_like(size)
        for first, last in self.blocks():
            rows = self._rows(first, last) / size
            ends = np.searchsorted(self.offsets, last, side="left")  # tasks that begin before the end of the block
            bounds = np.clip(self.offsets[last_task : ends + 1], first, last)
            weights = np.repeat(1.0 / self.sizes[last_task:ends], np.diff(bounds))
            last_task = int(ends) - 1  # may go on in the next block
            weight = weights.sum()
            of_block = weights @ rows / weight
            apart, total = of_block - mean, total + weight
            mean = mean + apart * (weight / total)
            squares = squares + weights @ (rows - of_block) ** 2 + apart**2 * (weight * (total - weight) / total)
        row = int(self.offsets[0])
        return Moments(size, mean, squares / total, self._rows(row, row + 1)[0])

    def release(self) -> None:
        """Hand pages of large files that were read back to the system, which else counts them as ours."""
        for array in (self.x, self.y):
            mapped: Any = getattr(array, "_mmap", None)
            if mapped is None or getattr(array, "mode", "") != "r":  # what was written to may be nowhere else
                continue
            if len(mapped) > KEPT and hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)

    def _check_finite(self) -> None:
        for first, last in self.blocks():
            for name, part in (("x", self.x[first:last]), ("y", self.y[first:last, None])):
                bad = ~np.isfinite(part).all(axis=1)
                if bad.any():
                    row = first + int(bad.argmax())
                    raise ValueError(f"{name} must be finite; row {row} has a value that is NaN or infinite.")

    def _rows(self, first: int, last: int) -> np.ndarray:
        return np.concatenate([self.x[first:last], self.y[first:last, None]], axis=1, dtype=np.float64)


def open_tasks(folder: Any) -> Any:
    """The tasks that `store_tasks` has written to a folder, for `fit`. They stay on disk until they are needed.

    A dict from the names of environments to `StoredTasks`, for `fit(tasks, target=...)`; one `StoredTasks` where they
    were stored without a column of environments.
    """
    if not isinstance(folder, str | os.PathLike):
        raise ValueError(f"folder must be a path that store_tasks has written to; got {type(folder).__name__}.")
    header = read_header(Path(folder))
    arrays = {}
    for name in FILES:
        path = Path(folder) / name
        size = path.stat().st_size if path.exists() else None
        if size != header["bytes"][name]:
            came = "is missing" if size is None else f"has {size:,} bytes"
            raise _damaged(folder, f"{name} {came}, and {header['bytes'][name]:,} were written")
        try:
            arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise _damaged(folder, f"{name} cannot be read ({error})") from None
    x, y, offsets = (arrays[name] for name in FILES)
    counts = [environment["tasks"] for environment in header["environments"]]
    whole = StoredTasks(x, y, np.array(offsets))
    if not (x.ndim == 2 and len(x) == len(y) == offsets[-1] and len(whole) == sum(counts) and whole.sizes.min() > 0):
        raise _damaged(folder, "its parts do not belong together")
    ends = np.cumsum(counts).tolist()
    stored = {}
    for environment, first, last in zip(header["environments"], [0, *ends], ends, strict=False):
        digest = f"{header['digest']} {first} {last}"
        stored[environment["name"]] = StoredTasks(x, y, whole.offsets[first : last + 1], digest)
    return stored[None] if list(stored) == [None] else stored


def read_header(folder: Path) -> dict[str, Any]:
    """What a folder of stored tasks says of itself; an error if it is none."""
    advice = "expected a folder that metaprior.store_tasks has written"
    if not folder.exists():
        raise ValueError(f"{folder} does not exist: {advice}.")
    if not (folder / HEADER).is_file():
        what = "has no tasks.json" if folder.is_dir() else "is a file"
        raise ValueError(f"{folder} {what}: {advice}.")
    try:
        header = json.loads((folder / HEADER).read_text(encoding="utf-8"))
        if header["format"] != FORMAT:
            raise ValueError(f"{folder / HEADER} is not of stored tasks: {advice}.")
        if header["version"] != FORMAT_VERSION:
            raise ValueError(
                f"{folder} has format version {header['version']!r}; this metaprior reads {FORMAT_VERSION}. Update "
                "metaprior, or store the tasks again."
            )
        sound = header["digest"] and all(header["bytes"][name] for name in FILES)
        if not (sound and all(each["tasks"] > 0 and "name" in each for each in header["environments"])):
            raise KeyError("environments")
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise _damaged(folder, f"tasks.json cannot be read ({error!r})") from None
    return header


def _damaged(folder: Any, why: str) -> ValueError:
    return ValueError(f"{folder} is damaged: {why}. Store the tasks again, or take another copy.")


def check_stored_labels(tasks: Sequence[Task], name: str) -> Sequence[Task]:
    """Tasks of which some are stored, as numbers: their labels are checked, a block at a time."""
    stored = isinstance(tasks, StoredTasks)
    blocks = (tasks.y[slice(*rows)] for rows in tasks.blocks()) if stored else (task.y for task in tasks)
    for y in blocks:
        others = [label for label in np.unique(y).tolist() if label not in (0, 1)]
        if others:
            raise ValueError(
                f"{name}: labels must be 0 and 1 where tasks are stored; got {others[0]!r}. Make 0 and 1 of the two "
                "labels before store_tasks; where every task has labels of its own, of the first and the second."
            )
    return tasks if stored else [Task(task.x, task.y.astype(np.float64)) for task in tasks]
