"""`MetaGPRegressor`: a prior for tasks of numbers, learned from many of them; adapted, scored and compared."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from metaprior.checks import Argument, Message, check_bool, check_choice, check_noise
from metaprior.conventions import check_is_fitted, own_float_errors
from metaprior.estimators.base import MetaGP, heaviest, in_wfem, names_elsewhere
from metaprior.estimators.comparison import Comparison, compare_readings, score_model
from metaprior.estimators.environments import NamedEnvironments, read_environments, task_blocks
from metaprior.likelihoods import LIKELIHOODS, make_likelihood, names_where, warn_if_suggested
from metaprior.likelihoods.base import Likelihood
from metaprior.metrics import Scores
from metaprior.predict.adapted import AdaptedRegressor, AdaptedRegressors, adapt_readings
from metaprior.predict.batches import Posteriors, check_outputs, predict_tasks
from metaprior.predict.plausibility import warn_if_implausible
from metaprior.tasks.columns import Features
from metaprior.tasks.types import Ragged, Task, TestTask, as_contexts, as_new_tasks, as_task, as_tasks, as_test_tasks

MAX_LOOKED_AT = 100_000  # readings of each environment


@own_float_errors
class ReadingsPrior(MetaGP):
    """A prior of tasks whose y holds numbers: what its estimators share."""

    _estimator_type = "regressor"

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
        task = as_task(X, y, "adapt", self.features_, self._outputs)
        return self._adapted(Ragged.of([task.x], task.x.shape[1:]), [task.y], "adapt")[0]

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
        x, y = as_contexts(contexts, "contexts", self.features_, self._outputs)
        return self._adapted(x, y, "contexts[{}]", dtype)

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
        x, y, queries = as_new_tasks(tasks, "tasks", self.features_, self._outputs)
        return self._adapted(x, y, "tasks[{}] context", dtype).predict(queries, return_std, latent=latent)

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
            `conformal_coverage` and `conformal_width` too.
        """
        tests = self._read_tests(test_tasks, "test_tasks", context)
        return score_model(self.model_, tests, coverage)

    def compare(self, test_tasks: Iterable[Any], coverage: Any = 0.9, context: Any = None) -> Comparison:
        """Score the prior on test tasks beside models that you would fit without it.

        These are a linear mixed model, with correlated random intercepts and slopes, and a hierarchical GP of all
        tasks, each counted once, and scikit-learn's GP of each task. `MetaGPRegressor` fits the first two with the
        prior; priors of `metaprior.wfem` have the third only.

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
        tests = self._read_tests(test_tasks, "test_tasks", context)
        return compare_readings(self.model_, self.baselines_, tests, coverage)

    def _score(self, test_tasks: Iterable[Any]) -> float:
        tests = self._read_tests(test_tasks, "test_tasks")
        predictive, observed, mask = predict_tasks(self.model_, tests)
        residual = (observed - predictive.mean())[mask]
        total = np.sum((observed[mask] - np.mean(observed[mask])) ** 2)
        return float(1.0 - np.sum(residual**2) / total) if total > 0 else float(np.all(residual == 0.0))

    def _adapted(self, x: Ragged, y: list[np.ndarray], name: str, dtype: str = "float64") -> AdaptedRegressors:
        return adapt_readings(self.model_, x, Ragged.of(y), dtype, self.features_, name.format)

    def _read_tests(self, tasks: Any, name: str, context: Any = None) -> list[TestTask]:
        tests = super()._read_tests(tasks, name, context)
        check_outputs(self.model_, tests, name)
        x = Ragged.of([test.x_context for test in tests], (self.n_features_in_,))
        y = Ragged.of([test.y_context for test in tests])
        warn_if_implausible(Posteriors(self.model_, x, y), f"{name}[{{}}] context".format)
        return tests

    def _read_environments(
        self, source_tasks: Any, target_tasks: Any, target: Any, features: Features
    ) -> NamedEnvironments:
        environments = read_environments(source_tasks, target_tasks, target, as_tasks, features)
        if (exposure := getattr(self, "exposure", None)) is not None:
            features.exposure = features.find_exposure(exposure)
        self._exposure = features.exposure
        self._checked_likelihood = check_observations(self._given_likelihood, environments, features)
        return environments

    @property
    def features_(self) -> Features:
        """What is known of the input columns: their number, names, ranges, and which is the exposure."""
        features = super().features_
        if hasattr(self, "model_"):  # not yet while a file is read
            features.exposure = getattr(self.model_.members[0], "exposure", None)
        return features

    @property
    def _given_likelihood(self) -> Likelihood:
        """The likelihood as the parameters give it."""
        return make_likelihood(self._kind)

    @property
    def _outputs(self) -> Likelihood:
        """The likelihood, which checks y, once the tasks of the fit are checked."""
        return self.model_.likelihood if hasattr(self, "model_") else self._checked_likelihood

    def _check_tasks(self, tasks: Any, name: str, features: Features) -> list[Task]:
        return as_tasks(tasks, name, features, self._outputs)

    def _check_tests(self, tasks: Any, name: str, features: Features) -> list[TestTask]:
        return as_test_tasks(tasks, name, features, self._outputs)


def check_observations(likelihood: Likelihood, environments: NamedEnvironments, features: Features) -> Likelihood:
    """Raise if y of a task cannot be observed under a likelihood, or an exposure is not positive.

    Returns the likelihood, with what it has learned of y. A hint is given where y suggests another one than Gaussian
    noise.
    """
    if likelihood.normal:
        some: list[np.ndarray] = []
        for tasks in environments.tasks:
            n_looked_at = 0
            for _, y, _ in task_blocks(tasks):
                some.append(y)
                n_looked_at += len(y)
                if n_looked_at > MAX_LOOKED_AT:
                    break
        warn_if_suggested(np.concatenate(some))
        return likelihood
    for tasks, argument in zip(environments.tasks, environments.arguments, strict=True):
        first = 0
        for x, y, sizes in task_blocks(tasks):
            if not (likelihood.allow(y) and features.allow(x)):
                starts = np.cumsum(sizes) - sizes
                for i, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
                    where = f"{argument}[{first + i}]"
                    likelihood.check(y[start : start + size], f"{where}: y")
                    features.check_exposure(x[start : start + size], where)
            first += len(sizes)
    return likelihood.learned(y for tasks in environments.tasks for _, y, _ in task_blocks(tasks))


def check_likelihood(likelihood: Any, noise_std: Any, exposure: Any) -> None:
    """Check the likelihood of numbers, and what goes with it."""
    given, is_class = Argument("likelihood", likelihood), isinstance(likelihood, (type, *LIKELIHOODS.values()))
    if not is_class and (
        hasattr(likelihood, "log_density") or type(likelihood).__module__.startswith("metaprior.wfem")
    ):
        named = f" must be a name; objects such as {type(likelihood).__name__} are for metaprior.wfem.WFEMRegressor, "
        raise TypeError(Message(Argument("likelihood"), f"{named}whose priors are networks."))
    kind = LIKELIHOODS[check_choice("likelihood", likelihood, tuple(LIKELIHOODS))]
    if check_noise(noise_std) is not None and not kind.normal:
        raise ValueError(Message(Argument("noise_std"), " must be 'learned': that of ", given, f" {kind.noise_words}."))
    if exposure is not None and not kind.takes_exposure:
        named = [Argument("likelihood", name) for name in names_where(lambda kind: kind.takes_exposure)]
        counts = [part for each in named for part in (" or ", each)][1:]
        raise ValueError(Message(Argument("exposure"), " is for counts, ", *counts, "; got ", given, "."))


@own_float_errors
class MetaGPRegressor(ReadingsPrior):
    """A Gaussian-process prior, learned from source and target tasks.

    `fit` learns the prior from many tasks. `adapt` conditions it on a few readings of a new task, in closed form.

    Families of hierarchical priors are fitted and averaged, with weights from cross-validation over target tasks.
    Priors of neural networks, trained by gradients as in the paper, are in `metaprior.wfem`.

    Parameters
    ----------
    alpha : "auto", "pooled", float in [0, 1], sequence of floats, or dict, default="auto"
        Weight of the source environment; the target has 1 - alpha. "auto" chooses it by cross-validation over target
        tasks: predictions are averaged over the values that do well, target-only included. A sequence is a custom grid
        to choose from. "pooled" weights every task equally. Several sources share a number in proportion to their
        numbers of tasks; a dict gives every environment its weight.
    likelihood : "gaussian", "student-t", "poisson", "negative-binomial" or "ordinal", default="gaussian"
        What y holds, given a latent function t: readings with Gaussian noise; readings with outliers, whose noise has
        Student's t distribution; counts of mean exp(t), negative binomial ones with more variance than Poisson's; or
        ranks and scores, consecutive integers, each an interval of t plus standard normal noise. For all but "gaussian"
        posteriors are approximated by Gaussian ones.
    noise_std : float or "learned", default="learned"
        Standard deviation of the observation noise, in the units of y. If it is learned, so is how much tasks differ
        in it.
    exposure : str or int, optional
        Column of X, by name or number, with the exposure of counts, such as days of observation: the mean is the
        exposure times exp(t). It is no input of t, and must be no covariate or category.
    covariates : str, int or sequence of them, optional
        Columns of X, by name or number, that are constant within a task, such as the age of a patient. They shift,
        curve or bend the mean of a new task, or that of t, before its first reading, where the evidence and held-out
        tasks show that this pays. A missing value (NaN) stands for the average.
    categorical : str, int or sequence of them, optional
        Columns of X that hold categories. Those of data frames that are of type category, text or bool are recognized.
        Levels that the fit has not seen widen the band, and are named in a warning.
    context : "random", "first", int, or ("first", int), default="random"
        What is given of a task when it is predicted, so that cross-validation asks for the same: readings at random,
        or the first ones in the order of the first input (forecasting), about half of them or as many as the number.
        A number alone is drawn at random.
    conformal : bool, default=False
        Repeat the fit without each of up to ten folds of target tasks, for `interval(..., method="conformal")`:
        conformal intervals have a guaranteed minimum coverage, even if the model is wrong, which `repr` of the fitted
        estimator shows. A coverage of 90% needs at least nine target tasks. Ends for counts and ranks are integers.
    search_time : float, optional
        Seconds that the search may take, by default unlimited. Priors are compared on 20 tasks of each environment
        first, and on twice as many for as long as there is time. A warning says what was left out.
    random_state : int, RandomState or None, default=None
        Seed for reproducible results.
    progress : bool, optional
        Show a progress bar, by default if standard error is a terminal.

    Attributes
    ----------
    family_ : str
        The family of priors with the largest weight: "linear", "smooth", "curve", "shapes" or "features".
    family_weights_ : dict
        The families that were compared, with their weights in the averaged prediction.
    alpha_, environment_weights_ : float, ndarray
        The weights that were used, averaged over the members of the ensemble.
    likelihood_ : str
        The likelihood that the prior was fitted with.
    alpha_path_ : Bunch
        What was compared to choose alpha; see also `transfer_report`.
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
        The models of all tasks that `compare` scores, by name.
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

    _elsewhere = in_wfem("WFEMRegressor")

    @names_elsewhere
    def __init__(
        self,
        alpha: Any = "auto",
        *,
        likelihood: str = "gaussian",
        noise_std: float | str = "learned",
        exposure: Any = None,
        covariates: Any = None,
        categorical: Any = None,
        context: Any = "random",
        conformal: Any = False,
        search_time: Any = None,
        random_state: Any = None,
        progress: bool | None = None,
    ):
        self.alpha = alpha
        self.likelihood = likelihood
        self.noise_std = noise_std
        self.exposure = exposure
        self.covariates = covariates
        self.categorical = categorical
        self.context = context
        self.conformal = conformal
        self.search_time = search_time
        self.random_state = random_state
        self.progress = progress

    @property
    def response_(self) -> dict[str, Any]:
        """Parameters of the likelihood that were learned, of the member of largest weight."""
        check_is_fitted(self, "model_")
        likelihood = self.model_.likelihood
        return {} if likelihood.normal else likelihood.describe(heaviest(self.model_).component_parameters[0])

    @property
    def _kind(self) -> str:
        return self.likelihood

    @property
    def _noise_std(self) -> Any:
        return self.noise_std

    def _check_parameters(self) -> None:
        check_likelihood(self.likelihood, self.noise_std, self.exposure)
        super()._check_parameters()
        check_bool("conformal", self.conformal)

    def _problem(self) -> Any:
        from metaprior.search.problems import Numbers

        return Numbers(self._outputs, check_noise(self.noise_std), self._exposure)
