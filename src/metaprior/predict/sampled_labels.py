"""Probabilities of two classes by draws of the latent function, as in the paper, for priors trained by gradients."""

import numpy as np
from scipy.special import expit

from metaprior.predict.batches import Posteriors, components, predict_rows
from metaprior.tasks.padding import Ragged

DRAWN_AT_ONCE = 2**22  # numbers


def sampled_probabilities(posteriors: Posteriors, queries: Ragged, n_samples: int, seed: int) -> list[np.ndarray]:
    """Return the probabilities of both classes for the queries of every task, (n, 2) each."""
    weights, probabilities = posteriors.model.component_weights, []
    for task, latent in enumerate(queries.split(predict_rows(posteriors, queries, components, latent=True))):
        rng = np.random.default_rng([seed, task])
        mean, variance = latent
        second = weights @ sampled_probability(rng, mean, variance, n_samples)
        probabilities.append(np.stack([1.0 - second, second], axis=1))
    return probabilities


def sampled_probability(rng: np.random.Generator, mean: np.ndarray, variance: np.ndarray, n_samples: int) -> np.ndarray:
    """Return the average of sigmoid(t) over draws of t ~ N(mean, variance)."""
    total, left = np.zeros(mean.shape), n_samples
    while left > 0:
        n = min(left, max(DRAWN_AT_ONCE // max(mean.size, 1), 1))
        total += expit(mean + np.sqrt(variance) * rng.standard_normal((n, *mean.shape))).sum(axis=0)
        left -= n
    return total / n_samples
