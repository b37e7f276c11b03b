"""`MetaGPRegressor`: a meta-learned Gaussian-process prior for regression tasks."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from metaprior.checks import check_bool
from metaprior.estimators.arguments import NamedEnvironments, read_environments, reject_renamed, reject_rows
from metaprior.estimators.base import MetaGP
from metaprior.estimators.comparison import Comparison, compare_readings, score_model
from metaprior.estimators.fitted_prior import heaviest
from metaprior.estimators.outcomes import check_outcomes
from metaprior.float_errors import own_float_errors
from metaprior.metrics import Scores
from metaprior.prediction.adapted import AdaptedRegressor, AdaptedRegressors, adapt_readings
from metaprior.prediction.batches import Posteriors, check_outputs, predict_tasks
from metaprior.prediction.plausibility import warn_if_implausible
from metaprior.prediction.response_mixtures import outcomes_of
from metaprior.tasks.context_rules import split_all
from metaprior.tasks.input_columns import Features
from metaprior.tasks.outcome_rules import Outcomes
from metaprior.tasks.padding import Ragged, as_contexts, as_new_tasks
from metaprior.tasks.types import Task, TestTask, as_task, as_tasks, as_test_tasks


@own_float_errors
class MetaGPRegressor(RegressorMixin, MetaGP):
    """A Gaussian-process prior, meta-learned from source and target tasks by weighted free energy minimization.

    `fit` learns the prior from many tasks. `adapt` conditions it on a few readings of a new task, in closed form.

    By default, families of hierarchical priors are fitted in NumPy and averaged, with weights from
    cross-validation over target tasks. Parameters marked *gradient training* belong to priors that are trained in JAX:
    any value that says something else than its default asks for such a prior instead, and so do `validation_tasks`.
    `dtype` and `n_devices` do not: they only say how such a prior is computed.

    Parameters
    ----------
    alpha : "auto", "pooled", float in [0, 1], sequence of floats, or dict, default="auto"
        Weight of the source environment; the target has 1 - alpha. "auto" chooses it by cross-validation over target
        tasks: predictions are averaged over the values that do well, target-only included. A sequence is a custom grid
        to choose from. "pooled" weights every task equally. Several sources share a number in proportion to their
        numbers of tasks; a dict gives every environment its weight.
    inference : "auto", "map", "svgd", "laplace", MAP(...), SVGD(...) or Laplace(...), default="auto"
        Gradient training: approximation of the Gibbs hyper-posterior, by its mode, interacting particles, or draws from
        a normal around the mode. "auto" is "laplace" for priors of up to 2000 parameters, else "map"; for stored tasks
        it is "map".
    n_particles : int, optional
        Gradient training: default 1 for MAP and 10 for the others. Several MAP particles are an ensemble of independent
        solutions. One alone does not ask for gradient training.
    mean : "auto", "inducing", "mlp", "linear", "constant", "zero", MLPMean(...), or a callable, default="auto"
        Gradient training: prior mean. "auto" is the default mean of the kernel, or "mlp". A callable takes one input
        point; the parameters of an Equinox module are learned.
    kernel : "auto", "inducing", "mlp", "linear", "linear+rbf", "rbf", InducingKernel(...), a tinygp kernel, or a module
        Prior covariance. "auto" fits hierarchical priors. Any other value asks for gradient training; custom kernels
        see standardized inputs and outputs. If another parameter asks for gradient training, "auto" is "inducing" for
        up to three inputs, else "linear+rbf", unless "mlp" (the paper's) predicts ten or more held-out target tasks
        clearly better.
    encoder : None, "mlp", "conv", MLPEncoder(...), ConvEncoder(...), or a callable, default=None
        Gradient training: map from inputs to the features that mean and kernel see. The parameters of an Equinox module
        are learned.
    noise_std : float or "learned", default="learned"
        Standard deviation of the observation noise, in the units of y. If it is learned, hierarchical priors also learn
        how much tasks differ in it.
    likelihood : "gaussian", "student-t", "poisson", "negative-binomial" or "ordinal", default="gaussian"
        What y holds, given a latent function t: readings with Gaussian noise; readings with outliers, whose noise has
        Student's t distribution; counts of mean exp(t), negative binomial ones with more variance than Poisson's; or
        ranks and scores, consecutive integers, each an interval of t plus standard normal noise. For all but "gaussian"
        posteriors are approximated by Gaussian ones, and there is no gradient training.
    exposure : str or int, optional
        Column of X, by name or number, with the exposure of counts, such as days of observation: the mean is the
        exposure times exp(t). It is no input of t, and must be no covariate or category.
    temperature : "bayes", "effective", "paper", "auto" or float, default="bayes"
        Gradient training: gamma, the weight of the evidence against the hyper-prior. "auto" also tries a quarter and
        four times "bayes".
    prior_mean : "zero", "initial" or dict, default="zero"
        Gradient training: mean of the hyper-prior, for all parameters or per group (weights, biases, scales).
    prior_std : float, dict or "auto", default=1.0
        Gradient training: standard deviation of the hyper-prior, for all parameters or per group. "auto" tries 0.5, 1
        and 2.
    optimizer : "adam" or "sgd", default="adam"
        Gradient training: gradient-based optimizer.
    learning_rate : float, default=0.01
        Gradient training: initial learning rate.
    schedule : "cosine" or "constant", default="cosine"
        Gradient training: learning-rate schedule.
    n_steps : int, optional
        Gradient training: steps, by default 2000. 0 leaves the prior at its initial parameters (the paper's "GP"
        baseline).
    batch_size : int, optional
        Gradient training: tasks per step, split evenly among the environments. By default all tasks, and 256 for stored
        tasks.
    standardize : bool, default=True
        Standardize inputs and outputs by the meta-training tasks. Predictions are in the units of y. False asks for
        gradient training.
    dtype : "auto", "float32" or "float64", default="auto"
        Gradient training: precision. "auto" is float64 if the noise is small against the spread of y or tasks are
        large. Adaptation and prediction are in float64 unless asked otherwise. Hierarchical priors are in float64,
        and "float32" is an error without another parameter that asks for gradient training.
    context : "random", "first", int, or ("first", int), default="random"
        What is given of a task when it is predicted, so that cross-validation asks for the same: readings at random,
        or the first ones in the order of the first input (forecasting), about half of them or as many as the number.
        A number alone is drawn at random.
    guarantee : bool, default=False
        Repeat the fit without each of up to ten folds of target tasks, for `interval(..., method="conformal")`:
        conformal intervals, of whose nominal coverage a part is proven whether or not the model is right; `repr` of the
        fitted estimator names it. 90% need nine target tasks. Ends for counts and ranks are integers.
    covariates : str, int or sequence of them, optional
        Columns of X, by name or number, that are constant within a task, such as the age of a patient. They shift,
        curve or bend the mean of a new task, or that of t, before its first reading, where the evidence and held-out
        tasks show that this pays. A missing value (NaN) stands for the average. In gradient training they are inputs
        like others.
    categorical : str, int or sequence of them, optional
        Columns of X that hold categories. Those of data frames that are of type category, text or bool are recognized.
        Levels that the fit has not seen widen the band, and are named in a warning.
    random_state : int, RandomState or None, default=None
        Seed for reproducible results.
    search_time : float, optional
        Seconds that the search may take, by default unlimited. Hierarchical priors are compared on 20 tasks of each
        environment first, and on twice as many for as long as there is time. Gradient training: runs are shortened, and
        in less than 10 seconds, which compiling takes, nothing is compared. A warning tells what was left out.
    n_devices : int, optional
        Gradient training: devices that share it, by default all that JAX sees, in all processes. Hierarchical priors
        are fitted on one, and more are an error without another parameter that asks for gradient training.
    progress : bool, optional
        Show a progress bar, by default if standard error is a terminal.

    Attributes
    ----------
    engine_ : "hierarchical" or "gradient"
        What fitted the prior.
    family_ : str
        The family of hierarchical priors with the largest weight ("linear", "smooth", "curve", "shapes" or
        "features"), or the kernel that was trained by gradients.
    family_weights_ : dict
        The families that were compared, with their weights in the averaged prediction.
    alpha_, environment_weights_, temperature_ : float, ndarray, float
        The values that were used, averaged over the members of the ensemble. Hierarchical priors have a temperature
        of 1.
    dtype_ : str
        The training precision that was used.
    likelihood_ : str
        The likelihood that the prior was fitted with.
    alpha_path_ : Bunch
        What was compared to choose alpha; see also `transfer_report`.
    particles_, particle_weights_
        Gradient training: the learned parameters, a pytree with a leading axis of particles, and their weights.
    loss_trace_ : ndarray of shape (n_steps,)
        Gradient training: weighted loss plus hyper-prior penalty / temperature, averaged over particles, of the member
        of largest weight. Empty for hierarchical priors, as is the next.
    validation_trace_ : ndarray
        Gradient training: negative log density of the validation queries, every 100 steps.
    best_step_ : int
        Gradient training: the step whose parameters were kept.
    n_features_in_ : int
        Number of input columns.
    feature_names_in_ : ndarray of str of shape (n_features_in_,)
        Names of the input columns, if tasks came as data frames. Data frames passed later must have the same ones, in
        any order. Arrays are taken as they are.
    covariates_ : tuple of int
        Numbers of the columns that are covariates.
    column_levels_ : tuple
        For every input column a tuple of its levels, or None if it holds numbers. Empty if there are neither
        categories nor covariates. In tensors of `metaprior.botorch`, the place of a level is its code.
    covariate_weights_ : dict
        Weights of priors with no covariates, with covariates that shift the mean ("shift"), along smooth curves too
        ("curved"), and that bend it too ("bend"), in the averaged prediction. Empty without covariates.
    feature_range_ : ndarray of shape (2, n_features_in_)
        Smallest and largest value of every input column in the tasks of environments with weight. Predictions at inputs
        that are outside by more than a tenth of the range warn with an `ExtrapolationWarning`.
    baselines_ : dict
        The models of all tasks that `compare` scores, by name. Empty for gradient training.
    private_ : bool
        Whether the prior comes from a file saved with `private=True`, so that it recognizes no task of its fit.

    Examples
    --------
    >>> from metaprior import MetaGPRegressor
    >>> from metaprior.datasets import Sinusoid
    >>> problem = Sinusoid(deviation=0.25)
    >>> source, target = problem.source_tasks(25, 5, rng=0), problem.target_tasks(5, 5, rng=1)
    >>> meta = MetaGPRegressor(random_state=0)
    >>> task = meta.fit(source, target).adapt(*target[0])
    >>> mean, std = task.predict([[0.0], [1.0]], return_std=True)
    >>> mean.shape
    (2,)
    """

    @reject_renamed
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
        likelihood: str = "gaussian",
        exposure: Any = None,
        temperature: float | str = "bayes",
        prior_mean: Any = "zero",
        prior_std: Any = 1.0,
        optimizer: str = "adam",
        learning_rate: float = 1e-2,
        schedule: str = "cosine",
        n_steps: int | None = None,
        batch_size: int | None = None,
        standardize: bool = True,
        dtype: str = "auto",
        context: Any = "random",
        guarantee: Any = False,
        covariates: Any = None,
        categorical: Any = None,
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
        self.likelihood = likelihood
        self.exposure = exposure
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
        self.context = context
        self.guarantee = guarantee
        self.covariates = covariates
        self.categorical = categorical
        self.random_state = random_state
        self.search_time = search_time
        self.n_devices = n_devices
        self.progress = progress

    def adapt(self, X: Any, y: Any) -> AdaptedRegressor:
        """Condition the prior on the readings of a new task, in closed form.

        Parameters
        ----------
        X : array-like of shape (n_context, n_features)
            Inputs of the context. An empty context predicts from the prior.
        y : array-like of shape (n_context,)
            Readings.

        Returns
        -------
        AdaptedRegressor
        """
        check_is_fitted(self, "model_")
        features = self.features_
        task = as_task(X, y, "adapt", features, self._outputs)
        x, y = Ragged.of([task.x], task.x.shape[1:]), Ragged.of([task.y])
        return adapt_readings(self.model_, x, y, "float64", features, "adapt".format)[0]

    def adapt_many(self, contexts: Iterable[Any], *, dtype: str = "float64") -> AdaptedRegressors:
        """Condition the prior on the contexts of many new tasks at once: `adapt` for each of them, much faster.

        Parameters
        ----------
        contexts : iterable of (X, y)
            Contexts of any sizes.
        dtype : "float64" or "float32", default="float64"
            float32 is faster and accurate to about 1e-4 of the spread of y, and is refused if the noise is too small.
            Ten or more standard deviations from the data its bands may be too wide. Hierarchical priors always compute
            in float64.

        Returns
        -------
        AdaptedRegressors
        """
        check_is_fitted(self, "model_")
        features = self.features_
        x, y = as_contexts(contexts, "contexts", features, self._outputs)
        return adapt_readings(self.model_, x, Ragged.of(y), dtype, features, "contexts[{}]".format)

    def predict_many(
        self, tasks: Iterable[Any], *, return_std: bool = False, latent: bool = False, dtype: str = "float64"
    ) -> Any:
        """Adapt to many tasks and predict their queries.

        Parameters
        ----------
        tasks : iterable of (X_context, y_context, X_query)
            Tasks of any sizes.
        return_std : bool, default=False
            Also return standard deviations.
        latent : bool, default=False
            Predict the noise-free function instead of new observations.
        dtype : "float64" or "float32", default="float64"
            As for `adapt_many`.

        Returns
        -------
        list of ndarray, or a tuple of two lists
            Means, and standard deviations if asked for, of every task.
        """
        check_is_fitted(self, "model_")
        features = self.features_
        x, y, queries = as_new_tasks(tasks, "tasks", features, self._outputs)
        adapted = adapt_readings(self.model_, x, Ragged.of(y), dtype, features, "tasks[{}] context".format)
        return adapted.predict(queries, return_std, latent=latent)

    def evaluate(self, test_tasks: Iterable[Any], coverage: Any = 0.9, context: Any = None) -> Scores:
        """Adapt to the contexts of test tasks and score the predictions of their queries.

        Parameters
        ----------
        test_tasks : sequence of (X_context, y_context, X_query, y_query)
            Tasks that were not meta-trained on; others warn with a `SeenTasksWarning`.
        coverage : float, default=0.9
            Nominal coverage of the central interval.
        context : "random", "first", int, or ("first", int), optional
            Split tasks that are given as (X, y) into context and queries, as the parameter of the constructor.

        Returns
        -------
        Bunch
            Printed, a table. Its entries: means over tasks of `rmse`, `nll` (nats per reading), `coverage` and
            `width` of the interval, each with its standard error `..._se`; `calibration_error` over all queries;
            `n_tasks`; `per_task`, the values per task. If the prior has conformal intervals of this coverage:
            `guaranteed_coverage` and `guaranteed_width` too.
        """
        tasks = self._read_tests(self._split(test_tasks, context), "test_tasks")
        return score_model(self.model_, tasks, coverage)

    def compare(self, test_tasks: Iterable[Any], coverage: Any = 0.9, context: Any = None) -> Comparison:
        """Score the prior on test tasks beside models that you would fit without it.

        These are a linear mixed model, with correlated random intercepts and slopes, and a hierarchical GP of all
        tasks, each counted once, and scikit-learn's GP of each task. The first two were fitted with the prior, by
        default; gradient training does not fit them.

        Parameters
        ----------
        test_tasks, coverage, context
            As for `evaluate`.

        Returns
        -------
        Comparison
            Printed, a table. Its `scores` are what `evaluate` returns, of each model by name; its `gains` are by how
            much the RMSE and NLL of each are above those of "metaprior", with standard errors of the paired
            differences.
        """
        tasks = self._read_tests(self._split(test_tasks, context), "test_tasks")
        return compare_readings(self, tasks, coverage)

    def score(self, test_tasks: Iterable[Any], y: Any = None) -> float:  # type: ignore[override]
        """Return the coefficient of determination R^2 over the queries of all test tasks.

        Parameters
        ----------
        test_tasks : sequence of (X_context, y_context, X_query, y_query)
            As for `evaluate`.
        y : None
            Not used: the tasks have their own. Anything else raises a TypeError.

        Returns
        -------
        float
            The coefficient of determination; 1 is best.
        """
        reject_rows(y)
        tasks = self._read_tests(test_tasks, "test_tasks")
        predictive, observed, mask = predict_tasks(self.model_, tasks)
        residual = (observed - predictive.mean())[mask]
        total = np.sum((observed[mask] - np.mean(observed[mask])) ** 2)
        return float(1.0 - np.sum(residual**2) / total) if total > 0 else float(np.all(residual == 0.0))

    def _read_tests(self, tasks: Any, name: str) -> list[TestTask]:
        tests = super()._read_tests(tasks, name)
        check_outputs(self.model_, tests, name)
        x = Ragged.of([test.x_context for test in tests], (self.n_features_in_,))
        y = Ragged.of([test.y_context for test in tests])
        warn_if_implausible(Posteriors(self.model_, x, y), f"{name}[{{}}] context".format)
        return tests

    def _read_environments(
        self, source_tasks: Any, target_tasks: Any, target: Any, features: Features, engine: str
    ) -> NamedEnvironments:
        environments = read_environments(source_tasks, target_tasks, target, as_tasks, features)
        if self.exposure is not None:
            features.exposure = features.find_exposure(self.exposure)
        self._exposure = features.exposure
        self._outcomes = check_outcomes(self.likelihood, environments, features)
        return environments

    @property
    def features_(self) -> Features:
        """What is known of the input columns: their number, names, ranges, and which is the exposure."""
        features = super().features_
        if hasattr(self, "model_"):  # not yet while a file is read
            features.exposure = getattr(self.model_.members[0], "exposure", None)
        return features

    @property
    def response_(self) -> dict[str, Any]:
        """Parameters of the likelihood that were learned, of the member of largest weight."""
        check_is_fitted(self, "model_")
        response, member = self.model_.response, heaviest(self.model_)
        return {} if response is None else response.describe(member.component_parameters[0])

    @property
    def _outputs(self) -> Outcomes:
        """What checks y, once the prior is fitted."""
        return outcomes_of(self.model_.response)

    def _split(self, tasks: Any, context: Any) -> Any:
        if context is None:
            return tasks
        features = self.features_
        return split_all(as_tasks(tasks, "test_tasks", features, self._outputs), context, features)

    def _check_tasks(self, tasks: Any, name: str, features: Features) -> list[Task]:
        return as_tasks(tasks, name, features, self._outputs)

    def _check_tests(self, tasks: Any, name: str, features: Features) -> list[TestTask]:
        return as_test_tasks(tasks, name, features, self._outputs if hasattr(self, "model_") else self._outcomes)

    def _check_standardize(self) -> None:
        check_bool("standardize", self.standardize)
