"""Splits of a task into context and queries, at random or for forecasting, and random samples of large tasks."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import Argument, Message, counted, warn_caller
from metaprior.tasks.columns import Features, ForecastWarning
from metaprior.tasks.types import Task, TestTask

RANDOM, FIRST = "random", "first"
N_PREFIXES = 5  # contexts of a task whose first readings are given, if their number is not


class ContextRule(NamedTuple):
    """Which readings of a task are its context."""

    kind: str = RANDOM  # or FIRST: the first readings in the order of the first input
    size: int | None = None  # None: half of the readings

    def words(self, noun: str) -> str:
        """Return the rule in words: "the first 5 readings", "5 random readings", "a random half of the readings"."""
        if self.size is None:
            return f"{'the first' if self.kind == FIRST else 'a random'} half of the {noun}s"
        return f"the first {counted(self.size, noun)}" if self.kind == FIRST else counted(self.size, f"random {noun}")

    @property
    def is_default(self) -> bool:
        """Whether this is the default rule."""
        return self == ContextRule()


def as_context_rule(context: Any) -> ContextRule:
    """Check "random", "first", a number, or ("first", number); also as text, "first 5"."""
    if isinstance(context, ContextRule):
        return context
    given = context
    if isinstance(given, str):
        given = [int(part) if part.isdigit() else part for part in given.split()]
    elif isinstance(given, int | np.integer) and not isinstance(given, bool):
        given = [int(given)]
    if isinstance(given, Sequence) and len(given):
        kind, *sizes = given if isinstance(given[0], str) else (RANDOM, *given)
        is_size = [isinstance(size, int | np.integer) and not isinstance(size, bool) and size >= 0 for size in sizes]
        if kind in (RANDOM, FIRST) and len(sizes) <= 1 and all(is_size):
            return ContextRule(kind, int(sizes[0]) if sizes else None)
    expected = ' must be "random", "first", a number of readings, or '
    raise ValueError(Message(Argument("context"), expected, Argument('("first", number)'), f"; got {context!r}."))


def check_order(context: Any, features: Features) -> None:
    """Raise if contexts are first readings, and the first column of X is a category, a covariate or the exposure."""
    if as_context_rule(context).kind != FIRST:
        return
    found = "a category" if 0 in features.categories.levels else "the exposure" if features.exposure == 0 else ""
    found = "a covariate" if 0 in features.categories.covariates else found
    if found:
        order = " needs the first column of X to be a number that varies within tasks, such as the time: readings are "
        got = f"put in its order. {features.column_name(0)} is {found}: put the other column first."
        raise ValueError(Message(Argument("context", FIRST), order, got))


def split_once(task: Task, rule: ContextRule, rng: np.random.Generator) -> TestTask:
    """Return a task with the readings of its context and the others as queries, both in their order.

    A context that leaves no query is refused.
    """
    size = len(task.y) // 2 if rule.size is None else rule.size
    if size >= len(task.y):
        readings = counted(len(task.y), "reading")
        raise ValueError(f"A context of {size} leaves no reading to predict of a task with {readings}.")
    order = first_to_last(task) if rule.kind == FIRST else rng.permutation(len(task.y))
    return _parts(task, order[:size])


def split_all(tasks: Sequence[Task], context: Any, features: Features) -> list[TestTask]:
    """Split checked test tasks by the `context` of `evaluate`; random readings are always the same."""
    check_order(context, features)
    rule, rng, tests = as_context_rule(context), np.random.default_rng(0), []
    for i, task in enumerate(tasks):
        try:
            tests.append(split_once(task, rule, rng))
        except ValueError as error:
            raise ValueError(f"test_tasks[{i}]: {error} Leave it out, or pass a smaller context.") from None
    return tests


def split_often(task: Task, rule: ContextRule, rng: np.random.Generator, n_splits: int) -> list[TestTask]:
    """Return a held-out task split by a rule, in up to `n_splits` ways; contexts leave one reading to predict.

    Random contexts are spread evenly over the samples in random order. If the rule has no size, first readings are
    given in several numbers.
    """
    n = len(task.y)
    if rule.kind == FIRST:
        sizes = n * np.arange(1, N_PREFIXES + 1) // (N_PREFIXES + 1) if rule.size is None else np.array([rule.size])
        order = first_to_last(task)
        return [_parts(task, order[:size]) for size in np.unique(np.minimum(sizes, n - 1)).tolist()]
    size, order = min(n // 2 if rule.size is None else rule.size, n - 1), rng.permutation(n)
    starts = np.unique(n * np.arange(min(n_splits, n)) // min(n_splits, n)) if size else np.zeros(1, int)
    return [_parts(task, np.roll(order, -start)[:size]) for start in starts.tolist()]


def split_widely(task: Task, rule: ContextRule, rng: np.random.Generator, n_splits: int) -> list[TestTask]:
    """Return a held-out task split in up to `n_splits` ways: by the rule or, if it has no size, with random sizes.

    There is one in each of as many equal parts of the range from no reading to all but one.
    """
    if rule.size is not None:
        return split_often(task, rule, rng, n_splits)
    n, n_splits = len(task.y), min(len(task.y), n_splits)
    sizes = np.floor((np.arange(n_splits) + rng.random(n_splits)) * n / n_splits).astype(int)
    orders = (first_to_last(task) if rule.kind == FIRST else rng.permutation(n) for _ in sizes)
    return [_parts(task, order[:size]) for order, size in zip(orders, np.minimum(sizes, n - 1).tolist(), strict=True)]


def first_to_last(task: Task) -> np.ndarray:
    """Return the order of a task's readings along its first input."""
    return np.argsort(task.x[:, 0], kind="stable")


def warn_if_behind(pairs: Sequence[tuple[np.ndarray, np.ndarray]], context: Any) -> None:
    """Warn if a prior of forecasts is asked about the past: queries before the last reading of their context.

    `pairs` are inputs of the context and of the queries of every task, `context` is that of the fit.
    """
    if as_context_rule(context).kind != FIRST:
        return
    # With categories in other columns, inputs are objects.
    behind = [x_query[:, 0] < float(np.max(x_context[:, 0])) for x_context, x_query in pairs if len(x_context)]
    n_behind = sum(int(each.sum()) for each in behind)
    if n_behind:
        n_queries = sum(len(x_query) for _, x_query in pairs)
        found = f"{n_behind:,} of {n_queries:,} queries are not forecasts: they come before the last reading of their "
        told = "context. This prior was fitted with ", Argument("context", FIRST), ", and its bands are calibrated for "
        advice = "what comes after. Leave these queries out, or fit with ", Argument("context", RANDOM), "."
        warn_caller(Message(found, *told, *advice), ForecastWarning)


def _parts(task: Task, context: np.ndarray) -> TestTask:
    given = np.zeros(len(task.y), bool)
    given[context] = True
    return TestTask(task.x[given], task.y[given], task.x[~given], task.y[~given])


MAX_SAMPLES = 256  # of a task in gradient training: time grows with the cube, and 512 take ten times as long


def thin_task(task: Task, most: int, rng: np.random.Generator, labels: bool = False) -> Task:
    """Return up to `most` random samples of a task, in their order; of labels, at least one of each class."""
    if len(task.y) <= most:
        return task
    kept = draw_of_each(task.y, most, rng) if labels else np.sort(rng.choice(len(task.y), most, replace=False))
    return Task(task.x[kept], task.y[kept])


def draw_of_each(codes: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """Return the places of about `most` random labels, sorted: a proportional share of each class, and at least one.

    Shares are rounded by largest remainders.
    """
    _, of_class, sizes = np.unique(codes, return_inverse=True, return_counts=True)
    if len(codes) <= most:
        return np.arange(len(codes))
    shares = np.maximum(sizes * most / len(codes), 1.0)
    shares = 1.0 + (shares - 1.0) * max(most - len(sizes), 0) / max(np.sum(shares - 1.0), 1e-12)  # sum to `most`
    counts = np.floor(shares + 1e-9).astype(int)
    rest = np.argsort(counts - shares, kind="stable")[: max(most - counts.sum(), 0)]
    counts[rest] += 1
    order = rng.permutation(len(codes))
    order = order[np.argsort(of_class[order], kind="stable")]  # class by class, in random order
    rank = np.arange(len(codes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(order[rank < np.repeat(counts, sizes)])


def typical_labels(x: np.ndarray, codes: np.ndarray, most: int) -> np.ndarray:
    """Return the places of about `most` labels of one task, sorted, whatever the order of its samples."""
    order = np.lexsort((*x.T, codes))
    return np.sort(order[draw_of_each(codes[order], most, np.random.default_rng(0))])


def thin_tasks(
    environments: Sequence[Sequence[Task]], most: int = MAX_SAMPLES, labels: bool = False
) -> list[list[Task]]:
    """Return all tasks with up to `most` samples each; warn if some have more."""
    sizes = [len(task.y) for tasks in environments for task in tasks]
    large = [size for size in sizes if size > most]
    if large:
        found = (
            f"{len(large)} of {len(sizes)} tasks have more than {most} samples, up to {max(large):,}: training uses "
        )
        why = f"{most} random ones of each, because its time and memory grow fast with the size of a task. "
        warn_caller(found + why + "Adaptation to a new task uses its whole context.")
    rng = np.random.default_rng(0)  # not the fit's: other seeds see the same tasks
    return [[thin_task(task, most, rng, labels) for task in tasks] for tasks in environments]
