"""Noise that differs between tasks: evidence against scipy, spread where tasks differ and none where they do not."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from small_problems import make_problem

from metaprior.hierarchical.blocks import make_blocks
from metaprior.hierarchical.collapse import collapse
from metaprior.hierarchical.families import LINEAR, TrainingTasks, fit_families
from metaprior.hierarchical.noise import GRID, NODES, SPREADS, _evidence, learn_noise
from metaprior.hierarchical.parameters import Layout, Parts
from metaprior.hierarchical.terms import NOISE_FLOOR, deviations, gaussians
from metaprior.tasks.scaling import identity_scaling
from metaprior.tasks.types import Task


def given_linear(input_dim, max_blocks):
    layout, theta, blocks, _ = make_problem(Parts(environment=True), input_dim, max_blocks=max_blocks)
    return layout, theta, blocks, [gaussians(layout, theta, None, block)[0] for block in blocks]


@pytest.mark.parametrize("input_dim", [1, 2])
def test_the_evidence_at_every_noise(input_dim):
    layout, theta, blocks, given = given_linear(input_dim, 1)
    collapsed = collapse(given)
    found = _evidence(given[0], blocks[0].mask, collapsed, layout.noise_variance(theta))
    without_noise = deviations(layout, theta, blocks[0])[0]
    assert found.shape == (len(GRID), 6)
    for i, mask in enumerate(blocks[0].mask):
        real = mask == 1.0
        features, y = given[0].features[i][real], blocks[0].y[i][real]
        root = features @ collapsed.root
        fixed = without_noise[i][np.ix_(real, real)] + root @ root.T
        for log_factor, value in zip(GRID, found[:, i], strict=True):
            noise = layout.noise_variance(theta) * np.exp(2.0 * log_factor) + NOISE_FLOOR
            total = fixed + noise * np.eye(len(y))
            expected = multivariate_normal.logpdf(y, features @ collapsed.mean, total)
            np.testing.assert_allclose(value - 0.5 * len(y) * np.log(2.0 * np.pi), expected, rtol=1e-7)


def test_padding_does_not_matter():
    results = []
    for max_blocks in (1, 3):
        layout, theta, blocks, given = given_linear(1, max_blocks)
        collapsed, noise = collapse(given), layout.noise_variance(theta)
        evidence = [_evidence(g, b.mask, collapsed, noise) for g, b in zip(given, blocks, strict=True)]
        counts = np.concatenate([block.counts for block in blocks])
        results.append(
            (np.concatenate(evidence, axis=1) @ counts, *learn_noise(given, [b.mask for b in blocks], collapsed, noise))
        )
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def noisy_tasks(noise_stds, n_readings=12, seed=0):
    rng = np.random.default_rng(seed)
    tasks = []
    for std in noise_stds:
        x = rng.uniform(-2.0, 2.0, (n_readings, 1))
        line = rng.normal(0.0, 0.5) + (1.0 + rng.normal(0.0, 0.5)) * x[:, 0]
        tasks.append(Task(x, line + std * rng.normal(size=n_readings)))
    return tasks


def learned_noise(tasks, log_noise, counts=None):
    """Noise variances and weights of the linear prior, with the given common noise."""
    counts = np.ones(len(tasks)) if counts is None else counts
    blocks = make_blocks(tasks, counts, np.ones(len(tasks)), np.zeros((1, 1)))
    layout = Layout(Parts(), 1, log_noise)
    theta = layout.center
    given = [gaussians(layout, theta, None, block)[0] for block in blocks]
    return learn_noise(given, [b.mask for b in blocks], collapse(given), layout.noise_variance(theta))


def test_equal_noises_give_one_node():
    variances, log_weights = learned_noise(noisy_tasks([0.3] * 30), float(np.log(0.3)))
    np.testing.assert_allclose(variances, [0.09])
    assert log_weights.tolist() == [0.0]


def test_different_noises_give_a_spread():
    """Half of the tasks are ten times as noisy: the log noise has a standard deviation of log(10) / 2 = 1.15."""
    variances, log_weights = learned_noise(noisy_tasks([0.1] * 20 + [1.0] * 20), float(np.log(0.3)))
    assert len(variances) == len(NODES)
    np.testing.assert_allclose(np.exp(log_weights).sum(), 1.0)
    np.testing.assert_allclose(log_weights - log_weights[2], [-2.0, -0.5, 0.0, -0.5, -2.0])
    logs = 0.5 * np.log(variances)
    spread = np.diff(logs)
    np.testing.assert_allclose(spread, spread[0])
    assert np.abs(spread[0] - SPREADS[-2:]).min() < 1e-9
    assert logs[2] == pytest.approx(np.log(np.sqrt(0.1)), abs=0.26)


def test_a_known_spread_and_shift_are_recovered():
    """To within a step of their grids, which is more than two standard errors with 150 tasks of 12 readings."""
    logs = np.log(0.2) + np.random.default_rng(1).normal(0.0, 0.5, 150)
    variances, _ = learned_noise(noisy_tasks(np.exp(logs)), float(np.log(0.2)) + 0.5)
    found = 0.5 * np.log(variances)
    assert found[1] - found[0] == pytest.approx(0.5, abs=0.21)
    assert found[2] == pytest.approx(np.log(0.2), abs=0.26)


def test_tasks_count_as_often_as_their_counts_say():
    tasks = noisy_tasks([0.3] * 20 + [3.0] * 3)
    of_noisy = np.array([1.0] * 20 + [0.0] * 3)
    assert len(learned_noise(tasks, float(np.log(0.3)), of_noisy)[0]) == 1
    assert len(learned_noise(tasks, float(np.log(0.3)))[0]) == len(NODES)


def fitted(tasks):
    training = TrainingTasks(identity_scaling(1), tasks, np.ones(len(tasks)), np.ones(len(tasks)))
    return fit_families(training, False, None).priors[LINEAR]


def test_a_quiet_task_gets_narrower_bands_than_a_noisy_one():
    prior = fitted(noisy_tasks([0.1] * 15 + [1.0] * 15, 8))
    assert prior.n_components == len(NODES)
    x = np.linspace(-2.0, 2.0, 8)[None, :, None].repeat(2, axis=0)
    wiggle = np.array([1.0, -1.0, 1.0, 1.0, -1.0, -1.0, 1.0, -1.0])
    y = x[..., 0] + np.array([[0.1], [1.0]]) * wiggle
    prediction = prior.marginals(prior.condition(x, y, np.ones((2, 8), bool)), x[:, :1])
    weights = np.exp(prediction.log_weights)
    np.testing.assert_allclose(weights.sum(axis=0), 1.0)
    noise_std = np.sqrt(prediction.noise @ weights)
    assert 0.05 < noise_std[0] < 0.3
    assert 0.6 < noise_std[1] < 2.0
    std = np.sqrt(np.sum(weights * prediction.variance[..., 0], axis=0))
    assert std[0] < 0.5 * std[1]


def test_with_a_given_noise_all_tasks_have_it():
    tasks = noisy_tasks([0.1] * 10 + [1.0] * 10, 8)
    training = TrainingTasks(identity_scaling(1), tasks, np.ones(20), np.ones(20))
    for prior in fit_families(training, False, 0.4).priors.values():
        np.testing.assert_allclose(prior.noise_variances, [0.16])
