"""One file for a fitted model: named tensors and a versioned JSON header, in the safetensors format. No pickle."""

import os
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import equinox as eqx
import jax
import numpy as np

from metaprior.files import CHECKPOINT, InvalidFile, read_tensors
from metaprior.gp.prior import ENCODERS, KERNELS, MEANS
from metaprior.meta.methods import METHODS

DESCRIPTIONS = {kind.__name__: kind for named in (MEANS, KERNELS, ENCODERS, METHODS) for kind in named.values()}


def read_prior(
    path: str | os.PathLike, tensors: Sequence[str] = (), numbers: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and tensors of a prior, with those that are named."""
    header, arrays = read_tensors(path)
    if isinstance(header, dict) and header.get("kind") == CHECKPOINT:
        raise InvalidFile(
            f"{path} is the checkpoint of a fit that was interrupted, not a prior. Run the same fit again: it goes on "
            "from there."
        )
    kinds = {
        "kind": str,
        "parameters": dict,
        "fitted": dict,
        "input_dim": int,
        "n_members": int,
        "report": dict,
        "training": dict,
    }
    if not (isinstance(header, dict) and all(isinstance(header.get(key), kind) for key, kind in kinds.items())):
        raise InvalidFile(f"{path} is damaged: its header lacks one of {', '.join(kinds)}.")
    if isinstance(header["n_members"], bool) or header["n_members"] < 1:
        raise InvalidFile(f"{path} is damaged: it has {header['n_members']} priors.")
    missing = [*(set(tensors) - set(arrays)), *(set(numbers) - set(header["fitted"]))]
    if missing:
        raise InvalidFile(f"{path} is damaged: it lacks {', '.join(sorted(missing))}.")
    return header, arrays


def encode(value: Any) -> Any:
    """A constructor argument as JSON; an own mean or kernel leaves only its signature."""
    if is_dataclass(value) and type(value).__name__ in DESCRIPTIONS:
        fields_ = {field.name: encode(getattr(value, field.name)) for field in fields(value)}
        return {"description": type(value).__name__, "fields": fields_}
    if isinstance(value, dict):
        return {"mapping": {str(key): encode(item) for key, item in value.items()}}
    if isinstance(value, tuple | list | np.ndarray):
        return [encode(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return {"own": signature(value)}


def decode_parameters(
    path: str | os.PathLike, header: dict[str, Any], names: Sequence[str], own: dict[str, Any]
) -> dict[str, Any]:
    """Constructor arguments; `own` holds those that cannot be in a file, or None."""
    stored = header["parameters"]
    if unknown := sorted(set(stored) - set(names)):  # what an older version does not say has its default
        raise InvalidFile(f"{path} has parameters {unknown} that this version does not know.")
    for name, value in own.items():
        expected = stored[name].get("own") if isinstance(stored[name], dict) else None
        if value is not None and expected is None:
            raise ValueError(f"{name} is in the file already: this prior was not fitted with an own {name}.")
        if value is None and expected is not None:
            raise ValueError(
                f"This prior was fitted with an own {name}, {expected}: pass it again as load(path, {name}=...)."
            )
        if value is not None and signature(value) != expected:
            raise ValueError(f"{name} must be {expected}, as this prior was fitted with; got {signature(value)}.")
    return {name: _decode(name, value) if own.get(name) is None else own[name] for name, value in stored.items()}


def signature(value: Any) -> str:
    """The class of an own module and of the modules inside it, as in Product(Matern32, Constant)."""
    name = getattr(value, "__name__", type(value).__name__)
    if not isinstance(value, eqx.Module):
        return name
    parts = [getattr(value, field.name) for field in fields(value)]
    inner = [signature(part) for part in parts if isinstance(part, eqx.Module)]
    return f"{name}({', '.join(inner)})" if inner else name


def flatten(model: Any) -> dict[str, np.ndarray]:
    """Every array of a model under the name of its place."""
    leaves = jax.tree_util.tree_flatten_with_path(model)[0]
    return {f"model{jax.tree_util.keystr(path)}": np.asarray(leaf) for path, leaf in leaves if hasattr(leaf, "shape")}


def restore(path: str | os.PathLike, template: Any, tensors: dict[str, np.ndarray]) -> Any:
    """A model of the template's structure with the file's arrays, refused if any shape or precision differs."""

    def place(where: Any, leaf: Any) -> Any:
        if not hasattr(leaf, "shape"):
            return leaf
        name = f"model{jax.tree_util.keystr(where)}"
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != leaf.shape or tensor.dtype != leaf.dtype:
            came = "nothing" if tensor is None else f"{tensor.dtype}{list(tensor.shape)}"
            raise InvalidFile(f"{path}: {name} must be {leaf.dtype}{list(leaf.shape)}; the file has {came}.")
        return tensor

    return jax.tree_util.tree_map_with_path(place, template)


def _decode(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decode(name, item) for item in value)
    if not isinstance(value, dict):
        return value
    if "own" in value:
        return None  # a random generator: its state is not part of a fitted prior
    if isinstance(value.get("mapping"), dict):
        return {key: _decode(name, item) for key, item in value["mapping"].items()}
    if value.get("description") not in DESCRIPTIONS or not isinstance(value.get("fields"), dict):
        raise InvalidFile(f"{name} is a {value.get('description')!r}, which this version of metaprior does not know.")
    description: Any = DESCRIPTIONS[value["description"]]
    try:
        return description(**{key: _decode(name, item) for key, item in value["fields"].items()})
    except TypeError as error:
        raise InvalidFile(f"{name} is a {value['description']} that cannot be built: {error}") from None
