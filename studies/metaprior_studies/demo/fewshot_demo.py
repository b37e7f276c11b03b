"""Few-shot classification with source and target classes from two data sets: every scheme and the baselines."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from metaprior.estimators.classification_baselines import BASELINES, score
from metaprior.estimators.classifier import MetaGPClassifier
from metaprior.gp.kernels import RBFKernel
from metaprior.metrics.summary import report
from metaprior.plots.style import tidy
from metaprior_studies.demo.rows import Draw, Rows, by_scheme, make_row, with_error
from metaprior_studies.environments.episodes import FewShot
from metaprior_studies.environments.generated import generated_images
from metaprior_studies.environments.images import DataMissing, features

METRICS = ("accuracy", "probability_accuracy", "log_loss", "brier", "calibration_error")
PLAIN = "GP, RBF on the inputs"


@dataclass(frozen=True)
class FewShotConfig:
    """The setting of the paper's figure 4. Draws are independent: new tasks, new test tasks."""

    seed: int = 0
    n_draws: int = 8
    beta: float = 0.5  # share of source tasks
    small_alpha: float = 0.2  # a second weight, to see that the weight matters
    n_tasks: int = 20  # N
    shots: int = 5
    queries: int = 15
    n_test_tasks: int = 200
    n_steps: int = 1000


class Scheme(NamedTuple):
    """A row of the table: the classifier's arguments and the tasks it sees."""

    name: str
    n_source: int
    n_target: int
    arguments: dict[str, Any]


def find_data() -> tuple[FewShot, str]:
    """Features of mini-ImageNet and CUB, or generated images where they are absent; and what to call them."""
    try:
        source, target = features("miniimagenet"), features("cub")
    except DataMissing:
        return FewShot(*generated_images()), "generated images (the features of mini-ImageNet and CUB are not here)"
    return FewShot(source, target), "mini-ImageNet to CUB, frozen features of an encoder that has seen ImageNet"


def schemes(config: FewShotConfig, input_dim: int) -> list[Scheme]:
    """GPs, PACOH on few, pooled and all target tasks, and WFEM: the same estimator with other arguments."""
    few = round((1 - config.beta) * config.n_tasks)
    rest = config.n_tasks - few
    rbf = RBFKernel(length_scale=float(np.sqrt(input_dim)), output_scale=4.0)
    plain = {"mean": "zero", "kernel": rbf, "standardize": False, "n_steps": 0}
    return [
        Scheme(PLAIN, rest, few, {**plain, "alpha": "pooled"}),
        Scheme("GP, not meta-trained", rest, few, {"standardize": True, "n_steps": 0, "alpha": "pooled"}),
        Scheme(f"PACOH, {few} target tasks", 0, few, {"alpha": 0.0}),
        Scheme(f"PACOH, {rest} source + {few}", rest, few, {"alpha": "pooled"}),
        Scheme(f"WFEM, alpha = {config.small_alpha:g}", rest, few, {"alpha": config.small_alpha}),
        Scheme("WFEM, alpha chosen", rest, few, {}),
        Scheme(f"PACOH, {config.n_tasks} target tasks", 0, config.n_tasks, {"alpha": 0.0}),
    ]


def run(config: FewShotConfig, problem: FewShot, on_fit: Callable[[str], None] = lambda name: None) -> Rows:
    """Fit and score every scheme and baseline on every draw: one row each. `on_fit` is told what comes next."""
    rows = []
    for index in range(config.n_draws):
        draw = make_draw(config, problem, index)
        for name, baseline in BASELINES.items():
            on_fit(name)
            rows.append(make_row(name, index, report(score(baseline, draw.test)), METRICS, 0.0))
        for scheme in schemes(config, int(np.prod(problem.target.shape))):
            on_fit(scheme.name)
            started = time.perf_counter()
            meta = fit(config, scheme, draw)
            seconds = time.perf_counter() - started
            rows.append(make_row(scheme.name, index, meta.evaluate(draw.test), METRICS, seconds))
    return rows


def make_draw(config: FewShotConfig, problem: FewShot, index: int) -> Draw:
    """Draw tasks."""
    rng = np.random.default_rng([config.seed, index])
    few = round((1 - config.beta) * config.n_tasks)
    return Draw(
        index,
        problem.source_tasks(config.n_tasks - few, rng),
        problem.target_tasks(config.n_tasks, rng),
        problem.test_tasks(config.n_test_tasks, rng),
    )


def fit(config: FewShotConfig, scheme: Scheme, draw: Draw) -> MetaGPClassifier:
    """Meta-train one scheme on one draw."""
    arguments = {"n_steps": config.n_steps, "random_state": draw.number, "progress": False, **scheme.arguments}
    return MetaGPClassifier(**arguments).fit(draw.source[: scheme.n_source], draw.target[: scheme.n_target])


def summary(rows: Rows) -> list[tuple[str, ...]]:
    """The table: accuracy, its paired difference to the plain GP, log loss and calibration error."""
    schemes = by_scheme(rows)
    plain = schemes[PLAIN]["accuracy"]
    return [
        (
            name,
            with_error(figures["accuracy"]),
            "" if name == PLAIN else with_error(figures["accuracy"] - plain, sign="+"),
            f"{figures['log_loss'].mean():.3f}",
            f"{figures['calibration_error'].mean():.3f}",
        )
        for name, figures in schemes.items()
    ]


def draw_figure(rows: Rows, title: str, path: Path) -> None:
    """Accuracy, log loss and calibration error: every draw a dot, the mean a bar with its 95% interval."""
    from matplotlib.figure import Figure

    schemes = by_scheme(rows)
    figure = Figure(figsize=(12, 4.4), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    metrics = {"accuracy": "accuracy", "log_loss": "log loss", "calibration_error": "expected calibration error"}
    for axes, (metric, label) in zip(panels, metrics.items(), strict=True):
        for row, figures in enumerate(schemes.values()):
            values = figures[metric]
            half = 1.96 * np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
            axes.plot(values, np.full(len(values), row), "o", color="#9ecae1", markersize=5)
            axes.errorbar(values.mean(), row, xerr=half, fmt="|", color="#08519c", markersize=16, capsize=4)
        axes.set_xlabel(label)
        if metric == "log_loss":
            axes.set_xscale("log")  # one overconfident baseline would squeeze the others
        tidy(axes, "x")
    panels[0].set_yticks(range(len(schemes)), list(schemes))
    panels[0].invert_yaxis()
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=120)
