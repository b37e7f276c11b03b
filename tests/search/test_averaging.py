"""Environment weights, and weights of candidates from their scores on held-out tasks."""

import math

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
    combined_source_weights,
    contaminated,
    discounted,
    drop_worse,
    merge_similar,
    resolve_weights,
    select_weights,
    single_source_weights,
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


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=5), st.integers(1, 12), st.sampled_from([1.0, 1.5]))
def test_where_tasks_agree_the_bootstrap_changes_nothing(means, n_tasks, per_task):
    scores = np.repeat(np.array(means)[:, None], n_tasks, axis=1)
    np.testing.assert_allclose(averaging_weights(scores, per_task), softmax(per_task * n_tasks * np.array(means)), 1e-9)


def test_two_tasks_by_quadrature():
    """With two tasks the bootstrap weight of the first is uniform on (0, 1)."""
    scores = np.array([[0.7, -1.2], [0.1, 0.3], [-0.5, 0.9]])
    u = (np.arange(20000) + 0.5) / 20000
    expected = softmax(2 * (u[:, None] * scores[:, 0] + (1 - u[:, None]) * scores[:, 1]), axis=1).mean(axis=0)
    np.testing.assert_allclose(averaging_weights(scores), expected, atol=4 * 0.3 / np.sqrt(2000))


def test_a_candidate_that_diverged_gets_nothing():
    weights = averaging_weights(np.array([[0.0, 1.0], [5.0, -np.inf], [0.0, 1.0]]))
    np.testing.assert_allclose(weights, [0.5, 0.0, 0.5])


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


def test_what_is_negligible_can_be_said():
    weights, scores = np.array([0.6, 0.385, 0.015]), np.zeros((3, 2))
    np.testing.assert_allclose(drop_worse(weights, scores, None), [0.6 / 0.985, 0.385 / 0.985, 0.0])
    np.testing.assert_allclose(drop_worse(weights, scores, None, 0.01), weights)
    np.testing.assert_allclose(drop_worse(weights, scores, None, 0.5), [1.0, 0.0, 0.0])
    many = np.array([0.05] + [0.1] * 8 + [0.15])
    np.testing.assert_allclose(drop_worse(many, np.zeros((10, 3)), None), many)  # any number is kept


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


def test_pairs_are_merged_by_the_least_loss_and_the_heavier_stays():
    """Ward's criterion: w_i w_j / (w_i + w_j) d_ij is 0.05 for the first pair, 0.0195 for the second."""
    weights = np.array([0.1, 0.1, 0.02, 0.78])
    distances = np.full((4, 4), 9.0)
    distances[[0, 1, 2, 3], [1, 0, 3, 2]] = 1.0
    np.testing.assert_allclose(merge_similar(weights, distances, 3), [0.1, 0.1, 0.0, 0.8])
    distances[[0, 1], [1, 0]] = 0.3
    np.testing.assert_allclose(merge_similar(weights, distances, 3), [0.2, 0.0, 0.02, 0.78])
    np.testing.assert_allclose(merge_similar(weights, distances, 4, 0.016), [0.2, 0.0, 0.02, 0.78])
    np.testing.assert_array_equal(weights, [0.1, 0.1, 0.02, 0.78])  # not changed in place


def test_members_of_no_weight_are_not_merged():
    weights = np.array([0.0, 0.5, 0.0, 0.5])
    np.testing.assert_array_equal(merge_similar(weights, np.zeros((4, 4)), 2), weights)
    np.testing.assert_array_equal(merge_similar(weights, np.zeros((4, 4)), 1), [0.0, 1.0, 0.0, 0.0])


PAIR = ("source", "target")
THREE = ("a", "b", "c")


@given(st.lists(st.integers(1, 50), min_size=2, max_size=5), st.floats(0, 10), st.data())
def test_a_discount_is_the_ratio_of_task_weights(counts, discount, data):
    target = data.draw(st.integers(0, len(counts) - 1))
    weights = np.array(discounted(counts, target, discount))
    per_task = weights / counts
    np.testing.assert_allclose(weights.sum(), 1.0)
    others = np.delete(per_task, target)
    np.testing.assert_allclose(others, discount * per_task[target], rtol=1e-9, atol=1e-300)


def test_the_three_schemes_by_name():
    assert discounted((25, 5), 1, 0.0) == (0.0, 1.0)
    assert discounted((25, 5), 1, math.inf) == (1.0, 0.0)
    np.testing.assert_allclose(discounted((25, 5), 1, 1.0), (25 / 30, 5 / 30))
    assert discounted((6, 2, 4), 1, [0.5, 9.0, 0.0]) == (3 / 5, 2 / 5, 0.0)  # the target's own discount means nothing


@pytest.mark.parametrize(
    ("alpha", "counts", "expected"),
    [
        ("auto", (0, 5), [(0.0, 1.0)]),
        ("auto", (5, 0), [(1.0, 0.0)]),
        ("pooled", (3, 1), [(0.75, 0.25)]),
        (0.3, (3, 1), [(0.3, 0.7)]),
        (np.float32(0.5), (3, 1), [(0.5, 0.5)]),
        (1, (3, 2), [(1.0, 0.0)]),
        ([0, 0.5, 0.5], (3, 1), [(0.0, 1.0), (0.5, 0.5)]),
        (np.array([0.0, 1.0]), (3, 1), [(0.0, 1.0), (1.0, 0.0)]),
        ({"target": 0.9, "source": 0.1}, (3, 1), [(0.1, 0.9)]),
        ({"target": 1}, (3, 1), [(0.0, 1.0)]),
    ],
)
def test_what_alpha_may_be(alpha, counts, expected):
    np.testing.assert_allclose(resolve_weights(alpha, PAIR, counts, 1), expected, atol=1e-15)


def test_several_sources_share_alpha_by_their_tasks():
    np.testing.assert_allclose(resolve_weights(0.6, THREE, (2, 10, 4), 1), [(0.2, 0.4, 0.4)])
    assert resolve_weights(0, ("only",), (3,), 0) == [(1.0,)]
    assert resolve_weights(0.0, THREE, (0, 2, 0), 1) == [(0.0, 1.0, 0.0)]  # without a source task


@pytest.mark.parametrize(
    ("alpha", "names", "counts", "parts"),
    [
        ([0.5, 1.2], PAIR, (3, 1), ("alpha must be", "sequence of numbers in [0, 1]", "1.2")),
        ([], PAIR, (3, 1), ("alpha must be", "got []")),
        (np.array(0.5), PAIR, (3, 1), ("alpha must be",)),
        ("target", PAIR, (3, 1), ("alpha must be", "'auto'", "'pooled'", "got 'target'")),
        ({"source": 0.5, "target": 0.6}, PAIR, (3, 1), ("sum to one", "1.1")),
        ({"source": -0.5, "target": 1.5}, PAIR, (3, 1), ("at least 0",)),
        ({"sauce": 1.0}, PAIR, (3, 1), ("'sauce'", "'source', 'target'")),
        ({"a": 0.5, "b": 0.5}, THREE, (0, 1, 1), ("weight 0.5 to the a environment", "no tasks")),
        (0.5, THREE, (0, 2, 0), ("gives weight 0.25 to the a environment",)),
        (0.5, PAIR, (0, 2), ("alpha=0.5", "source environment, which has no tasks", "source_tasks")),
        (0.5, ("only",), (3,), ("alpha must be 0", "only environment")),
    ],
)
def test_errors(alpha, names, counts, parts):
    with pytest.raises(ValueError, match="alpha") as raised:
        resolve_weights(alpha, names, counts, min(1, len(names) - 1))
    assert all(part in str(raised.value) for part in parts), str(raised.value)
    assert len(str(raised.value)) < 500


def test_each_source_alone_then_together():
    counts = (4, 2, 0, 6)  # the third has no tasks
    assert {source for source, _, _ in single_source_weights(counts, 1)} == {0, 3}
    for source, discount, weights in single_source_weights(counts, 1):
        assert weights[source] / counts[source] == pytest.approx(discount * weights[1] / counts[1])
        assert sum(weight > 0 for weight in weights) == 2
    assert single_source_weights((4, 2), 1) == []
    scores = [(0, 0.1, 0.5), (0, 1.0, 0.7), (3, 0.1, 0.9), (3, 1.0, 0.2)]
    assert combined_source_weights(counts, 1, 0.4, scores) == [discounted(counts, 1, [1.0, 0.0, 0.0, 0.1])]
    assert combined_source_weights(counts, 1, 0.8, scores) == []  # only one of them is better than target-only


def test_the_better_sources_come_first():
    """Ranked by score, not by discount; a tie with target-only is no help, nor is a second best discount."""
    counts = (4, 2, 5, 6)
    scores = [(0, 1.0, 0.6), (2, 0.4, 0.9), (3, 0.1, 0.7), (3, 0.4, 0.5), (0, 0.1, 0.3)]
    two, three = combined_source_weights(counts, 1, 0.2, scores)
    assert [e for e, weight in enumerate(two) if weight > 0] == [1, 2, 3]
    np.testing.assert_allclose(two, discounted(counts, 1, [0.0, 1.0, 0.4, 0.1]))
    np.testing.assert_allclose(three, discounted(counts, 1, [1.0, 1.0, 0.4, 0.1]))
    assert combined_source_weights(counts, 1, 0.7, scores) == []
    assert len(combined_source_weights(counts, 1, 0.6, scores)) == 1


def test_weights_by_name():
    """Zero is a weight, a missing name has none, and rounding of the sum is forgiven and removed."""
    np.testing.assert_array_equal(resolve_weights({"source": 0.0, "target": 1.0}, PAIR, (3, 1), 1), [(0.0, 1.0)])
    np.testing.assert_array_equal(resolve_weights({"target": 1.0}, PAIR, (0, 1), 1), [(0.0, 1.0)])
    (weights,) = resolve_weights({"a": 0.3, "b": 0.7 + 9e-7}, THREE, (1, 1, 1), 1)
    assert math.fsum(weights) == pytest.approx(1.0, abs=1e-15)
    with pytest.raises(ValueError, match="sum to one"):
        resolve_weights({"a": 0.3, "b": 0.7 + 2e-6}, THREE, (1, 1, 1), 1)


def test_automatic_candidates():
    assert resolve_weights("auto", PAIR, (3, 0), 1) == [(1.0, 0.0)]  # no target task
    assert resolve_weights("auto", PAIR, (0, 3), 1) == [(0.0, 1.0)]  # no source task
    expected = [r * 6 / (r * 6 + 2) for r in (0.0, 0.02, 0.1, 0.4, 1.0)]
    np.testing.assert_allclose([alpha for alpha, _ in resolve_weights("auto", PAIR, (6, 2), 1)], [*expected, 1.0])
