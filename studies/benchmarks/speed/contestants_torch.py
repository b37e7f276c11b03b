"""The same loss in GPyTorch, task by task and batched, and in plain torch.

The hyper-prior N(0, I) is Adam's (coupled) weight decay of one, whose gradient is exactly that of -log p(theta) and
costs torch almost nothing. `loss_and_gradient` adds it, for comparison with the others.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.distributions import MultivariateNormal
from torch import nn

from speed.problem import LEARNING_RATE, NOISE_STD, OUTPUT_SCALE, Data, Layers, Networks
from speed.timing import seconds

LOG_TWO_PI = math.log(2.0 * math.pi)


class TorchTraining:
    """Adam on a loss of given parameters, with `n_threads` threads (see `choose_threads`)."""

    def __init__(self, parameters: Sequence[nn.Parameter], data_loss: Callable[[], torch.Tensor]):
        self.parameters = list(parameters)
        self.data_loss = data_loss
        self.optimizer = torch.optim.Adam(self.parameters, lr=LEARNING_RATE, weight_decay=1.0, fused=True)
        self.n_threads = 1

    def steps(self, n_steps: int) -> None:
        """Train."""
        torch.set_num_threads(self.n_threads)
        for _ in range(n_steps):
            self.optimizer.zero_grad()
            self.data_loss().backward()
            self.optimizer.step()

    def loss_and_gradient(self) -> tuple[float, np.ndarray]:
        """Return the negative log Gibbs density and its flat gradient."""
        loss = self.data_loss()
        gradients = torch.autograd.grad(loss, self.parameters)
        theta = torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])
        prior = 0.5 * theta.square().sum().item() + 0.5 * len(theta) * LOG_TWO_PI
        return loss.item() + prior, (torch.cat([g.reshape(-1) for g in gradients]) + theta).numpy()


class TaskGP(gpytorch.models.ExactGP):
    """A GP of one task or a batch of tasks, with shared networks and kernel."""

    def __init__(self, x: Any, y: Any, likelihood: Any, mean: nn.Module, features: nn.Module, kernel: Any):
        super().__init__(x, y, likelihood)
        self.mean, self.features, self.kernel = mean, features, kernel

    def forward(self, x: torch.Tensor) -> MultivariateNormal:
        """Return the prior at x."""
        return MultivariateNormal(self.mean(x).squeeze(-1), self.kernel(self.features(x)))


class SharedParts:
    """The trained networks, and the paper's kernel and noise, which are fixed."""

    def __init__(self, networks: Networks):
        self.mean, self.features = make_network(networks.mean), make_network(networks.features)
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
        self.kernel.outputscale = OUTPUT_SCALE
        self.kernel.base_kernel.lengthscale = math.sqrt(0.5)
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
        self.likelihood.noise = NOISE_STD**2
        for parameter in (*self.kernel.parameters(), *self.likelihood.parameters()):
            parameter.requires_grad_(False)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trained parameters."""
        return [*self.mean.parameters(), *self.features.parameters()]

    def task_gp(self, x: torch.Tensor, y: torch.Tensor) -> TaskGP:
        """Return the model of one task or of many."""
        return TaskGP(x, y, self.likelihood, self.mean, self.features, self.kernel)


def make_network(layers: Layers) -> nn.Sequential:
    """Return a network with tanh between the layers."""
    modules: list[nn.Module] = []
    for weight, bias in layers:
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        linear.weight.data, linear.bias.data = _tensor(weight), _tensor(bias)
        modules += [linear, nn.Tanh()]
    return nn.Sequential(*modules[:-1])


def gpytorch_loop(networks: Networks, data: Data) -> TorchTraining:
    """Train one ExactGP per task in a Python loop, as the reference implementation of PACOH does."""
    parts = SharedParts(networks)
    models = [parts.task_gp(x, y).train() for x, y in zip(_tensor(data.x), _tensor(data.y), strict=True)]
    evidences = [gpytorch.mlls.ExactMarginalLogLikelihood(parts.likelihood, model) for model in models]
    weights = (data.temperature * data.weights).tolist()

    def data_loss() -> torch.Tensor:
        terms = zip(weights, models, evidences, strict=True)
        return -sum(weight * evidence(gp(*gp.train_inputs), gp.train_targets) for weight, gp, evidence in terms)

    return TorchTraining(parts.parameters, data_loss)


def gpytorch_batched(networks: Networks, data: Data) -> TorchTraining:
    """Train one ExactGP of a batch of tasks. GPyTorch uses Cholesky for matrices of this size in any case."""
    parts = SharedParts(networks)
    x, y, weights = _tensor(data.x), _tensor(data.y), data.temperature * _tensor(data.weights)
    gp = parts.task_gp(x, y).train()
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(parts.likelihood, gp)
    return TorchTraining(parts.parameters, lambda: -(weights * evidence(gp(x), y)).sum())


def plain(networks: Networks, data: Data, compiled: bool = False) -> TorchTraining:
    """Train on all tasks at once: networks on all samples as rows, then batched Cholesky.

    `compiled` uses torch.compile, which needs a C++ compiler.
    """
    mean, features = make_network(networks.mean), make_network(networks.features)
    (n_tasks, n_samples, input_dim), y = data.x.shape, _tensor(data.y)
    rows, weights = _tensor(data.x).reshape(-1, input_dim), data.temperature / n_samples * _tensor(data.weights)
    noise, constant = NOISE_STD**2 * torch.eye(n_samples), 0.5 * n_samples * LOG_TWO_PI

    def data_loss() -> torch.Tensor:
        residual = y - mean(rows).reshape(n_tasks, n_samples)
        covariance = _kernel(features(rows).reshape(n_tasks, n_samples, -1)) + noise
        return (weights * (_half_terms(covariance, residual) + constant)).sum()

    loss = torch.compile(data_loss) if compiled else data_loss
    return TorchTraining([*mean.parameters(), *features.parameters()], loss)


class SteinTraining(TorchTraining):
    """SVGD with the median heuristic; parameters have an axis of particles, layers are batched products."""

    def __init__(self, networks: Networks, data: Data):
        leaves = [[nn.Parameter(_tensor(leaf)) for layer in layers for leaf in layer] for layers in networks]
        self.mean_leaves, self.feature_leaves = leaves
        self.shape, self.y = data.x.shape, _tensor(data.y)
        self.rows = _tensor(data.x).reshape(1, -1, data.x.shape[2])
        self.weights = data.temperature / self.shape[1] * _tensor(data.weights)
        self.noise = NOISE_STD**2 * torch.eye(self.shape[1])
        super().__init__([*self.mean_leaves, *self.feature_leaves], self._data_loss)
        self.optimizer.param_groups[0]["weight_decay"] = 0.0  # the scores include the hyper-prior

    def steps(self, n_steps: int) -> None:
        """Train."""
        torch.set_num_threads(self.n_threads)
        for _ in range(n_steps):
            direction = self.direction().split([leaf[0].numel() for leaf in self.parameters], dim=1)
            for parameter, part in zip(self.parameters, direction, strict=True):
                parameter.grad = part.reshape(parameter.shape)
            self.optimizer.step()

    def direction(self) -> torch.Tensor:
        """Return the descent direction (particles, numbers): (k @ gradient - repulsion) / K."""
        gradients = torch.autograd.grad(self.data_loss(), self.parameters)
        with torch.no_grad():
            theta = torch.cat([parameter.flatten(1) for parameter in self.parameters], dim=1)
            gradient = torch.cat([part.flatten(1) for part in gradients], dim=1) + theta
            distances = torch.cdist(theta, theta, compute_mode="donot_use_mm_for_euclid_dist").square()
            pairs = distances[*torch.triu_indices(len(theta), len(theta), 1)]
            length_scale = pairs.quantile(0.5) / (2.0 * math.log(len(theta) + 1))
            values = torch.exp(-distances / (2.0 * length_scale))
            repulsion = (values.sum(1, keepdim=True) * theta - values @ theta) / length_scale
            return (values @ gradient - repulsion) / len(theta)

    def _data_loss(self) -> torch.Tensor:
        """Return the sum over particles; each term depends only on the parameters of its particle."""
        n_tasks, n_samples, _ = self.shape
        residual = self.y - self._network(self.mean_leaves).reshape(-1, n_tasks, n_samples)
        features = self._network(self.feature_leaves).reshape(-1, n_tasks, n_samples, self.feature_leaves[-1].shape[-1])
        return (self.weights * _half_terms(_kernel(features) + self.noise, residual)).sum()

    def _network(self, leaves: Sequence[torch.Tensor]) -> torch.Tensor:
        x = self.rows.expand(len(leaves[0]), -1, -1)
        for i, (weight, bias) in enumerate(zip(leaves[::2], leaves[1::2], strict=True)):
            x = torch.baddbmm(bias[:, None, :], x, weight.mT)
            x = x if 2 * i + 2 == len(leaves) else torch.tanh(x)
        return x


def gpytorch_predict(parts: SharedParts, x: Any, y: Any, x_query: Any, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of new observations of many tasks, `batch` tasks at once."""
    means, deviations = [], []
    with torch.no_grad(), gpytorch.settings.fast_pred_var(), gpytorch.settings.debug(False):
        for first in range(0, len(x), batch):
            part = slice(first, first + batch)
            gp = parts.task_gp(_tensor(x[part]), _tensor(y[part])).eval()
            parts.likelihood.eval()
            predictive = parts.likelihood(gp(_tensor(x_query[part])))
            means.append(predictive.mean.numpy())
            deviations.append(predictive.stddev.numpy())
    return np.concatenate(means), np.concatenate(deviations)


def choose_threads(training: Any, call: Callable[[], Any], n_cores: int, rounds: int = 7) -> int:
    """Set and return the number of threads, one or all cores, with which a call is faster (medians, in turn).

    On a busy machine threads that wait for each other can be a hundred times slower, which would be unfair to torch.
    """
    times: dict[int, list[float]] = {n_threads: [] for n_threads in sorted({1, n_cores})}
    medians: dict[int, float] = {}
    for done in range(rounds):
        for n_threads, of_threads in times.items():
            training.n_threads = n_threads
            of_threads.append(seconds(call))
        medians = {n_threads: float(np.median(of_threads[1:] or of_threads)) for n_threads, of_threads in times.items()}
        if done >= 2 and max(medians.values()) > 2.0 * min(medians.values()):
            break  # the difference is clear
    training.n_threads = min(medians, key=lambda n_threads: medians[n_threads])
    return training.n_threads


def _kernel(features: torch.Tensor) -> torch.Tensor:
    squares = (features[..., :, None, :] - features[..., None, :, :]).square().sum(-1)
    return OUTPUT_SCALE * torch.exp(-squares)


def _half_terms(covariance: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """Return the negative log evidence up to a constant. `cholesky_ex` does not wait for an error code."""
    factor = torch.linalg.cholesky_ex(covariance).L
    whitened = torch.linalg.solve_triangular(factor, residual[..., None], upper=False)[..., 0]
    return 0.5 * whitened.square().sum(-1) + factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _tensor(array: Any) -> torch.Tensor:
    return torch.tensor(np.asarray(array, np.float32))
