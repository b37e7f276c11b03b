"""Is there anything better than Laplace's approximation, or than the softmax, at the same prior?

    python studies/benchmarks/label_inference.py inference --out studies/results/tables/label_inference.csv
    python studies/benchmarks/label_inference.py likelihoods --out studies/results/tables/multi_class.csv

Tasks are those of `classes.py --split validation`: 10 source and 10 target tasks to learn a prior from, and tasks of
CUB's validation classes to score. The prior is the default's smooth family, with source and target tasks counting
alike; all contestants have its covariances. `inference` compares posteriors of two classes with elliptical slice
sampling. `likelihoods` compares models of five classes. Each is scored as it is, and calibrated in the same way: by a
factor on the latent scale and a ratio of variances, chosen on target tasks held out of the prior's fit.
"""

import itertools
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import typer
from class_models import GivenClasses, dirichlet_regression, one_vs_each
from classes import Problem, draw_tasks
from draw_loop import ResultTable, Resume, draws_file, summarize, write_csv
from gaussian_sites import (
    Given,
    expectation_propagation,
    laplace,
    log_probit,
    sampled_evidence,
    slice_sampling,
    variational,
)
from scipy import stats
from threadpoolctl import threadpool_limits

from metaprior.hierarchical.label_prior import LabelPrior, Latent, calibrated
from metaprior.hierarchical.modes import MAX_ITERATIONS
from metaprior.metrics import report, summarize_labels
from metaprior.search.family_search import FOLD_ITERATIONS, Option
from metaprior.search.held_out_labels import LabelQueries, peak
from metaprior.search.label_search import LabelSearch
from metaprior.tasks.types import Task, TestTask
from metaprior_studies.open_settings import validation_seeds

METRICS = ("log_loss", "accuracy", "calibration_error")
FAMILY, EQUALLY = "smooth", Option((0.5, 0.5))
LAPLACE, EXACT, SOFTMAX = "Laplace", "exact (sampled)", "softmax, Laplace"
ADDED, SCALES = 10.0 ** np.arange(-4.0, 0.0), 4.0 ** np.arange(-4.0, 1.0)  # of Dirichlet regression
N_TESTS = 60
LABELS_PER_TASK, FACTOR_STD = 10.0, 0.5  # of calibrations
LOG_FACTORS, RATIOS = 0.2 * np.arange(-5.0, 16.0), (1.0, 0.3, 0.1, 0.03, 0.0)

Contestant = Callable[[GivenClasses], Latent]


class Fitted(NamedTuple):
    """A prior of all training tasks, and what it takes to calibrate its predictions on held-out ones."""

    prior: LabelPrior
    without: list[tuple[np.ndarray, LabelPrior]]  # rows of the queries of every fold, and the prior without it
    queries: LabelQueries

    def held_out(self, latent: Callable[[GivenClasses], Latent]) -> Latent:
        """Return predictions of the held-out tasks."""
        parts = []
        for rows, prior in self.without:
            splits = [self.queries.splits[row] for row in rows.tolist()]
            parts.append((rows, latent(given_classes(prior, splits))))
        return gather(parts)

    def calibrate(self, latent: Latent) -> tuple[float, float, float]:
        """Return the best log posterior density of a calibration, its factor and its ratio.

        Every task counts as some independent labels, and a normal prior keeps the log factor near zero. Labels are
        scored by their log probabilities as they are: less for gross errors would favor factors that are too large.
        """
        rows, columns = np.nonzero(self.queries.asked)
        owner, y = self.queries.owner[rows], self.queries.y[rows, columns].astype(int)
        count = LABELS_PER_TASK / np.bincount(owner)[owner]
        some = Latent(*(part[rows, columns] for part in latent))
        found = []
        for ratio in RATIOS:
            values = -0.5 * (LOG_FACTORS / FACTOR_STD) ** 2
            for i, factor in enumerate(np.exp(LOG_FACTORS).tolist()):
                values[i] += count @ np.take_along_axis(calibrated(some, factor, ratio), y[:, None], -1)[:, 0]
            value, log_factor = peak(LOG_FACTORS, values)
            found.append((value, float(np.exp(log_factor)), ratio))
        return max(found)


def gather(parts: list[tuple[np.ndarray, Latent]]) -> Latent:
    """Put the predictions of folds together."""
    order = np.argsort(np.concatenate([rows for rows, _ in parts]))
    return Latent(*(np.concatenate(each)[order] for each in zip(*(latent for _, latent in parts), strict=True)))


def fit_prior(source: list[Task], target: list[Task], seed: int) -> Fitted:
    """Fit one family to all tasks, and without every fold of target tasks."""
    environments = [[Task(task.x, task.y.astype(float)) for task in tasks] for tasks in (source, target)]
    search = LabelSearch(environments, 1, None, seed)
    full = search.fit(environments, EQUALLY, None, None, MAX_ITERATIONS, None)
    without = []
    for members in search.folds.members:
        kept = [environments[0], [task for i, task in enumerate(environments[1]) if i not in members]]
        found = search.fit(kept, EQUALLY, [len(source), len(target)], full, FOLD_ITERATIONS, None)
        without.append((search.queries.rows_of(members), found.priors[FAMILY]))
    return Fitted(full.priors[FAMILY], without, search.queries)


def given_classes(prior: LabelPrior, tasks: list[TestTask]) -> GivenClasses:
    """Return a prior's covariances of contexts and queries; all tasks must have equal numbers of both."""
    x, x_query = (np.stack([prior.scaling.inputs(task[place]) for task in tasks]) for place in (0, 2))
    y = np.stack([task.y_context for task in tasks]).astype(int)
    context, queries = (prior.process.describe(part, np.ones(part.shape[:2])) for part in (x, x_query))
    process = prior.process
    cross, variance = sum(process.covariance(context, queries)), sum(process.variance(queries))
    return GivenClasses(sum(process.covariance(context, context)), cross, variance, y, int(y.max()) + 1)


def difference(given: GivenClasses) -> Given:
    """Return the prior of the difference of two classes, the second less the first."""
    return Given(2.0 * given.covariance, 2.0 * given.cross, 2.0 * given.variance, 2.0 * given.y - 1.0)


def of_difference(mean: np.ndarray, variance: np.ndarray) -> Latent:
    """Return the latent functions of two classes, the first of which is zero."""
    covariance = np.zeros((*mean.shape, 2, 2))
    covariance[..., 1, 1] = np.maximum(variance, 0.0)
    return Latent(np.stack([np.zeros_like(mean), mean], axis=-1), covariance)


def softmax_laplace(prior: LabelPrior, tasks: list[TestTask]) -> Latent:
    """Return the default's posterior."""
    x, x_query = (np.stack([prior.scaling.inputs(task[place]) for task in tasks]) for place in (0, 2))
    y = np.stack([task.y_context for task in tasks])
    n_classes = np.full(len(tasks), int(y.max()) + 1)
    posterior = prior.condition_labels(x, y, np.ones(y.shape, bool), n_classes, int(n_classes[0]))
    return prior.latent(posterior, x_query)


def scores_of(log_p: np.ndarray, tasks: list[TestTask]) -> dict[str, float]:
    """Return the scores of log probabilities (tasks, queries, classes)."""
    y = np.stack([task.y_query for task in tasks]).astype(float)
    found = report(summarize_labels(y, np.moveaxis(log_p, -1, 0), np.ones(y.shape, bool)))
    return {metric: round(float(found[metric]), 5) for metric in METRICS}


GAUSSIAN = {
    LAPLACE: laplace,
    "EP, probit": lambda given: expectation_propagation(given, log_probit),
    "EP, logistic": expectation_propagation,
    "variational": variational,
}


def compare_inference(problem: Problem, number: int, n_steps: int) -> Iterator[dict[str, Any]]:
    """Yield a row per posterior, as it is and calibrated."""
    drawn = draw_tasks(problem, "validation", number)
    tests = drawn.test[:N_TESTS]
    fitted, rng = fit_prior(drawn.source, drawn.target, number), np.random.default_rng(number)
    given = difference(given_classes(fitted.prior, tests))
    exact = slice_sampling(given, rng, n_steps)
    with np.errstate(divide="ignore"):
        log_exact = np.log(np.stack([1.0 - exact.probability, exact.probability], axis=-1))
    evidence = sampled_evidence(given, expectation_propagation(given), rng)
    for name in [*GAUSSIAN, EXACT]:
        started = time.perf_counter()
        found = GAUSSIAN[name](given) if name in GAUSSIAN else exact
        seconds = time.perf_counter() - started
        if name in GAUSSIAN:
            latent = of_difference(*found.predict(given))
            held_out = fitted.held_out(lambda g, name=name: predict_difference(name, g))
        else:
            latent = of_difference(exact.mean, exact.variance)
            held_out = fitted.held_out(lambda g: sample_difference(g, rng, n_steps // 2))
        _, *calibration = fitted.calibrate(held_out)
        plain = calibrated(latent, 1.0, 1.0) if name in GAUSSIAN else log_exact
        error = np.abs(np.exp(plain[..., 1]) - exact.probability)
        extra: dict[str, Any] = {"distance": error.mean() if name in GAUSSIAN else exact.error.mean()}
        extra["log_evidence"] = (found.log_evidence - evidence).mean() if name in GAUSSIAN else 0.0
        yield {"scheme": name, "calibrated": False, **scores_of(plain, tests), **rounded_numbers(extra)}
        extra = {"factor": calibration[0], "ratio": calibration[1], "seconds": seconds}
        scores = scores_of(calibrated(latent, *calibration), tests)
        yield {"scheme": name, "calibrated": True, **scores, **rounded_numbers(extra)}


def predict_difference(name: str, classes: GivenClasses) -> Latent:
    """Return the latent functions at queries by one of the Gaussian posteriors."""
    given = difference(classes)
    return of_difference(*GAUSSIAN[name](given).predict(given))


def sample_difference(classes: GivenClasses, rng: np.random.Generator, n_steps: int) -> Latent:
    """Return their exact means and variances."""
    found = slice_sampling(difference(classes), rng, n_steps)
    return of_difference(found.mean, found.variance)


def rounded_numbers(numbers: dict[str, Any]) -> dict[str, float]:
    """Return numbers with five decimals."""
    return {name: round(float(value), 5) for name, value in numbers.items()}


def compare_likelihoods(problem: Problem, number: int, n_steps: int) -> Iterator[dict[str, Any]]:
    """Yield a row per likelihood of several classes, as it is and calibrated."""
    drawn = draw_tasks(problem, "validation", number)
    tests = drawn.test[:N_TESTS]
    fitted = fit_prior(drawn.source, drawn.target, number)
    held_out = {
        SOFTMAX: gather(
            [(rows, softmax_laplace(prior, [fitted.queries.splits[i] for i in rows])) for rows, prior in fitted.without]
        ),
        "one-vs-each, Polya-Gamma": fitted.held_out(one_vs_each),
    }
    grid = [(a, s, fitted.held_out(lambda g, a=a, s=s: dirichlet_regression(g, a, s))) for a in ADDED for s in SCALES]
    added, scale, held_out["Dirichlet regression"] = max(grid, key=lambda each: fitted.calibrate(each[2])[0])
    predict: dict[str, Callable[[], Latent]] = {
        SOFTMAX: lambda: softmax_laplace(fitted.prior, tests),
        "one-vs-each, Polya-Gamma": lambda: one_vs_each(given_classes(fitted.prior, tests)),
        "Dirichlet regression": lambda: dirichlet_regression(given_classes(fitted.prior, tests), added, scale),
    }
    for name, latent_of in predict.items():
        _, *calibration = fitted.calibrate(held_out[name])
        started = time.perf_counter()
        latent = latent_of()
        seconds = time.perf_counter() - started
        yield {"scheme": name, "calibrated": False, **scores_of(calibrated(latent, 1.0, 1.0), tests)}
        extra = {"factor": calibration[0], "ratio": calibration[1], "seconds": seconds}
        if name == "Dirichlet regression":
            extra |= {"alpha": added, "scale": scale}
        scores = scores_of(calibrated(latent, *calibration), tests)
        yield {"scheme": name, "calibrated": True, **scores, **rounded_numbers(extra)}


def run_job(job: tuple[Any, Problem, int, int]) -> list[dict[str, Any]]:
    """Run one comparison on one draw."""
    compare, problem, number, n_steps = job
    warnings.simplefilter("ignore")
    labels = {"ways": problem.ways, "shots": problem.shots, "draw": number}
    with threadpool_limits(1):
        return [{**labels, **row} for row in compare(problem, number, n_steps)]


def print_summary(frame: pd.DataFrame, first: str) -> None:
    """Print means over draws, and log loss less that of the first contestant with 95% bootstrap intervals."""
    for (ways, shots, is_calibrated), rows in frame.groupby(["ways", "shots", "calibrated"]):
        print(f"{ways}-way {shots}-shot, calibrated: {is_calibrated}, {rows['draw'].nunique()} draws")
        reference = rows[rows["scheme"] == first].set_index("draw")["log_loss"]
        for scheme in rows["scheme"].unique():
            other = rows[rows["scheme"] == scheme].set_index("draw")
            numbers = other.drop(columns=["ways", "shots", "calibrated", "scheme"]).mean().dropna()
            line = f"  {scheme:26s}" + "".join(f" {name} {value:.4f}" for name, value in numbers.items())
            gain = (other["log_loss"] - reference).to_numpy()
            if scheme != first and len(gain) > 2:
                low, high = stats.bootstrap((gain,), np.mean, rng=0).confidence_interval
                line += f"  minus {first}: {gain.mean():+.4f} [{low:+.4f}, {high:+.4f}]"
            print(line)


EXTRAS = ("distance", "log_evidence", "factor", "ratio", "seconds")
app = typer.Typer(add_completion=False)
Draws = Annotated[int, typer.Option(help="Draws per problem.")]
Processes = Annotated[int, typer.Option(help="Draws at a time.")]
Steps = Annotated[int, typer.Option(help="Steps of each of the eight chains of slice sampling.")]
Out = Annotated[Path | None, typer.Option(help="CSV file to write; single draws go beside it.")]


def run(
    compare: Any, problems: list[Problem], first: str, draws: int, steps: int, processes: int, out: Path | None, resume
) -> None:
    """Run all draws, print a summary, and write means over draws."""
    results = ResultTable(draws_file(out), ("ways", "shots", "draw"), resume)
    jobs = [
        (compare, problem, number, steps)
        for problem, number in itertools.product(problems, validation_seeds(draws))
        if {"ways": problem.ways, "shots": problem.shots, "draw": number} not in results
    ]
    with get_context("spawn").Pool(processes) as pool:
        for rows in pool.imap(run_job, jobs):
            results.add(*rows)
    frame = results.frame()
    print_summary(frame, first)
    if out is not None:
        summaries: list[dict[str, Any]] = []
        keys = ["ways", "shots", "calibrated"]
        extras = [name for name in EXTRAS if name in frame]
        for values, rows in frame.groupby(keys):
            compared = summarize(rows, "scheme", METRICS, "log_loss", "log_loss_minus_first", extras)
            summaries += [{**dict(zip(keys, values, strict=True)), **row} for row in compared]
        write_csv(summaries, out)


@app.command()
def inference(draws: Draws = 8, steps: Steps = 2000, processes: Processes = 2, out: Out = None, resume: Resume = False):
    """Compare posteriors of two classes with slice sampling."""
    problems = [Problem(2, 1), Problem(2, 5), Problem(2, 10)]
    run(compare_inference, problems, LAPLACE, draws, steps, processes, out, resume)


@app.command()
def likelihoods(draws: Draws = 8, processes: Processes = 2, out: Out = None, resume: Resume = False):
    """Compare models of five classes."""
    problems = [Problem(5, 1), Problem(5, 5)]
    run(compare_likelihoods, problems, SOFTMAX, draws, 0, processes, out, resume)


if __name__ == "__main__":
    app()
