"""Features that a network computes: derivatives by finite differences, and what they are good for."""

from functools import partial

import numpy as np
import pytest
from small_problems import make_problem
from test_terms import finite_differences

from hand_made_priors import make_terms
from metaprior.prior import families
from metaprior.prior.families import SMOOTH, TrainingTasks, fit_families, fit_features
from metaprior.prior.features import FeatureNetwork, draw_network, find_features, log_density_of_features
from metaprior.prior.process import network as features_of
from metaprior.prior.terms import N_FEATURES
from metaprior.tasks.scaling import identity_scaling
from metaprior.tasks.types import Task, pad_to

FEATURES = [make_terms("curve", "deviation", "features", *own) for own in ([], ["environment"])]


def test_features_of_one_input_by_hand():
    network, x = draw_network(3, 2, seed=1), np.array([0.3, -1.0, 2.0])
    hidden = [np.tanh(sum(x[i] * network.first[i, j] for i in range(3)) / 3**0.5 + b) for j, b in enumerate(network[1])]
    n = len(hidden)
    again = [np.tanh(np.dot(hidden, network.second[:, j]) / n**0.5 + network.second_bias[j]) for j in range(n)]
    np.testing.assert_allclose(
        features_of(x, *network)[0], [np.dot(again, network.last[:, k]) / n**0.5 for k in range(2)]
    )


def test_a_network_is_drawn_from_its_prior_and_has_features_of_order_one():
    network = draw_network(20, 8)
    assert all(abs(weights.std() - 1.0) < 4.0 / np.sqrt(weights.size) for weights in network)
    assert 0.3 < features_of(np.random.default_rng(0).normal(size=(500, 20)), *network)[0].std() < 2.0


@pytest.mark.parametrize("input_dim", [2, 8])
@pytest.mark.parametrize("terms", FEATURES)
def test_derivatives_by_theta_and_by_the_weights(terms, input_dim):
    """Along 20 random directions in the weights, and by every number of theta; tasks are padded."""
    layout, theta, blocks, points = make_problem(terms, input_dim)
    network, rng = draw_network(input_dim, N_FEATURES), np.random.default_rng(2)
    _, by_theta, by_weights = log_density_of_features(layout, theta, network, blocks, points)

    def value(t, weights):
        return log_density_of_features(layout, t, weights, blocks, points)[0]

    np.testing.assert_allclose(by_theta, finite_differences(lambda t: value(t, network), theta), rtol=1e-5, atol=1e-6)
    for part in range(5):
        for _ in range(4):
            direction = FeatureNetwork(*(rng.normal(size=w.shape) * (i == part) for i, w in enumerate(network)))
            steps = [
                value(theta, FeatureNetwork(*(w + s * d for w, d in zip(network, direction, strict=True))))
                for s in (1e-5, -1e-5)
            ]
            expected = sum(float(np.sum(g * d)) for g, d in zip(by_weights, direction, strict=True))
            assert (steps[0] - steps[1]) / 2e-5 == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_the_mode_is_one():
    layout, _, blocks, points = make_problem(FEATURES[0], 2)
    mode, network = find_features(layout, blocks, points)
    value, by_theta, by_weights = log_density_of_features(layout, mode.theta, network, blocks, points)
    assert mode.value == pytest.approx(value)
    assert value > log_density_of_features(layout, layout.center, draw_network(2, 8), blocks, points)[0]
    slopes = np.concatenate([by_theta, *(by.ravel() for by in by_weights)])
    assert np.abs(slopes).max() < 0.05


def tasks_that_share_a_feature(n_tasks, n_samples, rng):
    tasks = []
    for _ in range(n_tasks):
        x = rng.normal(size=(n_samples, 3))
        feature = np.tanh(2.0 * x[:, 0] * x[:, 1] + x[:, 2])
        tasks.append(Task(x, rng.normal() + rng.normal(1.0, 2.0) * feature + 0.1 * rng.normal(size=n_samples)))
    return tasks


def test_a_feature_that_tasks_share_is_found(monkeypatch):
    monkeypatch.setattr(families, "find_features", partial(find_features, max_iterations=150))
    tasks = tasks_that_share_a_feature(50, 12, np.random.default_rng(0))
    training = TrainingTasks(identity_scaling(3), tasks, np.ones(50), np.ones(50))
    fit = fit_families(training, False, None)
    test = tasks_that_share_a_feature(60, 14, np.random.default_rng(1))
    x, y, mask = pad_to([Task(task.x[:6], task.y[:6]) for task in test], 6, np.float64)
    x_query, y_query = (np.stack([getattr(task, name)[6:] for task in test]) for name in "xy")

    def errors(prior):
        found = prior.marginals(prior.condition(x, y, mask), x_query)
        mean = np.sum(np.exp(found.log_weights)[..., None] * found.mean, axis=0)
        return np.sqrt(np.mean((mean - y_query) ** 2))

    assert errors(fit_features(training, False, None)) < 0.5 * errors(fit.priors[SMOOTH])
