"""Likelihoods, one file each: a new one is registered in `LIKELIHOODS`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from metaprior.checks import Message, warn_caller
from metaprior.likelihoods.base import Integers, Likelihood
from metaprior.likelihoods.counts import NegativeBinomial, Poisson
from metaprior.likelihoods.gaussian import Gaussian
from metaprior.likelihoods.ordinal import Ordinal
from metaprior.likelihoods.student import StudentT
from metaprior.linalg import Array

LIKELIHOODS: dict[str, type[Likelihood]] = {
    kind.name: kind for kind in (Gaussian, StudentT, Poisson, NegativeBinomial, Ordinal)
}
MIN_READINGS, MIN_VALUES = 50, 3  # that a hint needs, all of them integers


class LikelihoodHint(UserWarning):
    """Given when the values of y suggest another likelihood than the Gaussian one, which is used all the same.

    `warnings.simplefilter("ignore", metaprior.LikelihoodHint)` silences it.
    """


def make_likelihood(name: str, **fields: Any) -> Likelihood:
    """Return the likelihood of a name, with its fields."""
    return LIKELIHOODS[name](**fields)


def names_where(wanted: Any) -> Sequence[str]:
    """Return the names of the likelihoods that have some property."""
    return [name for name, kind in LIKELIHOODS.items() if wanted(kind)]


def suggestion(y: Array) -> Message | None:
    """Return a hint in words if the values of y suggest counts or ranks, else None."""
    if len(y) < MIN_READINGS or (y != np.floor(y)).any():
        return None
    seen, counts = np.unique(y, return_counts=True)
    if len(seen) < MIN_VALUES:
        return None
    deviation = y - y.mean()
    given = Integers(y, seen, counts, float(np.mean(deviation**3) / np.mean(deviation**2) ** 1.5))
    hints = (kind.suggested(given) for kind in LIKELIHOODS.values())
    return next((hint for hint in hints if hint is not None), None)


def warn_if_suggested(y: Array) -> None:
    """Warn if the values of y suggest another likelihood than the Gaussian one, which they are fitted with."""
    found = suggestion(y)
    if found is not None:
        used = ". The Gaussian likelihood is used: its intervals may include impossible values."
        warn_caller(Message(found, used), LikelihoodHint)
