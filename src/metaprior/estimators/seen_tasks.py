"""What a prior remembers of the tasks it was fitted to: ranges of their columns, and digests to know them again."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from metaprior.checks import Argument, Message, warn_caller
from metaprior.float_errors import own_float_errors
from metaprior.storage.stored_tasks import StoredTasks
from metaprior.tasks.categories import Categories
from metaprior.tasks.context_rules import FIRST, RANDOM, as_context_rule, warn_if_behind
from metaprior.tasks.input_columns import Features
from metaprior.tasks.padding import Ragged
from metaprior.tasks.row_digests import MAX_ROWS, kept_rows, make_grid, recognized, row_digests
from metaprior.tasks.task_digests import MAX_DIGESTS, digest, kept_digests, row_hashes, sum_rows
from metaprior.tasks.types import Task, TestTask

BLOCK_TASKS = 2000  # in memory, looked at once
MAX_NOISE, MIN_NOISE = 1e6, 1e-100  # times the range of y


class SeenTasksWarning(UserWarning):
    """Given when a prior is evaluated on tasks that it was fitted to."""


class Seen(NamedTuple):
    """What is remembered of the tasks of one environment."""

    lower: np.ndarray  # (input_dim + 1,): the smallest values of the columns of x, and of y
    upper: np.ndarray
    digests: np.ndarray  # at most MAX_DIGESTS


@own_float_errors
class KnowsItsTasks:
    """An estimator that knows the tasks it was fitted to again, and what their inputs were."""

    model_: Any
    report_: Any
    environment_weights_: np.ndarray
    n_features_in_: int
    parameters_: dict[str, Any]

    def fitted_on(self, tasks: Iterable[Any]) -> np.ndarray:
        """Tell which tasks the prior was fitted to, by their readings in any order.

        A task is known again if nine tenths of its readings, and four or more, are readings of one task that the prior
        was fitted to or validated on, up to rounding to seven digits or more. Where such tasks have many readings in
        common with each other, as in tables of small integers, only whole tasks are known again. The prior keeps
        digests of up to 100,000 tasks and 100,000 of their readings. Beyond that many, a task may go unnoticed.

        Parameters
        ----------
        tasks : sequence of (X, y)
            Tasks with all or some of their readings.

        Returns
        -------
        ndarray of bool of shape (n_tasks,)

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
        return self._seen(checked) if checked else np.zeros(0, bool)

    @property
    def features_(self) -> Features:
        """What is known of the input columns: their number, names and ranges."""
        names = getattr(self, "feature_names_in_", None)
        known = getattr(self, "feature_range_", None)  # not in files of earlier versions
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
        environments: Sequence[Sequence[Task]],
        seen: Sequence[Seen],
        target: int,
        tests: list[TestTask] | None,
    ) -> None:
        """Set the fitted attributes that tell of the tasks: names and ranges of their inputs, and digests."""
        vars(self).pop("feature_names_in_", None)  # of an earlier fit
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
        known = [*(tasks for tasks, counts in zip(environments, used, strict=True) if counts and len(tasks)), whole]
        seen = [each for each, counts in zip(seen, used, strict=True) if counts and len(each.digests)]
        seen += [remember(whole, self.n_features_in_)] if whole else []
        self.task_digests_ = kept_digests(np.concatenate([each.digests for each in seen]))
        self.row_grid_ = make_grid(*(np.min([s.lower for s in seen], 0), np.max([s.upper for s in seen], 0)))
        self.row_digests_ = np.empty(0, np.uint64)
        for digests in (each for tasks in known for each, _ in _row_digests(tasks, self.row_grid_)):
            self.row_digests_ = kept_rows(np.concatenate([self.row_digests_, digests]))

    def _seen(self, tasks: Sequence[Task]) -> np.ndarray:
        """Return which tasks are known, whole or in part."""
        whole = np.isin(task_digests(tasks), getattr(self, "task_digests_", ()))  # not in files of earlier versions
        known, grid = getattr(self, "row_digests_", None), getattr(self, "row_grid_", None)
        if known is None or grid is None:
            return whole
        parts = [recognized(digests, sizes, known) for digests, sizes in _row_digests(tasks, grid)]
        return whole | np.concatenate(parts)

    @property
    def _forgets(self) -> bool:
        """Whether there were more tasks, or readings, than digests are kept of."""
        kept = (("task_digests_", MAX_DIGESTS), ("row_digests_", MAX_ROWS))
        return any(len(getattr(self, name, ())) == most for name, most in kept)

    def _read_tests(self, tasks: Any, name: str) -> list[TestTask]:
        """Check tasks to score; warn about those that the prior was fitted to, and about extrapolation."""
        check_is_fitted(self, "model_")
        features = self.features_
        tests = self._check_tests(tasks, name, features)
        queries = Ragged.of([test.x_query for test in tests], (self.n_features_in_,))
        features.warn_outside(queries.rows[:-1], queries.sizes)
        warn_if_behind([(test.x_context, test.x_query) for test in tests], self.parameters_["context"])
        seen = self._seen([_whole(test) for test in tests]) | self._seen([Task(*test[2:]) for test in tests])
        warn_if_seen(seen, name, self._forgets)
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
    digests = np.empty(0, np.uint64)
    for x, y, sizes in task_blocks(tasks):
        lower = np.fmin(lower, [*np.fmin.reduce(x, axis=0), y.min()])  # missing covariates are NaN
        upper = np.fmax(upper, [*np.fmax.reduce(x, axis=0), y.max()])
        digests = kept_digests(np.concatenate([digests, _digests(x, y, sizes)]))
    return Seen(lower, upper, digests)


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
            f"{counts} test tasks have the readings of tasks that the prior was fitted to, all or nearly all of them "
            f"(the first is {first}). Their scores say little about new tasks. fitted_on tells which to leave out.",
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


def _row_digests(tasks: Sequence[Task], grid: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield digests of the rows of tasks, and the sizes of these tasks, some at a time."""
    for x, y, sizes in task_blocks(tasks):
        yield row_digests(x, y, np.repeat(_digests(x, y, sizes), sizes), grid), sizes


def _whole(test: TestTask) -> Task:
    """Return context and queries as one task."""
    return Task(np.concatenate([test.x_context, test.x_query]), np.concatenate([test.y_context, test.y_query]))
