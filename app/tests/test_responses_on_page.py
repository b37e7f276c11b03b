"""Counts, ranks, outliers, exposures, categories and covariates on the page: charts in the units of y, and exports."""

import re

import numpy as np
import pytest

from metaprior import MetaGPRegressor, load
from metaprior.likelihoods import LIKELIHOODS
from page_client import RESPONSES, counts_table, kinds_table, ranks_table
from test_exports import check_same, fit_and_take, run_commands, run_python, take_along

NUMBERS = {"counts": [4, 9], "rates": [4, 9], "ranks": [3, 6], "outliers": [0.3, -0.2], "kinds": [6.0, 7.5]}


def chart(page, **changed):
    """Return the request of the page for the first input that a chart can be drawn along."""
    prior = page.state["prior"]
    axis = prior["axes"][0]
    of_axis = prior["inputs"][axis]
    return page.chart(axis=axis, range=[of_axis["low"], of_axis["high"]], **changed)


def readings(page, kind):
    """Return two readings at typical inputs, a little apart."""
    prior = page.state["prior"]
    x = [[each["typical"] for each in prior["inputs"]] for _ in range(2)]
    x[1][prior["axes"][0]] += 1.0
    return [{"x": row, "y": y} for row, y in zip(x, NUMBERS[kind], strict=True)]


@pytest.mark.parametrize("kind", ["counts", "rates", "ranks"])
def test_the_axis_of_whole_numbers_is_in_the_units_of_y(predicting, kind):
    page = predicting(kind)
    prior = page.state["prior"]
    shown = page.post("api/predict", chart(page)).json
    low, high = prior["y_range"]
    if kind == "ranks":
        assert prior["whole"] == {"lowest": 3, "highest": 7}
        assert (low, high) == (2.4, 7.6)
    else:
        assert prior["whole"]["lowest"] == 0
        assert low < 0 < 10 < high < 3 * max(shown["upper"])
    assert all(low < value < high for value in shown["mean"])
    assert shown["whole"]
    assert all(float(end).is_integer() for end in shown["lower"] + shown["upper"])


def test_readings_with_outliers_have_an_axis_that_their_prior_expects(predicting):
    prior = predicting("outliers").state["prior"]
    assert prior["whole"] is None
    low, high = prior["y_range"]
    assert -6 < low < -1 < 1 < high < 6


@pytest.mark.parametrize("kind", ["counts", "rates", "ranks", "outliers"])
def test_drawn_functions_are_means_in_the_units_of_y(predicting, kind):
    page = predicting(kind)
    shown = page.post("api/predict", chart(page, samples=True, readings=readings(page, kind))).json
    samples, mean = np.array(shown["samples"]), np.array(shown["mean"])
    assert np.isfinite(samples).all()
    middle = np.interp(shown["sample_x"], shown["x"], mean)
    ratio = samples.mean() / middle.mean() if kind != "outliers" else 1.0 + np.abs(samples.mean() - middle.mean())
    assert 0.6 < ratio < 1.6  # six functions scatter around their mean
    if kind == "ranks":
        assert 3.0 <= samples.min() < samples.max() <= 7.0


def test_a_reading_that_cannot_be_is_refused_with_a_sentence(predicting):
    page = predicting("counts")
    refused = page.post("api/predict", chart(page, readings=[{"x": [1.0], "y": 2.5}]))
    assert refused.status == 400
    assert "must hold counts" in refused.error
    page = predicting("ranks")
    assert "levels from 3 to 7" in page.post("api/predict", chart(page, readings=[{"x": [1.0], "y": 9}])).error


def test_the_exposure_is_one_is_named_and_multiplies_the_mean(predicting, prior_file):
    page = predicting("rates")
    prior = page.state["prior"]
    hour, days = prior["inputs"]
    assert (days["name"], days["exposure"], days["typical"], hour["exposure"]) == ("days", True, 1.0, False)
    assert prior["axes"] == [0]
    one = page.post("api/predict", chart(page)).json
    ten = page.post("api/predict", chart(page, fixed=[hour["typical"], 10.0])).json
    np.testing.assert_allclose(ten["mean"], 10.0 * np.array(one["mean"]), rtol=1e-4)
    assert "exposure" in page.post("api/predict", chart(page, fixed=[5.0, -1.0])).error
    x = np.column_stack([one["x"], np.ones(len(one["x"]))])
    np.testing.assert_allclose(one["mean"], load(prior_file("rates")).adapt([], []).predict(x), rtol=1e-4)


def test_categories_are_at_their_most_common_level_and_covariates_at_their_average(predicting, prior_file):
    page, table = predicting("kinds"), kinds_table()
    brand, hours, age, sex = page.state["prior"]["inputs"]
    assert brand["levels"][int(brand["typical"])] == table["brand"].mode()[0] == "bolt"
    assert sex["levels"][int(sex["typical"])] == table["sex"].mode()[0]
    assert age["typical"] == pytest.approx(table["age"].mean())
    assert [each["covariate"] for each in (brand, hours, age, sex)] == [False, False, True, True]
    assert page.state["prior"]["axes"] == [1]
    shown = page.post("api/predict", chart(page, readings=readings(page, "kinds"))).json
    meta = load(prior_file("kinds"))
    fixed = ["bolt", hours["typical"], age["typical"], sex["levels"][int(sex["typical"])]]
    context = [fixed, [*fixed[:1], fixed[1] + 1.0, *fixed[2:]]]
    task = meta.adapt(np.array(context, object), NUMBERS["kinds"])
    x = np.array([[fixed[0], value, *fixed[2:]] for value in shown["x"]], object)
    np.testing.assert_allclose(shown["mean"], task.predict(x), rtol=1e-4)


def test_all_readings_have_the_covariates_of_the_chart(predicting):
    page = predicting("kinds")
    given = readings(page, "kinds")
    older = [each["typical"] for each in page.state["prior"]["inputs"]]
    older[2] = 75.0
    moved = [{**reading, "x": [*reading["x"][:2], 75.0, *reading["x"][3:]]} for reading in given]
    of_chart = page.post("api/predict", chart(page, fixed=older, readings=given)).json
    of_readings = page.post("api/predict", chart(page, fixed=older, readings=moved)).json
    assert of_chart["mean"] == of_readings["mean"]
    assert of_chart["mean"] != page.post("api/predict", chart(page, readings=given)).json["mean"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"axis": 0}, "axis must be an input of numbers"),
        ({"axis": 2}, "axis must be an input of numbers"),
        ({"fixed": [7.0, 5.0, 50.0, 0.0]}, "is a category"),
        ({"fixed": [0.5, 5.0, 50.0, 0.0]}, "is a category"),
        ({"readings": [{"x": [3.0, 5.0, 50.0, 0.0], "y": 1.0}]}, "is a category"),
    ],
)
def test_charts_that_cannot_be_are_refused_with_a_sentence(predicting, changed, words):
    page = predicting("kinds")
    refused = page.post("api/predict", {**chart(page), **changed})
    assert refused.status == 400
    assert words in refused.error


def test_a_prior_without_an_input_to_draw_along_is_refused_with_a_sentence(page, prior_file):
    answer = page.upload("api/table", "brands.safetensors", prior_file("brands").read_bytes())
    assert answer.status == 400
    assert "no input of numbers" in answer.error


@pytest.mark.parametrize("kind", list(NUMBERS))
def test_exports_of_a_loaded_prior_give_the_same_numbers(predicting, prior_file, kind, tmp_path):
    page = predicting(kind)
    request = chart(page, readings=readings(page, kind))
    prior = prior_file(kind).read_bytes()
    predictions, commands, program = take_along(page, request, tmp_path, "prior.safetensors", prior)
    check_same(run_commands(commands, tmp_path), predictions)
    check_same(run_python(program, tmp_path), predictions)
    shown = page.post("api/predict", request).json
    np.testing.assert_allclose(predictions["upper"], shown["upper"], rtol=1e-4)


FITS = {
    "counts": (counts_table(), {"x": ["hour"], "y": "calls", "likelihood": "poisson"}),
    "rates": (
        counts_table(exposure=True),
        {"x": ["hour"], "y": "calls", "likelihood": "negative-binomial", "exposure": "days"},
    ),
    "ranks": (ranks_table(), {"x": ["x"], "y": "score", "likelihood": "ordinal"}),
    "kinds": (kinds_table(), {"x": ["brand", "hours"], "y": "y", "covariates": ["age", "sex"]}),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in ("counts", "kinds") else pytest.mark.slow) for kind in FITS]
)
def test_fits_of_the_page_give_the_same_by_command_line_and_by_python(page, tmp_path, kind):
    table, roles = FITS[kind]
    content = table.to_csv(index=False).encode()
    first = {"counts": [2.0], "rates": [2.0, 3.0], "ranks": [2.0], "kinds": [0.0, 2.0, 55.0, 0.0]}[kind]
    axis = {"axis": 1, "range": [0.0, 10.0]} if kind == "kinds" else {}
    given = [{"x": first, "y": NUMBERS[kind][0]}]
    taken = fit_and_take(page, "table.csv", content, {"task": ["task"], **roles}, tmp_path, readings=given, **axis)
    predictions, commands, program = taken
    check_same(run_commands(commands, tmp_path), predictions)
    (tmp_path / "prior.safetensors").unlink()
    check_same(run_python(program, tmp_path), predictions)
    prior = page.state["prior"]
    tasks = page.post("api/tasks", {"revision": prior["revision"], "axis": prior["axes"][0]}).json["tasks"]
    assert len(tasks["tasks"]) == prior["n_tasks"] == table["task"].nunique()
    if kind == "rates":  # drawn at the exposure of the chart
        doubled = {"revision": prior["revision"], "axis": 0, "exposure": 2.0}
        twice = page.post("api/tasks", doubled).json["tasks"]
        rates = (table["calls"] / table["days"])[table["task"] == "task 1"]
        assert sorted(tasks["tasks"][0]["y"]) == pytest.approx(sorted(rates), abs=1e-4)
        assert sorted(twice["tasks"][0]["y"]) == pytest.approx(sorted(2.0 * rates), abs=1e-4)
        assert "exposure" in page.post("api/tasks", {**doubled, "exposure": 0}).error


def test_readings_are_loaded_with_levels_and_covariates_of_their_task(predicting):
    page = predicting("kinds")
    brand, _, age, sex = page.state["prior"]["inputs"]
    content = b"brand,hours,age,sex,y\nacme,1.0,70,male,7.5\nbolt,2.0,70,male,7.0\n"
    [task] = page.upload("api/context", "readings.csv", content).json["tasks"]
    codes = [brand["levels"].index(name) for name in ("acme", "bolt")]
    male = sex["levels"].index("male")
    assert [reading["x"] for reading in task["readings"]] == [[codes[0], 1.0, 70.0, male], [codes[1], 2.0, 70.0, male]]
    [task] = page.upload("api/context", "readings.csv", b"brand,hours,y\nacme,1.0,7.5\n").json["tasks"]
    assert task["readings"][0]["x"][2:] == [age["typical"], sex["typical"]]
    refused = page.upload("api/context", "readings.csv", b"brand,hours,y\nzap,1.0,7.5\n")
    assert "not fitted to" in refused.error


def test_a_table_of_counts_hints_at_their_likelihood(page):
    table = counts_table(n_tasks=20)
    table["calls"] = table["calls"] ** 2 // 20
    columns = page.upload("api/table", "t.csv", table.to_csv(index=False).encode()).json["table"]["columns"]
    [hint] = [each["hint"] for each in columns if each["hint"]]
    assert hint.startswith("calls holds counts from 0 to ")
    assert "try likelihood='" in hint


def test_an_unknown_likelihood_is_refused(page):
    page.upload("api/table", "t.csv", counts_table().to_csv(index=False).encode())
    given = {"task": ["task"], "x": ["hour"], "y": "calls", "likelihood": "cauchy"}
    assert "likelihood" in page.post("api/fit", given).error


def test_the_page_has_a_choice_for_every_likelihood(page):
    select = re.search(r'<select id="likelihood">(.*?)</select>', page.get("").content.decode(), re.DOTALL)[1]
    choices = re.findall(r'<option value="([^"]+)" data-exposure="(\w+)">([^<]+)<', select)
    assert [name for name, _, _ in choices] == list(LIKELIHOODS)
    assert choices[0][0] == MetaGPRegressor().likelihood  # the first is chosen
    assert len({words for _, _, words in choices}) == len(LIKELIHOODS)
    assert {name for name, exposure, _ in choices if exposure == "True"} == {"poisson", "negative-binomial"}
    assert set(RESPONSES) > set(FITS)
