"""Priors in torch, differentiable and for batches of tasks: `prior.process` over torch, conditioned by its solvers.

A prior with all its members in torch: a mixture of Gaussian processes, and its moments.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module, ModuleList

from metaprior.linalg import JITTERS, ROUNDING
from metaprior.prior.fitted import Prior
from metaprior.prior.process import NOISE_FLOOR, Points, Process
from metaprior.tasks.columns import Features
from metaprior.tasks.scaling import MAX_SCALED

FOR_ROOTS = 1e-13  # of a prior variance, added to variances: samples of close points need a root of the covariance


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

    def __init__(self, prior: Prior):
        super().__init__()
        scaling, factors = prior.scaling, prior.factors
        self._kinds, self._fields = scaling.kinds, prior.process._asdict()
        arrays = {name: value for name, value in self._fields.items() if isinstance(value, np.ndarray)}
        units = {name: getattr(scaling, name) for name in ("x_mean", "x_std", "y_mean", "y_std", "x_map", "shares")}
        arrays |= {name: value for name, value in units.items() if value is not None}
        arrays |= {f"factor_{name}": value for name, value in factors._asdict().items()}
        for name, value in arrays.items():
            self.register_buffer(name, torch.as_tensor(np.array(value, np.float64)))

    def __getitem__(self, name: str) -> Tensor:
        return self.get_buffer(name)

    @property
    def process(self) -> Process:
        """The process, of tensors where they are now."""
        own = dict(self.named_buffers())
        return Process(**{name: own.get(name, value) for name, value in self._fields.items()})

    def condition(self, x: Tensor, y: Tensor) -> Context:
        """Condition on readings y (*batch, n) at inputs x (*batch, n, columns)."""
        x, process = self._standardized(x), self.process
        order = torch.argsort(-x.detach().square().sum(-1), dim=-1)  # far inputs first: rounding is least
        x = torch.take_along_dim(x, order.unsqueeze(-1), -2)
        shape = torch.broadcast_shapes(y.shape, order.shape)
        y = torch.take_along_dim(y.expand(shape), order.expand(shape), -1)
        points = process.describe(x, xp=torch)
        deviation = (y - self["y_mean"]) / self["y_std"] - points.common @ process.common_mean
        total = self._components(*process.covariance(points, points, torch))
        floor = ROUNDING * x.shape[-2] * _diagonal(total)
        noise = torch.maximum(self["factor_noise"].unsqueeze(-1) + NOISE_FLOOR, floor)
        root = stable_cholesky(total + torch.diag_embed(noise))
        residual = _solve(root, deviation[..., None, :, None])
        evidence = -0.5 * residual.square().sum((-2, -1)) - _diagonal(root).log().sum(-1)
        return Context(points, root, residual, torch.log_softmax(self["factor_log_weights"] + evidence, -1))

    def predict(self, context: Context, x: Tensor) -> Components:
        """Predict the latent function at inputs x (*batch, q, columns) jointly."""
        process = self.process
        queries = process.describe(self._standardized(x), xp=torch)
        solved = _solve(context.root, self._components(*process.covariance(context.points, queries, torch)))
        shift = (context.residual.mT @ solved).squeeze(-2)
        mean = (queries.common @ process.common_mean).unsqueeze(-2) + shift
        total = self._components(*process.covariance(queries, queries, torch))
        covariance = total - solved.mT @ solved
        prior = _diagonal(total)
        lost = torch.clamp_min(ROUNDING * prior - _diagonal(covariance), 0.0) + FOR_ROOTS * prior  # by rounding
        covariance = (covariance + torch.diag_embed(lost)) * self["y_std"] ** 2
        noise = self["factor_noise"] * self["y_std"] ** 2
        return Components(mean * self["y_std"] + self["y_mean"], covariance, noise, context.log_weights)

    def _standardized(self, x: Tensor) -> Tensor:
        """Return inputs in the units of the prior, with a column for every level of a category."""
        numbers = (x - self["x_mean"]) / self["x_std"]
        if self._kinds is not None:  # gradients flow through numbers alone
            numbers = self._kinds.expand(numbers, x.detach(), self["shares"], torch)
        return numbers @ self["x_map"] if "x_map" in dict(self.named_buffers()) else numbers

    def _components(self, fixed: Tensor, scaled: Tensor) -> Tensor:
        """Return the covariances of all components, (*batch, components, n, m)."""
        return fixed.unsqueeze(-3) + self["factor_scales"][:, None, None] ** 2 * scaled.unsqueeze(-3)


def stable_cholesky(matrices: Tensor) -> Tensor:
    """Return Cholesky factors (..., n, n), with as much added to each diagonal as rounding makes necessary."""
    root, failed = torch.linalg.cholesky_ex(matrices)
    diagonals, jitter = _diagonal(matrices), torch.zeros_like(failed, dtype=matrices.dtype).unsqueeze(-1)
    for each in JITTERS[1:]:
        if not failed.any():
            return root
        jitter = torch.where(failed.unsqueeze(-1) > 0, each, jitter)
        root, failed = torch.linalg.cholesky_ex(matrices + torch.diag_embed(jitter * diagonals))
    if failed.any():
        raise ValueError("The covariance of the readings is not positive definite. Check train_X for huge values.")
    return root


def _solve(root: Tensor, right: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(root, right, upper=False)


def _diagonal(matrices: Tensor) -> Tensor:
    return torch.diagonal(matrices, dim1=-2, dim2=-1)


class TorchMixture(Module):
    """The members of a prior, with their weights and the calibration of their predictions, and what its columns are."""

    log_weights: Tensor  # (members,)
    x_limits: Tensor  # (2, columns): of inputs that can be computed with
    y_limits: Tensor  # (2, 1)

    def __init__(self, model: Any, features: Features):
        super().__init__()
        self.features = features
        weighted = [(member, weight) for member, weight in zip(model.members, model.weights, strict=True) if weight > 0]
        self.spread = float(model.spread)
        processes = (TorchProcess(member) for member, _ in weighted)
        self.processes: Any = ModuleList(processes)
        for name in ("x", "y"):
            self.register_buffer(f"{name}_limits", self._limits(f"{name}_mean", f"{name}_std"))
        self.register_buffer("log_weights", torch.as_tensor(np.log([weight for _, weight in weighted])))

    def _limits(self, mean: str, std: str) -> Tensor:
        """Return the smallest and the largest values that no member finds too far from its tasks, (2, columns)."""
        ends = [[process[mean] + sign * MAX_SCALED * process[std] for sign in (-1, 1)] for process in self.processes]
        lower, upper = (torch.stack(of_all) for of_all in zip(*ends, strict=True))
        return torch.stack([lower.amax(0), upper.amin(0)]).reshape(2, -1)

    def condition(self, x: Tensor, y: Tensor) -> list[Context]:
        """Condition every member on readings."""
        return [process.condition(x, y) for process in self.processes]

    def predict(self, contexts: list[Context], x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean and covariance of the latent function at x, and the variance of the noise, (*batch,)."""
        parts = [process.predict(context, x) for process, context in zip(self.processes, contexts, strict=True)]
        log_weights = [part.log_weights + weight for part, weight in zip(parts, self.log_weights, strict=True)]
        mean, covariance = _moments(parts, torch.cat(log_weights, -1).exp())
        noise = torch.cat(log_weights, -1).exp() @ torch.cat([part.noise for part in parts])
        return mean, self.spread**2 * covariance, self.spread**2 * noise


def _moments(parts: list[Components], weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of a mixture of Gaussians, by the law of total covariance."""
    means, weights = torch.cat([part.mean for part in parts], -2), weights.unsqueeze(-1)
    mean = (weights * means).sum(-2)
    off = means - mean.unsqueeze(-2)
    within = (weights.unsqueeze(-1) * torch.cat([part.covariance for part in parts], -3)).sum(-3)
    return mean, within + off.transpose(-2, -1) @ (weights * off)
