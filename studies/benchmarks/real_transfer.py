"""What `alpha="auto"` is worth on real environments, against every alpha of its grid.

    METAPRIOR_DATA=... python studies/benchmarks/real_transfer.py measure --out studies/results/tables/real_transfer.csv
    python studies/benchmarks/real_transfer.py report studies/results/tables/real_transfer.csv

Every draw has new source, target and test tasks (disjoint, by station or radio where there are such groups); noise is
learned, all else is the estimator's default. A new task has the context that the loader of its data set gives it.
"""

import csv
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from metaprior import MetaGPRegressor
from metaprior.search.weights import DISCOUNTS, discounted
from metaprior_studies.environments.real_tables import colorado, physionet_gcs, ujiindoorloc

METRICS = ("rmse", "nll", "calibration_error", "coverage")


class Study(NamedTuple):
    """A data set, and how many tasks of it; meta-training tasks are capped at so many samples."""

    load: Any
    n_target: int
    n_source: int = 40
    n_test: int = 60
    max_samples: int | None = None


STUDIES = {
    "Colorado climate, 5 target": Study(colorado, 5),
    "Colorado climate, 20 target": Study(colorado, 20),
    "PhysioNet GCS, 5 target": Study(physionet_gcs, 5, max_samples=12),
    "UJIIndoorLoc, 5 target": Study(ujiindoorloc, 5, n_test=40, max_samples=16),
}

PAPER: dict[str, Any] = {"mean": "mlp", "kernel": "mlp", "inference": "map"}  # prior

app = typer.Typer(add_completion=False)


@app.command()
def measure(out: Annotated[Path, typer.Option()], draws: int = 10, first_seed: int = 0, only: str = ""):
    """Fit every alpha of the grid and "auto" on every draw of every study."""
    rows: list[dict[str, Any]] = []
    loaded: dict[Any, Any] = {}
    for seed in range(first_seed, first_seed + draws):  # draws outside: a run cut short has some of every study
        for name, study in STUDIES.items():
            if only not in name:
                continue
            environment = loaded.setdefault(study.load, None) or study.load()
            loaded[study.load] = environment
            draw = environment.draw(study.n_source, study.n_target, study.n_test, seed, study.max_samples)
            counts = [study.n_source, study.n_target]
            alphas = {f"r = {r:g}": 1.0 - discounted(counts, 1, r)[1] for r in DISCOUNTS}
            for scheme, alpha in [*alphas.items(), ("auto", "auto")]:
                meta = MetaGPRegressor(alpha, noise_std="learned", random_state=seed, progress=False, **PAPER)
                report = meta.fit(draw.source, draw.target).evaluate(draw.test)
                values = {metric: round(float(report[metric]), 4) for metric in METRICS}
                rows.append({"study": name, "draw": seed, "scheme": scheme, "alpha": round(meta.alpha_, 4), **values})
            with out.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
            typer.echo(f"draw {seed}, {name}: alpha {rows[-1]['alpha']}", err=True)


@app.command()
def report(path: Path, metric: str = "rmse"):
    """Means over draws, and the paired difference of "auto" from target-only and from the best alpha in hindsight."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    typer.echo(f"| {metric} | target-only | pooled | best alpha | auto | auto - best | auto - target-only | draws |")
    typer.echo("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for study in dict.fromkeys(row["study"] for row in rows):
        values = {
            scheme: np.array([float(r[metric]) for r in rows if (r["study"], r["scheme"]) == (study, scheme)])
            for scheme in dict.fromkeys(row["scheme"] for row in rows)
        }
        auto, target_only = values["auto"], values["r = 0"]
        fixed = {scheme: v for scheme, v in values.items() if scheme != "auto"}
        best = min(fixed, key=lambda scheme: fixed[scheme].mean())
        cells = [f"{target_only.mean():.3f}", f"{values['r = 1'].mean():.3f}", f"{fixed[best].mean():.3f} ({best})"]
        cells += [
            f"{auto.mean():.3f}",
            _difference(auto - fixed[best]),
            _difference(auto - target_only),
            str(len(auto)),
        ]
        typer.echo(f"| {study} | {' | '.join(cells)} |")


def _difference(values: np.ndarray) -> str:
    return f"{values.mean():+.3f} ± {values.std(ddof=1) / np.sqrt(len(values)):.3f}"


if __name__ == "__main__":
    app()
