"""Large tasks are thinned for training, with a warning, and small ones left as they are; no class vanishes."""

import time
from contextlib import nullcontext

import numpy as np
import pytest

from metaprior import MetaGPClassifier, MetaGPRegressor
from metaprior.estimators import fit
from metaprior.search import compare
from metaprior.tasks.splits import MAX_SAMPLES, draw_of_each, thin_task, thin_tasks, typical_labels
from metaprior.tasks.types import Task
from metaprior.wfem import Training, WFEMClassifier, WFEMRegressor

RNG = np.random.default_rng(0)
WARNING = "1 of 6 tasks have more than 256 samples, up to 5,000: training uses 256 random ones of each"


def make_tasks(sizes):
    return [Task(x := RNG.normal(size=(n, 2)), np.arange(n) + 0.0 * x[:, 0]) for n in sizes]


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
    inputs = [RNG.normal(size=(n, 2)) for n in (5000, 8, 8, 8, 8, 8)]
    signals = [x @ RNG.normal(size=2) + 0.5 * RNG.normal(size=len(x)) for x in inputs]
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
        n_classes, n = RNG.integers(1, 12), RNG.integers(1, 400)
        codes = RNG.choice(n_classes, n, p=RNG.dirichlet(np.full(n_classes, 0.3)))
        most, before = int(RNG.integers(1, n + 1)), np.bincount(codes, minlength=n_classes)
        kept = draw_of_each(codes, most, RNG)
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
    x, order = RNG.normal(size=(500, 2)).round(1), RNG.permutation(500)  # some inputs are equal
    first, second = typical_labels(x, y, 60), order[typical_labels(x[order], y[order], 60)]
    rows = np.column_stack([x, y])
    np.testing.assert_array_equal(np.unique(rows[first], axis=0), np.unique(rows[second], axis=0))
    assert len(first) == len(second) == 60
    assert not np.array_equal(first, np.arange(60))


def test_rare_classes_of_training_tasks_do_not_vanish():
    """One label of a thousand, which a random hundred have in one of ten tasks."""
    y = np.repeat([0.0, 1.0, 2.0], [700, 299, 1])
    tasks = [Task(RNG.normal(size=(1000, 2)), y) for _ in range(4)]
    for task in (thin_task(tasks[0], 100, RNG, labels=True), *fit._sample([tasks], 0, labels=True)[0]):
        assert np.bincount(task.y.astype(int)).tolist() == [69, 30, 1]
    part = compare._part([tasks], 2, 20, 0, labels=True)
    assert [len(np.unique(task.y)) for task in part[0]] == [3, 3]
    with pytest.warns(UserWarning, match="more than 256 samples"):
        thinned = thin_tasks([tasks], labels=True)
    assert all(len(np.unique(task.y)) == 3 for task in thinned[0])
