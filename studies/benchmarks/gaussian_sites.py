"""Posteriors of logistic models in several ways: Laplace, expectation propagation, a variational bound, sampling.

A latent function t with the prior N(0, K) at the context has p(y | t) = sigmoid(s t), with a sign s for every sample.
Gaussian posteriors all have the form N(m, V) with V^-1 = K^-1 + diag(w) and V^-1 m = b: a Gaussian site w, b takes the
place of every likelihood. Laplace's sites match the likelihood at the mode, those of expectation propagation (Minka,
2001) the moments of the posterior of one sample given the others, and those of the variational bound (Opper and
Archambeau, 2009) are nearest to the posterior in Kullback-Leibler divergence. All arrays have a first axis of tasks.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import expit, log_expit, log_ndtr, logsumexp

from metaprior.likelihoods.softmax import Curvature, Labels, find_modes

GRID = np.linspace(-9.0, 9.0, 201)  # of a standard normal; the trapezoid rule on it is exact up to rounding
LOG_GRID_WEIGHTS = -0.5 * GRID**2 - logsumexp(-0.5 * GRID**2)
PROBIT_SCALE = 1.0 / 1.702  # normal_cdf(t / 1.702) differs from sigmoid(t) by less than 0.01
MAX_ITERATIONS, DAMPING, TOLERANCE = 500, 0.5, 1e-7
WIDER = 1.3  # factor of the proposal's variance in importance sampling
N_NODES = 16

LogLikelihood = Callable[[np.ndarray], np.ndarray]


def log_probit(t: np.ndarray) -> np.ndarray:
    """Return the logarithm of the probit likelihood that is nearest to the logistic."""
    return log_ndtr(PROBIT_SCALE * t)


class Given(NamedTuple):
    """The prior of tasks with equal numbers of samples and of queries, and their labels."""

    covariance: np.ndarray  # K, (tasks, n, n)
    cross: np.ndarray  # (tasks, n, queries)
    variance: np.ndarray  # (tasks, queries)
    sign: np.ndarray  # s, (tasks, n)


class Posterior(NamedTuple):
    """A Gaussian posterior at the context, and the evidence or a bound of it."""

    weights: np.ndarray  # K^-1 m, (tasks, n)
    precision: np.ndarray  # R = (K + diag(w)^-1)^-1, (tasks, n, n)
    mean: np.ndarray  # m, (tasks, n)
    covariance: np.ndarray  # V, (tasks, n, n)
    log_determinant: np.ndarray  # log |I + K diag(w)|, (tasks,)
    log_evidence: np.ndarray  # (tasks,)

    def predict(self, given: Given) -> tuple[np.ndarray, np.ndarray]:
        """Return means and variances of the latent function at queries."""
        mean = np.einsum("tnq,tn->tq", given.cross, self.weights)
        return mean, given.variance - np.sum(given.cross * (self.precision @ given.cross), axis=1)


def from_sites(given: Given, w: np.ndarray, b: np.ndarray) -> Posterior:
    """Return the posterior of Gaussian sites; its evidence is left open."""
    k, root = given.covariance, np.sqrt(w)
    inner = np.eye(k.shape[-1]) + root[:, :, None] * k * root[:, None]
    precision = root[:, :, None] * np.linalg.inv(inner) * root[:, None]
    covariance = k - k @ precision @ k
    weights = b - np.einsum("tij,tjk,tk->ti", precision, k, b)
    mean = np.einsum("tij,tj->ti", k, weights)
    return Posterior(weights, precision, mean, covariance, np.linalg.slogdet(inner)[1], np.full(len(k), np.nan))


def laplace(given: Given) -> Posterior:
    """Return Laplace's approximation, by metaprior."""
    y, mask = (given.sign[:, None] + 1.0) / 2.0, np.ones(given.sign.shape)
    labels = Labels(y, np.ones((len(y), 1), bool), mask, given.covariance)
    a, _ = find_modes(labels, np.zeros(y.shape))
    t = labels.deviation(a)
    curvature = Curvature.at(labels, t)
    w = curvature.probabilities * (1.0 - curvature.probabilities)
    found = from_sites(given, w[:, 0], (w * t + y - curvature.probabilities)[:, 0])
    return found._replace(log_evidence=labels.log_posterior(a, t, t) - 0.5 * found.log_determinant)


def expectation_propagation(given: Given, log_likelihood: LogLikelihood = log_expit) -> Posterior:
    """Match moments, all sites at a time, with damping."""
    w, b = np.full(given.sign.shape, 0.1), 0.25 * given.sign
    for _ in range(MAX_ITERATIONS):
        found = from_sites(given, w, b)
        variance = np.diagonal(found.covariance, axis1=1, axis2=2)
        cavity_precision = 1.0 / variance - w
        cavity_mean = (found.mean / variance - b) / cavity_precision
        log_z, mean, tilted = moments(given.sign, cavity_mean, 1.0 / cavity_precision, log_likelihood)
        step_w = np.maximum(1.0 / tilted - cavity_precision, 1e-10) - w
        step_b = mean / tilted - cavity_mean * cavity_precision - b
        w, b = w + DAMPING * step_w, b + DAMPING * step_b
        if max(np.abs(step_w).max(), np.abs(step_b).max()) < TOLERANCE:
            break
    normalizers = log_z + 0.5 * cavity_mean**2 * cavity_precision - 0.5 * np.log(cavity_precision)
    normalizers -= 0.5 * found.mean**2 / variance + 0.5 * np.log(variance)
    of_sites = 0.5 * np.sum(b * found.mean, axis=1) - 0.5 * found.log_determinant
    return found._replace(log_evidence=of_sites + normalizers.sum(axis=1))


def moments(
    sign: np.ndarray, mean: np.ndarray, variance: np.ndarray, log_likelihood: LogLikelihood
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return log normalizer, mean and variance of N(t | mean, variance) p(y | t)."""
    t = mean[..., None] + np.sqrt(variance)[..., None] * GRID
    log_p = log_likelihood(sign[..., None] * t) + LOG_GRID_WEIGHTS
    log_z = logsumexp(log_p, axis=-1)
    p = np.exp(log_p - log_z[..., None])
    first = np.sum(p * t, axis=-1)
    return log_z, first, np.sum(p * (t - first[..., None]) ** 2, axis=-1)


def variational(given: Given) -> Posterior:
    """Maximize the evidence lower bound over all Gaussian posteriors, by damped natural gradients."""
    w, b = np.full(given.sign.shape, 0.1), 0.25 * given.sign
    for _ in range(MAX_ITERATIONS):
        found = from_sites(given, w, b)
        std = np.sqrt(np.diagonal(found.covariance, axis1=1, axis2=2))
        t = given.sign[..., None] * (found.mean[..., None] + std[..., None] * GRID)
        weights = np.exp(LOG_GRID_WEIGHTS)
        slope, curvature = given.sign * (expit(-t) @ weights), (expit(t) * expit(-t)) @ weights
        step_w, step_b = curvature - w, curvature * found.mean + slope - b
        w, b = w + DAMPING * step_w, b + DAMPING * step_b
        if max(np.abs(step_w).max(), np.abs(step_b).max()) < TOLERANCE:
            break
    trace = np.einsum("tij,tji->t", found.precision, given.covariance)
    divergence = 0.5 * (np.sum(found.weights * found.mean, axis=1) - trace + found.log_determinant)
    return found._replace(log_evidence=np.sum(log_expit(t) @ weights, axis=1) - divergence)


class Sampled(NamedTuple):
    """Exact class probabilities at queries, (tasks, queries), and moments of their latent functions, by sampling."""

    probability: np.ndarray
    error: np.ndarray  # standard error of the probability, from independent chains
    mean: np.ndarray
    variance: np.ndarray


def slice_sampling(given: Given, rng: np.random.Generator, n_steps: int, n_chains: int = 8) -> Sampled:
    """Sample t at the context by elliptical slice sampling (Murray and others, 2010); integrate over queries given t.

    A fifth of the steps is warm-up. Every fourth of the others is used.
    """
    root = np.linalg.cholesky(jittered(given.covariance))
    solved = np.linalg.solve(jittered(given.covariance), given.cross)
    std = np.sqrt(np.maximum(given.variance - np.sum(given.cross * solved, axis=1), 0.0))[:, None, :, None]
    sign, (nodes, weights) = given.sign[:, None], np.polynomial.hermite_e.hermegauss(N_NODES)
    weights /= weights.sum()

    def prior() -> np.ndarray:
        return np.einsum("tij,tcj->tci", root, rng.normal(size=(len(root), n_chains, root.shape[-1])))

    latent, used = prior(), range(n_steps // 5, n_steps, 4)
    totals = [np.zeros((len(root), n_chains, given.cross.shape[-1])) for _ in range(3)]
    for step in range(n_steps):
        latent = slice_step(latent, prior(), sign, rng)
        if step in used:
            mean = latent @ solved
            p = expit(mean[..., None] + std * nodes) @ weights
            for total, value in zip(totals, (p, mean, mean**2), strict=True):
                total += value / len(used)
    p, mean, square = (total.mean(axis=1) for total in totals)
    error = totals[0].std(axis=1, ddof=1) / np.sqrt(n_chains)
    return Sampled(p, error, mean, square - mean**2 + std[:, 0, :, 0] ** 2)


def slice_step(latent: np.ndarray, other: np.ndarray, sign: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the next state of every chain, (tasks, chains, n)."""
    value = log_expit(sign * latent).sum(axis=-1)
    least = value + np.log(rng.uniform(size=value.shape))
    angle = rng.uniform(0.0, 2.0 * np.pi, value.shape)
    lower, upper = angle - 2.0 * np.pi, angle.copy()
    while True:
        proposal = latent * np.cos(angle)[..., None] + other * np.sin(angle)[..., None]
        left = log_expit(sign * proposal).sum(axis=-1) <= least
        if not left.any():
            return proposal
        lower, upper = np.where(left & (angle < 0.0), angle, lower), np.where(left & (angle >= 0.0), angle, upper)
        angle = np.where(left, rng.uniform(lower, upper), angle)


class Weighted(NamedTuple):
    """Exact evidence, (tasks,), and moments of latent functions at queries, (tasks, queries), by weighted samples."""

    log_evidence: np.ndarray
    mean: np.ndarray
    variance: np.ndarray


def importance_sampling(given: Given, near: Posterior, rng: np.random.Generator, n_samples: int = 4000) -> Weighted:
    """Sample t at the context from a Gaussian posterior made wider, and weight the samples."""
    k = jittered(given.covariance)
    proposal, prior = np.linalg.cholesky(WIDER * jittered(near.covariance)), np.linalg.cholesky(k)
    z = rng.normal(size=(len(prior), n_samples, given.sign.shape[1]))
    t = near.mean[:, None] + z @ np.swapaxes(proposal, 1, 2)
    whitened = np.linalg.solve(prior, np.swapaxes(t, 1, 2))
    log_p = log_expit(given.sign[:, None] * t).sum(axis=-1) - 0.5 * np.sum(whitened**2, axis=1)
    log_p += 0.5 * np.sum(z**2, axis=-1)
    total = logsumexp(log_p, axis=1)
    log_ratio = np.log(np.diagonal(proposal, axis1=1, axis2=2)).sum(axis=1)
    log_ratio -= np.log(np.diagonal(prior, axis1=1, axis2=2)).sum(axis=1)
    solved, share = np.linalg.solve(k, given.cross), np.exp(log_p - total[:, None])[:, None]
    at_queries = t @ solved
    mean = share @ at_queries
    variance = (share @ (at_queries - mean) ** 2)[:, 0] + given.variance - np.sum(given.cross * solved, axis=1)
    return Weighted(total - np.log(n_samples) + log_ratio, mean[:, 0], variance)


def jittered(covariance: np.ndarray) -> np.ndarray:
    """Add what rounding makes necessary."""
    largest = np.diagonal(covariance, axis1=1, axis2=2).max(axis=1)[:, None, None]
    return covariance + 1e-8 * largest * np.eye(covariance.shape[-1])
