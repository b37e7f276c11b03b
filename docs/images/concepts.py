"""Draw the pictures of the page on first steps: task, environment, source and target, context, family and alpha.

    python docs/images/concepts.py docs/images

The tables are those of `metaprior example`, made-up heart rates after surgery. The picture of families has tasks that
are drawn at random from what each family describes.
"""

import sys
from importlib import resources
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from metaprior import MetaGPRegressor, tasks_from_frame
from metaprior.plots.style import BAND, DOTS, DPI, LINE, POINTS, RINGS, TRUTH, tidy

COLUMNS = {"task": "patient", "x": "hours", "y": "heart_rate"}
HOURS, HEART_RATE = "hours after surgery", "heart rate"
GRID = np.linspace(0, 48, 150)[:, None]


def main(folder):
    """Draw all pictures."""
    tables = resources.files("metaprior").joinpath("datasets", "example")
    tasks = tasks_from_frame(str(tables / "patients.csv"), **COLUMNS, environment="hospital")
    test = tasks_from_frame(str(tables / "test.csv"), **COLUMNS)[0]
    pictures = {
        "task": draw_task(tasks["south"][0]),
        "environments": draw_environments(tasks),
        "source-target": draw_source_and_target(tasks),
        "context": draw_context(tasks, test),
        "families": draw_families(),
        "alpha": draw_alphas(tasks, test),
    }
    for name, figure in pictures.items():
        figure.savefig(folder / f"concept-{name}.png", dpi=DPI, metadata={"Software": None})


def draw_task(task):
    """Draw the readings of one patient."""
    [axes] = panels([""])
    order = np.argsort(task.x[:, 0])
    axes.plot(task.x[order, 0], task.y[order], **DOTS)
    return axes.figure


def draw_environments(tasks):
    """Draw all patients of two hospitals, side by side."""
    axes = panels([f"hospital {name}" for name in tasks])
    for panel, of_hospital in zip(axes, tasks.values(), strict=True):
        draw_tasks(panel, of_hospital, TRUTH)
    return axes[0].figure


def draw_source_and_target(tasks):
    """Draw all patients of two hospitals on each other, those of the target in blue."""
    [axes] = panels([f"{len(tasks['north'])} source tasks (gray), {len(tasks['south'])} target tasks (blue)"])
    draw_tasks(axes, tasks["north"], "0.7")
    draw_tasks(axes, tasks["south"], LINE)
    return axes.figure


def draw_tasks(axes, tasks, color):
    """Draw the readings of each task as a line."""
    for task in tasks:
        order = np.argsort(task.x[:, 0])
        axes.plot(task.x[order, 0], task.y[order], color=color, linewidth=0.9, alpha=0.7)


def draw_context(tasks, test):
    """Draw the prediction of a new patient before its first reading, and given two and five."""
    meta = MetaGPRegressor(random_state=0).fit(tasks, target="south")
    counts = (0, 2, 5)
    axes = panels(["no reading", "a context of two", "a context of five"])
    for panel, n in zip(axes, counts, strict=True):
        draw_prediction(panel, meta, test, n)
    return axes[0].figure


def draw_alphas(tasks, test):
    """Draw the prediction of a new patient before its first reading, at three weights of the source."""
    axes = panels(["alpha = 0: target only", "alpha = 0.5", "alpha = 1: source only"])
    for panel, alpha in zip(axes, (0.0, 0.5, 1.0), strict=True):
        draw_prediction(panel, MetaGPRegressor(alpha, random_state=0).fit(tasks, target="south"), test, 0)
    return axes[0].figure


def draw_prediction(axes, meta, test, n):
    """Draw the prediction given the first n readings, and the readings held back."""
    order = np.argsort(test.x[:, 0])
    x, y = test.x[order], test.y[order]
    task = meta.adapt(x[:n], y[:n])
    axes.fill_between(GRID[:, 0], *task.interval(GRID, coverage=0.9), color=BAND, alpha=0.6, linewidth=0)
    axes.plot(GRID[:, 0], task.predict(GRID), color=LINE, linewidth=1.8)
    axes.plot(x[:n, 0], y[:n], **DOTS)
    axes.plot(x[n:, 0], y[n:], **RINGS)


def draw_families():
    """Draw six random tasks of what each family describes; the thick curve is what they have in common."""
    rng, x = np.random.default_rng(3), np.linspace(0, 1, 100)

    def peak(t):
        return np.exp(-(((t - 0.45) / 0.18) ** 2))

    axes = panels(["linear", "smooth", "curve", "shapes"], "x", "y")
    commons = (0.5 * x, peak(x), peak(x), peak(x))
    for panel, common, name in zip(axes, commons, ("linear", "smooth", "curve", "shapes"), strict=True):
        for _ in range(6):
            a, b = rng.normal(size=2)
            y = {
                "linear": common + 0.2 * a + 0.4 * b * (x - 0.5),
                "smooth": common + 0.25 * sum(rng.normal() * np.sin(k * x + rng.uniform(0, 6)) for k in (2, 4, 6)),
                "curve": (1 + 0.35 * a) * peak(x - 0.08 * b),
                "shapes": (1 + 0.35 * a) * peak(x - 0.08 * a) + 0.25 * a * x,
            }[name]
            panel.plot(x, y, color=TRUTH, linewidth=0.8, alpha=0.7)
        panel.plot(x, common, color=POINTS, linewidth=2.2)
    return axes[0].figure


def panels(titles, x=HOURS, y=HEART_RATE):
    """Return axes side by side, with shared scales."""
    figure = Figure(figsize=(2.4 + 1.9 * len(titles), 2.3), layout="constrained")
    axes = figure.subplots(1, len(titles), sharex=True, sharey=True, squeeze=False)[0]
    for panel, title in zip(axes, titles, strict=True):
        panel.set_title(title, fontsize=10)
        panel.set_xlabel(x)
        tidy(panel)
    axes[0].set_ylabel(y)
    return axes


if __name__ == "__main__":
    main(Path(sys.argv[1]))
