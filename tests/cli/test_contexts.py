"""`--context`: what is given of a task, in `fit`, `fit --hold-out` and `evaluate`."""

import json

import numpy as np
import pandas as pd
import pytest
from running import call, words

from metaprior import load

COLUMNS = ("--task", "patient", "--x", "hours", "--y", "heart_rate", "--environment", "hospital", "--target", "south")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The example, and a prior that was fitted for forecasting, with held-out tasks."""
    place = tmp_path_factory.mktemp("contexts")
    call("example", "--out", place)
    fit = ("fit", place / "patients.csv", *COLUMNS, "--out", place / "prior", "--hold-out", "0.3")
    (place / "fit.txt").write_text(words(call(*fit, "--context", "first 4")))
    return place


def evaluated(folder, *options):
    return json.loads(call("evaluate", folder / "prior", folder / "test.csv", *options, "--json").stdout)


def test_held_out_tasks_are_given_what_the_fit_was_told(folder):
    assert "the first 4 readings of each (half, of shorter ones) as context" in (folder / "fit.txt").read_text()
    assert load(folder / "prior").training_["held_out"]["context"] == 4


def test_evaluate_asks_as_the_fit_did_unless_told_otherwise(folder):
    as_fitted, the_same, other = (evaluated(folder, *o) for o in ((), ("--context", "first 4"), ("--context", "5")))
    assert as_fitted["overall"] == the_same["overall"] != other["overall"]
    assert (as_fitted["context"], as_fitted["which"]) == (4, "first")
    assert (other["context"], other["which"], other["horizons"]) == (5, "random", [])
    said = words(call("evaluate", folder / "prior", folder / "test.csv"))
    assert "30 tasks, with the first 4 readings of each as context." in said
    assert "horizon: from the last reading of the context, in the units of hours." in said


def test_errors_by_horizon_are_those_of_the_readings(folder):
    found, meta = evaluated(folder)["horizons"], load(folder / "prior")
    horizons, errors = [], []
    for _, task in pd.read_csv(folder / "test.csv").groupby("patient", sort=False):
        task = task.sort_values("hours", kind="stable")
        x, y = task[["hours"]].to_numpy(float), task["heart_rate"].to_numpy(float)
        horizons += (x[4:, 0] - x[3, 0]).tolist()
        errors += (meta.adapt(x[:4], y[:4]).predict(x[4:]) - y[4:]).tolist()
    horizons, errors = np.array(horizons), np.array(errors)
    assert sum(each["readings"] for each in found) == len(errors)
    for each in found:
        inside = (horizons >= each["from"]) & (horizons <= each["to"])
        assert inside.sum() == each["readings"]
        assert each["rmse"] == pytest.approx(np.sqrt(np.mean(errors[inside] ** 2)))


def test_dates_give_horizons_in_days(folder, tmp_path):
    for name in ("patients.csv", "test.csv"):
        table = pd.read_csv(folder / name)
        table["hours"] = pd.Timestamp("2026-01-01") + pd.to_timedelta(table["hours"], "D")
        table.to_csv(tmp_path / name, index=False)
    call("fit", tmp_path / "patients.csv", *COLUMNS, "--out", tmp_path / "prior", "--context", "first")
    said = words(call("evaluate", tmp_path / "prior", tmp_path / "test.csv"))
    assert "in days." in said


@pytest.mark.parametrize("command", ["fit", "evaluate"])
def test_other_words_are_refused(folder, tmp_path, command):
    given = (folder / "patients.csv", *COLUMNS, "--out", tmp_path / "prior")
    arguments = {"fit": given, "evaluate": (folder / "prior", folder / "test.csv")}[command]
    assert "--context must be" in words(call(command, *arguments, "--context", "last", code=2))


def test_a_context_longer_than_all_tasks_is_refused(folder):
    said = words(call("evaluate", folder / "prior", folder / "test.csv", "--context", "first 50", code=2))
    assert "has no task with more than 50 readings. Use a smaller --context." in said


def test_an_order_by_categories_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"id": np.repeat(range(6), 6), "ward": np.tile(["b", "a"], 18), "hours": rng.random(36)})
    table.assign(y=rng.random(36)).to_csv(tmp_path / "table.csv", index=False)
    call("fit", tmp_path / "table.csv", "--task", "id", "--x", "ward", "hours", "--y", "y", "--out", tmp_path / "prior")
    said = words(call("evaluate", tmp_path / "prior", tmp_path / "table.csv", "--context", "first 4", code=2))
    assert "--context first needs the first column of X to be a number" in said
    assert "'ward' is a category" in said


def test_a_fit_refuses_a_context_that_no_task_is_longer_than(folder, tmp_path):
    fit = ("fit", folder / "patients.csv", *COLUMNS, "--out", tmp_path / "prior")
    said = words(call(*fit, "--context", "first 50", code=2))
    assert "--context must leave a reading of a task to predict: it gives 50 readings" in said
    assert "Pass a smaller one" in said
