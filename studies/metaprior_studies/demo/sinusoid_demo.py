"""The paper's schemes with its prior, and the default estimator, on the sinusoid: a table and figure 2.

Compiling takes most of the time of one draw, so all schemes train programs of the same shape: each is given two lists
of tasks, as many as there are source and target tasks.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from metaprior import MetaGPRegressor
from metaprior.datasets import Functions, Sinusoid
from metaprior.plots import plot_posterior
from metaprior.tasks.columns import no_extrapolation_warnings
from metaprior.wfem import Gaussian, Training, WFEMRegressor
from metaprior_studies.demo.rows import DEFAULT, OnFit, Rows, Scorer, by_scheme, score_draws, with_error
from metaprior_studies.drawn_tasks import DrawnTasks
from metaprior_studies.environments.sinusoid_oracles import OraclePrediction, bayes_oracle, gp_oracle, score_oracle
from metaprior_studies.estimator_schemes import PAPER_PRIOR, EstimatorScheme, fit_and_score

METRICS = ("rmse", "nll", "calibration_error", "coverage", "width")
ORACLES = {"oracle: true GP prior": gp_oracle, "oracle: Bayes-optimal": bayes_oracle}


@dataclass(frozen=True)
class DemoConfig:
    """The setting of the paper's figure 2. Every draw has new tasks, test tasks and initial parameters."""

    seed: int = 0
    n_draws: int = 1
    deviation: float = 0.5  # mu'_c - mu_c
    beta: float = 0.2  # share of source tasks; alpha is set to the same value, as in the paper
    small_alpha: float = 0.05  # a second weight, to show that the weight matters
    n_tasks: int = 30  # N
    n_samples: int = 5  # M
    n_test_tasks: int = 50
    n_queries: int = 50
    n_steps: int = 2000


def schemes(config: DemoConfig) -> list[EstimatorScheme]:
    """Return the GP, PACOH on few, pooled and all target tasks, WFEM, and the default. The noise is known to all.

    With one draw the search for alpha with the paper's prior is left out: it takes as long as all the others.
    """
    few = round((1 - config.beta) * config.n_tasks)
    rest, noise_std = config.n_tasks - few, Sinusoid(config.deviation).noise_std

    def paper(
        name: str, alpha: float | str, n_source: int = rest, n_target: int = few, n_steps: int = config.n_steps
    ) -> EstimatorScheme:
        training = Training(n_steps=n_steps, progress=False)
        arguments = {**PAPER_PRIOR, "alpha": alpha, "likelihood": Gaussian(noise_std), "training": training}
        return EstimatorScheme(name, n_source, n_target, WFEMRegressor, arguments)

    return [
        paper("GP, not meta-trained", "pooled", n_steps=0),
        paper(f"PACOH, {few} target tasks", 0.0),
        paper(f"PACOH, {rest} source + {few}", "pooled"),
        paper(f"WFEM, alpha = {config.beta:g}", config.beta),
        paper(f"WFEM, alpha = {config.small_alpha:g}", config.small_alpha),
        *([paper("WFEM, alpha chosen", "auto")] if config.n_draws > 1 else []),
        paper(f"PACOH, {config.n_tasks} target tasks", "pooled", 0, config.n_tasks),
        EstimatorScheme(DEFAULT, rest, few, MetaGPRegressor, {"noise_std": noise_std, "progress": False}),
    ]


def shown(config: DemoConfig) -> list[EstimatorScheme]:
    """Return the schemes of the figure: the four of the paper's figure 2, and the default."""
    gp, few, _, weighted, *_, many, default = schemes(config)
    return [gp, few, weighted, many, default]


def run(config: DemoConfig, on_fit: OnFit = lambda name: None) -> Rows:
    """Fit and score every scheme, then the oracles, on every draw: one row each."""
    scorers: dict[str, Scorer] = {scheme.name: partial(_score_scheme, config, scheme) for scheme in schemes(config)}
    scorers |= {name: partial(_score_oracle, config, oracle) for name, oracle in ORACLES.items()}
    return score_draws(config.n_draws, partial(make_draw, config), scorers, METRICS, on_fit)


def make_draw(config: DemoConfig, number: int) -> DrawnTasks:
    """Draw beta N source tasks, N target tasks and the test tasks."""
    rng = np.random.default_rng([config.seed, number])
    environment = Sinusoid(config.deviation)
    return DrawnTasks(
        environment.source_tasks(config.n_tasks - round((1 - config.beta) * config.n_tasks), config.n_samples, rng),
        environment.target_tasks(config.n_tasks, config.n_samples, rng),
        environment.test_tasks(config.n_test_tasks, config.n_samples, config.n_queries, rng),
    )


def tasks_of(scheme: EstimatorScheme, draw: DrawnTasks) -> DrawnTasks:
    """Return the tasks of a scheme. Target tasks alone come in two lists, which it pools."""
    if scheme.n_source:
        return scheme.tasks(draw)
    n_rest = len(draw.source)
    return DrawnTasks(draw.target[-n_rest:], draw.target[:-n_rest], draw.test)


def estimator(config: DemoConfig, scheme: EstimatorScheme, number: int) -> Any:
    """Return the unfitted estimator of a scheme for one draw."""
    return scheme.estimator(int(np.random.SeedSequence([config.seed, number]).generate_state(1)[0]))


def summary(rows: Rows) -> list[tuple[str, ...]]:
    """Return the table: scheme, RMSE ± standard error over draws, NLL, calibration error, median seconds per fit."""
    return [
        (
            name,
            with_error(metrics["rmse"]),
            f"{metrics['nll'].mean():.2f}",
            f"{metrics['calibration_error'].mean():.3f}",
            f"{np.median(metrics['seconds']):.2f}",
        )
        for name, metrics in by_scheme(rows).items()
    ]


@no_extrapolation_warnings()
def draw_figure(config: DemoConfig, path: Path) -> None:
    """Plot the posterior of each scheme on one new target task, with the true function."""
    from matplotlib.figure import Figure

    environment = Sinusoid(config.deviation)
    draw = make_draw(config, 0)
    rng = np.random.default_rng([config.seed, config.n_draws])
    function: Functions = environment.target_functions(1, rng)
    observed_x, observed_y = environment.observe(function, config.n_samples, rng)
    x_context, y_context = observed_x[0], observed_y[0]
    x = np.linspace(-5.0, 5.0, 201)
    figure = Figure(figsize=(13, 6.2), layout="constrained")
    panels = figure.subplots(2, 3, sharex=True, sharey=True)
    for axes, scheme in zip(panels.flat, shown(config), strict=False):
        tasks = tasks_of(scheme, draw)
        meta = estimator(config, scheme, 0).fit(tasks.source, tasks.target)
        predictive = meta.adapt(x_context, y_context).predictive(x)
        plot_posterior(axes, x, predictive, x_context, y_context, function(x)[0])
        axes.set_title(scheme.name, fontsize=11)
        axes.set(xlabel="x", ylabel="y")
        axes.label_outer()
    panels[0, 2].tick_params(labelbottom=True)  # the panel below holds the legend
    panels[0, 2].set_xlabel("x")
    panels[1, 2].axis("off")
    panels[1, 2].legend(*panels[0, 0].get_legend_handles_labels(), loc="center", frameon=False)
    figure.suptitle(f"A new target task with {config.n_samples} readings (sinusoid, deviation {config.deviation:g})")
    figure.savefig(path, dpi=120)


def _score_scheme(
    config: DemoConfig, scheme: EstimatorScheme, number: int, draw: DrawnTasks
) -> tuple[Mapping[str, Any], float]:
    return fit_and_score(estimator(config, scheme, number), tasks_of(scheme, draw))


def _score_oracle(
    config: DemoConfig, oracle: Callable[..., OraclePrediction], number: int, draw: DrawnTasks
) -> tuple[Mapping[str, Any], float]:
    started = time.perf_counter()
    return score_oracle(oracle, Sinusoid(config.deviation), draw.test), time.perf_counter() - started
