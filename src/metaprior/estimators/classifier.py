"""`MetaGPClassifier`: a meta-learned prior for tasks of two classes."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted

from metaprior.estimators.base import MetaGP
from metaprior.estimators.environments import read_environments
from metaprior.files import InvalidFile
from metaprior.gp.inducing import InducingMean
from metaprior.gp.means import ConstantMean, LinearMean, ZeroMean
from metaprior.meta.runs import Settings
from metaprior.metrics.classification import summarize_labels
from metaprior.metrics.summary import report
from metaprior.prediction.adapted import AdaptedClassifier
from metaprior.prediction.adapted_many import AdaptedClassifiers
from metaprior.prediction.batches import check_precision, predict_labels
from metaprior.search.weights import resolve_weights
from metaprior.storage.stored_tasks import StoredTasks, check_stored_labels
from metaprior.tasks.labels import as_labeled_tests, as_labels, encode_contexts, encode_environments, task_classes
from metaprior.tasks.ragged import Ragged, as_contexts, as_new_tasks
from metaprior.tasks.types import as_task, as_tasks


class MetaGPClassifier(MetaGP):
    """A Gaussian-process prior for two classes, meta-learned from source and target tasks.

    The evidence of a task, and the posterior given a new one's context, are Laplace's approximations with the
    Bernoulli-logit likelihood. Labels may be any two strings, integers or bools. If all tasks share two labels, these
    mean the same in every task; otherwise every task has two labels of its own.

    Arguments and attributes that are not listed are as for `MetaGPRegressor`.

    Parameters
    ----------
    mean : "constant", "linear", "zero", "mlp", MLPMean(...), or a function of one input point
        Prior mean of the log odds of the second class. "linear" is for labels that follow much the same rule in every
        task (ill, well); where each task has a rule of its own, as in few-shot learning, it learns noise. "linear" and
        "constant" are zero where tasks have labels of their own: which of the two comes first then means nothing.
    kernel : "auto", "linear+rbf", "inducing", "rbf", "linear", "mlp", MLPKernel(...), a tinygp kernel, or a module
        Prior covariance of the log odds. "auto" is "linear+rbf". "mlp" with mean="mlp" is the paper's.
    encoder : None, "mlp", "conv", MLPEncoder(...), ConvEncoder(...), or a function of one input point
        What mean and kernel see in place of the inputs, and so share. An equinox module is learned.
    standardize : "within-class", True or False
        True learns the mean and the spread of every input column from the tasks. "within-class" divides by the spread
        within the classes of a task instead, and removes correlations found there: a metric for all tasks. (As True
        for over 1024 columns, and before a ConvEncoder.) False leaves inputs as they are.
    dtype : "auto", "float32" or "float64"
        Precision of training. "auto" takes float64 for tasks of over 100 samples and for inputs that are not
        standardized. Adaptation is in float64, unless asked otherwise.

    Attributes
    ----------
    classes_
        The two labels all tasks share, or None if tasks have labels of their own.
    """

    likelihood = "bernoulli"

    def __init__(
        self,
        alpha: Any = "auto",
        *,
        inference: Any = "map",
        n_particles: int | None = None,
        mean: Any = "constant",
        kernel: Any = "auto",
        encoder: Any = None,
        temperature: float | str = "bayes",
        prior_mean: Any = "zero",
        prior_std: Any = 1.0,
        optimizer: str = "adam",
        learning_rate: float = 1e-2,
        schedule: str = "cosine",
        n_steps: int = 1000,
        batch_size: int | None = None,
        standardize: bool | str = "within-class",
        dtype: str = "auto",
        random_state: Any = None,
        search_time: Any = None,
        n_devices: int | None = None,
        progress: bool | None = None,
    ):
        self.alpha = alpha
        self.inference = inference
        self.n_particles = n_particles
        self.mean = mean
        self.kernel = kernel
        self.encoder = encoder
        self.temperature = temperature
        self.prior_mean = prior_mean
        self.prior_std = prior_std
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.n_steps = n_steps
        self.batch_size = batch_size
        self.standardize = standardize
        self.dtype = dtype
        self.random_state = random_state
        self.search_time = search_time
        self.n_devices = n_devices
        self.progress = progress

    def fit(
        self,
        source_tasks: Iterable[Any] | Mapping[Any, Any] | None = None,
        target_tasks: Iterable[Any] | None = None,
        *,
        target: Any = None,
        validation_tasks: Iterable[Any] | None = None,
        patience: Any = 5,
        checkpoint: str | os.PathLike | None = None,
    ) -> "MetaGPClassifier":
        """Meta-train on sequences of (X, y), one per task, y holding two labels; `target` as for `MetaGPRegressor`.

        Given `validation_tasks` (as for `evaluate`), they are scored every 100 steps, the best parameters are kept,
        and training stops after `patience` scores without a new best (None: never).

        Given `checkpoint`, a path, what is done is kept in that file every ten seconds, and when the fit is stopped.
        The same fit, run again, goes on from there to the same result (to a like one with `search_time`, which goes by
        the clock). Remove the file once the prior is saved.
        """
        settings = self._settings()
        read = lambda *tasks: as_tasks(*tasks, outputs=as_labels)  # noqa: E731
        environments = read_environments(source_tasks, target_tasks, target, read)
        options = resolve_weights(self.alpha, environments.names, environments.counts, environments.target)
        counted = np.max(options, axis=0).tolist()  # labels of environments without weight do not matter
        if any(isinstance(tasks, StoredTasks) for tasks in environments.tasks):
            named = zip(environments.tasks, environments.arguments, strict=True)
            encoded, classes = [check_stored_labels(tasks, name) for tasks, name in named], np.array([0, 1])
        else:
            encoded, classes = encode_environments(environments.tasks, environments.arguments, counted)
        environments = environments._replace(tasks=encoded)
        settings = self._of_labels(settings, classes)
        held_out = None
        if validation_tasks is not None:
            held_out = lambda dim: as_labeled_tests(validation_tasks, "validation_tasks", dim, classes)  # noqa: E731
        self._fit(settings, environments, held_out, patience, checkpoint)
        self.classes_ = classes
        return self

    def adapt(self, X: Any, y: Any, classes: Any = None) -> AdaptedClassifier:
        """Condition on a new task's labeled context. An empty context predicts from the prior.

        `classes` names the two classes where the context does not have both, and nothing else tells: all tasks sharing
        two labels, or labels that are 0 and 1 or bools. Left out then, the other class is None.
        """
        check_is_fitted(self, "model_")
        task = as_task(X, y, "adapt", self.model_.input_dim, as_labels)
        return AdaptedClassifier(self.model_, *task, task_classes(task.y, "adapt", self.classes_, classes))

    def adapt_many(self, contexts: Iterable[Any], classes: Any = None, *, dtype: str = "float64") -> AdaptedClassifiers:
        """Condition on the labeled contexts (X, y) of many new tasks, of any sizes, at once.

        As `adapt` for each of them, and much faster; `classes` is for all of them. `dtype="float32"` is faster still.
        """
        check_is_fitted(self, "model_")
        x, y = as_contexts(contexts, "contexts", self.model_.input_dim, as_labels)
        return self._adapted(x, y, "contexts", classes, dtype)

    def predict_many(self, tasks: Iterable[Any], classes: Any = None, *, dtype: str = "float64") -> list[np.ndarray]:
        """Adapt to and predict every (X_context, y_context, X_query): the more probable classes, an array for each.

        `adapt_many` gives probabilities, too.
        """
        check_is_fitted(self, "model_")
        x, y, queries = as_new_tasks(tasks, "tasks", self.model_.input_dim, as_labels)
        return self._adapted(x, y, "tasks", classes, dtype).predict(queries)

    def _adapted(self, x: Ragged, y: list[np.ndarray], name: str, classes: Any, dtype: str) -> AdaptedClassifiers:
        check_precision(dtype, self.model_, x, standardized=bool(self.parameters_["standardize"]))
        pairs, encoded = encode_contexts(y, name, self.classes_, classes)
        return AdaptedClassifiers(self.model_, x, Ragged.of_rows(encoded, x.sizes), pairs, dtype)

    def evaluate(self, test_tasks: Iterable[Any]) -> Bunch:
        """Adapt to and score every (X_context, y_context, X_query, y_query).

        Means over tasks of `accuracy`, `probability_accuracy` (1 - |p - y|, the paper's measure read with
        probabilities), `log_loss` and `brier`, each with its standard error `..._se`; `calibration_error` (ECE) over
        all queries; `per_task` holds the values of every task.
        """
        check_is_fitted(self, "model_")
        tasks = as_labeled_tests(test_tasks, "test_tasks", self.model_.input_dim, self.classes_)
        (first, second), y, mask = predict_labels(self.model_, tasks)
        probability = expit(second - first)  # exactly one half where neither is more probable
        return report(summarize_labels(y, probability, np.where(y > 0.5, second, first), mask))

    def _of_labels(self, settings: Settings, classes: np.ndarray | None) -> Settings:
        """Which of a task's own labels comes first means nothing: a mean could only learn noise from it."""
        if classes is None and isinstance(settings.mean, str | ConstantMean | LinearMean | InducingMean):  # str: AUTO
            return replace(settings, mean=ZeroMean())
        return settings

    def _check_standardize(self) -> None:
        if not (isinstance(self.standardize, bool | np.bool_) or self.standardize == "within-class"):
            raise ValueError(f"standardize must be 'within-class', True or False; got {self.standardize!r}.")

    def _fitted_settings(self) -> Settings:
        return self._of_labels(self._settings(), self.classes_)

    def _labels_to_json(self) -> dict[str, Any]:
        return {"classes_": None if self.classes_ is None else self.classes_.tolist()}

    def _restore(self, path: str | os.PathLike, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        classes = header["fitted"].get("classes_")
        if classes is not None and not (isinstance(classes, list) and len(classes) == 2):
            raise InvalidFile(f"{path} is damaged: classes_ must be two labels; the file has {classes!r}.")
        self.classes_ = None if classes is None else as_labels(classes, f"{path}: classes_")
        super()._restore(path, header, tensors)
