"""Saved priors: one file with named tensors and a JSON header. Nothing in a file is executed.

How the model of a prior is stored is up to what fitted it: see `ENGINES`.
"""

import os
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from metaprior.checks import is_number
from metaprior.estimators.arguments import RENAMED, check_parameters
from metaprior.files import CHECKPOINT, InvalidFile, read_tensors, write_tensors
from metaprior.search.report import TransferReport
from metaprior.tasks.labels import as_labels

ESTIMATORS = {
    "MetaGPRegressor": "metaprior.estimators.regressor",
    "MetaGPClassifier": "metaprior.estimators.classifier",
}
# Modules with `model_parts` and `read_model`, by the name of what fitted a prior.
ENGINES = {
    "gradient": "metaprior.estimators.gradient_files",
    "hierarchical": "metaprior.estimators.hierarchical_files",
}
DEFAULT_ENGINE = "gradient"  # of files that name none
HEADER = {
    "kind": str,
    "parameters": dict,
    "fitted": dict,
    "input_dim": int,
    "n_members": int,
    "report": dict,
    "training": dict,
}
FITTED_NUMBERS = ("alpha_", "family_", "temperature_", "dtype_", "best_step_")
FITTED_TRACES = ("environment_weights_", "loss_trace_", "validation_trace_")


def load(path: str | os.PathLike, *, mean: Any = None, kernel: Any = None, encoder: Any = None) -> Any:
    """Load a saved prior.

    Parameters
    ----------
    path : path-like
        A file written by `save` or by `metaprior fit`.
    mean, kernel, encoder : optional
        The custom mean, kernel or encoder that the prior was fitted with, if any. Its parameters come from the file.

    Returns
    -------
    MetaGPRegressor or MetaGPClassifier

    Raises
    ------
    InvalidFile
        If the file is damaged or was not written by metaprior.
    """
    header, tensors = read_prior(path, tensors=FITTED_TRACES, numbers=FITTED_NUMBERS)
    if header["kind"] not in ESTIMATORS:
        raise InvalidFile(f"{path} holds a {header['kind']!r}, which this version does not know.")
    kind = getattr(import_module(ESTIMATORS[header["kind"]]), header["kind"])
    custom = {"mean": mean, "kernel": kernel, "encoder": encoder}
    meta = kind(**_decode_parameters(path, header, kind._get_param_names(), custom))
    _restore_fitted(meta, path, header, tensors)
    return meta


def write_prior(meta: Any, path: str | os.PathLike) -> None:
    """Write a fitted estimator to a file."""
    fitted = {name: getattr(meta, name) for name in FITTED_NUMBERS}
    if meta.likelihood == "bernoulli":
        fitted["classes_"] = None if meta.classes_ is None else meta.classes_.tolist()
    header = {
        "kind": type(meta).__name__,
        "parameters": {name: _encode(value) for name, value in meta.parameters_.items() if name != "n_devices"},
        "fitted": fitted,
        "input_dim": meta.model_.input_dim,
        "n_members": len(meta.model_.members),
        "report": meta.report_.to_json(),
        "training": meta.training_,
    }
    if meta.engine_ != DEFAULT_ENGINE:
        header["engine"] = meta.engine_
    if meta.model_.spread != 1.0:
        header["spread"] = float(meta.model_.spread)
    described, tensors = import_module(ENGINES[meta.engine_]).model_parts(meta.model_)
    if described:
        header["model"] = described
    write_tensors(path, header, {**tensors, **{name: getattr(meta, name) for name in FITTED_TRACES}})


def read_prior(
    path: str | os.PathLike, tensors: Sequence[str] = (), numbers: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read the header and the tensors of a prior; raise if any that are named here are missing."""
    header, arrays = read_tensors(path)
    if isinstance(header, dict) and header.get("kind") == CHECKPOINT:
        raise InvalidFile(
            f"{path} is the checkpoint of an interrupted fit, not a prior. Re-run the same fit to resume it."
        )
    if not (isinstance(header, dict) and all(isinstance(header.get(key), kind) for key, kind in HEADER.items())):
        raise InvalidFile(f"{path} is damaged: its header lacks one of {', '.join(HEADER)}.")
    if isinstance(header["n_members"], bool) or header["n_members"] < 1:
        raise InvalidFile(f"{path} is damaged: it has {header['n_members']} priors.")
    missing = [*(set(tensors) - set(arrays)), *(set(numbers) - set(header["fitted"]))]
    if missing:
        raise InvalidFile(f"{path} is damaged: it lacks {', '.join(sorted(missing))}.")
    return header, arrays


def _restore_fitted(meta: Any, path: Any, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Set the fitted attributes of an estimator from a file."""
    fitted, input_dim = header["fitted"], header["input_dim"]
    if isinstance(input_dim, bool) or input_dim < 1:
        raise InvalidFile(f"{path} is damaged: it has {input_dim} input columns.")
    try:
        check_parameters(meta)
    except (TypeError, ValueError) as error:
        raise InvalidFile(f"{path} is damaged: {error}") from None
    if meta.likelihood == "bernoulli":
        classes = fitted.get("classes_")
        if classes is not None and not (isinstance(classes, list) and len(classes) == 2):
            raise InvalidFile(f"{path} is damaged: classes_ must be two labels; the file has {classes!r}.")
        meta.classes_ = None if classes is None else as_labels(classes, f"{path}: classes_")
    meta.engine_, spread = header.get("engine", DEFAULT_ENGINE), header.get("spread", 1.0)
    if not isinstance(meta.engine_, str) or meta.engine_ not in ENGINES:
        raise InvalidFile(f"{path} holds a prior fitted by {meta.engine_!r}, which this version does not know.")
    if not (is_number(spread) and spread > 0):
        raise InvalidFile(f"{path} is damaged: its spread must be a positive number; the file has {spread!r}.")
    model = import_module(ENGINES[meta.engine_]).read_model(meta, path, header, tensors)
    meta.model_ = model._replace(spread=float(spread))
    try:
        meta.report_ = TransferReport.from_json(header["report"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidFile(f"{path} is damaged: its report cannot be read ({error!r}).") from None
    meta.parameters_ = meta.get_params(deep=False)
    for name in FITTED_NUMBERS:
        setattr(meta, name, fitted[name])
    for name in FITTED_TRACES:
        setattr(meta, name, tensors[name])
    meta.family_weights_ = meta.report_.families or {meta.family_: 1.0}
    meta.n_features_in_, meta.training_ = input_dim, header["training"]


@cache
def _descriptions() -> dict[str, Any]:
    """Return the classes that describe parts of a prior, by name."""
    from metaprior.gp.choices import ENCODERS, KERNELS, MEANS
    from metaprior.meta.methods import METHODS

    return {kind.__name__: kind for named in (MEANS, KERNELS, ENCODERS, METHODS) for kind in named.values()}


def _encode(value: Any) -> Any:
    """Encode a constructor parameter as JSON; of a custom mean or kernel only the signature is stored."""
    if is_dataclass(value) and type(value).__name__ in _descriptions():
        encoded = {field.name: _encode(getattr(value, field.name)) for field in fields(value)}
        return {"description": type(value).__name__, "fields": encoded}
    if isinstance(value, dict):
        return {"mapping": {str(key): _encode(item) for key, item in value.items()}}
    if isinstance(value, tuple | list | np.ndarray):
        return [_encode(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return {"own": _signature(value)}  # the key that files have had from the first


def _decode_parameters(
    path: Any, header: dict[str, Any], names: Sequence[str], custom: dict[str, Any]
) -> dict[str, Any]:
    """Decode constructor parameters; `custom` holds those that a file cannot, or None."""
    parameters: dict[str, Any] = header["parameters"]
    stored = {RENAMED.get(name, name): value for name, value in parameters.items()}
    if unknown := sorted(set(stored) - set(names)):  # parameters that an older file lacks have their defaults
        raise InvalidFile(f"{path} has parameters {unknown} that this version does not know.")
    for name, value in custom.items():
        encoded = stored.get(name)
        expected = encoded.get("own") if isinstance(encoded, dict) else None
        if value is not None and expected is None:
            raise ValueError(f"{name} is stored in the file: this prior was not fitted with a custom {name}.")
        if value is None and expected is not None:
            raise ValueError(f"This prior was fitted with a custom {name}, {expected}: pass load(path, {name}=...).")
        if value is not None and _signature(value) != expected:
            raise ValueError(f"{name} must be {expected}, as this prior was fitted with; got {_signature(value)}.")
    return {name: _decode(name, value) if custom.get(name) is None else custom[name] for name, value in stored.items()}


def _signature(value: Any) -> str:
    """Return the class of a custom module and of the modules inside it, as in Product(Matern32, Constant)."""
    name = getattr(value, "__name__", type(value).__name__)
    if not is_dataclass(value):  # as every Equinox module is
        return name
    import equinox as eqx

    if not isinstance(value, eqx.Module):
        return name
    parts = [getattr(value, field.name) for field in fields(value)]
    inner = [_signature(part) for part in parts if isinstance(part, eqx.Module)]
    return f"{name}({', '.join(inner)})" if inner else name


def _decode(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decode(name, item) for item in value)
    if not isinstance(value, dict):
        return value
    if "own" in value:
        return None  # a random generator, whose state is not part of a fitted prior
    if isinstance(value.get("mapping"), dict):
        return {key: _decode(name, item) for key, item in value["mapping"].items()}
    if value.get("description") not in _descriptions() or not isinstance(value.get("fields"), dict):
        raise InvalidFile(f"{name} is a {value.get('description')!r}, which this version of metaprior does not know.")
    description: Any = _descriptions()[value["description"]]
    try:
        return description(**{key: _decode(name, item) for key, item in value["fields"].items()})
    except TypeError as error:
        raise InvalidFile(f"{name} is a {value['description']} that cannot be built: {error}") from None
