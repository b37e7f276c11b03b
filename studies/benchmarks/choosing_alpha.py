"""What `alpha="auto"` is worth on the sinusoid: target-only, pooled, every alpha in hindsight, and chosen by itself.

    python studies/benchmarks/choosing_alpha.py measure --out studies/results/tables/choosing_alpha.csv
    python studies/benchmarks/choosing_alpha.py report studies/results/tables/choosing_alpha.csv

N=30 tasks of M=5 samples, 5, 15 or 25 of them from the target, deviations 0 to 1; each draw has new tasks, test tasks
and initial parameters, and 100 test tasks of 5 context and 50 query points. All draws of a column are trained in one
program, with the functions `fit` is made of: a test holds the two together.
"""

import csv
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import typer
from scipy.stats import bootstrap

from metaprior.datasets.sinusoid import Sinusoid
from metaprior.gp.inducing import InducingKernel, InducingMean
from metaprior.meta.adaptation import Queries, predict
from metaprior.meta.methods import SVGD, Laplace
from metaprior.meta.runs import Settings, scaling_of, set_up, stack_runs
from metaprior.metrics.regression import CALIBRATION_LEVELS
from metaprior.search.averaging import choose_weights, contaminated
from metaprior.search.held_out import (
    Candidate,
    by_task,
    held_out_runs,
    hold_out,
    reference_log_densities,
    search_method,
    train_and_score,
)
from metaprior.search.selection import STEPS_DIVISOR
from metaprior.search.weights import DISCOUNTS, discounted
from metaprior.tasks.types import Task
from metaprior.training.loop import train
from metaprior.training.steps import TrainConfig

DEVIATIONS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
N_TARGET = (5, 15, 25)
N_TASKS, N_SAMPLES, N_TEST, N_QUERIES = 30, 5, 100, 50
HINDSIGHT = (*DISCOUNTS, 0.05, 0.2, 0.7)  # the search's grid first, then what lies between
LEARNING_RATE = 1e-2
METRICS = ("rmse", "nll", "calibration_error", "coverage")
INFERENCE = {
    "map": Settings(),
    "svgd": Settings(method=SVGD(), n_particles=10),
    "inducing": Settings(mean=InducingMean(), kernel=InducingKernel(), method=Laplace()),
}  # the paper's prior, and the default one

app = typer.Typer(add_completion=False)


class Prepared(NamedTuple):
    """One draw, ready to train, as arrays of the host."""

    final: Any  # a run for every alpha of HINDSIGHT, stacked
    held_out: list[Any]  # HeldOutRun, for every alpha of DISCOUNTS and fold
    folds: Any
    reference: np.ndarray
    queries: tuple[np.ndarray, ...]  # (alphas, tasks, ...) in each alpha's units
    y: np.ndarray  # (tasks, queries)
    units: np.ndarray  # (alphas, 2): mean and standard deviation of y


def prepare(deviation: float, n_target: int, seed: int, settings: Settings) -> Prepared:
    """Tasks, runs, folds and test tasks of one draw."""
    environment, rng = Sinusoid(deviation), np.random.default_rng([seed, n_target, round(100 * deviation)])
    tasks = [
        environment.source_tasks(N_TASKS - n_target, N_SAMPLES, rng),
        environment.target_tasks(n_target, N_SAMPLES, rng),
    ]
    tests = environment.test_tasks(N_TEST, N_SAMPLES, N_QUERIES, rng)
    counts = [len(group) for group in tasks]
    folds = hold_out(tasks[1], seed, labels=False)
    final, held_out, queries, units = [], [], [], []
    for r in HINDSIGHT:
        weights = discounted(counts, 1, r)
        scaling = scaling_of(tasks, weights, settings)
        final.append(set_up(tasks, weights, scaling, settings, seed))
        contexts = [scaling.task(Task(t.x_context, t.y_context)) for t in tests]
        x_context, y_context = np.stack([c.x for c in contexts]), np.stack([c.y for c in contexts])
        x_query = np.stack([scaling.inputs(t.x_query) for t in tests])
        queries.append([x_context, y_context, np.ones((N_TEST, N_SAMPLES), bool), x_query])
        units.append((float(scaling.y_mean), float(scaling.y_std)))
    for r in DISCOUNTS:
        candidate = Candidate(discounted(counts, 1, r), settings)
        held_out += held_out_runs(tasks, 1, candidate, folds, seed)
    return Prepared(
        _to_host(stack_runs(final)),
        [_to_host(run) for run in held_out],
        folds,
        reference_log_densities(tasks[1], folds, labels=False),
        tuple(
            np.stack(part).astype(np.float32 if i != 2 else bool) for i, part in enumerate(zip(*queries, strict=True))
        ),
        np.stack([t.y_query for t in tests]),
        np.array(units),
    )


def choose(draws: Sequence[Prepared], settings: Settings, n_steps: int) -> np.ndarray:
    """The weights of `alpha="auto"` over DISCOUNTS, (draws, alphas)."""
    runs = [held_out._replace(run=_with_key(held_out.run)) for draw in draws for held_out in draw.held_out]
    scores, _ = train_and_score(runs, TrainConfig(search_method(settings.method)), n_steps, LEARNING_RATE)
    weights = []
    per_draw = len(draws[0].held_out)
    for i, draw in enumerate(draws):
        mine = slice(i * per_draw, (i + 1) * per_draw)
        plain = by_task(scores[mine], runs[mine], draw.folds)
        robust = np.where(np.isneginf(plain), -np.inf, contaminated(plain, draw.reference))
        of_task = np.nanmean(robust, axis=2)
        weights.append(choose_weights(of_task, 0))
    return np.stack(weights)


@eqx.filter_jit
def evaluate(particles: Any, rest: Any, queries: Queries, y: Any, units: Any, schemes: Any) -> Any:
    """METRICS of every scheme, (schemes, metrics); a scheme is weights over the alphas."""

    def one_alpha(particles: Any, rest: Any, queries: Queries, unit: Any) -> tuple[Any, Any]:
        mean, variance, likelihood = predict(particles, rest, queries)
        noise = jnp.exp(2.0 * likelihood.log_noise_std)[:, None, None]
        return mean * unit[1] + unit[0] - y[None], jnp.sqrt(variance + noise) * unit[1]

    error, scale = eqx.filter_vmap(one_alpha)(particles, rest, queries, units)  # (alphas, particles, tasks, queries)
    log_density = -0.5 * (error / scale) ** 2 - jnp.log(scale) - 0.5 * jnp.log(2.0 * jnp.pi).astype(y.dtype)
    log_density = jax.nn.logsumexp(log_density, axis=1) - jnp.log(jnp.asarray(error.shape[1], y.dtype))
    transform = jnp.mean(jax.scipy.special.ndtr(-error / scale), axis=1)
    levels = jnp.asarray(CALIBRATION_LEVELS, y.dtype)

    def one_scheme(weights: Any) -> Any:
        mean = jnp.tensordot(weights, jnp.mean(error, axis=1), axes=1)
        rmse = jnp.mean(jnp.sqrt(jnp.mean(mean**2, axis=1)))
        logs = jnp.log(jnp.maximum(weights, 1e-30))[:, None, None]
        nll = -jnp.mean(jax.nn.logsumexp(log_density + logs, axis=0))
        cdf = jnp.ravel(jnp.tensordot(weights, transform, axes=1))
        frequency = jnp.mean((cdf[:, None] <= levels[None]).astype(y.dtype), axis=0)
        inside = jnp.mean(((cdf > 0.05) & (cdf < 0.95)).astype(y.dtype))
        return jnp.stack([rmse, nll, jnp.mean(jnp.abs(frequency - levels)), inside])

    return jax.vmap(one_scheme)(schemes)


def _schemes(weights: np.ndarray) -> np.ndarray:
    """Every alpha alone, the average, and the heaviest alpha of the average alone."""
    chosen = np.zeros((2, len(HINDSIGHT)))
    chosen[0, : len(DISCOUNTS)] = weights
    chosen[1, weights.argmax()] = 1.0
    return np.concatenate([np.eye(len(HINDSIGHT)), chosen]).astype(np.float32)


def measure_column(
    inference: str, n_target: int, seeds: Sequence[int], pool: Any, n_steps: int, hindsight: bool
) -> list[dict[str, Any]]:
    """All deviations and draws with one number of target tasks."""
    started, settings, rows = time.perf_counter(), INFERENCE[inference], []
    cells = [(deviation, seed) for deviation in DEVIATIONS for seed in seeds]
    arguments = ([d for d, _ in cells], [n_target] * len(cells), [s for _, s in cells], [settings] * len(cells))
    draws = list(map(prepare, *arguments) if pool is None else pool.map(prepare, *arguments, chunksize=5))
    prepared = time.perf_counter()
    weights = choose(draws, settings, -(-n_steps // STEPS_DIVISOR))
    searched = time.perf_counter()
    kept = [np.arange(len(HINDSIGHT)) if hindsight else np.flatnonzero(of_draw) for of_draw in weights]
    trained = _train([_take(draw.final, alphas) for draw, alphas in zip(draws, kept, strict=True)], settings, n_steps)
    place = 0
    for draw, alphas, of_draw, cell in zip(draws, kept, weights, cells, strict=True):
        # Padded by repeats of no weight, so that one program evaluates any number of alphas.
        padded = np.resize(np.arange(len(alphas)), len(HINDSIGHT))
        particles, rest = _take(trained, place + padded)
        place += len(alphas)
        schemes = np.pad(_schemes(of_draw)[:, alphas], ((0, 0), (0, len(HINDSIGHT) - len(alphas))))
        queries = Queries(*(part[alphas[padded]] for part in draw.queries))
        units = draw.units[alphas[padded]].astype(np.float32)
        values = np.asarray(evaluate(particles, rest, queries, draw.y.astype(np.float32), units, schemes))
        rows += _rows(inference, n_target, *cell, of_draw, values)[0 if hindsight else len(HINDSIGHT) :]
    seconds = np.diff([started, prepared, searched, time.perf_counter()])
    typer.echo(f"{n_target} target tasks, {inference}: prepared, searched, trained in {seconds.round()} s", err=True)
    return rows


def _train(runs: Sequence[Any], settings: Settings, n_steps: int) -> tuple[Any, Any]:
    """Particles and the rest of the prior of all runs, trained in batches of one size."""
    stacked = jax.tree.map(lambda *leaves: np.concatenate(leaves) if hasattr(leaves[0], "dtype") else leaves[0], *runs)
    n_runs = len(stacked.problem.temperature)
    at_once = min(2700 // settings.n_particles, n_runs)
    trained = []
    for first in range(0, n_runs, at_once):
        batch = _with_key(jax.tree.map(_to_jax, _take(stacked, np.arange(first, first + at_once) % n_runs)))
        rates = jnp.full(at_once, LEARNING_RATE)
        train_config = TrainConfig(settings.method)
        result = train(batch.problem, batch.particles, batch.key, train_config, n_steps, rates, check_divergence=False)
        trained.append(jax.tree.map(np.asarray, result.particles))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *trained), stacked.problem.rest


def _rows(
    inference: str, n_target: int, deviation: float, seed: int, weights: np.ndarray, values: np.ndarray
) -> list[dict[str, Any]]:
    alphas = [1.0 - discounted((N_TASKS - n_target, n_target), 1, r)[1] for r in HINDSIGHT]
    names = ["fixed"] * len(HINDSIGHT) + ["auto", "heaviest"]
    chosen = [float(weights @ alphas[: len(DISCOUNTS)]), alphas[int(weights.argmax())]]
    return [
        {"inference": inference, "n_target": n_target, "deviation": deviation, "draw": seed, "scheme": name,
         "alpha": round(alpha, 4), **{metric: round(float(v), 4) for metric, v in zip(METRICS, row, strict=True)}}
        for name, alpha, row in zip(names, [*alphas, *chosen], values, strict=True)
    ]  # fmt: skip


@app.command()
def measure(
    out: Annotated[Path, typer.Option()],
    draws: int = 50,
    first_seed: int = 0,
    steps: int = 2000,
    inference: str = "map,svgd",
    hindsight: Annotated[bool, typer.Option(help="Train every alpha, not just those chosen.")] = True,
    workers: int = 0,
    target: str = "5,15,25",
):
    """Train everything and write a row per draw, setting and scheme."""
    jax.devices()  # before the workers are told that they have none
    os.environ["JAX_PLATFORMS"] = "cpu"
    pool = ProcessPoolExecutor(workers, get_context("spawn")) if workers else None
    rows: list[dict[str, Any]] = []
    for kind in inference.split(","):
        for n_target in map(int, target.split(",")):
            rows += measure_column(kind, n_target, range(first_seed, first_seed + draws), pool, steps, hindsight)
            with out.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
    if pool is not None:
        pool.shutdown()


@app.command()
def report(path: Path, metric: str = "rmse", best_by: str = "", scheme: str = "auto"):
    """A table of cells: target-only, pooled, best alpha in hindsight, auto, and how they compare (95% intervals).

    The best alpha of a cell is the one with the lowest mean of `best_by` (default: the metric itself) over draws. The
    scheme "heaviest" has, in place of the average, the alpha with the most weight in it.
    """
    with path.open() as file:
        rows = list(csv.DictReader(file))
    for inference in dict.fromkeys(row["inference"] for row in rows):
        of_inference = [row for row in rows if row["inference"] == inference]
        _report_one(of_inference, inference, metric, best_by or metric, scheme)
        averages = {
            name: np.mean([float(row[metric]) for row in of_inference if chosen(row)])
            for name, chosen in (
                (scheme, lambda r: r["scheme"] == scheme),
                ("target-only", lambda r: _is_fixed(r, "0.0")),
            )
        }
        typer.echo(", ".join(f"{name} {value:.3f}" for name, value in averages.items()) + " over all cells")


def _report_one(rows: list[dict[str, str]], inference: str, metric: str, best_by: str, scheme: str) -> None:
    relative = metric != "nll"  # of log densities the differences mean something, not the ratios
    typer.echo(f"\n{inference}, {metric}, {scheme}\n")
    typer.echo(
        "| target tasks | deviation | target-only | pooled | best alpha | auto | auto / best | auto / target-only |"
    )
    typer.echo("| --- | --- | --- | --- | --- | --- | --- | --- |")
    against_best, against_target, against_better = [], [], []
    for n_target in dict.fromkeys(row["n_target"] for row in rows):
        for deviation in dict.fromkeys(row["deviation"] for row in rows):
            cell = [r for r in rows if (r["n_target"], r["deviation"]) == (n_target, deviation)]
            fixed: dict[str, np.ndarray] = {}
            for alpha in dict.fromkeys(r["alpha"] for r in cell if r["scheme"] == "fixed"):
                fixed[alpha] = np.array([float(r[metric]) for r in cell if _is_fixed(r, alpha)])
            pooled = list(fixed)[DISCOUNTS.index(1.0)]
            auto = np.array([float(r[metric]) for r in cell if r["scheme"] == scheme])
            best = min(fixed, key=lambda alpha: np.mean([float(r[best_by]) for r in cell if _is_fixed(r, alpha)]))
            target_only = fixed[next(iter(fixed))]
            compared = [_compare(auto, other, relative) for other in (fixed[best], target_only)]
            against_best.append(compared[0][0])
            against_target.append(compared[1][0])
            better = min(target_only, fixed[pooled], key=np.mean)
            against_better.append(_compare(auto, better, relative)[0])
            means = " | ".join(f"{v.mean():.3f}" for v in (target_only, fixed[pooled]))
            best_text = f"{fixed[best].mean():.3f} ({float(best):.2f})"
            texts = " | ".join(_text(c, relative) for c in compared)
            typer.echo(f"| {n_target} | {deviation} | {means} | {best_text} | {auto.mean():.3f} | {texts} |")
    unit = "%" if relative else " nats"
    for name, values in (
        ("best alpha", against_best),
        ("target-only", against_target),
        ("better of two", against_better),
    ):
        scaled = np.array(values) * (100 if relative else 1)
        typer.echo(f"\nagainst {name}: mean {scaled.mean():+.2f}{unit}, worst cell {scaled.max():+.2f}{unit}", nl=False)
    typer.echo()


def _is_fixed(row: dict[str, str], alpha: str) -> bool:
    return row["scheme"] == "fixed" and row["alpha"] == alpha


def _compare(ours: np.ndarray, other: np.ndarray, relative: bool) -> tuple[float, float, float]:
    """Ratio of means less one (or difference), with a paired bootstrap interval over draws."""
    statistic = (
        (lambda a, b, axis: a.mean(axis) / b.mean(axis) - 1) if relative else (lambda a, b, axis: (a - b).mean(axis))
    )
    interval = bootstrap(
        (ours, other), statistic, paired=True, vectorized=True, method="percentile", n_resamples=2000, rng=0
    ).confidence_interval
    return float(statistic(ours, other, -1)), float(interval.low), float(interval.high)


def _text(compared: tuple[float, float, float], relative: bool) -> str:
    if relative:
        value, low, high = (100 * v for v in compared)
        return f"{value:+.1f}% [{low:+.1f}, {high:+.1f}]"
    value, low, high = compared
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"


def _to_host(tree: Any) -> Any:
    """Arrays as NumPy's, and random keys as their data: what processes can send each other."""
    return jax.tree.map(lambda leaf: np.asarray(jax.random.key_data(leaf)) if _is_key(leaf) else _host(leaf), tree)


def _host(leaf: Any) -> Any:
    return np.asarray(leaf) if hasattr(leaf, "dtype") else leaf


def _with_key(run: Any) -> Any:
    return run._replace(key=jax.random.wrap_key_data(jnp.asarray(run.key)))


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _take(tree: Any, rows: np.ndarray) -> Any:
    return jax.tree.map(lambda leaf: leaf[rows] if hasattr(leaf, "dtype") else leaf, tree)


def _to_jax(leaf: Any) -> Any:
    return jnp.asarray(leaf) if hasattr(leaf, "dtype") else leaf


if __name__ == "__main__":
    app()
