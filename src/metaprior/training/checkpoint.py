"""What a fit has trained so far, so that a later one of the same goes on from there to the same result.

A training is the same whenever it is given the same, and is known by a digest of that. So a fit that begins again
takes the results of those that were finished, and the state of the one that was not, in whatever order they come.
"""

import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from metaprior.training.devices import is_key

Tree = TypeVar("Tree")
Arrays = dict[str, np.ndarray]

INTERVAL = 10.0  # seconds between two writings of an unfinished training


class Checkpoint:
    """Finished trainings and the last state of the present one, written every few seconds by `write`."""

    def __init__(self, write: Callable[[Arrays], None], stored: Mapping[str, np.ndarray]):
        self._write = write
        self._arrays = dict(stored)
        self._latest: Callable[[], Arrays] | None = None  # the state of the present training
        self._written = time.monotonic()
        self._training = ""

    def enter(self, given: Any, words: str) -> None:
        """A training begins, given arrays (a tree of them) and what words say."""
        digest = hashlib.sha256(words.encode())
        for leaf in jax.tree.leaves(given):
            if hasattr(leaf, "shape"):
                array = np.ascontiguousarray(_plain(leaf))
                digest.update(f"{array.dtype.str} {array.shape}".encode())
                digest.update(array.tobytes())
        self._training, self._latest = digest.hexdigest(), None

    def result(self, template: Tree) -> Tree | None:
        """The result of this training, if it was finished before: a tree like the template."""
        return self._found("result", template)

    def state(self, template: Tree) -> Tree | None:
        """Where this training stood when it was stopped, if it was."""
        return self._found("state", template)

    def keep(self, state: Any) -> None:
        """This training stands here now. It is written if the last writing is some time ago."""
        name = self._name("state")
        self._latest = lambda: _arrays(name, state)
        if time.monotonic() - self._written >= INTERVAL:
            self.flush()

    def finish(self, result: Any) -> None:
        """This training is done."""
        state = f"{self._name('state')}."
        kept = {name: array for name, array in self._arrays.items() if not name.startswith(state)}
        self._arrays = kept | _arrays(self._name("result"), result)
        self._latest = None
        self.flush()

    def flush(self) -> None:
        """Write what there is."""
        self._write(self._arrays | ({} if self._latest is None else self._latest()))
        self._written = time.monotonic()

    def _name(self, part: str) -> str:
        return f"{self._training}.{part}"

    def _found(self, part: str, template: Any) -> Any:
        leaves, structure = jax.tree.flatten(template)
        names = [f"{self._name(part)}.{i}" for i in range(len(leaves))]
        if not all(name in self._arrays for name in names):
            return None
        restored = [_like(self._arrays[name], leaf) for name, leaf in zip(names, leaves, strict=True)]
        return jax.tree.unflatten(structure, restored)


def _arrays(name: str, tree: Any) -> Arrays:
    return {f"{name}.{i}": _plain(leaf) for i, leaf in enumerate(jax.tree.leaves(tree))}


def _plain(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def _like(array: Any, leaf: Any) -> Any:
    """The stored array as what the template has there: random keys, an array of JAX's, or one of NumPy's."""
    if is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(leaf))
    return jnp.asarray(array) if isinstance(leaf, jax.Array) else array
