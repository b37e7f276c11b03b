"""A million tasks on disk: peak memory and speed of storing, opening and fitting them.

    python studies/benchmarks/stream.py --folder /tmp/stream
    python studies/benchmarks/stream.py --folder /tmp/wide --inputs 30 --phases make store fit

Every phase runs in its own process, whose peak resident memory is reported. Tasks are sinusoids of random amplitude and
phase in the first input, with 5 to 10 samples; those of the target have another mean phase. Their rows are scattered
over the files. With 30 inputs the stored tasks take 2 GB. "fit" and "fit auto" train the paper's networks, or
with several inputs a linear plus RBF kernel, with alpha given or chosen; "fit default" fits hierarchical priors.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

PHASES = ("make", "store", "fit", "fit auto", "fit default")
ROUNDS = 4  # fits with and without prefetch, in turn


def make(folder, n_tasks, n_inputs):
    """Write 30 Parquet files; rows of a file are shuffled, and a task is in up to two files."""
    import pyarrow as pa
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    (folder / "tables").mkdir(parents=True)
    left = None
    for part, tasks in enumerate(np.array_split(np.arange(n_tasks), 30)):
        sizes = rng.integers(5, 11, len(tasks))
        target = tasks % 100 == 0
        height, phase = rng.uniform(0.5, 2.0, len(tasks)), rng.normal(np.where(target, 0.0, 0.5), 0.3)
        task, height, phase, target = (np.repeat(each, sizes) for each in (tasks, height, phase, target))
        x = rng.uniform(-5, 5, len(task))
        y = height * np.sin(x + phase) + rng.normal(0, 0.1, len(task))
        rows = {"task": task, "x0": x, "y": y, "target": target}
        rows |= {f"x{i}": rng.normal(size=len(task)) for i in range(1, n_inputs)}
        rows = {name: np.concatenate([left[name], each]) if left else each for name, each in rows.items()}
        order = rng.permutation(len(rows["y"]))
        here, later = np.split(order, [len(order) * 9 // 10 if part < 29 else len(order)])
        left = {name: each[later] for name, each in rows.items()}
        rows = {name: each[here] for name, each in rows.items()}
        names = pa.array(np.where(rows.pop("target"), "target", "source")).dictionary_encode()
        parquet.write_table(pa.table({**rows, "environment": names}), folder / "tables" / f"part-{part:02}.parquet")
    return {"bytes": sum(path.stat().st_size for path in (folder / "tables").iterdir())}


def store(folder, n_tasks, n_inputs):
    """Store the tables as tasks."""
    from metaprior import open_tasks, store_tasks

    columns = {"task": "task", "x": [f"x{i}" for i in range(n_inputs)], "y": "y", "environment": "environment"}
    store_tasks(folder / "tables", folder / "tasks", **columns)
    stored = open_tasks(folder / "tasks")
    assert sum(map(len, stored.values())) == n_tasks
    return {"bytes": sum(path.stat().st_size for path in (folder / "tasks").iterdir()), "stored": repr(stored)}


def train(folder, n_inputs, alpha, prefetch=True, **training):
    """Train a prior on the stored tasks; return RMSE on new tasks, alpha and the final loss."""
    from metaprior.wfem import LinearMean, Training, WFEMRegressor, task_sources

    task_sources.PREFETCH = prefetch
    prior = {"kernel": "mlp", "mean": "mlp"} if n_inputs == 1 else {"kernel": "linear+rbf", "mean": LinearMean(1.0)}
    training = Training(progress=False, **training)
    meta = WFEMRegressor(**prior, alpha=alpha, temperature="bayes", training=training, random_state=0)
    return {**fit(folder, meta), "loss": float(meta.loss_trace_[-100:].mean())}


def fit(folder, meta):
    """Fit the stored tasks, and return RMSE on new tasks and alpha."""
    from metaprior import open_tasks

    meta.fit(open_tasks(folder / "tasks"), target="target")
    rng = np.random.default_rng(1)
    x = rng.normal(size=(100, 15, meta.n_features_in_))
    x[..., 0] = rng.uniform(-5, 5, x.shape[:2])
    phase, height = rng.normal(0.0, 0.3, (100, 1)), rng.uniform(0.5, 2.0, (100, 1))
    y = height * np.sin(x[..., 0] + phase) + rng.normal(0, 0.1, x.shape[:2])
    rmse = meta.evaluate([(a[:5], b[:5], a[5:], b[5:]) for a, b in zip(x, y, strict=True)]).rmse
    return {"rmse": rmse, "alpha": meta.alpha_, "priors": len(meta.model_.members)}


def run_phase(phase, folder, arguments):
    """Run one phase in this process; return its seconds, peak memory and other results."""
    started = time.monotonic()
    if phase in ("make", "store"):
        results = {"make": make, "store": store}[phase](folder, arguments.tasks, arguments.inputs)
    elif phase == "fit auto":
        results = train(folder, arguments.inputs, "auto", n_steps=arguments.steps)
    elif phase == "fit default":
        from metaprior import MetaGPRegressor

        results = fit(folder, MetaGPRegressor(random_state=0, progress=False))
    else:
        fixed = {"alpha": 0.5, "n_steps": arguments.steps, "batch_size": arguments.batch_size}
        results = train(folder, arguments.inputs, **fixed)  # compiles
        seconds = {True: [], False: []}
        for prefetch in (True, False) * ROUNDS:
            again = time.monotonic()
            train(folder, arguments.inputs, prefetch=prefetch, **fixed)
            seconds[prefetch].append(time.monotonic() - again)
        n_tasks = arguments.steps * arguments.batch_size
        for prefetch, name in ((True, "with"), (False, "without")):
            results[f"tasks a second {name} prefetch"] = n_tasks / np.median(seconds[prefetch])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": time.monotonic() - started, "peak GB": peak, **results}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--inputs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--phases", nargs="*", default=PHASES)
    parser.add_argument("--phase", help="run this phase in this process and print JSON")
    arguments = parser.parse_args()
    if arguments.phase:
        print(json.dumps(run_phase(arguments.phase, arguments.folder, arguments), default=float))
        return
    for phase in arguments.phases:
        command = [sys.executable, *sys.argv, "--phase", phase]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        results = json.loads(out.splitlines()[-1])
        texts = [f"{name} {value:,.4g}" if isinstance(value, float | int) else value for name, value in results.items()]
        print(f"{phase}: {', '.join(texts)}", flush=True)


if __name__ == "__main__":
    main()
