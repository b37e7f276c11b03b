"""Names of input columns, and inputs outside the range that the tasks of a prior covered."""

import warnings

import numpy as np
import pandas as pd
import pytest

from metaprior import ExtrapolationWarning, MetaGPRegressor
from metaprior.tasks.columns import MAX_RANGED, Features, no_extrapolation_warnings
from metaprior.tasks.types import as_inputs, as_tasks

FRAME = pd.DataFrame({"week": [1.0, 2.0], "price": [30.0, 40.0]})
WEEK_PRICE = Features(2, ("week", "price"), np.array([[0.0, 10.0], [51.0, 90.0]]))


def test_named_columns_come_in_the_order_of_the_fit():
    swapped = FRAME[["price", "week"]]
    np.testing.assert_array_equal(as_inputs(swapped, "predict", WEEK_PRICE), FRAME.to_numpy())
    np.testing.assert_array_equal(as_inputs(FRAME, "predict", WEEK_PRICE), FRAME.to_numpy())
    np.testing.assert_array_equal(as_inputs(swapped.to_numpy(), "predict", WEEK_PRICE), swapped.to_numpy())
    np.testing.assert_array_equal(as_inputs(swapped, "predict", 2), swapped.to_numpy())  # fitted without names


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (
            FRAME.rename(columns={"week": "day"}),
            "Unseen at fit time: 'day'. Seen at fit time, yet now missing: 'week'.",
        ),
        (FRAME.assign(store=1.0), "Unseen at fit time: 'store'."),
        (FRAME[["price"]], "Seen at fit time, yet now missing: 'week'."),
        (FRAME[["week", "price", "price"]], "Got 'week', 'price', 'price'."),
    ],
)
def test_other_names_are_an_error_in_the_words_of_scikit_learn(frame, said):
    with pytest.raises(ValueError, match="feature names of X should match those that were passed during fit") as raised:
        as_inputs(frame, "predict", WEEK_PRICE)
    assert str(raised.value).startswith("predict: ")
    assert said in str(raised.value)


def test_names_that_are_numbers_are_no_names_and_a_mix_is_an_error():
    numbered = pd.DataFrame(FRAME.to_numpy()[:, ::-1])
    np.testing.assert_array_equal(as_inputs(numbered, "predict", WEEK_PRICE), numbered.to_numpy())
    with pytest.raises(TypeError, match="must all be strings"):
        as_inputs(FRAME.rename(columns={"week": 0}), "predict", WEEK_PRICE)


@pytest.mark.parametrize(
    "names",
    [
        [1, 0],
        [2, 0],
        [400.0, 410.0],
        [("dose", "mg"), ("dose", "ml")],
        [pd.NaT, "a"],
        [False, True],
        pd.to_datetime([0, 1]),
    ],
    ids=str,
)
def test_names_that_are_no_text_are_refused_in_a_fit_and_after_it(names):
    """They were taken by position: a frame with its columns in another order got other predictions."""
    x, y = np.random.default_rng(0).normal(size=(4, 2)), np.arange(4.0)
    frame = pd.DataFrame(x)
    frame.columns = names
    meta = MetaGPRegressor(0.0, random_state=0)
    with pytest.raises(TypeError, match=r"must all be strings, as columns are matched by name; got .* X\.columns = "):
        meta.fit(target_tasks=[(frame, y)])
    with pytest.raises(TypeError, match="must all be strings"):
        meta.fit(target_tasks=[(x, y)]).adapt(x, y).predict(frame)


def test_two_columns_of_one_name_are_refused():
    frame = pd.DataFrame(np.eye(3), columns=["dose", "hours", "dose"])
    with pytest.raises(ValueError, match=r"X has 2 columns named 'dose'\. Rename all but one"):
        MetaGPRegressor(0.0).fit(target_tasks=[(frame, np.arange(3.0))])


def test_the_advice_on_names_can_be_followed():
    for names in ([1, 0], [("dose", "mg"), ("dose", "ml")]):
        X = pd.DataFrame(np.eye(2))
        X.columns = names
        with pytest.raises(TypeError) as raised:
            as_inputs(X, "fit", Features())
        code = str(raised.value).split("Call ")[1].split(", in the fit")[0]
        exec(code, {"X": X})
        assert Features().in_order(X, "fit") is X
        assert all(isinstance(name, str) for name in X.columns)


def test_names_of_an_array_are_its_positions():
    task = (
        MetaGPRegressor(0.0, random_state=0).fit(target_tasks=[(pd.DataFrame(np.eye(3)), np.arange(3.0))]).adapt([], [])
    )
    x = np.random.default_rng(0).uniform(size=(2, 3))
    for same in (pd.DataFrame(x), pd.DataFrame(x, columns=np.arange(3))):
        np.testing.assert_array_equal(task.predict(same), task.predict(x))


def test_the_first_task_with_names_decides_the_order():
    features, y = Features(), [0.0, 1.0]
    tasks = as_tasks([(FRAME.to_numpy(), y), (FRAME, y), (FRAME[["price", "week"]], y)], "tasks", features)
    assert (features.count, features.names) == (2, ("week", "price"))
    assert all((task.x == FRAME.to_numpy()).all() for task in tasks)
    with pytest.raises(ValueError, match=r"tasks\[1\]: the feature names of X should match"):
        as_tasks([(FRAME, y), (FRAME.rename(columns={"week": "day"}), y)], "tasks")


def test_outside_is_beyond_a_tenth_of_the_range():
    x = np.array([[0.0, 10.0], [-5.0, 98.0], [-5.2, 50.0], [56.0, 98.1], [500.0, 1e9]])
    expected = [[False, False], [False, False], [True, False], [False, True], [True, True]]
    np.testing.assert_array_equal(WEEK_PRICE.outside(x), expected)


def test_a_constant_column_has_no_margin_but_that_of_rounding():
    constant = Features(2, None, np.array([[3.0, 0.0], [3.0, 1.0]]))
    x = np.array([[3.0, 0.5], [3.0 + 1e-12, 0.5], [3.1, 0.5]])
    np.testing.assert_array_equal(constant.outside(x)[:, 0], [False, False, True])
    with pytest.warns(ExtrapolationWarning, match=r"at 1 of 3 inputs: X\[:, 0\] is 3.1 and was 3 to 3"):
        constant.warn_outside(x)


def test_ranges_that_overflow_do_not_warn():
    wide = Features(1, None, np.array([[-1.7e308], [1.7e308]]))
    assert not wide.outside(np.array([[1.7e308]])).any()


def test_images_and_priors_without_a_range_have_nothing_outside():
    for n in (MAX_RANGED + 1, 64):  # features of images, of which some are always beyond what they ever were
        assert not Features(n, None, np.zeros((2, n))).outside(np.ones((1, n))).any()
    assert Features(20, None, np.zeros((2, 20))).outside(np.ones((1, 20))).all()
    assert not Features(1).outside(np.array([[1e9]])).any()


def test_the_warning_names_the_columns_the_farthest_first():
    said = "at 2 of 3 inputs: 'week' is 500 and was 0 to 51; 'price' is 110 and was 10 to 90. The ranges"
    with pytest.warns(ExtrapolationWarning, match=said) as caught:
        WEEK_PRICE.warn_outside(np.array([[500.0, 20.0], [5.0, 110.0], [5.0, 20.0]]))
    assert len(caught) == 1


def test_the_warning_names_three_columns_and_counts_the_others_and_the_tasks():
    many = Features(6, None, np.array([[0.0] * 6, [1.0] * 6]))
    x = np.array([[0.5] * 6, [2.0, 3.0, 4.0, 5.0, 6.0, 1.0], [2.0] + [0.5] * 5])
    said = r"at 2 of 3 inputs, in 1 of 2 tasks: X\[:, 4\] is 6 .*; X\[:, 3\] is 5 .*; X\[:, 2\] is 4 [^;]*; 2 more col"
    with pytest.warns(ExtrapolationWarning, match=said):
        many.warn_outside(x, np.array([1, 2]))


def test_arrays_among_data_frames_are_told_if_the_order_of_columns_matters():
    def learned(*tasks):
        features = Features()
        as_tasks([(x, [0.0, 1.0]) for x in tasks], "tasks", features)
        features.warn_if_mixed()

    with pytest.warns(UserWarning, match="^2 tasks have an X without column names.* 'week', 'price', in this order"):
        learned(FRAME.to_numpy(), FRAME, FRAME.to_numpy())
    learned(FRAME, FRAME)
    learned(FRAME.to_numpy(), FRAME.to_numpy())
    learned(FRAME[["week"]], FRAME[["week"]].to_numpy())


def test_warnings_are_silent_where_they_are_expected():
    with warnings.catch_warnings(), no_extrapolation_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", ExtrapolationWarning)
        WEEK_PRICE.warn_outside(np.array([[500.0, 20.0]]))
