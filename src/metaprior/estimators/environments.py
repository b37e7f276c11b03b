"""The tasks of a fit, by environment: read and checked, summarized in one pass, and recognized later.

A digest is eight bytes that identify a task by its readings, in whatever order these come. Quick digests are sums of
hashes of the rows, so many tasks are digested at once. The hash is splitmix64 (Steele et al., 2014), which anyone can
try on all readings that a task may have: quick digests stay in memory. Files hold slow ones, and only of tasks that are
hard to guess.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import Argument, Message, counted, is_number, warn_caller
from metaprior.storage.stored_tasks import StoredTasks
from metaprior.tasks.categories import ColumnKinds, check_spelling
from metaprior.tasks.columns import Features
from metaprior.tasks.splits import as_context_rule
from metaprior.tasks.types import Task, TestTask, digest, row_hashes, sum_rows

Read = Callable[[Any, str, Features], list[Task]]  # checks tasks, given their name in errors and what X must have
BLOCK_TASKS = 2000  # in memory, looked at once
MAX_NOISE, MIN_NOISE = 1e6, 1e-100  # times the range of y
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


class SeenTasksWarning(UserWarning):
    """Given when a prior is evaluated on tasks that it was fitted to."""


class NamedEnvironments(NamedTuple):
    """Checked tasks of every environment."""

    names: tuple[str, ...]
    tasks: list[Sequence[Task]]  # lists, or stored tasks
    target: int  # index of the target environment
    arguments: tuple[str, ...]  # the name of each in errors
    kinds: ColumnKinds | None = None  # what the input columns are; None: numbers
    columns: tuple[str, ...] = ()  # what messages call them

    @property
    def counts(self) -> list[int]:
        """The number of tasks of each environment."""
        return [len(tasks) for tasks in self.tasks]

    @property
    def input_dim(self) -> int:
        """The number of input columns."""
        return next(task.x.shape[1] for tasks in self.tasks for task in tasks[:1])

    @property
    def width(self) -> int:
        """The number of columns of scaled inputs."""
        return self.input_dim if self.kinds is None else sum(self.kinds.widths)


def read_environments(
    source_tasks: Iterable[Any] | Mapping[Any, Any] | None,
    target_tasks: Iterable[Any] | None,
    target: Any,
    read: Read,
    features: Features,
) -> NamedEnvironments:
    """Check source and target tasks, or a mapping from names to tasks that `target` names one of."""
    for name, given in (("source_tasks", source_tasks), ("target_tasks", target_tasks)):
        _check_not_one_data_set(name, given)
    if isinstance(source_tasks, Mapping):
        _check_names(source_tasks, target_tasks, target)
        names = tuple(source_tasks)
        named = [(f"source_tasks[{name!r}]", tasks) for name, tasks in source_tasks.items()]
    elif target is not None:
        raise ValueError(
            f"target={target!r} names one of several environments, as in fit({{'a': tasks, 'b': tasks}}, target='b'); "
            "leave it out with source_tasks and target_tasks."
        )
    else:
        names = ("source", "target")
        named = [("source_tasks", source_tasks), ("target_tasks", target_tasks)]
    checked: list[Sequence[Task]] = []
    for argument, tasks in named:
        stored = isinstance(tasks, StoredTasks)
        checked.append(_stored(tasks, argument, features) if stored else read(tasks, argument, features))
    if not any(checked):
        empty = "source_tasks has no tasks" if len(names) != 2 or isinstance(source_tasks, Mapping) else ""
        raise ValueError(f"{empty or 'source_tasks and target_tasks are both empty'}: expected at least one (X, y).")
    place = names.index(target if isinstance(source_tasks, Mapping) else "target")
    features.learned()
    arguments = tuple(argument for argument, _ in named)
    columns = tuple(map(features.column_name, range(features.count or 0)))
    return NamedEnvironments(names, checked, place, arguments, features.kinds, columns)


def _check_not_one_data_set(name: str, given: Any) -> None:
    """Raise for one X or y in place of many tasks, as other estimators take them, and explain the two steps."""
    first = given[0] if isinstance(given, list | tuple) and len(given) else None
    is_row = isinstance(first, list | tuple | np.ndarray) and len(first) > 0 and all(is_number(v) for v in first)
    if hasattr(given, "dtype") or hasattr(given, "columns") or is_number(first) or is_row:
        raise ValueError(
            f"{name} must be a sequence of (X, y), one pair per task; got {type(given).__name__}. There are two "
            "steps: fit([(X1, y1), (X2, y2), ...]) learns a prior from many tasks, then adapt(X_context, "
            "y_context).predict(X_new) predicts a new task from a few readings of it. For the rows of a table, "
            "tasks_from_frame makes the pairs. To fit a single task, pass fit([(X, y)])."
        )


def _stored(tasks: StoredTasks, argument: str, features: Features) -> StoredTasks:
    """Check that stored tasks are as they were written, which was checked then, and go with the others."""
    features.decide(tasks)
    if features.categories.levels:
        raise ValueError(
            Message(
                f"{argument} is stored, and stored tasks hold numbers: ", Argument("categorical"), " is not for them."
            )
        )
    input_dim = features.count
    if input_dim is not None and tasks.input_dim != input_dim:
        raise ValueError(
            f"{argument} must have {counted(input_dim, 'input column')}, like the other tasks; got {tasks.input_dim}."
        )
    tasks.verify()
    features.count, features.n_unnamed = tasks.input_dim, features.n_unnamed + len(tasks)
    return tasks


def _check_names(environments: Mapping[Any, Any], target_tasks: Any, target: Any) -> None:
    if not environments:
        raise ValueError("source_tasks is an empty mapping: expected environment names and their tasks.")
    listed = ", ".join(map(repr, environments))
    if not all(isinstance(name, str) for name in environments):
        raise ValueError(f"source_tasks must map names to tasks; its keys must be strings, got {listed}.")
    if target_tasks is not None:
        raise ValueError(
            "target_tasks must be left out if source_tasks maps names to tasks: name the target by target='...'."
        )
    check_spelling(environments, "environment", "source_tasks: ")
    if target is None:
        one_of = f" must name the environment to predict in; pass one of {listed}."
        raise ValueError(Message(Argument("target"), one_of))
    if not (isinstance(target, str) and target in environments):
        raise ValueError(Message(Argument("target"), f" must be one of the environments, {listed}; got {target!r}."))


def _sizes(tasks: Sequence[Task]) -> np.ndarray:
    """Return the numbers of readings of tasks, without reading stored ones."""
    return tasks.sizes if isinstance(tasks, StoredTasks) else np.array([len(task.y) for task in tasks])


def check_context_size(context: Any, environments: NamedEnvironments) -> None:
    """Raise if a context of the given size leaves no reading of any held-out task to predict; warn if of some only."""
    rule, tasks = as_context_rule(context), environments.tasks[environments.target]
    if rule.size is None:
        return
    of_target = len(tasks) > 1  # those of a source are held out if there are fewer
    held_out = [tasks] if of_target else [each for each in environments.tasks if len(each)]
    sizes = np.concatenate([_sizes(each) for each in held_out])
    n_short, given = int(np.sum(sizes <= rule.size)), counted(rule.size, "reading")
    which = f"tasks of the {environments.names[environments.target]} environment" if of_target else "tasks"
    if n_short == len(sizes):
        found = f" must leave a reading of a task to predict: it gives {given}, and the longest of the {len(sizes):,} "
        raise ValueError(Message(Argument("context"), f"{found}{which} has {int(sizes.max())}. Pass a smaller one."))
    if n_short:
        found = f"{n_short:,} of {len(sizes):,} {which} have no more than the {given} that "
        instead = " gives: in cross-validation all of theirs but one are given. Leave them out, or pass a smaller one."
        warn_caller(Message(found, Argument("context"), instead))


def warn_if_no_target_tasks(environments: NamedEnvironments, alpha: Any) -> None:
    """Warn if alpha is to be chosen by cross-validation, and there are no target tasks."""
    n_target, name = environments.counts[environments.target], environments.names[environments.target]
    if isinstance(alpha, str) and alpha == "auto" and not n_target:
        found = f"There are no tasks of the {name} environment to choose alpha by, so alpha is 1. Pass some, or "
        warn_caller(
            Message(found, Argument("alpha", 1), " or ", Argument("alpha", "pooled"), " to silence this warning.")
        )


class Seen(NamedTuple):
    """What is remembered of the tasks of one environment."""

    lower: np.ndarray  # (input_dim + 1,): the smallest values of the columns of x, and of y
    upper: np.ndarray
    digests: np.ndarray  # quick ones, at most MAX_DIGESTS
    values: dict[int, np.ndarray]  # values of y along x, by digest, of the MAX_SLOW tasks with the smallest


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
    return np.concatenate([np.empty(0, np.uint64), *(_digests(*block) for block in task_blocks(tasks))])


def _digests(x: np.ndarray, y: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return digest(sum_rows(row_hashes(x, y), sizes), sizes)


def whole(test: TestTask) -> Task:
    """Return context and queries as one task."""
    return Task(np.concatenate([test.x_context, test.x_query]), np.concatenate([test.y_context, test.y_query]))


def _context_is_within(test: TestTask) -> bool:
    """Return whether all readings of the context are among the queries."""
    context, query = row_hashes(test.x_context, test.y_context), row_hashes(test.x_query, test.y_query)
    return len(context) > 0 and bool(np.isin(context, query).all())


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


class KnownTasks(NamedTuple):
    """The tasks of a fit in memory."""

    digests: np.ndarray  # quick ones
    hard: np.ndarray  # those of them that a file may hold, as slow ones

    def seen(self, tasks: Sequence[Task]) -> np.ndarray:
        """Return which tasks are recognized."""
        return np.isin(task_digests(tasks), self.digests)

    def misses(self, n_asked: int) -> str:
        """Return why some tasks of the fit may go unnoticed among so many, in words, "" if none does."""
        is_full = len(self.digests) == MAX_DIGESTS
        return f"This prior recognizes {MAX_DIGESTS:,} of the tasks of its fit" if is_full else ""

    def saved(self, salt: bytes) -> "SavedTasks":
        """Return what a file holds."""
        return SavedTasks(len(self.digests), salt, np.sort(slow_digests(self.hard[:MAX_SLOW], salt)))


@dataclass(frozen=True, eq=False)
class SavedTasks:
    """The tasks of a fit in a file."""

    n_tasks: int  # of the fit
    salt: bytes
    digests: np.ndarray  # slow ones, of at most MAX_SLOW of them
    answers: dict[int, bool] = field(default_factory=dict)  # by quick digest: tasks are scored more than once

    def seen(self, tasks: Sequence[Task]) -> np.ndarray:
        """Return which tasks are recognized, of those with the smallest digests: the file has these, too."""
        quick = task_digests(tasks)
        chosen = np.flatnonzero(np.isin(quick, kept_digests(quick, MAX_SLOW))) if len(self.digests) else quick[:0]
        asked = {int(quick[i]) for i in chosen.tolist() if len(np.unique(tasks[i].y)) >= LEAST_VALUES}
        new = np.array(sorted(asked - self.answers.keys()), np.uint64)
        found = np.isin(slow_digests(new, self.salt), self.digests)
        self.answers.update(zip(new.tolist(), found.tolist(), strict=True))
        return np.array([self.answers.get(each, False) for each in quick.tolist()], bool)

    def misses(self, n_asked: int) -> str:
        """Return why some tasks of the fit may go unnoticed among so many, in words, "" if none does."""
        n, of = len(self.digests), self.n_tasks
        if n < of:
            why = f"holds {MAX_SLOW:,} at most" if n == MAX_SLOW else "leaves out those that could be guessed"
            return f"This prior recognizes {n:,} of the {of:,} tasks of its fit, because a file {why}"
        return f"A loaded prior looks for {MAX_SLOW:,} tasks of {n_asked:,}" if n_asked > MAX_SLOW else ""

    def saved(self, salt: bytes) -> "SavedTasks":
        """Return what a file holds: what it was loaded with."""
        return self


def known_tasks(environments: Sequence[Seen]) -> KnownTasks:
    """Return what recognizes the tasks of environments."""
    smallest = sorted({key: each for one in environments for key, each in one.values.items()}.items())[:MAX_SLOW]
    digests = kept_digests(np.concatenate([each.digests for each in environments]))
    return KnownTasks(digests, hard_to_guess(dict(smallest)))


def warn_if_known(known: KnownTasks | SavedTasks, tests: Sequence[TestTask], name: str) -> None:
    """Warn about test tasks that the prior was fitted to, as a whole or with their queries."""
    seen = known.seen([whole(test) for test in tests])
    # Slow digests of queries are not worth it, unless these hold the context too.
    within = [i for i, test in enumerate(tests) if isinstance(known, KnownTasks) or _context_is_within(test)]
    if within:
        seen[within] |= known.seen([Task(*tests[i][2:]) for i in within])
    if seen.any():
        least = "At least " if known.misses(len(tests)) else ""
        counts, first = f"{least}{int(seen.sum())} of {len(seen)}", f"{name}[{int(seen.argmax())}]"
        warn_caller(
            f"{counts} test tasks have the readings of tasks that the prior was fitted to (the first is {first}). "
            "Their scores say little about new tasks. fitted_on tells which to leave out.",
            SeenTasksWarning,
        )
