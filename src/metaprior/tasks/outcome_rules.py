"""What y may hold under each likelihood, checked with errors that say what to do; and a hint at a better likelihood."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import Argument, Message, warn_caller
from metaprior.tasks.types import as_numbers

LIKELIHOODS = ("gaussian", "student-t", "poisson", "negative-binomial", "ordinal")
COUNTS = ("poisson", "negative-binomial")
MAX_COUNT = 1e12
MAX_LEVELS = 100
MAX_UNSEEN = 0.5  # of the levels between the lowest and the highest
# A hint needs many readings, all integers. Scores are few and pile up at one end, or are very few; counts start at zero
# and are skewed.
MIN_READINGS = 50
SCORES, FEW_SCORES, SHARE_AT_END, SHARE_SEEN = (3, 20), 7, 0.2, 0.8
SKEWED, COUNT_VALUES = 1.0, 4


class LikelihoodHint(UserWarning):
    """Given when the values of y suggest another likelihood than the Gaussian one, which is used all the same.

    `warnings.simplefilter("ignore", metaprior.LikelihoodHint)` silences it.
    """


class Levels(NamedTuple):
    """The levels of ranks: lowest, lowest + 1, ..."""

    lowest: int
    number: int


@dataclass(frozen=True)
class Outcomes:
    """Checks y of one likelihood; once a prior is fitted, ranks must be of its levels."""

    likelihood: str
    levels: Levels | None = None

    def __call__(self, values: Any, name: str) -> np.ndarray:
        """Return checked values, named in errors as given."""
        array = as_numbers(values, name)
        self.check(array, name)
        return array

    def allow(self, y: np.ndarray) -> bool:
        """Return whether all numbers can be observed under the likelihood."""
        try:
            self.check(y, "y")
        except ValueError:
            return False
        return True

    def check(self, y: np.ndarray, name: str) -> None:
        """Raise if a number cannot be observed under the likelihood."""
        given = Argument("likelihood", self.likelihood)
        if self.likelihood in COUNTS:
            bad = (y < 0) | (y != np.floor(y)) | (y > MAX_COUNT)
            if bad.any():
                advice = ". Give the exposure as a column of X, not rates" if (y[bad] > 0).all() else ""
                expected = f"{name} must hold counts, the integers 0, 1, 2, ... for "
                raise ValueError(Message(expected, given, f"; got {y[bad][0]:g}{advice}."))
        if self.likelihood == "ordinal":
            if (y != np.floor(y)).any():
                found = f"got {y[y != np.floor(y)][0]:g}. Code them 0, 1, 2, ..."
                raise ValueError(Message(f"{name} must hold integer ranks or scores for ", given, f"; {found}"))
            self._check_levels(y, name)

    def _check_levels(self, y: np.ndarray, name: str) -> None:
        if self.levels is None:
            return
        highest = self.levels.lowest + self.levels.number - 1
        outside = (y < self.levels.lowest) | (y > highest)
        if outside.any():
            known = f"from {self.levels.lowest} to {highest}, those of the tasks that the prior was fitted to"
            raise ValueError(f"{name} must hold levels {known}; got {y[outside][0]:g}.")


def find_levels(y: np.ndarray) -> Levels:
    """Return the levels of all ranks of a fit; raise if there is one only, or if most between them are never seen."""
    seen = np.unique(y)
    lowest, highest = int(seen[0]), int(seen[-1])
    count = highest - lowest + 1
    given = Argument("likelihood", "ordinal")
    if count == 1:
        raise ValueError(Message("y must hold at least two levels for ", given, f"; all tasks have {lowest} only."))
    if len(seen) < MAX_UNSEEN * count:
        missing = next(level for level in range(lowest, highest) if level not in seen)
        skipped = f": it holds {len(seen)} of the {count} from {lowest} to {highest}, and {missing} is never seen"
        advice = ". Code the levels 0, 1, 2, ... in their order."
        raise ValueError(Message("y must not skip levels for ", given, skipped, advice))
    if count > MAX_LEVELS:
        most = f"y must have at most {MAX_LEVELS} levels for "
        raise ValueError(Message(most, given, f"; it has {count}. Use 'gaussian'."))
    return Levels(lowest, count)


def suggestion(y: np.ndarray) -> Message | None:
    """Return a hint in words if the values of y suggest counts or ranks, else None."""
    if len(y) < MIN_READINGS or (y != np.floor(y)).any():
        return None
    seen, counts = np.unique(y, return_counts=True)
    if len(seen) < SCORES[0]:
        return None
    deviation = y - y.mean()
    skewness = np.mean(deviation**3) / np.mean(deviation**2) ** 1.5
    if seen[0] == 0 and skewness > SKEWED and len(seen) >= COUNT_VALUES:
        return Message(f"y holds counts from 0 to {seen[-1]:.0f}: try ", Argument("likelihood", "negative-binomial"))
    span = seen[-1] - seen[0] + 1
    few = len(seen) <= FEW_SCORES or max(counts[0], counts[-1]) >= SHARE_AT_END * len(y)
    if len(seen) <= SCORES[1] and len(seen) >= SHARE_SEEN * span and few:
        return Message(f"y holds {len(seen)} integer scores: try ", Argument("likelihood", "ordinal"))
    return None


def warn_if_suggested(y: np.ndarray) -> None:
    """Warn if the values of y suggest another likelihood than the Gaussian one, which they are fitted with."""
    found = suggestion(y)
    if found is not None:
        used = ". The Gaussian likelihood is used: its bands may leave what y can be."
        warn_caller(Message(found, used), LikelihoodHint)
