"""The sinusoid oracles against Monte Carlo, numerical integration and importance sampling."""

import numpy as np
import pytest
from scipy.special import logsumexp

from metaprior.datasets import Functions, Sinusoid
from metaprior_studies.environments import sinusoid_oracles
from metaprior_studies.environments.sinusoid_oracles import bayes_oracle, gp_oracle, target_covariance, target_mean

STANDARD_ERRORS = 4  # a correct implementation passes a comparison for 99.99 % of all seeds


def assert_mean(samples, expected, axis=0):
    """The mean of independent samples agrees with what is expected, within standard errors."""
    error = samples.std(axis, ddof=1) / np.sqrt(samples.shape[axis])
    np.testing.assert_array_less(np.abs(samples.mean(axis) - expected), STANDARD_ERRORS * error)


def draw(environment, n_tasks, n_context, n_query, seed):
    tasks = environment.test_tasks(n_tasks, n_context, n_query, seed)
    x_context, y_context, x_query, y_query = (np.stack(field) for field in zip(*tasks, strict=True))
    return x_context[..., 0], y_context, x_query[..., 0], y_query


def predictive_mean(prediction):
    return np.einsum("kt,ktq->tq", np.exp(prediction.log_weights), prediction.mean)


def test_mean_and_covariance_functions_match_monte_carlo():
    environment = Sinusoid(deviation=0.75)
    x = np.array([-4.3, -1.0, 0.2, 0.75, 3.1])
    values = environment.target_functions(200_000, 8)(x)
    assert_mean(values, target_mean(environment, x))
    centered = values - target_mean(environment, x)
    expected = target_covariance(environment, x[:, None], x)
    assert_mean(centered[:, :, None] * centered[:, None, :], expected)
    np.testing.assert_allclose(expected, expected.T)


def test_gp_oracle_is_multivariate_normal_conditioning():
    environment = Sinusoid(deviation=0.75, noise_std=0.2)
    x_context, y_context, x_query, _ = draw(environment, 7, 6, 4, 9)
    prediction = gp_oracle(environment, x_context, y_context, x_query)
    # An independent route: f is linear in (x, 1, sin 1.5x, cos 1.5x), with coefficients (a, d, u, v) where
    # u = b cos 1.5c and v = -b sin 1.5c; their moments come from numerical integration over c.
    c, weight = np.polynomial.hermite_e.hermegauss(60)
    c, weight = 0.75 + 0.1 * c, weight / weight.sum()
    pair = np.stack([np.cos(1.5 * c), -np.sin(1.5 * c)])
    covariance = np.zeros((4, 4))
    covariance[:2, :2] = np.diag([0.2**2, 0.1**2])
    covariance[2:, 2:] = 1.03 * (pair * weight) @ pair.T - np.outer(pair @ weight, pair @ weight)
    coefficients = np.array([0.5, 5.0, *(pair @ weight)])
    for i in range(7):
        x = np.concatenate([x_context[i], x_query[i]])
        features = np.stack([x, np.ones_like(x), np.sin(1.5 * x), np.cos(1.5 * x)], 1)
        mean, joint = features @ coefficients, features @ covariance @ features.T
        gain = joint[6:, :6] @ np.linalg.inv(joint[:6, :6] + 0.2**2 * np.eye(6))
        expected = mean[6:] + gain @ (y_context[i] - mean[:6])
        np.testing.assert_allclose(prediction.mean[0, i], expected, rtol=1e-9)
        variance = np.diag(joint[6:, 6:] - gain @ joint[:6, 6:])
        np.testing.assert_allclose(prediction.variance[0, i], variance, rtol=1e-9)


@pytest.mark.parametrize("n_context", [1, 2, 4])
def test_bayes_oracle_matches_importance_sampling(n_context):
    environment = Sinusoid(deviation=0.75)
    x_context, y_context, x_query, _ = draw(environment, 4, n_context, 5, 10)
    prediction = bayes_oracle(environment, x_context, y_context, x_query)
    mean = predictive_mean(prediction)
    second_moment = predictive_mean(prediction._replace(mean=prediction.mean**2 + prediction.variance))
    functions = environment.target_functions(1_000_000, 11)
    for i in range(4):
        log_likelihood = -np.sum((y_context[i] - functions(x_context[i])) ** 2, axis=1) / (2 * 0.1**2)
        likely = log_likelihood > log_likelihood.max() - 25  # the rest has 1e-5 of the weight at most
        weight = np.exp(log_likelihood[likely] - logsumexp(log_likelihood[likely]))[:, None]
        values = Functions(*(p[likely] for p in functions))(x_query[i])
        assert 1 / np.sum(weight**2) > 1000  # effective samples: enough for the normal theory below
        for statistic, expected in (values, mean[i]), (values**2, second_moment[i]):
            # The delta-method standard error of a self-normalized estimate.
            estimate = np.sum(weight * statistic, 0)
            error = np.sqrt(np.sum((weight * (statistic - estimate)) ** 2, 0))
            np.testing.assert_array_less(np.abs(estimate - expected), STANDARD_ERRORS * error)


@pytest.mark.parametrize(("noise_std", "n_context"), [(0.1, 5), (0.1, 10), (0.1, 20), (0.05, 12), (0.1, 40)])
def test_a_finer_grid_changes_nothing(monkeypatch, noise_std, n_context):
    environment = Sinusoid(deviation=0.75, noise_std=noise_std)
    x_context, y_context, x_query, _ = draw(environment, 200, n_context, 5, 12)
    coarse = predictive_mean(bayes_oracle(environment, x_context, y_context, x_query))
    monkeypatch.setattr(sinusoid_oracles, "AMPLITUDE_NODES", 2 * sinusoid_oracles.AMPLITUDE_NODES)
    monkeypatch.setattr(sinusoid_oracles, "PHASE_NODES", 3 * sinusoid_oracles.PHASE_NODES)
    monkeypatch.setattr(sinusoid_oracles, "PHASE_REACH", 6.5)
    fine = predictive_mean(bayes_oracle(environment, x_context, y_context, x_query))
    assert np.abs(fine - coarse).max() > 0  # the grid did change
    np.testing.assert_allclose(coarse, fine, rtol=0, atol=1e-3)


def test_without_context_the_oracles_predict_the_prior():
    environment = Sinusoid(deviation=0.75)
    x_query, empty = np.linspace(-5, 5, 12).reshape(2, 6), np.zeros((2, 0))
    gp = gp_oracle(environment, empty, empty, x_query)
    bayes = bayes_oracle(environment, empty, empty, x_query)
    variance = target_covariance(environment, x_query, x_query)
    np.testing.assert_array_equal(gp.mean[0], target_mean(environment, x_query))
    np.testing.assert_array_equal(gp.variance[0], variance)
    np.testing.assert_allclose(predictive_mean(bayes), target_mean(environment, x_query), rtol=0, atol=1e-6)
    spread = bayes.variance + (bayes.mean - target_mean(environment, x_query)) ** 2
    # Cutting c at 4.5 standard deviations loses 1e-4 of its variance.
    np.testing.assert_allclose(predictive_mean(bayes._replace(mean=spread)), variance, rtol=3e-4)


@pytest.mark.parametrize("n_context", [0, 5, 20])
def test_predictions_are_normalized_mixtures(n_context):
    environment = Sinusoid()
    x_context, y_context, x_query, _ = draw(environment, 6, n_context, 3, 13)
    for oracle in gp_oracle, bayes_oracle:
        prediction = oracle(environment, x_context, y_context, x_query)
        assert prediction.mean.shape == prediction.variance.shape == (len(prediction.log_weights), 6, 3)
        assert prediction.mean.dtype == np.float64
        assert (prediction.variance > 0).all()
        np.testing.assert_allclose(logsumexp(prediction.log_weights, axis=0), 0.0, atol=1e-12)


def test_the_best_error_that_can_be_reached():
    """RMSE per task over 50 queries, averaged over tasks; the values are from 200,000 other tasks."""
    environment = Sinusoid(deviation=0.75)
    errors = []
    for seed in range(20):
        x_context, y_context, x_query, y_query = draw(environment, 200, 5, 50, 100 + seed)
        bayes = predictive_mean(bayes_oracle(environment, x_context, y_context, x_query))
        gp = predictive_mean(gp_oracle(environment, x_context, y_context, x_query))
        predictions = np.stack([bayes, gp, target_mean(environment, x_query)], 1)
        errors.append(np.sqrt(np.mean((predictions - y_query[:, None]) ** 2, axis=2)))
    errors = np.concatenate(errors)
    assert (errors.std(0) / np.sqrt(len(errors)) < [0.001, 0.001, 0.006]).all()
    assert_mean(errors, [0.1550, 0.1563, 0.5304])
    assert_mean(errors[:, 1] - errors[:, 0], 0.0013)


@pytest.mark.parametrize("oracle", [gp_oracle, bayes_oracle])
@pytest.mark.parametrize(
    ("argument", "shapes"),
    [
        ("x_context", [(5,), (5,), (2, 3)]),
        ("y_context", [(2, 5), (2, 4), (2, 3)]),
        ("y_context", [(2, 5), (2, 5, 1), (2, 3)]),
        ("x_query", [(2, 5), (2, 5), (1, 3)]),
        ("x_query", [(2, 5), (2, 5), (3,)]),
    ],
)
def test_mismatched_shapes_are_refused(oracle, argument, shapes):
    with pytest.raises(ValueError, match=rf"{argument} must have .* got \("):
        oracle(Sinusoid(), *map(np.zeros, shapes))
