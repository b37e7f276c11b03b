"""Hierarchical priors in torch, for batches of tasks and differentiable: the formulas of `plain_process`."""

# pyright: reportMissingImports=false

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from metaprior.prior.plain_process import NOISE_FLOOR, ROUNDING
from metaprior.tasks.column_kinds import ColumnKinds

FOR_ROOTS = 1e-13  # of a prior variance, added to variances: samples of close points need a root of the covariance
JITTERS = (1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2)  # of a diagonal
# What `arrays_of_readings` may have. A prior with other terms would be predicted wrongly, so it is refused.
OF_LINES = {"x_mean", "x_std", "x_map", "shares", "n_inputs", "own", "y_mean", "y_std"}
OF_ALL = OF_LINES | {"common_weights", "common_root", "noise_variances", "factors", "log_weights"}
OF_SMOOTH = {"points", "mean_lengths", "lengths", "smooth_variance", "removed"}
OF_CURVE = {f"curve.{name}" for name in ("line", "weights", "points", "lengths", "n_slopes")}
OF_NETWORK = {f"network.{name}" for name in ("first", "first_bias", "second", "second_bias", "last")}
LAYERS = ("first", "second", "last")
OF_COVARIATES = {"bent", "n_numbers", "bend_map", "curved", "curved_points", "curved_averages"}
KNOWN = OF_ALL | OF_SMOOTH | OF_CURVE | OF_NETWORK | OF_COVARIATES


class Points(NamedTuple):
    """What a prior says about inputs: the covariance is A A' + f^2 (B B' + v k(x, x') - C C'), with a factor f."""

    x: Tensor  # (*batch, n, columns), standardized
    common: Tensor  # basis functions of the mean that all tasks have in common
    fixed: Tensor  # A
    scaled: Tensor  # B
    removed: Tensor  # C


class Context(NamedTuple):
    """A prior conditioned on readings. Every noise is a component, whose axis comes before those of a matrix."""

    points: Points
    root: Tensor  # (*batch, components, n, n): the Cholesky factor of the covariance of the readings
    residual: Tensor  # (*batch, components, n, 1): root^-1 (y - mean)
    log_weights: Tensor  # (*batch, components)


class Components(NamedTuple):
    """Gaussian components of the latent function, in the units of y."""

    mean: Tensor  # (*batch, components, q)
    covariance: Tensor  # (*batch, components, q, q)
    noise: Tensor  # (components,): variances
    log_weights: Tensor  # (*batch, components)


class TorchProcess(Module):
    """The Gaussian process of one member of a prior. Batches of inputs and of readings broadcast."""

    def __init__(self, arrays: dict[str, Any], kinds: ColumnKinds | None = None):
        super().__init__()
        self._kinds = kinds  # None: all columns are numbers
        flat = _flattened(arrays)
        if unknown := sorted(flat.keys() - KNOWN):
            raise ValueError(
                f"meta has terms that metaprior.botorch does not know: {', '.join(unknown)}. Use meta.adapt, or fit "
                "without what brings them."
            )
        self._names = frozenset(flat)
        for name, value in flat.items():
            self.register_buffer(_buffer(name), torch.as_tensor(np.array(value, np.float64)))

    def __getitem__(self, name: str) -> Tensor:
        return self.get_buffer(_buffer(name))

    def condition(self, x: Tensor, y: Tensor) -> Context:
        """Condition on readings y (*batch, n) at inputs x (*batch, n, columns)."""
        x = self._standardized(x)
        order = torch.argsort(-x.detach().square().sum(-1), dim=-1)  # far inputs first: rounding is least
        x = torch.take_along_dim(x, order.unsqueeze(-1), -2)
        shape = torch.broadcast_shapes(y.shape, order.shape)
        y = torch.take_along_dim(y.expand(shape), order.expand(shape), -1)
        points = self._describe(x)
        deviation = (y - self["y_mean"]) / self["y_std"] - points.common @ self["common_weights"]
        total = self._of_factors(*self._covariance(points, points))
        floor = ROUNDING * x.shape[-2] * _diagonal(total)
        noise = torch.maximum(self["noise_variances"].unsqueeze(-1) + NOISE_FLOOR, floor)
        root = stable_cholesky(total + torch.diag_embed(noise))
        residual = _solve(root, deviation[..., None, :, None])
        halves = -0.5 * residual.square().sum((-2, -1))
        evidence = halves - _diagonal(root).log().sum(-1)
        return Context(points, root, residual, torch.log_softmax(self["log_weights"] + evidence, -1))

    def predict(self, context: Context, x: Tensor) -> Components:
        """Predict the latent function at inputs x (*batch, q, columns) jointly."""
        queries = self._describe(self._standardized(x))
        solved = _solve(context.root, self._of_factors(*self._covariance(context.points, queries)))
        shift = (context.residual.transpose(-2, -1) @ solved).squeeze(-2)
        mean = (queries.common @ self["common_weights"]).unsqueeze(-2) + shift
        total = self._of_factors(*self._covariance(queries, queries))
        covariance = total - solved.transpose(-2, -1) @ solved
        prior = _diagonal(total)
        lost = torch.clamp_min(ROUNDING * prior - _diagonal(covariance), 0.0) + FOR_ROOTS * prior  # by rounding
        covariance = (covariance + torch.diag_embed(lost)) * self["y_std"] ** 2
        noise = self["noise_variances"] * self["y_std"] ** 2
        return Components(mean * self["y_std"] + self["y_mean"], covariance, noise, context.log_weights)

    def _standardized(self, x: Tensor) -> Tensor:
        """Return inputs in the units of the prior, with a column for every level of a category."""
        numbers = (x - self["x_mean"]) / self["x_std"]
        x = numbers if self._kinds is None else _expanded(self._kinds, numbers, x.detach(), self["shares"])
        return x @ self["x_map"] if "x_map" in self._names else x

    def _describe(self, x: Tensor) -> Points:
        """Return what the prior says about standardized inputs (*batch, n, columns)."""
        covariates, x = x[..., int(self["n_inputs"]) :], x[..., : int(self["n_inputs"])]
        lines, nothing = torch.cat([torch.ones_like(x[..., :1]), x], -1), x[..., :0]
        features = self._network(x) if "network.first" in self._names else nothing
        has_mean_curve = "mean_lengths" in self._names
        mean_curve = _rbf(x, self["points"], self["mean_lengths"]) if has_mean_curve else nothing
        effects = self._effects(x, mean_curve, covariates) if "bent" in self._names else nothing
        common = torch.cat([lines, mean_curve, features, effects], -1)
        curve = self._curve(x) if "curve.line" in self._names else nothing
        if "removed" in self._names:  # shapes: all functions of a task have one covariance
            to_points = _rbf(x, self["points"], self["lengths"])
            own, removed = torch.cat([lines, curve, to_points], -1), to_points @ self["removed"]
        else:
            own, removed = torch.cat([lines, curve, features], -1), nothing
        own, n_lines = own @ self["own"], lines.shape[-1]
        fixed = torch.cat([common @ self["common_root"], own[..., :n_lines]], -1)
        return Points(x, common, fixed, own[..., n_lines:], removed)

    def _effects(self, x: Tensor, mean_curve: Tensor, covariates: Tensor) -> Tensor:
        """Return covariates, their products with inputs and functions of the common curve, and curves of them."""
        functions = torch.cat([x[..., : int(self["n_numbers"])], mean_curve @ self["bend_map"]], -1)
        bent = covariates[..., self["bent"].long()]
        parts = [covariates, (bent.unsqueeze(-1) * functions.unsqueeze(-2)).flatten(-2)]
        if "curved" in self._names:
            places = self["curved"].long()
            kernels = torch.exp(-0.5 * (covariates[..., places].unsqueeze(-1) - self["curved_points"]) ** 2)
            missing = covariates[..., places + 1].unsqueeze(-1)
            curves = (kernels - self["curved_averages"]) * (1.0 - missing)
            parts.append(torch.cat([curves, missing], -1).flatten(-2))
        return torch.cat(parts, -1)

    def _network(self, x: Tensor) -> Tensor:
        """Return learned features, of two hidden layers."""
        first, second, last = (self[f"network.{name}"] / math.sqrt(len(self[f"network.{name}"])) for name in LAYERS)
        x = torch.tanh(x @ first + self["network.first_bias"])
        return torch.tanh(x @ second + self["network.second_bias"]) @ last

    def _curve(self, x: Tensor) -> Tensor:
        """Return the curve that tasks scale and shift, and its slopes along the inputs."""
        line, weights, points, lengths = (self[f"curve.{name}"] for name in ("line", "weights", "points", "lengths"))
        kernel = _rbf(x, points, lengths)
        value = (kernel @ weights).unsqueeze(-1)
        n_slopes = int(self["curve.n_slopes"])
        pulled = value * x[..., :n_slopes] - kernel @ (weights.unsqueeze(-1) * points[:, :n_slopes])
        slopes = line[1 : 1 + n_slopes] - pulled / lengths[:n_slopes] ** 2
        return torch.cat([line[0] + (x @ line[1:]).unsqueeze(-1) + value, slopes], -1)

    def _covariance(self, left: Points, right: Points) -> tuple[Tensor, Tensor]:
        """Return the covariance without noise: the fixed part, and the part that a factor multiplies."""
        scaled = left.scaled @ right.scaled.transpose(-2, -1) - left.removed @ right.removed.transpose(-2, -1)
        if "lengths" in self._names:
            scaled = scaled + self["smooth_variance"] * _rbf(left.x, right.x, self["lengths"])
        return left.fixed @ right.fixed.transpose(-2, -1), scaled

    def _of_factors(self, fixed: Tensor, scaled: Tensor) -> Tensor:
        """Return the covariances of all components, (*batch, components, n, m)."""
        return fixed.unsqueeze(-3) + self["factors"][:, None, None] ** 2 * scaled.unsqueeze(-3)


def stable_cholesky(matrices: Tensor) -> Tensor:
    """Return Cholesky factors (..., n, n), with as much added to each diagonal as rounding makes necessary."""
    root, failed = torch.linalg.cholesky_ex(matrices)
    diagonals, jitter = _diagonal(matrices), torch.zeros_like(failed, dtype=matrices.dtype).unsqueeze(-1)
    for each in JITTERS:
        if not failed.any():
            return root
        jitter = torch.where(failed.unsqueeze(-1) > 0, each, jitter)
        root, failed = torch.linalg.cholesky_ex(matrices + torch.diag_embed(jitter * diagonals))
    if failed.any():
        raise ValueError("The covariance of the readings is not positive definite. Check train_X for huge values.")
    return root


def _expanded(kinds: ColumnKinds, numbers: Tensor, x: Tensor, shares: Tensor) -> Tensor:
    """Return inputs (*batch, n, columns) as `ColumnKinds.expand` does. Gradients flow through numbers alone."""
    parts: list[Tensor] = []
    for i in kinds.order:
        column = x[..., i : i + 1]
        missing = torch.isnan(column)
        if kinds.levels[i]:
            codes = torch.arange(kinds.levels[i] + 1, dtype=x.dtype, device=x.device)
            start = sum(part.shape[-1] for part in parts)
            centered = (column == codes).to(x.dtype) - shares[start : start + len(codes)]
        else:
            centered = numbers[..., i : i + 1]
        parts.append(torch.where(missing, 0.0, centered))
        if i in kinds.covariates:
            parts.append(missing.to(x.dtype))
    return torch.cat(parts, -1)


def _rbf(x: Tensor, z: Tensor, lengths: Tensor) -> Tensor:
    """Return exp(-|x - z|^2 / (2 length^2)) of all pairs; unlike that of `torch.cdist`, its gradient exists at zero."""
    differences = (x.unsqueeze(-2) - z.unsqueeze(-3)) / lengths
    return torch.exp(-0.5 * differences.square().sum(-1))


def _solve(root: Tensor, right: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(root, right, upper=False)


def _diagonal(matrices: Tensor) -> Tensor:
    return torch.diagonal(matrices, dim1=-2, dim2=-1)


def _buffer(name: str) -> str:
    return name.replace(".", "_of_")  # names of buffers have no dots


def _flattened(arrays: dict[str, Any]) -> dict[str, Any]:
    """Return nested arrays by names such as `curve.line`."""
    nested = {name: value for name, value in arrays.items() if isinstance(value, dict)}
    inner = {f"{name}.{key}": each for name, value in nested.items() for key, each in value.items()}
    return {name: value for name, value in arrays.items() if name not in nested} | inner
