"""Contexts that are hard to condition on: at any distance, repeated, collinear, contradicting each other.

Predictions must be finite and equal whether a task comes alone or among others, for every kernel, likelihood and dtype.
`make test` tries a few hundred tasks, `make test-all` 20,000.
"""

import warnings
from functools import cache
from unittest import mock

import numpy as np
import pytest
from arrangements import arrange
from counters import count
from sklearn.exceptions import ConvergenceWarning

from metaprior import ExtrapolationWarning, ImplausibleContextWarning, MetaGPRegressor
from metaprior.predict import batches
from metaprior.wfem import Gaussian, Training, WFEMClassifier, WFEMRegressor

KERNELS = ["rbf", "linear+rbf", "linear", "mlp"]
TOGETHER = 12  # tasks of one `adapt_many`, always padded alike
EQUAL = {"float64": 0.02, "float32": 0.2}  # relative to the standard deviation and the size of the numbers; most 1e-4
HARD = 1e-9  # noise, far below what double precision can resolve
UNTRAINED = {"alpha": 0.0, "training": Training(n_steps=0), "random_state": 0}
SINGLE = {"noise_std": 0.1, "farthest": 1e8}  # float32 resolves no less noise, and refuses what is far away
WIDENED = "linear+rbf"  # grows: from ten standard deviations on, bands of float32 are wider


@cache
def fitted(kernel, labels, noise_std):
    """Return an untrained prior, or the default's: training would only move the scales."""
    rng = np.random.default_rng(0)
    tasks = [(x := rng.normal(size=(8, 2)), np.sin(x[:, 0]) + x @ rng.normal(size=2)) for _ in range(6)]
    if labels:
        tasks = [(x, (y > 0).astype(int)) for x, y in tasks]
        return WFEMClassifier(kernel, **UNTRAINED).fit(target_tasks=tasks)
    if kernel is None:
        return MetaGPRegressor(0.0, noise_std=noise_std, random_state=0).fit(target_tasks=tasks)
    return WFEMRegressor(kernel, likelihood=Gaussian(noise_std=noise_std), **UNTRAINED).fit(target_tasks=tasks)


def draw_task(rng, labels, farthest):
    """Draw a context, arranged in some unfortunate way, and inputs to predict."""
    n = int(rng.integers(0, 13))
    x, new = rng.normal(size=(n, 2)), rng.normal(size=(5, 2))
    arrangement = rng.choice(["plain", "twice", "nearly twice", "collinear", "one point", "clusters"])
    x = arrange(rng, x, arrangement)
    scale = 10.0 ** rng.uniform(-20, 60) if rng.random() < 0.5 else 10.0 ** rng.uniform(0, 12)
    scale = min(scale, farthest)
    where = rng.choice(["nothing", "one sample", "context", "queries", "everything", "one column"])
    x[: 1 if where == "one sample" else n] *= scale if where in ("one sample", "context", "everything") else 1.0
    x[:, 0] *= scale if where == "one column" else 1.0
    new *= scale if where in ("queries", "everything") else 1.0
    new[: min(n, 2)] = x[: min(n, 2)]  # where the variance vanishes
    y = rng.choice([rng.normal(size=n), np.zeros(n), np.resize([-1e3, 1e3], n), x[:, 0] / max(scale, 1.0)])
    return x, (y > 0).astype(int) if labels else y, new


def predicted(adapted, new, labels):
    """Return mean and standard deviation, or log probabilities, one row each."""
    if labels:
        return np.moveaxis(np.asarray(adapted.predict_log_proba(new)), -1, 0)
    return np.array(adapted.predict(new, return_std=True))


def attack(kernel, labels, dtype, n_tasks, seed=0, noise_std=HARD, farthest=np.inf):
    """Adapt to tasks one by one, and together with samples in another order; count and compare."""
    meta = fitted(kernel, labels, noise_std)
    rng = np.random.default_rng(seed)
    widened = dtype == "float32" and kernel == WIDENED
    for _ in range(n_tasks // TOGETHER):
        far = farthest if dtype == "float64" else farthest ** rng.uniform() ** 2  # larger ones are refused
        tasks = [draw_task(rng, labels, far) for _ in range(TOGETHER)]
        orders, queries = [rng.permutation(len(y)) for _, y, _ in tasks], [new for *_, new in tasks]
        contexts = [(x[order], y[order]) for (x, y, _), order in zip(tasks, orders, strict=True)]
        pair = {"classes": [0, 1]} if labels else {}
        with (
            warnings.catch_warnings(record=True) as warned,
            mock.patch.object(batches, "SMALL", 16),
        ):  # compiles sooner than 128
            for expected in (ExtrapolationWarning, ImplausibleContextWarning):  # they do, and they are
                warnings.simplefilter("ignore", expected)
            warnings.simplefilter("always", ConvergenceWarning)
            alone = np.stack([predicted(meta.adapt(x, y, **pair), new, labels) for x, y, new in tasks], axis=1)
            try:
                many = predicted(meta.adapt_many(contexts, **pair, dtype=dtype), queries, labels)
            except ValueError as error:
                assert "dtype='float32' cannot resolve values 1000 standard deviations" in str(error)  # noqa: PT017
                assert dtype == "float32"
                assert far > 100.0
                count("ill-conditioned tasks", "refused in float32", TOGETHER)
                continue
        assert np.isfinite([alone, many]).all()
        if warned:  # that a task is inexact, which is not silent; hardly ever
            count("ill-conditioned tasks", "with a warning", TOGETHER)
            continue
        sizes = [np.max(np.abs(y), initial=1.0) * np.maximum(np.abs(new).max(axis=1), 1.0) for _, y, new in tasks]
        check(many, alone, labels, np.array(sizes), EQUAL[dtype], widened)
        count("ill-conditioned tasks", "equal alone and together", TOGETHER)


def check(many, alone, labels, sizes, tolerance, widened=False):
    """Values are (2, tasks, queries); sizes those of lines with slopes as large as y. Bands may be wider if widened."""
    if labels:
        assert (alone <= 0.0).all()
        np.testing.assert_allclose(np.exp(alone).sum(axis=0), 1.0, atol=1e-6)
        np.testing.assert_allclose(np.exp(many), np.exp(alone), atol=tolerance)
        return
    means, stds = alone
    assert (stds > 0.0).all()
    assert (np.abs(many[0] - means) <= tolerance * (stds + np.abs(means) + sizes)).all()
    assert (many[1] >= (1.0 - tolerance) * stds).all()
    assert widened or (many[1] <= (1.0 + tolerance) * stds).all()


@pytest.mark.parametrize("labels", [False, True], ids=["gaussian", "bernoulli"])
def test_hard_contexts_alone_and_among_others(labels):
    attack("linear+rbf", labels, "float64", 96)


def test_hard_contexts_in_single_precision():
    attack("linear+rbf", False, "float32", 96, **SINGLE)


def test_hard_contexts_with_the_default():
    attack(None, False, "float64", 120)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("labels", [False, True], ids=["gaussian", "bernoulli"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_20_000_hard_contexts(kernel, labels, dtype):
    attack(kernel, labels, dtype, 960, seed=1, **(SINGLE if dtype == "float32" else {}))


@pytest.mark.slow
def test_20_000_hard_contexts_with_the_default():
    attack(None, False, "float64", 1200, seed=1)
