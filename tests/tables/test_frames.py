"""Predictions from table to table."""

import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest

from metaprior import ExtrapolationWarning, MetaGPClassifier, MetaGPRegressor, predict_frame
from metaprior.predict import batches as many_tasks
from metaprior.tables import frames
from metaprior.tables.columns import TableWarning, as_columns
from metaprior.tables.grouping import group_rows
from metaprior.tasks.columns import Features
from metaprior.wfem import SVGD, Training, WFEMClassifier, WFEMRegressor

SMALL = {"kernel": "rbf", "mean": "constant", "alpha": "pooled", "random_state": 0}
UNTRAINED = {**SMALL, "mean": "zero", "training": Training(n_steps=0)}
NAMES = {"task": "patient", "x": ["hours", "dose"], "y": "gcs"}


def make_tasks(rng, n=6, labels=None):
    """Tasks (X, y) of five and six samples; with labels, a pair of them for every task."""
    tasks = []
    for i in range(n):
        x = rng.normal(size=(5 + i % 2, 2))
        y = np.sin(x[:, 0]) + i
        tasks.append((x, y if labels is None else np.array(labels[i % len(labels)])[np.arange(len(x)) % 2]))
    return tasks


@pytest.fixture(scope="module", params=["default", "wfem"])
def regressor(request):
    svgd = WFEMRegressor(inference=SVGD(n_particles=3), training=Training(n_steps=4), **SMALL)
    meta = svgd if request.param == "wfem" else MetaGPRegressor(alpha=0.0, random_state=0)
    rng = np.random.default_rng(0)
    return meta.fit(None, [(x, rng.normal(size=len(x))) for x, _ in make_tasks(rng)])  # like those of `make_tables`


def make_classifier(door, labels):
    meta = WFEMClassifier(**UNTRAINED) if door == "wfem" else MetaGPClassifier(alpha=0.0, random_state=0)
    return meta.fit(None, make_tasks(np.random.default_rng(0), labels=labels))


@pytest.fixture(scope="module", params=["default", "wfem"])
def classifier(request):
    return make_classifier(request.param, [(0, 1)])


@pytest.fixture(scope="module", params=["default", "wfem"])
def own_labels(request):
    return make_classifier(request.param, [("wren", "finch"), ("oak", "elm"), ("red", "blue")])


def make_tables(rng, n_tasks=9, y=None):
    """Context and query tables of ragged tasks in mixed order; the query's index is its own."""
    context = pd.DataFrame({"patient": np.repeat(np.arange(n_tasks), np.arange(n_tasks) % 4 + 1)}).sample(
        frac=1, random_state=1
    )
    query = pd.DataFrame({"patient": np.tile(np.arange(n_tasks), 3)[: 2 * n_tasks + 3]}).sample(frac=1, random_state=2)
    for table in (context, query):
        table["hours"], table["dose"] = rng.normal(size=(2, len(table)))
    context["gcs"] = rng.normal(size=len(context)) if y is None else y(context["patient"].to_numpy())
    query.index = [f"row{i}" for i in range(len(query))]
    return context, query


def of_task(table, name):
    return table[table["patient"] == name]


def assert_as_adapted(meta, context, query, found, coverage=0.9):
    for name in query["patient"].unique():
        known, asked, got = (of_task(table, name) for table in (context, query, found))
        adapted = meta.adapt(known[NAMES["x"]].to_numpy(), known["gcs"].to_numpy())
        mean, std = adapted.predict(asked[NAMES["x"]].to_numpy(), return_std=True)
        lower, upper = adapted.interval(asked[NAMES["x"]].to_numpy(), coverage)
        for column, expected in {"mean": mean, "std": std, "lower": lower, "upper": upper}.items():
            np.testing.assert_allclose(got[column], expected, rtol=1e-7, atol=1e-9)


def test_every_row_as_adapt_predicts_it(regressor):
    context, query = make_tables(np.random.default_rng(1))
    found = predict_frame(regressor, context, query, coverage=0.5, **NAMES)
    assert list(found.columns) == ["patient", "hours", "dose", "mean", "std", "lower", "upper", "extrapolates"]
    pd.testing.assert_frame_equal(found[["patient", "hours", "dose"]], query)
    assert_as_adapted(regressor, context, query, found, 0.5)


def test_batches_and_pieces_change_nothing(regressor, monkeypatch):
    context, query = make_tables(np.random.default_rng(2))
    whole = predict_frame(regressor, context, query, **NAMES)
    monkeypatch.setattr(many_tasks, "CHUNK_BYTES", 1)
    monkeypatch.setattr(many_tasks, "FEW_CHUNKS", 0)
    monkeypatch.setattr(many_tasks, "MAX_QUERIES", 2)
    pd.testing.assert_frame_equal(predict_frame(regressor, context, query, **NAMES), whole)


def test_tasks_without_context_are_predicted_from_the_prior(regressor):
    context, query = make_tables(np.random.default_rng(3))
    context = context[context["patient"] > 1]
    with pytest.warns(TableWarning, match=r"2 of 9 query tasks have no context \(the first is [01]\)"):
        found = predict_frame(regressor, context, query, from_prior=True, **NAMES)
    assert_as_adapted(regressor, context, query, found)
    for nothing in (None, context[:0]):
        with pytest.warns(TableWarning, match="9 of 9 query tasks"):
            found = predict_frame(regressor, nothing, query, **NAMES)
        assert_as_adapted(regressor, context[:0], query, found)


@pytest.mark.parametrize(
    ("names", "queried", "meant"),
    [
        (["101", "102"], ["0101", "0102"], "The context has '101', for which there is no query: is it the same?"),
        (["101", "102"], [101, "0102"], "The context has '102'"),
        (["Anna ", "Bob"], ["anna", "Bob"], "The context has 'Anna '"),
        (["patient-7", "Bob"], ["Patient 07", "Bob"], "The context has 'patient-7'"),
        (["anna", "Bob"], ["Zoe", "Bob"], "Name tasks alike"),
        (["1e3", "Bob"], ["1000", "Bob"], "The context has '1e3'"),
        (["1000", "Bob"], ["1.0E+03", "Bob"], "The context has '1000'"),
        (["Zo\u00eb", "Bob"], ["Zoe\u0308", "Bob"], r"stored as 'Zo\xeb' and 'Zoe\u0308' (Unicode NFC and NFD)"),
    ],
)
def test_tasks_whose_names_do_not_match_are_refused(regressor, names, queried, meant):
    """Such readings would go unused, and the task be predicted as if there were none."""
    rows = {"hours": [0.0, 1.0], "dose": [0.0, 0.0]}
    context, query = {"patient": names, **rows, "gcs": [0.0, 1.0]}, {"patient": queried, **rows}
    with pytest.raises(ValueError, match=r"\d of 2 query tasks have no context") as raised:
        predict_frame(regressor, context, query, **NAMES)
    assert meant in str(raised.value)
    assert str(raised.value).endswith("or pass from_prior=True to predict them from the prior.")


def test_readings_without_a_query_are_told(regressor):
    context, query = make_tables(np.random.default_rng(3))
    with pytest.warns(TableWarning, match=r"1 of 9 tasks of the context have no query, and are not used \(.* '8'\)"):
        predict_frame(regressor, context, query[query["patient"] != 8], **NAMES)


def test_rows_outside_the_range_of_the_fit_are_marked(regressor):
    query = {"patient": ["a", "b"] * 2, "hours": [0.0, 0.5, 500.0, 0.1], "dose": [0.0, 0.1, 0.2, -0.1]}
    context = {"patient": ["a", "b"], "hours": [0.0, 0.0], "dose": [0.0, 0.0], "gcs": [0.0, 0.0]}
    with pytest.warns(ExtrapolationWarning, match=r"at 1 of 4 inputs: 'hours' is 500 and was -\d.* to \d") as warned:
        found = predict_frame(regressor, context, query, **NAMES)
    assert found["extrapolates"].tolist() == [False, False, True, False]
    assert len(warned) == 1


def test_inputs_of_the_names_of_the_fit_may_come_in_any_order():
    rng = np.random.default_rng(0)
    frames = [(pd.DataFrame(x, columns=["hours", "dose"]), y) for x, y in make_tasks(rng)]
    meta = MetaGPRegressor(random_state=0).fit(None, frames)
    context, query = make_tables(rng)
    context["gcs"] = np.sin(context["hours"]) + context["patient"] % 6  # as in the fit, which has no noise
    query[["hours", "dose"]] /= 4
    swapped = {**NAMES, "x": NAMES["x"][::-1]}
    found = [predict_frame(meta, context, query, **names) for names in (NAMES, swapped)]
    pd.testing.assert_frame_equal(*found)


def test_one_task_without_a_column_for_it(regressor):
    context, query = make_tables(np.random.default_rng(4))
    found = predict_frame(regressor, context, query, x=NAMES["x"], y="gcs")
    assert list(found.columns) == ["hours", "dose", "mean", "std", "lower", "upper", "extrapolates"]
    adapted = regressor.adapt(context[NAMES["x"]].to_numpy(), context["gcs"].to_numpy())
    np.testing.assert_allclose(found["mean"], adapted.predict(query[NAMES["x"]].to_numpy()), rtol=1e-7)


def test_tasks_of_files_and_frames_match_by_how_they_read(regressor, tmp_path):
    context, query = make_tables(np.random.default_rng(5))
    expected = predict_frame(regressor, context, query, **NAMES)
    context.to_csv(tmp_path / "context.csv", index=False)
    query.to_parquet(tmp_path / "query.parquet")
    gaps = query.assign(patient=query["patient"].astype(float))
    for asked in (tmp_path / "query.parquet", gaps, {name: query[name].to_numpy() for name in query}):
        found = predict_frame(regressor, tmp_path / "context.csv", asked, **NAMES)
        np.testing.assert_allclose(found["mean"], expected["mean"], rtol=1e-7)


def test_tasks_named_by_two_columns(regressor):
    context, query = make_tables(np.random.default_rng(6))
    expected = predict_frame(regressor, context, query, **NAMES)
    context, query = (t.assign(site=t["patient"] % 2, bed=t["patient"] // 2) for t in (context, query))
    found = predict_frame(regressor, context, query, task=["site", "bed"], x=NAMES["x"], y="gcs")
    np.testing.assert_allclose(found["mean"], expected["mean"], rtol=1e-7)
    assert list(found.columns)[:2] == ["site", "bed"]


def assert_as_adapted_labels(meta, context, query, found):
    for name in query["patient"].unique():
        known, asked, got = (of_task(table, name) for table in (context, query, found))
        labels = known["gcs"].to_numpy(int if meta.classes_ is not None else str)
        adapted = meta.adapt(known[NAMES["x"]].to_numpy(), labels)
        x = asked[NAMES["x"]].to_numpy()
        # A class that the context does not show is None, which pandas calls missing.
        assert [None if pd.isna(label) else label for label in got["label"]] == adapted.predict(x).tolist()
        expected = adapted.predict_proba(x)
        columns = ["probability"] if meta.classes_ is None else ["probability_0", "probability_1"]
        expected = expected.max(axis=1, keepdims=True) if meta.classes_ is None else expected
        np.testing.assert_allclose(got[columns], expected, rtol=1e-7)


def test_classes_all_tasks_share(classifier):
    context, query = make_tables(np.random.default_rng(7), n_tasks=2, y=lambda patients: np.arange(3) % 2)
    query.loc["row0", "patient"] = 5
    with pytest.warns(TableWarning, match="1 of 3 query tasks"):
        found = predict_frame(classifier, context, query, from_prior=True, **NAMES)
    probabilities = ["probability_0", "probability_1"]
    assert list(found.columns) == ["patient", "hours", "dose", "label", *probabilities, "extrapolates"]
    assert_as_adapted_labels(classifier, context, query, found)
    # Numbers as text are numbers, here as in training.
    texts = context.assign(gcs=context["gcs"].astype(str))
    with pytest.warns(TableWarning, match="1 of 3 query tasks"):
        as_text = predict_frame(classifier, texts, query, from_prior=True, **NAMES)
    pd.testing.assert_frame_equal(as_text, found)


def test_classes_of_each_task(own_labels):
    context, query = make_tables(
        np.random.default_rng(8),
        n_tasks=2,
        y=lambda patients: np.array([f"{p}{i % 2}x" for i, p in enumerate(patients)]),
    )
    found = predict_frame(own_labels, context, query, **NAMES)
    assert_as_adapted_labels(own_labels, context, query, found)
    with pytest.raises(
        ValueError, match=r"1 of 2 query tasks have no context \(the first is 1\), and every task has its own labels"
    ):
        predict_frame(own_labels, context[context["patient"] != 1], query, **NAMES)


@pytest.mark.filterwarnings("ignore:context. column hours holds dates")
@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"meta": "svgd"}, ("meta must be a fitted MetaGPRegressor", "str")),
        ({"meta": MetaGPRegressor()}, ("not fitted",)),
        ({"coverage": 1.0}, ("coverage must lie strictly", "1.0")),
        ({"x": "hours"}, ("x must name 2 columns", "got 1")),
        ({"y": None}, ("y must be the name of a column of context",)),
        ({"y": ["gcs", "dose"]}, ("y must name one column; got 2: ['gcs', 'dose']. Fit a prior to each output.",)),
        (
            {"query": make_tables(np.random.default_rng(0))[1][:0]},
            ("query must have at least one row without missing values; got none",),
        ),
        ({"query": [1]}, ("query must be a DataFrame", "got list")),
        ({"context": {"patient": [1], "hours": [1], "dose": [1]}}, ("context has no column 'gcs'",)),
        ({"context": {"patient": [1], "hours": [1], "dose": [1], "gcs": ["a"]}}, ('context: row 1, column gcs: "a"',)),
        ({"query": {"patient": [1], "hours": [None], "dose": [1]}}, ("query", "1 in hours")),
        (
            {"context": {"patient": [1], "hours": ["2026-01-01"], "dose": [1], "gcs": [1]}},
            ("column 'hours' must hold dates in the context and in the queries, or in neither",),
        ),
        (
            {"context": {"patient": [1, "1"], "hours": [1, 2], "dose": [1, 2], "gcs": [1, 2]}},
            ("which read the same",),
        ),
    ],
)
def test_mistakes(regressor, changes, parts):
    context, query = make_tables(np.random.default_rng(0))
    arguments = {"meta": regressor, "context": context, "query": query, **NAMES, **changes}
    with pytest.raises(ValueError, match=r".") as raised:
        predict_frame(arguments.pop("meta"), arguments.pop("context"), arguments.pop("query"), **arguments)
    assert all(part in str(raised.value) for part in parts), str(raised.value)


def test_a_column_with_the_name_of_a_result(regressor):
    context, query = (t.rename(columns={"dose": "mean"}) for t in make_tables(np.random.default_rng(0)))
    with pytest.raises(ValueError, match="column 'mean' has the name of a column of the result"):
        predict_frame(regressor, context, query, task="patient", x=["hours", "mean"], y="gcs")


def test_the_context_may_drop_rows_and_the_query_may_repeat(regressor):
    context, query = make_tables(np.random.default_rng(10))
    query[NAMES["x"]] /= 2  # within the range of the fit
    expected = predict_frame(regressor, context, query, **NAMES)
    twice = pd.concat([query, query])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = predict_frame(regressor, context, twice, **NAMES)
    np.testing.assert_allclose(found["mean"], np.tile(expected["mean"], 2), rtol=1e-7)
    hole = context[:1].assign(gcs=np.nan)
    with (
        pytest.warns(TableWarning, match="context: dropped 1 of"),
        pytest.warns(TableWarning, match=r"context: dropped 2 rows that repeat"),
    ):
        found = predict_frame(
            regressor, pd.concat([context, hole, context[:2]]), query, drop_missing=True, drop_duplicates=True, **NAMES
        )
    np.testing.assert_allclose(found["mean"], expected["mean"], rtol=1e-7)


def test_context_and_queries_of_test_tasks():
    sizes = [4, 2, 3, 6]
    table = {"t": np.repeat(list("abcd"), sizes), "x": np.arange(15.0), "y": np.arange(15.0) * 2}
    grouped = group_rows(table, as_columns(task="t", x="x", y="y"))
    tests, names, skipped = frames.split_table(grouped, 3, np.random.default_rng(0), Features(1))
    assert (names, skipped) == (["a", "d"], ["b", "c"])
    for test, task in zip(tests, [grouped.tasks[0], grouped.tasks[3]], strict=True):
        assert len(test.y_context) == 3
        np.testing.assert_array_equal(test.y_context, test.x_context[:, 0] * 2)
        np.testing.assert_array_equal(test.y_query, test.x_query[:, 0] * 2)
        both = np.concatenate([test.x_context, test.x_query])
        np.testing.assert_array_equal(np.sort(both, axis=0), task.x)
    draws = [frames.split_table(grouped, 3, np.random.default_rng(i), Features(1))[0][1].x_context for i in range(5)]
    assert len({draw.tobytes() for draw in draws}) > 1
    with pytest.raises(ValueError, match="context must be"):
        frames.split_table(grouped, -1, np.random.default_rng(0), Features(1))


def test_imports_without_pandas():
    code = "import sys; sys.modules['pandas'] = sys.modules['pyarrow'] = None; import metaprior, metaprior.tasks"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_context_of_missing_values_alone_is_none(regressor):
    context, query = make_tables(np.random.default_rng(11))
    with pytest.warns(TableWarning, match="predicted from the prior"):
        expected = predict_frame(regressor, None, query, **NAMES)
    with (
        pytest.warns(TableWarning, match="predicted from the prior"),
        pytest.warns(TableWarning, match=rf"context: dropped {len(context)} of {len(context)} rows"),
    ):
        found = predict_frame(regressor, context.assign(gcs=np.nan), query, drop_missing=True, **NAMES)
    np.testing.assert_array_equal(found["mean"], expected["mean"])


def test_grouped_tasks_come_with_the_predictions_and_say_which_inputs_are_dates(regressor):
    context, query = make_tables(np.random.default_rng(12))
    columns = as_columns(**NAMES)
    predicted = frames.predict_tables(regressor, context, query, columns)
    pd.testing.assert_frame_equal(predicted.frame, predict_frame(regressor, context, query, **NAMES))
    assert predicted.queries.dates == []
    for name, task in zip(predicted.queries.names, predicted.contexts, strict=True):
        np.testing.assert_array_equal(task.y, of_task(context, name)["gcs"])
    for table in (context, query):
        table["dose"] = pd.Timestamp("2026-03-01") + pd.to_timedelta(table["dose"], unit="h")
    with pytest.warns(TableWarning, match="column dose holds dates"):
        predicted = frames.predict_tables(regressor, context, query, columns)
    assert predicted.queries.dates == ["dose"]
