"""Likelihoods on the command line: fit, evaluate and predict a table of counts with an exposure; hints and errors."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from metaprior.cli import app

COLUMNS = ("--task", "nest", "--x", "time", "--y", "calls")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table of counts, and a prior fitted to it."""
    path, rng = tmp_path_factory.mktemp("counts"), np.random.default_rng(0)
    rows = []
    for nest in range(14):
        rate = np.exp(0.5 * rng.normal())
        for time in rng.uniform(0, 4, 8):
            days = rng.integers(1, 6)
            rows.append((nest, time, days, rng.poisson(rate * days * np.exp(0.5 * np.sin(time)))))
    table = pd.DataFrame(rows, columns=["nest", "time", "days", "calls"])
    table[table["nest"] < 10].to_csv(path / "fit.csv", index=False)
    table[table["nest"] >= 10].to_csv(path / "new.csv", index=False)
    run = invoke("fit", path / "fit.csv", *COLUMNS, *OPTIONS, "--out", path / "prior.safetensors", "--hold-out", "0.3")
    assert run.exit_code == 0, run.output
    assert "Fitted to counts: calls holds numbers, with the likelihood poisson." in run.stdout
    assert "7 tasks, 56 counts" in run.stdout
    return path


OPTIONS = ("--likelihood", "poisson", "--set", "exposure=days")


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_predictions_are_counts(folder):
    new = pd.read_csv(folder / "new.csv")
    context, query = new[new["time"] < 2], new[new["time"] >= 2]
    context.to_csv(folder / "context.csv", index=False)
    query.assign(days=10).drop(columns="calls").to_csv(folder / "query.csv", index=False)
    result = invoke(
        "predict",
        folder / "prior.safetensors",
        folder / "context.csv",
        folder / "query.csv",
        "--out",
        folder / "out.csv",
    )
    assert result.exit_code == 0, result.output
    found = pd.read_csv(folder / "out.csv")
    assert (found[["lower", "upper"]] % 1 == 0).all(axis=None)
    assert (found["lower"] <= found["mean"]).all()
    assert not found["extrapolates"].any()  # an exposure may be of any size
    context.assign(calls=-1).to_csv(folder / "bad.csv", index=False)
    result = invoke(
        "predict", folder / "prior.safetensors", folder / "bad.csv", folder / "query.csv", "--out", folder / "out.csv"
    )
    assert result.exit_code == 2
    assert "must hold counts" in " ".join(result.output.split())


def test_evaluation_and_its_picture(folder):
    result = invoke(
        "evaluate",
        folder / "prior.safetensors",
        folder / "new.csv",
        "--context",
        4,
        "--json",
        "--plot",
        folder / "c.png",
    )
    assert result.exit_code == 0, result.output
    assert 0.5 < json.loads(result.stdout)["overall"]["metaprior"]["coverage"] <= 1.0
    assert (folder / "c.png").exists()


def test_covariates_categories_and_exposure_from_fit_to_predict(folder):
    rng = np.random.default_rng(1)
    ages, kinds = rng.uniform(1.0, 9.0, 14), rng.choice(["oak", "pine"], 14)

    def described(rows):
        """Give nests an age and a tree, on both of which the counts depend, and readings an observer."""
        age, tree = ages[rows["nest"]].round(1), kinds[rows["nest"]]
        calls = rng.poisson(
            rows["days"] * np.exp(0.4 * (age - 5.0) + (tree == "oak") + 0.2 * rng.normal(size=len(rows)))
        )
        return rows.assign(age=age, tree=tree, observer=rng.integers(1, 3, len(rows)), calls=calls)

    table, new = (described(pd.read_csv(folder / name)) for name in ("fit.csv", "new.csv"))
    table.to_csv(folder / "described.csv", index=False)
    new.to_csv(folder / "new-described.csv", index=False)
    new[new["time"] < 2].to_csv(folder / "context.csv", index=False)
    asked = new[new["time"] >= 2].drop(columns=["age", "tree", "calls"])
    asked.to_csv(folder / "query.csv", index=False)
    prior = folder / "covariates.safetensors"
    named = ("--task", "nest", "--x", "time", "observer", "--categorical", "observer", "--y", "calls")
    named += ("--covariates", "age", "tree")
    result = invoke("fit", folder / "described.csv", *named, *OPTIONS, "--out", prior)
    assert result.exit_code == 0, result.output
    shown = " ".join(invoke("info", prior).output.split())
    for expected in ("levels of tree", "levels of observer", "age, tree", "weight of priors where covariates shift"):
        assert expected in shown, expected
    files = folder / "context.csv", folder / "query.csv"
    result = invoke("predict", prior, *files, "--out", folder / "out.csv")  # covariates are those of the context
    assert result.exit_code == 0, result.output
    found = pd.read_csv(folder / "out.csv")
    assert len(found) == len(asked)
    assert found["mean"].notna().all()
    result = invoke("evaluate", prior, folder / "new-described.csv", "--context", 2, "--json")
    assert result.exit_code == 0, result.output
    result = invoke("fit", folder / "described.csv", *named, *OPTIONS[:2], "--set", "exposure=age", "--out", prior)
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--set", "exposure=days"),
            "--set exposure is for counts, --likelihood poisson or --likelihood negative-binomial;",
        ),
        (("--likelihood", "binomial"), "--likelihood must be"),
        (
            ("--likelihood", "poisson", "--set", "noise_std=0.1"),
            "'learned': that of --likelihood poisson has no noise.",
        ),
        (("--likelihood", "poisson", "--set", "exposure=weeks"), "weeks"),
        (("--likelihood", "poisson", "--kernel", "mlp"), "No such option: --kernel (metaprior wfem has it)."),
        (("--likelihood", "poisson", "--kind", "classification"), "--likelihood is for numbers; y holds labels"),
    ],
)
def test_bad_options(folder, options, message):
    result = invoke("fit", folder / "fit.csv", *COLUMNS, *options, "--out", folder / "other.safetensors")
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_a_hint_is_printed(folder):
    rng = np.random.default_rng(0)
    table = pd.read_csv(folder / "fit.csv").assign(calls=lambda rows: rng.binomial(5, 0.85, len(rows)))
    table.to_csv(folder / "scores.csv", index=False)
    result = invoke("fit", folder / "scores.csv", *COLUMNS, "--out", folder / "other.safetensors")
    assert result.exit_code == 0, result.output
    assert "integer scores: try --likelihood ordinal" in " ".join(result.output.split())
