"""Large tasks are thinned for training, with a warning, and small ones left as they are."""

import time

import numpy as np
import pytest

from metaprior import MetaGPClassifier, MetaGPRegressor
from metaprior.tasks.thinning import MAX_SAMPLES, thin_tasks
from metaprior.tasks.types import Task

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
    meta = MetaGPRegressor(0.0, kernel="rbf", mean="constant", inference="map", n_steps=0, random_state=0)
    with pytest.warns(UserWarning, match=WARNING):
        meta.fit(target_tasks=one_large_of_six(labels=False))


@pytest.mark.slow
@pytest.mark.parametrize(
    "meta", [MetaGPClassifier(random_state=0), MetaGPRegressor(kernel="inducing", random_state=0)], ids=type
)
def test_a_task_of_5000_samples_fits_within_a_minute(meta):
    start = time.process_time()
    with pytest.warns(UserWarning, match=WARNING):
        meta.fit(target_tasks=one_large_of_six(labels=isinstance(meta, MetaGPClassifier)))
    assert time.process_time() - start < 120.0  # of two cores
