"""`MetaGPRegressor`: a prior for regression tasks, learned from many of them."""

from typing import Any

from metaprior.checks import check_bool, check_noise
from metaprior.conventions import check_is_fitted
from metaprior.estimators.arguments import check_likelihood, check_search, names_elsewhere
from metaprior.estimators.default import HierarchicalFit, in_wfem
from metaprior.estimators.fitted_prior import heaviest
from metaprior.estimators.readings import ReadingsPrior
from metaprior.float_errors import own_float_errors
from metaprior.tasks.context_rules import as_context_rule


@own_float_errors
class MetaGPRegressor(ReadingsPrior, HierarchicalFit):
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
        conformal intervals, of whose nominal coverage a part is proven whether or not the model is right; `repr` of the
        fitted estimator names it. 90% need nine target tasks. Ends for counts and ranks are integers.
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
        as_context_rule(self.context)
        check_bool("conformal", self.conformal)
        check_search(self.search_time, self.progress)

    def _problem(self) -> Any:
        from metaprior.search.numbers import Numbers

        return Numbers(self._likelihood, check_noise(self.noise_std), self._exposure)
