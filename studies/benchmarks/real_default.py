"""The default estimator and scikit-learn's GP per task, on draws of real environments that nothing was chosen by.

    METAPRIOR_DATA=... python studies/benchmarks/real_default.py studies/results/tables/real_default.csv

20 minutes on 2 cores. `metaprior bench-data` compares more schemes, on draws from 0. The committed table was made by an
earlier version of this script.
"""

from pathlib import Path
from typing import Annotated

import typer
from draw_loop import Draws, FirstSeed, Only, ResultTable, Resume, real_draw, rounded

from metaprior import MetaGPRegressor
from metaprior.estimators.comparison import score_per_task_gp
from metaprior_studies.demo.rows import with_error
from metaprior_studies.real.real_study import METRICS, STUDIES

NAMES = ("physionet-gcs", "physionet-hct", "intel-berkeley")


def main(
    out: Annotated[Path, typer.Argument(help="CSV file to write.")],
    first_seed: FirstSeed = 100,
    draws: Draws = 10,
    only: Only = "",
    resume: Resume = False,
):
    """Score both on every draw, and print paired differences."""
    table = ResultTable(out, ("data", "draw", "model"), resume)
    for name in (name for name in NAMES if only in name):
        for seed in range(first_seed, first_seed + draws):
            tasks = real_draw(name, STUDIES[name].n_target, seed)
            labels = {"data": name, "draw": seed}
            meta = MetaGPRegressor(random_state=seed, progress=False)
            table.measure({**labels, "model": "default"}, meta, tasks, METRICS)
            if {**labels, "model": "scikit-learn"} not in table:
                table.add({**labels, "model": "scikit-learn", **rounded(score_per_task_gp(tasks.test), METRICS)})
        wide = table.frame().query("data == @name").pivot(index="draw", columns="model", values=list(METRICS))
        for metric in METRICS:
            default, other = (wide[metric][model].to_numpy() for model in ("default", "scikit-learn"))
            print(f"{name} {metric}: {default.mean():.3f}, minus scikit-learn {with_error(default - other, '+')}")


if __name__ == "__main__":
    typer.run(main)
