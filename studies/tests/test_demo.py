"""The command line and the demo, through the real entry point on a tiny budget."""

import csv
import os
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import metaprior
from metaprior import MetaGPClassifier, MetaGPRegressor
from metaprior.cli import app
from metaprior.datasets import Sinusoid
from metaprior.wfem import Gaussian, Training, WFEMClassifier, WFEMRegressor
from metaprior_studies.demo import fewshot_demo, patients_demo, sinusoid_demo
from metaprior_studies.demo.fewshot_demo import FewShotConfig, find_data
from metaprior_studies.demo.fewshot_demo import schemes as fewshot_schemes
from metaprior_studies.demo.rows import by_scheme
from metaprior_studies.demo.sinusoid_demo import METRICS, ORACLES, DemoConfig, make_draw, schemes
from metaprior_studies.environments.sinusoid_oracles import score_oracle
from metaprior_studies.estimator_schemes import PAPER_PRIOR, EstimatorScheme

SHARED = Path(os.environ.get("METAPRIOR_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


def quickly(make, **quick):
    """The estimator with a prior that is compiled sooner."""
    return lambda **arguments: make(**{**arguments, **quick})


def run_demo(folder, *arguments):
    result = CliRunner().invoke(app, ["demo", "--out", str(folder), *arguments])
    assert result.exit_code == 0, result.output
    return result


def read_rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def names_of(few, rest):
    """The rows of the sinusoid demo with so many target and source tasks, of more than one draw."""
    return [
        "GP, not meta-trained",
        f"PACOH, {few} target tasks",
        f"PACOH, {rest} source + {few}",
        "WFEM, alpha = 0.2",
        "WFEM, alpha = 0.05",
        "WFEM, alpha chosen",
        f"PACOH, {few + rest} target tasks",
        "metaprior, default",
        "oracle: true GP prior",
        "oracle: Bayes-optimal",
    ]


def check_sinusoid_demo(folder, result, names, n_draws):
    """A row per scheme and draw, in the table and the file; alpha = beta is pooling, and oracles lead."""
    assert all(name in result.stdout for name in names)
    rows = read_rows(folder / "sinusoid.csv")
    assert [row["scheme"] for row in rows] == names * n_draws
    assert [row["draw"] for row in rows] == [str(draw) for draw in range(n_draws) for _ in names]
    assert all(np.isfinite(float(row[name])) for row in rows for name in METRICS)
    assert (folder / "sinusoid.png").read_bytes().startswith(b"\x89PNG")
    rmse = {name: [float(row["rmse"]) for row in rows if row["scheme"] == name] for name in names}
    np.testing.assert_allclose(rmse[names[3]], rmse[names[2]], rtol=1e-3)
    assert not np.allclose(rmse[names[4]], rmse[names[2]], rtol=1e-3)
    assert all(
        min(values) > max(rmse["oracle: Bayes-optimal"]) for name, values in rmse.items() if "oracle" not in name
    )


@pytest.mark.parametrize("oracle", ORACLES.values(), ids=list(ORACLES))
@pytest.mark.parametrize("draw", [0, 1])
def test_oracles_are_calibrated(oracle, draw):
    """On the 50 test tasks of the demo: wrong noise would show."""
    scores = score_oracle(oracle, Sinusoid(0.5), make_draw(DemoConfig(), draw).test)
    assert scores["calibration_error"] < 0.03
    assert scores["nll"] < -0.35


@pytest.mark.slow
def test_sinusoid_demo_on_few_tasks(tmp_path, monkeypatch):
    monkeypatch.setattr(sinusoid_demo, "DemoConfig", partial(DemoConfig, n_tasks=5))
    monkeypatch.setattr(sinusoid_demo, "PAPER_PRIOR", {**PAPER_PRIOR, "mean": "constant", "kernel": "rbf"})
    folder = tmp_path / "new" / "folder"
    result = run_demo(folder, "--problem", "sinusoid", "--steps", "30")
    check_sinusoid_demo(folder, result, [name for name in names_of(4, 1) if name != "WFEM, alpha chosen"], 1)
    assert f"Wrote sinusoid.csv, sinusoid.png to {folder} in" in result.stdout


@pytest.mark.slow
def test_sinusoid_demo(tmp_path):
    result = run_demo(tmp_path, "--problem", "sinusoid", "--draws", "2", "--steps", "30")
    check_sinusoid_demo(tmp_path, result, names_of(24, 6), 2)


def test_priors_of_the_sinusoid_demo_are_the_papers_but_for_the_last():
    config = DemoConfig(n_draws=8, n_steps=7)
    *papers, default = schemes(config)
    assert PAPER_PRIOR == {"mean": "mlp", "kernel": "mlp", "inference": "map", "temperature": "bayes"}
    for scheme, n_steps in zip(papers, [0] + 6 * [7], strict=True):
        given = {"likelihood": Gaussian(0.1), "training": Training(n_steps=n_steps, progress=False)}
        assert scheme.make is WFEMRegressor
        assert scheme.arguments == {**PAPER_PRIOR, **given, "alpha": scheme.arguments["alpha"]}
    assert default.make is MetaGPRegressor
    assert default.arguments == {"noise_std": 0.1, "progress": False}
    seeds = [sinusoid_demo.estimator(config, default, number).random_state for number in (0, 0, 1)]
    assert seeds[0] == seeds[1] != seeds[2]


def test_one_draw_of_the_sinusoid_leaves_out_the_search_with_the_papers_prior():
    names, many = ([scheme.name for scheme in schemes(DemoConfig(n_draws=n))] for n in (1, 2))
    assert set(many) - set(names) == {"WFEM, alpha chosen"}
    assert [many.index(scheme.name) for scheme in sinusoid_demo.shown(DemoConfig(n_draws=2))] == [0, 1, 3, 6, 7]
    assert [names.index(scheme.name) for scheme in sinusoid_demo.shown(DemoConfig())] == [0, 1, 3, 5, 6]


def test_schemes_of_the_sinusoid_have_tasks_in_two_lists_of_the_same_lengths():
    draw = make_draw(DemoConfig(), 0)
    found = {scheme.name: sinusoid_demo.tasks_of(scheme, draw) for scheme in schemes(DemoConfig())}
    assert {(len(tasks.source), len(tasks.target)) for tasks in found.values()} == {(6, 24)}
    of_target = found.pop("PACOH, 30 target tasks")
    assert all(task is other for task, other in zip([*of_target.target, *of_target.source], draw.target, strict=True))
    assert all(tasks.source[0] is draw.source[0] for tasks in found.values())


def check_patients_demo(folder, result, patients):
    """Scores of three models, a prior, and predictions of the first three patients, in the files it names."""
    rows = pd.read_csv(folder / "patients.csv", index_col="model").to_dict("index")
    assert list(rows) == [patients_demo.OURS, patients_demo.MIXED, patients_demo.ALONE]
    meta = metaprior.load(folder / "prior.safetensors")
    assert meta.transfer_report().verdict[:40] in result.stdout
    predicted, tests = pd.read_csv(folder / "predictions.csv"), patients.test
    assert list(predicted["patient"].unique()) == tests.names[:3] == ["T01", "T02", "T03"]
    assert list(predicted.groupby("patient").size()) == [len(task.y) - 5 for task in tests.tasks[:3]]
    assert (predicted["lower"] < predicted["mean"]).all()
    assert (predicted["mean"] < predicted["upper"]).all()
    assert (folder / "predictions.png").read_bytes().startswith(b"\x89PNG")
    assert all(len(line) <= 80 for line in result.stdout.splitlines()[:-1])
    assert "Wrote patients.csv, prior.safetensors, predictions.csv, predictions.png to" in result.stdout
    ours, mixed, alone = rows.values()
    assert ours["rmse"] < alone["rmse"]
    assert ours["nll"] < alone["nll"]
    return ours, mixed, alone


@pytest.mark.slow
def test_patients_demo(tmp_path):
    """The main job, in full."""
    result = run_demo(tmp_path, "--problem", "patients")
    ours, mixed, alone = check_patients_demo(tmp_path, result, patients_demo.Patients.read())
    assert ours["rmse"] < mixed["rmse"] < alone["rmse"]
    assert ours["nll"] < mixed["nll"] < alone["nll"]
    assert 0.8 < ours["coverage"] < 0.97


def test_patients_demo_of_a_few_patients(tmp_path, monkeypatch):
    every = patients_demo.Patients.read()
    few = {name: getattr(every.test, name)[:6] for name in ("names", "environments", "rows", "tasks")}
    some = patients_demo.Patients(every.source[:8], every.target[:5], replace(every.test, **few))
    monkeypatch.setattr(patients_demo.Patients, "read", lambda: some)
    check_patients_demo(tmp_path, run_demo(tmp_path, "--problem", "patients"), some)


def test_the_demo_is_patients_then_the_sinusoid(tmp_path, monkeypatch):
    asked, module = [], import_module("metaprior_studies.commands.demo")
    for name in ("patients", "sinusoid", "fewshot"):
        record = lambda folder, *given, name=name: asked.append((name, *given)) or [folder / name]  # noqa: E731
        monkeypatch.setattr(module, f"_{name}", record)
    assert "Wrote patients, sinusoid to" in run_demo(tmp_path, "--seed", "3").stdout
    run_demo(tmp_path, "--problem", "fewshot", "--draws", "2", "--steps", "0")
    assert asked == [("patients", 3), ("sinusoid", 3, 1, 2000), ("fewshot", 0, 2, 0)]


BASELINES = ["nearest class mean", "logistic regression", "GP, RBF on the inputs"]


def check_fewshot_demo(folder, result):
    assert "generated images" in result.stderr
    rows = [{**row, "accuracy": float(row["accuracy"])} for row in read_rows(folder / "fewshot.csv")]
    assert [row["scheme"] for row in rows[:3]] == BASELINES
    assert all(row["scheme"] in result.stdout for row in rows)
    assert (folder / "fewshot.png").read_bytes().startswith(b"\x89PNG")
    return rows


def assert_meta_learning_leads(rows, margin):
    accuracy = {name: figures["accuracy"].mean() for name, figures in by_scheme(rows).items()}
    for scheme in ("PACOH, 10 source + 10", "PACOH, 20 target tasks"):
        for baseline in ("nearest class mean", "GP, RBF on the inputs"):
            assert accuracy[scheme] > accuracy[baseline] + margin


@pytest.mark.slow
def test_fewshot_demo_on_few_generated_images(tmp_path, monkeypatch):
    """The plain GP, pooling, and WFEM at alpha = beta; the others compile as much again each."""
    monkeypatch.setenv("METAPRIOR_DATA", str(tmp_path / "nothing"))
    config = partial(FewShotConfig, n_tasks=4, n_test_tasks=20, small_alpha=0.5)
    few = lambda *arguments: [fewshot_schemes(*arguments)[i] for i in (0, 3, 4)]  # noqa: E731
    monkeypatch.setattr(fewshot_demo, "FewShotConfig", config)
    monkeypatch.setattr(fewshot_demo, "schemes", few)
    monkeypatch.setattr(fewshot_demo, "WFEMClassifier", quickly(WFEMClassifier, mean="zero"))
    result = run_demo(tmp_path, "--problem", "fewshot", "--draws", "1", "--steps", "20")
    rows = check_fewshot_demo(tmp_path, result)
    log_loss = {row["scheme"]: float(row["log_loss"]) for row in rows}
    assert list(log_loss)[3:] == ["PACOH, 2 source + 2", "WFEM, alpha = 0.5"]
    assert log_loss["WFEM, alpha = 0.5"] == pytest.approx(log_loss["PACOH, 2 source + 2"], rel=1e-3)
    assert log_loss["PACOH, 2 source + 2"] < log_loss["GP, RBF on the inputs"]


def test_schemes_of_the_fewshot_demo():
    """The prior of all but the plain GP and the default is the one that the classifier had by default in the table."""
    plain, *others, default = fewshot_schemes(FewShotConfig(n_steps=7), 4)
    assert plain.arguments["kernel"].length_scale == 2.0
    assert (plain.arguments["mean"], plain.arguments["training"].standardize) == ("zero", False)
    for scheme in others:
        meta = scheme.estimator(0)
        assert isinstance(meta, WFEMClassifier)
        assert (meta.kernel, meta.mean, meta.temperature) == ("linear+rbf", "constant", "bayes")
    assert [(scheme.n_source, scheme.n_target, scheme.arguments.get("alpha")) for scheme in others] == [
        (10, 10, "pooled"),
        (0, 10, 0.0),
        (10, 10, "pooled"),
        (10, 10, 0.2),
        (10, 10, "auto"),
        (0, 20, 0.0),
    ]
    assert [scheme.arguments["training"].n_steps for scheme in (plain, *others)] == [0, 0, 7, 7, 7, 7, 7]
    assert default == EstimatorScheme("metaprior, default", 10, 10, MetaGPClassifier, {"progress": False})


@pytest.mark.slow
def test_fewshot_demo_on_generated_images(tmp_path, monkeypatch):
    monkeypatch.setenv("METAPRIOR_DATA", str(tmp_path / "nothing"))
    result = run_demo(tmp_path, "--problem", "fewshot", "--draws", "1", "--steps", "20")
    rows = check_fewshot_demo(tmp_path, result)
    assert len(rows) == 10
    assert_meta_learning_leads(rows, margin=0.1)


@pytest.mark.skipif(not (SHARED / "features").exists(), reason="no features here")
def test_features_are_taken_where_they_are(monkeypatch):
    monkeypatch.setenv("METAPRIOR_DATA", str(SHARED))
    problem, data = find_data()
    assert "CUB" in data
    assert problem.target.shape == problem.source.shape == (64,)


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "features").exists(), reason="no features here")
def test_fewshot_demo_on_features(monkeypatch):
    """On 200 test tasks the difference of two schemes has a standard error of about 0.005, and is 0.012 or more."""
    monkeypatch.setenv("METAPRIOR_DATA", str(SHARED))
    rows = fewshot_demo.run(FewShotConfig(n_draws=1, n_steps=50), find_data()[0])
    assert_meta_learning_leads(rows, margin=0.0)


def test_info_says_what_is_in_a_file(tmp_path):
    problem, path = Sinusoid(0.5), tmp_path / "prior"
    meta = WFEMRegressor("rbf", "constant", alpha="auto", training=Training(n_steps=30), random_state=0)
    meta.fit(problem.source_tasks(1, 5, 0), problem.target_tasks(4, 5, 1)).save(path)
    result = CliRunner().invoke(app, ["info", str(path), "--plot", str(tmp_path / "transfer.png")])
    assert result.exit_code == 0, result.output
    for part in ("WFEMRegressor", f"{meta.alpha_:.4g}", "alpha = 0 (target-only)", "'constant'", "per reading"):
        assert part in result.stdout, part
    assert (tmp_path / "transfer.png").read_bytes().startswith(b"\x89PNG")


def test_info_of_something_else_is_one_clear_line(tmp_path):
    (tmp_path / "other").write_text("not a prior")
    for path, part in ((tmp_path / "other", "not a file saved by metaprior"), (tmp_path / "nothing", "No such file")):
        result = CliRunner().invoke(app, ["info", str(path)])
        assert result.exit_code == 2
        assert part in " ".join(result.stderr.split())


def test_all_schemes_of_a_draw_see_the_same_tasks():
    config = DemoConfig(seed=3)
    first, again, other = make_draw(config, 1), make_draw(config, 1), make_draw(config, 2)
    np.testing.assert_array_equal(first.target[5].y, again.target[5].y)
    assert not np.array_equal(first.target[5].y, other.target[5].y)
    assert len(first.source) == 6
    assert len(first.target) == 30
    assert max(scheme.n_source for scheme in schemes(config)) == 6


def test_an_output_folder_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "file" / "demo")])
    assert result.exit_code == 2
    assert "--out" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "arguments", [["demo", "--draws", "0"], ["demo", "--problem", "chess"], ["demo", "--seed", "x"], ["nonsense"]]
)
def test_bad_arguments_end_with_usage_and_exit_code_2(arguments):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_version_and_help():
    assert CliRunner().invoke(app, ["--version"]).stdout.strip() == metaprior.__version__
    help_text = CliRunner().invoke(app, ["demo", "--help"]).stdout
    assert all(option in help_text for option in ("--out", "--seed", "--problem"))
