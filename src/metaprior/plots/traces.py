"""How a prior was trained, and how the weight of the sources was chosen."""

import textwrap
from typing import Any

import numpy as np

from metaprior.plots.style import BAND, LINE, POINTS, TRUTH, legend, marker_sizes, note, resolve_axes, tidy
from metaprior.prediction.ensemble import predicts_labels
from metaprior.training.steps import CHUNK


def plot_training(meta: Any, *, axes: Any = None) -> Any:
    """The loss of every training step, what validation tasks said, and the step that was kept; the axes.

    Where several priors are averaged, of the one with the most weight.
    """
    labeled = predicts_labels(meta)
    axes = resolve_axes(axes)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    tidy(axes)
    steps = len(meta.loss_trace_)
    if steps == 0:
        note(axes, "Not trained (n_steps=0):\nthe prior has its initial parameters.")
        return axes
    axes.plot(np.arange(steps), meta.loss_trace_, color=LINE, linewidth=1.4, label="loss")  # before each step
    axes.axvline(meta.best_step_, color=TRUTH, linewidth=1.0, linestyle="--", label=f"kept: step {meta.best_step_}")
    if len(meta.model_.members) > 1:
        axes.set_title(f"The prior with the most weight, of {len(meta.model_.members)}", fontsize=11)
    others = []
    if len(meta.validation_trace_):
        looks = np.minimum(CHUNK * np.arange(1, len(meta.validation_trace_) + 1), steps)
        other = axes.twinx()
        other.plot(looks, meta.validation_trace_, color=POINTS, linewidth=1.4, marker="o", ms=4, label="validation")
        other.set_ylabel("validation: " + ("log loss" if labeled else "negative log density"))
        other.yaxis.label.set_color(POINTS)
        other.tick_params(axis="y", colors=POINTS)
        other.spines[["top", "left"]].set_visible(False)
        others.append(other)
    legend(axes, *others, below=True, ncols=3)
    return axes


def plot_alpha_path(meta: Any, *, axes: Any = None) -> Any:
    """Score of every alpha that was compared on held-out target tasks, with its standard error; the axes.

    alpha is the weight of all sources together. The larger a marker, the larger its weight in the average that
    predicts. Errors are mostly those of the tasks, common to every alpha; `meta.transfer_report().plot()` shows the
    paired differences.
    """
    labeled = predicts_labels(meta)
    report = meta.transfer_report()
    axes = resolve_axes(axes)
    axes.set_xlabel("alpha, the weight of the source" + "s together" * (len(report.names) > 2))
    axes.set_ylabel(f"score: log {'probability of a label' if labeled else 'density of a reading'}")
    tidy(axes)
    if report.score is None:
        note(axes, textwrap.fill(report.verdict, 44))
        return axes
    _candidates(axes, report)
    axes.set_xlim(-0.04, 1.04)
    axes.set_title(textwrap.fill(report.verdict, 80), fontsize=9)
    legend(axes, below=True, ncols=2)
    return axes


def _candidates(axes: Any, report: Any) -> None:
    finite = np.isfinite(report.score)
    plain = (report.temperature == 1.0) & (report.prior_std == 1.0)
    alpha, score, sizes = report.alpha, report.score, marker_sizes(report.weight) ** 2
    axes.axvline(0.0, color=TRUTH, linewidth=1.0, linestyle="--", label="target-only", zorder=1.5)
    if report.pooled_alpha is not None and report.pooled_alpha > 0.0:
        axes.axvline(report.pooled_alpha, color=TRUTH, linewidth=1.0, linestyle=":", label="pooled", zorder=1.5)
    axes.errorbar(
        alpha[finite], score[finite], report.standard_error[finite], fmt="none", ecolor=BAND, elinewidth=1.8, zorder=2
    )
    groups = [(finite & plain, LINE, "held-out score (area: weight)")]
    groups.append((finite & ~plain, "white", "with another temperature or prior_std"))
    for kept, color, label in groups:
        if kept.any():
            axes.scatter(alpha[kept], score[kept], sizes[kept], color=color, edgecolor=LINE, zorder=3, label=label)
    kept = np.flatnonzero(finite & plain)
    if len(report.names) == 2:  # of several sources, the same alpha may be shared in many ways
        kept = kept[np.argsort(alpha[kept])]
        axes.plot(alpha[kept], score[kept], color=LINE, linewidth=1.0, alpha=0.5, zorder=2)
    if not finite.all():
        axes.text(0.99, 0.02, f"{(~finite).sum()} diverged", transform=axes.transAxes, ha="right", fontsize=9)
