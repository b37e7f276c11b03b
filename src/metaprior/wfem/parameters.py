"""Which numbers of a prior are learned (theta) and which are fixed."""

from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

Model = TypeVar("Model")
Parameter = Any  # an array, or a `Fixed` in its place until `merge`


class Fixed(eqx.Module):
    """A number of a prior that is not learned. It is traced: changing it does not recompile.

    Parameters
    ----------
    value : array-like
        The number.
    """

    value: ArrayLike


def split(model: Model) -> tuple[Model, Model]:
    """Split a prior into theta (every float array outside `Fixed`) and the rest."""
    learned = jax.tree.map(lambda leaf: not _is_fixed(leaf) and eqx.is_inexact_array(leaf), model, is_leaf=_is_fixed)
    return eqx.partition(model, learned, is_leaf=_is_fixed)


def merge(theta: Model, rest: Model) -> Model:
    """Return the prior, ready to be evaluated: every `Fixed` is replaced by its value."""
    model = eqx.combine(theta, rest, is_leaf=_is_fixed)
    return jax.tree.map(lambda leaf: leaf.value if _is_fixed(leaf) else leaf, model, is_leaf=_is_fixed)


def groups(theta: Any) -> Any:
    """Return the group of every leaf of theta by its name: 'weights' or 'biases' of networks, otherwise 'scales'."""

    def group(path: tuple[Any, ...], leaf: Any) -> str:
        name = next((key.name for key in reversed(path) if isinstance(key, jax.tree_util.GetAttrKey)), "")
        return {"weight": "weights", "bias": "biases"}.get(name, "scales")

    return jax.tree_util.tree_map_with_path(group, theta)


def cast(model: Model, dtype: Any) -> Model:
    """Convert every float array of a model to another precision."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype) if eqx.is_inexact_array(leaf) else leaf, model)


def _is_fixed(leaf: Any) -> bool:
    return isinstance(leaf, Fixed)
