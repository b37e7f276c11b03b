"""The checkpoint of a fit: a file with what it has trained so far, and with what it was asked to do."""

import functools
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import jax
import numpy as np

from metaprior import files
from metaprior.training.checkpoint import Checkpoint
from metaprior.training.devices import broadcast_from_first


@contextmanager
def open_checkpoint(path: str | os.PathLike | None, asked: str, seed: int) -> Iterator[tuple[Checkpoint | None, int]]:
    """A journal that lives in the file, and the seed; None where there is to be no file.

    What an equal fit has left there is taken up, its seed too. What another has left is overwritten. When the fit is
    stopped by an error or from the keyboard, the file has all that was done until then.
    """
    if path is None:
        yield None, seed
        return
    found = broadcast_from_first(_found(path, asked, seed) if jax.process_index() == 0 else ({}, seed))
    if isinstance(found, ValueError):
        raise found
    stored, seed = found
    if jax.process_index() > 0:  # the first process writes for all
        yield Checkpoint(lambda arrays: None, stored), seed
        return
    header = {"kind": files.CHECKPOINT, "asked": asked, "seed": seed}
    journal = Checkpoint(lambda arrays: files.write_tensors(path, header, arrays), stored)
    try:
        journal.flush()
    except OSError as error:
        raise ValueError(f"checkpoint must be a file that can be written; {path}: {error.strerror or error}.") from None
    try:
        yield journal, seed
    except BaseException:
        journal.flush()
        raise


def _found(path: str | os.PathLike, asked: str, seed: int) -> tuple[dict[str, np.ndarray], int] | ValueError:
    """What the file has, or what is wrong with it: all processes are to hear of that."""
    try:
        return _stored(path, asked, seed)
    except ValueError as error:
        return error


def _stored(path: str | os.PathLike, asked: str, seed: int) -> tuple[dict[str, np.ndarray], int]:
    """What the file has for this fit, and the seed. Anything but a checkpoint is not ours to overwrite."""
    if not Path(path).exists():
        return {}, seed
    try:
        header, arrays = files.read_tensors(path)
    except (OSError, files.InvalidFile) as error:
        raise ValueError(f"checkpoint: {error} Remove that file, or name another.") from None
    if header.get("kind") != files.CHECKPOINT:
        raise ValueError(f"checkpoint: {path} is a prior, not a checkpoint. Name another file.")
    return (arrays, int(header["seed"])) if header.get("asked") == asked else ({}, seed)


def fingerprint(parameters: dict[str, Any], names: tuple[str, ...], target: int, seed: int | None) -> str:
    """A digest of what was asked for, but for the data, which each training knows of; None: the seed was left open."""
    words = [_description(parameters), names, target, seed, files.package_versions(), jax.devices()[0].device_kind]
    return hashlib.sha256(repr(words).encode()).hexdigest()


def _description(value: Any) -> Any:
    """What a fit depends on of an argument: the same in another process, and another where that would act otherwise."""
    if isinstance(value, np.ndarray | jax.Array):
        array = np.asarray(value)
        return array.dtype.str, array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    if isinstance(value, dict):
        return {str(key): _description(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_description(item) for item in value]
    if is_dataclass(value):
        parts = {field.name: _description(getattr(value, field.name, None)) for field in fields(value)}
        return type(value).__qualname__, parts
    if isinstance(value, functools.partial):
        return "partial", _description(value.func), _description(value.args), _description(value.keywords)
    if isinstance(code := getattr(value, "__code__", None), CodeType):
        closed = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
        return value.__qualname__, _code(code), _description(closed), _description(getattr(value, "__defaults__", None))
    simple = value is None or isinstance(value, str | bytes | bool | int | float | np.generic)
    return repr(value) if simple else type(value).__qualname__


def _code(code: CodeType) -> Any:
    """The instructions of a function and of those inside it."""
    constants = [_code(item) if isinstance(item, CodeType) else repr(item) for item in code.co_consts]
    return code.co_code.hex(), constants, code.co_names
