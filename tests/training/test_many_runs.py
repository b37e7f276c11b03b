"""What cannot fit is refused before it starts."""

import numpy as np
import pytest

from metaprior import MetaGPRegressor, StoredTasks
from metaprior.training import many_runs

RNG = np.random.default_rng(0)
TASKS = [(RNG.normal(size=(4, 1)), RNG.normal(size=4)) for _ in range(8)]
SMALL = {"kernel": "rbf", "mean": "constant", "inference": "map", "n_steps": 2, "random_state": 0}


@pytest.mark.parametrize(
    ("free", "arguments", "parts"),
    [
        (1e3, {}, ["8 tasks with 32 readings", "fewer tasks", "a given alpha"]),
        (1e5, {"alpha": 0.5}, ["fewer tasks", "batch_size=3"]),
        (1e5, {"alpha": 0.5, "batch_size": 7}, ["batch_size=3"]),
        (1e5, {"alpha": 0.5, "batch_size": 3}, None),
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
    with pytest.raises(ValueError, match="GB of memory; 0 GB are free") as raised:
        meta.fit(TASKS[:4], TASKS[4:])
    assert all(part in str(raised.value) for part in parts), str(raised.value)


def test_stored_tasks_need_not_fit(monkeypatch):
    monkeypatch.setattr(many_runs, "available_memory", lambda: 1e5)
    stored = StoredTasks.from_arrays(RNG.normal(size=5000), RNG.normal(size=5000), np.arange(5001))
    meta = MetaGPRegressor(**{**SMALL, "n_steps": 0}, alpha=0.0, batch_size=3)
    with pytest.raises(ValueError, match=r"tasks on disk \(metaprior.store_tasks\)"):
        meta.fit(target_tasks=list(stored))
    meta.fit(target_tasks=stored)


def test_what_is_free_is_known_here():
    free = many_runs.available_memory()
    assert free is not None
    assert 1e7 < free < 1e14
