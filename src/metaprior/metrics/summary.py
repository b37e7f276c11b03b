"""What `evaluate` gives."""

from typing import Any

from sklearn.utils import Bunch

from metaprior.metrics.regression import mean_and_standard_error


def report(summary: dict[str, Any]) -> Bunch:
    """Means and standard errors over tasks of what `summarize` gives per task."""
    per_task = {name: values for name, values in summary.items() if name != "calibration_error"}
    figures: dict[str, Any] = {}
    for name, values in per_task.items():
        figures[name], figures[f"{name}_se"] = mean_and_standard_error(values)
    n_tasks = len(next(iter(per_task.values())))
    return Bunch(**figures, calibration_error=summary["calibration_error"], n_tasks=n_tasks, per_task=Bunch(**per_task))
