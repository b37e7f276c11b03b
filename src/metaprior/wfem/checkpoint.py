"""Processes forked after JAX was used: its threads do not survive a fork, and who waits for them waits forever.

Checkpoints of a fit: finished trainings and the state of the current one, in a file that a later fit resumes from.

A training is identified by a digest of everything it is given. Re-running an interrupted fit therefore finds the
results of the trainings that had finished and the state of the one that had not, in whatever order they come.
"""

import functools
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import CodeType
from typing import Annotated, Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from metaprior.checks import warn_caller
from metaprior.files import (
    CHECKPOINT,
    InvalidFile,
    as_struct,
    check_writable,
    package_versions,
    read_tensors,
    reading,
    write_tensors,
)
from metaprior.wfem.steps import is_key

_first_user: int | None = None  # the process that used JAX first


def check_not_forked() -> None:
    """Raise, rather than hang, if this process was forked from one that had called this before."""
    global _first_user
    _first_user = _first_user or os.getpid()
    if _first_user != os.getpid():
        raise RuntimeError(
            "This process was forked from one that had used JAX, whose threads do not survive a fork: a prior trained "
            "by gradients would hang here. Start processes with multiprocessing.get_context('spawn'), or fork before "
            "the first fit, load or prediction. The hierarchical priors of the default need no JAX and work after a "
            "fork."
        )


Tree = TypeVar("Tree")
Arrays = dict[str, np.ndarray]

INTERVAL = 1.0  # seconds between two writes during a training, at least
SHARE = 0.05  # of the time that writing may take
SIMPLE, ARRAYS = (type(None), str, bytes, bool, int, float, np.generic), (np.ndarray, jax.Array)
# Whose classes are the same in every process: versions are told apart by `package_versions`.
PACKAGES = ("metaprior", "equinox", "tinygp", "jax", "builtins", "abc", "typing")


class Header(msgspec.Struct, forbid_unknown_fields=True):
    """The header of a checkpoint."""

    kind: Literal["checkpoint"]
    asked: str  # a fingerprint
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Checkpoint:
    """Results of finished trainings and the latest state of the current one; `write` saves them."""

    def __init__(self, write: Callable[[Arrays], None], stored: Mapping[str, np.ndarray]):
        self._write = write
        self._arrays = dict(stored)
        self._latest: Callable[[], Arrays] | None = None  # the state of the current training
        self._written, self._interval = time.monotonic(), INTERVAL
        self._training = ""

    def start(self, inputs: Any, description: str) -> None:
        """Start a training, identified by its input arrays (a pytree) and a description of the rest."""
        digest = hashlib.sha256(description.encode())
        for leaf in jax.tree.leaves(inputs):
            if hasattr(leaf, "shape"):
                array = np.ascontiguousarray(_as_numpy(leaf))
                digest.update(f"{array.dtype.str} {array.shape}".encode())
                digest.update(array.tobytes())
        self._training, self._latest = digest.hexdigest(), None

    def result(self, template: Tree) -> Tree | None:
        """Return the result of the current training if an earlier fit finished it, as a pytree like `template`."""
        return self._find("result", template)

    def state(self, template: Tree) -> Tree | None:
        """Return the state in which the current training was interrupted, if it was."""
        return self._find("state", template)

    def update(self, state: Any) -> None:
        """Set the state of the current training, and write it if the last write was some time ago."""
        name = self._name("state")
        self._latest = lambda: _named_leaves(name, state)
        if time.monotonic() - self._written >= self._interval:
            self.flush()

    def finish(self, result: Any) -> None:
        """Replace the state of the current training by its result, and write."""
        state = f"{self._name('state')}."
        kept = {name: array for name, array in self._arrays.items() if not name.startswith(state)}
        self._arrays = kept | _named_leaves(self._name("result"), result)
        self._latest = None
        self.flush()

    def flush(self) -> None:
        """Write everything now, if there is anything."""
        arrays = self._arrays | ({} if self._latest is None else self._latest())
        if not arrays:
            return
        started = time.monotonic()
        self._write(arrays)
        self._written = time.monotonic()
        self._interval = max(INTERVAL, (self._written - started) / SHARE)

    def _name(self, part: str) -> str:
        return f"{self._training}.{part}"

    def _find(self, part: str, template: Any) -> Any:
        leaves, structure = jax.tree.flatten(template)
        names = [f"{self._name(part)}.{i}" for i in range(len(leaves))]
        if not all(name in self._arrays for name in names):
            return None
        found = [self._arrays[name] for name in names]
        if not all(map(_alike, found, leaves)):
            return None  # a file that was tampered with: train again
        return jax.tree.unflatten(structure, [_like(array, leaf) for array, leaf in zip(found, leaves, strict=True)])


@contextmanager
def open_checkpoint(path: str | os.PathLike | None, fingerprint: str, seed: int) -> Iterator[tuple[Any, int]]:
    """Yield the checkpoint in a file and the seed to use; None and the given seed without a path.

    The file is resumed, with its seed, if its fingerprint is the same, and put aside, for its own fit to find, if not.
    If the fit is interrupted or fails, everything done so far is written.
    """
    if path is None:
        yield None, seed
        return
    try:
        stored, seed = _read(path, fingerprint, seed)
    except OSError as error:
        raise ValueError(f"checkpoint must be a writable file; {path}: {error.strerror}.") from None
    header = {"kind": CHECKPOINT, "asked": fingerprint, "seed": seed}
    checkpoint = Checkpoint(lambda arrays: write_tensors(path, header, arrays), stored)
    try:
        check_writable(path)
    except OSError as error:
        raise ValueError(f"checkpoint must be a writable file; {path}: {error.strerror}.") from None
    try:
        yield checkpoint, seed
    except BaseException:
        with suppress(OSError):  # what ended the fit is more to the point
            checkpoint.flush()
        raise


def fingerprint(parameters: dict[str, Any], names: tuple[str, ...], target: int, seed: int | None) -> str:
    """Return a digest of what a fit was asked to do, except for the data, which every training's digest covers."""
    described = [describe(parameters), names, target, seed, package_versions(), jax.devices()[0].device_kind]
    return hashlib.sha256(repr(described).encode()).hexdigest()


def _read(path: str | os.PathLike, fingerprint: str, seed: int) -> tuple[Arrays, int]:
    """Return what the file holds for this fit, and the seed. Refuse to replace anything but a checkpoint."""
    own = _aside(path, fingerprint)
    if not Path(path).exists():
        if not own.exists():
            return {}, seed
        os.replace(own, path)
    try:
        header, arrays = read_tensors(path)
        if header.get("kind") != CHECKPOINT:
            raise ValueError(f"checkpoint: {path} is a prior, not a checkpoint. Choose another path.")
        with reading(path):
            stored = as_struct(header, Header)
    except (OSError, InvalidFile) as error:
        raise ValueError(f"checkpoint: {error} Remove that file or choose another path.") from None
    if stored.asked == fingerprint:
        return arrays, stored.seed
    other = _aside(path, stored.asked)
    os.replace(path, other)
    warn_caller(
        f"{path} was the checkpoint of another fit. It is kept as {other}, which that fit resumes if run again."
    )
    return _read(path, fingerprint, seed)


def _aside(path: str | os.PathLike, asked: str) -> Path:
    """Return where the checkpoint of a fit is kept while another fit writes its own."""
    return Path(f"{os.fspath(path)}.{hashlib.sha256(asked.encode()).hexdigest()[:8]}")


def describe(value: Any) -> Any:
    """Describe an argument: the same text in another process, another text if the argument would act differently."""
    if isinstance(value, ARRAYS):
        array = np.asarray(value)
        return array.dtype.str, array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    if isinstance(value, dict):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [describe(item) for item in value]
    if is_dataclass(value):
        parts = {field.name: describe(getattr(value, field.name, None)) for field in fields(value)}
        return type(value).__qualname__, parts, _describe_class(type(value))
    if isinstance(value, functools.partial):
        return "partial", describe(value.func), describe(value.args), describe(value.keywords)
    if isinstance(code := getattr(value, "__code__", None), CodeType):
        closed = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
        return value.__qualname__, _describe_code(code), describe(closed), describe(value.__defaults__)
    if isinstance(value, SIMPLE):
        return repr(value)
    held = getattr(value, "__dict__", {}).items()
    plain = {name: item for name, item in held if isinstance(item, (*SIMPLE, *ARRAYS))}
    return type(value).__qualname__, describe(plain), _describe_class(type(value))


def _describe_class(kind: type) -> Any:
    """Describe the methods of a user's class, which may be another one in another process."""
    own = [each for each in kind.__mro__ if each.__module__.partition(".")[0] not in PACKAGES]
    codes = {name: getattr(getattr(kind, name, None), "__code__", None) for each in own for name in vars(each)}
    return {name: _describe_code(code) for name, code in codes.items() if isinstance(code, CodeType)}


def _describe_code(code: CodeType) -> Any:
    plain = [sorted(map(repr, item)) if isinstance(item, frozenset) else item for item in code.co_consts]
    constants = [_describe_code(item) if isinstance(item, CodeType) else repr(item) for item in plain]
    return code.co_code.hex(), constants, code.co_names


def _named_leaves(name: str, tree: Any) -> Arrays:
    return {f"{name}.{i}": _as_numpy(leaf) for i, leaf in enumerate(jax.tree.leaves(tree))}


def _as_numpy(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def _alike(array: np.ndarray, leaf: Any) -> bool:
    """Return whether a stored array may stand for a JAX array; sizes, and what is kept in NumPy, may have grown."""
    template = _as_numpy(leaf)
    return not isinstance(leaf, jax.Array) or (array.ndim == template.ndim and array.dtype == template.dtype)


def _like(array: Any, leaf: Any) -> Any:
    """Convert a stored array to the type of the template's leaf: random keys, a JAX array or a NumPy array."""
    if is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(leaf))
    return jnp.asarray(array) if isinstance(leaf, jax.Array) else array
