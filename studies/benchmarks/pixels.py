"""Few-shot classification on raw pixels, mini-ImageNet to CUB, with the paper's prior: figure 4's setting.

    METAPRIOR_DATA=... python studies/benchmarks/pixels.py --out studies/results/tables

N=20 tasks of two classes and five images each, half of them from the source; 15 queries per class. The paper's nets
(four tanh layers of 32 on the 21168 pixels, its kernel, its mean) leave the learning rate, the temperature and the
length of training open: they are chosen first, by the accuracy of PACOH on N target tasks (MAP) on CUB's validation
classes and on draws that nothing else uses, and kept for every scheme. All draws are one program. Pixels are scaled
to (x - 1/2) * 4 for every scheme alike, not learned. Conv-4 with a kernel on its features comes as a further row.
"""

import csv
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import typer

from metaprior.gp.encoders import ConvEncoder
from metaprior.gp.kernels import LinearRBFKernel, MLPKernel
from metaprior.gp.means import ConstantMean, MLPMean
from metaprior.meta.adaptation import Queries, label_log_probabilities, predict
from metaprior.meta.hyperprior import check_prior_std
from metaprior.meta.methods import MAP, SVGD
from metaprior.meta.objective import batch_plan
from metaprior.meta.runs import Settings, identity_scaling, set_up, stack_runs
from metaprior.metrics.classification import summarize_labels
from metaprior.metrics.regression import mean_and_standard_error
from metaprior.tasks.types import Task, TestTask
from metaprior.training.loop import train
from metaprior.training.steps import TrainConfig
from metaprior_studies.environments.episodes import FewShot
from metaprior_studies.environments.images import cub, mini_imagenet

VALIDATION_SEED = 1_000_000
N_TASKS, FEW = 20, 10
PAPER = Settings(mean=MLPMean(), kernel=MLPKernel(), likelihood="bernoulli", standardize=False)
CONV = replace(
    PAPER,
    mean=ConstantMean(),
    kernel=LinearRBFKernel(),
    encoder=ConvEncoder(),
    prior_std=check_prior_std({"weights": 0.1, "biases": 0.1, "scales": 0.3}),
)


@dataclass(frozen=True)
class Training:
    """What the paper leaves open."""

    learning_rate: float = 1e-4
    n_steps: int = 1000
    temperature: float | str = "bayes"
    batch_size: int | None = None


@dataclass(frozen=True)
class Draw:
    source: list[Task]
    target: list[Task]
    queries: Queries
    y_query: np.ndarray


def make_draws(episodes: FewShot, seeds: range, n_test: int, split: str) -> Iterator[Draw]:
    for seed in seeds:
        rng = np.random.default_rng(seed)
        source, target = episodes.source_tasks(FEW, rng), episodes.target_tasks(N_TASKS, rng)
        tests = (episodes.test_tasks if split == "test" else episodes.validation_tasks)(n_test, rng)
        stacked = TestTask(*(np.stack(parts) for parts in zip(*tests, strict=True)))
        mask = np.ones(stacked.y_context.shape, bool)
        y_context = stacked.y_context.astype(np.float32)
        queries = Queries(_scale(stacked.x_context), y_context, mask, _scale(stacked.x_query))
        yield Draw([_scaled(t) for t in source], [_scaled(t) for t in target], queries, stacked.y_query.astype(float))


def evaluate(
    draws: list[Draw], settings: Settings, training: Training, n_source: int, n_target: int, alpha: Any
) -> dict:
    """Train one scheme on all draws at once, and score it on each draw's test tasks."""
    settings = replace(settings, temperature=training.temperature)
    runs = []
    for seed, draw in enumerate(draws):
        environments = [draw.source[:n_source], draw.target[:n_target]]
        share = n_source / (n_source + n_target) if alpha == "pooled" else alpha
        scaling = identity_scaling(draw.source[0].x.shape[1])
        runs.append(set_up(environments, (share, 1.0 - share), scaling, settings, seed))
    stacked = stack_runs(runs)
    size = training.batch_size
    plan = None if size is None or size >= n_source + n_target else batch_plan(runs[0].problem.tasks, size)
    rates = jnp.full(len(draws), training.learning_rate)
    started = time.perf_counter()
    train_config = TrainConfig(settings.method, plan=plan)
    result = train(stacked.problem, stacked.particles, stacked.key, train_config, training.n_steps, rates)
    seconds = time.perf_counter() - started
    scores: dict[str, list[float]] = {}
    for i, (run, draw) in enumerate(zip(runs, draws, strict=True)):
        particles = jax.tree.map(lambda leaf, i=i: leaf[i], result.particles)
        first, second = np.asarray(_log_probabilities(particles, run.problem.rest, draw.queries), np.float64)
        summary = summarize_labels(draw.y_query, np.exp(second), np.where(draw.y_query > 0.5, second, first))
        for name, values in summary.items():
            scores.setdefault(name, []).append(float(np.mean(values)))
    row: dict[str, Any] = {}
    for name, values in scores.items():
        row[name], row[f"{name}_se"] = mean_and_standard_error(np.array(values))
    losses = (
        {"first_loss": float(result.loss[:, 0].mean()), "last_loss": float(result.loss[:, -1].mean())}
        if training.n_steps
        else {}
    )
    return {**row, **losses, "seconds": seconds, "accuracy_draws": np.array(scores["accuracy"])}


@eqx.filter_jit
def _log_probabilities(particles, rest, queries):
    """Task after task: the images of all would be encoded at once otherwise."""

    def one_task(task):
        return label_log_probabilities(predict(particles, rest, jax.tree.map(lambda leaf: leaf[None], task)))[:, 0]

    return jnp.moveaxis(jax.lax.map(one_task, jax.tree.map(jnp.asarray, queries)), 0, 1)


def _scale(pixels: np.ndarray) -> np.ndarray:
    return ((pixels - 0.5) * 4.0).astype(np.float32)


def _scaled(task: Task) -> Task:
    return Task(_scale(task.x), task.y.astype(float))


SCHEMES = (
    ("GP, not meta-trained", FEW, FEW, "pooled", 0),
    ("PACOH, 10 target tasks", 0, FEW, 0.0, None),
    ("PACOH, 10 source + 10", FEW, FEW, "pooled", None),
    ("WFEM, alpha = 0.2", FEW, FEW, 0.2, None),
    ("PACOH, 20 target tasks", 0, N_TASKS, 0.0, None),
)


def main(
    draws: Annotated[int, typer.Option(help="Draws per scheme.")] = 8,
    tests: Annotated[int, typer.Option(help="Test tasks per draw.")] = 100,
    particles: Annotated[int, typer.Option(help="Particles of SVGD.")] = 10,
    steps: Annotated[int, typer.Option(help="Steps of the longest training tried.")] = 1000,
    conv: Annotated[bool, typer.Option(help="The rows with Conv-4.")] = True,
    out: Annotated[Path | None, typer.Option(help="Folder for pixels.csv and pixels_search.csv.")] = None,
):
    """Choose what is open on validation draws, then measure every scheme under MAP and SVGD."""
    episodes = FewShot(mini_imagenet(), cub())
    validation = list(make_draws(episodes, range(VALIDATION_SEED, VALIDATION_SEED + 4), 50, "validation"))
    lengths, rates = (steps // 5, steps), (1e-3, 1e-4)
    candidates = [Training(rate, n, t) for t in ("bayes", "effective") for rate in rates for n in lengths]
    candidates.append(Training(1e-5, steps, "bayes"))
    searched = []
    for candidate in candidates:
        row = evaluate(validation, PAPER, candidate, 0, N_TASKS, 0.0)
        searched.append({**vars(candidate), **_rounded(row)})
        print(searched[-1], flush=True)
    _write(searched, out, "pixels_search.csv")
    chosen = candidates[int(np.argmax([row["accuracy"] for row in searched]))]
    print("chosen", chosen, flush=True)
    report = list(make_draws(episodes, range(draws), tests, "test"))
    rows = []
    methods: list[tuple[str, Settings, Training]] = [
        ("MAP", PAPER, chosen),
        ("SVGD", replace(PAPER, method=SVGD(), n_particles=particles), chosen),
    ]
    if conv:
        methods.append(("MAP, Conv-4", replace(CONV, method=MAP()), Training(1e-3, 200, "bayes", 10)))
    for method, settings, training in methods:
        baseline = None
        for name, n_source, n_target, alpha, n_steps in SCHEMES:
            own = training if n_steps is None else replace(training, n_steps=n_steps)
            row = evaluate(report, settings, own, n_source, n_target, alpha)
            accuracy = row.pop("accuracy_draws")
            baseline = accuracy if baseline is None else baseline
            row["minus_gp"], row["minus_gp_se"] = mean_and_standard_error(accuracy - baseline)
            rows.append(
                {"method": method, "scheme": name, "draws": draws, "tests": tests, **vars(own), **_rounded(row)}
            )
            rows[-1] |= {
                "jax": jax.__version__,
                "device": jax.devices()[0].device_kind,
                "python": platform.python_version(),
            }
            print(
                method,
                name,
                {key: rows[-1][key] for key in ("accuracy", "accuracy_se", "minus_gp", "log_loss", "seconds")},
                flush=True,
            )
            _write(rows, out, "pixels.csv")


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {key: float(f"{value:.4g}") for key, value in row.items() if isinstance(value, float)}


def _write(rows: list[dict[str, Any]], folder: Path | None, name: str) -> None:
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    typer.run(main)
