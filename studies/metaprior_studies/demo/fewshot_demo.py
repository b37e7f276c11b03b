"""Few-shot classification with source and target classes from two data sets: every scheme, and baselines."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from metaprior import MetaGPClassifier
from metaprior.estimators.comparison import BASELINES, score_baseline
from metaprior.metrics import report
from metaprior.plots.style import as_bytes
from metaprior.wfem import RBFKernel, Training, WFEMClassifier
from metaprior_studies.demo.rows import DEFAULT, OnFit, Rows, Scorer, by_scheme, score_draws, with_error
from metaprior_studies.drawn_tasks import DrawnTasks
from metaprior_studies.environments.episodes import FewShot
from metaprior_studies.environments.generated import generated_images
from metaprior_studies.environments.images import DataMissing, features
from metaprior_studies.estimator_schemes import EstimatorScheme, fit_and_score
from metaprior_studies.paired_rows import color_of, describe, draw_rows, explain_colors, find_limits, interval_of
from metaprior_studies.reproduction.comparisons import above, below, difference

METRICS = ("accuracy", "probability_accuracy", "log_loss", "brier", "calibration_error")
PLAIN, CLASS_MEANS = "GP, RBF on the inputs", "nearest class mean"
PRIOR: dict[str, Any] = {"kernel": "linear+rbf", "mean": "constant", "temperature": "bayes"}  # of PACOH and WFEM
DRAWN = {  # metrics in the figure: their labels, and when the default is better
    "accuracy": ("accuracy (share of labels)", above(0.0)),
    "log_loss": ("log loss (nats per label)", below(0.0)),
    "calibration_error": ("expected calibration error", below(0.0)),
}


@dataclass(frozen=True)
class FewShotConfig:
    """The setting of the paper's figure 4. Every draw has new tasks and test tasks."""

    seed: int = 0
    n_draws: int = 8
    beta: float = 0.5  # share of source tasks
    small_alpha: float = 0.2  # a second weight, to show that the weight matters
    n_tasks: int = 20  # N
    shots: int = 5
    queries: int = 15
    n_test_tasks: int = 200
    n_steps: int = 1000


def find_data() -> tuple[FewShot, str]:
    """Return features of mini-ImageNet and CUB, or generated images if those are missing, and a title."""
    try:
        source, target = features("miniimagenet"), features("cub")
    except DataMissing:
        return FewShot(*generated_images()), "generated images (features of mini-ImageNet and CUB not found)"
    return FewShot(source, target), "mini-ImageNet to CUB, frozen features of an encoder trained on ImageNet"


def schemes(config: FewShotConfig, input_dim: int) -> list[EstimatorScheme]:
    """Return GPs, PACOH on few, pooled and all target tasks, WFEM, and the default."""
    few = round((1 - config.beta) * config.n_tasks)
    rest = config.n_tasks - few
    rbf = RBFKernel(length_scale=float(np.sqrt(input_dim)), output_scale=4.0)
    trained = Training(n_steps=config.n_steps, progress=False)

    def wfem(
        name: str, alpha: float | str, n_source: int, n_target: int, training: Training = trained, **prior: Any
    ) -> EstimatorScheme:
        arguments = {**PRIOR, **prior, "alpha": alpha, "training": training}
        return EstimatorScheme(name, n_source, n_target, WFEMClassifier, arguments)

    return [
        wfem(PLAIN, "pooled", rest, few, replace(trained, n_steps=0, standardize=False), kernel=rbf, mean="zero"),
        wfem("GP, not meta-trained", "pooled", rest, few, replace(trained, n_steps=0, standardize=True)),
        wfem(f"PACOH, {few} target tasks", 0.0, 0, few),
        wfem(f"PACOH, {rest} source + {few}", "pooled", rest, few),
        wfem(f"WFEM, alpha = {config.small_alpha:g}", config.small_alpha, rest, few),
        wfem("WFEM, alpha chosen", "auto", rest, few),
        wfem(f"PACOH, {config.n_tasks} target tasks", 0.0, 0, config.n_tasks),
        EstimatorScheme(DEFAULT, rest, few, MetaGPClassifier, {"progress": False}),
    ]


def run(config: FewShotConfig, problem: FewShot, on_fit: OnFit = lambda name: None) -> Rows:
    """Score the baselines and fit and score every scheme on every draw: one row each."""
    scorers: dict[str, Scorer] = {name: partial(_score_baseline, baseline) for name, baseline in BASELINES.items()}
    for scheme in schemes(config, int(np.prod(problem.target.shape))):
        scorers[scheme.name] = partial(_score_scheme, scheme)
    return score_draws(config.n_draws, partial(make_draw, config, problem), scorers, METRICS, on_fit)


def make_draw(config: FewShotConfig, problem: FewShot, number: int) -> DrawnTasks:
    """Draw beta N source tasks, N target tasks and the test tasks."""
    rng = np.random.default_rng([config.seed, number])
    few = round((1 - config.beta) * config.n_tasks)
    return DrawnTasks(
        problem.source_tasks(config.n_tasks - few, rng),
        problem.target_tasks(config.n_tasks, rng),
        problem.test_tasks(config.n_test_tasks, rng),
    )


def _score_scheme(scheme: EstimatorScheme, number: int, draw: DrawnTasks) -> tuple[Mapping[str, Any], float]:
    return fit_and_score(scheme.estimator(number), scheme.tasks(draw))


def _score_baseline(baseline: Any, number: int, draw: DrawnTasks) -> tuple[Mapping[str, Any], float]:
    started = time.perf_counter()
    return report(score_baseline(baseline, draw.test)), time.perf_counter() - started


def summary(rows: Rows) -> list[tuple[str, ...]]:
    """Return the table: accuracy, its paired difference from the plain GP, log loss and calibration error."""
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
    """Plot scores of the default minus those of every other scheme, paired by draw, with 95% intervals over draws.

    The axes fit all but nearest class means, which may be far outside: then they are arrows.
    """
    from matplotlib.figure import Figure

    schemes = by_scheme(rows)
    default = schemes.pop(DEFAULT)
    shown = np.array([name != CLASS_MEANS for name in schemes])
    places = np.arange(len(schemes), dtype=float)
    figure = Figure(figsize=(12, 4.4), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for axes, (metric, (label, rule)) in zip(panels, DRAWN.items(), strict=True):
        found = [
            difference(metric, name, rule, pd.Series(default[metric]), pd.Series(scores[metric]))
            for name, scores in schemes.items()
        ]
        values = np.array([interval_of(each) for each in found])
        draw_rows(axes, places, values, [color_of(each) for each in found], find_limits(values[shown]), form=".3f")
        axes.set_xlabel(label)
    panels[0].set_yticks(places, list(schemes))
    panels[0].invert_yaxis()
    panels[0].set_ylabel(f"{DEFAULT}, minus ...")
    figure.suptitle(f"{title}: {describe(len(default['accuracy']))}", fontsize=11)
    explain_colors(figure, "the default is better", "worse")
    path.write_bytes(as_bytes(figure))
