"""The conventions of scikit-learn, without importing it: that alone takes as long as fitting the default.

scikit-learn is imported where its tools ask for it, or something is wrong.

Floating-point errors: what a program has set with `np.seterr` is for its own computations, not for metaprior's.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np


class Bunch(dict):
    """A dict whose entries are attributes too, as those that scikit-learn returns."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]


class Parameters:
    """An estimator whose parameters are those of its constructor: `get_params`, `set_params`, clones, tags."""

    _estimator_type: ClassVar[Literal["regressor", "classifier"]]

    @classmethod
    def _get_param_names(cls) -> list[str]:
        """Return the names of the parameters of the constructor."""
        return sorted(name for name in inspect.signature(cls).parameters)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters.

        Parameters
        ----------
        deep : bool, default=True
            Not used: no parameter is an estimator.

        Returns
        -------
        dict
        """
        return {name: getattr(self, name) for name in self._get_param_names()}

    def set_params(self, **params: Any) -> Any:
        """Set parameters.

        Parameters
        ----------
        **params : dict
            Parameters by name.

        Returns
        -------
        self
        """
        for name, value in params.items():
            if name not in self._get_param_names():
                listed = ", ".join(self._get_param_names())
                raise ValueError(f"Invalid parameter {name!r} of {type(self).__name__}; its parameters are {listed}.")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        given = {name: repr(value) for name, value in self.get_params(deep=False).items()}
        changed = [f"{name}={text}" for name, text in given.items() if text != repr(defaults[name].default)]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, RegressorTags, Tags, TargetTags

        is_regressor = self._estimator_type == "regressor"
        return Tags(
            estimator_type=self._estimator_type,
            target_tags=TargetTags(required=False),
            regressor_tags=RegressorTags() if is_regressor else None,
            classifier_tags=None if is_regressor else ClassifierTags(),
            input_tags=InputTags(two_d_array=False),  # fit takes sequences of tasks
            no_validation=True,
        )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")


def check_is_fitted(estimator: Any, attribute: str = "model_") -> None:
    """Raise scikit-learn's NotFittedError unless an estimator has an attribute that `fit` sets."""
    if not hasattr(estimator, attribute):
        from sklearn.exceptions import NotFittedError

        raise NotFittedError(
            f"This {type(estimator).__name__} instance is not fitted yet. Call 'fit' with appropriate arguments before "
            "using this estimator."
        )


def random_state_of(given: Any) -> np.random.RandomState:
    """Return the random state that scikit-learn would take: NumPy's own for None, a new one for a seed."""
    if given is None:
        return np.random.mtrand._rand  # type: ignore[attr-defined]
    return given if isinstance(given, np.random.RandomState) else np.random.RandomState(given)


def convergence_warning() -> type[Warning]:
    """Return scikit-learn's ConvergenceWarning."""
    from sklearn.exceptions import ConvergenceWarning

    return ConvergenceWarning


# NumPy's defaults. A density of 1e-400 is no error, so programs that raise at underflow must not decide here.
HANDLED: dict[str, Any] = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
SPECIAL = ("__call__", "__getitem__", "__str__")
Door = TypeVar("Door", bound=Callable)


def own_float_errors(door: Door) -> Door:
    """Let a function, or what is public in a class, handle floating-point errors by NumPy's defaults.

    For what users call: whatever that calls is within. Methods of base classes are not included.
    """
    if not isinstance(door, type):
        return _guarded(door)
    for name, value in list(vars(door).items()):
        if name.startswith("_") and name not in SPECIAL:
            continue
        if isinstance(value, staticmethod | classmethod):
            setattr(door, name, type(value)(_guarded(value.__func__)))
        elif isinstance(value, property) and value.fget is not None:
            setattr(door, name, property(_guarded(value.fget), value.fset, value.fdel, value.__doc__))
        elif isinstance(value, functools.cached_property):
            value.func = _guarded(value.func)
        elif callable(value) and not isinstance(value, type):
            setattr(door, name, _guarded(value))
    return door  # type: ignore[return-value]


def _guarded(function: Any) -> Any:
    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        with np.errstate(**HANDLED):
            return function(*args, **kwargs)

    return guarded
