"""The default prior against the paper's on real environments, alpha chosen by held-out tasks in both.

    METAPRIOR_DATA=... python benchmarks/real_priors.py measure --out docs/results/real_priors.csv --draws 32
    python benchmarks/real_priors.py report docs/results/real_priors.csv

Every draw has new source, target and test tasks (disjoint, by station, sensor or radio where there are such groups);
noise is learned, all else is the estimator's default.
"""

import csv
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from metaprior import MetaGPRegressor
from metaprior.environments.grouped import colorado, intel_berkeley, physionet_gcs, physionet_hct, ujiindoorloc

METRICS = ("rmse", "nll", "calibration_error", "coverage")
PRIORS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper, map": {"mean": "mlp", "kernel": "mlp", "inference": "map"},
}


class Study(NamedTuple):
    """A data set, and how many tasks of it; meta-training tasks are capped at so many samples."""

    load: Any
    n_target: int
    n_source: int = 40
    n_test: int = 60
    max_samples: int | None = None


STUDIES = {
    "Colorado climate": Study(colorado, 5),
    "PhysioNet GCS": Study(physionet_gcs, 5, max_samples=12),
    "PhysioNet HCT": Study(physionet_hct, 5, max_samples=12),
    "UJIIndoorLoc": Study(ujiindoorloc, 5, n_test=40, max_samples=16),
    "Intel Berkeley": Study(intel_berkeley, 5, n_test=40, max_samples=16),
}

app = typer.Typer(add_completion=False)


@app.command()
def measure(out: Annotated[Path, typer.Option()], draws: int = 32, first_seed: int = 0, only: str = ""):
    """Fit every prior on every draw of every study (those whose name has `only` in it)."""
    rows: list[dict[str, Any]] = []
    loaded: dict[Any, Any] = {}
    for seed in range(first_seed, first_seed + draws):  # draws outside: a run cut short has some of every study
        for name, study in STUDIES.items():
            if only not in name:
                continue
            if study.load not in loaded:
                loaded[study.load] = study.load()
            draw = loaded[study.load].draw(study.n_source, study.n_target, study.n_test, seed, study.max_samples)
            for prior, arguments in PRIORS.items():
                meta = MetaGPRegressor(noise_std="learned", random_state=seed, progress=False, **arguments)
                scores = meta.fit(draw.source, draw.target).evaluate(draw.test)
                values = {metric: round(float(scores[metric]), 4) for metric in METRICS}
                rows.append({"study": name, "draw": seed, "prior": prior, "alpha": round(meta.alpha_, 4), **values})
            with out.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
            typer.echo(f"draw {seed}, {name}: {rows[-2]['rmse']} against {rows[-1]['rmse']}", err=True)


@app.command()
def report(path: Path, metric: str = "rmse"):
    """Means over draws, and the paired difference of the default prior from every other."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    others = list(PRIORS)[1:]
    typer.echo(f"| {metric} | {' | '.join(PRIORS)} | {' | '.join(f'default - {p}' for p in others)} | draws |")
    typer.echo(f"| {' | '.join(['---'] * (2 + len(PRIORS) + len(others)))} |")
    for study in STUDIES:
        values = {
            prior: np.array([float(r[metric]) for r in rows if (r["study"], r["prior"]) == (study, prior)])
            for prior in PRIORS
        }
        ours = values["default"]
        if not len(ours):
            continue
        means = [f"{v.mean():.3f}" for v in values.values()]
        differences = [
            f"{d.mean():+.3f} ± {d.std(ddof=1) / np.sqrt(len(d)):.3f}" for d in (ours - values[o] for o in others)
        ]
        typer.echo(f"| {study} | {' | '.join([*means, *differences])} | {len(ours)} |")


if __name__ == "__main__":
    app()
