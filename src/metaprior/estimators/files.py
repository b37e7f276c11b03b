"""Saved priors: the header of their files, saving and loading. Nothing in a file is executed.

A file has named arrays and a JSON header, which is checked before anything is built from it, and before modules are
imported that take long. What is stored of a model, `metaprior.prior.files` and `metaprior.wfem.files` say.
"""

import hashlib
import json
import os
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from metaprior.checks import Argument, Message, check_bool
from metaprior.conventions import own_float_errors
from metaprior.estimators.seen_tasks import MAX_SLOW
from metaprior.files import (
    CHECKPOINT,
    LARGEST,
    Arrays,
    InvalidFile,
    as_struct,
    check_array,
    check_weights,
    describe,
    grouped,
    nan_to_none,
    read_json,
    read_tensors,
    reading,
    require,
    write_tensors,
)
from metaprior.tasks.categories import MAX_LEVELS
from metaprior.tasks.splits import ContextRule

ESTIMATORS = {  # what a file may be of, and the module of each
    "MetaGPRegressor": "metaprior.estimators.regressor",
    "MetaGPClassifier": "metaprior.estimators.classifier",
    "WFEMRegressor": "metaprior.wfem.estimators",
    "WFEMClassifier": "metaprior.wfem.estimators",
}
ARRAYS = ("environment_weights_", "feature_range_")  # attributes that all estimators have
SALT_BYTES = 16

Count = Annotated[int, Meta(ge=0, le=2**53)]
Weight = Annotated[float, Meta(ge=0.0, le=1.0 + 1e-6)]
Positive = Annotated[float, Meta(gt=0.0)]
Scale = Annotated[float, Meta(ge=0.0)]
Size = Annotated[int, Meta(ge=-(10**6), le=10**6)]  # of layers, points and the like
Label = str | bool | float | Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Scores = list[float | None]  # None: NaN
Gain = tuple[float | None, float | None]  # with its standard error


class Part(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A part of the header; fields with defaults may be missing."""


class Described(Part):
    """A parameter that is no number, text or list of these: one of three."""

    own: str | UnsetType = UNSET  # the signature of a part of the user's own
    mapping: "dict[str, Parameter] | UnsetType" = UNSET
    description: str | UnsetType = UNSET  # the class of an object with these fields
    fields: "dict[str, str | bool | float | Size | Layers | Described | None]" = {}


Layers = Annotated[list[str | bool | float | Size | Described | None], Meta(max_length=64)]
Parameter = Label | list[Label | Described | None] | Described | None


class Fitted(Part):
    """Fitted attributes of the estimator."""

    alpha_: Annotated[float, Meta(ge=-1e-6, le=1.0 + 1e-6)]
    family_: str
    classes_: Annotated[list[Label], Meta(min_length=2, max_length=100)] | UnsetType | None = UNSET  # of labels
    temperature_: Positive | UnsetType = UNSET  # this and the next ones: of networks
    dtype_: Literal["float32", "float64"] | UnsetType = UNSET
    best_step_: Count | UnsetType = UNSET


class Report(Part, omit_defaults=False):
    """A `TransferReport`."""

    names: Annotated[list[str], Meta(min_length=1)]
    target: str
    n_target_tasks: Count
    environment_weights: Annotated[list[list[Weight]], Meta(min_length=1)]
    temperature: list[Scale]
    prior_std: list[Scale]
    weight: list[Weight]
    score: Scores | None = None
    standard_error: Scores | None = None
    gain: Scores | None = None
    gain_standard_error: Scores | None = None
    source_gain: Gain | None = None
    n_source_tasks: Count | None = None
    environment_effect: list[bool] | None = None
    families: dict[str, Weight] | None = None
    outputs: Literal["readings", "labels", "counts", "ranks"] = "readings"
    certificate: tuple[Count, Count, Count] | None = None
    free_energy: Scores | None = None
    plain_gain: Gain | None = None
    covariates: dict[str, Weight] | None = None
    hint: str = ""

    def __post_init__(self) -> None:
        names, weights = self.names, self.weight
        require(self.target in names, "must have a target that is one of its names")
        require({len(row) for row in self.environment_weights} == {len(names)}, "must have weights of all its names")
        require(abs(sum(weights) - 1.0) <= 1e-6, "must have weights of sum one")
        found = {name: getattr(self, name) for name in self.__struct_fields__ if name != "names"}
        wrong = [name for name, each in found.items() if isinstance(each, list) and len(each) != len(weights)]
        require(not wrong, f"must have as many items in {', '.join(wrong)} as weights, {len(weights)}")
        helped, tied, n_tasks = self.certificate or (0, 0, 1)
        require(0 < n_tasks >= helped + tied, "must have a certificate of numbers of tasks helped, tied and in all")


class Counts(Part):
    """Numbers of tasks and samples of an environment, and of those that the fit has used, if these are fewer."""

    tasks: Count
    samples: Count
    used_tasks: Count | UnsetType = UNSET
    used_samples: Count | UnsetType = UNSET


class RecordedScaling(Part):
    """The scaling of the first inputs and of the heaviest member."""

    x_mean: list[float]
    x_std: list[Positive]
    y_mean: float
    y_std: Positive


class HeldOut(Part, omit_defaults=False):
    """Scores on held-out tasks, of the prior and of what it was compared with."""

    tasks: Count
    context: Count
    overall: dict[str, dict[str, float | None]]
    which: Literal["random", "first"] = "random"
    gains: dict[str, dict[str, float | None]] = {}

    def __post_init__(self) -> None:
        from metaprior.metrics import LOSSES, MEANINGS  # scikit-learn takes a second, and most files do not need it

        names = self.overall.get("metaprior", {"": None}).keys()
        known = {name.removesuffix("_se") for name in names} <= MEANINGS.keys()
        same = known and all(score.keys() == names for score in self.overall.values())
        require(same, "must have overall the same known scores of metaprior and of all others")
        losses = {f"{name}{end}" for name in LOSSES if name in names for end in ("", "_se")}
        fits = self.gains.keys() <= self.overall.keys() and all(gain.keys() == losses for gain in self.gains.values())
        require(fits, "must have gains in the losses of models in overall")


class TableColumns(Part):
    """The columns of the table that the tasks came from."""

    task: list[str]
    x: list[str]
    y: str | None
    environment: str | None
    covariates: list[str] | UnsetType = UNSET
    categorical: list[str] | UnsetType = UNSET


class Training(Part):
    """What `metaprior info` tells about the fit: `training_`."""

    environments: dict[str, Counts]
    target: str
    scaling: RecordedScaling
    versions: dict[str, str]
    columns: TableColumns | None = None
    csv: dict[Literal["sep", "decimal", "encoding"], str | None] | None = None
    data: str | None = None
    covariates: dict[str, Weight] | UnsetType = UNSET
    held_out: HeldOut | None = None
    parameters: Count | UnsetType = UNSET
    particles: Count | UnsetType = UNSET
    final_loss: float | None = None
    particle_spread: float | None = None
    spread: float | None = None
    factor: float | None = None
    ratio: float | None = None
    shrink: float | None = None

    def __post_init__(self) -> None:
        require(self.target in self.environments, "must have a target that is one of its environments")


class Model(Part):
    """Averaged members; but for those of the prior itself, names of their arrays begin with that of the model."""

    n_members: Annotated[int, Meta(ge=1, le=10_000)]
    spread: Annotated[float, Meta(ge=1e-6, le=1e6)]
    members: list[dict[str, Any]]  # as what reads their arrays has described them


class StoredConformal(Part):
    """What conformal intervals are made of: fits without each fold, and the rule of contexts."""

    n_tasks: Annotated[int, Meta(ge=2)]
    context: tuple[Literal["random", "first"], Count | None]
    folds: Annotated[list[Model], Meta(min_length=2, max_length=1000)]


class Recognized(Part):
    """The tasks of the fit that a file recognizes."""

    tasks: Annotated[int, Meta(ge=0, le=MAX_SLOW)]
    of: Count
    salt: Annotated[str, Meta(pattern=rf"\A[0-9a-f]{{{2 * SALT_BYTES}}}\Z")]


class Columns(Part):
    """Levels of the columns of X that are categories, and covariates."""

    levels: list[Annotated[list[Label], Meta(min_length=2, max_length=MAX_LEVELS)] | None]
    covariates: list[Count]

    def __post_init__(self) -> None:
        different = all(len(set(each)) == len(each) for each in self.levels if each is not None)
        require(different, "must have levels that are different within a column")
        found, n = self.covariates, len(self.levels)
        fits = sorted(set(found)) == found and len(found) < n and max(found, default=0) < n
        require(fits, "must have covariates that are numbers of input columns, the smallest first, and not all of them")


class Header(Model):
    """All that a file holds beside arrays."""

    kind: str
    parameters: dict[str, Parameter]
    fitted: Fitted
    input_dim: Annotated[int, Meta(ge=1, le=2**31)]
    report: Report
    training: Training
    feature_names: list[str] | None = None
    columns: Columns | None = None
    recognized: Recognized | None = None
    conformal: StoredConformal | None = None
    baselines: dict[str, Model] = {}

    def __post_init__(self) -> None:
        n, names = self.input_dim, self.feature_names
        require(names is None or len(names) == n, f"must have {n} feature_names, one of each input column")
        require(self.columns is None or len(self.columns.levels) == n, f"must have levels of {n} input columns")


class FileFormat(NamedTuple):
    """What files hold of one class of estimators, beyond what all of them do; the class has it as `_file_format`."""

    model_parts: Callable[[Any], tuple[list[dict[str, Any]], Arrays]]  # of an ensemble: its members as JSON, and arrays
    read_model: Callable[[Any, Model, Header, Arrays], Any]  # the ensemble again, given the estimator
    arrays: tuple[str, ...] = ()  # fitted attributes
    described: Mapping[str, type] = MappingProxyType({})  # classes of parameters, which are stored by their fields


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
    header, arrays = read_prior(path)
    _check_kind(header.kind, f"{path} holds")
    _check_custom(header.parameters, custom)
    with reading(path):
        return _restored(header, arrays, custom)


def read_prior(path: str | os.PathLike) -> tuple[Header, Arrays]:
    """Read the header and the arrays of a prior, checked as far as they are the same for all estimators."""
    header, arrays = read_tensors(path)
    if header.get("kind") == CHECKPOINT:
        raise InvalidFile(
            f"{path} is the checkpoint of an interrupted fit, not a prior. Re-run the same fit to resume it."
        )
    with reading(path):
        return _checked(header, arrays), arrays


def write_prior(meta: Any, path: str | os.PathLike, private: Any = False) -> None:
    """Write a fitted estimator to a file; raise InvalidFile, and write nothing, if `load` would refuse it."""
    check_bool("private", private)
    if private and meta.model_.conformal is not None:
        held = " cannot hide what conformal intervals need: fits without each target task, or each few. Comparing them "
        held += "with the fit of all tells the averages of these tasks. Fit again without "
        raise ValueError(Message(Argument("private", True), held, Argument("conformal", True), "."))
    _check_kind(type(meta).__name__, f"{path} is not written: it would hold")
    header, arrays = _prior_parts(meta)
    if private:
        _leave_out(header, arrays, [bool(each) for each in meta.column_levels_])
    else:
        _add_tasks(meta, header, arrays)
    with reading(path, "is not written, because it could not be loaded"):
        checked, parameters = _checked(read_json(json.dumps(header, allow_nan=False)), arrays), meta._saved_parameters()
        _restored(checked, arrays, {name: parameters[name] for name in _custom_parts(checked.parameters)})
    write_tensors(path, msgspec.to_builtins(checked), dict(arrays))


def _prior_parts(meta: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the header and the arrays of a fitted estimator, but for what tells of the tasks."""
    form: FileFormat = meta._file_format
    fitted = {name: getattr(meta, name) for name in Fitted.__struct_fields__ if hasattr(meta, name)}
    if fitted.get("classes_") is not None:
        fitted["classes_"] = meta.classes_.tolist()
    stored, arrays = _model_parts(form, meta.model_)
    header = {
        **stored,
        "kind": type(meta).__name__,
        "parameters": {name: _encode(value, form.described) for name, value in meta._saved_parameters().items()},
        "fitted": fitted,
        "input_dim": meta.model_.input_dim,
        "report": nan_to_none(meta.report_.to_json()),
        # Without the time that the fit took: equal fits make equal files.
        "training": nan_to_none({name: value for name, value in meta.training_.items() if name != "seconds"}),
        "baselines": {},
    }
    for i, (name, model) in enumerate(meta.baselines_.items()):
        header["baselines"][name], own = _model_parts(form, model, f"baseline{i}.")
        arrays |= own
    if (conformal := meta.model_.conformal) is not None:
        folds = []
        for i, fold in enumerate(conformal.folds):
            stored, own = _model_parts(form, fold.model, f"fold{i}.")
            folds.append(stored)
            arrays |= {**own, f"fold{i}.scores": fold.scores, f"fold{i}.score_weights": fold.weights}
        header["conformal"] = {"n_tasks": conformal.n_tasks, "context": list(conformal.rule), "folds": folds}
    if hasattr(meta, "feature_names_in_"):
        header["feature_names"] = list(meta.feature_names_in_)
    if meta.features_.kinds is not None:
        header["columns"] = {"levels": list(meta.column_levels_), "covariates": list(meta.covariates_)}
    return header, arrays | {name: getattr(meta, name) for name in (*ARRAYS, *form.arrays)}


def _add_tasks(meta: Any, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Add that by which tasks of the fit are recognized. The salt follows from all else: equal fits, equal files."""
    salt = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        salt.update(np.ascontiguousarray(arrays[name]).tobytes())
    saved = meta._saved_tasks(salt.digest()[:SALT_BYTES], MAX_SLOW)
    if saved is not None:
        header["recognized"] = {"tasks": len(saved.digests), "of": saved.n_tasks, "salt": saved.salt.hex()}
        arrays["task_digests"] = saved.digests


def _leave_out(header: dict[str, Any], arrays: dict[str, np.ndarray], has_levels: list[bool]) -> None:
    """Leave out what only `private=True` does: the name of the table, and the exact ranges of columns of numbers."""
    header["training"]["data"] = None
    lower, upper = arrays["feature_range_"]
    with np.errstate(all="ignore"):  # of ranges that overflow
        # The largest 1, 2 or 5 times a power of ten that is at most a tenth of the width, one where it is zero.
        tenth = np.where(upper > lower, upper - lower, 10.0) / 10.0
        power = 10.0 ** np.floor(np.log10(tenth))
        step = power * np.array([1.0, 2.0, 5.0])[np.searchsorted([2.0, 5.0], tenth / power, side="right")]
        coarse = np.stack([np.floor(lower / step) * step, np.ceil(upper / step) * step])
    exact = np.zeros(len(step), bool) | (has_levels or False)
    arrays["feature_range_"] = np.where(exact | ~np.isfinite(coarse).all(axis=0), [lower, upper], coarse)


def _checked(raw: dict[str, Any], arrays: Arrays) -> Header:
    """Return the header; raise ValueError unless header and arrays are those of a prior."""
    header = as_struct(raw, Header)
    check_weights("environment_weights_", arrays.get("environment_weights_"), len(header.report.names))
    shape = (2, header.input_dim)
    lower, upper = check_array("feature_range_", arrays.get("feature_range_"), shape, most=LARGEST)
    require(not (lower > upper).any(), "feature_range_ must have the smaller values first")
    digests, known = arrays.get("task_digests"), header.recognized
    require((digests is None) == (known is None), "task_digests and recognized must both be there, or neither")
    if digests is not None and known is not None:
        fits = digests.dtype == np.uint64 and digests.shape == (known.tasks,) and known.tasks <= known.of
        expected = f"uint64[{known.tasks}], of {known.of} tasks; the file has {describe(digests)}"
        require(fits, f"task_digests must be {expected}")
        require((digests[1:] > digests[:-1]).all(), "task_digests must be different numbers, the smallest first")
    return header


def _check_kind(kind: str, holds: str) -> None:
    """Raise InvalidFile if this version has no estimator of the name."""
    if kind not in ESTIMATORS:
        raise InvalidFile(f"{holds} a prior of kind {reprlib.repr(kind)}, which this version does not know.")


def _restored(header: Header, arrays: Arrays, custom: dict[str, Any]) -> Any:
    """Return the estimator that checked content describes, with the custom parts that it lacks."""
    estimator = getattr(import_module(ESTIMATORS[header.kind]), header.kind)
    from metaprior.estimators.seen_tasks import SavedTasks
    from metaprior.search.report import TransferReport
    from metaprior.tasks.labels import as_labels

    form: FileFormat = estimator._file_format
    unknown = sorted(header.parameters.keys() - set(estimator._get_param_names()))
    require(not unknown, f"it has parameters {unknown} that this version does not know")
    given, own = header.parameters, _custom_parts(header.parameters)
    decoded = {name: _decode(name, value, form.described) for name, value in given.items() if name not in own}
    meta = estimator(**decoded, **{name: custom[name] for name in own})
    meta._check_parameters()
    meta.likelihood_ = meta._kind
    for name, value in msgspec.to_builtins(header.fitted).items():
        setattr(meta, name, value)
    if meta.likelihood_ == "bernoulli":
        classes = header.fitted.classes_
        meta.classes_ = as_labels(classes, "classes_") if isinstance(classes, list) else None
    columns = header.columns
    levels = () if columns is None else columns.levels
    meta.column_levels_ = tuple(None if each is None else tuple(each) for each in levels)
    meta.covariates_ = () if columns is None else tuple(columns.covariates)
    meta.n_features_in_ = header.input_dim
    for name in (*ARRAYS, *form.arrays):
        setattr(meta, name, arrays[name])
    parts = grouped(arrays)
    meta.model_ = _read_model(meta, header, header, arrays)
    if header.conformal is not None:
        meta.model_ = meta.model_._replace(conformal=_read_conformal(meta, header.conformal, header, parts))
    baselines = enumerate(header.baselines.items())
    meta.baselines_ = {name: _read_model(meta, each, header, parts[f"baseline{i}"]) for i, (name, each) in baselines}
    meta.report_ = TransferReport.from_json(msgspec.to_builtins(header.report))
    meta.parameters_ = meta.get_params(deep=False)
    if header.recognized is not None:
        known = header.recognized
        meta._tasks = SavedTasks(known.of, bytes.fromhex(known.salt), arrays["task_digests"])
    if header.feature_names is not None:
        meta.feature_names_in_ = np.array(header.feature_names, dtype=object)
    meta.family_weights_ = meta.report_.families or {meta.family_: 1.0}
    meta.training_ = msgspec.to_builtins(header.training)
    meta.covariate_weights_ = meta.training_.get("covariates", {})
    return meta


def _model_parts(form: FileFormat, model: Any, prefix: str = "") -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what is stored of averaged members, as JSON and as arrays."""
    members, arrays = form.model_parts(model._replace(conformal=None))
    stored = {"n_members": len(model.members), "spread": float(model.spread), "members": members}
    return stored, {f"{prefix}{name}": array for name, array in arrays.items()}


def _read_model(meta: Any, stored: Model, header: Header, arrays: Arrays) -> Any:
    return meta._file_format.read_model(meta, stored, header, arrays)._replace(spread=stored.spread)


def _read_conformal(meta: Any, stored: StoredConformal, header: Header, parts: Mapping[str, Arrays]) -> Any:
    """Return what conformal intervals are made of."""
    from metaprior.predict.conformal import Conformal, Fold

    folds = []
    for i, each in enumerate(stored.folds):
        own, name = parts[f"fold{i}"], f"fold{i}.scores"
        scores = check_array(name, own.get("scores"), (None,), LARGEST)
        weights = check_array(f"fold{i}.score_weights", own.get("score_weights"), (len(scores),))
        fits = len(scores) and scores[0] >= 0 and (np.diff(scores) >= 0).all() and (weights > 0).all()
        require(fits, f"{name} must ascend from zero or more, and have positive weights")
        folds.append(Fold(_read_model(meta, each, header, own), scores, weights))
    n_tasks = sum(float(fold.weights.sum()) for fold in folds)
    fits = abs(n_tasks - stored.n_tasks) <= 1e-6 * stored.n_tasks
    require(fits, f"conformal.n_tasks must be the sum of all score_weights, {n_tasks:g}")
    return Conformal(tuple(folds), stored.n_tasks, ContextRule(*stored.context))


def _encode(value: Any, described: Mapping[str, type]) -> Any:
    """Encode a constructor parameter as JSON; of a part of the user's own only the signature is stored."""
    if is_dataclass(value) and described.get(type(value).__name__) is type(value):
        encoded = {field.name: _encode(getattr(value, field.name), described) for field in fields(value)}
        return {"description": type(value).__name__, "fields": encoded}
    if isinstance(value, dict):
        return {"mapping": {str(key): _encode(item, described) for key, item in value.items()}}
    if isinstance(value, tuple | list | np.ndarray):
        return [_encode(item, described) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.random.RandomState):  # whose state is not part of a prior
        return None
    return {"own": _signature(value)}


def _decode(name: str, value: Any, described: Mapping[str, type]) -> Any:
    """Decode a checked parameter."""
    if isinstance(value, list):
        return tuple(_decode(name, item, described) for item in value)
    if not isinstance(value, Described):
        return value
    if isinstance(value.mapping, dict):
        return {key: _decode(name, item, described) for key, item in value.mapping.items()}
    kind: Any = described.get(str(value.description))
    require(kind, f"{name} is a {value.description!r}, which this version does not know")
    return kind(**{key: _decode(name, item, described) for key, item in value.fields.items()})


def _custom_parts(parameters: dict[str, Any]) -> dict[str, str]:
    """Return the signatures of parts of the user's own, which the file does not describe."""
    return {name: part.own for name, part in parameters.items() if isinstance(getattr(part, "own", None), str)}


def _check_custom(parameters: dict[str, Any], custom: dict[str, Any]) -> None:
    """Raise unless exactly the custom parts that the file lacks are given."""
    needed = _custom_parts(parameters)
    given = {name: value for name, value in custom.items() if value is not None}
    if lacking := {name: part for name, part in needed.items() if name not in given}:
        parts = " and ".join(f"a custom {name}, {part}" for name, part in lacking.items())
        passed = ", ".join(f"{name}=..." for name in lacking)
        raise ValueError(f"This prior was fitted with {parts}: pass load(path, {passed}).")
    for name, value in given.items():
        expected = needed.get(name)
        if expected is None:
            raise ValueError(f"{name} is stored in the file: this prior was not fitted with a custom {name}.")
        if _signature(value) != expected:
            raise ValueError(f"{name} must be {expected}, as this prior was fitted with; got {_signature(value)}.")


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
