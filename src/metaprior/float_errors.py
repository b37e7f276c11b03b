"""Floating-point errors: what a program has set with `np.seterr` is for its own computations, not for metaprior's."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

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
