"""Every scheme of the paper on the sinusoid with the paper's prior, then the default one: a table and figure 2."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from metaprior.datasets.sinusoid import Functions, Sinusoid
from metaprior.estimators.regressor import MetaGPRegressor
from metaprior.metrics.regression import summarize
from metaprior.metrics.summary import report
from metaprior.plots import plot_posterior
from metaprior.prediction.mixtures import GaussianMixture
from metaprior.tasks.types import TestTask
from metaprior_studies.demo.rows import Draw, Rows, by_scheme, make_row, with_error
from metaprior_studies.environments.sinusoid_oracles import OraclePrediction, bayes_oracle, gp_oracle

METRICS = ("rmse", "nll", "calibration_error", "coverage", "width")
PAPER: dict[str, Any] = {"mean": "mlp", "kernel": "mlp", "inference": "map"}
ORACLES = {"oracle: true GP prior": gp_oracle, "oracle: Bayes-optimal": bayes_oracle}


@dataclass(frozen=True)
class DemoConfig:
    """The setting of the paper's figure 2. Draws are independent: new tasks, new test tasks, new initialization."""

    seed: int = 0
    n_draws: int = 8
    deviation: float = 0.5  # mu'_c - mu_c
    beta: float = 0.2  # share of source tasks; alpha is set to the same value, as in the paper
    small_alpha: float = 0.05  # a second weight, to see that the weight matters
    n_tasks: int = 30  # N
    n_samples: int = 5  # M
    n_test_tasks: int = 50
    n_queries: int = 50
    n_steps: int = 2000


class Scheme(NamedTuple):
    """A row of the table: estimator and the tasks it sees."""

    name: str
    alpha: float | str
    n_source: int
    n_target: int
    trained: bool = True
    shown: bool = True  # in the figure, which has the four panels of the paper's
    prior: dict[str, Any] = PAPER


def schemes(config: DemoConfig) -> list[Scheme]:
    """GP, PACOH on few, pooled and all target tasks, and WFEM: the same estimator with other arguments."""
    few = round((1 - config.beta) * config.n_tasks)
    rest = config.n_tasks - few
    return [
        Scheme("GP, not meta-trained", "pooled", rest, few, trained=False),
        Scheme(f"PACOH, {few} target tasks", 0.0, 0, few),
        Scheme(f"PACOH, {rest} source + {few}", "pooled", rest, few, shown=False),
        Scheme(f"WFEM, alpha = {config.beta:g}", config.beta, rest, few),
        Scheme(f"WFEM, alpha = {config.small_alpha:g}", config.small_alpha, rest, few, shown=False),
        Scheme("WFEM, alpha chosen", "auto", rest, few, shown=False),
        Scheme(f"PACOH, {config.n_tasks} target tasks", 0.0, 0, config.n_tasks),
        Scheme("WFEM, default prior", "auto", rest, few, shown=False, prior={}),
    ]


def run(config: DemoConfig, on_fit: Callable[[str], None] = lambda name: None) -> Rows:
    """Fit and score every scheme on every draw: one row each. `on_fit` is told what comes next."""
    rows = []
    for index in range(config.n_draws):
        draw = make_draw(config, index)
        for scheme in schemes(config):
            on_fit(scheme.name)
            started = time.perf_counter()
            meta = fit(config, scheme, draw)
            seconds = time.perf_counter() - started
            rows.append(make_row(scheme.name, index, meta.evaluate(draw.test), METRICS, seconds))
        for name, oracle in ORACLES.items():
            on_fit(name)
            started = time.perf_counter()
            scores = _score_oracle(config, oracle, draw.test)
            rows.append(make_row(name, index, scores, METRICS, time.perf_counter() - started))
    return rows


def make_draw(config: DemoConfig, index: int) -> Draw:
    """Draw tasks."""
    rng = np.random.default_rng([config.seed, index])
    environment = Sinusoid(config.deviation)
    return Draw(
        index,
        environment.source_tasks(config.n_tasks - round((1 - config.beta) * config.n_tasks), config.n_samples, rng),
        environment.target_tasks(config.n_tasks, config.n_samples, rng),
        environment.test_tasks(config.n_test_tasks, config.n_samples, config.n_queries, rng),
    )


def fit(config: DemoConfig, scheme: Scheme, draw: Draw) -> MetaGPRegressor:
    """Meta-train one scheme on one draw."""
    n_steps = config.n_steps if scheme.trained else 0
    seed = int(np.random.SeedSequence([config.seed, draw.number]).generate_state(1)[0])
    noise_std = Sinusoid(config.deviation).noise_std  # known, as in the paper
    meta = MetaGPRegressor(
        scheme.alpha, **scheme.prior, noise_std=noise_std, n_steps=n_steps, random_state=seed, progress=False
    )
    return meta.fit(draw.source[: scheme.n_source], draw.target[: scheme.n_target])


def summary(rows: Rows) -> list[tuple[str, ...]]:
    """The table: scheme, RMSE ± standard error over draws, NLL, calibration error, seconds per fit (median)."""
    return [
        (
            name,
            with_error(figures["rmse"]),
            f"{figures['nll'].mean():.2f}",
            f"{figures['calibration_error'].mean():.3f}",
            f"{np.median(figures['seconds']):.2f}",
        )
        for name, figures in by_scheme(rows).items()
    ]


def draw_figure(config: DemoConfig, path: Path) -> None:
    """The posterior of each scheme on one new target task, against the truth."""
    from matplotlib.figure import Figure

    environment = Sinusoid(config.deviation)
    draw = make_draw(config, 0)
    rng = np.random.default_rng([config.seed, config.n_draws])
    function: Functions = environment.target_functions(1, rng)
    observed_x, observed_y = environment.observe(function, config.n_samples, rng)
    x_context, y_context = observed_x[0], observed_y[0]
    x = np.linspace(-5.0, 5.0, 201)
    shown = [scheme for scheme in schemes(config) if scheme.shown]
    figure = Figure(figsize=(10, 6.2), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for axes, scheme in zip(panels.flat, shown, strict=True):
        predictive = fit(config, scheme, draw).adapt(x_context, y_context).predictive(x)
        plot_posterior(axes, x, predictive, x_context, y_context, function(x)[0])
        axes.set_title(scheme.name, fontsize=11)
    for axes in panels[-1]:
        axes.set_xlabel("x")
    for axes in panels[:, 0]:
        axes.set_ylabel("y")
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(f"A new target task with {config.n_samples} readings (sinusoid, deviation {config.deviation:g})")
    figure.savefig(path, dpi=120)


def _score_oracle(config: DemoConfig, oracle: Callable[..., OraclePrediction], tasks: list[TestTask]) -> Any:
    x_context, y_context = np.stack([t.x_context[:, 0] for t in tasks]), np.stack([t.y_context for t in tasks])
    x_query, y_query = np.stack([t.x_query[:, 0] for t in tasks]), np.stack([t.y_query for t in tasks])
    environment = Sinusoid(config.deviation)
    log_weights, mean, variance = oracle(environment, x_context, y_context, x_query)
    return report(summarize(GaussianMixture(mean, variance + environment.noise_std**2, log_weights), y_query))
