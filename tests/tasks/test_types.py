"""Tasks as users pass them, padding, digests, and ragged evaluation against one task at a time."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import logsumexp

from metaprior import ImplausibleContextWarning
from metaprior.estimators import environments
from metaprior.estimators.environments import kept_digests
from metaprior.tasks.types import (
    Task,
    TestTask,
    as_inputs,
    as_task,
    as_tasks,
    as_test_tasks,
    digest,
    pad_to,
    padded_size,
    row_hashes,
    sum_rows,
)
from metaprior.wfem import MAP, Gaussian, Training, WFEMRegressor

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


def test_padded_size_is_the_next_of_its_documented_sequence():
    assert sorted({padded_size(n) for n in range(65)}) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]
    assert all(n <= padded_size(n) <= 1.5 * n for n in range(1, 2000))


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


RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(6, 2)), RNG.normal(size=6)


def of(x, y):
    sizes = np.array([len(y)])
    return int(digest(sum_rows(row_hashes(x, y), sizes), sizes)[0])


def test_the_order_of_readings_and_the_sign_of_zero_do_not_matter():
    order = RNG.permutation(6)
    assert of(X, Y) == of(X[order], Y[order])
    assert of(np.array([[0.0]]), np.array([-0.0])) == of(np.array([[-0.0]]), np.array([0.0]))
    assert of(np.array([[1], [2]]), np.array([3, 4])) == of(np.array([[1.0], [2.0]]), np.array([3.0, 4.0]))


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (X[:, ::-1], Y),  # columns have an order
        (X, Y[::-1]),
        (X[:5], Y[:5]),
        (np.concatenate([X, X]), np.concatenate([Y, Y])),
        (X + np.eye(6, 2) * 1e-15, Y),
        (X, np.where(np.arange(6) == 3, np.nextafter(Y, 9.0), Y)),
    ],
)
def test_anything_else_changes_the_digest(x, y):
    assert of(x, y) != of(X, Y)


def test_many_tasks_at_once_are_as_one_by_one_and_parts_add_up():
    sizes = np.array([1, 0, 3, 2])
    sums = sum_rows(row_hashes(X, Y), sizes)
    ends = np.cumsum(sizes)
    singles = [of(X[end - size : end], Y[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
    assert digest(sums, sizes).tolist() == singles
    assert int(digest(sums.sum(keepdims=True), sizes.sum(keepdims=True))[0]) == of(X, Y)


def test_similar_tasks_do_not_collide():
    n = 100_000
    x, y = np.arange(n, dtype=float)[:, None] % 7, np.arange(n, dtype=float) // 7
    assert len(kept_digests(digest(row_hashes(x, y), np.ones(n, int)))) == n


def test_of_too_many_digests_the_smallest_are_kept_whatever_the_order(monkeypatch):
    monkeypatch.setattr(environments, "MAX_DIGESTS", 5)
    many = row_hashes(RNG.normal(size=(40, 1)), np.zeros(40))
    in_blocks = np.empty(0, np.uint64)
    for block in many[RNG.permutation(40)].reshape(4, 10):
        in_blocks = kept_digests(np.concatenate([in_blocks, block]))
    assert in_blocks.tolist() == sorted(many.tolist())[:5] == kept_digests(many).tolist()
