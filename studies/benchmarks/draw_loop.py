"""Shared by the scripts of this folder: the tasks of a draw, and results draw by draw in a CSV file.

Every script fits the public estimators, those of `metaprior` or of `metaprior.wfem`, on the tasks of a draw and scores
them on its test tasks. A row of results is identified by its key columns; with `--resume` the rows that a file already
has are kept and only the missing ones are computed.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from scipy import stats

from metaprior.datasets import Sinusoid
from metaprior.metrics import mean_and_standard_error
from metaprior_studies.drawn_tasks import DrawnTasks
from metaprior_studies.estimator_schemes import fit_and_score
from metaprior_studies.results_store import write_file

REGRESSION_METRICS = ("rmse", "nll", "calibration_error", "coverage")

Out = Annotated[Path, typer.Option(help="CSV file to write.")]
Draws = Annotated[int, typer.Option(help="Number of draws.")]
FirstSeed = Annotated[int, typer.Option(help="Seed of the first draw.")]
Only = Annotated[str, typer.Option(help="Only those whose name contains this.")]
Resume = Annotated[bool, typer.Option("--resume", help="Keep the rows of the file; compute the missing ones.")]


class ResultTable:
    """Rows of results, written to a CSV file after every addition. Without a path they stay in memory."""

    def __init__(self, path: Path | None, keys: Sequence[str], resume: bool = False):
        self.path, self.keys = path, tuple(keys)
        self.rows: list[dict[str, Any]] = []
        if resume and path is not None and path.exists():
            self.rows = pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records")
        self._known = {self._key(row) for row in self.rows}

    def __contains__(self, labels: Mapping[str, Any]) -> bool:
        return self._key(labels) in self._known

    def add(self, *rows: dict[str, Any]) -> None:
        """Append rows and write the file."""
        self.rows += rows
        self._known |= {self._key(row) for row in rows}
        if self.path is not None:
            write_csv(self.rows, self.path)

    def measure(
        self,
        labels: dict[str, Any],
        meta: Any,
        tasks: DrawnTasks,
        metrics: Sequence[str] = REGRESSION_METRICS,
        describe: Callable[[Any], dict[str, Any]] = lambda meta: {},
    ) -> None:
        """Add the row that `score_row` returns, unless there is one with these labels."""
        if labels not in self:
            self.add(score_row(labels, meta, tasks, metrics, describe))

    def frame(self) -> pd.DataFrame:
        """Return all rows with columns of numbers where they are numbers."""
        text = io.StringIO()
        write_rows(self.rows, text)
        return pd.read_csv(io.StringIO(text.getvalue()))

    def _key(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(row[name]) for name in self.keys)


def score_row(
    labels: dict[str, Any],
    meta: Any,
    tasks: DrawnTasks,
    metrics: Sequence[str] = REGRESSION_METRICS,
    describe: Callable[[Any], dict[str, Any]] = lambda meta: {},
) -> dict[str, Any]:
    """Fit an estimator and return a row: the labels, what `describe` says of it, and its scores; print it too."""
    scores, seconds = fit_and_score(meta, tasks)
    row = {**labels, **describe(meta), **rounded({**scores, "seconds": seconds}, metrics)}
    typer.echo(", ".join(f"{name} {value}" for name, value in row.items()), err=True)
    return row


def rounded(scores: Mapping[str, Any], metrics: Sequence[str]) -> dict[str, float]:
    """Return some scores with four decimals."""
    return {metric: round(float(scores[metric]), 4) for metric in metrics}


def write_rows(rows: Sequence[Mapping[str, Any]], file: Any) -> None:
    """Write rows as CSV; columns that a row does not have are empty."""
    writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a CSV file, atomically."""
    text = io.StringIO()
    write_rows(rows, text)
    write_file(path, text.getvalue().encode())


def summarize(
    frame: pd.DataFrame,
    name: str,
    metrics: Sequence[str],
    compared: str,
    difference: str,
    means: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Return a row per value of column `name`: means over draws, and the paired difference from the first of them.

    `metrics` come with standard errors (columns ending in _se), `means` without. The difference is in the metric
    `compared` and goes into the column `difference`, with a standard error.
    """
    rows, first = [], frame[frame[name] == frame[name].iloc[0]].set_index("draw")
    for value in frame[name].unique():
        chosen = frame[frame[name] == value].set_index("draw")
        row: dict[str, Any] = {name: value, "draws": len(chosen)}
        for metric in metrics:
            row[metric], row[f"{metric}_se"] = mean_and_standard_error(chosen[metric].to_numpy())
        row |= {metric: float(chosen[metric].mean()) for metric in means if chosen[metric].notna().any()}
        paired = (chosen[compared] - first[compared]).dropna().to_numpy()
        row[difference], row[f"{difference}_se"] = mean_and_standard_error(paired)
        rows.append({key: float(f"{each:.4g}") if isinstance(each, float) else each for key, each in row.items()})
    return rows


def print_compared(rows: pd.DataFrame, ours: str, metrics: Sequence[str], compared: Sequence[str]) -> None:
    """Print the means of every scheme over draws, and paired differences of ours from it with 95% intervals."""
    own = rows[rows["scheme"] == ours].set_index("draw")
    for scheme in rows["scheme"].unique():
        other = rows[rows["scheme"] == scheme].set_index("draw")
        line = f"  {scheme:28s}" + "".join(f"  {metric} {other[metric].mean():.4f}" for metric in metrics)
        for metric in compared if scheme != ours and len(own) == len(other) > 2 else ():
            difference = (own[metric] - other[metric]).to_numpy()
            low, high = stats.bootstrap((difference,), np.mean, rng=0).confidence_interval
            line += f"  ours {difference.mean():+.4f} [{low:+.4f}, {high:+.4f}]"
        print(line)


def draws_file(out: Path | None) -> Path | None:
    """Return the file of single draws beside a table of means."""
    return None if out is None else out.with_suffix(".draws.csv")


def sinusoid_draw(deviation: float, n_source: int, n_target: int, seed: Any) -> DrawnTasks:
    """Draw tasks of 5 samples of the sinusoid, and 100 test tasks of 5 context and 50 query points."""
    environment, rng = Sinusoid(deviation), np.random.default_rng(seed)
    return DrawnTasks(
        environment.source_tasks(n_source, 5, rng),
        environment.target_tasks(n_target, 5, rng),
        environment.test_tasks(100, 5, 50, rng),
    )


def real_draw(name: str, n_target: int, seed: int) -> DrawnTasks:
    """Draw tasks of a real environment as `metaprior bench-data` does; the target tasks are its first `n_target`."""
    from metaprior_studies.real.real_study import STUDIES  # imports JAX and tinygp, which simulations do not need

    tasks = STUDIES[name].draw(seed, _load(name))
    return tasks._replace(target=tasks.target[:n_target])


@lru_cache
def _load(name: str) -> Any:
    from metaprior_studies.real.real_study import ENVIRONMENTS

    return ENVIRONMENTS[name]()
