"""A scaling read from the arrays of a file."""

from collections.abc import Mapping

import numpy as np

from metaprior.schema import MAX_NUMBER, Mismatch, check_array
from metaprior.tasks.scaling import MAX_SPREAD, Scaling


def read_scaling(arrays: Mapping[str, np.ndarray], prefix: str, input_dim: int) -> Scaling:
    """Return the scaling of as many inputs; raise `Mismatch` if an array is missing or has numbers that cannot be."""
    shapes = {"x_mean": (input_dim,), "x_std": (input_dim,), "y_mean": (), "y_std": ()}
    found = {}
    for name, shape in shapes.items():
        most = MAX_SPREAD if name == "y_std" else MAX_NUMBER
        found[name] = check_array(f"{prefix}{name}", arrays.get(f"{prefix}{name}"), shape, most)
    if not ((found["x_std"] > 0).all() and found["y_std"] >= 1.0 / MAX_SPREAD):
        raise Mismatch(f"{prefix}x_std and {prefix}y_std must be positive")
    return Scaling(**found)
