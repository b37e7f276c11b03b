"""Covariances and mean features of tasks from theta, against tinygp, formulas written out, and finite differences."""

import jax.numpy as jnp
import numpy as np
import pytest
import tinygp
from small_problems import ALL_PARTS, COUNTS, IS_TARGET, make_problem, make_tasks

from metaprior.prior.blocks import N_POINTS, N_POINTS_SEVERAL, make_blocks, place_points, squared_distances
from metaprior.prior.layout import COMMON_STD, MAX_ARD, Layout, Parts
from metaprior.prior.modes import log_density
from metaprior.prior.terms import (
    JITTER,
    NOISE_FLOOR,
    add_noise,
    deviations,
    gaussians,
    make_basis,
    mean_features,
)
from metaprior.tasks.farthest_points import STEP, STEP_SEVERAL
from metaprior.tasks.types import Task

EVERYTHING = Parts(smooth=True, curve=True, environment=True, features=True)


def finite_differences(function, theta, step=1e-5):
    slopes = []
    for i in range(len(theta)):
        change = step * np.eye(len(theta))[i]
        slopes.append((function(theta + change) - function(theta - change)) / (2.0 * step))
    return np.array(slopes)


@pytest.mark.parametrize("log_noise", [None, -1.3])
@pytest.mark.parametrize("input_dim", [1, 2, 3, 8])
@pytest.mark.parametrize("parts", ALL_PARTS, ids=str)
def test_the_gradient_of_the_log_density(parts, input_dim, log_noise):
    layout, theta, blocks, points = make_problem(parts, input_dim, log_noise)
    _, slope, *_ = log_density(layout, theta, blocks, points)
    expected = finite_differences(lambda t: log_density(layout, t, blocks, points, gradient=False)[0], theta)
    np.testing.assert_allclose(slope, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("input_dim", [1, 3])
def test_the_gradient_where_all_inputs_coincide(input_dim):
    tasks = [Task(np.ones((3, input_dim)), np.array([0.1, 0.5, -0.2])), Task(np.ones((1, input_dim)), np.ones(1))]
    layout, theta, blocks, points = make_problem(EVERYTHING, input_dim, None, tasks, np.ones(2), np.array([1.0, 0.0]))
    _, slope, *_ = log_density(layout, theta, blocks, points)
    expected = finite_differences(lambda t: log_density(layout, t, blocks, points, gradient=False)[0], theta)
    np.testing.assert_allclose(slope, expected, rtol=1e-5, atol=1e-6)


def everything_of(layout, theta, blocks, points):
    value, slope, collapsed, _ = log_density(layout, theta, blocks, points)
    return np.concatenate([[value], slope, collapsed.mean, (collapsed.root @ collapsed.root.T).ravel()])


@pytest.mark.parametrize("input_dim", [1, 8])
def test_neither_padding_nor_the_order_of_tasks_matters(input_dim):
    layout, theta, blocks, points = make_problem(EVERYTHING, input_dim)
    assert len(blocks) > 1
    expected = everything_of(layout, theta, blocks, points)
    one_block = make_problem(EVERYTHING, input_dim, max_blocks=1)[2]
    assert len(one_block) == 1
    np.testing.assert_allclose(everything_of(layout, theta, one_block, points), expected, rtol=1e-8, atol=1e-8)
    order = np.array([3, 0, 5, 1, 4, 2])
    tasks = [make_tasks(input_dim)[i] for i in order]
    reordered = make_problem(EVERYTHING, input_dim, None, tasks, COUNTS[order], IS_TARGET[order])[2]
    np.testing.assert_allclose(everything_of(layout, theta, reordered, points), expected, rtol=1e-8, atol=1e-8)


def test_a_task_that_counts_twice_is_the_task_listed_twice():
    """Given the common mean, copies of a task are independent: each has a deviation of its own."""
    tasks = make_tasks(2)
    counts = np.where(np.arange(6) == 2, 2.0, COUNTS)
    layout, theta, blocks, points = make_problem(EVERYTHING, 2, counts=counts)
    counts, is_target = np.append(np.where(counts == 2.0, 1.0, counts), 1.0), np.append(IS_TARGET, IS_TARGET[2])
    copied = make_problem(EVERYTHING, 2, None, [*tasks, tasks[2]], counts, is_target)[2]
    found, expected = (everything_of(layout, theta, each, points) for each in (blocks, copied))
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


def test_a_count_of_zero_has_no_effect():
    tasks = make_tasks(2)
    layout, theta, blocks, points = make_problem(EVERYTHING, 2)
    wild = Task(np.full((4, 2), 0.7) * np.arange(4)[:, None], np.array([50.0, -50.0, 3.0, 0.0]))
    counts, is_target = np.append(COUNTS, 0.0), np.append(IS_TARGET, 1.0)
    more = make_problem(EVERYTHING, 2, None, [*tasks, wild], counts, is_target)[2]
    expected = everything_of(layout, theta, blocks, points)
    np.testing.assert_allclose(everything_of(layout, theta, more, points), expected, rtol=1e-8, atol=1e-8)


def linear_kernel(stds):
    """tinygp's kernel of a line with independent normal intercept and slopes."""
    slopes = tinygp.transforms.Linear(jnp.asarray(stds[1:]), tinygp.kernels.DotProduct())
    return tinygp.kernels.Constant(jnp.asarray(stds[0] ** 2)) + slopes


def rbf_kernel(scale, lengths, input_dim):
    inverse = jnp.asarray(np.broadcast_to(1.0 / lengths, input_dim))
    return jnp.asarray(scale**2) * tinygp.transforms.Linear(inverse, tinygp.kernels.ExpSquared())


@pytest.mark.parametrize("input_dim", [1, 2, 8])
def test_deviations_against_tinygp(x64, input_dim):
    layout, theta, [block], _ = make_problem(Parts(smooth=True), input_dim, max_blocks=1)
    lengths, scale = layout.scale(theta, "lengths"), layout.scale(theta, "deviation")[0]
    stds = theta[layout.places["line"]]
    stds = np.exp(np.concatenate([stds[:1], np.broadcast_to(stds[1:], input_dim)]))
    covariance, smooth = deviations(layout, theta, block)
    x = jnp.asarray(block.x.reshape(-1, input_dim))
    of_smooth = np.asarray(rbf_kernel(scale, lengths, input_dim)(x, x)).reshape(*block.y.shape, *block.y.shape)
    of_line = np.asarray(linear_kernel(stds)(x, x)).reshape(*block.y.shape, *block.y.shape)
    tasks, real = np.arange(len(block.y)), block.mask[:, :, None] * block.mask[:, None, :]
    np.testing.assert_allclose(smooth, of_smooth[tasks, :, tasks] * real, rtol=1e-10)
    np.testing.assert_allclose(covariance, (of_smooth + of_line)[tasks, :, tasks] * real, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("input_dim", [1, 2, 8])
def test_common_means_against_tinygp(x64, input_dim):
    """F F' is the covariance of the common mean: a line, and a curve exact at the inducing points."""
    layout, theta, _, points = make_problem(Parts(smooth=True), input_dim)
    [block] = make_blocks([Task(points, np.zeros(len(points)))], np.ones(1), np.ones(1), points)
    basis = make_basis(layout, theta, squared_distances(points, points))
    [features] = mean_features(layout, theta, basis, block)
    trend = np.full(1 + input_dim, COMMON_STD)
    if input_dim > MAX_ARD:
        trend[1:] = layout.scale(theta, "trend")[0]
    lengths, scale = layout.scale(theta, "mean_lengths"), layout.scale(theta, "mean")[0]
    kernel = linear_kernel(trend) + rbf_kernel(scale, lengths, input_dim)
    expected = np.asarray(kernel(jnp.asarray(points), jnp.asarray(points)))
    np.testing.assert_allclose(features @ features.T, expected, rtol=0, atol=2.0 * JITTER * scale**2)


def test_the_common_curve_between_inducing_points_is_their_regression():
    layout, theta, _, points = make_problem(Parts(smooth=True), 2)
    lengths, scale = layout.scale(theta, "mean_lengths"), layout.scale(theta, "mean")[0]

    def kernel(x, z):
        return np.exp(-0.5 * np.sum(((x[:, None] - z) / lengths) ** 2, axis=-1))

    x = np.random.default_rng(5).normal(size=(4, 2))
    [block] = make_blocks([Task(x, np.zeros(4))], np.ones(1), np.ones(1), points)
    basis = make_basis(layout, theta, squared_distances(points, points))
    functions = mean_features(layout, theta, basis, block)[0][:, 3:]
    inner = kernel(points, points) + JITTER * np.eye(len(points))
    expected = scale**2 * kernel(x, points) @ np.linalg.solve(inner, kernel(points, x))
    np.testing.assert_allclose(functions @ functions.T, expected, rtol=1e-7)


@pytest.mark.parametrize("smooth", [False, True])
def test_the_target_has_a_deviation_of_the_common_mean(smooth):
    layout, theta, blocks, points = make_problem(Parts(smooth=smooth, environment=True), 2)
    basis = make_basis(layout, theta, squared_distances(points, points))
    plain = Layout(Parts(smooth=smooth), 2)
    rest = np.delete(theta, layout.places["environment"])
    effect = np.exp(theta[-1])
    for block in blocks:
        common = mean_features(plain, rest, basis, block)
        both = mean_features(layout, theta, basis, block)
        np.testing.assert_allclose(both[..., : common.shape[-1]], common)
        own = effect * block.is_target[:, None, None] * common
        np.testing.assert_allclose(both[..., common.shape[-1] :], own)


def test_tasks_scale_and_shift_the_common_curve():
    layout, theta, blocks, _ = make_problem(Parts(curve=True), 2)
    without, rest = Layout(Parts(), 2), np.delete(theta, layout.places["curve"])
    stds = layout.scale(theta, "curve")
    assert stds.shape == (3,)
    for block in blocks:
        found = deviations(layout, theta, block)[0] - deviations(without, rest, block)[0]
        expected = np.einsum("tij,j,tkj->tik", block.curve, stds**2, block.curve)
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_noise_is_added_to_readings_and_padding_becomes_the_identity():
    mask = np.array([[1.0, 1.0, 0.0]])
    covariance = np.array([[[2.0, 0.5, 0.0], [0.5, 3.0, 0.0], [0.0, 0.0, 0.0]]])
    expected = np.array([[[2.3, 0.5, 0.0], [0.5, 3.3, 0.0], [0.0, 0.0, 1.0]]])
    np.testing.assert_allclose(add_noise(covariance, mask, 0.3 - NOISE_FLOOR), expected, rtol=1e-14)


@pytest.mark.parametrize("log_noise", [None, -1.3])
def test_noise_given_or_learned(log_noise):
    layout, theta, blocks, _ = make_problem(Parts(), 1, log_noise)
    noise = np.exp(2.0 * (theta[0] if log_noise is None else log_noise))
    assert layout.noise_variance(theta) == pytest.approx(noise)
    assert ("noise" in layout.places) == (log_noise is None)
    for block in blocks:
        given, _ = gaussians(layout, theta, None, block)
        covariance = given.covariance - deviations(layout, theta, block)[0]
        diagonal = np.diagonal(covariance, axis1=1, axis2=2)
        np.testing.assert_allclose(diagonal, np.where(block.mask == 1.0, noise + NOISE_FLOOR, 1.0))


def test_blocks_hold_every_task_once():
    tasks, points = make_tasks(2), np.zeros((1, 2))
    for max_blocks in (1, 3):
        found = []
        for block in make_blocks(tasks, COUNTS, IS_TARGET, points, max_blocks):
            for i, mask in enumerate(block.mask):
                real = mask == 1.0
                x, y = block.x[i][real], block.y[i][real]
                found.append((block.counts[i], block.is_target[i], x.tolist(), y.tolist()))
                assert not block.y[i][~real].any()
                assert not block.line[i][~real].any()
                np.testing.assert_array_equal(block.line[i][real], np.column_stack([np.ones(len(x)), x]))
        expected = [(c, e, t.x.tolist(), t.y.tolist()) for c, e, t in zip(COUNTS, IS_TARGET, tasks, strict=True)]
        assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(("input_dim", "columns"), [(1, 1), (MAX_ARD, MAX_ARD), (MAX_ARD + 1, 1)])
def test_distances_along_few_inputs_and_in_many(input_dim, columns):
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(2, 3, input_dim)), rng.normal(size=(2, 4, input_dim))
    found = squared_distances(x, z)
    assert found.shape == (2, 3, 4, columns)
    total = np.linalg.norm(x[:, :, None] - z[:, None], axis=-1) ** 2
    np.testing.assert_allclose(found.sum(axis=-1), total)
    np.testing.assert_allclose(found[1, 2, 3, 0], (x[1, 2, 0] - z[1, 3, 0]) ** 2 if columns > 1 else total[1, 2, 3])


def test_inducing_points_start_in_the_middle_and_spread():
    grid = np.linspace(-1.0, 1.0, 101)
    points = place_points([Task(grid[:, None], grid)])
    assert len(points) == N_POINTS
    np.testing.assert_allclose(points[:3, 0], [0.0, -1.0, 1.0], atol=1e-12)
    apart = np.diff(np.sort(points[:, 0])).min()
    rounded = 0.5 * STEP  # of a standard deviation of about a half
    assert np.abs(grid[:, None] - points[:, 0]).min(axis=1).max() <= apart + rounded + 1e-12  # of choosing the farthest
    assert len(place_points(make_tasks(3, sizes=(60,)))) == N_POINTS_SEVERAL


def test_inducing_points_are_where_readings_are():
    """Late readings do not take the points of the others."""
    hours = np.concatenate([np.linspace(0.0, 1.0, 150), np.linspace(1.0, 10.0, 50)])[:, None]
    points = place_points([Task(hours, np.zeros(200))])
    assert 0.3 < np.mean(points <= 1.0) < 0.7


def test_inducing_points_are_distinct_and_near_inputs_but_none_of_them():
    tasks = make_tasks(2)
    points, inputs = place_points(tasks), np.concatenate([task.x for task in tasks])
    assert len(np.unique(points, axis=0)) == len(points) > 0.8 * len(np.unique(inputs, axis=0))
    apart = np.abs(points[:, None] - inputs)
    assert apart.max(axis=2).min(axis=1).max() <= STEP_SEVERAL / 2
    assert apart.min() > 1e-6
    almost = Task(np.array([[0.0], [1e-5], [1.0]]), np.zeros(3))
    assert len(place_points([almost])) == 2


def test_the_hyper_prior_of_every_group():
    layout = Layout(EVERYTHING, 2)
    assert layout.places == {
        "noise": slice(0, 1),
        "line": slice(1, 4),
        "mean": slice(4, 5),
        "mean_lengths": slice(5, 7),
        "deviation": slice(7, 8),
        "lengths": slice(8, 10),
        "curve": slice(10, 13),
        "feature_mean": slice(13, 14),
        "features": slice(14, 22),
        "environment": slice(22, 23),
    }
    center = [-1.0] * 4 + [-0.5, 0.5, 0.5, -1.0, 0.5, 0.5] + [-1.5] * 3 + [0.0] * 9 + [-1.5]
    np.testing.assert_array_equal(layout.center, center)
    np.testing.assert_array_equal(layout.spread, [1.5] * 4 + [1.0] * 3 + [1.5] + [1.0] * 5 + [1.5] * 9 + [1.0])
    assert Layout(Parts(smooth=True), 1).center.tolist() == [-1.0, -1.0, -1.0, -0.5, 0.0, -1.0, 0.0]
    many = Layout(EVERYTHING, MAX_ARD + 1)
    sizes = {name: place.stop - place.start for name, place in many.places.items()}
    assert (sizes["line"], sizes["trend"], sizes["lengths"], sizes["curve"]) == (2, 1, 1, 1)
    stds = many.line_stds(np.log(np.arange(1.0, 1.0 + len(many.center))))
    np.testing.assert_allclose(stds, [2.0] + [3.0] * (MAX_ARD + 1))


def test_the_density_adds_the_hyper_prior():
    layout, theta, blocks, points = make_problem(Parts(), 1)
    without = log_density(layout, theta, blocks, points)
    z = (theta - layout.center) / layout.spread
    assert without[0] == pytest.approx(without[2].value - 0.5 * np.sum(z**2))


def test_starting_points_vary_the_length_scales():
    layout = Layout(EVERYTHING, 2)
    starts = np.array(layout.starts()) - layout.center
    lengths = np.r_[5:7, 8:10]
    np.testing.assert_allclose(starts[:, lengths], np.repeat([[0.0], [-1.4], [-0.7], [0.7]], 4, axis=1))
    assert not np.delete(starts, lengths, axis=1).any()
    line = Layout(Parts(environment=True), 2)
    [only] = line.starts()
    np.testing.assert_array_equal(only, line.center)
