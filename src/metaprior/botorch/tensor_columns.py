"""Categories and covariates in tensors: what their columns may hold, and which gradients do not exist."""

# pyright: reportMissingImports=false

import math

import torch
from torch import Tensor

from metaprior.tasks.input_columns import Features

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
