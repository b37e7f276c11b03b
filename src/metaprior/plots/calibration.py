"""Whether predictions are as sure as they should be."""

from typing import Any

import numpy as np
from scipy.special import expit

from metaprior.metrics.classification import accuracy, confidence_bins, expected_calibration_error
from metaprior.metrics.regression import CALIBRATION_LEVELS, mean_and_standard_error, summarize
from metaprior.plots.style import BAND, DIAGONAL, LINE, legend, resolve_axes, tidy
from metaprior.prediction.batches import predict_labels, predict_tasks
from metaprior.prediction.ensemble import predicts_labels
from metaprior.tasks.labels import as_labeled_tests
from metaprior.tasks.types import as_test_tasks

N_BOOTSTRAP = 2000


def plot_calibration(meta: Any, test_tasks: Any, *, axes: Any = None) -> Any:
    """Promised against observed frequencies on test tasks, as for `evaluate`; the axes.

    Numbers: the share of queries below the predicted p-quantile against p, with a 90% band of how it varies with the
    choice of tasks (bootstrap). Above the diagonal y is lower than predicted. Labels: how often the more probable class
    was right against its probability, in bins, and how many queries each bin has.
    """
    labeled = predicts_labels(meta)
    if labeled:
        tasks = as_labeled_tests(test_tasks, "test_tasks", meta.n_features_in_, meta.classes_)
        axes = resolve_axes(axes, (5.6, 4.8))
        _reliability(axes, meta.model_, tasks)
    else:
        tasks = as_test_tasks(test_tasks, "test_tasks", meta.n_features_in_)
        axes = resolve_axes(axes, (5.2, 4.8))
        _quantiles(axes, meta.model_, tasks)
    tidy(axes)
    return axes


def _quantiles(axes: Any, model: Any, tasks: list[Any]) -> None:
    predictive, y, mask = predict_tasks(model, tasks)
    summary = summarize(predictive, y, mask)
    transform = predictive.cdf(y)
    # As `calibration_error` counts: padding is NaN, which is below nothing.
    below = np.stack([np.sum(transform <= level, axis=1) for level in CALIBRATION_LEVELS], axis=1)
    counts = mask.sum(axis=1)
    axes.axline((0.5, 0.5), slope=1.0, label="perfect", **DIAGONAL)
    if len(tasks) > 1:
        draws = np.random.default_rng(0).multinomial(len(tasks), np.full(len(tasks), 1 / len(tasks)), N_BOOTSTRAP)
        shares = (draws @ below) / (draws @ counts)[:, None]
        lower, upper = np.quantile(shares, [0.05, 0.95], axis=0)
        label = f"90% band over {len(tasks)} tasks"
        axes.fill_between(CALIBRATION_LEVELS, lower, upper, color=BAND, alpha=0.6, linewidth=0, label=label)
    look = {"color": LINE, "linewidth": 1.8, "marker": "o", "markersize": 4}
    axes.plot(CALIBRATION_LEVELS, below.sum(axis=0) / counts.sum(), label="observed", **look)
    coverage, _ = mean_and_standard_error(np.asarray(summary["coverage"]))
    axes.set_title(
        f"calibration error {summary['calibration_error']:.3f}, coverage of the 90% interval {coverage:.0%}",
        fontsize=10,
    )
    axes.set_xlabel("predicted quantile p")
    axes.set_ylabel("share of queries below it")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    legend(axes, loc="upper left")


def _reliability(axes: Any, model: Any, tasks: list[Any]) -> None:
    (first, second), y, mask = predict_labels(model, tasks)
    probability = expit(second - first)
    counts, confidence, right = confidence_bins(y, probability, mask)
    filled = counts > 0
    edges = np.linspace(0.5, 1.0, len(counts) + 1)
    below = axes.twinx()
    below.bar(
        edges[:-1], counts, np.diff(edges), align="edge", color=BAND, alpha=0.5, edgecolor="white", label="queries"
    )
    below.set_ylim(0, 3 * counts.max())
    below.set_yticks([0, int(counts.max())])
    below.set_ylabel("queries", loc="bottom", labelpad=-6)
    below.spines[["top", "left"]].set_visible(False)
    below.spines["right"].set_bounds(0, counts.max())
    axes.set_zorder(below.get_zorder() + 1)
    axes.patch.set_visible(False)
    axes.axline((0.75, 0.75), slope=1.0, label="perfect", **DIAGONAL)
    shares = right[filled] / counts[filled]
    axes.plot(confidence[filled] / counts[filled], shares, color=LINE, linewidth=1.8, marker="o", label="observed")
    error, (correct, _) = (
        expected_calibration_error(y, probability, mask),
        mean_and_standard_error(accuracy(y, probability, mask)),
    )
    axes.set_title(f"calibration error {error:.3f}, accuracy {correct:.0%}", fontsize=10)
    axes.set_xlabel("probability of the class predicted")
    axes.set_ylabel("how often it was right")
    axes.set(xlim=(0.5, 1.0), ylim=(min(0.4, float(shares.min()) - 0.05), 1.02))
    legend(axes, below, loc="upper left")
