"""Numbers from CSV tables and MATLAB files, with errors that name the file and the row."""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.io import loadmat
from scipy.io.matlab import MatReadError

Array = np.ndarray
Column = Any  # a pandas series: the stubs of pandas say that every selection may be something else


def read_columns(path: Path, columns: Sequence[str], optional: str = "") -> pd.DataFrame:
    """Return columns of a CSV file as finite numbers; empty cells are allowed in column `optional` and become NaN."""
    try:
        # As text, so that an error can quote the cell. PyArrow's parser refuses rows of the wrong length.
        table = pd.read_csv(path, dtype=str, keep_default_na=False, engine="pyarrow")
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise ValueError(f"cannot read the table {path}: {error}. Is the file damaged or truncated?") from error
    if missing := [name for name in columns if name not in table]:
        raise ValueError(
            f"{path} must have the columns {', '.join(columns)}; {', '.join(missing)} is not in {list(table)}."
        )
    return pd.DataFrame({name: _numbers(path, table[name], name == optional) for name in columns})


def look_up(path: Path, keys: Column, table_path: Path, table: pd.DataFrame) -> Column:
    """Return the second column of `table` where its first column has each of the keys."""
    key, value = table.columns
    values = table.set_index(key)[value]
    if repeated := int(values.index.duplicated().sum()):
        raise ValueError(f"{table_path} must have one row per {key}; {repeated} rows repeat an earlier {key}.")
    unknown = sorted(set(keys) - set(values.index))
    if unknown:
        raise ValueError(f"{path}: {key} {unknown[0]:g} is not in {table_path} ({len(unknown)} are not).")
    return keys.map(values)


def read_struct(path: Path, name: str, fields: Sequence[str]) -> list[Array]:
    """Return fields of a struct in a MATLAB file as arrays of floats."""
    try:
        struct = loadmat(path, variable_names=[name]).get(name, np.empty(0))
    except (MatReadError, OSError, LookupError, zlib.error, ValueError, TypeError, NotImplementedError) as error:
        raise ValueError(f"cannot read {path}: {error}. Is the file damaged or truncated?") from error
    if struct.size != 1 or not set(fields) <= set(struct.dtype.names or ()):
        raise ValueError(f"{path} must have a struct {name} with the fields {', '.join(fields)}.")
    values = [struct[key].item() for key in fields]
    if wrong := [key for key, value in zip(fields, values, strict=True) if value.dtype.kind not in "fiu"]:
        raise ValueError(f"{path}: {', '.join(wrong)} of {name} must be real numbers.")
    return [value.astype(float) for value in values]


def _numbers(path: Path, cells: Column, optional: bool) -> Array:
    numbers = np.asarray(pd.to_numeric(cells, errors="coerce"), dtype=float)
    wrong = ~np.isfinite(numbers) & ~((cells == "").to_numpy(bool) & optional)
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"{path} row {row + 2}: {cells.name} must be a finite number; got {cells.iloc[row]!r}.")
    return numbers
