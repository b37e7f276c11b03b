"""Covariates of tasks with counts: seizures of patients (epil, MASS), with and without treatment, base rate and age.

    python studies/benchmarks/response_covariates.py --out studies/results/tables/response_covariates.csv

Draws are those of `responses.py counts`: half of the patients are fitted to, the others are predicted from a random
half of their four periods, or from none of them. All models have the period. "with" gives them treatment and the
logarithms of base rate and age: metaprior as covariates, GPBoost as linear effects, as in `count_peers.py`. "inputs"
gives them to metaprior as inputs like the period; "useless" are covariates of other patients, drawn at random.
Validation draws start at 1000.
"""

import time
import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd
import typer
from count_peers import PEERS
from draw_loop import Draws, FirstSeed, Out, ResultTable, Resume, rounded, write_csv
from responses import by_task, epil, split_groups

from metaprior import ExtrapolationWarning, MetaGPRegressor
from metaprior.metrics import mean_and_standard_error
from metaprior.predict.batches import predict_tasks
from metaprior.tasks.types import Task, TestTask
from metaprior_studies.drawn_tasks import DrawnTasks

PERIOD, COVARIATES = [0], [1, 2, 3]  # treated, log base rate, log age
LIKELIHOODS = ("negative-binomial", "poisson")
SCHEMES = ("without", "with", "inputs", "useless")
CONTEXTS = ("half", "none")  # of the readings of a test patient
OURS, COMPARED = "metaprior, {}", "GPBoost, {}"

app = typer.Typer(help=__doc__, add_completion=False)


def without_contexts(tests: Sequence[TestTask]) -> list[TestTask]:
    """Return test tasks of which no reading is given."""
    return [TestTask(test.x_context[:0], test.y_context[:0], test.x_query, test.y_query) for test in tests]


def in_columns(tasks: DrawnTasks, columns: Sequence[int]) -> DrawnTasks:
    """Return tasks with some columns of X."""
    kept = list(columns)
    tests = [
        TestTask(test.x_context[:, kept], test.y_context, test.x_query[:, kept], test.y_query) for test in tasks.test
    ]
    return DrawnTasks([], [Task(x[:, kept], y) for x, y in tasks.target], tests)


def with_others(tasks: DrawnTasks, seed: int) -> DrawnTasks:
    """Return tasks with the covariates of other patients, of the fit and of the test among themselves."""
    rng = np.random.default_rng([seed, 1])

    def exchanged(x: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.column_stack([x[:, PERIOD], np.broadcast_to(other[0, COVARIATES], (len(x), len(COVARIATES)))])

    order, of_tests = rng.permutation(len(tasks.target)).tolist(), rng.permutation(len(tasks.test)).tolist()
    target = [Task(exchanged(x, tasks.target[i].x), y) for (x, y), i in zip(tasks.target, order, strict=True)]
    tests = []
    for test, i in zip(tasks.test, of_tests, strict=True):
        other = tasks.test[i].x_query
        x_context, x_query = exchanged(test.x_context, other), exchanged(test.x_query, other)
        tests.append(test._replace(x_context=x_context, x_query=x_query))
    return DrawnTasks([], target, tests)


def add_ours(table: ResultTable, likelihood: str, scheme: str, tasks: DrawnTasks, draw: int) -> None:
    """Fit a prior and add its scores with both contexts."""
    labels = {"model": OURS.format(likelihood), "columns": scheme, "draw": draw}
    if {**labels, "context": CONTEXTS[0]} in table:
        return
    used = in_columns(tasks, PERIOD) if scheme == "without" else tasks
    used = with_others(used, draw) if scheme == "useless" else used
    covariates = COVARIATES if scheme in ("with", "useless") else None
    meta = MetaGPRegressor(likelihood=likelihood, covariates=covariates, random_state=draw)
    started = time.process_time()
    meta.fit(target_tasks=used.target)
    seconds, weight = time.process_time() - started, 1.0 - meta.covariate_weights_.get("none", 1.0)
    for context, tests in zip(CONTEXTS, (used.test, without_contexts(used.test)), strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExtrapolationWarning)
            predictive, y, mask = predict_tasks(meta.model_, tests)
        scores = {"log_loss": -by_task(predictive.log_density(y), mask), "seconds": seconds, "weight": weight}
        table.add({**labels, "context": context, **rounded(scores, tuple(scores))})


def add_peer(table: ResultTable, name: str, scheme: str, tasks: DrawnTasks, draw: int) -> None:
    """Fit a model of GPBoost and add its scores with both contexts."""
    used = in_columns(tasks, PERIOD) if scheme == "without" else tasks
    for context, tests in zip(CONTEXTS, (used.test, without_contexts(used.test)), strict=True):
        labels = {"model": name, "columns": scheme, "draw": draw, "context": context}
        if labels not in table:
            started = time.process_time()
            log_p = PEERS[name](used._replace(test=tests))
            scores = {"log_loss": -float(np.mean([of.mean() for of in log_p]))}
            table.add(
                {**labels, **rounded({**scores, "seconds": time.process_time() - started}, ("log_loss", "seconds"))}
            )


def summary(frame: pd.DataFrame) -> list[dict]:
    """Return mean log losses, and paired differences from the model without covariates and from GPBoost with them."""
    rows, keys = [], ["context", "model", "columns"]
    by_draw = {key: rows.set_index("draw") for key, rows in frame.groupby(keys, sort=False)}
    for (context, model, columns), own in by_draw.items():
        row = {"context": context, "model": model, "columns": columns, "draws": len(own)}
        row["log_loss"], row["log_loss_se"] = mean_and_standard_error(own["log_loss"].to_numpy())
        peer = COMPARED.format(model.split(", ")[1])
        for name, other in (("from_without", (model, "without")), ("from_gpboost_with", (peer, "with"))):
            paired = (own["log_loss"] - by_draw[(context, *other)]["log_loss"]).to_numpy()
            row[name], row[f"{name}_se"] = mean_and_standard_error(paired)
        row |= {"seconds": float(own["seconds"].mean()), "weight": float(own["weight"].mean())}
        rows.append({key: float(f"{each:.4g}") if isinstance(each, float) else each for key, each in row.items()})
    return rows


@app.command()
def measure(out: Out, draws: Draws = 10, first_seed: FirstSeed = 0, resume: Resume = False) -> None:
    """Measure all models on every draw."""
    table = ResultTable(out.with_suffix(".draws.csv"), ("model", "columns", "context", "draw"), resume)
    for draw in range(first_seed, first_seed + draws):
        tasks = split_groups(epil(), draw)
        for likelihood in LIKELIHOODS:
            for scheme in SCHEMES:
                add_ours(table, likelihood, scheme, tasks, draw)
        for name in (name for name in PEERS if name.startswith("GPBoost")):
            for scheme in ("without", "with"):
                add_peer(table, name, scheme, tasks, draw)
        typer.echo(f"draw {draw}", err=True)
    rows = summary(table.frame())
    write_csv(rows, out)
    typer.echo(pd.DataFrame(rows).to_string())


if __name__ == "__main__":
    app()
