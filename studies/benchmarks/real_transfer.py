"""What alpha="auto" gains on real environments, against every alpha of its grid, with the paper's prior.

    METAPRIOR_DATA=... python studies/benchmarks/real_transfer.py measure --draws 6 \\
        --out studies/results/tables/real_transfer.csv
    python studies/benchmarks/real_transfer.py report studies/results/tables/real_transfer.csv

Every draw has new source, target and test tasks, those of `metaprior bench-data`. Noise is learned.
The committed table was made by an earlier version of this script.
"""

from pathlib import Path
from typing import Any

import pandas as pd
import typer
from draw_loop import Draws, FirstSeed, Only, Out, ResultTable, Resume, real_draw

from metaprior.search.averaging import DISCOUNTS, discounted
from metaprior.wfem import Training, WFEMRegressor
from metaprior_studies.demo.rows import with_error
from metaprior_studies.estimator_schemes import PAPER_PRIOR

ENVIRONMENTS = {
    "Colorado climate, 5 target": ("colorado", 5),
    "Colorado climate, 20 target": ("colorado", 20),
    "PhysioNet GCS, 5 target": ("physionet-gcs", 5),
    "UJIIndoorLoc, 5 target": ("ujiindoorloc", 5),
}

app = typer.Typer(add_completion=False)


@app.command()
def measure(out: Out, draws: Draws = 10, first_seed: FirstSeed = 0, only: Only = "", resume: Resume = False):
    """Fit every alpha of the grid and "auto" on every draw of every environment."""
    table = ResultTable(out, ("study", "draw", "scheme"), resume)
    for seed in range(
        first_seed, first_seed + draws
    ):  # the outer loop, so that an interrupted run has all environments
        for study in (study for study in ENVIRONMENTS if only in study):
            tasks = real_draw(*ENVIRONMENTS[study], seed)
            counts = [len(tasks.source), len(tasks.target)]
            alphas: dict[str, Any] = {f"r = {r:g}": 1.0 - discounted(counts, 1, r)[1] for r in DISCOUNTS}
            for scheme, alpha in {**alphas, "auto": "auto"}.items():
                training = Training(progress=False)
                meta = WFEMRegressor(alpha=alpha, training=training, random_state=seed, **PAPER_PRIOR)
                table.measure({"study": study, "draw": seed, "scheme": scheme}, meta, tasks, describe=_alpha)


@app.command()
def report(path: Path, metric: str = "rmse"):
    """Print means over draws, and paired differences of "auto" from target-only and the best alpha in hindsight."""
    typer.echo(f"| {metric} | target-only | pooled | best alpha | auto | auto - best | auto - target-only | draws |")
    typer.echo("| --- | --- | --- | --- | --- | --- | --- | --- |")
    frame = pd.read_csv(path)
    for study in frame["study"].unique():
        values = frame[frame["study"] == study].pivot(index="draw", columns="scheme", values=metric)
        best = str(values.drop(columns="auto").mean().idxmin())
        means = [f"{values[scheme].mean():.3f}" for scheme in ("r = 0", "r = 1", best, "auto")]
        means[2] += f" ({best})"
        differences = [with_error((values["auto"] - values[other]).to_numpy(), "+") for other in (best, "r = 0")]
        typer.echo(f"| {study} | {' | '.join([*means, *differences, str(len(values))])} |")


def _alpha(meta: WFEMRegressor) -> dict[str, float]:
    return {"alpha": round(meta.alpha_, 4)}


if __name__ == "__main__":
    app()
