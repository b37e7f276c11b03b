"""The tensors of hierarchical priors, to and from saved files."""

from typing import Any

import numpy as np

from metaprior.files import InvalidFile
from metaprior.hierarchical.arrays import from_arrays, to_arrays
from metaprior.prediction.ensemble import Ensemble


def model_parts(model: Ensemble) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what is stored of a model, as JSON and as tensors."""
    described = [to_arrays(member) for member in model.members]  # type: ignore[arg-type]
    tensors = {f"member{i}.{name}": array for i, (_, arrays) in enumerate(described) for name, array in arrays.items()}
    tensors["member_weights"] = np.asarray(model.weights, np.float64)
    return {"members": [description for description, _ in described]}, tensors


def read_model(meta: Any, path: Any, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> Ensemble:
    """Return the model of an estimator from a file; raise InvalidFile if a part is missing or does not fit."""
    try:
        described = header["model"]["members"]
        weights = tensors["member_weights"]
        if len(described) != header["n_members"] or weights.shape != (len(described),):
            raise ValueError(f"it has {len(described)} members and {header['n_members']} are expected")
        if not (np.isfinite(weights).all() and (weights >= 0).all() and abs(weights.sum() - 1.0) < 1e-6):
            raise ValueError("member_weights must be positive numbers of sum one")
        members = []
        for i, description in enumerate(described):
            prefix = f"member{i}."
            own = {name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)}
            members.append(from_arrays(description, own))
        if {member.input_dim for member in members} != {header["input_dim"]}:
            raise ValueError("its members have other inputs than its header says")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InvalidFile(f"{path} is damaged: {error!r}.") from None
    return Ensemble(tuple(members), weights)
