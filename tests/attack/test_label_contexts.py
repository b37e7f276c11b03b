"""Labels of the default's priors at inputs and scales of any size: probabilities, alone as among others.

Contexts are repeated, collinear or contradicting, up to 1e60 standard deviations away, with two to twelve classes of
which some are missing, under latent functions of standard deviations from 1e-3 to 1e3. `make test` tries a hundred
of them, `make test-all` 5,000.
"""

import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from arrangements import arrange
from counters import count
from sklearn.exceptions import ConvergenceWarning

from metaprior import ExtrapolationWarning, MetaGPClassifier

TOGETHER = 8  # tasks of one `adapt_many`
# Probabilities alone and together. Most agree to 1e-9; at extreme scales variances are up to 1e13.
EQUAL, EQUAL_AT_SCALES = 1e-5, 1e-4
KINDS = {"two classes": (2, True), "a common rule": (3, True), "classes of their own": (4, False)}


@cache
def fitted(kind):
    """Return a prior of tasks that share their classes and a rule for them, or have classes and rules of their own."""
    n_classes, shared = KINDS[kind]
    rng = np.random.default_rng(0)
    rule, tasks = 2.0 * rng.normal(size=(2, n_classes)), []
    for i in range(5):
        x = rng.normal(size=(4 * n_classes, 2))
        of_task = rule if shared else 2.0 * rng.normal(size=rule.shape)
        y = np.argmax(x @ of_task + 0.5 * rng.normal(size=(len(x), n_classes)), axis=1)
        tasks.append((x, y if shared else np.array([f"{i}{name}" for name in "abcd"])[y]))
    return MetaGPClassifier(0.0, random_state=0).fit(target_tasks=tasks)


def rescaled(meta, rng):
    """Return the prior with latent functions and length scales up to a thousand times as large or small."""
    members = []
    for member in meta.model_.members:
        layout, theta = member.terms.layout, member.terms.theta.copy()
        names = [name for name in ("line", "deviation", "lengths") if name in layout.places]
        for name in names:
            theta[layout.places[name]] = np.log(10.0) * rng.uniform(-3.0, 3.0)
        members.append(replace(member, terms=replace(member.terms, theta=theta), ratio=float(rng.integers(0, 2))))
    changed = MetaGPClassifier()
    changed.__dict__.update({**meta.__dict__, "model_": meta.model_._replace(members=members)})
    return changed


def draw_task(rng, n_classes):
    """Draw a context, arranged in some unfortunate way, and inputs to predict."""
    n = int(rng.integers(0, 13))
    x, new = rng.normal(size=(n, 2)), rng.normal(size=(4, 2))
    arrangement = rng.choice(["plain", "twice", "nearly twice", "collinear", "one point"])
    x = arrange(rng, x, arrangement)
    scale = 10.0 ** rng.uniform(-20, 60) if rng.random() < 0.5 else 10.0 ** rng.uniform(0, 4)
    where = rng.choice(["nothing", "one sample", "context", "queries", "everything", "one column"])
    x[: 1 if where == "one sample" else n] *= scale if where in ("one sample", "context", "everything") else 1.0
    x[:, 0] *= scale if where == "one column" else 1.0
    new *= scale if where in ("queries", "everything") else 1.0
    new[: min(n, 2)] = x[: min(n, 2)]
    separable = np.searchsorted(np.quantile(x[:, 0], np.arange(1, n_classes) / n_classes), x[:, 0]) if n else []
    y = [rng.integers(0, n_classes, n), np.zeros(n, int), np.asarray(separable, int)][rng.integers(3)]
    return x, y, new


def attack(kind, n_tasks, seed=0, scales=False):
    """Adapt to tasks one by one, and together with samples in another order; count and compare."""
    rng, (n_shared, shared) = np.random.default_rng(seed), KINDS[kind]
    for _ in range(n_tasks // TOGETHER):
        meta = rescaled(fitted(kind), rng) if scales else fitted(kind)
        numbers = np.full(TOGETHER, n_shared) if shared else rng.integers(2, 13, TOGETHER)
        tasks = [draw_task(rng, k) for k in numbers.tolist()]
        orders = [rng.permutation(len(y)) for _, y, _ in tasks]
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("ignore", ExtrapolationWarning)
            warnings.simplefilter("always", ConvergenceWarning)
            alone = [meta.adapt(x, y).predict_proba(new) for x, y, new in tasks]
            contexts = [(x[order], y[order]) for (x, y, _), order in zip(tasks, orders, strict=True)]
            adapted = meta.adapt_many(contexts)
            many = adapted.predict_proba([new for *_, new in tasks])
            logs = adapted.predict_log_proba([new for *_, new in tasks])
        for one, of_many, log_p in zip(alone, many, logs, strict=True):
            for p in (one, of_many):
                assert ((p >= 0.0) & (p <= 1.0)).all()  # NaN is neither
                np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-9)
            assert (log_p <= 1e-9).all()
            assert not np.isnan(log_p).any()
        if warned:
            count("hard contexts of labels", "with a warning", TOGETHER)
            continue
        for one, of_many in zip(alone, many, strict=True):
            np.testing.assert_allclose(of_many, one, atol=EQUAL_AT_SCALES if scales else EQUAL)
        count("hard contexts of labels", "equal alone and together", TOGETHER)


@pytest.mark.parametrize("kind", KINDS)
def test_hard_contexts_of_labels(kind):
    attack(kind, 24)


def test_hard_contexts_of_labels_at_extreme_scales():
    attack("classes of their own", 48, scales=True)


@pytest.mark.slow
@pytest.mark.parametrize("scales", [False, True], ids=["fitted scales", "extreme scales"])
@pytest.mark.parametrize("kind", KINDS)
def test_5_000_hard_contexts_of_labels(kind, scales):
    attack(kind, 840, seed=1, scales=scales)
