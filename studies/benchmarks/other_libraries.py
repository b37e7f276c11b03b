"""How long `task.update` takes, and how large and fast exported tasks are, for docs/guides/other-libraries.md.

python studies/benchmarks/other_libraries.py
"""

import importlib.util
import tempfile
import time
from pathlib import Path

import numpy as np

from metaprior import MetaGPRegressor
from metaprior.datasets import Sinusoid

REPEATS = 7


def seconds(call):
    """The least of several times."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def main():
    problem = Sinusoid(deviation=0.25)
    source, target = problem.source_tasks(25, 5, rng=0), problem.target_tasks(10, 8, rng=1)
    meta = MetaGPRegressor(random_state=0, progress=False).fit(source, target)
    queries = np.linspace(-5.0, 5.0, 1000)[:, None]
    print(f"{len(meta.model_.members)} members")
    for n in (20, 100, 500):
        x, y = problem.target_tasks(1, n, rng=2)[0]
        task = meta.adapt(x[:-1], y[:-1])
        taken = seconds(lambda task=task, x=x, y=y: task.update(x[-1:], y[-1:]).predict([[0.0]]))
        print(f"update to {n} readings, and a prediction: {1e3 * taken:.1f} ms")
    task = meta.adapt(*problem.target_tasks(1, 5, rng=2)[0])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "patient.py"
        task.export(path)
        spec = importlib.util.spec_from_file_location("patient", path)
        patient = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(patient)
        print(f"exported: {path.stat().st_size / 1e3:.0f} kB")
    predicted, between = patient.predict(queries, return_std=True), patient.interval(queries)
    print(f"predict 1,000 inputs: {1e3 * seconds(lambda: patient.predict(queries, return_std=True)):.1f} ms")
    print(f"their intervals: {1e3 * seconds(lambda: patient.interval(queries)):.0f} ms")
    off = [np.array(predicted) - task.predict(queries, return_std=True), np.array(between) - task.interval(queries)]
    print("largest differences of predictions and intervals:", *(f"{np.abs(each).max():.1e}" for each in off))


if __name__ == "__main__":
    main()
