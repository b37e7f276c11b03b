"""The tensors of hierarchical priors, to and from saved files."""

import re
from typing import Any

import numpy as np

from metaprior.hierarchical.arrays import from_arrays, to_arrays
from metaprior.hierarchical.label_arrays import from_label_arrays, label_arrays
from metaprior.hierarchical.label_prior import LabelPrior
from metaprior.prediction.ensemble import Ensemble
from metaprior.schema import Mismatch, check_weights

MEMBER_ARRAY = re.compile(r"member(\d{1,5})\.(.+)")


def model_parts(model: Ensemble) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what is stored of a model, as JSON and as tensors."""
    described = [
        label_arrays(member) if isinstance(member, LabelPrior) else to_arrays(member)  # type: ignore[arg-type]
        for member in model.members
    ]
    tensors = {f"member{i}.{name}": array for i, (_, arrays) in enumerate(described) for name, array in arrays.items()}
    tensors["member_weights"] = np.asarray(model.weights, np.float64)
    return {"members": [description for description, _ in described]}, tensors


def read_model(meta: Any, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> Ensemble:
    """Return the model of an estimator from a file; raise if a part is missing or does not fit."""
    weights = check_weights("member_weights", tensors.get("member_weights"), header["n_members"])
    described = header.get("model", {}).get("members")
    if not isinstance(described, list) or len(described) != len(weights):
        raise Mismatch(f"model.members must be a list of {len(weights)}")
    arrays: list[dict[str, np.ndarray]] = [{} for _ in described]
    for name, tensor in tensors.items():
        named = MEMBER_ARRAY.fullmatch(name)
        if named and int(named[1]) < len(arrays):
            arrays[int(named[1])][named[2]] = tensor
    pairs = zip(described, arrays, strict=True)
    recorded = header["training"]["scaling"]
    if meta.likelihood == "gaussian":
        members = (from_arrays(description, own, header["input_dim"], recorded) for description, own in pairs)
        return Ensemble(tuple(members), weights)
    n_shared = None if meta.classes_ is None else len(meta.classes_)
    labeled = (
        from_label_arrays(description, own, header["input_dim"], recorded, n_shared) for description, own in pairs
    )
    return Ensemble(tuple(labeled), weights)
