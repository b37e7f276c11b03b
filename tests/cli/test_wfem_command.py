"""`metaprior wfem`: the paper's priors from the same tables, with a checkpoint beside the prior."""

import json
import signal
import subprocess
import sys
from typing import get_args, get_type_hints

import numpy as np
import pandas as pd
import pytest
from running import call, words

from metaprior import load, predict_frame, tasks_from_frame
from metaprior.checks import Message
from metaprior.cli.wfem import wfem
from metaprior.files import read_tensors
from metaprior.memory import RUN_ADVICE
from metaprior.wfem import SVGD, Gaussian, HyperPrior, Laplace, Training, WFEMClassifier, WFEMRegressor, settings

COLUMNS = ["--task", "patient", "--x", "hours", "--y", "heart_rate", "--environment", "hospital", "--target", "south"]
RBF = ["--kernel", "rbf", "--mean", "constant"]
QUICK = [*RBF, "--n-steps", "20"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The example, and a prior of it."""
    folder = tmp_path_factory.mktemp("example")
    call("example", "--out", folder)
    said = words(call("wfem", folder / "patients.csv", *COLUMNS, *QUICK, "--out", folder / "prior.safetensors"))
    assert "Fitted to readings: heart_rate holds numbers. north: 40 tasks" in said
    assert "Nothing was compared: alpha = 0.5." in said
    return folder


def test_it_is_the_fit_of_the_library(folder):
    tasks = tasks_from_frame(folder / "patients.csv", task="patient", x="hours", y="heart_rate", environment="hospital")
    settings = {"kernel": "rbf", "mean": "constant", "training": Training(n_steps=20), "random_state": 0}
    meta, loaded = WFEMRegressor(**settings).fit(tasks, target="south"), load(folder / "prior.safetensors")
    assert isinstance(loaded, WFEMRegressor)
    np.testing.assert_array_equal(loaded.loss_trace_, meta.loss_trace_)
    assert (loaded.alpha_, loaded.temperature_) == (0.5, meta.temperature_)
    assert not list(folder.glob(".*checkpoint"))


@pytest.mark.parametrize(
    ("options", "parameter", "value"),
    [
        (["--inference", "svgd"], "inference", SVGD()),
        (["--inference", "svgd", "--n-particles", "3"], "inference", SVGD(n_particles=3)),
        (["--inference", "laplace", "--n-particles", "3"], "inference", Laplace(n_draws=3)),
        (["--noise-std", "2.5"], "likelihood", Gaussian(noise_std=2.5)),
        (["--std", "4"], "hyperprior", HyperPrior(std=4.0)),
        (["--temperature", "bayes"], "temperature", "bayes"),
        (["--temperature", "2"], "temperature", 2.0),
        (["--alpha", "0.2"], "alpha", 0.2),
        (["--alpha", "pooled"], "alpha", "pooled"),
        (["--learning-rate", "0.001"], "training", Training(n_steps=20, learning_rate=0.001)),
        (["--batch-size", "4"], "training", Training(n_steps=20, batch_size=4)),
        (["--dtype", "float64"], "training", Training(n_steps=20, dtype="float64")),
        (["--set", "search_time=60"], "training", Training(n_steps=20, search_time=60.0)),
        (["--context", "first 2"], "context", "first 2"),
        (["--set", "random_state=3"], "random_state", 3),
        (["--encoder", "mlp"], "encoder", "mlp"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_option_is_the_parameter_of_its_name(folder, monkeypatch, tmp_path, options, parameter, value):
    """Which reach the estimator, without a fit."""
    given = {}

    def keep(self, *_, **__):
        given.update(self.get_params(deep=False))
        raise ValueError("not today")

    monkeypatch.setattr(WFEMRegressor, "fit", keep)
    command = ("wfem", folder / "patients.csv", *COLUMNS, *QUICK, *options, "--out", tmp_path / "prior")
    assert "not today" in words(call(*command, code=2))
    usual = WFEMRegressor(
        kernel="rbf", mean="constant", training=Training(n_steps=20, learning_rate=0.01), random_state=0
    ).get_params(deep=False)
    assert given == {**usual, parameter: value}


def test_the_names_on_offer_are_those_that_there_are():
    hints = get_type_hints(wfem)
    assert get_args(hints["kernel"]) == tuple(settings.KERNELS)
    assert get_args(hints["mean"]) == tuple(settings.MEANS)
    assert get_args(hints["inference"]) == tuple(settings.METHODS)
    assert get_args(get_args(hints["encoder"])[0]) == tuple(settings.ENCODERS)


def test_its_priors_are_evaluated_predicted_with_and_shown(folder, tmp_path):
    prior, files = folder / "prior.safetensors", (folder / "readings.csv", folder / "hours.csv")
    call("predict", prior, *files, "--out", tmp_path / "p.csv", "--plot", tmp_path / "p.png")
    expected = predict_frame(load(prior), *files, task="patient", x="hours", y="heart_rate")
    np.testing.assert_allclose(pd.read_csv(tmp_path / "p.csv")["mean"], expected["mean"], rtol=1e-12)
    scores = json.loads(call("evaluate", prior, folder / "test.csv", "--json").stdout)
    assert list(scores["overall"]) == ["metaprior", "GP per task"]
    said = words(call("info", prior))
    for part in ("WFEMRegressor", "final loss", "particle spread", "best step", "temperature", "jax", "'rbf'"):
        assert part in said, part
    assert "Training(n_steps=20, learning_rate=0.01," in said
    assert json.loads(call("info", prior, "--json").stdout)["kind"] == "WFEMRegressor"


def test_a_picture_that_is_not_drawn_is_not_said_to_be(folder, tmp_path):
    picture = tmp_path / "alpha.png"
    result = call("info", folder / "prior.safetensors", "--plot", picture)
    assert "no settings were compared to choose alpha" in words(result)
    assert picture.name not in result.stdout
    assert not picture.exists()


def test_labels_make_a_classifier(folder, tmp_path):
    table = pd.read_csv(folder / "patients.csv")
    median = table.groupby("patient")["heart_rate"].transform("median")
    table.assign(state=np.where(table["heart_rate"] > median, "fast", "calm")).to_csv(tmp_path / "t.csv", index=False)
    columns = [{"heart_rate": "state"}.get(column, column) for column in COLUMNS]
    command = ("wfem", tmp_path / "t.csv", *columns, *RBF, "--n-steps", "0", "--out", tmp_path / "prior")
    assert json.loads(call(*command, "--set", "shared_classes=false", "--json").stdout)["kind"] == "classification"
    meta = load(tmp_path / "prior")
    assert isinstance(meta, WFEMClassifier)
    assert meta.shared_classes is False
    assert "--noise-std is for numbers; y holds labels." in words(call(*command, "--noise-std", "1", code=2))
    refused = call(
        "wfem", tmp_path / "t.csv", *COLUMNS, *RBF, "--set", "shared_classes=false", "--out", tmp_path / "p", code=2
    )
    assert "--set shared_classes is for labels; y holds numbers." in words(refused)


def test_without_environments_there_is_no_weight(folder, tmp_path):
    command = ("wfem", folder / "patients.csv", *COLUMNS[:6], *QUICK, "--out", tmp_path / "prior")
    call(*command)
    assert load(tmp_path / "prior").alpha_ == 0.0
    assert "--alpha weights other environments" in words(call(*command, "--alpha", "0.5", code=2))


def test_stored_tasks_are_fitted_in_batches(folder, tmp_path):
    call("store", folder / "patients.csv", *COLUMNS[:-2], "--out", tmp_path / "stored")
    call("wfem", tmp_path / "stored", "--target", "south", *QUICK, "--batch-size", "10000", "--out", tmp_path / "prior")
    expected = load(folder / "prior.safetensors")
    np.testing.assert_allclose(load(tmp_path / "prior").loss_trace_, expected.loss_trace_, atol=1e-3)
    refused = call("wfem", tmp_path / "stored", "--target", "south", "--task", "patient", code=2)
    assert "these options are for tables. Leave out --task." in words(refused)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--kernel", "rfb"], "'rfb' is not one of 'mlp', 'linear', 'linear+rbf', 'rbf'"),
        (["--inference", "auto"], "'auto' is not one of 'map', 'svgd', 'laplace'"),
        (
            ["--likelihood", "poisson"],
            "No such option: --likelihood (metaprior fit has it). See metaprior wfem --help.",
        ),
        (["--n-steps", "-1"], "--n-steps must be an integer of at least 0; got -1."),
        (["--n-particles", "0"], "--n-particles must be an integer of at least 1; got 0."),
        (["--inference", "laplace", "--n-particles", "0"], "--n-particles must be an integer of at least 1; got 0."),
        (["--batch-size", "0"], "--batch-size must be an integer of at least 1; got 0."),
        (["--learning-rate", "-1"], "--learning-rate must be a positive number; got -1.0."),
        (["--set", "search_time=-1"], "--set search_time must be a positive number of seconds"),
        (["--std", "wide"], "--std must be a positive number"),
        (
            ["--temperature", "hot"],
            "--temperature must be a positive number, or one of paper, effective, bayes, auto; got 'hot'.",
        ),
        (["--temperature", "0,5"], "--temperature must be a positive number, or one of paper"),
        (["--noise-std", "-1"], "--noise-std must be a positive number"),
        (["--alpha", "2"], "alpha must"),
        (["--inference", "laplace", "--kernel", "mlp"], "Use --inference map, or --kernel linear+rbf"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_told_in_words(folder, tmp_path, options, message):
    command = ("wfem", folder / "patients.csv", *COLUMNS, *QUICK, *options, "--out", tmp_path / "prior")
    assert message in words(call(*command, code=2))
    assert not (tmp_path / "prior").exists()


def test_a_training_that_diverges_has_an_exit_code_of_its_own(folder, tmp_path):
    command = ("wfem", folder / "patients.csv", *COLUMNS, *QUICK, "--learning-rate", "1e14", "--std", "1e6")
    said = words(call(*command, "--out", tmp_path / "prior", code=1))
    advice = (
        "Try, in this order: a smaller --learning-rate; a larger --noise-std, or --noise-std learned; a smaller --std"
    )
    assert advice in said
    assert said.endswith("--dtype float64.")
    assert json.loads(call(*command, "--out", tmp_path / "prior", "--json", code=1).stdout)["exit_code"] == 1


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError("Unable to allocate 9 GiB"), "Out of memory: Unable to allocate 9 GiB. Set or decrease"),
        (MemoryError(Message("One run. ", RUN_ADVICE)), "One run. Set or decrease"),
    ],
)
def test_without_memory_options_are_named(folder, tmp_path, monkeypatch, error, said):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(WFEMRegressor, "fit", fail)
    refused = words(call("wfem", folder / "patients.csv", *COLUMNS, "--out", tmp_path / "p", code=2))
    assert f"{said} --batch-size, decrease --n-particles, or use fewer tasks." in refused


WITHOUT_JAX = """
import sys
from importlib import util
from metaprior.__main__ import main

find = util.find_spec
util.find_spec = lambda name, *rest: None if name in ("jax", "optax") else find(name, *rest)
main()
"""


@pytest.mark.parametrize("command", ["wfem", "predict", "evaluate"])
def test_without_the_extra_it_says_what_to_install(folder, tmp_path, command):
    prior = folder / "prior.safetensors"
    arguments = {
        "wfem": (folder / "patients.csv", *COLUMNS, "--out", tmp_path / "prior"),
        "predict": (prior, folder / "readings.csv", folder / "hours.csv", "--out", tmp_path / "p.csv"),
        "evaluate": (prior, folder / "test.csv"),
    }[command]
    whole = [sys.executable, "-c", WITHOUT_JAX, command, *map(str, arguments)]
    done = subprocess.run(whole, capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if not line.startswith("Note:")]
    assert (done.returncode, said) == (2, ["metaprior.wfem needs jax, optax: run pip install 'metaprior[wfem]'."])
    assert not list(tmp_path.iterdir())


def test_a_prior_is_shown_without_the_extra(folder):
    program = "import sys; from metaprior.cli import app; sys.argv[0] = 'metaprior'; app(standalone_mode=False); "
    program += "assert 'jax' not in sys.modules"
    whole = [sys.executable, "-c", program, "info", str(folder / "prior.safetensors")]
    assert "WFEMRegressor" in subprocess.run(whole, capture_output=True, text=True, check=True).stdout


def test_the_checkpoint_outlives_a_prior_that_cannot_be_saved(folder, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    command = ("wfem", folder / "patients.csv", *COLUMNS, *QUICK, "--out", tmp_path / "new" / "prior")
    with monkeypatch.context() as patch:
        patch.setattr(WFEMRegressor, "save", full)
        assert "No space left" in words(call(*command, code=2))
    assert [path.name for path in (tmp_path / "new").iterdir()] == [".prior.checkpoint"]
    call(*command)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["prior"]


KILLED = """
import os, signal
from metaprior.cli import app
from metaprior.wfem import checkpoint

write, written = checkpoint.Checkpoint.update, []

def write_and_die(self, state):
    written.append(write(self, state))
    if len(written) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

checkpoint.INTERVAL, checkpoint.SHARE, checkpoint.Checkpoint.update = 0.0, float("inf"), write_and_die
app()
"""


def test_a_killed_fit_goes_on_and_leaves_no_half_file(folder, tmp_path):
    """SIGKILL after 200 steps; the same command then gives the same prior as one that was never stopped."""
    arguments = ["wfem", folder / "patients.csv", *COLUMNS, *RBF, "--n-steps", "500", "--out"]
    whole, killed = tmp_path / "whole.safetensors", tmp_path / "killed.safetensors"
    process = subprocess.run([sys.executable, "-c", KILLED, *arguments, killed], stdout=subprocess.DEVNULL, check=False)
    assert process.returncode == -signal.SIGKILL
    steps = read_tensors(tmp_path / ".killed.safetensors.checkpoint")[1]
    assert max(array.size for array in steps.values()) == 2 * 200  # loss and convergence so far
    assert not killed.exists()
    result = call(*arguments, killed)
    assert "found a checkpoint of an interrupted fit" in words(result)
    call(*arguments, whole)
    first, second = load(whole), load(killed)
    np.testing.assert_array_equal(first.loss_trace_, second.loss_trace_)
    predictions = [meta.adapt([[1.0]], [90.0]).predict([[5.0]]) for meta in (first, second)]
    np.testing.assert_array_equal(*predictions)
    assert {path.name for path in tmp_path.iterdir()} == {"killed.safetensors", "whole.safetensors"}


def test_a_report_needs_tasks_that_are_held_out(folder, tmp_path):
    report = tmp_path / "fit.html"
    command = ("wfem", folder / "patients.csv", *COLUMNS, *QUICK, "--out", tmp_path / "prior", "--report", report)
    call(*command)
    assert "Priors of metaprior wfem take too long to fit again without some tasks." in report.read_text()
    call(*command, "--hold-out", "0.3")
    assert "held out of the fit (--hold-out)" in report.read_text()
