"""Rows of known tasks are recognized after rounding; tasks that have rows in common by chance are not."""

import numpy as np
import pytest

from metaprior.tasks import row_digests as module
from metaprior.tasks.row_digests import kept_rows, make_grid, recognized, row_digests

RNG = np.random.default_rng(0)


def smooth(n, rows=8, input_dim=2):
    return [(RNG.normal(size=(rows, input_dim)), RNG.normal(size=rows)) for _ in range(n)]


def scores(n, levels=11, rows=5):
    """Integers at five of eight weeks, alike within a task."""
    weeks = [np.sort(RNG.choice(8, rows, replace=False))[:, None].astype(float) for _ in range(n)]
    return [(x, np.clip(np.rint(RNG.normal(levels / 2, levels / 5) + RNG.normal(size=rows)), 0, levels)) for x in weeks]


def digests(tasks, grid):
    x, y = (np.concatenate(parts) for parts in zip(*tasks, strict=True))
    sizes = np.array([len(y) for _, y in tasks])
    tags = np.repeat(RNG.permutation(2**16)[: len(tasks)].astype(np.uint64), sizes)
    return row_digests(x, y, tags, grid), sizes


def seen(tasks, known):
    """Return which tasks are recognized among known ones."""
    columns = np.concatenate([np.column_stack(task) for task in known])
    grid = make_grid(columns.min(axis=0), columns.max(axis=0))
    return recognized(*digests(tasks, grid), kept_rows(digests(known, grid)[0]))


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e300])
@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_changes_in_the_last_digits_are_rounded_away(scale, shift):
    known = [(scale * (x + shift), scale * (y + shift)) for x, y in smooth(200)]
    size = scale * (shift + 1.0)
    changed = [(x + 1e-7 * size * RNG.uniform(-1, 1, x.shape), y + 1e-7 * size) for x, y in known]
    assert seen([(x[::2], y[::2]) for x, y in changed], known).mean() > 0.95
    assert not seen([(x, y + 1e-3 * size) for x, y in known], known).any()


def test_rounding_to_seven_digits_is_recognized_and_to_four_is_not():
    """What docs/promises.md says: unlike in a table of few digits, values lie in the middle of cells of no grid."""
    known = [(RNG.normal(50.0, 15.0, (20, 2)), RNG.normal(80.0, 10.0, 20)) for _ in range(100)]  # up to 100 or so
    shares = [seen([(x.round(n - 2), y.round(n - 2)) for x, y in known], known).mean() for n in (7, 6, 4)]
    assert shares[0] > 0.98
    assert shares[1] > 0.9
    assert shares[2] < 0.02


def test_a_constant_column_is_in_the_middle_of_a_cell():
    for value in RNG.normal(size=50):
        known = [(np.full((5, 1), value), RNG.normal(size=5)) for _ in range(10)]
        assert seen([(x.astype(np.float32).astype(float), y) for x, y in known], known).mean() > 0.8


def test_nothing_is_known_of_no_rows_and_an_image_is_told_by_some_of_its_pixels():
    assert not recognized(np.arange(4, dtype=np.uint64), np.array([4]), np.empty(0, np.uint64)).any()
    known = smooth(20, rows=5, input_dim=3000)
    assert seen([(x.astype(np.float32).astype(float), y) for x, y in known], known).mean() > 0.5


def test_a_few_rows_or_rows_of_different_tasks_are_no_evidence():
    known = smooth(50)
    x, y = (np.stack(parts) for parts in zip(*known, strict=True))
    assert not seen([(x[0, :3], y[0, :3])], known).any()
    assert not seen([(np.repeat(x[0, :1], 9, axis=0), np.repeat(y[0, :1], 9))], known).any()  # one row, repeated
    assert not seen([(x[:8, 0], y[:8, 0])], known).any()
    half = np.concatenate([x[0, :4], 9.0 + x[1, :4]]), np.concatenate([y[0, :4], y[1, :4]])
    assert not seen([half], known).any()
    assert seen([(x[0, :4], y[0, :4])], known).all()


@pytest.mark.parametrize("n_known", [6, 30, 300])
@pytest.mark.parametrize("levels", [5, 11, 101])
def test_new_tasks_of_integers_are_not_taken_for_known_ones(n_known, levels):
    assert seen(scores(2000, levels), scores(n_known, levels)).mean() < 0.002


def test_of_many_rows_a_sample_is_kept_and_suffices(monkeypatch):
    monkeypatch.setattr(module, "MAX_ROWS", 1000)
    known = smooth(100, rows=60)
    assert seen([(x[:40], y[:40]) for x, y in known], known).mean() > 0.7  # of 40 rows about seven are compared
    assert not seen(smooth(100, rows=60), known).any()
