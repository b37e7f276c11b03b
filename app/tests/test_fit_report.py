"""The report of a fit: true, harmless, complete without a network, and without data where that is asked for."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from running import call, words
from scipy import stats

from metaprior import MetaGPRegressor, load, tasks_from_frame
from metaprior.cli.training_data import Fit, read_training_data
from metaprior.likelihoods.counts import Poisson
from metaprior.predict.predictive import Predictive
from metaprior.tables.reading import TableFile, as_csv_format
from metaprior.tasks.types import TestTask
from metaprior_app import held_out
from metaprior_app.examples import LEVELS, calibration_chart
from page_client import RESPONSES, csv, kinds_table, ranks_table

ROOT = Path(__file__).parents[2]
COLUMNS = ["--task", "patient", "--x", "hours", "--y", "heart_rate"]
SOUTH = ["--environment", "hospital", "--target", "south"]
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028&amp;'\""


class Page(HTMLParser):
    """The elements of a page and its text."""

    def __init__(self, content):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.open = [], [], []
        self.feed(content)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def of(self, tag):
        return [text for inside, text in self.texts if inside == tag]

    @property
    def words(self):
        return " ".join(" ".join(text for tag, text in self.texts if tag not in ("script", "style")).split())

    @property
    def charts(self):
        return json.loads(self.of("script")[0])


def read(path):
    content = path.read_text(encoding="utf-8")
    check_alone(content)
    return Page(content)


def check_alone(content):
    """Nothing is loaded from elsewhere, and only the page's own script and style are allowed."""
    assert not re.findall(r"""(?:src|href)\s*=\s*["']?(?!\s*["']?data:)[^>]*https?:|url\((?!#)|@import""", content)
    page = Page(content)
    assert not [tag for tag, _ in page.elements if tag in ("link", "img", "iframe", "object", "embed", "base", "form")]
    assert not [name for _, given in page.elements for name in given if name.startswith("on") or name == "style"]
    assert [given.get("type") for tag, given in page.elements if tag == "script"] == ["application/json", None]
    [policy] = [given["content"] for _, given in page.elements if given.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    for part, [inline] in (("script-src", page.of("script")[1:]), ("style-src", page.of("style"))):
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{part} 'sha256-{digest}';" in policy
    assert ("html", {"lang": "en"}) in page.elements
    assert any(given.get("name") == "viewport" for _, given in page.elements)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("example")
    call("example", "--out", folder)
    return folder


@pytest.fixture(scope="module")
def small(folder):
    """A table of two hospitals with six patients each, quick to fit, with more columns."""
    table = pd.read_csv(folder / "patients.csv")
    kept = [*table["patient"].unique()[:6], *table["patient"].unique()[-6:]]
    table = table[table["patient"].isin(kept)].reset_index(drop=True)
    table["state"] = np.where(table["heart_rate"] > 85, "fast", "calm")
    table["day"] = (pd.Timestamp("2024-03-01") + pd.to_timedelta(table["hours"], unit="D")).dt.strftime(
        "%Y-%m-%d %H:%M"
    )
    table["weight"] = np.random.default_rng(0).normal(70, 5, len(table))
    return table


def fit(table, folder, *options, columns=COLUMNS):
    """Fit a prior to a table; return its report, and what the command prints."""
    (folder / "table.csv").write_bytes(csv(table))
    files = ["--out", folder / "p.safetensors", "--report", folder / "fit.html"]
    printed = call("fit", folder / "table.csv", *columns, *options, *files)
    return read(folder / "fit.html"), printed


@pytest.fixture(scope="module")
def example(folder):
    """The report of the walk-through in the README."""
    out = ["--out", folder / "prior.safetensors", "--report", folder / "fit.html"]
    result = call("fit", folder / "patients.csv", *COLUMNS, *SOUTH, *out)
    assert f"Wrote {folder / 'prior.safetensors'} and {folder / 'fit.html'}." in words(result)
    return read(folder / "fit.html"), load(folder / "prior.safetensors")


def test_the_report_says_what_the_prior_says(example, folder):
    page, meta = example
    report = meta.transfer_report()
    assert (folder / "fit.html").stat().st_size < 150_000
    assert report.verdict in page.words
    assert report.plain_words in page.words
    for row in report.rows():
        assert " ".join(row) in page.words
    for name, weight in report.families.items():
        assert f"{name} {weight:.2f}" in page.words
    assert "south (target) 8 92" in page.words
    assert "north 40 445" in page.words
    assert "heart_rate south (target) 69 129 89.22 12.86" in page.words
    assert "random_state 0 yes alpha" in page.words
    assert f"numpy {np.__version__}" in page.words
    [chart] = [chart for chart in page.charts if chart["kind"] == "candidates"]
    np.testing.assert_allclose([row["value"] for row in chart["rows"]], report.gain, atol=1e-4)
    np.testing.assert_allclose([row["weight"] for row in chart["rows"]], report.weight, atol=1e-4)


def test_the_command_of_a_report_gives_the_same_prior(example, folder, monkeypatch):
    page, meta = example
    [command] = page.of("code")
    monkeypatch.chdir(folder)
    call(*command.split()[1:])
    again = load(folder / "prior.safetensors")
    np.testing.assert_array_equal(again.report_.score, meta.report_.score)
    assert "--report" not in command


def test_charts_have_places_and_words(example):
    page, _ = example
    places = [given for tag, given in page.elements if tag == "svg"]
    assert [int(given["data-chart"]) for given in places] == list(range(len(page.charts)))
    assert all(given["aria-label"] and given["role"] == "img" for given in places)
    kinds = [chart["kind"] for chart in page.charts]
    assert kinds == ["tasks", "tasks", "candidates", "calibration", *["prediction"] * 6]
    assert all(given.get("scope") for tag, given in page.elements if tag == "th")
    assert sum(len(task["x"]) for task in page.charts[1]["given"]["tasks"]) == 445


def as_fit(path, target, **arguments):
    named = {"task": ["patient"], "x": ["hours"], "y": "heart_rate", "environment": "hospital" if target else None}
    table = TableFile(path, as_csv_format(None, None, None))
    how = {"drop_missing": False, "drop_duplicates": False}
    tasks = read_training_data(table, named, target, None, None, 0, how)
    meta = MetaGPRegressor(random_state=0, **arguments)
    if target:
        meta.fit(tasks.environments, target=target)
    else:
        meta.fit(target_tasks=tasks.environments[""])
    meta.training_["columns"] = tasks.columns
    return Fit(meta, tasks, target, 0, None, ["metaprior", "fit"], False)


@pytest.mark.parametrize("target", ["south", None])
def test_held_out_tasks_are_predicted_by_priors_that_have_not_seen_them(small, tmp_path, target):
    path = tmp_path / "table.csv"
    small.to_csv(path, index=False)
    alpha = 0.5 if target else 0.0
    fitted = as_fit(path, target, alpha=alpha)
    tested = held_out.held_out_tasks(fitted, held_out.sample_training(fitted.tasks, 0))
    groups = tested.groups
    of_target = small[small["hospital"] == "south"] if target else small
    assert sorted(name for group in groups for name in group.names) == sorted(of_target["patient"].unique())
    shares = []
    for group in groups:
        rest = small[~small["patient"].isin(group.names)]
        columns = {"task": "patient", "x": "hours", "y": "heart_rate"}
        tasks = tasks_from_frame(rest, **columns, environment="hospital" if target else None)
        again = MetaGPRegressor(alpha, random_state=0)
        again = again.fit(tasks, target=target) if target else again.fit(target_tasks=tasks)
        for test, name in zip(group.tests, group.names, strict=True):
            whole = small[small["patient"] == name]
            assert sorted([*test.y_context, *test.y_query]) == sorted(whole["heart_rate"])
            assert len(test.y_context) == min(5, len(whole) // 2)
            adapted = again.adapt(test.x_context, test.y_context)
            bands = [adapted.interval(test.x_query, level) for level in LEVELS]
            shares.append([np.mean((lower <= test.y_query) & (test.y_query <= upper)) for lower, upper in bands])
    chart, scores = calibration_chart(tested), tested.compared.scores["metaprior"]
    np.testing.assert_allclose(chart["actual"], np.mean(shares, axis=0), atol=1e-4)
    assert scores.coverage == pytest.approx(np.mean(shares, axis=0)[LEVELS.tolist().index(0.9)])
    assert chart["promised"][chart["highlight"]] == 0.9
    assert f"{len(shares)} tasks" in tested.how
    assert scores.n_tasks == tested.compared.scores["GP per task"].n_tasks == len(shares)


def test_the_tasks_of_hold_out_are_scored_once(small, tmp_path):
    page, result = fit(small, tmp_path, *SOUTH, "--hold-out", "0.5", "--json")
    figures = json.loads(result.stdout)
    assert figures["report"] == str(tmp_path / "fit.html")
    for score in figures["held_out"]["overall"].values():
        assert f"{score['rmse']:.3g} ± {score['rmse_se']:.2g}" in page.words
        assert f"{score['coverage']:.3g} ± {score['coverage_se']:.2g}" in page.words
    assert "3 tasks of south were held out of the fit (--hold-out)" in page.words
    [chart] = [chart for chart in page.charts if chart["kind"] == "calibration"]
    assert chart["actual"][8] == pytest.approx(figures["held_out"]["overall"]["metaprior"]["coverage"], abs=1e-4)
    drawn = [chart for chart in page.charts if chart["kind"] == "prediction"]
    held_out = set(small["patient"][small["hospital"] == "south"]) & {chart["name"] for chart in drawn}
    assert len(held_out) == 3
    for chart in drawn:
        readings = small[small["patient"] == chart["name"]]
        both = [*chart["given"]["x"], *chart["held_back"]["x"]]
        np.testing.assert_allclose(sorted(both), sorted(readings["hours"]), atol=0.01)


def test_hostile_names_are_shown_as_they_are(small, tmp_path):
    names = {"patient": f"p{HOSTILE}", "hospital": f"h{HOSTILE}", "hours": f"x{HOSTILE}", "heart_rate": f"y{HOSTILE}"}
    table = small[list(names)].rename(columns=names)
    table[names["patient"]] += HOSTILE
    table[names["hospital"]] += HOSTILE
    columns = ["--task", names["patient"], "--x", names["hours"], "--y", names["heart_rate"]]
    options = ["--environment", names["hospital"], "--target", f"south{HOSTILE}"]
    page, _ = fit(table, tmp_path, *options, "--hold-out", "0.5", columns=columns)
    assert "alert(1)" not in "".join(page.of("script")[1:])
    assert [text for text in page.of("h1") if HOSTILE in text]
    assert any(HOSTILE in chart["title"] for chart in page.charts if chart["kind"] == "prediction")
    assert not re.search(r"[<>&\u2028\u2029]", re.search(r'id="charts">(.*?)</script>', page_text(tmp_path))[1])


def page_text(folder):
    return (folder / "fit.html").read_text(encoding="utf-8")


def test_labels(small, tmp_path):
    page, _ = fit(
        small, tmp_path, *SOUTH, "--alpha", "0.5", columns=["--task", "patient", "--x", "hours", "--y", "state"]
    )
    [chart] = [chart for chart in page.charts if chart["kind"] == "reliability"]
    n_labels = int((small["hospital"] == "south").sum())
    n_given = sum(min(5, n // 2) for n in small[small["hospital"] == "south"]["patient"].value_counts())
    assert sum(chart["counts"]) == n_labels - n_given
    assert "logistic regression" in page.words
    for name, count in small[small["hospital"] == "south"]["state"].value_counts().items():
        assert re.search(rf"{name} {count}\b", page.words)
    drawn = [chart for chart in page.charts if chart["kind"] == "probabilities"]
    assert len(drawn) == 6
    for chart in drawn:
        assert chart["classes"] == ["calm", "fast"]
        np.testing.assert_allclose(np.sum(chart["curves"], axis=0), 1.0, atol=1e-3)


def test_labels_with_several_inputs_and_hold_out(small, tmp_path):
    columns = ["--task", "patient", "--x", "hours", "--x", "weight", "--y", "state"]
    page, result = fit(small, tmp_path, *SOUTH, "--hold-out", "0.5", "--json", columns=columns)
    scores = json.loads(result.stdout)["held_out"]["overall"]["metaprior"]
    assert "observed predicted its probability" in page.words
    assert f"{scores['log_loss']:.3g} ±" in page.words


def test_two_inputs_are_drawn_against_observations(small, tmp_path):
    columns = ["--task", "patient", "--x", "hours", "--x", "weight", "--y", "heart_rate"]
    page, _ = fit(small, tmp_path, *SOUTH, "--hold-out", "0.5", columns=columns)
    assert [chart["kind"] for chart in page.charts if chart["kind"] == "scatter"] == ["scatter"] * 3
    assert "They are drawn along hours, the first input." in page.words


def test_dates_and_parquet_and_one_environment(small, tmp_path):
    small.assign(day=pd.to_datetime(small["day"])).to_parquet(tmp_path / "t.parquet")
    columns = ["--task", "patient", "--x", "day", "--y", "heart_rate"]
    out = ["--out", tmp_path / "p", "--report", tmp_path / "fit.html"]
    call("fit", tmp_path / "t.parquet", *columns, "--hold-out", "0.3", *out)
    page = read(tmp_path / "fit.html")
    assert all(chart["x"]["dates"] for chart in page.charts if chart["kind"] in ("tasks", "prediction"))
    assert f"day all {small['day'].min().removesuffix(' 00:00')} {small['day'].max()}" in page.words
    assert "All tasks come from one environment, so there is nothing to transfer." in page.words
    assert "holds dates, which become days" in page.words  # the note of the fit


def test_without_calibration_the_report_says_why(small, tmp_path):
    few = small[~((small["hospital"] == "south") & ~small["patient"].isin(small["patient"].unique()[-2:]))]
    page, _ = fit(few, tmp_path, *SOUTH)
    assert "There are 2 tasks of south, too few to fit the prior again" in page.words
    assert "Predictions of held-out tasks" not in page.words


def test_tasks_of_one_reading(tmp_path):
    table = pd.DataFrame({"patient": range(8), "hours": np.arange(8.0), "heart_rate": np.arange(8.0) % 3})
    assert "one of the readings each" in fit(table, tmp_path)[0].words


def test_many_tasks_are_a_density_and_a_sample(tmp_path, monkeypatch):
    monkeypatch.setattr(held_out, "MAX_TASKS", 110)
    rng = np.random.default_rng(0)
    rows = [(i, x, np.sin(x + 0.1 * rng.normal())) for i in range(120) for x in rng.uniform(0, 6, 4)]
    table = pd.DataFrame(rows, columns=["patient", "hours", "heart_rate"])
    page, _ = fit(table, tmp_path, "--hold-out", "0.05")
    counts = np.array(page.charts[0]["given"]["counts"])
    assert 110 < counts.sum() <= 4 * 110
    assert "up to 110 tasks per environment, drawn at random" in page.words


def test_stored_tasks(small, tmp_path):
    small.to_csv(tmp_path / "table.csv", index=False)
    call("store", tmp_path / "table.csv", *COLUMNS, "--environment", "hospital", "--out", tmp_path / "stored")
    out = ["--out", tmp_path / "p", "--report", tmp_path / "fit.html"]
    call("fit", tmp_path / "stored", "--target", "south", "--alpha", "0.5", *out)
    page = read(tmp_path / "fit.html")
    assert "south (target) 6" in page.words
    assert [chart["name"] for chart in page.charts if chart["kind"] == "prediction"]


def test_the_example_in_the_docs_is_a_report_of_the_example(example):
    there, (here, _) = read(ROOT / "docs" / "example-report.html"), example
    assert [chart["kind"] for chart in there.charts] == [chart["kind"] for chart in here.charts]
    assert there.of("h2") == here.of("h2")
    assert "metaprior fit example/patients.csv --task patient --x hours" in there.words


# -------------------------------------------------------------------- counts, ranks, outliers, categories, covariates


def of_kind(report, kind):
    return [chart for chart in report.charts if chart["kind"] == kind]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Return a function of the kind of a prior: its report, made once."""
    made = {}

    def of(kind):
        if kind not in made:
            table, options = RESPONSES[kind]
            made[kind], _ = fit(table(), tmp_path_factory.mktemp(kind), *options, columns=["--task=task"])
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
    shares = held_out.coverage_of_tasks([held_out.Group(SimpleNamespace(model_=None), [], [])], levels)
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
    page, _ = fit(
        table, tmp_path, "--x=hours", "--y=y", "--covariates=age", "--covariates=sex", columns=["--task=task"]
    )
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
    page, _ = fit(
        table, tmp_path, "--x=hours", "--y=y", "--covariates=age", "--covariates=sex", columns=["--task=task"]
    )
    for chart in of_kind(page, "probabilities"):
        assert chart["others"].startswith("age ")
    assert of_kind(page, "probabilities")


def test_a_level_that_only_a_held_out_task_has_is_said(tmp_path):
    table = ranks_table()
    table.loc[table.index[-1], "score"] = 8
    page, _ = fit(table, tmp_path, "--x=x", "--y=score", "--likelihood=ordinal", columns=["--task=task"])
    assert "it has not seen the 7 tasks" in page.words


@pytest.mark.parametrize("options", [pytest.param([], marks=pytest.mark.slow), ["--hold-out=0.3"]])
def test_the_coverage_of_conformal_intervals(tmp_path, options):
    table = kinds_table(n_tasks=16, n_readings=4)[["task", "hours", "y"]]
    page, _ = fit(table, tmp_path, "--x=hours", "--y=y", "--set=conformal=true", *options, columns=["--task=task"])
    assert "The prior has conformal intervals: nominal coverage 0.9, proven 0." in page.words
    assert "On held-out tasks those of nominally 90% hold " in page.words
    assert "conformal coverage" in page.words
    assert "Charts show the model's own band." in page.words
