"""Files of named tensors with a versioned JSON header, in the safetensors format: atomic writes, no pickle."""

import errno
import hashlib
import json
import math
import os
import platform
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from metaprior.terminal import unfinished

T = TypeVar("T")
Arrays = Mapping[str, np.ndarray]
Shape = tuple[int | None, ...]  # None: any size

FORMAT, CHECKPOINT = "metaprior", "checkpoint"
FORMAT_VERSION = 4
MAX_HEADER = 2**24  # characters of JSON
MAX_DEPTH = 32  # of nested lists and objects; real headers have ten
LARGEST = sys.float_info.max
MAX_LEARNED = 1e50  # of numbers that are learned, in standardized units; squares of products must not overflow
MAX_TRIED = 100  # keys of an object among which the one with an error is sought
# What msgspec says of types, and of what is wrong, in plain words after the name of a part.
TYPES = {"int": "an integer", "float": "a number", "str": "text", "bool": "true or false"}
TYPES |= {"array": "a list", "object": "an object"}
PLAIN = {
    "Expected": "must be",
    "Object missing required field": "lacks",
    "Object contains unknown field": "has an unknown field",
    "Number out of range": "must be a number in the range of floats",
    "Integer value out of range": "must be an integer of 64 bits",
    "Invalid": "has an invalid",
}


class InvalidFile(ValueError):
    """Raised for a file that is damaged or that this version cannot read."""


def write_tensors(path: str | os.PathLike, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Write header and tensors atomically, with a checksum."""
    arrays = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
    metadata = {"format": FORMAT, "version": str(FORMAT_VERSION), "header": json.dumps(header, allow_nan=False)}
    metadata["sha256"] = _digest(metadata["header"], arrays)
    write_atomically(path, _in_fixed_order(save(arrays, metadata)))


def read_tensors(path: str | os.PathLike) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return header and tensors of a file by `write_tensors`, after verifying its checksum. No code is executed."""
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder; expected a file saved by metaprior.")
    with reading(path, "is not a file saved by metaprior, or it is damaged"):
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise InvalidFile(f"{path} is a safetensors file, but not one written by metaprior.")
            if metadata.get("version") != str(FORMAT_VERSION):
                raise InvalidFile(
                    f"{path} has format version {metadata.get('version')!r}; this metaprior reads "
                    f"{FORMAT_VERSION}. Update metaprior, or fit and save the prior again."
                )
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
        if _digest(metadata["header"], arrays) != metadata["sha256"]:
            raise InvalidFile(f"{path} is damaged: its content does not match its checksum. Use another copy.")
        return read_json(metadata["header"]), arrays


def read_json(content: str) -> dict[str, Any]:
    """Parse a header: an object of limited length and depth."""
    if len(content) > MAX_HEADER:
        raise ValueError(f"its header has {len(content):,} characters, of at most {MAX_HEADER:,}")
    header = msgspec.json.decode(content)
    level = [header]
    for _ in range(MAX_DEPTH):
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [item for items in inner for item in items]
    if level:
        raise ValueError(f"its header is nested more than {MAX_DEPTH} levels deep")
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    return header


def as_struct(value: Any, schema: type[T], name: str = "") -> T:
    """Return parsed JSON as a struct of msgspec; raise a ValueError that names what does not fit, under a name."""
    problem = _problem(value, schema)
    if not problem:
        return msgspec.convert(value, schema)
    said, _, where = problem.partition(" - at `$")
    for word, plain in PLAIN.items():
        said = re.sub(f"^{word}", plain, said)
    said = re.sub("`([^`]*)`", lambda named: " or ".join(TYPES.get(each, each) for each in named[1].split(" | ")), said)
    place = f"{name}{''.join(_steps(value, schema, problem, where.rstrip('`')))}".removeprefix(".")
    raise ValueError(f"{place or 'its header'} {said}")


def _problem(value: Any, schema: Any) -> str:
    """Return what msgspec says of a value that does not have a schema, "" if it has."""
    try:
        msgspec.convert(value, schema)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def _steps(value: Any, schema: Any, problem: str, where: str) -> Iterator[str]:
    """Yield the parts of a path, and with the keys of objects, which msgspec leaves out; other keys are removed."""
    inner = value
    for step, name, number in re.findall(r"(\.([^.\[]+)|\[(\d+)\]|\[\.{3}\])", where):
        if step == "[...]" and isinstance(inner, dict) and len(inner) <= MAX_TRIED:
            for name, item in list(inner.items()):
                inner.clear()
                inner[name] = item
                if _problem(value, schema) == problem:
                    break
            step = f".{name[:40]}"
        yield step
        inner = inner.get(name) if isinstance(inner, dict) else inner[int(number)] if isinstance(inner, list) else None


def check_array(name: str, array: np.ndarray | None, shape: Shape, most: float = MAX_LEARNED) -> np.ndarray:
    """Return an array of float64, of this shape, whose numbers are finite and of limited size."""
    sizes = () if array is None else zip(array.shape, shape, strict=False)
    same = array is not None and len(array.shape) == len(shape) and all(n in (None, found) for found, n in sizes)
    if array is None or array.dtype != np.float64 or not same:
        expected = f"float64[{', '.join('any' if size is None else str(size) for size in shape)}]"
        raise ValueError(f"{name} must be {expected}; the file has {describe(array)}")
    require((np.abs(array) <= most).all(), f"{name} must have finite numbers of at most {most:g}")  # NaN is not
    return array


def check_weights(name: str, array: np.ndarray | None, length: int | None) -> np.ndarray:
    """Return an array of weights: not negative, with sum one."""
    weights = check_array(name, array, (length,))
    fits = (weights >= 0).all() and abs(weights.sum() - 1.0) <= 1e-6
    require(fits, f"{name} must be positive numbers of sum one")
    return weights


def describe(array: np.ndarray | None) -> str:
    """Return type and shape in words."""
    return "nothing" if array is None else f"{array.dtype}{list(array.shape)}"


def grouped(arrays: Arrays) -> dict[str, dict[str, np.ndarray]]:
    """Return arrays by the first part of their names, up to a dot, and by the rest."""
    groups: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for name, array in arrays.items():
        first, _, rest = name.partition(".")
        groups[first][rest] = array
    return groups


def require(fits: Any, expected: str) -> None:
    """Raise a ValueError unless something fits."""
    if not fits:
        raise ValueError(expected)


@contextmanager
def reading(path: Any, problem: str = "is damaged") -> Iterator[None]:
    """Raise InvalidFile, with the path, for everything that the content of a file may cause while it is read.

    Schemas find mistakes first. This is for what lies behind them: safetensors, NumPy, JAX, constructors.
    """
    try:
        yield
    except InvalidFile:
        raise
    except (
        *(SafetensorError, ValueError, TypeError, KeyError, IndexError, AttributeError),
        *(ArithmeticError, RecursionError, MemoryError, EOFError),
    ) as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise InvalidFile(f"{path} {problem}: {' '.join(why.split())[:500].rstrip('.')}.") from None


def _in_fixed_order(content: bytes) -> bytes:
    """Return a safetensors file with sorted names in its header: their order is random, and equal content differs."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # tensors begin at multiples of eight bytes
    return len(header).to_bytes(8, "little") + header + content[end:]


def _digest(header: str, arrays: dict[str, np.ndarray]) -> str:
    """Return the checksum of header and tensors, with their names, types and shapes."""
    digest = hashlib.sha256(f"{FORMAT_VERSION} {header}".encode())
    for name in sorted(arrays):
        digest.update(f"\n{name} {arrays[name].dtype.str} {arrays[name].shape}\n".encode())
        digest.update(arrays[name].data)
    return digest.hexdigest()


def write_atomically(path: str | os.PathLike, content: bytes, make_folders: bool = False) -> None:
    """Write a file completely or not at all. A link is followed: the file that it leads to is replaced.

    Devices and pipes are written to as they are. Errors name the path that was given.
    """
    with name_in_errors(path):
        if make_folders:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "wb") as file:
                file.write(content)
            return
        target = os.path.realpath(path)
        with unfinished(target) as new:
            with open(new, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, target)


def reserve(path: str | os.PathLike) -> None:
    """Reserve the space of a file to be filled through a memory map, where a full disk would kill the process."""
    if hasattr(os, "posix_fallocate"):
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)


def check_writable(path: str | os.PathLike) -> None:
    """Raise an OSError if `write_atomically` could not write to a path."""
    with name_in_errors(path):
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if os.path.isfile(path) or not os.path.exists(path):  # not a device or a pipe
            with unfinished(os.path.realpath(path)) as new:
                open(new, "xb").close()


@contextmanager
def name_in_errors(path: str | os.PathLike) -> Iterator[None]:
    """Raise errors of writing with the path that a user gave, not that of a temporary file or a link's target."""
    try:
        yield
    except OSError as error:
        folder = os.path.dirname(os.path.realpath(path))
        if error.filename is not None and not os.path.realpath(error.filename).startswith(folder):
            raise  # of something else, such as a table that is read meanwhile
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), os.fspath(path)) from None


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that affect results."""
    own = {"metaprior": sys.modules["metaprior"].__version__, "numpy": np.__version__}  # an import: against the layers
    with suppress(PackageNotFoundError):  # an extra
        own["jax"] = version("jax")
    return own | {"python": platform.python_version()}


def nan_to_none(value: Any) -> Any:
    """Replace NaN and infinite floats by None, since JSON has no such numbers."""
    if isinstance(value, dict):
        return {str(key): nan_to_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [nan_to_none(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
