"""Labels of any kind become 0 and 1, and errors say what to do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprior.cli.console import with_options
from metaprior.tasks.labels import as_labeled_tests, as_labels, encode, encode_environments, task_classes
from metaprior.tasks.types import Task


def tasks(*labels):
    return [Task(np.zeros((len(y), 1)), as_labels(y, "y")) for y in labels]


def encoded(*labels):
    environments, shared, _ = encode_environments([tasks(*labels)], ["tasks"], [1.0])
    return [task.y.tolist() for task in environments[0]], shared


@pytest.mark.parametrize(
    "pair",
    [("ill", "well"), (0, 1), (-1, 1), (3, 7), (False, True), (0.0, 1.0), ("", "x")],
    ids=str,
)
def test_two_labels_of_any_kind(pair):
    first, second = pair
    values, shared = encoded([second, first, first], [first, second])
    assert values == [[1.0, 0.0, 0.0], [0.0, 1.0]]
    assert shared.tolist() == [first, second]
    assert type(shared.tolist()[0]) is type(first)
    for container in (list, tuple, np.array, lambda y: np.array(y, dtype=object)):
        np.testing.assert_array_equal(as_labels(container([second, first]), "y"), [second, first])


def test_shared_labels_mean_the_same_in_every_task_even_where_one_is_missing():
    values, shared = encoded(["well", "ill"], ["well", "well"], ["ill"])
    assert values == [[1.0, 0.0], [1.0, 1.0], [0.0]]
    assert shared.tolist() == ["ill", "well"]


def test_tasks_with_labels_of_their_own():
    values, shared = encoded(["wren", "finch", "finch"], [5, 2], [True, False])
    assert values == [[1.0, 0.0, 0.0], [1.0, 0.0], [1.0, 0.0]]
    assert shared is None


@given(st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=6), min_size=1, max_size=5))
def test_encoding_can_be_undone(labels):
    if len({label for y in labels for label in y}) < 2:
        with pytest.raises(ValueError, match="two or more labels"):
            encoded(*labels)
        return
    values, shared = encoded(*labels)
    assert [[shared[int(value)] for value in task] for task in values] == labels


@pytest.mark.parametrize(
    ("y", "shared", "given_", "expected"),
    [
        (["b", "a"], None, None, ["a", "b"]),
        ([1], [0, 1], None, [0, 1]),
        ([], [0, 1], None, [0, 1]),
        ([7, 3], [0, 1], None, [3, 7]),
        ([True], [0, 1], None, [False, True]),
        (["cat", "dog"], [0, 1], None, ["cat", "dog"]),
        ([1], None, None, [0, 1]),
        ([False], None, None, [False, True]),
        (["cat"], None, None, ["cat", None]),
        ([7], None, None, [7, None]),
        (["cat"], [0, 1], None, ["cat", None]),
        ([], None, None, [None, None]),
        (["cat"], None, ("dog", "cat"), ["cat", "dog"]),
        ([], ["x", "y"], ("dog", "cat"), ["cat", "dog"]),
    ],
)
def test_classes_of_a_new_task(y, shared, given_, expected):
    shared = None if shared is None else np.array(shared)
    classes = task_classes(as_labels(y, "y"), "adapt", shared, given_)
    assert classes.tolist() == expected
    assert [type(label) for label in classes.tolist()] == [type(label) for label in expected]
    labels = as_labels(y, "y")
    assert [classes.tolist()[int(value)] for value in encode(labels, classes)] == labels.tolist()


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: encoded([1, 1], [1]), ["two or more labels", "1", "every task"]),
        (lambda: encoded([1, 2], [3, 3]), ["tasks[1]", "one label only", "3", "Drop the task"]),
        (lambda: task_classes(np.array([0, 1, 2]), "adapt", np.array([0, 1])), ["adapt", "labels 0, 1.", "0, 1, 2"]),
        (lambda: task_classes(np.array([0]), "adapt", None, [0]), ["classes", "two or more different labels", "[0]"]),
        (lambda: task_classes(np.array([5]), "adapt", None, [0, 1]), ["label 5", "classes [0, 1]"]),
        (lambda: task_classes(np.array([1, 2]), "adapt", np.array([0, 1])), ["y has 1, 2", "labels 0, 1", "classes="]),
        (lambda: as_labels(["a", 1], "task: y"), ["task: y", "one kind", "numbers and text"]),
        (lambda: as_labels([b"a", b"b"], "y"), ["text, integers or bools", "|S1"]),
        (lambda: task_classes(np.array([7]), "adapt", np.array([0, 1])), ["y has 7", "labels 0, 1", "classes="]),
        (lambda: task_classes(np.array(["Yes"]), "adapt", np.array(["no", "yes"])), ["y has 'Yes'", "'no', 'yes'"]),
        (lambda: as_labels(np.array(["a", None], dtype=object), "y"), ["missing labels", "Drop"]),
        (lambda: as_labels(["a", float("nan")], "y"), ["missing labels", "Drop"]),
        (lambda: encoded([0.13, 2.5, 1.1]), ["tasks[0]", "MetaGPRegressor"]),
        (lambda: as_labels([0.0, np.nan], "y"), ["NaN"]),
        (lambda: as_labels([1j, 2j], "y"), ["complex"]),
        (lambda: as_labels(np.ma.masked_array([0, 1], [True, False]), "y"), ["masked"]),
        (
            lambda: as_labeled_tests([([[0.0]], ["a"], [[0.0]], [1])], "test_tasks", 1, None),
            ["test_tasks[0]", "context and query", "one kind"],
        ),
        (
            lambda: as_labeled_tests([([[0.0]] * 2, [0, 1], [[0.0]], [2])], "test_tasks", 1, np.array([0, 1])),
            ["test_tasks[0]", "labels 0, 1.", "0, 1, 2"],
        ),
    ],
)
def test_bad_labels(call, parts):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        call()
    assert all(part in str(error.value) for part in parts), error.value


def test_a_misspelled_label_gives_a_warning():
    message = r"3 of 4 tasks have the labels \('no', 'yes'\), another has \('Yes', 'no'\).*misspelled"
    with pytest.warns(UserWarning, match=message):
        _, shared = encoded(["no", "yes"], ["yes", "no"], ["no", "yes"], ["no", "Yes"])
    assert shared is None


def test_an_environment_with_weight_zero_does_not_decide_on_shared_labels():
    own, shared = tasks(["wren", "finch"], ["owl", "owl"]), tasks([0, 1], [1, 1])
    encoded, classes, _ = encode_environments([own, shared], ["source_tasks", "target_tasks"], [0.0, 1.0])
    assert classes.tolist() == [0, 1]
    assert [task.y.tolist() for task in encoded[1]] == [[0.0, 1.0], [1.0, 1.0]]
    assert [len(task.y) for task in encoded[0]] == [2, 2]
    with pytest.raises(ValueError, match=r"source_tasks\[1\]: y has one label only"):
        encode_environments([own, shared], ["source_tasks", "target_tasks"], [0.1, 0.9])


def test_test_tasks_take_their_classes_from_context_and_queries():
    x = np.zeros((2, 1))
    [own], _ = as_labeled_tests([(x, ["b", "b"], x, ["a", "b"])], "test_tasks", 1, None)
    assert (own.y_context.tolist(), own.y_query.tolist()) == ([1.0, 1.0], [0.0, 1.0])
    [empty], _ = as_labeled_tests([([], [], x, ["a", "b"])], "test_tasks", 1, None)
    assert (empty.y_context.tolist(), empty.y_query.tolist()) == ([], [0.0, 1.0])
    [shared], _ = as_labeled_tests([(x, [1, 1], x, [1, 1])], "test_tasks", 1, np.array([0, 1]))
    assert shared.y_query.tolist() == [1.0, 1.0]


def test_the_command_line_does_not_advise_an_option_that_it_lacks():
    with pytest.raises(ValueError, match=r"pass all as classes=\.\.\.") as raised:
        task_classes(np.array([7]), "adapt", np.array([0, 1]))
    assert "pass all as classes=... of adapt in Python." in with_options(raised.value)
