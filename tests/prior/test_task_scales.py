"""Scales that differ between tasks: evidence against scipy, spread where tasks differ and none where they do not."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.special import log_softmax
from scipy.stats import multivariate_normal, norm

from hand_made_priors import LINES
from metaprior.prior import shapes
from metaprior.prior.blocks import make_blocks
from metaprior.prior.columns import Columns
from metaprior.prior.evidence import collapse
from metaprior.prior.families import LINEAR, SMOOTH, TrainingTasks, fit_families, terms_of
from metaprior.prior.layout import Layout
from metaprior.prior.process import mapped
from metaprior.prior.shapes import GRID, NODES, ONE_SCALE, SHIFTS, SPREADS, TaskScales, _best, _evidence, learn_scales
from metaprior.tasks.scaling import identity_scaling
from metaprior.tasks.types import Task


@pytest.mark.parametrize("scaled_is_diagonal", [True, False])
def test_the_evidence_at_every_scale(scaled_is_diagonal):
    rng, sizes = np.random.default_rng(0), (3, 1, 4)
    deviation, mask = np.zeros((3, 4)), np.zeros((3, 4))
    fixed, scaled = np.zeros((3, 4, 4)), np.tile(np.eye(4), (3, 1, 1))
    for i, n in enumerate(sizes):
        deviation[i, :n], mask[i, :n] = rng.normal(size=n), 1.0
        root = rng.normal(size=(n, 2))  # not of full rank
        fixed[i, :n, :n] = root @ root.T
        root = rng.normal(size=(n, n))
        scaled[i, :n, :n] = 0.3 * np.eye(n) if scaled_is_diagonal else root @ root.T + 0.1 * np.eye(n)
    found = _evidence(fixed, scaled, deviation, mask)
    assert found.shape == (len(GRID), 3)
    for i, n in enumerate(sizes):
        for log_factor, value in zip(GRID, found[:, i], strict=True):
            total = fixed[i, :n, :n] + np.exp(2.0 * log_factor) * scaled[i, :n, :n]
            expected = multivariate_normal.logpdf(deviation[i, :n], cov=total)
            assert value - 0.5 * n * np.log(2.0 * np.pi) == pytest.approx(expected, rel=1e-9)


def test_the_distribution_of_scales_is_the_mode_of_its_posterior():
    """Spread and shift of the log factor are normal a priori, with standard deviations of a half."""
    rng, counts, chosen = np.random.default_rng(0), np.array([1.0, 0.3, 0.7]), []
    spread, shift = np.array(list(product(SPREADS, SHIFTS))).T
    density = norm.pdf(GRID, shift[:, None], spread[:, None])
    hyper_prior = norm.logpdf(spread, scale=0.5) + norm.logpdf(shift, scale=0.5)
    for _ in range(40):
        evidence = -0.5 * ((GRID[:, None] - rng.normal(0.0, 1.5, 3)) / 0.8) ** 2
        likelihood = np.log((density / density.sum(axis=1)[:, None]) @ np.exp(evidence)) @ counts
        best = np.argmax(likelihood + hyper_prior)
        chosen.append(spread[best])
        expected = [1.0] if spread[best] == SPREADS[0] else np.exp(shift[best] + spread[best] * NODES)
        np.testing.assert_allclose(_best(evidence, counts, True)[1].factors, expected)
    assert len(set(chosen)) > 3


def given_of(layout, theta, blocks, points):
    """What `learn_scales` needs."""
    parts = [layout.at(theta, points).on(block) for block in blocks]
    given, lines = (
        [part.given() for part in parts],
        [mapped(part.block.line, layout.find("line").own_map(part.at)) for part in parts],
    )
    return given, lines, [block.mask for block in blocks], collapse(given), layout.noise_variance(theta)


def problem(tasks, log_noise, terms=LINES, counts=None, theta=None, max_blocks=3):
    """What `learn_scales` needs, at given parameters."""
    counts = np.ones(len(tasks)) if counts is None else counts
    points = np.linspace(-2.0, 2.0, 5)[:, None]
    layout = Layout(terms, Columns(1), log_noise)
    blocks = make_blocks(tasks, counts, np.ones(len(tasks)), points, layout.columns, max_blocks)
    return given_of(layout, layout.center if theta is None else theta, blocks, points)


def noisy_tasks(noise_stds, n_readings=12, seed=0):
    rng = np.random.default_rng(seed)
    tasks = []
    for std in noise_stds:
        x = rng.uniform(-2.0, 2.0, (n_readings, 1))
        line = rng.normal(0.0, 0.5) + (1.0 + rng.normal(0.0, 0.5)) * x[:, 0]
        tasks.append(Task(x, line + std * rng.normal(size=n_readings)))
    return tasks


def wavy_tasks(stds, n_readings=12, seed=0):
    """A smooth deviation whose size differs between tasks, with noise a fifth of it."""
    rng = np.random.default_rng(seed)
    tasks = []
    for std in stds:
        x = rng.uniform(-2.0, 2.0, (n_readings, 1))
        wave = np.cos(3.0 * x + rng.uniform(0.0, 2.0 * np.pi, 8)) @ rng.normal(size=8) / 2.0
        tasks.append(Task(x, x[:, 0] + std * (wave + 0.2 * rng.normal(size=n_readings))))
    return tasks


def test_equal_noises_give_one_node():
    found = learn_scales(*problem(noisy_tasks([0.3] * 30), float(np.log(0.3))))
    assert found is ONE_SCALE
    assert (found.factors.tolist(), found.log_weights.tolist()) == ([1.0], [0.0])


def test_different_noises_give_a_spread():
    """Half of the tasks are ten times as noisy: the log noise has a standard deviation of log(10) / 2 = 1.15."""
    found = learn_scales(*problem(noisy_tasks([0.1] * 20 + [1.0] * 20), float(np.log(0.3))), noise_only=True)
    assert found.noise_only
    np.testing.assert_allclose(np.exp(found.log_weights).sum(), 1.0)
    np.testing.assert_allclose(found.log_weights - found.log_weights[2], [-2.0, -0.5, 0.0, -0.5, -2.0])
    spread = np.diff(np.log(found.factors))
    np.testing.assert_allclose(spread, spread[0])
    assert np.abs(spread[0] - SPREADS[-2:]).min() < 1e-9
    assert np.log(0.3 * found.factors[2]) == pytest.approx(np.log(np.sqrt(0.1)), abs=0.26)


def smooth_parameters(layout):
    theta = layout.center.copy()
    theta[layout.places["deviation"]] = np.log(0.6)
    theta[layout.places["lengths"]] = np.log(0.5)
    return theta


@pytest.mark.parametrize("noise_only", [True, False])
def test_the_factor_multiplies_what_differs_between_tasks(noise_only):
    stds = np.exp(np.random.default_rng(2).normal(0.0, 0.7, 60))
    theta = smooth_parameters(Layout(terms_of(SMOOTH), Columns(1), float(np.log(0.15))))
    if noise_only:
        waves = wavy_tasks(np.full(60, 0.6))
        rng = np.random.default_rng(3)
        tasks = [Task(t.x, t.y + 0.15 * std * rng.normal(size=12)) for t, std in zip(waves, 2.0 * stds, strict=True)]
    else:
        tasks = wavy_tasks(0.6 * stds)
    found = learn_scales(*problem(tasks, float(np.log(0.15)), terms_of(SMOOTH), theta=theta))
    assert found.noise_only == noise_only
    assert len(found.factors) == len(NODES)


def test_neither_padding_nor_a_split_into_counts_matters():
    tasks = [Task(t.x[:n], t.y[:n]) for t, n in zip(noisy_tasks([0.1, 1.0] * 6), [12, 3, 5] * 4, strict=True)]
    args = (float(np.log(0.3)), terms_of(SMOOTH))
    padded, blocks = (learn_scales(*problem(tasks, *args, max_blocks=n)) for n in (1, 3))
    counted = learn_scales(*problem([*tasks, *tasks], *args, np.full(24, 0.5)))
    assert len(padded.factors) == len(NODES)
    for other in (blocks, counted):
        np.testing.assert_allclose(other.factors, padded.factors)
        assert other.noise_only == padded.noise_only


def fitted(tasks, noise_std=None):
    training = TrainingTasks(identity_scaling(1), tasks, np.ones(len(tasks)), np.ones(len(tasks)))
    return fit_families(training, False, noise_std)


def test_with_a_given_noise_all_tasks_have_it():
    for prior in fitted(noisy_tasks([0.1] * 10 + [1.0] * 10, 8), 0.4).priors.values():
        assert prior.scales is ONE_SCALE
        np.testing.assert_allclose(prior.factors.noise, [0.16])


def test_scales_are_compared_as_new_tasks_are_predicted(monkeypatch):
    """The evidence of a task at every scale is that of conditioning on it, but for the floor of the noise."""
    tasks, found = wavy_tasks([0.3] * 3 + [1.0] * 3, 6), []

    def recorded(evidence, counts, noise_only):
        found.append((evidence, noise_only))
        return best(evidence, counts, noise_only)

    best = shapes._best
    monkeypatch.setattr(shapes, "_best", recorded)
    priors = fitted(tasks).priors
    assert [noise_only for _, noise_only in found] == [True] + [True, False] * 3
    families = [LINEAR, *np.repeat(list(priors)[1:], 2).tolist()]
    x, y = (np.stack([task[i] for task in tasks]) for i in (0, 1))
    for name, (evidence, noise_only) in zip(families, found, strict=True):
        scales = TaskScales(np.exp(GRID), np.zeros(len(GRID)), noise_only)
        log_weights = replace(priors[name], scales=scales).condition(x, y, np.ones(y.shape, bool)).log_weights
        np.testing.assert_allclose(log_weights, log_softmax(evidence, axis=0), rtol=1e-3, atol=1e-4)


def test_what_is_lost_to_rounding_is_not_multiplied():
    given, lines, masks, collapsed, noise = problem(noisy_tasks([0.1] * 20 + [1.0] * 20), float(np.log(0.3)))
    too_large = [10.0 * line for line in lines]
    assert learn_scales(given, too_large, masks, collapsed, noise, False) is ONE_SCALE
    found = learn_scales(given, too_large, masks, collapsed, noise)
    assert found.noise_only
    assert len(found.factors) == len(NODES)
