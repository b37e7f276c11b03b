"""As many runs at once as fit into memory."""

from typing import NamedTuple

import jax
import numpy as np

from metaprior.tasks.types import Task
from metaprior.wfem import ConstantMean, Gaussian, RBFKernel, runs
from metaprior.wfem.runs import Settings, make_run, make_scaling

RBF = Settings(mean=ConstantMean(), kernel=RBFKernel(), likelihood=Gaussian(0.1))


class Device(NamedTuple):
    free: float

    def memory_stats(self):
        return {"bytes_limit": self.free + 5e8, "bytes_in_use": 5e8}


def test_runs_that_fit_on_an_accelerator_are_counted_by_its_own_memory(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [Device(1.5e9), Device(7.5e9)])  # of 2 GB and of 8 GB
    assert runs.runs_that_fit(1.25e6) == 100  # a quarter of 2 GB


def test_an_accelerator_that_does_not_tell_its_memory_takes_the_most(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [type("Unknown", (), {"memory_stats": lambda self: None})()])
    assert runs.runs_that_fit(1e6) == 2**32 // 4_000_000


def test_an_accelerator_takes_all_tasks_at_once_and_a_cpu_a_block(monkeypatch):
    sizes = np.full(20_000, 10)
    at_once = 20_000 * 10 * (1000 + 1 + 10 * 10)
    assert runs.gradient_numbers(sizes, 1, False) == 5000 * (1000 + 1 + 10 * 10)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert runs.gradient_numbers(sizes, 1, False) == at_once


def test_more_runs_fit_if_each_is_small(monkeypatch):
    monkeypatch.setattr(runs, "MAX_BYTES", 1e6)
    assert [runs.runs_that_fit(numbers) for numbers in (1e3, 1e5, 1.3e5, 1e9)] == [250, 2, 1, 1]
    small, large = ([[Task(np.zeros((4, 1)), np.zeros(4))] * n] for n in (2, 2000))
    made = [make_run(e, (1.0,), make_scaling(e, (1.0,), RBF), RBF, 0) for e in (small, large)]
    # 8 and 8000 samples, of which 5000 at a time; 1000 + 1 + 10 * 4 numbers of 4 bytes each
    monkeypatch.setattr(runs, "MAX_BYTES", 1e8)
    assert [runs.runs_at_once(run) for run in made] == [int(1e8 / (8 * 1041 * 4)), int(1e8 / (5000 * 1041 * 4))]
