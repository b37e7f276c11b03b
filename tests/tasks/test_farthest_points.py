"""Points that cover the range of all inputs: near them, far from each other, and the same for any number of inputs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from metaprior.prior import blocks as farthest_points_module
from metaprior.prior.blocks import STEP_SEVERAL, farthest_points


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 3), st.integers(0, 100))
def test_points_are_near_inputs_and_spread(n_inputs, n_points, input_dim, seed):
    inputs = np.random.default_rng(seed).normal(size=(n_inputs, input_dim))
    points = farthest_points(inputs, n_points)
    assert points.shape == (n_points, input_dim)
    near = np.abs(points[:, None] - inputs) <= STEP_SEVERAL * inputs.std(axis=0)  # rounded
    assert near.all(axis=2).any(axis=1).all()


def test_points_cover_the_range_evenly():
    points = np.sort(farthest_points(np.random.default_rng(0).uniform(-1, 1, size=(2000, 1)), 17)[:, 0])
    gaps = np.diff(points)
    assert gaps.max() < 2.5 * gaps.min()
    assert (np.abs(points[[0, -1]]) > 0.99).all()


def test_the_first_point_is_the_input_nearest_to_the_mean_and_each_next_the_farthest():
    inputs = np.array([[-4.0], [0.5], [1.0], [3.0], [9.0]])  # mean 1.9
    assert farthest_points(inputs, 5)[:, 0].tolist() == [1.0, 9.0, -4.0, 3.0, 0.5]


def test_of_many_inputs_every_nth_is_looked_at(monkeypatch):
    monkeypatch.setattr(farthest_points_module, "MAX_INPUTS", 11)
    points = farthest_points(np.arange(101.0)[:, None], 11)
    assert sorted(points[:, 0]) == list(range(0, 101, 10))
    assert len(np.unique(farthest_points(np.arange(11.0)[:, None], 11))) == 11
