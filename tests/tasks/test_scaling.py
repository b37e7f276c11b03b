"""Scaling: standardization, and inputs of labels by the spread within classes, shrunk for few tasks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaprior.storage.stored_tasks import StoredTasks, stored_scaling
from metaprior.tasks.scaling import MAX_DECORRELATED, _shrunk_correlations, fit_label_scaling, fit_scaling
from metaprior.tasks.types import (
    Task,
)

COVARIANCE = np.array([[4.0, 1.5, 0.0], [1.5, 1.0, -0.2], [0.0, -0.2, 0.25]])


def make_tasks(seed, n_tasks, per_class=5, covariance=COVARIANCE, shift=5.0):
    rng = np.random.default_rng(seed)
    tasks = []
    for _ in range(n_tasks):
        y = np.tile([0.0, 1.0], per_class)
        means = shift * rng.normal(size=(2, len(covariance)))
        x = means[y.astype(int)] + rng.multivariate_normal(np.zeros(len(covariance)), covariance, len(y))
        tasks.append(Task(x, y))
    return tasks


def within(tasks):
    """The pooled covariance within classes, by a plain loop."""
    total, degrees = 0.0, 0
    for x, y in tasks:
        for label in (0.0, 1.0):
            rows = x[y == label]
            total = total + (rows - rows.mean(axis=0)).T @ (rows - rows.mean(axis=0))
            degrees += len(rows) - 1
    return total / degrees


def scaled(scaling, tasks):
    return [scaling.task(task) for task in tasks]


def test_many_tasks_make_the_spread_within_classes_the_unit_in_every_direction():
    tasks = make_tasks(0, 2000)
    scaling = fit_label_scaling([tasks, []], (1.0, 0.0), within=True)
    np.testing.assert_allclose(
        within(scaled(scaling, tasks)), np.eye(3), atol=0.08
    )  # shrinkage falls as 1 / sqrt(tasks)
    fresh = make_tasks(1, 2000)  # 16,000 degrees of freedom: standard errors of about 0.01
    np.testing.assert_allclose(within(scaled(scaling, fresh)), np.eye(3), atol=0.11)
    assert (scaling.y_mean, scaling.y_std) == (0.0, 1.0)
    assert all((task.y == old.y).all() for task, old in zip(scaled(scaling, tasks), tasks, strict=True))


def test_shrinkage_by_hand():
    tasks, weights = make_tasks(2, 4), np.array([0.4, 0.4, 0.1, 0.1])
    scaling = fit_label_scaling([tasks[:2], tasks[2:]], (0.8, 0.2), within=True)
    plain = fit_scaling([tasks[:2], tasks[2:]], (0.8, 0.2))
    moments = []
    for x, y in tasks:
        z = (x - plain.x_mean) / plain.x_std
        rows = [(z[y == label] - z[y == label].mean(axis=0)) * np.sqrt(5 / 4) for label in (0.0, 1.0)]
        moments.append(np.concatenate(rows).T @ np.concatenate(rows) / 10)
    spread = np.sqrt(np.diag(np.tensordot(weights, np.array(moments), axes=1)))
    correlations = np.array(moments) / np.outer(spread, spread)
    mean = np.tensordot(weights, correlations, axes=1)
    variance = sum(w * np.sum((r - mean) ** 2) for w, r in zip(weights, correlations, strict=True))
    variance *= np.sum(weights**2) / (1.0 - np.sum(weights**2))
    shrinkage = min(1.0, np.sqrt(variance / np.sum((mean - np.eye(3)) ** 2)))
    assert 0.0 < shrinkage < 1.0
    metric = np.linalg.inv((1 - shrinkage) * mean + shrinkage * np.eye(3)) / np.outer(spread, spread)
    np.testing.assert_allclose(scaling.x_map @ scaling.x_map.T, metric, rtol=1e-9)


@pytest.mark.parametrize("heaviest", [1 / 12, 0.5, 0.9])
def test_shrinkage_estimates_the_variance_of_the_mean_whatever_the_weights(heaviest):
    """Over many draws s^2 is on average what the docstring says, the true variance of R over ||R - I||^2."""
    rng, n_tasks, n_rows, n_columns = np.random.default_rng(0), 12, 8, 6
    share = np.array([heaviest, *[(1 - heaviest) / (n_tasks - 1)] * (n_tasks - 1)])
    mixing = rng.normal(size=(n_columns, n_columns))
    means, estimates = [], []
    for _ in range(300):
        tasks = [rng.normal(size=(n_rows, n_columns)) @ mixing for _ in range(n_tasks)]
        mean = sum(w / n_rows * (rows.T @ rows) for rows, w in zip(tasks, share, strict=True))
        shrunk, distance = _shrunk_correlations(tasks, share), mean - np.eye(n_columns)
        s = 1.0 - np.sum((shrunk - np.eye(n_columns)) * distance) / np.sum(distance**2)
        means.append(mean)
        estimates.append(s**2 * np.sum(distance**2))
    truth = np.var(means, axis=0, ddof=1).sum()
    assert np.mean(estimates) == pytest.approx(truth, rel=0.25)


def test_few_tasks_and_tasks_that_disagree_keep_columns_apart():
    one = fit_label_scaling([make_tasks(3, 1), []], (1.0, 0.0), within=True).x_map
    np.testing.assert_allclose(one, np.diag(np.diag(one)), atol=1e-12)
    tilted = [np.array([[1.0, s], [s, 1.0]]) for s in (0.95, -0.95)]
    tasks = [task for i in range(6) for task in make_tasks(10 + i, 1, covariance=tilted[i % 2])]
    disagree = fit_label_scaling([tasks, []], (1.0, 0.0), within=True).x_map
    np.testing.assert_allclose(disagree, np.diag(np.diag(disagree)), atol=1e-12)


def test_an_environment_with_weight_zero_has_no_effect():
    tasks, others = make_tasks(4, 6), make_tasks(5, 3, covariance=np.eye(3))
    both = fit_label_scaling([others, tasks], (0.0, 1.0), within=True)
    alone = fit_label_scaling([[], tasks], (0.0, 1.0), within=True)
    for part, other in zip(both, alone, strict=True):
        np.testing.assert_array_equal(part, other)


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 3))
def test_units_and_offsets_of_columns_do_not_matter(seed, n_tasks, per_class):
    tasks = make_tasks(seed, n_tasks, per_class)
    factor, offset = np.array([1e-6, 1.0, 1e6]), np.array([1e3, 0.0, -1e6])
    moved = [Task(x * factor + offset, y) for x, y in tasks]
    before, after = (fit_label_scaling([group, []], (1.0, 0.0), within=True) for group in (tasks, moved))
    for task, other in zip(scaled(before, tasks), scaled(after, moved), strict=True):
        np.testing.assert_allclose(task.x, other.x, rtol=1e-5, atol=1e-5)


def test_one_sample_per_class_and_constant_columns():
    single = make_tasks(6, 5, per_class=1)
    scaling = fit_label_scaling([single, []], (1.0, 0.0), within=True)
    np.testing.assert_array_equal(scaling.x_map, np.eye(3))
    constant = [Task(np.column_stack([x, np.full(len(x), 7.0), y]), y) for x, y in make_tasks(7, 8)]
    scaling = fit_label_scaling([constant, []], (1.0, 0.0), within=True)  # the last tells classes apart for certain
    without = fit_label_scaling([make_tasks(7, 8), []], (1.0, 0.0), within=True)
    np.testing.assert_allclose(scaling.x_map[:3, :3], without.x_map, rtol=1e-9)
    np.testing.assert_array_equal(scaling.x_map[3:], np.eye(5)[3:])
    duplicates = [Task(np.column_stack([y, -y]), y) for _, y in constant]
    np.testing.assert_array_equal(fit_label_scaling([duplicates, []], (1.0, 0.0), within=True).x_map, np.eye(2))
    one_class = [Task(x, np.zeros(len(y))) for x, y in make_tasks(8, 8)]
    assert np.isfinite(fit_label_scaling([one_class, []], (1.0, 0.0), within=True).x_map).all()


@pytest.mark.parametrize(("within_", "input_dim"), [(False, 3), (True, MAX_DECORRELATED + 1)])
def test_otherwise_it_is_plain_standardization(within_, input_dim):
    rng = np.random.default_rng(0)
    tasks = [Task(rng.normal(size=(4, input_dim)), np.array([0.0, 1.0, 0.0, 1.0]))] * 2
    scaling = fit_label_scaling([tasks, []], (1.0, 0.0), within=within_)
    assert scaling.x_map is None
    np.testing.assert_array_equal(scaling.inputs(tasks[0].x), fit_scaling([tasks, []], (1.0, 0.0)).inputs(tasks[0].x))


@pytest.mark.parametrize("n_tasks", [5, 6])
def test_equal_tasks_of_one_column_have_nothing_to_decorrelate(n_tasks):
    """Their correlations are the identity, at a distance of zero from it."""
    tasks = [Task(np.linspace(0.0, 5.0 / 3.0, 6)[:, None], np.array([0.0, 1.0, 1.0, 0.0, 1.0, 1.0]))] * n_tasks
    scaling = fit_label_scaling([[], tasks], (0.0, 1.0), within=True)
    assert np.isfinite(scaling.x_map).all()


def random_tasks(sizes, seed=0):
    rng = np.random.default_rng(seed)
    return [Task(rng.normal(size=(n, 2)), rng.normal(size=n)) for n in sizes]


@given(seed=st.integers(0, 10**6), y_size=st.sampled_from([1e-140, 1e-6, 1.0, 1e6, 1e140]))
def test_scaling_standardizes_and_is_undone(seed, y_size):
    tasks = [Task(1e6 + x, y_size * y) for x, y in random_tasks([3, 4], seed=seed)]
    scaling = fit_scaling([tasks], [1.0])
    scaled = [scaling.task(task) for task in tasks]
    weights = np.repeat([1 / 6, 1 / 8], [3, 4])  # every task weighs the same, not every sample
    for values in np.column_stack([np.concatenate([t.x for t in scaled]), np.concatenate([t.y for t in scaled])]).T:
        assert abs(weights @ values) < 1e-8
        assert weights @ values**2 == pytest.approx(1.0, rel=1e-8)
    for task, back in zip(tasks, scaled, strict=True):
        np.testing.assert_allclose(scaling.undo_mean(back.y), task.y, rtol=1e-12, atol=1e-14 * y_size)


def test_constant_columns_are_centered_and_not_amplified():
    tasks = [Task(np.full((3, 1), 1e6), np.full(3, 0.1 + 0.2))]
    scaling = fit_scaling([tasks], [1.0])
    np.testing.assert_allclose(scaling.x_std, 1.0)
    np.testing.assert_allclose(scaling.y_std, 1.0)
    np.testing.assert_allclose(scaling.task(tasks[0]).y, 0.0, atol=1e-12)


@pytest.mark.parametrize(("offset", "size"), [(1e9, 1e-3), (1e9, 1e-4), (-1e15, 50.0), (3.0, 1e-12), (1e200, 1e190)])
def test_small_variation_around_a_large_offset_is_no_constant(offset, size):
    x, y = random_tasks([40])[0]
    tasks = [Task(offset + size * x, (y := 1e9 + 1e-3 * y))]
    for scaling in (fit_scaling([tasks], [1.0]), stored_scaling([StoredTasks.from_tasks(tasks, 2)], [1.0])):
        scaled = scaling.task(tasks[0])
        np.testing.assert_allclose(scaling.y_std, np.std(y - 1e9), rtol=1e-3)
        np.testing.assert_allclose(np.std(scaled.x, axis=0), 1.0, rtol=1e-3)
        assert np.abs(np.mean(scaled.x, axis=0)).max() < 0.1  # as exactly as the offset can be written


@pytest.mark.parametrize(
    ("y", "said"),
    [
        *(
            ([-size, size], "standard deviation between 1e-150 and 1e\\+150.*")
            for size in (1.7e308, 1e151, 1e-151, 1e-310)
        ),
        ([1.7e308] * 2, "mean of at most 1e\\+150 in size"),
        ([-1e160] * 2, "mean of at most 1e\\+150 in size"),
    ],
)
def test_y_whose_variance_is_no_number_is_refused(y, said):
    tasks = [Task(np.zeros((2, 1)), np.array(y))]
    for fit in (fit_scaling, lambda *given: stored_scaling([StoredTasks.from_tasks(tasks, 1)], given[1])):
        with pytest.raises(ValueError, match=f"y must have a {said}; it is"):
            fit([tasks], [1.0])
