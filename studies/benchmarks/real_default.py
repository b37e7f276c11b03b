"""The default and scikit-learn's GP per task on draws of real environments that nothing was chosen by.

METAPRIOR_DATA=... python studies/benchmarks/real_default.py studies/results/tables/real_default.csv
"""

import csv
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from metaprior import MetaGPRegressor
from metaprior.estimators.regression_baselines import score_per_task_gp
from metaprior_studies.real.real_study import ENVIRONMENTS, METRICS, STUDIES

NAMES = ("physionet-gcs", "physionet-hct", "intel-berkeley")


def main(out: Path, first_seed: int = 100, draws: int = 10, only: Annotated[str, typer.Option()] = ""):
    rows = []
    for name in (name for name in NAMES if only in name):
        study, data = STUDIES[name], ENVIRONMENTS[name]()
        for seed in range(first_seed, first_seed + draws):
            tasks = study.draw(seed, data)
            meta = MetaGPRegressor(random_state=seed, progress=False)
            meta.fit(tasks.source[: study.n_source], tasks.target[: study.n_target])
            for model, scores in (
                ("default", meta.evaluate(tasks.test)),
                ("scikit-learn", score_per_task_gp(tasks.test)),
            ):
                values = {metric: round(float(scores[metric]), 4) for metric in METRICS}
                rows.append({"data": name, "draw": seed, "model": model, **values})
            with out.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
        for metric in METRICS:
            default, other = (
                np.array([row[metric] for row in rows if (row["data"], row["model"]) == (name, model)])
                for model in ("default", "scikit-learn")
            )
            difference = default - other
            error = difference.std(ddof=1) / np.sqrt(draws)
            print(f"{name} {metric}: {default.mean():.3f}, minus scikit-learn {difference.mean():+.3f} ± {error:.3f}")


if __name__ == "__main__":
    typer.run(main)
