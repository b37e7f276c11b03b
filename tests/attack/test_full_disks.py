"""Disks that are full while a command writes: one line that names the path, exit code 2, and nothing left behind.

`tests/test_files.py` and `tests/storage/` have the quick relatives.
"""

import os
import subprocess
import sys
from importlib import resources

import pytest
from counters import count

from metaprior import MetaGPRegressor, tasks_from_frame

EXAMPLE = resources.files("metaprior").joinpath("datasets", "example")
COLUMNS = ["--task", "patient", "--x", "hours", "--y", "heart_rate"]
TABLES = [str(EXAMPLE.joinpath(name)) for name in ("patients.csv", "test.csv", "readings.csv", "hours.csv")]
PATIENTS, TEST, READINGS, HOURS = TABLES


@pytest.fixture(scope="module")
def prior(tmp_path_factory):
    import pandas as pd

    path = tmp_path_factory.mktemp("prior") / "prior.safetensors"
    tasks = tasks_from_frame(pd.read_csv(PATIENTS), task="patient", x="hours", y="heart_rate", environment="hospital")
    meta = MetaGPRegressor(random_state=0).fit(tasks, target="south")
    meta.training_["columns"] = {"task": ["patient"], "x": ["hours"], "y": "heart_rate", "environment": "hospital"}
    meta.save(path)
    return str(path)


# Files of at most a kilobyte, beyond which writing fails as on a full disk.
NO_SPACE = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
COMMANDS = {
    "store": lambda prior: (["store", PATIENTS, *COLUMNS, "--out"], "stored"),
    "csv": lambda prior: (["predict", prior, READINGS, HOURS, "--out"], "predictions.csv"),
    "parquet": lambda prior: (["predict", prior, READINGS, HOURS, "--out"], "predictions.parquet"),
    "picture": lambda prior: (["info", prior, "--plot"], "report.png"),
    "scores": lambda prior: (["evaluate", prior, TEST, "--out"], "scores.csv"),
    "fit": lambda prior: (["fit", PATIENTS, *COLUMNS, "--out"], "prior.safetensors"),
    "wfem": lambda prior: (
        ["wfem", PATIENTS, *COLUMNS, "--kernel", "rbf", "--n-steps", "200", "--out"],
        "r.safetensors",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk(prior, command, tmp_path):
    arguments, name = COMMANDS[command](prior)
    whole = [sys.executable, "-c", NO_SPACE, "-m", "metaprior", *arguments, name]
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": ""}
    done = subprocess.run(whole, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    named = f".{name}.checkpoint" if command == "wfem" else name
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("Note:", "Could not save font"))]
    assert (done.returncode, lines) == (2, [f"{named}: File too large"])
    assert list(tmp_path.iterdir()) == []
    count("command lines", "disk full, told in one line")
