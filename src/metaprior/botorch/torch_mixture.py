"""A prior with all its members in torch: a mixture of Gaussian processes, and its moments."""

# pyright: reportMissingImports=false

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module, ModuleList

from metaprior.botorch.torch_process import Components, Context, TorchProcess
from metaprior.tasks.input_columns import Features
from metaprior.tasks.scaling import MAX_SCALED


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
