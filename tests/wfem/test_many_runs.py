"""What cannot fit is refused before it starts."""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
import pytest

from metaprior import ConstantMean, MetaGPRegressor, RBFKernel, StoredTasks
from metaprior.tasks.types import Task
from metaprior.wfem import many_runs
from metaprior.wfem.inference import MAP, Laplace
from metaprior.wfem.runs import Settings, make_run, make_scaling

RNG = np.random.default_rng(0)
TASKS = [(RNG.normal(size=(4, 1)), RNG.normal(size=4)) for _ in range(8)]
RBF = Settings(mean=ConstantMean(), kernel=RBFKernel(), noise_std=0.1, method=MAP(), n_particles=1)
SMALL = {"kernel": "rbf", "mean": "constant", "inference": "map", "n_steps": 2, "random_state": 0}


@pytest.mark.parametrize(
    ("free", "arguments", "parts"),
    [
        (1e3, {}, ["8 tasks with 32 readings", "fewer tasks", "a given alpha"]),
        (1e5, {"alpha": 0.5}, ["fewer tasks", "batch_size=5"]),
        (1e5, {"alpha": 0.5, "batch_size": 7}, ["batch_size=5"]),
        (1e5, {"alpha": 0.5, "batch_size": 5}, None),
        (1e6, {"alpha": 0.5}, None),
        (1e6, {"alpha": 0.5, "n_particles": 10}, ["needs about"]),
        (None, {"alpha": 0.5}, None),
    ],
)
def test_a_fit_that_does_not_fit(free, arguments, parts, monkeypatch):
    monkeypatch.setattr(many_runs, "available_memory", lambda: free)
    meta = MetaGPRegressor(**SMALL, **arguments)
    if parts is None:
        meta.fit(TASKS[:4], TASKS[4:])
        return
    with pytest.raises(ValueError, match=r"GB of memory; .* GB are free") as raised:
        meta.fit(TASKS[:4], TASKS[4:])
    assert all(part in str(raised.value) for part in parts), str(raised.value)


def test_stored_tasks_need_not_fit(monkeypatch):
    monkeypatch.setattr(many_runs, "available_memory", lambda: 1e5)
    stored = StoredTasks.from_arrays(RNG.normal(size=5000), RNG.normal(size=5000), np.arange(5001))
    meta = MetaGPRegressor(**{**SMALL, "n_steps": 0}, alpha=0.0, batch_size=3)
    with pytest.raises(ValueError, match=r"tasks on disk \(metaprior.store_tasks\)"):
        meta.fit(target_tasks=list(stored))
    meta.fit(target_tasks=stored)


def settings(**given):
    return Settings(method=MAP(), n_particles=1, **given)


class Tasks(list):
    """Many equal tasks, without the memory for them."""

    def __init__(self, n_tasks, size):
        super().__init__([Task(np.zeros((size, 1)), np.zeros(size))] * n_tasks)


class Device(NamedTuple):
    free: float

    def memory_stats(self):
        return {"bytes_limit": self.free + 5e8, "bytes_in_use": 5e8}


@pytest.mark.parametrize(
    ("n_tasks", "size", "given", "least", "most"),
    [
        (20_000, 10, {"n_particles": 10}, 1.8e8, 4e8),  # measured: 0.22 GB (studies/results/tables/memory.txt)
        (20_000, 10, {}, 2e7, 1.5e8),  # 0.08 and 0.10 GB
        (100_000, 10, {}, 4e7, 2e8),  # 0.16 GB
        (20_000, 10, {"method": Laplace()}, 3e8, 1e9),  # 0.37 GB
    ],
)
def test_the_estimate_is_that_of_blocks(n_tasks, size, given, least, most, monkeypatch):
    """On CPUs a gradient takes a block of tasks at a time: the number of tasks hardly matters."""
    asked = settings()
    for name, value in given.items():
        asked = replace(asked, **{name: value})
    for free, fits in ((least, False), (most, True)):
        monkeypatch.setattr(many_runs, "available_memory", lambda free=free: free)
        check = partial(many_runs.check_memory, [Tasks(n_tasks, size)], asked, None, False, 4)
        if fits:
            check()
        else:
            with pytest.raises(ValueError, match=f"{n_tasks:,} tasks with {n_tasks * size:,} readings needs about"):
                check()


def test_large_tasks_need_their_covariance_matrices(monkeypatch):
    monkeypatch.setattr(many_runs, "available_memory", lambda: 4e8)
    many_runs.check_memory([Tasks(500, 10)], settings(), None, False, 4)
    with pytest.raises(ValueError, match="needs about"):
        many_runs.check_memory([Tasks(1, 5000)], settings(), None, False, 4)


def test_the_curvature_needs_the_derivatives_of_a_large_covariance_and_map_does_not(monkeypatch):
    monkeypatch.setattr(many_runs, "available_memory", lambda: 1.2e9)
    for_laplace = Settings(mean=ConstantMean(), kernel=RBFKernel(), method=Laplace())  # of three parameters
    many_runs.check_memory([Tasks(500, 10)], for_laplace, None, False, 4)
    with pytest.raises(ValueError, match=r"needs about 1.5 GB .* Use inference='map', or fewer tasks"):
        many_runs.check_memory([Tasks(1, 5000)], for_laplace, None, False, 4)


def test_particles_that_do_not_fit_are_named(monkeypatch):
    monkeypatch.setattr(many_runs, "available_memory", lambda: 4e8)
    asked = replace(settings(), n_particles=10**6)
    with pytest.raises(ValueError, match=r"Use n_particles=\d+, or fewer tasks, or .*a given alpha, or tasks on disk"):
        many_runs.check_memory([Tasks(500, 10)], asked, None, True, 4)


def test_one_large_task_does_not_make_all_others_large(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [Device(60e9)])
    many_runs.check_memory([Tasks(100_000, 10), Tasks(1, 2000)], settings(), None, False, 4)


def test_runs_that_fit_on_an_accelerator_are_counted_by_its_own_memory(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [Device(1.5e9), Device(7.5e9)])  # of 2 GB and of 8 GB
    assert many_runs.runs_that_fit(1.25e6) == 100  # a quarter of 2 GB


def test_an_accelerator_counts_its_own_memory_and_takes_all_tasks_at_once(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [Device(2e9), Device(1e9)])
    assert many_runs.available_memory() == 1e9
    many_runs.check_memory([Tasks(20_000, 10)], settings(), None, False, 4)  # 0.88 GB
    with pytest.raises(ValueError, match=r"needs about 4.4 GB of memory on the GPU; 1 GB are free.*batch_size=1000"):
        many_runs.check_memory([Tasks(100_000, 10)], settings(), None, False, 4)
    monkeypatch.setattr(jax, "local_devices", lambda: [type("Unknown", (), {"memory_stats": lambda self: None})()])
    assert many_runs.available_memory() is None


def test_what_is_free_is_known_here():
    free = many_runs.available_memory()
    assert free is not None
    assert 1e7 < free < 1e14


def test_more_runs_fit_if_each_is_small(monkeypatch):
    monkeypatch.setattr(many_runs, "MAX_BYTES", 1e6)
    assert [many_runs.runs_that_fit(numbers) for numbers in (1e3, 1e5, 1.3e5, 1e9)] == [250, 2, 1, 1]
    small, large = ([[Task(np.zeros((4, 1)), np.zeros(4))] * n] for n in (2, 2000))
    runs = [make_run(e, (1.0,), make_scaling(e, (1.0,), asked), asked, 0) for asked in [RBF] for e in (small, large)]
    # 8 and 8000 samples, of which 5000 at a time; 1000 + 1 + 10 * 4 numbers of 4 bytes each
    monkeypatch.setattr(many_runs, "MAX_BYTES", 1e8)
    assert [many_runs.runs_at_once(run) for run in runs] == [int(1e8 / (8 * 1041 * 4)), int(1e8 / (5000 * 1041 * 4))]
