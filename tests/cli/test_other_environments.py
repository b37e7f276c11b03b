"""Tasks of environments that a prior does not predict in: what becomes of them is told, once and by name."""

import json
import warnings
from importlib import resources

import pandas as pd
import pytest
from running import call, words

import metaprior
from metaprior.tables.columns import TableWarning

EXAMPLE = resources.files("metaprior").joinpath("datasets", "example")
TOLD = "predicted with the prior of 'south'"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("environments")
    table = pd.read_csv(str(EXAMPLE / "patients.csv"))
    names = table["patient"].unique()
    kept = [*[name for name in names if name.startswith("N")][:6], *[name for name in names if name[0] == "S"][:6]]
    table[table["patient"].isin(kept)].to_csv(folder / "patients.csv", index=False)
    given = ("--task", "patient", "--x", "hours", "--y", "heart_rate", "--environment", "hospital")
    call("fit", folder / "patients.csv", *given, "--target", "south", "--out", folder / "prior.safetensors")
    test = pd.read_csv(str(EXAMPLE / "test.csv"))
    test.to_csv(folder / "south.csv", index=False)
    places = dict(zip(test["patient"].unique(), ["north", "north", "east"], strict=False))
    test["hospital"] = [places.get(name, "south") for name in test["patient"]]
    test.to_csv(folder / "mixed.csv", index=False)
    early = test["hours"] < test["hours"].median()
    test[early].to_csv(folder / "context.csv", index=False)
    late = test[~early & test["patient"].isin(test[early]["patient"])]
    late.drop(columns="heart_rate").to_csv(folder / "query.csv", index=False)
    late[["patient", "hours"]].to_csv(folder / "plain.csv", index=False)
    return folder


def told_of(notes, start):
    return [note for note in notes if note["message"].startswith(start)]


def test_evaluate_says_which_tasks_it_leaves_out(folder):
    prior = folder / "prior.safetensors"
    left_out = (
        "Left out 3 tasks of other environments (2 of 'north', 1 of 'east'): only tasks of 'south' are evaluated."
    )
    notes = json.loads(call("evaluate", prior, folder / "mixed.csv", "--json").stdout)["notes"]
    assert [note["message"] for note in told_of(notes, "Left out")] == [left_out]
    assert words(call("evaluate", prior, folder / "mixed.csv")).count(left_out) == 1
    assert "other environments" not in words(call("evaluate", prior, folder / "south.csv"))


@pytest.mark.parametrize("query", ["query.csv", "plain.csv"])  # the context names environments, too
def test_predict_says_which_tasks_are_of_other_environments(folder, query, tmp_path):
    tables = folder / "prior.safetensors", folder / "context.csv", folder / query
    result = call("predict", *tables, "--out", tmp_path / "p.csv", "--json")
    [note] = [note for note in json.loads(result.stdout)["notes"] if TOLD in note["message"]]
    assert "tasks of other environments (" in note["message"]
    assert "of 'north'" in note["message"]
    assert note["kind"] == "TableWarning"
    assert list(pd.read_csv(tmp_path / "p.csv"))[:3] == ["patient", "hours", "mean"]


def test_environments_that_are_missing_or_name_the_task_are_no_trouble(folder):
    meta = metaprior.load(folder / "prior.safetensors")
    context, query = (pd.read_csv(folder / name) for name in ("context.csv", "query.csv"))
    for table in (context, query):
        table.loc[table["hospital"] != "north", "hospital"] = None
    with pytest.warns(TableWarning, match=r"tasks of other environments \(2 of 'north'\)") as warned:
        metaprior.predict_frame(meta, context, query, task="patient", x="hours", y="heart_rate")
    assert len(warned) == 1
    both = (table.fillna({"hospital": "south"}) for table in (context, query))
    with pytest.warns(TableWarning, match=TOLD):
        found = metaprior.predict_frame(meta, *both, task=["patient", "hospital"], x="hours", y="heart_rate")
    assert list(found)[:4] == ["patient", "hospital", "hours", "mean"]


def test_predict_frame_says_the_same_if_the_prior_knows_the_column(folder):
    meta = metaprior.load(folder / "prior.safetensors")
    context, query = (pd.read_csv(folder / name) for name in ("context.csv", "query.csv"))
    names = {"task": "patient", "x": "hours", "y": "heart_rate"}
    with pytest.warns(TableWarning, match=TOLD):
        metaprior.predict_frame(meta, context, query, **names)
    south = [table[table["hospital"] == "south"] for table in (context, query)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", TableWarning)
        metaprior.predict_frame(meta, *south, **names)
