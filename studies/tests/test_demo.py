"""The command line and the demo, through the real entry point on a tiny budget."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import metaprior
from metaprior import MetaGPRegressor
from metaprior.cli import app
from metaprior.datasets import Sinusoid
from metaprior_studies.demo.fewshot_demo import FewShotConfig, find_data, run
from metaprior_studies.demo.rows import by_scheme
from metaprior_studies.demo.sinusoid_demo import METRICS, DemoConfig, make_draw, schemes

SHARED = Path(os.environ.get("METAPRIOR_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
SCHEMES = [
    "GP, not meta-trained",
    "PACOH, 24 target tasks",
    "PACOH, 6 source + 24",
    "WFEM, alpha = 0.2",
    "WFEM, alpha = 0.05",
    "WFEM, alpha chosen",
    "PACOH, 30 target tasks",
    "WFEM, default prior",
    "oracle: true GP prior",
    "oracle: Bayes-optimal",
]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "new" / "folder"
    result = CliRunner().invoke(app, ["demo", "--out", str(folder), "--draws", "2", "--steps", "30"])
    return folder, result


def test_demo_prints_a_row_per_scheme_and_writes_results_and_figure(demo):
    folder, result = demo
    assert result.exit_code == 0, result.output
    assert all(name in result.stdout for name in SCHEMES)
    with (folder / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["scheme"] for row in rows] == SCHEMES * 2
    assert [row["draw"] for row in rows] == ["0"] * len(SCHEMES) + ["1"] * len(SCHEMES)
    assert all(np.isfinite(float(row[name])) for row in rows for name in METRICS)
    assert (folder / "figure2.png").read_bytes().startswith(b"\x89PNG")


def test_demo_shows_that_alpha_equal_to_beta_is_pooling_and_that_oracles_lead(demo):
    folder, _ = demo
    with (folder / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    rmse = {name: [float(row["rmse"]) for row in rows if row["scheme"] == name] for name in SCHEMES}
    np.testing.assert_allclose(rmse["WFEM, alpha = 0.2"], rmse["PACOH, 6 source + 24"], rtol=1e-3)
    assert all(
        min(values) > max(rmse["oracle: Bayes-optimal"]) for name, values in rmse.items() if "oracle" not in name
    )
    for oracle in ("oracle: Bayes-optimal", "oracle: true GP prior"):  # 50 test tasks: wrong noise would show
        own = [row for row in rows if row["scheme"] == oracle]
        assert max(float(row["calibration_error"]) for row in own) < 0.03
        assert max(float(row["nll"]) for row in own) < -0.35


def assert_meta_learning_leads(rows, margin):
    accuracy = {name: figures["accuracy"].mean() for name, figures in by_scheme(rows).items()}
    for scheme in ("PACOH, 10 source + 10", "PACOH, 20 target tasks"):
        for baseline in ("nearest class mean", "GP, RBF on the inputs"):
            assert accuracy[scheme] > accuracy[baseline] + margin


def test_fewshot_demo_on_generated_images(tmp_path, monkeypatch):
    monkeypatch.setenv("METAPRIOR_DATA", str(tmp_path / "nothing"))
    arguments = ["demo", "--problem", "fewshot", "--out", str(tmp_path), "--draws", "1", "--steps", "20"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "generated images" in result.stderr
    with (tmp_path / "fewshot.csv").open() as file:
        rows = [{**row, "accuracy": float(row["accuracy"])} for row in csv.DictReader(file)]
    names = [row["scheme"] for row in rows]
    assert names[:3] == ["nearest class mean", "logistic regression", "GP, RBF on the inputs"]
    assert len(names) == 9
    assert all(name in result.stdout for name in names)
    assert_meta_learning_leads(rows, margin=0.1)
    assert (tmp_path / "fewshot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(not (SHARED / "features").exists(), reason="no features here")
def test_fewshot_demo_on_features(monkeypatch):
    """On 200 test tasks the difference of two schemes has a standard error of about 0.005, and is 0.012 or more."""
    monkeypatch.setenv("METAPRIOR_DATA", str(SHARED))
    problem, data = find_data()
    assert "CUB" in data
    rows = run(FewShotConfig(n_draws=1, n_steps=50), problem)
    assert_meta_learning_leads(rows, margin=0.0)


def test_info_says_what_is_in_a_file(tmp_path):
    problem, path = Sinusoid(0.5), tmp_path / "prior"
    meta = MetaGPRegressor(mean="constant", kernel="rbf", n_steps=4, random_state=0)
    meta.fit(problem.source_tasks(4, 5, 0), problem.target_tasks(3, 5, 1)).save(path)
    result = CliRunner().invoke(app, ["info", str(path), "--plot", str(tmp_path / "transfer.png")])
    assert result.exit_code == 0, result.output
    for part in ("MetaGPRegressor", f"{meta.alpha_:.4g}", "alpha = 0 (target-only)", '"constant"', "per reading"):
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
