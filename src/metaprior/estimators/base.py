"""What both estimators share: parameter checks, meta-training, the report and files."""

import os
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted

from metaprior.checks import check_integer, check_noise, counted
from metaprior.estimators.arguments import (
    OUTPUTS,
    NamedEnvironments,
    check_context_size,
    check_parameters,
    choose_engine,
    reject_renamed_parameters,
)
from metaprior.estimators.fitted_prior import FittedPrior, heaviest, training_record
from metaprior.estimators.guaranteed_fit import check_target_tasks, make_guarantee
from metaprior.estimators.persistence import write_prior
from metaprior.estimators.seen_tasks import KnowsItsTasks, check_covariates, check_noise_size, remember
from metaprior.float_errors import own_float_errors
from metaprior.prediction.conformal import coverage_words
from metaprior.prediction.single_task import SingleTaskClassifier, SingleTaskRegressor, refuse_categories
from metaprior.progress import phases
from metaprior.search.certificates import Certificate, certify
from metaprior.search.report import TransferReport
from metaprior.tasks.context_rules import check_order
from metaprior.tasks.input_columns import Features

if TYPE_CHECKING:
    from metaprior.meta.methods import Interaction

ENGINES = {"hierarchical": "metaprior.estimators.hierarchical_fit", "gradient": "metaprior.estimators.gradient"}
Estimator = TypeVar("Estimator", bound="MetaGP")


@own_float_errors
class MetaGP(KnowsItsTasks, BaseEstimator):
    """Meta-training by weighted free energy minimization. The parameters are those of the two estimators."""

    likelihood: Any
    alpha: Any
    inference: Any
    n_particles: Any
    mean: Any
    kernel: Any
    encoder: Any
    temperature: Any
    prior_mean: Any
    prior_std: Any
    optimizer: Any
    learning_rate: Any
    schedule: Any
    n_steps: Any
    batch_size: Any
    standardize: Any
    dtype: Any
    context: Any
    covariates: Any
    categorical: Any
    random_state: Any
    search_time: Any
    n_devices: Any
    progress: Any

    def fit(
        self: Estimator,
        source_tasks: Iterable[Any] | Mapping[Any, Any] | None = None,
        target_tasks: Iterable[Any] | None = None,
        *,
        target: Any = None,
        validation_tasks: Iterable[Any] | None = None,
        patience: Any = 5,
        checkpoint: str | os.PathLike | None = None,
    ) -> Estimator:
        """Meta-train the prior.

        Parameters
        ----------
        source_tasks, target_tasks : sequence of (X, y), StoredTasks or None
            The tasks of the two environments, one pair of arrays per task, of any lengths. For more than two
            environments pass a dict from names to tasks as `source_tasks` and name the target.
        target : str, optional
            The target environment if `source_tasks` is a dict.
        validation_tasks : sequence of (X_context, y_context, X_query, y_query), optional
            Tasks for early stopping, scored every 100 steps; the best parameters are kept. They ask for gradient
            training.
        patience : int or None, default=5
            Stop after as many validations without improvement. None never stops early.
        checkpoint : path-like, optional
            File that gradient training writes its state to, every second and when it is interrupted. Re-running the
            same fit resumes it and gives the same result (a similar one with `search_time`). Remove the file
            afterwards. Hierarchical priors take seconds and write none.

        Returns
        -------
        self
            If the fit fails or is interrupted, the estimator stays as it was.
        """
        fresh = type(self)(**self.get_params(deep=False))
        fresh._fit(source_tasks, target_tasks, target, validation_tasks, patience, checkpoint)
        kept = {name: value for name, value in vars(self).items() if not name.endswith("_")}
        self.__dict__ = {**kept, **vars(fresh)}  # all at once, and nothing of an earlier fit
        return self

    def _fit(
        self, source_tasks: Any, target_tasks: Any, target: Any, validation_tasks: Any, patience: Any, checkpoint: Any
    ) -> None:
        """Fit an estimator that nothing was fitted to before: `fit` takes over what it has learned."""
        started = time.monotonic()
        check_parameters(self)
        if patience is not None:
            check_integer("patience", patience, least=1)
        features = Features(asked=(self.covariates, self.categorical))
        engine = choose_engine(self, validation_tasks)
        environments = self._read_environments(source_tasks, target_tasks, target, features, engine)
        check_order(self.context, features)
        check_context_size(self.context, environments)
        features.warn_if_mixed()
        seen = [remember(tasks, environments.input_dim) for tasks in environments.tasks]
        check_covariates(features, seen)
        check_noise_size(check_noise(getattr(self, "noise_std", "learned")), seen)
        tests = None
        if validation_tasks is not None:
            tests = self._check_tests(validation_tasks, "validation_tasks", features)
        fit_prior = import_module(ENGINES[engine]).fit_prior  # JAX, which one of them needs, takes long to import
        guaranteed = getattr(self, "guarantee", False)  # labels have no bands
        if guaranteed:
            check_target_tasks(environments)
        with phases(int(guaranteed)):
            fitted = fit_prior(self, environments, tests, patience, checkpoint)
            if guaranteed:
                guarantee = make_guarantee(self, fit_prior, environments, tests, patience)
                fitted = replace(fitted, model=fitted.model._replace(guarantee=guarantee))
        self._record(fitted, environments, time.monotonic() - started)
        self._remember_tasks(features, seen, environments.target, tests)

    def set_params(self, **params: Any) -> Any:
        """Set parameters, as every scikit-learn estimator does; former names raise an error that names the new one."""
        reject_renamed_parameters(params)
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
        if type(other) is not type(self):
            raise ValueError(f"other must be a fitted {type(self).__name__}; got {type(other).__name__}.")
        tests = list(test_tasks)
        loss = "log_loss" if self.likelihood_ == "bernoulli" else "nll"
        own, others = (each.evaluate(tests, context=context).per_task[loss] for each in (self, other))
        return certify(others - own)

    @property
    def likelihood_(self) -> str:
        """The likelihood that the prior was fitted with, "bernoulli" for labels."""
        check_is_fitted(self, "model_")
        return self.parameters_.get("likelihood", "bernoulli")

    @property
    def alpha_path_(self) -> Bunch:
        """The candidates that were compared: arrays `alpha`, `score`, `standard_error` and `weight`."""
        report = self.transfer_report()
        names = ("alpha", "score", "standard_error", "weight")
        return Bunch(**{name: getattr(report, name) for name in names})

    @property
    def particles_(self) -> Any:
        """The parameters learned by gradients, a pytree with a leading axis of particles, member after member.

        Hierarchical priors have no particles and raise an AttributeError.
        """
        self._check_particles()
        from metaprior.prediction.trained import joined_particles

        return joined_particles(self.model_)

    @property
    def particle_weights_(self) -> np.ndarray:
        """The weights of the particles in predictions."""
        self._check_particles()
        return self.model_.component_weights

    def particle_interaction(self) -> "Interaction":
        """Measure whether the particles of the member with the largest weight interact or are independent.

        Returns
        -------
        Interaction
            Print it for a sentence.
        """
        self._check_particles()
        from metaprior.meta.methods import MAP, interaction, resolve_inference

        method = resolve_inference(self.parameters_["inference"]) or MAP()
        return interaction(heaviest(self.model_).particles, method)

    def to_arviz(self) -> Any:
        """Return the draws of theta as data of ArviZ, for its summaries and plots.

        Priors with draws are those trained by gradients, with `inference="laplace"` or `"svgd"`. A chain is a member of
        the ensemble, and `sample_stats` has the weights of its draws in predictions.

        Returns
        -------
        arviz.InferenceData or, from ArviZ 1.0 on, xarray.DataTree
            Its group `posterior` has a variable for every parameter, of shape (chain, draw, ...).
        """
        self._check_particles("theta is a point, at its mode, and the weights of the common mean are integrated out")
        from metaprior.estimators.arviz_data import as_arviz

        return as_arviz(self)

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
        self.model_, self.engine_, self.baselines_ = fitted.model, fitted.engine, fitted.baselines
        self.report_ = replace(fitted.report, outputs=OUTPUTS[self.likelihood])
        # All that anything after the fit knows of the parameters: others may be set later.
        self.parameters_ = {**self.get_params(deep=False), **fitted.parameters}
        self.environment_weights_ = self.report_.weight @ self.report_.environment_weights
        self.alpha_ = float(self.report_.weight @ self.report_.alpha)
        self.family_weights_ = self.report_.families or {fitted.family: 1.0}
        self.dtype_, self.family_, self.temperature_ = fitted.dtype, fitted.family, fitted.temperature
        self.loss_trace_, self.validation_trace_ = fitted.loss_trace, fitted.validation_trace
        self.best_step_ = fitted.best_step
        self.n_features_in_ = self.model_.input_dim
        self.training_ = training_record(names, tasks, target, fitted, seconds)
        self.covariate_weights_ = self.training_.get("covariates", {})

    def _check_particles(self, instead: str = "") -> None:
        """Raise if the prior is not fitted, or has no particles; `instead` says what it has."""
        check_is_fitted(self, "model_")
        if not all(hasattr(member, "particles") for member in self.model_.members):
            raise AttributeError(
                f"The hierarchical priors of kernel='auto' have no particles{': ' * bool(instead)}{instead}. Fit with "
                "kernel='inducing', 'linear+rbf' or 'mlp' for a prior that has."
            )

    @abstractmethod
    def adapt(self, X: Any, y: Any) -> Any:
        """Condition the prior on the readings of a new task."""

    @abstractmethod
    def evaluate(self, test_tasks: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        """Adapt to the contexts of test tasks and score the predictions of their queries."""

    @abstractmethod
    def _read_environments(
        self, source_tasks: Any, target_tasks: Any, target: Any, features: Features, engine: str
    ) -> NamedEnvironments:
        """Check the tasks, for one of the ENGINES, and learn their features."""

    @abstractmethod
    def _check_standardize(self) -> None:
        """Check the parameter `standardize`."""

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        parameters = super().__repr__(N_CHAR_MAX)
        if not hasattr(self, "training_"):
            return parameters
        counts = {name: count["tasks"] for name, count in self.training_["environments"].items() if count["tasks"]}
        of_each = [f"{count} of {name}" for name, count in counts.items()]
        tasks = f"{counted(sum(counts.values()), 'task')} ({', '.join(of_each[:4] + ['...'] * (len(of_each) > 4))})"
        fitted = f"a {self.engine_} prior fitted to {tasks} with {counted(self.n_features_in_, 'input column')}"
        private = ", saved as private: it recognizes none of them" if self.private_ else ""
        intervals = ""
        if (guarantee := self.model_.guarantee) is not None:
            intervals = f", with conformal intervals ({coverage_words(guarantee.n_tasks, len(guarantee.folds))})"
        return f"{parameters}, {fitted}{self._thinned}{intervals}{private}"

    @property
    def _thinned(self) -> str:
        """How much of the tasks the fit has used, in words, if that is not all."""
        of_all = self.training_["environments"].values()
        if not any("used_samples" in counts for counts in of_all):
            return ""
        n_used, n = (sum(each.get(name, each["samples"]) for each in of_all) for name in ("used_samples", "samples"))
        return f", using {n_used:,} of {counted(n, self.report_.outputs.removesuffix('s'))}"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False  # fit takes sequences of tasks
        tags.target_tags.required = False
        tags.no_validation = True
        return tags
