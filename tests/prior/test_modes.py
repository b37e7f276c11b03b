"""The mode of theta: stationary, found again from near, and the common curve that it implies."""

import numpy as np
import pytest
from small_problems import make_problem

from hand_made_priors import CURVE, LINES, SMOOTH, make_curve, make_terms
from metaprior.prior.blocks import make_blocks, place_points
from metaprior.prior.columns import Columns
from metaprior.prior.evidence import collapse
from metaprior.prior.layout import Layout
from metaprior.prior.modes import (
    FARTHEST,
    GRADIENT_TOLERANCE,
    Mode,
    common_curve,
    find_mode,
    free_parameters,
    log_density,
)
from metaprior.prior.process import deformations
from metaprior.tasks.types import Task

OWN_SMOOTH = make_terms("curve", "deviation", "environment")
PROBLEMS = [
    (LINES, 1),
    (make_terms("environment"), 8),
    (SMOOTH, 2),
    (OWN_SMOOTH, 1),
    (CURVE, 1),
]


@pytest.mark.parametrize(("terms", "input_dim"), PROBLEMS)
def test_the_mode_is_stationary_and_a_maximum(terms, input_dim):
    layout, theta, blocks, points = make_problem(terms, input_dim)
    mode = find_mode(layout, blocks, points)
    value, slope, *_ = log_density(layout, mode.theta, blocks, points)
    assert mode.value == pytest.approx(value, rel=1e-9)
    assert np.max(np.abs(free_parameters(layout) * slope)) < GRADIENT_TOLERANCE
    rng = np.random.default_rng(0)
    held = free_parameters(layout) == 0.0
    for other in (theta, *layout.starts(), *(mode.theta + 0.1 * rng.normal(size=(5, len(theta))))):
        other = np.where(held, mode.theta, other)
        assert log_density(layout, other, blocks, points, gradient=False)[0] < value


@pytest.mark.parametrize(("terms", "input_dim"), PROBLEMS)
def test_starting_near_gives_the_same_mode(terms, input_dim):
    layout, _, blocks, points = make_problem(terms, input_dim)
    mode = find_mode(layout, blocks, points)
    near = Mode(layout, mode.theta + 0.05 * free_parameters(layout), mode.value, mode.inverse_hessian)
    for iterations in (60, 10):
        again = find_mode(layout, blocks, points, [near], iterations)
        assert again.value == pytest.approx(mode.value, abs=1e-3)
        np.testing.assert_allclose(again.theta, mode.theta, atol=0.05)


def test_the_best_of_the_known_modes_is_where_it_starts():
    layout, theta, blocks, points = make_problem(SMOOTH, 1)
    mode = find_mode(layout, blocks, points)
    far = Mode(layout, theta + 2.0, 0.0, np.eye(len(theta)))
    for near in ([mode, far], [far, mode]):
        np.testing.assert_array_equal(find_mode(layout, blocks, points, near, 0).theta, mode.theta)


def test_a_mode_of_a_prior_with_other_terms_is_a_start():
    layout, _, blocks, points = make_problem(make_terms("curve", "deviation", "deformation", "environment"), 2)
    few = Layout(SMOOTH, Columns(2))
    rng = np.random.default_rng(0)
    theta = few.center + 0.1 * rng.normal(size=len(few.center))
    start = find_mode(layout, blocks, points, [Mode(few, theta, 0.0, np.eye(len(theta)))], 0).theta
    for name, place in layout.places.items():
        expected = theta[few.places[name]] if name in few.places else layout.center[place]
        np.testing.assert_array_equal(start[place], expected)


def test_a_known_curvature_speeds_up_convergence():
    layout, _, blocks, points = make_problem(SMOOTH, 1)
    mode = find_mode(layout, blocks, points)
    moved = mode.theta + 0.2
    starts = [Mode(layout, moved, 0.0, h) for h in (mode.inverse_hessian, 1e-3 * np.eye(len(moved)))]
    known, unknown = (mode.value - find_mode(layout, blocks, points, [start], 3).value for start in starts)
    assert known < 0.1 * unknown


def test_theta_stays_where_numbers_are_finite():
    """Readings without noise on a line would drive the scales to zero."""
    x = np.linspace(-1.0, 1.0, 4)[:, None]
    tasks = [Task(x, 2.0 * x[:, 0])] * 50
    points = place_points(tasks)
    blocks = make_blocks(tasks, np.ones(50), np.ones(50), points, Columns(1))
    layout = Layout(LINES, Columns(1))
    mode = find_mode(layout, blocks, points)
    assert np.isfinite(mode.value)
    assert np.max(np.abs(mode.theta - layout.center) / layout.spread) < FARTHEST
    assert layout.noise_variance(mode.theta) < 1e-4


def test_a_start_at_which_nothing_can_be_computed():
    layout, theta, blocks, points = make_problem(LINES, 1)
    broken = Mode(layout, np.full(len(theta), 1e3), 0.0, np.eye(len(theta)))
    assert find_mode(layout, blocks, points, [broken], 4).value == -np.inf
    mode = find_mode(layout, blocks, points)
    assert find_mode(layout, blocks, points, [broken, mode]).value == pytest.approx(mode.value, abs=1e-3)


@pytest.mark.parametrize("environment", [False, True])
@pytest.mark.parametrize("input_dim", [1, 2, 8])
def test_the_common_curve_is_the_posterior_mean_of_the_target(input_dim, environment):
    layout, theta, blocks, points = make_problem(OWN_SMOOTH if environment else SMOOTH, input_dim)
    collapsed = collapse([part.given() for part in log_density(layout, theta, blocks, points).parts])
    curve = common_curve(Mode(layout, theta, 0.0, np.eye(len(theta))), collapsed, points)
    x = np.random.default_rng(3).normal(size=(5, input_dim))
    [block] = make_blocks([Task(x, np.zeros(5))], np.ones(1), np.ones(1), points, layout.columns)
    expected = layout.at(theta, points).on(block).features[0] @ collapsed.mean
    np.testing.assert_allclose(deformations(x, *curve, 0)[:, 0], expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("input_dim", [1, 2, 5])
def test_slopes_of_the_common_curve_against_finite_differences(input_dim):
    rng, step = np.random.default_rng(0), 1e-6
    points = rng.normal(size=(7, input_dim))
    curve = make_curve(rng, points, Columns(input_dim))
    x = np.concatenate([rng.normal(size=(4, input_dim)), points[:2]])
    found = deformations(x, *curve, input_dim)
    assert found.shape == (6, 1 + input_dim)
    np.testing.assert_array_equal(found[:, 0], deformations(x, *curve, 0)[:, 0])
    for j in range(input_dim):
        change = step * np.eye(input_dim)[j]
        expected = (deformations(x + change, *curve, 0) - deformations(x - change, *curve, 0)) / (2.0 * step)
        np.testing.assert_allclose(found[:, 1 + j], expected[:, 0], rtol=1e-6, atol=1e-7)
