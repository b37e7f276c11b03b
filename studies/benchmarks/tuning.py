"""Tuning classifiers of scikit-learn: a prior learned from past tuning runs against BoTorch's models that start anew.

    python studies/benchmarks/tuning.py tabulate --out studies/results/tables/tuning_scores.csv.gz
    python studies/benchmarks/tuning.py measure --out studies/results/tables/tuning.csv
    python studies/benchmarks/tuning.py report studies/results/tables/tuning.csv
    python studies/benchmarks/tuning.py plot studies/results/tables/tuning.csv --out docs/images/tuning.png

Past runs are random searches of 30 settings: 20 of other data sets, and 3 of problems like the new ones. 30 new are
tuned. Every contestant chooses among the same 512 tabulated settings, 10 times. Regret is the best accuracy of the
table minus the best that was found. `measure --group validation` measures on other problems, which settings were chosen
on, with seeds from 1000.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from draw_loop import Draws, FirstSeed, Only, Out, ResultTable, Resume
from rich.console import Console
from rich.table import Table

from metaprior.files import write_atomically
from metaprior_studies.tuning.contestants import CONTESTANTS, draw_past, optimize
from metaprior_studies.tuning.regrets import bootstrap, draw_regrets, regrets_of
from metaprior_studies.tuning.scores import SPACES, read_scores
from metaprior_studies.tuning.scores import tabulate as tabulate_space

N_EVALUATIONS = 10
SCORES = Path(__file__).parents[1] / "results" / "tables" / "tuning_scores.csv.gz"
KEYS = ("space", "group", "seed", "contestant", "task")

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)
Results = Annotated[Path, typer.Argument(help="CSV file of `measure`.", exists=True)]


@app.command()
def tabulate(out: Out = SCORES) -> None:
    """Compute the accuracies of all settings on all data sets, and write them to one file."""
    pd.concat(map(tabulate_space, SPACES)).to_csv(out, index=False, float_format="%.4f")


@app.command()
def measure(
    out: Out,
    only: Only = "",
    group: Annotated[str, typer.Option(help="new or validation.")] = "new",
    draws: Draws = 3,
    first_seed: FirstSeed = 0,
    resume: Resume = False,
) -> None:
    """Tune every problem with every contestant; a row for each, with the regret after each evaluation."""
    table = ResultTable(out, KEYS, resume)
    for space in SPACES:
        scores = read_scores(SCORES, space)
        for seed in range(first_seed, first_seed + draws):
            for name, contestant in CONTESTANTS.items():
                label = {"space": space, "group": group, "seed": seed, "contestant": name}
                if only not in name or {**label, "task": 0} in table:
                    continue
                propose, rows = contestant(draw_past(scores, seed), scores.settings, seed), []
                for task, of_task in enumerate(scores.groups[group]):
                    regrets = optimize(propose, of_task, N_EVALUATIONS, np.random.default_rng([seed, task]))
                    columns = {f"regret_{i}": round(float(each), 4) for i, each in enumerate(regrets, 1)}
                    rows.append({**label, "task": task, **columns})
                table.add(*rows)


@app.command()
def report(results: Results, after: Annotated[int, typer.Option(help="Number of evaluations.")] = 5) -> None:
    """Print the mean and the median regret, and metaprior's mean as a share of it, with 95% bootstrap intervals."""
    frame = pd.read_csv(results)
    table = Table("space", "contestant", "mean regret", "median", "metaprior's mean / its mean")
    for space in frame["space"].unique():
        ours = regrets_of(frame, space, "metaprior")[..., after - 1]
        for name in frame["contestant"].unique():
            regrets = regrets_of(frame, space, name)[..., after - 1]
            cells = [bootstrap([regrets], np.mean), bootstrap([regrets], np.median)]
            cells.append(bootstrap([ours, regrets], lambda own, other: np.mean(own) / np.mean(other)))
            table.add_row(space, name, *(f"{value:.4f} [{low:.4f}, {high:.4f}]" for value, low, high in cells))
    Console(width=140).print(table)


@app.command()
def plot(results: Results, out: Out) -> None:
    """Draw the mean regrets by the number of evaluations."""
    write_atomically(out, draw_regrets(pd.read_csv(results)))


if __name__ == "__main__":
    app()
