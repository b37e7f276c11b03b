"""Probabilities of two classes by draws of the latent function, as in the paper, for priors trained by gradients."""

import jax
import numpy as np

from metaprior.prediction.batches import Posteriors, components, predict_rows
from metaprior.tasks.padding import Ragged
from metaprior.wfem.likelihoods import sampled_probability

_draw = jax.jit(sampled_probability, static_argnums=3)


def sampled_probabilities(posteriors: Posteriors, queries: Ragged, n_samples: int, seed: int) -> list[np.ndarray]:
    """Return the probabilities of both classes for the queries of every task, (n, 2) each."""
    model, key = posteriors.model, jax.random.key(seed)
    probabilities = []
    for task, latent in enumerate(queries.split(predict_rows(posteriors, queries, components, latent=True))):
        n, size = latent.shape[-1], posteriors.padded_size(latent.shape[-1])
        padded = np.pad(latent, ((0, 0), (0, 0), (0, size - n))).reshape(2, len(model.members), -1, 1, size)
        of_task = key if task == 0 else jax.random.fold_in(key, task)
        with jax.enable_x64(True):
            drawn = [np.asarray(_draw(of_task, *of_member, n_samples)) for of_member in np.moveaxis(padded, 1, 0)]
        second = model.component_weights @ np.concatenate(drawn)[:, 0, :n]
        probabilities.append(np.stack([1.0 - second, second], axis=1))
    return probabilities
