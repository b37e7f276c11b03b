"""The inducing prior, the paper's, and the one that held-out tasks choose, on real environments; alpha chosen too.

    METAPRIOR_DATA=... python studies/benchmarks/real_priors.py measure --out studies/results/tables/real_priors.csv --draws 15
    python studies/benchmarks/real_priors.py report studies/results/tables/real_priors.csv

Every draw has new source, target and test tasks (disjoint, by station, sensor or radio where there are such groups);
noise is learned, all else is the estimator's default.
"""

import csv
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from metaprior import MetaGPRegressor
from metaprior_studies.environments.real_tables import (
    colorado,
    intel_berkeley,
    physionet_gcs,
    physionet_hct,
    ujiindoorloc,
)

METRICS = ("rmse", "nll", "calibration_error", "coverage")
PRIORS: dict[str, dict[str, Any]] = {
    "inducing": {"kernel": "inducing"},
    "paper": {"mean": "mlp", "kernel": "mlp", "inference": "map"},
    "auto": {},
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
def measure(
    out: Annotated[Path, typer.Option()], draws: int = 15, first_seed: int = 0, only: str = "", prior: str = ""
):
    """Fit every prior (or one) on every draw of every study (those whose name has `only` in it)."""
    rows: list[dict[str, Any]] = []
    loaded: dict[Any, Any] = {}
    for seed in range(first_seed, first_seed + draws):  # draws outside: a run cut short has some of every study
        for name, study in STUDIES.items():
            if only not in name:
                continue
            if study.load not in loaded:
                loaded[study.load] = study.load()
            draw = loaded[study.load].draw(study.n_source, study.n_target, study.n_test, seed, study.max_samples)
            for name_of_prior, arguments in PRIORS.items():
                if prior not in name_of_prior:
                    continue
                meta = MetaGPRegressor(noise_std="learned", random_state=seed, progress=False, **arguments)
                scores = meta.fit(draw.source, draw.target).evaluate(draw.test)
                values = {metric: round(float(scores[metric]), 4) for metric in METRICS}
                row = {"study": name, "draw": seed, "prior": name_of_prior, "family": meta.family_}
                rows.append({**row, "alpha": round(meta.alpha_, 4), **values})
                typer.echo(f"{row}: {values}", err=True)
            with out.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)


@app.command()
def report(path: Path, metric: str = "rmse"):
    """Means over draws, and paired differences from the paper's prior on the draws that both have."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    typer.echo(f"| {metric} | paper | inducing - paper | draws | auto - paper | draws | mlp chosen |")
    typer.echo("| --- | --- | --- | --- | --- | --- | --- |")
    for study in STUDIES:
        of_prior = {
            prior: {r["draw"]: r for r in rows if (r["study"], r["prior"]) == (study, prior)} for prior in PRIORS
        }
        paper = {draw: float(row[metric]) for draw, row in of_prior["paper"].items()}
        cells = [f"{np.mean(list(paper.values())):.3f}"]
        for prior in ("inducing", "auto"):
            gains = np.array([float(r[metric]) - paper[d] for d, r in of_prior[prior].items() if d in paper])
            error = gains.std(ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else np.nan
            cells += [f"{gains.mean():+.3f} ± {error:.3f}" if len(gains) else "", str(len(gains))]
        cells.append(str(sum(row["family"] == "mlp" for row in of_prior["auto"].values())))
        typer.echo(f"| {study} | {' | '.join(cells)} |")


if __name__ == "__main__":
    app()
