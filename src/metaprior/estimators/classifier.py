"""`MetaGPClassifier`: a prior for tasks of two or more classes, learned from many of them."""

from typing import Any

from metaprior.checks import check_bool
from metaprior.estimators.arguments import check_search, check_shared_classes, names_elsewhere
from metaprior.estimators.default import HierarchicalFit, in_wfem
from metaprior.estimators.labels import LabelsPrior
from metaprior.float_errors import own_float_errors
from metaprior.tasks.context_rules import as_context_rule


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
