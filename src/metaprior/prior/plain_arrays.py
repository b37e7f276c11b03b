"""Hierarchical priors as arrays for exported tasks, with all that does not depend on inputs multiplied in."""

import ast
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import block_diag

from metaprior.prior.covariate_curves import AVERAGES, POINTS, WHITENING
from metaprior.prior.features import FeatureNetwork
from metaprior.prior.hierarchical_prior import HierarchicalPrior
from metaprior.prior.label_prior import LabelPrior
from metaprior.prior.layout import N_BENT

NUMPY = "import numpy as np"


def arrays_of_readings(prior: HierarchicalPrior) -> dict[str, Any]:
    """Return what `plain_readings.py` reads."""
    fold = _mean_map(prior)
    return _process(prior) | {
        "y_mean": float(prior.scaling.y_mean),
        "y_std": float(prior.scaling.y_std),
        "common_weights": fold @ prior.weights,
        "common_root": _shortened(fold @ prior.weights_root),
        "noise_variances": prior.noise_variances,
        "factors": np.ones(prior.n_components) if prior.scales.noise_only else prior.scales.factors,
        "log_weights": prior.scales.log_weights,
    }


def arrays_of_labels(prior: LabelPrior) -> dict[str, Any]:
    """Return what `plain_labels.py` reads."""
    process, fold, has_rule = prior.process, _mean_map(prior.process), len(prior.weights) > 0
    root = _shortened(fold @ process.weights_root) if has_rule else np.zeros((len(fold), 0))
    return _process(process) | {
        "common_root": root,
        "rule": prior.weights @ fold.T,
        "factor": float(prior.factor),
        "ratio": float(prior.ratio),
        "shrink": float(prior.shrink),
    }


def source(*names: str) -> str:
    """Return the code of modules of this folder as one, without their docstrings and imports from metaprior."""
    modules, members, bodies = set(), {}, []
    for name in names:
        text = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
        heads = [node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)]
        for node in heads:
            if isinstance(node, ast.Import):
                modules.add(ast.unparse(node))
            elif not str(node.module).startswith("metaprior"):
                members.setdefault(node.module, set()).update(alias.name for alias in node.names)
        bodies.append("\n".join(text.splitlines()[heads[-1].end_lineno :]).strip())
    parts = [f"from {module} import {', '.join(sorted(members[module]))}" for module in sorted(members)]
    others = sorted(modules - {NUMPY})
    return "\n".join([*others, *parts, "", NUMPY, "", *"\n\n\n".join(bodies).splitlines()]) + "\n"


def _process(prior: HierarchicalPrior) -> dict[str, Any]:
    """Return the arrays of the process without those of the common mean."""
    layout, theta, scaling = prior.layout, prior.theta, prior.scaling
    found: dict[str, Any] = {"x_mean": scaling.x_mean, "x_std": scaling.x_std, "n_inputs": prior.input_dim}
    if scaling.shares is not None:
        found["shares"] = scaling.shares
    if scaling.x_map is not None:
        found["x_map"] = scaling.x_map
    if layout.parts.smooth:
        lengths, mean_lengths = (layout.column_lengths(layout.scale(theta, n)) for n in ("lengths", "mean_lengths"))
        found |= {"points": prior.points, "mean_lengths": mean_lengths}
        found |= {"lengths": lengths, "smooth_variance": prior.smooth_variance}
    if layout.parts.covariates:
        bent = layout.bent if layout.parts.bend else np.zeros(0)
        basis = np.zeros((0, 0)) if prior.basis is None else prior.basis.scale * prior.basis.inverse_root.T
        found |= {"bent": bent, "n_numbers": layout.n_numbers, "bend_map": basis[:, :N_BENT]}
    if layout.parts.curved:
        found |= {"curved": layout.curved, "curved_points": POINTS, "curved_averages": AVERAGES}
    if prior.curve is not None:
        found["curve"] = {**vars(prior.curve), "n_slopes": layout.n_curve - 1}
    if prior.network is not None:
        found["network"] = dict(zip(FeatureNetwork._fields, prior.network, strict=True))
    if prior.shape_root is None:
        parts = [layout.line_root(theta)]
        parts += [np.diag(layout.scale(theta, "curve"))] if prior.curve is not None else []
        parts += [np.diag(layout.scale(theta, "features"))] if prior.network is not None else []
        return {**found, "own": np.asarray(block_diag(*parts))}
    n_kept = 1 + prior.input_dim + (0 if prior.curve is None else layout.n_curve)
    found["own"] = block_diag(np.eye(n_kept), prior.whitening) @ prior.shape_root
    return {**found, "removed": np.sqrt(prior.smooth_variance) * prior.whitening}


def _mean_map(prior: HierarchicalPrior) -> np.ndarray:
    """Return the map from weights of the common mean of the target to weights of lines, kernels and features."""
    layout, theta, basis = prior.layout, prior.theta, prior.basis
    parts = [np.diag(layout.trend_stds(theta))]
    if basis is not None:
        parts.append(basis.scale * basis.inverse_root.T)
    if prior.network is not None:
        parts.append(layout.scale(theta, "feature_mean")[0] * np.eye(layout.n_features))
    if layout.parts.covariates:
        parts.append(np.diag(np.repeat(layout.scale(theta, "covariates"), layout.covariates)))
    if layout.parts.bend:
        n_functions = layout.n_numbers + (0 if basis is None else min(len(basis.root), N_BENT))
        of_columns = np.repeat(layout.scale(theta, "bend"), layout.bent_widths)
        parts.append(np.diag(np.repeat(of_columns, n_functions)))
    if layout.parts.curved:
        for scale in layout.scale(theta, "curved").tolist():
            parts += [scale * WHITENING, np.array([[scale]])]
    common = np.asarray(block_diag(*parts))
    return np.hstack([common, layout.scale(theta, "environment")[0] * common]) if layout.parts.environment else common


def _shortened(root: np.ndarray) -> np.ndarray:
    """Return a root with as many columns as rows at most: R' with R' R'' = R R^T."""
    return np.asarray(np.linalg.qr(root.T, mode="r")).T if root.shape[1] > root.shape[0] else root
