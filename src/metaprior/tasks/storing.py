"""Tables of any length as stored tasks: rows are read a batch at a time, and may come in any order."""

import glob
import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from metaprior.checks import check_bool
from metaprior.tasks.cells import Column, as_inputs, as_outputs, read_names, read_values
from metaprior.tasks.columns import Columns, TableWarning, as_columns, as_text, check_known
from metaprior.tasks.store import FILES, FORMAT, FORMAT_VERSION, HEADER, read_header
from metaprior.tasks.tables import PARQUET, SEPARATORS, to_frame

ROWS = 2**16  # of a table, read at once
Batch = tuple[np.ndarray, np.ndarray]  # the number of each row's task; inputs and output, (rows, inputs + 1)


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
        tasks = _Tasks(columns, drop_missing)
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


class _Tasks:
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
        for frame in _frames(file, root, self.columns, self._check_kinds):
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
                    f"{file}. Write one of them anew."
                )


def table_files(tables: Any) -> list[tuple[Path, Path]]:
    """The files that are meant, in order, each with the folder below which names of folders are columns."""
    given = [tables] if isinstance(tables, str | os.PathLike) else tables
    if not isinstance(given, Sequence) or not all(isinstance(each, str | os.PathLike) for each in given) or not given:
        raise ValueError(f"tables must be a path, a pattern, or a sequence of them; got {repr(tables)[:100]}.")
    known = (*PARQUET, *SEPARATORS)
    files: list[tuple[Path, Path]] = []
    for each in map(Path, given):
        if each.is_dir():
            found = sorted(path for path in each.rglob("*") if path.suffix.lower() in known and path.is_file())
            found = [(path, each) for path in found if not any(p.startswith((".", "_")) for p in path.parts)]
        elif each.exists():
            found = [(each, each.parent)]
        else:
            found = [(path, path.parent) for path in map(Path, sorted(glob.glob(str(each), recursive=True)))]
        if not found:
            what = "has no Parquet or CSV file in it" if each.is_dir() else "does not exist"
            raise ValueError(f"{each} {what}: expected a Parquet or CSV file, a folder of them, or a pattern.")
        files += found
    for path, _ in files:
        if path.suffix.lower() not in known:
            raise ValueError(f"{path} must be named {', '.join(known)}.")
    return files


def _frames(file: Path, root: Path, columns: Columns, check_kinds: Any) -> Iterator[Any]:
    """The columns that are used, a data frame for every batch of rows."""
    import pyarrow as pa
    from pyarrow import dataset

    if not file.stat().st_size:
        raise ValueError(f"{file} is empty: expected a table with a line of column names.")
    csv = SEPARATORS.get(file.suffix.lower())
    kind = dataset.ParquetFileFormat() if csv is None else _csv_format(csv, columns)
    try:
        base = str(root.absolute())
        table = dataset.dataset(str(file.absolute()), format=kind, partitioning="hive", partition_base_dir=base)
        check_known(columns.used, table.schema.names, str(file))
        naming = [*columns.task, *([] if columns.environment is None else [columns.environment])]
        types = {name: table.schema.field(name).type for name in naming}
        types = {name: each.value_type if pa.types.is_dictionary(each) else each for name, each in types.items()}
        text = {name: pa.types.is_string(each) or pa.types.is_large_string(each) for name, each in types.items()}
        check_kinds(file, text)
        for batch in table.to_batches(columns=columns.used, batch_size=ROWS, batch_readahead=1, fragment_readahead=1):
            if batch.num_rows:
                yield to_frame(pa.Table.from_batches([batch]), file)
    except (pa.ArrowException, OSError) as error:
        what = "Parquet file" if csv is None else "CSV table"
        raise ValueError(f"{file} is damaged, or no {what}: {str(error)[:200]}.") from None


def _csv_format(separator: str, columns: Columns) -> Any:
    """All cells as text: what a batch of them holds is not for its first rows to say."""
    import pyarrow as pa
    from pyarrow import csv, dataset

    convert = csv.ConvertOptions(strings_can_be_null=True, column_types={name: pa.string() for name in columns.used})
    return dataset.CsvFileFormat(
        csv.ParseOptions(delimiter=separator, newlines_in_values=True), convert_options=convert
    )


def _numbered(values: Sequence[Any], known: dict[Any, int]) -> np.ndarray:
    """The numbers of values, new ones in the order in which they come."""
    return np.fromiter((known.setdefault(value, len(known)) for value in values), np.int64, len(values))


def _place_rows(folder: Path, order: np.ndarray, counts: np.ndarray, width: int) -> None:
    """Move every row to its task: from the order of the tables to that of the tasks."""
    offsets = np.concatenate([[0], np.cumsum(counts[order])])
    free = np.empty(len(order), np.int64)  # where the next row of each task goes
    free[order] = offsets[:-1]
    n_rows = int(offsets[-1])
    np.save(folder / "offsets.npy", offsets)
    shapes = {"x.npy": (n_rows, width - 1), "y.npy": (n_rows,)}
    block = max(ROWS, 2**20 // width)
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
