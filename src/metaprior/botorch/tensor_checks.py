"""Checks of what a BoTorch model is given."""

# pyright: reportMissingImports=false

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from metaprior.botorch.tensor_columns import check_columns
from metaprior.predict.ensemble import predicts_labels
from metaprior.prior.fitted import Prior
from metaprior.tasks.categories import Coded
from metaprior.tasks.input_columns import Features
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
