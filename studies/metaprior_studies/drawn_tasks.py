"""The tasks of one draw, shared by every scheme that is compared on it."""

from typing import NamedTuple

from metaprior.tasks.types import Task, TestTask


class DrawnTasks(NamedTuple):
    """Source and target tasks to meta-learn from, and target tasks to test on."""

    source: list[Task]
    target: list[Task]  # a scheme with fewer target tasks uses the first ones
    test: list[TestTask]
