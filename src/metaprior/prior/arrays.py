"""Hierarchical priors as named arrays and plain values, for files."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from metaprior.prior.features import FeatureNetwork
from metaprior.prior.hierarchical_prior import HierarchicalPrior
from metaprior.prior.layout import Layout, Parts
from metaprior.prior.modes import CommonCurve
from metaprior.prior.task_scales import TaskScales
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
    integer,
    number,
    optional,
    record,
)
from metaprior.tasks.column_kinds import ColumnKinds
from metaprior.tasks.scaling_arrays import read_scaling

ARRAYS = ("theta", "points", "weights", "weights_root")
OPTIONAL_ARRAYS = ("shape_root", "counts")
SCALING, CURVE = ("x_mean", "x_std", "y_mean", "y_std"), ("line", "weights", "points", "lengths")
POSITIVE = ("scales.factors", "curve.lengths")
LARGEST = {"theta": MAX_LOG, "points": MAX_INPUT, "curve.points": MAX_INPUT, "curve.lengths": MAX_INPUT}
DESCRIPTION = record(
    {
        "parts": record({}, dict.fromkeys((part.name for part in fields(Parts)), boolean)),
        "input_dim": integer(1),
        "log_noise": optional(number(-1000.0, 1000.0)),
        "noise_variance": number(1e-300, MAX_LEARNED),
        "noise_only": boolean,
    },
    {
        "separate": optional(boolean),
        "learned_trend": boolean,
        "labels": anything,  # `label_arrays` knows
        "likelihood": anything,  # `response_arrays` knows
    },
)


def to_arrays(prior: HierarchicalPrior) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a description of the prior as JSON values, and its arrays."""
    arrays = {name: getattr(prior, name) for name in (*ARRAYS, *OPTIONAL_ARRAYS)}
    arrays |= {"scales.factors": prior.scales.factors, "scales.log_weights": prior.scales.log_weights}
    arrays |= {f"scaling.{name}": getattr(prior.scaling, name) for name in SCALING}
    arrays |= {"scaling.x_map": prior.scaling.x_map, "scaling.shares": prior.scaling.shares}
    if prior.curve is not None:
        arrays |= {f"curve.{name}": getattr(prior.curve, name) for name in CURVE}
    if prior.network is not None:
        arrays |= {f"network.{name}": getattr(prior.network, name) for name in FeatureNetwork._fields}
    layout = prior.layout
    description = {
        "parts": asdict(layout.parts),
        "input_dim": layout.input_dim,
        "log_noise": layout.log_noise,
        "separate": layout.separate,
        "noise_variance": prior.noise_variance,
        "noise_only": prior.scales.noise_only,
    }
    if layout.learned_trend:
        description["learned_trend"] = True
    return description, {name: np.asarray(array, np.float64) for name, array in arrays.items() if array is not None}


def from_arrays(
    description: Any,
    arrays: Mapping[str, np.ndarray],
    input_dim: int,
    recorded: Mapping[str, Any] | None = None,
    kinds: ColumnKinds | None = None,
) -> HierarchicalPrior:
    """Make a prior from what `to_arrays` returned; raise `Mismatch` if it, or the recorded scaling, does not fit."""
    DESCRIPTION(description, "model.members")
    labels = "labels" in description  # whose covariates are inputs
    widths = None if kinds is None or labels else kinds.input_widths
    columns = input_dim if kinds is None else sum(kinds.widths if widths is None else widths)
    if description["input_dim"] != columns:
        raise Mismatch(f"model.members must have {columns} input columns, as the header says")
    scaling = read_scaling(arrays, "scaling.", input_dim, recorded, kinds)  # first: it shows how many columns there are
    if unknown := description["parts"].keys() - {part.name for part in fields(Parts)}:
        raise Mismatch(f"model.members has parts {sorted(unknown)} that this version does not know")
    kept = description.get("separate"), description.get("learned_trend", False)
    covariates = () if kinds is None or labels else kinds.covariate_widths
    layout = Layout(Parts(**description["parts"]), columns, description["log_noise"], *kept, widths, covariates)
    effects = layout.parts.covariates or layout.parts.bend
    if (effects and not covariates) or (layout.parts.curved and not len(layout.curved)):
        raise Mismatch("model.members has effects of covariates, which the header does not name")
    found = _check_arrays(layout, arrays)
    scales = TaskScales(found["scales.factors"], found["scales.log_weights"], description["noise_only"])
    curve = CommonCurve(*(found[f"curve.{name}"] for name in CURVE)) if layout.parts.curve else None
    network = None
    if layout.parts.features:
        network = FeatureNetwork(*(found[f"network.{name}"] for name in FeatureNetwork._fields))
    return HierarchicalPrior(
        scaling=scaling,
        layout=layout,
        **{name: found[name] for name in ARRAYS},
        noise_variance=float(description["noise_variance"]),
        scales=scales,
        curve=curve,
        network=network,
        shape_root=found.get("shape_root"),
        counts=found.get("counts"),
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
    check_weights("scales.log_weights", np.exp(np.minimum(found["scales.log_weights"], 1.0)), None)
    return found


def _expected_shapes(layout: Layout, arrays: Mapping[str, np.ndarray]) -> dict[str, Shape]:
    """Return the shape of every array; the numbers of points and of scales are those of the arrays that are there."""
    n_points, n_scales = _length(arrays, "points"), _length(arrays, "scales.factors")
    input_dim, n_line = layout.input_dim, 1 + layout.input_dim
    n_weights = layout.n_weights(n_points)
    n_functions = n_line + layout.n_curve + n_points
    shapes: dict[str, Shape] = {
        "theta": (len(layout.center),),
        "points": (n_points, input_dim),
        "weights": (n_weights,),
        "weights_root": (n_weights, n_weights),
        "scales.factors": (n_scales,),
        "scales.log_weights": (n_scales,),
        "counts": (None,),
    }
    if layout.parts.smooth:
        shapes["shape_root"] = (n_functions, n_functions)
    if layout.parts.curve:
        n_curve_points = _length(arrays, "curve.points")
        shapes |= {
            "curve.line": (n_line,),
            "curve.weights": (n_curve_points,),
            "curve.points": (n_curve_points, input_dim),
            "curve.lengths": (input_dim if layout.ard else 1,),
        }
    if layout.parts.features:
        width = max(_length(arrays, "network.second"), 1)
        sizes = ((input_dim, width), (width,), (width, width), (width,), (width, layout.n_features))
        shapes |= {f"network.{name}": size for name, size in zip(FeatureNetwork._fields, sizes, strict=True)}
    return shapes


def _length(arrays: Mapping[str, np.ndarray], name: str) -> int:
    shape = arrays[name].shape if name in arrays else ()
    return shape[0] if shape else 0
