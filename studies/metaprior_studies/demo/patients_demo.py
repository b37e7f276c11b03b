"""The example tables: a prior of patients in two hospitals, compared with other models, and predictions of new ones."""

from collections.abc import Mapping
from importlib import import_module, resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from metaprior import MetaGPRegressor
from metaprior.plots import plot_prediction
from metaprior.tables.columns import as_columns
from metaprior.tables.frames import split_table, tasks_from_frame
from metaprior.tables.grouping import TaskTable, group_rows
from metaprior.tasks.columns import Features
from metaprior.tasks.types import Task
from metaprior_studies.demo.rows import OnFit, Rows
from metaprior_studies.drawn_tasks import DrawnTasks
from metaprior_studies.peers.contestants import METRICS, as_contestant, fit_per_task
from metaprior_studies.peers.contestants import run as run_contestant
from metaprior_studies.peers.mixed_model import fit_mixed
from metaprior_studies.peers.protocol import Contestant

COLUMNS: dict[str, str] = {"task": "patient", "x": "hours", "y": "heart_rate", "environment": "hospital"}
SOURCE, TARGET = "north", "south"
N_CONTEXT, N_SHOWN, COVERAGE = 5, 3, 0.9
OURS, MIXED, ALONE = "metaprior", "mixed model (statsmodels)", "GP of each patient (scikit-learn)"
STEPS = (OURS, MIXED, ALONE, "predictions")  # what `run` and `predict` report


class Patients(NamedTuple):
    """The example tables: patients of two hospitals to learn from, and others of the target hospital."""

    source: list[Task]
    target: list[Task]
    test: TaskTable

    @classmethod
    def read(cls) -> "Patients":
        """Read the tables of the package."""
        with resources.as_file(resources.files("metaprior").joinpath("datasets", "example")) as folder:
            by_hospital = tasks_from_frame(folder / "patients.csv", **COLUMNS)
            test = group_rows(folder / "test.csv", as_columns(**COLUMNS))
        return cls(by_hospital[SOURCE], by_hospital[TARGET], test)


def run(patients: Patients, seed: int, on_fit: OnFit = lambda name: None) -> tuple[Any, Rows]:
    """Fit the default and the other models; return it, and a row of scores on the test patients for each model."""
    import_module("statsmodels.regression.mixed_linear_model")  # which takes a second, counted for no model
    tests, *_ = split_table(patients.test, N_CONTEXT, np.random.default_rng(seed), Features(1), TARGET)
    tasks = DrawnTasks(patients.source, patients.target, tests)
    by_hospital = {SOURCE: patients.source, TARGET: patients.target}
    meta = MetaGPRegressor(random_state=seed, progress=False)
    models: Mapping[str, Contestant] = {
        OURS: lambda *_: as_contestant(meta.fit(by_hospital, target=TARGET)),
        MIXED: fit_mixed,
        ALONE: fit_per_task,
    }
    rows = []
    for name, model in models.items():
        on_fit(name)
        scores = run_contestant(model, tasks, seed)
        rows.append({"model": name, **{metric: round(scores[metric], 4) for metric in (*METRICS, "seconds")}})
    return meta, rows


def summary(rows: Rows) -> list[tuple[str, ...]]:
    """Return the table: model, RMSE, NLL, coverage of the 90% interval, seconds."""
    return [
        (
            row["model"],
            f"{row['rmse']:.2f}",
            f"{row['nll']:.2f}",
            f"{row['coverage']:.0%}",
            f"{row['seconds']:.1f}",
        )
        for row in rows
    ]


def predict(meta: Any, patients: Patients, table: Path, picture: Path) -> None:
    """Predict the rest of three stays from their first readings; write the table and the picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1 + 3.6 * N_SHOWN, 3.6), layout="constrained")
    lines = ["patient,hours,mean,lower,upper,heart_rate"]
    panels = figure.subplots(1, N_SHOWN, sharey=True)
    for axes, name, (x, y) in zip(panels, patients.test.names, patients.test.tasks, strict=False):
        context, rest = np.split(np.argsort(x[:, 0]), [N_CONTEXT])
        adapted = meta.adapt(x[context], y[context])
        predicted = adapted.predict(x[rest]), *adapted.interval(x[rest], COVERAGE)
        for hours, mean, lower, upper, reading in zip(x[rest, 0], *predicted, y[rest], strict=True):
            lines.append(f"{name},{hours:g},{mean:.1f},{lower:.1f},{upper:.1f},{reading:g}")
        names = COLUMNS["x"], COLUMNS["y"]
        plot_prediction(meta, x[context], y[context], x[rest], y[rest], coverage=COVERAGE, names=names, axes=axes)
        axes.set_title(f"patient {name}", fontsize=10)
        axes.label_outer()
        if axes is not panels[0]:
            axes.get_legend().remove()  # the same in all panels
    figure.suptitle(f"New patients: the first {N_CONTEXT} readings are given, the others (rings) were held back")
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    figure.savefig(picture, dpi=120)
