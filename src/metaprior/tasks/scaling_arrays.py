"""A scaling read from the arrays of a file."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from metaprior.schema import MAX_NUMBER, Mismatch, check_array
from metaprior.tasks.column_kinds import ColumnKinds
from metaprior.tasks.scaling import MAX_SPREAD, Scaling

MAX_FACTOR = 1e30  # between members: even a column that one environment has as a constant differs by far less


def read_scaling(
    arrays: Mapping[str, np.ndarray],
    prefix: str,
    input_dim: int,
    recorded: Mapping[str, Any] | None = None,
    kinds: ColumnKinds | None = None,
) -> Scaling:
    """Return the scaling of as many inputs; raise `Mismatch` if an array is missing or has numbers that cannot be.

    `recorded` is what the header says of the scaling, of the first inputs and of the heaviest member.
    """
    shapes = {"x_mean": (input_dim,), "x_std": (input_dim,), "y_mean": (), "y_std": ()}
    found = {}
    for name, shape in shapes.items():
        most = MAX_SPREAD if name == "y_std" else MAX_NUMBER
        found[name] = check_array(f"{prefix}{name}", arrays.get(f"{prefix}{name}"), shape, most)
    if not ((found["x_std"] > 0).all() and found["y_std"] >= 1.0 / MAX_SPREAD):
        raise Mismatch(f"{prefix}x_std and {prefix}y_std must be positive")
    width = input_dim if kinds is None else sum(kinds.widths)
    if f"{prefix}x_map" in arrays:
        found["x_map"] = check_array(f"{prefix}x_map", arrays[f"{prefix}x_map"], (width, width), MAX_SPREAD)
    if kinds is not None:
        found["shares"] = check_array(f"{prefix}shares", arrays.get(f"{prefix}shares"), (width,), 1.0 + 1e-6)
    for column in "xy" if recorded is not None else "":
        _check_alike(found, recorded or {}, prefix, f"{column}_mean", f"{column}_std")
    return Scaling(**found, kinds=kinds)


def _check_alike(
    found: Mapping[str, np.ndarray], recorded: Mapping[str, Any], prefix: str, mean: str, std: str
) -> None:
    """Raise unless mean and standard deviation have about the size of the recorded ones."""
    known_mean, known_std = np.atleast_1d(recorded[mean]), np.atleast_1d(recorded[std])
    n = min(len(known_mean), len(known_std), np.size(found[mean]))
    means, stds = np.atleast_1d(found[mean])[:n], np.atleast_1d(found[std])[:n]
    with np.errstate(over="ignore"):
        factor = np.maximum(stds / known_std[:n], known_std[:n] / stds)
        distance = np.abs(means / MAX_FACTOR - known_mean[:n] / MAX_FACTOR)
        near = distance <= known_std[:n] + np.abs(known_mean[:n])
    if not ((factor <= MAX_FACTOR) & near).all():
        raise Mismatch(f"{prefix}{mean} and {prefix}{std} must have the size that training.scaling says")
