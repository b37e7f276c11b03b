"""The inputs of a prior on the page: numbers to draw along, levels of categories, covariates of a task, an exposure.

The page sends a category as the number of its level. All readings of a task, and what is predicted of it, have the
covariates that a request fixes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from metaprior_app.messages import InvalidRequest
from metaprior.tasks.categories import Coded
from metaprior.tasks.types import Task, as_inputs


def axes_of(meta: Any) -> list[int]:
    """Return the inputs that a chart can be drawn along: numbers that vary within a task, but for an exposure."""
    features = meta.features_
    others = {*features.categories.levels, *features.categories.covariates, features.exposure}
    return [i for i in range(meta.n_features_in_) if i not in others]


def describe_inputs(meta: Any, names: Sequence[str], dates: Sequence[str], tasks: Sequence[Task]) -> list[dict]:
    """Return names, kinds, ranges and typical values of the inputs; `tasks` are those of the fit, with codes."""
    features, learned = meta.features_, getattr(meta, "feature_range_", None)
    scaling, described = meta.model_.members[0].scaling, []
    x = np.concatenate([task.x for task in tasks]) if tasks else None
    for i, name in enumerate(names):
        if learned is not None:
            low, high = float(learned[0, i]), float(learned[1, i])
        else:
            middle, spread = float(scaling.x_mean[i]), float(scaling.x_std[i])
            low, high = middle - 2.0 * spread, middle + 2.0 * spread
        levels = [str(level) for level in features.categories.listed(i)] if i in features.categories.levels else None
        described.append(
            {
                "name": name,
                "dates": name in dates,
                "low": low,
                "high": high if high > low else low + 1.0,
                "typical": _typical(meta, i, (low, high), None if x is None else x[:, i]),
                "levels": levels,
                "covariate": i in features.categories.covariates,
                "exposure": i == features.exposure,
            }
        )
    return described


def _typical(meta: Any, column: int, limits: tuple[float, float], values: np.ndarray | None) -> float:
    """Return what an input is unless a chart runs along it, in the numbers of the page."""
    categories, scaling = meta.features_.categories, meta.model_.members[0].scaling
    if column in categories.levels:  # the most common level
        start, n_levels = scaling.kinds.place(column), len(categories.levels[column])
        return float(np.argmax(scaling.shares[start : start + n_levels]))
    if column in categories.covariates:
        return float(scaling.x_mean[column])
    if column == meta.features_.exposure:  # one or, if the fit has none of about that size, the nearest that it has
        return float(np.clip(1.0, *limits))
    return sum(limits) / 2.0 if values is None else float(np.median(values))


def as_rows(meta: Any, rows: Any, fixed: Sequence[float]) -> np.ndarray:
    """Return inputs that the page sends as a prior takes them: with codes of levels, and the covariates of the task."""
    x = np.array(rows, float).reshape(-1, meta.n_features_in_)
    categories = meta.features_.categories
    if meta.features_.kinds is None:
        return x
    for column in categories.covariates:
        x[:, column] = fixed[column]
    return x.view(Coded)


def check_levels(meta: Any, rows: Sequence[Sequence[float]]) -> None:
    """Raise unless every category is the number of one of its levels."""
    for column, levels in meta.features_.categories.levels.items():
        for row in rows:
            if row[column] not in range(len(levels)):
                most = f"a number of a level, from 0 to {len(levels) - 1}"
                raise InvalidRequest(f"Input {column + 1} is a category and must be {most}; got {row[column]:g}.")


def check_axes(meta: Any, request: dict[str, Any]) -> None:
    """Raise unless a chart is drawn along inputs that are numbers."""
    allowed, n_inputs = axes_of(meta), meta.n_features_in_
    for name in ("axis", "second") if request.get("map") else ("axis",):
        if request.get(name, 0) >= n_inputs:
            raise InvalidRequest(f"{name} must be the number of an input, below {n_inputs}; got {request[name]}.")
        if request.get(name, 0) not in allowed:
            raise InvalidRequest(f"{name} must be an input of numbers that is no covariate; got {request[name]}.")


def as_frame(meta: Any, x: np.ndarray, names: Sequence[str]) -> Any:
    """Return inputs as a data frame, with the levels of categories as the table of the fit has them."""
    import pandas as pd

    frame = pd.DataFrame(np.asarray(x), columns=list(names))
    for column in meta.features_.categories.levels:
        levels = np.empty(len(meta.features_.categories.levels[column]), object)
        levels[:] = meta.features_.categories.listed(column)
        frame[names[column]] = levels[np.asarray(x)[:, column].astype(int)]
    return frame


def as_coded(meta: Any, tasks: Sequence[Task], name: str) -> list[Task]:
    """Return tasks of a table with the numbers of levels, as the page has them; covariates may be NaN."""
    if meta.features_.kinds is None:
        return list(tasks)
    return [task._replace(x=np.asarray(as_inputs(task.x, name, meta.features_))) for task in tasks]
