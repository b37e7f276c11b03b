"""Few-shot classification on raw pixels, mini-ImageNet to CUB: the paper's networks by MAP and SVGD, and Conv-4.

    METAPRIOR_DATA=... python studies/benchmarks/pixels.py --out studies/results/tables

N=20 tasks of two classes and five images each, half of them from the source; 15 queries per class. The learning rate,
the temperature and the number of steps, which the paper leaves open, are chosen first (pixels_search.csv), by the
accuracy of PACOH on N target tasks (MAP) on CUB's validation classes and on draws that nothing else uses. All schemes
with the paper's networks use them (pixels.csv). Pixels are scaled to (x - 1/2) * 4.

`metaprior reproduce fig4` measures the paper's networks at more alphas and on more draws, with the settings that
`metaprior reproduce settings` found. The committed tables were made by an earlier version of this script, which trained
all draws of a scheme in one program on an H200: measure on an accelerator.
"""

import platform
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from draw_loop import ResultTable, Resume, summarize, write_csv

from metaprior import MetaGPClassifier
from metaprior.tasks.types import Task, TestTask
from metaprior_studies.drawn_tasks import DrawnTasks
from metaprior_studies.environments.episodes import FewShot
from metaprior_studies.environments.images import cub, mini_imagenet
from metaprior_studies.estimator_schemes import EstimatorScheme
from metaprior_studies.open_settings import reporting_seeds, validation_seeds

METRICS = ("accuracy", "probability_accuracy", "log_loss", "brier", "calibration_error")
MEANS = ("first_loss", "last_loss", "seconds")
N_TASKS, FEW = 20, 10
PAPER: dict[str, Any] = {"mean": "mlp", "kernel": "mlp", "standardize": False}
CONV: dict[str, Any] = {
    "mean": "constant",
    "kernel": "linear+rbf",
    "encoder": "conv",
    "prior_std": {"weights": 0.1, "biases": 0.1, "scales": 0.3},
    "standardize": False,
    "inference": "map",
}
CONV_TRAINING = {"learning_rate": 1e-3, "n_steps": 200, "temperature": "bayes", "batch_size": 10}
SCHEMES = (
    EstimatorScheme("GP, not meta-trained", FEW, FEW, {"alpha": "pooled", "n_steps": 0}),
    EstimatorScheme("PACOH, 10 target tasks", 0, FEW, {"alpha": 0.0}),
    EstimatorScheme("PACOH, 10 source + 10", FEW, FEW, {"alpha": "pooled"}),
    EstimatorScheme("WFEM, alpha = 0.2", FEW, FEW, {"alpha": 0.2}),
    EstimatorScheme("PACOH, 20 target tasks", 0, N_TASKS, {"alpha": 0.0}),
)


def main(
    out: Annotated[Path, typer.Option(help="Folder for pixels.csv, pixels_search.csv and their single draws.")],
    draws: Annotated[int, typer.Option(help="Draws per scheme.")] = 8,
    tests: Annotated[int, typer.Option(help="Test tasks per draw.")] = 100,
    particles: Annotated[int, typer.Option(help="Particles of SVGD.")] = 10,
    steps: Annotated[int, typer.Option(help="Steps of the longest training tried.")] = 1000,
    conv: Annotated[bool, typer.Option(help="Measure Conv-4 too.")] = True,
    resume: Resume = False,
):
    """Choose what is open on validation draws, then measure every scheme by MAP and SVGD."""
    chosen = search(out, steps, resume)
    print("chosen", chosen, flush=True)
    methods: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "MAP": ({**PAPER, "inference": "map"}, chosen),
        "SVGD": ({**PAPER, "inference": "svgd", "n_particles": particles}, chosen),
    }
    if conv:
        methods["MAP, Conv-4"] = (CONV, CONV_TRAINING)
    table, rows = ResultTable(out / "pixels.draws.csv", ("method", "scheme", "draw"), resume), []
    machine = {"jax": jax.__version__, "device": jax.devices()[0].device_kind, "python": platform.python_version()}
    for method, (prior, training) in methods.items():
        for seed in reporting_seeds(draws):
            for scheme in SCHEMES:
                labels = {"method": method, "scheme": scheme.name, "draw": seed}
                measure(table, labels, scheme, {**prior, **training}, make_draw(seed, tests, "test"))
        frame = table.frame()
        for row in summarize(frame[frame["method"] == method], "scheme", METRICS, "accuracy", "minus_gp", MEANS):
            labels = {"method": method, "scheme": row["scheme"], "draws": row["draws"], "tests": tests}
            n_steps = 0 if row["scheme"] == SCHEMES[0].name else training["n_steps"]
            rows.append({**labels, **training, "n_steps": n_steps, **row, **machine})
        write_csv(rows, out / "pixels.csv")


def search(out: Path, steps: int, resume: bool) -> dict[str, Any]:
    """Return the settings of the best candidate on validation draws; write all to pixels_search.csv."""
    options = [(rate, n, rule) for rule in ("bayes", "effective") for rate in (1e-3, 1e-4) for n in (steps // 5, steps)]
    names = ("learning_rate", "n_steps", "temperature", "batch_size")
    candidates = [dict(zip(names, (*option, None), strict=True)) for option in [*options, (1e-5, steps, "bayes")]]
    table = ResultTable(out / "pixels_search.draws.csv", ("candidate", "draw"), resume)
    for number, training in enumerate(candidates):
        for seed in validation_seeds(4):
            arguments = {**PAPER, "inference": "map", **training}
            labels = {"candidate": number, "draw": seed}
            measure(table, labels, SCHEMES[-1], arguments, make_draw(seed, 50, "validation"))
    found = summarize(table.frame(), "candidate", METRICS, "accuracy", "minus_first", MEANS)
    columns = [name for metric in METRICS for name in (metric, f"{metric}_se")] + list(MEANS)
    rows = [training | {name: row[name] for name in columns} for training, row in zip(candidates, found, strict=True)]
    write_csv(rows, out / "pixels_search.csv")
    return candidates[int(np.argmax([row["accuracy"] for row in rows]))]


def measure(
    table: ResultTable, labels: dict[str, Any], scheme: EstimatorScheme, arguments: dict[str, Any], draw: DrawnTasks
) -> None:
    """Add the row of one scheme on one draw."""
    meta = EstimatorScheme(*scheme[:3], {**arguments, **scheme.arguments}).estimator(
        MetaGPClassifier, random_state=labels["draw"]
    )
    table.measure(labels, meta, scheme.tasks(draw), (*METRICS, "seconds"), _losses)


@lru_cache(maxsize=1)
def make_draw(seed: int, n_tests: int, split: str) -> DrawnTasks:
    """Draw tasks, and test tasks from the validation or the test classes."""
    episodes, rng = FewShot(mini_imagenet(), cub()), np.random.default_rng(seed)
    source, target = episodes.source_tasks(FEW, rng), episodes.target_tasks(N_TASKS, rng)
    tests: Sequence[TestTask] = (episodes.test_tasks if split == "test" else episodes.validation_tasks)(n_tests, rng)
    return DrawnTasks(
        [Task(_scaled(x), y) for x, y in source],
        [Task(_scaled(x), y) for x, y in target],
        [TestTask(_scaled(x), y, _scaled(x_query), y_query) for x, y, x_query, y_query in tests],
    )


def _scaled(pixels: np.ndarray) -> np.ndarray:
    return (pixels - 0.5) * 4.0


def _losses(meta: MetaGPClassifier) -> dict[str, float]:
    trace = meta.loss_trace_
    return {"first_loss": float(trace[0]), "last_loss": float(trace[-1])} if len(trace) else {}


if __name__ == "__main__":
    typer.run(main)
