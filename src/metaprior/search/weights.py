"""Weights of the environments, on the simplex: as given, or as candidates to choose from.

Candidates are described by the discount r of a source task: it weighs r times as much as a target task. With N_e tasks,
environment e weighs w_e = r_e N_e / sum of r N. r = 0 is target-only, r = 1 is pooled, r -> infinity is source-only.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metaprior.checks import Argument, Message, is_number

Weights = tuple[float, ...]
ALPHA = Argument("alpha")

DISCOUNTS = (0.0, 0.02, 0.1, 0.4, 1.0, math.inf)
DISCOUNTS_SINGLE = (0.1, 0.4, 1.0)  # of one source among several
DISCOUNTS_UNTRIED = (0.1, 0.4, 1.0)  # averaged over if nothing can be held out


def discounted(counts: Sequence[int], target: int, discounts: float | Sequence[float]) -> Weights:
    """Return the weights with which a task of environment e weighs r_e times as much as a target task."""
    of_task = np.broadcast_to(np.asarray(discounts, float), len(counts)).copy()
    of_task = np.where(np.isinf(of_task), 1.0, of_task)
    of_task[target] = 0.0 if np.isinf(discounts).any() else 1.0
    weights = of_task * np.asarray(counts, float)
    return tuple((weights / weights.sum()).tolist())


def resolve_weights(alpha: Any, names: Sequence[str], counts: Sequence[int], target: int) -> list[Weights]:
    """Return the environment weights to choose from; only one if `alpha` determines them.

    alpha is a number (sources share it in proportion to their numbers of tasks), 'pooled', a mapping from environments
    to weights, 'auto', or a sequence of numbers to choose from.
    """
    has_source = sum(counts) > counts[target]
    if isinstance(alpha, str) and alpha == "auto":
        if not counts[target]:
            return [discounted(counts, target, math.inf)]
        return [discounted(counts, target, r) for r in (DISCOUNTS if has_source else (0.0,))]
    if isinstance(alpha, str) and alpha == "pooled":
        return [discounted(counts, target, 1.0)]
    if isinstance(alpha, Mapping):
        return [_of_names(alpha, names, counts)]
    several = isinstance(alpha, Sequence | np.ndarray) and not isinstance(alpha, str) and np.ndim(alpha)
    grid: list[Any] = list(alpha) if several else [alpha]
    if not grid or not all(is_number(value) and 0 <= value <= 1 for value in grid):
        raise ValueError(
            Message(
                ALPHA,
                " must be a number in [0, 1], 'pooled', 'auto', a sequence of numbers in [0, 1] to choose from, or a "
                f"mapping from environments to weights; got {repr(alpha)[:100]}.",
            )
        )
    options = {float(value): _of_alpha(float(value), counts, target) for value in grid}
    pooled = (" (or ", Argument("alpha", "pooled"), ")")
    instead = [Message(Argument("alpha", int(e == target)), *pooled) for e in range(len(counts))]
    for value, weights in options.items():
        _check_counts(Argument("alpha", value), weights, names, counts, instead)
    return list(options.values())


def single_source_weights(counts: Sequence[int], target: int) -> list[tuple[int, float, Weights]]:
    """With several sources, return (source, discount, weights) for each source alone with the target."""
    sources = [e for e, count in enumerate(counts) if e != target and count]
    if len(sources) < 2:
        return []
    only = [
        (e, r, [r if other == e else 0.0 for other in range(len(counts))]) for e in sources for r in DISCOUNTS_SINGLE
    ]
    return [(e, r, discounted(counts, target, discounts)) for e, r, discounts in only]


def combined_source_weights(
    counts: Sequence[int], target: int, of_target: float, scores: Sequence[tuple[int, float, float]]
) -> list[Weights]:
    """Combine the best two helpful sources, the best three, and so on, each at its best discount alone.

    `of_target` is the score of target-only; `scores` are (source, discount, score) of each source alone.
    """
    best: dict[int, tuple[float, float]] = {}
    for source, discount, score in scores:
        if score > max(of_target, best.get(source, (-math.inf, 0.0))[0]):
            best[source] = (score, discount)
    ranked = sorted(best, key=lambda source: -best[source][0])
    several = []
    for n_sources in range(2, len(ranked) + 1):
        discounts = [best[e][1] if e in ranked[:n_sources] else 0.0 for e in range(len(counts))]
        several.append(discounted(counts, target, discounts))
    return several


def _of_alpha(alpha: float, counts: Sequence[int], target: int) -> Weights:
    """Give the target 1 - alpha; all source tasks share alpha equally."""
    n_source = sum(counts) - counts[target]
    if alpha > 0 and len(counts) == 1:
        only = f" must be 0, 'pooled' or 'auto' if the target is the only environment; got {alpha:g}."
        raise ValueError(Message(ALPHA, only))
    shares = [alpha * (count / n_source) if n_source else alpha / max(len(counts) - 1, 1) for count in counts]
    return tuple(1.0 - alpha if e == target else share for e, share in enumerate(shares))


def _of_names(alpha: Mapping[str, Any], names: Sequence[str], counts: Sequence[int]) -> Weights:
    unknown = [name for name in alpha if name not in names]
    if unknown:
        raise ValueError(f"alpha has weights for {', '.join(map(repr, unknown))}; the environments are {_list(names)}.")
    if not all(is_number(weight) and weight >= 0 for weight in alpha.values()):
        raise ValueError(f"alpha must map environments to weights of at least 0; got {dict(alpha)!r}.")
    total = math.fsum(alpha.values())
    if abs(total - 1.0) > 1e-6:
        raise ValueError(f"alpha must have weights that sum to one; {dict(alpha)!r} sums to {total:g}.")
    weights = tuple(float(alpha.get(name, 0.0)) / total for name in names)
    _check_counts(ALPHA, weights, names, counts, [Message("leave it out of ", ALPHA)] * len(counts))
    return weights


def _check_counts(
    alpha: Argument, weights: Weights, names: Sequence[str], counts: Sequence[int], instead: Sequence[Message]
) -> None:
    """Raise if an environment without tasks has weight; `instead` is the advice for each environment."""
    for name, weight, count, other in zip(names, weights, counts, instead, strict=True):
        if weight > 0 and count == 0:
            tasks = f"{name}_tasks" if tuple(names) == ("source", "target") else "tasks of it"
            given = f" gives weight {weight:g} to the {name} environment, which has no tasks. Pass {tasks}, or "
            raise ValueError(Message(alpha, given, other, "."))


def _list(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)
