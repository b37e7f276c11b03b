"""Contexts of thousands of labels: some of them are used, the same however one asks, and users are told."""

import time
import warnings

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from metaprior import MetaGPClassifier
from metaprior.prior import label_prior
from metaprior.prior.label_prior import LabelPrior

RULE = np.random.default_rng(0).normal(size=(2, 5))


def draw_tasks(n_tasks, n, n_classes, seed):
    """Tasks of classes that are about as frequent, told apart by a rule of each task."""
    rng, tasks = np.random.default_rng(seed), []
    for _ in range(n_tasks):
        x = rng.normal(size=(n, 2))
        t = x @ (RULE + 0.5 * rng.normal(size=RULE.shape))[:, :n_classes]
        tasks.append((x, np.argmax(2.0 * t + rng.gumbel(size=t.shape), axis=1)))
    return tasks


@pytest.fixture(scope="module", params=[2, 5], ids=["two classes", "five classes"])
def fitted(request):
    meta = MetaGPClassifier(0.0, random_state=0, search_time=2.0)
    with warnings.catch_warnings(action="ignore"):  # of a comparison cut short
        return meta.fit(target_tasks=draw_tasks(6, 20, request.param, seed=1)), request.param


@pytest.fixture
def few(monkeypatch):
    """At most 200 labels of two classes, or 100 of five."""
    monkeypatch.setattr(label_prior, "MAX_WORK", label_prior.MAX_WORK * (0.11**3))


def test_how_many_labels_are_used():
    most = LabelPrior.most_labels(None, np.array([2, 3, 5, 10, 100]))
    assert most.tolist() == [2000, 1200, 1000, 800, 400]
    assert most.dtype.kind == "i"


def test_the_same_labels_alone_among_others_and_in_any_order(fitted, few):
    meta, n_classes = fitted
    most = int(meta.model_.members[0].most_labels(np.array([n_classes]))[0])
    (x, y), *others = draw_tasks(3, 450, n_classes, seed=2)
    y[:-1] = np.minimum(y[:-1], n_classes - 2)  # one label of the last class, the last of all
    y[-1], order = n_classes - 1, np.random.default_rng(3).permutation(450)
    used = rf"A context has 450 labels: predictions use {most} of them.* at most {most} labels of a task\.$"
    with pytest.warns(UserWarning, match=used) as told:
        alone = meta.adapt(x, y)
    assert len(told) == 1
    with warnings.catch_warnings(action="error"):  # told once
        expected = alone.predict_proba(x[:50])
    assert f"({most} labels as context" in repr(alone)
    with pytest.warns(
        UserWarning, match=rf"3 contexts have up to 450 labels, 1,350 in all: predictions use {3 * most} "
    ):
        together = meta.adapt_many([others[0], (x[order], y[order]), (x[:30], y[:30]), others[1]])
    np.testing.assert_allclose(together.predict_proba([x[:50]] * 4)[1], expected, atol=1e-9)
    with warnings.catch_warnings(action="error"):
        np.testing.assert_allclose(together[1].predict_proba(x[:50]), expected, atol=1e-9)
        assert len(together[2].predict(x[:9])) == 9
    np.testing.assert_array_equal(np.unique(alone._posteriors.y[0]), np.unique(y))  # the rare class too
    assert not np.allclose(expected, meta.adapt(x[:most], y[:most]).predict_proba(x[:50]), atol=1e-3)


def test_labels_of_small_contexts_are_all_used(fitted, few):
    meta, n_classes = fitted
    x, y = draw_tasks(1, 100, n_classes, seed=4)[0]
    with warnings.catch_warnings(action="error"):
        assert meta.adapt(x, y)._posteriors.x.n_rows == 100


def test_evaluate_and_predict_many_use_the_same_labels(fitted, few):
    meta, n_classes = fitted
    (x, y), *_ = draw_tasks(1, 400, n_classes, seed=5)
    with pytest.warns(UserWarning, match="A context has 300 labels"):
        expected = meta.adapt(x[:300], y[:300]).predict_proba(x[300:])
    with pytest.warns(UserWarning, match="A context has 300 labels"):
        scores = meta.evaluate([(x[:300], y[:300], x[300:], y[300:])])
    assert scores.log_loss == pytest.approx(-np.mean(np.log(expected[np.arange(100), y[300:]])))
    with pytest.warns(UserWarning, match="A context has 300 labels"):
        [found] = meta.predict_many([(x[:300], y[:300], x[300:])])
    np.testing.assert_array_equal(found, np.argmax(expected, axis=1))


def test_many_large_contexts_are_announced(fitted, monkeypatch):
    meta, n_classes = fitted
    conditioned = []
    monkeypatch.setattr(LabelPrior, "condition_labels", lambda *given: conditioned.append(given) or 1 / 0)
    x, y = draw_tasks(1, 1000, n_classes, seed=6)[0]
    announced = r"400 contexts of up to 1,000 labels will take about \d+ minutes on one core"
    with pytest.warns(UserWarning, match=announced), pytest.raises(ZeroDivisionError):
        meta.adapt_many([(x, y)] * 400).predict([x[:1]] * 400)
    with warnings.catch_warnings(action="error"), pytest.raises(ZeroDivisionError):
        meta.adapt(x, y).predict(x[:1])
    assert len(conditioned) == 2


@pytest.mark.slow
def test_5000_labels_take_seconds_and_predict_better_than_100(fitted):
    """The quicker relatives lower the limit."""
    meta, n_classes = fitted
    x, y = draw_tasks(1, 9000, n_classes, seed=7)[0]
    start = time.process_time()
    with pytest.warns(UserWarning, match="A context has 5,000 labels"):
        adapted = meta.adapt(x[:5000], y[:5000])
    with threadpool_limits(1, user_api="blas"):  # threads that wait for each other on a busy machine count as well
        log_p = adapted.predict_log_proba(x[5000:])
    assert time.process_time() - start < 60.0  # took 3 and 15 s
    fewer = meta.adapt(x[:100], y[:100]).predict_log_proba(x[5000:])  # beyond 500 little is gained here
    assert np.mean(log_p[np.arange(4000), y[5000:]]) > np.mean(fewer[np.arange(4000), y[5000:]])
