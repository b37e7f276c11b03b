"""Folds over target tasks, and the split of a held-out task into context and queries."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprior.search.folds import make_folds, split_task
from metaprior.tasks.types import Task

SEEDS = st.integers(0, 2**31 - 1)


@given(n_tasks=st.integers(2, 60), seed=SEEDS)
def test_every_task_is_held_out_once(n_tasks, seed):
    folds = make_folds(n_tasks, np.random.default_rng(seed))
    np.testing.assert_array_equal(np.sort(np.concatenate(folds)), np.arange(n_tasks))
    sizes = [len(fold) for fold in folds]
    assert len(folds) == (n_tasks if n_tasks < 8 else 5)
    assert max(sizes) - min(sizes) <= 1


def a_task(n: int, y=None) -> Task:
    return Task(np.arange(n, dtype=float)[:, None], np.arange(n) % 2.0 if y is None else np.asarray(y, float))


@given(n=st.integers(1, 40), seed=SEEDS, labels=st.booleans())
def test_splits_share_out_the_samples(n, seed, labels):
    task = a_task(n)
    splits = split_task(task, np.random.default_rng(seed), labels)
    assert len(splits) == min(n, 5)
    for split in splits:
        assert len(split.y_context) == n // 2
        together = np.concatenate([split.x_context, split.x_query])[:, 0]
        np.testing.assert_array_equal(np.sort(together), np.arange(n))
        np.testing.assert_array_equal(split.y_query, task.y[split.x_query[:, 0].astype(int)])
        np.testing.assert_array_equal(split.y_context, task.y[split.x_context[:, 0].astype(int)])
    asked = np.unique(np.concatenate([split.x_query[:, 0] for split in splits]))
    assert len(asked) == n, "every sample is a query at least once"


@given(ones=st.integers(2, 12), zeros=st.integers(2, 12), seed=SEEDS)
def test_contexts_of_labels_mix_the_classes(ones, zeros, seed):
    y = np.random.default_rng(seed).permutation(np.repeat([0.0, 1.0], [zeros, ones]))
    for split in split_task(a_task(len(y), y), np.random.default_rng(seed), labels=True):
        share = len(split.y_context) * ones / (ones + zeros)
        assert abs(split.y_context.sum() - share) <= 1.5


def test_a_task_of_one_sample_is_predicted_from_the_prior():
    [split] = split_task(a_task(1), np.random.default_rng(0))
    assert (len(split.y_context), len(split.y_query)) == (0, 1)


@pytest.mark.parametrize("labels", [False, True])
def test_splits_depend_on_the_generator_alone(labels):
    first, second, other = (split_task(a_task(9), np.random.default_rng(seed), labels) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first[0].x_query, second[0].x_query)
    assert any((a.x_query != b.x_query).any() for a, b in zip(first, other, strict=True))
