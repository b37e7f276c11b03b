"""The result of a fit, whatever fitted it: what the estimators record, save and describe.

What all estimators share, whatever fits their prior: checks, the report, files.

How the default fits a prior: families of hierarchical priors, compared by cross-validation and averaged.
"""

import os
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import numpy as np

from metaprior.checks import check_noise, counted, draw_seed
from metaprior.conventions import Bunch, Parameters, check_is_fitted, own_float_errors
from metaprior.estimators.arguments import (
    NamedEnvironments,
    check_context_size,
    names_elsewhere,
    outputs_of,
    refuse_elsewhere,
    warn_if_no_target_tasks,
)
from metaprior.estimators.files import FileFormat, Header, Model, write_prior
from metaprior.estimators.seen_tasks import TaskRecognition, check_covariates, check_noise_size, remember
from metaprior.files import Arrays, check_weights, package_versions, require
from metaprior.predict.conformal import coverage_words
from metaprior.predict.ensemble import Ensemble
from metaprior.progress import phases
from metaprior.search.report import Certificate, TransferReport, certify
from metaprior.storage.stored_tasks import StoredTasks
from metaprior.tasks.columns import Features
from metaprior.tasks.scaling import Scaling
from metaprior.tasks.splits import as_context_rule, check_order
from metaprior.tasks.types import Task, TestTask

MAX_RECORDED_INPUTS = 100  # whose scaling is recorded; images have thousands


@dataclass(frozen=True, eq=False)
class FittedPrior:
    """A fitted prior and the record of its fit."""

    model: Ensemble
    report: TransferReport
    family: str  # of the largest weight
    training: dict[str, Any]  # entries of `training_` that only this way to fit has
    attributes: dict[str, Any] = field(default_factory=dict)  # of the estimator, that only this way to fit has
    sample: Sequence[Sequence[Task]] | None = None  # what the fit has used of the tasks of each environment
    baselines: dict[str, Ensemble] = field(default_factory=dict)  # what users would fit instead, see `pooled_models`


def training_record(
    names: Sequence[str], tasks: Sequence[Sequence[Task]], target: int, fitted: FittedPrior, seconds: float
) -> dict[str, Any]:
    """Describe the training for the saved file and `metaprior info`; the scaling is that of the largest weight."""
    member = heaviest(fitted.model)
    scaling = getattr(member, "terms", member).scaling  # that of the latent function, where there is one
    named = zip(names, tasks, fitted.sample or tasks, strict=True)
    return {
        "environments": {name: _counts(group, used) for name, group, used in named},
        "target": names[target],
        "scaling": _describe_scaling(scaling),
        **fitted.training,
        "seconds": round(seconds, 1),
        "versions": package_versions(),
    }


def heaviest(model: Ensemble) -> Any:
    """Return the member of largest weight."""
    return model.members[int(np.argmax(model.weights))]


def _describe_scaling(scaling: Scaling) -> dict[str, Any]:
    return {
        "x_mean": np.asarray(scaling.x_mean[:MAX_RECORDED_INPUTS], float).tolist(),
        "x_std": np.asarray(scaling.x_std[:MAX_RECORDED_INPUTS], float).tolist(),
        "y_mean": float(scaling.y_mean),
        "y_std": float(scaling.y_std),
    }


def _counts(tasks: Sequence[Task], used: Sequence[Task]) -> dict[str, int]:
    """Count the tasks and samples of an environment and, if the fit has used fewer, those too."""
    counts = {"tasks": len(tasks), "samples": _count_samples(tasks)}
    of_used = {"used_tasks": len(used), "used_samples": _count_samples(used)}
    return counts if [*counts.values()] == [*of_used.values()] else {**counts, **of_used}


def _count_samples(tasks: Sequence[Task]) -> int:
    return tasks.n_samples if isinstance(tasks, StoredTasks) else sum(len(task.y) for task in tasks)


Estimator = TypeVar("Estimator", bound="MetaGP")


@own_float_errors
class MetaGP(TaskRecognition, Parameters):
    """A Gaussian-process prior that is meta-learned from tasks of several environments."""

    likelihood_: str  # that the prior was fitted with; "bernoulli" for labels
    alpha: Any
    context: Any
    categorical: Any
    random_state: Any
    covariates: Any = None
    _file_format: ClassVar[FileFormat]  # what its files hold beyond what all of them do
    _elsewhere: ClassVar[Mapping[str, str]] = MappingProxyType({})  # what to use instead, by the name of an argument
    _fits_pooled_models: ClassVar[bool] = False  # those that `compare` scores beside the prior

    def _fit_anew(self: Estimator, source_tasks: Any, target_tasks: Any, target: Any, **how: Any) -> Estimator:
        """Fit, all or nothing: if it fails or is interrupted, the estimator stays as it was."""
        fresh = type(self)(**self.get_params(deep=False))
        started = time.monotonic()
        fresh._check_parameters()
        features = Features(asked=(fresh.covariates, fresh.categorical))
        environments = fresh._read_environments(source_tasks, target_tasks, target, features)
        check_order(fresh.context, features)
        check_context_size(fresh.context, environments)
        features.warn_if_mixed()
        seen = [remember(tasks, environments.input_dim) for tasks in environments.tasks]
        check_covariates(features, seen)
        check_noise_size(check_noise(fresh._noise_std), seen)
        fitted, tests = fresh._fit_prior(environments, features, **how)
        fresh._record(fitted, environments, time.monotonic() - started)
        fresh._remember_tasks(features, seen, environments.target, tests)
        kept = {name: value for name, value in vars(self).items() if not name.endswith("_")}
        self.__dict__ = {**kept, **vars(fresh)}  # nothing of an earlier fit
        return self

    def set_params(self, **params: Any) -> Any:
        """Set parameters, as every scikit-learn estimator does."""
        refuse_elsewhere(type(self), params)
        return super().set_params(**params)

    def predict(self, X: Any) -> Any:
        """Raise a TypeError: a prior predicts for a task, so it has to be adapted first."""
        raise TypeError(
            f"{type(self).__name__} predicts for a task, of which it needs a few readings first: call "
            "adapt(X_context, y_context).predict(X), or predict_many for many tasks. Without any readings, "
            "adapt([], []).predict(X) predicts from the prior."
        )

    def to_sklearn(self) -> Any:
        """Return an estimator of single tasks for scikit-learn's tools, not fitted yet: its `fit` adapts this prior.

        Returns
        -------
        SingleTaskRegressor or SingleTaskClassifier
            Clones share the prior, where those of this estimator would have to be meta-trained again.
        """
        check_is_fitted(self, "model_")
        from metaprior.predict.single_task import SingleTaskClassifier, SingleTaskRegressor, refuse_categories

        refuse_categories(self.features_)
        single = SingleTaskClassifier if self.likelihood_ == "bernoulli" else SingleTaskRegressor
        return single(self.adapt([], []))

    def transfer_report(self) -> TransferReport:
        """Report whether the source helps, by how much, and how certain that is.

        Returns
        -------
        TransferReport
            Print it for a table; its `plot` method draws it.
        """
        check_is_fitted(self, "model_")
        return self.report_

    def certify(self, test_tasks: Iterable[Any], other: "MetaGP", context: Any = None) -> Certificate:
        """Bound the chance that a new task is predicted better by this prior than by another, such as target-only.

        Better is a smaller negative log likelihood, or log loss of labels. The bound is exact if the tasks are
        independent draws from the target environment that neither prior was fitted to.

        Parameters
        ----------
        test_tasks : sequence of (X_context, y_context, X_query, y_query)
            As for `evaluate`.
        other : MetaGPRegressor or MetaGPClassifier
            The prior to compare with, fitted to the same kind of tasks.
        context : "random", "first", int, or ("first", int), optional
            As for `evaluate`.

        Returns
        -------
        Certificate
            With `helped`, `tied`, `n_tasks`, `lower_bound`, `p_value` of the sign test, and `words`.
        """
        check_is_fitted(self, "model_")
        labels = self.likelihood_ == "bernoulli"
        likelihood = getattr(other, "likelihood_", None) if isinstance(other, MetaGP) else None
        if likelihood is None or (likelihood == "bernoulli") != labels:
            kind = "labels" if labels else "numbers"
            raise ValueError(f"other must be a fitted prior of {kind}; got {type(other).__name__}.")
        tests = list(test_tasks)
        loss = "log_loss" if labels else "nll"
        own, others = (each.evaluate(tests, context=context).per_task[loss] for each in (self, other))
        return certify(others - own)

    @property
    def alpha_path_(self) -> Bunch:
        """The candidates that were compared: arrays `alpha`, `score`, `standard_error` and `weight`."""
        report = self.transfer_report()
        names = ("alpha", "score", "standard_error", "weight")
        return Bunch(**{name: getattr(report, name) for name in names})

    def save(self, path: str | os.PathLike, *, private: Any = False) -> None:
        """Write the fitted prior to one file, which `metaprior.load` reads.

        The file holds no readings. By slow digests it recognizes tasks of the fit that cannot be guessed.

        Parameters
        ----------
        path : path-like
            The file, in safetensors format: tensors and JSON, no pickle. It is replaced atomically.
        private : bool, default=False
            Leave out these digests, so that `fitted_on` raises, and the name of the table; make ranges of inputs
            coarse.

        Raises
        ------
        InvalidFile
            If the file could not be loaded. Nothing is written then.
        ValueError
            If `private=True` and the prior has conformal intervals, whose fits tell averages of single tasks.
        """
        check_is_fitted(self, "model_")
        write_prior(self, path, private)

    def _record(self, fitted: FittedPrior, environments: NamedEnvironments, seconds: float) -> None:
        """Set the fitted attributes."""
        names, tasks, target, *_ = environments
        self.model_, self.baselines_, self.family_ = fitted.model, fitted.baselines, fitted.family
        self.likelihood_ = self._kind
        self.report_ = replace(fitted.report, outputs=outputs_of(self._kind))
        # All that anything after the fit knows of the parameters: others may be set later.
        self.parameters_ = self.get_params(deep=False)
        self.environment_weights_ = self.report_.weight @ self.report_.environment_weights
        self.alpha_ = float(self.report_.weight @ self.report_.alpha)
        self.family_weights_ = self.report_.families or {fitted.family: 1.0}
        for name, value in fitted.attributes.items():
            setattr(self, name, value)
        self.n_features_in_ = self.model_.input_dim
        self.training_ = training_record(names, tasks, target, fitted, seconds)
        self.covariate_weights_ = self.training_.get("covariates", {})

    @abstractmethod
    def adapt(self, X: Any, y: Any) -> Any:
        """Condition the prior on the readings of a new task."""

    @abstractmethod
    def evaluate(self, test_tasks: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        """Adapt to the contexts of test tasks and score the predictions of their queries."""

    @property
    @abstractmethod
    def _kind(self) -> str:
        """The name of the likelihood."""

    @property
    def _noise_std(self) -> Any:
        """The noise that was asked for."""
        return "learned"

    def _saved_parameters(self) -> dict[str, Any]:
        """Return the parameters that a file holds."""
        return self.parameters_

    @abstractmethod
    def _check_parameters(self) -> None:
        """Check every parameter that can be checked without data."""

    @abstractmethod
    def _read_environments(
        self, source_tasks: Any, target_tasks: Any, target: Any, features: Features
    ) -> NamedEnvironments:
        """Check the tasks, and learn their features."""

    @abstractmethod
    def _fit_prior(
        self, environments: NamedEnvironments, features: Features, **how: Any
    ) -> tuple[FittedPrior, list[TestTask] | None]:
        """Fit the prior to checked tasks. Return it with the tasks that it was validated on, if there are any."""

    def __repr__(self) -> str:
        parameters = super().__repr__()
        if not hasattr(self, "training_"):
            return parameters
        counts = {name: count["tasks"] for name, count in self.training_["environments"].items() if count["tasks"]}
        of_each = [f"{count} of {name}" for name, count in counts.items()]
        tasks = f"{counted(sum(counts.values()), 'task')} ({', '.join(of_each[:4] + ['...'] * (len(of_each) > 4))})"
        fitted = f"a prior fitted to {tasks} with {counted(self.n_features_in_, 'input column')}"
        private = ", saved as private: it recognizes none of them" if self.private_ else ""
        intervals = ""
        if (conformal := self.model_.conformal) is not None:
            intervals = f", with conformal intervals ({coverage_words(conformal.n_tasks, len(conformal.folds))})"
        return f"{parameters}, {fitted}{self._thinned}{intervals}{private}"

    @property
    def _thinned(self) -> str:
        """How much of the tasks the fit has used, in words, if that is not all."""
        of_all = self.training_["environments"].values()
        if not any("used_samples" in counts for counts in of_all):
            return ""
        n_used, n = (sum(each.get(name, each["samples"]) for each in of_all) for name in ("used_samples", "samples"))
        return f", using {n_used:,} of {counted(n, self.report_.outputs.removesuffix('s'))}"


# What priors of networks have, which are trained by gradients.
OF_NETWORKS = ("kernel", "mean", "encoder", "inference", "n_particles", "temperature", "hyperprior", "prior_mean")
OF_NETWORKS += ("prior_std", "training", "optimizer", "learning_rate", "schedule", "n_steps", "batch_size")
OF_NETWORKS += ("standardize", "dtype", "n_devices", "validation_tasks", "patience", "checkpoint")


def in_wfem(estimator: str) -> Mapping[str, str]:
    """Return which estimator to use for an argument of priors of networks."""
    return MappingProxyType(dict.fromkeys(OF_NETWORKS, f"metaprior.wfem.{estimator}, whose priors are networks"))


def _model_parts(model: Any) -> tuple[list[dict[str, Any]], Arrays]:
    from metaprior.prior.files import members_to_parts

    stored, arrays = members_to_parts(model.members)
    return stored, arrays | {"member_weights": np.asarray(model.weights, np.float64)}


def _read_model(meta: Any, stored: Model, header: Header, arrays: Arrays) -> Any:
    from metaprior.prior.files import Known, read_members

    classes = header.fitted.classes_
    n_classes = len(classes) if isinstance(classes, list) else 0
    require(len(stored.members) == stored.n_members, f"members must be a list of {stored.n_members}")
    known = Known(header.input_dim, header.training.scaling, meta.likelihood_, n_classes, meta.features_.kinds)
    weights = check_weights("member_weights", arrays.get("member_weights"), len(stored.members))
    return Ensemble(read_members(stored.members, arrays, known), weights)


@own_float_errors
class HierarchicalFit(MetaGP):
    """An estimator whose priors are hierarchical, and fitted in NumPy in seconds."""

    search_time: Any
    progress: Any
    _file_format = FileFormat(_model_parts, _read_model)
    _fits_pooled_models = True

    @names_elsewhere
    def fit(
        self: Estimator,
        source_tasks: Iterable[Any] | Mapping[Any, Any] | None = None,
        target_tasks: Iterable[Any] | None = None,
        *,
        target: Any = None,
    ) -> Estimator:
        """Meta-train the prior.

        Parameters
        ----------
        source_tasks, target_tasks : sequence of (X, y), StoredTasks or None
            The tasks of the two environments, one pair of arrays per task, of any lengths. For more than two
            environments pass a dict from names to tasks as `source_tasks` and name the target.
        target : str, optional
            The target environment if `source_tasks` is a dict.

        Returns
        -------
        self
            If the fit fails or is interrupted, the estimator stays as it was.
        """
        return self._fit_anew(source_tasks, target_tasks, target)

    def _fit_prior(
        self, environments: NamedEnvironments, features: Features, **how: Any
    ) -> tuple[FittedPrior, list[TestTask] | None]:
        from metaprior.estimators.fit import (
            check_target_tasks,
            fit_conformal,
            fit_prior,  # a loaded prior does without these
        )
        from metaprior.search.compare import Asked

        conformal = getattr(self, "conformal", False)  # labels have no intervals
        if conformal:
            check_target_tasks(environments)
        warn_if_no_target_tasks(environments, self.alpha)
        asked = Asked(
            *(self._problem(), environments.names, environments.target, self.alpha, environments.kinds),
            *(as_context_rule(self.context), self.search_time, draw_seed(self.random_state), self.progress),
        )
        with phases(int(conformal)):
            fitted = fit_prior(asked, environments)
            if conformal:
                conformal = fit_conformal(asked, fit_prior, environments)
                fitted = replace(fitted, model=fitted.model._replace(conformal=conformal))
        return fitted, None

    @abstractmethod
    def _problem(self) -> Any:
        """Return what the search needs to know of y, once tasks are checked."""
