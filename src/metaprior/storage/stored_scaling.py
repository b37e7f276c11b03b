"""The scaling of stored tasks, from moments of their environments that are found once, whatever the weights."""

from collections.abc import Sequence

import numpy as np

from metaprior.storage.stored_tasks import StoredTasks
from metaprior.tasks.scaling import Scaling


def stored_scaling(environments: Sequence[StoredTasks], weights: Sequence[float]) -> Scaling:
    """What `fit_scaling` gives: mean and standard deviation of all samples, each weighing w_e / (N_e M_i)."""
    counted = [(stored.moments, weight) for stored, weight in zip(environments, weights, strict=True) if weight > 0]
    share = np.array([weight for _, weight in counted])
    share = share / share.sum()
    size = np.max([moments.size for moments, _ in counted], axis=0)
    unit = np.stack([moments.size / size for moments, _ in counted])
    means = unit * np.stack([moments.mean for moments, _ in counted])
    mean = share @ means
    variances = unit**2 * np.stack([moments.variance for moments, _ in counted])
    std = np.sqrt(share @ (variances + (means - mean) ** 2))
    constant = std <= 1e-12  # as in `fit_scaling`: what varies by less than rounding does not vary
    mean, std = np.where(constant, counted[0][0].first, mean * size), np.where(constant, 1.0, std * size)
    return Scaling(mean[:-1], std[:-1], mean[-1], std[-1])
