"""Checks of arguments, and messages that name arguments: in Python's spelling, or as options of the command line."""

import math
import sys
import warnings
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from metaprior.conventions import random_state_of

# Of numbers without a unit, such as scales and rates: their squares must not overflow or vanish in float32.
SCALES = (1e-15, 1e15)


class MissingExtra(ImportError):
    """Raised where packages of an extra are missing. The message says how to install them."""


class Argument(NamedTuple):
    """An argument that a message names: `n_steps`, or with a value `inference='map'`."""

    name: str
    value: Any = None

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value!r}"


class Message(str):
    """Text for an error or a warning that keeps the arguments it names.

    As a string it is what users of Python read. The command line calls `spell` to name its options instead:
    `ValueError(Message("Pass ", Argument("drop_missing", True), " to leave them out."))`.
    """

    parts: tuple[str | Argument, ...]

    def __new__(cls, *parts: str | Argument) -> "Message":
        """Join text, arguments and other messages."""
        message = super().__new__(cls, "".join(map(str, parts)))
        message.parts = tuple(part for each in parts for part in (each.parts if isinstance(each, Message) else (each,)))
        return message

    def spell(self, argument: Callable[[Argument], str]) -> str:
        """Return the text with every argument as the function spells it."""
        return "".join(argument(part) if isinstance(part, Argument) else part for part in self.parts)


def counted(number: int, noun: str) -> str:
    """Return a number of things in words: "1 task", "1,000 tasks"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called metaprior, however deep inside the package the warning comes from."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "metaprior":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def draw_seed(random_state: Any) -> int:
    """Draw a seed; raise if `random_state` is not what scikit-learn takes."""
    try:
        return int(random_state_of(random_state).randint(2**31 - 1))
    except (ValueError, TypeError):
        expected = " must be None, an integer from 0 to 2**32 - 1, or a numpy.random.RandomState; got "
        raise ValueError(Message(Argument("random_state"), f"{expected}{random_state!r}.")) from None


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a finite real number, and not a bool."""
    is_real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return is_real and math.isfinite(value)


def check_positive(name: str, value: Any, also: str = "", limits: tuple[float, float] | None = SCALES) -> float:
    """Return a positive number within the limits as a float; `also` completes the error, as in " or 'auto'"."""
    if not (is_number(value) and value > 0):
        raise ValueError(Message(Argument(name), f" must be a positive number{also}; got {value!r}."))
    if limits is not None and not limits[0] <= value <= limits[1]:
        between = f" must lie between {limits[0]:g} and {limits[1]:g}{also}; got {value!r}."
        raise ValueError(Message(Argument(name), between))
    return float(value)


def check_noise(noise_std: Any) -> float | None:
    """Return the fixed noise standard deviation, or None for 'learned'. Its size depends on y: see `fit`."""
    if isinstance(noise_std, str) and noise_std == "learned":
        return None
    advice = " in the units of y, or 'learned' (for noiseless data: a thousandth of the spread of y)"
    return check_positive("noise_std", noise_std, advice, limits=None)


def check_integer(name: str, value: Any, least: int) -> int:
    """Return an integer of at least `least`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(Message(Argument(name), f" must be an integer of at least {least}; got {value!r}."))
    return int(value)


def check_bool(name: str, value: Any, also: str = "") -> None:
    """Raise unless a value is True or False; `also` completes the error, as in "'auto', "."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(Message(Argument(name), f" must be {also}True or False; got {value!r}."))


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return a value that is one of the given choices."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(Message(Argument(name), f" must be one of {', '.join(choices)}; got {value!r}."))
    return value


def require_matplotlib() -> None:
    """Raise unless matplotlib is installed."""
    if find_spec("matplotlib") is None:
        raise MissingExtra("Plots need matplotlib, which is not installed: run pip install 'metaprior[plots]'.")
