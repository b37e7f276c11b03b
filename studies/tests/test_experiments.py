"""The engine of the experiments against the estimators, the paper's identities, and `metaprior reproduce`."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tiny_studies import KERNEL, MEAN, STUDIES, use_small_networks
from typer.testing import CliRunner

from metaprior import wfem
from metaprior.cli import app
from metaprior.datasets import Sinusoid
from metaprior.predict.batches import predict_tasks
from metaprior.wfem.settings import Settings
from metaprior_studies.environments.episodes import FewShot
from metaprior_studies.environments.generated import generated_images
from metaprior_studies.open_settings import reporting_seeds, validation_seeds
from metaprior_studies.reproduction import fewshot_figure, profiles, settings_search
from metaprior_studies.reproduction.fewshot_figure import Figure4
from metaprior_studies.reproduction.schemes import (
    Draw,
    Scheme,
    Training,
    auto_scheme,
    fit_scheme,
    metrics,
    paper_schemes,
    score,
    stack_tests,
    unstack_tests,
)
from metaprior_studies.reproduction.settings_search import Grid, SettingsSearch
from metaprior_studies.reproduction.sinusoid_figures import Figure5
from metaprior_studies.schema import ALL, AUTO, COLUMNS, DEFAULT, FEW, FIGURES, GP, LABEL_METRICS, POOLED, SCHEMES, WFEM

STATE = 5
SEED = int(np.random.RandomState(STATE).randint(2**31 - 1))  # what an estimator makes of its random_state
SMALL = {
    "mean": MEAN, "kernel": KERNEL, "likelihood": wfem.Gaussian(0.1), "hyperprior": wfem.HyperPrior(std=6.0),
    "training": wfem.Training(n_steps=40, progress=False), "random_state": STATE,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _small_networks(monkeypatch):
    use_small_networks(monkeypatch)


def quiet(what):
    pass


@pytest.fixture(scope="module")
def draw():
    rng, environment = np.random.default_rng(0), Sinusoid(0.5)
    source, target = environment.source_tasks(10, 5, rng), environment.target_tasks(10, 5, rng)
    return Draw(SEED, source, target, stack_tests(environment.test_tasks(3, 5, 4, rng)))


@pytest.fixture(scope="module")
def training():
    return Training(Settings(MEAN, KERNEL, temperature="paper", hyperprior=wfem.HyperPrior(std=6.0)), 1e-2, 40)


@pytest.mark.parametrize(("n_source", "n_target", "alpha"), [(2, 2, 0.2), (0, 4, 0.0)])
def test_a_scheme_predicts_as_the_estimator_does(draw, training, n_source, n_target, alpha):
    [ensemble] = fit_scheme([draw], Scheme(WFEM, n_source, n_target, alpha), training)
    meta = wfem.WFEMRegressor(alpha=alpha, **SMALL).fit(draw.source[:n_source], draw.target[:n_target])
    tests = unstack_tests(draw.test)
    predictive, _, _ = predict_tasks(ensemble, tests)
    for i, test in enumerate(tests):
        mean, std = meta.adapt(test.x_context, test.y_context).predict(test.x_query, return_std=True)
        assert_allclose(predictive.mean()[i], mean, rtol=1e-9)
        assert_allclose(predictive.std()[i], std, rtol=1e-9)
    scores, expected = metrics(ensemble, draw.test, labels=False), meta.evaluate(tests)
    for name in ("rmse", "nll", "calibration_error", "coverage"):
        assert_allclose(scores[name], expected[name], rtol=1e-9)


def test_draws_trained_together_are_those_trained_alone(draw, training):
    draws, scheme = [draw, draw._replace(seed=7, source=draw.source[::-1])], Scheme(WFEM, 2, 2, 0.2, prior_std=0.5)
    together = score(draws, [scheme], training)
    alone = [score([each], [scheme], training)[0] for each in draws]
    for one, two in zip(together, alone, strict=True):
        assert_allclose(one[scheme]["rmse"], two[scheme]["rmse"], rtol=2e-3)
    assert abs(together[0][scheme]["rmse"] - together[1][scheme]["rmse"]) > 1e-3


def test_tasks_that_a_scheme_does_not_see_leave_no_trace(draw, training):
    spoiled = draw._replace(
        source=[task._replace(y=np.full_like(task.y, 1e9)) for task in draw.source],
        target=[*draw.target[:4], *(task._replace(y=np.full_like(task.y, 1e9)) for task in draw.target[4:])],
    )
    scheme = Scheme(FEW, 0, 4, 0.0)
    assert score([draw], [scheme], training) == score([spoiled], [scheme], training)


def test_alpha_is_chosen_as_the_estimator_chooses_it(draw, training):
    """One search: the scheme's ensemble is the estimator's, weight by weight."""
    [ensemble] = fit_scheme([draw], Scheme(AUTO, 2, 2, None), training)
    meta = wfem.WFEMRegressor(alpha="auto", **SMALL).fit(draw.source[:2], draw.target[:2])
    weights = meta.alpha_path_.weight
    assert_allclose(ensemble.weights, weights[weights > 0], rtol=1e-9)
    expected = meta.evaluate(unstack_tests(draw.test))
    assert_allclose(metrics(ensemble, draw.test, labels=False)["rmse"], expected.rmse, rtol=1e-9)


@pytest.mark.parametrize("method", ["map", pytest.param("svgd", marks=pytest.mark.slow)])
def test_labels_are_predicted_as_the_classifier_does(method):
    """A linear and an RBF kernel, on generated images."""
    episodes, rng = FewShot(*generated_images()), np.random.default_rng(1)
    source, target, tests = (
        episodes.source_tasks(2, rng), episodes.target_tasks(2, rng), episodes.test_tasks(20, rng)
    )  # fmt: skip
    training = replace(Figure4().training(DEFAULT, method), n_steps=20)
    draw = Draw(SEED, source, target, stack_tests(tests))
    [ensemble] = fit_scheme([draw], Scheme(WFEM, 2, 2, 0.3), training)
    how = {"temperature": "bayes", "training": wfem.Training(n_steps=20, progress=False), "random_state": STATE}
    meta = wfem.WFEMClassifier("linear+rbf", "zero", inference=method, alpha=0.3, **how)
    scores, expected = metrics(ensemble, draw.test, labels=True), meta.fit(source, target).evaluate(tests)
    for name in ("accuracy", "probability_accuracy", "log_loss"):
        assert_allclose(scores[name], expected[name], rtol=1e-9)


def test_c4_the_two_identities_hold_exactly():
    """beta = 0: WFEM is PACOH on N target tasks; beta = 1: PACOH on no target task is the GP. Same tasks and seed."""
    figure = STUDIES["fig3"]
    for n_source, (first, second) in ((0, (WFEM, ALL)), (4, (FEW, GP))):
        schemes = paper_schemes(figure.n_tasks, n_source, n_source / figure.n_tasks)
        for scores in score(figure.draws(0.75), schemes, figure.training):
            by_name = {scheme.name: values for scheme, values in scores.items()}
            assert by_name[first] == by_name[second]
            assert by_name[WFEM] == by_name[POOLED]  # alpha = beta weighs all tasks alike
            assert by_name[ALL] != by_name[GP]


def test_the_gp_is_the_same_at_every_point_and_sees_no_task():
    figure = STUDIES["fig1"]
    draws = figure.draws(0.5)
    emptied = [draw._replace(source=draw.source[::-1], target=draw.target[::-1]) for draw in draws]
    gp = paper_schemes(4, 2, None)[:1]
    assert score(draws, gp, figure.training) == score(emptied, gp, figure.training)


@pytest.mark.parametrize(
    "study",
    [pytest.param(study, marks=[pytest.mark.slow] * (name == "fig4")) for name, study in STUDIES.items()],
    ids=list(STUDIES),
)
def test_every_point_of_a_study_gives_tidy_rows(study):
    points = list(study.points())
    assert len({point.name for point in points}) == len(points)
    seen, rows_seen = set(), 0
    for point in points:
        rows = study.run(point, quiet)
        assert rows
        for row in rows:
            assert list(row) == list(COLUMNS)
            assert row["figure"] == study.name
            assert row["scheme"] in (*SCHEMES, "task")
            assert np.isfinite(row["value"])
            assert (row["scheme"] == WFEM) == np.isfinite(row["alpha"]) or row["metric"] in ("mean", "lower", "upper")
            assert_allclose(row["beta"] * study.n_tasks, study.n_tasks - row["n_target"])
            seen.add((row["deviation"], row["beta"], str(row["alpha"]), row["prior_std"], row["draw"], row["scheme"],
                      row["metric"], str(row["x"])))  # fmt: skip
            rows_seen += 1
        assert {row["draw"] for row in rows} <= set(reporting_seeds(study.n_draws))
    assert len(seen) == rows_seen, "no row comes twice"


def test_draws_share_tasks_across_points_and_differ_from_each_other():
    figure = STUDIES["fig1"]
    near, far = figure.draws(0.0), figure.draws(1.0)
    assert_array_equal(near[0].source[3].x, far[0].source[3].x)
    assert_array_equal(near[0].source[3].y, far[0].source[3].y)  # only the target moves
    assert_array_equal(near[0].target[3].x, far[0].target[3].x)
    assert not np.allclose(near[0].target[3].y, far[0].target[3].y)
    assert not np.allclose(near[0].source[0].x, near[1].source[0].x)


def test_settings_are_chosen_on_draws_that_no_figure_uses(monkeypatch):
    few = {"n_tasks": 4, "n_test_tasks": 3, "n_queries": 4}
    monkeypatch.setattr(settings_search, "Figure5", partial(Figure5, **few))
    assert not set(reporting_seeds(1_000_000)) & set(validation_seeds(10_000))
    with pytest.raises(ValueError, match="at most 1000000"):
        reporting_seeds(1_000_001)
    grid = Grid("sinusoid", "map", 2, (1e-2,), (20,), (2.0, 6.0))
    search = SettingsSearch((grid,))
    [point] = search.points()
    rows = search.run(point, quiet)
    assert {row["draw"] for row in rows} == set(validation_seeds(2))
    assert {row["prior_std"] for row in rows} == {2.0, 6.0}
    assert {row["scheme"] for row in rows} == {ALL}


def test_alpha_is_left_to_choose_only_where_there_is_a_choice():
    assert auto_scheme(30, 0) == auto_scheme(30, 30) == auto_scheme(30, 29) == []
    assert [scheme.n_target for scheme in auto_scheme(30, 28)] == [2]


def test_a_run_that_diverges_is_nan_and_alone(draw, training, monkeypatch):
    monkeypatch.setattr("metaprior.wfem.settings.check_positive", lambda *_, **__: None)  # no rate that users give does
    wild = replace(training, learning_rate=1e38)
    schemes = [Scheme(WFEM, 2, 2, 0.2), Scheme(AUTO, 2, 2, None), Scheme(GP, 0, 0, 0.0, trained=False)]
    [scores] = score([draw], schemes, wild)
    assert [np.isnan(scores[scheme]["rmse"]) for scheme in schemes] == [True, True, False]


def made_up_scores(draws, schemes, training, on_chunk):
    return [{scheme: dict.fromkeys(LABEL_METRICS, 0.1 * draw.seed) for scheme in schemes} for draw in draws]


@pytest.mark.slow
def test_reproduce_all_ends_with_the_claims_and_can_be_resumed(tmp_path, monkeypatch):
    monkeypatch.setitem(profiles.PROFILES, "quick", STUDIES)
    monkeypatch.setattr(fewshot_figure, "score", made_up_scores)  # labels take long to compile
    out = tmp_path / "new" / "folder"
    result = CliRunner().invoke(app, ["reproduce", "all", "--out", str(out)])
    assert result.exit_code == 0, result.output
    for claim in ("C1", "C4", "C8"):
        assert claim in result.output
    claims = {claim["id"]: claim for claim in json.loads((out / "claims.json").read_text())["claims"]}
    assert claims["C4"]["verdict"] == "holds"
    assert "generated" in claims["C7"]["summary"]
    for figure in FIGURES:
        assert (out / f"{figure}.png").stat().st_size > 10_000
    assert "C8" in (out / "report.html").read_text()
    assert "Verdicts are those at the settings of the run" in result.output
    before = {path: path.read_bytes() for path in out.rglob("*.parquet")}
    assert len(before) == 6
    again = CliRunner().invoke(app, ["reproduce", "all", "--out", str(out)])
    assert again.exit_code == 2
    assert "--resume" in again.output
    assert "Traceback" not in again.output
    assert CliRunner().invoke(app, ["reproduce", "all", "--out", str(out), "--resume"]).exit_code == 0
    assert {path: path.read_bytes() for path in before} == before
    other = CliRunner().invoke(app, ["reproduce", "fig1", "--out", str(out), "--resume", "--draws", "3"])
    assert other.exit_code == 2
    assert "n_draws: 2 there, 3 requested" in " ".join(other.output.split())
    (out / "fig5" / "results.parquet").write_bytes(b"PAR1 nonsense")
    damaged = CliRunner().invoke(app, ["reproduce", "fig2", "--out", str(out), "--resume"])
    assert damaged.exit_code == 2
    assert "is damaged" in " ".join(damaged.output.split())


@pytest.mark.parametrize(
    "arguments",
    [["fig9"], ["fig1", "--profile", "slow"], ["fig1", "--draws", "0"], [], ["all", "--out", "/proc/[/x]"]],
)
def test_bad_arguments_end_with_one_clear_message(arguments):
    result = CliRunner().invoke(app, ["reproduce", *arguments])
    assert result.exit_code == 2
    assert "Traceback" not in result.output
