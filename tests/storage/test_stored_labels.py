"""Labels of stored tasks follow the rules of labels in memory: shared by all tasks, or each task's own."""

import numpy as np
import pytest

from metaprior import StoredTasks
from metaprior.storage import stored_tasks
from metaprior.storage.stored_tasks import encode_stored
from metaprior.tasks.labels import encode_environments
from metaprior.tasks.types import Task
from metaprior.wfem import RBFKernel, Training, WFEMClassifier

NAMES = ("source_tasks", "target_tasks")


def draw(labels, seed=0):
    """One task for each set of labels, with one to five samples more than labels; all of them occur."""
    rng = np.random.default_rng(seed)
    tasks = []
    for distinct in labels:
        y = rng.permutation(np.resize(distinct, len(distinct) + rng.integers(1, 6)))
        tasks.append(Task(rng.normal(size=(len(y), 2)), y))
    return tasks


def stored(tasks):
    return StoredTasks.from_tasks(tasks, 2)


LABELS = {
    "zero and one": ([(0, 1)] * 5, [(0, 1)] * 3),
    "others, shared": ([(3, 7)] * 5, [(3, 7)] * 3),
    "own": ([(0, 1), (5, 2), (1, 3), (8, 9), (0, 4)], [(6, 1), (2, 3), (7, 9)]),
    "three, shared": ([(0, 1), (4,), (1, 4)], [(0, 1, 4), (1,)]),
    "own, of different numbers": ([(0, 1), (-5, 2, 7, 9), (1, 3, 8)], [(6, 1), (2, 3, 4)]),
}


@pytest.mark.parametrize("shared", ["auto", True])
@pytest.mark.parametrize("block", [2**20, 4], ids=["one block", "blocks of four rows"])
@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_labels_are_those_of_lists(labels, block, shared, monkeypatch):
    monkeypatch.setattr(stored_tasks, "BLOCK", block)
    environments = draw(labels[0]), draw(labels[1], 1)
    expected, classes, n_classes = encode_environments(environments, NAMES, (0.5, 0.5), shared)
    encoded, found, numbers = encode_stored((stored(environments[0]), environments[1]), NAMES, (0.5, 0.5), shared)
    np.testing.assert_array_equal(found, classes)
    for of_stored, of_lists in zip(numbers, n_classes, strict=True):
        np.testing.assert_array_equal(of_stored, of_lists)
    for tasks, of_list in zip(encoded, expected, strict=True):
        for i, task in enumerate(of_list):
            np.testing.assert_array_equal(tasks[i].y, task.y)
            np.testing.assert_array_equal(tasks[1:][i - 1].y if i else tasks[i].y, task.y)
        order = np.arange(len(of_list))[::-1].reshape(-1, 1)
        _, y, mask = tasks.gather(order, 12)
        for row, task in zip(y[:, 0], of_list[::-1], strict=True):
            np.testing.assert_array_equal(row, np.pad(task.y, (0, 12 - len(task.y))))
        assert mask.sum() == sum(len(task.y) for task in of_list)


def test_an_environment_of_no_weight_does_not_decide():
    shared, own = draw([(3, 7)] * 4), draw([(0, 1), (1, 1), range(200), (0.1, 0.2, 0.3)], 1)
    of_lists, _, _ = encode_environments((own, shared), NAMES, (0.0, 1.0))
    encoded, classes, n_classes = encode_stored((stored(own), stored(shared)), NAMES, (0.0, 1.0))
    np.testing.assert_array_equal(classes, [3, 7])
    assert set(np.concatenate([task.y for task in encoded[1]])) == {0.0, 1.0}
    assert [numbers.tolist() for numbers in n_classes] == [[2] * 4, [2] * 4]
    for task, of_list in zip(encoded[0], of_lists[0], strict=True):
        np.testing.assert_array_equal(task.y, of_list.y)
        assert set(task.y) <= {0.0, 1.0}


def test_content_and_classes_tell_tasks_apart():
    """A checkpoint of one encoding must not go on with another."""
    plain = stored(draw([(0, 1)] * 3))
    one, other = plain.encoded(np.array([0.0, 1.0])), plain.encoded(np.array([[0.0, 1.0], [0.0, 1.0], [1.0, 2.0]]))
    assert len({plain.digest, one.digest, other.digest}) == 3
    assert plain.encoded(np.array([0.0, 1.0])).digest == one.digest


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        ([(1, 1)] * 8, "^y must have two or more labels; got 1 for every sample"),
        ([(0, 1), (2, 3), (4, 4), (5, 6)], r"source_tasks\[2\]: y has one label only, 4,"),
        (
            [(0, 1), range(101), (5, 6)],
            r"source_tasks\[1\]: y must have at most 100 labels; got 101 \(0, 1, 2",
        ),
        ([(0, 1), (0.5, 2.5, 4), (5, 6)], r"source_tasks\[1\]: y must have integers.*readings.* use MetaGPRegressor"),
    ],
)
@pytest.mark.parametrize("encode", [encode_stored, encode_environments])
def test_what_cannot_be_told_apart_is_refused(labels, match, encode):
    tasks = draw(labels)
    with pytest.raises(ValueError, match=match):
        encode((stored(tasks) if encode is encode_stored else tasks, []), NAMES, (1.0, 0.0))


def test_gradient_training_is_for_two_classes():
    with pytest.raises(ValueError, match=r"source_tasks\[1\]: y must have two labels; got 3 \(2, 3, 4\)"):
        encode_stored((stored(draw([(0, 1), (2, 3, 4), (5, 6)])), []), NAMES, (1.0, 0.0), most=2)


def test_a_label_that_is_probably_misspelled_is_told():
    pairs = [(0, 1)] * 9 + [(0, 2)]
    said = r"9 of 10 tasks have the labels \(0, 1\), another has \(0, 2\).*misspelled"
    with pytest.warns(UserWarning, match=said):
        encode_stored((stored(draw(pairs)), []), NAMES, (1.0, 0.0))
    with pytest.warns(UserWarning, match=said):
        encode_environments((draw(pairs), []), NAMES, (1.0, 0.0))
    encode_stored((stored(draw(pairs)), []), NAMES, (1.0, 0.0), shared=False)  # as was asked for: no warning


def test_huge_labels_stay_as_they_are():
    _, classes, _ = encode_stored((stored(draw([(1e300, 2e300)] * 3)), []), NAMES, (1.0, 0.0))
    assert classes.tolist() == [1e300, 2e300]


def test_text_beside_numbers_is_refused():
    text = [Task(np.zeros((2, 2)), np.array(["a", "b"]))]
    with pytest.raises(ValueError, match="target_tasks: labels must be numbers beside stored tasks"):
        encode_stored((stored(draw([(0, 1)] * 3)), text), NAMES, (0.5, 0.5))


@pytest.mark.slow
def test_a_classifier_knows_that_labels_are_the_tasks_own():
    """Own labels have no order, so that no mean of the log odds may be learned, whatever the mean asked for."""
    source, target = draw([(2 * i, 2 * i + 1) for i in range(6)]), draw([(1, 9), (4, 8)], 1)
    meta = WFEMClassifier(RBFKernel(), "constant", training=Training(n_steps=1, batch_size=4), random_state=0)
    meta.fit(stored(source), target)
    assert meta.classes_ is None
    assert meta.model_.members[0].rest.mean.__class__.__name__ == "Zero"
    meta.fit(stored(draw([(3, 7)] * 6)), draw([(3, 7)] * 2, 1))
    assert meta.classes_.tolist() == [3, 7]
    assert set(meta.adapt([[0.0, 0.0]], [7]).predict([[0.0, 0.0]])) <= {3, 7}
