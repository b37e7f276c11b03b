"""Does temperature="auto" pay? It against "bayes" on the sinusoid, both with alpha="auto" and the paper's prior.

    python studies/benchmarks/auto_temperature.py --out studies/results/tables/auto_temperature.csv --draws 4

N=30 tasks of M=5 samples, 5, 15 and 25 of them from the target at deviations 0.25, 0.5 and 0.75; 100 test tasks. A
draw takes about a minute on 2 cores. The committed table was made by an earlier version of this script.
"""

import typer
from draw_loop import REGRESSION_METRICS, Draws, FirstSeed, Out, ResultTable, Resume, sinusoid_draw

from metaprior.wfem import Gaussian, Training, WFEMRegressor
from metaprior_studies.demo.rows import with_error
from metaprior_studies.estimator_schemes import PAPER_PRIOR

CELLS = ((5, 0.25), (15, 0.5), (25, 0.75))
METRICS = (*REGRESSION_METRICS, "seconds")


def main(out: Out, draws: Draws = 8, first_seed: FirstSeed = 0, resume: Resume = False):
    """Fit both on the same draws, in turn, and print paired differences."""
    table = ResultTable(out, ("n_target", "deviation", "draw", "scheme"), resume)
    for seed in range(first_seed, first_seed + draws):
        for n_target, deviation in CELLS:
            tasks = sinusoid_draw(deviation, 30 - n_target, n_target, [seed, n_target])
            for temperature in ("bayes", "auto"):
                labels = {"n_target": n_target, "deviation": deviation, "draw": seed, "scheme": temperature}
                arguments = {**PAPER_PRIOR, "alpha": "auto", "temperature": temperature, "likelihood": Gaussian(0.1)}
                meta = WFEMRegressor(**arguments, training=Training(progress=False), random_state=seed)
                table.measure(labels, meta, tasks, METRICS)
    for (n_target, deviation), cell in table.frame().groupby(["n_target", "deviation"]):
        wide = cell.pivot(index="draw", columns="scheme", values=list(METRICS))
        for metric in METRICS:
            bayes, auto = wide[metric]["bayes"].to_numpy(), wide[metric]["auto"].to_numpy()
            typer.echo(
                f"{n_target} target tasks, deviation {deviation}, {metric}: bayes {bayes.mean():.3f}, "
                f"auto {auto.mean():.3f}, difference {with_error(auto - bayes, '+')}"
            )


if __name__ == "__main__":
    typer.run(main)
