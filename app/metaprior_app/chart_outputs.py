"""What the page's chart has along y: counts, ranks and readings, all in the units of y."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from metaprior_app.chart_inputs import as_rows, axes_of
from metaprior.likelihoods.counts import MAX_COUNT
from metaprior.predict.ensemble import predicts_labels
from metaprior.tasks.input_columns import no_extrapolation_warnings
from metaprior.tasks.types import Task

ROOM = 0.12  # of the range of y, beyond it
BELOW_ZERO = 0.05  # of the largest count: room for readings of zero
FEW_COUNTS = 3.0  # that the axis of counts shows at least
TAILS = (0.02, 0.98)  # of the predictive distribution
N_PLACES = 15  # along an input


def whole_numbers(meta: Any) -> dict[str, float | None] | None:
    """Return the smallest and the largest y of counts or ranks; None where y may be any number, and for labels."""
    if predicts_labels(meta) or not meta.model_.likelihood.discrete:
        return None
    lowest, highest = meta.model_.likelihood.limits
    return {"lowest": lowest, "highest": min(highest, MAX_COUNT)}


def y_range(meta: Any, tasks: Sequence[Task], inputs: Sequence[dict[str, Any]]) -> list[float]:
    """Return limits for the axis of y: about what training tasks have, or the prior expects, and some room."""
    whole = whole_numbers(meta)
    if whole is not None and (whole["highest"] or 0) < MAX_COUNT:  # all levels
        return [float(whole["lowest"] or 0) - 0.6, float(whole["highest"] or 0) + 0.6]
    if tasks:
        y = np.concatenate([at_exposure(meta, task, typical(inputs)).y for task in tasks]).astype(float)
        low, high = np.percentile(y, [0.2, 99.8]).tolist()
    elif meta.likelihood_ == "gaussian":
        scaling = meta.training_["scaling"]
        low, high = (scaling["y_mean"] + sign * 2.5 * scaling["y_std"] for sign in (-1.0, 1.0))
    else:
        low, high = _expected(meta, inputs)
    if whole is not None:
        high = max(high, FEW_COUNTS)
        return [-max(0.6, BELOW_ZERO * high), (1.0 + ROOM) * high]
    room = ROOM * (high - low) or 1.0
    return [low - room, high + room]


def typical(inputs: Sequence[dict[str, Any]]) -> list[float]:
    """Return the typical value of every input."""
    return [each["typical"] for each in inputs]


def _expected(meta: Any, inputs: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Return where the prior expects y along every input, the others being typical."""
    fixed = typical(inputs)
    rows = np.tile(fixed, (len(axes_of(meta)) * N_PLACES, 1))
    for k, axis in enumerate(axes_of(meta)):
        places = np.linspace(inputs[axis]["low"], inputs[axis]["high"], N_PLACES)
        rows[k * N_PLACES : (k + 1) * N_PLACES, axis] = places
    with no_extrapolation_warnings():
        low, high = meta.adapt([], []).quantile(as_rows(meta, rows, fixed), TAILS)
    return float(low.min()), float(high.max())


def at_exposure(meta: Any, task: Task, fixed: Sequence[float]) -> Task:
    """Return a task of counts as if all had the exposure of a chart: counts of it at the same rates."""
    column = meta.features_.exposure
    return task if column is None else task._replace(y=task.y * (fixed[column] / task.x[:, column]))
