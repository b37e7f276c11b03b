"""What alpha="auto" gains on the sinusoid, against target-only, pooled, and every alpha in hindsight.

    python studies/benchmarks/choosing_alpha.py measure --out studies/results/tables/choosing_alpha.csv
    python studies/benchmarks/choosing_alpha.py measure --inference default \\
        --out studies/results/tables/choosing_alpha_default.csv
    python studies/benchmarks/choosing_alpha.py report studies/results/tables/choosing_alpha.csv

N=30 tasks of M=5 samples, 5, 15 or 25 of them from the target, deviations 0 to 1. Each draw has new tasks, initial
parameters and 100 test tasks of 5 context and 50 query points. A draw of one setting is ten fits and takes about 15
seconds with MAP, a minute with SVGD and three seconds with the default on 2 cores: choose fewer draws or settings. The
committed table of MAP and SVGD was made by an earlier version of this script, which trained all draws in one program on
an H200.
"""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from draw_loop import Draws, FirstSeed, Out, ResultTable, Resume, score_row, sinusoid_draw
from scipy.stats import bootstrap

from metaprior import MetaGPRegressor
from metaprior.search.averaging import DISCOUNTS, discounted
from metaprior.wfem import Gaussian, Training, WFEMRegressor
from metaprior_studies.estimator_schemes import PAPER_PRIOR

DEVIATIONS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
N_TASKS = 30
HINDSIGHT = (*DISCOUNTS, 0.05, 0.2, 0.7)  # the grid of alpha="auto", then values between
NOISE_STD = 0.1

app = typer.Typer(add_completion=False)


@app.command()
def measure(
    out: Out,
    draws: Draws = 50,
    first_seed: FirstSeed = 0,
    steps: Annotated[int, typer.Option(help="Training steps of every fit.")] = 2000,
    inference: Annotated[str, typer.Option(help="Some of map, svgd and default, by commas.")] = "map,svgd",
    target: Annotated[str, typer.Option(help="Numbers of target tasks, separated by commas.")] = "5,15,25",
    resume: Resume = False,
):
    """Fit every alpha, and alpha="auto", on every draw of every setting."""
    table = ResultTable(out, ("inference", "n_target", "deviation", "draw"), resume)
    for kind in inference.split(","):
        for n_target in map(int, target.split(",")):
            for deviation in DEVIATIONS:
                for seed in range(first_seed, first_seed + draws):
                    labels = {"inference": kind, "n_target": n_target, "deviation": deviation, "draw": seed}
                    if labels not in table:
                        table.add(*rows_of_draw(labels, steps))


def rows_of_draw(labels: dict[str, Any], n_steps: int) -> list[dict[str, Any]]:
    """Return rows for every alpha of HINDSIGHT, for "auto", and for the alpha that has the most weight in it."""
    n_target, deviation, seed = labels["n_target"], labels["deviation"], labels["draw"]
    tasks = sinusoid_draw(deviation, N_TASKS - n_target, n_target, [seed, n_target, round(100 * deviation)])
    make = partial(make_estimator, labels["inference"], n_steps=n_steps, seed=seed)
    alphas = [1.0 - discounted((N_TASKS - n_target, n_target), 1, r)[1] for r in HINDSIGHT]
    rows = [score_row({**labels, "scheme": "fixed"}, make(alpha), tasks, describe=_alpha) for alpha in alphas]
    auto = make("auto")
    chosen = score_row({**labels, "scheme": "auto"}, auto, tasks, describe=_alpha)
    of_largest_weight = auto.alpha_path_.alpha[int(np.argmax(auto.alpha_path_.weight))]
    heaviest = rows[int(np.argmin(np.abs(np.array(alphas) - of_largest_weight)))]
    return [*rows, chosen, {**heaviest, "scheme": "heaviest"}]


def make_estimator(inference: str, alpha: float | str, n_steps: int, seed: int) -> Any:
    """Return the unfitted default, or the paper's prior with a method of inference."""
    if inference == "default":
        return MetaGPRegressor(alpha, noise_std=NOISE_STD, random_state=seed, progress=False)
    arguments = {**PAPER_PRIOR, "inference": inference, "alpha": alpha, "likelihood": Gaussian(NOISE_STD)}
    return WFEMRegressor(**arguments, training=Training(n_steps=n_steps, progress=False), random_state=seed)


@app.command()
def report(
    path: Path,
    metric: str = "rmse",
    best_by: Annotated[str, typer.Option(help="Metric that the best alpha is chosen by; default: `metric`.")] = "",
    scheme: Annotated[str, typer.Option(help='"auto", or "heaviest": its alpha with the most weight.')] = "auto",
):
    """Print a table of settings: target-only, pooled, best alpha in hindsight, auto, and ratios with 95% intervals.

    The best alpha of a setting is the one with the lowest mean over draws.
    """
    frame = pd.read_csv(path)
    for inference in frame["inference"].unique():
        rows = frame[frame["inference"] == inference]
        typer.echo(f"\n{inference}, {metric}, {scheme}\n")
        _report_one(rows, metric, best_by or metric, scheme)
        auto = rows.loc[rows["scheme"] == scheme, metric].mean()
        target_only = rows.loc[(rows["scheme"] == "fixed") & (rows["alpha"] == 0.0), metric].mean()
        typer.echo(f"{scheme} {auto:.3f}, target-only {target_only:.3f} over all settings")


def _report_one(rows: pd.DataFrame, metric: str, best_by: str, scheme: str) -> None:
    relative = metric != "nll"  # of log densities differences are meaningful, not ratios
    typer.echo(
        "| target tasks | deviation | target-only | pooled | best alpha | auto | auto / best | auto / target-only |"
    )
    typer.echo("| --- | --- | --- | --- | --- | --- | --- | --- |")
    against: dict[str, list[float]] = {"best alpha": [], "target-only": [], "better of two": []}
    for (n_target, deviation), cell in rows.groupby(["n_target", "deviation"], sort=False):
        fixed = cell[cell["scheme"] == "fixed"]
        values = fixed.pivot(index="draw", columns="alpha", values=metric)
        auto = cell[cell["scheme"] == scheme].set_index("draw")[metric].to_numpy()
        best, pooled = fixed.groupby("alpha")[best_by].mean().idxmin(), round((N_TASKS - n_target) / N_TASKS, 4)
        others = {"best alpha": values[best], "target-only": values[0.0]}
        others["better of two"] = min(values[0.0], values[pooled], key=np.mean)
        compared = {name: _compare(auto, other.to_numpy(), relative) for name, other in others.items()}
        for name, found in compared.items():
            against[name].append(found[0])
        means = f"{values[0.0].mean():.3f} | {values[pooled].mean():.3f} | {values[best].mean():.3f} ({best:.2f})"
        texts = " | ".join(_text(compared[name], relative) for name in ("best alpha", "target-only"))
        typer.echo(f"| {n_target} | {deviation} | {means} | {auto.mean():.3f} | {texts} |")
    unit = "%" if relative else " nats"
    for name, found in against.items():
        scaled = np.array(found) * (100 if relative else 1)
        typer.echo(f"\nagainst {name}: mean {scaled.mean():+.2f}{unit}, worst {scaled.max():+.2f}{unit}", nl=False)
    typer.echo()


def _alpha(meta: Any) -> dict[str, float]:
    return {"alpha": round(meta.alpha_, 4)}


def _compare(ours: np.ndarray, other: np.ndarray, relative: bool) -> tuple[float, float, float]:
    """Return the ratio of means less one, or the difference, with a paired bootstrap interval over draws."""
    statistic = (
        (lambda a, b, axis: a.mean(axis) / b.mean(axis) - 1) if relative else (lambda a, b, axis: (a - b).mean(axis))
    )
    interval = bootstrap(
        (ours, other), statistic, paired=True, vectorized=True, method="percentile", n_resamples=2000, rng=0
    ).confidence_interval
    return float(statistic(ours, other, -1)), float(interval.low), float(interval.high)


def _text(compared: tuple[float, float, float], relative: bool) -> str:
    if relative:
        value, low, high = (100 * each for each in compared)
        return f"{value:+.1f}% [{low:+.1f}, {high:+.1f}]"
    value, low, high = compared
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"


if __name__ == "__main__":
    app()
