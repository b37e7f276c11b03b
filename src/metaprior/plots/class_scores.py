"""Plots of how well classes are predicted: reliability of the probabilities, and which classes are confused."""

from typing import Any

import numpy as np
from scipy.stats import beta

from metaprior.metrics import Scores
from metaprior.plots.style import BAND, DIAGONAL, LINE, POINTS, as_drawn, legend, resolve_axes, tidy
from metaprior.predict.ensemble import predicts_labels

MAX_CELLS = 20  # classes of a matrix; of more, the pairs that are confused most often are drawn
MAX_PAIRS = 15
MAX_BOTH = 8  # classes of a matrix with shares and counts in its cells; of more, cells hold counts only
INTERVAL = 0.9


def plot_confusion(meta: Any, test_tasks: Any, *, axes: Any = None) -> Any:
    """Plot which class was predicted how often for queries of each class.

    Rows are observed classes and add up to 100%. Of more than 20 classes, the pairs that are confused most often are
    drawn.

    Parameters
    ----------
    meta : fitted MetaGPClassifier
        With classes that all tasks share.
    test_tasks : sequence of (X_context, y_context, X_query, y_query)
    axes : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    if not predicts_labels(meta):
        raise ValueError("plot_confusion needs a MetaGPClassifier: numbers have no classes. Use plot_calibration.")
    scores = meta.evaluate(test_tasks)
    if scores.confusion is None:
        raise ValueError(
            "plot_confusion needs classes that all tasks share; here every task has its own. Use plot_calibration."
        )
    size = _size(scores)
    axes = resolve_axes(axes, (size + 0.8, size))
    draw_confusion(axes, scores)
    return axes


def plot_scores(scores: Scores) -> Any:
    """Return a figure of the reliability of probabilities and, if all tasks share their classes, of the confusion."""
    from matplotlib.figure import Figure

    size = 4.8 if scores.confusion is None else _size(scores)
    widths = (5.6,) if scores.confusion is None else (5.6, size + 0.8)
    figure = Figure(figsize=(sum(widths), size), layout="constrained")
    panels = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    draw_reliability(panels[0], scores)
    for axes in {*figure.axes}.difference(panels[1:]):
        axes.set_box_aspect(0.85)  # beside a large matrix it would be stretched
    if scores.confusion is not None:
        draw_confusion(panels[1], scores)
    return figure


def draw_reliability(axes: Any, scores: Scores) -> None:
    """Draw how often the predicted class was right against its probability, in bins, and the queries of each bin."""
    bins = scores.reliability
    counts, edges = bins.count.sum(axis=0), bins.edges
    most, least, filled = int(counts.max()), float(edges[0]), counts > 0
    bars = axes.twinx()
    look = {"align": "edge", "color": BAND, "alpha": 0.5, "edgecolor": "white", "label": "queries"}
    bars.bar(edges[:-1], counts, np.diff(edges), **look)
    bars.set_ylim(0, 3 * most)
    bars.set_yticks([0, most])
    bars.set_ylabel("queries", loc="bottom", labelpad=-6)
    bars.spines[["top", "left"]].set_visible(False)
    bars.spines["right"].set_bounds(0, most)
    axes.set_zorder(bars.get_zorder() + 1)
    axes.patch.set_visible(False)
    axes.axline((0.75, 0.75), slope=1.0, label="perfect", **DIAGONAL)
    confidence, right = (total.sum(axis=0)[filled] / counts[filled] for total in (bins.confidence, bins.right))
    lower, upper = binomial_intervals(bins.count[:, filled], bins.right[:, filled])
    errors = np.maximum([right - lower, upper - right], 0.0)
    label = f"{INTERVAL:.0%} interval" + " over tasks" * (len(bins.count) > 1)
    axes.errorbar(confidence, right, errors, fmt="none", ecolor=LINE, elinewidth=1.0, label=label)
    axes.plot(confidence, right, color=LINE, linewidth=1.8, marker="o", label="observed")
    error, correct = scores.calibration_error, scores.accuracy
    axes.set_title(f"calibration error {error:.3f}, accuracy {correct:.0%}", fontsize=10)
    axes.set(xlabel="probability of the predicted class", ylabel="how often it was right")
    margin = 0.01 * (1.0 - least)  # for markers and intervals at either end
    axes.set(xlim=(least - margin, 1.0 + margin), ylim=(max(min(least, float(lower.min())) - 0.05, -0.02), 1.02))
    tidy(axes)
    legend(axes, bars, below=True, ncols=4)


def binomial_intervals(count: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return 90% intervals of the share right in each bin, given queries and those right, (tasks, bins).

    Jeffreys' intervals with the effective number of queries (Korn and Graubard, 1998): queries of one task are alike,
    and count less than as many of different tasks.
    """
    n_tasks, n = len(count), count.sum(axis=0)
    share = right.sum(axis=0) / n
    if n_tasks > 1:
        spread = np.sum((right - share * count) ** 2, axis=0) * n_tasks / (n_tasks - 1) / n**2
        smooth = (right.sum(axis=0) + 0.5) / (n + 1.0)
        n = np.minimum(n, smooth * (1.0 - smooth) / np.maximum(spread, 1e-12))
    tails = np.array([[0.5 - INTERVAL / 2], [0.5 + INTERVAL / 2]])
    lower, upper = beta.ppf(tails, share * n + 0.5, (1.0 - share) * n + 0.5)
    return lower, upper


def draw_confusion(axes: Any, scores: Scores) -> None:
    """Draw the matrix of observed and predicted classes, or of many classes the pairs confused most often."""
    confusion, names = scores.confusion, [as_drawn(name) for name in scores.classes.tolist()]
    totals = confusion.sum(axis=1, keepdims=True)
    shares = np.divide(confusion, totals, out=np.zeros(confusion.shape), where=totals > 0)
    if len(names) > MAX_CELLS:
        _draw_pairs(axes, confusion, shares, names)
        return
    axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
    size = 9 if len(names) <= MAX_BOTH else 7
    for (i, j), count in np.ndenumerate(confusion):
        if count:
            text = f"{shares[i, j]:.0%}\n{count:,}" if len(names) <= MAX_BOTH else f"{count:,}"
            color = "white" if shares[i, j] > 0.55 else "black"
            axes.text(j, i, text, ha="center", va="center", fontsize=size, color=color)
    ticks = range(len(names))
    turned = (
        {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if max(map(len, names)) * len(names) > 40 else {}
    )
    axes.set_xticks(ticks, names, fontsize=size, **turned)
    axes.set_yticks(ticks, names, fontsize=size)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(xlabel="predicted", ylabel="observed")
    what = "shares of each row, and counts" if len(names) <= MAX_BOTH else "color: share of the row; counts"
    axes.set_title(f"{int(confusion.sum()):,} queries: {what}", fontsize=10)


def _draw_pairs(axes: Any, confusion: np.ndarray, shares: np.ndarray, names: list[str]) -> None:
    """Draw the pairs of classes that are confused most often, as bars."""
    wrong = confusion - np.diag(np.diag(confusion))
    order = np.argsort(wrong, axis=None, kind="stable")[::-1][:MAX_PAIRS]
    pairs = [(i, j) for i, j in zip(*np.unravel_index(order, wrong.shape), strict=True) if wrong[i, j]]
    rows = np.arange(len(pairs))
    axes.barh(rows, [wrong[pair] for pair in pairs], color=POINTS, height=0.6)
    for row, pair in enumerate(pairs):
        axes.text(wrong[pair], row, f" {shares[pair]:.0%}", va="center", fontsize=8)
    axes.set_yticks(rows, [f"{names[i]} as {names[j]}" for i, j in pairs], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("queries of the first class predicted as the second; %: of the first")
    axes.set_title(f"The most confused of {len(names)} classes, {int(confusion.sum()):,} queries", fontsize=10)
    tidy(axes, "x")


def _size(scores: Scores) -> float:
    """Return the height of a figure in which the cells of the matrix can be read, in inches."""
    n_classes = len(scores.classes)
    return max(4.8, 1.8 + 0.42 * n_classes) if n_classes <= MAX_CELLS else 5.4
