"""Forecasting: the first five readings of a new task are given, the rest is asked for.

    METAPRIOR_DATA=... python studies/benchmarks/forecasting.py measure --out studies/results/tables/forecasting.csv
    python studies/benchmarks/forecasting.py report studies/results/tables/forecasting.csv

Compared are metaprior with cross-validation that asks for the same (`context=("first", 5)`) and with that of the
default, which draws contexts at random; a mixed model; the last reading given; and the average of all training tasks at
the time that is asked for, shifted by how the readings given deviate from it. The last two get bands from their own
errors on the training tasks. Tasks of a draw have all their readings.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from draw_loop import Draws, FirstSeed, Only, Out, ResultTable, Resume
from rich.console import Console
from rich.table import Table

from metaprior import MetaGPRegressor
from metaprior.metrics import mean_and_standard_error
from metaprior.predict.predictive import GaussianMixture
from metaprior.tasks.splits import ContextRule, split_once
from metaprior.tasks.types import Task
from metaprior_studies.peers.contestants import METRICS, as_contestant, run
from metaprior_studies.peers.mixed_model import fit_mixed
from metaprior_studies.peers.protocol import Contestant, Fitted
from metaprior_studies.peers.tables import ENVIRONMENTS

DATA = ("colorado", "physionet-gcs", "intel-berkeley")
GIVEN = ContextRule("first", 5)
N_BINS = 12  # of the average of training tasks
app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)


def metaprior(context: Any) -> Contestant:
    """Return the default with a rule for contexts."""

    def fit(source: Any, target: Any, seed: int) -> Fitted:
        meta = MetaGPRegressor(context=context, random_state=seed, progress=False)
        return as_contestant(meta.fit(list(source), list(target)))

    return fit


def with_errors(predict_mean: Callable[[Any, Any, Task, np.ndarray], np.ndarray]) -> Contestant:
    """Return a contestant that predicts a mean, with the spread of its errors on target tasks that it has not seen."""

    def fit(source: Any, target: Any, seed: int) -> Fitted:
        rng, squares = np.random.default_rng(seed), []
        for i, task in enumerate(target):
            others = [other for j, other in enumerate(target) if j != i]
            test = split_once(task, GIVEN._replace(size=min(GIVEN.size or 0, len(task.y) - 1)), rng)
            mean = predict_mean(source, others, Task(test.x_context, test.y_context), test.x_query)
            squares.append(np.mean((mean - test.y_query) ** 2))
        variance = float(np.mean(squares))

        def predict(contexts: Any, queries: Any) -> Any:
            pairs = zip(contexts, queries, strict=True)
            means = [predict_mean(source, target, context, x) for context, x in pairs]
            return [GaussianMixture(mean[None], np.full((1, len(mean)), variance)) for mean in means]

        return Fitted(predict)

    return fit


def last_reading(source: Any, target: Any, context: Task, x: np.ndarray) -> np.ndarray:
    """Predict the last reading that is given."""
    return np.full(len(x), context.y[np.argmax(context.x[:, 0])])


def seasonal(source: Any, target: Any, context: Task, x: np.ndarray) -> np.ndarray:
    """Predict the average of training tasks at the same time, shifted by the mean deviation of the context from it."""
    tasks = [*source, *target]
    times, y = np.concatenate([task.x[:, 0] for task in tasks]), np.concatenate([task.y for task in tasks])
    edges = np.quantile(times, np.linspace(0.0, 1.0, N_BINS + 1)[1:-1])
    place = np.searchsorted(edges, times)
    means = np.array([y[place == i].mean() if (place == i).any() else y.mean() for i in range(N_BINS)])
    at = lambda when: means[np.searchsorted(edges, when)]  # noqa: E731
    return at(x[:, 0]) + np.mean(context.y - at(context.x[:, 0]))


CONTESTANTS: dict[str, Contestant] = {
    "metaprior, first 5": metaprior(("first", 5)),
    "metaprior, random": metaprior("random"),
    "mixed model": fit_mixed,
    "seasonal average": with_errors(seasonal),
    "last reading": with_errors(last_reading),
}


@app.command()
def measure(out: Out, only: Only = "", draws: Draws = 10, first_seed: FirstSeed = 0, resume: Resume = False) -> None:
    """Score all contestants on draws of the data sets."""
    table = ResultTable(out, ("data", "draw", "contestant"), resume)
    for name in (name for name in DATA if only in name):
        for seed in range(first_seed, first_seed + draws):
            tasks = replace(ENVIRONMENTS[name], max_samples=None).draw(seed)
            rng = np.random.default_rng(seed)
            whole = [
                Task(np.concatenate([t.x_context, t.x_query]), np.concatenate([t.y_context, t.y_query]))
                for t in tasks.test
            ]
            tasks = tasks._replace(test=[split_once(task, GIVEN, rng) for task in whole if len(task.y) > 5])
            for contestant in CONTESTANTS:
                labels = {"data": name, "draw": seed, "contestant": contestant}
                if labels not in table:
                    scores = run(CONTESTANTS[contestant], tasks, seed)
                    table.add({**labels, **{each: float(f"{scores[each]:.6g}") for each in METRICS}})


@app.command()
def report(results: Annotated[str, typer.Argument(help="CSV file of `measure`.")]) -> None:
    """Print means over draws, and paired differences from the search that knows the split."""
    frame, first = pd.read_csv(results), next(iter(CONTESTANTS))
    for name, rows in frame.groupby("data", sort=False):
        table = Table(title=f"{name}: {rows['draw'].nunique()} draws, mean ± standard error", title_justify="left")
        for column in ("", *METRICS, f"NLL minus that of {first}"):
            table.add_column(column, justify="right")
        nll = rows.pivot(index="draw", columns="contestant", values="nll")
        for contestant in CONTESTANTS:
            own = rows[rows["contestant"] == contestant]
            cells = [_words(own[metric].to_numpy()) for metric in METRICS]
            table.add_row(contestant, *cells, _words((nll[contestant] - nll[first]).to_numpy(), "+"))
        Console().print(table)


def _words(values: np.ndarray, sign: str = "") -> str:
    mean, error = mean_and_standard_error(values)
    return f"{mean:{sign}.3f} ± {error:.3f}"


if __name__ == "__main__":
    app()
