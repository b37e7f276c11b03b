"""Posteriors of logistic models, against dense quadrature and a general optimizer."""

import numpy as np
import pytest
from gaussian_sites import (
    Given,
    expectation_propagation,
    from_sites,
    importance_sampling,
    laplace,
    log_probit,
    slice_sampling,
    variational,
)
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logsumexp

METHODS = {"Laplace": laplace, "EP": expectation_propagation, "variational": variational}


def make(n, scale=2.0, seed=0, n_tasks=3):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_tasks, n + 4, 3))
    k = scale * (x @ np.swapaxes(x, 1, 2) + 0.5 * np.eye(n + 4))
    sign = np.where(rng.uniform(size=(n_tasks, n)) < 0.5, 1.0, -1.0)
    return Given(k[:, :n, :n], k[:, :n, n:], np.diagonal(k, axis1=1, axis2=2)[:, n:], sign)


def quadrature(given, log_likelihood=log_expit):
    """Evidence, and moments and class probabilities at the queries, on a grid of the whitened context."""
    z = np.linspace(-8.0, 8.0, 121)
    n = given.sign.shape[1]
    points = np.stack(np.meshgrid(*[z] * n, indexing="ij"), axis=-1).reshape(-1, n)
    t = points @ np.swapaxes(np.linalg.cholesky(given.covariance), 1, 2)
    log_prior = -0.5 * np.sum(points**2, axis=1)
    log_p = log_prior - logsumexp(log_prior) + log_likelihood(given.sign[:, None] * t).sum(axis=-1)
    evidence = logsumexp(log_p, axis=1)
    p = np.exp(log_p - evidence[:, None])[:, None]
    solved = np.linalg.solve(given.covariance, given.cross)
    at_queries = t @ solved
    own = given.variance - np.sum(given.cross * solved, axis=1)
    mean = (p @ at_queries)[:, 0]
    variance = (p @ at_queries**2)[:, 0] - mean**2 + own
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    averaged = expit(at_queries[..., None] + np.sqrt(own)[:, None, :, None] * nodes) @ (weights / weights.sum())
    return evidence, mean, variance, (p @ averaged)[:, 0]


def test_expectation_propagation_is_exact_for_one_sample():
    given = make(1)
    for likelihood in (log_expit, log_probit):
        found = expectation_propagation(given, likelihood)
        evidence, mean, variance, _ = quadrature(given, likelihood)
        np.testing.assert_allclose(found.log_evidence, evidence, rtol=1e-6)
        np.testing.assert_allclose(found.predict(given), (mean, variance), rtol=1e-4)


@pytest.mark.parametrize(("method", "tolerance"), [("Laplace", 0.4), ("EP", 0.01), ("variational", 0.1)])
def test_evidence_and_means_are_near_those_of_quadrature(method, tolerance):
    given = make(2)
    found = METHODS[method](given)
    evidence, mean, variance, _ = quadrature(given)
    np.testing.assert_allclose(found.log_evidence, evidence, atol=tolerance)
    np.testing.assert_allclose(found.predict(given)[0] / np.sqrt(variance), mean / np.sqrt(variance), atol=tolerance)


def test_no_gaussian_has_a_higher_bound_than_the_variational_posterior():
    given = make(2, n_tasks=1)
    z = np.linspace(-9.0, 9.0, 201)
    density = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()

    def bound(parameters):
        w, b = np.exp(parameters[:2])[None], parameters[None, 2:]
        q = from_sites(given, w, b)
        k, v, m = given.covariance[0], q.covariance[0], q.mean[0]
        divergence = np.trace(np.linalg.solve(k, v)) + m @ np.linalg.solve(k, m) - 2 + np.linalg.slogdet(k)[1]
        t = m[:, None] + np.sqrt(np.diag(v))[:, None] * z
        likelihood = float(np.sum(log_expit(given.sign[0, :, None] * t) @ density))
        return 0.5 * (divergence - np.linalg.slogdet(v)[1]) - likelihood

    best = minimize(bound, np.zeros(4), options={"gtol": 1e-9})
    found = variational(given)
    np.testing.assert_allclose(found.log_evidence, -best.fun, rtol=1e-7)
    assert found.log_evidence < quadrature(given)[0]


def test_sampling_agrees_with_quadrature():
    given, rng = make(2), np.random.default_rng(0)
    evidence, mean, variance, probability = quadrature(given)
    weighted = importance_sampling(given, expectation_propagation(given), rng)
    np.testing.assert_allclose(weighted.log_evidence, evidence, atol=0.02)
    chains = slice_sampling(given, rng, 3000)
    assert np.abs(chains.probability - probability).max() < 5.0 * chains.error.max() < 0.05
    for found in (weighted, chains):
        np.testing.assert_allclose(found.mean / np.sqrt(variance), mean / np.sqrt(variance), atol=0.1)
        np.testing.assert_allclose(found.variance / variance, 1.0, atol=0.1)
