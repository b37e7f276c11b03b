"""How errors of forecasts grow with the horizon: the distance from the last reading that is given.

Scores of a prior on test tasks, next to those of models without a prior: computed, recorded and printed.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import counted
from metaprior.cli.console import out, print_note, print_table
from metaprior.tasks.splits import FIRST, RANDOM, ContextRule, as_context_rule, split_once

N_BINS = 4


def score_horizons(meta: Any, tests: list[Any]) -> list[dict[str, float]]:
    """Return scores of queries by their distance from the last reading of the context, in bins of equal numbers.

    For readings: root mean square error, and the share inside the 90% interval. For labels: the share predicted.
    """
    from metaprior.predict.ensemble import predicts_labels

    tests = [test for test in tests if len(test.y_context)]
    if not tests:
        return []
    horizons = np.concatenate([test.x_query[:, 0] - test.x_context[:, 0].max() for test in tests])
    adapted, queries = meta.adapt_many([test[:2] for test in tests]), [test.x_query for test in tests]
    y = np.concatenate([test.y_query for test in tests])
    if predicts_labels(meta):
        values = {"accuracy": (np.concatenate(adapted.predict(queries)) == y).astype(float)}
    else:
        lower, upper = (np.concatenate(ends) for ends in adapted.interval(queries))
        squares = (np.concatenate(adapted.predict(queries)) - y) ** 2
        values = {"rmse": squares, "coverage": ((y >= lower) & (y <= upper)).astype(float)}
    edges = np.unique(np.quantile(horizons, np.linspace(0.0, 1.0, N_BINS + 1)))
    bins = np.clip(np.searchsorted(edges, horizons, side="right") - 1, 0, max(len(edges) - 2, 0))
    return [
        _bin(horizons[bins == i], {name: of_all[bins == i] for name, of_all in values.items()}) for i in np.unique(bins)
    ]


def _bin(horizons: np.ndarray, values: dict[str, np.ndarray]) -> dict[str, float]:
    means = {name: float(np.mean(of_bin)) for name, of_bin in values.items()}
    means |= {"rmse": float(np.sqrt(means["rmse"]))} if "rmse" in means else {}
    return {"from": float(horizons.min()), "to": float(horizons.max()), "readings": len(horizons), **means}


def print_horizons(horizons: list[dict[str, float]], x: str, is_date: bool) -> None:
    """Print a row for every bin, if there are any."""
    if not horizons:
        return
    names = [name for name in horizons[0] if name not in ("from", "to")]
    rows = [(f"{each['from']:.3g} to {each['to']:.3g}", *(f"{each[name]:.3g}" for name in names)) for each in horizons]
    unit = "days" if is_date else f"the units of {x}"
    print_table(("horizon", *names), rows)
    out.print(f"horizon: from the last reading of the context, in {unit}.", soft_wrap=True)


CONTEXT = 5  # readings of a task to adapt to


def figures_of(compared: Any) -> dict[str, dict[str, dict[str, float]]]:
    """Return the means over tasks of all models, and what the prior gains over each, as JSON values."""
    scores = compared.scores
    means = [name for name in scores["metaprior"].per_task if name != "width" and not name.startswith("conformal")]
    names = [each for name in means for each in (name, f"{name}_se")]
    of_all = {
        who: {name: float(score[name]) for name in (*names, "calibration_error")} for who, score in scores.items()
    }
    return {"overall": of_all, "gains": {who: dict(gain) for who, gain in compared.gains.items()}}


def print_overall(
    figures: dict[str, Any], y: str | None, n_tasks: int, missing: str = "", outputs: str = "readings"
) -> None:
    """Print the means over tasks of all models, what they mean, and what the prior gains over each.

    `outputs` are readings, labels, counts or ranks.
    """
    from metaprior.estimators.comparison import gain_in_words, with_error
    from metaprior.metrics import meaning_of

    of_all = figures["overall"]
    names = [name for name in of_all["metaprior"] if not name.endswith("_se")]
    rows = [
        (who, *(with_error(score[name], score.get(f"{name}_se")) for name in names)) for who, score in of_all.items()
    ]
    print_table(("mean over tasks", *(name.replace("_", " ") for name in names)), rows)
    unit = f"the units of {y or 'y'}"
    meanings = "; ".join(
        f"{name.replace('_', ' ')}: {meaning_of(name, outputs).replace('the units of y', unit)}" for name in names
    )
    meanings = meanings.replace("inside the interval", "inside the 90% interval")  # what `evaluate` computes
    out.print(f"{meanings}. ±: standard error over tasks.", soft_wrap=True)
    for who, gain in figures.get("gains", {}).items():  # not in files of earlier versions
        out.print(gain_in_words(who, gain, n_tasks), soft_wrap=True)
    if missing:
        out.print(missing, soft_wrap=True)


def print_conformal(scores: Any) -> None:
    """Print the coverage and width of conformal intervals, if there are any."""
    if "conformal_coverage" not in scores:
        return
    inside = f"{100 * scores.conformal_coverage:.3g} ± {100 * scores.conformal_coverage_se:.2g}%"
    wide = f"its width is {scores.conformal_width:.3g}"  # if that of the model is none: a rank that is certain
    if scores.width > 0.0:
        wide = f"it is {scores.conformal_width / scores.width:.3g} times as wide"
    band = f"Inside the conformal interval of nominally {scores.nominal_coverage:.0%}"
    out.print(f"{band}: {inside}; {wide}.", soft_wrap=True)


def hold_out(sizes: Sequence[int], share: float, order: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the places of tasks to fit to and, a share of them in the given order, of those to test on."""
    if not 0.0 < share < 1.0:
        raise ValueError(f"--hold-out must be a share of the tasks, between 0 and 1; got {share:g}.")
    held = set(order[: max(round(share * len(sizes)), 1)])
    if len(sizes) - len(held) < 2:
        found = f"holds out {len(held)} of {counted(len(sizes), 'task')} of the target"
        raise ValueError(f"--hold-out {share:g} {found}. It must leave two or more to fit to.")
    tested = [i for i in sorted(held) if sizes[i] > 1]
    if not tested:
        found = f"{counted(len(held), 'task')} with one reading each"
        raise ValueError(f"--hold-out {share:g} drew {found}: there is none to test on. Hold out a larger share.")
    return [i for i in range(len(sizes)) if i not in held], tested


class HeldOut(NamedTuple):
    """Held-out tasks that the prior was tested on, and how it compares with other models there."""

    places: list[int]  # among all held-out tasks
    tests: list[Any]
    compared: Any
    rule: ContextRule

    def record(self) -> dict[str, Any]:
        """Return what is kept of it in the file of the prior."""
        given = {"context": self.rule.size, "which": self.rule.kind}
        return {"tasks": len(self.tests), **given, **figures_of(self.compared)}


def score_held_out(meta: Any, held: list[Any], rng: np.random.Generator) -> HeldOut | None:
    """Test a prior on held-out tasks, adapted to the readings that `fitted_rule` says.

    Tasks with a class that no task of the fit has are left out; without any other there is nothing to test.
    """
    known = [i for i, task in enumerate(held) if knows_classes(meta, task)]
    if len(known) < len(held):
        what = "label" if hasattr(meta, "classes_") else "level"
        found = f"{counted(len(held) - len(known), 'held-out task')} with a {what} that no task of the fit has"
        print_note(f"the prior is not tested on {found}.")
    if not known:
        return None
    rule = fitted_rule(meta)
    tests = [split_held_out(held[i], rule, rng) for i in known]
    return HeldOut(known, tests, meta.compare(tests), rule)


def fitted_rule(meta: Any) -> ContextRule:
    """Return which readings are given by default: five at random, unless the fit was told otherwise."""
    rule = as_context_rule(meta.parameters_.get("context", RANDOM))
    return rule._replace(size=CONTEXT) if rule.size is None else rule


def split_held_out(task: Any, rule: ContextRule, rng: np.random.Generator) -> Any:
    """Return a task with the readings of its context, or half of fewer, and the others as queries."""
    assert rule.size is not None
    return split_once(task, rule._replace(size=min(rule.size, len(task.y) // 2)), rng)


def knows_classes(meta: Any, task: Any) -> bool:
    """Return whether a prior of shared classes or of ranks, if it is one, has all classes or levels of a task."""
    if not hasattr(meta, "classes_"):
        return meta.model_.likelihood.allow(np.asarray(task.y, float))
    shared = meta.classes_
    return shared is None or set(task.y.tolist()) <= set(shared.tolist())


def print_held_out(held_out: dict[str, Any], y: str | None, outputs: str) -> None:
    """Print the scores on held-out tasks; `outputs` are readings, labels, counts or ranks."""
    tasks = counted(held_out["tasks"], "held-out task")
    first = "the first " if held_out.get("which") == FIRST else ""
    words = f"{tasks} of the target, which the prior has not seen; {first}{held_out['context']} "
    out.print(f"{words}{outputs} of each (half, of shorter ones) as context:", soft_wrap=True)
    print_overall(held_out, y, held_out["tasks"], outputs=outputs)
