"""The default of `MetaGPClassifier`, end to end: shared classes and own ones, common rules, weights and files."""

import numpy as np
import pytest

from metaprior import MetaGPClassifier, load

NAMES = np.array(["ant", "bee", "cat"])


def draw_tasks(n_tasks, rule=None, seed=0, n=15):
    """Tasks of three classes that follow one rule, or a rule and names of their own."""
    rng = np.random.default_rng(seed)
    tasks = []
    for i in range(n_tasks):
        x, of_task = rng.normal(size=(n, 2)), 2.0 * rng.normal(size=(2, 3)) if rule is None else rule
        y = np.argmax(x @ of_task + 0.7 * rng.gumbel(size=(n, 3)), axis=1)
        tasks.append((x, NAMES[y] if rule is not None else np.array([f"{name}{i}" for name in "pqr"])[y]))
    return tasks


RULE = np.array([[2.0, -2.0, 0.0], [0.0, -1.0, 3.0]])


@pytest.fixture(scope="module")
def shared():
    return MetaGPClassifier(0.0, random_state=0).fit(target_tasks=draw_tasks(6, RULE))


@pytest.fixture(scope="module")
def own():
    return MetaGPClassifier(0.0, random_state=0).fit(target_tasks=draw_tasks(6))


def test_a_rule_that_all_tasks_follow_is_found_and_predicts_without_a_context(shared):
    assert shared.classes_.tolist() == NAMES.tolist()
    assert any(len(member.weights) == 3 for member in shared.model_.members)
    x = np.random.default_rng(1).normal(size=(200, 2))
    best = NAMES[np.argmax(x @ RULE, axis=1)]
    assert np.mean(shared.adapt(np.zeros((0, 2)), []).predict(x) == best) > 0.85


def test_labels_that_mean_nothing_have_no_rule():
    """The same three names in every task, each for another class: nothing is known without a context."""
    rng = np.random.default_rng(2)
    tasks = [(x, NAMES[rng.permutation(3)][np.unique(y, return_inverse=True)[1]]) for x, y in draw_tasks(8, seed=3)]
    meta = MetaGPClassifier(0.0, random_state=0).fit(target_tasks=tasks)
    assert meta.classes_.tolist() == NAMES.tolist()
    p = meta.adapt(np.zeros((0, 2)), []).predict_proba(rng.normal(size=(20, 2)))
    np.testing.assert_allclose(p, 1 / 3, atol=0.1)


def test_tasks_with_classes_of_their_own_may_have_any_number(own):
    assert own.classes_ is None
    rng = np.random.default_rng(4)
    contexts = [(rng.normal(size=(8, 2)), np.arange(8) % k) for k in (2, 5, 8)]
    adapted = own.adapt_many(contexts)
    for (x, y), one, p in zip(contexts, adapted, adapted.predict_proba([x for x, _ in contexts]), strict=True):
        assert p.shape == (8, y.max() + 1)
        np.testing.assert_allclose(p, own.adapt(x, y).predict_proba(x), atol=1e-8)
        np.testing.assert_allclose(p, one.predict_proba(x), atol=1e-8)


def test_a_class_that_the_context_lacks_keeps_some_probability(shared):
    x, y = draw_tasks(1, RULE, seed=5)[0]
    kept = y != "bee"
    p = shared.adapt(x[kept], y[kept]).predict_proba(x)
    assert p.shape == (15, 3)
    assert (p[:, 1] > 0.0).all()


@pytest.mark.parametrize("which", ["shared", "own"])
def test_a_saved_prior_is_the_same(which, request, tmp_path):
    meta = request.getfixturevalue(which)
    meta.save(tmp_path / "one")
    again = load(tmp_path / "one")
    again.save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    x, y = draw_tasks(1, RULE, seed=6)[0]
    for n in (0, 4, 15):
        expected = meta.adapt(x[:n], y[:n], classes=NAMES).predict_log_proba(x)
        np.testing.assert_array_equal(again.adapt(x[:n], y[:n], classes=NAMES).predict_log_proba(x), expected)


@pytest.mark.parametrize("alpha", [1e-6, pytest.param(1.0 - 1e-6, marks=pytest.mark.slow)])
def test_a_weight_of_almost_nothing_is_nothing(alpha):
    """Of the source or the target: the prior is that of the other alone. Held-out tasks weight families otherwise."""
    source, target = draw_tasks(3, RULE, seed=7, n=9), draw_tasks(3, -RULE, seed=8, n=9)
    both = MetaGPClassifier(alpha, random_state=0, calibrate=False).fit(source, target)
    alone = MetaGPClassifier(round(alpha), random_state=0, calibrate=False).fit(source, target)
    x, y = draw_tasks(1, RULE, seed=9)[0]
    p, expected = (meta.adapt(x, y).predict_proba(x) for meta in (both, alone))
    np.testing.assert_allclose(p, expected, atol=0.1)


@pytest.mark.slow
def test_one_sample_in_two_hundred():
    """The rare class is predicted where it is, and is rare elsewhere."""
    rng, tasks = np.random.default_rng(10), []
    for _ in range(3):
        x, y = rng.normal(size=(201, 2)), np.zeros(201, int)
        x[0], y[0] = x[0] + 6.0, 1
        tasks.append((x, y))
    meta = MetaGPClassifier(0.0, random_state=0).fit(target_tasks=tasks)
    p = meta.adapt(*tasks[0]).predict_proba([[0.0, 0.0], [6.0, 6.0]])[:, 1]
    assert p[0] < 0.02
    assert p[1] > 0.5


def test_single_precision_inputs(shared):
    x, y = draw_tasks(1, RULE, seed=11)[0]
    expected = shared.adapt(x, y).predict_proba(x)
    np.testing.assert_allclose(shared.adapt(x.astype(np.float32), y).predict_proba(x), expected, atol=1e-4)
    [found] = shared.adapt_many([(x, y)], dtype="float32").predict_proba([x])
    np.testing.assert_allclose(found, expected, atol=1e-4)
