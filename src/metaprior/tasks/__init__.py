"""Tasks: what a user brings (`types`, `labels`), checked, scaled (`scaling`) and padded into batches (`batch`);
or tables of them (`frames`), in files too (`tables`); or more than memory holds (`store`, `storing`)."""

from metaprior.tasks.batch import TaskBatch, TaskSet, pad_tasks, pad_to
from metaprior.tasks.columns import Columns, TableWarning, as_columns, as_text
from metaprior.tasks.folds import make_folds, split_task
from metaprior.tasks.frames import TaskTable, as_frame, group_rows, tasks_from_frame
from metaprior.tasks.labels import (
    as_labelled_tests,
    as_labels,
    encode,
    encode_contexts,
    encode_environments,
    task_classes,
)
from metaprior.tasks.ragged import Ragged, as_context_rows, as_contexts, as_input_rows, as_new_tasks
from metaprior.tasks.scaling import Scaling, fit_label_scaling, fit_scaling
from metaprior.tasks.store import StoredTasks, open_tasks
from metaprior.tasks.stored_scaling import stored_scaling
from metaprior.tasks.storing import store_tasks
from metaprior.tasks.tables import read_table
from metaprior.tasks.types import Task, TestTask, as_inputs, as_task, as_tasks, as_test_tasks

__all__ = [
    "Columns",
    "Ragged",
    "Scaling",
    "StoredTasks",
    "TableWarning",
    "Task",
    "TaskBatch",
    "TaskSet",
    "TaskTable",
    "TestTask",
    "as_columns",
    "as_context_rows",
    "as_contexts",
    "as_frame",
    "as_input_rows",
    "as_inputs",
    "as_labelled_tests",
    "as_labels",
    "as_new_tasks",
    "as_task",
    "as_tasks",
    "as_test_tasks",
    "as_text",
    "encode",
    "encode_contexts",
    "encode_environments",
    "fit_label_scaling",
    "fit_scaling",
    "group_rows",
    "make_folds",
    "open_tasks",
    "pad_tasks",
    "pad_to",
    "read_table",
    "split_task",
    "store_tasks",
    "stored_scaling",
    "task_classes",
    "tasks_from_frame",
]
