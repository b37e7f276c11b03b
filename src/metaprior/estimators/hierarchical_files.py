"""The tensors of hierarchical priors, to and from saved files."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from metaprior.likelihoods import LIKELIHOODS
from metaprior.predict.ensemble import Ensemble
from metaprior.prior.arrays import from_arrays, to_arrays
from metaprior.prior.label_arrays import from_label_arrays, label_arrays
from metaprior.prior.label_prior import LabelPrior
from metaprior.prior.response_arrays import from_response_arrays, response_arrays
from metaprior.schema import Mismatch, check_weights

ATTRIBUTES, ARRAYS, DESCRIPTIONS = (), (), {}  # of the estimator, beyond what all have
MEMBER_ARRAY = re.compile(r"member(\d{1,5})\.(.+)")
BASELINE_ARRAY = re.compile(r"baseline(\d{1,5})\.(.+)")


def check_arrays(header: dict[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
    """There are none beyond what all priors have."""


def model_parts(model: Ensemble) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what is stored of a model, as JSON and as tensors."""
    described = [_stored(member) for member in model.members]
    tensors = {f"member{i}.{name}": array for i, (_, arrays) in enumerate(described) for name, array in arrays.items()}
    tensors["member_weights"] = np.asarray(model.weights, np.float64)
    return {"members": [description for description, _ in described]}, tensors


def _stored(member: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    if isinstance(member, LabelPrior):
        return label_arrays(member)
    return to_arrays(member) if member.response is None else response_arrays(member)


def read_model(meta: Any, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> Ensemble:
    """Return the model of an estimator from a file; raise if a part is missing or does not fit."""
    weights = check_weights("member_weights", tensors.get("member_weights"), header["n_members"])
    described = header.get("model", {}).get("members")
    if not isinstance(described, list) or len(described) != len(weights):
        raise Mismatch(f"model.members must be a list of {len(weights)}")
    pairs = zip(described, _arrays_of(MEMBER_ARRAY, tensors, len(described)), strict=True)
    recorded, kinds = header["training"]["scaling"], meta.features_.kinds
    if meta._kind in LIKELIHOODS and LIKELIHOODS[meta._kind].normal:
        members = (from_arrays(description, own, header["input_dim"], recorded, kinds) for description, own in pairs)
        return Ensemble(tuple(members), weights)
    if meta._kind != "bernoulli":
        name = meta._kind
        responses = (
            from_response_arrays(description, own, header["input_dim"], recorded, name, kinds)
            for description, own in pairs
        )
        return Ensemble(tuple(responses), weights)
    n_shared = None if meta.classes_ is None else len(meta.classes_)
    labeled = (
        from_label_arrays(description, own, header["input_dim"], recorded, n_shared, kinds)
        for description, own in pairs
    )
    return Ensemble(tuple(labeled), weights)


def baseline_parts(baselines: Mapping[str, Ensemble]) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Return what is stored of the models that a prior is compared with, of one member each, as JSON and as tensors."""
    described, tensors = [], {}
    for i, (name, model) in enumerate(baselines.items()):
        description, arrays = to_arrays(model.members[0])  # type: ignore[arg-type]
        described.append({"name": name, "model": description})
        tensors |= {f"baseline{i}.{part}": array for part, array in arrays.items()}
    return described, tensors


def read_baselines(meta: Any, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> dict[str, Ensemble]:
    """Return these models by name; raise if a part is missing or does not fit."""
    described, found = header["baselines"], {}
    for each, arrays in zip(described, _arrays_of(BASELINE_ARRAY, tensors, len(described)), strict=True):
        prior = from_arrays(each["model"], arrays, header["input_dim"], kinds=meta.features_.kinds)
        found[each["name"]] = Ensemble((prior,), np.ones(1))
    return found


def _arrays_of(pattern: re.Pattern[str], tensors: Mapping[str, np.ndarray], number: int) -> list[dict[str, np.ndarray]]:
    """Return the tensors of each part of a file, by their names in it."""
    arrays: list[dict[str, np.ndarray]] = [{} for _ in range(number)]
    for name, tensor in tensors.items():
        named = pattern.fullmatch(name)
        if named and int(named[1]) < number:
            arrays[int(named[1])][named[2]] = tensor
    return arrays
