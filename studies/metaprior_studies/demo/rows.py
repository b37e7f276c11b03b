"""What the demos share: rows of results, as a file and as a table."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from metaprior.metrics.regression import mean_and_standard_error
from metaprior.tasks.types import Task, TestTask

Rows = list[dict[str, Any]]


class Draw(NamedTuple):
    """The tasks of one draw, shared by all schemes."""

    number: int
    source: list[Task]  # beta N tasks
    target: list[Task]  # N tasks; schemes with fewer use the first (1 - beta) N
    test: list[TestTask]


def make_row(scheme: str, draw: int, scores: Any, metrics: Sequence[str], seconds: float) -> dict[str, Any]:
    """A line of results."""
    figures = {metric: round(float(scores[metric]), 6) for metric in metrics}
    return {"scheme": scheme, "draw": draw, **figures, "seconds": round(seconds, 4)}


def write_results(rows: Rows, path: Path) -> None:
    """One line per scheme and draw."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def by_scheme(rows: Rows) -> dict[str, dict[str, np.ndarray]]:
    """For every scheme, in order of appearance, its figures over draws."""
    names = dict.fromkeys(row["scheme"] for row in rows)
    figures = [key for key, value in rows[0].items() if isinstance(value, float)]
    return {
        name: {key: np.array([row[key] for row in rows if row["scheme"] == name]) for key in figures} for name in names
    }


def with_error(values: np.ndarray, sign: str = "") -> str:
    """Mean ± standard error over draws; one draw has no error."""
    mean, error = mean_and_standard_error(values)
    return f"{mean:{sign}.3f} ± {error:.3f}" if len(values) > 1 else f"{mean:{sign}.3f}"
