"""Conformal intervals for counts and ranks: their coverage and width on real tables.

    METAPRIOR_DATA=... python studies/benchmarks/conformal_responses.py --out \\
        studies/results/tables/conformal-responses.csv

Ranks are coma scores of PhysioNet with 20 target tasks, drawn as by `conformal.py real`, under the ordinal likelihood.
Counts are seizures of patients in four periods (epil, MASS), drawn as by `responses.py`: half of the 59 patients are
target tasks, the others are predicted from two random periods. Draws from 1,000,000 on served to choose the score;
those from 0 are reported.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from typing import Any

import typer
from conformal import Jobs, fitted_row, real_tasks, report, run_all
from draw_loop import Draws, FirstSeed, Only, Out, ResultTable, Resume
from responses import epil, split_groups

KINDS = (("physionet-gcs", "ordinal"), ("epil", "poisson"), ("epil", "negative-binomial"))
N_TARGET = 20  # of coma scores

app = typer.Typer(help=__doc__, add_completion=False, pretty_exceptions_enable=False)


def response_row(labels: dict[str, Any]) -> dict[str, Any]:
    """Fit and test one draw of a table with a likelihood."""
    name, likelihood = labels["kind"].split(", ")
    draw = labels["draw"]
    tasks = split_groups(epil(), draw) if name == "epil" else real_tasks(name, N_TARGET, draw)
    return fitted_row({**labels, "n_tasks": len(tasks.target)}, tasks, likelihood=likelihood)


@app.command()
def measure(
    out: Out, only: Only = "", draws: Draws = 10, first_seed: FirstSeed = 0, jobs: Jobs = 1, resume: Resume = False
) -> None:
    """Measure coverage and width on draws of real tables of counts and ranks."""
    kinds = [f"{name}, {likelihood}" for name, likelihood in KINDS]
    seeds = range(first_seed, first_seed + draws)
    wanted = ({"kind": kind, "draw": draw} for draw in seeds for kind in kinds if only in kind)
    run_all(ResultTable(out, ("kind", "draw"), resume), wanted, response_row, jobs, written=1)
    report(out)


if __name__ == "__main__":
    app()
