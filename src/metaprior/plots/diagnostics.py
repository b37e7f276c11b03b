"""Plots of a fit: its training, the choice of alpha, and the calibration of its predictions."""

import textwrap
from typing import Any

import numpy as np

from metaprior.metrics import CALIBRATION_LEVELS, mean_and_standard_error, shares_below, summarize
from metaprior.plots.classes import draw_reliability
from metaprior.plots.style import (
    BAND,
    DIAGONAL,
    LINE,
    POINTS,
    TRUTH,
    as_drawn,
    legend,
    marker_areas,
    note,
    resolve_axes,
    tidy,
)
from metaprior.predict.batches import predict_tasks
from metaprior.predict.ensemble import predicts_labels
from metaprior.tasks.types import as_test_tasks

N_BOOTSTRAP = 2000
VALIDATED_EVERY = 100  # steps of training


def plot_training(meta: Any, *, axes: Any = None) -> Any:
    """Plot the loss of every training step, the scores of validation tasks, and the step that was kept.

    If predictions are averaged over several priors, it shows the one with the largest weight. Hierarchical priors, the
    default, have no steps: of them it shows the weights of their families in predictions, from cross-validation.

    Parameters
    ----------
    meta : fitted MetaGPRegressor or MetaGPClassifier
    axes : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    labeled = predicts_labels(meta)
    axes = resolve_axes(axes)
    if not hasattr(meta, "loss_trace_"):
        return _draw_families(axes, meta)
    axes.set(xlabel="step", ylabel="loss")
    tidy(axes)
    steps = len(meta.loss_trace_)
    if steps == 0:
        note(axes, "Not trained (n_steps=0):\nthe prior has its initial parameters.")
        return axes
    axes.plot(np.arange(steps), meta.loss_trace_, color=LINE, linewidth=1.4, label="loss")  # before each step
    axes.axvline(meta.best_step_, color=TRUTH, linewidth=1.0, linestyle="--", label=f"kept: step {meta.best_step_}")
    if len(meta.model_.members) > 1:
        axes.set_title(f"The prior with the largest weight, of {len(meta.model_.members)}", fontsize=11)
    others = []
    if len(meta.validation_trace_):
        validated = np.minimum(VALIDATED_EVERY * np.arange(1, len(meta.validation_trace_) + 1), steps)
        other = axes.twinx()
        other.plot(validated, meta.validation_trace_, color=POINTS, linewidth=1.4, marker="o", ms=4, label="validation")
        other.set_ylabel("validation: " + ("log loss" if labeled else "negative log density"))
        other.yaxis.label.set_color(POINTS)
        other.tick_params(axis="y", colors=POINTS)
        other.spines[["top", "left"]].set_visible(False)
        others.append(other)
    legend(axes, *others, below=True, ncols=3)
    return axes


def plot_alpha_path(meta: Any, *, axes: Any = None) -> Any:
    """Plot the cross-validated score of every alpha, with its standard error.

    alpha is the weight of all sources together. Markers grow with the weight of an alpha in the averaged prediction.
    The errors are mostly those of the tasks, which all alphas share; `meta.transfer_report().plot()` shows paired
    differences.

    Parameters
    ----------
    meta : fitted MetaGPRegressor or MetaGPClassifier
    axes : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    labeled = predicts_labels(meta)
    report = meta.transfer_report()
    axes = resolve_axes(axes)
    axes.set_xlabel("alpha, the weight of the source" + "s together" * (len(report.names) > 2))
    axes.set_ylabel(f"robust score: log {'probability of a label' if labeled else 'density of an observation'}")
    tidy(axes)
    if report.score is None:
        note(axes, textwrap.fill(report.verdict, 44))
        return axes
    _draw_scores(axes, report)
    axes.set_xlim(-0.04, 1.04)
    axes.set_title(as_drawn(textwrap.fill(report.verdict, 80)), fontsize=9)
    legend(axes, below=True, ncols=2)
    return axes


def plot_calibration(meta: Any, test_tasks: Any, *, axes: Any = None) -> Any:
    """Plot predicted against observed frequencies on test tasks.

    For numbers: the share of queries below the predicted p-quantile against p, with a 90% bootstrap band over tasks;
    above the diagonal y is lower than predicted. For labels: how often the predicted class was right against its
    probability, in bins, with the number of queries in each bin. Error bars are 90% intervals of that share: Jeffreys'
    binomial intervals, wider if some tasks are predicted better than others. Tasks of the fit warn with a
    `SeenTasksWarning`.

    Parameters
    ----------
    meta : fitted MetaGPRegressor or MetaGPClassifier
    test_tasks : sequence of (X_context, y_context, X_query, y_query)
    axes : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    if predicts_labels(meta):
        scores = meta.evaluate(test_tasks)
        axes = resolve_axes(axes, (5.6, 4.8))
        draw_reliability(axes, scores)
        return axes
    tasks = as_test_tasks(test_tasks, "test_tasks", meta.features_)
    axes = resolve_axes(axes, (5.2, 4.8))
    _draw_quantiles(axes, *predict_tasks(meta.model_, tasks))
    tidy(axes)
    return axes


def _draw_families(axes: Any, meta: Any) -> Any:
    """Draw what the default chooses in place of training steps."""
    tested = meta.transfer_report().score is not None
    names = sorted(meta.family_weights_, key=lambda name: -meta.family_weights_[name])
    weights, rows = [meta.family_weights_[name] for name in names], np.arange(len(names))
    axes.barh(rows, weights, color=LINE, height=0.6)
    for row, weight in enumerate(weights):
        axes.text(weight + 0.01, row, f"{weight:.2f}", va="center", fontsize=9)
    axes.set_yticks(rows, names)
    axes.invert_yaxis()
    axes.set(xlim=(0.0, 1.1), xlabel="weight in the averaged prediction", ylabel="family of hierarchical priors")
    axes.set_xticks(np.linspace(0.0, 1.0, 6))
    found = "by scores on held-out tasks" if tested else "untested: no tasks could be held out"
    axes.set_title(f"Fitted without training steps, and averaged {found}", fontsize=10)
    tidy(axes, "x")
    return axes


def _draw_scores(axes: Any, report: Any) -> None:
    finite = np.isfinite(report.score)
    plain = (report.temperature == 1.0) & (report.prior_std == 1.0)
    alpha, score, areas = report.alpha, report.score, marker_areas(report.weight)
    axes.axvline(0.0, color=TRUTH, linewidth=1.0, linestyle="--", label="target-only", zorder=1.5)
    if report.pooled_alpha is not None and report.pooled_alpha > 0.0:
        axes.axvline(report.pooled_alpha, color=TRUTH, linewidth=1.0, linestyle=":", label="pooled", zorder=1.5)
    errors = report.standard_error[finite]
    axes.errorbar(alpha[finite], score[finite], errors, fmt="none", ecolor=BAND, elinewidth=1.8, zorder=2)
    groups = [(finite & plain, LINE, "held-out score (area: weight)")]
    groups.append((finite & ~plain, "white", "with another temperature or prior_std"))
    for kept, color, label in groups:
        if kept.any():
            axes.scatter(alpha[kept], score[kept], areas[kept], color=color, edgecolor=LINE, zorder=3, label=label)
    kept = np.flatnonzero(finite & plain)
    if len(report.names) == 2:  # several sources can share the same alpha in many ways
        kept = kept[np.argsort(alpha[kept])]
        axes.plot(alpha[kept], score[kept], color=LINE, linewidth=1.0, alpha=0.5, zorder=2)
    if not finite.all():
        axes.text(0.99, 0.02, f"{(~finite).sum()} diverged", transform=axes.transAxes, ha="right", fontsize=9)


def _draw_quantiles(axes: Any, predictive: Any, y: np.ndarray, mask: np.ndarray) -> None:
    summary, transform, n_tasks = summarize(predictive, y, mask), predictive.cdf(y), len(y)
    # As `calibration_error` counts: padding is NaN, which is below nothing.
    if getattr(predictive, "is_discrete", False):
        found = shares_below(predictive.below(y), transform)
        below = np.sum(np.where(mask[..., None], found, 0.0), axis=1)
    else:
        below = np.stack([np.sum(transform <= level, axis=1) for level in CALIBRATION_LEVELS], axis=1)
    counts = mask.sum(axis=1)
    axes.axline((0.5, 0.5), slope=1.0, label="perfect", **DIAGONAL)
    if n_tasks > 1:
        draws = np.random.default_rng(0).multinomial(n_tasks, np.full(n_tasks, 1 / n_tasks), N_BOOTSTRAP)
        lower, upper = np.quantile((draws @ below) / (draws @ counts)[:, None], [0.05, 0.95], axis=0)
        label = f"90% band over {n_tasks} tasks"
        axes.fill_between(CALIBRATION_LEVELS, lower, upper, color=BAND, alpha=0.6, linewidth=0, label=label)
    shares = below.sum(axis=0) / counts.sum()
    axes.plot(CALIBRATION_LEVELS, shares, color=LINE, linewidth=1.8, marker="o", markersize=4, label="observed")
    error, (coverage, _) = summary["calibration_error"], mean_and_standard_error(np.asarray(summary["coverage"]))
    axes.set_title(f"calibration error {error:.3f}, coverage of the 90% interval {coverage:.0%}", fontsize=10)
    axes.set(xlabel="predicted quantile p", ylabel="share of queries below it", xlim=(0, 1), ylim=(0, 1))
    legend(axes, loc="upper left")
