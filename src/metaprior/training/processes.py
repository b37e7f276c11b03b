"""Fits in which several processes take part, each of which must be given the same."""

import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from metaprior.tasks.types import Task
from metaprior.training.devices import broadcast_from_first

LOOKED_AT = 100  # tasks of each environment


def check_devices(n_devices: int) -> None:
    """Refuse more devices than there are, and fewer where every process takes part."""
    there = jax.device_count()
    if n_devices > there:
        raise ValueError(f"n_devices must be at most {there}, all there are; got {n_devices}.")
    if jax.process_count() > 1 and n_devices < there:
        raise ValueError(f"n_devices must be None or {there} where several processes share a fit; got {n_devices}.")


def check_same_tasks(environments: Sequence[Sequence[Task]], search_time: Any) -> None:
    """Refuse what would let processes go different ways, and wait for each other for ever."""
    if jax.process_count() == 1:
        return
    if search_time is not None:
        raise ValueError("search_time must be None where several processes share a fit: their clocks differ.")
    digest = hashlib.sha256()
    for tasks in environments:
        digest.update(f"{len(tasks)};".encode())
        for i in np.unique(np.linspace(0, len(tasks) - 1, min(LOOKED_AT, len(tasks))).astype(int)).tolist():
            digest.update(np.ascontiguousarray(tasks[i].x).tobytes() + np.ascontiguousarray(tasks[i].y).tobytes())
    if digest.hexdigest() != broadcast_from_first(digest.hexdigest()):
        raise ValueError(
            f"Process {jax.process_index()} was given other tasks than the first: where several processes share a fit, "
            "all are given the same, in the same order."
        )
