"""Scores of tasks with the classes of the fit, and with others."""

import jaxtyping
import numpy as np
import pytest

from metaprior import MetaGPClassifier
from metaprior.cli.console import with_options

pytestmark = pytest.mark.filterwarnings("ignore::metaprior.ExtrapolationWarning")
CENTERS = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]])


def make_tasks(seed, n_tasks, names, size=12):
    rng, codes = np.random.default_rng(seed), np.arange(size) % len(names)
    return [(CENTERS[codes] + rng.normal(size=(size, 2)), np.array(names)[codes]) for _ in range(n_tasks)]


def make_tests(seed, n_tasks, names):
    return [(x[:6], y[:6], x[6:], y[6:]) for x, y in make_tasks(seed, n_tasks, names)]


@pytest.fixture(scope="module")
def meta():
    """A prior with a rule for three classes."""
    return MetaGPClassifier(alpha=0.0, random_state=0).fit(target_tasks=make_tasks(0, 6, ["a", "b", "c"]))


def test_scores_are_those_of_adapted_tasks(meta):
    tests = make_tests(1, 4, ["a", "b", "c"])
    scores, counts = meta.evaluate(tests), np.zeros((3, 3), int)
    for i, (x, y, x_query, y_query) in enumerate(tests):
        task = meta.adapt(x, y)
        observed = np.searchsorted(task.classes_, y_query)
        probability = task.predict_proba(x_query)[np.arange(len(y_query)), observed]
        np.testing.assert_allclose(scores.per_task.probability_accuracy[i], probability.mean(), rtol=1e-6)
        assert scores.per_task.accuracy[i] == pytest.approx(np.mean(task.predict(x_query) == y_query))
        np.add.at(counts, (observed, np.searchsorted(task.classes_, task.predict(x_query))), 1)
    np.testing.assert_array_equal(scores.confusion, counts)
    assert scores.classes.tolist() == ["a", "b", "c"]


def test_a_rule_for_some_classes_is_not_applied_to_others(meta):
    x, y, *_ = make_tests(1, 2, ["p", "q", "r"])[0]
    with pytest.raises(ValueError, match=r"adapt: this prior has a rule by which the classes") as raised:
        meta.adapt(x, y, classes=["p", "q", "r"])
    assert "shared_classes=False" in str(raised.value)
    assert "Fit with --set shared_classes=false for a prior" in with_options(raised.value)
    with pytest.raises(ValueError, match=r"test_tasks\[0\]: y has .* all meta-training tasks have the labels 'a', 'b'"):
        meta.evaluate(make_tests(1, 2, ["p", "q", "r"]))


def test_tasks_with_classes_of_their_own_are_scored_by_theirs():
    """Labels of the fit were each task's own: their number may be another in a test task."""
    tasks = [task for seed in range(3) for task in make_tasks(seed, 2, [f"{seed}a", f"{seed}b"])]
    own = MetaGPClassifier(alpha=0.0, random_state=0).fit(target_tasks=tasks)
    assert own.classes_ is None
    scores = own.evaluate([*make_tests(1, 2, ["p", "q", "r"]), *make_tests(2, 2, ["a", "b"])])
    assert scores.confusion is None
    assert scores.n_tasks == 4
    assert scores.reliability.edges[0] == pytest.approx(1 / 3)
    with_context = own.adapt(*make_tests(1, 2, ["p", "q", "r"])[0][:2])
    assert with_context.predict_proba(np.zeros((1, 2))).shape == (1, 3)


def test_reports_and_tasks_speak_of_labels(meta):
    assert meta.transfer_report().outputs == "labels"
    assert "could not be fitted" not in str(meta.transfer_report())
    x, y = make_tasks(1, 1, ["a", "b", "c"])[0]
    assert repr(meta.adapt(x, y)).startswith("AdaptedClassifier(12 labels as context, 2 input columns")
    assert repr(meta.adapt_many([(x, y)])).startswith("AdaptedClassifiers(1 task, 12 labels as context")


@pytest.mark.parametrize(("name", "expected"), [("calibrate", "True or"), ("shared_classes", "'auto', True or")])
def test_arguments_of_labels_are_checked(name, expected, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # users have no type checks
    with pytest.raises(ValueError, match=f"{name} must be {expected} False; got 'yes'"):
        MetaGPClassifier().set_params(**{name: "yes"}).fit(make_tasks(0, 2, ["a", "b"]))
