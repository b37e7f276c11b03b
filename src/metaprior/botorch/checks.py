"""Checks of what a BoTorch model is given.

Categories and covariates in tensors: what their columns may hold, and which gradients do not exist.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from metaprior.predict.ensemble import predicts_labels
from metaprior.prior.fitted import Prior
from metaprior.tasks.categories import Coded
from metaprior.tasks.columns import Features
from metaprior.tasks.scaling import MAX_SCALED


def check_inputs(name: str, X: Any, features: Features) -> None:
    """Raise if inputs are not a tensor that the prior takes."""
    n_columns = features.count
    _check_tensor(name, X)
    if X.ndim < 2 or X.shape[-1] != n_columns:
        expected = f"(batch_shape, points, {n_columns}), with the columns of the tasks of the fit"
        raise ValueError(f"{name} must have shape {expected}; got {tuple(X.shape)}.")
    check_columns(name, X, features)


def check_outputs(name: str, Y: Any, X: Tensor) -> None:
    """Raise if outputs are not a tensor with one output for every input."""
    _check_tensor(name, Y)
    if Y.ndim < 2 or Y.shape[-2:] != (X.shape[-2], 1):
        expected = f"(batch_shape, {X.shape[-2]}, 1), one output for each input"
        several = " For several outputs, pass a ModelList of a prior for each." * (Y.ndim > 1 and Y.shape[-1] > 1)
        raise ValueError(f"{name} must have shape {expected}; got {tuple(Y.shape)}.{several}")
    if not torch.isfinite(Y).all():
        raise ValueError(f"{name} must be finite; it has NaN or infinite entries. Leave failed evaluations out.")


def check_batches(shapes: Mapping[str, Sequence[int]]) -> None:
    """Raise unless batch shapes, by what they are of, broadcast."""
    try:
        torch.broadcast_shapes(*map(tuple, shapes.values()))
    except RuntimeError:
        found = ", ".join(f"{tuple(shape)} of {name}" for name, shape in shapes.items())
        raise ValueError(
            f"Batch shapes, those before the last two axes, must broadcast with each other; got {found}. Make them "
            "equal, or of length one."
        ) from None


def check_size(name: str, values: Tensor, limits: Tensor, kind: str) -> None:
    """Raise as `adapt` does if values are outside limits (2, columns), so far that their squares are infinite."""
    lower, upper = limits
    if bool(((values < lower) | (values > upper)).any()):
        raise ValueError(f"{name} is more than {MAX_SCALED:g} standard deviations from the {kind}. Check its units.")


def as_variances(noise: Tensor, shape: Sequence[int]) -> Tensor:
    """Return variances of noise (*batch, q, 1) for predictions of a shape (*batch, q)."""
    try:
        return noise.squeeze(-1).expand(*shape)
    except RuntimeError:
        raise ValueError(
            f"observation_noise must be a bool, or variances of shape {(*shape, 1)}; got {tuple(noise.shape)}."
        ) from None


def _check_tensor(name: str, values: Any) -> None:
    """Raise unless values are a tensor in double precision."""
    if not isinstance(values, Tensor):
        advice = f"Pass torch.as_tensor({name}, dtype=torch.float64)."
        raise ValueError(f"{name} must be a tensor of torch.float64; got {type(values).__name__}. {advice}")
    if values.dtype != torch.float64:
        raise ValueError(f"{name} must be a tensor of torch.float64; got {values.dtype}. Call {name}.double().")


def check_output(name: str, indices: list[int] | None) -> None:
    """Raise if outputs other than the only one are asked for."""
    if indices is not None and indices not in ([0], [-1]):
        raise ValueError(f"{name} must be [0], for there is one output; got {indices}.")


def check_prior(meta: Any) -> None:
    """Raise if a prior is not fitted, or not of a kind that torch can compute."""
    if not hasattr(type(meta), "transfer_report"):
        raise ValueError(f"meta must be a fitted MetaGPRegressor; got {type(meta).__name__}.")
    if predicts_labels(meta):
        raise ValueError(
            "meta must be a MetaGPRegressor: class probabilities have no Gaussian posterior. Fit one to scores instead."
        )
    if meta.likelihood_ != "gaussian":
        raise ValueError(
            f"meta must have Gaussian noise: its likelihood is {meta.likelihood_!r}, which torch cannot compute."
        )
    if not all(isinstance(member, Prior) for member in meta.model_.members):
        raise ValueError(
            "meta was trained by gradients, and predicts with JAX, which torch cannot differentiate. Fit a "
            "MetaGPRegressor."
        )


def warn_if_implausible(meta: Any, train_X: Tensor, train_Y: Tensor) -> None:
    """Warn as `adapt` does, about evaluations that the prior cannot explain."""
    shape = torch.broadcast_shapes(train_X.shape[:-2], train_Y.shape[:-2])
    wide = (each.detach().expand(*shape, *each.shape[-2:]).cpu() for each in (train_X, train_Y))
    x, y = (each.reshape(shape.numel(), *each.shape[-2:]).numpy() for each in wide)
    meta.adapt_many(list(zip(x.view(Coded), y[..., 0], strict=True)))  # codes are not looked up as levels


SHOWN = 8  # levels in a message


def check_columns(name: str, X: Tensor, features: Features) -> None:
    """Raise unless entries are finite, and those of categories codes of levels. A covariate may be missing, NaN."""
    values, covariates = X.detach(), features.categories.covariates
    finite = torch.isfinite(values)
    finite[..., list(covariates)] |= torch.isnan(values[..., list(covariates)])
    if not finite.all():
        column = int((~finite).reshape(-1, X.shape[-1]).any(0).nonzero()[0])
        found = f"{name} must be finite; column {called(features, column)} has NaN or infinite entries"
        raise ValueError(f"{found}. Leave such points out.")
    for column, levels in features.categories.levels.items():
        codes = values[..., column]
        known = (codes == codes.round()) & (codes >= 0) & (codes < len(levels))
        bad = codes[~(known | torch.isnan(codes))]
        if len(bad):
            listed = [f"{code}: {level!r}" for level, code in list(levels.items())[:SHOWN]]
            listed += ["..."] * (len(levels) > SHOWN)
            missing = ", or NaN if it is missing" * (column in covariates)
            raise ValueError(
                f"{name}: column {called(features, column)} must hold codes of levels, whole numbers from 0 to "
                f"{len(levels) - 1} ({', '.join(listed)}){missing}; got {float(bad[0]):g}. Look codes up in "
                "meta.column_levels_, and search with optimize_acqf_mixed or optimize_acqf_discrete."
            )


def check_gradients(name: str, X: Tensor, features: Features) -> None:
    """Raise if categories or covariates are computed from tensors whose gradient is asked for.

    Categories have no gradient, and with that of a covariate an optimizer would change the task. In a tensor with
    gradients these columns may be constants, as `fix_features` of BoTorch makes them: then none reaches the leaves.
    """
    held = sorted({*features.categories.levels, *features.categories.covariates})
    if not (held and X.requires_grad and torch.is_grad_enabled()):
        return
    leaves = _leaves(X)
    if not _depends(X[..., held], leaves):
        return
    column = next(column for column in held if _depends(X[..., [column]], leaves))
    place = f"{name} asks for a gradient with respect to column {called(features, column)}"
    if column in features.categories.covariates:
        raise ValueError(
            f"{place}, a covariate, which a task has and no search changes. Fix it: pass the optimizer "
            f"fixed_features={{{column}: value}}, or compute it without gradients."
        )
    raise ValueError(
        f"{place}, a category, which has none. Fix it: call optimize_acqf_mixed with fixed_features_list="
        f"[{{{column}: 0}}, {{{column}: 1}}, ...] or optimize_acqf_discrete, or compute it without gradients."
    )


def check_constant(name: str, X: Tensor, features: Features) -> None:
    """Raise if a covariate has two values in the rows of a task, for tasks (*batch, n, columns)."""
    values = X.detach()[..., list(features.categories.covariates)]
    both_missing = torch.isnan(values) & torch.isnan(values[..., :1, :])
    differs = ((values != values[..., :1, :]) & ~both_missing).flatten(-2).any(-1).flatten()
    if differs.any():
        task = X.detach().reshape(-1, *X.shape[-2:])[int(differs.nonzero()[0])].cpu().numpy()
        features.categories.check_constant(task, name, lambda column: called(features, column))


def with_covariates(name: str, X: Tensor, train_X: Tensor, features: Features) -> Tensor:
    """Return inputs with the covariates of the evaluations where they are NaN; raise if they are others."""
    covariates = list(features.categories.covariates)
    if not covariates or not train_X.shape[-2]:
        return X
    given, known = torch.broadcast_tensors(X[..., covariates], train_X.detach()[..., :1, covariates])
    missing = torch.isnan(given)
    other = ~missing & (given != known)
    if other.any():
        place = tuple(other.nonzero()[0].tolist())
        column, got, there = covariates[place[-1]], float(given.detach()[place]), float(known[place])
        was = "missing" if math.isnan(there) else f"{there:.12g}"
        raise ValueError(
            f"{name}: covariate {called(features, column)} must be that of the evaluations so far, or NaN; "
            f"got {got:.12g}, and it is {was} there. A task has one value: pass the optimizer "
            f"fixed_features={{{column}: value}}."
        )
    if not missing.any():
        return X
    filled = X.expand(*missing.shape[:-1], X.shape[-1]).clone()
    filled[..., covariates] = torch.where(missing, known, given)
    return filled


def called(features: Features, column: int) -> str:
    """Return what messages call a column: its name, or its number."""
    return str(column) if features.names is None else repr(features.names[column])


def _leaves(X: Tensor) -> list[Tensor]:
    """Return the tensors that a tensor with gradients is computed from."""
    if X.grad_fn is None:
        return [X]
    seen, waiting, found = set(), [X.grad_fn], []
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found += [getattr(node, "variable", None)]  # of nodes that are leaves
        waiting += [following for following, _ in node.next_functions]
    return [leaf for leaf in found if leaf is not None]


def _depends(values: Tensor, leaves: list[Tensor]) -> bool:
    """Return whether a gradient of the values reaches a leaf."""
    weights = 1.0 + torch.arange(values.numel(), dtype=values.dtype, device=values.device) / max(values.numel(), 1)
    weights = weights.reshape(values.shape)  # not equal, for differences of entries would cancel
    slopes = torch.autograd.grad(values, leaves, weights, retain_graph=True, allow_unused=True)
    return any(slope is not None and bool((slope != 0).any()) for slope in slopes)
