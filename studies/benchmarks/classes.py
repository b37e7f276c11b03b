"""Probabilities of two and of five classes, mini-ImageNet to CUB features, beside what users would take instead.

    python studies/benchmarks/classes.py --draws 32 --out studies/results/tables/classes.csv

fits MetaGPClassifier's default to 10 source and 10 target tasks with five samples of every class, and scores it on 200
tasks of CUB's test classes with 1, 5 or 10 samples of every class as context. `--split validation` has tasks of the
validation classes on other draws: what the default and the baselines are chosen on. With `--calibration none` or
`as-fitted` and `--resume` it adds rows of ours with that. Baselines are tuned on the same
training tasks, by the log loss of their samples given as many others as a context has: logistic regression by its
penalty, class means by a temperature, cosines with class means by a temperature, each with the inputs as they are,
standardized, or scaled within classes.
"""

import itertools
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import typer
from draw_loop import ResultTable, Resume, draws_file, print_compared, rounded, summarize, write_csv
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from metaprior import MetaGPClassifier
from metaprior.estimators.comparison import logistic_regression, nearest_class_mean, score_baseline
from metaprior.metrics import report
from metaprior.tasks.scaling import Scaling, fit_label_scaling, identity_scaling
from metaprior.tasks.types import Task
from metaprior_studies.drawn_tasks import DrawnTasks
from metaprior_studies.environments.episodes import FewShot
from metaprior_studies.environments.images import features
from metaprior_studies.open_settings import validation_seeds

METRICS = ("accuracy", "log_loss", "calibration_error", "brier")
N_TASKS, TRAINING_SHOTS, N_TESTS = 10, 5, 200
N_ROTATIONS = 2  # splits of a training task that baselines are tuned on
OURS = "metaprior"
SCHEMES = {"default": OURS, "as-fitted": f"{OURS}, scales expected as fitted", "none": f"{OURS}, not calibrated"}


class Problem(NamedTuple):
    """Numbers of classes and of context samples of each."""

    ways: int
    shots: int


PROBLEMS = [Problem(2, 5), Problem(5, 5), Problem(5, 1), Problem(2, 1), Problem(2, 10)]
Probabilities = Callable[[np.ndarray, np.ndarray, np.ndarray, int], np.ndarray]


def draw_tasks(problem: Problem, split: str, number: int) -> DrawnTasks:
    """Draw training tasks, and tasks of the test or validation classes."""
    sources = features("miniimagenet"), features("cub")
    rng = np.random.default_rng(number if split == "validation" else [20, number])
    training = FewShot(*sources, ways=problem.ways, shots=TRAINING_SHOTS)
    tests = FewShot(*sources, ways=problem.ways, shots=problem.shots)
    source, target = training.source_tasks(N_TASKS, rng), training.target_tasks(N_TASKS, rng)
    return DrawnTasks(source, target, getattr(tests, f"{split}_tasks")(N_TESTS, rng))


def penalized_regression(strength: float) -> Probabilities:
    """Return logistic regression with a penalty of 1 / strength."""

    def probabilities(x: np.ndarray, y: np.ndarray, x_query: np.ndarray, n_classes: int) -> np.ndarray:
        return LogisticRegression(C=strength, max_iter=2000).fit(x, y).predict_proba(x_query)

    return probabilities


def class_means(temperature: float, cosine: bool) -> Probabilities:
    """Return probabilities proportional to exp(temperature * similarity to the mean of the class)."""

    def probabilities(x: np.ndarray, y: np.ndarray, x_query: np.ndarray, n_classes: int) -> np.ndarray:
        if cosine:
            x, x_query = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (x, x_query))
        means = np.stack([x[y == c].mean(axis=0) for c in range(n_classes)])
        if cosine:
            means /= np.linalg.norm(means, axis=1, keepdims=True)
            logits = x_query @ means.T
        else:
            logits = x_query @ means.T - 0.5 * np.sum(means**2, axis=1)
        logits = temperature * logits
        relative = np.exp(logits - logits.max(axis=1, keepdims=True))
        return relative / relative.sum(axis=1, keepdims=True)

    return probabilities


FAMILIES: dict[str, list[Probabilities]] = {
    "logistic regression, tuned": [penalized_regression(10.0**power) for power in (-4, -3, -2, -1, 0, 1)],
    "class means, tuned": [class_means(2.0**power, cosine=False) for power in range(-8, 3)],
    "cosine, tuned": [class_means(2.0**power, cosine=True) for power in range(-1, 6)],
}


def scalings(tasks: DrawnTasks) -> list[Scaling]:
    """Return the scalings of inputs to choose from."""
    environments, weights = [tasks.source, tasks.target], [0.5, 0.5]
    identity = identity_scaling(tasks.target[0].x.shape[1])
    return [identity, *(fit_label_scaling(environments, weights, within) for within in (False, True))]


def tune(candidates: list[Probabilities], problem: Problem, tasks: DrawnTasks) -> Probabilities:
    """Return the candidate and scaling with the least log loss on the training tasks, source and target alike."""
    splits = list(training_splits(problem, [*tasks.source, *tasks.target]))
    best = (np.inf, candidates[0])
    for scaling in scalings(tasks):
        for candidate in candidates:
            scaled = scaled_inputs(candidate, scaling)
            losses = [
                -np.log(np.maximum(scaled(x, y, x_query, problem.ways)[np.arange(len(y_query)), y_query], 1e-12))
                for x, y, x_query, y_query in splits
            ]
            best = min(best, (float(np.mean(np.concatenate(losses))), scaled), key=lambda pair: pair[0])
    return best[1]


def scaled_inputs(baseline: Probabilities, scaling: Scaling) -> Probabilities:
    """Return a baseline that sees scaled inputs."""
    return lambda x, y, x_query, n: baseline(scaling.inputs(x), y, scaling.inputs(x_query), n)


def training_splits(problem: Problem, tasks: list[Task]) -> Iterator[tuple[np.ndarray, ...]]:
    """Split training tasks into contexts of the problem's size, as far as they have as many samples, and queries."""
    shots = min(problem.shots, TRAINING_SHOTS - 1)
    for task in tasks:
        x, y = (part.reshape(TRAINING_SHOTS, problem.ways, *part.shape[1:]) for part in (task.x, task.y.astype(int)))
        for first in range(N_ROTATIONS):
            order = np.roll(np.arange(TRAINING_SHOTS), -first)
            context, query = order[:shots], order[shots:]
            yield tuple(part[rows].reshape(-1, *part.shape[2:]) for rows in (context, query) for part in (x, y))


def score_draw(job: tuple[Problem, str, int, str]) -> list[dict[str, Any]]:
    """Score every contestant on one draw, or ours alone if it is calibrated in another way."""
    problem, split, number, calibration = job
    warnings.simplefilter("ignore")
    tasks = draw_tasks(problem, split, number)
    n_classes = np.full(N_TESTS, problem.ways)
    labels = {"ways": problem.ways, "shots": problem.shots, "draw": number}
    rows = []
    with threadpool_limits(1):
        if calibration == "as-fitted":
            labels.separability = lambda *_: 0.0  # in this process, which does nothing else
        meta = MetaGPClassifier(random_state=number % 1000, progress=False, calibrate=calibration != "none")
        meta.fit(tasks.source, tasks.target)
        rows.append({**labels, "scheme": SCHEMES[calibration], **rounded(meta.evaluate(tasks.test), METRICS)})
        if calibration != "default":
            return rows
        baselines = {"nearest class mean": nearest_class_mean, "logistic regression": logistic_regression}
        baselines |= {name: tune(candidates, problem, tasks) for name, candidates in FAMILIES.items()}
        for name, baseline in baselines.items():
            scores = report(score_baseline(baseline, tasks.test, n_classes))
            rows.append({**labels, "scheme": name, **rounded(scores, METRICS)})
    return rows


def _by_problem(frame: pd.DataFrame) -> Any:
    return frame.groupby(["ways", "shots"])


def print_summary(frame: pd.DataFrame) -> None:
    """Print means over draws, and paired differences from ours with 95% bootstrap intervals."""
    for (ways, shots), rows in _by_problem(frame):
        print(f"{ways}-way {shots}-shot, {rows['draw'].nunique()} draws")
        print_compared(rows, OURS, METRICS[:3], METRICS[:2])


def main(
    draws: Annotated[int, typer.Option(help="Draws per problem.")] = 32,
    split: Annotated[str, typer.Option(help="test or validation.")] = "test",
    only: Annotated[str, typer.Option(help="Only this problem, such as 5-1 for five classes and one sample.")] = "",
    calibration: Annotated[
        str, typer.Option(help="default; as-fitted, which expects nothing of separable contexts; or none.")
    ] = "default",
    processes: Annotated[int, typer.Option(help="Draws at a time.")] = 2,
    out: Annotated[Path | None, typer.Option(help="CSV file to write; single draws go beside it.")] = None,
    resume: Resume = False,
):
    """Score every contestant, print a line for each, and write means over draws."""
    table = ResultTable(draws_file(out), ("ways", "shots", "draw", "scheme"), resume)
    numbers = validation_seeds(draws) if split == "validation" else range(draws)
    problems = [problem for problem in PROBLEMS if only in ("", f"{problem.ways}-{problem.shots}")]
    jobs = [
        (problem, split, number, calibration)
        for problem, number in itertools.product(problems, numbers)
        if {"ways": problem.ways, "shots": problem.shots, "draw": number, "scheme": SCHEMES[calibration]} not in table
    ]
    with get_context("spawn").Pool(processes) as pool:
        for rows in pool.imap(score_draw, jobs):
            table.add(*rows)
    frame = table.frame()
    print_summary(frame)
    if out is not None:
        summaries: list[dict[str, Any]] = []
        for (ways, shots), rows in _by_problem(frame):
            compared = summarize(rows, "scheme", METRICS, "log_loss", "log_loss_minus_ours")
            summaries += [{"ways": ways, "shots": shots, **row} for row in compared]
        write_csv(summaries, out)


if __name__ == "__main__":
    typer.run(main)
