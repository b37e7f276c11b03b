"""Tasks: what a user brings (`types`), checked, scaled (`scaling`) and padded into batches (`batch`)."""

from metaprior.tasks.batch import TaskBatch, TaskSet, pad_tasks, pad_to
from metaprior.tasks.scaling import Scaling, fit_scaling
from metaprior.tasks.types import Task, TestTask, as_inputs, as_task, as_tasks, as_test_tasks

__all__ = [
    "Scaling",
    "Task",
    "TaskBatch",
    "TaskSet",
    "TestTask",
    "as_inputs",
    "as_task",
    "as_tasks",
    "as_test_tasks",
    "fit_scaling",
    "pad_tasks",
    "pad_to",
]
