"""Time contestants in turn, so that a busy machine slows all of them; medians, quartiles and paired ratios."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Contestant(NamedTuple):
    """A call to time, which does `units` units of work."""

    name: str
    call: Callable[[], Any]
    units: float = 1.0


class Spread(NamedTuple):
    """Median and quartiles of repeated measurements."""

    median: float
    low: float
    high: float
    n: int


def spread(values: Sequence[float] | np.ndarray) -> Spread:
    """Return median and quartiles."""
    low, median, high = np.quantile(np.asarray(values, float), (0.25, 0.5, 0.75))
    return Spread(float(median), float(low), float(high), len(values))


def ratio(others: Sequence[float] | np.ndarray, ours: Sequence[float] | np.ndarray) -> Spread:
    """Return the ratios of times by round; what slows a whole round cancels."""
    return spread(np.asarray(others, float) / np.asarray(ours, float))


def seconds(call: Callable[[], Any]) -> float:
    """Return the seconds of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def alternate(contestants: Sequence[Contestant], rounds: int, say: Callable[[str], None]) -> dict[str, np.ndarray]:
    """Return seconds per unit of each contestant in every round, after a first call of each to compile.

    Every round starts with another contestant, so that none always follows the same one.
    """
    for contestant in contestants:
        say(f"{contestant.name}: first call {seconds(contestant.call):.2f} s")
    times: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for first in range(rounds):
        for i in range(len(contestants)):
            contestant = contestants[(first + i) % len(contestants)]
            times[contestant.name].append(seconds(contestant.call) / contestant.units)
        say(f"round {first + 1} of {rounds}")
    return {name: np.array(of_name) for name, of_name in times.items()}


def repeat(call: Callable[[], Any], budget: float, most: int = 1000, least: int = 3) -> list[float]:
    """Return the seconds of as many calls as fit into `budget` seconds."""
    times: list[float] = []
    while len(times) < least or (sum(times) < budget and len(times) < most):
        times.append(seconds(call))
    return times
