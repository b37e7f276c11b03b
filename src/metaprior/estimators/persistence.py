"""Saved priors: one file with named tensors and a JSON header. Nothing in a file is executed.

How the model of a prior is stored is up to what fitted it: see `ENGINES`. Modules that take long to import are
imported after the header has been checked, so that a file that is no prior is refused at once.
"""

import hashlib
import json
import os
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from metaprior.checks import Argument, Message, check_bool
from metaprior.estimators.prior_header import (
    DEFAULT_ENGINE,
    FITTED,
    OUTPUTS,
    SALT_BYTES,
    TRACES,
    check_header,
    check_seen,
    check_traces,
)
from metaprior.files import CHECKPOINT, InvalidFile, read_json, read_tensors, reading, write_tensors
from metaprior.float_errors import own_float_errors
from metaprior.schema import OUTERMOST, Mismatch
from metaprior.tasks.task_digests import MAX_SLOW

ESTIMATORS = {
    "MetaGPRegressor": "metaprior.estimators.regressor",
    "MetaGPClassifier": "metaprior.estimators.classifier",
}
# Modules with `model_parts` and `read_model`, by the name of what fitted a prior.
ENGINES = {
    "gradient": "metaprior.estimators.gradient_files",
    "hierarchical": "metaprior.estimators.hierarchical_files",
}
CUSTOM = ("mean", "kernel", "encoder")  # parts of a prior that may be of a class of the user's
SEVERAL = "MultiOutputMetaGP"  # what a file of several priors says it is
ONLY = ""  # the name of the output of a file with one prior
OUTPUT_ARRAY = re.compile(r"output(\d{1,5})\.(.+)")
ARRAYS = ("environment_weights_", *TRACES)
OPTIONAL_ARRAYS = ("feature_range_",)  # not in files of earlier versions
DIGESTS = "task_digests"  # slow ones


@own_float_errors
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
    MetaGPRegressor, MetaGPClassifier or MultiOutputMetaGP

    Raises
    ------
    InvalidFile
        If the file is damaged or was not written by metaprior.
    """
    custom, found = {"mean": mean, "kernel": kernel, "encoder": encoder}, {}
    for name, (header, tensors) in read_priors(path).items():
        _check_known(header, f"{path} holds")
        _check_custom(header["parameters"], custom)
        with reading(path):
            found[name] = _restored(header, tensors, custom)
    if ONLY in found:
        return found[ONLY]
    from metaprior.estimators.multi_output import MultiOutputMetaGP

    several = MultiOutputMetaGP()
    several.estimators_ = found
    return several


def write_prior(meta: Any, path: str | os.PathLike, private: Any = False) -> None:
    """Write a fitted estimator to a file; raise InvalidFile, and write nothing, if `load` would refuse it."""
    write_tensors(path, *_prior_parts(meta, path, private))


def write_priors(metas: Mapping[str, Any], path: str | os.PathLike, private: Any = False) -> None:
    """Write the estimators of several outputs to one file, as `write_prior`."""
    parts = [_prior_parts(meta, path, private, MAX_SLOW // max(len(metas), 1)) for meta in metas.values()]
    header = {"kind": SEVERAL, "outputs": list(metas), "priors": [header for header, _ in parts]}
    tensors = {f"output{i}.{name}": array for i, (_, own) in enumerate(parts) for name, array in own.items()}
    write_tensors(path, header, tensors)


def _prior_parts(
    meta: Any, path: str | os.PathLike, private: Any, most: int = MAX_SLOW
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the header and tensors of a fitted estimator; raise InvalidFile if `load` would refuse them."""
    check_bool("private", private)
    if private and meta.model_.guarantee is not None:
        held = " cannot hide what conformal intervals need: fits without each target task, or each few. Comparing them "
        held += "with the fit of all tells the averages of these tasks. Fit again without "
        raise ValueError(Message(Argument("private", True), held, Argument("guarantee", True), "."))
    fitted = {name: getattr(meta, name) for name in FITTED}
    if meta.likelihood_ == "bernoulli":
        fitted["classes_"] = None if meta.classes_ is None else meta.classes_.tolist()
    header = {
        "kind": type(meta).__name__,
        "parameters": {name: _encode(value) for name, value in meta.parameters_.items() if name != "n_devices"},
        "fitted": fitted,
        "input_dim": meta.model_.input_dim,
        "n_members": len(meta.model_.members),
        "report": meta.report_.to_json(),
        # Without the time that the fit took: equal fits make equal files.
        "training": {name: value for name, value in meta.training_.items() if name != "seconds"},
    }
    if meta.engine_ != DEFAULT_ENGINE:
        header["engine"] = meta.engine_
    if meta.model_.spread != 1.0:
        header["spread"] = float(meta.model_.spread)
    model_parts = import_module(ENGINES[meta.engine_]).model_parts
    described, tensors = model_parts(meta.model_._replace(guarantee=None))
    if described:
        header["model"] = described
    if meta.model_.guarantee is not None:
        from metaprior.estimators.guarantee_files import guarantee_parts

        header["guarantee"], of_folds = guarantee_parts(meta.model_.guarantee, model_parts)
        tensors |= of_folds
    if meta.baselines_:
        header["baselines"], of_baselines = import_module(ENGINES["hierarchical"]).baseline_parts(meta.baselines_)
        tensors |= of_baselines
    if hasattr(meta, "feature_names_in_"):
        header["feature_names"] = list(meta.feature_names_in_)
    if meta.features_.kinds is not None:
        header["columns"] = {"levels": list(meta.column_levels_), "covariates": list(meta.covariates_)}
    arrays = (*ARRAYS, *(name for name in OPTIONAL_ARRAYS if hasattr(meta, name)))
    tensors |= {name: getattr(meta, name) for name in arrays}
    if private:
        _leave_out(header, tensors, [bool(each) for each in meta.column_levels_])
    else:
        _add_tasks(meta, header, tensors, most)
    with reading(path, "is not written, because it could not be loaded"):
        written = read_json(json.dumps(header))
        _check_content(written, tensors)
        _check_known(written, f"{path} is not written: it would hold")
        custom = [name for name in CUSTOM if _custom_part(written["parameters"], name)]
        _restored(written, tensors, {name: meta.parameters_[name] for name in custom})
    return header, tensors


def _add_tasks(meta: Any, header: dict[str, Any], tensors: dict[str, np.ndarray], most: int) -> None:
    """Add that by which tasks of the fit are recognized. The salt follows from all else: equal fits, equal files."""
    salt = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        salt.update(np.ascontiguousarray(tensors[name]).tobytes())
    saved = meta._saved_tasks(salt.digest()[:SALT_BYTES], most)
    if saved is not None:
        header["recognized"] = {"tasks": len(saved.digests), "of": saved.n_tasks, "salt": saved.salt.hex()}
        tensors[DIGESTS] = saved.digests


def _leave_out(header: dict[str, Any], tensors: dict[str, np.ndarray], has_levels: Sequence[bool]) -> None:
    """Leave out what only `private=True` does: the name of the table, and the exact ranges of columns of numbers."""
    header["training"]["data"] = None
    if "feature_range_" in tensors:
        lower, upper = tensors["feature_range_"]
        with np.errstate(all="ignore"):  # of ranges that overflow
            step = _round_steps(upper - lower)
            coarse = np.stack([np.floor(lower / step) * step, np.ceil(upper / step) * step])
        exact = np.zeros(len(step), bool) | (has_levels or False)
        tensors["feature_range_"] = np.where(exact | ~np.isfinite(coarse).all(axis=0), [lower, upper], coarse)


def _round_steps(width: np.ndarray) -> np.ndarray:
    """Return the largest 1, 2 or 5 times a power of ten that is at most a tenth of each width, one where it is zero."""
    tenth = np.where(width > 0, width, 10.0) / 10.0
    power = 10.0 ** np.floor(np.log10(tenth))
    return power * np.array([1.0, 2.0, 5.0])[np.searchsorted([2.0, 5.0], tenth / power, side="right")]


def read_priors(path: str | os.PathLike) -> dict[str, tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """Read the checked header and the tensors of the priors of all outputs by name, or of the ONLY prior."""
    header, tensors = read_tensors(path)
    if header.get("kind") == CHECKPOINT:
        raise InvalidFile(
            f"{path} is the checkpoint of an interrupted fit, not a prior. Re-run the same fit to resume it."
        )
    with reading(path):
        parts = _split_outputs(header, tensors) if header.get("kind") == SEVERAL else {ONLY: (header, tensors)}
        for each in parts.values():
            _check_content(*each)
    return parts


def _split_outputs(header: dict[str, Any], tensors: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return header and tensors of the prior of every output."""
    OUTPUTS(header, OUTERMOST)
    names = header["outputs"]
    if len(set(names)) != len(names) or len(names) != len(header["priors"]) or ONLY in names:
        raise Mismatch("outputs must be different names, one of each prior")
    own: list[dict[str, np.ndarray]] = [{} for _ in names]
    for name, tensor in tensors.items():
        named = OUTPUT_ARRAY.fullmatch(name)
        if named and int(named[1]) < len(own):
            own[int(named[1])][named[2]] = tensor
    return dict(zip(names, zip(header["priors"], own, strict=True), strict=True))


def _check_content(header: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Raise Mismatch unless header and tensors are those of a prior, as far as they are the same for all engines."""
    check_header(header)
    check_traces(header, tensors)
    check_seen(header, tensors)


def _check_known(header: dict[str, Any], holds: str) -> None:
    """Raise InvalidFile if no estimator or engine of this version has the name that the header gives."""
    engine = header.get("engine", DEFAULT_ENGINE)
    for how, name, known in (("of kind", header["kind"], ESTIMATORS), ("fitted by", engine, ENGINES)):
        if name not in known:
            raise InvalidFile(f"{holds} a prior {how} {reprlib.repr(name)}, which this version does not know.")


def _restored(header: dict[str, Any], tensors: dict[str, np.ndarray], custom: dict[str, Any]) -> Any:
    """Return the estimator that checked content describes, with the custom parts that it lacks."""
    kind = getattr(import_module(ESTIMATORS[header["kind"]]), header["kind"])
    meta = kind(**_decode_parameters(header["parameters"], kind._get_param_names(), custom))
    meta.engine_ = header.get("engine", DEFAULT_ENGINE)
    _restore_fitted(meta, header, tensors)
    return meta


def _restore_fitted(meta: Any, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Set the fitted attributes of an estimator from a file."""
    from metaprior.estimators.arguments import check_parameters
    from metaprior.estimators.guarantee_files import read_guarantee, without_folds
    from metaprior.estimators.seen_tasks import SavedTasks
    from metaprior.search.report import TransferReport
    from metaprior.tasks.labels import as_labels

    check_parameters(meta)
    fitted = header["fitted"]
    if meta.likelihood == "bernoulli":
        classes = fitted.get("classes_")
        meta.classes_ = None if classes is None else as_labels(classes, "classes_")
    columns = header.get("columns", {"levels": [], "covariates": []})
    meta.column_levels_ = tuple(None if each is None else tuple(each) for each in columns["levels"])
    meta.covariates_, meta.n_features_in_ = tuple(columns["covariates"]), header["input_dim"]
    read_model = import_module(ENGINES[meta.engine_]).read_model
    model = read_model(meta, header, without_folds(tensors))
    guarantee = read_guarantee(meta, header, tensors, read_model)
    meta.model_ = model._replace(spread=float(header.get("spread", 1.0)), guarantee=guarantee)
    meta.baselines_ = {}
    if "baselines" in header:  # not in files of earlier versions
        meta.baselines_ = import_module(ENGINES["hierarchical"]).read_baselines(meta, header, tensors)
    meta.report_ = TransferReport.from_json(header["report"])
    meta.parameters_ = meta.get_params(deep=False)
    for name in FITTED:
        setattr(meta, name, fitted[name])
    for name in (*ARRAYS, *(name for name in OPTIONAL_ARRAYS if name in tensors)):
        setattr(meta, name, tensors[name])
    if "recognized" in header:
        known = header["recognized"]
        meta._tasks = SavedTasks(known["of"], bytes.fromhex(known["salt"]), tensors[DIGESTS])
    if "feature_names" in header:
        meta.feature_names_in_ = np.array(header["feature_names"], dtype=object)
    meta.family_weights_ = meta.report_.families or {meta.family_: 1.0}
    meta.training_ = header["training"]
    meta.covariate_weights_ = meta.training_.get("covariates", {})


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


def _custom_part(parameters: dict[str, Any], name: str) -> str | None:
    """Return the signature of a custom mean, kernel or encoder, None if the file describes it."""
    encoded = parameters.get(name)
    return encoded.get("own") if isinstance(encoded, dict) else None


def _check_custom(parameters: dict[str, Any], custom: dict[str, Any]) -> None:
    """Raise unless exactly the custom parts that the file lacks are given. `custom` has None for all others."""
    for name, value in custom.items():
        expected = _custom_part(parameters, name)
        if value is not None and expected is None:
            raise ValueError(f"{name} is stored in the file: this prior was not fitted with a custom {name}.")
        if value is None and expected is not None:
            raise ValueError(f"This prior was fitted with a custom {name}, {expected}: pass load(path, {name}=...).")
        if value is not None and _signature(value) != expected:
            raise ValueError(f"{name} must be {expected}, as this prior was fitted with; got {_signature(value)}.")


def _decode_parameters(parameters: dict[str, Any], names: Sequence[str], custom: dict[str, Any]) -> dict[str, Any]:
    """Decode constructor parameters; parameters that an older file lacks have their defaults."""
    from metaprior.estimators.arguments import RENAMED

    stored = {RENAMED.get(name, name): value for name, value in parameters.items()}
    if unknown := sorted(set(stored) - set(names)):
        raise ValueError(f"it has parameters {unknown} that this version does not know")
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
    if not isinstance(value, dict) or "own" in value:  # "own": a random generator, whose state is not part of a prior
        return None if isinstance(value, dict) else value
    if "mapping" in value:
        return {key: _decode(name, item) for key, item in value["mapping"].items()}
    if value["description"] not in _descriptions():
        raise ValueError(f"{name} is a {value['description']!r}, which this version does not know")
    description: Any = _descriptions()[value["description"]]
    return description(**{key: _decode(name, item) for key, item in value["fields"].items()})
