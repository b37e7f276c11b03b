"""What all estimators share: parameters, the fit, the tasks that it has seen, the report, files."""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, ClassVar, TypeVar, cast

import numpy as np

from metaprior.checks import check_bool, check_noise, check_positive, counted, draw_seed, warn_caller
from metaprior.conventions import Bunch, Parameters, check_is_fitted, own_float_errors
from metaprior.estimators.environments import (
    KnownTasks,
    NamedEnvironments,
    SavedTasks,
    Seen,
    check_context_size,
    check_covariates,
    check_noise_size,
    input_range,
    known_tasks,
    remember,
    warn_if_known,
    warn_if_no_target_tasks,
    whole,
)
from metaprior.estimators.files import FileFormat, write_prior
from metaprior.files import package_versions
from metaprior.likelihoods import LIKELIHOODS
from metaprior.predict.conformal import coverage_words
from metaprior.predict.ensemble import Ensemble
from metaprior.progress import phases
from metaprior.search.report import Certificate, TransferReport, certify
from metaprior.storage.stored_tasks import StoredTasks
from metaprior.tasks.categories import Categories
from metaprior.tasks.columns import Features
from metaprior.tasks.splits import FIRST, RANDOM, as_context_rule, check_order, split_all, warn_if_behind
from metaprior.tasks.types import Ragged, Task, TestTask, as_tasks

MAX_RECORDED_INPUTS = 100  # whose scaling is recorded; images have thousands
Estimator = TypeVar("Estimator", bound="MetaGP")
Method = TypeVar("Method", bound=Callable[..., Any])


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


def heaviest(model: Ensemble) -> Any:
    """Return the member of largest weight."""
    return model.members[int(np.argmax(model.weights))]


def names_elsewhere(method: Method) -> Method:
    """Make a method say which estimator has an argument that this one lacks."""

    @wraps(method)
    def checked(self: "MetaGP", *args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name in self._elsewhere:
                raise TypeError(f"{type(self).__name__} has no {name}: use {self._elsewhere[name]}.")
        return method(self, *args, **kwargs)

    return cast(Method, checked)


@own_float_errors
class MetaGP(Parameters):
    """A Gaussian-process prior that is meta-learned from tasks of several environments."""

    likelihood_: str  # that the prior was fitted with; "bernoulli" for labels
    classes_: Any  # of labels
    alpha: Any
    context: Any
    categorical: Any
    random_state: Any
    covariates: Any = None
    conformal: Any = False
    search_time: Any = None
    progress: Any = None
    _kind: Any  # the name of the likelihood
    _outputs: Any  # the check of y
    _problem: Any  # what the default's search needs to know of y, once tasks are checked
    _read_environments: Any  # checks tasks and learns their features: (source, target, name, features)
    _check_tasks: Any  # as a fitted prior takes them, labels as 0, 1, ...: (tasks, name, features)
    _check_tests: Any
    _score: Any
    adapt: Any
    evaluate: Any
    _file_format: ClassVar[FileFormat] = FileFormat()
    _elsewhere: ClassVar[Mapping[str, str]] = {}  # what to use instead of arguments that other estimators have
    _tasks: KnownTasks | SavedTasks | None = None  # None: of a file that was saved with private=True

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

    @names_elsewhere
    def set_params(self, **params: Any) -> Any:
        """Set parameters, as every scikit-learn estimator does."""
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

    def score(self, test_tasks: Iterable[Any], y: Any = None) -> float:
        """Return R^2 over the queries of all test tasks or, for labels, the mean accuracy over tasks.

        Parameters
        ----------
        test_tasks : sequence of (X_context, y_context, X_query, y_query)
            As for `evaluate`.
        y : None
            Not used: the tasks have their own. Anything else raises a TypeError.

        Returns
        -------
        float
            1 is best.
        """
        if y is not None:
            raise TypeError(
                "score takes test tasks, not X and y: score([(X_context, y_context, X_query, y_query), ...]) adapts to "
                "the context of each task and scores its queries."
            )
        return self._score(test_tasks)

    def fitted_on(self, tasks: Iterable[Any]) -> np.ndarray:
        """Tell which tasks the prior was fitted to or validated on, by all their readings, in any order.

        After `fit`, all tasks are recognized, up to 100,000. After `load`, only tasks that cannot be guessed from the
        file, with a dozen different readings or more, and up to 1,000. A warning tells if there were others.

        Parameters
        ----------
        tasks : sequence of (X, y)
            Tasks with all or some of their readings.

        Returns
        -------
        ndarray of bool of shape (n_tasks,)

        Raises
        ------
        ValueError
            If the prior was saved with `private=True`.

        Examples
        --------
        >>> from metaprior import MetaGPRegressor
        >>> tasks = [([[0.0], [1.0]], [0.0, 1.0]), ([[0.5], [2.0]], [0.4, 2.1])]
        >>> meta = MetaGPRegressor(random_state=0).fit(target_tasks=tasks)
        >>> meta.fitted_on([([[1.0], [0.0]], [1.0, 0.0]), ([[0.0]], [0.0])])
        array([ True, False])
        """
        check_is_fitted(self, "model_")
        checked = self._check_tasks(tasks, "tasks", self.features_)
        if self._tasks is None:
            raise ValueError(
                "This prior was saved with private=True: its file holds nothing that could tell which tasks it was "
                "fitted to."
            )
        if misses := self._tasks.misses(len(checked)):
            warn_caller(f"{misses}; fitted_on answers False for the others.")
        return self._tasks.seen(checked)

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

    def save(self, path: str | os.PathLike, *, private: Any = False) -> None:
        """Write the fitted prior to one file, which `metaprior.load` reads.

        The file holds no readings. It holds slow hashes, by which `fitted_on` recognizes tasks that cannot be guessed.

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

    @property
    def alpha_path_(self) -> Bunch:
        """The candidates that were compared: arrays `alpha`, `score`, `standard_error` and `weight`."""
        report = self.transfer_report()
        names = ("alpha", "score", "standard_error", "weight")
        return Bunch(**{name: getattr(report, name) for name in names})

    @property
    def private_(self) -> bool:
        """Whether the prior comes from a file saved with `private=True`, so that it recognizes no task of its fit."""
        check_is_fitted(self, "model_")
        return self._tasks is None

    @property
    def features_(self) -> Features:
        """What is known of the input columns: their number, names and ranges."""
        # Attributes with a default here are not yet set while a file is read.
        names = getattr(self, "feature_names_in_", None)
        levels = getattr(self, "column_levels_", ())
        coded = {i: {level: code for code, level in enumerate(each)} for i, each in enumerate(levels) if each}
        return Features(
            self.n_features_in_,
            None if names is None else tuple(names),
            getattr(self, "feature_range_", None),
            categories=Categories(coded, getattr(self, "covariates_", ())),
            forecasts=as_context_rule(getattr(self, "parameters_", {}).get("context", RANDOM)).kind == FIRST,
        )

    def __repr__(self) -> str:
        parameters = super().__repr__()
        if not hasattr(self, "training_"):
            return parameters
        environments = self.training_["environments"]
        counts = {name: count["tasks"] for name, count in environments.items() if count["tasks"]}
        of_each = [f"{count} of {name}" for name, count in counts.items()]
        tasks = f"{counted(sum(counts.values()), 'task')} ({', '.join(of_each[:4] + ['...'] * (len(of_each) > 4))})"
        said = f"{parameters}, a prior fitted to {tasks} with {counted(self.n_features_in_, 'input column')}"
        if any("used_samples" in each for each in environments.values()):
            n_used = sum(each.get("used_samples", each["samples"]) for each in environments.values())
            n = sum(each["samples"] for each in environments.values())
            said += f", using {n_used:,} of {counted(n, self.report_.outputs.removesuffix('s'))}"
        if (conformal := self.model_.conformal) is not None:
            said += f", with conformal intervals ({coverage_words(conformal.n_tasks, len(conformal.folds))})"
        return said + ", saved as private: it recognizes none of them" * self.private_

    def _record(self, fitted: FittedPrior, environments: NamedEnvironments, seconds: float) -> None:
        """Set the fitted attributes."""
        self.model_, self.baselines_, self.family_ = fitted.model, fitted.baselines, fitted.family
        kind = self.likelihood_ = self._kind
        outputs = LIKELIHOODS[kind].outputs if kind in LIKELIHOODS else "readings"  # those of users have readings
        self.report_ = replace(fitted.report, outputs="labels" if kind == "bernoulli" else outputs)
        # All that anything after the fit knows of the parameters: others may be set later.
        self.parameters_ = self.get_params(deep=False)
        self.environment_weights_ = self.report_.weight @ self.report_.environment_weights
        self.alpha_ = float(self.report_.weight @ self.report_.alpha)
        self.family_weights_ = self.report_.families or {fitted.family: 1.0}
        for name, value in fitted.attributes.items():
            setattr(self, name, value)
        self.n_features_in_ = self.model_.input_dim
        self.training_ = _training_record(environments, fitted, seconds)
        self.covariate_weights_ = self.training_.get("covariates", {})

    def _remember_tasks(
        self, features: Features, seen: Sequence[Seen], target: int, tests: list[TestTask] | None
    ) -> None:
        """Set the fitted attributes that tell of the tasks: names and ranges of their inputs, and digests."""
        if features.names is not None:
            self.feature_names_in_ = np.array(features.names, dtype=object)
        self.covariates_, levels = features.categories.covariates, features.categories.levels
        n_levels = self.n_features_in_ if levels or self.covariates_ else 0
        self.column_levels_ = tuple(tuple(levels[i]) if i in levels else None for i in range(n_levels))
        self.feature_range_ = input_range(seen, self.environment_weights_)
        # An environment without weight in any candidate had no effect, but the target has judged the candidates.
        used = self.report_.environment_weights.max(axis=0) > 0
        used[target] = True
        known = [each for each, counts in zip(seen, used, strict=True) if counts]
        known += [remember([whole(test) for test in tests], self.n_features_in_)] if tests else []
        self._tasks = known_tasks(known)

    def _read_tests(self, tasks: Any, name: str, context: Any = None) -> list[TestTask]:
        """Check tasks to score; warn about those that the prior was fitted to, and about extrapolation."""
        check_is_fitted(self, "model_")
        features = self.features_
        if context is not None:
            tasks = split_all(as_tasks(tasks, name, features, self._outputs), context, features)
        tests = self._check_tests(tasks, name, features)
        queries = Ragged.of([test.x_query for test in tests], (self.n_features_in_,))
        features.warn_outside(queries.rows[:-1], queries.sizes)
        warn_if_behind([(test.x_context, test.x_query) for test in tests], self.parameters_["context"])
        if self._tasks is not None:
            warn_if_known(self._tasks, tests, name)
        return tests

    def _fit_prior(
        self, environments: NamedEnvironments, features: Features, **how: Any
    ) -> tuple[FittedPrior, list[TestTask] | None]:
        """Fit the prior to checked tasks. Return it with the tasks that it was validated on, if there are any."""
        from metaprior.estimators.fit import check_target_tasks, fit_conformal, fit_prior  # `load` does without them
        from metaprior.search.compare import Asked

        if self.conformal:
            check_target_tasks(environments)
        warn_if_no_target_tasks(environments, self.alpha)
        asked = Asked(
            *(self._problem(), environments.names, environments.target, self.alpha, environments.kinds),
            *(as_context_rule(self.context), self.search_time, draw_seed(self.random_state), self.progress),
        )
        with phases(int(bool(self.conformal))):
            fitted = fit_prior(asked, environments)
            if self.conformal:
                conformal = fit_conformal(asked, fit_prior, environments)
                fitted = replace(fitted, model=fitted.model._replace(conformal=conformal))
        return fitted, None

    def _check_parameters(self) -> None:
        """Check every parameter that can be checked without data."""
        as_context_rule(self.context)
        if self.search_time is not None:
            check_positive("search_time", self.search_time, " of seconds, or None", limits=None)
        if self.progress is not None:
            check_bool("progress", self.progress)

    @property
    def _noise_std(self) -> Any:
        """The noise that was asked for."""
        return "learned"

    def _saved_parameters(self) -> dict[str, Any]:
        """Return the parameters that a file holds."""
        return self.parameters_


def _training_record(environments: NamedEnvironments, fitted: FittedPrior, seconds: float) -> dict[str, Any]:
    """Describe the training for the saved file and `metaprior info`; the scaling is that of the largest weight."""
    member = heaviest(fitted.model)
    scaling = getattr(member, "terms", member).scaling  # that of the latent function, where there is one
    names, every, counts = environments.names, environments.tasks, {}
    for name, tasks, used in zip(names, every, fitted.sample or every, strict=True):
        counts[name] = {"tasks": len(tasks), "samples": _count_samples(tasks)}
        if (len(used), _count_samples(used)) != (*counts[name].values(),):
            counts[name] |= {"used_tasks": len(used), "used_samples": _count_samples(used)}
    return {
        "environments": counts,
        "target": environments.names[environments.target],
        "scaling": {
            "x_mean": np.asarray(scaling.x_mean[:MAX_RECORDED_INPUTS], float).tolist(),
            "x_std": np.asarray(scaling.x_std[:MAX_RECORDED_INPUTS], float).tolist(),
            "y_mean": float(scaling.y_mean),
            "y_std": float(scaling.y_std),
        },
        **fitted.training,
        "seconds": round(seconds, 1),
        "versions": package_versions(),
    }


def _count_samples(tasks: Sequence[Task]) -> int:
    return tasks.n_samples if isinstance(tasks, StoredTasks) else sum(len(task.y) for task in tasks)


# What priors of networks have, which are trained by gradients.
OF_NETWORKS = ("kernel", "mean", "encoder", "inference", "n_particles", "temperature", "hyperprior", "prior_mean")
OF_NETWORKS += ("prior_std", "training", "optimizer", "learning_rate", "schedule", "n_steps", "batch_size")
OF_NETWORKS += ("standardize", "dtype", "n_devices", "validation_tasks", "patience", "checkpoint")


def in_wfem(estimator: str) -> dict[str, str]:
    """Return which estimator to use for an argument of priors of networks."""
    return dict.fromkeys(OF_NETWORKS, f"metaprior.wfem.{estimator}, whose priors are networks")
