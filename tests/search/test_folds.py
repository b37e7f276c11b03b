"""Folds of held-out tasks, their splits into context and queries, and the reference density."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprior.search.held_out import make_folds, reference_log_densities, split_labels, split_task
from metaprior.tasks.types import Task

SEEDS = st.integers(0, 2**31 - 1)


def a_task(n, y=None):
    return Task(np.arange(n, dtype=float)[:, None], np.arange(n) % 2.0 if y is None else np.asarray(y, float))


@given(n_tasks=st.integers(2, 60), seed=SEEDS)
def test_every_task_is_held_out_once(n_tasks, seed):
    folds = make_folds([a_task(2)] * n_tasks, seed, labels=False).members
    np.testing.assert_array_equal(np.sort(np.concatenate(folds)), np.arange(n_tasks))
    sizes = [len(fold) for fold in folds]
    assert len(folds) == (n_tasks if n_tasks < 8 else 5)
    assert max(sizes) - min(sizes) <= 1


@given(n=st.integers(1, 40), n_classes=st.integers(0, 7), seed=SEEDS)
def test_splits_share_out_the_samples(n, n_classes, seed):
    rng = np.random.default_rng(seed)
    task = a_task(n, rng.integers(0, n_classes, n)) if n_classes else a_task(n)
    splits = split_task(task, rng, labels=n_classes > 0)
    alone = n_classes > 0 and len(np.unique(task.y)) == n  # one sample per class
    assert len(splits) == (1 if alone else min(n, 5))
    for split in splits:
        assert len(split.y_context) == (0 if alone else n // 2)
        together = np.concatenate([split.x_context, split.x_query])[:, 0]
        np.testing.assert_array_equal(np.sort(together), np.arange(n))
        np.testing.assert_array_equal(split.y_query, task.y[split.x_query[:, 0].astype(int)])
        np.testing.assert_array_equal(split.y_context, task.y[split.x_context[:, 0].astype(int)])
    asked = np.unique(np.concatenate([split.x_query[:, 0] for split in splits]))
    assert len(asked) == n, "every sample is a query at least once"


@given(n=st.integers(2, 40), seed=SEEDS)
def test_samples_are_asked_about_equally_often(n, seed):
    splits = split_task(a_task(n), np.random.default_rng(seed))
    times = np.bincount(np.concatenate([split.x_query[:, 0] for split in splits]).astype(int), minlength=n)
    assert times.max() - times.min() <= 1


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8), seed=SEEDS)
def test_contexts_have_half_of_every_class(sizes, seed):
    """So that a query is rarely of a class that its context lacks: only if the task has it once."""
    rng, counts = np.random.default_rng(seed), np.array(sizes)
    y = rng.permutation(np.repeat(np.arange(len(sizes)), counts))
    for split in split_task(a_task(len(y), y), rng, labels=True):
        found = np.bincount(split.y_context.astype(int), minlength=len(sizes))
        if counts.max() > 1:
            assert (np.abs(found - counts / 2) <= 0.5).all()
        assert (found[counts > 1] > 0).all()


def test_no_class_is_asked_about_more_often_than_another():
    """Classes with odd numbers of samples take turns, and chance decides which begins."""
    rng, task = np.random.default_rng(0), a_task(9, np.repeat([0, 1, 2], 3))
    queries = np.concatenate([split.y_query for _ in range(400) for split in split_task(task, rng, labels=True)])
    share = np.bincount(queries.astype(int)) / len(queries)
    np.testing.assert_allclose(share, 1 / 3, atol=0.005)


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8), by_class=st.booleans(), seed=SEEDS)
def test_labels_are_queries_once_given_four_fifths_of_the_task(sizes, by_class, seed):
    rng, counts = np.random.default_rng(seed), np.array(sizes)
    y = rng.permutation(np.repeat(np.arange(len(sizes)), counts))
    task, alone = a_task(len(y), y), by_class and counts.max() == 1
    splits = split_labels(task, rng, by_class)
    asked = np.concatenate([split.x_query[:, 0] for split in splits]).astype(int)
    kept = np.arange(len(y)) if alone or not by_class else np.flatnonzero(counts[y] > 1)
    np.testing.assert_array_equal(np.sort(asked), kept)
    for split in splits:
        assert alone or len(split.y_query) in (len(kept) // len(splits), -(-len(kept) // len(splits)))
        assert len(split.y_context) + len(split.y_query) == len(y)
        np.testing.assert_array_equal(split.y_query, y[split.x_query[:, 0].astype(int)])
        np.testing.assert_array_equal(split.y_context, y[split.x_context[:, 0].astype(int)])
    assert len(splits) == (1 if alone else min(len(kept), 5))


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8), seed=SEEDS)
def test_stratified_contexts_have_every_class(sizes, seed):
    rng, counts = np.random.default_rng(seed), np.array([2, *sizes])
    y = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    for split in split_labels(a_task(len(y), y), rng, by_class=True):
        found = np.bincount(split.y_query.astype(int), minlength=len(counts))
        assert (found < counts).all()
        assert (found <= -(-counts // 5) + 1).all()


def test_one_sample_per_class_is_predicted_from_the_prior():
    """A query would be of a class that its context lacks: similar inputs would seem to have different labels."""
    [split] = split_task(a_task(5, range(5)), np.random.default_rng(0), labels=True)
    assert (len(split.y_context), len(split.y_query)) == (0, 5)


def test_a_task_of_one_sample_is_predicted_from_the_prior():
    [split] = split_task(a_task(1), np.random.default_rng(0))
    assert (len(split.y_context), len(split.y_query)) == (0, 1)


@pytest.mark.parametrize("labels", [False, True])
def test_folds_and_splits_depend_on_the_seed_alone(labels):
    first, second, other = (make_folds([a_task(9)] * 9, seed, labels) for seed in (3, 3, 4))
    for a, b in zip(first.members, second.members, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(first.splits[2][1].x_query, second.splits[2][1].x_query)
    assert any((a != b).any() for a, b in zip(first.members[:4], other.members[:4], strict=True))
    assert any((a.x_query != b.x_query).any() for a, b in zip(first.splits[0], other.splits[0], strict=True))


def test_reference_densities_lie_where_queries_do():
    target = [a_task(n, np.linspace(1.0, n, n)) for n in (5, 4, 1)]
    folds = make_folds(target, 0, labels=False)
    reference = reference_log_densities(target, folds, labels=False)
    mean = np.mean([task.y.mean() for task in target])  # every task counts the same
    spread = np.sqrt(np.mean([np.mean((task.y - mean) ** 2) for task in target]))
    for splits, row in zip(folds.splits, reference, strict=True):
        queries = np.concatenate([split.y_query for split in splits])
        expected = -0.5 * ((queries - mean) / spread) ** 2 - np.log(spread) - 0.5 * np.log(2 * np.pi)
        np.testing.assert_allclose(row[~np.isnan(row)], expected)
    labels = reference_log_densities(target, folds, labels=True)
    np.testing.assert_allclose(labels[~np.isnan(labels)], np.log(0.5))
    labels = reference_log_densities(target, folds, labels=True, n_classes=np.array([5, 2, 3]))
    for row, n_classes in zip(labels, (5, 2, 3), strict=True):
        np.testing.assert_allclose(row[~np.isnan(row)], -np.log(n_classes))


def test_reference_densities_of_constant_and_very_large_readings():
    target = [a_task(4, [0.1] * 4) for _ in range(3)]  # whose standard deviation is not quite zero
    folds = make_folds(target, 0, labels=False)
    reference = reference_log_densities(target, folds, labels=False)
    np.testing.assert_allclose(reference[~np.isnan(reference)], -0.5 * np.log(2 * np.pi))
    huge = [a_task(4, 1e149 * np.arange(4)) for _ in range(3)]
    assert np.nanmax(reference_log_densities(huge, folds, labels=False)) < -300.0
