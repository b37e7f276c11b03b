"""A meta-learned prior as a model of BoTorch: `prior.process` over torch, differentiable and for batches of tasks."""

# pyright: reportMissingImports=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from botorch.models.model import FantasizeMixin, Model
from botorch.models.utils.assorted import fantasize as fantasizing
from botorch.posteriors import GPyTorchPosterior, Posterior
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_linear_operator
from torch import Tensor
from torch.nn import Module, ModuleList

from metaprior.botorch.checks import (
    as_variances,
    check_batches,
    check_constant,
    check_gradients,
    check_inputs,
    check_output,
    check_outputs,
    check_prior,
    check_size,
    warn_if_implausible,
    with_covariates,
)
from metaprior.estimators.regressor import MetaGPRegressor
from metaprior.linalg import JITTERS, ROUNDING
from metaprior.predict.ensemble import Ensemble
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

    def __init__(self, model: Ensemble, features: Features):
        super().__init__()
        self.features = features
        weighted = [(member, weight) for member, weight in zip(model.members, model.weights, strict=True) if weight > 0]
        self.spread = float(model.spread)
        self.processes: Any = ModuleList(TorchProcess(member) for member, _ in weighted if isinstance(member, Prior))
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


class MetaPriorModel(Model, FantasizeMixin):
    """A meta-learned prior as a model of BoTorch, given the evaluations of a new task so far.

    The posterior is exact, differentiable, and needs no fit: hyper-parameters come from the tasks that the prior was
    fitted to. A prior that averages several Gaussian processes is a mixture, whose components evaluations reweight.
    The posterior is the Gaussian with the mean and the covariance of the mixture, jointly over all points: those of
    `meta.adapt(X, y).predict`.

    BoTorch maximizes. If small outputs are good, fit the prior to -y, or pass the acquisition function
    `ScalarizedPosteriorTransform(weights=torch.tensor([-1.0], dtype=torch.float64))`.

    Inputs are those of the tasks of the fit, in the same units: the prior scales them itself. Search within
    `meta.feature_range_`, beyond which it extrapolates.

    A category is the code of its level: its place in `meta.column_levels_`. It has no gradient, so fix it in searches
    by gradients, as `optimize_acqf_mixed` does. A covariate has one value in all rows of a task. NaN is a missing one;
    in X it stands for that of `train_X`. Other codes and values, and gradients that would reach either, are errors.

    Parameters
    ----------
    meta : MetaGPRegressor
        A fitted prior of the default kind. Priors trained by gradients predict with JAX and are refused.
    train_X : Tensor of shape (batch_shape, n, d), optional
        Inputs evaluated so far, in float64. Default: none.
    train_Y : Tensor of shape (batch_shape, n, 1), optional
        Their outputs, with the noise that the prior has learned.

    Attributes
    ----------
    train_inputs : tuple of Tensor
        `(train_X,)`, as models of GPyTorch have them.
    train_targets : Tensor of shape (batch_shape, n)
        The outputs.

    Examples
    --------
    >>> import torch
    >>> from botorch.acquisition import LogExpectedImprovement
    >>> from botorch.optim import optimize_acqf
    >>> from metaprior import MetaGPRegressor
    >>> from metaprior.botorch import MetaPriorModel
    >>> from metaprior.datasets import Sinusoid
    >>> meta = MetaGPRegressor(random_state=0).fit(target_tasks=Sinusoid(deviation=0.25).target_tasks(10, 8, rng=0))
    >>> X = torch.tensor([[0.5], [2.0]], dtype=torch.float64)
    >>> Y = torch.tensor([[5.0], [4.0]], dtype=torch.float64)
    >>> model = MetaPriorModel(meta, X, Y)
    >>> bounds = torch.as_tensor(meta.feature_range_)
    >>> candidate, _ = optimize_acqf(LogExpectedImprovement(model, Y.max()), bounds, 1, num_restarts=2, raw_samples=16)
    >>> candidate.shape
    torch.Size([1, 1])
    """

    _train_X: Tensor
    _train_Y: Tensor

    def __init__(self, meta: MetaGPRegressor, train_X: Tensor | None = None, train_Y: Tensor | None = None):
        super().__init__()
        check_prior(meta)
        prior = TorchMixture(meta.model_, meta.features_)
        if (train_X is None) != (train_Y is None):
            raise ValueError("train_X and train_Y must be given together; got one of them.")
        if train_X is None or train_Y is None:
            train_X, train_Y = (torch.empty(0, n, dtype=torch.float64) for n in (meta.n_features_in_, 1))
        else:
            check_inputs("train_X", train_X, prior.features)
            check_constant("train_X", train_X, prior.features)
            check_outputs("train_Y", train_Y, train_X)
            check_batches({"train_X": train_X.shape[:-2], "train_Y": train_Y.shape[:-2]})
            check_size("train_X", train_X, prior.x_limits, "inputs of the fit")
            check_size("train_Y", train_Y, prior.y_limits, "outputs of the fit")
            warn_if_implausible(meta, train_X, train_Y)
        self._set(prior, train_X.detach(), train_Y.detach())

    @property
    def num_outputs(self) -> int:
        """The number of outputs: one."""
        return 1

    @property
    def batch_shape(self) -> torch.Size:
        """The batch shape of the evaluations so far."""
        return self.train_targets.shape[:-1]

    @property
    def train_inputs(self) -> tuple[Tensor, ...]:
        """The inputs evaluated so far."""
        return (self._train_X,)

    @property
    def train_targets(self) -> Tensor:
        """The outputs so far."""
        return self._train_Y.squeeze(-1)

    def posterior(  # type: ignore[override]
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Any = None,
    ) -> Posterior:
        """Return the posterior of the latent function, or of new observations.

        Parameters
        ----------
        X : Tensor of shape (batch_shape, q, d)
            Inputs, in float64. The q points of a batch are predicted jointly.
        output_indices : list of int, optional
            None or [0]: there is one output.
        observation_noise : bool or Tensor of shape (batch_shape, q, 1), default=False
            Whether to add the noise that the prior has learned, or variances to add instead.
        posterior_transform : PosteriorTransform, optional
            Applied to the posterior.

        Returns
        -------
        GPyTorchPosterior
            Of shape (batch_shape, q, 1); the batch shapes of X and of the evaluations so far broadcast.
        """
        X = self._checked(X)
        check_output("output_indices", output_indices)
        if self._contexts is None:
            self._contexts = self._prior.condition(self._train_X, self.train_targets)
        mean, covariance, noise = self._prior.predict(self._contexts, X)
        if isinstance(observation_noise, Tensor):
            covariance = covariance + torch.diag_embed(as_variances(observation_noise, mean.shape))
        elif observation_noise:
            covariance = covariance + torch.diag_embed(noise.unsqueeze(-1).expand(mean.shape))
        posterior = GPyTorchPosterior(MultivariateNormal(mean, to_linear_operator(covariance)))
        return posterior if posterior_transform is None else posterior_transform(posterior=posterior, X=X)

    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> "MetaPriorModel":
        """Return the model given more evaluations: what adapting the prior to all of them at once gives.

        Parameters
        ----------
        X : Tensor of shape (batch_shape, n, d)
        Y : Tensor of shape (batch_shape, n, 1)
            Batch shapes broadcast with each other and with that of the model.
        **kwargs
            None: noise that is given, `noise`, is refused, for the prior has learned its own.

        Returns
        -------
        MetaPriorModel
            A new one; this one stays as it is. Gradients flow through X and Y.
        """
        if kwargs:
            raise ValueError(f"condition_on_observations takes X and Y alone; got {', '.join(sorted(kwargs))}.")
        X = self._checked(X)
        check_constant("X", X, self._prior.features)
        check_outputs("Y", Y, X)
        check_batches({"X": X.shape[:-2], "Y": Y.shape[:-2], "the evaluations so far": self.batch_shape})
        check_size("Y", Y.detach(), self._prior.y_limits, "outputs of the fit")
        of_x = torch.broadcast_shapes(self._train_X.shape[:-2], X.shape[:-2])
        of_y = torch.broadcast_shapes(self._train_Y.shape[:-2], Y.shape[:-2])
        pairs = (self._train_X, X, of_x), (self._train_Y, Y, of_y)
        joined = (torch.cat([each.expand(*shape, *each.shape[-2:]) for each in pair], -2) for *pair, shape in pairs)
        model = MetaPriorModel.__new__(MetaPriorModel)
        Module.__init__(model)
        model._set(self._prior, *joined)
        return model.train(self.training)

    def fantasize(self, X: Tensor, sampler: Any, observation_noise: Tensor | None = None, **kwargs: Any) -> Any:
        """Return the model given outputs that are drawn from its own posterior.

        Parameters
        ----------
        X : Tensor of shape (batch_shape, n, d)
        sampler : MCSampler
            Draws the outputs.
        observation_noise : None
            The prior has learned its noise; a Tensor is refused.

        Returns
        -------
        MetaPriorModel
            Its batch shape is that of the sampler, then that of X.
        """
        if observation_noise is not None:
            raise ValueError("observation_noise must be None: the prior has learned its noise; got another one.")
        with fantasizing():
            Y = sampler(self.posterior(X, observation_noise=True))
        return self.condition_on_observations(X, Y)

    def subset_output(self, idcs: list[int]) -> "MetaPriorModel":
        """Return the model of some outputs: this one, for it has one output.

        Parameters
        ----------
        idcs : list of int
            [0].

        Returns
        -------
        MetaPriorModel
        """
        check_output("idcs", idcs)
        return self

    def _checked(self, X: Tensor) -> Tensor:
        """Return inputs with the covariates of the task where they are NaN; raise if they are no inputs of the task."""
        check_inputs("X", X, self._prior.features)
        check_batches({"X": X.shape[:-2], "the evaluations so far": self.batch_shape})
        check_size("X", X.detach(), self._prior.x_limits, "inputs of the fit")
        check_gradients("X", X, self._prior.features)
        return with_covariates("X", X, self._train_X, self._prior.features)

    def _set(self, prior: TorchMixture, train_X: Tensor, train_Y: Tensor) -> None:
        self._prior = prior
        shape = torch.broadcast_shapes(train_X.shape[:-2], train_Y.shape[:-2])
        self.register_buffer("_train_X", train_X)  # its batch may be smaller: fantasies at the same inputs share a root
        self.register_buffer("_train_Y", train_Y.expand(*shape, *train_Y.shape[-2:]))
        self._contexts: list[Context] | None = None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        # Acquisition functions cast their model to the type of X. The prior goes to its device, in double precision.
        device = fn(torch.empty(0, dtype=torch.float64, device=self._train_X.device)).device
        if device != self._train_X.device:
            self._contexts = None
        return super()._apply(lambda tensor: tensor.to(device), recurse)
