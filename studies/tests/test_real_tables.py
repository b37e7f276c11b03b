"""Readers of the real environments, on small files in their layouts and on the real files where they are present."""

import gzip
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from grouped_files import make_colorado, make_intel_berkeley, make_physionet, make_ujiindoorloc, write_table
from scipy.io import savemat

from metaprior.tasks.types import as_tasks, as_test_tasks
from metaprior_studies.environments.images import DataMissing
from metaprior_studies.environments.real_tables import (
    colorado,
    intel_berkeley,
    physionet_gcs,
    physionet_hct,
    ujiindoorloc,
)

SHARED = Path(os.environ.get("METAPRIOR_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


def test_colorado_keeps_long_years_on_both_sides_of_the_thresholds(tmp_path, monkeypatch):
    make_colorado(tmp_path)
    monkeypatch.setenv("METAPRIOR_DATA", str(tmp_path))
    data = colorado()
    assert data.n_context == 5
    for tasks, stations in ((data.source, (0, 5)), (data.target, (3, 4))):
        expected = [(station, year) for station in stations for year in (0, 1)]
        for task, (station, year) in zip(tasks, expected, strict=True):
            months = np.arange(3.0 if year else 1.0, 13.0)
            np.testing.assert_array_equal(task.x, months[:, None], strict=True)
            np.testing.assert_allclose(task.y, 10 * station + year + months / 100)
    assert data.target_groups == (3, 3, 4, 4)
    make_colorado(tmp_path, blank=3)
    assert [len(task.y) for task in colorado(tmp_path).target] == [12, 12]


@pytest.mark.parametrize(("read", "measure"), [(physionet_gcs, "GCS"), (physionet_hct, "HCT")])
def test_physionet_keeps_patients_of_two_units_with_enough_readings(read, measure, tmp_path):
    make_physionet(tmp_path, measure=measure)  # and no table of the other measure
    data = read(tmp_path, n_context=3)
    assert data.name == f"PhysioNet {measure}"
    assert [len(tasks) for tasks in (data.source, data.target)] == [1, 2]
    for task, record in zip(data.source + data.target, (30, 20, 21), strict=True):
        np.testing.assert_array_equal(task.x, 0.5 * np.arange(8)[:, None], strict=True)
        np.testing.assert_allclose(task.y, record + np.arange(8) / 10)
    assert (data.n_context, data.target_groups) == (3, None)


@pytest.mark.parametrize("building", [1, 2])
def test_ujiindoorloc_centres_buildings_and_groups_names_of_one_radio(building, tmp_path):
    make_ujiindoorloc(tmp_path)
    data = ujiindoorloc(tmp_path, building)
    assert data.n_context == 10
    assert [len(task.y) for task in data.source + data.target] == [20] * 6
    steps = np.arange(20.0)
    for task in data.source + data.target:  # the buildings differ in their corner alone
        np.testing.assert_allclose(task.x, np.stack([5 * steps - 47.5, 4 * steps - 38, steps % 3], axis=1))
    first, second, third = data.target_groups
    assert first == second != third


def test_intel_berkeley_keeps_plausible_half_hours_on_both_sides_of_the_room(tmp_path):
    gaps = [
        (0, 0, 0, np.nan),
        (0, 30, 0, 9.9),
        (0, 60, 0, 45.1),
        (0, 90, 0, 10.0),
        (0, 120, 0, 45.0),
        (0, 121, 0, -99.0),  # of no half hour
        (1, slice(720), 1, np.nan),  # leaves 24 half hours
        (1, slice(721), 2, np.inf),  # leaves 23
    ]
    make_intel_berkeley(tmp_path, gaps)
    data = intel_berkeley(tmp_path)
    assert (data.n_context, data.target_groups) == (5, (0, 0, 3, 3))
    for tasks, expected in ((data.source, [(1, 0), (1, 1), (2, 0)]), (data.target, [(0, 0), (0, 1), (3, 0), (3, 1)])):
        for task, (sensor, day) in zip(tasks, expected, strict=True):
            hours = np.arange({(0, 0): 1.5, (1, 1): 12.0}.get((sensor, day), 0.0), 24.0, 0.5)
            y = 15 + 5 * sensor + 2 * day + 60 * hours / 1000
            y[:2] = (10.0, 45.0) if (sensor, day) == (0, 0) else y[:2]
            np.testing.assert_array_equal(task.x, hours[:, None], strict=True)
            np.testing.assert_allclose(task.y, y)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"usedDays": None}, r"must have a struct berkeley_data with the fields data, coords, usedDays"),
        ({"data": "warm"}, r"data of berkeley_data must be real numbers"),
        ({"data": np.full((2880, 4), 20.0)}, r"data of 1441 rows per day .*, \(2882, 4\); got .* data \(2880, 4\)"),
        ({"coords": np.zeros((3, 2))}, r"a column per sensor, \(2882, 3\); got coords \(3, 2\)"),
        ({"coords": np.zeros((4, 1))}, r"coords of two finite numbers per sensor, .*; got coords \(4, 1\)"),
        ({"coords": np.full((4, 2), np.nan)}, r"coords of two finite numbers per sensor"),
        ({"coords": np.full((4, 2), 24.0)}, r"sensors below 24 m: .* at least 24 readings; got none"),
        ({"data": np.full((2882, 4), 122.0)}, r"sensors below 24 m: .* at least 24 readings; got none"),
    ],
)
def test_a_malformed_struct_names_the_file(changed, message, tmp_path):
    path = make_intel_berkeley(tmp_path, **changed) / "berkeley_data.mat"
    with pytest.raises(ValueError, match=message) as caught:
        intel_berkeley(tmp_path)
    assert str(path) in str(caught.value)


def test_a_damaged_or_other_matlab_file_is_named(tmp_path):
    path = make_intel_berkeley(tmp_path) / "berkeley_data.mat"
    whole = path.read_bytes()
    for damaged in (whole[:-60], whole[:150], whole[:100], b"no", b"", b"\0" * 200):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"cannot read .*berkeley_data\.mat: .*damaged or truncated"):
            intel_berkeley(tmp_path)
    savemat(path, {"data": np.zeros(3)})
    with pytest.raises(ValueError, match=r"berkeley_data\.mat must have a struct berkeley_data"):
        intel_berkeley(tmp_path)


def test_radio_maps_of_one_level_or_one_access_point_are_groups_too(tmp_path):
    path = make_ujiindoorloc(tmp_path) / "radiomap_tasks.csv.gz"
    for points, groups in (((1,), 1), ((1, 2), 2)):
        rows = [(b, p, i, 0, 0, -60 if p == 1 else -60 - i) for b in (0, 1) for p in points for i in range(15)]
        write_table(path, "building,wap,x_m,y_m,floor,rssi_dbm", rows)
        assert len(set(ujiindoorloc(tmp_path).target_groups)) == groups


@pytest.mark.parametrize(
    ("read", "parts"),
    [
        (colorado, "colorado_climate stations.csv monthly.csv.gz tmax cran.r-project.org"),
        (physionet_gcs, "physionet2012 patients.csv GCS.csv.gz physionet.org"),
        (physionet_hct, "physionet2012 patients.csv HCT.csv.gz physionet.org"),
        (ujiindoorloc, "ujiindoorloc radiomap_tasks.csv.gz archive.ics.uci.edu"),
        (intel_berkeley, "intel_berkeley berkeley_data.mat usedDays db.csail.mit.edu"),
    ],
)
def test_missing_data_is_one_message(read, parts, tmp_path, monkeypatch):
    monkeypatch.setenv("METAPRIOR_DATA", str(tmp_path))
    for arguments, way in (((), "set METAPRIOR_DATA"), ((tmp_path / "elsewhere",), "set root")):
        with pytest.raises(DataMissing) as caught:
            read(*arguments)
        wanted = [*parts.split(), str(tmp_path), way]
        assert [part for part in wanted if part not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("make", "read", "table", "old", "new", "message"),
    [
        (make_colorado, colorado, "monthly.csv.gz", "tmax", "high", r"must have the columns .*; tmax is not in \['sta"),
        (
            make_colorado,
            colorado,
            "monthly.csv.gz",
            "\r\n0,1901,1,,,",
            "\r\n0,1901,1,",
            r"Expected 6 columns, got 4: 0,1901,1,",
        ),
        (make_colorado, colorado, "monthly.csv.gz", "1,1900,1,,10", "1,,1,,10", r"row 4: year must be .*; got ''"),
        (
            make_colorado,
            colorado,
            "monthly.csv.gz",
            "\r\n5,1900,",
            "\r\n7,1900,",
            r"station 7 is not in .*stations\.csv \(1 ",
        ),
        (make_colorado, colorado, "stations.csv", "\r\n1,", "\r\n0,", r"must have one row per station; 1 rows repeat"),
        (make_colorado, colorado, "stations.csv", "1599.9", "high", r"row 2: elev_m must be .*; got 'high'"),
        (make_colorado, colorado, "stations.csv", "A, B", "A\xff", r"cannot read the table .*(UTF8|utf-8).* damaged"),
        (make_physionet, physionet_gcs, "GCS.csv.gz", "30,0.5,30.1", "30,0.5,nan", r"row 3: y must be .*; got 'nan'"),
        (make_physionet, physionet_gcs, "patients.csv", "3.0", "4.0", r"ICU type 3: .* at least 8 readings; got none"),
        (make_ujiindoorloc, ujiindoorloc, "radiomap_tasks.csv.gz", "1,1,110.0,", "1,1,inf,", "x_m must be .*'inf'"),
    ],
)
def test_a_malformed_table_names_file_and_row(make, read, table, old, new, message, tmp_path):
    path = make(tmp_path) / table
    unpack, pack = (gzip.decompress, gzip.compress) if path.suffix == ".gz" else (bytes, bytes)
    text = unpack(path.read_bytes()).decode()
    changed = text.replace(old, new, 1)
    assert changed != text
    path.write_bytes(pack(changed.encode("latin-1")))
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path)
    assert str(path.parent) in str(caught.value)


def test_a_damaged_or_empty_file_is_named(tmp_path):
    path = make_ujiindoorloc(tmp_path) / "radiomap_tasks.csv.gz"
    whole = path.read_bytes()
    for damaged in (whole[:-60], whole[:60] + b"\0" * 60 + whole[120:], b"no", b"", gzip.compress(b"")):
        path.write_bytes(damaged)
        with pytest.raises(
            ValueError, match=r"cannot read the table .*radiomap_tasks\.csv\.gz: .*damaged or truncated"
        ):
            ujiindoorloc(tmp_path)
    write_table(path, "building,wap,x_m,y_m,floor,rssi_dbm", [])
    with pytest.raises(ValueError, match=r"building 0: expected a task of at least 15 readings; got none"):
        ujiindoorloc(tmp_path)


def test_the_source_building_is_refused_as_target(tmp_path):
    with pytest.raises(ValueError, match="target_building must be 1 or 2, as building 0 is the source; got 0"):
        ujiindoorloc(tmp_path, target_building=0)


@pytest.mark.parametrize(
    ("read", "folder", "n_tasks", "n_groups", "shortest", "low", "high"),
    [
        (colorado, "colorado_climate", (5424, 4448), 142, 10, -20, 45),
        (physionet_gcs, "physionet2012", (3985, 2400), None, 8, 3, 15),
        (physionet_hct, "physionet2012", (316, 240), None, 8, 5, 65),
        (ujiindoorloc, "ujiindoorloc", (108, 124), 39, 20, -104, 0),
        (partial(ujiindoorloc, target_building=2), "ujiindoorloc", (108, 106), 73, 20, -104, 0),
        (intel_berkeley, "intel_berkeley", (135, 95), 19, 48, 15, 38),
    ],
)
def test_real_data(read, folder, n_tasks, n_groups, shortest, low, high):
    data = read(SHARED) if (SHARED / folder).exists() else pytest.skip(f"no {SHARED / folder}")
    assert (len(data.source), len(data.target)) == n_tasks
    assert (data.target_groups and len(set(data.target_groups))) == n_groups
    for tasks in (data.source, data.target):
        assert min(len(task.y) for task in tasks) == shortest
        values = np.concatenate([task.y for task in tasks])
        assert low <= values.min() < values.max() <= high
    drawn = data.draw(50, 20, 40, 0, max_samples=30)
    as_tasks([*drawn.source, *drawn.target], "tasks")
    as_test_tasks(drawn.test, "tasks", data.source[0].x.shape[1])


@pytest.mark.skipif(not (SHARED / "ujiindoorloc").exists(), reason="the radio maps are not installed")
def test_a_radio_of_the_real_data_is_not_in_target_and_test():
    """Without groups most test tasks have a twin among the others: its readings are theirs within about 1 dB."""
    data = ujiindoorloc(SHARED)
    maps = [dict(zip(map(tuple, task.x), task.y, strict=True)) for task in data.target]
    for i, (one, group) in enumerate(zip(maps, data.target_groups, strict=True)):
        for other, other_group in zip(maps[:i], data.target_groups[:i], strict=True):
            common = one.keys() & other.keys()
            if len(common) > 0.8 * len(one.keys() | other.keys()) and group != other_group:
                assert np.std([one[place] - other[place] for place in common]) > 2
