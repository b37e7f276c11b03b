"""As many runs at once as fit into memory."""

from typing import NamedTuple

import jax
import numpy as np
import pytest

from metaprior.tasks.types import Task
from metaprior.wfem import ConstantMean, Gaussian, RBFKernel, runs
from metaprior.wfem.runs import make_run, make_scaling
from metaprior.wfem.settings import Settings

RBF = Settings(mean=ConstantMean(), kernel=RBFKernel(), likelihood=Gaussian(0.1))
PER_SAMPLE = 4 * (1000 + 1 + 10 * 4)  # bytes, of tasks of 4 samples


class Device(NamedTuple):
    limit: float | None

    def memory_stats(self):
        return None if self.limit is None else {"bytes_limit": self.limit, "bytes_in_use": 5e8}


@pytest.fixture(scope="module")
def made():
    """Runs of 8 samples, and of 8000."""
    environments = [[[Task(np.zeros((4, 1)), np.zeros(4))] * n] for n in (2, 2000)]
    return [make_run(e, (1.0,), make_scaling(e, (1.0,), RBF), RBF, 0) for e in environments]


def test_a_cpu_takes_a_block_of_tasks_at_once(made, monkeypatch):
    monkeypatch.setattr(runs, "MAX_BYTES", 1e8)
    assert [runs._runs_at_once(run) for run in made] == [int(1e8 / (8 * PER_SAMPLE)), int(1e8 / (5000 * PER_SAMPLE))]
    monkeypatch.setattr(runs, "MAX_BYTES", 1)
    assert [runs._runs_at_once(run) for run in made] == [1, 1]


@pytest.mark.parametrize(("limits", "most"), [([2e9, 8e9], 5e8), ([None], 2**32)])
def test_an_accelerator_takes_all_tasks_at_once_and_is_counted_by_its_own_memory(made, limits, most, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [Device(limit) for limit in limits])
    assert [runs._runs_at_once(run) for run in made] == [int(most / (n * PER_SAMPLE)) for n in (8, 8000)]
