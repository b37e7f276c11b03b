"""`MetaGPRegressor`: what most users touch. NumPy in, NumPy out."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted

from metaprior.estimators.base import MetaGP
from metaprior.estimators.environments import read_environments
from metaprior.metrics.regression import summarize
from metaprior.metrics.summary import report
from metaprior.prediction.adapted import AdaptedRegressor
from metaprior.prediction.adapted_many import AdaptedRegressors
from metaprior.prediction.batches import check_precision, predict_tasks
from metaprior.tasks.ragged import Ragged, as_contexts, as_new_tasks
from metaprior.tasks.types import as_task, as_tasks, as_test_tasks


class MetaGPRegressor(MetaGP):
    """A Gaussian-process prior meta-learned from source and target tasks by weighted free energy minimization.

    Parameters
    ----------
    alpha : "auto", "pooled", float in [0, 1], sequence of floats, or dict
        Weight of the source environment; the target has 1 - alpha. "pooled" weighs every task the same. "auto" holds
        out target tasks, scores a grid of alpha on them, and averages predictions over those that do well, target-only
        among them (see docs/choosing-alpha.md). A sequence is a grid of one's own. With several sources, a number is
        shared among them in proportion to their numbers of tasks, and a dict gives every environment its weight.
    inference : "auto", "map", "svgd", "laplace", MAP(...), SVGD(...) or Laplace(...)
        How the Gibbs hyper-posterior is approximated: by its mode, by interacting particles, or by draws from the
        normal that fits it at its mode. "auto" is "laplace" for priors of up to 2000 parameters, else "map", as it is
        for stored tasks.
    n_particles : int, optional
        Default 1 for MAP and 10 for the others. Several MAP particles are an ensemble of independent solutions.
    mean : "auto", "inducing", "mlp", "linear", "constant", "zero", MLPMean(...), or a function of one input point
        Prior mean. "auto" is the one that goes with the kernel, "mlp" where none does. An equinox module is learned.
    kernel : "auto", "inducing", "mlp", "linear", "linear+rbf", "rbf", InducingKernel(...), a tinygp kernel, or a module
        Prior covariance. "auto" is "inducing" in up to three input dimensions, else "linear+rbf", unless "mlp", the
        paper's, predicts ten or more held-out target tasks clearly better (see docs/priors.md). Own means and kernels
        see standardized inputs and outputs (see `standardize`).
    encoder : None, "mlp", "conv", MLPEncoder(...), ConvEncoder(...), or a function of one input point
        What mean and kernel see in place of the inputs, and so share. An equinox module is learned.
    noise_std : float or "learned"
        Standard deviation of the observation noise, in the units of y.
    temperature : "bayes", "effective", "paper", "auto" or float
        gamma, the weight of the evidence against the hyper-prior; the rules are in `metaprior.meta.objective`. "auto"
        weighs a quarter and four times "bayes" too, as alpha="auto" does alphas.
    prior_mean : "zero", "initial" or dict
        Mean of the hyper-prior, for all parameters or per group (weights, biases, scales).
    prior_std : float, dict or "auto"
        Standard deviation of the hyper-prior, for all parameters or per group. "auto" weighs 0.5, 1 and 2.
    optimizer : "adam" or "sgd"
        What makes steps of gradients.
    learning_rate : float
        Size of the first steps.
    schedule : "cosine" or "constant"
        How the learning rate falls over the steps.
    n_steps : int
        Training steps; 0 leaves the prior at its initial parameters, which is the "GP" baseline.
    batch_size : int, optional
        Tasks per step, shared among environments (and size buckets) in proportion to their size, at least one of each.
        Default: all tasks. Stored tasks (`open_tasks`): 256, shared in proportion to weights in the loss.
    standardize : bool
        Learn the scale of inputs and outputs from the tasks; undone in every prediction.
    dtype : "auto", "float32" or "float64"
        Precision of training. "auto" takes float64 where float32 could not resolve the noise: when it is small against
        the spread of y, or tasks are large. Adaptation and prediction are in double precision, unless asked otherwise.
    random_state : int, RandomState or None
        The same number gives the same prior.
    search_time : float, optional
        Seconds that choosing kernel, alpha, temperature and prior_std may take, compilation and the last 100 steps
        aside: its runs are cut short where they would take longer. Default: as long as it takes.
    n_devices : int, optional
        Devices that share the training (see docs/performance.md). Default: all that JAX sees, of all processes.
    progress : bool, optional
        Show a progress bar. Default: if standard error is a terminal.

    Attributes
    ----------
    family_ : str
        The name of the kernel that was used.
    alpha_, environment_weights_, temperature_, dtype_
        What was used, on average where predictions are averaged.
    alpha_path_
        What was compared to choose it; `transfer_report()` says it in words, a table and a plot.
    particles_, particle_weights_
        The learned parameters, a pytree with a leading axis of particles, and their weights.
    loss_trace_ : (steps,)
        Weighted loss plus hyper-prior penalty / temperature, averaged over particles.
    validation_trace_
        Negative log density of the validation queries, every 100 steps.
    best_step_ : int
        The step whose parameters were kept (traces and step of the prior with the most weight).
    n_features_in_ : int
        Number of input columns.
    """

    likelihood = "gaussian"

    def __init__(
        self,
        alpha: Any = "auto",
        *,
        inference: Any = "auto",
        n_particles: int | None = None,
        mean: Any = "auto",
        kernel: Any = "auto",
        encoder: Any = None,
        noise_std: float | str = "learned",
        temperature: float | str = "bayes",
        prior_mean: Any = "zero",
        prior_std: Any = 1.0,
        optimizer: str = "adam",
        learning_rate: float = 1e-2,
        schedule: str = "cosine",
        n_steps: int = 2000,
        batch_size: int | None = None,
        standardize: bool = True,
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
        self.noise_std = noise_std
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
    ) -> "MetaGPRegressor":
        """Meta-train on sequences of (X, y), one per task, or on stored tasks (`open_tasks`), which may be millions.

        For more than two environments pass a dict of them and name the target:
        `fit({"a": tasks, "b": tasks, "c": tasks}, target="c")`.

        Given `validation_tasks` (as for `evaluate`), they are scored every 100 steps, the best parameters are kept,
        and training stops after `patience` scores without a new best (None: never).

        Given `checkpoint`, a path, what is done is kept in that file every ten seconds, and when the fit is stopped.
        The same fit, run again, goes on from there to the same result (to a like one with `search_time`, which goes by
        the clock). Remove the file once the prior is saved.
        """
        settings = self._settings()
        environments = read_environments(source_tasks, target_tasks, target, as_tasks)
        held_out = None
        if validation_tasks is not None:
            held_out = lambda input_dim: as_test_tasks(validation_tasks, "validation_tasks", input_dim)  # noqa: E731
        self._fit(settings, environments, held_out, patience, checkpoint)
        return self

    def adapt(self, X: Any, y: Any) -> AdaptedRegressor:
        """Condition on a new task's context, in closed form. An empty context predicts from the prior."""
        check_is_fitted(self, "model_")
        task = as_task(X, y, "adapt", self.model_.input_dim)
        return AdaptedRegressor(self.model_, task.x, task.y)

    def adapt_many(self, contexts: Iterable[Any], *, dtype: str = "float64") -> AdaptedRegressors:
        """Condition on the contexts (X, y) of many new tasks, of any sizes, at once.

        As `adapt` for each of them, and much faster. `dtype="float32"` is faster still, and good to about 1e-4 of the
        spread of y; where the noise is too small for it there is an error.
        """
        check_is_fitted(self, "model_")
        x, y = as_contexts(contexts, "contexts", self.model_.input_dim)
        return self._adapted(x, y, dtype)

    def predict_many(
        self, tasks: Iterable[Any], *, return_std: bool = False, latent: bool = False, dtype: str = "float64"
    ) -> Any:
        """Adapt to and predict every (X_context, y_context, X_query): means, a list with an array for each task.

        With `return_std` a list of standard deviations as well. `latent` as for `adapt(...).predict`, `dtype` as for
        `adapt_many`.
        """
        check_is_fitted(self, "model_")
        x, y, queries = as_new_tasks(tasks, "tasks", self.model_.input_dim)
        return self._adapted(x, y, dtype).predict(queries, return_std, latent)

    def _adapted(self, x: Ragged, y: list[np.ndarray], dtype: str) -> AdaptedRegressors:
        check_precision(dtype, self.model_, x)
        return AdaptedRegressors(self.model_, x, Ragged.of(y), dtype)

    def evaluate(self, test_tasks: Iterable[Any], coverage: Any = 0.9) -> Bunch:
        """Adapt to and score every (X_context, y_context, X_query, y_query).

        Means over tasks of `rmse`, `nll`, `coverage` and `width` (of the central interval), each with its standard
        error `..._se`; `calibration_error` over all queries; `per_task` holds the values of every task.
        """
        check_is_fitted(self, "model_")
        tasks = as_test_tasks(test_tasks, "test_tasks", self.model_.input_dim)
        predictive, y, mask = predict_tasks(self.model_, tasks)
        return report(summarize(predictive, y, mask, coverage))
