"""Environment weights: as given, as candidates, and the errors of both."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprior.search.averaging import (
    DISCOUNTS,
    combined_source_weights,
    discounted,
    resolve_weights,
    single_source_weights,
)

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


def test_auto_has_target_only_pooled_and_source_only():
    options = resolve_weights("auto", PAIR, (25, 5), 1)
    alphas = [weights[0] for weights in options]
    assert alphas == sorted(alphas)
    assert {0.0, 1.0} <= set(alphas)
    assert any(math.isclose(alpha, 25 / 30) for alpha in alphas)
    assert len(options) == len(DISCOUNTS)


@pytest.mark.parametrize(
    ("alpha", "counts", "expected"),
    [
        ("auto", (0, 5), [(0.0, 1.0)]),
        ("auto", (5, 0), [(1.0, 0.0)]),
        ("pooled", (3, 1), [(0.75, 0.25)]),
        (0.3, (3, 1), [(0.3, 0.7)]),
        (np.float32(0.5), (3, 1), [(0.5, 0.5)]),
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


def test_bounds_of_alpha_are_included():
    assert resolve_weights(1, PAIR, (3, 2), 1) == [(1.0, 0.0)]
    assert resolve_weights(0.0, PAIR, (3, 2), 1) == [(0.0, 1.0)]
    assert resolve_weights(0.0, THREE, (0, 2, 0), 1) == [(0.0, 1.0, 0.0)]  # without a source task
    with pytest.raises(ValueError, match=r"gives weight 0.25 to the a environment"):
        resolve_weights(0.5, THREE, (0, 2, 0), 1)


def test_automatic_candidates():
    assert resolve_weights("auto", PAIR, (3, 0), 1) == [(1.0, 0.0)]  # no target task
    assert resolve_weights("auto", PAIR, (0, 3), 1) == [(0.0, 1.0)]  # no source task
    expected = [r * 6 / (r * 6 + 2) for r in (0.0, 0.02, 0.1, 0.4, 1.0)]
    np.testing.assert_allclose([alpha for alpha, _ in resolve_weights("auto", PAIR, (6, 2), 1)], [*expected, 1.0])
