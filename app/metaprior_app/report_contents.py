"""What a report holds of the data: a sentence that says so, and the report without it."""

from typing import Any

from metaprior.checks import counted

MIN_TASKS = 5  # of fewer, a mean and a standard deviation come close to the readings themselves
WITHOUT = (
    "This page contains no reading and no name of a task: only numbers over many tasks, and the names of the table, "
    "its columns and environments."
)
# All that a report without data keeps as it is.
KEPT = ("source", "labels", "outputs", "target", "likelihood", "transfer", "prior", "conformal", "settings")
KEPT += ("command", "is_pipe", "seconds", "versions")
KEPT_OF_DATA = ("columns", "inputs", "n_inputs", "sampled")
KEPT_OF_HELD_OUT = ("how", "tasks", "scores", "gains", "chart")
UNTESTED = "The prior was not tested on held-out tasks. Fit with --hold-out 0.2 to test it."


def contents(facts: dict[str, Any], held_out: bool) -> str:
    """Return of how many tasks a report has readings; `held_out` says whether its examples are not in the fit."""
    charts = facts["data"]["charts"]
    drawn = {chart["name"]: len(chart["given"].get("tasks", ())) for chart in charts}
    examples = len(facts["held_out"]["examples"])
    among_drawn = not held_out and drawn.get(facts["target"] or "", 0) > 0
    n_tasks = sum(drawn.values()) + (0 if among_drawn else examples)
    found = "the smallest and largest values of the data"
    if n_tasks:
        found = f"the {facts['outputs']} of {counted(n_tasks, 'task')}"
        found += f" and the names of {examples} of them" if examples else ""
    return f"This page contains {found}. `metaprior fit` writes one without them with --report-without-data."


def without_data(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a report without readings, names of tasks and values of columns.

    What is to stay is named, so that nothing new gets in by itself. Notes and reasons may quote names and cells.
    """
    data, held_out = facts["data"], facts["held_out"]
    kept_held_out = {name: held_out[name] for name in KEPT_OF_HELD_OUT if name in held_out}
    return {
        **{name: facts[name] for name in KEPT},
        "data": {
            **{name: data[name] for name in KEPT_OF_DATA},
            "environments": [_averages(each) for each in data["environments"]],
            "charts": [],
        },
        "held_out": {**kept_held_out, "how": held_out["how"] if held_out["scores"] else UNTESTED, "examples": []},
        "notes": [],
        "with_data": False,
        "contains": WITHOUT,
    }


def _averages(environment: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of an environment that are over many tasks."""
    many = environment["tasks"] >= MIN_TASKS
    kept = {name: environment[name] for name in ("name", "tasks", "samples")}
    spreads: dict[str, Any] = {"x": [_average(each, many) for each in environment["x"]]}
    if "y" in environment:
        spreads["y"] = _average(environment["y"], many)
    return {**kept, "size": [None, environment["size"][1] if many else None, None], **spreads}


def _average(column: dict[str, Any], many: bool) -> dict[str, Any]:
    """Return mean and spread, unless they tell what single tasks have; the levels of categories are cells."""
    if "levels" in column:
        return {"levels": None}
    spread, mean = column["std"], column["mean"]
    told = many and spread is not None and spread > 1e-9 * abs(mean)  # without spread, the mean is every value
    return {name: column[name] if told else None for name in ("mean", "std")}
