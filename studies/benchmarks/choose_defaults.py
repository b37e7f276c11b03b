"""Choose the defaults of the estimator on validation draws that no test, demo or figure uses.

    python studies/benchmarks/choose_defaults.py --out studies/results/tables/defaults.csv

and report what they reach on other draws, with ten particles too:

    python studies/benchmarks/choose_defaults.py --first-seed 0 --only particles --out studies/results/tables/reached.csv

Every candidate is trained as PACOH on N=30 target tasks of the sinusoid (deviation 0.75, M=5), all draws in one
program, and scored on 100 new tasks of 5 context and 50 query points each. One setting is varied at a time around
the base, which is the estimator's default.
"""

import csv
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer

from metaprior.datasets.sinusoid import Sinusoid
from metaprior.gp.kernels import LinearKernel, MLPKernel
from metaprior.meta.hyperprior import check_prior_mean, check_prior_std
from metaprior.meta.methods import MAP, SVGD
from metaprior.meta.objective import batch_plan
from metaprior.meta.runs import Settings, scaling_of, set_up, stack_runs
from metaprior.metrics.regression import mean_and_standard_error, summarize
from metaprior.prediction.batches import predict_tasks
from metaprior.prediction.ensemble import Ensemble, Model
from metaprior.training.loop import train
from metaprior.training.steps import TrainConfig

VALIDATION_SEED = 1_000_000  # the seeds of tests, demo and figures are below


@dataclass(frozen=True)
class Candidate:
    """Settings of the prior and of the training."""

    settings: Settings = Settings()
    learning_rate: float = 1e-2
    n_steps: int = 2000
    schedule: Any = "cosine"
    batch_size: int | None = None


def evaluate(
    candidate: Candidate, n_draws: int, first_seed: int = VALIDATION_SEED, deviation: float = 0.75
) -> dict[str, Any]:
    """Mean over draws of RMSE, NLL and calibration error, with standard errors."""
    environment = Sinusoid(deviation)
    runs, scalings, tests = [], [], []
    for seed in range(first_seed, first_seed + n_draws):
        rng = np.random.default_rng(seed)
        environments = [environment.target_tasks(30, 5, rng)]
        scalings.append(scaling_of(environments, [1.0], candidate.settings))
        runs.append(set_up(environments, [1.0], scalings[-1], candidate.settings, seed))
        tests.append(environment.test_tasks(100, 5, 50, rng))
    stacked = stack_runs(runs)
    size = candidate.batch_size
    plan = None if size is None else batch_plan(runs[0].problem.tasks, size)
    train_config = TrainConfig(candidate.settings.method, schedule=candidate.schedule, plan=plan)
    rates = jnp.full(n_draws, candidate.learning_rate)
    started = time.perf_counter()
    result = train(stacked.problem, stacked.particles, stacked.key, train_config, candidate.n_steps, rates)
    seconds = time.perf_counter() - started
    scores = {"rmse": [], "nll": [], "calibration_error": [], "coverage": []}
    for i, (run, scaling, tasks) in enumerate(zip(runs, scalings, tests, strict=True)):
        particles = jax.tree.map(lambda leaf, i=i: leaf[i], result.particles)
        model = Model(particles, run.problem.rest, scaling)
        summary = summarize(*predict_tasks(Ensemble((model,), np.ones(1)), tasks))
        for name, values in scores.items():
            values.append(np.mean(summary[name]))
    row: dict[str, Any] = {}
    for name, values in scores.items():
        row[name], row[f"{name}_se"] = mean_and_standard_error(np.array(values))
    train_loss = float(result.loss[:, -1].mean())
    return {**row, "train_loss": train_loss, "seconds": seconds, "rmse_draws": np.array(scores["rmse"])}


def candidates(base: Candidate) -> Iterator[tuple[str, Candidate]]:
    """The base, and one setting varied at a time."""
    settings = base.settings

    def with_settings(**changes: Any) -> Candidate:
        return replace(base, settings=replace(settings, **changes))

    yield "base", base
    for rate in (3e-3, 3e-2):
        yield f"learning_rate={rate:g}", replace(base, learning_rate=rate)
    for n_steps in (1000, 4000, 8000):
        yield f"n_steps={n_steps}", replace(base, n_steps=n_steps)
    yield "schedule=constant, learning_rate=1e-3", replace(base, schedule="constant", learning_rate=1e-3)
    for batch_size in (5, 15):
        yield f"batch_size={batch_size}", replace(base, batch_size=batch_size)
    for temperature in ("effective", 40.0, 600.0, 2400.0):
        yield f"temperature={temperature}", with_settings(temperature=temperature)
    for std in (0.3, 3.0, {"weights": 1.0, "biases": 3.0}, {"weights": 0.6, "biases": 1.0}):
        yield f"prior_std={std}", with_settings(prior_std=check_prior_std(std))
    yield "prior_mean=initial", with_settings(prior_mean=check_prior_mean("initial"))
    for n_features in (2, 4, 16, 32):
        yield f"n_features={n_features}", with_settings(kernel=MLPKernel(n_features=n_features))
    yield "output scale learned", with_settings(kernel=MLPKernel(learn_output_scale=True))
    yield "noise_std=learned", with_settings(noise_std=None)
    yield (
        "noise_std=learned, output scale learned",
        with_settings(noise_std=None, kernel=MLPKernel(learn_output_scale=True)),
    )
    yield "kernel=linear", with_settings(kernel=LinearKernel())
    yield "10 particles, map", with_settings(method=MAP(), n_particles=10)
    yield "10 particles, svgd", with_settings(method=SVGD(), n_particles=10)
    yield "10 particles, svgd, length_scale=1", with_settings(method=SVGD(length_scale=1.0), n_particles=10)
    yield (
        "10 particles, svgd, start=hyperprior",
        with_settings(method=SVGD(start="hyperprior"), n_particles=10),
    )


def main(
    draws: Annotated[int, typer.Option(help="Draws per candidate.")] = 128,
    first_seed: Annotated[int, typer.Option(help="Seed of the first draw.")] = VALIDATION_SEED,
    only: Annotated[str, typer.Option(help="Candidates whose name contains this, beside the base.")] = "",
    out: Annotated[Path | None, typer.Option(help="CSV file to write.")] = None,
):
    """Evaluate the candidates and print a line for each; differences to the base are paired by draw."""
    rows: list[dict[str, Any]] = []
    base_rmse = None
    for name, candidate in candidates(Candidate()):
        if name != "base" and only not in name:
            continue
        row = {"candidate": name, "draws": draws, **evaluate(candidate, draws, first_seed)}
        rmse = row.pop("rmse_draws")
        base_rmse = rmse if base_rmse is None else base_rmse
        row["rmse_minus_base"], row["rmse_minus_base_se"] = mean_and_standard_error(rmse - base_rmse)
        rows.append({key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in row.items()})
        print(
            "{candidate:42s} rmse {rmse:.4f} ± {rmse_se:.4f} ({rmse_minus_base:+.4f} ± {rmse_minus_base_se:.4f})  "
            "nll {nll:+.3f} ± {nll_se:.3f}  coverage {coverage:.3f}  {seconds:.1f} s".format(**row),
            flush=True,
        )
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            with out.open("w", newline="") as file:
                writer = csv.DictWriter(file, fieldnames=list(row))
                writer.writeheader()
                writer.writerows(rows)


if __name__ == "__main__":
    typer.run(main)
