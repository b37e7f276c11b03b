"""What a report says of the training tasks: a sample to draw, numbers of each environment, and charts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metaprior_app.chart_inputs import axes_of
from metaprior.cli.console import task_label
from metaprior.cli.training_data import TrainingData
from metaprior.storage.stored_tasks import StoredTasks
from metaprior.tasks.categories import is_missing
from metaprior.tasks.types import Task

MAX_TASKS = 300  # of each environment that a report looks at
MAX_LINES, MAX_DOTS = 100, 1500  # tasks and readings of an environment that are drawn as lines; more are a density
CELLS = 48, 32  # of a density, along x and along y
MAX_DRAWN = 6  # environments
MAX_INPUTS = 8  # columns that are listed
RESOLUTION = 4  # digits of the range of an axis


@dataclass(frozen=True)
class Sample:
    """Up to `most` tasks of each environment, with their names."""

    tasks: dict[str, list[Task]]
    names: dict[str, list[str]]
    is_whole: bool  # whether these are all tasks
    most: int


def sample_training(data: TrainingData, seed: int) -> Sample:
    """Draw up to MAX_TASKS tasks of each environment at random."""
    rng, tasks, names = np.random.default_rng(seed), {}, {}
    for name, given in data.environments.items():
        places = np.arange(len(given))
        if len(given) > MAX_TASKS:
            places = np.sort(rng.choice(len(given), MAX_TASKS, replace=False))
        tasks[name] = [given[i] for i in places.tolist()]
        names[name] = [task_label(data.places[name](i)[0]) for i in places.tolist()]
        if isinstance(given, StoredTasks):
            given.release()
    return Sample(tasks, names, all(len(tasks[name]) == len(data.environments[name]) for name in tasks), MAX_TASKS)


def describe_data(data: TrainingData, sample: Sample, target: str | None, meta: Any) -> dict[str, Any]:
    """Return the numbers of every environment, the target first, and the columns."""
    order = sorted(sample.tasks, key=lambda name: name != target)
    exposure = {} if meta.features_.exposure is None else {"exposure": data.columns["x"][meta.features_.exposure]}
    return {
        "columns": {name: value for name, value in {**data.columns, **exposure}.items() if value},
        "inputs": [{"name": name, "dates": name in data.dates} for name in data.columns["x"][:MAX_INPUTS]],
        "n_inputs": len(data.columns["x"]),
        "sampled": None if sample.is_whole else sample.most,
        "environments": [_describe(name, data, sample.tasks[name]) for name in order],
    }


def _describe(name: str, data: TrainingData, sampled: list[Task]) -> dict[str, Any]:
    """Return the numbers of an environment; ranges of stored tasks are those of the sample."""
    given, categorical = data.environments[name], data.columns.get("categorical") or ()
    sizes = given.sizes if isinstance(given, StoredTasks) else np.array([len(task.y) for task in given])
    tasks = sampled if isinstance(given, StoredTasks) else given
    x, y = np.concatenate([task.x for task in tasks]), np.concatenate([task.y for task in tasks])
    facts: dict[str, Any] = {
        "name": name,
        "tasks": len(given),
        "samples": int(sizes.sum()),
        "size": [int(sizes.min()), float(np.median(sizes)), int(sizes.max())],
        "x": [
            _counts(column) if each in categorical else _spread(column)
            for each, column in zip(data.columns["x"][:MAX_INPUTS], x.T, strict=False)
        ],
    }
    if data.labels:
        values, counts = np.unique(y, return_counts=True)
        return facts | {"labels": [[str(v), int(n)] for v, n in zip(values.tolist(), counts.tolist(), strict=True)]}
    return facts | {"y": _spread(y)}


def _counts(cells: np.ndarray) -> dict[str, list[list[Any]]]:
    """Return the levels of a category and how often they occur, the most common first."""
    levels = Counter(str(cell) for cell in cells.tolist() if not is_missing(cell))
    return {"levels": [list(pair) for pair in levels.most_common()]}


def _spread(values: np.ndarray) -> dict[str, float | None]:
    values = values.astype(float)
    values = values[np.isfinite(values)]  # covariates may be missing
    if not len(values):
        return dict.fromkeys(("min", "max", "mean", "std"))
    numbers = {"min": values.min(), "max": values.max(), "mean": values.mean(), "std": values.std()}
    return {name: float(number) for name, number in numbers.items()}


def task_charts(data: TrainingData, sample: Sample, target: str | None, meta: Any) -> list[dict[str, Any]]:
    """Return a chart of the tasks of each environment along the first input of numbers, all with the same axes.

    Counts with an exposure are drawn as rates.
    """
    along, exposure, names = axes_of(meta), meta.features_.exposure, data.columns["x"]
    if data.labels or not along:
        return []
    order = sorted(sample.tasks, key=lambda name: (name != target, -len(sample.tasks[name])))[:MAX_DRAWN]
    tasks = {name: [_plain(task, along[0], exposure) for task in sample.tasks[name]] for name in order}
    every = [task for name in order for task in tasks[name]]
    x = axis([task.x[:, 0] for task in every], names[along[0]], names[along[0]] in data.dates)
    y = axis([task.y for task in every], data.columns["y"] + (f" / {names[exposure]}" if exposure is not None else ""))
    charts = []
    for name in order:
        where = f" of {name}" if name else ""
        title = f"{len(tasks[name])} tasks{where}: {y['label']} along {x['label']}"
        given = _drawn(tasks[name], x["domain"], y["domain"])
        charts.append({"kind": "tasks", "title": title, "name": name, "x": x, "y": y, "given": given})
    return charts


def _plain(task: Task, column: int, exposure: int | None) -> Task:
    """Return a task with one input of numbers, and rates in place of counts where they have an exposure."""
    y = task.y if exposure is None else task.y / task.x[:, exposure].astype(float)
    return Task(task.x[:, [column]].astype(float), y)


def axis(values: Sequence[np.ndarray], label: str, dates: bool = False, margin: float = 0.03) -> dict[str, Any]:
    """Return an axis that shows all values, with a margin."""
    low, high = min(float(part.min()) for part in values), max(float(part.max()) for part in values)
    room = margin * (high - low)
    return {"domain": rounded([low - room, high + room], high - low), "label": label, "dates": dates}


def _drawn(tasks: Sequence[Task], x: list[float], y: list[float]) -> dict[str, Any]:
    """Return tasks as `charts.tasks` takes them: lines of few, or the number of tasks in each cell of a grid."""
    if len(tasks) <= MAX_LINES and sum(len(task.y) for task in tasks) <= MAX_DOTS:
        lines = []
        for task in tasks:
            along = np.argsort(task.x[:, 0], kind="stable")
            lines.append({"x": rounded(task.x[along, 0], x[1] - x[0]), "y": rounded(task.y[along], y[1] - y[0])})
        return {"tasks": lines}
    counts = np.zeros(CELLS[::-1], np.int64)
    for task in tasks:
        found, _, _ = np.histogram2d(task.y, task.x[:, 0], CELLS[::-1], (_wide(y), _wide(x)))
        counts += found > 0
    return {"x": _wide(x), "y": _wide(y), "counts": counts.tolist()}


def _wide(domain: list[float]) -> list[float]:
    """Return a range that is not empty."""
    low, high = domain
    return domain if high > low else [low - (abs(low) * 0.01 or 1.0), high + (abs(high) * 0.01 or 1.0)]


def rounded(values: Any, span: float | None = None) -> list[float]:
    """Return numbers to a ten-thousandth of the range of an axis, or of their own size: what a chart can show."""
    values = np.asarray(values, float)
    size = span or float(np.max(np.abs(values), initial=0.0, where=np.isfinite(values))) or 1.0
    decimals = RESOLUTION - int(np.floor(np.log10(size)))
    return np.round(values, min(decimals, 300)).tolist()
