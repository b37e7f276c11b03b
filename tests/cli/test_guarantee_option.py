"""fit, predict, evaluate and info with --guarantee, as they are typed."""

import json

import numpy as np
import pandas as pd
import pytest
from running import call, words

from metaprior import load, predict_frame

COLUMNS = ["--task", "group", "--x", "x", "--y", "y"]


def write_table(path, n_tasks, seed=0, labels=False):
    rng, rows = np.random.default_rng(seed), []
    for task in range(n_tasks):
        level = rng.normal()
        for x in rng.uniform(-1, 1, 7).tolist():
            y = level + x + 0.3 * rng.normal()
            rows.append((f"{seed}-{task}", x, "high" if labels and y > 0 else "low" if labels else y))
    pd.DataFrame(rows, columns=["group", "x", "y"]).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A prior with a guarantee, what its fit printed, and tables of new tasks."""
    folder = tmp_path_factory.mktemp("guarantee")
    table, prior = write_table(folder / "tasks.csv", 9), folder / "prior.safetensors"
    result = call("fit", table, *COLUMNS, "--context", "3", "--guarantee", "--out", prior)
    (folder / "fit.txt").write_text(words(result))
    rows = pd.read_csv(write_table(folder / "new.csv", 6, seed=1))
    rows[::2].to_csv(folder / "context.csv", index=False)
    rows[1::2][["group", "x"]].to_csv(folder / "query.csv", index=False)
    return folder


def test_fit_and_info_say_what_bands_there_are(folder):
    expected = "coverage of up to 0.9, from 9 held-out target tasks in 9 folds, 3 random readings of each as context"
    assert f"Bands with a guarantee: {expected}." in (folder / "fit.txt").read_text()
    assert expected in words(call("info", folder / "prior.safetensors"))


def test_predict_writes_the_band_and_says_that_it_has_a_guarantee(folder, tmp_path):
    files = folder / "context.csv", folder / "query.csv"
    out = "--out", tmp_path / "predictions.csv", "--plot", tmp_path / "predictions.png"
    result = call("predict", folder / "prior.safetensors", *files, "--guarantee", *out)
    names = {"task": "group", "x": "x", "y": "y"}
    expected = predict_frame(load(folder / "prior.safetensors"), *files, **names, method="conformal")
    written = pd.read_csv(tmp_path / "predictions.csv")
    np.testing.assert_allclose(written[["lower", "upper"]], expected[["lower", "upper"]])
    said = "a band with a guarantee: over new tasks it holds 0.9 of the readings, and provably 0.9 or more, whether or"
    assert said in words(result)
    own = call("predict", folder / "prior.safetensors", *files, *out)
    assert "it is between lower and upper with a probability of 0.9." in words(own)


def test_evaluate_reports_both_bands(folder, tmp_path):
    result = call("evaluate", folder / "prior.safetensors", folder / "new.csv")
    assert "Inside the 90% band with a guarantee: " in words(result)
    figures = json.loads(call("evaluate", folder / "prior.safetensors", folder / "new.csv", "--json").stdout)
    assert 0.0 <= figures["guaranteed_coverage"] <= 1.0
    assert figures["guaranteed_width"] > 0.0


def test_refusals_name_the_option(folder, tmp_path):
    files = folder / "context.csv", folder / "query.csv"
    result = call("predict", folder / "prior.safetensors", *files, "--guarantee", "--coverage", "0.95", code=2)
    assert "--coverage 0.95 is out of reach" in words(result)
    assert "Ask for less, or fit with 19 target tasks or more." in words(result)
    call("fit", folder / "tasks.csv", *COLUMNS, "--out", tmp_path / "plain.safetensors")
    result = call("predict", tmp_path / "plain.safetensors", *files, "--guarantee", code=2)
    assert "Fit it again with --guarantee." in words(result)
    labels = write_table(tmp_path / "labels.csv", 4, labels=True)
    result = call("fit", labels, *COLUMNS, "--guarantee", "--out", tmp_path / "labels.safetensors", code=2)
    assert "--guarantee is for bands of readings; y holds labels." in words(result)
    call("fit", labels, *COLUMNS, "--out", tmp_path / "labels.safetensors")
    tables = [tmp_path / "context.csv", tmp_path / "query.csv"]
    rows = pd.read_csv(labels)
    rows.to_csv(tables[0], index=False)
    rows[["group", "x"]].to_csv(tables[1], index=False)
    result = call("predict", tmp_path / "labels.safetensors", *tables, "--guarantee", code=2)
    assert "--guarantee is for bands of readings; this prior predicts labels." in words(result)


def test_a_report_of_a_prior_with_a_guarantee(tmp_path):
    table, report = write_table(tmp_path / "tasks.csv", 14), tmp_path / "fit.html"
    options = "--context", "3", "--guarantee", "--hold-out", "0.3", "--out", tmp_path / "prior", "--report", report
    call("fit", table, *COLUMNS, *options)
    assert "guaranteed coverage: share of readings inside the band with a guarantee" in report.read_text()
