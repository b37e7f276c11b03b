"""Where learned features pay: 8 inputs, and tasks that combine four nonlinear features, which only many tasks show.

    python studies/benchmarks/learned_features.py --out studies/results/tables/learned_features.csv

Half an hour on 2 cores, nearly all of it GPBoost's, which is tried if it is installed (`make peers` does that).
"""

import csv
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from metaprior import MetaGPRegressor
from metaprior.tasks.types import Task, TestTask
from metaprior.wfem import Training, WFEMRegressor
from metaprior_studies.drawn_tasks import DrawnTasks
from metaprior_studies.peers.contestants import CONTESTANTS, as_contestant, run
from metaprior_studies.peers.protocol import Contestant, Fitted, Tasks

NETWORKS = {"paper's networks": "mlp", "feature-linear": "linear"}  # the kernel; the mean is a network
PEERS = ("gpboost", "mixedlm", "context-boosting")
N_INPUTS, N_FEATURES, NOISE_STD = 8, 4, 0.1
METRICS = ("rmse", "nll", "coverage", "seconds")


def draw_features(rng: np.random.Generator) -> Callable[[np.ndarray], np.ndarray]:
    """Draw a network from inputs to features."""
    first, second = rng.normal(size=(N_INPUTS, 16)) / np.sqrt(N_INPUTS) * 2, rng.normal(size=(16, N_FEATURES)) / 4
    return lambda x: np.tanh(np.tanh(x @ first) @ second * 2)


def draw_tasks(features: Any, n_tasks: int, n_samples: int, rng: np.random.Generator) -> list[Task]:
    """Draw tasks that weigh the features in their own way."""
    tasks = []
    for _ in range(n_tasks):
        x = rng.normal(size=(n_samples, N_INPUTS))
        weights = rng.normal(size=N_FEATURES) + np.array([1.0, -1.0, 0.5, 0.0])
        tasks.append(Task(x, features(x) @ weights + NOISE_STD * rng.normal(size=n_samples)))
    return tasks


def draw(n_tasks: int, seed: int) -> DrawnTasks:
    """Draw features, target tasks of 20 readings and 100 test tasks of 10 readings and 20 queries."""
    features = draw_features(np.random.default_rng([seed, 0]))
    target = draw_tasks(features, n_tasks, 20, np.random.default_rng([seed, 1]))
    tests = draw_tasks(features, 100, 30, np.random.default_rng([seed, 2]))
    return DrawnTasks([], target, [TestTask(t.x[:10], t.y[:10], t.x[10:], t.y[10:]) for t in tests])


def fit_default(source: Tasks, target: Tasks, seed: int) -> Fitted:
    """Fit the default to the target tasks."""
    return as_contestant(MetaGPRegressor(0.0, random_state=seed, progress=False).fit([], list(target)))


def fit_networks(source: Tasks, target: Tasks, seed: int, kernel: str) -> Fitted:
    """Fit a prior of networks to the target tasks."""
    meta = WFEMRegressor(kernel, alpha=0.0, temperature="bayes", training=Training(progress=False), random_state=seed)
    return as_contestant(meta.fit([], list(target)))


def main(
    out: Annotated[Path, typer.Option(help="CSV file to write.")],
    tasks: Annotated[list[int], typer.Option(help="Numbers of target tasks.")] = [50, 100, 200],  # noqa: B006
    draws: Annotated[int, typer.Option(help="Draws of features and tasks.")] = 5,
    most: Annotated[int, typer.Option(help="Target tasks up to which GPBoost is tried.")] = 200,
):
    """Measure all contestants, print and write every draw, and print means."""
    contestants: dict[str, Contestant] = {"metaprior": fit_default}
    contestants |= {name: partial(fit_networks, kernel=kernel) for name, kernel in NETWORKS.items()}
    contestants |= {name: CONTESTANTS[name] for name in PEERS if name != "gpboost" or find_spec("gpboost")}
    rows = []
    for n_tasks in tasks:
        for seed in range(draws):
            drawn = draw(n_tasks, seed)
            for name, contestant in contestants.items():
                if name == "gpboost" and n_tasks > most:
                    continue
                scores = run(contestant, drawn, seed)
                rows.append({"n_tasks": n_tasks, "draw": seed, "contestant": name})
                rows[-1] |= {metric: round(float(scores[metric]), 4) for metric in METRICS}
                print(rows[-1], flush=True)
                with out.open("w", newline="") as file:
                    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                    writer.writeheader()
                    writer.writerows(rows)
    for n_tasks in tasks:
        for name in contestants:
            some = [row for row in rows if (row["n_tasks"], row["contestant"]) == (n_tasks, name)]
            if some:
                means = ", ".join(f"{metric} {np.mean([row[metric] for row in some]):.3f}" for metric in METRICS)
                print(f"{n_tasks} tasks, {name}: {means}")


if __name__ == "__main__":
    typer.run(main)
