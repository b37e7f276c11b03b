"""Small problems that golden predictions are of: generated ones, and tables that people know."""

import numpy as np
import pandas as pd

N_TESTS, N_QUERIES = 3, 6


def split(tasks, n_context):
    """Give the first readings of every task, and ask for the next few."""
    end = n_context + N_QUERIES
    return [(x[:n_context], y[:n_context], x[n_context:end], y[n_context:end]) for x, y in tasks]


def lines(n_tasks, n=9, slope=1.0, level=0.0, seed=0):
    """Return tasks with lines of their own around a common one, and smooth deviations."""
    rng = np.random.default_rng(seed)
    tasks = []
    for _ in range(n_tasks):
        x = rng.uniform(0.0, 10.0, (n, 1))
        a, b, phase = slope + 0.3 * rng.normal(), level + rng.normal(), rng.uniform(0.0, 3.0)
        tasks.append((x, a * x[:, 0] + b + 0.5 * np.sin(x[:, 0] + phase) + 0.2 * rng.normal(size=n)))
    return tasks


def two_inputs(n_tasks, n=10, seed=0):
    """Return tasks of two inputs on different scales, one of them curved."""
    rng = np.random.default_rng(seed)
    tasks = []
    for _ in range(n_tasks):
        x = rng.uniform(0.0, 1.0, (n, 2)) * [1.0, 50.0]
        shape = np.sin(6.0 * x[:, 0]) + 0.02 * x[:, 1] * (1.0 + 0.3 * rng.normal())
        tasks.append((x, shape + 0.5 * rng.normal() + 0.1 * rng.normal(size=n)))
    return tasks


def with_outcome(tasks, draw, seed=0):
    """Replace the readings of tasks by draws of another outcome, given standardized ones."""
    rng = np.random.default_rng(seed)
    every = np.concatenate([y for _, y in tasks])
    return [(x, draw((y - every.mean()) / every.std(), rng)) for x, y in tasks]


def counts(z, rng):
    """Draw counts."""
    return rng.poisson(np.exp(1.0 + 0.6 * z)).astype(float)


def ranks(z, rng):
    """Draw ranks from 1 to 5."""
    return 1.0 + np.searchsorted([-1.2, -0.4, 0.4, 1.2], z + 0.2 * rng.normal(size=len(z)))


def outliers(z, rng):
    """Replace one reading in twelve by a wild one."""
    return np.where(rng.random(len(z)) < 1 / 12, z + rng.normal(0.0, 6.0, len(z)), z)


def exposed(tasks, seed=0):
    """Return tasks with a second column, the exposure, and counts that are proportional to it."""
    rng = np.random.default_rng(seed)
    every = np.concatenate([y for _, y in tasks])
    made = []
    for x, y in tasks:
        days = rng.integers(1, 9, len(y)).astype(float)
        made.append((np.column_stack([x, days]), rng.poisson(days * np.exp(0.5 * (y - every.mean()) / every.std()))))
    return made


def episodes(n_tasks, n_classes=2, n=12, shared=True, seed=0):
    """Return labeled tasks: classes around centers that tasks share, or that every task has for itself."""
    rng = np.random.default_rng(seed)
    common = rng.normal(0.0, 1.5, (n_classes, 3))
    tasks = []
    for t in range(n_tasks):
        centers = common + 0.6 * rng.normal(size=common.shape) if shared else rng.normal(0.0, 1.5, (n_classes, 3))
        codes = rng.permutation(np.arange(n) % n_classes)
        names = np.array([f"class {k}" if shared else f"task {t}, class {k}" for k in range(n_classes)])
        tasks.append((centers[codes] + rng.normal(size=(n, 3)), names[codes]))
    return tasks


def patients(n_tasks, seed=0, missing=False):
    """Return data frames with a time, a ward that varies, age and sex that do not, and the readings of each task."""
    rng = np.random.default_rng(seed)
    tasks = []
    for _ in range(n_tasks):
        age, sex = rng.uniform(20.0, 80.0), rng.integers(2)
        hours, ward = np.sort(rng.uniform(0.0, 24.0, 8)), rng.choice(["north", "south", "east"], 8)
        shift = 0.08 * age + 2.0 * sex + np.where(ward == "south", 1.5, 0.0)
        y = shift + 0.1 * hours + rng.normal() + 0.3 * rng.normal(size=8)
        years = np.nan if missing and rng.random() < 0.2 else age
        columns = {"hours": hours, "ward": ward, "age": years, "sex": np.array(["f", "m"])[sex]}
        tasks.append((pd.DataFrame(columns), y))
    return tasks


def split_frames(tasks, n_context):
    """Split tasks whose inputs are data frames."""
    return [(x.iloc[:n_context], y[:n_context], x.iloc[n_context:], y[n_context:]) for x, y in tasks]


def walks(n_tasks, n=14, seed=0):
    """Return random walks, whose future is less certain than their gaps."""
    rng = np.random.default_rng(seed)
    return [(np.arange(float(n))[:, None], np.cumsum(rng.normal(size=n))) for _ in range(n_tasks)]
