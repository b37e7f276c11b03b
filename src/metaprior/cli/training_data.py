"""The tasks that `metaprior fit` is given: of a table, or of a folder that `metaprior store` has written."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from metaprior.cli.console import check_target, err, print_note
from metaprior.cli.scores import hold_out
from metaprior.tables.csv_files import TableFile


class TrainingData(NamedTuple):
    """What a prior is fitted to, and tested on."""

    environments: dict[str, Any]  # {"": tasks} without a column of environments
    columns: dict[str, Any]
    labels: bool  # whether y holds labels
    held_out: list[Any]  # tasks of the target


def read_training_data(
    table: TableFile,
    named: dict[str, Any],
    target: str | None,
    labels: bool | None,
    max_tasks: int | None,
    share: float | None,
    seed: int,
    how: dict[str, Any],
) -> TrainingData:
    """Read tasks, at most `max_tasks` of each environment, and hold out a share of the target's."""
    if table.path.is_dir():
        given = {**named, **how, "max_tasks": max_tasks, "hold_out": share}
        return _open(table.path, target, bool(labels), [name for name, value in given.items() if value])
    columns, environments = _read(table, named, target, {**how, "labels": labels})
    is_text = environments[next(iter(environments))][0].y.dtype.kind not in "fiu" if labels is None else labels
    rng, held = np.random.default_rng(seed), []
    for name, tasks in environments.items():
        if max_tasks is not None and len(tasks) > max_tasks:
            print_note(f"using {max_tasks} of {len(tasks)} tasks{f' of {name}' if name else ''} (--max-tasks).")
            environments[name] = [tasks[i] for i in np.sort(rng.choice(len(tasks), max_tasks, replace=False)).tolist()]
    if share is not None:
        environments[target or ""], held = hold_out(environments[target or ""], share, rng)
    if labels is None and not is_text:
        _note_two_values(environments, columns["y"])
    return TrainingData(environments, columns, is_text, held)


def _read(
    data: TableFile, named: dict[str, Any], target: str | None, how: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns, and the tasks of each environment."""
    from metaprior.tables.columns import as_columns
    from metaprior.tables.grouping import group_rows

    missing = [f"--{name}" for name in ("task", "x", "y") if not named[name]]
    if missing:
        raise ValueError(f"Missing {', '.join(missing)}: each must name a column of the table.")
    columns = as_columns(**named)
    _check_both(columns.environment, target)
    with err.status(f"reading {data}"):
        environments = group_rows(data, columns, **how).by_environment()
    if target is not None:
        check_target(target, environments, columns.environment)
    return columns._asdict(), environments


def _open(folder: Path, target: str | None, labels: bool, given: list[str]) -> TrainingData:
    """Open stored tasks; raise if there are options that are for tables."""
    from metaprior.storage.task_folders import open_tasks, read_header

    stored, columns = open_tasks(folder), read_header(folder)["columns"]
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(f"{folder} holds stored tasks, and these options are for tables. Leave out {options}.")
    _check_both(columns["environment"], target)
    environments = stored if isinstance(stored, dict) else {"": stored}
    if target is not None:
        check_target(target, environments, columns["environment"])
    return TrainingData(environments, columns, labels, [])


def _check_both(environment: str | None, target: str | None) -> None:
    if (environment is None) != (target is None):
        given, lacking = ("--target", "--environment") if environment is None else ("--environment", "--target")
        raise ValueError(
            f"{given} needs {lacking}: --environment is the column that names the environment of a task, --target the "
            "one of them to predict in."
        )


def _note_two_values(environments: dict[str, Any], y: str) -> None:
    """Say that numbers are not taken for labels, where they may be labels."""
    values = np.unique(np.concatenate([np.unique(task.y) for tasks in environments.values() for task in tasks]))
    if len(values) == 2:
        both = f"{values[0]:g} and {values[1]:g}"
        print_note(f"{y} has two values only, {both}, fitted as numbers. For labels pass --kind classification.")
