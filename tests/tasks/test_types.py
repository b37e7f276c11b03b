"""Tasks as users pass them, padding, and ragged evaluation against one task at a time."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import logsumexp

from metaprior import ImplausibleContextWarning
from metaprior.storage.stored_tasks import StoredTasks, stored_scaling
from metaprior.tasks.scaling import Scaling, fit_scaling
from metaprior.tasks.types import (
    Task,
    TestTask,
    as_inputs,
    as_task,
    as_tasks,
    as_test_tasks,
    bucket_sizes,
    pad_to,
    padded_size,
)
from metaprior.wfem import MAP, Gaussian, Training, WFEMRegressor
from metaprior.wfem.adaptation import pad_queries
from metaprior.wfem.objective import pad_tasks

SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=12)


class Frame:
    """A data frame as NumPy sees it: an object with __array__."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def __array__(self, dtype=None, copy=None):
        return self.values if dtype is None else self.values.astype(dtype)


def random_tasks(sizes, input_dim=2, seed=0):
    rng = np.random.default_rng(seed)
    return [Task(rng.normal(size=(n, input_dim)), rng.normal(size=n)) for n in sizes]


def random_test_tasks(context_sizes, query_sizes, input_dim=2, seed=0):
    contexts, queries = random_tasks(context_sizes, input_dim, seed), random_tasks(query_sizes, input_dim, seed + 1)
    return [TestTask(*context, *query) for context, query in zip(contexts, queries, strict=True)]


@pytest.mark.parametrize(
    ("x", "y", "expected_x", "expected_y"),
    [
        ([1, 2], [3, 4], [[1.0], [2.0]], [3.0, 4.0]),
        ([[1, 2]], [[5]], [[1.0, 2.0]], [5.0]),
        (np.array([True, False]), np.array([False, True]), [[1.0], [0.0]], [0.0, 1.0]),
        (np.array([1, 2], np.uint8), np.float32([0.5, 0.25]), [[1.0], [2.0]], [0.5, 0.25]),
        (Frame([[1, 2], [3, 4]]), Frame([[1], [2]]), [[1.0, 2.0], [3.0, 4.0]], [1.0, 2.0]),
        ([], [], np.zeros((0, 1)), []),
        (np.zeros((0, 3)), np.zeros((0, 1)), np.zeros((0, 3)), []),
        (range(2), (3.0, 4.0), [[0.0], [1.0]], [3.0, 4.0]),
    ],
)
def test_as_task_gives_float64_of_two_and_one_dimensions(x, y, expected_x, expected_y):
    task = as_task(x, y, "adapt")
    assert task.x.dtype == task.y.dtype == np.float64
    assert task.x.shape == np.shape(expected_x)
    np.testing.assert_array_equal(task.x, expected_x)
    np.testing.assert_array_equal(task.y, expected_y)


def test_an_empty_flat_x_takes_the_dimension_of_the_prior():
    assert as_inputs([], "predict", 3).shape == (0, 3)


FRAME = pd.DataFrame({"week": [1.0, 2.0], "price": [30.0, 40.0]}, index=["a", "b"])


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (FRAME.assign(price=pd.array([1, None], dtype="Int64")), "column 'price' of X must be finite; 1 value is NaN"),
        (FRAME.assign(price=[1.0, np.nan]), "column 'price' of X must be finite"),
        (
            FRAME.assign(week=pd.to_datetime(["2020-01-01", "2020-01-08"])),
            "column 'week' of X .*datetime64; convert dates",
        ),
        (FRAME.assign(price=["30 EUR", "40 EUR"]), "column 'price' of X must be an array of numbers; got Series .text"),
        (
            FRAME.iloc[0],
            r"2 columns, like the other tasks; got 1\. For one input of 2 columns pass frame\.iloc\[\[i\]\]",
        ),
        (np.array([1.0, 30.0]), r"For one input of 2 columns pass \[x\], a table of one row"),
    ],
)
def test_what_is_wrong_with_a_data_frame_is_named(x, said):
    with pytest.raises(ValueError, match=f"^predict: .*{said}"):
        as_inputs(x, "predict", 2)


def test_nullable_columns_without_missing_values_are_numbers():
    nullable = FRAME.assign(price=pd.array([30, 40], dtype="Int64"))
    np.testing.assert_array_equal(as_inputs(nullable, "predict", 2), FRAME.to_numpy())


def test_rows_of_x_and_y_in_different_orders_are_refused():
    y = pd.Series([1.0, 2.0], index=["a", "b"])
    for wrong in (y[::-1], y[::-1].to_frame()):
        with pytest.raises(
            ValueError, match=r"adapt: X and y have the same index in different orders.*y\.loc\[X\.index\]"
        ):
            as_task(FRAME, wrong, "adapt", 2)
    for right in (y, y.reset_index(drop=True), y.to_numpy(), y.set_axis(["b", "c"]), y.set_axis(["a", "a"])):
        assert as_task(FRAME, right, "adapt", 2).y.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("container", [list, tuple, iter])
def test_as_tasks_takes_any_iterable(container):
    tasks = as_tasks(container([([1.0], [2.0]), [[3.0, 4.0], [5.0, 6.0]]]), "source_tasks")
    assert [len(task.y) for task in tasks] == [1, 2]
    assert as_tasks(None, "source_tasks") == as_tasks([], "source_tasks") == []


def test_as_test_tasks_keeps_contexts_and_queries_apart():
    [task] = as_test_tasks([([], [], [[1.0, 2.0]], [3.0])], "test_tasks", 2)
    assert task.x_context.shape == (0, 2)
    assert task.y_context.shape == (0,)
    np.testing.assert_array_equal(task.x_query, [[1.0, 2.0]])
    np.testing.assert_array_equal(task.y_query, [3.0])


@given(sizes=SIZES, extra=st.integers(0, 4), dtype=st.sampled_from([np.float32, np.float64]))
def test_padding_and_masking_is_a_round_trip(sizes, extra, dtype):
    tasks = random_tasks(sizes)
    x, y, mask = pad_to(tasks, max(sizes) + extra, dtype)
    assert x.shape == (len(sizes), max(sizes) + extra, 2)
    assert x.dtype == y.dtype == dtype
    np.testing.assert_array_equal(mask.sum(axis=1), sizes)
    for i, task in enumerate(tasks):
        np.testing.assert_array_equal(x[i][mask[i]], task.x.astype(dtype))
        np.testing.assert_array_equal(y[i][mask[i]], task.y.astype(dtype))
        padding = task.x[0].astype(dtype) if len(task.y) else np.zeros(2, dtype)
        assert np.all(x[i][~mask[i]] == padding)  # valid inputs: a kernel of padding is finite
        assert np.all(y[i][~mask[i]] == 0.0)


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=20), split=st.integers(0, 20))
def test_buckets_hold_every_task_once_and_environments_in_order(sizes, split):
    tasks = random_tasks(sizes)
    environments = [tasks[:split], tasks[split:]]
    task_set = pad_tasks(environments)
    assert 1 <= len(task_set.buckets) <= 3
    assert task_set.environment_counts == (len(environments[0]), len(environments[1]))
    found = [[], []]
    for bucket in task_set.buckets:
        owner = np.repeat([0, 1], bucket.counts)
        for environment, y, mask in zip(owner, bucket.y, bucket.mask, strict=True):
            found[environment].append(y[mask].tolist())
    for environment, group in zip(environments, found, strict=True):
        assert sorted(group) == sorted(task.y.astype(np.float32).tolist() for task in environment)


@given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=8), max_buckets=st.integers(1, 3))
def test_bucket_sizes_cover_all_sizes(sizes, max_buckets):
    chosen = bucket_sizes(np.array(sizes), max_buckets)
    assert chosen == sorted(set(chosen))
    assert chosen[-1] == max(sizes)
    assert len(chosen) <= max_buckets


def test_padded_size_follows_its_documented_sequence():
    assert sorted({padded_size(n) for n in range(1, 65)}) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]
    assert padded_size(0) == 1


@given(n=st.integers(1, 10**9))
def test_padded_size_is_enough_and_wastes_at_most_half(n):
    assert n <= padded_size(n) <= max(1.5 * n, 1)
    assert padded_size(padded_size(n)) == padded_size(n)


@given(sizes=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), min_size=1, max_size=10))
def test_padded_queries_hold_every_task_once_in_scaled_units(sizes):
    tasks = random_test_tasks(*zip(*sizes, strict=True))
    scaling = Scaling(np.array([1.0, -1.0]), np.array([2.0, 0.5]), np.asarray(3.0), np.asarray(4.0))
    queries, y_query, query_mask = pad_queries(tasks, scaling, 9, 5, np.float64)
    for row, task in enumerate(tasks):
        context_mask = queries.context_mask[row]
        np.testing.assert_array_equal(queries.x_context[row][context_mask], scaling.inputs(task.x_context), strict=True)
        np.testing.assert_array_equal(queries.y_context[row][context_mask], (task.y_context - 3.0) / 4.0)
        np.testing.assert_array_equal(queries.x_query[row][query_mask[row]], scaling.inputs(task.x_query))
        np.testing.assert_array_equal(y_query[row][query_mask[row]], (task.y_query - 3.0) / 4.0)


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


@pytest.mark.parametrize("size", [1.7e308, 1e200, 1e151, 1e-151, 1e-200, 1e-310])
def test_y_whose_variance_is_no_number_is_refused(size):
    tasks = [Task(np.zeros((2, 1)), size * np.array([-1.0, 1.0]))]
    for fit in (fit_scaling, lambda *given: stored_scaling([StoredTasks.from_tasks(tasks, 1)], given[1])):
        with pytest.raises(ValueError, match=r"y must have a standard deviation between 1e-150 and 1e\+150.*; it is"):
            fit([tasks], [1.0])


@pytest.mark.parametrize("size", [1.7e308, -1e160])
def test_constant_y_whose_square_is_no_number_is_refused(size):
    tasks = [Task(np.zeros((2, 1)), np.full(2, size))]
    for fit in (fit_scaling, lambda *given: stored_scaling([StoredTasks.from_tasks(tasks, 1)], given[1])):
        with pytest.raises(ValueError, match=r"y must have a mean of at most 1e\+150 in size; it is"):
            fit([tasks], [1.0])


def test_new_y_is_guarded_as_new_x_is(three_particles):
    x, far = np.zeros((1, 2)), np.array([1.7e308])
    message = "y is more than 1e\\+100 standard deviations from the meta-training outputs"
    with pytest.raises(ValueError, match=message):
        three_particles.adapt(x, far)
    with pytest.raises(ValueError, match=message):
        three_particles.evaluate([(x, np.zeros(1), x, far)])


@pytest.fixture(scope="module")
def three_particles():
    parts = {"mean": "constant", "kernel": "rbf", "likelihood": Gaussian(noise_std=0.3), "inference": MAP(3)}
    meta = WFEMRegressor(**parts, alpha="pooled", training=Training(n_steps=0), random_state=0)
    return meta.fit([(10.0 * x, 5.0 + y) for x, y in random_tasks([4, 3])])


@pytest.mark.parametrize("seed", [0, 1])
def test_ragged_evaluation_equals_task_by_task(three_particles, seed):
    rng = np.random.default_rng(seed)
    contexts = rng.permutation(5)  # 0 to 4 samples
    tasks = random_test_tasks(contexts, rng.integers(1, 3, size=5), seed=seed + 2)
    tasks = [TestTask(10.0 * t.x_context, 5.0 + t.y_context, 10.0 * t.x_query, 5.0 + t.y_query) for t in tasks]
    report = three_particles.evaluate(tasks, coverage=0.8)
    transforms = []
    for i, (x_context, y_context, x, y) in enumerate(tasks):
        predictive = three_particles.adapt(x_context, y_context).predictive(x)
        noise = np.exp(predictive.parameters)  # of every component, (3, 1)
        np.testing.assert_allclose(noise, 0.3, rtol=1e-6)  # parameters are in single precision
        std = np.hypot(np.sqrt(predictive.variances), noise)
        log_density = logsumexp(stats.norm.logpdf(y, predictive.means, std), axis=0) - np.log(3)
        cdf = stats.norm.cdf(y, predictive.means, std).mean(axis=0)
        transforms.extend(cdf)
        expected = {
            "rmse": np.sqrt(np.mean((y - predictive.means.mean(axis=0)) ** 2)),
            "nll": -log_density.mean(),
            "coverage": np.mean((cdf >= 0.1) & (cdf <= 0.9)),
            "width": np.mean(predictive.quantile(0.9) - predictive.quantile(0.1)),
        }
        for name, value in expected.items():
            assert report.per_task[name][i] == pytest.approx(value, rel=1e-8), (name, i)
    levels = np.arange(1, 20) / 20
    frequencies = [np.mean(np.array(transforms) <= level) for level in levels]
    assert report.calibration_error == pytest.approx(np.mean(np.abs(frequencies - levels)), abs=1e-12)
    assert report.n_tasks == 5
    wild = TestTask(np.full((1, 2), 1e6), np.array([1e6]), np.full((1, 2), -1e6), np.array([-1e6]))
    with pytest.warns(ImplausibleContextWarning, match=r"^Readings of 1 of 6 tasks .* in test_tasks\[5\] context"):
        among_others = three_particles.evaluate([*tasks[::-1], wild], coverage=0.8)  # tasks do not influence each other
    np.testing.assert_allclose(among_others.per_task.nll[-2::-1], report.per_task.nll, rtol=1e-10)
    assert np.isfinite(among_others.per_task.nll).all()


X = np.array([[0.0], [0.3], [1.1], [2.0]])
Y = np.array([0.2, -0.4, 0.9, 0.5])
ODD_TASKS = {
    "plain": (X, Y),
    "constant y": (X, np.full(4, 3.0)),
    "constant X": (np.full((4, 1), 7.0), Y),
    "duplicated inputs": (X[[0, 0, 1, 1]], Y),
    "inputs of scale 1e6": (1e6 * X, Y),
    "inputs at 1e6": (1e6 + X, Y),
    "y of scale 1e-6": (X, 1e-6 * Y),
    "y of scale 1e6": (X, 1e6 * Y),
    "y at 1e6": (X, 1e6 + Y),
    "integers": (np.arange(4), np.array([3, 1, 2, 5], np.int8)),
    "bools": (np.array([True, False, True, False]), np.array([True, False, False, True])),
    "lists": (X.tolist(), Y.tolist()),
    "frames": (Frame(X), Frame(Y[:, None])),
    "flat X": (X[:, 0], Y[:, None]),
    "one sample": (X[:1], Y[:1]),
}


@pytest.mark.parametrize("name", ODD_TASKS)
def test_odd_but_fine_data_gives_finite_numbers(name):
    task = ODD_TASKS[name]
    parts = {"mean": "constant", "kernel": "rbf", "likelihood": Gaussian(noise_std=0.1)}
    meta = WFEMRegressor(**parts, alpha="pooled", training=Training(n_steps=3), random_state=0)
    meta.fit(source_tasks=(task for _ in range(1 if name == "one sample" else 3)))  # a generator will do
    size = float(np.max(np.abs(np.asarray(task[1], np.float64))))
    assert np.isfinite(meta.loss_trace_).all()
    for context in (task, ([], [])):
        mean, std = meta.adapt(*context).predict(task[0], return_std=True)
        assert mean.dtype == std.dtype == np.float64
        assert np.max(np.abs(mean)) < 10.0 * max(size, 0.1)
        assert np.isfinite(std).all()
        assert np.all(std >= 0.1 * (1.0 - 1e-6))  # the noise is in the units of y
    report = meta.evaluate([(*task, *task), ([], [], *task)])
    assert np.isfinite([report.rmse, report.nll, report.coverage, report.width, report.calibration_error]).all()


@pytest.mark.parametrize("queries", [np.zeros((0, 2)), [], [[0.5, 1.0]]], ids=["no rows", "nothing", "one row"])
def test_no_query_or_one(three_particles, queries):
    adapted, n = three_particles.adapt([], []), len(queries)
    assert [part.shape for part in adapted.predict(queries, return_std=True)] == [(n,), (n,)]
    assert [part.shape for part in adapted.predict(queries, return_cov=True)] == [(n,), (n, n)]
    assert adapted.quantile(queries, np.array([0.1, 0.9])).shape == (2, n)
    assert adapted.sample(queries, 3, random_state=0).shape == (3, n)
    assert adapted.log_density(queries, np.zeros(n)).shape == (n,)
