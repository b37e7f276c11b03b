"""What charts show is what the prior predicts, in the units of y; and which requests for charts are refused."""

import re

import msgspec
import numpy as np
import pytest

from metaprior import MetaGPRegressor, load
from metaprior.likelihoods import LIKELIHOODS
from metaprior.tasks.types import Task
from metaprior_app.charts import (
    CELLS,
    DENSITY,
    MAX_LINES,
    MAX_POINTS,
    N_SAMPLES,
    POINTS,
    PredictRequest,
    draw_tasks,
    predict_chart,
    rounded,
)
from page_client import RESPONSES, kinds_table

NUMBERS = {"counts": [4, 9], "rates": [4, 9], "ranks": [3, 6], "outliers": [0.3, -0.2], "kinds": [6.0, 7.5]}


def chart(meta, **changed):
    usual = {"readings": [], "coverage": 0.8, "axis": 0, "range": [0.0, 10.0], "fixed": [2.0] * meta.n_features_in_}
    return msgspec.convert({**usual, **changed}, PredictRequest)


def readings_of(*pairs):
    return [{"x": x, "y": y} for x, y in pairs]


@pytest.fixture
def prior(prior_file):
    return lambda kind: load(prior_file(kind))


@pytest.mark.parametrize("readings", [[], [([3.0], 1.0)], [([1.0], 0.5), ([9.0], -0.5), ([9.0], -0.4)]])
def test_a_curve_is_the_prediction_of_the_adapted_task(prior, readings):
    meta, x = prior("numbers"), np.linspace(0.0, 10.0, POINTS)
    shown = predict_chart(meta, chart(meta, readings=readings_of(*readings)))
    np.testing.assert_allclose(shown["x"], x, atol=1e-4)
    adapted = meta.adapt(np.array([x for x, _ in readings]).reshape(-1, 1), [y for _, y in readings])
    predictive = adapted.predictive(x[:, None])
    expected = (predictive.mean(), *predictive.interval(0.8))
    for name, values in zip(("mean", "lower", "upper"), expected, strict=True):
        np.testing.assert_allclose(shown[name], values, atol=1e-5)
    assert (shown["kind"], shown["notes"]) == ("curve", [])


def test_a_wider_coverage_is_a_wider_band_and_a_reading_narrows_it(prior):
    meta = prior("numbers")

    def width(**changed):
        shown = predict_chart(meta, chart(meta, **changed))
        return np.subtract(shown["upper"], shown["lower"])

    assert (width(coverage=0.95) > width(coverage=0.5)).all()
    assert width(readings=readings_of(([5.0], 0.0)))[POINTS // 2] < 0.8 * width()[POINTS // 2]


def test_inputs_outside_the_training_range_are_marked(prior):
    meta = prior("numbers")
    shown = predict_chart(meta, chart(meta, range=[-10.0, 10.0]))
    low, high = meta.feature_range_[:, 0]
    x, outside = np.array(shown["x"]), np.array(shown["outside"])
    room = 0.15 * (high - low)  # as much as a prior may reach beyond its tasks
    assert outside[(x < low - room) | (x > high + room)].all()
    assert not outside[(x > low) & (x < high)].any()


def test_drawn_functions_are_smooth_the_same_again_and_pass_near_readings(prior):
    meta = prior("numbers")
    request = chart(meta, samples=True, readings=readings_of(([5.0], 0.3)) * 4)
    shown = predict_chart(meta, request)
    samples = np.array(shown["samples"])
    assert samples.shape == (N_SAMPLES, len(shown["sample_x"]))
    assert predict_chart(meta, request)["samples"] == shown["samples"]
    at = int(np.abs(np.array(shown["sample_x"]) - 5.0).argmin())
    assert np.ptp(samples[:, at]) < np.ptp(samples[:, 0])
    assert "samples" not in predict_chart(meta, chart(meta))


def test_other_inputs_are_fixed_along_an_axis(prior):
    meta = prior("two inputs")
    shown = predict_chart(meta, chart(meta, axis=1, fixed=[7.0, 99.0]))
    x = np.column_stack([np.full(POINTS, 7.0), np.linspace(0.0, 10.0, POINTS)])
    np.testing.assert_allclose(shown["mean"], meta.adapt(np.empty((0, 2)), []).predictive(x).mean(), atol=1e-4)


@pytest.mark.parametrize(("axis", "second"), [(0, 1), (1, 0)])
def test_a_map_has_rows_along_its_second_input(prior, axis, second):
    meta = prior("two inputs")
    given = {"map": True, "axis": axis, "second": second, "second_range": [2.0, 6.0]}
    shown = predict_chart(meta, chart(meta, **given, readings=readings_of(([2.0, 8.0], 5.0))))
    assert (shown["kind"], shown["x"], shown["y"]) == ("map", (0.0, 10.0), (2.0, 6.0))
    mean, std = np.array(shown["mean"]), np.array(shown["std"])
    assert mean.shape == std.shape == (CELLS, CELLS)
    adapted = meta.adapt([[2.0, 8.0]], [5.0])
    for i, j in ((0, 0), (0, CELLS - 1), (CELLS - 1, 0), (5, 20)):
        point = np.zeros((1, 2))
        point[0, axis], point[0, second] = 10.0 * (i + 0.5) / CELLS, 2.0 + 4.0 * (j + 0.5) / CELLS
        expected = adapted.predict(point, return_std=True)
        assert (mean[j, i], std[j, i]) == pytest.approx([float(each[0]) for each in expected], abs=1e-4)


def test_probabilities_are_in_the_order_of_the_classes(prior):
    meta = prior("labels")
    shown = predict_chart(meta, chart(meta, readings=readings_of(([1.0], 1), ([9.0], 0))))
    expected = meta.adapt([[1.0], [9.0]], ["low", "high"]).predict_proba(np.array(shown["x"])[:, None])
    assert shown["classes"] == meta.classes_.tolist() == ["high", "low"]
    np.testing.assert_allclose(shown["probabilities"], expected.T, atol=1e-4)
    request = chart(meta, map=True, second=0, second_range=[0.0, 10.0])
    both = [np.array(predict_chart(meta, msgspec.structs.replace(request, class_=i))["probability"]) for i in (0, 1)]
    np.testing.assert_allclose(both[0] + both[1], 1.0, atol=1e-4)
    assert shown["probabilities"][0][-1] > 0.5 > shown["probabilities"][0][0]


@pytest.mark.parametrize("classes", [["red", "green"], ["green", "red"], ["b", "a", "c"]])
def test_probabilities_of_labels_of_a_task_of_its_own_keep_the_order_of_the_request(prior, classes):
    meta = prior("own labels")
    shown = predict_chart(meta, chart(meta, readings=readings_of(([1.0], 0), ([9.0], 1)), classes=classes))
    adapted = meta.adapt([[1.0], [9.0]], np.array(classes[:2], object), classes=classes)
    expected = adapted.predict_proba(np.array(shown["x"])[:, None])
    place = [list(adapted.classes_).index(name) for name in classes]
    assert shown["classes"] == classes
    np.testing.assert_allclose(shown["probabilities"], expected.T[place], atol=1e-4)
    assert shown["probabilities"][0][0] > shown["probabilities"][1][0]


def test_contexts_that_the_prior_cannot_explain_get_a_note(prior):
    meta = prior("numbers")
    notes = predict_chart(meta, chart(meta, readings=readings_of(*(([float(i)], 1e3 * (-1) ** i) for i in range(8)))))
    assert notes["notes"]
    assert len(set(notes["notes"])) == len(notes["notes"])


# -------------------------------------------------------------------- training tasks


def line(x, y):
    return Task(np.array(x, float).reshape(-1, 1), np.array(y, float))


def test_few_tasks_are_lines_from_left_to_right():
    drawn = draw_tasks([line([3, 1, 2], [30, 10, 20]), line([5], [50])], 0, [0.0, 100.0])
    lines = [{"x": [1.0, 2.0, 3.0], "y": [10.0, 20.0, 30.0]}, {"x": [5.0], "y": [50.0]}]
    assert drawn == {"tasks": lines, "n_tasks": 2}
    n = 10 * MAX_POINTS
    (drawn,) = draw_tasks([line(np.arange(n), np.arange(n))], 0, [0.0, 1.0])["tasks"]
    assert len(drawn["x"]) == MAX_POINTS, "a long task is thinned"
    assert (drawn["x"][0], drawn["x"][-1]) == (0.0, n - 1)


def test_many_tasks_are_a_density_that_counts_every_reading_in_range():
    rng = np.random.default_rng(0)
    tasks = [line(rng.uniform(0.0, 10.0, 20), rng.normal(size=20)) for _ in range(MAX_LINES + 1)]
    assert "tasks" in draw_tasks(tasks[:-1], 0, [0.0, 1.0])
    drawn, y = draw_tasks(tasks, 0, [-1.0, 1.5]), np.concatenate([task.y for task in tasks])
    counts = np.array(drawn["counts"])
    assert (drawn["n_tasks"], counts.shape, drawn["y"]) == (len(tasks), DENSITY, [-1.0, 1.5])
    rows = np.histogram(y, DENSITY[0], (-1.0, 1.5))[0]
    assert counts.sum(axis=1).tolist() == rows.tolist(), "rows go from low y to high"
    drawn = draw_tasks([line([2.0, 2.0], [0.0, 1.0])] * 200, 0, [0.0, 1.0])
    assert drawn["x"][0] < drawn["x"][1], "along an input of one value"
    assert np.sum(drawn["counts"]) == 400


@pytest.mark.parametrize("size", [1e-300, 1e-9, 1.0, 12345.678, 1e20, 1e300])
def test_rounding_is_finer_than_a_chart_can_show(size):
    values = size * np.array([1.0, -0.123456789, 0.5])
    np.testing.assert_allclose(rounded(values), values, atol=1e-5 * size)
    assert rounded([]) == []
    assert rounded([0.0, 0.0]) == [0.0, 0.0]


# -------------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("kind", "changed", "said"),
    [
        ("numbers", {"axis": 1}, "axis"),
        ("numbers", {"axis": -1}, "axis"),
        ("numbers", {"range": [5.0, 5.0]}, "range"),
        ("numbers", {"range": [9.0, 1.0]}, "range"),
        ("numbers", {"fixed": [1.0, 2.0]}, "inputs"),
        ("numbers", {"readings": readings_of(([1.0, 2.0], 1.0))}, "inputs"),
        ("numbers", {"readings": readings_of(([1.0], "a"))}, "y"),
        ("numbers", {"readings": readings_of(([1.0], 1.0)) * 501}, "readings"),
        ("numbers", {"coverage": 1.0}, "coverage"),
        ("numbers", {"coverage": 0.0}, "coverage"),
        ("numbers", {"map": True, "second": 1, "second_range": [0.0, 1.0]}, "second"),
        ("two inputs", {"map": True, "second": 1, "second_range": [1.0, 0.0]}, "second_range"),
        ("labels", {"readings": readings_of(([1.0], 2))}, "y"),
        ("labels", {"readings": readings_of(([1.0], "low"))}, "y"),
        ("labels", {"readings": readings_of(([1.0], 0.5))}, "y"),
        ("labels", {"class": 2}, "class"),
        ("own labels", {"classes": ["a", "a"]}, "differ"),
        ("counts", {"readings": readings_of(([1.0], 2.5))}, "must hold counts"),
        ("ranks", {"readings": readings_of(([1.0], 9))}, "levels from 3 to 7"),
        ("rates", {"fixed": [5.0, -1.0]}, "exposure"),
        ("kinds", {"axis": 0}, "axis must be an input of numbers"),
        ("kinds", {"axis": 2}, "axis must be an input of numbers"),
        ("kinds", {"axis": 1, "fixed": [7.0, 5.0, 50.0, 0.0]}, "is a category"),
        ("kinds", {"axis": 1, "fixed": [0.5, 5.0, 50.0, 0.0]}, "is a category"),
        ("kinds", {"axis": 1, "readings": readings_of(([3.0, 5.0, 50.0, 0.0], 1.0))}, "is a category"),
    ],
)
def test_requests_that_do_not_fit_the_prior_are_refused_by_name(predicting, kind, changed, said):
    page = predicting(kind)
    answer = page.post("api/predict", page.chart(**changed))
    assert answer.status == 400
    assert said in answer.error


# -------------------------------------------------------------------- counts, ranks, outliers, categories, covariates


def along(page, **changed):
    """Return the request of the page for the first input that a chart can be drawn along."""
    prior = page.state["prior"]
    axis = prior["axes"][0]
    return page.chart(axis=axis, range=[prior["inputs"][axis]["low"], prior["inputs"][axis]["high"]], **changed)


def two_readings(page, kind):
    """Return two readings at typical inputs, a little apart."""
    prior = page.state["prior"]
    x = [[each["typical"] for each in prior["inputs"]] for _ in range(2)]
    x[1][prior["axes"][0]] += 1.0
    return readings_of(*zip(x, NUMBERS[kind], strict=True))


@pytest.mark.parametrize("kind", ["counts", "rates", "ranks", "outliers"])
def test_axis_and_drawn_functions_are_in_the_units_of_y(predicting, kind):
    page = predicting(kind)
    prior, shown = page.state["prior"], page.post("api/predict", along(page)).json
    low, high = prior["y_range"]
    if kind == "outliers":
        assert prior["whole"] is None
        assert -6 < low < -1 < 1 < high < 6
    else:
        assert shown["whole"]
        assert all(float(end).is_integer() for end in shown["lower"] + shown["upper"])
    if kind == "ranks":
        assert (prior["whole"], low, high) == ({"lowest": 3, "highest": 7}, 2.4, 7.6)
    if kind in ("counts", "rates"):
        assert prior["whole"]["lowest"] == 0
        assert low < 0 < 10 < high < 3 * max(shown["upper"])
    assert all(low < value < high for value in shown["mean"])
    shown = page.post("api/predict", along(page, samples=True, readings=two_readings(page, kind))).json
    samples, middle = np.array(shown["samples"]), np.interp(shown["sample_x"], shown["x"], shown["mean"])
    difference = samples.mean() - middle.mean()  # six functions scatter around their mean
    assert abs(difference) < 0.6 * (1.0 if kind == "outliers" else middle.mean())
    if kind == "ranks":
        assert 3.0 <= samples.min() < samples.max() <= 7.0


def test_the_exposure_is_one_is_named_and_multiplies_the_mean(predicting, prior_file):
    page = predicting("rates")
    hour, days = page.state["prior"]["inputs"]
    assert (days["name"], days["exposure"], days["typical"], hour["exposure"]) == ("days", True, 1.0, False)
    assert page.state["prior"]["axes"] == [0]
    one = page.post("api/predict", along(page)).json
    ten = page.post("api/predict", along(page, fixed=[hour["typical"], 10.0])).json
    np.testing.assert_allclose(ten["mean"], 10.0 * np.array(one["mean"]), rtol=1e-4)
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
    shown = page.post("api/predict", along(page, readings=two_readings(page, "kinds"))).json
    fixed = ["bolt", hours["typical"], age["typical"], sex["levels"][int(sex["typical"])]]
    context = [fixed, [*fixed[:1], fixed[1] + 1.0, *fixed[2:]]]
    task = load(prior_file("kinds")).adapt(np.array(context, object), NUMBERS["kinds"])
    x = np.array([[fixed[0], value, *fixed[2:]] for value in shown["x"]], object)
    np.testing.assert_allclose(shown["mean"], task.predict(x), rtol=1e-4)


def test_all_readings_have_the_covariates_of_the_chart(predicting):
    page = predicting("kinds")
    given, older = two_readings(page, "kinds"), [each["typical"] for each in page.state["prior"]["inputs"]]
    older[2] = 75.0
    moved = [{**reading, "x": [*reading["x"][:2], 75.0, *reading["x"][3:]]} for reading in given]
    means = [
        page.post("api/predict", along(page, **changed)).json["mean"]
        for changed in ({"fixed": older, "readings": given}, {"fixed": older, "readings": moved}, {"readings": given})
    ]
    assert means[0] == means[1] != means[2]


def test_a_prior_without_an_input_to_draw_along_is_refused_with_a_sentence(page, prior_file):
    answer = page.upload("api/table", "brands.safetensors", prior_file("brands").read_bytes())
    assert answer.status == 400
    assert "no input of numbers" in answer.error


def test_the_page_has_a_choice_for_every_likelihood(page):
    select = re.search(r'<select id="likelihood">(.*?)</select>', page.get("").content.decode(), re.DOTALL)[1]
    choices = re.findall(r'<option value="([^"]+)" data-exposure="(\w+)">([^<]+)<', select)
    assert [name for name, _, _ in choices] == list(LIKELIHOODS)
    assert choices[0][0] == MetaGPRegressor().likelihood  # the first is chosen
    assert len({words for _, _, words in choices}) == len(LIKELIHOODS)
    assert {name for name, exposure, _ in choices if exposure == "True"} == {"poisson", "negative-binomial"}
    assert {"counts", "rates", "ranks", "outliers"} <= set(RESPONSES)
