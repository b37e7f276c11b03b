"""Studies of real environments on small files in their layouts, what is concluded from them, and the command."""

import json
import math
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from grouped_files import make_colorado, make_physionet
from sklearn.gaussian_process import GaussianProcessRegressor
from typer.testing import CliRunner

from metaprior.cli import app
from metaprior.cli import console as show
from metaprior.estimators.comparison import KERNEL, per_task_gp, score_per_task_gp
from metaprior.prior.families import FAMILIES
from metaprior.tasks.types import TestTask
from metaprior.wfem import Training, TrainingDiverged
from metaprior_studies.commands.bench_data import Environment
from metaprior_studies.environments.real_tables import colorado
from metaprior_studies.estimator_schemes import PAPER_PRIOR
from metaprior_studies.real import real_study as real
from metaprior_studies.real.real_results import COLUMNS, find, scheme_scores, table_rows, to_json, words
from metaprior_studies.real.real_study import (
    DEFAULT,
    GP,
    MANY,
    METRICS,
    PER_TASK,
    POOLED,
    STUDIES,
    TARGET_ONLY,
    RealStudy,
    wfem,
)
from metaprior_studies.reproduction.comparisons import FAILS, HOLDS, UNDECIDED
from metaprior_studies.runner import run

TINY = RealStudy("colorado", n_draws=2, n_source=3, n_target=1, n_many=2, n_test=2, alphas=(0.2, 0.5), n_steps=2)
SCHEMES = [PER_TASK, GP, TARGET_ONLY, POOLED, wfem(0.2), wfem(0.5), DEFAULT, MANY]


class Quick:
    """In place of both estimators: it learns nothing, and remembers what it was given."""

    made: list["Quick"]

    def __init__(self, **arguments):
        self.arguments, self.family_, self.alpha_ = arguments, arguments.get("kernel", "mlp"), 0.25
        Quick.made.append(self)

    def fit(self, source, target):
        self.source, self.target = source, target
        if self.arguments.get("alpha") == 0.2:
            raise TrainingDiverged("as an example")

    def evaluate(self, tests):
        self.tests = tests
        return {metric: i + self.arguments["random_state"] / 3 for i, metric in enumerate(METRICS)}


@pytest.fixture
def data(tmp_path, monkeypatch):
    make_colorado(tmp_path / "data")
    monkeypatch.setenv("METAPRIOR_DATA", str(tmp_path / "data"))


@pytest.fixture
def quick(data, monkeypatch):
    Quick.made = []
    for name in ("MetaGPRegressor", "WFEMRegressor"):
        monkeypatch.setattr(real, name, Quick)
    monkeypatch.setitem(STUDIES, "colorado", TINY)


@pytest.mark.filterwarnings("ignore:Readings of:UserWarning")  # priors of one or two tasks
def test_every_scheme_is_fitted_and_scored(data, monkeypatch):
    study = replace(TINY, alphas=(0.5,), n_steps=0)  # compiling the training of all would take a minute
    [point, _] = study.points()
    reported = []
    table = pd.DataFrame(study.run(point, reported.append))
    schemes = [scheme for scheme in SCHEMES if scheme != wfem(0.2)]
    assert reported == schemes
    assert list(zip(table["scheme"], table["metric"], strict=True)) == [(s, m) for s in schemes for m in METRICS]
    assert np.isfinite(table["value"]).all()
    of_scheme = table.drop_duplicates("scheme").set_index("scheme")
    assert of_scheme["kernel"].drop(DEFAULT).to_list() == ["rbf"] + ["mlp"] * 5
    assert of_scheme["kernel"][DEFAULT] in FAMILIES
    assert of_scheme["n_source"].to_list() == [0, 0, 0, 3, 3, 3, 0]
    assert of_scheme["n_target"].to_list() == [0, 1, 1, 1, 1, 1, 2]
    np.testing.assert_allclose(of_scheme["alpha"].to_list()[1:5], [0.0, 0.0, 0.75, 0.5])
    value = table.set_index(["scheme", "metric"])["value"]
    assert value[GP, "nll"] == value[TARGET_ONLY, "nll"] != value[POOLED, "nll"]
    tests = colorado().draw(3, 1, 2, point.values["draw"]).test
    assert value[PER_TASK, "nll"] == score_per_task_gp(tests)["nll"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Readings of:UserWarning")  # priors of one or two tasks
def test_schemes_are_trained(data, monkeypatch):
    schemes = RealStudy.schemes
    monkeypatch.setattr(RealStudy, "schemes", lambda self: schemes(self)[:2])
    table = pd.DataFrame(TINY.run(next(TINY.points()), lambda what: None))
    value = table.set_index(["scheme", "metric"])["value"]
    assert np.isfinite(value).all()
    assert value[GP, "nll"] != value[TARGET_ONLY, "nll"]


def test_schemes_of_a_draw_share_their_tasks(quick):
    first, second = ([*TINY.points()][i] for i in (0, 1))
    rows = TINY.run(first, lambda what: None)
    by_name = dict(zip(SCHEMES[1:], Quick.made, strict=True))
    many = by_name[MANY]
    assert (many.source, len(many.target)) == (None, 2)
    for name, meta in by_name.items():
        alpha = {POOLED: "pooled", wfem(0.2): 0.2, wfem(0.5): 0.5}.get(name, 0.0)
        training = Training(n_steps=0 if name == GP else 2, progress=False)
        papers = {**PAPER_PRIOR, "alpha": alpha, "training": training, "random_state": 0}
        assert meta.arguments == ({"progress": False, "random_state": 0} if name == DEFAULT else papers)
        if name not in (MANY, wfem(0.2)):
            assert [task is many.target[i] for i, task in enumerate(meta.target)] == [True]
            assert meta.tests is many.tests
        assert (meta.source is None) == (name in (GP, TARGET_ONLY, MANY))
    assert [math.isnan(row["value"]) for row in rows] == [row["scheme"] == wfem(0.2) for row in rows]
    few = colorado().draw(3, 1, 2, 0)
    np.testing.assert_array_equal(few.target[0].y, many.target[0].y)
    TINY.run(second, lambda what: None)
    assert not np.array_equal(Quick.made[-1].tests[0].y_query, many.tests[0].y_query)


def test_a_run_cut_short_and_resumed_gives_the_same_table(quick, tmp_path):
    whole = run([TINY], tmp_path / "whole", False, "command")["colorado"]
    run([TINY], tmp_path / "cut", False, "command")
    (tmp_path / "cut" / "colorado" / "points" / "draw-0.json").unlink()
    before = len(Quick.made)
    assert run([TINY], tmp_path / "cut", True, "command")["colorado"].equals(whole)
    assert len(Quick.made) - before == len(SCHEMES) - 1
    files = [tmp_path / folder / "colorado" / "results.parquet" for folder in ("whole", "cut")]
    assert files[0].read_bytes() == files[1].read_bytes()


def made_up(n_draws=12, **better):
    """A table in which a scheme is better than target-only by so much, and all draws differ."""
    rng = np.random.default_rng(0)
    level = rng.normal(3.0, 1.0, n_draws)
    rows = []
    for scheme in SCHEMES:
        for metric in METRICS:
            center = 0.9 if metric == "coverage" else level
            values = center - better.get(scheme, {}).get(metric, 0.0) + rng.normal(0, 0.01, n_draws)
            rows += [{"scheme": scheme, "metric": metric, "draw": i, "value": v} for i, v in enumerate(values)]
    return pd.DataFrame(rows)


def test_words_say_what_the_rules_say():
    gain = {"rmse": 0.3, "nll": 0.2}
    table = made_up(**{wfem(0.5): gain, DEFAULT: {"rmse": 0.3}, POOLED: {"rmse": 0.1}, PER_TASK: {"nll": 1.0}})
    found = find(table)
    assert found.winners("rmse") == [wfem(0.5), DEFAULT]
    assert found.winners("nll") == [wfem(0.5)]
    assert [each.verdict for each in found.per_task] == [HOLDS, FAILS]
    assert found.coverage.verdict == HOLDS
    said = words(found)
    assert "in RMSE, alpha = 0.5 and default; in NLL, alpha = 0.5." in said
    rmse, nll = (f"{each.difference:.3f}".replace("-", "−") for each in found.per_task)
    assert f"RMSE {rmse} [−0." in said
    assert f"], better; NLL {nll} [" in said
    assert "], worse. " in said
    assert f"is between 85% and 95%: yes ({found.coverage.difference:.1%} [" in said


def test_words_say_where_nothing_is_better_or_sure():
    table = made_up(**{POOLED: {"rmse": 0.5, "nll": 0.5}, wfem(0.2): {"rmse": 0.3}, DEFAULT: {"coverage": 0.2}})
    found = find(table)
    assert found.winners("rmse") == found.winners("nll") == []
    assert found.coverage.verdict == FAILS
    said = words(found)
    assert said.count("none of WFEM's settings") == 2
    assert "95%: no (69." in said
    unsure = made_up(**{DEFAULT: {"coverage": 0.05}})
    assert find(unsure).coverage.verdict == UNDECIDED
    assert "95%: undecided" in words(find(unsure))
    few = find(made_up(n_draws=9, **{DEFAULT: {"rmse": 1.0, "nll": 1.0}}))
    assert few.winners("rmse") == []
    assert words(few) == "9 draws: too few for intervals, which need 10. No conclusions."


def test_scores_are_means_over_draws_that_did_not_diverge():
    table = made_up(**{DEFAULT: {"rmse": 0.5}})
    table.loc[(table["scheme"] == DEFAULT) & (table["draw"] == 3), "value"] = np.nan
    scores = {each.scheme: each for each in scheme_scores(table)}
    assert list(scores) == SCHEMES
    wide = table[table["metric"] == "rmse"].pivot(index="draw", columns="scheme", values="value")
    gain = (wide[DEFAULT] - wide[TARGET_ONLY]).dropna()
    default = scores[DEFAULT]
    assert default.n_draws == len(gain) == 11
    assert "Up to 1 draws are left out because a fit diverged" in words(find(table))
    assert "left out" not in words(find(made_up()))
    np.testing.assert_allclose([default.minus_target_only, default.minus_target_only_se], [gain.mean(), gain.sem()])
    np.testing.assert_allclose([default.rmse, default.rmse_se], [wide[DEFAULT].mean(), wide[DEFAULT].sem()])
    assert json.loads(json.dumps(to_json(made_up(n_draws=1)), allow_nan=False))["schemes"][0]["rmse_se"] is None


@pytest.mark.parametrize("size", [1.0, 33.0, 3e3, 1e7])
def test_the_table_fits_in_a_hundred_columns(size, capsys):
    table = made_up()
    table.loc[table["metric"] == "nll", "value"] *= -size
    rows = table_rows(scheme_scores(table))
    show.print_table(COLUMNS, rows)
    shown = capsys.readouterr().out.splitlines()
    assert max(map(len, shown)) <= 100
    for row in rows:
        assert any(all(cell in line for cell in row) for line in shown), row


def test_the_command_tells_and_keeps_the_results(quick, tmp_path):
    out = tmp_path / "out"
    arguments = ["bench-data", "colorado", "--draws", "2", "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "2 draws: too few" in result.stdout
    assert {path.name for path in (out / "colorado").iterdir()} == {
        "config.json",
        "points",
        "provenance.json",
        "results.parquet",
    }
    assert (out / "colorado.png").stat().st_size > 10_000
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 2
    assert "--resume" in again.stderr
    as_json = CliRunner().invoke(app, [*arguments, "--resume", "--json"])
    assert as_json.exit_code == 0
    assert [row["scheme"] for row in json.loads(as_json.stdout)["colorado"]["schemes"]] == SCHEMES
    other = CliRunner().invoke(app, ["bench-data", "all", "--draws", "3", "--out", str(out), "--resume"])
    assert other.exit_code == 2
    assert "Skipped ujiindoorloc" in other.stderr


def test_an_interrupt_says_how_to_go_on(quick, tmp_path, monkeypatch):
    def interrupted(self, tests):
        raise KeyboardInterrupt

    monkeypatch.setattr(Quick, "evaluate", interrupted)
    result = CliRunner().invoke(app, ["bench-data", "colorado", "--out", str(tmp_path / "out")])
    assert result.exit_code == 130
    assert "--resume" in result.stderr


def test_data_that_are_missing_or_damaged_are_refused(quick, tmp_path):
    out = ["--out", str(tmp_path / "out")]
    missing = CliRunner().invoke(app, ["bench-data", "physionet-gcs", *out])
    assert missing.exit_code == 2
    assert "https://physionet.org" in missing.stderr
    folder = make_physionet(tmp_path / "data")
    (folder / "patients.csv").write_text("nonsense")
    damaged = CliRunner().invoke(app, ["bench-data", "physionet-gcs", *out])
    assert damaged.exit_code == 2
    assert "patients.csv" in damaged.stderr
    shutil.rmtree(tmp_path / "data")
    nothing = CliRunner().invoke(app, ["bench-data", *out])
    assert nothing.exit_code == 2
    assert "METAPRIOR_DATA" in nothing.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arguments", [["mars"], ["colorado", "--draws", "0"], ["colorado", "--out", "/proc/[/x]"]])
def test_bad_arguments_end_with_one_clear_message(arguments, quick):
    result = CliRunner().invoke(app, ["bench-data", *arguments])
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_the_environments_are_those_of_the_studies():
    assert {each.value for each in Environment} == {*STUDIES, "all"} == {*real.ENVIRONMENTS, "all"}


def test_per_task_gp_is_scikit_learns():
    rng = np.random.default_rng(0)
    tasks = []
    for n_query in (4, 7):
        x = np.stack([rng.uniform(20, 60, 6 + n_query), np.full(6 + n_query, 3.0)], axis=1)
        y = 100 + np.sin(x[:, 0] / 5) + 0.1 * rng.normal(size=len(x))
        tasks.append(TestTask(x[:6], y[:6], x[6:], y[6:]))
    errors, densities = [], []
    for x, y, x_new, y_new in tasks:
        scale = np.array([x[:, 0].std(), 1.0])
        direct = GaussianProcessRegressor(KERNEL, normalize_y=True, n_restarts_optimizer=2, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            direct.fit((x - x.mean(axis=0)) / scale, y)
        mean, std = direct.predict((x_new - x.mean(axis=0)) / scale, return_std=True)
        found = per_task_gp(x, y, x_new)
        np.testing.assert_allclose(found, (mean, std), rtol=1e-6)
        errors.append(np.sqrt(np.mean((mean - y_new) ** 2)))
        densities.append(np.mean(np.log(std) + 0.5 * ((y_new - mean) / std) ** 2 + 0.5 * np.log(2 * np.pi)))
    scores = score_per_task_gp(tasks)
    np.testing.assert_allclose(scores["per_task"]["rmse"], errors, rtol=1e-6)
    np.testing.assert_allclose(scores["nll"], np.mean(densities), rtol=1e-6)
    assert 0 <= scores["calibration_error"] <= 0.5


def test_equal_readings_are_predicted_in_units_of_the_spread():
    x, x_new = np.array([[1.0], [2.0]]), np.array([[2.0], [50.0]])
    mean, std = per_task_gp(x, np.array([15.0, 15.0]), x_new, y_scale=4.0)
    np.testing.assert_array_equal(mean, [15.0, 15.0])
    # Of a kernel 1 + 0.1: all of it far away, and little more than the noise at a reading.
    np.testing.assert_allclose(std[1], 4.0 * np.sqrt(1.1), rtol=1e-6)
    assert 4.0 * np.sqrt(0.1) < std[0] < 4.0 * np.sqrt(0.3)
    alone = per_task_gp(x[:1], np.array([15.0]), x_new, y_scale=4.0)
    assert np.isfinite(alone).all()
    flat, other = (TestTask(x, np.array(y), x_new, np.array([1.0, 2.0])) for y in ([15.0, 15.0], [7.0, 15.0]))
    expected = 2 * 1.645 * np.mean(std) / 4.0 * np.std([15.0, 15.0, 7.0, 15.0])
    np.testing.assert_allclose(score_per_task_gp([flat, other])["per_task"]["width"][0], expected, rtol=1e-3)
    assert np.isfinite(score_per_task_gp([flat])["nll"])
    with pytest.raises(ValueError, match="y_context is empty"):
        per_task_gp(x[:0], np.empty(0), x_new)
    with pytest.raises(ValueError, match="tasks is empty"):
        score_per_task_gp([])
