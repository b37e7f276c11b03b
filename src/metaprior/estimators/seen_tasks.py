"""Digests of tasks: eight bytes that tell a task by its readings, in whatever order these come.

Quick ones are sums of hashes of the rows, so many tasks are digested at once. The hash is splitmix64 (Steele et al.,
2014), which anyone can try on all readings that a task may have: quick digests stay in memory. Files hold slow ones,
and only of tasks that are hard to guess.

What a prior remembers of the tasks it was fitted to: ranges of their columns, and digests to recognize them.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import Argument, Message, warn_caller
from metaprior.conventions import check_is_fitted, own_float_errors
from metaprior.storage.stored_tasks import StoredTasks
from metaprior.tasks.categories import Categories
from metaprior.tasks.columns import Features
from metaprior.tasks.splits import FIRST, RANDOM, as_context_rule, warn_if_behind
from metaprior.tasks.types import Ragged, Task, TestTask, digest, row_hashes, sum_rows

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


BLOCK_TASKS = 2000  # in memory, looked at once
MAX_NOISE, MIN_NOISE = 1e6, 1e-100  # times the range of y


class SeenTasksWarning(UserWarning):
    """Given when a prior is evaluated on tasks that it was fitted to."""


class Seen(NamedTuple):
    """What is remembered of the tasks of one environment."""

    lower: np.ndarray  # (input_dim + 1,): the smallest values of the columns of x, and of y
    upper: np.ndarray
    digests: np.ndarray  # quick ones, at most MAX_DIGESTS
    values: dict[int, np.ndarray]  # values of y along x, by digest, of the MAX_SLOW tasks with the smallest


class KnownTasks(NamedTuple):
    """The tasks of a fit in memory."""

    digests: np.ndarray  # quick ones
    hard: np.ndarray  # those of them that a file may hold, as slow ones


class SavedTasks(NamedTuple):
    """The tasks of a fit in a file."""

    n_tasks: int  # of the fit
    salt: bytes
    digests: np.ndarray  # slow ones, of at most MAX_SLOW of them


@own_float_errors
class TaskRecognition:
    """An estimator that recognizes the tasks it was fitted to, and knows what their inputs were."""

    model_: Any
    report_: Any
    environment_weights_: np.ndarray
    n_features_in_: int
    parameters_: dict[str, Any]
    _tasks: KnownTasks | SavedTasks | None = None  # None: of a file that was saved with private=True
    _answers: Mapping[int, bool] = MappingProxyType({})  # by quick digest; evaluate asks more than once

    def fitted_on(self, tasks: Iterable[Any]) -> np.ndarray:
        """Tell which tasks the prior was fitted to or validated on, by all their readings, in any order.

        After `fit`, all tasks are recognized, up to 100,000. After `load`, only tasks that cannot be guessed from the
        file, with a dozen different readings or more, and up to 1,000. A warning tells if there were others.

        Parameters
        ----------
        tasks : sequence of (X, y)
            Tasks with all or some of their readings.

        Returns
        -------
        ndarray of bool of shape (n_tasks,)

        Raises
        ------
        ValueError
            If the prior was saved with `private=True`.

        Examples
        --------
        >>> from metaprior import MetaGPRegressor
        >>> tasks = [([[0.0], [1.0]], [0.0, 1.0]), ([[0.5], [2.0]], [0.4, 2.1])]
        >>> meta = MetaGPRegressor(random_state=0).fit(target_tasks=tasks)
        >>> meta.fitted_on([([[1.0], [0.0]], [1.0, 0.0]), ([[0.0]], [0.0])])
        array([ True, False])
        """
        check_is_fitted(self, "model_")
        checked = self._check_tasks(tasks, "tasks", self.features_)
        if self._tasks is None:
            raise ValueError(
                "This prior was saved with private=True: its file holds nothing that could tell which tasks it was "
                "fitted to."
            )
        if misses := self._misses(len(checked)):
            warn_caller(f"{misses}; fitted_on answers False for the others.")
        return self._seen(checked)

    @property
    def private_(self) -> bool:
        """Whether the prior comes from a file saved with `private=True`, so that it recognizes no task of its fit."""
        check_is_fitted(self, "model_")
        return self._tasks is None

    @property
    def features_(self) -> Features:
        """What is known of the input columns: their number, names and ranges."""
        names = getattr(self, "feature_names_in_", None)
        known = getattr(self, "feature_range_", None)  # not yet while a file is read
        levels = getattr(self, "column_levels_", ())
        coded = {i: {level: code for code, level in enumerate(each)} for i, each in enumerate(levels) if each}
        categories = Categories(coded, getattr(self, "covariates_", ()))
        names = None if names is None else tuple(names)
        told = getattr(self, "parameters_", {}).get("context", RANDOM)  # not yet while a file is read
        forecasts = as_context_rule(told).kind == FIRST
        return Features(self.n_features_in_, names, known, categories=categories, forecasts=forecasts)

    def _remember_tasks(
        self,
        features: Features,
        seen: Sequence[Seen],
        target: int,
        tests: list[TestTask] | None,
    ) -> None:
        """Set the fitted attributes that tell of the tasks: names and ranges of their inputs, and digests."""
        if features.names is not None:
            self.feature_names_in_ = np.array(features.names, dtype=object)
        self.covariates_, levels = features.categories.covariates, features.categories.levels
        n_levels = self.n_features_in_ if levels or self.covariates_ else 0
        self.column_levels_ = tuple(tuple(levels[i]) if i in levels else None for i in range(n_levels))
        self.feature_range_ = input_range(seen, self.environment_weights_)
        # An environment without weight in any candidate had no effect, but the target has judged the candidates.
        used = self.report_.environment_weights.max(axis=0) > 0
        used[target] = True
        whole = [_whole(test) for test in tests or ()]
        known = [each for each, counts in zip(seen, used, strict=True) if counts]
        known += [remember(whole, self.n_features_in_)] if whole else []
        smallest = sorted({digest: each for one in known for digest, each in one.values.items()}.items())[:MAX_SLOW]
        self._tasks = KnownTasks(
            kept_digests(np.concatenate([each.digests for each in known])), hard_to_guess(dict(smallest))
        )

    def _saved_tasks(self, salt: bytes, most: int = MAX_SLOW) -> SavedTasks | None:
        """Return what a file holds of the tasks; that of a loaded prior stays what it was."""
        if not isinstance(self._tasks, KnownTasks):
            return self._tasks
        return SavedTasks(len(self._tasks.digests), salt, np.sort(slow_digests(self._tasks.hard[:most], salt)))

    def _seen(self, tasks: Sequence[Task]) -> np.ndarray:
        """Return which tasks are recognized."""
        if self._tasks is None or not tasks:
            return np.zeros(len(tasks), bool)
        quick = task_digests(tasks)
        if isinstance(self._tasks, KnownTasks):
            return np.isin(quick, self._tasks.digests)
        if not len(self._tasks.digests):
            return np.zeros(len(tasks), bool)
        chosen = kept_digests(quick, MAX_SLOW)  # as the file has those of the smallest, of many tasks
        asked = [
            i for i in np.flatnonzero(np.isin(quick, chosen)).tolist() if len(np.unique(tasks[i].y)) >= LEAST_VALUES
        ]
        new = np.array(sorted({int(quick[i]) for i in asked} - self._answers.keys()), np.uint64)
        found = np.isin(slow_digests(new, self._tasks.salt), self._tasks.digests)
        self._answers = {**self._answers, **dict(zip(new.tolist(), found.tolist(), strict=True))}
        return np.array([self._answers.get(each, False) for each in quick.tolist()])

    def _misses(self, n_asked: int) -> str:
        """Return why some tasks of the fit may go unnoticed among so many, in words, "" if none does."""
        if not isinstance(self._tasks, SavedTasks):
            full = self._tasks is not None and len(self._tasks.digests) == MAX_DIGESTS
            return f"This prior recognizes {MAX_DIGESTS:,} of the tasks of its fit" if full else ""
        n, of = len(self._tasks.digests), self._tasks.n_tasks
        if n < of:
            why = f"holds {MAX_SLOW:,} at most" if n == MAX_SLOW else "leaves out those that could be guessed"
            return f"This prior recognizes {n:,} of the {of:,} tasks of its fit, because a file {why}"
        return f"A loaded prior looks for {MAX_SLOW:,} tasks of {n_asked:,}" if n_asked > MAX_SLOW else ""

    def _read_tests(self, tasks: Any, name: str) -> list[TestTask]:
        """Check tasks to score; warn about those that the prior was fitted to, and about extrapolation."""
        check_is_fitted(self, "model_")
        features = self.features_
        tests = self._check_tests(tasks, name, features)
        queries = Ragged.of([test.x_query for test in tests], (self.n_features_in_,))
        features.warn_outside(queries.rows[:-1], queries.sizes)
        warn_if_behind([(test.x_context, test.x_query) for test in tests], self.parameters_["context"])
        seen = self._seen([_whole(test) for test in tests])
        # Queries may be a whole task. Slow digests are not worth it, unless they hold the context too.
        quick = isinstance(self._tasks, KnownTasks)
        within = np.flatnonzero([quick or _context_is_within(test) for test in tests])
        seen[within] |= self._seen([Task(*tests[i][2:]) for i in within.tolist()])
        warn_if_seen(seen, name, bool(self._misses(len(tests))))
        return tests

    @abstractmethod
    def _check_tasks(self, tasks: Any, name: str, features: Features) -> list[Task]:
        """Check tasks as a fitted prior knows them, labels as 0 and 1."""

    @abstractmethod
    def _check_tests(self, tasks: Any, name: str, features: Features) -> list[TestTask]:
        """Check meta-test tasks."""


def remember(tasks: Sequence[Task], input_dim: int) -> Seen:
    """Look at all tasks of an environment, once and in blocks."""
    lower, upper = np.full(input_dim + 1, np.inf), np.full(input_dim + 1, -np.inf)
    digests, values = np.empty(0, np.uint64), {}
    for x, y, sizes in task_blocks(tasks):
        lower = np.fmin(lower, [*np.fmin.reduce(x, axis=0), y.min()])  # missing covariates are NaN
        upper = np.fmax(upper, [*np.fmax.reduce(x, axis=0), y.max()])
        new, ends = _digests(x, y, sizes), np.cumsum(sizes)
        digests = kept_digests(np.concatenate([digests, new]))
        for i in np.flatnonzero(new <= digests[:MAX_SLOW][-1]).tolist():
            own = slice(ends[i] - sizes[i], ends[i])
            values[int(new[i])] = y[own][np.lexsort((y[own], *x[own].T[::-1]))][:MAX_VALUES]
        values = dict(sorted(values.items())[:MAX_SLOW])
    return Seen(lower, upper, digests, values)


def input_range(environments: Sequence[Seen], weights: np.ndarray) -> np.ndarray:
    """Return the range of x in all environments that have weight, (2, input_dim)."""
    pairs = zip(environments, weights, strict=True)
    used = [seen for seen, weight in pairs if weight > 0 and len(seen.digests)]
    lower, upper = np.min([seen.lower for seen in used], axis=0), np.max([seen.upper for seen in used], axis=0)
    return np.stack([lower, upper])[:, :-1]


def check_covariates(features: Features, environments: Sequence[Seen]) -> None:
    """Raise if a covariate has no value, or the same in all tasks: it tells nothing."""
    for column in features.categories.covariates:
        lower = min(seen.lower[column] for seen in environments)
        upper = max(seen.upper[column] for seen in environments)
        if not lower < upper:
            found = "is missing in all tasks" if lower > upper else f"is {lower:g} in all tasks"
            named = f"covariate {features.column_name(column)} {found}: it tells nothing. Take it out of X and out of "
            raise ValueError(Message(named, Argument("covariates"), "."))


def check_noise_size(noise_std: float | None, environments: Sequence[Seen]) -> None:
    """Raise if the noise is so much larger or smaller than the range of y that nothing can be learned, or computed."""
    lower, upper = (min(seen.lower[-1] for seen in environments), max(seen.upper[-1] for seen in environments))
    with np.errstate(over="ignore"):
        y_range = float(upper - lower)
    size = y_range or max(abs(float(upper)), 1.0)  # of y that is constant
    if noise_std is not None and not MIN_NOISE * (y_range or 1.0) <= noise_std <= MAX_NOISE * size:
        found = f" must be in the units of y, whose values span {y_range:.3g}; got {noise_std:g}. Give the standard "
        learned = Argument("noise_std", "learned")
        raise ValueError(Message(Argument("noise_std"), found, "deviation of the noise, or ", learned, "."))


def warn_if_seen(seen: np.ndarray, name: str, at_least: bool) -> None:
    """Warn about test tasks that the prior was fitted to."""
    if seen.any():
        least = "At least " if at_least else ""
        counts, first = f"{least}{int(seen.sum())} of {len(seen)}", f"{name}[{int(seen.argmax())}]"
        warn_caller(
            f"{counts} test tasks have the readings of tasks that the prior was fitted to (the first is {first}). "
            "Their scores say little about new tasks. fitted_on tells which to leave out.",
            SeenTasksWarning,
        )


def task_blocks(tasks: Sequence[Task]) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield x, y and sizes of tasks, some at a time."""
    if isinstance(tasks, StoredTasks):
        yield from (tasks.read(*block) for block in tasks.task_blocks())
        return
    for first in range(0, len(tasks), BLOCK_TASKS):
        some = tasks[first : first + BLOCK_TASKS]
        sizes = np.array([len(task.y) for task in some])
        yield np.concatenate([task.x for task in some]), np.concatenate([task.y for task in some]), sizes


def task_digests(tasks: Sequence[Task]) -> np.ndarray:
    """Return the digest of each task."""
    return np.concatenate([_digests(*block) for block in task_blocks(tasks)])


def _digests(x: np.ndarray, y: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return digest(sum_rows(row_hashes(x, y), sizes), sizes)


def _whole(test: TestTask) -> Task:
    """Return context and queries as one task."""
    return Task(np.concatenate([test.x_context, test.x_query]), np.concatenate([test.y_context, test.y_query]))


def _context_is_within(test: TestTask) -> bool:
    """Return whether all readings of the context are among the queries."""
    context, query = row_hashes(test.x_context, test.y_context), row_hashes(test.x_query, test.y_query)
    return len(context) > 0 and bool(np.isin(context, query).all())
