"""Predictions of classes for one task: probabilities along one input, a map over two, or at queries of several."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from metaprior.plots.grids import grid_over
from metaprior.plots.style import DIAGONAL, DOTS, LINE, POINTS, RINGS, TRUTH, as_drawn
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
