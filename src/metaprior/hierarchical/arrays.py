"""Hierarchical priors as named arrays and plain values, for files."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from metaprior.hierarchical.hierarchical_prior import HierarchicalPrior
from metaprior.hierarchical.layout import MAX_ARD, Layout, Parts
from metaprior.hierarchical.modes import CommonCurve
from metaprior.hierarchical.task_scales import TaskScales
from metaprior.tasks.scaling import Scaling

ARRAYS = ("theta", "points", "weights", "weights_root")
OPTIONAL_ARRAYS = ("shape_root", "counts")
SCALING, CURVE = ("x_mean", "x_std", "y_mean", "y_std"), ("line", "weights", "points", "lengths")


def to_arrays(prior: HierarchicalPrior) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a description of the prior as JSON values, and its arrays."""
    arrays = {name: getattr(prior, name) for name in (*ARRAYS, *OPTIONAL_ARRAYS)}
    arrays |= {"scales.factors": prior.scales.factors, "scales.log_weights": prior.scales.log_weights}
    arrays |= {f"scaling.{name}": getattr(prior.scaling, name) for name in SCALING}
    if prior.curve is not None:
        arrays |= {f"curve.{name}": getattr(prior.curve, name) for name in CURVE}
    layout = prior.layout
    description = {
        "parts": asdict(layout.parts),
        "input_dim": layout.input_dim,
        "log_noise": layout.log_noise,
        "noise_variance": prior.noise_variance,
        "noise_only": prior.scales.noise_only,
    }
    return description, {name: np.asarray(array, np.float64) for name, array in arrays.items() if array is not None}


def from_arrays(description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> HierarchicalPrior:
    """Make a prior from what `to_arrays` returned; raise ValueError, KeyError or TypeError if it does not fit."""
    layout = Layout(Parts(**description["parts"]), int(description["input_dim"]), description["log_noise"])
    curve = None
    if layout.parts.curve:
        curve = CommonCurve(*(arrays[f"curve.{name}"] for name in CURVE))
    prior = HierarchicalPrior(
        Scaling(*(arrays[f"scaling.{name}"] for name in SCALING)),
        layout,
        arrays["theta"],
        arrays["points"],
        arrays["weights"],
        arrays["weights_root"],
        float(description["noise_variance"]),
        TaskScales(arrays["scales.factors"], arrays["scales.log_weights"], bool(description["noise_only"])),
        curve,
        arrays.get("shape_root"),
        arrays.get("counts"),
    )
    for name, (array, shape) in _expected_shapes(prior).items():
        if array.shape != shape or array.dtype != np.float64:
            raise ValueError(f"{name} must be float64{list(shape)}; it is {array.dtype}{list(array.shape)}")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} must be finite")
    positive = (prior.noise_variance, prior.scales.factors, prior.scaling.x_std, prior.scaling.y_std)
    if not all(np.all(np.isfinite(values)) and np.all(np.asarray(values) > 0) for values in positive):
        raise ValueError("noise_variance, factors and scales must be positive")
    return prior


def _expected_shapes(prior: HierarchicalPrior) -> dict[str, tuple[np.ndarray, tuple[int, ...]]]:
    """Return every array with the shape that the layout gives it."""
    layout, input_dim = prior.layout, prior.layout.input_dim
    n_points, n_scales = len(prior.points), len(prior.scales.factors)
    n_line, n_lengths = 1 + input_dim, input_dim if input_dim <= MAX_ARD else 1
    n_weights = (n_line + (n_points if layout.parts.smooth else 0)) * (2 if layout.parts.environment else 1)
    shapes = {
        "theta": (prior.theta, (len(layout.center),)),
        "points": (prior.points, (n_points, input_dim)),
        "weights": (prior.weights, (n_weights,)),
        "weights_root": (prior.weights_root, (n_weights, n_weights)),
        "scales.factors": (prior.scales.factors, (n_scales,)),
        "scales.log_weights": (prior.scales.log_weights, (n_scales,)),
        "scaling.x_mean": (prior.scaling.x_mean, (input_dim,)),
        "scaling.x_std": (prior.scaling.x_std, (input_dim,)),
        "scaling.y_mean": (prior.scaling.y_mean, ()),
        "scaling.y_std": (prior.scaling.y_std, ()),
    }
    if prior.curve is not None:
        n_curve_points = len(prior.curve.points)
        shapes |= {
            "curve.line": (prior.curve.line, (n_line,)),
            "curve.weights": (prior.curve.weights, (n_curve_points,)),
            "curve.points": (prior.curve.points, (n_curve_points, input_dim)),
            "curve.lengths": (prior.curve.lengths, (n_lengths,)),
        }
    if prior.shape_root is not None:
        n_functions = n_line + layout.n_curve + n_points
        shapes["shape_root"] = (prior.shape_root, (n_functions, n_functions))
    return shapes
