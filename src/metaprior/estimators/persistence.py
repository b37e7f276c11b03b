"""Saved priors: one file with named tensors and a JSON header. Nothing in a file is executed.

How the model of a prior is stored is up to what fitted it: see `KINDS`. Modules that take long to import are
imported after the header has been checked, so that a file that is no prior is refused at once.
"""

import hashlib
import json
import os
import reprlib
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import Argument, Message, check_bool
from metaprior.estimators.prior_header import (
    FITTED,
    SALT_BYTES,
    check_environment_weights,
    check_header,
    check_seen,
)
from metaprior.files import CHECKPOINT, InvalidFile, read_json, read_tensors, reading, write_tensors
from metaprior.float_errors import own_float_errors
from metaprior.tasks.task_digests import MAX_SLOW


class Kind(NamedTuple):
    """Where the code of an estimator and of its files is."""

    estimator: str  # the module that defines it
    files: str  # a module with `model_parts`, `read_model`, `ATTRIBUTES`, `ARRAYS`, `check_arrays` and `DESCRIPTIONS`


KINDS = {
    "MetaGPRegressor": Kind("metaprior.estimators.regressor", "metaprior.estimators.hierarchical_files"),
    "MetaGPClassifier": Kind("metaprior.estimators.classifier", "metaprior.estimators.hierarchical_files"),
    "WFEMRegressor": Kind("metaprior.wfem.estimators", "metaprior.wfem.files"),
    "WFEMClassifier": Kind("metaprior.wfem.estimators", "metaprior.wfem.files"),
}
WEIGHTS, RANGE = "environment_weights_", "feature_range_"
DIGESTS = "task_digests"  # slow ones


@own_float_errors
def load(path: str | os.PathLike, **custom: Any) -> Any:
    """Load a saved prior.

    Parameters
    ----------
    path : path-like
        A file written by `save` or by `metaprior fit`.
    **custom
        The parts of your own that a prior of `metaprior.wfem` was fitted with, by the name of the parameter, such as
        `kernel=...`. Their parameters come from the file.

    Returns
    -------
    MetaGPRegressor, MetaGPClassifier, or those of `metaprior.wfem`

    Raises
    ------
    InvalidFile
        If the file is damaged or was not written by metaprior.
    """
    header, tensors = read_prior(path)
    _check_kind(header["kind"], f"{path} holds")
    _check_custom(header["parameters"], custom)
    with reading(path):
        return _restored(header, tensors, custom)


def write_prior(meta: Any, path: str | os.PathLike, private: Any = False) -> None:
    """Write a fitted estimator to a file; raise InvalidFile, and write nothing, if `load` would refuse it."""
    write_tensors(path, *_prior_parts(meta, path, private))


def _prior_parts(meta: Any, path: str | os.PathLike, private: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the header and tensors of a fitted estimator; raise InvalidFile if `load` would refuse them."""
    check_bool("private", private)
    if private and meta.model_.guarantee is not None:
        held = " cannot hide what conformal intervals need: fits without each target task, or each few. Comparing them "
        held += "with the fit of all tells the averages of these tasks. Fit again without "
        raise ValueError(Message(Argument("private", True), held, Argument("guarantee", True), "."))
    kind = type(meta).__name__
    _check_kind(kind, f"{path} is not written: it would hold")
    files = import_module(KINDS[kind].files)
    fitted = {name: getattr(meta, name) for name in (*FITTED, *files.ATTRIBUTES)}
    if meta.likelihood_ == "bernoulli":
        fitted["classes_"] = None if meta.classes_ is None else meta.classes_.tolist()
    saved = meta._saved_parameters()
    header = {
        "kind": kind,
        "parameters": {name: _encode(value, files.DESCRIPTIONS) for name, value in saved.items()},
        "fitted": fitted,
        "input_dim": meta.model_.input_dim,
        "n_members": len(meta.model_.members),
        "report": meta.report_.to_json(),
        # Without the time that the fit took: equal fits make equal files.
        "training": {name: value for name, value in meta.training_.items() if name != "seconds"},
    }
    if meta.model_.spread != 1.0:
        header["spread"] = float(meta.model_.spread)
    described, tensors = files.model_parts(meta.model_._replace(guarantee=None))
    if described:
        header["model"] = described
    if meta.model_.guarantee is not None:
        from metaprior.estimators.guarantee_files import guarantee_parts

        header["guarantee"], of_folds = guarantee_parts(meta.model_.guarantee, files.model_parts)
        tensors |= of_folds
    if meta.baselines_:
        header["baselines"], of_baselines = files.baseline_parts(meta.baselines_)
        tensors |= of_baselines
    if hasattr(meta, "feature_names_in_"):
        header["feature_names"] = list(meta.feature_names_in_)
    if meta.features_.kinds is not None:
        header["columns"] = {"levels": list(meta.column_levels_), "covariates": list(meta.covariates_)}
    tensors |= {name: getattr(meta, name) for name in (WEIGHTS, RANGE, *files.ARRAYS)}
    if private:
        _leave_out(header, tensors, [bool(each) for each in meta.column_levels_])
    else:
        _add_tasks(meta, header, tensors)
    with reading(path, "is not written, because it could not be loaded"):
        written = read_json(json.dumps(header))
        _check_content(written, tensors)
        custom = {name: saved[name] for name in written["parameters"] if _custom_part(written["parameters"], name)}
        _restored(written, tensors, custom)
    return header, tensors


def _add_tasks(meta: Any, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Add that by which tasks of the fit are recognized. The salt follows from all else: equal fits, equal files."""
    salt = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        salt.update(np.ascontiguousarray(tensors[name]).tobytes())
    saved = meta._saved_tasks(salt.digest()[:SALT_BYTES], MAX_SLOW)
    if saved is not None:
        header["recognized"] = {"tasks": len(saved.digests), "of": saved.n_tasks, "salt": saved.salt.hex()}
        tensors[DIGESTS] = saved.digests


def _leave_out(header: dict[str, Any], tensors: dict[str, np.ndarray], has_levels: Sequence[bool]) -> None:
    """Leave out what only `private=True` does: the name of the table, and the exact ranges of columns of numbers."""
    header["training"]["data"] = None
    lower, upper = tensors[RANGE]
    with np.errstate(all="ignore"):  # of ranges that overflow
        step = _round_steps(upper - lower)
        coarse = np.stack([np.floor(lower / step) * step, np.ceil(upper / step) * step])
    exact = np.zeros(len(step), bool) | (has_levels or False)
    tensors[RANGE] = np.where(exact | ~np.isfinite(coarse).all(axis=0), [lower, upper], coarse)


def _round_steps(width: np.ndarray) -> np.ndarray:
    """Return the largest 1, 2 or 5 times a power of ten that is at most a tenth of each width, one where it is zero."""
    tenth = np.where(width > 0, width, 10.0) / 10.0
    power = 10.0 ** np.floor(np.log10(tenth))
    return power * np.array([1.0, 2.0, 5.0])[np.searchsorted([2.0, 5.0], tenth / power, side="right")]


def read_prior(path: str | os.PathLike) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read the checked header and the tensors of a prior."""
    header, tensors = read_tensors(path)
    if header.get("kind") == CHECKPOINT:
        raise InvalidFile(
            f"{path} is the checkpoint of an interrupted fit, not a prior. Re-run the same fit to resume it."
        )
    with reading(path):
        _check_content(header, tensors)
    return header, tensors


def _check_content(header: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Raise Mismatch unless header and tensors are those of a prior, as far as they are the same for all kinds."""
    check_header(header)
    check_environment_weights(header, tensors)
    check_seen(header, tensors)


def _check_kind(kind: str, holds: str) -> None:
    """Raise InvalidFile if this version has no estimator of the name."""
    if kind not in KINDS:
        raise InvalidFile(f"{holds} a prior of kind {reprlib.repr(kind)}, which this version does not know.")


def _restored(header: dict[str, Any], tensors: dict[str, np.ndarray], custom: dict[str, Any]) -> Any:
    """Return the estimator that checked content describes, with the custom parts that it lacks."""
    kind = KINDS[header["kind"]]
    estimator, files = getattr(import_module(kind.estimator), header["kind"]), import_module(kind.files)
    files.check_arrays(header, tensors)
    names = estimator._get_param_names()
    meta = estimator(**_decode_parameters(header["parameters"], names, custom, files.DESCRIPTIONS))
    _restore_fitted(meta, files, header, tensors)
    return meta


def _restore_fitted(meta: Any, files: Any, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Set the fitted attributes of an estimator from a file."""
    from metaprior.estimators.guarantee_files import read_guarantee, without_folds
    from metaprior.estimators.seen_tasks import SavedTasks
    from metaprior.search.report import TransferReport
    from metaprior.tasks.labels import as_labels

    meta._check_parameters()
    meta.likelihood_ = meta._kind
    fitted = header["fitted"]
    if meta.likelihood_ == "bernoulli":
        classes = fitted.get("classes_")
        meta.classes_ = None if classes is None else as_labels(classes, "classes_")
    columns = header.get("columns", {"levels": [], "covariates": []})
    meta.column_levels_ = tuple(None if each is None else tuple(each) for each in columns["levels"])
    meta.covariates_, meta.n_features_in_ = tuple(columns["covariates"]), header["input_dim"]
    model = files.read_model(meta, header, without_folds(tensors))
    guarantee = read_guarantee(meta, header, tensors, files.read_model)
    meta.model_ = model._replace(spread=float(header.get("spread", 1.0)), guarantee=guarantee)
    meta.baselines_ = files.read_baselines(meta, header, tensors) if "baselines" in header else {}
    meta.report_ = TransferReport.from_json(header["report"])
    meta.parameters_ = meta.get_params(deep=False)
    for name in (*FITTED, *files.ATTRIBUTES):
        setattr(meta, name, fitted[name])
    for name in (WEIGHTS, RANGE, *files.ARRAYS):
        setattr(meta, name, tensors[name])
    if "recognized" in header:
        known = header["recognized"]
        meta._tasks = SavedTasks(known["of"], bytes.fromhex(known["salt"]), tensors[DIGESTS])
    if "feature_names" in header:
        meta.feature_names_in_ = np.array(header["feature_names"], dtype=object)
    meta.family_weights_ = meta.report_.families or {meta.family_: 1.0}
    meta.training_ = header["training"]
    meta.covariate_weights_ = meta.training_.get("covariates", {})


def _encode(value: Any, descriptions: dict[str, Any]) -> Any:
    """Encode a constructor parameter as JSON; of a part of the user's own only the signature is stored."""
    if is_dataclass(value) and descriptions.get(type(value).__name__) is type(value):
        encoded = {field.name: _encode(getattr(value, field.name), descriptions) for field in fields(value)}
        return {"description": type(value).__name__, "fields": encoded}
    if isinstance(value, dict):
        return {"mapping": {str(key): _encode(item, descriptions) for key, item in value.items()}}
    if isinstance(value, tuple | list | np.ndarray):
        return [_encode(item, descriptions) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.random.RandomState):  # whose state is not part of a prior
        return None
    return {"own": _signature(value)}


def _custom_part(parameters: dict[str, Any], name: str) -> str | None:
    """Return the signature of a part of the user's own, None if the file describes it."""
    encoded = parameters.get(name)
    return encoded.get("own") if isinstance(encoded, dict) else None


def _check_custom(parameters: dict[str, Any], custom: dict[str, Any]) -> None:
    """Raise unless exactly the custom parts that the file lacks are given."""
    for name in {**parameters, **custom}:
        value, expected = custom.get(name), _custom_part(parameters, name)
        if value is not None and expected is None:
            raise ValueError(f"{name} is stored in the file: this prior was not fitted with a custom {name}.")
        if value is None and expected is not None:
            raise ValueError(f"This prior was fitted with a custom {name}, {expected}: pass load(path, {name}=...).")
        if value is not None and _signature(value) != expected:
            raise ValueError(f"{name} must be {expected}, as this prior was fitted with; got {_signature(value)}.")


def _decode_parameters(
    parameters: dict[str, Any], names: Sequence[str], custom: dict[str, Any], descriptions: dict[str, Any]
) -> dict[str, Any]:
    """Decode constructor parameters."""
    if unknown := sorted(set(parameters) - set(names)):
        raise ValueError(f"it has parameters {unknown} that this version does not know")
    return {
        name: custom[name] if custom.get(name) is not None else _decode(name, value, descriptions)
        for name, value in parameters.items()
    }


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


def _decode(name: str, value: Any, descriptions: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return tuple(_decode(name, item, descriptions) for item in value)
    if not isinstance(value, dict):
        return value
    if "mapping" in value:
        return {key: _decode(name, item, descriptions) for key, item in value["mapping"].items()}
    if value.get("description") not in descriptions:
        raise ValueError(f"{name} is a {value.get('description', value)!r}, which this version does not know")
    description: Any = descriptions[value["description"]]
    return description(**{key: _decode(name, item, descriptions) for key, item in value["fields"].items()})
