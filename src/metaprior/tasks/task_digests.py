"""Digests of tasks: eight bytes that tell a task by its readings, in whatever order these come.

They are sums of hashes of the rows, so many tasks are digested at once, and the digest of a task that is split into
context and queries follows from its parts. The hash is splitmix64 (Steele et al., 2014): quick, and not meant to
withstand someone who makes tasks to collide.
"""

import numpy as np

MAX_DIGESTS = 100_000  # kept of a fit: 0.8 MB


def row_hashes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return a hash of every row of x (rows, input_dim) and y (rows,), as unsigned 64-bit integers."""
    hashes = np.zeros(len(y), np.uint64)
    for column in (*x.T, y):
        values = np.asarray(column, np.float64) + 0.0  # -0.0 becomes 0.0
        hashes = _mix(hashes ^ values.view(np.uint64))
    return hashes


def sum_rows(hashes: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the sum of the hashes of each task, modulo 2^64; a task without rows has zero."""
    totals = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes, dtype=np.uint64)])
    ends = np.cumsum(sizes)
    return totals[ends] - totals[ends - sizes]


def digest(sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the digests of tasks, given the sums of their hashes and their numbers of rows."""
    return _mix(sums ^ _mix(np.asarray(sizes, np.uint64)))


def kept_digests(digests: np.ndarray) -> np.ndarray:
    """Return distinct digests in order, and of more than MAX_DIGESTS the smallest: a choice that needs no chance."""
    return np.unique(digests)[:MAX_DIGESTS]


def _mix(bits: np.ndarray) -> np.ndarray:
    """Scramble 64 bits so that every bit of the result depends on all of them."""
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
