"""How large a table may be that comes to the page: a small file may unpack to one that fills the memory.

Sizes are counted while the file is unpacked piece by piece, before anything reads it as a whole.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from metaprior_app.messages import InvalidRequest
from metaprior.tables.csv_files import TableFile
from metaprior.tables.reading import DAMAGED

MAX_UNPACKED = 512 * 2**20  # bytes
MAX_CELLS = 20_000_000  # rows times columns: cells take more memory than the one or two bytes they may have in a file
TOO_LARGE = 413  # HTTP
CHUNK = 2**20
ROWS = 4096  # of Parquet at a time


def check_unpacked(file: TableFile, name: str) -> None:
    """Raise an InvalidRequest if a table is too large. Whatever else is wrong with it is told when it is read."""
    import pyarrow as pa

    limit = None
    with suppress(*DAMAGED, pa.ArrowException, ValueError):
        limit = _exceeded(_parquet_sizes(file.path) if file.is_parquet else _csv_sizes(file))
    if limit is not None:
        found = f"{name} has more than {limit} when it is unpacked, which is the most that the page takes"
        raise InvalidRequest(f"{found}. Use the command line, which has no such limit.", TOO_LARGE)


def _exceeded(sizes: Iterator[tuple[int, int]]) -> str | None:
    """Return the limit that bytes and cells exceed, as soon as they do."""
    n_bytes = n_cells = 0
    for more_bytes, more_cells in sizes:
        n_bytes, n_cells = n_bytes + more_bytes, n_cells + more_cells
        if n_bytes > MAX_UNPACKED:
            return f"{MAX_UNPACKED / 2**20:,.0f} MB"
        if n_cells > MAX_CELLS:
            return f"{MAX_CELLS:,} cells (rows times columns)"
    return None


def _csv_sizes(file: TableFile) -> Iterator[tuple[int, int]]:
    """Yield bytes and cells of pieces of a CSV file; separators inside quotes count as if they were outside."""
    encoding, sep = file.format.encoding, file.separator
    width = len((2 * sep).encode(encoding)) - len(sep.encode(encoding))  # without the mark that UTF-16 begins with
    mark = sep.encode(encoding)[-width:]
    with file.open() as stream:
        while part := bytes(stream.read(CHUNK)):
            yield len(part), part.count(mark) + max(part.count(b"\n"), part.count(b"\r"))


def _parquet_sizes(path: Path) -> Iterator[tuple[int, int]]:
    """Yield what a Parquet file says that it holds; then, from zero again, what it does hold.

    Runs and repeated texts take next to no room in the file. Texts are therefore read as a dictionary and indices, and
    counted as often as they occur. One page of the file is unpacked at once, which the format limits to 2 GB.
    """
    from pyarrow import parquet

    with parquet.ParquetFile(path) as stored:
        said, schema = _promised(stored.metadata), stored.metadata.schema
        columns = [schema.column(i) for i in range(len(schema))]
        yield said
        yield -said[0], -said[1]
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    with parquet.ParquetFile(path, read_dictionary=texts) as stored:
        for batch in stored.iter_batches(ROWS):
            sizes = [_size(leaf) for column in batch.columns for leaf in _leaves(column)]
            yield sum(size for size, _ in sizes), sum(cells for _, cells in sizes)


def _promised(metadata: Any) -> tuple[int, int]:
    """Return bytes and cells of a Parquet file as its footer has them."""
    n_bytes = n_cells = 0
    lengths = [max(metadata.schema.column(i).length, 0) for i in range(metadata.num_columns)]
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        for k, length in enumerate(lengths):
            column = group.column(k)
            n_bytes += max(column.total_uncompressed_size, column.num_values * length)
            n_cells += max(column.num_values, group.num_rows)
    return n_bytes, n_cells


def _leaves(array: Any) -> Iterator[Any]:
    """Yield the arrays inside lists and structures; another array is one itself."""
    import pyarrow as pa

    if not pa.types.is_nested(array.type):
        yield array
        return
    inside = array.flatten()
    for each in inside if isinstance(inside, list) else [inside]:
        yield from _leaves(each)


def _size(array: Any) -> tuple[int, int]:
    """Return bytes and cells of an array, once its texts are written out."""
    import pyarrow as pa
    import pyarrow.compute as compute

    functions: Any = compute  # made when the module is imported
    if not pa.types.is_dictionary(array.type):
        return array.nbytes, len(array)
    lengths = functions.binary_length(array.dictionary).take(array.indices)
    return (functions.sum(lengths).as_py() or 0), len(array)
