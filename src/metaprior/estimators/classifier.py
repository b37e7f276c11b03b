"""Priors of labels: adapted to new tasks, scored, and compared.

`MetaGPClassifier`: a prior for tasks of two or more classes, learned from many of them.
"""

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from metaprior.checks import check_bool
from metaprior.conventions import check_is_fitted, own_float_errors
from metaprior.estimators.arguments import (
    NamedEnvironments,
    check_search,
    check_shared_classes,
    names_elsewhere,
    read_environments,
    reject_rows,
)
from metaprior.estimators.base import HierarchicalFit, MetaGP, in_wfem
from metaprior.estimators.comparison import Comparison, as_numbers, compare_labels
from metaprior.metrics import Scores, score_labels
from metaprior.predict.adapted_labels import AdaptedClassifier, AdaptedClassifiers
from metaprior.predict.batches import check_precision, predict_labels
from metaprior.search.averaging import resolve_weights
from metaprior.storage.stored_tasks import StoredTasks, encode_stored
from metaprior.tasks.columns import Features
from metaprior.tasks.labels import (
    MAX_CLASSES,
    ClassRules,
    as_labeled_tests,
    as_labels,
    encode,
    encode_contexts,
    encode_environments,
)
from metaprior.tasks.splits import as_context_rule, split_all
from metaprior.tasks.types import Ragged, Task, TestTask, as_contexts, as_new_tasks, as_task, as_tasks, as_test_tasks


@own_float_errors
class LabelsPrior(MetaGP):
    """A prior of tasks whose y holds labels: what its estimators share."""

    _estimator_type = "classifier"
    shared_classes: Any
    classes_: np.ndarray | None
    _most_classes: ClassVar[int] = MAX_CLASSES  # that a task may have

    def adapt(self, X: Any, y: Any, classes: Any = None) -> AdaptedClassifier:
        """Condition the prior on the labeled context of a new task.

        Parameters
        ----------
        X : array-like of shape (n_context, n_features)
            Inputs of the context. An empty context predicts from the prior.
        y : array-like of shape (n_context,)
            Labels.
        classes : sequence of labels, optional
            All classes of the task, if the context lacks some and they are not those that all tasks share, 0 and 1, or
            bools. If all tasks of the fit share their classes, a task of others must be given them. By default they are
            the labels of the context; a second class that is missing is None.

        Returns
        -------
        AdaptedClassifier
        """
        check_is_fitted(self, "model_")
        features = self.features_
        task = as_task(X, y, "adapt", features, as_labels)
        rules = self._class_rules(classes)
        own, codes = rules.of_task(task.y, "adapt")
        x, y = Ragged.of([task.x], task.x.shape[1:]), Ragged.of([codes])
        return AdaptedClassifiers(self.model_, x, y, [own], "float64", features, rules)[0]

    def adapt_many(self, contexts: Iterable[Any], classes: Any = None, *, dtype: str = "float64") -> AdaptedClassifiers:
        """Condition the prior on the labeled contexts of many new tasks at once: `adapt` for each, much faster.

        Parameters
        ----------
        contexts : iterable of (X, y)
            Contexts of any sizes.
        classes : sequence of labels, optional
            The classes of all tasks, as for `adapt`.
        dtype : "float64" or "float32", default="float64"
            float32 is faster.

        Returns
        -------
        AdaptedClassifiers
        """
        check_is_fitted(self, "model_")
        features = self.features_
        x, y = as_contexts(contexts, "contexts", features, as_labels)
        return self._adapted(x, y, "contexts", classes, dtype, features)

    def predict_many(self, tasks: Iterable[Any], classes: Any = None, *, dtype: str = "float64") -> list[np.ndarray]:
        """Adapt to many tasks and predict the classes of their queries; `adapt_many` also gives probabilities.

        Parameters
        ----------
        tasks : iterable of (X_context, y_context, X_query)
            Tasks of any sizes.
        classes, dtype
            As for `adapt_many`.

        Returns
        -------
        list of ndarray
            The most probable classes of every task.
        """
        check_is_fitted(self, "model_")
        features = self.features_
        x, y, queries = as_new_tasks(tasks, "tasks", features, as_labels)
        return self._adapted(x, y, "tasks", classes, dtype, features).predict(queries)

    def evaluate(self, test_tasks: Iterable[Any], context: Any = None) -> Scores:
        """Adapt to the contexts of test tasks and score the predictions of their queries.

        Parameters
        ----------
        test_tasks : sequence of (X_context, y_context, X_query, y_query)
            Tasks that were not meta-trained on; others warn with a `SeenTasksWarning`.
        context : "random", "first", int, or ("first", int), optional
            Split tasks that are given as (X, y) into context and queries, as the parameter of the constructor.

        Returns
        -------
        Bunch
            Printed, a table. Its entries: means over tasks of `accuracy`, `probability_accuracy` (the mean probability
            of the observed classes, for two 1 - |p - y|: the paper's measure read with probabilities), `log_loss` and
            `brier` (from 0 to 1), each with its standard error `..._se`; `calibration_error` (ECE) over all queries;
            `n_tasks`; `per_task`, the values per task; `reliability`, counts in bins of the probability of the
            predicted class; `confusion`, counts of queries by observed and predicted class of `classes`, or None if
            tasks have classes of their own.
        """
        return self._evaluate(test_tasks, context)[0]

    def _evaluate(self, test_tasks: Iterable[Any], context: Any) -> tuple[Scores, list[TestTask], np.ndarray]:
        """Return the scores of test tasks, these tasks with codes for labels, and their numbers of classes."""
        check_is_fitted(self, "model_")
        if context is not None:
            features = self.features_
            test_tasks = split_all(as_tasks(test_tasks, "test_tasks", features, as_labels), context, features)
        given = as_test_tasks(test_tasks, "test_tasks", self.features_, as_labels)
        tasks = self._read_tests(given, "test_tasks")
        labels = [np.concatenate([task.y_context, task.y_query][not len(task.y_context) :]) for task in given]
        classes, _ = encode_contexts(labels, "test_tasks", self.classes_, most=self._most_classes)
        n_classes = np.array([len(own) for own in classes])
        log_probabilities, y, mask = predict_labels(self.model_, tasks, n_classes)
        all_share = all(own is self.classes_ for own in classes)
        scores = score_labels(y, log_probabilities, mask, self.classes_ if all_share else None)
        return scores, tasks, n_classes

    def compare(self, test_tasks: Iterable[Any], context: Any = None) -> Comparison:
        """Score the prior on test tasks beside models that are fitted to the context of each task alone.

        These are the nearest class mean and scikit-learn's logistic regression.

        Parameters
        ----------
        test_tasks, context
            As for `evaluate`.

        Returns
        -------
        Comparison
            Printed, a table. Its `scores` are what `evaluate` returns, of each model by name; its `gains` are by how
            much the log loss and Brier score of each are above those of "metaprior", with standard errors of the
            paired differences.
        """
        ours, tests, n_classes = self._evaluate(test_tasks, context)
        return compare_labels(ours, as_numbers(self.model_, tests), n_classes)

    def score(self, test_tasks: Iterable[Any], y: Any = None) -> float:  # type: ignore[override]
        """Return the accuracy on the queries of test tasks, averaged over tasks.

        Parameters
        ----------
        test_tasks : sequence of (X_context, y_context, X_query, y_query)
            As for `evaluate`.
        y : None
            Not used: the tasks have their own. Anything else raises a TypeError.

        Returns
        -------
        float
            The mean accuracy.
        """
        reject_rows(y)
        return float(self.evaluate(test_tasks).accuracy)

    def _adapted(
        self, x: Ragged, y: list[np.ndarray], name: str, classes: Any, dtype: str, features: Features
    ) -> AdaptedClassifiers:
        check_precision(dtype, self.model_, x, self._standardized)
        rules = self._class_rules(classes)
        own, codes = rules.of_tasks(y, name)
        return AdaptedClassifiers(self.model_, x, Ragged.of_rows(codes, x.sizes), own, dtype, features, rules)

    @property
    def _kind(self) -> str:
        return "bernoulli"

    @property
    def _standardized(self) -> bool:
        """Whether inputs are scaled, so that float32 has room for them."""
        return True

    def _class_rules(self, given: Any) -> ClassRules:
        """Return what decides about the classes of a new task."""
        fixed = any(len(getattr(member, "weights", ())) for member in self.model_.members)
        return ClassRules(self.classes_, given, self._most_classes, fixed)

    def _read_environments(
        self, source_tasks: Any, target_tasks: Any, target: Any, features: Features
    ) -> NamedEnvironments:
        read = lambda *tasks: as_tasks(*tasks, outputs=as_labels)  # noqa: E731
        environments = read_environments(source_tasks, target_tasks, target, read, features)
        options = resolve_weights(self.alpha, environments.names, environments.counts, environments.target)
        counted = np.max(options, axis=0).tolist()  # labels of environments without weight do not matter
        is_stored = any(isinstance(tasks, StoredTasks) for tasks in environments.tasks)
        encode = encode_stored if is_stored else encode_environments
        encoded, self.classes_, _ = encode(
            environments.tasks, environments.arguments, counted, self.shared_classes, self._most_classes
        )
        return environments._replace(tasks=encoded)

    def _check_tasks(self, tasks: Any, name: str, features: Features) -> list[Task]:
        labeled = as_tasks(tasks, name, features, as_labels)
        classes, _ = encode_contexts([task.y for task in labeled], name, self.classes_, most=self._most_classes)
        return [Task(task.x, encode(task.y, pair)) for task, pair in zip(labeled, classes, strict=True)]

    def _check_tests(self, tasks: Any, name: str, features: Features) -> list[TestTask]:
        return as_labeled_tests(tasks, name, features, self.classes_, most=self._most_classes)[0]


@own_float_errors
class MetaGPClassifier(LabelsPrior, HierarchicalFit):
    """A Gaussian-process prior for labels of any number of classes, learned from source and target tasks.

    Families of hierarchical priors are fitted and averaged, as by `MetaGPRegressor`: every class has a latent function,
    and the likelihood is their softmax. The evidence of a task and the posterior given a context are Laplace
    approximations, whose probabilities are calibrated on held-out tasks.

    Labels are strings, integers or bools. Classes that all tasks share (ill, well) mean the same in every task, and a
    task may lack some. Otherwise every task has classes of its own, and tasks may differ in their number.

    Parameters and attributes that are not listed are those of `MetaGPRegressor`. Inputs are divided by their standard
    deviation within the classes of a task, and decorrelated by the correlations found there: one metric that all tasks
    share. (With over 1024 columns they are only standardized.)

    Parameters
    ----------
    shared_classes : "auto", True or False, default="auto"
        Whether labels mean the same in all tasks. "auto": they do if one task has all of them, or if there are two in
        all. False is for episodes whose labels are all written 0, 1, ..., True for tasks none of which has every label.
    calibrate : bool, default=True
        Whether held-out tasks calibrate the probabilities, by the scales of latent functions in contexts and in
        predictions. False leaves those of Laplace's approximation.
    covariates : str, int or sequence of them, optional
        Columns of X that are constant within a task. Here they are inputs like others that may be missing.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,) or None
        The classes that all tasks share, sorted, or None if tasks have classes of their own.
    family_ : str
        The family of priors with the largest weight, "linear" or "smooth", or "common linear" or "common smooth" with a
        rule that all tasks follow.

    Examples
    --------
    >>> import numpy as np
    >>> from metaprior import MetaGPClassifier
    >>> rng = np.random.default_rng(0)
    >>> centers = np.array([[0, 0], [3, 0], [0, 3]])
    >>> codes = np.arange(9) % 3
    >>> names = np.array(["finch", "owl", "wren"])
    >>> tasks = [(centers[codes] + rng.normal(size=(9, 2)), names[codes]) for _ in range(6)]
    >>> meta = MetaGPClassifier(random_state=0).fit(target_tasks=tasks)
    >>> task = meta.adapt(*tasks[0])
    >>> task.classes_.tolist(), task.predict_proba([[0.0, 0.0], [3.0, 0.0]]).shape
    (['finch', 'owl', 'wren'], (2, 3))
    """

    _elsewhere = in_wfem("WFEMClassifier")

    @names_elsewhere
    def __init__(
        self,
        alpha: Any = "auto",
        *,
        shared_classes: bool | str = "auto",
        calibrate: bool = True,
        covariates: Any = None,
        categorical: Any = None,
        context: Any = "random",
        search_time: Any = None,
        random_state: Any = None,
        progress: bool | None = None,
    ):
        self.alpha = alpha
        self.shared_classes = shared_classes
        self.calibrate = calibrate
        self.covariates = covariates
        self.categorical = categorical
        self.context = context
        self.search_time = search_time
        self.random_state = random_state
        self.progress = progress

    def _check_parameters(self) -> None:
        as_context_rule(self.context)
        check_shared_classes(self.shared_classes)
        check_bool("calibrate", self.calibrate)
        check_search(self.search_time, self.progress)

    def _problem(self) -> Any:
        from metaprior.search.labels import Labels

        return Labels(None if self.classes_ is None else len(self.classes_), self.calibrate)
