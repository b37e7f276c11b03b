"""Weights of candidates from their scores on held-out tasks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import softmax
from scipy.stats import norm, ttest_rel

from metaprior.search.averaging import (
    averaging_weights,
    clearly_worse,
    contaminated,
    drop_worse,
    merge_similar,
    select_weights,
)

SCORES = st.tuples(st.integers(1, 6), st.integers(1, 9)).flatmap(
    lambda shape: arrays(float, shape, elements=st.floats(-20, 5))
)


@given(SCORES)
def test_weights_are_on_the_simplex_and_do_not_depend_on_order(scores):
    weights = averaging_weights(scores)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(), 1.0, rtol=1e-12)
    np.testing.assert_allclose(averaging_weights(scores[::-1]), weights[::-1], rtol=1e-9, atol=1e-12)
    shifted = scores + np.linspace(-3, 3, scores.shape[1])  # a hard task is hard for all
    np.testing.assert_allclose(averaging_weights(shifted), weights, rtol=1e-6, atol=1e-9)


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=5), st.integers(1, 12))
def test_where_tasks_agree_the_bootstrap_changes_nothing(means, n_tasks):
    scores = np.repeat(np.array(means)[:, None], n_tasks, axis=1)
    np.testing.assert_allclose(averaging_weights(scores), softmax(n_tasks * np.array(means)), rtol=1e-9)


def test_two_tasks_by_quadrature():
    """With two tasks the bootstrap weight of the first is uniform on (0, 1)."""
    scores = np.array([[0.7, -1.2], [0.1, 0.3], [-0.5, 0.9]])
    u = (np.arange(20000) + 0.5) / 20000
    expected = softmax(2 * (u[:, None] * scores[:, 0] + (1 - u[:, None]) * scores[:, 1]), axis=1).mean(axis=0)
    np.testing.assert_allclose(averaging_weights(scores), expected, atol=4 * 0.3 / np.sqrt(2000))


def test_noise_makes_candidates_share():
    rng = np.random.default_rng(0)
    difference = rng.normal(size=10)
    difference -= difference.mean()
    certain, doubtful = (averaging_weights(np.stack([np.zeros(10), 0.3 + s * difference])) for s in (0.1, 3.0))
    assert 0.5 < doubtful[1] < certain[1] - 0.1


def test_more_tasks_decide():
    weights = [averaging_weights(np.stack([np.zeros(n), np.full(n, 0.5)]))[1] for n in (2, 5, 20, 60)]
    assert np.all(np.diff(weights) > 0)
    assert weights[-1] > 0.999


def test_a_candidate_that_diverged_gets_nothing():
    weights = averaging_weights(np.array([[0.0, 1.0], [5.0, -np.inf], [0.0, 1.0]]))
    np.testing.assert_allclose(weights, [0.5, 0.0, 0.5])


def test_a_loss_that_is_small_but_certain_is_seen():
    gains = np.array(
        [[0.0] * 4, [-0.07, -0.06, -0.08, -0.07], [-0.5, 0.4, -0.3, 0.1], [0.1, 0.1, 0.2, 0.1], [-np.inf] * 4]
    )
    scores = gains + np.array([1.0, -2.0, 0.5, 3.0])
    assert clearly_worse(scores, 0).tolist()[:4] == [False, True, False, False]
    assert averaging_weights(scores)[1] > 0.1  # which averaging alone would not


@pytest.mark.parametrize(("errors", "worse"), [(0.9, False), (1.1, False), (1.9, False), (2.1, True), (-2.1, False)])
def test_clearly_worse_is_by_more_than_two_standard_errors_of_the_paired_difference(errors, worse):
    rng = np.random.default_rng(0)
    than, noise = 10.0 * rng.normal(size=7), rng.normal(size=7)  # which differ far more between tasks
    noise -= noise.mean()
    error = noise.std(ddof=1) / np.sqrt(7)
    scores = np.stack([than + noise - errors * error, than])
    assert clearly_worse(scores, 1).tolist() == [worse, False]


@pytest.mark.parametrize("n_tasks", [2, 3, 7, 40])
@pytest.mark.parametrize("level", [0.01, 0.2])
def test_clearly_worse_at_the_level_of_a_t_test(n_tasks, level):
    """As by scipy's paired one-sided test."""
    rng = np.random.default_rng(n_tasks)
    shifts = np.linspace(-4.0, 1.0, 60) * np.sqrt(2.0 / n_tasks)
    scores = np.concatenate([np.zeros((1, n_tasks)), shifts[:, None] + rng.normal(size=(60, n_tasks))])
    expected = ttest_rel(scores[1:], scores[:1], axis=1, alternative="less").pvalue < level
    assert 0 < expected.sum() < 60
    np.testing.assert_array_equal(clearly_worse(scores, 0, level)[1:], expected)
    weights = drop_worse(np.full(61, 1 / 61), scores, 0, 0.0, level)
    np.testing.assert_array_equal(weights[1:] == 0.0, expected)


def test_equal_candidates_are_not_worse_and_one_task_says_nothing():
    scores = np.array([[0.5, 1.0, 2.0]] * 3)
    assert clearly_worse(scores, 1).tolist() == [False] * 3
    assert clearly_worse(np.array([[0.0], [-9.0]]), 0).tolist() == [False, False]
    assert clearly_worse(np.array([[0.0, 0.0], [-9.0, -9.1]]), 0).tolist() == [False, True]


def test_candidates_clearly_worse_than_target_only_go_whatever_their_weight():
    scores = np.array([[0.0, 0.1, 0.0], [-0.1, 0.0, -0.1], [1.0, -1.0, 0.5]])
    weights = np.array([0.3, 0.6, 0.1])
    np.testing.assert_allclose(select_weights(weights, scores, 0), [0.75, 0.0, 0.25])
    np.testing.assert_allclose(select_weights(weights, scores, None), weights)
    diverged = np.array([[-np.inf] * 3, *scores[1:]])
    np.testing.assert_allclose(select_weights(weights, diverged, 0), weights)
    np.testing.assert_allclose(
        select_weights(np.array([0.3, 0.69, 0.01]), scores, None), [0.3 / 0.99, 0.69 / 0.99, 0.0]
    )


@given(arrays(float, 5, elements=st.floats(-1e4, 10)), st.floats(0.1, 10))
def test_contamination_against_scipy_and_its_floor(log_density, spread):
    reference = norm.logpdf(np.linspace(-2, 2, 5), 0.5, spread)
    robust = contaminated(log_density, reference)
    with np.errstate(under="ignore"):
        direct = np.log(0.9 * np.exp(log_density) + 0.1 * norm.pdf(np.linspace(-2, 2, 5), 0.5, spread))
    np.testing.assert_allclose(robust, direct, rtol=1e-9)
    assert (robust >= np.log(0.1) + reference - 1e-12).all()
    assert np.isnan(contaminated(np.array([np.nan]), np.array([0.0]))).all()


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ([0.5, 0.485, 0.015], [0.5 / 0.985, 0.485 / 0.985, 0.0]),
        ([1.0], [1.0]),
        ([0.98, 0.02], [0.98, 0.02]),
        ([0.9801, 0.0199], [1.0, 0.0]),
        ([0.01] * 100, [1 / 6] * 6 + [0.0] * 94),
        ([0.05] + [0.1] * 8 + [0.15], [0.0] + [0.1 / 0.65] * 5 + [0.0] * 3 + [0.15 / 0.65]),
    ],
)
def test_negligible_weights_and_more_than_six_are_dropped(given_, expected):
    found = select_weights(np.array(given_), np.zeros((len(given_), 3)), None)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_dropping_the_worse_keeps_any_number_of_others():
    weights = np.array([0.05] + [0.1] * 8 + [0.15])
    np.testing.assert_allclose(drop_worse(weights, np.zeros((10, 3)), None), weights)
    np.testing.assert_allclose(drop_worse(np.full(100, 0.01), np.zeros((100, 3)), 0), 0.01)


def test_what_is_negligible_can_be_said():
    weights, scores = np.array([0.6, 0.385, 0.015]), np.zeros((3, 2))
    np.testing.assert_allclose(drop_worse(weights, scores, None), [0.6 / 0.985, 0.385 / 0.985, 0.0])
    np.testing.assert_allclose(drop_worse(weights, scores, None, 0.01), weights)
    np.testing.assert_allclose(drop_worse(weights, scores, None, 0.5), [1.0, 0.0, 0.0])


def test_every_task_counts_as_several_observations():
    scores = np.repeat([[0.3], [0.1], [-0.4]], 5, axis=1)
    np.testing.assert_allclose(averaging_weights(scores, 1.5), softmax(1.5 * 5 * scores[:, 0]), rtol=1e-9)


MEMBERS = st.integers(1, 9).flatmap(
    lambda n: st.tuples(
        arrays(float, n, elements=st.floats(0.01, 1.0)), arrays(float, (n, 2), elements=st.floats(-3, 3))
    )
)


@given(MEMBERS, st.integers(1, 6))
def test_merging_keeps_the_sum_and_reduces_the_number(members, n_members):
    weights, places = members
    distances = np.sum((places[:, None] - places) ** 2, axis=-1)
    merged = merge_similar(weights, distances, n_members)
    assert np.count_nonzero(merged) == min(n_members, len(weights))
    np.testing.assert_allclose(merged.sum(), weights.sum(), rtol=1e-12)
    assert np.all(merged[merged > 0] >= weights[merged > 0])


def test_identical_members_are_merged_first_and_the_average_stays():
    places = np.array([0.0, 1.0, 0.0, 2.0, 1.0, 0.0, 5.0, 1.1, 9.0])
    weights = np.array([0.05, 0.2, 0.15, 0.1, 0.1, 0.1, 0.02, 0.18, 0.1])
    merged = merge_similar(weights, np.subtract.outer(places, places) ** 2)
    np.testing.assert_allclose(merged, [0.0, 0.3, 0.3, 0.1, 0.0, 0.0, 0.02, 0.18, 0.1])
    assert merged @ places == pytest.approx(weights @ places)
    assert weights.sum() == pytest.approx(1.0)  # not changed in place


def test_pairs_are_merged_by_the_least_loss_and_the_heavier_stays():
    """Ward's criterion: w_i w_j / (w_i + w_j) d_ij is 0.05 for the first pair, 0.0195 for the second."""
    weights = np.array([0.1, 0.1, 0.02, 0.78])
    distances = np.full((4, 4), 9.0)
    distances[[0, 1, 2, 3], [1, 0, 3, 2]] = 1.0
    np.testing.assert_allclose(merge_similar(weights, distances, 3), [0.1, 0.1, 0.0, 0.8])
    distances[[0, 1], [1, 0]] = 0.3
    np.testing.assert_allclose(merge_similar(weights, distances, 3), [0.2, 0.0, 0.02, 0.78])


def test_members_of_no_weight_are_not_merged():
    weights = np.array([0.0, 0.5, 0.0, 0.5])
    np.testing.assert_array_equal(merge_similar(weights, np.zeros((4, 4)), 2), weights)
    np.testing.assert_array_equal(merge_similar(weights, np.zeros((4, 4)), 1), [0.0, 1.0, 0.0, 0.0])
