"""Digests of tasks: the same for the same readings in any order, different for anything else."""

import numpy as np
import pytest

from metaprior.estimators import seen_tasks
from metaprior.estimators.seen_tasks import kept_digests
from metaprior.tasks.types import digest, row_hashes, sum_rows

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(6, 2)), RNG.normal(size=6)


def of(x, y):
    sizes = np.array([len(y)])
    return int(digest(sum_rows(row_hashes(x, y), sizes), sizes)[0])


def test_the_order_of_readings_and_the_sign_of_zero_do_not_matter():
    order = RNG.permutation(6)
    assert of(X, Y) == of(X[order], Y[order])
    assert of(np.array([[0.0]]), np.array([-0.0])) == of(np.array([[-0.0]]), np.array([0.0]))
    assert of(np.array([[1], [2]]), np.array([3, 4])) == of(np.array([[1.0], [2.0]]), np.array([3.0, 4.0]))


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (X[:, ::-1], Y),  # columns have an order
        (X, Y[::-1]),
        (X[:5], Y[:5]),
        (np.concatenate([X, X]), np.concatenate([Y, Y])),
        (X + np.eye(6, 2) * 1e-15, Y),
        (X, np.where(np.arange(6) == 3, np.nextafter(Y, 9.0), Y)),
    ],
)
def test_anything_else_changes_the_digest(x, y):
    assert of(x, y) != of(X, Y)


def test_many_tasks_at_once_are_as_one_by_one_and_parts_add_up():
    sizes = np.array([1, 0, 3, 2])
    sums = sum_rows(row_hashes(X, Y), sizes)
    ends = np.cumsum(sizes)
    singles = [of(X[end - size : end], Y[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
    assert digest(sums, sizes).tolist() == singles
    assert int(digest(sums.sum(keepdims=True), sizes.sum(keepdims=True))[0]) == of(X, Y)


def test_similar_tasks_do_not_collide():
    n = 100_000
    x, y = np.arange(n, dtype=float)[:, None] % 7, np.arange(n, dtype=float) // 7
    assert len(kept_digests(digest(row_hashes(x, y), np.ones(n, int)))) == n


def test_of_too_many_digests_the_smallest_are_kept_whatever_the_order(monkeypatch):
    monkeypatch.setattr(seen_tasks, "MAX_DIGESTS", 5)
    many = row_hashes(RNG.normal(size=(40, 1)), np.zeros(40))
    in_blocks = np.empty(0, np.uint64)
    for block in many[RNG.permutation(40)].reshape(4, 10):
        in_blocks = kept_digests(np.concatenate([in_blocks, block]))
    assert in_blocks.tolist() == sorted(many.tolist())[:5] == kept_digests(many).tolist()
