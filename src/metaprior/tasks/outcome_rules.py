"""What y may hold under each likelihood, checked with errors that say what to do; and a hint at a better likelihood."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import Argument, Message, warn_caller
from metaprior.tasks.scaling import MAX_SCALED
from metaprior.tasks.types import as_numbers

LIKELIHOODS = ("gaussian", "student-t", "poisson", "negative-binomial", "ordinal")
COUNTS = ("poisson", "negative-binomial")
MAX_COUNT = 1e12
MAX_LEVELS = 100
SHOWN = 8  # unseen levels in a warning
LARGEST_RANK = 1e9  # farther out ranks are codes of something else
MAX_UNSEEN = 0.5  # of the levels between the lowest and the highest
# A hint needs many readings, all integers. Scores are few and pile up at one end, or are very few; counts start at zero
# and are skewed.
MIN_READINGS = 50
SCORES, FEW_SCORES, SHARE_AT_END, SHARE_SEEN = (3, 20), 7, 0.2, 0.8
SKEWED, COUNT_VALUES = 1.0, 4
WIDE_RANGE, MEDIAN_COUNT, OVER_DISPERSED = 10, 200.0, 3.0


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
            if (y > MAX_COUNT).any():
                most = f"{name} must hold counts of at most {MAX_COUNT:g} for "
                found = f"; got {y[y > MAX_COUNT][0]:g}. Count in larger units, or use 'gaussian'."
                raise ValueError(Message(most, given, found))
            if bad.any():
                advice = ". Give the exposure as a column of X, not rates" if (y[bad] > 0).all() else ""
                expected = f"{name} must hold counts, the integers 0, 1, 2, ... for "
                raise ValueError(Message(expected, given, f"; got {y[bad][0]:g}{advice}."))
        if self.likelihood == "student-t" and (np.abs(y) > MAX_SCALED).any():
            found = y[np.abs(y) > MAX_SCALED][0]
            most = f"{name} must be at most {MAX_SCALED:g} in size for "
            raise ValueError(Message(most, given, f"; got {found:g}. Change its units."))
        if self.likelihood == "ordinal":
            if (y != np.floor(y)).any():
                found = f"got {y[y != np.floor(y)][0]:g}. Code them 0, 1, 2, ..."
                raise ValueError(Message(f"{name} must hold integer ranks or scores for ", given, f"; {found}"))
            if (np.abs(y) > LARGEST_RANK).any():
                found = f"; got {y[np.abs(y) > LARGEST_RANK][0]:g}. Code the levels 0, 1, 2, ... in their order."
                raise ValueError(
                    Message(f"{name} must hold ranks of at most {LARGEST_RANK:g} in size for ", given, found)
                )
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
    """Return the levels of all ranks of a fit; raise if there is one only, or if most between them are never seen.

    A warning names the others that are never seen.
    """
    seen = np.unique(y)
    lowest, highest = int(seen[0]), int(seen[-1])
    count = highest - lowest + 1
    given = Argument("likelihood", "ordinal")
    if count == 1:
        raise ValueError(Message("y must hold at least two levels for ", given, f"; all tasks have {lowest} only."))
    if len(seen) < MAX_UNSEEN * count:
        missing = int(seen[np.flatnonzero(np.diff(seen) > 1.0)[0]]) + 1
        skipped = f": it holds {len(seen)} of the {count} from {lowest} to {highest}, and {missing} is never seen"
        advice = ". Code the levels 0, 1, 2, ... in their order."
        raise ValueError(Message("y must not skip levels for ", given, skipped, advice))
    if count > MAX_LEVELS:
        most = f"y must have at most {MAX_LEVELS} levels for "
        raise ValueError(Message(most, given, f"; it has {count}. Use 'gaussian'."))
    if unseen := [str(level) for level in range(lowest, highest) if level not in seen]:
        named = ", ".join(unseen[:SHOWN]) + f" and {len(unseen) - SHOWN} more" * (len(unseen) > SHOWN)
        are = "levels are" if len(unseen) > 1 else "level is"
        warn_caller(
            f"y holds {len(seen)} of the {count} levels from {lowest} to {highest}: {named} {are} never seen, and have "
            "some probability in predictions all the same. Code the levels 0, 1, 2, ... if these cannot occur."
        )
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
    if skewness > SKEWED and seen[0] > 0 and _are_spread_counts(y, seen):
        counts_from = f"y holds integers from {seen[0]:.0f} to {seen[-1]:.0f}. If they are counts, try "
        return Message(counts_from, Argument("likelihood", "negative-binomial"))
    span = seen[-1] - seen[0] + 1
    few = len(seen) <= FEW_SCORES or max(counts[0], counts[-1]) >= SHARE_AT_END * len(y)
    if len(seen) <= SCORES[1] and len(seen) >= SHARE_SEEN * span and few:
        return Message(f"y holds {len(seen)} integer scores: try ", Argument("likelihood", "ordinal"))
    return None


def _are_spread_counts(y: np.ndarray, seen: np.ndarray) -> bool:
    """Return whether positive integers may be counts without a zero: over-dispersed, and over a wide range.

    Ages, heart rates and scores have a narrower range, or are less skewed; amounts of money are larger.
    """
    wide = seen[-1] >= WIDE_RANGE * seen[0] and len(seen) >= WIDE_RANGE and np.median(y) <= MEDIAN_COUNT
    return bool(wide and np.var(y) > OVER_DISPERSED * np.mean(y))


def warn_if_suggested(y: np.ndarray) -> None:
    """Warn if the values of y suggest another likelihood than the Gaussian one, which they are fitted with."""
    found = suggestion(y)
    if found is not None:
        used = ". The Gaussian likelihood is used: its bands may leave what y can be."
        warn_caller(Message(found, used), LikelihoodHint)
