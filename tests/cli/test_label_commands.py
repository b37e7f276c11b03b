"""fit, evaluate, predict and info for labels of any number of classes, as they are typed."""

import json
import sys

import numpy as np
import pandas as pd
import pytest
from running import call, words

from metaprior import load, predict_frame
from metaprior.cli.evaluate import score_held_out
from metaprior.cli.info import class_words
from metaprior.tasks.types import Task

COLUMNS = ["--task", "site", "--x", "size", "weight", "--y", "bird"]
NAMES = {"task": "site", "x": ["size", "weight"], "y": "bird"}
BIRDS = np.array(["auk", "jay", "owl"])


def make_table(seed, n_tasks, n, labels):
    """Sites with a cluster for each class; `labels` gives the names of the classes of a site."""
    rng, rows = np.random.default_rng(seed), []
    centers = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]])
    for site in range(n_tasks):
        codes = rng.permutation(np.arange(n) % 3)
        x = centers[codes] + rng.normal(size=(n, 2)) + 0.3 * rng.normal(size=2)
        rows += [(f"s{seed}-{site}", *x[i], labels(site)[codes[i]]) for i in range(n)]
    return pd.DataFrame(rows, columns=["site", "size", "weight", "bird"])


def write_tables(folder, labels):
    make_table(0, 6, 9, labels).to_csv(folder / "train.csv", index=False)
    test = make_table(1, 3, 15, labels)
    test.to_csv(folder / "test.csv", index=False)
    test.groupby("site").head(6).to_csv(folder / "context.csv", index=False)
    test.groupby("site").tail(4).drop(columns="bird").to_csv(folder / "query.csv", index=False)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Tables of three birds, the same in every site, and a prior."""
    folder = tmp_path_factory.mktemp("shared")
    write_tables(folder, lambda site: BIRDS)
    said = call("fit", folder / "train.csv", *COLUMNS, "--hold-out", "0.2", "--out", folder / "prior")
    assert "Fitted to labels: bird holds 3 classes, auk, jay and owl." in words(said)
    assert "logistic regression" in said.stdout
    assert "5 labels of each (half, of shorter ones) as context" in words(said)
    assert "could not be fitted" not in words(said)
    assert "reading" not in words(said)
    return folder


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Tables in which every site numbers its own birds, and a prior."""
    folder = tmp_path_factory.mktemp("own")
    write_tables(folder, lambda site: np.array([f"{site % 2}{bird}" for bird in BIRDS]))
    said = call("fit", folder / "train.csv", *COLUMNS, "--set", "shared_classes=false", "--out", folder / "prior")
    assert "bird holds other classes in each task" in words(said)
    return folder


def test_evaluate_compares_with_baselines_and_counts_confusions(shared, tmp_path):
    picture = tmp_path / "picture.png"
    said = call("evaluate", shared / "prior", shared / "test.csv", "--json", "--plot", picture)
    result = json.loads(said.stdout)
    assert set(result["overall"]) == {"metaprior", "nearest class mean", "logistic regression"}
    assert result["overall"]["metaprior"]["accuracy"] > 0.8
    assert result["confusion"]["classes"] == BIRDS.tolist()
    counts = np.array(result["confusion"]["counts"])
    assert counts.shape == (3, 3)
    assert counts.sum() == 3 * 10
    assert picture.stat().st_size > 10_000


def test_predictions_have_a_column_for_every_class(shared, tmp_path):
    files = shared / "context.csv", shared / "query.csv"
    said = call("predict", shared / "prior", *files, "--out", tmp_path / "p.csv", "--plot", tmp_path / "p.png")
    found = pd.read_csv(tmp_path / "p.csv")
    columns = [f"probability_{bird}" for bird in BIRDS]
    np.testing.assert_allclose(found[columns].sum(axis=1), 1.0)
    assert found["label"].tolist() == BIRDS[found[columns].to_numpy().argmax(axis=1)].tolist()
    assert "probability_owl" in said.stdout
    expected = predict_frame(load(shared / "prior"), *map(pd.read_csv, files), **NAMES)
    np.testing.assert_allclose(found[columns], expected[columns], rtol=1e-9)


def test_classes_of_their_own_are_empty_elsewhere(own, tmp_path):
    files = own / "context.csv", own / "query.csv"
    said = json.loads(call("predict", own / "prior", *files, "--out", tmp_path / "p.csv", "--json").stdout)
    found = pd.read_csv(tmp_path / "p.csv")
    columns = [name for name in found if name.startswith("probability_")]
    assert len(columns) == 6
    assert (found[columns].notna().sum(axis=1) == 3).all()
    np.testing.assert_allclose(found[columns].sum(axis=1), 1.0)
    np.testing.assert_allclose(found[columns].max(axis=1), found["probability"])
    assert any(value is None for value in said["rows"][0].values())  # NaN is not JSON
    result = json.loads(
        call("evaluate", own / "prior", own / "test.csv", "--json", "--plot", tmp_path / "e.png").stdout
    )
    assert "confusion" not in result
    assert result["overall"]["metaprior"]["accuracy"] > 0.5


def test_info_names_the_classes(shared, own):
    said = words(call("info", shared / "prior"))
    assert "3 classes, auk, jay and owl" in said
    assert "5 tasks, 45 labels" in said
    assert "factor of the latent scale" in said
    assert json.loads(call("info", shared / "prior", "--json").stdout)["report"]["outputs"] == "labels"
    assert "other classes in each task" in words(call("info", own / "prior"))


def test_numbers_are_labels_if_told(shared, tmp_path):
    table = pd.read_csv(shared / "train.csv")
    table["bird"] = table["bird"].map({bird: 2 + i for i, bird in enumerate(BIRDS)})
    table.to_csv(tmp_path / "t.csv", index=False)
    fit = ["fit", tmp_path / "t.csv", *COLUMNS, "--out", tmp_path / "prior"]
    note = "bird has 3 values only, 2, 3 and 4, fitted as numbers. For labels pass --kind classification."
    assert note in words(call(*fit))
    assert "bird holds 3 classes, 2, 3 and 4" in words(call(*fit, "--kind", "classification"))


def test_probabilities_are_calibrated_unless_told_otherwise(shared, tmp_path):
    assert load(shared / "prior").training_["factor"] != 1.0
    fit = ["fit", shared / "train.csv", *COLUMNS, "--out", tmp_path / "prior", "--json"]
    plain = json.loads(call(*fit, "--set", "calibrate=false").stdout)
    assert (plain["factor"], plain["ratio"]) == (1.0, 1.0)
    assert not load(tmp_path / "prior").calibrate


@pytest.mark.parametrize("parameter", ["shared_classes=false", "calibrate=false"])
def test_classes_of_numbers_are_refused(shared, tmp_path, parameter):
    columns = ["--task", "site", "--x", "size", "--y", "weight"]
    refused = call("fit", shared / "train.csv", *columns, "--set", parameter, "--out", tmp_path / "prior", code=2)
    assert f"--set {parameter.partition('=')[0]} is for labels; y holds numbers." in words(refused)


def test_probabilities_of_many_classes_are_left_to_the_file(own, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["metaprior.cli.predict"], "MAX_CLASSES", 5)
    said = call("predict", own / "prior", own / "context.csv", own / "query.csv", "--out", tmp_path / "p.csv")
    assert "The file has the probabilities of all 6 classes." in words(said)
    assert "probability_" not in said.stdout


def test_a_label_that_the_prior_does_not_know_is_refused_by_the_name_of_its_task(shared, tmp_path):
    table = pd.read_csv(shared / "test.csv").replace({"bird": {"owl": "emu"}})
    table.to_csv(tmp_path / "t.csv", index=False)
    said = words(call("evaluate", shared / "prior", tmp_path / "t.csv", code=2))
    assert f"{tmp_path / 't.csv'}: task 's1-0' (from line 2), column bird: y has 'auk', 'emu', 'jay'" in said


def test_held_out_tasks_with_a_class_that_the_fit_has_not_seen_are_left_out(shared, capfd):
    meta, table = (
        load(shared / "prior"),
        make_table(1, 2, 15, lambda site: BIRDS if site else np.array(["emu", "owl", "jay"])),
    )
    strange, known = (
        Task(each[["size", "weight"]].to_numpy(), each["bird"].to_numpy(str)) for _, each in table.groupby("site")
    )
    tested = score_held_out(meta, [strange, known], np.random.default_rng(0))
    assert (tested.places, tested.record()["tasks"]) == ([1], 1)
    assert "not tested on 1 held-out task with a label that no task of the fit has" in capfd.readouterr().err
    assert score_held_out(meta, [strange], np.random.default_rng(0)) is None


def test_many_classes_are_named_in_part():
    assert class_words(["a"] * 30).startswith("30 classes, a, a")
    assert class_words(["a"] * 30).endswith(", a and others")
    assert class_words(None) == "other classes in each task"
