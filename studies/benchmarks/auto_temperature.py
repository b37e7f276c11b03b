"""Is temperature="auto" worth its time? The default against it, both with alpha="auto", on the sinusoid.

    python studies/benchmarks/auto_temperature.py --out studies/results/tables/auto_temperature.csv

N=30 tasks of M=5 samples, 5, 15 and 25 of them from the target at deviations 0.25, 0.5 and 0.75; 100 test tasks.
"""

import csv
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from metaprior import MetaGPRegressor
from metaprior.datasets.sinusoid import Sinusoid
from metaprior.metrics.regression import mean_and_standard_error

CELLS = ((5, 0.25), (15, 0.5), (25, 0.75))
METRICS = ("rmse", "nll", "calibration_error", "coverage", "seconds")

PAPER: dict[str, Any] = {"mean": "mlp", "kernel": "mlp", "inference": "map", "noise_std": 0.1}  # its prior


def main(out: Annotated[Path, typer.Option()], draws: int = 8, first_seed: int = 0):
    """Fit both on the same draws, alternating, and print paired differences."""
    rows: list[dict[str, Any]] = []
    for seed in range(first_seed, first_seed + draws):
        for n_target, deviation in CELLS:
            problem, rng = Sinusoid(deviation), np.random.default_rng([seed, n_target])
            source, target = problem.source_tasks(30 - n_target, 5, rng), problem.target_tasks(n_target, 5, rng)
            tests = problem.test_tasks(100, 5, 50, rng)
            for temperature in ("bayes", "auto"):
                meta = MetaGPRegressor(temperature=temperature, random_state=seed, progress=False, **PAPER)
                started = time.perf_counter()
                report = meta.fit(source, target).evaluate(tests)
                report["seconds"] = time.perf_counter() - started
                values = {metric: round(float(report[metric]), 4) for metric in METRICS}
                rows.append(
                    {"n_target": n_target, "deviation": deviation, "draw": seed, "scheme": temperature, **values}
                )
        with out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        typer.echo(f"draw {seed}", err=True)
    for n_target, deviation in CELLS:
        for metric in METRICS:
            bayes, auto = (
                np.array([r[metric] for r in rows if (r["n_target"], r["scheme"]) == (n_target, scheme)])
                for scheme in ("bayes", "auto")
            )
            difference, error = mean_and_standard_error(auto - bayes)
            typer.echo(
                f"{n_target} target tasks, deviation {deviation}, {metric}: bayes {bayes.mean():.3f}, "
                f"auto {auto.mean():.3f}, difference {difference:+.3f} ± {error:.3f}"
            )


if __name__ == "__main__":
    typer.run(main)
