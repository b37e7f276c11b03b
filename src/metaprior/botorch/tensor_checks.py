"""Checks of what a BoTorch model is given."""

# pyright: reportMissingImports=false

from typing import Any

import torch
from torch import Tensor

from metaprior.botorch.tensor_columns import check_columns
from metaprior.hierarchical.hierarchical_prior import HierarchicalPrior
from metaprior.prediction.ensemble import predicts_labels
from metaprior.tasks.categories import Coded
from metaprior.tasks.input_columns import Features


def check_inputs(name: str, X: Any, features: Features) -> None:
    """Raise if inputs are not a tensor that the prior takes."""
    n_columns = features.count
    if not isinstance(X, Tensor) or X.dtype != torch.float64:
        kind = X.dtype if isinstance(X, Tensor) else type(X).__name__
        raise ValueError(f"{name} must be a tensor of torch.float64; got {kind}. Call {name}.double().")
    if X.ndim < 2 or X.shape[-1] != n_columns:
        expected = f"(batch_shape, points, {n_columns}), with the columns of the tasks of the fit"
        raise ValueError(f"{name} must have shape {expected}; got {tuple(X.shape)}.")
    check_columns(name, X, features)


def check_outputs(name: str, Y: Any, X: Tensor) -> None:
    """Raise if outputs are not a tensor with one output for every input."""
    if not isinstance(Y, Tensor) or Y.dtype != torch.float64:
        kind = Y.dtype if isinstance(Y, Tensor) else type(Y).__name__
        raise ValueError(f"{name} must be a tensor of torch.float64; got {kind}. Call {name}.double().")
    if Y.ndim < 2 or Y.shape[-2:] != (X.shape[-2], 1):
        expected = f"(batch_shape, {X.shape[-2]}, 1), one output for each input"
        several = " For several outputs, pass a ModelList of a prior for each." * (Y.ndim > 1 and Y.shape[-1] > 1)
        raise ValueError(f"{name} must have shape {expected}; got {tuple(Y.shape)}.{several}")
    if not torch.isfinite(Y).all():
        raise ValueError(f"{name} must be finite; it has NaN or infinite entries. Leave failed evaluations out.")


def check_output(name: str, indices: list[int] | None) -> None:
    """Raise if outputs other than the only one are asked for."""
    if indices is not None and indices not in ([0], [-1]):
        raise ValueError(f"{name} must be [0], for there is one output; got {indices}.")


def check_prior(meta: Any) -> None:
    """Raise if a prior is not fitted, or not of a kind that torch can compute."""
    if predicts_labels(meta):
        raise ValueError(
            "meta must be a MetaGPRegressor: class probabilities have no Gaussian posterior. Fit one to scores instead."
        )
    if meta.likelihood != "gaussian":
        raise ValueError(
            f"meta must have Gaussian noise: its likelihood is {meta.likelihood!r}, which torch cannot compute."
        )
    if not all(isinstance(member, HierarchicalPrior) for member in meta.model_.members):
        raise ValueError(
            "meta was trained by gradients, and predicts with JAX, which torch cannot differentiate. Fit it with the "
            "default settings, kernel='auto'."
        )


def warn_if_implausible(meta: Any, train_X: Tensor, train_Y: Tensor) -> None:
    """Warn as `adapt` does, about evaluations that the prior cannot explain."""
    shape = torch.broadcast_shapes(train_X.shape[:-2], train_Y.shape[:-2])
    wide = (each.detach().expand(*shape, *each.shape[-2:]).cpu() for each in (train_X, train_Y))
    x, y = (each.reshape(shape.numel(), *each.shape[-2:]).numpy() for each in wide)
    meta.adapt_many(list(zip(x.view(Coded), y[..., 0], strict=True)))  # codes are not looked up as levels
