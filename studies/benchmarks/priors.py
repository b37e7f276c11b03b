"""Which prior learns most from how many tasks, and what averaging over its hyper-posterior gains.

    python studies/benchmarks/priors.py measure --out studies/results/tables/priors.csv
    python studies/benchmarks/priors.py report studies/results/tables/priors.csv
    python studies/benchmarks/priors.py plot studies/results/tables/priors.csv --out docs/images/priors.png

The sinusoid at deviation 0.75 with 5 to 1000 target tasks of 5 samples and no source. Each draw has new tasks, test
tasks (100, of 5 context and 50 query points) and initial parameters. Cells of up to 30 tasks take seconds per draw on 2
cores, those of 1000 tasks minutes: measure them on an accelerator. The committed table was made by an earlier version
of this script, which trained all draws of a cell in one program on an H200.
"""

from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from draw_loop import REGRESSION_METRICS, Draws, FirstSeed, Only, Out, ResultTable, Resume, sinusoid_draw

from metaprior import MetaGPRegressor
from metaprior.datasets import Sinusoid
from metaprior.wfem import MAP, SVGD, Gaussian, LinearMean, Training, WFEMRegressor
from metaprior_studies.demo.rows import with_error
from metaprior_studies.environments.sinusoid_oracles import gp_oracle, score_oracle

DEVIATION = 0.75
N_TASKS = (5, 10, 15, 30, 100, 300, 1000)
PRIORS: dict[str, dict[str, Any]] = {
    "paper": {"mean": "mlp", "kernel": "mlp"},
    "linear": {"mean": "mlp", "kernel": "linear"},
    "linear+rbf": {"mean": LinearMean(1.0), "kernel": "linear+rbf"},
}
METHODS = {"map": MAP(), "map x 10": MAP(10), "svgd x 10": SVGD(10)}
DEFAULT = ("hierarchical", "default")  # MetaGPRegressor
CELLS = (
    *((*DEFAULT, n) for n in N_TASKS),
    *((prior, "map", n) for prior in PRIORS for n in N_TASKS),
    *(("paper", method, n) for method in ("map x 10", "svgd x 10") for n in (5, 15, 30)),
)
NOISE_STD = 0.1

app = typer.Typer(add_completion=False)


@app.command()
def measure(
    out: Out,
    draws: Draws = 50,
    first_seed: FirstSeed = 0,
    steps: Annotated[int, typer.Option(help="Training steps of every fit.")] = 2000,
    only: Only = "",
    resume: Resume = False,
):
    """Fit every cell ("prior method tasks") on every draw."""
    table = ResultTable(out, ("prior", "inference", "n_tasks", "draw"), resume)
    for prior, method, n_tasks in CELLS:
        if only in f"{prior} {method} {n_tasks}":
            for seed in range(first_seed, first_seed + draws):
                meta = make_estimator(prior, method, steps, seed)
                labels = {"prior": prior, "inference": method, "n_tasks": n_tasks, "draw": seed}
                table.measure(labels, meta, sinusoid_draw(DEVIATION, 0, n_tasks, [seed, n_tasks]))


def make_estimator(prior: str, method: str, n_steps: int, seed: int) -> Any:
    """Return the unfitted estimator of a cell, for target tasks alone; the noise is known."""
    if (prior, method) == DEFAULT:
        return MetaGPRegressor(0.0, noise_std=NOISE_STD, random_state=seed, progress=False)
    return WFEMRegressor(
        **PRIORS[prior],
        inference=METHODS[method],
        likelihood=Gaussian(NOISE_STD),
        alpha=0.0,
        temperature="bayes",
        training=Training(n_steps=n_steps, progress=False),
        random_state=seed,
    )


@app.command()
def report(path: Path):
    """Print mean and standard error over draws of every cell."""
    typer.echo("| prior | inference | tasks | RMSE | NLL | calibration error | 90% coverage | draws |")
    typer.echo("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for cell, rows in pd.read_csv(path).groupby(["prior", "inference", "n_tasks"], sort=False):
        values = [with_error(rows[metric].to_numpy()) for metric in REGRESSION_METRICS]
        typer.echo(f"| {' | '.join(map(str, cell))} | {' | '.join(values)} | {len(rows)} |")


@app.command()
def plot(path: Path, out: Annotated[Path, typer.Option(help="Image file to write.")]):
    """Plot the learning curve of every prior, with the true GP prior as a line."""
    from matplotlib.figure import Figure

    frame = pd.read_csv(path)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2)
    oracle = score_oracle(gp_oracle, Sinusoid(DEVIATION), Sinusoid(DEVIATION).test_tasks(5000, 5, 50, 0))
    for axes, metric, name in ((panels[0], "rmse", "RMSE"), (panels[1], "coverage", "coverage of 90% bands")):
        for prior, method in [*((prior, "map") for prior in PRIORS), DEFAULT]:
            rows = frame[(frame["prior"] == prior) & (frame["inference"] == method)]
            values = rows.groupby("n_tasks")[metric]
            label = f"{prior}, {method}"
            n_tasks, mean, half = values.mean().index, values.mean(), 1.96 * values.sem()
            axes.errorbar(n_tasks, mean, half, marker="o", markersize=3, label=label, capsize=2)
        axes.axhline(oracle[metric], color="black", linestyle=":", label="the true GP prior")
        axes.set(xscale="log", xlabel="target tasks of 5 samples", ylabel=name)
    panels[0].set(yscale="log", yticks=[0.15, 0.2, 0.3, 0.5, 1.0], yticklabels=["0.15", "0.2", "0.3", "0.5", "1"])
    panels[0].minorticks_off()
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(out, dpi=150)


if __name__ == "__main__":
    app()
