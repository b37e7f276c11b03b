"""Files of named tensors with a versioned JSON header, in the safetensors format: atomic writes, no pickle."""

import hashlib
import json
import math
import os
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

FORMAT, CHECKPOINT = "metaprior", "checkpoint"
FORMAT_VERSION = 3  # 2: several averaged priors; 3: a checksum of all content, and a record of the training


class InvalidFile(ValueError):
    """Raised for a file that is damaged or that this version cannot read."""


def write_tensors(path: str | os.PathLike, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Write header and tensors atomically, with a checksum."""
    arrays = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
    metadata = {"format": FORMAT, "version": str(FORMAT_VERSION), "header": json.dumps(header)}
    metadata["sha256"] = _digest(metadata["header"], arrays)
    write_atomically(Path(path), save(arrays, metadata))


def read_tensors(path: str | os.PathLike) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return header and tensors of a file by `write_tensors`, after verifying its checksum. No code is executed."""
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder; expected a file saved by metaprior.")
    try:
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
        return json.loads(metadata["header"]), arrays
    except InvalidFile:
        raise
    # A damaged file may have shapes, types or sizes of any kind, for which safetensors and NumPy raise various errors.
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, RecursionError, MemoryError) as error:
        raise InvalidFile(f"{path} is not a file saved by metaprior, or it is damaged: {error}") from None


def _digest(header: str, arrays: dict[str, np.ndarray]) -> str:
    """Return the checksum of header and tensors, with their names, types and shapes."""
    digest = hashlib.sha256(f"{FORMAT_VERSION} {header}".encode())
    for name in sorted(arrays):
        digest.update(f"\n{name} {arrays[name].dtype.str} {arrays[name].shape}\n".encode())
        digest.update(arrays[name].data)
    return digest.hexdigest()


def write_atomically(path: Path, content: bytes) -> None:
    """Write to a temporary file and rename it, so that `path` never holds part of a file."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.umask(umask := os.umask(0))  # mkstemp makes files private; give them the usual permissions
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that affect results."""
    return {
        "metaprior": sys.modules["metaprior"].__version__,  # an import would violate the layers
        "jax": version("jax"),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def nan_to_none(value: Any) -> Any:
    """Replace NaN and infinite floats by None, since JSON has no such numbers."""
    if isinstance(value, dict):
        return {str(key): nan_to_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [nan_to_none(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
