"""How a prior is trained: settings that users group in one argument.

`WFEMRegressor` and `WFEMClassifier`: the paper's priors, learned by weighted free energy minimization.
"""

import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from metaprior.checks import Argument, Message, check_integer, check_positive
from metaprior.conventions import check_is_fitted, own_float_errors
from metaprior.estimators.arguments import NamedEnvironments, check_shared_classes, names_elsewhere
from metaprior.estimators.base import Estimator, FittedPrior, MetaGP, heaviest
from metaprior.estimators.classifier import LabelsPrior
from metaprior.estimators.regressor import ReadingsPrior
from metaprior.tasks.columns import Features
from metaprior.tasks.splits import as_context_rule
from metaprior.tasks.types import TestTask
from metaprior.wfem.choices import check_compiled, resolve_encoder, resolve_inference, resolve_kernel, resolve_mean
from metaprior.wfem.files import FORMAT
from metaprior.wfem.fit import fit_prior, gibbs_of, make_plan
from metaprior.wfem.hyperprior import HyperPrior
from metaprior.wfem.inference import MAP, Interaction, interaction
from metaprior.wfem.likelihoods import Gaussian, check_own
from metaprior.wfem.objective import TEMPERATURES, Gibbs
from metaprior.wfem.runs import Training
from metaprior.wfem.trained import joined_particles

# Where settings are that an argument of another name holds, and what priors of networks do without.
IN_TRAINING = ("n_steps", "learning_rate", "optimizer", "schedule", "batch_size", "standardize", "dtype", "n_devices")
IN_TRAINING += ("search_time", "progress")
ELSEWHERE = {name: f"training=Training({name}=...)" for name in IN_TRAINING}
ELSEWHERE |= {f"prior_{name}": f"hyperprior=HyperPrior({name}=...)" for name in ("mean", "std")}
ELSEWHERE |= {"n_particles": "inference=SVGD(n_particles=...), or that of MAP"}
RESOLVE = {"kernel": resolve_kernel, "mean": resolve_mean, "encoder": resolve_encoder, "inference": resolve_inference}
OF_DEFAULT = ("covariates", "exposure", "conformal", "calibrate")


def _elsewhere(default: str, **more: str) -> Mapping[str, str]:
    of_default = dict.fromkeys(OF_DEFAULT, f"metaprior.{default}")
    return MappingProxyType({**ELSEWHERE, **of_default, **more})


@own_float_errors
class WFEM(MetaGP):
    """An estimator whose priors are trained by gradients of the weighted free energy."""

    kernel: Any
    mean: Any
    encoder: Any
    inference: Any
    temperature: Any
    hyperprior: Any
    training: Training
    _file_format = FORMAT

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
            environments pass a dict from names to tasks as `source_tasks` and name the target. Tasks of
            `metaprior.open_tasks` are read from disk in mini-batches.
        target : str, optional
            The target environment if `source_tasks` is a dict.
        validation_tasks : sequence of (X_context, y_context, X_query, y_query), optional
            Tasks for early stopping, scored every 100 steps; the best parameters are kept.
        patience : int or None, default=5
            Stop after as many validations without improvement. None never stops early.
        checkpoint : path-like, optional
            File that training writes its state to, every second and when it is interrupted. Re-running the same fit
            resumes it and gives the same result (a similar one with `search_time`). Remove the file afterwards.

        Returns
        -------
        self
            If the fit fails or is interrupted, the estimator stays as it was.
        """
        how = {"validation_tasks": validation_tasks, "patience": patience, "checkpoint": checkpoint}
        return self._fit_anew(source_tasks, target_tasks, target, **how)

    def gibbs(
        self,
        source_tasks: Iterable[Any] | Mapping[Any, Any] | None = None,
        target_tasks: Iterable[Any] | None = None,
        *,
        target: Any = None,
    ) -> Gibbs:
        """Return the Gibbs hyper-posterior q(theta) that `fit` approximates, for samplers and optimizers of your own.

        It is in the precision of JAX's x64 switch, and needs a given `alpha`, `temperature` and hyper-prior.

        Parameters
        ----------
        source_tasks, target_tasks, target
            As for `fit`.

        Returns
        -------
        Gibbs
            `log_density(theta)` is log q(theta) up to a constant, which JAX compiles and differentiates. `initial` are
            the particles that training starts from: a pytree like theta, with a leading axis of particles.
        """
        fresh = type(self)(**self.get_params(deep=False))
        fresh._check_parameters()
        features = Features(asked=(None, fresh.categorical))
        return gibbs_of(make_plan(fresh, fresh._read_environments(source_tasks, target_tasks, target, features)))

    @property
    def particles_(self) -> Any:
        """The parameters learned, a pytree with a leading axis of particles, member after member of the ensemble."""
        check_is_fitted(self, "model_")
        return joined_particles(self.model_)

    @property
    def particle_weights_(self) -> np.ndarray:
        """The weights of the particles in predictions."""
        check_is_fitted(self, "model_")
        return self.model_.component_weights

    def particle_interaction(self) -> Interaction:
        """Measure whether the particles of the member with the largest weight interact or are independent.

        Returns
        -------
        Interaction
            Print it for a sentence.
        """
        check_is_fitted(self, "model_")
        return interaction(heaviest(self.model_).particles, resolve_inference(self.parameters_["inference"]))

    def to_arviz(self) -> Any:
        """Return the draws of theta as data of ArviZ, for its summaries and plots.

        Draws are those of `Laplace`, `SVGD` or a method of your own. A chain is a member of the ensemble, and
        `sample_stats` has the weights of its draws in predictions.

        Returns
        -------
        arviz.InferenceData or, from ArviZ 1.0 on, xarray.DataTree
            Its group `posterior` has a variable for every parameter, of shape (chain, draw, ...).
        """
        check_is_fitted(self, "model_")
        from metaprior.wfem.trained import as_arviz

        return as_arviz(self)

    def _fit_prior(
        self, environments: NamedEnvironments, features: Features, **how: Any
    ) -> tuple[FittedPrior, list[TestTask] | None]:
        given, patience = how["validation_tasks"], how["patience"]
        if patience is not None:
            check_integer("patience", patience, least=1)
        tests = None if given is None else self._check_tests(given, "validation_tasks", features)
        return fit_prior(self, environments, tests, patience, how["checkpoint"]), tests

    def _check_parameters(self) -> None:
        for name, resolve in RESOLVE.items():
            check_compiled(name, resolve(getattr(self, name)))
        rules = (*TEMPERATURES, "auto")
        if not (isinstance(self.temperature, str) and self.temperature in rules):
            check_positive("temperature", self.temperature, f", or one of {', '.join(rules)}")
        if isinstance(self.hyperprior, type) or not hasattr(self.hyperprior, "build"):
            expected = " must be HyperPrior(...), or an object of your own with a method build(theta); got "
            raise ValueError(Message(Argument("hyperprior"), f"{expected}{self.hyperprior!r}."))
        if not isinstance(self.hyperprior, HyperPrior):
            check_compiled("hyperprior", self.hyperprior)
        if not isinstance(self.training, Training):
            raise ValueError(Message(Argument("training"), f" must be Training(...); got {self.training!r}."))
        as_context_rule(self.context)

    def _saved_parameters(self) -> dict[str, Any]:
        return {**self.parameters_, "training": self.parameters_["training"].portable()}


@own_float_errors
class WFEMRegressor(ReadingsPrior, WFEM):
    """A Gaussian-process prior of neural networks, learned by weighted free energy minimization (WFEM-GP).

    The paper's method: theta, the parameters of mean and kernel, has the Gibbs hyper-posterior
    `q(theta) = p(theta) exp(-gamma Lbar(theta)) / Z`. Lbar weighs the average negative log evidence per reading of the
    source tasks by alpha and that of the target tasks by 1 - alpha. q is approximated by particles, and predictions are
    averaged over them. For predictions alone, `metaprior.MetaGPRegressor` takes seconds and needs no JAX.

    Parameters
    ----------
    kernel : "mlp", "linear", "linear+rbf", "rbf", MLPKernel(...), a tinygp kernel, or a module, default="mlp"
        Prior covariance. "mlp", an RBF kernel of learned features, is the paper's. Custom kernels see standardized
        inputs and outputs.
    mean : "mlp", "linear", "constant", "zero", MLPMean(...), or a callable, default="mlp"
        Prior mean. A callable takes one input point; the parameters of an Equinox module are learned.
    encoder : "mlp", "conv", MLPEncoder(...), ConvEncoder(...), or a callable, optional
        Map from inputs to the features that mean and kernel see.
    likelihood : Gaussian(...), "gaussian", or a likelihood of your own, default=Gaussian()
        `Gaussian(noise_std=0.1)` fixes the noise, which is learned by default.
    inference : MAP(...), SVGD(...), Laplace(...), "map", "svgd", "laplace", or a method of your own, default=MAP()
        Approximation of the Gibbs hyper-posterior: by its mode, by interacting particles, or by draws from a normal
        around the mode.
    alpha : float in [0, 1], "pooled", "auto", sequence of floats, or dict, default=0.5
        Weight of the source environment; the target has 1 - alpha. "auto", or a grid, is chosen by cross-validation, as
        for `metaprior.MetaGPRegressor`.
    temperature : "paper", "effective", "bayes", "auto" or float, default="paper"
        gamma, or the rule for it. "bayes" counts every reading once, as Bayes' rule does; with the paper's own, the
        hyper-prior outweighs the tasks unless it is wide. "auto" also tries a quarter and four times "bayes" by
        cross-validation.
    hyperprior : HyperPrior(...), or one of your own, default=HyperPrior()
        The density p(theta). `HyperPrior(std=4.0)` is wider than the default.
    training : Training(...), default=Training()
        Steps, learning rate, precision, devices and the like.
    categorical : str, int or sequence of them, optional
        Columns of X that hold categories. Those of data frames that are of type category, text or bool are recognized.
    context : "random", "first", int, or ("first", int), default="random"
        What is given of a held-out task in cross-validation, as for `metaprior.MetaGPRegressor`.
    random_state : int, RandomState or None, default=None
        Seed for reproducible results.

    Attributes
    ----------
    particles_, particle_weights_
        The learned parameters, a pytree with a leading axis of particles, and their weights.
    loss_trace_ : ndarray of shape (n_steps,)
        Weighted loss plus hyper-prior penalty / temperature, averaged over particles, of the member of largest weight.
    validation_trace_ : ndarray
        Negative log density of the validation queries, every 100 steps.
    best_step_ : int
        The step whose parameters were kept.
    temperature_, dtype_ : float, str
        The temperature gamma, averaged over the members of the ensemble, and the precision of training.
    alpha_, environment_weights_, alpha_path_, n_features_in_, feature_names_in_, feature_range_, private_
        As for `metaprior.MetaGPRegressor`.

    Examples
    --------
    >>> from metaprior.datasets import Sinusoid
    >>> from metaprior.wfem import SVGD, Training, WFEMRegressor
    >>> problem = Sinusoid(deviation=0.25)
    >>> source, target = problem.source_tasks(25, 5, rng=0), problem.target_tasks(5, 5, rng=1)
    >>> meta = WFEMRegressor(alpha=0.2, inference=SVGD(n_particles=4), training=Training(n_steps=20), random_state=0)
    >>> task = meta.fit(source, target).adapt(*target[0])
    >>> mean, std = task.predict([[0.0], [1.0]], return_std=True)
    >>> mean.shape, meta.particle_weights_.shape
    ((2,), (4,))
    """

    _elsewhere = _elsewhere("MetaGPRegressor", noise_std="likelihood=Gaussian(noise_std=...)")

    @names_elsewhere
    def __init__(
        self,
        kernel: Any = "mlp",
        mean: Any = "mlp",
        *,
        encoder: Any = None,
        likelihood: Any = Gaussian(),  # noqa: B008  (it is frozen)
        inference: Any = MAP(),  # noqa: B008
        alpha: Any = 0.5,
        temperature: float | str = "paper",
        hyperprior: Any = HyperPrior(),  # noqa: B008
        training: Training = Training(),  # noqa: B008
        categorical: Any = None,
        context: Any = "random",
        random_state: Any = None,
    ):
        self.kernel = kernel
        self.mean = mean
        self.encoder = encoder
        self.likelihood = likelihood
        self.inference = inference
        self.alpha = alpha
        self.temperature = temperature
        self.hyperprior = hyperprior
        self.training = training
        self.categorical = categorical
        self.context = context
        self.random_state = random_state

    @property
    def _resolved_likelihood(self) -> Any:
        """The likelihood, by its name or as it is."""
        is_named = isinstance(self.likelihood, str) and self.likelihood == "gaussian"
        return Gaussian() if is_named else self.likelihood

    @property
    def _kind(self) -> str:
        likelihood = self._resolved_likelihood
        return "gaussian" if isinstance(likelihood, Gaussian) else likelihood.response.name

    @property
    def _given_likelihood(self) -> Any:
        likelihood = self._resolved_likelihood
        return super()._given_likelihood if isinstance(likelihood, Gaussian) else likelihood.response

    @property
    def _noise_std(self) -> Any:
        likelihood = self._resolved_likelihood
        return likelihood.noise_std if isinstance(likelihood, Gaussian) else "learned"

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not isinstance(self._resolved_likelihood, Gaussian):
            check_own(self.likelihood)
            check_compiled("likelihood", self.likelihood, arrays=False)


@own_float_errors
class WFEMClassifier(LabelsPrior, WFEM):
    """A Gaussian-process prior of neural networks for two classes, learned by weighted free energy minimization.

    As `WFEMRegressor`, with a Bernoulli likelihood: the evidence of a task, and the posterior given a context, are
    Laplace approximations. For any number of classes, and calibrated probabilities, use `metaprior.MetaGPClassifier`.

    Parameters and attributes that are not listed are those of `WFEMRegressor`.

    Parameters
    ----------
    mean : "mlp", "constant", "linear", "zero", MLPMean(...), or a callable, default="mlp"
        Prior mean of the log odds of the second class. If tasks have labels of their own, "linear" and "constant" are
        zero, because the order of the classes is arbitrary.
    shared_classes : "auto", True or False, default="auto"
        As for `metaprior.MetaGPClassifier`.

    Attributes
    ----------
    classes_ : ndarray of shape (2,) or None
        The classes that all tasks share, sorted, or None if tasks have classes of their own.

    Examples
    --------
    >>> import numpy as np
    >>> from metaprior.wfem import Training, WFEMClassifier
    >>> rng = np.random.default_rng(0)
    >>> tasks = [(rng.normal(size=(6, 2)) + 2 * (np.arange(6) % 2)[:, None], np.arange(6) % 2) for _ in range(8)]
    >>> meta = WFEMClassifier(training=Training(n_steps=20), random_state=0).fit(tasks[:5], tasks[5:])
    >>> meta.adapt(*tasks[5]).predict_proba([[0.0, 0.0], [2.0, 2.0]]).shape
    (2, 2)
    """

    _elsewhere = _elsewhere("MetaGPClassifier", likelihood="metaprior.wfem.WFEMRegressor, or leave it out")
    _most_classes = 2

    @names_elsewhere
    def __init__(
        self,
        kernel: Any = "mlp",
        mean: Any = "mlp",
        *,
        encoder: Any = None,
        inference: Any = MAP(),  # noqa: B008  (it is frozen)
        alpha: Any = 0.5,
        temperature: float | str = "paper",
        hyperprior: Any = HyperPrior(),  # noqa: B008
        training: Training = Training(),  # noqa: B008
        shared_classes: bool | str = "auto",
        categorical: Any = None,
        context: Any = "random",
        random_state: Any = None,
    ):
        self.kernel = kernel
        self.mean = mean
        self.encoder = encoder
        self.inference = inference
        self.alpha = alpha
        self.temperature = temperature
        self.hyperprior = hyperprior
        self.training = training
        self.shared_classes = shared_classes
        self.categorical = categorical
        self.context = context
        self.random_state = random_state

    @property
    def _standardized(self) -> bool:
        return self.parameters_["training"].standardize is not False

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_shared_classes(self.shared_classes)
