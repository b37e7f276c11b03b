"""Covariances and large contexts: how much memory they take, and what users are told where it is not enough."""

import sys
import tracemalloc
import warnings

import numpy as np
import pytest

from metaprior import MetaGPRegressor
from metaprior.linalg import invert_roots
from metaprior.memory import available_bytes
from metaprior.predict import batches

N = 2000  # inputs, or readings of a context
MATRIX = 8 * N**2  # bytes


@pytest.fixture(scope="module")
def meta():
    rng = np.random.default_rng(0)
    tasks = [(x, x[:, 0] * rng.normal() + 0.1 * rng.normal(size=8)) for x in rng.uniform(-1, 1, (8, 8, 1))]
    return MetaGPRegressor(random_state=0).fit(target_tasks=tasks)


@pytest.fixture(scope="module")
def counts():
    """A prior of a response, whose latent function has a covariance too."""
    rng = np.random.default_rng(0)
    tasks = [(x, rng.poisson(np.exp(1.0 + x[:, 0]))) for x in rng.uniform(-1, 1, (8, 8, 1))]
    return MetaGPRegressor(random_state=0, likelihood="poisson").fit(target_tasks=tasks)


def matrices(call):
    """Return the peak of the memory of NumPy's arrays during a call, in matrices of N by N."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1] / MATRIX
    finally:
        tracemalloc.stop()


GRID = np.linspace(-1, 1, N)[:, None]


def test_a_covariance_takes_less_than_three_times_itself(meta, counts):
    task = meta.adapt([[0.1]], [0.2])
    assert len(meta.model_.members) > 3
    assert matrices(lambda: task.predict(GRID, return_cov=True)) < 3.0
    assert matrices(lambda: counts.adapt([[0.1]], [2]).predict(GRID, return_cov=True, latent=True)) < 3.0
    assert matrices(lambda: task.sample(GRID[::2], 3, random_state=0)) < 6.0 / 4.0


def test_a_large_context_takes_a_few_times_its_covariance(meta, monkeypatch):
    monkeypatch.setattr("metaprior.predict.batches.KEPT_BYTES", 2 * MATRIX)  # as if it were larger
    n_noises = max(member.n_components for member in meta.model_.members)
    assert matrices(lambda: meta.adapt(GRID, GRID[:, 0]).predict(GRID[:9])) < n_noises + 6.0


@pytest.fixture
def _one_gigabyte(monkeypatch):
    monkeypatch.setattr("metaprior.memory.available_bytes", lambda: 1e9)


@pytest.mark.usefixtures("_one_gigabyte")
def test_what_does_not_fit_is_refused_at_once_and_told_what_to_do(meta):
    task, grid = meta.adapt([[0.1]], [0.2]), np.zeros((20_000, 1))
    needs = r"of 20,000 inputs needs about [\d.]+ GB of memory, and 1 GB are available\. "
    with pytest.raises(MemoryError, match=f"The covariance {needs}Predict in parts, or pass return_std=True"):
        task.predict(grid, return_cov=True)
    with pytest.raises(MemoryError, match=f"The joint distribution {needs}Sample fewer inputs at once"):
        task.sample(grid)
    assert len(task.predict(grid, return_std=True)[1]) == 20_000
    x = np.linspace(-1, 1, 50_000)[:, None]
    told = r"A context of 50,000 readings needs about .* GB .*adapt\(X\[::10\], y\[::10\]\)"
    with warnings.catch_warnings(action="error"), pytest.raises(MemoryError, match=told):
        meta.adapt(x, x[:, 0]).predict([[0.0]])
    with pytest.raises(MemoryError, match=told):
        meta.adapt(x, x[:, 0]).predict([[0.0]], return_cov=True)
    assert np.isfinite(meta.adapt(x[::100], x[::100, 0]).predict([[0.0]]))  # as advised


def test_long_work_on_readings_is_announced(meta, monkeypatch):
    x = np.linspace(-1, 1, 600)[:, None]
    with warnings.catch_warnings(action="error"):
        meta.adapt(x, x[:, 0]).predict([[0.0]])
    monkeypatch.setattr(batches, "SLOW", 1e-3)
    announced = "1 context of up to 600 readings will take about 0 minutes on one core.*cube of the readings"
    with pytest.warns(UserWarning, match=announced) as told:
        meta.adapt(x, x[:, 0]).predict([[0.0]], return_cov=True)  # which needs the posterior twice
    assert len(told) == 1


def test_large_contexts_predict_as_small_ones_do(meta, monkeypatch):
    """Members one after another, queries in larger batches, and blocks of them."""
    rng = np.random.default_rng(1)
    x, grid = rng.uniform(-1, 1, (150, 1)), np.linspace(-1, 1, 1100)[:, None]
    y = np.sin(3 * x[:, 0])
    task = meta.adapt(x, y)
    expected, covariance = task.predict(grid, return_std=True), task.predict(grid[::10], return_cov=True)[1]
    monkeypatch.setattr("metaprior.predict.batches.KEPT_BYTES", 0)
    monkeypatch.setattr("metaprior.prior.fitted.MOST_NUMBERS", 1)
    large = meta.adapt(x, y)
    np.testing.assert_allclose(large.predict(grid, return_std=True), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(large.predict(grid[::10], return_cov=True)[1], covariance, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(np.sqrt(np.diagonal(covariance)), expected[1][::10], rtol=1e-9)


@pytest.mark.skipif(sys.platform != "linux", reason="not known elsewhere")
def test_the_available_memory_is_known():
    assert 1e7 < available_bytes() < 1e15


def test_roots_are_inverted_in_place_and_singular_matrices_get_a_little_more():
    rng = np.random.default_rng(2)
    thin, full = rng.normal(size=(100, 5)), rng.normal(size=(100, 150))
    matrices = np.stack([full @ full.T, thin @ thin.T])
    inverses = matrices.copy()
    invert_roots(inverses)
    np.testing.assert_allclose(inverses[0] @ matrices[0] @ inverses[0].T, np.eye(100), atol=1e-9)
    np.testing.assert_array_equal(inverses, np.tril(inverses))
    root = np.linalg.inv(inverses[1])
    np.testing.assert_allclose(root @ root.T, matrices[1], atol=1e-6)
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        invert_roots(-matrices)
