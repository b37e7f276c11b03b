"""Digests of rows: a part of a known task is recognized, also after rounding to float32 or a shift of 1e-7.

Values are rounded to a grid before they are hashed. A digest has 48 bits of the row and 16 of its task, because many
rows of one task are evidence, and as many rows of different tasks a coincidence, as in tables of integers.
"""

import numpy as np

from metaprior.tasks.padding import ranges
from metaprior.tasks.task_digests import row_hashes

MAX_ROWS = 100_000  # kept of a fit: 0.8 MB
CELLS = 2**14  # of the grid, from zero to the largest value; float32 moves a value by up to 0.001 of a cell
MAX_HASHED = 32  # columns: with thousands, as in images, one would always fall into the next cell
LEAST_ROWS, LEAST_SHARE = 4, 0.9  # of a task that must be rows of one known task
BEYOND_CHANCE = 2.0  # times the share of rows that known tasks have in common with another
PROBES = 200  # known tasks that show what that is
MAX_TASKS = 100  # a row of more tasks tells nothing
TASK_BITS, TASK = np.uint64(16), np.uint64(2**16 - 1)


def make_grid(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """Return the origin and the step of every column, (2, columns), y last, from its smallest and largest values.

    The origin is a value that occurs, so that a column that is constant lies in the middle of a cell.
    """
    size = np.maximum(np.abs(lower), np.abs(upper))
    return np.stack([lower, np.where(size > 0, size / CELLS, 1.0)])


def row_digests(x: np.ndarray, y: np.ndarray, task: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Return the digest of every row, given the digest of its task."""
    chosen = np.append(np.unique(np.linspace(0, x.shape[1] - 1, MAX_HASHED).astype(int)), -1)  # evenly, and y
    origin, step = grid[:, chosen]
    with np.errstate(over="ignore"):
        cells = np.rint(np.column_stack([x[:, chosen[:-1]], y]) / step - origin / step)
    cells[np.isnan(cells)] = -1.0  # of missing covariates
    hashes = row_hashes(cells[:, :-1], cells[:, -1])
    return hashes & ~TASK | task & TASK


def kept_rows(digests: np.ndarray) -> np.ndarray:
    """Return distinct digests in order, and of more than MAX_ROWS the smallest, which are those of random rows."""
    return np.unique(digests)[:MAX_ROWS]


def recognized(digests: np.ndarray, sizes: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return which tasks have most of their rows in common with one known task, given digests of rows.

    How much is beyond chance is learned from the known tasks, which are new to each other: in tables of integers, tasks
    have rows in common, and may then be too much alike to be told by them.
    """
    if not len(known):
        return np.zeros(len(sizes), bool)
    tag, start = np.unique(known & TASK, return_inverse=True)
    probes = start < PROBES  # tags are random
    own, n_own = _in_common(known[probes], start[probes], known, tag[:PROBES])
    shares = own[n_own >= LEAST_ROWS] / n_own[n_own >= LEAST_ROWS]
    by_chance = float(np.quantile(shares, 0.99, method="higher")) if len(shares) else 0.0
    most, n_rows = _in_common(digests, np.repeat(np.arange(len(sizes)), sizes), known)
    most, n_rows = (np.pad(each, (0, len(sizes) - len(each))) for each in (most, n_rows))
    return (most >= LEAST_ROWS) & (most >= max(LEAST_SHARE, BEYOND_CHANCE * by_chance) * n_rows)


def _in_common(
    digests: np.ndarray, task: np.ndarray, known: np.ndarray, own: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return how many rows each task has in common with one known task, other than its own, and how many it has."""
    row, known_row = digests >> TASK_BITS, known >> TASK_BITS
    _, distinct = np.unique(row | task.astype(np.uint64) << np.uint64(48), return_index=True)  # none counts twice
    if len(known) == MAX_ROWS:
        distinct = distinct[row[distinct] <= known_row[-1]]  # others would not have been kept
    row, task = row[distinct], task[distinct]
    start, end = (np.searchsorted(known_row, row, side) for side in ("left", "right"))
    n_tasks = np.where(end - start <= MAX_TASKS, end - start, 0)
    of_task, tag = np.repeat(task, n_tasks), known[ranges(start, n_tasks)] & TASK
    if own is not None:
        of_task, tag = of_task[tag != own[of_task]], tag[tag != own[of_task]]
    pair, counts = np.unique(of_task.astype(np.uint64) << TASK_BITS | tag, return_counts=True)
    most, n_rows = np.zeros(task.max(initial=-1) + 1, np.int64), np.bincount(task)
    np.maximum.at(most, (pair >> TASK_BITS).astype(np.int64), counts)
    return most, n_rows
