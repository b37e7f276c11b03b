"""Splits of a task into context and queries, and random samples of large tasks, of which no class vanishes."""

import time
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprior import MetaGPClassifier, MetaGPRegressor
from metaprior.estimators import fit
from metaprior.search import compare
from metaprior.tasks.columns import Features
from metaprior.tasks.splits import (
    MAX_SAMPLES,
    ContextRule,
    as_context_rule,
    draw_of_each,
    split_all,
    split_often,
    split_once,
    thin_task,
    thin_tasks,
    typical_labels,
    warn_if_behind,
)
from metaprior.tasks.types import Task
from metaprior.wfem import Training, WFEMClassifier, WFEMRegressor

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


DRAWS = np.random.default_rng(0)
WARNING = "1 of 6 tasks have more than 256 samples, up to 5,000: training uses 256 random ones of each"


def make_tasks(sizes):
    return [Task(x := DRAWS.normal(size=(n, 2)), np.arange(n) + 0.0 * x[:, 0]) for n in sizes]


def test_only_large_tasks_are_thinned_and_samples_stay_together_and_in_order():
    environments = [make_tasks([3, 1000]), make_tasks([MAX_SAMPLES, 400])]
    with pytest.warns(UserWarning, match=r"2 of 4 tasks have more than 256 samples, up to 1,000"):
        thinned = thin_tasks(environments)
    assert thinned[0][0] is environments[0][0]
    assert thinned[1][0] is environments[1][0]
    for after, before in ((thinned[0][1], environments[0][1]), (thinned[1][1], environments[1][1])):
        rows = after.y.astype(int)
        assert len(rows) == MAX_SAMPLES
        assert (np.diff(rows) > 0).all()
        np.testing.assert_array_equal(after.x, before.x[rows])


def test_small_tasks_are_no_cause_for_a_warning():
    environments = [make_tasks([1, MAX_SAMPLES]), []]
    assert thin_tasks(environments) == environments


def one_large_of_six(labels):
    inputs = [DRAWS.normal(size=(n, 2)) for n in (5000, 8, 8, 8, 8, 8)]
    signals = [x @ DRAWS.normal(size=2) + 0.5 * DRAWS.normal(size=len(x)) for x in inputs]
    return [(x, (signal > 0).astype(int) if labels else signal) for x, signal in zip(inputs, signals, strict=True)]


def test_gradient_training_thins_and_says_so():
    meta = WFEMRegressor("rbf", "constant", alpha=0.0, training=Training(n_steps=0), random_state=0)
    with pytest.warns(UserWarning, match=WARNING):
        meta.fit(target_tasks=one_large_of_six(labels=False))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [MetaGPClassifier, MetaGPRegressor, WFEMClassifier, WFEMRegressor])
def test_a_task_of_5000_samples_fits_within_a_minute(kind):
    is_default, labels = kind in (MetaGPClassifier, MetaGPRegressor), kind in (MetaGPClassifier, WFEMClassifier)
    start = time.process_time()
    with nullcontext() if is_default else pytest.warns(UserWarning, match=WARNING):
        kind(alpha=0.0, random_state=0).fit(target_tasks=one_large_of_six(labels))
    assert time.process_time() - start < 120.0  # of two cores


def test_every_class_keeps_its_share_and_at_least_one_label():
    for _ in range(300):
        n_classes, n = DRAWS.integers(1, 12), DRAWS.integers(1, 400)
        codes = DRAWS.choice(n_classes, n, p=DRAWS.dirichlet(np.full(n_classes, 0.3)))
        most, before = int(DRAWS.integers(1, n + 1)), np.bincount(codes, minlength=n_classes)
        kept = draw_of_each(codes, most, DRAWS)
        after, n_present = np.bincount(codes[kept], minlength=n_classes), np.count_nonzero(before)
        assert len(kept) == max(most, n_present)
        assert (np.diff(kept) > 0).all()
        assert np.count_nonzero(after) == n_present
        if most >= n_present:
            assert np.abs(after - before * most / n).max() <= n_present


def test_labels_of_one_class_are_drawn_at_random():
    drawn = [draw_of_each(np.zeros(10), 3, np.random.default_rng(seed)) for seed in range(300)]
    counts = np.bincount(np.concatenate(drawn), minlength=10)
    assert np.abs(counts - 90).max() < 4 * np.sqrt(90 * 0.7)


@pytest.mark.parametrize("y", [np.zeros(500), np.repeat([0.0, 1.0, 2.0], [490, 9, 1])], ids=["one class", "rare"])
def test_typical_labels_do_not_depend_on_the_order_of_samples(y):
    x, order = DRAWS.normal(size=(500, 2)).round(1), DRAWS.permutation(500)  # some inputs are equal
    first, second = typical_labels(x, y, 60), order[typical_labels(x[order], y[order], 60)]
    rows = np.column_stack([x, y])
    np.testing.assert_array_equal(np.unique(rows[first], axis=0), np.unique(rows[second], axis=0))
    assert len(first) == len(second) == 60
    assert not np.array_equal(first, np.arange(60))


def test_rare_classes_of_training_tasks_do_not_vanish():
    """One label of a thousand, which a random hundred have in one of ten tasks."""
    y = np.repeat([0.0, 1.0, 2.0], [700, 299, 1])
    tasks = [Task(DRAWS.normal(size=(1000, 2)), y) for _ in range(4)]
    for task in (thin_task(tasks[0], 100, DRAWS, labels=True), *fit._sample([tasks], 0, labels=True)[0]):
        assert np.bincount(task.y.astype(int)).tolist() == [69, 30, 1]
    part = compare._part([tasks], 2, 20, 0, labels=True)
    assert [len(np.unique(task.y)) for task in part[0]] == [3, 3]
    with pytest.warns(UserWarning, match="more than 256 samples"):
        thinned = thin_tasks([tasks], labels=True)
    assert all(len(np.unique(task.y)) == 3 for task in thinned[0])


@pytest.mark.parametrize(
    ("parameters", "found"),
    [
        ({"categorical": [0]}, "a category"),
        ({"covariates": [0]}, "a covariate"),
        ({"likelihood": "poisson", "exposure": 0}, "the exposure"),
    ],
)
def test_forecasts_need_a_first_column_that_varies_within_tasks(parameters, found):
    tasks = [(np.column_stack([np.full(4, 1.0 + i % 2), np.arange(4.0)]), np.arange(4)) for i in range(4)]
    with pytest.raises(ValueError, match=f"is {found}: put the other column first"):
        MetaGPRegressor(context="first", **parameters).fit(target_tasks=tasks)
