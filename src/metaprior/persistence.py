"""One file for a fitted model: named tensors and a versioned JSON header, in the safetensors format. No pickle."""

import json
import os
import tempfile
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from metaprior.gp import ConstantMean, LinearKernel, MLPKernel, MLPMean, RBFKernel, ZeroMean
from metaprior.meta import MAP, SVGD

FORMAT = "metaprior"
FORMAT_VERSION = 1
DESCRIPTIONS = {
    kind.__name__: kind for kind in (ConstantMean, LinearKernel, MLPKernel, MLPMean, RBFKernel, ZeroMean, MAP, SVGD)
}


class InvalidFile(ValueError):
    """A file that is not a prior this version can read."""


def write(path: str | os.PathLike, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Write atomically: the final name only ever holds a whole file."""
    path = Path(path)
    metadata = {"format": FORMAT, "version": str(FORMAT_VERSION), "header": json.dumps(header)}
    content = save({name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}, metadata)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: str | os.PathLike) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read header and tensors. Nothing in the file is executed."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise InvalidFile(f"{path} is a safetensors file, but not one written by metaprior.")
            if metadata.get("version") != str(FORMAT_VERSION):
                raise InvalidFile(
                    f"{path} has format version {metadata.get('version')!r}; this metaprior reads "
                    f"{FORMAT_VERSION}. Update metaprior, or save the prior again."
                )
            header = json.loads(metadata["header"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise InvalidFile(f"{path} is not a prior saved by metaprior, or it is damaged: {error}") from None
    return header, tensors


def encode(value: Any) -> Any:
    """A constructor argument as JSON; an own mean or kernel leaves only its name."""
    if is_dataclass(value) and type(value).__name__ in DESCRIPTIONS:
        return {"description": type(value).__name__, "fields": asdict(value)}  # type: ignore[arg-type]
    if isinstance(value, dict):
        return {"mapping": {str(key): encode(item) for key, item in value.items()}}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return {"own": type(value).__name__}


def decode(name: str, value: Any, own: dict[str, Any]) -> Any:
    """The constructor argument `name` again; `own` holds what cannot be in a file."""
    if not isinstance(value, dict):
        return value
    if "own" in value and name == "random_state":
        return None  # a generator's state is not part of a fitted prior
    if "own" in value:
        if name not in own:
            raise ValueError(
                f"This prior was fitted with an own {name} ({value['own']}): pass it again as load(path, {name}=...)."
            )
        return own[name]
    if "mapping" in value:
        return {key: decode(name, item, own) for key, item in value["mapping"].items()}
    if value.get("description") not in DESCRIPTIONS:
        raise InvalidFile(f"{name} is a {value.get('description')!r}, which this version of metaprior does not know.")
    fields = {key: tuple(item) if isinstance(item, list) else item for key, item in value["fields"].items()}
    return DESCRIPTIONS[value["description"]](**fields)


def flatten(model: Any) -> dict[str, np.ndarray]:
    """Every array of a model under the name of its place."""
    leaves = jax.tree_util.tree_flatten_with_path(eqx.filter(model, eqx.is_array_like))[0]
    return {f"model{jax.tree_util.keystr(path)}": np.asarray(leaf) for path, leaf in leaves}


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
