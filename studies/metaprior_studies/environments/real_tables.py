"""Real data as tasks of two environments: climate, patients, radio maps and temperatures of rooms.

The data are looked for under METAPRIOR_DATA, or else under `metaprior` in the user's cache folder.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.sparse.csgraph import connected_components

from metaprior.checks import check_choice
from metaprior.tasks.types import Task
from metaprior_studies.environments.grouped_tasks import GroupedTasks, tasks_of_rows
from metaprior_studies.environments.images import find_folder
from metaprior_studies.environments.table_files import look_up, read_columns, read_struct

PLAINS, MOUNTAINS = 1600.0, 2200.0  # meters: the source is below the first, the target from the second up
MEDICAL, CARDIAC_SURGERY = 3, 2  # types of intensive care unit
LEAST_MONTHS, LEAST_READINGS, LEAST_POSITIONS, LEAST_HALF_HOURS = 10, 8, 15, 24  # of a task of each kind
NOT_HEARD = -105.0  # dBm, just below the weakest reading
SAME_RADIO = 0.85  # access points whose radio maps correlate more than this are one group
WARM_SIDE = 24.0  # meters: sensors with y from here up are in the target
COLDEST, HOTTEST = 10.0, 45.0  # degrees Celsius: readings of an indoor sensor outside this range are errors
MINUTES = 1441  # rows of a day, whose first and last are both midnight

COLORADO = """\
Install the R package fields (https://cran.r-project.org/package=fields) and write its data COmonthlyMet as two tables:
stations.csv with station, elev_m, and monthly.csv.gz with station, year, month, tmax (empty = missing)."""
PHYSIONET = """\
Download sets a, b and c from https://physionet.org/content/challenge-2012/1.0.0/ and write tables: patients.csv with
RecordID, ICUType, and GCS.csv.gz (Glasgow coma scale) and HCT.csv.gz (haematocrit) with RecordID, t (hours since
admission), y."""
UJIINDOORLOC = """\
Download https://archive.ics.uci.edu/dataset/310/ujiindoorloc and write, for every building, access point and position
where it was heard, a row of radiomap_tasks.csv.gz: building, wap, x_m, y_m, floor, rssi_dbm (median of the scans)."""
INTEL_BERKELEY = """\
The code at https://github.com/jonasrothfuss/pacoh_nn downloads berkeley_data.mat; or make it from
https://db.csail.mit.edu/labdata/labdata.html: a struct berkeley_data of data (degrees Celsius, 1441 rows per day for
the minutes from midnight to midnight, a column per sensor), coords (meters, a row per sensor) and usedDays."""

# name -> title, folder, files, what to get
PLACES = {
    "colorado": ("The Colorado climate", "colorado_climate", ("stations.csv", "monthly.csv.gz"), COLORADO),
    "physionet-gcs": ("PhysioNet 2012", "physionet2012", ("patients.csv", "GCS.csv.gz"), PHYSIONET),
    "physionet-hct": ("PhysioNet 2012", "physionet2012", ("patients.csv", "HCT.csv.gz"), PHYSIONET),
    "ujiindoorloc": ("UJIIndoorLoc", "ujiindoorloc", ("radiomap_tasks.csv.gz",), UJIINDOORLOC),
    "intel-berkeley": ("Intel Berkeley", "intel_berkeley", ("berkeley_data.mat",), INTEL_BERKELEY),
}


def find_files(name: str, root: Path | str | None = None) -> list[Path]:
    """Return the files of a data set of `metaprior bench-data`, or raise an error that says what to download."""
    title, folder, files, advice = PLACES[check_choice("name", name, tuple(PLACES))]
    place = find_folder(title, root, folder, files, advice)
    return [place / file for file in files]


def colorado(root: Path | str | None = None, n_context: int = 5) -> GroupedTasks:
    """Mean daily maximum temperature (degrees Celsius) by month, x = 1..12; a task is a year at a station.

    The source are stations on the plains, the target stations in the mountains, both 1895-1997. A group is a station.
    """
    stations, path = find_files("colorado", root)
    elevations = read_columns(stations, ("station", "elev_m"))
    rows = read_columns(path, ("station", "year", "month", "tmax"), optional="tmax")
    elevation = look_up(path, rows["station"], stations, elevations)
    measured = rows["tmax"].notna()
    columns = (("station", "year"), ("month",), "tmax", LEAST_MONTHS)
    plains, mountains = rows[measured & (elevation < PLAINS)], rows[measured & (elevation >= MOUNTAINS)]
    source, _ = tasks_of_rows(f"{path}, stations below {PLAINS:g} m", plains, *columns)
    target, groups = tasks_of_rows(f"{path}, stations from {MOUNTAINS:g} m", mountains, *columns)
    return GroupedTasks("Colorado climate", source, target, n_context, groups)


def physionet_gcs(root: Path | str | None = None, n_context: int = 5) -> GroupedTasks:
    """Glasgow coma scale (3 to 15) over the first 48 hours of intensive care, x = hours; a task is a patient.

    The source is the medical unit, the target recovery from cardiac surgery.
    """
    return _physionet("GCS", root, n_context)


def physionet_hct(root: Path | str | None = None, n_context: int = 5) -> GroupedTasks:
    """Haematocrit (percent of the blood) over the first 48 hours of intensive care, x = hours; a task is a patient.

    Source and target are as in `physionet_gcs`, with fewer tasks, since blood is drawn less often.
    """
    return _physionet("HCT", root, n_context)


def ujiindoorloc(root: Path | str | None = None, target_building: int = 1, n_context: int = 10) -> GroupedTasks:
    """Strength of a WiFi signal (dBm) at positions x = (x_m, y_m, floor); a task is an access point.

    The source is building 0, the target building 1 or 2. Most radios transmit under several names and so have several
    similar tasks, which form a group.
    """
    if target_building not in (1, 2):
        raise ValueError(f"target_building must be 1 or 2, as building 0 is the source; got {target_building!r}.")
    [path] = find_files("ujiindoorloc", root)
    rows = read_columns(path, ("building", "wap", "x_m", "y_m", "floor", "rssi_dbm"), optional="rssi_dbm")
    heard = rows[rows["rssi_dbm"].notna()]
    columns = (("wap",), ("x_m", "y_m", "floor"), "rssi_dbm", LEAST_POSITIONS)
    source, target = (
        _centered(tasks_of_rows(f"{path}, building {building}", heard[heard["building"] == building], *columns)[0])
        for building in (0, target_building)
    )
    return GroupedTasks(f"UJIIndoorLoc building {target_building}", source, target, n_context, _radios(target))


def intel_berkeley(root: Path | str | None = None, n_context: int = 5) -> GroupedTasks:
    """Temperature (degrees Celsius) in a laboratory by half hours, x = hours since midnight; a task is a sensor's day.

    The source are sensors with y below 24 m, the target the others, where it is warmer and varies more. A group is a
    sensor. Days are not groups: all sensors have the same five days, so that a test task shares its day and weather
    with source and target tasks.

    Of a reading per minute one per half hour is kept, 48 a day. The second midnight is dropped, because it is the next
    day's first, and so are readings that are missing or outside 10 to 45 degrees. (The published file has one such
    reading, of 4.2 degrees, between half hours.)
    """
    [path] = find_files("intel-berkeley", root)
    data, coords, days = read_struct(path, "berkeley_data", ("data", "coords", "usedDays"))
    expected = (MINUTES * days.size, len(coords))
    if data.shape != expected or coords.shape != (len(coords), 2) or not np.isfinite(coords).all():
        raise ValueError(
            f"{path} must have coords of two finite numbers per sensor, and data of {MINUTES} rows per day in usedDays "
            f"and a column per sensor, {expected}; got coords {coords.shape} and data {data.shape}."
        )
    readings = data.reshape(days.size, MINUTES, len(coords))[:, : MINUTES - 1 : 30]
    day, half_hour, sensor = np.indices(readings.shape).reshape(3, -1)
    rows = pd.DataFrame({"sensor": sensor, "day": day, "hour": half_hour / 2, "degrees": readings.ravel()})
    plausible = rows[rows["degrees"].between(COLDEST, HOTTEST)]
    warm = coords[plausible["sensor"], 1] >= WARM_SIDE
    columns = (("sensor", "day"), ("hour",), "degrees", LEAST_HALF_HOURS)
    source, _ = tasks_of_rows(f"{path}, sensors below {WARM_SIDE:g} m", plausible[~warm], *columns)
    target, groups = tasks_of_rows(f"{path}, sensors from {WARM_SIDE:g} m", plausible[warm], *columns)
    return GroupedTasks("Intel Berkeley", source, target, n_context, groups)


def _physionet(measure: str, root: Path | str | None, n_context: int) -> GroupedTasks:
    patients, path = find_files(f"physionet-{measure.lower()}", root)
    units = read_columns(patients, ("RecordID", "ICUType"))
    rows = read_columns(path, ("RecordID", "t", "y"), optional="y")
    unit, measured = look_up(path, rows["RecordID"], patients, units), rows["y"].notna()
    columns = (("RecordID",), ("t",), "y", LEAST_READINGS)
    source, target = (
        tasks_of_rows(f"{path}, ICU type {kind}", rows[measured & (unit == kind)], *columns)[0]
        for kind in (MEDICAL, CARDIAC_SURGERY)
    )
    return GroupedTasks(f"PhysioNet {measure}", source, target, n_context)


def _centered(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Return radio maps of a building with x_m and y_m measured from its center.

    The table has one coordinate system for the whole campus, in which buildings lie side by side: a prior of positions
    in one building would not apply to another. Floors count from the ground in every building.
    """
    places = np.concatenate([task.x for task in tasks])
    center = (places.min(axis=0) + places.max(axis=0)) / 2 * [1, 1, 0]
    return tuple(Task(task.x - center, task.y) for task in tasks)


def _radios(tasks: Sequence[Task]) -> tuple[int, ...]:
    """Return a number per radio map, shared by maps that are correlated directly or through other maps."""
    positions, at = np.unique(np.concatenate([task.x for task in tasks]), axis=0, return_inverse=True)
    maps = np.full((len(tasks), len(positions)), NOT_HEARD)
    owner = np.repeat(np.arange(len(tasks)), [len(task.y) for task in tasks])
    maps[owner, at.ravel()] = np.concatenate([task.y for task in tasks])
    with np.errstate(invalid="ignore"):  # a constant map has no correlation with any other
        alike = np.atleast_2d(np.corrcoef(maps)) > SAME_RADIO
    return tuple(connected_components(alike)[1].tolist())
