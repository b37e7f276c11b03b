"""Hierarchical priors as named arrays and plain values, for files."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from metaprior.prior.columns import Columns
from metaprior.prior.features import FeatureNetwork
from metaprior.prior.fitted import FittedTerms, Prior
from metaprior.prior.layout import Layout
from metaprior.prior.modes import CommonCurve
from metaprior.prior.process import KERNELS
from metaprior.prior.task_scales import TaskScales
from metaprior.prior.terms import N_FEATURES, TERMS, Term, n_deformations
from metaprior.schema import (
    MAX_INPUT,
    MAX_LEARNED,
    MAX_LOG,
    Mismatch,
    Shape,
    anything,
    boolean,
    check_array,
    check_weights,
    choice,
    integer,
    number,
    optional,
    record,
    sequence,
)
from metaprior.tasks.column_kinds import ColumnKinds
from metaprior.tasks.scaling_arrays import read_scaling

ARRAYS = ("theta", "points", "weights", "weights_root")
OPTIONAL_ARRAYS = ("shape_root", "counts")
SCALES = ("factors", "log_weights")
SCALING = ("x_mean", "x_std", "y_mean", "y_std", "x_map", "shares")
POSITIVE = ("scales.factors", "curve.lengths")
LARGEST = {"theta": MAX_LOG, "points": MAX_INPUT, "curve.points": MAX_INPUT, "curve.lengths": MAX_INPUT}
TERM = record({"term": choice(*TERMS)}, {"correlated": boolean, "learned_trend": boolean, "kernel": choice(*KERNELS)})
DESCRIPTION = record(
    {
        "terms": sequence(TERM, least=1, most=len(TERMS)),
        "n_inputs": integer(1),
        "log_noise": optional(number(-1000.0, 1000.0)),
    },
    {
        "separate": optional(boolean),
        "noise_variance": number(0.0, MAX_LEARNED),
        "noise_only": boolean,
        "labels": anything,  # `label_arrays` knows
        "likelihood": anything,  # `response_arrays` knows
    },
)


def term_arrays(terms: FittedTerms) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a description of the terms of a prior as JSON values, and its arrays."""
    arrays = {name: getattr(terms, name) for name in (*ARRAYS, *OPTIONAL_ARRAYS)}
    arrays |= {f"scaling.{name}": getattr(terms.scaling, name) for name in SCALING}
    for name, part in (("curve", terms.curve), ("network", terms.network)):
        arrays |= {} if part is None else {f"{name}.{key}": value for key, value in part._asdict().items()}
    layout = terms.layout
    description = {
        "terms": [{"term": term.name, **asdict(term)} for term in layout.terms],  # type: ignore[call-overload]
        "n_inputs": layout.columns.n_inputs,
        "log_noise": layout.log_noise,
        "separate": layout.columns.separate,
    }
    return description, {name: np.asarray(array, np.float64) for name, array in arrays.items() if array is not None}


def to_arrays(prior: Prior) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a description of a prior of numbers as JSON values, and its arrays."""
    description, arrays = term_arrays(prior.terms)
    arrays |= {f"scales.{name}": np.asarray(getattr(prior.scales, name), np.float64) for name in SCALES}
    description |= {"noise_variance": prior.noise_variance, "noise_only": prior.scales.noise_only}
    return description, arrays


def read_terms(
    description: Any,
    arrays: Mapping[str, np.ndarray],
    input_dim: int,
    recorded: Mapping[str, Any] | None = None,
    kinds: ColumnKinds | None = None,
    n_parameters: int = 0,
) -> FittedTerms:
    """Make terms from what `term_arrays` returned; raise `Mismatch` if it, or the recorded scaling, does not fit."""
    DESCRIPTION(description, "model.members")
    columns = Columns.of(input_dim, kinds, description.get("separate"))
    if "labels" in description:  # whose covariates are inputs
        columns = Columns(input_dim if kinds is None else sum(kinds.widths), description.get("separate"))
    if description["n_inputs"] != columns.n_inputs:
        raise Mismatch(f"model.members must have {columns.n_inputs} input columns, as the header says")
    scaling = read_scaling(arrays, "scaling.", input_dim, recorded, kinds)  # first: it shows how many columns there are
    unknown = (0.0,) * n_parameters, (1.0,) * n_parameters  # the hyper-prior of the likelihood's parameters is not kept
    layout = Layout(_read_terms(description["terms"]), columns, description["log_noise"], unknown)
    effects = layout.has("shift") or layout.has("bend")
    if (effects and not columns.covariates) or (layout.has("curved") and not len(columns.curved)):
        raise Mismatch("model.members has effects of covariates, which the header does not name")
    found: dict[str, Any] = _check_arrays(layout, arrays)
    parts: dict[str, Any] = {
        name: kind(*(found[f"{name}.{key}"] for key in kind._fields)) if layout.has(term) else None
        for name, term, kind in (("curve", "deformation", CommonCurve), ("network", "features", FeatureNetwork))
    }
    parts |= {name: found[name] for name in ARRAYS} | {name: found.get(name) for name in OPTIONAL_ARRAYS}
    return FittedTerms(scaling=scaling, layout=layout, **parts)


def _read_terms(stored: list[dict[str, Any]]) -> tuple[Term, ...]:
    """Return terms in the order of theta; raise if one is missing, twice, or without another that it needs."""
    names = [each["term"] for each in stored]
    needed = {"deviation": "curve", "deformation": "curve", "features": "curve", "bend": "shift", "curved": "shift"}
    needs = [(name, needed[name]) for name in names if name in needed]
    ordered = names == [name for name in TERMS if name in names]
    if "line" not in names or not ordered or any(other not in names for _, other in needs):
        raise Mismatch(f"model.members has terms {names}, which do not go together")
    if ("curve" in names) != ("deviation" in names):
        raise Mismatch("model.members must have both a curve and a deviation, or neither")
    found = []
    for each in stored:
        kind, given = TERMS[each["term"]], {key: value for key, value in each.items() if key != "term"}
        if not given.keys() <= kind.__dataclass_fields__.keys():  # type: ignore[attr-defined]
            raise Mismatch(f"model.members has a {each['term']} with {sorted(given)}")
        found.append(kind(**given))
    return tuple(found)


def from_arrays(
    description: Any,
    arrays: Mapping[str, np.ndarray],
    input_dim: int,
    recorded: Mapping[str, Any] | None = None,
    kinds: ColumnKinds | None = None,
    n_parameters: int = 0,
) -> Prior:
    """Make a prior from what `to_arrays` returned; raise `Mismatch` if it does not fit."""
    terms = read_terms(description, arrays, input_dim, recorded, kinds, n_parameters)
    n_scales = _length(arrays, "scales.factors")
    scales = [check_array(f"scales.{name}", arrays.get(f"scales.{name}"), (n_scales,), MAX_LEARNED) for name in SCALES]
    if not (scales[0] >= 1.0 / MAX_LEARNED).all():
        raise Mismatch(f"scales.factors must be positive, and at least {1.0 / MAX_LEARNED:g}")
    check_weights("scales.log_weights", np.exp(np.minimum(scales[1], 1.0)), None)
    if "noise_variance" not in description or "noise_only" not in description:
        raise Mismatch("model.members must have noise_variance and noise_only")
    return Prior(
        terms, float(description["noise_variance"]), TaskScales(scales[0], scales[1], description["noise_only"])
    )


def _check_arrays(layout: Layout, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of a prior, each with the shape that the layout gives it and with numbers that can be."""
    found = {}
    for name, shape in _expected_shapes(layout, arrays).items():
        if name in OPTIONAL_ARRAYS and name not in arrays:
            continue
        found[name] = check_array(name, arrays.get(name), shape, LARGEST.get(name, MAX_LEARNED))
        if name in POSITIVE and not (found[name] >= 1.0 / MAX_LEARNED).all():  # one over its square must be a number
            raise Mismatch(f"{name} must be positive, and at least {1.0 / MAX_LEARNED:g}")
    return found


def _expected_shapes(layout: Layout, arrays: Mapping[str, np.ndarray]) -> dict[str, Shape]:
    """Return the shape of every array; the number of points is that of the array that is there."""
    n_points, columns = _length(arrays, "points"), layout.columns
    n_inputs, n_weights = columns.n_inputs, layout.n_weights(n_points)
    shapes: dict[str, Shape] = {
        "theta": (len(layout.center),),
        "points": (n_points, n_inputs),
        "weights": (n_weights,),
        "weights_root": (n_weights, n_weights),
        "counts": (None,),
    }
    n_curve = n_deformations(columns) if layout.has("deformation") else 0
    if layout.has("curve"):
        n_functions = 1 + n_inputs + n_curve + n_points
        shapes["shape_root"] = (n_functions, n_functions)
    if n_curve:
        n_curve_points = _length(arrays, "curve.points")
        shapes |= {
            "curve.line": (1 + n_inputs,),
            "curve.weights": (n_curve_points,),
            "curve.points": (n_curve_points, n_inputs),
            "curve.lengths": (n_inputs if columns.ard else 1,),
        }
    if layout.has("features"):
        width = max(_length(arrays, "network.second"), 1)
        sizes = ((n_inputs, width), (width,), (width, width), (width,), (width, N_FEATURES))
        shapes |= {f"network.{name}": size for name, size in zip(FeatureNetwork._fields, sizes, strict=True)}
    return shapes


def _length(arrays: Mapping[str, np.ndarray], name: str) -> int:
    shape = arrays[name].shape if name in arrays else ()
    return shape[0] if shape else 0
