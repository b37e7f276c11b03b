"""Several outputs of one table: each prior is the one that its column alone gives, and one file holds them all."""

import numpy as np
import pandas as pd
import pytest

from metaprior import (
    InvalidFile,
    MetaGPClassifier,
    MetaGPRegressor,
    MultiOutputMetaGP,
    TableWarning,
    load,
    predict_frame,
    tasks_from_frame,
)
from metaprior.files import read_tensors, write_tensors

COLUMNS = {"task": "who", "x": "day"}
OUTPUTS = ["hct", "gcs", "state"]


def make_table():
    """Wide: some rows lack one output, some the other, and p3 has no gcs at all."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"who": np.repeat([f"p{i}" for i in range(6)], 5), "day": np.tile(np.arange(5.0), 6), "ward": "a"}
    )
    level = np.repeat(rng.normal(size=6), 5)
    frame["hct"] = level + 0.3 * frame["day"] + 0.1 * rng.normal(size=30)
    frame["gcs"] = 2 * level - frame["day"] + 0.1 * rng.normal(size=30)
    frame["state"] = np.where(level + frame["day"] > 2, "up", "down")
    frame.loc[::4, "hct"] = np.nan
    frame.loc[1::4, "gcs"] = np.nan
    frame.loc[frame["who"] == "p3", "gcs"] = np.nan
    return frame


TABLE = make_table()
QUERY = pd.DataFrame({"who": ["p0", "p3"], "day": [3.5, 3.5]})
pytestmark = pytest.mark.filterwarnings("ignore::metaprior.TableWarning")


@pytest.fixture(scope="module")
def meta():
    settings = MetaGPRegressor(random_state=0), MetaGPClassifier(random_state=0)
    with pytest.warns(TableWarning):
        tasks = tasks_from_frame(TABLE, **COLUMNS, y=OUTPUTS)
    return MultiOutputMetaGP(*settings).fit(tasks)


@pytest.mark.filterwarnings("default::metaprior.TableWarning")
def test_every_output_has_the_rows_that_it_has():
    with pytest.warns(TableWarning) as told:
        tasks = tasks_from_frame(TABLE, **COLUMNS, y=OUTPUTS)
    for name in OUTPUTS:
        alone = tasks_from_frame(TABLE.dropna(subset=name), **COLUMNS, y=name)
        assert len(tasks[name]) == len(alone)
        for found, expected in zip(tasks[name], alone, strict=True):
            np.testing.assert_array_equal(found.x, expected.x)
            np.testing.assert_array_equal(found.y, expected.y)
    said = [str(each.message) for each in told]
    n_gcs = int(TABLE["gcs"].isna().sum())
    assert "frame: dropped 8 of 30 rows with a missing value (8 in hct)." in said
    assert f"frame: dropped {n_gcs} of 30 rows with a missing value ({n_gcs} in gcs)." in said
    by_place = tasks_from_frame(TABLE, **COLUMNS, y=["hct", "gcs"], environment="ward")
    assert [list(each) for each in by_place.values()] == [["a"], ["a"]]


def test_an_input_may_not_be_missing():
    frame = TABLE.copy()
    frame.loc[2, "day"] = np.nan  # a row with hct
    with pytest.raises(ValueError, match=r"missing values in .*1 in day.* the first is row"):
        tasks_from_frame(frame, **COLUMNS, y=["hct", "gcs"])
    tasks = tasks_from_frame(frame, **COLUMNS, y=["hct", "gcs"], drop_missing=True)
    assert sum(len(task.y) for task in tasks["hct"]) == 21


def test_each_prior_is_that_of_its_column_alone(meta):
    assert list(meta) == OUTPUTS
    assert [type(meta[name]) for name in meta] == [MetaGPRegressor, MetaGPRegressor, MetaGPClassifier]
    tasks = tasks_from_frame(TABLE.dropna(subset="gcs"), **COLUMNS, y="gcs")
    alone = MetaGPRegressor(random_state=0).fit(target_tasks=tasks)
    context = [[0.0], [1.0]], [1.0, 0.2]
    adapted = meta.adapt({"gcs": context, "hct": ([], [])})
    assert list(adapted) == ["gcs", "hct"]
    np.testing.assert_array_equal(adapted["gcs"].predict([[2.0]]), alone.adapt(*context).predict([[2.0]]))
    tests = tasks_from_frame(TABLE, **COLUMNS, y=["gcs"])
    assert meta.evaluate(tests, context=2)["gcs"].nll == alone.evaluate(tests["gcs"], context=2).nll
    assert "mixed model" in meta.compare(tests, context=2)["gcs"].scores


def test_one_file_holds_them_all(meta, tmp_path):
    meta.save(tmp_path / "prior")
    loaded = load(tmp_path / "prior")
    assert isinstance(loaded, MultiOutputMetaGP)
    assert list(loaded) == OUTPUTS
    first, second = (predict_frame(each, TABLE, QUERY, **COLUMNS, y=OUTPUTS) for each in (meta, loaded))
    pd.testing.assert_frame_equal(first, second)


def test_predictions_stand_side_by_side(meta):
    found = predict_frame(meta, TABLE, QUERY, **COLUMNS, y=["hct", "gcs"])
    parts = [f"{column}_{name}" for name in ("hct", "gcs") for column in ("mean", "std", "lower", "upper")]
    assert list(found) == ["who", "day", *parts, "extrapolates"]
    alone = predict_frame(meta["hct"], TABLE.dropna(subset="hct"), QUERY, **COLUMNS, y="hct")
    np.testing.assert_array_equal(found["mean_hct"], alone["mean"])
    assert found["std_gcs"][1] > 2 * found["std_gcs"][0]  # p3 has no gcs: from the prior
    with pytest.raises(ValueError, match="have no context"):
        predict_frame(meta, TABLE, QUERY.replace("p3", "q3"), **COLUMNS, y=["hct", "gcs"])
    table, query = (each.rename(columns={"day": "mean_hct"}) for each in (TABLE, QUERY))
    with pytest.raises(ValueError, match="'mean_hct' has the name of a column of the result"):
        predict_frame(meta, table, query, task="who", x="mean_hct", y=["hct", "gcs"])


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (["hct", "hct"], "column 'hct' is named twice in y"),
        (["hct", "day"], "column 'day' is named as x and as y"),
        (["hct", "gsc"], "no column 'gsc'; did you mean 'gcs'"),
        ([], "y must name one column or more; got none"),
        (["hct", 3], "y must be the name of a column, a nonempty string; got 3"),
        (["hct", "none"], r"at least one row without missing values; got 30 of 30 .*\(30 in none\)"),
    ],
)
def test_bad_columns(y, said):
    with pytest.raises(ValueError, match=said):
        tasks_from_frame(TABLE.assign(none=np.nan), **COLUMNS, y=y)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda meta: MultiOutputMetaGP().fit([]), "tasks must be a dict from names of outputs to tasks; got list"),
        (lambda meta: MultiOutputMetaGP().fit({}), "got none"),
        (lambda meta: MultiOutputMetaGP().fit({"a": []}), "output 'a': it has no tasks"),
        (lambda meta: MultiOutputMetaGP().fit({"a": [([[0.0]], [np.inf])]}), "output 'a': .*target_tasks"),
        (lambda meta: MultiOutputMetaGP().fit({"a": [([[0.0]], [1.0])]}, target="x"), "output 'a': target is 'x'"),
        (lambda meta: meta.adapt({"other": ([], [])}), "contexts has 'other'; the outputs of the fit are 'hct', 'gcs'"),
        (lambda meta: meta.adapt({"hct": ([[0.0, 1.0]], [1.0])}), "output 'hct': "),
        (lambda meta: predict_frame(meta, TABLE, QUERY, **COLUMNS, y="other"), "y must name outputs of the fit"),
    ],
)
def test_errors_name_the_output(meta, call, said):
    with pytest.raises(ValueError, match=said):
        call(meta)


def test_an_unknown_output_is_a_key_error(meta):
    with pytest.raises(KeyError, match="no output 'other'"):
        meta["other"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda header: header["outputs"].pop(),
        lambda header: header.update(outputs=["hct", "hct", "state"]),
        lambda header: header.update(outputs=["hct", "", "state"]),
        lambda header: header.update(priors={}),
        lambda header: header["priors"][1].pop("fitted"),
        lambda header: header["priors"][0].update(kind="MultiOutputMetaGP"),
    ],
)
def test_damaged_files_are_refused(meta, tmp_path, damage):
    meta.save(tmp_path / "prior")
    header, tensors = read_tensors(tmp_path / "prior")
    damage(header)
    write_tensors(tmp_path / "prior", header, tensors)
    with pytest.raises(InvalidFile):
        load(tmp_path / "prior")
