"""Tasks in memory maps, more of them than memory holds, and passes over their rows in blocks.

Labels of stored tasks: which classes each task has, found in one pass over y.
"""

import functools
import hashlib
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import Argument, Message, counted
from metaprior.files import InvalidFile
from metaprior.tasks.labels import (
    MAX_CLASSES,
    are_shared,
    check_classes,
    require_two,
    warn_if_misspelled,
    warn_if_unrepeated,
)
from metaprior.tasks.scaling import Scaling, scaling_of
from metaprior.tasks.types import Task

BLOCK = 2**20  # numbers read at once: 8 MB in float64
KEPT = 2**28  # bytes of a file that may stay mapped
GATHERED = 2**11  # tasks read at once: a system may map 64 kB around each of them


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


class Moments(NamedTuple):
    """Mean and variance of the columns of x, and of y, when every task counts the same."""

    size: np.ndarray  # (columns + 1,): the largest magnitude; mean and variance are in units of it
    mean: np.ndarray
    variance: np.ndarray
    first: np.ndarray  # the first row, in the units of the data


class StoredTasks(Sequence[Task]):
    """Tasks of one environment in memory maps, made by `open_tasks` or `StoredTasks.from_arrays`.

    `fit` takes them like a list of (X, y), and reads few at a time. `len(tasks)`, `tasks[i]` and `tasks[a:b]` work as
    for a list; a slice is stored too.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        offsets: np.ndarray,
        digest: str | None = None,
        classes: np.ndarray | None = None,
        files: StoredFiles | None = None,
    ):
        self.x, self.y, self.offsets = x, y, offsets
        self._files = files  # that x and y are mapped from
        self._digest = digest
        self._classes = classes  # of tasks with labels, (tasks, most classes), sorted; infinite where there are fewer

    @classmethod
    def from_arrays(cls, x: Any, y: Any, offsets: Any) -> "StoredTasks":
        """Make tasks of arrays or memory maps, which must not change afterwards.

        Parameters
        ----------
        x : array of shape (rows, inputs) or (rows,)
            Inputs of all tasks. All numbers are checked once, in blocks.
        y : array of shape (rows,)
            Outputs, or labels as numbers: the same classes in all tasks, or each task's own.
        offsets : array of int of shape (tasks + 1,)
            Task i has the rows offsets[i] to offsets[i + 1]; from 0 to the number of rows.

        Returns
        -------
        StoredTasks

        Examples
        --------
        >>> from metaprior import StoredTasks
        >>> StoredTasks.from_arrays([0.0, 1.0, 2.0], [5.0, 6.0, 7.0], offsets=[0, 1, 3])
        StoredTasks(2 tasks, 3 samples, 1 input column)
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
            got = f"{offsets[0]} to {offsets[-1]}"
            raise ValueError(f"offsets must begin with 0 and end with the number of rows, {len(x)}; got {got}.")
        stored = cls(x, y, offsets.astype(np.int64))
        if len(stored) and stored.sizes.min() < 1:
            task = int(np.argmax(stored.sizes < 1))
            got = f"task {task} has rows {offsets[task]} to {offsets[task + 1]}"
            raise ValueError(f"offsets must increase, as every task needs a sample; {got}. Leave it out.")
        for first, last in stored.blocks():
            for name, part in (("x", x[first:last]), ("y", y[first:last, None])):
                bad = ~np.isfinite(part).all(axis=1)
                if bad.any():
                    row = first + int(bad.argmax())
                    raise ValueError(f"{name} must be finite; row {row} has a value that is NaN or infinite.")
        return stored

    @classmethod
    def from_tasks(cls, tasks: Sequence[Task], input_dim: int) -> "StoredTasks":
        """Return checked tasks in memory as stored ones."""
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
            classes = None if self._classes is None else self._classes[first:last]
            return StoredTasks(self.x, self.y, self.offsets[first : max(first, last) + 1], digest, classes, self._files)
        index = int(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} tasks; got index {index}.")
        index %= len(self)
        first, last = self.offsets[index : index + 2]
        y = self._outputs(np.array(self.y[first:last], np.float64), np.array(index))
        return Task(np.array(self.x[first:last], np.float64), y)

    def __iter__(self) -> Iterator[Task]:
        """Verify what is read, so that lists, `evaluate` and `adapt_many` do not use damaged files either."""
        self.verify()
        return map(self.__getitem__, range(len(self)))

    def __repr__(self) -> str:
        parts = (len(self), "task"), (self.n_samples, "sample"), (self.input_dim, "input column")
        return f"StoredTasks({', '.join(counted(*part) for part in parts)})"

    @property
    def input_dim(self) -> int:
        """Number of input columns."""
        return self.x.shape[1]

    @property
    def n_samples(self) -> int:
        """Number of samples of all tasks."""
        return int(self.offsets[-1] - self.offsets[0])

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """Number of samples of each task, (tasks,)."""
        return np.diff(np.asarray(self.offsets))

    @functools.cached_property
    def digest(self) -> str:
        """Checksum of the content: as written by `store_tasks`, or found by reading everything."""
        if self._classes is not None:
            plain = StoredTasks(self.x, self.y, self.offsets, self._digest).digest
            classes = self._classes if self._classes.strides[0] else self._classes[:1]  # shared: the same in each task
            return f"{plain} labels {hashlib.sha256(classes.tobytes()).hexdigest()}"
        if self._digest is not None:
            return self._digest
        digest = hashlib.sha256(f"{self.x.dtype.str} {self.x.shape} {self.y.dtype.str}".encode())
        digest.update(self.sizes.tobytes())
        for first, last in self.blocks():
            digest.update(np.ascontiguousarray(self.x[first:last]).data)
            digest.update(np.ascontiguousarray(self.y[first:last]).data)
        return digest.hexdigest()

    def verify(self) -> None:
        """Raise `InvalidFile` if files of `store_tasks` do not hold what was written.

        `fit`, and going through all tasks, do this first.

        All bytes are read, about 1 GB per second, unless the files have not changed since the last time.
        Arrays have no checksums, and are not verified.
        """
        if self._files is not None:
            self._files.verify()

    def gather(self, indices: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return x, y and mask of tasks padded to one size, as by `pad_to`, with the axes of `indices` in front."""
        flat, steps = indices.ravel(), np.arange(size)
        x, y = np.empty((len(flat), size, self.input_dim)), np.empty((len(flat), size))
        mask = np.empty(y.shape, bool)
        for first in range(0, len(flat), GATHERED):
            part = slice(first, first + GATHERED)
            starts = self.offsets[flat[part]]
            mask[part] = steps < (self.offsets[flat[part] + 1] - starts)[:, None]
            rows = starts[:, None] + np.where(mask[part], steps, 0)
            x[part], y[part] = self.x[rows], np.where(mask[part], self._outputs(self.y[rows], flat[part]), 0.0)
            self.release()
        return tuple(array.reshape(*indices.shape, *array.shape[1:]) for array in (x, y, mask))  # type: ignore

    def encoded(self, classes: np.ndarray) -> "StoredTasks":
        """Return tasks that give the places of labels among the classes of each task: 0.0, 1.0, ...

        Classes (tasks, most classes) are sorted, and infinite where a task has fewer. Those that all tasks share may
        have one axis.
        """
        classes = np.broadcast_to(classes, (len(self), classes.shape[-1]))
        return StoredTasks(self.x, self.y, self.offsets, self._digest, classes, self._files)

    def _outputs(self, y: np.ndarray, tasks: np.ndarray) -> np.ndarray:
        """Return y of tasks (first axis, if any), or the codes of their labels."""
        if self._classes is None:
            return y
        codes = np.zeros(y.shape)
        for classes in self._classes.T[:-1]:  # the number of classes below a label is its place
            below = classes[tasks]
            codes += y > (below[:, None] if y.ndim > 1 else below)
        return codes

    def read(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return all rows of x and y of a range of tasks, labels as codes, and the sizes of the tasks."""
        rows, sizes = slice(self.offsets[first], self.offsets[last]), self.sizes[first:last]
        tasks = np.repeat(np.arange(first, last), sizes)
        return np.asarray(self.x[rows], np.float64), self._outputs(np.asarray(self.y[rows], np.float64), tasks), sizes

    def task_blocks(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of whole tasks, (first, last), of about a block of numbers."""
        first, n_rows = 0, max(BLOCK // (self.input_dim + 1), 1)
        while first < len(self):
            last = int(np.searchsorted(self.offsets, self.offsets[first] + n_rows, side="right")) - 1
            last = min(max(last, first + 1), len(self))
            yield first, last
            first = last
            self.release()

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of rows, (first, last), that together are all rows."""
        first, end = int(self.offsets[0]), int(self.offsets[-1])
        step = max(BLOCK // (self.input_dim + 1), 1)
        for start in range(first, end, step):
            yield start, min(start + step, end)
            self.release()

    @functools.cached_property
    def moments(self) -> Moments:
        """Moments of all rows, by two passes over blocks: magnitudes, then means and variances (Chan et al.)."""
        size, last_task = np.zeros(self.input_dim + 1), 0
        for block in self.blocks():
            size = np.maximum(size, np.max(np.abs(self._rows(*block)), axis=0))
        if not np.isfinite(size).all():  # checked when they were stored: the file has changed since
            raise ValueError("stored tasks must be finite; some values are NaN or infinite. Store the tasks again.")
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

    def _rows(self, first: int, last: int) -> np.ndarray:
        return np.concatenate([self.x[first:last], self.y[first:last, None]], axis=1, dtype=np.float64)

    def release(self) -> None:
        """Return the pages of large files to the system, which counts them as used by this process."""
        for array in (self.x, self.y):
            mapped: Any = getattr(array, "_mmap", None)
            if mapped is None or getattr(array, "mode", "") != "r":  # written pages may exist nowhere else
                continue
            if len(mapped) > KEPT and hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)


def stored_scaling(environments: Sequence[StoredTasks], weights: Sequence[float]) -> Scaling:
    """Return the mean and standard deviation of all samples, weighted by w_e / (N_e M_i), as `fit_scaling` does."""
    counted = [(stored.moments, weight) for stored, weight in zip(environments, weights, strict=True) if weight > 0]
    share = np.array([weight for _, weight in counted])
    share = share / share.sum()
    size = np.max([moments.size for moments, _ in counted], axis=0)
    unit = np.stack([moments.size / size for moments, _ in counted])
    means = unit * np.stack([moments.mean for moments, _ in counted])
    mean = share @ means
    variances = unit**2 * np.stack([moments.variance for moments, _ in counted])
    return scaling_of(size, mean, np.sqrt(share @ (variances + (means - mean) ** 2)), counted[0][0].first)


def sample_tasks(environments: Sequence[Sequence[Task]], most: int, seed: int) -> list[list[Task]]:
    """Return up to `most` random tasks of each environment, in memory or stored, in their order."""
    drawn = []
    for e, tasks in enumerate(environments):
        rng = np.random.default_rng([seed, e])
        chosen = rng.choice(len(tasks), most, replace=False) if len(tasks) > most else np.arange(len(tasks))
        drawn.append([tasks[i] for i in np.sort(chosen).tolist()])
        if isinstance(tasks, StoredTasks):
            tasks.release()
    return drawn


def encode_stored(
    environments: Sequence[Sequence[Task]],
    names: Sequence[str],
    weights: Sequence[float],
    shared: bool | str = "auto",
    most: int = MAX_CLASSES,
) -> tuple[list[StoredTasks], np.ndarray | None, list[np.ndarray]]:
    """Return tasks, some of them stored, that give labels 0.0, 1.0, ...; the shared classes; numbers of classes.

    The rules are those of `tasks.labels.encode_environments`, for labels that are numbers.
    """
    input_dim = next(tasks.input_dim for tasks in environments if isinstance(tasks, StoredTasks))
    stored = []
    for tasks, name in zip(environments, names, strict=True):
        if any(task.y.dtype.kind not in "biuf" for task in (() if isinstance(tasks, StoredTasks) else tasks)):
            raise ValueError(f"{name}: labels must be numbers beside stored tasks, whose labels are numbers; got text.")
        stored.append(StoredTasks.from_tasks(tasks, input_dim))
    own = [
        _own_classes(tasks, name, most) if weight > 0 else _zero_or_one(tasks)
        for tasks, name, weight in zip(stored, names, weights, strict=True)
    ]
    counted = [classes for classes, weight in zip(own, weights, strict=True) if weight > 0]
    distinct = np.unique(np.concatenate([classes[np.isfinite(classes)] for classes in counted]))
    require_two(_as_integers(distinct))
    samples = [tasks.sizes for tasks, weight in zip(stored, weights, strict=True) if weight > 0]
    n_labels = [np.isfinite(classes).sum(axis=1) for classes in counted]
    warn_if_unrepeated(np.concatenate(n_labels), np.concatenate(samples))
    if are_shared(len(distinct), max(classes.shape[1] for classes in counted), shared):
        classes = _as_integers(distinct)
        check_classes(classes, None, most)
        own = [distinct if weight > 0 else of_tasks for of_tasks, weight in zip(own, weights, strict=True)]
    else:
        classes = None
        _check_own(own, names, weights, warn=shared == "auto")
    pairs = list(zip(stored, own, strict=True))
    n_classes = [np.broadcast_to(np.isfinite(of_tasks).sum(axis=-1), len(tasks)) for tasks, of_tasks in pairs]
    return [tasks.encoded(of_tasks) for tasks, of_tasks in pairs], classes, n_classes


def _own_classes(tasks: StoredTasks, name: str, most: int) -> np.ndarray:
    """Return the sorted labels of each task, (tasks, most classes), infinite where it has fewer."""
    found = []
    for begin, end in tasks.task_blocks():
        rows = tasks.offsets[begin : end + 1]
        y = np.asarray(tasks.y[rows[0] : rows[-1]], np.float64)
        of_task = np.repeat(np.arange(end - begin), np.diff(rows))
        order = np.lexsort((y, of_task))
        y, of_task = y[order], of_task[order]
        is_new = np.append(True, (y[1:] != y[:-1]) | (of_task[1:] != of_task[:-1]))
        labels, of_task = y[is_new], of_task[is_new]
        counts = np.bincount(of_task)
        fractions = np.bincount(of_task, labels != np.round(labels))
        bad = (counts > most) | ((counts > 2) & (fractions > 0))
        if bad.any():
            task = int(bad.argmax())
            check_classes(_as_integers(labels[of_task == task]), f"{name}[{begin + task}]", most)
        classes = np.full((end - begin, counts.max()), np.inf)
        classes[of_task, np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)] = labels
        found.append(classes)
    return _stacked(found)


def _zero_or_one(tasks: StoredTasks) -> np.ndarray:
    """Return two classes per task, so that its least label becomes 0 and all others 1."""
    found = [np.empty(0)]
    for begin, end in tasks.task_blocks():
        rows = tasks.offsets[begin : end + 1]
        found.append(np.minimum.reduceat(np.asarray(tasks.y[rows[0] : rows[-1]], np.float64), rows[:-1] - rows[0]))
    least = np.concatenate(found)
    return np.stack([least, np.full(len(least), np.finfo(np.float64).max)], axis=1)


def _check_own(own: Sequence[np.ndarray], names: Sequence[str], weights: Sequence[float], warn: bool) -> None:
    """Raise if a task that counts has one label only; `warn` if most tasks have the same labels."""
    counted = [(classes, name) for classes, name, weight in zip(own, names, weights, strict=True) if weight > 0]
    for classes, name in counted:
        alone = np.isfinite(classes).sum(axis=1) == 1
        if alone.any():
            require_two(_as_integers(classes[alone.argmax(), :1]), f"{name}[{int(alone.argmax())}]")
    if not warn:
        return
    sets, counts = np.unique(_stacked([classes for classes, _ in counted]), axis=0, return_counts=True)
    first = sets[np.argsort(-counts, kind="stable")[:2]]
    commonest = [tuple(_as_integers(labels[np.isfinite(labels)]).tolist()) for labels in first]
    warn_if_misspelled(commonest, int(counts.max()), int(counts.sum()))


def _stacked(classes: Sequence[np.ndarray]) -> np.ndarray:
    """Return tables of classes below each other, all as wide as the widest."""
    width = max((len(of_tasks.T) for of_tasks in classes), default=0)
    widened = [np.pad(of, ((0, 0), (0, width - len(of.T))), constant_values=np.inf) for of in classes]
    return np.concatenate([np.empty((0, width)), *widened])


def _as_integers(labels: np.ndarray) -> np.ndarray:
    exact = (labels == np.round(labels)) & (np.abs(labels) <= 2**53)
    return labels.astype(np.int64) if exact.all() else labels
