"""Members of the default to and from the header and the arrays of a file."""

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from metaprior.files import LARGEST, MAX_LEARNED, Arrays, Shape, as_struct, check_array, check_weights, grouped, require
from metaprior.likelihoods import LIKELIHOODS, make_likelihood
from metaprior.likelihoods.base import Likelihood
from metaprior.prior.columns import Columns
from metaprior.prior.features import FeatureNetwork
from metaprior.prior.fitted import FittedTerms, Prior
from metaprior.prior.label_prior import LabelPrior
from metaprior.prior.layout import Layout
from metaprior.prior.modes import CommonCurve
from metaprior.prior.process import KERNELS
from metaprior.prior.shapes import TaskScales
from metaprior.prior.terms import N_FEATURES, TERMS, Term, n_deformations
from metaprior.tasks.categories import ColumnKinds, without_column
from metaprior.tasks.scaling import MAX_SPREAD, Scaling

# Arrays of the terms of a member, by the attributes that hold them.
ARRAYS = ("theta", "points", "weights", "weights_root", "shape_root", "counts")
ARRAYS += tuple(f"curve.{name}" for name in CommonCurve._fields)
ARRAYS += tuple(f"network.{name}" for name in FeatureNetwork._fields)
SCALING = ("x_mean", "x_std", "y_mean", "y_std", "x_map", "shares")
OPTIONAL = ("shape_root", "counts")
MAX_LOG = 50.0  # of logarithms of scales in standardized units
MAX_INPUT = 1e100  # of inputs in the units of a prior, whose squares must not overflow
MOST = {"theta": 1000.0, "points": MAX_INPUT, "curve.points": MAX_INPUT, "curve.lengths": MAX_INPUT}
MAX_PARAMETER = 1000.0  # of a likelihood: cut points, and logarithms in the units of y
MAX_FACTOR = 1e30  # between scalings: even a column that one environment has as a constant differs by far less


class Calibration(msgspec.Struct, forbid_unknown_fields=True):
    """The calibration of a member that predicts labels."""

    factor: Annotated[float, Meta(ge=1e-6, le=1e6)]
    ratio: Annotated[float, Meta(ge=0.0, le=1e6)]
    shrink: Annotated[float, Meta(ge=1e-3, le=1.0)]


class StoredTerm(msgspec.Struct, forbid_unknown_fields=True):
    """A term of a prior."""

    name: Literal[tuple(TERMS)]  # type: ignore[valid-type]
    correlated: bool | UnsetType = UNSET
    learned_trend: bool | UnsetType = UNSET
    kernel: Literal[tuple(KERNELS)] | UnsetType = UNSET  # type: ignore[valid-type]


class Member(msgspec.Struct, forbid_unknown_fields=True):
    """A member, but for its arrays."""

    terms: Annotated[list[StoredTerm], Meta(max_length=len(TERMS))]
    n_inputs: Annotated[int, Meta(ge=1)]
    log_noise: Annotated[float, Meta(ge=-1000.0, le=1000.0)] | None
    separate: bool | None
    noise_only: bool = True
    exposure: Annotated[int, Meta(ge=0)] | None = None
    likelihood: Any = None
    labels: Calibration | None = None


class Known(NamedTuple):
    """What the header tells of all members."""

    input_dim: int  # columns of X
    scaling: Any  # the recorded one
    likelihood: str
    n_classes: int = 0  # that all tasks share
    kinds: ColumnKinds | None = None


def members_to_parts(members: Sequence[Any]) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Return members as JSON, and their arrays."""
    stored, arrays = [], {}
    for i, member in enumerate(members):
        description, own = member_parts(member)
        stored.append(description)
        arrays |= {f"member{i}.{name}": array for name, array in own.items()}
    return stored, arrays


def read_members(stored: Sequence[Any], arrays: Arrays, known: Known) -> tuple[Prior | LabelPrior, ...]:
    """Return members again; raise a ValueError if a part is missing or does not fit."""
    described = [as_struct(each, Member, f"members[{i}]") for i, each in enumerate(stored)]
    parts = grouped(arrays)
    return tuple(read_member(each, parts[f"member{i}"], known) for i, each in enumerate(described))


def member_parts(member: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a member as the JSON of a `Member`, and its arrays."""
    terms: FittedTerms = member.terms
    layout, found = terms.layout, {name: _attribute(terms, name) for name in ARRAYS}
    found |= {f"scaling.{name}": getattr(terms.scaling, name) for name in SCALING}
    stored: dict[str, Any] = {
        "terms": [{"name": term.name, **asdict(term)} for term in layout.terms],  # type: ignore[call-overload]
        "n_inputs": layout.columns.n_inputs,
        "log_noise": layout.log_noise,
        "separate": layout.columns.separate,
    }
    if isinstance(member, LabelPrior):
        stored["labels"] = {name: float(getattr(member, name)) for name in Calibration.__struct_fields__}
        found["class_weights"] = member.weights
    else:
        stored |= {"likelihood": member.likelihood.to_json(), "exposure": member.exposure}
        stored["noise_only"] = member.scales.noise_only
        found |= {"parameters": member.parameters, "scales.factors": member.scales.factors}
        found["scales.log_weights"] = member.scales.log_weights
    return stored, {name: np.asarray(array, np.float64) for name, array in found.items() if array is not None}


def read_member(stored: Member, arrays: Arrays, known: Known) -> Prior | LabelPrior:
    """Return a member; raise a ValueError if its arrays, or what is said of them, do not fit."""
    labels = known.likelihood == "bernoulli"
    require((stored.labels is not None) == labels, f"members must be those of likelihood {known.likelihood!r}")
    if labels:
        return _read_labels(stored, arrays, known)
    likelihood, exposure = _read_likelihood(stored, known), stored.exposure
    kinds = without_column(known.kinds, exposure)
    n_parameters = 0 if likelihood.normal else likelihood.n_parameters
    terms = _read_terms(stored, arrays, known.input_dim - (exposure is not None), known.scaling, kinds, n_parameters)
    n_scales = next(iter(np.shape(arrays.get("scales.factors", ()))), 0)
    factors, log_weights = (
        check_array(f"scales.{name}", arrays.get(f"scales.{name}"), (n_scales,), MAX_LEARNED)
        for name in ("factors", "log_weights")
    )
    _require_positive("scales.factors", factors)
    check_weights("scales.log_weights", np.exp(np.minimum(log_weights, 1.0)), None)
    require(likelihood.normal or n_scales == 1, f"members of likelihood {likelihood.name!r} must have one scale")
    shape = (likelihood.n_parameters,)
    parameters = check_array("parameters", arrays.get("parameters"), shape, MAX_PARAMETER)
    if likelihood.normal:
        size = float(np.abs(parameters - np.log(terms.scaling.y_std)).max())
        require(size <= np.log(MAX_LEARNED), "parameters must be about the size of training.scaling")
    return Prior(terms, likelihood, parameters, TaskScales(factors, log_weights, stored.noise_only), exposure)


def _read_labels(stored: Member, arrays: Arrays, known: Known) -> LabelPrior:
    terms = _read_terms(stored, arrays, known.input_dim, known.scaling, known.kinds)
    plain = terms.curve is None and terms.shape_root is None
    require(plain, "members of labels must have neither a curve nor shapes")
    weights = arrays.get("class_weights")
    n_rules = 0 if weights is None or not weights.size else 1 if known.n_classes == 2 else known.n_classes
    found = check_array("class_weights", weights, (n_rules, len(terms.weights)))
    assert stored.labels is not None
    return LabelPrior(terms, found, **msgspec.structs.asdict(stored.labels))


def _read_likelihood(stored: Member, known: Known) -> Likelihood:
    """Return the likelihood of a member, whose exposure fits."""
    own = LIKELIHOODS[known.likelihood].stored_fields
    schema = msgspec.defstruct("StoredLikelihood", [("name", str), *own.items()], forbid_unknown_fields=True)
    found = msgspec.structs.asdict(as_struct(stored.likelihood, schema, "likelihood"))
    require(found["name"] == known.likelihood, f"members must be those of likelihood {known.likelihood!r}")
    likelihood, exposure, kinds = make_likelihood(**found), stored.exposure, known.kinds
    if exposure is not None:
        fits = exposure < known.input_dim and likelihood.takes_exposure
        require(fits, "exposure must be an input column of counts")
        is_number = kinds is None or not (kinds.levels[exposure] or exposure in kinds.covariates)
        require(is_number, "exposure must be a column of numbers, and no covariate")
    return likelihood


def _read_terms(
    stored: Member,
    arrays: Arrays,
    input_dim: int,
    recorded: Any,
    kinds: ColumnKinds | None,
    n_parameters: int = 0,
) -> FittedTerms:
    columns = Columns.of(input_dim, kinds, stored.separate)
    if stored.labels is not None:  # whose covariates are inputs
        columns = Columns(input_dim if kinds is None else sum(kinds.widths), stored.separate)
    require(stored.n_inputs == columns.n_inputs, f"members must have {columns.n_inputs} inputs, as the header says")
    scaling = read_scaling(arrays, "scaling.", input_dim, recorded, kinds)  # first: it shows how many columns there are
    unknown = (0.0,) * n_parameters, (1.0,) * n_parameters  # the hyper-prior of these parameters is not kept
    layout = Layout(_terms_of(stored.terms), columns, stored.log_noise, unknown)
    shifted = columns.covariates or not layout.has("shift")
    require(bool(shifted), "members have effects of covariates, which the header does not name")
    require(len(columns.curved) or not layout.has("curved"), "members have curves of covariates that are no numbers")
    found: dict[str, Any] = dict.fromkeys(ARRAYS)
    for name, shape in _expected_shapes(layout, arrays).items():
        if name in arrays or name not in OPTIONAL:
            found[name] = check_array(name, arrays.get(name), shape, MOST.get(name, MAX_LEARNED))
    n_scales = len(layout.center) - n_parameters
    require((np.abs(found["theta"][:n_scales]) <= MAX_LOG).all(), f"theta must be between -{MAX_LOG:g} and {MAX_LOG:g}")
    if layout.has("deformation"):
        _require_positive("curve.lengths", found["curve.lengths"])
    parts = {name: [found[each] for each in ARRAYS if each.startswith(f"{name}.")] for name in ("curve", "network")}
    return FittedTerms(
        **{name: found[name] for name in ARRAYS if "." not in name},
        scaling=scaling,
        layout=layout,
        curve=CommonCurve(*parts["curve"]) if layout.has("deformation") else None,
        network=FeatureNetwork(*parts["network"]) if layout.has("features") else None,
    )


def _terms_of(stored: Sequence[StoredTerm]) -> tuple[Term, ...]:
    """Return terms in the order of theta; raise if one is there twice, or without another that it needs."""
    names = [each.name for each in stored]
    needed = {"deviation": "curve", "curve": "deviation", "deformation": "curve", "features": "curve"}
    needed |= {"bend": "shift", "curved": "shift"}
    lacking = [name for name in names if name in needed and needed[name] not in names]
    fits = "line" in names and not lacking and names == [name for name in TERMS if name in names]
    require(fits, f"members have terms {names}, which do not go together")
    found = []
    for each in stored:
        own, given = {field.name for field in fields(TERMS[each.name])}, msgspec.structs.asdict(each)  # type: ignore[arg-type]
        values = {name: value for name, value in given.items() if name != "name" and value is not UNSET}
        require(values.keys() <= own, f"members have a {each.name} with {', '.join(sorted(values.keys() - own))}")
        found.append(TERMS[each.name](**values))
    return tuple(found)


def _require_positive(name: str, values: np.ndarray) -> None:
    """Raise unless one over the square of every value is a number."""
    least = 1.0 / MAX_LEARNED
    require(bool((values >= least).all()), f"{name} must be positive, and at least {least:g}")


def _expected_shapes(layout: Layout, arrays: Arrays) -> dict[str, Shape]:
    """Return the shape of every array; the number of points is that of the arrays that are there."""
    n_points, n_curve_points, width = (
        next(iter(np.shape(arrays.get(name, ()))), 0) for name in ("points", "curve.points", "network.second")
    )
    columns, n_weights = layout.columns, layout.n_weights(n_points)
    d, n_line = columns.n_inputs, 1 + columns.n_inputs
    shapes: dict[str, Shape] = {
        "theta": (len(layout.center),),
        "points": (n_points, d),
        "weights": (n_weights,),
        "weights_root": (n_weights, n_weights),
        "counts": (None,),
    }
    n_curve = n_deformations(columns) if layout.has("deformation") else 0
    if layout.has("curve"):
        n_functions = n_line + n_curve + n_points
        shapes["shape_root"] = (n_functions, n_functions)
    if n_curve:
        lengths = (d if columns.ard else 1,)
        sizes = ((n_line,), (n_curve_points,), (n_curve_points, d), lengths)
        shapes |= {f"curve.{name}": size for name, size in zip(CommonCurve._fields, sizes, strict=True)}
    if layout.has("features"):
        hidden = max(width, 1)
        sizes = ((d, hidden), (hidden,), (hidden, hidden), (hidden,), (hidden, N_FEATURES))
        shapes |= {f"network.{name}": size for name, size in zip(FeatureNetwork._fields, sizes, strict=True)}
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
