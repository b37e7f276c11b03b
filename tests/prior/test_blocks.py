"""Blocks of tasks of one size, and inducing points: near inputs, far from each other, and the same for any number."""

import numpy as np
import pytest
from small_problems import COUNTS, IS_TARGET, make_tasks

from metaprior.prior import blocks
from metaprior.prior.blocks import (
    N_POINTS,
    N_POINTS_SEVERAL,
    STEP,
    STEP_SEVERAL,
    farthest_points,
    make_blocks,
    place_points,
)
from metaprior.prior.columns import MAX_ARD, Columns
from metaprior.tasks.types import Task


def test_blocks_hold_every_task_once():
    tasks, points = make_tasks(2), np.zeros((1, 2))
    for max_blocks in (1, 3):
        found = []
        for block in make_blocks(tasks, COUNTS, IS_TARGET, points, Columns(2), max_blocks):
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
    found = Columns(input_dim).squared_distances(x, z)
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


def test_the_first_point_is_the_input_nearest_to_the_mean_and_each_next_the_farthest():
    inputs = np.array([[-4.0], [0.5], [1.0], [3.0], [9.0]])  # mean 1.9
    assert farthest_points(inputs, 5)[:, 0].tolist() == [1.0, 9.0, -4.0, 3.0, 0.5]


def test_of_many_inputs_every_nth_is_looked_at(monkeypatch):
    monkeypatch.setattr(blocks, "MAX_INPUTS", 11)
    points = farthest_points(np.arange(101.0)[:, None], 11)
    assert sorted(points[:, 0]) == list(range(0, 101, 10))
    assert len(np.unique(farthest_points(np.arange(11.0)[:, None], 11))) == 11
