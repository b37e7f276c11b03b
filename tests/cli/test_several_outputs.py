"""`--y hct gcs`: fitted, predicted, evaluated and shown side by side."""

import json

import numpy as np
import pandas as pd
import pytest
from running import call, words
from test_multi_output import QUERY, make_table

from metaprior import MultiOutputMetaGP, load

FIT = ("--task", "who", "--x", "day", "--y", "hct", "gcs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs")
    make_table().to_csv(folder / "table.csv", index=False)
    QUERY.to_csv(folder / "query.csv", index=False)
    result = call("fit", folder / "table.csv", *FIT, "--out", folder / "prior", "--hold-out", 0.3)
    said = words(result)
    assert "dropped 8 of 30 rows with a missing value (8 in hct)" in said
    assert said.index("Fitted to readings: hct holds numbers") < said.index("Fitted to readings: gcs holds numbers")
    return folder


def test_each_output_is_what_its_own_fit_gives(folder, tmp_path):
    meta = load(folder / "prior")
    assert isinstance(meta, MultiOutputMetaGP)
    call("fit", folder / "table.csv", *FIT[:-2], "gcs", "--drop-missing", "--out", tmp_path / "p", "--hold-out", 0.3)
    alone = load(tmp_path / "p")
    np.testing.assert_array_equal(
        meta["gcs"].adapt([[0]], [1.0]).predict([[1]]), alone.adapt([[0]], [1]).predict([[1]])
    )
    assert meta["gcs"].training_["held_out"]["gains"] == alone.training_["held_out"]["gains"]


def test_predict(folder, tmp_path):
    call("predict", folder / "prior", folder / "table.csv", folder / "query.csv", "--out", tmp_path / "p.csv")
    both = pd.read_csv(tmp_path / "p.csv")
    assert list(both)[2:6] == ["mean_hct", "std_hct", "lower_hct", "upper_hct"]
    one = ("predict", folder / "prior", folder / "table.csv", folder / "query.csv", "--y", "gcs")
    call(*one, "--out", tmp_path / "one.csv")
    assert pd.read_csv(tmp_path / "one.csv")["mean"].tolist() == both["mean_gcs"].tolist()


def test_evaluate(folder, tmp_path):
    arguments = ("evaluate", folder / "prior", folder / "table.csv", "--context", 2)
    said = words(call(*arguments, "--out", tmp_path / "scores.csv"))
    assert said.index("Output hct:") < said.index("Output gcs:")
    scores = pd.read_csv(tmp_path / "scores.csv")
    assert scores["output"].unique().tolist() == ["hct", "gcs"]
    parsed = json.loads(call(*arguments, "--json").stdout)["outputs"]
    alone = json.loads(call(*arguments, "--y", "gcs", "--json").stdout)
    assert parsed["gcs"]["overall"] == alone["overall"]
    assert list(parsed["hct"]["gains"]) == ["mixed model", "hierarchical GP", "GP per task"]


def test_info(folder):
    said = words(call("info", folder / "prior"))
    assert "Output hct:" in said
    assert "Output gcs:" in said
    assert list(json.loads(call("info", folder / "prior", "--json").stdout)["outputs"]) == ["hct", "gcs"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fit", "table.csv", *FIT, "gcs"), "column 'gcs' is named twice in y"),
        (("fit", "table.csv", *FIT, "day"), "column 'day' is named as x and as y"),
        (("fit", "table.csv", *FIT, "gsc"), "no column 'gsc'; did you mean 'gcs'"),
        (("fit", "table.csv", *FIT, "--report", "r.html"), "--report is for one output, and there are 2"),
        (("fit", "table.csv", *FIT, "--plot", "r.png"), "--plot is for one output"),
        (
            ("evaluate", "prior", "table.csv", "--y", "other"),
            "--y other is no output of this prior",
        ),
        (("evaluate", "prior", "table.csv", "--plot", "a.png"), "--plot is for one output"),
        (("info", "prior", "--plot", "a.png"), "--plot is for one output"),
    ],
)
def test_refusals(folder, monkeypatch, arguments, said):
    monkeypatch.chdir(folder)
    assert said in words(call(*arguments, code=2))


def test_a_prior_of_one_output_refuses_two(folder, tmp_path):
    call("fit", folder / "table.csv", *FIT[:-2], "state", "--out", tmp_path / "one")
    refused = call("evaluate", tmp_path / "one", folder / "table.csv", "--y", "hct", "gcs", code=2)
    assert "--y names 2 columns, and this prior has one output" in words(refused)
