"""The Gibbs density of theta given labels: its slope, and its mode."""

import numpy as np
import pytest
from small_problems import make_problem, make_tasks

from hand_made_priors import LINES, SMOOTH, make_terms
from metaprior.prior.label_evidence import LabelObjective
from metaprior.tasks.types import Task

PROBLEMS = [(LINES, 2), (SMOOTH, 2), (make_terms("curve", "deviation", "environment"), 1)]


def make_objective(terms, input_dim, n_classes, common):
    """Readings of small tasks, cut into classes of about the same size."""
    tasks = make_tasks(input_dim)
    cuts = np.quantile(np.concatenate([task.y for task in tasks]), np.arange(1, n_classes) / n_classes)
    tasks = [Task(task.x, np.searchsorted(cuts, task.y).astype(float)) for task in tasks]
    layout, theta, blocks, points = make_problem(terms, input_dim, 0.0, tasks)
    numbers = [np.full(len(block.counts), n_classes) for block in blocks]
    return LabelObjective(layout, blocks, numbers, points, common), theta


@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize(("terms", "input_dim"), PROBLEMS)
def test_the_slope_is_that_of_central_differences(terms, input_dim, n_classes, common):
    density, theta = make_objective(terms, input_dim, n_classes, common)
    _, slope = density(theta)
    for i, step in enumerate(1e-4 * np.eye(len(theta))):
        expected = (density(theta + step, gradient=False)[0] - density(theta - step, gradient=False)[0]) / 2e-4
        np.testing.assert_allclose(slope[i], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_mode_is_stationary_and_a_maximum(n_classes):
    density, theta = make_objective(SMOOTH, 2, n_classes, common=True)
    mode = density.find_mode([], 60)
    value, slope = density(mode.theta)
    assert mode.value == pytest.approx(value, rel=1e-8)
    assert np.max(np.abs(slope)) < 0.02
    rng = np.random.default_rng(0)
    for other in (theta, *(mode.theta + 0.2 * rng.normal(size=(4, len(theta))))):
        assert density(other, gradient=False)[0] < value
