"""Few-shot classification on raw pixels, mini-ImageNet to CUB, beyond figure 4: networks without SVGD, and Conv-4.

    METAPRIOR_DATA=... python studies/benchmarks/pixels.py --out studies/results/tables/pixels.csv

N=20 tasks of two classes and five images each, half of them from the source; 15 queries per class. The draws are those
of `metaprior reproduce fig4`, which measures the paper's networks by MAP and SVGD. Here its ten particles of SVGD are
trained with the same settings but without interacting, as ten MAP solutions: what is due to averaging, what to SVGD?
Pixels are scaled to (x - 1/2) * 4. Use an accelerator: on two cores a draw takes minutes.
"""

import platform
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any

import jax
import numpy as np
import typer
from draw_loop import Draws, Only, Out, ResultTable, Resume, draws_file, summarize, write_csv

from metaprior.tasks.types import Task, TestTask
from metaprior.wfem import MAP, HyperPrior, Training, WFEMClassifier
from metaprior_studies.drawn_tasks import DrawnTasks
from metaprior_studies.environments.episodes import FewShot
from metaprior_studies.environments.images import cub, mini_imagenet
from metaprior_studies.estimator_schemes import EstimatorScheme
from metaprior_studies.open_settings import PIXELS_SVGD, reporting_seeds

METRICS = ("accuracy", "probability_accuracy", "log_loss", "brier", "calibration_error")
MEANS = ("first_loss", "last_loss", "seconds")
N_TASKS, FEW = 20, 10
TRAINING = Training(standardize=False, progress=False)
METHODS: dict[str, dict[str, Any]] = {
    "MAP, 10 networks": {
        "mean": "mlp",
        "kernel": "mlp",
        "hyperprior": HyperPrior(std=PIXELS_SVGD.prior_std),
        "temperature": "paper",
        "inference": MAP(10, start="hyperprior"),
        "training": replace(TRAINING, learning_rate=PIXELS_SVGD.learning_rate, n_steps=PIXELS_SVGD.n_steps),
    },
    "MAP, Conv-4": {
        "mean": "constant",
        "kernel": "linear+rbf",
        "encoder": "conv",
        "hyperprior": HyperPrior(std={"weights": 0.1, "biases": 0.1, "scales": 0.3}),
        "temperature": "bayes",
        "inference": MAP(),
        "training": replace(TRAINING, learning_rate=1e-3, n_steps=200, batch_size=10),
    },
}
GP = "GP, not meta-trained"
SCHEMES: dict[str, tuple[int, int, float | str]] = {  # source tasks, target tasks, alpha
    GP: (FEW, FEW, "pooled"),
    "PACOH, 10 target tasks": (0, FEW, 0.0),
    "PACOH, 10 source + 10": (FEW, FEW, "pooled"),
    "WFEM, alpha = 0.2": (FEW, FEW, 0.2),
    "PACOH, 20 target tasks": (0, N_TASKS, 0.0),
}


def main(
    out: Out,
    draws: Draws = 20,
    tests: Annotated[int, typer.Option(help="Test tasks per draw.")] = 50,
    only: Only = "",
    resume: Resume = False,
):
    """Measure every scheme by every method; write means over draws, and the draws beside them."""
    table, rows = ResultTable(draws_file(out), ("method", "scheme", "draw"), resume), []
    machine = {"jax": jax.__version__, "device": jax.devices()[0].device_kind, "python": platform.python_version()}
    for method in (name for name in METHODS if only in name):
        for seed in reporting_seeds(draws):
            for scheme in SCHEMES:
                measure(table, method, make_scheme(method, scheme), seed, tests)
        frame = table.frame()
        for row in summarize(frame[frame["method"] == method], "scheme", METRICS, "accuracy", "minus_gp", MEANS):
            labels = {"method": method, "scheme": row["scheme"], "draws": row["draws"], "tests": tests}
            scheme = make_scheme(method, row["scheme"])
            training: Training = scheme.arguments["training"]
            shown = {"learning_rate": training.learning_rate, "n_steps": training.n_steps}
            shown |= {"temperature": scheme.arguments["temperature"], "batch_size": training.batch_size}
            rows.append({**labels, **shown, **row, **machine})
        write_csv(rows, out)


def measure(table: ResultTable, method: str, scheme: EstimatorScheme, seed: int, n_tests: int) -> None:
    """Add the row of one scheme on one draw."""
    labels = {"method": method, "scheme": scheme.name, "draw": seed}
    tasks = scheme.tasks(make_draw(seed, n_tests))
    table.measure(labels, scheme.estimator(seed), tasks, (*METRICS, "seconds"), _losses)


def make_scheme(method: str, name: str) -> EstimatorScheme:
    """Return a scheme by a method; the GP is not trained."""
    n_source, n_target, alpha = SCHEMES[name]
    arguments = {**METHODS[method], "alpha": alpha}
    if name == GP:
        arguments["training"] = replace(arguments["training"], n_steps=0)
    return EstimatorScheme(name, n_source, n_target, WFEMClassifier, arguments)


@lru_cache(maxsize=1)
def make_draw(seed: int, n_tests: int) -> DrawnTasks:
    """Draw tasks, and test tasks from the test classes."""
    episodes, rng = FewShot(mini_imagenet(), cub()), np.random.default_rng(seed)
    source, target = episodes.source_tasks(FEW, rng), episodes.target_tasks(N_TASKS, rng)
    tests: Sequence[TestTask] = episodes.test_tasks(n_tests, rng)
    return DrawnTasks(
        [Task(_scaled(x), y) for x, y in source],
        [Task(_scaled(x), y) for x, y in target],
        [TestTask(_scaled(x), y, _scaled(x_query), y_query) for x, y, x_query, y_query in tests],
    )


def _scaled(pixels: np.ndarray) -> np.ndarray:
    return (pixels - 0.5) * 4.0


def _losses(meta: WFEMClassifier) -> dict[str, float]:
    trace = meta.loss_trace_
    return {"first_loss": float(trace[0]), "last_loss": float(trace[-1])} if len(trace) else {}


if __name__ == "__main__":
    typer.run(main)
