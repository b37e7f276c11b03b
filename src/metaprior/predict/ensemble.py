"""Fitted priors, single or averaged. Nothing here depends on how they were fitted."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from metaprior.checks import counted
from metaprior.conventions import check_is_fitted
from metaprior.likelihoods.base import Likelihood, Prediction
from metaprior.predict.predictive import GaussianMixture, Predictive, stretch
from metaprior.tasks.scaling import Scaling


@runtime_checkable
class Member(Protocol):
    """A fitted prior that predicts new tasks, given their contexts. All arrays are NumPy's.

    A member of labels has `condition_labels` in place of `condition`, which takes the numbers of classes of the tasks
    too, and `class_log_probabilities` in place of `marginals` and `weighted_covariance`.

    A member may have two more attributes, for the sizes of chunks: `point_width`, the numbers that it computes per
    point (by default `input_dim`), and `accelerated`, whether it runs on an accelerator. A member of labels may
    have `most_labels`, which contexts are thinned to, and `expected_seconds`, of which users are warned if it is
    large. A posterior may have `converged`, (components, tasks): False warns that the posterior of a task is
    inexact. One with
    `latent_distances(posterior)`, (2, components, tasks), tells how far the latent functions of contexts are from
    its prior mean, squared and in units of their uncertainty, and the degrees of freedom of the chi-square variable
    that this is under the prior.
    """

    @property
    def scaling(self) -> Scaling:
        """The scaling of the tasks it was fitted to. Everything it gets is scaled by it."""
        ...

    @property
    def input_dim(self) -> int:
        """Number of input columns."""
        ...

    @property
    def n_components(self) -> int:
        """Number of Gaussian components of its predictions."""
        ...

    def take(self, posteriors: list[Any], places: np.ndarray) -> Any:
        """Join posteriors along their tasks and return those of the tasks at `places`, as NumPy arrays."""
        ...

    def float32_problem(self, largest_context: int, standardized: bool) -> str | None:
        """Return what float32 is too coarse for, or None if it is precise enough."""
        ...


@runtime_checkable
class NumberMember(Member, Protocol):
    """A member that predicts numbers: predictions are in the units of the latent function of its likelihood."""

    @property
    def likelihood(self) -> Likelihood:
        """What is observed of the latent function."""
        ...

    @property
    def component_parameters(self) -> np.ndarray:
        """Parameters of the likelihood of every component, (components, parameters)."""
        ...

    def condition(self, x: np.ndarray, y: np.ndarray, mask: np.ndarray) -> Any:
        """Return the posterior given padded contexts: x (tasks, size, input_dim), y and mask (tasks, size)."""
        ...

    def marginals(self, posterior: Any, x: np.ndarray) -> Prediction:
        """Predict x (tasks, queries, input_dim), each query on its own."""
        ...

    def weighted_covariance(self, posterior: Any, x: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """Return sum_k shares_k C_k, (n, n), of the components' covariances at x (1, n, input_dim) of one task."""
        ...


@runtime_checkable
class LabelMember(Member, Protocol):
    """A member that predicts labels."""

    def condition_labels(
        self, x: np.ndarray, y: np.ndarray, mask: np.ndarray, n_classes: np.ndarray, most: int = 0
    ) -> Any:
        """Return the posterior given padded contexts with codes y of `n_classes` (tasks,) classes.

        `most` is the number of classes that arrays have at least.
        """
        ...

    def class_log_probabilities(self, posterior: Any, x: np.ndarray) -> np.ndarray:
        """Return the log probabilities of all classes at x (tasks, queries, input_dim), (classes, tasks, queries)."""
        ...


class Ensemble(NamedTuple):
    """Fitted priors whose predictions are averaged, with weights that sum to one."""

    members: tuple[Member, ...]
    weights: np.ndarray  # (members,)
    spread: float = 1.0  # factor by which predictive distributions are stretched about their means
    conformal: Any = None  # a `Conformal`, if conformal intervals can be made

    def __repr__(self) -> str:
        members = f"{counted(len(self.members), 'prior')} of {counted(self.input_dim, 'input column')}"
        return f"Ensemble({members}, spread {self.spread:.3g})"

    @property
    def input_dim(self) -> int:
        """Number of input columns."""
        return len(self.members[0].scaling.x_mean)

    @property
    def component_weights(self) -> np.ndarray:
        """Weights of the components of all members, one member after another, if those of a member are equal."""
        pairs = zip(self.members, self.weights, strict=True)
        return np.concatenate([np.full(member.n_components, weight / member.n_components) for member, weight in pairs])

    @property
    def likelihood(self) -> Likelihood:
        """What is observed of the latent function of members that predict numbers."""
        members: tuple[Any, ...] = self.members
        return members[0].likelihood

    def predictive(
        self, means: np.ndarray, variances: np.ndarray, log_weights: np.ndarray, latent: bool
    ) -> "GaussianMixture | Predictive":
        """Return the predictive distribution of what `mixture` returns, (components, *points)."""
        if latent:
            return GaussianMixture(means, variances, log_weights)
        return Predictive(self.likelihood, means, variances, self.parameters, log_weights)

    @property
    def parameters(self) -> np.ndarray:
        """Parameters of the likelihood of all components, stretched, (components, parameters)."""
        members: tuple[Any, ...] = self.members
        parameters = np.concatenate([member.component_parameters for member in members])
        return self.likelihood.stretched(parameters, self.spread)

    def log_weights(self, of_members: Sequence[np.ndarray | None]) -> np.ndarray:
        """Return the log weights of all components, given those of `Prediction.log_weights` of every member.

        They are (components,), or (components, tasks) if those of any member depend on the task.
        """
        equal = np.log(self.component_weights)
        given = next((log_weights for log_weights in of_members if log_weights is not None), None)
        if given is None:
            return equal
        ends = np.cumsum([member.n_components for member in self.members])[:-1]
        parts = []
        for weight, alike, log_weights in zip(self.weights, np.split(equal, ends), of_members, strict=True):
            repeated = np.repeat(alike[:, None], given.shape[1], axis=1)
            parts.append(repeated if log_weights is None else np.log(weight) + log_weights)
        return np.concatenate(parts)

    def stretch(
        self, means: np.ndarray, variances: np.ndarray, log_weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Stretch a mixture about its mean by `spread`."""
        return (means, variances) if self.spread == 1.0 else stretch(means, variances, log_weights, self.spread)


def predicts_labels(meta: Any) -> bool:
    """Return whether a fitted estimator predicts labels; raise if `meta` is not a fitted estimator."""
    if not hasattr(type(meta), "transfer_report"):
        raise ValueError(f"meta must be a fitted MetaGPRegressor or MetaGPClassifier; got {type(meta).__name__}.")
    check_is_fitted(meta, "model_")
    return meta.likelihood_ == "bernoulli"


def mixture(
    model: Ensemble, predictions: Sequence[Prediction], latent: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Average the members' predictions of t: means, variances and log weights of all components.

    The log exposure of counts is added, unless the latent function is asked for.
    """
    means = [each.mean if latent or each.offset is None else each.mean + each.offset for each in predictions]
    variances = [each.variance for each in predictions]
    if len(predictions) > 1:
        means, variances = [np.concatenate(means)], [np.concatenate(variances)]
    log_weights = model.log_weights([prediction.log_weights for prediction in predictions])
    return *model.stretch(means[0], variances[0], log_weights), log_weights
