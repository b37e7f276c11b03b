"""Digests of tasks: eight bytes that tell a task by its readings, in whatever order these come.

Quick ones are sums of hashes of the rows, so many tasks are digested at once. The hash is splitmix64 (Steele et al.,
2014), which anyone can try on all readings that a task may have: quick digests stay in memory. Files hold slow ones,
and only of tasks that are hard to guess.
"""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

MAX_DIGESTS = 100_000  # quick ones, kept of a fit: 0.8 MB
MAX_SLOW = 1000  # slow ones of a file, and of a call that looks for them: 0.7 s of a core
COST = 2**9  # of scrypt, with blocks of 1 kB: a slow digest takes 0.5 MB of memory and 0.7 ms of a core
# A task is guessed by trying readings at its inputs, which whoever tries may know. The bits are those of its values, as
# often as they occur in all tasks; a value that a task has twice counts once. They are counted of differences too, and
# the least counts: a counter has many values and few steps. The file holds the prior too, which
# orders the guesses: of the 5.4 bits of a heart rate of the README's example it leaves 3.8. So of 100 bits 50 or more
# are left. 2^50 slow digests take a core 25,000 years, a graphics card that is 200 times as quick a hundred.
MIN_BITS = 100.0
MAX_VALUES = 64  # of a task, whose bits are counted
MAX_ORDER = 3  # of the differences: those of a cubic are constant
ROUNDING = 2.0**-30  # of the largest value: differences that are closer are equal
LEAST_VALUES = int(np.ceil(MIN_BITS / np.log2(MAX_SLOW * MAX_VALUES)))  # that such a task must have


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


def kept_digests(digests: np.ndarray, most: int | None = None) -> np.ndarray:
    """Return distinct digests in order, and of more than `most` (MAX_DIGESTS) the smallest: a deterministic choice."""
    return np.unique(digests)[: MAX_DIGESTS if most is None else most]


def hard_to_guess(values: Mapping[int, np.ndarray]) -> np.ndarray:
    """Return the quick digests of tasks that have MIN_BITS, in order, given the values of y of each along x."""
    if not values:
        return np.empty(0, np.uint64)
    step = ROUNDING * max(float(np.max(np.abs(each))) for each in values.values()) or 1.0
    bits = np.min([_bits(list(values.values()), order, step) for order in range(MAX_ORDER + 1)], axis=0)
    return np.sort(np.array(list(values), np.uint64)[bits >= MIN_BITS])


def _bits(values: Sequence[np.ndarray], order: int, step: float) -> np.ndarray:
    """Return the bits of the distinct differences of each task, as if there were as many as values."""
    distinct = [np.unique(np.rint(np.diff(each, order) / step)) for each in values]
    _, place, counts = np.unique(np.concatenate(distinct), return_inverse=True, return_counts=True)
    bits = np.split(np.log2(len(place) / counts)[place], np.cumsum([len(each) for each in distinct])[:-1])
    shares = [len(each) / max(len(each) - order, 1) for each in values]
    return np.array([own.sum() * share for own, share in zip(bits, shares, strict=True)])


def slow_digests(quick: np.ndarray, salt: bytes) -> np.ndarray:
    """Return a slow digest of each quick one, with the salt of a file: digests tried for one file do not fit others.

    Eight bytes are enough to start from: guessing them all would take longer than guessing the readings.
    """
    made = (hashlib.scrypt(each.tobytes(), salt=salt, n=COST, r=8, p=1, dklen=8) for each in quick.astype("<u8"))
    return np.array([int.from_bytes(each, "little") for each in made], np.uint64)


def _mix(bits: np.ndarray) -> np.ndarray:
    """Scramble 64 bits so that every bit of the result depends on all of them."""
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
