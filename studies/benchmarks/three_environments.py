"""Weights that alpha="auto" gives a copy of the target, a shifted environment and pure noise.

    python studies/benchmarks/three_environments.py --out studies/results/tables/three_environments.csv

Sinusoid with 5 samples a task: 10 tasks of the target, 20 of a copy of it, 20 with the phase off by 0.75, and 20 of
which every reading is independent noise with the mean and the spread of the target's readings.
"""

import csv
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from metaprior import MetaGPRegressor
from metaprior.datasets.sinusoid import Sinusoid
from metaprior.tasks.types import Task

PAPER: dict[str, Any] = {"mean": "mlp", "kernel": "mlp", "inference": "map", "noise_std": 0.1}  # its prior


def make_environments(seed: int, n_target: int = 10, n_source: int = 20) -> dict[str, list[Task]]:
    """The four environments of one draw; the target is among them."""
    rng = np.random.default_rng(seed)
    target, shifted = Sinusoid(0.0), Sinusoid(0.75)
    tasks = target.target_tasks(n_target, 5, rng)
    readings = np.concatenate([task.y for task in tasks])
    noise = [
        Task(rng.uniform(-5.0, 5.0, (5, 1)), rng.normal(readings.mean(), readings.std(), 5)) for _ in range(n_source)
    ]
    return {
        "copy": target.target_tasks(n_source, 5, rng),
        "shifted": shifted.target_tasks(n_source, 5, rng),
        "noise": noise,
        "target": tasks,
    }


def main(out: Annotated[Path, typer.Option()], draws: int = 20, first_seed: int = 0):
    """Fit each draw with alpha="auto", target-only, pooled, and the copy and the target alone, pooled."""
    rows: list[dict[str, Any]] = []
    for seed in range(first_seed, first_seed + draws):
        environments = make_environments(seed)
        counts = {name: len(tasks) for name, tasks in environments.items()}
        known = counts["copy"] + counts["target"]
        tests = Sinusoid(0.0).test_tasks(100, 5, 50, np.random.default_rng([seed, 1]))
        schemes = {
            "auto": "auto",
            "target-only": 0.0,
            "pooled": "pooled",
            "copy and target": {"copy": counts["copy"] / known, "target": counts["target"] / known},
        }
        for scheme, alpha in schemes.items():
            meta = MetaGPRegressor(alpha, random_state=seed, progress=False, **PAPER).fit(environments, target="target")
            weights = dict(zip(environments, meta.environment_weights_.round(4).tolist(), strict=True))
            report = meta.evaluate(tests)
            rows.append(
                {"draw": seed, "scheme": scheme, **weights, "rmse": round(report.rmse, 4), "nll": round(report.nll, 4)}
            )
        with out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        typer.echo(f"draw {seed}: {rows[-4]}", err=True)
    for scheme in schemes:
        mine = [row for row in rows if row["scheme"] == scheme]
        means = {
            name: np.mean([row[name] for row in mine]).round(3) for name in mine[0] if name not in ("draw", "scheme")
        }
        typer.echo(f"{scheme}: {means}")
    noise = np.array([row["noise"] for row in rows if row["scheme"] == "auto"])
    typer.echo(
        f"noise weighs less than 5% in {np.mean(noise < 0.05):.0%} of {len(noise)} draws; at most {noise.max():.1%}"
    )


if __name__ == "__main__":
    typer.run(main)
