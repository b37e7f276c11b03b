"""What a mended rule changes: the length scale of the inducing prior with more than 40 tasks, and its predictions.

    METAPRIOR_DATA=data python studies/benchmarks/length_scale.py --out studies/results/tables/length_scale.csv

With more than 40 tasks a sample chooses the length scale. The former rule drew tasks in proportion to their weight and
weighted the evidence by it again. A row per environment of the real-data study, draw and alpha has both choices; with
`--fits`, rows where they differ have RMSE and NLL of fits with both.
"""

import argparse
import csv
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from metaprior import MetaGPRegressor
from metaprior.wfem import placement
from metaprior.wfem.placement import MAX_SAMPLES, MAX_TASKS, TaskSample
from metaprior_studies.real.real_study import ENVIRONMENTS, STUDIES

ALPHAS = (0.1, 0.2, 0.5, 0.8)
CURRENT = placement._subsample


def former(tasks: Any, counts: Sequence[Any]) -> Iterator[TaskSample]:
    """Return the sample of the former rule."""
    every = np.concatenate([np.asarray(count, float) for count in counts])
    chosen = every > 0
    if np.count_nonzero(chosen) > MAX_TASKS:
        quantiles = (np.arange(MAX_TASKS) + 0.5) / MAX_TASKS
        chosen = np.isin(np.arange(len(every)), np.searchsorted(np.cumsum(every) / every.sum(), quantiles))
    by_bucket = np.split(chosen, np.cumsum([len(count) for count in counts])[:-1])
    for bucket, count, of_bucket in zip(tasks.buckets, counts, by_bucket, strict=True):
        rows, size = np.flatnonzero(of_bucket), np.shape(bucket.y)[1]
        columns = np.unique(np.linspace(0, size - 1, min(size, MAX_SAMPLES)).astype(int))
        if len(rows):
            x, y, mask = (np.asarray(leaf)[rows][:, columns] for leaf in (bucket.x, bucket.y, bucket.mask))
            yield TaskSample(x.astype(float), y.astype(float), mask, np.asarray(count, float)[rows])


def fit(rule: Any, source: Any, target: Any, **settings: Any) -> tuple[MetaGPRegressor, float]:
    """Return a fit by a rule, and the length scale of its first member."""
    placement._subsample = rule
    meta = MetaGPRegressor(kernel="inducing", noise_std="learned", **settings).fit(source, target)
    basis = meta.model_.members[0].rest.kernel.basis
    return meta, float(np.exp(basis.log_length_scale.value))


def rows(name: str, draw: int, fits: bool) -> Iterator[dict[str, Any]]:
    """Yield a row for every alpha."""
    study = STUDIES[name]
    tasks = study.draw(draw, ENVIRONMENTS[name]())
    target = tasks.target[: study.n_target]
    rules = (("former", former), ("current", CURRENT))
    for alpha in ALPHAS:
        settings = {"alpha": alpha, "random_state": draw}
        row: dict[str, Any] = {"data": name, "draw": draw, "alpha": alpha}
        for label, rule in rules:
            row[f"length_scale_{label}"] = round(fit(rule, tasks.source, target, n_steps=0, **settings)[1], 4)
        if fits and row["length_scale_former"] != row["length_scale_current"]:  # else nothing else differs
            for label, rule in rules:
                meta, _ = fit(rule, tasks.source, target, n_steps=study.n_steps, **settings)
                found = meta.evaluate(tasks.test)
                row |= {f"{metric}_{label}": round(float(found[metric]), 5) for metric in ("rmse", "nll")}
        yield row


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--fits", action="store_true")
    asked = parser.parse_args()
    columns = ["data", "draw", "alpha"]
    columns += [f"{name}_{label}" for name in ("length_scale", "rmse", "nll") for label in ("former", "current")]
    with open(asked.out, "w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for name in ENVIRONMENTS:
            for draw in range(asked.draws):
                writer.writerows(rows(name, draw, asked.fits))
                file.flush()


if __name__ == "__main__":
    main()
