"""Tables of any length, in one file or many: Parquet and CSV, a batch of rows at a time."""

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from metaprior.tables.columns import Columns, check_known
from metaprior.tables.reading import PARQUET, SEPARATORS, to_frame

ROWS = 2**16  # read at once
KNOWN = (*PARQUET, *SEPARATORS)


def table_files(tables: Any) -> list[tuple[Path, Path]]:
    """The files that are meant, in order, each with the folder below which names of folders are columns."""
    given = [tables] if isinstance(tables, str | os.PathLike) else tables
    if not isinstance(given, Sequence) or not all(isinstance(each, str | os.PathLike) for each in given) or not given:
        raise ValueError(f"tables must be a path, a pattern, or a sequence of them; got {repr(tables)[:100]}.")
    files: list[tuple[Path, Path]] = []
    for each in map(Path, given):
        paths = [each] if each.exists() else [Path(path) for path in sorted(glob.glob(str(each), recursive=True))]
        found = [file for path in paths for file in _files_in(path)]
        if not found:
            what = "has no Parquet or CSV file in it" if paths else "does not exist"
            raise ValueError(f"{each} {what}: expected a Parquet or CSV file, a folder of them, or a pattern.")
        files += found
    seen: set[Path] = set()
    for file, _ in files:
        if file.resolve() in seen:
            raise ValueError(f"tables has {file} twice: its rows would count twice.")
        seen.add(file.resolve())
    return files


def _files_in(path: Path) -> list[tuple[Path, Path]]:
    """The file, or those in a folder and below it; hidden ones are left out, as those that other tools keep there."""
    if not path.is_dir():
        if path.suffix.lower() not in KNOWN:
            raise ValueError(f"{path} must be named {', '.join(KNOWN)}.")
        return [(path, path.parent)]
    found = [file for file in sorted(path.rglob("*")) if file.suffix.lower() in KNOWN and file.is_file()]
    hidden = lambda file: any(part.startswith((".", "_")) for part in file.relative_to(path).parts)  # noqa: E731
    return [(file, path) for file in found if not hidden(file)]


def table_frames(file: Path, root: Path, columns: Columns, check_kinds: Any) -> Iterator[Any]:
    """The columns that are used, a data frame for every batch of rows."""
    import pyarrow as pa
    from pyarrow import dataset

    if not file.stat().st_size:
        raise ValueError(f"{file} is empty: expected a table with a line of column names.")
    csv = SEPARATORS.get(file.suffix.lower())
    kind = dataset.ParquetFileFormat() if csv is None else _csv_format(csv, columns)
    try:
        named = [part.split("=", 1)[0] for part in file.relative_to(root).parts[:-1] if "=" in part]
        folders = dataset.HivePartitioning(pa.schema([(name, pa.string()) for name in named]))
        base = str(root.absolute())
        table = dataset.dataset(str(file.absolute()), format=kind, partitioning=folders, partition_base_dir=base)
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
