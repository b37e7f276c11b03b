"""Predictions of classes for one task: probabilities along one input, a map over two, or at queries of several.

Plots of how well classes are predicted: reliability of the probabilities, and which classes are confused.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import beta

from metaprior.metrics import Scores
from metaprior.plots.style import (
    BAND,
    DIAGONAL,
    DOTS,
    LINE,
    POINTS,
    RINGS,
    TRUTH,
    as_drawn,
    grid_over,
    legend,
    resolve_axes,
    tidy,
)
from metaprior.predict.ensemble import predicts_labels
from metaprior.tasks.labels import as_labels, encode, task_classes
from metaprior.tasks.types import Task

# Distinguishable with color blindness (Okabe and Ito, 2008); brown in place of their yellow, which is too light.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8C564B", "#333333")
OTHERS = "#AAAAAA"  # of classes beyond these
NEGLIGIBLE = 0.02  # probability of a class that many others need not be told from
N_MAP = 61  # points along each side of a map
CONTOURS = np.array([0.5, 0.7, 0.9])
ABOVE, BELOW = 1.06, -0.06  # heights of the context and of queries


def draw_classes(
    axes: Any, meta: Any, context: Task, x_query: np.ndarray, queries: Task | None, names: Sequence[str] | None
) -> None:
    """Draw the probabilities of the classes of one task, its context, and queries where their classes are known."""
    both = [*context.y.tolist(), *(queries.y.tolist() if queries is not None else [])]
    classes = task_classes(as_labels(both, "context and query: y"), "plot_prediction", meta.classes_)
    adapted = meta.adapt(*context, None if None in classes.tolist() else classes)
    marked = [(context, "context", DOTS)]
    marked += [(queries, "queries", RINGS)] if queries is not None else []
    marked = [(encode(task.y, classes).astype(int), task.x, label, look) for task, label, look in marked if len(task.y)]
    n_inputs = x_query.shape[1]
    if n_inputs == 2:
        _draw_map(axes, meta, adapted, [context.x, x_query], classes, marked)
        return
    at = x_query if n_inputs > 1 else grid_over(meta, 0, context.x, x_query)[:, None]
    axes.set_xlabel(("x" if names is None else names[0]) + f", one of {n_inputs} inputs" * (n_inputs > 1))
    probabilities = adapted.predict_proba(at)
    if len(classes) == 2:
        _draw_second(axes, at[:, 0], probabilities[:, 1], n_inputs > 1, classes, marked, names)
    else:
        _draw_each(axes, at[:, 0], probabilities, n_inputs > 1, classes, marked, names)
    axes.margins(x=0 if n_inputs == 1 else 0.02)


def _draw_second(
    axes: Any,
    x: np.ndarray,
    probability: np.ndarray,
    at_queries: bool,
    classes: np.ndarray,
    marked: list[Any],
    names: Sequence[str] | None,
) -> None:
    """Draw the probability of the second of two classes, between marks of both."""
    style = {**DOTS, "color": LINE} if at_queries else {"color": LINE, "linewidth": 1.8}
    axes.axhline(0.5, **DIAGONAL)
    axes.plot(x, probability, label="probability", **style)
    for codes, inputs, label, look in marked:
        axes.plot(inputs[:, 0], codes, label=label, **look)
    for height, name in enumerate(classes.tolist()):
        if name is not None:
            place = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": 9, "color": POINTS}
            axes.text(1.01, height, as_drawn(name), **place)
    second = "the second class" if classes[1] is None else as_drawn(classes[1])
    axes.set_ylabel(f"probability of {second}" if names is None else f"probability of {names[1]} = {second}")
    axes.set_ylim(BELOW, ABOVE)


def _draw_each(
    axes: Any,
    x: np.ndarray,
    probabilities: np.ndarray,
    at_queries: bool,
    classes: np.ndarray,
    marked: list[Any],
    names: Sequence[str] | None,
) -> None:
    """Draw a line for every class or, at queries, the most probable class; context above, queries below."""
    colors = class_colors(probabilities, marked)
    if at_queries:
        best = probabilities.argmax(axis=1)
        axes.scatter(x, probabilities.max(axis=1), c=colors[best], s=30, marker="D", edgecolors="white", zorder=5)
    for of_class, color, name in zip(probabilities.T, colors, classes, strict=True):
        if color != OTHERS:
            style = {"linestyle": "", "marker": "D"} if at_queries else {"linewidth": 1.8}
            drawn = ([], []) if at_queries else (x, of_class)
            axes.plot(*drawn, color=color, label=as_drawn(name), **style)
    others = colors == OTHERS
    if others.any() and not at_queries:
        label = f"{others.sum()} other classes"
        axes.plot(x, probabilities[:, others].sum(axis=1), color=OTHERS, linewidth=1.4, linestyle=":", label=label)
    for codes, inputs, label, look in marked:
        _draw_marks(
            axes, inputs[:, 0], np.full(len(codes), ABOVE if label == "context" else BELOW), codes, colors, look
        )
        axes.plot([], [], label=label, **{**look, "color": "0.4"})
    what = "the most probable class" if at_queries else "each class"
    axes.set_ylabel(f"probability of {what}" + ("" if names is None else f" of {names[1]}"))
    axes.set_ylim(2 * BELOW, 1.0 - 2 * BELOW)


def _draw_map(
    axes: Any, meta: Any, adapted: Any, inputs: list[np.ndarray], classes: np.ndarray, marked: list[Any]
) -> None:
    """Draw the most probable class over two inputs, paler where it is less probable, with contours of that."""
    sides = [grid_over(meta, column, *inputs, n_points=N_MAP) for column in (0, 1)]
    first, second = np.meshgrid(*sides)
    probabilities = adapted.predict_proba(np.column_stack([first.ravel(), second.ravel()]))
    colors, highest = class_colors(probabilities, marked), probabilities.max(axis=1)
    from matplotlib.colors import to_rgb

    strength = 0.08 + 0.62 * (highest - 1.0 / len(classes)) / (1.0 - 1.0 / len(classes))
    of_class = np.array([to_rgb(color) for color in colors])[probabilities.argmax(axis=1)]
    picture = (1.0 - strength[:, None] * (1.0 - of_class)).reshape(N_MAP, N_MAP, 3)
    extent = (*sides[0][[0, -1]], *sides[1][[0, -1]])
    axes.imshow(np.clip(picture, 0.0, 1.0), extent=extent, origin="lower", aspect="auto", zorder=0.6)  # over the grid
    for of_class in probabilities.T:  # contours of the highest are ragged where classes meet
        levels = CONTOURS[(of_class.min() < CONTOURS) & (of_class.max() > CONTOURS)]
        if len(levels):
            lines = axes.contour(*sides, of_class.reshape(N_MAP, N_MAP), levels, colors="0.35", linewidths=0.7)
            axes.clabel(lines, fontsize=7, fmt="%.1f")
    for color, name in zip(colors, classes, strict=True):
        if color != OTHERS:
            label = "other class" if name is None else as_drawn(name)
            axes.plot([], [], linestyle="", marker="s", color=color, label=label)
    for codes, at, label, _ in marked:
        look = DOTS if label == "context" else {**DOTS, "markeredgecolor": TRUTH}  # rings are hard to see on colors
        _draw_marks(axes, at[:, 0], at[:, 1], codes, colors, look)
        axes.plot([], [], label=label, **{**look, "color": "0.4"})
    if len(inputs[1]) and all(label != "queries" for *_, label, _ in marked):
        axes.plot(*inputs[1].T, linestyle="", marker="+", color=TRUTH, markersize=5, label="queries")
    axes.set(xlim=extent[:2], ylim=extent[2:])
    if len(inputs[0]):
        axes.set_title("Most probable class, and its probability", fontsize=10)
    inputs_named = map(as_drawn, meta.features_.names or ("first input", "second input"))
    axes.set(**dict(zip(("xlabel", "ylabel"), inputs_named, strict=True)))


def class_colors(probabilities: np.ndarray, marked: list[Any]) -> np.ndarray:
    """Return a color for every class: of many, one for those in the context and then the most probable ones."""
    n_classes = probabilities.shape[1]
    colors = np.full(n_classes, OTHERS, dtype=object)
    seen = np.isin(np.arange(n_classes), np.concatenate([np.zeros(0, int), *(codes for codes, *_ in marked)]))
    rank = probabilities.max(axis=0) + seen
    ranked = np.argsort(-rank, kind="stable")[: len(COLORS)]
    if n_classes > len(COLORS):
        ranked = ranked[rank[ranked] > NEGLIGIBLE]
    colors[np.sort(ranked)] = COLORS[: len(ranked)]
    return colors


def _draw_marks(
    axes: Any, x: np.ndarray, y: np.ndarray, codes: np.ndarray, colors: np.ndarray, look: dict[str, Any]
) -> None:
    """Draw dots of a context, or rings of queries, in the colors of their classes."""
    for code in np.unique(codes):
        of_class = codes == code
        axes.plot(x[of_class], y[of_class], clip_on=False, **{**look, "color": colors[code]})


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
