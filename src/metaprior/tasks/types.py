"""Tasks as users pass them, checked with errors that name the argument and the task."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import Argument, Message, counted
from metaprior.tasks.categories import Coded, is_missing
from metaprior.tasks.input_columns import Features

NUMERIC = set("biuf")  # dtype kinds
DATES = "; convert dates to numbers, such as days since a start"
OTHER_KINDS = {"U": "text", "S": "bytes", "c": "complex numbers", "M": f"datetime64{DATES}", "m": f"timedelta64{DATES}"}


class Task(NamedTuple):
    """One meta-training task: the samples D_i = (X_i, Y_i)."""

    x: np.ndarray  # (n_samples, input_dim)
    y: np.ndarray  # (n_samples,)


class TestTask(NamedTuple):
    """One test task: a context set to adapt to and a query set to predict."""

    x_context: np.ndarray  # (n_context, input_dim)
    y_context: np.ndarray  # (n_context,)
    x_query: np.ndarray  # (n_query, input_dim)
    y_query: np.ndarray  # (n_query,)

    __test__ = False  # pytest would take it for a test class


CheckOutputs = Callable[[Any, str], np.ndarray]  # checks y, named in errors as given: `as_numbers` or `as_labels`


def as_numbers(values: Any, name: str) -> np.ndarray:
    """Return the values as an array of finite floats."""
    if np.ma.is_masked(values):
        raise ValueError(f"{name} must not have masked values. Drop or impute these samples.")
    try:
        array = np.asarray(values)
        kinds = {np.asarray(item).dtype.kind for item in array.flat} if array.dtype.kind == "O" else {array.dtype.kind}
        if others := kinds - NUMERIC - {"O"}:
            raise TypeError(" and ".join(OTHER_KINDS.get(kind, kind) for kind in sorted(others)))
        array = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} must be an array of numbers; got {type(values).__name__} ({error}).") from None
    bad = ~np.isfinite(array)
    if bad.any():
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"{name} must be finite; {int(bad.sum())} value{'s are' if bad.sum() > 1 else ' is'} NaN or infinite, "
            f"the first at {first if len(first) > 1 else (first[0] if first else 0)}. Drop or impute these samples."
        )
    return array


def as_inputs(x: Any, name: str, features: Features | int | None = None) -> np.ndarray:
    """Return inputs as floats of shape (n, d), named columns in the order of the features; images become rows."""
    features = Features.of(features)
    inputs, input_dim = _as_columns(features.in_order(x, name), name, features), features.count
    is_flat = inputs.ndim == 1
    if is_flat:
        # An empty list does not show its dimension; any other flat X is n inputs of one dimension.
        inputs = inputs.reshape(0, input_dim or 1) if inputs.size == 0 else inputs[:, None]
    if inputs.ndim < 2 or 0 in inputs.shape[1:]:
        raise ValueError(f"{name}: X must have shape (n, d), (n,) or (n, height, width, ...); got {inputs.shape}.")
    flat = inputs.reshape(len(inputs), math.prod(inputs.shape[1:]))
    if input_dim is not None and flat.shape[1] != input_dim:
        samples = f" in samples of shape {inputs.shape[1:]}" if inputs.ndim > 2 else ""
        one_row = "frame.iloc[[i]]" if hasattr(x, "iloc") else "[x]"
        advice = f" For one input of {input_dim} columns pass {one_row}, a table of one row." if is_flat else ""
        raise ValueError(
            f"{name}: X must have {counted(input_dim, 'column')}, like the other tasks; "
            f"got {flat.shape[1]}{samples}.{advice}"
        )
    features.check_exposure(flat, name)
    return flat


def _as_columns(x: Any, name: str, features: Features) -> np.ndarray:
    """Return X as finite floats; an error names the column of a data frame."""
    features.decide(x)
    if not features.are_numbers:
        return _as_mixed_columns(x, name, features)
    try:
        return _as_number_column(x, f"{name}: X", features)
    except ValueError:
        for i, column in enumerate(x.columns if hasattr(x, "iloc") and hasattr(x, "columns") else ()):
            _as_number_column(x.iloc[:, i], f"{name}: column {column!r} of X", features)
        raise


def _as_mixed_columns(x: Any, name: str, features: Features) -> np.ndarray:
    """Return X as floats, with codes of categories; covariates may be missing, which is NaN."""
    if isinstance(x, Coded):
        return x
    if hasattr(x, "iloc") and hasattr(x, "columns"):
        columns = [x.iloc[:, i] for i in range(x.shape[1])]
    else:
        cells = np.asarray(x, dtype=object)
        columns = list((cells[:, None] if cells.ndim == 1 else cells).T)
    if features.count is not None and len(columns) != features.count:
        return np.zeros((len(x), len(columns) if len(x) else features.count))  # `as_inputs` refuses it, if not empty
    coded, categories = [], features.categories
    for i, column in enumerate(columns):
        where = f"{name}: column {features.column_name(i)} of X"
        if i in categories.levels:
            values = categories.codes(i, column.tolist(), features.learning, where)
        elif i in categories.covariates:
            missing = np.array([is_missing(cell) for cell in column.tolist()], bool)
            values = np.full(len(missing), np.nan)
            values[~missing] = _as_number_column(np.array(column.tolist(), object)[~missing], where, features)
        else:
            values = _as_number_column(column, where, features)
        if i not in categories.covariates and np.isnan(values).any():
            first = int(np.isnan(values).argmax())
            raise ValueError(f"{where} has missing values, the first in row {first}. Drop or impute these samples.")
        coded.append(values)
    return np.stack(coded, axis=1).view(Coded)


def _as_number_column(values: Any, where: str, features: Features) -> np.ndarray:
    """Return numbers; text that was not recognized as categories in a fit, such as numerals, gets advice."""
    try:
        return as_numbers(values, where)
    except ValueError as error:
        if not (features.learning and _has_text(values)):
            raise
        advice = " Convert it to numbers or, if it holds categories, name it in "
        raise ValueError(Message(str(error), advice, Argument("categorical"), ".")) from None


def _has_text(values: Any) -> bool:
    try:
        return any(isinstance(cell, str) for cell in np.asarray(values, dtype=object).ravel())
    except ValueError:  # arrays of different shapes
        return False


def as_task(
    x: Any, y: Any, name: str, features: Features | int | None = None, outputs: CheckOutputs = as_numbers
) -> Task:
    """Check one (X, y) pair. X may be (n, d), (n,) or (n, height, width, ...), y may be (n,) or (n, 1)."""
    observed = outputs(y, f"{name}: y")
    if observed.ndim == 2 and observed.shape[1] == 1:
        observed = observed[:, 0]
    if observed.ndim != 1:
        raise ValueError(f"{name}: y must have shape (n,), one per sample; got shape {observed.shape}.")
    inputs = as_inputs(x, name, features)
    if len(inputs) != len(observed):
        raise ValueError(
            f"{name}: X and y must have the same number of samples; X has {len(inputs)} and y has {len(observed)}."
        )
    _check_same_order(x, y, name)
    if isinstance(features, Features):
        features.categories.check_constant(inputs, name, features.column_name)
    return Task(inputs, observed)


def _check_same_order(x: Any, y: Any, name: str) -> None:
    """Raise if X and y have the same row labels in different orders: rows are taken by position, as in scikit-learn."""
    of_x, of_y = (getattr(each, "index", None) if hasattr(each, "iloc") else None for each in (x, y))
    if of_x is None or of_y is None or of_x.equals(of_y):
        return
    if of_x.is_unique and of_y.is_unique and of_x.isin(of_y).all():  # other labels say nothing about the order
        raise ValueError(
            f"{name}: X and y have the same index in different orders, and rows are matched by position. Pass "
            "y.loc[X.index], or y.to_numpy() if the positions are right."
        )


def as_tasks(
    tasks: Iterable[Any] | None,
    name: str,
    features: Features | int | None = None,
    outputs: CheckOutputs = as_numbers,
) -> list[Task]:
    """Check a sequence of (X, y) pairs; `name` is the argument to name in errors. Features are learned on the way."""
    features = Features.of(features)
    checked: list[Task] = []
    for where, (x, y) in as_tuples(() if tasks is None else tasks, name, length=2, form="(X, y)"):
        task = as_task(x, y, where, features, outputs)
        if len(task.y) == 0:
            raise ValueError(f"{where} is empty: a meta-training task needs at least one sample. Drop the task.")
        features.learn(x, task.x.shape[1])
        checked.append(task)
    return checked


def as_test_tasks(
    tasks: Iterable[Any] | None, name: str, features: Features | int, outputs: CheckOutputs = as_numbers
) -> list[TestTask]:
    """Check a sequence of (X_context, y_context, X_query, y_query). An empty context stands for the prior."""
    checked: list[TestTask] = []
    form = "(X_context, y_context, X_query, y_query)"
    tuples = as_tuples(() if tasks is None else tasks, name, length=4, form=form)
    for where, (x_context, y_context, x_query, y_query) in tuples:
        context = as_task(x_context, y_context, f"{where} context", features, outputs)
        query = as_task(x_query, y_query, f"{where} query", features, outputs)
        if len(query.y) == 0:
            raise ValueError(f"{where} query is empty: there is nothing to predict. Drop the task.")
        if isinstance(features, Features):
            whole = np.concatenate([context.x, query.x])
            features.categories.check_constant(whole, f"{where} (context and query)", features.column_name)
        checked.append(TestTask(*context, *query))
    if not checked:
        raise ValueError(f"{name} is empty: expected at least one {form}.")
    return checked


def as_tuples(tasks: Iterable[Any], name: str, length: int, form: str) -> list[tuple[str, Sequence[Any]]]:
    """Return (name[index], parts) for every tuple of a sequence, which must have the given length."""
    if isinstance(tasks, np.ndarray | str | dict) or not isinstance(tasks, Iterable):
        raise ValueError(f"{name} must be a sequence of {form}; got {type(tasks).__name__}.")
    checked = []
    for index, parts in enumerate(tasks):
        where = f"{name}[{index}]"
        if not isinstance(parts, tuple | list) or len(parts) != length:
            found = f"{len(parts)} parts" if isinstance(parts, tuple | list) else type(parts).__name__
            is_whole = name == "test_tasks" and length == 4 and found == "2 parts"
            advice = " For whole tasks, (X, y), call evaluate or compare with context=5 or another one." * is_whole
            raise ValueError(f"{where} must be {form}; got {found}.{advice}")
        checked.append((where, parts))
    return checked
