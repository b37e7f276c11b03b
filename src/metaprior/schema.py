"""What the JSON and the arrays of a file may look like: types, limits and sizes, checked before anything is built.

A schema is a function of a value and of its name. It raises `Mismatch` with a sentence that names the value.
"""

import reprlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Schema = Callable[[Any, str], None]
Shape = tuple[int | None, ...]  # None: any size

MAX_DEPTH = 32  # of nested lists and objects; real headers have ten
MAX_INTEGER = 2**53  # floats hold every integer up to here
MAX_NUMBER = sys.float_info.max  # of numbers in the units of the data
MAX_INPUT = 1e100  # of inputs in the units of a prior, whose squares must not overflow
MAX_LEARNED = 1e50  # of numbers that are learned, in standardized units; squares of products must not overflow
MAX_LOG = 50.0  # of logarithms of scales in those units
MAX_ITEMS = 10**6
OUTERMOST = "its header"  # the name of the outermost object, which the names of its fields leave out


class Mismatch(ValueError):
    """Raised for a value that a schema does not allow."""


def integer(least: int = 0, most: int = MAX_INTEGER) -> Schema:
    """Allow integers within limits."""

    def check(value: Any, name: str) -> None:
        if type(value) is not int or not least <= value <= most:
            raise _mismatch(name, f"an integer from {least} to {most}", value)

    return check


def number(least: float = -MAX_NUMBER, most: float = MAX_NUMBER) -> Schema:
    """Allow finite numbers within limits."""

    def check(value: Any, name: str) -> None:
        if type(value) not in (int, float) or not least <= value <= most:  # NaN is never within
            limits = "" if (least, most) == (-MAX_NUMBER, MAX_NUMBER) else f" from {least:g} to {most:g}"
            raise _mismatch(name, f"a finite number{limits}", value)

    return check


finite = number()


def positive(value: Any, name: str) -> None:
    """Allow positive finite numbers."""
    if type(value) not in (int, float) or not 0 < value <= MAX_NUMBER:
        raise _mismatch(name, "a positive number", value)


def any_number(value: Any, name: str) -> None:
    """Allow numbers, also NaN and infinite ones."""
    if type(value) is not float:
        finite(value, name)


def boolean(value: Any, name: str) -> None:
    """Allow true and false."""
    if type(value) is not bool:
        raise _mismatch(name, "true or false", value)


def text(value: Any, name: str) -> None:
    """Allow strings."""
    if type(value) is not str:
        raise _mismatch(name, "text", value)


def anything(value: Any, name: str) -> None:
    """Allow everything."""


def choice(*allowed: str) -> Schema:
    """Allow one of several strings."""

    def check(value: Any, name: str) -> None:
        if type(value) is not str or value not in allowed:
            raise _mismatch(name, f"one of {', '.join(allowed)}", value)

    return check


def optional(schema: Schema) -> Schema:
    """Allow null too."""

    def check(value: Any, name: str) -> None:
        if value is not None:
            schema(value, name)

    return check


def sequence(item: Schema, least: int = 0, most: int = MAX_ITEMS) -> Schema:
    """Allow lists of as many items."""

    def check(value: Any, name: str) -> None:
        if type(value) is not list or not least <= len(value) <= most:
            expected = f"a list of {least}" if least == most else f"a list of {least} to {most} items"
            raise _mismatch(name, expected, value)
        for i, each in enumerate(value):
            item(each, f"{name}[{i}]")

    return check


def mapping(item: Schema) -> Schema:
    """Allow objects with any names, and values of one kind."""

    def check(value: Any, name: str) -> None:
        if type(value) is not dict:
            raise _mismatch(name, "an object", value)
        for key, each in value.items():
            item(each, f"{name}.{key[:40]}")

    return check


def record(required: Mapping[str, Schema], optionally: Mapping[str, Schema] | None = None) -> Schema:
    """Allow objects with fields of these names. Others, of which a later version may write some, are ignored."""

    def check(value: Any, name: str) -> None:
        if type(value) is not dict:
            raise _mismatch(name, "an object", value)
        if missing := [key for key in required if key not in value]:
            raise Mismatch(f"{name} lacks {', '.join(missing)}")
        for key, schema in {**required, **(optionally or {})}.items():
            if key in value:
                schema(value[key], key if name == OUTERMOST else f"{name}.{key}")

    return check


def check_depth(value: Any) -> None:
    """Raise for lists and objects nested so deeply that walking them would exhaust the stack."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [item for each in level if type(each) in (dict, list) for item in _items(each)]
        if not level:
            return
    raise Mismatch(f"{OUTERMOST} is nested more than {MAX_DEPTH} levels deep")


def _items(value: Any) -> Any:
    return value.values() if type(value) is dict else value


def check_array(name: str, array: np.ndarray | None, shape: Shape, most: float = MAX_LEARNED) -> np.ndarray:
    """Return an array of float64, of this shape, whose numbers are finite and of limited size."""
    if array is None or array.dtype != np.float64 or not _fits(array.shape, shape):
        expected = f"float64[{', '.join('any' if size is None else str(size) for size in shape)}]"
        raise Mismatch(f"{name} must be {expected}; the file has {describe(array)}")
    if not (np.abs(array) <= most).all():  # NaN is not
        raise Mismatch(f"{name} must have finite numbers of at most {most:g}")
    return array


def check_weights(name: str, array: np.ndarray | None, length: int | None) -> np.ndarray:
    """Return an array of weights: not negative, with sum one."""
    weights = check_array(name, array, (length,))
    if (weights < 0).any() or abs(weights.sum() - 1.0) > 1e-6:
        raise Mismatch(f"{name} must be positive numbers of sum one")
    return weights


def describe(array: np.ndarray | None) -> str:
    """Return type and shape in words."""
    return "nothing" if array is None else f"{array.dtype}{list(array.shape)}"


def _fits(found: tuple[int, ...], expected: Shape) -> bool:
    pairs = zip(found, expected, strict=False)
    return len(found) == len(expected) and all(size is None or have == size for have, size in pairs)


def _mismatch(name: str, expected: str, value: Any) -> Mismatch:
    return Mismatch(f"{name} must be {expected}; got {reprlib.repr(value)}")
