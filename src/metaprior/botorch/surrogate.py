"""A meta-learned prior as a model of BoTorch."""

# pyright: reportMissingImports=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false

from collections.abc import Callable
from typing import Any

import torch
from botorch.models.model import FantasizeMixin, Model
from botorch.models.utils.assorted import fantasize as fantasizing
from botorch.posteriors import GPyTorchPosterior, Posterior
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_linear_operator
from torch import Tensor
from torch.nn import Module

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
from metaprior.botorch.torch_process import Context, TorchMixture


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

    def __init__(self, meta: Any, train_X: Tensor | None = None, train_Y: Tensor | None = None):
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

    def _set(self, prior: "TorchMixture", train_X: Tensor, train_Y: Tensor) -> None:
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
