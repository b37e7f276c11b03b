"""Readings of a context that the prior cannot explain are told, wherever contexts enter; honest ones are not."""

import warnings

import numpy as np
import pandas as pd
import pytest

from metaprior import ImplausibleContextWarning, MetaGPRegressor, predict_frame
from metaprior.prediction.batches import Posteriors
from metaprior.prediction.plausibility import MAX_ERROR, _errors, _extremes, context_errors
from metaprior.tasks.padding import Ragged

RNG = np.random.default_rng(0)


def make_task(n=6, noise=0.1):
    x = RNG.uniform(0.0, 5.0, n)
    return x[:, None], 20.0 + RNG.normal() + np.sin(x) + noise * RNG.standard_t(3, n)  # heavy tails


HONEST = [make_task(12) for _ in range(200)]
ABSURD, CONTRADICTING = ([[1.0], [1.0]], [18.0, 99999999.0]), ([[2.0], [1.0], [2.0]], [14.0, 20.0, 26.0])


@pytest.fixture(scope="module")
def meta():
    return MetaGPRegressor(alpha=0.3, random_state=0).fit(*([make_task() for _ in range(n)] for n in (6, 4)))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda meta, x, y: meta.adapt(x, y), "^Readings are far .*: in adapt, at X"),
        (
            lambda meta, x, y: meta.adapt_many([*HONEST[:3], (x, y)]),
            r"^Readings of 1 of 4 tasks .*: in contexts\[3\], at X",
        ),
        (lambda meta, x, y: meta.predict_many([(x, y, [[1.0]])]), r": in tasks\[0\] context, at X"),
        (lambda meta, x, y: meta.evaluate([(x, y, *HONEST[0])]), r": in test_tasks\[0\] context, at X"),
        (lambda meta, x, y: meta.score([(x, y, *HONEST[0])]), r": in test_tasks\[0\] context, at X"),
        (
            lambda meta, x, y: predict_frame(
                meta,
                pd.DataFrame({"id": "a", "t": np.ravel(x), "y": y}),
                pd.DataFrame({"id": ["a"], "t": [1.0]}),
                **{"task": "id", "x": "t", "y": "y"},
            ),
            ": in the context of task 'a', at X",
        ),
    ],
)
@pytest.mark.parametrize(
    ("context", "values"),
    [
        (ABSURD, r"= \[1\.\], y is 99999999 where the prior expects 20\."),
        (CONTRADICTING, r"= \[2\.\], y is both 14 and 26, "),
    ],
)
def test_absurd_readings_are_told_once_wherever_they_enter(meta, call, said, context, values):
    with pytest.warns(ImplausibleContextWarning, match=f"{said} {values}") as caught:
        call(meta, *context)
    assert len([each for each in caught if each.category is ImplausibleContextWarning]) == 1


def test_honest_readings_are_far_from_the_limit(meta):
    x, y = Ragged.of([x for x, _ in HONEST], (1,)), Ragged.of([y for _, y in HONEST])
    found = context_errors(Posteriors(meta.model_, x, y))
    assert found.errors.max() < MAX_ERROR / 2
    assert found.gaps.max() == 0.0  # no input occurs twice
    assert 0.05 < _errors(meta.model_, x, y)[2] < 1.0  # the noise
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        meta.adapt_many(HONEST)
        meta.adapt(np.repeat(x.rows[:5], 2, axis=0), np.repeat(y.rows[:5], 2))  # repeated, not contradicting
        meta.adapt([], [])


def test_errors_are_those_of_the_prior_predictive(meta):
    """Of every row on its own, also of more rows than are predicted at once; the best component counts."""
    x = Ragged.of([x for x, _ in HONEST[:30]], (1,))
    y = Ragged.of([y for _, y in HONEST[:30]])
    errors, _, _ = _errors(meta.model_, x, y)
    predictive = meta.adapt([], []).predictive(x.rows[:-1])
    expected = np.abs(y.rows[:-1] - predictive.means) / np.sqrt(predictive.variances)
    np.testing.assert_allclose(errors, expected.min(axis=0), rtol=1e-9)


def test_extremes_of_repeated_points():
    point = np.array([7, 3, 7, 3, 9, 7], np.uint64)
    lowest, highest = _extremes(point, np.array([1.0, 5.0, -2.0, 4.0, 8.0, 0.0]))
    assert lowest.tolist() == [-2.0, 4.0, -2.0, 4.0, 8.0, -2.0]
    assert highest.tolist() == [1.0, 5.0, 1.0, 5.0, 8.0, 1.0]
