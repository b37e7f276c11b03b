"""Likelihoods of several classes other than the softmax: one-vs-each, and regression on transformed labels.

Class c of a task has a latent function t_c ~ N(0, K), the same K for all. Both return `Latent`, from which metaprior
predicts the classes. All arrays have a first axis of tasks, with equal numbers of samples and of queries.
"""

from typing import NamedTuple

import numpy as np

from metaprior.prior.label_prior import Latent

MAX_ITERATIONS, TOLERANCE = 200, 1e-4


class GivenClasses(NamedTuple):
    """The prior of tasks, and their classes 0, 1, ..."""

    covariance: np.ndarray  # K, (tasks, n, n)
    cross: np.ndarray  # (tasks, n, queries)
    variance: np.ndarray  # (tasks, queries)
    y: np.ndarray  # (tasks, n)
    n_classes: int


def one_vs_each(given: GivenClasses) -> Latent:
    """Return the mean-field posterior of p(y | t) proportional to prod_c sigmoid(t_y - t_c) (Snell and Zemel, 2021).

    With a Polya-Gamma variable omega of every sample and wrong class the latent functions are Gaussian: site precision
    E[omega] of the difference and site shift 1/2. In turn E[omega] = tanh(psi / 2) / (2 psi), psi^2 the second moment
    of the difference.
    """
    n_tasks, n = given.y.shape
    own = np.arange(given.n_classes) == given.y[..., None]  # (tasks, n, classes)
    # Differences t_y - t_c as rows of (n classes, classes n); the row of c = y is zero.
    contrast = (own[:, :, None] * 1.0 - np.eye(given.n_classes))[..., None] * np.eye(n)[:, None, None]
    contrast = contrast.reshape(n_tasks, n * given.n_classes, given.n_classes * n)
    prior = np.zeros((n_tasks, given.n_classes, n, given.n_classes, n))
    prior[:, np.arange(given.n_classes), :, np.arange(given.n_classes)] = given.covariance
    prior = prior.reshape(n_tasks, given.n_classes * n, -1)
    projected = contrast @ prior  # of differences with latent functions
    of_differences = projected @ np.swapaxes(contrast, 1, 2)
    half = 0.5 * ~own.reshape(n_tasks, -1)
    omega = 0.25 * ~own.reshape(n_tasks, -1)
    for _ in range(MAX_ITERATIONS):
        root = np.sqrt(omega)
        inner = np.eye(root.shape[1]) + root[:, :, None] * of_differences * root[:, None]
        precision = root[:, :, None] * np.linalg.inv(inner) * root[:, None]
        shift = half - np.einsum("tij,tjk,tk->ti", precision, of_differences, half, optimize=True)
        mean = np.einsum("tij,tj->ti", of_differences, shift)
        explained = np.einsum("tij,tjk,tki->ti", of_differences, precision, of_differences, optimize=True)
        psi = np.sqrt(np.maximum(np.diagonal(of_differences, axis1=1, axis2=2) - explained + mean**2, 1e-12))
        new = np.tanh(0.5 * psi) / (2.0 * psi) * (half > 0.0)
        change, omega = np.abs(new - omega).max(), new
        if change < TOLERANCE:
            break
    return _at_queries(given, contrast, shift, precision)


def _at_queries(given: GivenClasses, contrast: np.ndarray, shift: np.ndarray, precision: np.ndarray) -> Latent:
    """Return latent functions at queries: mean k' A' shift and covariance k - k' A' R A k."""
    n_tasks, n = given.y.shape
    by_class = contrast.reshape(n_tasks, -1, given.n_classes, n)
    cross = np.einsum("tdcn,tnq->tqcd", by_class, given.cross, optimize=True)
    mean = np.einsum("tqcd,td->tqc", cross, shift)
    explained = np.einsum("tqcd,tde,tqfe->tqcf", cross, precision, cross, optimize=True)
    return Latent(mean, given.variance[..., None, None] * np.eye(given.n_classes) - explained)


def dirichlet_regression(given: GivenClasses, added: float, scale: float) -> Latent:
    """Return the posterior of GP regression on the logarithms of Gamma variables (Milios and others, 2018).

    A label is a Dirichlet distribution with the concentrations alpha = [c = y] + `added`. Its Gamma variables are
    log-normal with the variance log(1 / alpha + 1) and the median alpha / sqrt(1 / alpha + 1), so that every class has
    readings with known noise. `scale` multiplies the prior's variance, whose unit is that of other likelihoods.
    """
    alpha = (np.arange(given.n_classes) == given.y[..., None]) + added
    noise = np.log(1.0 / alpha + 1.0)
    readings = np.log(alpha) - 0.5 * noise
    readings -= readings.mean(axis=(1, 2), keepdims=True)
    means, variances = [], []
    for c in range(given.n_classes):
        covariance = scale * given.covariance + noise[:, :, c, None] * np.eye(given.y.shape[1])
        solved = np.linalg.solve(covariance, scale * given.cross)
        means.append(np.einsum("tnq,tn->tq", solved, readings[..., c]))
        variances.append(scale * given.variance - np.sum(scale * given.cross * solved, axis=1))
    return Latent(np.stack(means, axis=-1), np.stack(variances, axis=-1)[..., None] * np.eye(given.n_classes))
