"""Real tables whose rows fall into groups, as tasks of two environments: climate, patients, radio maps, rooms.

The data lie where `images` looks for its own: under METAPRIOR_DATA, or else `metaprior` in the user's cache folder.
"""

import csv
import gzip
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.io import loadmat
from scipy.io.matlab import MatReadError
from scipy.sparse.csgraph import connected_components

from metaprior.checks import check_integer
from metaprior.tasks.types import Task, TestTask
from metaprior_studies.environments.images import find_folder

PLAINS, MOUNTAINS = 1600.0, 2200.0  # meters: below is the source, from there on the target
MEDICAL, CARDIAC_SURGERY = 3, 2  # types of intensive care unit
LEAST_MONTHS, LEAST_READINGS, LEAST_POSITIONS, LEAST_HALF_HOURS = 10, 8, 15, 24  # of a task of each kind
NOT_HEARD = -105.0  # dBm, just below the weakest reading
SAME_RADIO = 0.85  # correlation of two radio maps from which on they must not be in target and test at once
WARM_SIDE = 24.0  # meters: the y from which on a sensor is in the target
COLDEST, HOTTEST = 10.0, 45.0  # degrees Celsius: a sensor indoors that says less or more has failed
MINUTES = 1441  # of a day, as its first and its last are both midnight

Array = np.ndarray
Seed = int | np.random.Generator

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


class GroupedDraw(NamedTuple):
    """Tasks for one run: to meta-learn from, and to test on."""

    source: list[Task]
    target: list[Task]
    test: list[TestTask]


@dataclass(frozen=True, eq=False)
class GroupedTasks:
    """All tasks of a source and a target environment; test tasks are the target's too."""

    name: str
    source: tuple[Task, ...] = field(repr=False)
    target: tuple[Task, ...] = field(repr=False)
    n_context: int  # readings that a new task starts with
    target_groups: tuple[int, ...] | None = field(default=None, repr=False)  # of each target task; None: no two alike

    def __post_init__(self):
        check_integer("n_context", self.n_context, 0)
        fewest = min((len(task.y) for task in self.target), default=math.inf)
        if self.n_context >= fewest:
            raise ValueError(
                f"n_context must leave a reading to predict in every target task of {self.name}, the smallest of "
                f"which has {fewest}; got {self.n_context}."
            )
        if self.target_groups is not None and len(self.target_groups) != len(self.target):
            raise ValueError(
                f"target_groups must have one group per target task, {len(self.target)}; got {len(self.target_groups)}."
            )

    def draw(self, n_source: int, n_target: int, n_test: int, rng: Seed, max_samples: int | None = None) -> GroupedDraw:
        """Tasks at random, none twice, and no group in both target and test.

        A test task is split at random into `n_context` context readings and its other readings as queries. Of a
        meta-training task with more than `max_samples` readings, so many are kept at random.

        The first n of more tasks are the n tasks of the same seed, and the kinds do not depend on each other's
        number, as long as half of the groups are enough for the target's and the other half for the test's.
        """
        for name, value in (("n_source", n_source), ("n_target", n_target), ("n_test", n_test)):
            check_integer(name, value, 0)
        if max_samples is not None:
            check_integer("max_samples", max_samples, 1)
        if n_source > len(self.source):
            most = f"{len(self.source)}, the source tasks of {self.name}"
            raise ValueError(f"n_source must be at most {most}; got {n_source}.")
        seeds = np.random.default_rng(rng).integers(2**63, size=4)
        for_halves, for_source, for_target, for_test = map(np.random.default_rng, seeds)
        target, test = self._halves(n_target, n_test, for_halves)
        source = for_source.permutation(len(self.source))
        return GroupedDraw(
            [_thin(self.source[i], max_samples, for_source) for i in source[:n_source]],
            [_thin(self.target[i], max_samples, for_target) for i in for_target.permutation(target)[:n_target]],
            [_split(self.target[i], self.n_context, for_test) for i in for_test.permutation(test)[:n_test]],
        )

    def _halves(self, n_target: int, n_test: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Indices of tasks to take the target's and the test's from: half each, or as near as lets both be enough.

        Halves, since tasks of many groups say more than as many of few groups, and both shall have that.
        """
        n_tasks = len(self.target)
        _, groups = np.unique(self.target_groups or np.arange(n_tasks), return_inverse=True)
        sizes = np.bincount(groups)
        order = rng.permutation(len(sizes))
        before = np.concatenate([[0], np.cumsum(sizes[order])])  # tasks in the first 0, 1, ... groups
        enough = np.flatnonzero((before >= n_target) & (n_tasks - before >= n_test))
        if not len(enough):
            raise ValueError(
                f"n_target + n_test must be at most {n_tasks}, the target tasks of {self.name}, and less where that "
                f"would split one of their {len(sizes)} groups; got {n_target} + {n_test}."
            )
        cut = enough[np.abs(before[enough] - n_tasks / 2).argmin()]
        in_target = np.argsort(order)[groups] < cut
        return np.flatnonzero(in_target), np.flatnonzero(~in_target)


def colorado(root: Path | str | None = None, n_context: int = 5) -> GroupedTasks:
    """Mean daily maximum temperature (degrees Celsius) by month, x = 1..12; a task is a year at a station.

    Source: stations on the plains, target: in the mountains, both 1895-1997. A station is a group.
    """
    folder = find_folder("The Colorado climate", root, "colorado_climate", ("stations.csv", "monthly.csv.gz"), COLORADO)
    elevations = _table(folder / "stations.csv", ("station", "elev_m"))
    path = folder / "monthly.csv.gz"
    station, year, month, tmax = _table(path, ("station", "year", "month", "tmax"), may_miss="tmax")
    elevation = _joined(path, station, folder / "stations.csv", *elevations)
    measured = np.isfinite(tmax)
    columns = ((station, year), month[:, None], tmax, LEAST_MONTHS)
    source, _ = _tasks(f"{path}, stations below {PLAINS:g} m", measured & (elevation < PLAINS), *columns)
    target, stations = _tasks(f"{path}, stations from {MOUNTAINS:g} m", measured & (elevation >= MOUNTAINS), *columns)
    return GroupedTasks("Colorado climate", source, target, n_context, stations)


def physionet_gcs(root: Path | str | None = None, n_context: int = 5) -> GroupedTasks:
    """Glasgow coma scale (3 to 15) over the first 48 hours of intensive care, x = hours; a task is a patient.

    Source: the medical unit, target: recovery from cardiac surgery.
    """
    return _physionet("GCS", root, n_context)


def physionet_hct(root: Path | str | None = None, n_context: int = 5) -> GroupedTasks:
    """Haematocrit (per cent of the blood) over the first 48 hours of intensive care, x = hours; a task is a patient.

    Source and target are as in `physionet_gcs`, but with fewer tasks, as blood is taken less often than the scale is.
    """
    return _physionet("HCT", root, n_context)


def ujiindoorloc(root: Path | str | None = None, target_building: int = 1, n_context: int = 10) -> GroupedTasks:
    """Strength of a WiFi signal (dBm) where it was heard, x = (x_m, y_m, floor); a task is an access point.

    Source: building 0, target: building 1 or 2. Most radios send under several names, and so have several tasks that
    are alike: these are a group.
    """
    if target_building not in (1, 2):
        raise ValueError(f"target_building must be 1 or 2, as building 0 is the source; got {target_building!r}.")
    folder = find_folder("UJIIndoorLoc", root, "ujiindoorloc", ("radiomap_tasks.csv.gz",), UJIINDOORLOC)
    path = folder / "radiomap_tasks.csv.gz"
    columns = ("building", "wap", "x_m", "y_m", "floor", "rssi_dbm")
    building, point, *x, rssi = _table(path, columns, may_miss="rssi_dbm")
    x, heard = np.stack(x, axis=1), np.isfinite(rssi)
    source, target = (
        _centered(_tasks(f"{path}, building {b}", heard & (building == b), (point,), x, rssi, LEAST_POSITIONS)[0])
        for b in (0, target_building)
    )
    return GroupedTasks(f"UJIIndoorLoc building {target_building}", source, target, n_context, _radios(target))


def intel_berkeley(root: Path | str | None = None, n_context: int = 5) -> GroupedTasks:
    """Temperature (degrees Celsius) in a laboratory by half hours, x = hours since midnight; a task is a sensor's day.

    Source: sensors with y below 24 m, target: the others, where it is warmer and changes more. A sensor is a group, but
    a day is not: all have the same five, so a test task's day and weather are those of tasks in source and target too.

    There is a reading per minute, of which one per half hour is kept, 48 a day: the second midnight is dropped, since
    it is the next day's first, and so is what is missing or not from 10 to 45 degrees. The published file has one such
    reading, of 4.2 degrees, between half hours.
    """
    folder = find_folder("Intel Berkeley", root, "intel_berkeley", ("berkeley_data.mat",), INTEL_BERKELEY)
    path = folder / "berkeley_data.mat"
    data, coords, days = _struct(path, "berkeley_data", ("data", "coords", "usedDays"))
    expected = (MINUTES * days.size, len(coords))
    if data.shape != expected or coords.shape != (len(coords), 2) or not np.isfinite(coords).all():
        raise ValueError(
            f"{path} must have coords of two finite numbers per sensor, and data of {MINUTES} rows per day in usedDays "
            f"and a column per sensor, {expected}; got coords {coords.shape} and data {data.shape}."
        )
    readings = data.reshape(days.size, MINUTES, len(coords))[:, : MINUTES - 1 : 30]
    day, half_hour, sensor = np.indices(readings.shape).reshape(3, -1)
    readings = readings.ravel()
    plausible, warm = (readings >= COLDEST) & (readings <= HOTTEST), coords[sensor, 1] >= WARM_SIDE
    columns = ((sensor, day), half_hour[:, None] / 2, readings, LEAST_HALF_HOURS)
    source, _ = _tasks(f"{path}, sensors below {WARM_SIDE:g} m", plausible & ~warm, *columns)
    target, sensors = _tasks(f"{path}, sensors from {WARM_SIDE:g} m", plausible & warm, *columns)
    return GroupedTasks("Intel Berkeley", source, target, n_context, sensors)


def _physionet(measure: str, root: Path | str | None, n_context: int) -> GroupedTasks:
    files = ("patients.csv", f"{measure}.csv.gz")
    folder = find_folder("PhysioNet 2012", root, "physionet2012", files, PHYSIONET)
    patients, path = (folder / file for file in files)
    units = _table(patients, ("RecordID", "ICUType"))
    patient, hours, y = _table(path, ("RecordID", "t", "y"), may_miss="y")
    unit, measured = _joined(path, patient, patients, *units), np.isfinite(y)
    source, target = (
        _tasks(f"{path}, ICU type {kind}", measured & (unit == kind), (patient,), hours[:, None], y, LEAST_READINGS)
        for kind in (MEDICAL, CARDIAC_SURGERY)
    )
    return GroupedTasks(f"PhysioNet {measure}", source[0], target[0], n_context)


def _centered(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Radio maps of a building with x_m and y_m from the middle of it.

    The table has one frame for the whole campus, in which buildings lie side by side: what a prior learns about places
    in one would say nothing about places in another. Floors count from the ground in every building.
    """
    places = np.concatenate([task.x for task in tasks])
    center = (places.min(axis=0) + places.max(axis=0)) / 2 * [1, 1, 0]
    return tuple(Task(task.x - center, task.y) for task in tasks)


def _radios(tasks: Sequence[Task]) -> tuple[int, ...]:
    """A number per radio map, the same for maps that are alike, or linked by others that are."""
    positions, at = np.unique(np.concatenate([task.x for task in tasks]), axis=0, return_inverse=True)
    maps = np.full((len(tasks), len(positions)), NOT_HEARD)
    owner = np.repeat(np.arange(len(tasks)), [len(task.y) for task in tasks])
    maps[owner, at.ravel()] = np.concatenate([task.y for task in tasks])
    with np.errstate(invalid="ignore"):  # a map of one level everywhere is like no other
        alike = np.atleast_2d(np.corrcoef(maps)) > SAME_RADIO
    return tuple(connected_components(alike)[1].tolist())


def _thin(task: Task, max_samples: int | None, rng: np.random.Generator) -> Task:
    if max_samples is None or len(task.y) <= max_samples:
        return task
    kept = np.sort(rng.choice(len(task.y), max_samples, replace=False))
    return Task(task.x[kept], task.y[kept])


def _split(task: Task, n_context: int, rng: np.random.Generator) -> TestTask:
    context, query = np.split(rng.permutation(len(task.y)), [n_context])
    return TestTask(task.x[context], task.y[context], task.x[query], task.y[query])


def _struct(path: Path, name: str, fields: Sequence[str]) -> list[Array]:
    """Fields of a struct in a MATLAB file, as numbers."""
    try:
        struct = loadmat(path, variable_names=[name]).get(name, np.empty(0))
    except (MatReadError, OSError, LookupError, zlib.error, ValueError, TypeError, NotImplementedError) as error:
        raise ValueError(f"cannot read {path}: {error}. Is the file damaged or cut short?") from error
    if struct.size != 1 or not set(fields) <= set(struct.dtype.names or ()):
        raise ValueError(f"{path} must have a struct {name} with the fields {', '.join(fields)}.")
    values = [struct[key].item() for key in fields]
    if strange := [key for key, value in zip(fields, values, strict=True) if value.dtype.kind not in "fiu"]:
        raise ValueError(f"{path}: {', '.join(strange)} of {name} must be real numbers.")
    return [value.astype(float) for value in values]


def _table(path: Path, columns: Sequence[str], may_miss: str = "") -> list[Array]:
    """Some columns of a csv file, as numbers; only the column `may_miss` may be empty in places, which gives NaN."""
    try:
        unpack = gzip.open if path.suffix == ".gz" else open
        with unpack(path, "rt", newline="", encoding="utf-8-sig") as file:
            header, *rows = csv.reader(file, strict=True)
    except (OSError, EOFError, zlib.error, csv.Error, ValueError) as error:
        raise ValueError(f"cannot read the table {path}: {error}. Is the file damaged or cut short?") from error
    if absent := [name for name in columns if name not in header]:
        raise ValueError(f"{path} must have the columns {', '.join(columns)}; {', '.join(absent)} is not in {header}.")
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise ValueError(f"{path} row {number} must have {len(header)} entries; got {','.join(row)!r}.")
    return [_numbers(path, name, [row[header.index(name)] for row in rows], name == may_miss) for name in columns]


def _numbers(path: Path, name: str, entries: Sequence[str], may_miss: bool) -> Array:
    numbers = np.array([_number(entry) for entry in entries], dtype=float)
    for i in np.flatnonzero(~np.isfinite(numbers)).tolist():
        if entries[i] or not may_miss:
            raise ValueError(f"{path} row {i + 2}: {name} must be a finite number; got {entries[i]!r}.")
    return numbers


def _number(entry: str) -> float:
    try:
        return float(entry)
    except ValueError:
        return math.nan


def _joined(path: Path, keys: Array, table: Path, table_keys: Array, table_values: Array) -> Array:
    """The table's value at each of the keys."""
    values = dict(zip(table_keys.tolist(), table_values.tolist(), strict=True))
    if len(values) != len(table_keys):
        raise ValueError(f"{table} must have one row per entity; {len(table_keys) - len(values)} are there again.")
    if unknown := set(keys.tolist()) - values.keys():
        raise ValueError(f"{path}: {min(unknown):g} is not in {table} ({len(unknown)} are not).")
    return np.array([values[key] for key in keys.tolist()])


def _tasks(
    where: str, kept: Array, keys: Sequence[Array], x: Array, y: Array, least: int
) -> tuple[tuple[Task, ...], tuple[int, ...]]:
    """The kept rows as a task per different keys, if it has enough rows, and the first key of each task."""
    rows = np.flatnonzero(kept)
    rows = rows[np.lexsort([key[rows] for key in reversed(keys)])]
    ends = np.flatnonzero(np.any([np.diff(key[rows]) != 0 for key in keys], axis=0)) + 1
    parts = [part for part in np.split(rows, ends) if len(part) >= least]
    if not parts:
        raise ValueError(f"{where}: there must be a task of at least {least} readings; got none.")
    return tuple(Task(x[part], y[part]) for part in parts), tuple(int(keys[0][part[0]]) for part in parts)
