"""Conformal intervals of fit, predict, evaluate and info, as they are typed."""

import json

import numpy as np
import pandas as pd
import pytest
from running import call, words

from metaprior import load, predict_frame
from metaprior.cli.evaluate import print_conformal
from metaprior.metrics import Scores

COLUMNS = ["--task", "group", "--x", "x", "--y", "y"]


# Of nine folds of one task 1 - 2 alpha + 1 / (9 + 1) is proven.
NINE_TASKS = (
    "nominal coverage 0.9, proven 0.9 or more for new tasks like those of the target, "
    "whether or not the model is right; up to 0.9, "
    "from 9 held-out target tasks in 9 folds, 3 random readings of each as context"
)


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
    """A prior with a conformal, what its fit printed, and tables of new tasks."""
    folder = tmp_path_factory.mktemp("conformal")
    table, prior = write_table(folder / "tasks.csv", 9), folder / "prior.safetensors"
    result = call("fit", table, *COLUMNS, "--context", "3", "--set", "conformal=true", "--out", prior)
    (folder / "fit.txt").write_text(words(result))
    rows = pd.read_csv(write_table(folder / "new.csv", 6, seed=1))
    rows[::2].to_csv(folder / "context.csv", index=False)
    rows[1::2][["group", "x"]].to_csv(folder / "query.csv", index=False)
    return folder


def test_fit_and_info_say_what_bands_there_are(folder):
    assert f"Conformal intervals: {NINE_TASKS}." in (folder / "fit.txt").read_text()
    assert NINE_TASKS in words(call("info", folder / "prior.safetensors"))


def test_predict_writes_the_interval_and_says_what_is_proven(folder, tmp_path):
    files = folder / "context.csv", folder / "query.csv"
    out = "--out", tmp_path / "predictions.csv", "--plot", tmp_path / "predictions.png"
    result = call("predict", folder / "prior.safetensors", *files, "--method", "conformal", *out)
    names = {"task": "group", "x": "x", "y": "y"}
    with pytest.warns(UserWarning, match="calibrated with contexts of 3 readings; 3 of 6 contexts have others"):
        expected = predict_frame(load(folder / "prior.safetensors"), *files, **names, method="conformal")
    assert "calibrated with contexts of 3 readings" in words(result)
    written = pd.read_csv(tmp_path / "predictions.csv")
    np.testing.assert_allclose(written[["lower", "upper"]], expected[["lower", "upper"]])
    said = "a conformal interval: nominal coverage 0.9, proven 0.9 or more for new tasks like those of the target"
    assert said in words(result)
    own = call("predict", folder / "prior.safetensors", *files, *out)
    assert "it is between lower and upper with a probability of 0.9." in words(own)


def test_evaluate_reports_both_bands(folder, tmp_path):
    result = call("evaluate", folder / "prior.safetensors", folder / "new.csv")
    assert "Inside the conformal interval of nominally 90%: " in words(result)
    figures = json.loads(call("evaluate", folder / "prior.safetensors", folder / "new.csv", "--json").stdout)
    assert 0.0 <= figures["conformal_coverage"] <= 1.0
    assert figures["conformal_width"] > 0.0


def test_refusals_name_the_option(folder, tmp_path):
    files = folder / "context.csv", folder / "query.csv"
    result = call(
        "predict", folder / "prior.safetensors", *files, "--method", "conformal", "--coverage", "0.95", code=2
    )
    assert "--coverage 0.95 is out of reach" in words(result)
    assert "Ask for less, or fit with 20 target tasks or more." in words(result)
    call("fit", folder / "tasks.csv", *COLUMNS, "--out", tmp_path / "plain.safetensors")
    result = call("predict", tmp_path / "plain.safetensors", *files, "--method", "conformal", code=2)
    assert "Fit it again with --set conformal=true." in words(result)
    labels = write_table(tmp_path / "labels.csv", 4, labels=True)
    result = call("fit", labels, *COLUMNS, "--set", "conformal=true", "--out", tmp_path / "labels.safetensors", code=2)
    assert "--set conformal is for numbers; y holds labels." in words(result)
    call("fit", labels, *COLUMNS, "--out", tmp_path / "labels.safetensors")
    tables = [tmp_path / "context.csv", tmp_path / "query.csv"]
    rows = pd.read_csv(labels)
    rows.to_csv(tables[0], index=False)
    rows[["group", "x"]].to_csv(tables[1], index=False)
    result = call("predict", tmp_path / "labels.safetensors", *tables, "--method", "conformal", code=2)
    assert "--method conformal is for intervals of readings; this prior predicts labels." in words(result)


def test_a_report_of_a_prior_with_conformal_intervals(tmp_path):
    table, report = write_table(tmp_path / "tasks.csv", 14), tmp_path / "fit.html"
    options = (
        "--context",
        "3",
        "--set",
        "conformal=true",
        "--hold-out",
        "0.3",
        "--out",
        tmp_path / "prior",
        "--report",
        report,
    )
    fitted = words(call("fit", table, *COLUMNS, *options))
    assert "conformal coverage: share of readings inside the conformal interval" in report.read_text()
    for said in (fitted, report.read_text()):  # ten folds of one task: 1 - 2 alpha + 1 / (10 + 1)
        assert "nominal coverage 0.9, proven 0.89 or more for new tasks like those of the target" in said


def write_responses(folder, likelihood, rng):
    """Write tables of nine tasks to fit to, and of the contexts and queries of new ones; return options of the fit."""
    rows = []
    for task in range(14):
        level = rng.normal()
        for x, days in zip(rng.uniform(-1, 1, 7).tolist(), rng.integers(1, 6, 7).tolist(), strict=True):
            rank = float(np.clip(np.round(13.0 + 2.0 * (level + x + rng.normal())), 3, 15))
            y = float(rng.poisson(np.exp(0.5 * level + 0.5 * x) * days)) if likelihood == "poisson" else rank
            rows.append((task, x, days, y))
    table = pd.DataFrame(rows, columns=["group", "x", "days", "y"])
    table = table if likelihood == "poisson" else table.drop(columns="days")
    new = table[table["group"] >= 9]
    table[table["group"] < 9].to_csv(folder / "tasks.csv", index=False)
    new.to_csv(folder / "new.csv", index=False)
    new[::2].to_csv(folder / "context.csv", index=False)
    new[1::2].drop(columns="y").to_csv(folder / "query.csv", index=False)
    return ["--likelihood", likelihood, *(["--set", "exposure=days"] if likelihood == "poisson" else [])]


SLOW_RANKS = pytest.param("ordinal", (3, 15), marks=pytest.mark.slow)


@pytest.mark.parametrize(("likelihood", "limits"), [("poisson", (0, np.inf)), SLOW_RANKS])
def test_counts_and_ranks_have_bands_of_possible_integers(likelihood, limits, tmp_path):
    options = write_responses(tmp_path, likelihood, np.random.default_rng(0))
    prior, files = tmp_path / "prior.safetensors", [tmp_path / "context.csv", tmp_path / "query.csv"]
    result = call(
        "fit", tmp_path / "tasks.csv", *COLUMNS, *options, "--context", "3", "--set", "conformal=true", "--out", prior
    )
    assert f"Conformal intervals: {NINE_TASKS}." in words(result)
    assert NINE_TASKS in words(call("info", prior))
    result = call("predict", prior, *files, "--method", "conformal", "--out", tmp_path / "wide.csv")
    assert "a conformal interval: nominal coverage 0.9, proven 0.9 or more" in words(result)
    call("predict", prior, *files, "--out", tmp_path / "own.csv")
    wide, own = (pd.read_csv(tmp_path / name)[["lower", "upper"]] for name in ("wide.csv", "own.csv"))
    assert (wide % 1 == 0).all(axis=None)
    assert wide["lower"].min() >= limits[0]
    assert wide["upper"].max() <= limits[1]
    assert (wide["lower"] <= wide["upper"]).all()
    assert (wide["upper"] - wide["lower"]).sum() > (own["upper"] - own["lower"]).sum()
    figures = json.loads(call("evaluate", prior, tmp_path / "new.csv", "--json").stdout)
    assert 0.8 < figures["conformal_coverage"] <= 1.0


def test_a_band_without_own_width_is_told_by_its_own(capsys):
    """Ranks that are certain have own intervals of a single level."""
    known = {
        "conformal_coverage": 1.0,
        "conformal_coverage_se": 0.0,
        "conformal_width": 2.0,
        "nominal_coverage": 0.9,
    }
    print_conformal(Scores(**known, width=0.0))
    assert "100 ± 0%; its width is 2." in capsys.readouterr().out
    print_conformal(Scores(**known, width=0.5))
    assert "100 ± 0%; it is 4 times as wide." in capsys.readouterr().out


def test_a_private_prior_has_no_conformal_intervals(folder, tmp_path):
    columns = [*COLUMNS, "--set", "conformal=true", "--private", "--out", tmp_path / "prior"]
    refused = call("fit", folder / "tasks.csv", *columns, code=2)
    assert words(refused).startswith(
        "--private cannot hide what conformal intervals need: fits without each target task"
    )
