"""Small data sets in the published layouts of `metaprior_studies.environments.real_tables`."""

import csv
import gzip

import numpy as np
from scipy.io import savemat

ELEVATIONS = [1599.9, 1600.0, 2199.9, 2200.0, 3000.0, 811.0]  # of the generated stations 0, 1, ...
UNITS = {30: "3.0", 31: "3.0", 20: "2.0", 21: "2.0", 22: "2.0", 40: "4.0", 10: "1.0"}  # patient -> ICUType
CORNERS = {0: (0.0, 150.0), 1: (110.0, 60.0), 2: (280.0, 0.0)}  # of the generated buildings
HEIGHTS = [24.0, 1.0, 23.9, 31.0]  # y of the generated sensors 0, 1, ...


def write_table(path, header, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    unpack = gzip.open if path.suffix == ".gz" else open
    with unpack(path, "wt", newline="") as file:
        csv.writer(file).writerows([header.split(","), *rows])


def make_colorado(root, blank=2):
    """tmax says station, year and month; in 1901 some months are missing."""
    folder, rows = root / "colorado_climate", []
    stations = [(i, f"05{i:04}", "A, B", -105.0, 40.0, height) for i, height in enumerate(ELEVATIONS)]
    write_table(folder / "stations.csv", "station,id,name,lon,lat,elev_m", stations)
    for month in range(1, 13):  # not in the order of tasks
        for station in range(len(ELEVATIONS)):
            for year in (1900, 1901):
                missing = year == 1901 and month <= blank
                rows.append((station, year, month, "", "" if missing else 10 * station + year % 10 + month / 100, ""))
    write_table(folder / "monthly.csv.gz", "station,year,month,tmin,tmax,ppt", rows)
    return folder


def make_physionet(root, readings=8, measure="GCS"):
    """Patient 31 has too few readings, 22 because one is missing."""
    folder = root / "physionet2012"
    patients = [("a", record, 54.0, 0.0, -1.0, unit, 0) for record, unit in UNITS.items()]
    write_table(folder / "patients.csv", "set,RecordID,Age,Gender,Height,ICUType,In-hospital_death", patients)
    rows = [
        (record, 0.5 * i, "" if (record, i) == (22, 3) else record + i / 10)
        for record in UNITS
        for i in range(readings - (record == 31))
    ]
    write_table(folder / f"{measure}.csv.gz", "RecordID,t,y", rows)
    return folder


def make_ujiindoorloc(root, positions=20):
    """In each building access points 1 and 2 are one radio, 3 another, and 4 is heard at too few positions."""
    folder, rng, rows = root / "ujiindoorloc", np.random.default_rng(0), []
    for building, (left, low) in CORNERS.items():
        places = [(left + 5 * i, low + 4 * i, i % 3) for i in range(positions)]
        levels = rng.normal(-70, 10, (4, positions))
        levels[1] = levels[0] + rng.normal(0, 1, positions)
        for point, heard in zip((1, 2, 3, 4), levels, strict=True):
            chosen = places[:14] if point == 4 else places
            rows += [(building, point, *place, level, 10) for place, level in zip(chosen, heard, strict=False)]
    write_table(folder / "radiomap_tasks.csv.gz", "building,wap,x_m,y_m,floor,rssi_dbm,n_scans", rows)
    return folder


def make_intel_berkeley(root, gaps=(), **changed):
    """The temperature says sensor, day and minute, but for gaps: (day, minutes, sensor, what stands there instead)."""
    (folder := root / "intel_berkeley").mkdir(exist_ok=True)
    minutes = np.arange(1441)[:, None] / 1000
    data = 15 + 5 * np.arange(4) + 2 * np.arange(2)[:, None, None] + minutes
    for day, when, sensor, value in gaps:
        data[day, when, sensor] = value
    coords = np.stack([np.zeros(4), HEIGHTS], axis=1)
    fields = {"data": data.reshape(-1, 4), "coords": coords, "usedDays": np.array([[1, 5]], np.uint8)} | changed
    kept = {key: value for key, value in fields.items() if value is not None}
    savemat(folder / "berkeley_data.mat", {"berkeley_data": kept})
    return folder
