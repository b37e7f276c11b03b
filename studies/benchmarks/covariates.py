"""Covariates of tasks and categories as inputs, with and without them, on the same draws.

    METAPRIOR_DATA=... python studies/benchmarks/covariates.py measure --out studies/results/tables/covariates.csv
    python studies/benchmarks/covariates.py report studies/results/tables/covariates.csv

PhysioNet: patients of all four units; age, sex and unit are covariates, of coma scores also as ranks. Test patients are
predicted from no reading, one and five. UJIIndoorLoc: access points of all three buildings; the building is a
covariate, and the floor, an input, is a category or a number. Hsb82: schools; minority and sex of pupils are categories
or 0 and 1. "useless" covariates are those of other tasks, drawn at random: they show what covariates cost that tell
nothing.
"""

import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import typer
from draw_loop import Draws, FirstSeed, Only, Out, ResultTable, Resume

from metaprior import MetaGPRegressor
from metaprior.metrics import mean_and_standard_error
from metaprior.tasks.types import Task
from metaprior_studies.environments.images import find_folder
from metaprior_studies.environments.real_tables import LEAST_POSITIONS, LEAST_READINGS
from metaprior_studies.peers.tables import ENVIRONMENTS

UNITS = {1: "coronary", 2: "cardiac surgery", 3: "medical", 4: "surgical"}
N_TEST = 100
METRICS = ("rmse", "nll", "coverage")
app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)


class Draw(NamedTuple):
    """Tasks (X, y) to learn from and to test on; X has all columns."""

    source: list[Any]
    target: list[Any]
    test: list[Any]


class Scheme(NamedTuple):
    """Which columns of X are used, and what they are."""

    columns: list[int]
    covariates: tuple[int, ...] = ()
    categorical: tuple[int, ...] = ()
    shuffled: bool = False  # covariates are those of other tasks

    def tasks(self, tasks: list[Any], seed: int) -> list[Any]:
        """Return tasks with the columns of this scheme."""
        order = np.random.default_rng(seed).permutation(len(tasks))
        found = []
        for i, (x, y) in enumerate(tasks):
            kept = x[:, self.columns].copy()
            if self.shuffled:
                other = tasks[order[i]][0]
                kept[:, list(self.covariates)] = other[0, [self.columns[j] for j in self.covariates]]
            found.append((kept if self.categorical else kept.astype(float), y))
        return found


class Study(NamedTuple):
    """A data set, its schemes, the first of which is compared with, and contexts of test tasks."""

    draw: Callable[[int], Draw]
    schemes: dict[str, Scheme]
    contexts: tuple[int, ...]
    likelihood: str = "gaussian"


def physionet(measure: str, n_tasks: int) -> Callable[[int], Draw]:
    """Return draws of patients with the columns hours, age, sex and unit."""

    def draw(seed: int) -> Draw:
        patients = _patients(measure)
        order = np.random.default_rng(seed).permutation(len(patients))[: n_tasks + N_TEST]
        chosen = [patients[i] for i in order.tolist()]
        return Draw([], chosen[:n_tasks], chosen[n_tasks:])

    return draw


@lru_cache
def _patients(measure: str) -> list[Any]:
    folder = find_folder("PhysioNet 2012", None, "physionet2012", ("patients.csv", f"{measure}.csv.gz"), "")
    patients = pd.read_csv(folder / "patients.csv").set_index("RecordID")
    rows = pd.read_csv(folder / f"{measure}.csv.gz").dropna()
    found = []
    for record, of_patient in rows.groupby("RecordID"):
        patient = patients.loc[record]
        if len(of_patient) >= LEAST_READINGS and patient["ICUType"] in UNITS:
            x = np.empty((len(of_patient), 4), object)
            x[:, 0], x[:, 1] = of_patient["t"].to_numpy(float), float(patient["Age"])
            x[:, 2] = {0.0: "female", 1.0: "male"}.get(patient["Gender"])  # some are missing
            x[:, 3] = UNITS[int(patient["ICUType"])]
            found.append((x, of_patient["y"].to_numpy(float)))
    return found


def access_points(seed: int) -> Draw:
    """Draw access points with the columns x_m, y_m, floor and building."""
    tasks = _radio_maps()
    order = np.random.default_rng(seed).permutation(len(tasks))[: 60 + N_TEST].tolist()
    rng, chosen = np.random.default_rng(seed), []
    for i in order:
        x, y = tasks[i]
        kept = np.sort(rng.choice(len(y), min(len(y), 50), replace=False))
        chosen.append((x[kept], y[kept]))
    return Draw([], chosen[:60], chosen[60:])


@lru_cache
def _radio_maps() -> list[Any]:
    folder = find_folder("UJIIndoorLoc", None, "ujiindoorloc", ("radiomap_tasks.csv.gz",), "")
    rows = pd.read_csv(folder / "radiomap_tasks.csv.gz").dropna()
    for axis in ("x_m", "y_m"):  # from the center of the building
        extremes = rows.groupby("building")[axis].transform(lambda values: (values.min() + values.max()) / 2)
        rows[axis] = rows[axis] - extremes
    found = []
    of_waps: Any = rows.groupby(["building", "wap"])
    for (building, _), of_wap in of_waps:
        if len(of_wap) >= LEAST_POSITIONS:
            x = np.empty((len(of_wap), 4), object)
            for j, name in enumerate(("x_m", "y_m", "floor")):
                x[:, j] = of_wap[name].to_numpy(float)
            x[:, 3] = f"building {building}"
            found.append((x, of_wap["rssi_dbm"].to_numpy(float)))
    return found


def schools(seed: int) -> Draw:
    """Draw schools with the columns cses, minority and female."""
    drawn = ENVIRONMENTS["hsb82"].draw(seed)
    join = lambda test: Task(np.concatenate(test[::2]), np.concatenate(test[1::2]))  # noqa: E731
    return Draw(list(drawn.source), list(drawn.target), [join(test) for test in drawn.test])


PATIENTS = {
    "without": Scheme([0]),
    "age, sex, unit": Scheme([0, 1, 2, 3], (1, 2, 3), (2, 3)),
    "useless": Scheme([0, 1, 2, 3], (1, 2, 3), (2, 3), shuffled=True),
}
STUDIES = {
    **{
        f"PhysioNet {measure}, {n} patients": Study(physionet(measure, n), PATIENTS, (0, 1, 5))
        for measure in ("GCS", "HCT")
        for n in (100, 300)
    },
    "PhysioNet GCS as ranks, 100 patients": Study(physionet("GCS", 100), PATIENTS, (0, 1, 5), "ordinal"),
    "UJIIndoorLoc": Study(
        access_points,
        {
            "without": Scheme([0, 1, 2]),
            "building": Scheme([0, 1, 2, 3], (3,), (3,)),
            "floor as a category": Scheme([0, 1, 2], (), (2,)),
            "useless": Scheme([0, 1, 2, 3], (3,), (3,), shuffled=True),
        },
        (0, 10),
    ),
    "Hsb82": Study(schools, {"0 and 1": Scheme([0, 1, 2]), "categories": Scheme([0, 1, 2], (), (1, 2))}, (0, 10)),
}


@app.command()
def measure(out: Out, only: Only = "", draws: Draws = 10, first_seed: FirstSeed = 0, resume: Resume = False) -> None:
    """Fit all schemes on draws of the data sets."""
    table = ResultTable(out, ("data", "draw", "scheme", "context"), resume)
    for seed in range(first_seed, first_seed + draws):
        for name, study in ((name, study) for name, study in STUDIES.items() if only in name):
            drawn = study.draw(seed)
            for scheme in study.schemes:
                labels = {"data": name, "draw": seed, "scheme": scheme}
                if {**labels, "context": study.contexts[0]} not in table:
                    table.add(*_rows(labels, study, drawn, study.schemes[scheme], seed))


def _rows(labels: dict[str, Any], study: Study, drawn: Draw, scheme: Scheme, seed: int) -> list[dict[str, Any]]:
    """Return the scores of a scheme with every size of contexts."""
    source, target, test = (scheme.tasks(tasks, seed + i) for i, tasks in enumerate(drawn))
    given = {"covariates": scheme.covariates or None, "categorical": scheme.categorical or None}
    given |= {"likelihood": study.likelihood}
    meta, started = MetaGPRegressor(random_state=seed, progress=False, **given), time.perf_counter()
    meta.fit(source or None, target)
    seconds, rows = time.perf_counter() - started, []
    for n_context in study.contexts:
        rng = np.random.default_rng(seed)
        orders = [rng.permutation(len(y)) for _, y in test]
        splits = [np.split(order, [n_context]) for order in orders]
        tests = [(x[c], y[c], x[q], y[q]) for (x, y), (c, q) in zip(test, splits, strict=True)]
        scores = meta.evaluate(tests)
        rows.append({**labels, "context": n_context, **{each: round(float(scores[each]), 5) for each in METRICS}})
        rows[-1] |= {"seconds": round(seconds, 1), **{k: round(v, 3) for k, v in meta.covariate_weights_.items()}}
    typer.echo(rows[0], err=True)
    return rows


@app.command()
def report(results: Annotated[Path, typer.Argument(help="CSV file of `measure`.")]) -> None:
    """Print means over draws, and paired differences from the first scheme with standard errors."""
    frame = pd.read_csv(results)
    typer.echo("| data | context | scheme | nll | difference | rmse | difference | seconds | draws |")
    typer.echo("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    groups: Any = frame.groupby(["data", "context"], sort=False)
    for (name, context), rows in groups:
        first = rows[rows["scheme"] == rows["scheme"].iloc[0]].set_index("draw")
        for scheme, chosen in rows.groupby("scheme", sort=False):
            chosen, cells = chosen.set_index("draw"), []
            for metric in ("nll", "rmse"):
                mean, error = mean_and_standard_error((chosen[metric] - first[metric]).dropna().to_numpy())
                cells += [f"{chosen[metric].mean():.4f}", f"{mean:+.4f} ± {error:.4f}" if mean else ""]
            cells += [f"{chosen['seconds'].mean():.1f}", str(len(chosen))]
            typer.echo(f"| {name} | {context} | {scheme} | {' | '.join(cells)} |")


if __name__ == "__main__":
    app()
