"""Choose defaults of the paper's prior on validation draws, which no test, demo or figure uses.

    python studies/benchmarks/choose_defaults.py --out studies/results/tables/defaults.csv

and measure them on other draws, with ten particles too:

    python studies/benchmarks/choose_defaults.py --first-seed 0 --only particles \\
        --out studies/results/tables/reached.csv

Every candidate is fitted as PACOH on N=30 target tasks of the sinusoid (deviation 0.75, M=5) and scored on 100 new
tasks of 5 context and 50 query points each. One setting of WFEMRegressor is varied at a time around the base. A fit
takes about a second on 2 cores, with SVGD five: all candidates take a few hours. The committed tables were made by an
earlier version of this script, which trained all draws of a candidate in one program on an H200 (its column `seconds`
is of all draws).
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from draw_loop import (
    REGRESSION_METRICS,
    FirstSeed,
    ResultTable,
    Resume,
    draws_file,
    sinusoid_draw,
    summarize,
    write_csv,
)

from metaprior.wfem import MAP, SVGD, Gaussian, HyperPrior, MLPKernel, Training, WFEMRegressor
from metaprior_studies.estimator_schemes import PAPER_PRIOR
from metaprior_studies.open_settings import FIRST_VALIDATION_SEED

TRAINING = Training(progress=False)
BASE: dict[str, Any] = {**PAPER_PRIOR, "alpha": 0.0, "likelihood": Gaussian(0.1), "training": TRAINING}
MEANS = ("train_loss", "seconds")  # of a fit


def candidates() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the base, and one argument varied at a time."""
    yield "base", {}
    for rate in (3e-3, 3e-2):
        yield f"learning_rate={rate:g}", {"training": replace(TRAINING, learning_rate=rate)}
    for n_steps in (1000, 4000, 8000):
        yield f"n_steps={n_steps}", {"training": replace(TRAINING, n_steps=n_steps)}
    constant = replace(TRAINING, schedule="constant", learning_rate=1e-3)
    yield "schedule=constant, learning_rate=1e-3", {"training": constant}
    for batch_size in (5, 15):
        yield f"batch_size={batch_size}", {"training": replace(TRAINING, batch_size=batch_size)}
    for temperature in ("effective", 40.0, 600.0, 2400.0):
        yield f"temperature={temperature}", {"temperature": temperature}
    for std in (0.3, 3.0, {"weights": 1.0, "biases": 3.0}, {"weights": 0.6, "biases": 1.0}):
        yield f"prior_std={std}", {"hyperprior": HyperPrior(std=std)}
    yield "prior_mean=initial", {"hyperprior": HyperPrior("initial")}
    for n_features in (2, 4, 16, 32):
        yield f"n_features={n_features}", {"kernel": MLPKernel(n_features=n_features)}
    scaled = MLPKernel(learn_output_scale=True)
    yield "output scale learned", {"kernel": scaled}
    yield "noise_std=learned", {"likelihood": Gaussian()}
    yield "noise_std=learned, output scale learned", {"likelihood": Gaussian(), "kernel": scaled}
    yield "kernel=linear", {"kernel": "linear"}
    yield "10 particles, map", {"inference": MAP(10)}
    yield "10 particles, svgd", {"inference": SVGD()}
    yield "10 particles, svgd, length_scale=1", {"inference": SVGD(length_scale=1.0)}
    yield "10 particles, svgd, start=hyperprior", {"inference": SVGD(start="hyperprior")}


def measure(table: ResultTable, name: str, arguments: dict[str, Any], seeds: range) -> None:
    """Add a row per draw of one candidate."""
    for seed in seeds:
        meta = WFEMRegressor(**{**BASE, **arguments}, random_state=seed)
        tasks = sinusoid_draw(0.75, 0, 30, seed)
        table.measure({"candidate": name, "draw": seed}, meta, tasks, (*REGRESSION_METRICS, "seconds"), _train_loss)


def main(
    draws: Annotated[int, typer.Option(help="Draws per candidate.")] = 128,
    first_seed: FirstSeed = FIRST_VALIDATION_SEED,
    only: Annotated[str, typer.Option(help="Candidates whose name contains this, beside the base.")] = "",
    out: Annotated[Path | None, typer.Option(help="CSV file to write; single draws go beside it.")] = None,
    resume: Resume = False,
):
    """Score the candidates and print a line for each; differences from the base are paired by draw."""
    table = ResultTable(draws_file(out), ("candidate", "draw"), resume)
    for name, arguments in candidates():
        if name == "base" or only in name:
            measure(table, name, arguments, range(first_seed, first_seed + draws))
            rows = summarize(table.frame(), "candidate", REGRESSION_METRICS, "rmse", "rmse_minus_base", MEANS)
            print(
                "{candidate:42s} rmse {rmse:.4f} ± {rmse_se:.4f} ({rmse_minus_base:+.4f} ± {rmse_minus_base_se:.4f})  "
                "nll {nll:+.3f} ± {nll_se:.3f}  coverage {coverage:.3f}  {seconds:.1f} s".format(**rows[-1]),
                flush=True,
            )
            if out is not None:
                write_csv(rows, out)


def _train_loss(meta: WFEMRegressor) -> dict[str, float]:
    return {"train_loss": float(f"{meta.loss_trace_[-1]:.4g}")}


if __name__ == "__main__":
    typer.run(main)
