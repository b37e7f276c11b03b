"""More readings or labels of a task: equal to adapting to all of them at once, and nothing that was there changes."""

import warnings

import numpy as np
import pandas as pd
import pytest

from metaprior import ImplausibleContextWarning, MetaGPClassifier, MetaGPRegressor
from metaprior.tasks.labels import joined_labels
from metaprior.tasks.types import Ragged
from metaprior.wfem import Training, WFEMRegressor

RNG = np.random.default_rng(0)
QUERIES = RNG.uniform(0, 5, (4, 1))


def make_task(n=6):
    x = RNG.uniform(0.0, 5.0, (n, 1))
    return x, 20.0 + RNG.normal() + np.sin(x[:, 0]) + 0.1 * RNG.normal(size=n)


def make_labels(n=8, names="pqr"):
    codes = np.arange(n) % len(names)
    return RNG.normal(size=(n, 2)) + codes[:, None], np.array(list(names))[codes]


@pytest.fixture(scope="module")
def meta():
    return MetaGPRegressor(alpha=0.0, random_state=0).fit(target_tasks=[make_task() for _ in range(6)])


@pytest.fixture(scope="module")
def own():
    names = ["abc", "de", "fgh", "ij", "klm"]
    return MetaGPClassifier(0.0, random_state=0).fit(target_tasks=[make_labels(names=each) for each in names])


@pytest.fixture(scope="module")
def shared():
    """Labels that follow one rule, which the prior knows."""
    tasks = [make_labels(15) for _ in range(6)]
    tasks = [(x, np.where(x[:, 0] > 0, "ill", "well")) for x, _ in tasks]
    return MetaGPClassifier(0.0, random_state=0).fit(target_tasks=tasks)


def assert_same(updated, expected, queries=QUERIES):
    for one, other in zip(updated.predict(queries, return_std=True), expected.predict(queries, return_std=True)):  # noqa: B905
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=0)


@pytest.mark.parametrize("sizes", [(0, 6), (6, 0), (1, 5), (3, 3)])
def test_update_is_adapting_to_all_readings(meta, sizes):
    (x, y), n = make_task(), sizes[0]
    task = meta.adapt(x[:n], y[:n])
    before = task.predict(QUERIES, return_std=True)
    assert_same(task.update(x[n:], y[n:]), meta.adapt(x, y))
    np.testing.assert_array_equal(task.predict(QUERIES, return_std=True), before)
    assert repr(task.update(x[n:], y[n:])) == repr(meta.adapt(x, y))


def test_one_reading_after_another(meta):
    x, y = make_task(5)
    task = meta.adapt([], [])
    for i in range(5):
        task = task.update(x[i : i + 1], y[i : i + 1])
    assert_same(task, meta.adapt(x, y))


def test_priors_trained_by_gradients_too():
    settings = {"alpha": 0.0, "kernel": "rbf", "mean": "linear", "training": Training(n_steps=0), "random_state": 0}
    meta = WFEMRegressor(**settings).fit(target_tasks=[make_task() for _ in range(3)])
    x, y = make_task()
    assert_same(meta.adapt(x[:2], y[:2]).update(x[2:], y[2:]), meta.adapt(x, y))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_many_tasks_get_one_pair_each(meta, dtype):
    tasks = [make_task(n) for n in (6, 4, 5)]
    adapted = meta.adapt_many([(x[:2], y[:2]) for x, y in tasks], dtype=dtype)
    more = adapted.update([x[2:] for x, _ in tasks], [y[2:] for _, y in tasks])
    assert repr(more) == repr(meta.adapt_many(tasks, dtype=dtype))
    for task, (x, y) in zip(more, tasks, strict=True):
        assert_same(task, meta.adapt(x, y))
    with pytest.raises(ValueError, match="y must be a list with an array for each of the 3 tasks; got 1"):
        adapted.update([x for x, _ in tasks], [tasks[0][1]])


def test_rows_are_joined_task_by_task():
    first, second = (
        Ragged.of([np.array([1.0, 2.0]), np.array([]), np.array([3.0])]),
        Ragged.of(list(np.array([[4.0], [5.0], [6.0]]))),
    )
    joined = first.joined(second)
    assert joined.rows.tolist() == [1, 2, 4, 5, 3, 6, 0]
    assert joined.sizes.tolist() == [3, 1, 2]


def test_implausible_readings_warn_as_for_adapt(meta):
    x, y = make_task()
    task = meta.adapt(x, y)
    with pytest.warns(
        ImplausibleContextWarning, match=r"Readings are far .*: in update, at X = \[1\.\], y is 1000000000"
    ):
        task.update([[1.0]], [1e9])
    # At one input, contradicting what the task had before.
    with pytest.warns(ImplausibleContextWarning, match="times the noise apart"):
        meta.adapt([[2.0], [1.0]], [20.0, 21.0]).update([[2.0]], [26.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task.update(x + 0.01, y)  # the readings of another task would be implausible


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (([[1.0]], [1.0, 2.0]), "update: X and y must"),
        (([[1.0]], [np.nan]), "update: y must be finite"),
        (([[1.0, 2.0]], [1.0]), "update: X must have 1 column"),
        ((pd.DataFrame({"b": [1.0]}), [21.0]), None),
    ],
)
def test_bad_readings_are_named(meta, more, said):
    task = meta.adapt(*make_task())
    if said is None:
        task.update(*more)  # the tasks of the fit had no names
    else:
        with pytest.raises(ValueError, match=said):
            task.update(*more)


def assert_same_classes(updated, expected, x):
    assert updated.classes_.tolist() == expected.classes_.tolist()
    np.testing.assert_allclose(updated.predict_proba(x), expected.predict_proba(x), rtol=1e-12)
    assert repr(updated) == repr(expected)


@pytest.mark.parametrize("first", [0, 1, 3])
def test_update_of_labels_is_adapting_to_all(own, first):
    """New labels become classes, also where the first context showed one label only, or none."""
    x, y = make_labels(8)[0], np.array(["owl", "owl", "wren", "finch", "owl", "wren", "finch", "owl"])
    task = own.adapt(x[:first], y[:first])
    classes = task.classes_.tolist()
    assert_same_classes(task.update(x[first:], y[first:]), own.adapt(x, y), x)
    assert task.classes_.tolist() == classes


def test_given_and_shared_classes_stay(own, shared):
    x, y = make_labels(6)[0], np.array([3, 1, 3, 1, 1, 3])
    task = own.adapt(x[:2], y[:2], classes=[1, 2, 3])
    assert_same_classes(task.update(x[2:], y[2:]), own.adapt(x, y, classes=[1, 2, 3]), x)
    with pytest.raises(ValueError, match=r"update: y has the label 4, which is not one of classes \[1, 2, 3\]"):
        task.update(x[:1], [4])
    assert any(len(member.weights) for member in shared.model_.members)
    y = np.array(["ill", "well", "ill", "ill", "well", "ill"])
    assert_same_classes(shared.adapt(x[:1], y[:1]).update(x[1:], y[1:]), shared.adapt(x, y), x)
    with pytest.raises(ValueError, match="update: y has 'dead', 'ill', but all meta-training tasks have the labels"):
        shared.adapt(x[:1], y[:1]).update(x[1:2], ["dead"])


def test_many_tasks_of_labels(own):
    """The first label of each task does not show its other classes."""
    tasks = [make_labels(8, names) for names in ("abc", "xy")]
    adapted = own.adapt_many([(x[:1], y[:1]) for x, y in tasks])
    more = adapted.update([x[1:] for x, _ in tasks], [y[1:] for _, y in tasks])
    for task, (x, y) in zip(more, tasks, strict=True):
        assert_same_classes(task, own.adapt(x, y), x)
    last = adapted[1:].update([tasks[1][0][1:]], [tasks[1][1][1:]])
    assert_same_classes(last[0], own.adapt(*tasks[1]), tasks[0][0])


def test_labels_of_two_kinds_are_refused(own):
    x, y = make_labels()
    with pytest.raises(ValueError, match="update: y must be labels of one kind; got a mix of numbers and text"):
        own.adapt(x, y).update(x[:1], [1])
    assert joined_labels(np.array([]), np.array(["a"]), "y").tolist() == ["a"]


@pytest.mark.filterwarnings("ignore:.*predictions use:UserWarning")
def test_labels_that_a_large_context_leaves_out_are_not_forgotten(own, monkeypatch):
    monkeypatch.setattr(type(own.model_.members[0]), "most_labels", lambda self, n: np.full(len(n), 6))
    (x, y), (more, new) = make_labels(12), make_labels(9)
    whole = own.adapt(np.concatenate([x, more]), np.concatenate([y, new]))
    for first in (own.adapt(x, y), own.adapt_many([make_labels(), (x, y)])[1]):
        updated = first.update(more, new)
        np.testing.assert_allclose(updated.predict_proba(x), whole.predict_proba(x), atol=1e-12)
