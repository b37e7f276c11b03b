"""The loop that both demos share, and their rows of results as a file and as a table."""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metaprior.metrics import mean_and_standard_error
from metaprior_studies.drawn_tasks import DrawnTasks

DEFAULT = "metaprior, default"  # the name of its rows

Rows = list[dict[str, Any]]
Scorer = Callable[[int, DrawnTasks], tuple[Mapping[str, Any], float]]  # draw number, tasks -> scores, seconds
OnFit = Callable[[str], None]  # called with the name of the scheme that is fitted next


def score_draws(
    n_draws: int,
    make_draw: Callable[[int], DrawnTasks],
    scorers: Mapping[str, Scorer],
    metrics: Sequence[str],
    on_fit: OnFit,
) -> Rows:
    """Score every scheme on every draw; return a row each, in the order of the draws and then of the scorers."""
    rows = []
    for number in range(n_draws):
        draw = make_draw(number)
        for scheme, score in scorers.items():
            on_fit(scheme)
            scores, seconds = score(number, draw)
            values = {metric: round(float(scores[metric]), 6) for metric in metrics}
            rows.append({"scheme": scheme, "draw": number, **values, "seconds": round(seconds, 4)})
    return rows


def write_results(rows: Rows, path: Path) -> None:
    """Write a CSV file with one line per scheme and draw."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def by_scheme(rows: Rows) -> dict[str, dict[str, np.ndarray]]:
    """Return the metrics of every scheme as arrays over draws, in order of appearance."""
    names = dict.fromkeys(row["scheme"] for row in rows)
    metrics = [key for key, value in rows[0].items() if isinstance(value, float)]
    return {
        name: {key: np.array([row[key] for row in rows if row["scheme"] == name]) for key in metrics} for name in names
    }


def with_error(values: np.ndarray, sign: str = "") -> str:
    """Return the mean ± its standard error over draws as text, without the error if there is one draw."""
    mean, error = mean_and_standard_error(values)
    return f"{mean:{sign}.3f} ± {error:.3f}" if len(values) > 1 else f"{mean:{sign}.3f}"
