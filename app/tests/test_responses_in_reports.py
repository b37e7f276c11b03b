"""Reports of counts, ranks, outliers, categories, covariates and conformal intervals: charts, and their words."""

from types import SimpleNamespace

import numpy as np
import pytest
from running import call
from scipy import stats

from metaprior import load
from metaprior.likelihoods.counts import Poisson
from metaprior.predict.predictive import Predictive
from metaprior.tasks.types import TestTask
from metaprior_app import held_out
from metaprior_app.held_out import Group, coverage_of_tasks
from page_client import RESPONSES, kinds_table, ranks_table
from test_report import read


def make(folder, table, *options):
    """Return the report of a fit."""
    table.to_csv(folder / "table.csv", index=False)
    out = ["--out", folder / "p.safetensors", "--report", folder / "fit.html"]
    call("fit", folder / "table.csv", "--task=task", *options, *out)
    return read(folder / "fit.html")


def of_kind(report, kind):
    return [chart for chart in report.charts if chart["kind"] == kind]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Return a function of the kind of a prior: its report, made once."""
    made = {}

    def of(kind):
        if kind not in made:
            table, options = RESPONSES[kind]
            made[kind] = make(tmp_path_factory.mktemp(kind), table(), *options)
        return made[kind]

    return of


@pytest.mark.parametrize("kind", ["counts", "ranks"])
def test_bands_of_whole_numbers_are_whole_and_held_back_readings_are_counted_in_them(report, kind):
    page = report(kind)
    examples = of_kind(page, "prediction")
    assert len(examples) == 6
    for chart in examples:
        assert chart["y"]["whole"]
        ends = np.array([chart["lower"], chart["upper"]])
        np.testing.assert_array_equal(ends, np.round(ends))
        low, high = chart["y"]["domain"]
        assert low <= ends.min() - 0.5
        assert high >= ends.max() + 0.5
    assert f"Its likelihood is {'poisson' if kind == 'counts' else 'ordinal'}." in page.words
    assert "its edges are half a unit beyond them" in page.words
    assert "counts in part" in page.words
    assert "Models to compare with have Gaussian noise" in page.words


def test_a_right_prediction_of_counts_is_on_the_line_of_the_calibration_chart(monkeypatch):
    """Intervals of whole numbers hold more than they promise: of each count only a part is inside."""
    y, levels = np.arange(60.0)[:, None], np.array([0.1, 0.5, 0.9])
    right = Predictive(Poisson(), np.full((1, 60, 1), np.log(3.0)), np.full((1, 60, 1), 1e-12), np.zeros((1, 0)))
    monkeypatch.setattr(held_out, "predict_tasks", lambda model, tests: (right, y, np.ones((60, 1), bool)))
    shares = coverage_of_tasks([Group(SimpleNamespace(model_=None), [], [])], levels)
    np.testing.assert_allclose(stats.poisson.pmf(np.arange(60), 3.0) @ shares, levels, atol=1e-6)


DRAWN = {  # given the inputs of six tasks; as the priors were fitted to
    "counts": lambda rng, x: rng.poisson(4.0, (6, 5)),
    "numbers": lambda rng, x: np.sin(x[..., 0]) + rng.normal(size=(6, 1)) + 0.1 * rng.normal(size=(6, 5)),
}


@pytest.mark.parametrize(("kind", "draw"), DRAWN.items(), ids=DRAWN)
def test_pooled_scores_are_those_of_evaluate(prior_file, kind, draw):
    meta = load(prior_file(kind))
    rng = np.random.default_rng(5)
    inputs = rng.uniform(0, 10, (6, 5, 1))
    tests = [TestTask(x[:2], y[:2], x[2:], y[2:]) for x, y in zip(inputs, draw(rng, inputs), strict=True)]
    pooled = held_out._pooled([meta.compare(tests[:2]), meta.compare(tests[2:])]).scores["metaprior"]
    expected = meta.evaluate(tests)
    for name in ("rmse", "nll", "nll_se", "coverage", "width"):
        assert pooled[name] == pytest.approx(expected[name])


def test_counts_with_an_exposure_are_drawn_as_rates_and_compared_with_what_was_observed(report):
    page, table = report("rates"), RESPONSES["rates"][0]()
    [tasks] = of_kind(page, "tasks")
    assert (tasks["x"]["label"], tasks["y"]["label"]) == ("hour", "calls / days")
    drawn = sorted(value for task in tasks["given"]["tasks"] for value in task["y"])
    np.testing.assert_allclose(drawn, sorted(table["calls"] / table["days"]), atol=0.01)
    assert "Counts are divided by their exposure, days." in page.words
    assert len(of_kind(page, "scatter")) == 6  # the exposure differs within tasks


def test_outliers(report):
    page = report("outliers")
    assert "Its likelihood is student-t." in page.words
    assert not of_kind(page, "calibration")[0]["whole"]
    assert not any(chart["y"]["whole"] for chart in of_kind(page, "prediction"))


def test_categories_are_listed_and_tasks_are_drawn_along_a_number(report):
    page, table = report("kinds"), kinds_table()
    counts = table["brand"].value_counts()
    assert f"bolt {counts['bolt']}" in page.words
    assert "<i>cog</i>" in page.words  # as it is, not as an element
    assert not [tag for tag, _ in page.elements if tag == "i"]
    [tasks] = of_kind(page, "tasks")
    assert tasks["x"]["label"] == "hours"
    assert len(of_kind(page, "scatter")) == 6  # the brand differs within tasks
    assert of_kind(page, "calibration")


def test_covariates_of_a_chart_are_those_of_its_task(tmp_path):
    table = kinds_table()
    table.loc[table["task"] == "task 4", "age"] = np.nan
    page = make(tmp_path, table, "--x=hours", "--y=y", "--task-covariates=age", "--task-covariates=sex")
    charts = of_kind(page, "prediction")
    of_tasks = table.groupby("task")[["age", "sex"]].first()
    for chart in charts:
        [name] = [each for each in of_tasks.index if chart["title"].startswith(f"{each}:")]
        age, sex = of_tasks.loc[name, "age"], of_tasks.loc[name, "sex"]
        assert chart["others"] == f"age {'unknown' if np.isnan(age) else f'{age:.4g}'}, sex {sex}"
        assert f"At {chart['others']}." in page.words
    assert len(charts) == 6
    assert "are those of each task" in page.words


def test_a_prior_of_categories_alone_has_a_report_without_pictures_of_tasks(report):
    page = report("brands")
    assert not of_kind(page, "tasks")
    assert of_kind(page, "scatter")


@pytest.mark.slow
def test_labels_with_covariates(tmp_path):
    table = kinds_table()
    table["y"] = np.where(table["y"] > table["y"].median(), "high", "low")
    page = make(tmp_path, table, "--x=hours", "--y=y", "--task-covariates=age", "--task-covariates=sex")
    for chart in of_kind(page, "probabilities"):
        assert chart["others"].startswith("age ")
    assert of_kind(page, "probabilities")


def test_a_level_that_only_a_held_out_task_has_is_said(tmp_path):
    table = ranks_table()
    table.loc[table.index[-1], "score"] = 8
    page = make(tmp_path, table, "--x=x", "--y=score", "--likelihood=ordinal")
    assert "it has not seen the 7 tasks" in page.words


@pytest.mark.parametrize("options", [pytest.param([], marks=pytest.mark.slow), ["--hold-out=0.3"]])
def test_the_coverage_of_conformal_intervals(tmp_path, options):
    table = kinds_table(n_tasks=16, n_readings=4)[["task", "hours", "y"]]
    page = make(tmp_path, table, "--x=hours", "--y=y", "--conformal", *options)
    assert "The prior has conformal intervals: nominal coverage 0.9, proven 0." in page.words
    assert "On held-out tasks those of nominally 90% hold " in page.words
    assert "conformal coverage" in page.words
    assert "Charts show the model's own band." in page.words
