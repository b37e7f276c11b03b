"""Rules by which a task is split into context and queries."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprior.tasks.columns import Features
from metaprior.tasks.splits import ContextRule, as_context_rule, split_all, split_often, split_once, warn_if_behind
from metaprior.tasks.types import Task

RNG = np.random.default_rng


def make_task(n, seed=0):
    """Readings in no order, whose y tells their place along x."""
    x = RNG(seed).permutation(n).astype(float)
    return Task(np.stack([x, -x], axis=1), 10.0 * x)


@pytest.mark.parametrize(
    ("given_as", "rule"),
    [
        ("random", ContextRule("random", None)),
        ("first", ContextRule("first", None)),
        (5, ContextRule("random", 5)),
        (np.int64(5), ContextRule("random", 5)),
        (("first", 5), ContextRule("first", 5)),
        (["first", 5], ContextRule("first", 5)),  # as JSON gives it back
        ("first 5", ContextRule("first", 5)),
        ("5", ContextRule("random", 5)),
        (0, ContextRule("random", 0)),
        (ContextRule(), ContextRule()),
    ],
)
def test_a_rule_is_given_in_several_ways(given_as, rule):
    assert as_context_rule(given_as) == rule


@pytest.mark.parametrize(
    "wrong", ["last", "", "first 5 6", "first x", -1, 2.5, True, None, (), ("first", -1), ("first", True), [5, 6]]
)
def test_other_rules_are_refused_by_name(wrong):
    with pytest.raises(ValueError, match="context must be"):
        as_context_rule(wrong)


def test_first_readings_are_those_of_the_smallest_first_input():
    task = make_task(12)
    test = split_once(task, ContextRule("first", 5), RNG(0))
    assert sorted(test.y_context) == [0, 10, 20, 30, 40]
    assert test.x_query[:, 0].min() > test.x_context[:, 0].max()
    np.testing.assert_array_equal(test.x_context[:, 0] * 10, test.y_context)


def test_random_readings_depend_on_the_seed_and_keep_their_order():
    task = make_task(12)
    found = {tuple(split_once(task, ContextRule("random", 5), RNG(seed)).y_context) for seed in range(10)}
    assert len(found) > 5
    places = [task.y.tolist().index(value) for value in split_once(task, ContextRule("random", 5), RNG(0)).y_context]
    assert places == sorted(places)


@given(st.integers(1, 30), st.sampled_from(["random", "first"]), st.none() | st.integers(0, 40), st.integers(0, 5))
def test_held_out_tasks_are_split_into_disjoint_parts_with_something_to_predict(n, kind, size, seed):
    task = make_task(n, seed)
    splits = split_often(task, ContextRule(kind, size), RNG(seed), 5)
    assert 1 <= len(splits) <= 5
    for test in splits:
        assert len(test.y_query) >= 1
        assert sorted([*test.y_context, *test.y_query]) == sorted(task.y)
        if size is not None:
            assert len(test.y_context) == min(size, n - 1)
        if kind == "first" and len(test.y_context):
            assert test.x_context[:, 0].max() < test.x_query[:, 0].min()
    assert len({tuple(sorted(test.y_context)) for test in splits}) == len(splits)  # no split twice


def test_prefixes_of_several_lengths_are_given_where_no_number_is():
    sizes = [len(test.y_context) for test in split_often(make_task(30), ContextRule("first"), RNG(0), 5)]
    assert sizes == [5, 10, 15, 20, 25]


def test_every_reading_is_asked_for_by_some_random_split():
    splits = split_often(make_task(10), ContextRule("random", 5), RNG(0), 5)
    assert set().union(*(test.y_query for test in splits)) == set(range(0, 100, 10))


def test_a_context_as_long_as_a_task_is_refused_with_its_number():
    with pytest.raises(
        ValueError, match=r"test_tasks\[1\]: A context of 5 leaves no reading to predict of a task with 5 "
    ):
        split_all([make_task(6), make_task(5)], ("first", 5), Features(1))
    assert len(split_once(make_task(1), ContextRule("first"), RNG(0)).y_context) == 0  # half of one reading is none


def test_queries_before_the_last_reading_of_a_context_are_no_forecasts():
    x = np.arange(4.0)[:, None]
    with pytest.warns(UserWarning, match="3 of 5 queries are not forecasts"):
        warn_if_behind([(x[[0, 2]], x[[1, 3]]), (x[:0], x[:1]), (x[3:], x[1:3])], ("first", 2))


@pytest.mark.parametrize("context", ["random", 2])
def test_the_past_may_be_asked_for_where_contexts_are_random(context):
    x = np.arange(4.0)[:, None]
    warn_if_behind([(x[2:], x[:2])], context)
