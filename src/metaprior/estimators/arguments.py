"""Validates constructor and `fit` arguments."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from metaprior.checks import (
    Argument,
    Message,
    check_bool,
    check_choice,
    check_noise,
    check_positive,
    counted,
    is_number,
    warn_caller,
)
from metaprior.likelihoods import LIKELIHOODS, names_where
from metaprior.storage.stored_tasks import StoredTasks
from metaprior.tasks.categories import ColumnKinds, check_spelling
from metaprior.tasks.columns import Features
from metaprior.tasks.splits import as_context_rule
from metaprior.tasks.types import Task

Read = Callable[[Any, str, Features], list[Task]]  # checks tasks, given their name in errors and what X must have
Method = TypeVar("Method", bound=Callable[..., Any])


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


def outputs_of(likelihood: str) -> str:
    """Return what messages call y under a likelihood; those of users have readings."""
    if likelihood == "bernoulli":
        return "labels"
    return LIKELIHOODS[likelihood].outputs if likelihood in LIKELIHOODS else "readings"


def refuse_elsewhere(estimator: type, given: Iterable[str]) -> None:
    """Raise for arguments that another estimator has."""
    elsewhere: Mapping[str, str] = getattr(estimator, "_elsewhere", {})
    for name in given:
        if name in elsewhere:
            raise TypeError(f"{estimator.__name__} has no {name}: use {elsewhere[name]}.")


def names_elsewhere(method: Method) -> Method:
    """Make a constructor or `fit` say which estimator has an argument that this one lacks."""

    @functools.wraps(method)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        refuse_elsewhere(type(self), kwargs)
        return method(self, *args, **kwargs)

    return cast(Method, checked)


def check_search(search_time: Any, progress: Any) -> None:
    """Check how long a search may take, and whether its progress is shown."""
    if search_time is not None:
        check_positive("search_time", search_time, " of seconds, or None", limits=None)
    if progress is not None:
        check_bool("progress", progress)


def check_shared_classes(shared_classes: Any) -> None:
    """Raise unless the argument says whether tasks share their classes, or leaves it open."""
    if not (isinstance(shared_classes, str) and shared_classes == "auto"):
        check_bool("shared_classes", shared_classes, "'auto', ")


def check_likelihood(likelihood: Any, noise_std: Any, exposure: Any) -> None:
    """Check the likelihood of numbers, and what goes with it."""
    given = Argument("likelihood", likelihood)
    if _is_of_networks(likelihood):
        named = (
            f" must be a name; objects such as {type(likelihood).__name__} are for metaprior.wfem.WFEMRegressor, whose "
        )
        raise TypeError(Message(Argument("likelihood"), f"{named}priors are networks."))
    kind = LIKELIHOODS[check_choice("likelihood", likelihood, tuple(LIKELIHOODS))]
    if check_noise(noise_std) is not None and not kind.normal:
        raise ValueError(Message(Argument("noise_std"), " must be 'learned': that of ", given, f" {kind.noise_words}."))
    if exposure is not None and not kind.takes_exposure:
        named = [Argument("likelihood", name) for name in names_where(lambda kind: kind.takes_exposure)]
        counts = [part for each in named for part in (" or ", each)][1:]
        raise ValueError(Message(Argument("exposure"), " is for counts, ", *counts, "; got ", given, "."))


def _is_of_networks(likelihood: Any) -> bool:
    """Return whether a likelihood is an object as priors of networks take it: `Gaussian`, or one of the user's own."""
    if isinstance(likelihood, (type, *LIKELIHOODS.values())):
        return False
    return hasattr(likelihood, "log_density") or type(likelihood).__module__.startswith("metaprior.wfem")


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


def _sizes(tasks: Sequence[Task]) -> np.ndarray:
    """Return the numbers of readings of tasks, without reading stored ones."""
    return tasks.sizes if isinstance(tasks, StoredTasks) else np.array([len(task.y) for task in tasks])


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


def warn_if_no_target_tasks(environments: NamedEnvironments, alpha: Any) -> None:
    """Warn if alpha is to be chosen by cross-validation, and there are no target tasks."""
    n_target, name = environments.counts[environments.target], environments.names[environments.target]
    if isinstance(alpha, str) and alpha == "auto" and not n_target:
        found = f"There are no tasks of the {name} environment to choose alpha by, so alpha is 1. Pass some, or "
        warn_caller(
            Message(found, Argument("alpha", 1), " or ", Argument("alpha", "pooled"), " to silence this warning.")
        )


def reject_rows(y: Any) -> None:
    """Raise if `score` gets X and y, as those of other estimators do."""
    if y is not None:
        raise TypeError(
            "score takes test tasks, not X and y: score([(X_context, y_context, X_query, y_query), ...]) adapts to the "
            "context of each task and scores its queries."
        )


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
