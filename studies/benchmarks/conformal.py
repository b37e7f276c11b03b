"""Conformal intervals: their coverage and width in simulations and on real environments, and certificates.

    python studies/benchmarks/conformal.py simulate --out studies/results/tables/conformal.csv --jobs 16
    python studies/benchmarks/conformal.py certify --out studies/results/tables/certificates.csv --jobs 16
    METAPRIOR_DATA=... python studies/benchmarks/conformal.py real --out studies/results/tables/conformal-real.csv
    python studies/benchmarks/conformal.py report studies/results/tables/conformal.csv

`simulate` draws problems of 10, 20 and 50 target tasks of several kinds, fits a prior with `conformal=True`, and
predicts new tasks of the same kind from four readings. A row is a problem; `report` prints means over problems with
standard errors. `real` does the same on the environments of `peers.py`, with up to 20 target tasks. `certify` measures
how often the bound of the transfer report holds: the chance that a new task is predicted better with the source, found
on 200 new tasks, is at or above it. Problems from 1,000,000 on served to set this up; those from 0 are reported.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # many processes, small matrices

import itertools
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import typer
from draw_loop import Draws, FirstSeed, Only, Out, ResultTable, Resume

from metaprior import MetaGPRegressor
from metaprior.metrics import mean_and_standard_error
from metaprior.predict.conformal import highest_coverage

COVERAGE = 0.9
N_TASKS = (10, 20, 50)
CONTEXT, SIZES = 4, (6, 13)  # readings that are given of a task, and least and (less than) most that it has
N_NEW = 50  # tasks that a prior is tested on
WRITTEN = 64  # rows at once

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)
Jobs = Annotated[int, typer.Option(help="Number of processes.")]
Task = tuple[np.ndarray, np.ndarray]


def gaussian_task(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return readings of a random line with normal noise: a model of the family that is fitted."""
    level, slope = rng.normal(size=2) * (1.0, 0.5)
    return level + slope * x + 0.5 * rng.normal(size=x.shape)


def skewed_task(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return readings whose level, slope and noise are exponential."""
    level, slope = rng.exponential(size=2) * (1.0, 0.5)
    return level + slope * x + 0.5 * rng.exponential(size=x.shape)


def heavy_task(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return readings whose level, slope and noise have Student's t distribution with 2.5 degrees of freedom."""
    level, slope = rng.standard_t(2.5, size=2) * (1.0, 0.5)
    return level + slope * x + 0.5 * rng.standard_t(2.5, size=x.shape)


def clipped_task(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return integer scores from 3 to 15, half of which are at the top."""
    return np.clip(np.round(15.0 + 4.0 * gaussian_task(x, rng)), 3.0, 15.0)


def uneven_task(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return readings whose noise differs tenfold along x, and is three times as large in every fifth task."""
    factor = 3.0 if rng.random() < 0.2 else 1.0
    return rng.normal() + factor * 10.0 ** (0.5 * x - 0.5) * rng.normal(size=x.shape)


KINDS: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "gaussian": gaussian_task,
    "skewed": skewed_task,
    "heavy": heavy_task,
    "clipped": clipped_task,
    "uneven": uneven_task,
}


def draw_tasks(kind: str, n_tasks: int, rng: np.random.Generator) -> list[Task]:
    """Draw tasks of a kind, of different sizes, with inputs between -1 and 1."""
    tasks = []
    for size in rng.integers(*SIZES, n_tasks).tolist():
        x = rng.uniform(-1.0, 1.0, size)
        tasks.append((x[:, None], KINDS[kind](x, rng)))
    return tasks


class Measured(NamedTuple):
    """Coverage and mean width of two kinds of bands, averaged over tasks."""

    coverage: float
    width: float
    own_coverage: float
    own_width: float


def measure_bands(meta: Any, tests: Sequence[tuple[np.ndarray, ...]]) -> Measured:
    """Measure conformal intervals, and the model's own, on (X_context, y_context, X_query, y_query)."""
    adapted, queries = meta.adapt_many([test[:2] for test in tests]), [test[2] for test in tests]
    figures = []
    for method in ("conformal", "model"):
        ends = zip(*adapted.interval(queries, COVERAGE, method=method), strict=True)
        pairs = [(lower, upper, test[3]) for (lower, upper), test in zip(ends, tests, strict=True)]
        figures += [
            float(np.mean([np.mean((lower <= y) & (y <= upper)) for lower, upper, y in pairs])),
            float(np.mean([np.mean(upper - lower) for lower, upper, _ in pairs])),
        ]
    return Measured(*figures)


def simulated_row(labels: dict[str, Any]) -> dict[str, Any]:
    """Fit and test one problem."""
    rng, started = np.random.default_rng([labels["draw"], labels["n_tasks"], *labels["kind"].encode()]), time.time()
    tasks, new = (draw_tasks(labels["kind"], n, rng) for n in (labels["n_tasks"], N_NEW))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tails of heavy tasks are implausible, and new inputs are outside the range
        meta = MetaGPRegressor(
            alpha=0.0, context=CONTEXT, conformal=True, random_state=labels["draw"], progress=False
        ).fit(target_tasks=tasks)
        tests = [(x[:CONTEXT], y[:CONTEXT], x[CONTEXT:], y[CONTEXT:]) for x, y in new]
        return _row(labels, measure_bands(meta, tests), started)


def certified_row(labels: dict[str, Any]) -> dict[str, Any]:
    """Fit with and without a source that is off by `shift`, and compare the bound with what new tasks show."""
    rng, started = np.random.default_rng([labels["draw"], labels["n_tasks"], int(10 * labels["shift"])]), time.time()
    target, source, new = (draw_tasks("gaussian", n, rng) for n in (labels["n_tasks"], 20, 200))
    source = [(x, labels["shift"] + y) for x, y in source]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        meta = MetaGPRegressor(context=CONTEXT, random_state=0, progress=False).fit(source, target)
        alone = MetaGPRegressor(0.0, context=CONTEXT, random_state=0, progress=False).fit(target_tasks=target)
        contexts = [(x[:CONTEXT], y[:CONTEXT]) for x, y in new]
        queries, y = [x[CONTEXT:] for x, _ in new], [y[CONTEXT:] for _, y in new]
        densities = [each.adapt_many(contexts).log_density(queries, y) for each in (meta, alone)]
    gains = np.array([np.mean(a - b) for a, b in zip(*densities, strict=True)])
    found = meta.transfer_report().certificate
    assert found is not None, "the source was compared with target-only"
    row = {**labels, "helped": found.helped, "of": found.n_tasks, "bound": round(found.lower_bound, 4)}
    return {**row, "chance": round(float(np.mean(gains > 0)), 4), "seconds": round(time.time() - started, 2)}


def _row(labels: dict[str, Any], measured: Measured, started: float) -> dict[str, Any]:
    ratio = measured.width / measured.own_width
    figures = {**measured._asdict(), "width_ratio": ratio}
    figures = {name: float(f"{value:.6g}") for name, value in figures.items()}
    return {**labels, **figures, "seconds": round(time.time() - started, 2)}


def run_all(
    table: ResultTable,
    wanted: Iterable[dict[str, Any]],
    make: Callable[[dict[str, Any]], dict[str, Any]],
    jobs: int,
    written: int = WRITTEN,
) -> None:
    """Add the rows that the table lacks, some at a time, by several processes."""
    missing = [labels for labels in wanted if labels not in table]
    typer.echo(f"{len(missing)} rows to compute", err=True)
    started, done = time.time(), 0
    with ProcessPoolExecutor(jobs) as pool:
        rows: Iterator[dict[str, Any]] = (
            pool.map(make, missing, chunksize=min(written, 4)) if jobs > 1 else map(make, missing)
        )
        while batch := list(itertools.islice(rows, written)):
            table.add(*batch)
            done += len(batch)
            typer.echo(f"{done} of {len(missing)} rows after {time.time() - started:.0f} s", err=True)


@app.command()
def simulate(
    out: Out,
    problems: Annotated[int, typer.Option(help="Of every kind and number of tasks.")] = 500,
    only: Only = "",
    first_seed: FirstSeed = 0,
    jobs: Jobs = 1,
    resume: Resume = False,
) -> None:
    """Measure coverage and width over simulated problems."""
    # Problem by problem, so that an interrupted run has about as many of every kind.
    wanted = (
        {"kind": kind, "n_tasks": n_tasks, "draw": draw}
        for draw in range(first_seed, first_seed + problems)
        for kind in KINDS
        for n_tasks in N_TASKS
        if only in kind
    )
    run_all(ResultTable(out, ("kind", "n_tasks", "draw"), resume), wanted, simulated_row, jobs)
    report(out)


@app.command()
def certify(
    out: Out,
    problems: Annotated[int, typer.Option(help="Of every shift and number of tasks.")] = 200,
    first_seed: FirstSeed = 0,
    jobs: Jobs = 1,
    resume: Resume = False,
) -> None:
    """Measure how often the bound on the chance that transfer helps a new task is true."""
    wanted = (
        {"shift": shift, "n_tasks": n_tasks, "draw": draw}
        for draw in range(first_seed, first_seed + problems)
        for shift in (0.0, 1.0, 3.0)
        for n_tasks in (6, 20)
    )
    table = ResultTable(out, ("shift", "n_tasks", "draw"), resume)
    run_all(table, wanted, certified_row, jobs)
    frame: Any = table.frame()
    for (shift, n_tasks), rows in frame.groupby(["shift", "n_tasks"]):
        holds, error = mean_and_standard_error((rows["bound"] <= rows["chance"]).to_numpy(float))
        line = f"shift {shift:g}, {n_tasks} target tasks: bound {rows['bound'].mean():.3f}, chance "
        print(
            f"{line}{rows['chance'].mean():.3f}; the bound holds in {holds:.1%} ± {error:.1%} of {len(rows)} problems"
        )


@app.command()
def real(
    out: Out,
    only: Only = "",
    draws: Draws = 10,
    first_seed: FirstSeed = 0,
    n_target: Annotated[int, typer.Option(help="Target tasks of a draw, where there are as many.")] = 20,
    jobs: Jobs = 1,
    resume: Resume = False,
) -> None:
    """Measure coverage and width on draws of real environments."""
    from metaprior_studies.peers.tables import ENVIRONMENTS

    wanted = (
        {"kind": name, "n_tasks": n_target, "draw": draw}
        for draw in range(first_seed, first_seed + draws)
        for name in ENVIRONMENTS
        if only in name
    )
    run_all(ResultTable(out, ("kind", "n_tasks", "draw"), resume), wanted, real_row, jobs, written=1)
    report(out)


def real_tasks(name: str, n_wanted: int, draw: int) -> Any:
    """Return a draw of a real environment, whose first test tasks become target tasks where more are wanted."""
    from dataclasses import replace

    from metaprior_studies.peers.tables import ENVIRONMENTS

    environment = ENVIRONMENTS[name]
    # The groups of the target are divided among target tasks and test tasks: at least five are tested.
    n_groups = environment.n_target + environment.n_test
    n_target = min(n_wanted, n_groups - 5) if environment.n_drawn is None else n_wanted
    n_test = environment.n_test if environment.n_drawn is not None else n_groups - n_target
    more = max(environment.n_drawn or 0, n_target)
    return replace(environment, n_target=n_target, n_test=n_test, n_drawn=more).draw(draw)


def real_row(labels: dict[str, Any]) -> dict[str, Any]:
    """Fit and test one draw of a real environment."""
    return fitted_row(labels, real_tasks(labels["kind"], labels["n_tasks"], labels["draw"]))


def fitted_row(labels: dict[str, Any], tasks: Any, **given: Any) -> dict[str, Any]:
    """Fit and test the tasks of one draw, with the context that test tasks have."""
    started = time.time()
    if highest_coverage(len(tasks.target)) < COVERAGE:
        nothing = dict.fromkeys((*Measured._fields, "width_ratio"), float("nan"))
        return {**labels, **nothing, "seconds": 0.0, "target": len(tasks.target), "test": len(tasks.test)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        n_context = len(tasks.test[0].y_context)
        meta = MetaGPRegressor(context=n_context, conformal=True, random_state=labels["draw"], progress=False, **given)
        meta.fit(list(tasks.source), list(tasks.target))
        row = _row(labels, measure_bands(meta, tasks.test), started)
    return {**row, "target": len(tasks.target), "test": len(tasks.test)}


@app.command()
def report(results: Annotated[Path, typer.Argument(help="CSV file of `simulate` or `real`.", exists=True)]) -> None:
    """Print means over problems with standard errors: coverage and width beside the model's own."""
    frame: Any = pd.read_csv(results)
    print("kind, tasks, problems: coverage of conformal intervals, of the model's own bands, ratio of widths")
    for (kind, n_tasks), rows in frame.groupby(["kind", "n_tasks"], sort=False):
        rows = rows.dropna(subset=["coverage"])
        if not len(rows):
            print(f"{kind:14s} {n_tasks:3d}   0: too few target tasks for a band of {COVERAGE:.0%}")
            continue
        pairs = [mean_and_standard_error(rows[name].to_numpy(float)) for name in ("coverage", "own_coverage")]
        (coverage, error), (own, own_error) = pairs
        ratio = float(np.exp(np.mean(np.log(rows["width_ratio"]))))
        line = f"{kind:14s} {n_tasks:3d} {len(rows):3d}: {coverage:.4f} ± {error:.4f}  own {own:.4f} ± {own_error:.4f}"
        print(f"{line}  width x {ratio:.3f}")


if __name__ == "__main__":
    app()
