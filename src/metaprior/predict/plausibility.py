"""Contexts that a prior cannot explain: readings far outside what it predicts, alone or together, or contradicting.

Adaptation believes every reading, so that a typing error or a wrong unit gives confident nonsense. A task that differs
from those of the fit by more than these differ from each other has intervals that are too narrow: a few tasks may be
alike by chance. Users are warned of both.

Every likelihood has the same two tests. Alone, a reading is as far out as a normal variable with a tail that small.
Together, they say how far the latent function of the task is from the prior's, which is chi-square under the prior:
outliers and heavy tails of the noise hardly move it. Of several components the one counts that explains most.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import chdtrc, ndtri

from metaprior.checks import counted, warn_caller
from metaprior.predict.batches import SMALL, Posteriors
from metaprior.predict.ensemble import Ensemble
from metaprior.predict.predictive import Predictive
from metaprior.tasks.types import Ragged, row_hashes

# Chosen on draws from 1,000,000 on (docs/explanations/promises.md): no honest reading is beyond 4, no honest task
# beyond 2. Joint scores allow standard deviations to be half as large again as the prior says.
MAX_ERROR = 7.0  # standard deviations of a reading
MAX_GAP = 20.0  # times the noise, between readings at one input
STRETCH, MAX_JOINT = 1.5, 3.0  # times the standard deviation; normal score of the distance of a context
MAX_TESTED = 1000  # readings of a context


class ImplausibleContextWarning(UserWarning):
    """Given when readings of a context are far outside what the prior expects, alone or together, or contradict."""


class ContextErrors(NamedTuple):
    """How far readings, (readings,), and contexts, (tasks,), are from what the prior can explain."""

    errors: np.ndarray  # standard deviations from the prior's prediction, or as improbable as so many
    expected: np.ndarray  # what was predicted, where errors are large
    gaps: np.ndarray  # between the smallest and the largest y at this input of the task, in stds of noise
    lowest: np.ndarray
    highest: np.ndarray
    joint: np.ndarray  # (tasks,): normal score of the distance of the latent function
    distance: np.ndarray  # (tasks,): that distance, in units of the one expected


def warn_if_implausible(posteriors: Posteriors, name: Callable[[int], str]) -> None:
    """Warn, once, about contexts that no part of the prior can explain; `name` gives the name of a task.

    Posteriors are kept for the predictions that follow.
    """
    x, y = posteriors.x, posteriors.y
    if not y.n_rows:
        return
    found, task = context_errors(posteriors), np.repeat(np.arange(len(y.sizes)), y.sizes)
    alone = np.unique(task[(found.errors > MAX_ERROR) | (found.gaps > MAX_GAP)])
    tasks = np.union1d(alone, np.flatnonzero(found.joint > MAX_JOINT))
    if not len(tasks):
        return
    count = "" if len(y.sizes) == 1 else f" of {len(tasks)} of {len(y.sizes)} tasks"
    errors = found.errors[task == task[int(found.errors.argmax())]]  # of the task of the worst reading
    alike = len(errors) > 1 and errors.min() > 0.5 * MAX_ERROR and found.joint.max() > MAX_JOINT
    one = len(alone) > 0 and not alike
    said, advice = _of_readings(found, x, y, task, name) if one else _of_context(found, y, name)
    warn_caller(
        f"Readings{count} are far from what the prior can explain: in {said} {advice}", ImplausibleContextWarning
    )


def _of_readings(
    found: ContextErrors, x: Ragged, y: Ragged, task: np.ndarray, name: Callable[[int], str]
) -> tuple[str, str]:
    """Return what is wrong with the worst reading, and what to do."""
    if found.errors.max() > MAX_ERROR:
        row = int(found.errors.argmax())
        off = f"{float(f'{found.errors[row]:.2g}'):,g} standard deviations off"
        said = f"y is {y.rows[row]:.10g} where the prior expects {found.expected[row]:.4g}, {off}"
    else:
        row = int(found.gaps.argmax())
        apart = f"{found.gaps[row]:.2g} times the noise apart"
        said = f"y is both {found.lowest[row]:.10g} and {found.highest[row]:.10g}, {apart}"
    place = np.array2string(x.rows[row], threshold=4, precision=6)
    advice = "Predictions follow these readings, and are as wrong as they are. Check their units, or leave them out."
    return f"{name(int(task[row]))}, at X = {place}, {said}.", advice


def _of_context(found: ContextErrors, y: Ragged, name: Callable[[int], str]) -> tuple[str, str]:
    """Return what is wrong with the context that is farthest as a whole, and what to do."""
    worst = int(np.lexsort((found.distance, found.joint))[-1])
    said = f"{name(worst)}, {counted(int(y.sizes[worst]), 'reading')} together say that the task is "
    said += f"{found.distance[worst]:.2g} times as far from the prior as it should be."
    advice = (
        "This task differs more from those of the fit than they do from each other, so that its bands are too narrow "
        "and hold less than they say. Check its units; if it is right, the tasks of the fit are too few or too much "
        "alike: add some that differ as this one does."
    )
    return said, advice


def context_errors(posteriors: Posteriors) -> ContextErrors:
    """Return how far each reading, those at one input of a task, and each context, are from the prior's prediction."""
    model, x, y = posteriors.model, posteriors.x, posteriors.y
    errors, expected, noise_std = _errors(model, x, y)
    task = np.repeat(np.arange(len(y.sizes)), y.sizes)
    lowest, highest = _extremes(row_hashes(x.rows[:-1], task), y.rows[:-1])
    joint, distance = _joint(posteriors)
    return ContextErrors(
        errors, expected, (highest - lowest) / (np.sqrt(2.0) * noise_std), lowest, highest, joint, distance
    )


def _joint(posteriors: Posteriors) -> tuple[np.ndarray, np.ndarray]:
    """Return the normal score of the distance of every latent function from the prior's, and the distance itself.

    Distances are not large for priors trained by gradients, which do not compute them, and for large contexts, whose
    own readings outweigh the prior.
    """
    sizes, model = posteriors.x.sizes, posteriors.model
    joint, distance = np.full(len(sizes), -np.inf), np.zeros(len(sizes))
    if not all(hasattr(member, "latent_distances") for member in model.members):
        return joint, distance
    tested = (sizes > 0) & (sizes <= MAX_TESTED)
    given = np.flatnonzero(tested)
    first = Ragged.of_rows(posteriors.x.rows[posteriors.x.starts[given]], tested.astype(np.int64))

    def values(tasks: np.ndarray, _: np.ndarray) -> np.ndarray:
        squares, degrees = posteriors.latent_distances(tasks)
        squares = squares / model.spread**2
        scores = -ndtri(chdtrc(degrees, squares / STRETCH**2))
        return np.stack([scores.min(axis=0), np.sqrt(squares / degrees).min(axis=0)])[..., None]

    for places, (scores, ratios) in posteriors.predict(first, values):
        joint[given[places]], distance[given[places]] = scores, ratios
    return joint, distance


def _errors(model: Ensemble, x: Ragged, y: Ragged) -> tuple[np.ndarray, np.ndarray, float]:
    """Return how many standard deviations every reading is off under the prior, what it expected, and the noise.

    The noise is infinite where readings at one input may be far apart: outliers, and counts.
    """
    # Without context all tasks are alike, so the inputs of all are divided as is quickest.
    sizes = np.diff([*range(0, x.n_rows, SMALL), x.n_rows])
    nothing = [np.empty((0, *x.rows.shape[1:]))] * len(sizes), [np.empty(0)] * len(sizes)
    prior = Posteriors(model, Ragged.of(nothing[0], x.rows.shape[1:]), Ragged.of(nothing[1]))

    def values(tasks: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        means, variances, log_weights = prior.mixture(tasks, inputs, latent=False)
        weights = np.broadcast_to(log_weights.reshape(len(means), -1, 1), means.shape)
        return np.stack([means, variances, weights])

    errors, expected, likelihood = np.empty(x.n_rows), np.full(x.n_rows, np.nan), model.likelihood
    noise = likelihood.noise(np.zeros(len(model.parameters)), model.parameters)
    for places, (means, variances, weights) in prior.predict(Ragged(x.rows, sizes), values):
        if not likelihood.normal:
            predictive = Predictive(likelihood, means, variances, model.parameters, weights)
            errors[places] = predictive.scores(y.rows[places])
            far = errors[places] > MAX_ERROR
            expected[places[far]] = predictive._at(far).quantile(0.5)
            continue
        off, of_row = np.abs(y.rows[places] - means) / np.sqrt(variances + noise[:, None]), np.arange(len(places))
        best = off.argmin(axis=0)
        errors[places], expected[places] = off[best, of_row], means[best, of_row]
    return errors, expected, float(np.sqrt(noise.max())) if likelihood.normal else np.inf


def _extremes(point: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and the largest y at the point of each row."""
    order = np.argsort(point, kind="stable")
    starts = np.flatnonzero(np.diff(point[order], prepend=~point[order[:1]]))
    counts = np.diff(np.append(starts, len(y)))
    extremes = np.empty((2, len(y)))
    extremes[:, order] = [np.repeat(ufunc.reduceat(y[order], starts), counts) for ufunc in (np.minimum, np.maximum)]
    return extremes[0], extremes[1]
