"""Contexts that a prior cannot explain: readings far outside what it predicts, or far apart at one input.

Adaptation believes every reading. A typing error, or a wrong unit, therefore gives confident nonsense, so it is told.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from metaprior.checks import warn_caller
from metaprior.prediction.batches import SMALL, Posteriors, marginals
from metaprior.prediction.ensemble import Ensemble, mixture
from metaprior.tasks.padding import Ragged
from metaprior.tasks.task_digests import row_hashes

MAX_ERROR = 20.0  # standard deviations; of readings of fifteen real data sets none is beyond 5 (docs/promises.md)


class ImplausibleContextWarning(UserWarning):
    """Given when readings of a context are far outside what the prior expects, or contradict each other."""


class ContextErrors(NamedTuple):
    """How far readings are from what the prior can explain; all arrays are (readings,)."""

    errors: np.ndarray  # standard deviations from the prior's prediction
    expected: np.ndarray  # the mean of that prediction
    gaps: (
        np.ndarray
    )  # between the smallest and the largest y at this input of the task, in standard deviations of noise
    lowest: np.ndarray
    highest: np.ndarray


def warn_if_implausible(model: Ensemble, x: Ragged, y: Ragged, name: Callable[[int], str]) -> None:
    """Warn, once, about readings that no part of the prior can explain; `name` gives the name of a task."""
    if not y.n_rows or model.response is not None:  # outliers are what Student's t is for, and counts are skewed
        return
    found, task = context_errors(model, x, y), np.repeat(np.arange(len(y.sizes)), y.sizes)
    tasks = np.unique(task[np.maximum(found.errors, found.gaps) > MAX_ERROR])
    if not len(tasks):
        return
    if found.errors.max() > MAX_ERROR:
        row = int(found.errors.argmax())
        off = f"{found.errors[row]:.2g} standard deviations off"
        said = f"y is {y.rows[row]:.10g} where the prior expects {found.expected[row]:.4g}, {off}"
    else:
        row = int(found.gaps.argmax())
        apart = f"{found.gaps[row]:.2g} times the noise apart"
        said = f"y is both {found.lowest[row]:.10g} and {found.highest[row]:.10g}, {apart}"
    place = np.array2string(x.rows[row], threshold=4, precision=6)
    count = "" if len(y.sizes) == 1 else f" of {len(tasks)} of {len(y.sizes)} tasks"
    warn_caller(
        f"Readings{count} are far from what the prior can explain: in {name(int(task[row]))}, at X = {place}, {said}. "
        "Predictions follow these readings, and are as wrong as they are. Check their units, or leave them out.",
        ImplausibleContextWarning,
    )


def context_errors(model: Ensemble, x: Ragged, y: Ragged) -> ContextErrors:
    """Return how far each reading is from the prior's prediction, and those at one input of a task from each other."""
    errors, expected, noise_std = _errors(model, x, y)
    task = np.repeat(np.arange(len(y.sizes)), y.sizes)
    lowest, highest = _extremes(row_hashes(x.rows[:-1], task), y.rows[:-1])
    return ContextErrors(errors, expected, (highest - lowest) / (np.sqrt(2.0) * noise_std), lowest, highest)


def _errors(model: Ensemble, x: Ragged, y: Ragged) -> tuple[np.ndarray, np.ndarray, float]:
    """Return how many standard deviations every reading is off under the prior, what it expected, and the noise.

    Of several components the one counts that explains the reading best: the prior's tails are those of the widest.
    """
    # Without context all tasks are alike, so the inputs of all are divided as is quickest.
    sizes = np.diff([*range(0, x.n_rows, SMALL), x.n_rows])
    nothing = [np.empty((0, *x.rows.shape[1:]))] * len(sizes), [np.empty(0)] * len(sizes)
    prior = Posteriors(model, Ragged.of(nothing[0], x.rows.shape[1:]), Ragged.of(nothing[1]))

    def values(tasks: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        predictions = prior.evaluate(marginals, tasks, inputs)
        means, variances, _ = mixture(model, predictions, latent=False)
        noises = [p.noise * member.scaling.y_std**2 for p, member in zip(predictions, model.members, strict=True)]
        return np.stack([means, variances, np.broadcast_to(np.concatenate(noises)[:, None, None], means.shape)])

    errors, expected, noise = np.empty(x.n_rows), np.empty(x.n_rows), 0.0
    for places, (means, variances, noises) in prior.predict(Ragged(x.rows, sizes), values):
        off, of_row = np.abs(y.rows[places] - means) / np.sqrt(variances), np.arange(len(places))
        best = off.argmin(axis=0)
        errors[places], expected[places], noise = off[best, of_row], means[best, of_row], noises.max()
    return errors, expected, float(model.spread * np.sqrt(noise))


def _extremes(point: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and the largest y at the point of each row."""
    order = np.argsort(point, kind="stable")
    starts = np.flatnonzero(np.diff(point[order], prepend=~point[order[:1]]))
    counts = np.diff(np.append(starts, len(y)))
    extremes = np.empty((2, len(y)))
    extremes[:, order] = [np.repeat(ufunc.reduceat(y[order], starts), counts) for ufunc in (np.minimum, np.maximum)]
    return extremes[0], extremes[1]
