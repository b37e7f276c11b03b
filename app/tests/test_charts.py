"""What charts show is what the prior predicts: curves, bands, probabilities, maps, densities and notes."""

import msgspec
import numpy as np
import pytest

from metaprior import load
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


def chart(meta, **changed):
    usual = {"readings": [], "coverage": 0.8, "axis": 0, "range": [0.0, 10.0], "fixed": [2.0] * meta.n_features_in_}
    return msgspec.convert({**usual, **changed}, PredictRequest)


@pytest.fixture
def prior(prior_file):
    return lambda kind: load(prior_file(kind))


@pytest.mark.parametrize("readings", [[], [([3.0], 1.0)], [([1.0], 0.5), ([9.0], -0.5), ([9.0], -0.4)]])
def test_a_curve_is_the_prediction_of_the_adapted_task(prior, readings):
    meta = prior("numbers")
    shown = predict_chart(meta, chart(meta, readings=[{"x": x, "y": y} for x, y in readings]))
    x = np.linspace(0.0, 10.0, POINTS)
    np.testing.assert_allclose(shown["x"], x, atol=1e-4)
    predictive = meta.adapt(np.array([x for x, _ in readings]).reshape(-1, 1), [y for _, y in readings]).predictive(
        x[:, None]
    )
    lower, upper = predictive.interval(0.8)
    np.testing.assert_allclose(shown["mean"], predictive.mean(), atol=1e-5)
    np.testing.assert_allclose(shown["lower"], lower, atol=1e-5)
    np.testing.assert_allclose(shown["upper"], upper, atol=1e-5)
    assert (shown["kind"], shown["notes"]) == ("curve", [])


def test_a_wider_coverage_is_a_wider_band_and_a_reading_narrows_it(prior):
    meta = prior("numbers")

    def width(**changed):
        shown = predict_chart(meta, chart(meta, **changed))
        return np.subtract(shown["upper"], shown["lower"])

    assert (width(coverage=0.95) > width(coverage=0.5)).all()
    at = POINTS // 2
    assert width(readings=[{"x": [5.0], "y": 0.0}])[at] < 0.8 * width()[at]


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
    request = chart(meta, samples=True, readings=[{"x": [5.0], "y": 0.3}] * 4)
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
    readings = [{"x": [2.0, 8.0], "y": 5.0}]
    request = chart(
        meta, map=True, axis=axis, second=second, range=[0.0, 10.0], second_range=[2.0, 6.0], readings=readings
    )
    shown = predict_chart(meta, request)
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
    assert meta.classes_.tolist() == ["high", "low"]
    readings = [{"x": [1.0], "y": 1}, {"x": [9.0], "y": 0}]
    shown = predict_chart(meta, chart(meta, readings=readings))
    expected = meta.adapt([[1.0], [9.0]], ["low", "high"]).predict_proba(np.array(shown["x"])[:, None])
    assert shown["classes"] == ["high", "low"]
    np.testing.assert_allclose(shown["probabilities"], expected.T, atol=1e-4)
    assert shown["probabilities"][0][-1] > 0.5 > shown["probabilities"][0][0]


@pytest.mark.parametrize("classes", [["red", "green"], ["green", "red"], ["b", "a", "c"]])
def test_probabilities_of_labels_of_a_task_of_its_own_keep_the_order_of_the_request(prior, classes):
    meta = prior("own labels")
    readings = [{"x": [1.0], "y": 0}, {"x": [9.0], "y": 1}]
    shown = predict_chart(meta, chart(meta, readings=readings, classes=classes))
    adapted = meta.adapt([[1.0], [9.0]], np.array(classes[:2], object), classes=classes)
    expected = adapted.predict_proba(np.array(shown["x"])[:, None])
    place = [list(adapted.classes_).index(name) for name in classes]
    np.testing.assert_allclose(shown["probabilities"], expected.T[place], atol=1e-4)
    assert shown["probabilities"][0][0] > shown["probabilities"][1][0]


def test_classes_come_in_the_order_of_their_probabilities(prior):
    meta = prior("own labels")
    assert predict_chart(meta, chart(meta, classes=["red", "green"]))["classes"] == ["red", "green"]


def test_a_map_of_labels_is_the_probability_of_the_chosen_class(prior):
    meta = prior("labels")
    request = chart(meta, map=True, second=0, second_range=[0.0, 10.0])
    both = [np.array(predict_chart(meta, msgspec.structs.replace(request, class_=i))["probability"]) for i in (0, 1)]
    np.testing.assert_allclose(both[0] + both[1], 1.0, atol=1e-4)


def test_contexts_that_the_prior_cannot_explain_get_a_note_in_words(prior):
    meta = prior("numbers")
    far = [{"x": [float(i)], "y": 1e3 * (-1) ** i} for i in range(8)]
    notes = predict_chart(meta, chart(meta, readings=far))["notes"]
    assert notes
    assert not any("(" in note and "=" in note for note in notes)
    assert len(set(notes)) == len(notes)


def line(x, y):
    return Task(np.array(x, float).reshape(-1, 1), np.array(y, float))


def test_few_tasks_are_lines_from_left_to_right():
    drawn = draw_tasks([line([3, 1, 2], [30, 10, 20]), line([5], [50])], 0, [0.0, 100.0])
    assert drawn == {
        "tasks": [{"x": [1.0, 2.0, 3.0], "y": [10.0, 20.0, 30.0]}, {"x": [5.0], "y": [50.0]}],
        "n_tasks": 2,
    }


def test_a_task_of_many_readings_is_thinned_and_keeps_its_ends():
    n = 10 * MAX_POINTS
    (drawn,) = draw_tasks([line(np.arange(n), np.arange(n))], 0, [0.0, 1.0])["tasks"]
    assert len(drawn["x"]) == MAX_POINTS
    assert (drawn["x"][0], drawn["x"][-1]) == (0.0, n - 1)


def test_five_hundred_tasks_are_a_density_that_counts_every_reading_in_range():
    rng = np.random.default_rng(0)
    tasks = [line(rng.uniform(0.0, 10.0, 20), rng.normal(size=20)) for _ in range(500)]
    drawn = draw_tasks(tasks, 0, [-1.0, 1.5])
    y = np.concatenate([task.y for task in tasks])
    counts = np.array(drawn["counts"])
    assert (drawn["n_tasks"], counts.shape) == (500, DENSITY)
    assert counts.sum() == ((y >= -1.0) & (y <= 1.5)).sum()
    assert drawn["y"] == [-1.0, 1.5]
    rows = np.histogram(y, DENSITY[0], (-1.0, 1.5))[0]
    assert counts.sum(axis=1).tolist() == rows.tolist(), "rows go from low y to high"


def test_the_number_of_tasks_that_are_drawn_one_by_one():
    tasks = [line([0.0, 1.0], [0.0, 1.0])] * (MAX_LINES + 1)
    assert "tasks" in draw_tasks(tasks[:-1], 0, [0.0, 1.0])
    assert "counts" in draw_tasks(tasks, 0, [0.0, 1.0])


def test_a_density_along_an_input_of_one_value():
    drawn = draw_tasks([line([2.0, 2.0], [0.0, 1.0])] * 200, 0, [0.0, 1.0])
    assert drawn["x"][0] < drawn["x"][1]
    assert np.sum(drawn["counts"]) == 400


@pytest.mark.parametrize("size", [1e-300, 1e-9, 1.0, 12345.678, 1e20, 1e300])
def test_rounding_is_finer_than_a_chart_can_show(size):
    values = size * np.array([1.0, -0.123456789, 0.5])
    np.testing.assert_allclose(rounded(values), values, atol=1e-5 * size)
    assert rounded([]) == []
    assert rounded([0.0, 0.0]) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"axis": 1}, "axis"),
        ({"range": [5.0, 5.0]}, "range"),
        ({"range": [9.0, 1.0]}, "range"),
        ({"fixed": [1.0, 2.0]}, "inputs"),
        ({"readings": [{"x": [1.0, 2.0], "y": 1.0}]}, "inputs"),
        ({"readings": [{"x": [1.0], "y": "a"}]}, "y"),
        ({"readings": [{"x": [1.0], "y": 1.0}] * 501}, "readings"),
        ({"coverage": 1.0}, "coverage"),
        ({"coverage": 0.0}, "coverage"),
        ({"map": True, "second": 1, "second_range": [0.0, 1.0]}, "second"),
    ],
)
def test_requests_that_do_not_fit_the_prior_are_refused_by_name(predicting, changed, said):
    page = predicting("numbers")
    answer = page.post("api/predict", page.chart(**changed))
    assert answer.status == 400
    assert said in answer.error


@pytest.mark.parametrize(
    "changed", [{"map": True}, {"map": True, "second": 1}, {"map": True, "second_range": [0.0, 1.0]}]
)
def test_a_map_without_its_second_input_is_refused(predicting, changed):
    page = predicting("two inputs")
    answer = page.post("api/predict", page.chart(**changed))
    assert answer.status in (200, 400)
    if answer.status == 400:
        assert "second" in answer.error


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"readings": [{"x": [1.0], "y": 2}]}, "y"),
        ({"readings": [{"x": [1.0], "y": "low"}]}, "y"),
        ({"readings": [{"x": [1.0], "y": 0.5}]}, "y"),
        ({"class": 2}, "class"),
    ],
)
def test_labels_that_are_none_are_refused(predicting, changed, said):
    page = predicting("labels")
    answer = page.post("api/predict", page.chart(**changed))
    assert answer.status == 400
    assert said in answer.error


def test_classes_of_one_name_are_refused(predicting):
    page = predicting("own labels")
    assert "differ" in page.post("api/predict", page.chart(classes=["a", "a"])).error
