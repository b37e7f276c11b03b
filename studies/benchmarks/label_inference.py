"""Is there anything better than Laplace's approximation, or than the softmax, at the same prior?

    python studies/benchmarks/label_inference.py inference --out studies/results/tables/label_inference.csv
    python studies/benchmarks/label_inference.py likelihoods --out studies/results/tables/multi_class.csv

Tasks are those of `classes.py --split validation`: 10 source and 10 target tasks to learn a prior from, and tasks of
CUB's validation classes to score. The prior is the default's smooth family, with source and target tasks counting
alike; all contestants have its covariances. `inference` compares posteriors of two classes with elliptical slice
sampling. `likelihoods` compares models of five classes. Each is scored as it is, calibrated as the package does by
held-out target tasks (`label_contestants.py`), and in hindsight: with the factor and shrinkage that are best for the
test tasks. What is expected of a calibration before labels are seen was chosen for Laplace, and hindsight does not
depend on it.
"""

import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from class_models import dirichlet_regression, one_vs_each
from classes import Problem, draw_tasks
from draw_loop import ResultTable, Resume, draws_file, summarize, write_csv
from gaussian_sites import (
    Given,
    Posterior,
    expectation_propagation,
    importance_sampling,
    laplace,
    log_probit,
    slice_sampling,
    variational,
)
from label_contestants import (
    METRICS,
    Contestant,
    Predicted,
    difference,
    fit_prior,
    given_classes,
    of_difference,
    scores_of,
    softmax_laplace,
)
from scipy import stats
from threadpoolctl import threadpool_limits

from metaprior.prior.label_prior import LabelPrior, Latent
from metaprior.search.labels import Calibration
from metaprior.tasks.types import TestTask
from metaprior_studies.open_settings import validation_seeds

LAPLACE, EXACT = "Laplace", "exact (sampled)"
SOFTMAX, DIRICHLET = "softmax, Laplace", "Dirichlet regression"
ADDED, SCALES = 10.0 ** np.arange(-4.0, 0.0), 4.0 ** np.arange(-4.0, 1.0)  # of Dirichlet regression
N_TESTS = 60
AS_IS = Calibration(1.0, 1.0, 1.0)

GAUSSIAN: dict[str, Callable[[Given], Posterior]] = {
    LAPLACE: laplace,
    "EP, probit": lambda given: expectation_propagation(given, log_probit),
    "EP, logistic": expectation_propagation,
    "variational": variational,
}


def gaussian(method: Callable[[Given], Posterior]) -> Contestant:
    """Return the contestant of a Gaussian posterior of two classes."""

    def predict(prior: LabelPrior, tasks: Sequence[TestTask]) -> Latent:
        given = difference(given_classes(prior, tasks))
        return of_difference(*method(given).predict(given))

    return predict


def sampled(rng: np.random.Generator) -> Contestant:
    """Return exact means and variances of two classes, by importance sampling."""

    def predict(prior: LabelPrior, tasks: Sequence[TestTask]) -> Latent:
        given = difference(given_classes(prior, tasks))
        found = importance_sampling(given, expectation_propagation(given), rng)
        return of_difference(found.mean, found.variance)

    return predict


def dirichlet(added: float, scale: float) -> Contestant:
    """Return Dirichlet regression with its two settings."""
    return lambda prior, tasks: dirichlet_regression(given_classes(prior, tasks), added, scale)


def compare_inference(problems: Sequence[Problem], number: int, n_steps: int) -> Iterator[dict[str, Any]]:
    """Yield rows of posteriors, as `score` does."""
    drawn = [draw_tasks(problem, "validation", number) for problem in problems]
    fitted, rng = fit_prior(drawn[0].source, drawn[0].target, number), np.random.default_rng(number)
    contestants = {name: gaussian(method) for name, method in GAUSSIAN.items()} | {EXACT: sampled(rng)}
    calibrations = {name: fitted.calibrate(contestant)[0] for name, contestant in contestants.items()}
    for problem, tasks in zip(problems, drawn, strict=True):
        tests = tasks.test[:N_TESTS]
        given = difference(given_classes(fitted.prior, tests))
        exact = slice_sampling(given, rng, n_steps)
        log_exact = np.log(np.stack([1.0 - exact.probability, exact.probability], axis=-1))
        evidence = importance_sampling(given, expectation_propagation(given), rng).log_evidence
        for name, contestant in contestants.items():
            predicted, (plain, *others) = score(name, contestant, fitted.prior, calibrations[name], tests)
            if name == EXACT:  # of which a normal distribution would be an approximation
                plain |= {**scores_of(log_exact, tests), "distance": exact.error.mean(), "log_evidence": 0.0}
            else:
                error = np.abs(np.exp(predicted.log_probabilities(AS_IS)[..., 1]) - exact.probability).mean()
                gap = (GAUSSIAN[name](given).log_evidence - evidence).mean()
                plain |= {"distance": error, "log_evidence": gap}
            yield from ({**problem._asdict(), **row} for row in (plain, *others))


def compare_likelihoods(problems: Sequence[Problem], number: int, n_steps: int) -> Iterator[dict[str, Any]]:
    """Yield rows of likelihoods of several classes, as `score` does."""
    drawn = [draw_tasks(problem, "validation", number) for problem in problems]
    fitted = fit_prior(drawn[0].source, drawn[0].target, number)
    settings = itertools.product(ADDED.tolist(), SCALES.tolist())
    added, scale = min(settings, key=lambda pair: fitted.calibrate(dirichlet(*pair))[1])
    contestants: dict[str, Contestant] = {
        SOFTMAX: softmax_laplace,
        "one-vs-each, Polya-Gamma": lambda prior, tasks: one_vs_each(given_classes(prior, tasks)),
        DIRICHLET: dirichlet(added, scale),
    }
    for name, contestant in contestants.items():
        calibration, _ = fitted.calibrate(contestant)
        chosen = {"added": added, "scale": scale} if name == DIRICHLET else {}
        for problem, tasks in zip(problems, drawn, strict=True):
            _, rows = score(name, contestant, fitted.prior, calibration, tasks.test[:N_TESTS])
            yield from ({**problem._asdict(), **row, **chosen} for row in rows)


def score(
    name: str, contestant: Contestant, prior: LabelPrior, calibration: Calibration, tests: Sequence[TestTask]
) -> tuple[Predicted, list[dict[str, Any]]]:
    """Return predictions of the tests, and a row for each: as they are, calibrated, and calibrated in hindsight."""
    started = time.perf_counter()
    predicted = Predicted.of(contestant, prior, tests)
    seconds = (time.perf_counter() - started) / len(predicted.latents)
    chosen = {"no": AS_IS, "held-out tasks": calibration, "in hindsight": predicted.in_hindsight()}
    rows = [
        {"scheme": name, "calibrated": by, **predicted.scores(each), **each._asdict(), "seconds": seconds}
        for by, each in chosen.items()
    ]
    return predicted, rows


def run_job(job: tuple[Any, Sequence[Problem], int, int]) -> list[dict[str, Any]]:
    """Run one comparison on one draw, whose training tasks are the same for all problems."""
    compare, problems, number, n_steps = job
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        rows = [{"draw": number, **row} for row in compare(problems, number, n_steps)]
    return [{name: round(float(v), 5) if isinstance(v, float) else v for name, v in row.items()} for row in rows]


def print_summary(frame: pd.DataFrame, first: str) -> None:
    """Print means over draws, and log loss less that of the first contestant with 95% bootstrap intervals."""
    for (ways, shots, by), rows in frame.groupby(["ways", "shots", "calibrated"], sort=False):
        print(f"{ways}-way {shots}-shot, calibrated: {by}, {rows['draw'].nunique()} draws")
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


EXTRAS = ("distance", "log_evidence", "factor", "ratio", "shrink", "seconds")
app = typer.Typer(add_completion=False)
Draws = Annotated[int, typer.Option(help="Draws per problem.")]
Processes = Annotated[int, typer.Option(help="Draws at a time.")]
Steps = Annotated[int, typer.Option(help="Steps of each of the eight chains of slice sampling.")]
Out = Annotated[Path | None, typer.Option(help="CSV file to write; single draws go beside it.")]


def run(
    compare: Any, problems: list[Problem], first: str, draws: int, steps: int, processes: int, out: Path | None, resume
) -> None:
    """Run all draws, print a summary, and write means over draws."""
    results = ResultTable(draws_file(out), ("draw",), resume)
    jobs = [(compare, problems, number, steps) for number in validation_seeds(draws) if {"draw": number} not in results]
    with get_context("spawn").Pool(processes) as pool:
        for rows in pool.imap(run_job, jobs):
            results.add(*rows)
    frame = results.frame()
    print_summary(frame, first)
    if out is not None:
        summaries: list[dict[str, Any]] = []
        keys = ["ways", "shots", "calibrated"]
        extras = [name for name in EXTRAS if name in frame]
        for values, rows in frame.groupby(keys, sort=False):
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
