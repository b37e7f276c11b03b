"""Memory of a fit on CPUs over that of the same fit of six tasks, for the estimates in `wfem.many_runs`.

    python studies/benchmarks/memory.py | tee studies/results/tables/memory.txt

Each fit runs in a process of its own and reports the largest memory of that process.
"""

import json
import resource
import subprocess
import sys
from typing import Any

import numpy as np

SMALL = {"kernel": "linear+rbf", "mean": "linear"}
SETTINGS: list[tuple[int, dict[str, Any]]] = [
    (20_000, {**SMALL, "inference": "map"}),
    (100_000, {**SMALL, "inference": "map"}),
    (20_000, {**SMALL, "inference": "laplace"}),
    (20_000, {"inference": "map"}),
    (20_000, {"inference": "svgd"}),
]


def measure(n_tasks: int, settings: dict[str, Any]) -> float:
    """Return the gigabytes that a fit of tasks of 10 readings needs besides those of a fit of six tasks."""
    from metaprior.wfem import Training, WFEMRegressor

    x = np.random.default_rng(0).normal(size=(n_tasks, 10, 1))
    tasks = [(each, np.sin(each[:, 0])) for each in x]
    meta = WFEMRegressor(training=Training(n_steps=2), random_state=0, **settings)
    peaks = []
    for some in (tasks[:6], tasks):
        meta.fit(some[3:], some[:3])
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
    return peaks[1] - peaks[0]


def main() -> None:
    """Print a row for every setting."""
    print("tasks of 10 readings, settings: GB over a fit of six tasks")
    for n_tasks, settings in SETTINGS:
        command = [sys.executable, __file__, json.dumps([n_tasks, settings])]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        print(f"{n_tasks:7,d} {settings}: {float(done.stdout):.2f}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(measure(*json.loads(sys.argv[1])))
    else:
        main()
