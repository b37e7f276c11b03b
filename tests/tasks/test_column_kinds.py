"""Categories and covariates as columns of numbers: one per level, centered, with room for what the fit has not seen."""

import numpy as np
import pandas as pd
import pytest

from metaprior.tasks.categories import ColumnKinds, without_column
from metaprior.tasks.columns import ExtrapolationWarning, Features
from metaprior.tasks.scaling import fit_scaling, identity_scaling
from metaprior.tasks.types import Task, as_inputs, as_task, as_tasks

KINDS = ColumnKinds((2, 0, 0, 3), (2, 3))  # a category, a number; covariates: a number, and a category of 3 levels


def test_numbers_come_first_then_categories_then_covariates():
    assert KINDS.order == (1, 0, 2, 3)
    assert KINDS.widths == (1, 3, 2, 5)
    assert (KINDS.input_widths, KINDS.covariate_widths) == ((1, 3), (2, 5))


@pytest.mark.parametrize("column", range(5))
def test_a_number_more_or_less_leaves_the_other_columns_as_they_are(column):
    more = KINDS.with_number(column)
    assert without_column(more, column) == KINDS
    assert len(more.levels) == 5
    x = np.array([[0, 1.0, 10.0, 0], [2, 3.0, np.nan, np.nan]])
    scaled, wider = (identity_scaling(len(kinds.levels), kinds) for kinds in (KINDS, more))
    found = wider.inputs(np.insert(x, column, [7.0, 8.0], axis=1))
    np.testing.assert_array_equal(found[:, more.place(column)], [7.0, 8.0])
    np.testing.assert_array_equal(np.delete(found, more.place(column), axis=1), scaled.inputs(x))


def test_without_kinds_or_without_a_column_nothing_is_taken_out():
    assert without_column(None, 1) is None
    assert without_column(KINDS, None) is KINDS


def test_levels_are_centered_by_their_shares_and_missing_values_are_the_average():
    x = np.array([[0, 1.0, 10.0, 0], [1, 3.0, 10.0, 0], [0, 1.0, 30.0, 2], [2, 3.0, np.nan, np.nan]])
    tasks = [Task(x[:2], np.zeros(2)), Task(x[2:3], np.ones(1)), Task(x[3:], np.array([2.0]))]
    scaling = fit_scaling([tasks], [1.0], KINDS)
    scaled, weights = scaling.inputs(x), np.array([1, 1, 2, 2]) / 6  # every task counts the same
    assert scaling.width == scaled.shape[1] == 11
    np.testing.assert_allclose(weights @ scaled[:, 0], 0.0, atol=1e-12)
    np.testing.assert_allclose(weights @ scaled[:, 1:4], 0.0, atol=1e-12)
    np.testing.assert_allclose(scaled[:, 1:4] - scaled[0, 1:4], np.eye(3)[[0, 1, 0, 2]] - np.eye(3)[0], atol=1e-12)
    # The mean and standard deviation of 10, 10 and 30 with weights 1, 1 and 2, the missing one left out.
    np.testing.assert_allclose(scaled[:, 4], [-1.0, -1.0, 1.0, 0.0], atol=1e-12)
    np.testing.assert_array_equal(scaled[:, 5], [0, 0, 0, 1])
    np.testing.assert_allclose(scaled[3, 6:], [0, 0, 0, 0, 1])
    np.testing.assert_allclose(np.array([1, 1, 2]) @ scaled[:3, 6:10], 0.0, atol=1e-12)


def test_a_level_is_as_far_from_an_unseen_one_as_from_any_other():
    x = np.array([[float(code), 0.0, 0.0, 0.0] for code in range(3)])
    scaled = identity_scaling(4, KINDS).inputs(x)
    distances = np.sum((scaled[:, None] - scaled) ** 2, axis=-1)
    np.testing.assert_allclose(distances, 2.0 * (1.0 - np.eye(3)))


def frame(**columns):
    return pd.DataFrame(columns)


def test_categories_of_data_frames_are_recognized():
    features = Features(asked=(["age"], None))
    kinds = {"text": ["a", "b"], "flag": [True, False], "kind": pd.Categorical([3, 4]), "x": [0.5, 1.5], "age": [7, 7]}
    [task] = as_tasks([(frame(**kinds), [0.0, 1.0])], "tasks", features)
    features.learned()
    assert features.kinds == ColumnKinds((2, 2, 2, 0, 0), (4,))
    np.testing.assert_array_equal(task.x, [[0, 0, 0, 0.5, 7], [1, 1, 1, 1.5, 7]])
    other = frame(**{**kinds, "text": ["b", "new"], "age": [None, None]})
    found = as_task(other, [0.0, 1.0], "adapt", features).x
    np.testing.assert_array_equal(found, [[1, 0, 0, 0.5, np.nan], [2, 1, 1, 1.5, np.nan]])
    np.testing.assert_array_equal(features.outside(found).any(axis=1), [False, True])
    with pytest.warns(ExtrapolationWarning, match="'text' is 'new'"):
        features.warn_outside(found)
    features.warn_outside(found)  # the same level is not told twice


BAD = [
    ({"asked": (["age"], None)}, frame(x=[1.0, 2.0, 3.0], age=[5, 6, 6]), r"'age' must have one value.*rows 1, 2"),
    ({"asked": (["weight"], None)}, frame(x=[1.0], age=[5]), "covariates names 'weight', which is no column"),
    ({"asked": (["x", "age"], None)}, frame(x=[1.0], age=[5]), "at least one must be an input"),
    ({"asked": (None, [2])}, np.ones((2, 2)), "numbers from 0 to 1; got 2"),
    ({"asked": (None, ["age"])}, np.ones((2, 2)), "X has no column names"),
    ({"asked": (None, None)}, frame(x=["1", "2", "ND"]), "column 'x' of X must be an array of numbers"),
    ({"asked": (None, None)}, frame(x=["1", "2"]), "if it holds categories, name it in categorical"),
    ({"asked": (None, None)}, np.array([["1"], ["2"]]), "if it holds categories, name it in categorical"),
    ({"asked": (None, None)}, frame(x=["a", "b"], z=["1", "2"]), "column 'z' of X .* name it in categorical"),
    ({"asked": (None, None)}, frame(x=["a", None]), "'x' of X has missing values, the first in row 1"),
]


@pytest.mark.parametrize(("given", "x", "message"), BAD)
def test_bad_columns_are_refused(given, x, message):
    with pytest.raises(ValueError, match=message):
        as_tasks([(x, np.zeros(len(x)))], "tasks", Features(**given))


def test_a_category_with_one_level_is_refused():
    features = Features(asked=(None, None))
    as_tasks([(frame(x=[1.0, 2.0], ward=["a", "a"]), [0.0, 1.0])], "tasks", features)
    with pytest.raises(ValueError, match=r"'ward' has one level only, 'a'.*Leave it out"):
        features.learned()


def test_arrays_with_other_numbers_of_columns_are_refused():
    features = Features(asked=(None, [0]))
    as_tasks([(np.array([["a", 1.0], ["b", 2.0]], object), [0.0, 1.0])], "tasks", features)
    with pytest.raises(ValueError, match="X must have 2 columns"):
        as_inputs(np.array([["a", 1.0, 2.0]], object), "X", features)
    assert as_inputs([], "X", features).shape == (0, 2)
