"""Checks of arguments, with errors that name the argument, what was expected and what came."""

import math
from collections.abc import Iterable
from typing import Any, TypeGuard

import numpy as np


def is_number(value: Any) -> TypeGuard[float]:
    """A finite real number, and not a bool."""
    is_real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return is_real and math.isfinite(value)


def check_positive(name: str, value: Any, also: str = "") -> float:
    """A positive number; `also` says what else would do."""
    if not (is_number(value) and value > 0):
        raise ValueError(f"{name} must be a positive number{also}; got {value!r}.")
    return float(value)


def check_integer(name: str, value: Any, least: int) -> int:
    """An integer of at least `least`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}; got {value!r}.")
    return int(value)


def check_bool(name: str, value: Any) -> None:
    """True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False; got {value!r}.")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """One of a few names."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}.")
    return value
