"""The tasks of tables that are read a batch at a time: which there are, how many rows each has, where it is from."""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metaprior.tables.batch_reading import table_frames
from metaprior.tables.cells import Column, as_inputs, as_outputs, read_names, read_values
from metaprior.tables.columns import Columns, TableWarning, as_text

Batch = tuple[np.ndarray, np.ndarray]  # the number of each row's task; inputs and output, (rows, inputs + 1)


class TaskIndex:
    """The tasks found so far, numbered in the order of their first rows."""

    def __init__(self, columns: Columns, drop_missing: bool):
        self.columns, self.drop_missing = columns, drop_missing
        self.names: list[dict[Any, int]] = [{} for _ in columns.task]  # the values of each column that names tasks
        self.pairs: list[dict[Any, int]] = [{} for _ in columns.task[1:]]  # of what came before and the next value
        self.environments: dict[Any, int] = {}
        self.counts = np.zeros(1024, np.int64)
        self.of_environment = np.full(1024, -1, np.int64)
        self.kinds: dict[str, tuple[bool, Path]] = {}  # whether names are text, and the file that says so
        self.n_rows = self.n_dropped = 0

    def __len__(self) -> int:
        return len((self.pairs or self.names)[-1])

    def read(self, file: Path, root: Path) -> Iterator[Batch]:
        """The rows of a file, checked."""
        first = 0
        for frame in table_frames(file, root, self.columns, self._check_kinds):
            rows = first + np.arange(len(frame))
            first += len(frame)
            batch = self._checked(frame, rows, str(file))
            if batch is not None:
                yield batch

    def check(self, files: Sequence[Any]) -> None:
        """There are some, and what was dropped is told."""
        source = str(files[0][0]) if len(files) == 1 else f"tables ({len(files)} files)"
        found = f"{self.n_dropped} of {self.n_rows} rows with a missing value"
        if not len(self):
            found = found if self.n_rows else "none"
            raise ValueError(f"{source} must have at least one row without missing values; got {found}.")
        if self.n_dropped:
            warnings.warn(f"{source}: dropped {found}.", TableWarning, stacklevel=3)

    def grouped(self) -> tuple[list[dict[str, Any]], np.ndarray]:
        """The environments, and the tasks in their order, environment after environment."""
        counts, n_tasks = self.counts[: len(self)], len(self)
        if self.columns.environment is None:
            return [{"name": None, "tasks": n_tasks, "samples": int(counts.sum())}], np.arange(n_tasks)
        of_environment = self.of_environment[:n_tasks]
        tasks = np.bincount(of_environment).tolist()
        samples = np.bincount(of_environment, counts).astype(int).tolist()
        named = zip(self.environments, tasks, samples, strict=True)
        listed = [{"name": name, "tasks": each, "samples": of_each} for name, each, of_each in named]
        return listed, np.argsort(of_environment, kind="stable")

    def _checked(self, frame: Any, rows: np.ndarray, source: str) -> Batch | None:
        columns = self.columns
        naming = [read_names(frame[name], name, source) for name in columns.task]
        places = [] if columns.environment is None else [read_names(frame[columns.environment], "", source)]
        places = [column._replace(name=columns.environment) for column in places]
        inputs = [read_values(frame[name], name, source) for name in columns.x]
        outputs = read_values(frame[columns.y], columns.y, source)  # type: ignore[arg-type]
        kept = self._present([*naming, *places, *inputs, outputs], rows, source)
        if not len(kept):
            return None
        there = rows[kept]
        values = [as_inputs(column.at(kept), there) for column in inputs]
        values.append(np.asarray(as_outputs(outputs.at(kept), there, labels=False), np.float64))
        numbers = self._numbers([column.at(kept) for column in naming])
        for column in places:
            self._place(column.at(kept), numbers, there, [c.at(kept) for c in naming])
        return numbers, np.ascontiguousarray(np.stack(values, axis=1))

    def _present(self, columns: Sequence[Column], rows: np.ndarray, source: str) -> np.ndarray:
        missing = np.zeros(len(rows), bool)
        in_columns = []
        for column in columns:
            of_column = column.missing()
            missing |= of_column
            in_columns += [column.name] if of_column.any() else []
        self.n_rows += len(rows)
        self.n_dropped += int(missing.sum())
        if missing.any() and not self.drop_missing:
            raise ValueError(
                f"{source} has rows with a missing value (in {', '.join(in_columns)}); the first is row "
                f"{rows[missing.argmax()] + 1}. Fill them in, or pass drop_missing=True to leave them out."
            )
        return np.flatnonzero(~missing)

    def _numbers(self, naming: Sequence[Column]) -> np.ndarray:
        """The number of each row's task."""
        import pandas as pd

        numbers = np.zeros(0, np.int64)
        for i, column in enumerate(naming):
            assert column.codes is not None
            places, used = pd.factorize(column.codes)
            codes = _numbered(column.values[used].tolist(), self.names[i])[places]
            if i == 0:
                numbers = codes
                continue
            places, used = pd.factorize(numbers << 32 | codes)
            numbers = _numbered(used.tolist(), self.pairs[i - 1])[places]
        if len(self) > len(self.counts):
            more = max(len(self), 2 * len(self.counts)) - len(self.counts)
            self.counts = np.concatenate([self.counts, np.zeros(more, np.int64)])
            self.of_environment = np.concatenate([self.of_environment, np.full(more, -1)])
        of_batch = np.bincount(numbers)
        self.counts[: len(of_batch)] += of_batch
        return numbers

    def _place(self, column: Column, numbers: np.ndarray, rows: np.ndarray, naming: Sequence[Column]) -> None:
        """Take down the environment of every task; no task has rows in two."""
        assert column.codes is not None
        used, places = np.unique(column.codes, return_inverse=True)
        found = _numbered([as_text(value) for value in column.values[used].tolist()], self.environments)[places]
        new = self.of_environment[numbers] < 0
        self.of_environment[numbers[new][::-1]] = found[new][::-1]  # that of the first row stays
        other = self.of_environment[numbers] != found
        if not other.any():
            return
        at = int(other.argmax())
        known = list(self.environments)
        here, there = known[self.of_environment[numbers[at]]], known[found[at]]
        name = ", ".join(repr(c.cells(np.array([at]))[0]) for c in naming)
        columns = [column.name, *(c.name for c in naming if c.name != column.name)]
        raise ValueError(
            f"{column.source}: task {name} is in two environments, {here!r} before and {there!r} in row "
            f"{rows[at] + 1}. If these are different tasks, name tasks by both columns: task={columns}. If they are "
            "one, mend the environment."
        )

    def _check_kinds(self, file: Path, text: dict[str, bool]) -> None:
        """A name that is text in one file and a number in another would make two tasks of one."""
        for name, is_text in text.items():
            before, where = self.kinds.setdefault(name, (is_text, file))
            if before != is_text:
                kinds = ("text", "numbers") if before else ("numbers", "text")
                raise ValueError(
                    f"column {name!r} must be of one kind in all tables; it is {kinds[0]} in {where} and {kinds[1]} in "
                    f"{file} (cells of CSV files are text, as are names of folders). Write one of them anew."
                )


def _numbered(values: Sequence[Any], known: dict[Any, int]) -> np.ndarray:
    """The numbers of values, new ones in the order in which they come."""
    return np.fromiter((known.setdefault(value, len(known)) for value in values), np.int64, len(values))
