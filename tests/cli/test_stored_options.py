"""Options of `metaprior fit` with stored tasks: each works, or its error says what to leave out or to add."""

import shlex

import numpy as np
import pandas as pd
import pytest
from running import call, words

from metaprior import load

QUICK = ("--alpha", "0.5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Counts of nests stored with a column of environments and without."""
    path, rng = tmp_path_factory.mktemp("stored"), np.random.default_rng(0)
    frame = pd.DataFrame({"nest": np.repeat(np.arange(12), 6), "days": rng.integers(1, 6, 72)})
    frame["time"], frame["age"] = rng.uniform(0, 4, 72), frame["nest"] % 5
    frame["wood"] = np.where(frame["nest"] < 6, "north", "south")
    frame["calls"] = rng.poisson(frame["days"] * np.exp(0.3 * np.sin(frame["time"])))
    frame["seen"] = (frame["calls"] > frame["days"]).astype(int)
    frame.to_csv(path / "table.csv", index=False)
    columns = ("--task", "nest", "--x", "time", "days", "age", "--y")
    call("store", path / "table.csv", *columns, "calls", "--environment", "wood", "--out", path / "woods")
    call("store", path / "table.csv", *columns, "calls", "--out", path / "one")
    call("store", path / "table.csv", *columns, "seen", "--environment", "wood", "--out", path / "labels")
    return path


WOODS = ("woods", "--target", "south", *QUICK)
COUNTS = (*WOODS, "--likelihood", "poisson")
WORKS = [
    (*COUNTS, "--set", "exposure=days"),
    (*COUNTS, "--set", "exposure=days", "--covariates", "age"),
    ("one", "--likelihood", "poisson", "--set", "exposure=days", "--hold-out", "0.3"),
    (*WOODS, "--set", "noise_std=1.5", "random_state=3", "--context", "first 2", "--report", "fit.html"),
    (
        "labels",
        "--target",
        "south",
        *QUICK,
        "--kind",
        "classification",
        "--set",
        "shared_classes=true",
        "calibrate=false",
    ),
]
REFUSED = {
    (
        *COUNTS,
        "--set",
        "exposure=weeks",
    ): "'weeks', which is not an input of the stored tasks: 'time', 'days', 'age'. Store "
    "the tables again, with this column in --x.",
    (*COUNTS, "--set", "exposure=days", "--x", "time"): "options are for tables. Leave out --x.",
    (*WOODS, "--csv", "sep=;"): "Leave out --csv.",
    (*WOODS, "--categorical", "age"): "Leave out --categorical.",
    (*WOODS, "--covariates", "height"): "'height', which is not an input of the stored tasks",
    (*WOODS, "--drop", "missing", "duplicates"): "Leave out --drop.",
    (*WOODS, "--environment", "wood"): "Leave out --environment.",
    ("woods",): "pass --target, the one to predict in, of 'north', 'south'",
    ("woods", *QUICK): "--alpha weights other environments: it needs --target, and tasks stored with --environment.",
    ("one", *QUICK): "it needs --target, and tasks stored with --environment.",
    ("one", "--target", "south"): "stored without --environment. Leave out --target, or store the tasks again",
}


@pytest.mark.parametrize("arguments", WORKS, ids=shlex.join)
def test_these_work(arguments, folder, monkeypatch):
    monkeypatch.chdir(folder)
    call("fit", *arguments, "--out", "prior.safetensors")
    if "exposure=days" in arguments:
        meta = load("prior.safetensors")
        assert meta.model_.members[0].exposure == 1
        call("evaluate", "prior.safetensors", "table.csv", "--context", "2", "--out", "scores.csv")


@pytest.mark.parametrize("arguments", REFUSED, ids=shlex.join)
def test_these_say_what_to_do(arguments, folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert REFUSED[arguments] in words(call("fit", *arguments, "--out", "refused.safetensors", code=2))


def test_no_output_goes_into_the_folder_that_is_read(folder, monkeypatch):
    monkeypatch.chdir(folder)
    before = (folder / "woods" / "y.npy").read_bytes()
    for out in ("woods/y.npy", "woods/new.safetensors"):
        assert "is in a folder that this command reads" in words(call("fit", *WOODS, "--out", out, code=2))
    assert (folder / "woods" / "y.npy").read_bytes() == before
    assert not (folder / "woods" / "new.safetensors").exists()
