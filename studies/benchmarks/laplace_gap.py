"""How much of a classifier's underconfidence is due to the Laplace approximation: the same prior, sampled exactly.

    python studies/benchmarks/laplace_gap.py

Elliptical slice sampling of the latent function at context and queries of few-shot tasks (CUB's validation classes, a
linear plus RBF kernel without training), against WFEMClassifier on the same tasks.
"""

from typing import Annotated

import numpy as np
import typer
from scipy.special import expit, log_expit

from metaprior.wfem import LinearRBFKernel, Training, WFEMClassifier
from metaprior_studies.environments.episodes import FewShot
from metaprior_studies.environments.images import features
from metaprior_studies.open_settings import FIRST_VALIDATION_SEED


def sample_probability(
    covariance: np.ndarray, sign: np.ndarray, n_samples: int, n_warmup: int, rng: np.random.Generator
) -> np.ndarray:
    """Return p(y = 1) at the points after the context, by elliptical slice sampling with a zero prior mean."""
    factor, n = np.linalg.cholesky(covariance), len(sign)
    latent, total = np.zeros(len(covariance)), np.zeros(len(covariance) - n)
    value = log_expit(sign * latent[:n]).sum()
    for step in range(n_warmup + n_samples):
        other, least = factor @ rng.normal(size=len(covariance)), value + np.log(rng.uniform())
        angle = rng.uniform(0.0, 2.0 * np.pi)
        lower, upper = angle - 2.0 * np.pi, angle
        while True:
            proposal = latent * np.cos(angle) + other * np.sin(angle)
            value = log_expit(sign * proposal[:n]).sum()
            if value > least:
                break
            lower, upper = (angle, upper) if angle < 0 else (lower, angle)
            angle = rng.uniform(lower, upper)
        latent = proposal
        if step >= n_warmup:
            total += expit(latent[n:])
    return total / n_samples


def main(
    tasks: Annotated[int, typer.Option(help="Test tasks.")] = 100,
    samples: Annotated[int, typer.Option(help="Samples per task.")] = 2000,
):
    """Print accuracy, log loss and mean confidence of both."""
    rng, kernel = np.random.default_rng(FIRST_VALIDATION_SEED), LinearRBFKernel()
    episodes = FewShot(features("miniimagenet"), features("cub"))
    meta = WFEMClassifier(kernel, "zero", alpha="pooled", training=Training(n_steps=0)).fit(
        episodes.source_tasks(10, rng), episodes.target_tasks(10, rng)
    )
    found: dict[str, list[np.ndarray]] = {"Laplace": [], "exact (sampled)": []}
    labels = []
    for x, y, x_query, y_query in episodes.validation_tasks(tasks, rng):
        z = meta.model_.members[0].scaling.inputs(np.concatenate([x, x_query]).astype(float))
        squares = np.sum((z[:, None] - z[None]) ** 2, axis=-1) / z.shape[1]
        covariance = kernel.linear_scale * (z @ z.T) / z.shape[1] + kernel.rbf_scale * np.exp(-0.5 * squares)
        covariance += 1e-6 * np.eye(len(z))
        found["Laplace"].append(meta.adapt(x, y).predict_proba(x_query)[:, 1])
        found["exact (sampled)"].append(sample_probability(covariance, 2.0 * y - 1.0, samples, 300, rng))
        labels.append(y_query)
    y = np.concatenate(labels)
    for name, parts in found.items():
        p = np.concatenate(parts)
        loss = -np.mean(np.log(np.where(y == 1, p, 1.0 - p)))
        confidence = np.mean(np.maximum(p, 1.0 - p))
        print(f"{name:16s} accuracy {np.mean((p > 0.5) == y):.3f}  log loss {loss:.3f}  confidence {confidence:.3f}")


if __name__ == "__main__":
    typer.run(main)
