"""Tasks: what a user brings (`types`, `labels`), checked, scaled (`scaling`) and padded into batches (`batch`)."""

from metaprior.tasks.batch import TaskBatch, TaskSet, pad_tasks, pad_to
from metaprior.tasks.folds import make_folds, split_task
from metaprior.tasks.frames import tasks_from_frame
from metaprior.tasks.labels import as_labelled_tests, as_labels, encode, encode_environments, task_classes
from metaprior.tasks.scaling import Scaling, fit_label_scaling, fit_scaling
from metaprior.tasks.types import Task, TestTask, as_inputs, as_task, as_tasks, as_test_tasks

__all__ = [
    "Scaling",
    "Task",
    "TaskBatch",
    "TaskSet",
    "TestTask",
    "as_inputs",
    "as_labelled_tests",
    "as_labels",
    "as_task",
    "as_tasks",
    "as_test_tasks",
    "encode",
    "encode_environments",
    "fit_label_scaling",
    "fit_scaling",
    "make_folds",
    "pad_tasks",
    "pad_to",
    "split_task",
    "task_classes",
    "tasks_from_frame",
]
