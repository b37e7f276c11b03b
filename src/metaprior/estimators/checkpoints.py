"""The checkpoint of a fit: a file with what it has trained so far, and with what it was asked to do."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from metaprior import persistence
from metaprior.estimators.environments import Environments
from metaprior.meta.journal import Journal
from metaprior.tasks import TestTask


@contextmanager
def kept_in(path: str | os.PathLike | None, asked: str, seed: int) -> Iterator[tuple[Journal | None, int]]:
    """A journal that lives in the file until the fit is done, and the seed; None where there is to be no file.

    What an equal fit has left there is taken up, its seed too. What another has left is overwritten. When the fit is
    stopped by an error or from the keyboard, the file has all that was done until then.
    """
    if path is None:
        yield None, seed
        return
    stored: dict[str, np.ndarray] = {}
    try:
        header, arrays = persistence.read(path)
        if header.get("kind") == persistence.CHECKPOINT and header.get("asked") == asked:
            stored, seed = arrays, int(header["seed"])
    except (FileNotFoundError, persistence.InvalidFile):
        pass  # there is none, or one of another version, or a damaged one, which is of no use
    header = {"kind": persistence.CHECKPOINT, "asked": asked, "seed": seed}
    journal = Journal(lambda arrays: persistence.write(path, header, arrays), stored)
    try:
        journal.flush()
    except OSError as error:
        raise ValueError(f"checkpoint must be a file that can be written; {path}: {error.strerror or error}.") from None
    try:
        yield journal, seed
    except BaseException:
        journal.flush()
        raise
    Path(path).unlink(missing_ok=True)


def fingerprint(
    parameters: dict[str, Any],
    environments: Environments,
    validation: Sequence[TestTask] | None,
    patience: int | None,
    seed: int | None,
) -> str:
    """A digest of all that the result of a fit depends on; `seed` is None where any will do."""
    words = {
        "parameters": {name: persistence.encode(value) for name, value in parameters.items()},
        "environments": [environments.names, environments.target, environments.counts],
        "patience": patience,
        "seed": seed,
        "versions": persistence.versions(),
        "device": jax.devices()[0].device_kind,
    }
    digest = hashlib.sha256(json.dumps(words, sort_keys=True).encode())
    own = [leaf for value in parameters.values() for leaf in jax.tree.leaves(eqx.filter(value, eqx.is_array))]
    tasks = [part for group in environments.tasks for task in group for part in task]
    held_out = [part for task in validation or () for part in task]
    for array in (*own, *tasks, *held_out):
        array = np.asarray(array)
        digest.update(f"{array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
