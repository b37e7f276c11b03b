"""Folders of stored tasks: full disks, links, and content that has changed since it was written."""

import json
import resource

import numpy as np
import pandas as pd
import pytest

from metaprior import InvalidFile, open_tasks, store_tasks

COLUMNS = {"task": "patient", "x": ["hours", "dose"], "y": "rate", "environment": "hospital"}


@pytest.fixture
def table(tmp_path):
    frame = pd.DataFrame({"patient": np.repeat(np.arange(10), 3), "hospital": np.repeat(["north", "south"], 15)})
    frame[["hours", "dose", "rate"]] = np.random.default_rng(0).normal(size=(30, 3))
    frame.to_parquet(tmp_path / "all.parquet")
    return tmp_path / "all.parquet"


@pytest.fixture
def no_space():
    """Files of at most 256 bytes, beyond which writing fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_told_with_the_path_that_was_given(table, tmp_path, request):
    request.getfixturevalue("no_space")
    with pytest.raises(OSError, match=f"File too large: '{tmp_path / 'out'}'"):
        store_tasks(table, tmp_path / "out", **COLUMNS)
    assert [path.name for path in tmp_path.iterdir()] == ["all.parquet"]


def test_a_link_to_stored_tasks_stays(table, tmp_path):
    (tmp_path / "link").symlink_to("real")
    for overwrite in (False, True):
        store_tasks(table, tmp_path / "link", **COLUMNS, overwrite=overwrite)
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.parquet", "link", "real"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header: header.update(environments=[]), "environments must be a list of 1 to"),
        (lambda header: header["environments"][0].update(tasks=10**30), r"environments\[0\].tasks must be an integer"),
        (lambda header: header["environments"][0].update(tasks=10**9), "do not belong together"),
        (lambda header: header["environments"][0].update(name=["a"]), r"environments\[0\].name must be text"),
        (lambda header: header["environments"].append(header["environments"][0]), "names that differ"),
        (lambda header: header.update(bytes=3), "bytes must be an object"),
        (lambda header: header.pop("columns"), "lacks columns"),
        (lambda header: header.update(more=json.loads("[" * 40 + "]" * 40)), "nested more than"),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(table, tmp_path, change, message):
    out = tmp_path / "out"
    store_tasks(table, out, **COLUMNS)
    header = json.loads((out / "tasks.json").read_text())
    change(header)
    (out / "tasks.json").write_text(json.dumps(header))
    with pytest.raises(InvalidFile, match=message):
        open_tasks(out)


def test_arrays_of_another_kind_are_refused(table, tmp_path):
    out = tmp_path / "out"
    store_tasks(table, out, **COLUMNS)
    written = {name: np.load(out / f"{name}.npy") for name in ("x", "y", "offsets")}
    wrong = [
        ("x", written["x"].astype(np.float32), "x.npy must be float64"),
        ("y", written["y"][:, None], "do not belong together"),
        ("offsets", written["offsets"].astype(np.float64), "offsets.npy must be int64"),
        ("offsets", written["offsets"][::-1].copy(), "do not belong together"),
        ("offsets", np.zeros(0, np.int64), "do not belong together"),
    ]
    header = json.loads((out / "tasks.json").read_text())
    for name, array, message in wrong:
        np.save(out / f"{name}.npy", array)
        header["bytes"][f"{name}.npy"] = (out / f"{name}.npy").stat().st_size
        (out / "tasks.json").write_text(json.dumps(header))
        with pytest.raises(InvalidFile, match=message):
            open_tasks(out)
        np.save(out / f"{name}.npy", written[name])
        header["bytes"][f"{name}.npy"] = (out / f"{name}.npy").stat().st_size


def test_values_that_have_become_nan_are_found(table, tmp_path):
    store_tasks(table, tmp_path / "out", **{**COLUMNS, "environment": None})
    y = np.load(tmp_path / "out" / "y.npy", mmap_mode="r+")
    y[3] = np.nan
    y.flush()
    with pytest.raises(ValueError, match="some values are NaN or infinite"):
        _ = open_tasks(tmp_path / "out").moments
