"""What messages call tasks: the library counts them, `source_tasks['north'][3]`; users know the rows of their table.

The tasks that `metaprior fit` is given: of a table, or of a folder that `metaprior store` has written.
"""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import Argument, Message, counted
from metaprior.cli.console import check_target, err, print_note
from metaprior.cli.scores import HeldOut, hold_out
from metaprior.tables.csv_files import CsvFormat, Source, TableFile

Place = Callable[[int], tuple[Any, int | None]]  # from the number of a task to its name and first row


@contextmanager
def tasks_by_name(source: Source, y: str | None, places: Mapping[str, Place], x: Sequence[str] = ()) -> Iterator[None]:
    """Show errors and warnings of the library with the table, the line, the column and the name of a task.

    `places` has an entry for every argument of the library that tasks are passed as, `x` the names of input columns.
    """

    def rename(error: Any) -> None:
        if error.args and isinstance(error.args[0], str):
            message = error.args[0]
            parts = message.parts if isinstance(message, Message) else (message,)
            renamed = (part if isinstance(part, Argument) else _renamed(part, source, y, places, x) for part in parts)
            error.args = (Message(*renamed), *error.args[1:])

    show = warnings.showwarning
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *rest, **more: (rename(message), show(message, *rest, **more))[1]
        try:
            yield
        except ValueError as error:
            rename(error)
            raise


def columns_by_name(text: str, x: Sequence[str]) -> str:
    """Return text with the input columns that it counts, as X[:, 0], by name."""
    return re.sub(r"X\[:, (\d+)\]", lambda found: repr(x[int(found[1])]) if int(found[1]) < len(x) else found[0], text)


def _renamed(text: str, source: Source, y: str | None, places: Mapping[str, Place], x: Sequence[str]) -> str:
    """Return text with the tasks and input columns that it counts by name."""
    text = columns_by_name(text, x)
    for argument, place in places.items():
        counted = rf"(?<!\w){re.escape(argument)}\[(?P<number>\d+)\](?P<part> context| query)?(?P<y>(?=:? y\b))?"

        def named(found: re.Match[str], place: Place = place) -> str:
            name, row = place(int(found["number"]))
            column = "" if found["y"] is None else f", column {y}"
            return f"{source.task(name, row)}{found['part'] or ''}{column}"

        text = re.sub(counted, named, text)
    return re.sub(r"^y (?=must|has|is)", f"{source}: column {y}: y ", text)


FEW_VALUES = 5  # integers that may be labels
OPTIONAL = ("covariates", "categorical", "aside")  # columns that are recorded if there are any
MAX_TESTED = 1000  # of stored tasks that are held out


class TrainingData(NamedTuple):
    """What a prior is fitted to, and tested on."""

    environments: dict[str, Any]  # {"": tasks} without a column of environments
    columns: dict[str, Any]
    labels: bool  # whether y holds labels
    held_out: list[Any]  # tasks of the target
    source: Source
    places: dict[str, Place]  # of the tasks of each environment in the source
    held_out_names: list[Any]
    dates: list[str]  # input columns that hold dates, here as days since 1970


class Fit(NamedTuple):
    """A fitted prior, what it was fitted to and tested on, and how that was asked for."""

    meta: Any
    tasks: TrainingData
    target: str | None  # the environment to predict in, where there are several
    seed: int
    held_out: HeldOut | None  # the result of --hold-out
    command: list[str]  # words of the command line that gives the same prior
    is_pipe: bool  # whether the table came through one


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
    rng = np.random.default_rng(seed)
    if table.path.is_dir():
        format = {
            name: value for name, value in table.format._asdict().items() if value != CsvFormat._field_defaults[name]
        }
        given = {**named, **how, **format, "max_tasks": max_tasks}
        covariates = given.pop("covariates", None)
        opened = _open(table.path, target, bool(labels), share, rng, [name for name, value in given.items() if value])
        return opened if not covariates else opened._replace(columns=_with_covariates(opened.columns, covariates))
    columns, grouped = _read(table, named, target, {**how, "labels": labels})
    places, held = grouped.places(), list[int]()
    for name, tasks in places.items():
        if max_tasks is not None and len(tasks) > max_tasks:
            print_note(f"using {max_tasks} of {len(tasks)} tasks{f' of {name}' if name else ''} (--max-tasks).")
            places[name] = [tasks[i] for i in np.sort(rng.choice(len(tasks), max_tasks, replace=False)).tolist()]
    if share is not None:
        among = places[target or ""]
        order = rng.permutation(len(among)).tolist()
        kept, tested = hold_out([len(grouped.tasks[i].y) for i in among], share, order)
        places[target or ""], held = [among[i] for i in kept], [among[i] for i in tested]
    environments = {name: [grouped.tasks[i] for i in of_name] for name, of_name in places.items()}
    is_text = grouped.tasks[0].y.dtype.kind not in "fiu" if labels is None else labels
    if labels is None and not is_text:
        _note_few_values(environments, columns["y"])

    def place(of_name: list[int]) -> Place:
        return lambda i: (grouped.names[of_name[i]], int(grouped.rows[of_name[i]][0]))

    by_name = {name: place(of_name) for name, of_name in places.items()}
    held_out, names = [grouped.tasks[i] for i in held], [grouped.names[i] for i in held]
    source = Source.of(table, "table")
    return TrainingData(environments, columns, is_text, held_out, source, by_name, names, grouped.dates)


def _read(data: TableFile, named: dict[str, Any], target: str | None, how: dict[str, Any]) -> tuple[dict, Any]:
    """Return the columns, and the grouped tasks of the table."""
    from metaprior.tables.columns import as_columns
    from metaprior.tables.grouping import group_rows

    missing = [f"--{name}" for name in ("task", "x", "y") if not named[name]]
    if missing:
        raise ValueError(f"Missing {', '.join(missing)}: each must name a column of the table.")
    columns = as_columns(**named)
    _check_both(columns.environment, target)
    with err.status(f"reading {data}"):
        grouped = group_rows(data, columns, recognize=True, **how)
    columns = columns._replace(categorical=grouped.categorical)
    if target is not None:
        check_target(target, grouped.environments or (), columns.environment)
    named = columns._asdict()
    return {name: value for name, value in named.items() if value or name not in OPTIONAL}, grouped


def _with_covariates(columns: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Return the columns of stored tasks with covariates, which are some of their inputs."""
    for name in names:
        if name not in columns["x"]:
            known = ", ".join(map(repr, columns["x"]))
            raise ValueError(f"--task-covariates names {name!r}, which is no input of the stored tasks: {known}.")
    return {**columns, "covariates": names}


def _open(
    folder: Path, target: str | None, labels: bool, share: float | None, rng: np.random.Generator, given: list[str]
) -> TrainingData:
    """Open stored tasks; raise if there are options that are for tables. The last ones are held out, in one piece."""
    from metaprior.storage.task_folders import open_tasks, read_header

    stored, columns = open_tasks(folder), read_header(folder)["columns"]
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(f"{folder} holds stored tasks, and these options are for tables. Leave out {options}.")
    _check_target(folder, stored, target)
    environments, held, drawn = stored if isinstance(stored, dict) else {"": stored}, [], []
    if target is not None:
        check_target(target, environments, columns["environment"])
    if share is not None:
        tasks = environments[target or ""]
        kept, tested = hold_out(tasks.sizes.tolist(), share, range(len(tasks))[::-1])
        drawn = np.sort(rng.permutation(tested)[:MAX_TESTED]).tolist()
        environments[target or ""], held = tasks[: len(kept)], [tasks[i] for i in drawn]
        few = "" if len(drawn) == len(tested) else f", and testing on {len(drawn):,} of them, drawn at random"
        print_note(f"holding out {counted(len(tasks) - len(kept), 'stored task')}, the last of the target{few}.")

    def place(name: str) -> Place:
        return lambda i: (f"{i + 1} of {name}" if name else i + 1, None)

    by_name = {name: place(name) for name in environments}
    names = [by_name[target or ""](i)[0] for i in drawn]
    return TrainingData(environments, columns, labels, held, Source(str(folder)), by_name, names, [])


def _check_target(folder: Path, stored: Any, target: str | None) -> None:
    """Raise unless a target is named exactly if tasks were stored with a column of environments."""
    if isinstance(stored, dict) and target is None:
        names = ", ".join(map(repr, stored))
        raise ValueError(f"{folder} holds tasks of environments: pass --target, the one to predict in, of {names}.")
    if target is not None and not isinstance(stored, dict):
        again = "Leave out --target, or store the tasks again with --environment."
        raise ValueError(f"{folder} holds tasks without environments: they were stored without --environment. {again}")


def _check_both(environment: str | None, target: str | None) -> None:
    if (environment is None) != (target is None):
        given, lacking = ("--target", "--environment") if environment is None else ("--environment", "--target")
        raise ValueError(
            f"{given} needs {lacking}: --environment is the column that names the environment of a task, --target the "
            "one of them to predict in."
        )


def _note_few_values(environments: dict[str, Any], y: str) -> None:
    """Say that numbers are not taken for labels, where they may be labels: two values, or few integers."""
    values = np.unique(np.concatenate([np.unique(task.y) for tasks in environments.values() for task in tasks]))
    if len(values) == 2 or (2 < len(values) <= FEW_VALUES and (values == np.round(values)).all()):
        words = f"{'two' if len(values) == 2 else len(values)} values only, " + ", ".join(f"{v:g}" for v in values[:-1])
        advice = "fitted as numbers. For labels pass --kind classification."
        print_note(f"{y} has {words} and {values[-1]:g}, {advice}")
