"""`MultiOutputMetaGP`: a prior for each of several outputs, fitted side by side and kept in one file."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from metaprior.checks import Message
from metaprior.estimators.base import MetaGP
from metaprior.estimators.classifier import MetaGPClassifier
from metaprior.estimators.comparison import Comparison
from metaprior.estimators.persistence import write_priors
from metaprior.estimators.regressor import MetaGPRegressor
from metaprior.float_errors import own_float_errors
from metaprior.metrics import Scores


@own_float_errors
class MultiOutputMetaGP(BaseEstimator):
    """Several outputs of the same tasks, each with a prior of its own.

    The priors are independent: readings of one output say nothing about another. Tasks may lack readings of some
    outputs. `meta["hct"]` is the estimator of one output.

    Parameters
    ----------
    regressor : MetaGPRegressor, optional
        Settings of the priors of outputs that are numbers, by default those of `MetaGPRegressor()`.
    classifier : MetaGPClassifier, optional
        The same of outputs that are labels.

    Attributes
    ----------
    estimators_ : dict of str to MetaGPRegressor or MetaGPClassifier
        The fitted estimator of every output.

    Examples
    --------
    >>> from metaprior import MetaGPRegressor, MultiOutputMetaGP, tasks_from_frame
    >>> table = {"who": ["a", "a", "b", "b"], "day": [0, 1, 0, 1], "hct": [40, 41, 35, 36], "gcs": [15, 14, None, 9]}
    >>> import warnings; warnings.simplefilter("ignore")
    >>> tasks = tasks_from_frame(table, task="who", x="day", y=["hct", "gcs"])
    >>> {name: [len(task.y) for task in of_output] for name, of_output in tasks.items()}
    {'hct': [2, 2], 'gcs': [2, 1]}
    >>> meta = MultiOutputMetaGP(MetaGPRegressor(random_state=0)).fit(tasks)
    >>> adapted = meta.adapt({"hct": ([[0.0]], [38.0])})
    >>> adapted["hct"].predict([[1.0]]).shape
    (1,)
    """

    def __init__(self, regressor: Any = None, classifier: Any = None):
        self.regressor = regressor
        self.classifier = classifier

    def fit(self, tasks: Any, *, target: Any = None) -> "MultiOutputMetaGP":
        """Fit a prior to the tasks of every output.

        Parameters
        ----------
        tasks : dict of str to tasks
            What `tasks_from_frame` returns for several columns y: of each output, tasks of the target or, with
            `target`, a dict from environments to tasks.
        target : str, optional
            The target environment.

        Returns
        -------
        self
        """
        _check_outputs(tasks, "tasks")

        def fitted(name: str, of_output: Any) -> MetaGP:
            meta = self._make(of_output)
            if isinstance(of_output, Mapping):
                return meta.fit(of_output, target=target)
            if target is not None:
                raise ValueError(f"target is {target!r}, but the tasks have no environments. Leave it out.")
            return meta.fit(target_tasks=of_output)

        self.estimators_ = _each(fitted, tasks)
        return self

    def adapt(self, contexts: Any) -> dict[str, Any]:
        """Condition the priors on the readings of a new task.

        Parameters
        ----------
        contexts : dict of str to (X, y)
            The readings of each output, which may be of different rows. Outputs may be left out; ([], []) predicts one
            from its prior.

        Returns
        -------
        dict of str to AdaptedRegressor or AdaptedClassifier
        """

        def adapted(name: str, context: Any) -> Any:
            if not isinstance(context, tuple | list) or len(context) != 2:
                raise ValueError(f"expected the readings (X, y); got {type(context).__name__}.")
            return self[name].adapt(*context)

        return _each(adapted, self._known(contexts, "contexts"))

    def evaluate(self, test_tasks: Any, context: Any = None) -> dict[str, Scores]:
        """Score the priors on test tasks of each output.

        Parameters
        ----------
        test_tasks : dict of str to tasks
            As for `evaluate` of the estimator of each output. Outputs may be left out.
        context : "random", "first", int, or ("first", int), optional
            Split tasks that are given as (X, y).

        Returns
        -------
        dict of str to Scores
        """
        return _each(
            lambda name, tests: self[name].evaluate(tests, context=context), self._known(test_tasks, "test_tasks")
        )

    def compare(self, test_tasks: Any, context: Any = None) -> dict[str, Comparison]:
        """Score the priors on test tasks of each output beside other models; arguments as for `evaluate`.

        Returns
        -------
        dict of str to Comparison
        """
        return _each(
            lambda name, tests: self[name].compare(tests, context=context), self._known(test_tasks, "test_tasks")
        )

    def save(self, path: str | os.PathLike, *, private: Any = False) -> None:
        """Write all priors to one file, which `metaprior.load` reads.

        Parameters
        ----------
        path : path-like
            The file, in safetensors format. It is replaced atomically.
        private : bool, default=False
            As for `MetaGPRegressor.save`.
        """
        check_is_fitted(self, "estimators_")
        write_priors(self.estimators_, path, private)

    def __getitem__(self, name: str) -> Any:
        check_is_fitted(self, "estimators_")
        if name not in self.estimators_:
            raise KeyError(f"there is no output {name!r}; the outputs are {_listed(self.estimators_)}")
        return self.estimators_[name]

    def __iter__(self) -> Iterator[str]:
        check_is_fitted(self, "estimators_")
        return iter(self.estimators_)

    def __len__(self) -> int:
        check_is_fitted(self, "estimators_")
        return len(self.estimators_)

    def __bool__(self) -> bool:
        return True  # also before it is fitted

    def _make(self, tasks: Any) -> Any:
        """Return an estimator that is not fitted yet, of numbers or of labels."""
        groups = tasks.values() if isinstance(tasks, Mapping) else [tasks]
        first = next((task for group in groups for task in group), None)
        if first is None:
            raise ValueError("it has no tasks.")
        if np.asarray(first[1]).dtype.kind in "fiu":
            return MetaGPRegressor() if self.regressor is None else clone(self.regressor)
        return MetaGPClassifier() if self.classifier is None else clone(self.classifier)

    def _known(self, given: Any, argument: str) -> Mapping[str, Any]:
        """Return what is given by output; raise if there is no such output."""
        check_is_fitted(self, "estimators_")
        _check_outputs(given, argument)
        for name in given:
            if name not in self.estimators_:
                raise ValueError(f"{argument} has {name!r}; the outputs of the fit are {_listed(self.estimators_)}.")
        return given


def _each(call: Callable[[str, Any], Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Call a function for every output; an error names the output."""
    found = {}
    for name, value in given.items():
        try:
            found[name] = call(name, value)
        except ValueError as error:
            raise type(error)(Message(f"output {name!r}: ", *error.args[:1])) from error
    return found


def _check_outputs(given: Any, argument: str) -> None:
    if not isinstance(given, Mapping) or not given or not all(isinstance(name, str) and name for name in given):
        found = "none" if isinstance(given, Mapping) and not given else type(given).__name__
        raise ValueError(f"{argument} must be a dict from names of outputs to tasks; got {found}.")


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names))
