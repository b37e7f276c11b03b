"""What of a prior is learned (theta) and what is held fixed."""

from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

Model = TypeVar("Model")
Parameter = Any  # an array; a `Fixed` stands in its place until `merge`


class Fixed(eqx.Module):
    """A number that is part of a prior but not of theta: traced, so that a sweep may vary it, but never trained."""

    value: ArrayLike


def split(model: Model) -> tuple[Model, Model]:
    """Split a prior into theta (every float array outside `Fixed`) and the rest."""
    spec = jax.tree.map(_is_learned, model, is_leaf=_is_fixed)
    return eqx.partition(model, spec, is_leaf=_is_fixed)


def merge(theta: Model, rest: Model) -> Model:
    """The prior again, ready to be evaluated: `Fixed` numbers stand in their places as plain arrays."""
    model = eqx.combine(theta, rest, is_leaf=_is_fixed)
    return jax.tree.map(lambda leaf: leaf.value if _is_fixed(leaf) else leaf, model, is_leaf=_is_fixed)


def groups(theta: Any) -> Any:
    """The group of every leaf of theta, by its name: 'weights' and 'biases' of networks, 'scales' else."""

    def group(path: tuple[Any, ...], leaf: Any) -> str:
        name = next((key.name for key in reversed(path) if isinstance(key, jax.tree_util.GetAttrKey)), "")
        return {"weight": "weights", "bias": "biases"}.get(name, "scales")

    return jax.tree_util.tree_map_with_path(group, theta)


def as_arrays(model: Model) -> Model:
    """Python and NumPy floats of a brought module as arrays, so that they are learned; integers stay as they are."""

    def is_float(leaf: Any) -> bool:
        return isinstance(leaf, float | np.floating) or (isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f")

    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if is_float(leaf) else leaf, model)


def cast(model: Model, dtype: Any) -> Model:
    """Every float array of a model in another precision."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype) if eqx.is_inexact_array(leaf) else leaf, model)


def _is_fixed(leaf: Any) -> bool:
    return isinstance(leaf, Fixed)


def _is_learned(leaf: Any) -> bool:
    return not _is_fixed(leaf) and eqx.is_inexact_array(leaf)
