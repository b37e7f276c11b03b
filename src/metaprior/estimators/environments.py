"""What `fit` is given: source and target tasks, or any number of named environments."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from metaprior.tasks import Task

Read = Callable[[Any, str, int | None], list[Task]]  # checks (tasks, what to call them, the number of input columns)


class Environments(NamedTuple):
    """Checked tasks of every environment."""

    names: tuple[str, ...]
    tasks: list[list[Task]]
    target: int  # which of them is the one to predict in
    arguments: tuple[str, ...]  # what the user called each, for errors

    @property
    def counts(self) -> list[int]:
        """Tasks per environment."""
        return [len(tasks) for tasks in self.tasks]


def read_environments(
    source_tasks: Iterable[Any] | Mapping[Any, Any] | None,
    target_tasks: Iterable[Any] | None,
    target: Any,
    read: Read,
) -> Environments:
    """Source and target tasks, or a mapping from names to tasks of which `target` names one."""
    if isinstance(source_tasks, Mapping):
        _check_names(source_tasks, target_tasks, target)
        names = tuple(source_tasks)
        named = [(f"source_tasks[{name!r}]", tasks) for name, tasks in source_tasks.items()]
    elif target is not None:
        raise ValueError(
            f"target={target!r} names one of several environments, as in fit({{'a': tasks, 'b': tasks}}, target='b'); "
            "with source_tasks and target_tasks leave it out."
        )
    else:
        names = ("source", "target")
        named = [("source_tasks", source_tasks), ("target_tasks", target_tasks)]
    checked: list[list[Task]] = []
    for argument, tasks in named:
        known = [task.x.shape[1] for group in checked for task in group[:1]]
        checked.append(read(tasks, argument, known[0] if known else None))
    if not any(checked):
        empty = "source_tasks has no tasks" if len(names) != 2 or isinstance(source_tasks, Mapping) else ""
        raise ValueError(f"{empty or 'source_tasks and target_tasks are both empty'}: expected at least one (X, y).")
    place = names.index(target if isinstance(source_tasks, Mapping) else "target")
    return Environments(names, checked, place, tuple(argument for argument, _ in named))


def _check_names(environments: Mapping[Any, Any], target_tasks: Any, target: Any) -> None:
    if not environments:
        raise ValueError("source_tasks is a mapping without any environment: expected names and their tasks.")
    listed = ", ".join(map(repr, environments))
    if not all(isinstance(name, str) for name in environments):
        raise ValueError(f"source_tasks must map names to tasks; its keys must be strings, got {listed}.")
    if target_tasks is not None:
        raise ValueError(
            "target_tasks must be left out where source_tasks maps names to tasks: target='...' names one."
        )
    if target is None:
        raise ValueError(f"target must say which environment to predict in; pass target= one of {listed}.")
    if not (isinstance(target, str) and target in environments):
        raise ValueError(f"target must be one of the environments, {listed}; got {target!r}.")
