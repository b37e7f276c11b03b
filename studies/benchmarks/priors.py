"""Which prior learns most from how many tasks, and what averaging over its hyper-posterior is worth.

    python studies/benchmarks/priors.py measure --out studies/results/tables/priors.csv
    python studies/benchmarks/priors.py report studies/results/tables/priors.csv
    python studies/benchmarks/priors.py plot studies/results/tables/priors.csv --out docs/priors.png

The sinusoid at deviation 0.75, target tasks of 5 samples only, from 5 to 1000 of them. Each draw has new tasks, test
tasks (100, of 5 context and 50 query points) and initial parameters. All draws of a cell are trained in one program.
"""

import csv
import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import typer
from scipy.special import logsumexp
from scipy.stats import norm

from metaprior import InducingKernel, InducingMean, LinearKernel, LinearMean, LinearRBFKernel, MLPKernel, MLPMean
from metaprior.datasets.sinusoid import Sinusoid
from metaprior.meta.adaptation import Queries, predict
from metaprior.meta.methods import MAP, SVGD, Laplace
from metaprior.meta.runs import Settings, scaling_of, set_up, stack_runs
from metaprior.metrics.regression import CALIBRATION_LEVELS
from metaprior.tasks.types import Task
from metaprior.training.loop import train
from metaprior.training.steps import TrainConfig
from metaprior_studies.environments.sinusoid_oracles import gp_oracle

DEVIATION, N_SAMPLES, N_TEST, N_QUERIES, LEARNING_RATE = 0.75, 5, 100, 50, 1e-2
N_TASKS = (5, 10, 15, 30, 100, 300, 1000)
METRICS = ("rmse", "nll", "calibration_error", "coverage")
PRIORS = {
    "paper": (MLPMean(), MLPKernel()),
    "linear": (MLPMean(), LinearKernel()),
    "linear+rbf": (LinearMean(1.0), LinearRBFKernel()),
    "inducing": (InducingMean(), InducingKernel()),
}
METHODS = {
    "map": (MAP(), 1),
    "map x 10": (MAP(), 10),
    "svgd x 10": (SVGD(), 10),
    "svgd x 10, from hyper-prior": (SVGD(start="hyperprior"), 10),
    "laplace x 10": (Laplace(n_draws=10), 1),
    "laplace x 40": (Laplace(n_draws=40), 1),
}
CELLS = (
    *((prior, "map", n) for prior in PRIORS for n in N_TASKS),
    *(("paper", method, n) for method in ("map x 10", "svgd x 10") for n in (5, 15, 30)),
    *(("inducing", method, n) for method in list(METHODS)[1:] for n in (5, 15, 30)),
    *(("inducing", "laplace x 10", n) for n in (10, 100, 300, 1000)),
)

app = typer.Typer(add_completion=False)


class Drawn(NamedTuple):
    """One draw: a run, and test tasks in its units."""

    run: Any
    queries: Queries
    y: np.ndarray  # (tasks, queries)
    units: np.ndarray  # mean and standard deviation of y


def prepare(settings: Settings, n_tasks: int, seed: int) -> Drawn:
    """Tasks, run and test tasks of one draw."""
    environment, rng = Sinusoid(DEVIATION), np.random.default_rng([seed, n_tasks])
    tasks = environment.target_tasks(n_tasks, N_SAMPLES, rng)
    tests = environment.test_tasks(N_TEST, N_SAMPLES, N_QUERIES, rng)
    scaling = scaling_of([tasks], (1.0,), settings)
    contexts = [scaling.task(Task(t.x_context, t.y_context)) for t in tests]
    parts = [c.x for c in contexts], [c.y for c in contexts], [scaling.inputs(t.x_query) for t in tests]
    x, y, x_query = (np.stack(part).astype(np.float32) for part in parts)
    queries = Queries(x, y, np.ones(y.shape, bool), x_query)
    units = np.array([scaling.y_mean, scaling.y_std], float)
    return Drawn(set_up([tasks], (1.0,), scaling, settings, seed), queries, np.stack([t.y_query for t in tests]), units)


@eqx.filter_jit
def _moments(particles: Any, rest: Any, queries: Queries) -> Any:
    def one_run(run: Any) -> Any:
        mean, variance, likelihood = predict(*run)
        return mean, jnp.sqrt(variance + jnp.exp(2.0 * likelihood.log_noise_std)[:, None, None])

    return jax.lax.map(one_run, (particles, rest, queries))


def scores(mean: np.ndarray, std: np.ndarray, y: np.ndarray) -> np.ndarray:
    """METRICS of one draw, from moments (particles, tasks, queries)."""
    rmse = np.sqrt(((mean.mean(axis=0) - y) ** 2).mean(axis=1)).mean()
    nll = -(logsumexp(norm.logpdf(y, mean, std), axis=0) - np.log(len(mean))).mean()
    quantile = norm.cdf((y - mean) / std).mean(axis=0)
    levels = np.asarray(CALIBRATION_LEVELS)
    frequency = (quantile.ravel()[:, None] <= levels).mean(axis=0)
    return np.array([rmse, nll, np.abs(frequency - levels).mean(), ((quantile > 0.05) & (quantile < 0.95)).mean()])


def measure_cell(prior: str, method: str, n_tasks: int, seeds: range, n_steps: int, **changes: Any) -> np.ndarray:
    """METRICS of every draw of a cell, (draws, metrics)."""
    mean, kernel = PRIORS[prior]
    chosen, n_particles = METHODS[method]
    settings = Settings(**{"mean": mean, "kernel": kernel, "method": chosen, "n_particles": n_particles, **changes})
    draws = [prepare(settings, n_tasks, seed) for seed in seeds]
    runs = stack_runs([draw.run for draw in draws])
    rates = jnp.full(len(draws), LEARNING_RATE)
    result = train(runs.problem, runs.particles, runs.key, TrainConfig(chosen), n_steps, rates, check_divergence=False)
    queries = jax.tree.map(lambda *leaves: np.stack(leaves), *(draw.queries for draw in draws))
    means, stds = (np.asarray(m, float) for m in _moments(result.particles, runs.problem.rest, queries))
    values = [
        scores(m * draw.units[1] + draw.units[0], s * draw.units[1], draw.y)
        for m, s, draw in zip(means, stds, draws, strict=True)
    ]
    return np.stack(values)


@app.command()
def measure(
    out: Annotated[Path, typer.Option()], draws: int = 50, first_seed: int = 0, steps: int = 2000, only: str = ""
):
    """Measure every cell (those whose name has `only` in it) and write a row per draw."""
    rows: list[dict[str, Any]] = []
    for prior, method, n_tasks in CELLS:
        if only not in f"{prior} {method} {n_tasks}":
            continue
        started = time.perf_counter()
        values = measure_cell(prior, method, n_tasks, range(first_seed, first_seed + draws), steps)
        seconds = time.perf_counter() - started
        for seed, row in enumerate(values.tolist(), first_seed):
            metrics = {metric: round(value, 4) for metric, value in zip(METRICS, row, strict=True)}
            rows.append({"prior": prior, "inference": method, "n_tasks": n_tasks, "draw": seed, **metrics})
        with out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        typer.echo(f"{prior}, {method}, {n_tasks} tasks: {values.mean(axis=0).round(3)}, {seconds:.0f} s", err=True)


@app.command()
def report(path: Path):
    """Mean and standard error over draws of every cell."""
    typer.echo("| prior | inference | tasks | RMSE | NLL | calibration error | 90% coverage | draws |")
    typer.echo("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for (prior, method, n_tasks), values in _cells(path).items():
        means, errors = values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))
        cells = [f"{m:.3f} ± {e:.3f}" for m, e in zip(means, errors, strict=True)]
        typer.echo(f"| {prior} | {method} | {n_tasks} | {' | '.join(cells)} | {len(values)} |")


@app.command()
def plot(path: Path, out: Annotated[Path, typer.Option()]):
    """Learning curves of every prior, with the best GP there is as a line."""
    import matplotlib.pyplot as plt

    cells = _cells(path)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    curves = [(prior, "map") for prior in PRIORS] + [("inducing", "laplace x 10")]
    oracle = oracle_scores()
    for axis, metric, name in ((axes[0], 0, "RMSE"), (axes[1], 3, "coverage of 90% bands")):
        for prior, method in curves:
            points = [(n, cells[p, m, n][:, metric]) for p, m, n in sorted(cells) if (p, m) == (prior, method)]
            n, values = [n for n, _ in points], [v.mean() for _, v in points]
            error = [1.96 * v.std(ddof=1) / np.sqrt(len(v)) for _, v in points]
            axis.errorbar(n, values, error, marker="o", markersize=3, label=f"{prior}, {method}", capsize=2)
        axis.axhline(oracle[metric], color="black", linestyle=":", label="the true GP prior")
        axis.set(xscale="log", xlabel="target tasks of 5 samples", ylabel=name)
    axes[0].set(yscale="log", yticks=[0.15, 0.2, 0.3, 0.5, 1.0], yticklabels=["0.15", "0.2", "0.3", "0.5", "1"])
    axes[0].minorticks_off()
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(out, dpi=150)


def oracle_scores(n_tasks: int = 5000) -> np.ndarray:
    """METRICS of the GP with the target's own mean and covariance."""
    environment = Sinusoid(DEVIATION)
    tests = environment.test_tasks(n_tasks, N_SAMPLES, N_QUERIES, 0)
    x, y, x_query = (np.stack([getattr(t, part) for t in tests]) for part in ("x_context", "y_context", "x_query"))
    prediction = gp_oracle(environment, x[..., 0], y, x_query[..., 0])
    std = np.sqrt(prediction.variance + environment.noise_std**2)
    return scores(prediction.mean, std, np.stack([t.y_query for t in tests]))


def _cells(path: Path) -> dict[tuple[str, str, int], np.ndarray]:
    with path.open() as file:
        rows = list(csv.DictReader(file))
    cells: dict[tuple[str, str, int], list[list[float]]] = {}
    for row in rows:
        key = row["prior"], row["inference"], int(row["n_tasks"])
        cells.setdefault(key, []).append([float(row[metric]) for metric in METRICS])
    return {key: np.array(values) for key, values in cells.items()}


if __name__ == "__main__":
    app()
