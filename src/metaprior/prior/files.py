"""Members of the default to and from the header and the arrays of a file."""

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from metaprior.files import LARGEST, MAX_LEARNED, Arrays, Shape, as_struct, check_array, check_weights, grouped, require
from metaprior.predict.ensemble import Ensemble
from metaprior.predict.response_mixtures import make_response
from metaprior.prior.features import FeatureNetwork
from metaprior.prior.hierarchical_prior import HierarchicalPrior
from metaprior.prior.label_prior import LabelPrior
from metaprior.prior.layout import Layout, Parts
from metaprior.prior.modes import CommonCurve
from metaprior.prior.response_prior import ResponsePrior
from metaprior.prior.task_scales import TaskScales
from metaprior.tasks.column_kinds import ColumnKinds, without_column
from metaprior.tasks.outcome_rules import MAX_LEVELS
from metaprior.tasks.scaling import MAX_SPREAD, Scaling

# Arrays of the process of a member, by the attributes that hold them.
PROCESS = ("theta", "points", "weights", "weights_root", "shape_root", "counts", "scales.factors", "scales.log_weights")
PROCESS += tuple(f"curve.{name}" for name in ("line", "weights", "points", "lengths"))
PROCESS += tuple(f"network.{name}" for name in FeatureNetwork._fields)
SCALING = ("x_mean", "x_std", "y_mean", "y_std", "x_map", "shares")
OPTIONAL, LEVELS = ("shape_root", "counts"), ("n_levels", "lowest")
MAX_LOG = 50.0  # of logarithms of scales in standardized units
MAX_INPUT = 1e100  # of inputs in the units of a prior, whose squares must not overflow
MOST = {"theta": MAX_LOG, "points": MAX_INPUT, "curve.points": MAX_INPUT, "curve.lengths": MAX_INPUT}
MAX_PARAMETER = 1000.0  # of a likelihood: cut points, and logarithms in the units of y
MAX_FACTOR = 1e30  # between scalings: even a column that one environment has as a constant differs by far less


class Calibration(msgspec.Struct, forbid_unknown_fields=True):
    """The calibration of a member that predicts labels."""

    factor: Annotated[float, Meta(ge=1e-6, le=1e6)]
    ratio: Annotated[float, Meta(ge=0.0, le=1e6)]
    shrink: Annotated[float, Meta(ge=1e-3, le=1.0)]


class Observed(msgspec.Struct, forbid_unknown_fields=True):
    """The likelihood of a member that predicts counts, ranks or readings with outliers."""

    name: str
    exposure: Annotated[int, Meta(ge=0)] | None
    n_levels: Annotated[int, Meta(ge=2, le=MAX_LEVELS)] | UnsetType = UNSET
    lowest: Annotated[int, Meta(ge=-(2**31), le=2**31)] | UnsetType = UNSET


class Member(msgspec.Struct, forbid_unknown_fields=True):
    """A member, but for its arrays."""

    parts: dict[str, bool]
    input_dim: Annotated[int, Meta(ge=1)]
    log_noise: Annotated[float, Meta(ge=-1000.0, le=1000.0)] | None
    separate: bool | None
    learned_trend: bool
    noise_variance: Annotated[float, Meta(ge=1e-300, le=MAX_LEARNED)]
    noise_only: bool
    labels: Calibration | None = None
    response: Observed | None = None


class Known(NamedTuple):
    """What the header tells of all members."""

    input_dim: int  # columns of X
    scaling: Any  # the recorded one
    likelihood: str
    n_classes: int = 0  # that all tasks share
    kinds: ColumnKinds | None = None


def model_parts(model: Any) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Return the members of a model of the default as JSON, and its arrays."""
    members, arrays = [], {"member_weights": np.asarray(model.weights, np.float64)}
    for i, member in enumerate(model.members):
        stored, own = member_parts(member)
        members.append(stored)
        arrays |= {f"member{i}.{name}": array for name, array in own.items()}
    return members, arrays


def read_model(stored: Sequence[Any], arrays: Arrays, known: Known) -> Ensemble:
    """Return a model again; raise a ValueError if a part is missing or does not fit."""
    weights = check_weights("member_weights", arrays.get("member_weights"), len(stored))
    described = [as_struct(each, Member, f"members[{i}]") for i, each in enumerate(stored)]
    parts = grouped(arrays)
    return Ensemble(tuple(read_member(each, parts[f"member{i}"], known) for i, each in enumerate(described)), weights)


def member_parts(member: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a member as the JSON of a `Member`, and its arrays."""
    process = getattr(member, "process", member)
    layout, found = process.layout, {name: _attribute(process, name) for name in PROCESS}
    found |= {f"scaling.{name}": getattr(process.scaling, name) for name in SCALING}
    stored = {
        "parts": asdict(layout.parts),
        **{name: getattr(layout, name) for name in ("input_dim", "log_noise", "separate", "learned_trend")},
        "noise_variance": process.noise_variance,
        "noise_only": process.scales.noise_only,
    }
    if hasattr(member, "shrink"):
        stored["labels"] = {name: float(getattr(member, name)) for name in Calibration.__struct_fields__}
        found["class_weights"] = member.weights
    if hasattr(member, "response"):
        levels = {name: getattr(member.response, name) for name in LEVELS if hasattr(member.response, name)}
        stored["response"] = {"name": member.response.name, "exposure": member.exposure, **levels}
        found["response_parameters"] = member.parameters
    return stored, {name: np.asarray(array, np.float64) for name, array in found.items() if array is not None}


def read_member(stored: Member, arrays: Arrays, known: Known) -> HierarchicalPrior | LabelPrior | ResponsePrior:
    """Return a member; raise a ValueError if its arrays, or what is said of them, do not fit."""
    input_dim, recorded, likelihood, n_classes, kinds = known
    expected = None if likelihood in ("gaussian", "bernoulli") else likelihood
    fits = (stored.labels is not None) == (likelihood == "bernoulli")
    fits &= (stored.response and stored.response.name) == expected
    require(fits, f"members must be those of likelihood {likelihood!r}")
    response, exposure = (None, None) if stored.response is None else _read_response(stored.response, input_dim, kinds)
    kinds = without_column(kinds, exposure)
    process = _read_process(stored, arrays, input_dim - (exposure is not None), recorded, kinds)
    if likelihood == "gaussian":
        return process
    require(len(process.scales.factors) == 1, f"members of likelihood {likelihood!r} must have one scale")
    if response is not None:
        shape = (response.n_parameters,)
        found = check_array("response_parameters", arrays.get("response_parameters"), shape, MAX_PARAMETER)
        return ResponsePrior(process, response, found, exposure)
    plain = process.curve is None and process.shape_root is None
    require(plain, "members of labels must have neither a curve nor shapes")
    weights = arrays.get("class_weights")
    n_rules = 0 if weights is None or not weights.size else 1 if n_classes == 2 else n_classes
    found = check_array("class_weights", weights, (n_rules, len(process.weights)))
    assert stored.labels is not None
    return LabelPrior(process, found, **msgspec.structs.asdict(stored.labels))


def _read_response(stored: Observed, input_dim: int, kinds: ColumnKinds | None) -> tuple[Any, int | None]:
    """Return what is observed of the latent function, and the column of the exposure."""
    levels = {name: getattr(stored, name) for name in LEVELS if getattr(stored, name) is not UNSET}
    require(len(levels) == len(LEVELS) * (stored.name == "ordinal"), "members must have levels if they predict ranks")
    response, exposure = make_response(stored.name, **levels), stored.exposure
    if exposure is not None:
        require(exposure < input_dim and response.takes_exposure, "response.exposure must be an input column of counts")
        is_number = kinds is None or not (kinds.levels[exposure] or exposure in kinds.covariates)
        require(is_number, "response.exposure must be a column of numbers, and no covariate")
    return response, exposure


def _read_process(
    stored: Member, arrays: Arrays, input_dim: int, recorded: Any, kinds: ColumnKinds | None
) -> HierarchicalPrior:
    widths = None if kinds is None or stored.labels else kinds.input_widths  # covariates of labels are inputs
    columns = input_dim if kinds is None else sum(kinds.widths if widths is None else widths)
    require(stored.input_dim == columns, f"members must have {columns} input columns, as the header says")
    scaling = read_scaling(arrays, "scaling.", input_dim, recorded, kinds)  # first: it shows how many columns there are
    unknown = sorted(stored.parts.keys() - {part.name for part in fields(Parts)})
    require(not unknown, f"members have parts {unknown} that this version does not know")
    parts, covariates = Parts(**stored.parts), () if kinds is None or stored.labels else kinds.covariate_widths
    kept = stored.log_noise, stored.separate, stored.learned_trend
    layout = Layout(parts, columns, *kept, widths, covariates)
    named = (covariates or not (parts.covariates or parts.bend)) and (len(layout.curved) or not parts.curved)
    require(named, "members have effects of covariates, which the header does not name")
    found: dict[str, Any] = dict.fromkeys(PROCESS)
    for name, shape in _expected_shapes(layout, arrays).items():
        if name in arrays or name not in OPTIONAL:
            found[name] = check_array(name, arrays.get(name), shape, MOST.get(name, MAX_LEARNED))
    for name in ("scales.factors", "curve.lengths"):  # one over the square must be a number
        least = 1.0 / MAX_LEARNED
        require(found[name] is None or (found[name] >= least).all(), f"{name} must be positive, and at least {least:g}")
    check_weights("scales.log_weights", np.exp(np.minimum(found["scales.log_weights"], 1.0)), None)

    def values(prefix: str) -> list[Any]:
        return [found[name] for name in PROCESS if name.startswith(prefix)]

    return HierarchicalPrior(
        **{name: found[name] for name in PROCESS if "." not in name},
        scaling=scaling,
        layout=layout,
        noise_variance=stored.noise_variance,
        scales=TaskScales(found["scales.factors"], found["scales.log_weights"], stored.noise_only),
        curve=CommonCurve(*values("curve.")) if parts.curve else None,
        network=FeatureNetwork(*values("network.")) if parts.features else None,
    )


def _expected_shapes(layout: Any, arrays: Arrays) -> dict[str, Shape]:
    """Return the shape of every array; the numbers of points and of scales are those of the arrays that are there."""
    n_points, n_scales, n_curve_points, width = (
        next(iter(np.shape(arrays.get(name, ()))), 0)
        for name in ("points", "scales.factors", "curve.points", "network.second")
    )
    d, n_line, n_weights = layout.input_dim, 1 + layout.input_dim, layout.n_weights(n_points)
    n_functions = n_line + layout.n_curve + n_points
    shapes: dict[str, Shape] = {
        "theta": (len(layout.center),),
        "points": (n_points, d),
        "weights": (n_weights,),
        "weights_root": (n_weights, n_weights),
        "scales.factors": (n_scales,),
        "scales.log_weights": (n_scales,),
        "counts": (None,),
    }
    if layout.parts.smooth:
        shapes["shape_root"] = (n_functions, n_functions)
    if layout.parts.curve:
        lengths = d if layout.ard else 1
        of_curve = {
            "line": (n_line,),
            "weights": (n_curve_points,),
            "points": (n_curve_points, d),
            "lengths": (lengths,),
        }
        shapes |= {f"curve.{name}": shape for name, shape in of_curve.items()}
    if layout.parts.features:
        hidden, outputs = max(width, 1), layout.n_features
        sizes = ((d, hidden), (hidden,), (hidden, hidden), (hidden,), (hidden, outputs))
        names = (name for name in PROCESS if name.startswith("network."))
        shapes |= dict(zip(names, sizes, strict=True))
    return shapes


def _attribute(value: Any, path: str) -> Any:
    """Return an attribute of attributes, None if there is none on the way."""
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return value


def read_scaling(
    arrays: Arrays, prefix: str, input_dim: int, recorded: Any, kinds: ColumnKinds | None = None
) -> Scaling:
    """Return the scaling of as many inputs; raise if an array is missing, has numbers that cannot be or far others.

    `recorded` is what the header says of it: far others than those of the heaviest member would overflow in averages.
    """
    shapes = {"x_mean": (input_dim,), "x_std": (input_dim,), "y_mean": (), "y_std": ()}
    found = {}
    for name, shape in shapes.items():
        most = MAX_SPREAD if name == "y_std" else LARGEST
        found[name] = check_array(f"{prefix}{name}", arrays.get(f"{prefix}{name}"), shape, most)
    positive = (found["x_std"] > 0).all() and found["y_std"] >= 1.0 / MAX_SPREAD
    require(bool(positive), f"{prefix}x_std and {prefix}y_std must be positive")
    width = input_dim if kinds is None else sum(kinds.widths)
    if f"{prefix}x_map" in arrays:
        found["x_map"] = check_array(f"{prefix}x_map", arrays[f"{prefix}x_map"], (width, width), MAX_SPREAD)
    if kinds is not None:
        found["shares"] = check_array(f"{prefix}shares", arrays.get(f"{prefix}shares"), (width,), 1.0 + 1e-6)
    for column in "xy":
        mean, std = f"{column}_mean", f"{column}_std"
        known_mean, known_std = (np.atleast_1d(getattr(recorded, name)) for name in (mean, std))
        n = min(len(known_mean), len(known_std), found[mean].size)
        known_mean, known_std = known_mean[:n], known_std[:n]
        means, stds = np.atleast_1d(found[mean])[:n], np.atleast_1d(found[std])[:n]
        with np.errstate(over="ignore"):
            alike = np.maximum(stds / known_std, known_std / stds) <= MAX_FACTOR
            alike &= np.abs(means / MAX_FACTOR - known_mean / MAX_FACTOR) <= known_std + np.abs(known_mean)
        require(alike.all(), f"{prefix}{mean} and {prefix}{std} must have the size that training.scaling says")
    return Scaling(**found, kinds=kinds)
