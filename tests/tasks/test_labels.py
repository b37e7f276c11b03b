"""Labels of any kind and number become 0, 1, 2, ..., and errors say what to do."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprior.cli.console import with_options
from metaprior.tasks.labels import (
    as_labeled_tests,
    as_labels,
    encode,
    encode_contexts,
    encode_environments,
    task_classes,
)
from metaprior.tasks.types import Task


def tasks(*labels):
    return [Task(np.zeros((len(y), 1)), as_labels(y, "y")) for y in labels]


def encoded(*labels, **options):
    environments, shared, _ = encode_environments([tasks(*labels)], ["tasks"], [1.0], **options)
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


@pytest.mark.parametrize(
    ("labels", "options", "shared", "n_classes"),
    [
        ([["flu", "cold", "well", "well"], ["cold"], ["well", "flu"]], {}, ["cold", "flu", "well"], [3, 3, 3]),
        ([[2, 0, 1, 1], [3, 0]], {}, None, [3, 2]),
        ([[2, 0, 1, 1], [3, 0]], {"shared": True}, [0, 1, 2, 3], [4, 4]),
        ([[2, 0, 1, 1], [1, 0]], {"shared": False}, None, [3, 2]),
        ([[1, 0], [0, 1]], {"shared": False}, None, [2, 2]),
        ([["a", "b", "a"], [2, 3, 4, 4], [True, False]], {}, None, [2, 3, 2]),
        ([["10", "2"], [True, False]], {}, None, [2, 2]),
    ],
)
def test_classes_are_shared_if_a_task_has_all_of_them(labels, options, shared, n_classes):
    [of_tasks], classes, [numbers] = encode_environments([tasks(*labels)], ["tasks"], [1.0], **options)
    assert (None if classes is None else classes.tolist()) == shared
    assert numbers.tolist() == n_classes
    for task, y in zip(of_tasks, labels, strict=True):
        own = np.unique(y) if classes is None else classes
        assert own[task.y.astype(int)].tolist() == y


KINDS = [st.text("abc", max_size=2), st.integers(-3, 3), st.booleans(), st.integers(-2, 2).map(float)]
ONE_KIND = st.sampled_from(KINDS).flatmap(
    lambda kind: st.lists(st.lists(kind, min_size=1, max_size=8), min_size=1, max_size=5)
)


@pytest.mark.filterwarnings("ignore:.*(misspelled|none of them twice)")
@given(ONE_KIND, st.sampled_from(["auto", True, False]))
def test_encoding_can_be_undone(labels, shared):
    if len({label for y in labels for label in y}) < 2:
        with pytest.raises(ValueError, match="two or more labels"):
            encoded(*labels, shared=shared)
        return
    own = shared is False or (shared == "auto" and not _has_all(labels))
    if own and min(len(set(y)) for y in labels) < 2:
        with pytest.raises(ValueError, match=r"tasks\[\d\]: y has one label only"):
            encoded(*labels, shared=shared)
        return
    values, classes = encoded(*labels, shared=shared)
    assert (classes is None) == own
    used = [np.unique(y) if own else classes for y in labels]
    assert [of_task[np.array(codes, int)].tolist() for of_task, codes in zip(used, values, strict=True)] == labels
    # New tasks with the same labels get the same codes.
    found, codes = encode_contexts([as_labels(y, "y") for y in labels], "contexts", classes)
    assert [of_task.tolist() for of_task in found] == [of_task.tolist() for of_task in used]
    assert codes.tolist() == [code for of_task in values for code in of_task]


def _has_all(labels):
    distinct = {label for y in labels for label in y}
    return len(distinct) == 2 or any(set(y) == distinct for y in labels)


@given(
    st.lists(st.lists(st.integers(0, 6), max_size=6), min_size=1, max_size=5), st.sets(st.integers(0, 6), min_size=2)
)
def test_many_contexts_are_encoded_as_one_at_a_time(labels, shared):
    """Whether the fast path for shared classes is taken or not; labels that are not shared are refused by both."""
    shared, labels = np.array(sorted(shared)), [as_labels(y, "y") for y in labels]
    try:
        expected = [task_classes(y, f"contexts[{i}]", shared) for i, y in enumerate(labels)]
    except ValueError as error:
        with pytest.raises(ValueError, match=re.escape(str(error))):
            encode_contexts(labels, "contexts", shared)
        return
    classes, codes = encode_contexts(labels, "contexts", shared)
    assert [of_task.tolist() for of_task in classes] == [of_task.tolist() for of_task in expected]
    assert codes.tolist() == [code for y, of_task in zip(labels, expected, strict=True) for code in encode(y, of_task)]


@pytest.mark.parametrize(
    ("y", "shared", "given_", "expected"),
    [
        (["b", "a"], None, None, ["a", "b"]),
        ([1], [0, 1], None, [0, 1]),
        ([], [0, 1], None, [0, 1]),
        ([1], None, None, [0, 1]),
        ([False], None, None, [False, True]),
        (["cat"], None, None, ["cat", None]),
        ([7], None, None, [7, None]),
        ([], None, None, [None, None]),
        (["cat"], None, ("dog", "cat"), ["cat", "dog"]),
        ([], ["x", "y"], ("dog", "cat"), ["cat", "dog"]),
        (["c", "a", "b", "c"], None, None, ["a", "b", "c"]),
        ([2], [0, 1, 2], None, [0, 1, 2]),
        (["dog"], None, ("dog", "cat", "eel"), ["cat", "dog", "eel"]),
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
    ("y", "shared", "meant"),
    [
        (["HI", "LO", "MID"], ["hi", "lo", "mid"], " Is 'HI' the same as 'hi'?"),
        (["hi ", "lo "], ["hi", "lo", "mid"], " Is 'hi ' the same as 'hi'?"),
        (["cat", "dog"], ["hi", "lo"], ""),
        ([60, 88, 99], ["hi", "lo", "mid"], ""),
        ([True, False], [0, 1], ""),
        ([0.5, 1.5, 3.0], ["hi", "lo"], ""),
    ],
)
def test_a_task_of_other_labels_than_those_shared_is_refused(y, shared, meant):
    """Whether or not the prior has a rule for these, unless the classes are given: likely it is a mistake."""
    with pytest.raises(ValueError, match=r"^adapt: y has .*, but all meta-training tasks have the labels ") as raised:
        task_classes(as_labels(y, "y"), "adapt", np.array(shared))
    assert meant in str(raised.value)
    assert ("the same as" in str(raised.value)) == bool(meant)
    assert "--kind" not in with_options(raised.value)
    assert "--set", "shared_classes=false" in with_options(raised.value)


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: encoded([1, 1], [1]), ["two or more labels", "1", "every task"]),
        (lambda: encoded([1, 2], [3, 3]), ["tasks[1]", "one label only", "3", "Drop the task", "shared_classes=True"]),
        (lambda: task_classes(np.array([0, 1, 2]), "adapt", np.array([0, 1])), ["adapt", "labels 0, 1.", "0, 1, 2"]),
        (lambda: task_classes(np.array([0]), "adapt", None, [0]), ["classes", "two or more different labels", "[0]"]),
        (lambda: task_classes(np.array([5]), "adapt", None, [0, 1]), ["label 5", "classes [0, 1]"]),
        (lambda: task_classes(np.array([1, 2]), "adapt", np.array([0, 1])), ["y has 1, 2", "labels 0, 1", "classes="]),
        (
            lambda: task_classes(np.array([0, 3]), "adapt", np.array([0, 1, 2])),
            ["y has 0, 3", "all meta-training tasks have the labels 0, 1, 2", "pass all as classes="],
        ),
        (lambda: encoded([1, 2, 2], ["a", "b"], shared=True), ["one kind", "numbers and text"]),
        (lambda: encoded([1, 1], [1], shared=False), ["two or more labels"]),
        (lambda: encoded(np.arange(10_000)), ["tasks[0]", "at most 100 labels; got 10,000 (0, 1", "readings or ids"]),
        (
            lambda: encoded(*np.arange(202).reshape(2, 101).tolist()),
            ["tasks[0]", "at most 100 labels; got 101", "MetaGPRegressor"],
        ),
        (
            lambda: encoded(*np.repeat(np.arange(200), 2).reshape(100, 4).tolist(), shared=True),
            ["y must have at most 100 labels; got 200"],
        ),
        (lambda: encoded([1, 2, 3], most=2), ["tasks[0]", "two labels; got 3 (1, 2, 3)", "Gradient training"]),
        (lambda: encoded([1, 2], [3, 2], shared=True, most=2), ["y must have two labels; got 3 (1, 2, 3)"]),
        (lambda: task_classes(np.arange(10_000), "adapt", None), ["adapt: y must have at most 100", "10,000"]),
        (lambda: task_classes(np.array([0.5, 1.5, 3.0]), "adapt", None), ["adapt", "integers or text", "readings"]),
        (lambda: task_classes(np.array([0]), "adapt", None, range(101)), ["adapt: classes", "at most 100"]),
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
    encoded(["no", "yes"], ["yes", "no"], ["no", "yes"], ["no", "Yes"], shared=False)  # as was asked for: no warning


def test_labels_that_are_spelled_alike_give_a_warning():
    """A task has all three, so that they are shared: the misspelled one would silently be a class."""
    with pytest.warns(UserWarning, match="labels 'Yes' and 'yes' differ in case, typography or .0 only.*misspelled"):
        _, shared = encoded(["no", "yes", "yes", "Yes"], ["yes", "no"])
    assert len(shared) == 3


def test_labels_that_look_like_readings_give_a_warning():
    with pytest.warns(UserWarning, match=r"Most tasks.*none of them twice.*readings, use MetaGPRegressor\."):
        encoded([3, 8, 5, 9], [12, 7, 3], [1, 1, 2])


def test_an_environment_with_weight_zero_does_not_decide_on_shared_labels():
    own, shared = tasks(["wren", "finch"], ["owl", "owl"], list("abca")), tasks([0, 1], [1, 1])
    encoded, classes, n_classes = encode_environments([own, shared], ["source_tasks", "target_tasks"], [0.0, 1.0])
    assert classes.tolist() == [0, 1]
    assert [task.y.tolist() for task in encoded[1]] == [[0.0, 1.0], [1.0, 1.0]]
    assert [task.y.tolist() for task in encoded[0]] == [[1.0, 0.0], [0.0, 0.0], [0.0, 1.0, 1.0, 0.0]]
    assert [numbers.tolist() for numbers in n_classes] == [[2, 2, 2], [2, 2]]
    with pytest.raises(ValueError, match=r"source_tasks\[1\]: y has one label only"):
        encode_environments([own, shared], ["source_tasks", "target_tasks"], [0.1, 0.9])


def test_test_tasks_take_their_classes_from_context_and_queries():
    x = np.zeros((2, 1))
    tests = [
        (x, ["b", "b"], x, ["a", "b"]),
        ([], [], x, ["a", "b"]),
        (x, ["b", "d"], x, ["c", "c"]),
        (x, ["b", "b"], x, ["b", "b"]),
    ]
    encoded, n_classes = as_labeled_tests(tests, "test_tasks", 1, None)
    expected = [([1.0, 1.0], [0.0, 1.0]), ([], [0.0, 1.0]), ([0.0, 2.0], [1.0, 1.0]), ([0.0, 0.0], [0.0, 0.0])]
    assert [(task.y_context.tolist(), task.y_query.tolist()) for task in encoded] == expected
    assert n_classes.tolist() == [2, 2, 3, 2]
    [shared], n_classes = as_labeled_tests([(x, [1, 1], x, [1, 1])], "test_tasks", 1, np.array([0, 1, 2]))
    assert (shared.y_query.tolist(), n_classes.tolist()) == ([1.0, 1.0], [3])


def test_the_command_line_does_not_advise_an_option_that_it_lacks():
    with pytest.raises(ValueError, match=r"pass all as classes=\.\.\.") as raised:
        task_classes(np.array([7]), "adapt", np.array([0, 1]))
    assert "pass all as classes=... of adapt in Python, or fit with --set shared_classes=false." in with_options(
        raised.value
    )
    with pytest.raises(ValueError, match="For these use a prior of MetaGPRegressor") as raised:
        task_classes(np.array([0.5, 1.5, 3.0]), "adapt", None)
    assert "use a prior of fit --kind regression." in with_options(raised.value)


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ([0, 1], "bools in 2 tasks and numbers in 2 tasks"),
        ([0.0, 1.0], "bools in 2 tasks and numbers in 2 tasks"),
        (["False", "True"], "bools in 2 tasks and text in 2 tasks"),
        (["no", "1"], "bools in 2 tasks and text in 2 tasks"),
    ],
)
def test_labels_of_two_kinds_are_own_classes_and_said_to_be(others, told):
    x = np.zeros((2, 1))
    tasks = [Task(x, np.array(labels)) for labels in ([False, True], others) for _ in range(2)]
    with pytest.warns(UserWarning, match=rf"Labels are {told}, .* make them of one kind") as warned:
        _, classes, _ = encode_environments([tasks], ["target_tasks"], [1.0])
    assert classes is None
    assert len(warned) == 1
    encode_environments([tasks], ["target_tasks"], [1.0], shared=False)  # as the user has said
    with pytest.raises(ValueError, match="labels of one kind"):
        encode_environments([tasks], ["target_tasks"], [1.0], shared=True)


def test_labels_with_a_zero_are_refused_because_numpy_would_drop_it():
    with pytest.raises(ValueError, match="y must not have labels with a NUL character"):
        as_labels(["yes\0", "yes", "no"], "y")
