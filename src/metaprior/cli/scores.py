"""Scores of a prior on test tasks, next to those of models without a prior: computed, recorded and printed."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import counted
from metaprior.cli.console import out, print_note, print_table
from metaprior.tasks.context_rules import FIRST, RANDOM, ContextRule, as_context_rule, split_once

CONTEXT = 5  # readings of a task to adapt to


def compare(meta: Any, tests: list[Any], has_context: bool) -> dict[str, Any]:
    """Return the scores of the prior and, given context, of models that are fitted to each task's context alone."""
    return {"metaprior": meta.evaluate(tests), **(score_baselines(meta, tests) if has_context else {})}


def score_baselines(meta: Any, tests: list[Any]) -> dict[str, Any]:
    """Return the scores of models that are fitted to each task's context alone."""
    from metaprior.estimators.baselines import BASELINES, score_baseline, score_per_task_gp
    from metaprior.metrics import report
    from metaprior.prediction.ensemble import predicts_labels
    from metaprior.tasks.labels import as_labeled_tests

    if not predicts_labels(meta):
        return {"scikit-learn GP": score_per_task_gp(tests)}
    labeled = as_labeled_tests(tests, "tasks", meta.model_.input_dim, meta.classes_)
    return {name: report(score_baseline(model, *labeled)) for name, model in BASELINES.items()}


def overall(scores: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the means over tasks of all models, and their standard errors, as JSON values."""
    means = [name for name in scores["metaprior"].per_task if name != "width"]
    names = [each for name in means for each in (name, f"{name}_se")]
    return {who: {name: float(score[name]) for name in (*names, "calibration_error")} for who, score in scores.items()}


def print_overall(figures: dict[str, dict[str, Any]], y: str | None) -> None:
    """Print the means over tasks of all models, and what they mean."""
    from metaprior.metrics import MEANINGS

    names = [name for name in figures["metaprior"] if not name.endswith("_se")]
    rows = [(who, *(_with_error(score, name) for name in names)) for who, score in figures.items()]
    print_table(("mean over tasks", *(name.replace("_", " ") for name in names)), rows)
    unit = f"the units of {y or 'y'}"
    meanings = "; ".join(
        f"{name.replace('_', ' ')}: {MEANINGS[name].replace('the units of y', unit)}" for name in names
    )
    meanings = meanings.replace("inside the interval", "inside the 90% interval")  # what `evaluate` computes
    out.print(f"{meanings}. ±: standard error over tasks.", soft_wrap=True)


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
    """Held-out tasks that the prior was tested on, and the scores of all models."""

    places: list[int]  # among all held-out tasks
    tests: list[Any]
    scores: dict[str, Any]
    rule: ContextRule

    def record(self) -> dict[str, Any]:
        """Return what is kept of it in the file of the prior."""
        given = {"context": self.rule.size, "which": self.rule.kind}
        return {"tasks": len(self.tests), **given, "overall": overall(self.scores)}


def score_held_out(meta: Any, held: list[Any], rng: np.random.Generator) -> HeldOut | None:
    """Test a prior on held-out tasks, adapted to the readings that `fitted_rule` says.

    Tasks with a class that no task of the fit has are left out; without any other there is nothing to test.
    """
    known = [i for i, task in enumerate(held) if knows_classes(meta, task)]
    if len(known) < len(held):
        found = f"{counted(len(held) - len(known), 'held-out task')} with a label that no task of the fit has"
        print_note(f"the prior is not tested on {found}.")
    if not known:
        return None
    rule = fitted_rule(meta)
    tests = [split_held_out(held[i], rule, rng) for i in known]
    return HeldOut(known, tests, compare(meta, tests, has_context=rule.size != 0), rule)


def fitted_rule(meta: Any) -> ContextRule:
    """Return which readings are given by default: five at random, unless the fit was told otherwise."""
    rule = as_context_rule(meta.parameters_.get("context", RANDOM))
    return rule._replace(size=CONTEXT) if rule.size is None else rule


def split_held_out(task: Any, rule: ContextRule, rng: np.random.Generator) -> Any:
    """Return a task with the readings of its context, or half of fewer, and the others as queries."""
    assert rule.size is not None
    return split_once(task, rule._replace(size=min(rule.size, len(task.y) // 2)), rng)


def knows_classes(meta: Any, task: Any) -> bool:
    """Return whether a prior of shared classes, if it is one, has all classes of a task."""
    shared = getattr(meta, "classes_", None)
    return shared is None or set(task.y.tolist()) <= set(shared.tolist())


def print_held_out(held_out: dict[str, Any], y: str | None, outputs: str) -> None:
    """Print the scores on held-out tasks; `outputs` are readings or labels."""
    tasks = counted(held_out["tasks"], "held-out task")
    first = "the first " if held_out.get("which") == FIRST else ""
    words = f"{tasks} of the target, which the prior has not seen; {first}{held_out['context']} "
    out.print(f"{words}{outputs} of each (half, of shorter ones) as context:", soft_wrap=True)
    print_overall(held_out["overall"], y)


def _with_error(score: dict[str, Any], name: str) -> str:
    value, error = score[name], score.get(f"{name}_se")
    number = "-" if value is None else f"{value:.3g}"
    return number if error is None or not np.isfinite(error) else f"{number} ± {error:.2g}"
