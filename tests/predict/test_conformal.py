"""Conformal intervals: the weighted quantile against brute force, validity on exchangeable groups, and limits."""

import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hand_made_priors import make_prior
from metaprior.predict import conformal
from metaprior.predict.conformal import (
    Conformal,
    Fold,
    combine,
    equal_folds,
    floored,
    held_out_scores,
    rounded_up,
    score,
)
from metaprior.predict.ensemble import Ensemble
from metaprior.tasks.splits import ContextRule
from metaprior.tasks.types import TestTask

NOTHING = Ensemble((), np.empty(0))
RULE = ContextRule()


def make_folds(sizes, rng):
    """Folds with one task each, of as many readings, whose scores are multiples of a quarter: there are ties."""
    return [Fold(NOTHING, np.sort(rng.integers(0, 12, n) / 4), np.full(n, 1.0 / n)) for n in sizes]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 10_000), st.integers(1, 99))
def test_the_band_is_the_weighted_quantile_of_its_definition(sizes, seed, percent):
    """In exact arithmetic: each task has mass 1 / (K + 1), shared by its readings, and the rest is at infinity."""
    rng, n_tasks, level = np.random.default_rng(seed), len(sizes), Fraction(percent, 100)
    folds = make_folds(sizes, rng)
    bands = np.sort(rng.integers(-8, 9, (n_tasks, 3, 4)) / 2.0, axis=1) + np.array([-1.0, 0.0, 1.0])[:, None]
    conformal = Conformal(tuple(folds), n_tasks, RULE)
    if level > Fraction(n_tasks, n_tasks + 1):
        with pytest.raises(ValueError, match="out of reach"):
            conformal.mass(float(level))
        return
    found = combine(bands, folds, conformal.mass(float(level)))
    for row in range(4):
        uppers, lowers, masses = [], [], []
        for fold, (lower, median, upper) in zip(folds, bands[:, :, row], strict=True):
            for each in fold.scores:
                uppers.append(median + each * (upper - median))
                lowers.append(median - each * (median - lower))
                masses.append(Fraction(1, (n_tasks + 1) * len(fold.scores)))
        top = min(u for u in uppers if sum(m for m, v in zip(masses, uppers, strict=True) if v <= u) >= level)
        bottom = max(u for u in lowers if sum(m for m, v in zip(masses, lowers, strict=True) if v >= u) >= level)
        np.testing.assert_allclose(found[:, row], sorted((bottom, top)), atol=1e-12)


def simulate_band(n_tasks, n_folds, rng, skewed):
    """Return whether a reading of a new task is inside the 90% band of a model that knows other tasks' mean alone.

    Tasks differ far more than readings of one task, so that readings are anything but exchangeable.
    """
    draw = rng.exponential if skewed else rng.standard_normal
    levels, sizes = draw(size=n_tasks + 1), rng.integers(1, 6, n_tasks + 1)
    tasks = [level + 0.2 * draw(size=size) for level, size in zip(levels, sizes, strict=True)]
    folds, bands = [], []
    for own in np.split(rng.permutation(n_tasks), n_folds):
        center = np.mean([tasks[i].mean() for i in range(n_tasks) if i not in own])
        band = np.array([center - 1.0, center, center + 1.0])
        scores = np.concatenate([score(tasks[i], band[:, None]) for i in own])
        weights = np.concatenate([np.full(sizes[i], 1.0 / sizes[i]) for i in own])
        folds.append(Fold(NOTHING, *rounded_up(scores, weights)))
        bands.append(band[:, None])
    conformal = Conformal(tuple(folds), n_tasks, RULE)
    lower, upper = combine(np.array(bands), folds, conformal.mass(0.9))
    return lower[0] <= tasks[-1][0] <= upper[0]


@pytest.mark.parametrize(("n_tasks", "n_folds", "skewed"), [(9, 9, False), (20, 10, True), (30, 6, False)])
def test_nine_of_ten_readings_of_new_tasks_are_inside(n_tasks, n_folds, skewed):
    rng, n = np.random.default_rng(n_tasks), 600
    inside = np.mean([simulate_band(n_tasks, n_folds, rng, skewed) for _ in range(n)])
    error = np.sqrt(0.9 * 0.1 / n)
    assert inside > 0.9 - 3.0 * error
    assert inside < 0.9 + 2.0 / (n_tasks + 1) + 3.0 * error  # nor are bands wider than the number of tasks demands


def test_scores_beyond_a_number_are_rounded_up_only():
    rng = np.random.default_rng(0)
    scores, weights = rng.exponential(size=3000), rng.uniform(0.5, 1.5, 3000)
    kept, masses = rounded_up(scores, weights, 100)
    assert len(kept) <= 100
    assert (np.diff(kept) > 0).all()
    assert masses.sum() == pytest.approx(weights.sum())
    for level in (0.1, 0.5, 0.9, 0.99, 0.999):
        order = np.argsort(scores)
        exact = scores[order][np.searchsorted(np.cumsum(weights[order]), level * weights.sum())]
        rounded = kept[np.searchsorted(np.cumsum(masses), level * weights.sum())]
        assert exact <= rounded <= 1.25 * exact + 0.05


def test_with_few_tasks_the_highest_level_is_named():
    conformal = Conformal((), 8, RULE)
    assert conformal.mass(8 / 9) == pytest.approx(8.0)
    with pytest.raises(ValueError, match=r"8 held-out target tasks has a coverage of at most 0.888\..*fit with 9 "):
        conformal.mass(0.9)
    assert Conformal((), 9, RULE).mass(0.9) == pytest.approx(9.0)
    with pytest.raises(ValueError, match="coverage must lie strictly between 0 and 1; got 1"):
        conformal.mass(1)
    assert [floored(level) for level in (8 / 9, 0.9, 2 / 3, 0.9996)] == ["0.888", "0.9", "0.666", "0.999"]


def test_what_is_proven_is_that_of_the_papers():
    alone = Conformal((Fold(NOTHING, np.zeros(1), np.ones(1)),) * 20, 20, RULE)
    assert alone.proven(0.9) == pytest.approx(1 - 2 * 0.1 + 1 / 21)  # jackknife+, a little more than 1 - 2 alpha
    fives = alone._replace(folds=alone.folds[:10], n_tasks=50)
    assert 1 - 2 * 0.1 - (1 - 10 / 50) / 11 <= fives.proven(0.9) < 0.8  # theorem 4 of Barber et al.
    large = alone._replace(folds=alone.folds[:2], n_tasks=1000)
    assert large.proven(0.9) >= 1 - 2 * 0.1 - 2 * (1 - 1 / 2) / (1000 / 2 + 1)


def test_the_table_of_the_documentation_is_what_is_proven():
    """The formula of docs/conformal.md, for the folds that a fit makes; it is never below that of Barber et al."""
    page = (Path(__file__).parents[2] / "docs" / "conformal.md").read_text()
    rows = [
        re.findall(r"[\d.]+", row)
        for row in re.findall(r"^\| (?:target tasks|proven for|90% is proven for) .*", page, re.M)
    ]
    for n, proven, nominal in zip(rows[0], rows[1][1:], rows[2][1:], strict=True):
        assert math.floor(1000 * proven_for(int(n), 0.9) + 1e-9) / 10 == float(proven)
        assert proven_for(int(n), float(nominal) / 100) == pytest.approx(0.9, abs=0.003)
    of_ninety = [proven_for(n, 0.9) for n in range(9, 301)]
    assert [f"{level:.3f}" for level in (min(of_ninety), max(of_ninety), max(of_ninety[3:]))] == [
        "0.705",
        "0.900",
        "0.814",
    ]


def proven_for(n_tasks, coverage):
    n_folds, size = equal_folds(n_tasks)
    k, a = n_folds * size, 1 - coverage
    expected = 1 - min((size + 2 * (a * (k + 1) - 1)) / (k + size), 2 * (a * (k + 1) + n_folds - 1) / (k + n_folds))
    barber = 1 - 2 * a - min(2 * (1 - 1 / n_folds) / (k / n_folds + 1), (1 - n_folds / k) / (n_folds + 1))
    folds = (Fold(NOTHING, np.zeros(1), np.ones(1)),) * n_folds
    assert Conformal(folds, k, RULE).proven(coverage) == pytest.approx(expected)
    assert expected >= barber
    return expected


def test_a_score_is_relative_to_the_nearer_end_and_never_divides_by_zero():
    band = np.array([[0.0, 2.0, 5.0], [1.0, 2.0, 5.0], [4.0, 3.0, 5.0]])
    np.testing.assert_allclose(score(np.array([0.5, 3.0, 5.0]), band), [0.5, 1.0, 0.0])
    assert score(np.array([-2.0, 2.0, 5.0]), band)[0] == 3.0
    assert np.isfinite(score(np.array([0.0, 0.0, 6.0]), band)).all()


def test_splits_of_a_task_have_equal_shares_of_it():
    model, rng = Ensemble((make_prior(),), np.ones(1)), np.random.default_rng(0)
    split = lambda n: TestTask(np.zeros((0, 1)), np.empty(0), rng.normal(size=(n, 1)), rng.normal(size=n))  # noqa: E731
    scores, weights = held_out_scores(model, [[split(1), split(4)], [split(2)]])
    assert len(scores) == 7
    assert sorted(weights) == pytest.approx([1 / 8] * 4 + [1 / 2] * 3)
    assert (np.diff(scores) >= 0).all()


def test_many_rows_are_computed_in_parts(monkeypatch):
    rng = np.random.default_rng(1)
    folds = make_folds([3, 4, 2], rng)
    bands = np.sort(rng.normal(size=(3, 3, 50)), axis=1)
    whole = combine(bands, folds, 2.7)
    monkeypatch.setattr(conformal, "CHUNK_NUMBERS", 20)
    np.testing.assert_array_equal(combine(bands, folds, 2.7), whole)
