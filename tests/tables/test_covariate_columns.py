"""Covariates and categories in tables: recognized, missing, and taken from query or context."""

import numpy as np
import pandas as pd
import pytest

from metaprior import MetaGPRegressor, predict_frame, tasks_from_frame
from metaprior.tables.columns import TableWarning

COLUMNS = {"task": "patient", "x": ["hours", "ward"], "y": "y"}


def make_table(n=12, seed=0):
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        age = float(rng.integers(40, 80))
        for hours in rng.uniform(0, 10, 5).round(2):
            ward = rng.choice(["a", "b"])
            rows.append((f"p{i}", hours, ward, age, hours + age / 10 + (ward == "b") + 0.2 * rng.normal()))
    return pd.DataFrame(rows, columns=["patient", "hours", "ward", "age", "y"])


@pytest.fixture(scope="module")
def meta():
    with pytest.warns(TableWarning, match="column ward holds text, taken for categories"):
        tasks = tasks_from_frame(make_table(), **COLUMNS, covariates="age")
    return MetaGPRegressor(covariates="age", random_state=0).fit(target_tasks=tasks)


def test_text_becomes_categories_and_covariates_the_last_columns(meta):
    assert meta.feature_names_in_.tolist() == ["hours", "ward", "age"]
    assert set(meta.column_levels_[1]) == {"a", "b"}
    assert meta.covariates_ == (2,)


def test_numbers_are_categories_if_told():
    table = make_table().assign(ward=lambda rows: (rows["ward"] == "b").astype(int))
    [(x, _), *_] = tasks_from_frame(table, **COLUMNS, categorical="ward")
    assert x["ward"].dtype == "category"
    assert x["hours"].dtype == float


def test_numbers_with_a_bad_cell_are_still_an_error():
    table = make_table().assign(hours=lambda rows: rows["hours"].astype(object))
    table.loc[3, "hours"] = "ND"
    with pytest.raises(ValueError, match='"ND" is not a number'):
        tasks_from_frame(table, **COLUMNS)


def test_missing_covariates_are_kept_and_other_missing_cells_refused():
    table = make_table()
    table.loc[table["patient"] == "p0", "age"] = np.nan
    told = pytest.warns(TableWarning, match="covariate age is missing in 5 of 60 rows")
    with pytest.warns(TableWarning, match="ward"), told:
        tasks = tasks_from_frame(table, **COLUMNS, covariates="age")
    assert tasks[0][0]["age"].isna().all()
    table.loc[2, "ward"] = None
    with pytest.raises(ValueError, match="1 in ward"):
        tasks_from_frame(table, **COLUMNS, covariates="age")


def predict(meta, context, query):
    return predict_frame(meta, context, query, task="patient", x=["hours", "ward"], covariates="age", y="y")


def test_covariates_come_from_the_query_or_from_the_context(meta):
    rows = make_table(2, seed=4)
    context, query = rows.iloc[::2], rows.drop(columns="y").iloc[1::2]
    both = predict(meta, context, query)
    np.testing.assert_allclose(predict(meta, context.drop(columns="age"), query)["mean"], both["mean"])
    found = predict(meta, context, query.drop(columns="age"))
    np.testing.assert_allclose(found["mean"], both["mean"])
    assert "age" not in found
    with pytest.warns(TableWarning, match="No table has the covariates 'age'"):
        neither = predict(meta, context.drop(columns="age"), query.drop(columns="age"))
    task = meta.adapt(context[["hours", "ward"]].assign(age=np.nan)[:3], context["y"][:3])
    asked = query[query["patient"] == "p0"][["hours", "ward"]].assign(age=np.nan)
    np.testing.assert_allclose(neither["mean"][: len(asked)], task.predict(asked))


def test_covariates_that_disagree_are_refused(meta):
    rows = make_table(2, seed=4)
    with pytest.raises(ValueError, match=r"'age' of task 'p0' must have one value in context and query"):
        predict(meta, rows, rows.assign(age=1.0))


def test_covariates_that_vary_within_a_task_are_refused():
    with pytest.warns(TableWarning, match="ward"):
        tasks = tasks_from_frame(make_table(), **COLUMNS, covariates="age")
    tasks[0][0].loc[1, "age"] = 1.0
    with pytest.raises(ValueError, match=r"target_tasks\[0\]: covariate 'age' must have one value.*row 1\."):
        MetaGPRegressor(covariates="age").fit(target_tasks=tasks)


def test_covariates_that_no_table_has_are_told():
    rows, columns = make_table().drop(columns="ward"), {"task": "patient", "x": "hours", "y": "y"}
    tasks = tasks_from_frame(rows, **columns, covariates="age")
    meta = MetaGPRegressor(alpha=0.0, covariates="age", random_state=0).fit(target_tasks=tasks)
    new = rows.drop(columns="age").head(5)
    with pytest.warns(TableWarning, match="No table has the covariates 'age'"):
        predicted = predict_frame(meta, new, new, **columns, covariates="age")
    assert predicted.columns[:2].tolist() == ["patient", "hours"]


@pytest.mark.parametrize("levels", [(1, 2), (0.5, 1.5), ("1", "2"), (True, False), ("a", 2)])
def test_columns_of_type_category_are_categories_of_any_values(levels):
    cells = make_table()["ward"].map(dict(zip("ab", levels, strict=True)))
    table = make_table().assign(ward=pd.Categorical(cells.tolist()))
    with pytest.warns(TableWarning, match="column ward has the type category, taken for categories"):
        tasks = tasks_from_frame(table, **COLUMNS)
    assert tasks[0][0]["ward"].dtype == "category"
    meta = MetaGPRegressor(alpha=0.0, random_state=0).fit(target_tasks=tasks)
    assert set(meta.column_levels_[1]) == set(levels)
    plain = table.assign(ward=cells)  # the fit has said what it is
    found = predict_frame(meta, plain, plain, **COLUMNS)["mean"]
    np.testing.assert_array_equal(found, predict_frame(meta, table, table, **COLUMNS)["mean"])


def test_bools_stay_numbers_and_dates_dates():
    table = make_table().assign(ward=lambda rows: rows["ward"] == "b")
    assert tasks_from_frame(table, **COLUMNS)[0].x.dtype == float
    [(x, _), *_] = tasks_from_frame(table, **COLUMNS, categorical="ward")
    assert x["ward"].dtype == "category"
    dated = table.assign(ward=pd.Categorical(pd.to_datetime(["2026-01-01", "2026-01-02"] * 30)))
    with pytest.warns(TableWarning, match="ward holds dates"):
        assert tasks_from_frame(dated, **COLUMNS)[0].x[0, 1] == 20454


def test_files_keep_the_type_category(tmp_path):
    table = make_table().assign(ward=lambda rows: pd.Categorical((rows["ward"] == "b").astype(int)), level="1")
    table["level"] = pd.Categorical(["1", "2"] * 30)
    table.to_parquet(tmp_path / "table.parquet")
    table.to_csv(tmp_path / "table.csv", index=False)
    with pytest.warns(TableWarning, match="column ward has the type category"):
        [(x, _), *_] = tasks_from_frame(tmp_path / "table.parquet", **COLUMNS)
    assert x["ward"].dtype == "category"
    assert tasks_from_frame(tmp_path / "table.csv", **COLUMNS)[0].x.dtype == float  # where nothing is said


def test_a_covariate_that_varies_within_a_task_is_named_by_its_lines(tmp_path):
    table = make_table().astype({"age": object})
    first = table["age"][5]
    table.loc[[7, 9], "age"] = 99.0
    table.to_csv(tmp_path / "table.csv", index=False)
    given = {**COLUMNS, "x": "hours", "covariates": "age"}
    said = f"line 9, column age: covariate 'age' must have one value within a task; task 'p1' has 99 here and {first:g}"
    with pytest.raises(ValueError, match=f"table.csv: {said} in line 7, and another one than there in 1 more row"):
        tasks_from_frame(tmp_path / "table.csv", **given)
    with pytest.raises(ValueError, match="frame: row 8, column age"):
        tasks_from_frame(table, **given)
    table.loc[[7, 9], "age"] = None
    with pytest.raises(ValueError, match="task 'p1' has no value here and"):
        tasks_from_frame(table, **given)
    named = make_table().astype({"age": str}).assign(age=lambda rows: "old")
    named.loc[7, "age"] = "young"
    with pytest.raises(ValueError, match="has 'young' here and 'old' in row 6"):
        tasks_from_frame(named, **given)


def test_covariates_that_are_missing_in_some_rows_are_filled_in_predictions(meta):
    table = make_table(2, seed=1)
    holes = table.assign(age=table["age"].where(table.index % 2 == 1))
    given = {**COLUMNS, "covariates": "age"}
    with pytest.warns(TableWarning, match="covariate age is missing"):
        found = predict_frame(meta, holes, holes, **given)
    np.testing.assert_array_equal(found["mean"], predict_frame(meta, table, table, **given)["mean"])
    holes.loc[1, "age"] = 1.0
    with pytest.raises(ValueError, match="query: row 4, column age: covariate 'age' must have one value"):
        predict_frame(meta, table, holes, **given)
