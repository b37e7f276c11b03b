"""Priors trained by gradients, on real environments: inducing, the paper's, and the one of the two that is chosen.

    METAPRIOR_DATA=... python studies/benchmarks/real_priors.py measure --draws 15 \\
        --out studies/results/tables/real_priors.csv
    python studies/benchmarks/real_priors.py report studies/results/tables/real_priors.csv

Every draw has new source, target and test tasks, those of `metaprior bench-data`. Noise is learned and alpha chosen by
cross-validation. `make peers` and `real_default.py` measure the default. The committed table was made by earlier
versions of this script, one prior at a time (`--prior`).
"""

from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from draw_loop import PAPER_PRIOR, Draws, FirstSeed, Only, Out, ResultTable, Resume, real_draw

from metaprior import MetaGPRegressor
from metaprior_studies.demo.rows import with_error

PRIORS: dict[str, dict[str, Any]] = {
    "inducing": {"kernel": "inducing"},
    "paper": PAPER_PRIOR,
    "auto": {"n_steps": 2000},  # training by gradients, which chooses between these two
}
ENVIRONMENTS = {
    "Colorado climate": "colorado",
    "PhysioNet GCS": "physionet-gcs",
    "PhysioNet HCT": "physionet-hct",
    "UJIIndoorLoc": "ujiindoorloc",
    "Intel Berkeley": "intel-berkeley",
}
N_TARGET = 5

app = typer.Typer(add_completion=False)


@app.command()
def measure(
    out: Out,
    draws: Draws = 15,
    first_seed: FirstSeed = 0,
    only: Only = "",
    prior: Annotated[str, typer.Option(help="Only priors whose name contains this.")] = "",
    resume: Resume = False,
):
    """Fit every prior on every draw of every environment."""
    table = ResultTable(out, ("study", "draw", "prior"), resume)
    for seed in range(
        first_seed, first_seed + draws
    ):  # the outer loop, so that an interrupted run has all environments
        for study, environment in ENVIRONMENTS.items():
            if only in study:
                tasks = real_draw(environment, N_TARGET, seed)
                for name in (name for name in PRIORS if prior in name):
                    labels = {"study": study, "draw": seed, "prior": name}
                    meta = MetaGPRegressor(random_state=seed, progress=False, **PRIORS[name])
                    table.measure(labels, meta, tasks, describe=_family_and_alpha)


@app.command()
def report(path: Path, metric: str = "rmse"):
    """Print means over draws, and paired differences from the paper's prior on the draws that both have."""
    frame = pd.read_csv(path)
    typer.echo(f"| {metric} | paper | inducing - paper | draws | auto - paper | draws | mlp chosen |")
    typer.echo("| --- | --- | --- | --- | --- | --- | --- |")
    for study in ENVIRONMENTS:
        rows = frame[frame["study"] == study]
        values = rows.pivot(index="draw", columns="prior", values=metric)
        cells = [f"{values['paper'].mean():.3f}"]
        for prior in ("inducing", "auto"):
            gains = (values[prior] - values["paper"]).dropna().to_numpy() if prior in values else []
            cells += [with_error(gains, "+") if len(gains) else "", str(len(gains))]
        cells.append(str(((rows["prior"] == "auto") & (rows["family"] == "mlp")).sum()))
        typer.echo(f"| {study} | {' | '.join(cells)} |")


def _family_and_alpha(meta: MetaGPRegressor) -> dict[str, Any]:
    return {"family": meta.family_, "alpha": round(meta.alpha_, 4)}


if __name__ == "__main__":
    app()
