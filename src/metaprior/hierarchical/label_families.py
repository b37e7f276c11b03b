"""Families of priors of labels: linear or smooth, each with and without a rule that all tasks have in common."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from metaprior.hierarchical.blocks import make_blocks, place_points
from metaprior.hierarchical.hierarchical_prior import HierarchicalPrior
from metaprior.hierarchical.label_evidence import LabelEvidence
from metaprior.hierarchical.label_modes import LabelObjective
from metaprior.hierarchical.label_prior import LabelPrior
from metaprior.hierarchical.layout import Layout, Parts
from metaprior.hierarchical.modes import MAX_ITERATIONS, Mode
from metaprior.hierarchical.task_scales import ONE_SCALE
from metaprior.tasks.padding import group_by_size
from metaprior.tasks.scaling import Scaling
from metaprior.tasks.types import Task

# Names of the families: whether labels follow a common rule, and whether the latent functions are smooth or linear.
LABEL_FAMILIES = {
    "linear": (False, False),
    "smooth": (False, True),
    "common linear": (True, False),
    "common smooth": (True, True),
}


@dataclass(frozen=True, eq=False)
class LabelTasks:
    """Standardized tasks with classes 0, 1, ..., and how much the evidence of each counts."""

    scaling: Scaling
    tasks: Sequence[Task]
    n_classes: np.ndarray  # (tasks,)
    counts: np.ndarray  # (tasks,)
    is_target: np.ndarray  # (tasks,)
    of_environment: np.ndarray | None = None  # (environments,): the count of a task of each


@dataclass(frozen=True, eq=False)
class LabelFit:
    """The priors of all families fitted to the same tasks, and the modes to start similar fits from."""

    priors: dict[str, LabelPrior]
    modes: dict[str, Mode]


def fit_label_families(
    training: LabelTasks,
    shared: bool,
    environment: bool,
    near: LabelFit | None = None,
    max_iterations: int = MAX_ITERATIONS,
    separate: bool | None = None,
) -> LabelFit:
    """Fit every family. `near` has fits to similar tasks; with almost the same tasks a few iterations are enough.

    Only classes that are `shared` by all tasks can follow a common rule. With `environment` the rule of the target
    deviates from that of the sources, and families without a rule are left out: they would be the same.
    """
    points = place_points(training.tasks)
    blocks = make_blocks(training.tasks, training.counts, training.is_target, points, separate=separate)
    sizes = np.array([len(task.y) for task in training.tasks])
    n_classes = [training.n_classes[members] for _, members in group_by_size(sizes, 3)]
    priors, modes = {}, {}
    for name, (common, smooth) in LABEL_FAMILIES.items():
        if (common and not shared) or (environment and not common):
            continue
        layout = Layout(
            Parts(smooth=smooth, environment=environment), points.shape[1], 0.0, separate, learned_trend=True
        )
        objective = LabelObjective(layout, blocks, n_classes, points, common)
        known = [near.modes[name]] if near is not None and name in near.modes else []
        try:
            mode = objective.find_mode(known, max_iterations)
            evidence = objective.evidence(mode.theta)
        except np.linalg.LinAlgError:
            continue
        if np.isfinite(mode.value) and evidence.converged:
            priors[name], modes[name] = _prior(training, mode, points, evidence, common), mode
    return LabelFit(priors, modes)


def _prior(training: LabelTasks, mode: Mode, points: np.ndarray, evidence: LabelEvidence, common: bool) -> LabelPrior:
    n_weights = _n_weights(mode.layout, len(points))
    process = HierarchicalPrior(
        *(training.scaling, mode.layout, mode.theta, points, np.zeros(n_weights), np.zeros((n_weights, n_weights))),
        *(1.0, ONE_SCALE, None, None, training.of_environment),
    )
    prior = LabelPrior(process, np.zeros((0, n_weights)))
    return _with_rule(prior, evidence) if common else prior


def _n_weights(layout: Layout, n_points: int) -> int:
    n_common = 1 + layout.input_dim + (n_points if layout.parts.smooth else 0)
    return n_common * (2 if layout.parts.environment else 1)


def with_rule_of(prior: LabelPrior, tasks: Sequence[Task], counts: np.ndarray, is_target: np.ndarray) -> LabelPrior:
    """Return the prior with its common rule learned from other tasks; all else stays as it is.

    Tasks must be standardized by the prior's scaling.
    """
    process = prior.process
    layout, points = process.layout, process.points
    blocks = make_blocks(tasks, counts, is_target, points, separate=layout.separate)
    most = max(len(prior.weights), 2)
    n_classes = [np.full(len(block.counts), most) for block in blocks]
    evidence = LabelObjective(layout, blocks, n_classes, points, common=True).evidence(process.theta)
    return _with_rule(prior, evidence) if evidence.converged else prior


def _with_rule(prior: LabelPrior, evidence: LabelEvidence) -> LabelPrior:
    # The features of the difference of two classes are larger by the root of two.
    weights = evidence.weights * (2.0**0.5 if len(evidence.weights) == 1 else 1.0)
    return replace(prior, process=replace(prior.process, weights_root=contrast_root(evidence)), weights=weights)


def contrast_root(evidence: LabelEvidence) -> np.ndarray:
    """Return Q with Q Q' = V, the uncertainty of a class's mean weights that differences between classes have.

    Labels say nothing about a shift of all classes. V is what the covariances V_cd of the weights of classes c and d
    would be if all classes were alike and independent: the differences of two have the covariance 2 V. With two classes
    that is exact.
    """
    n_classes, n_weights = evidence.weights.shape
    if n_classes == 1:
        return evidence.root  # of the difference in units of sqrt(2)
    covariance = (evidence.root @ evidence.root.T).reshape(n_classes, n_weights, n_classes, n_weights)
    own = np.einsum("cpcq->pq", covariance)
    alike = (own - covariance.sum(axis=(0, 2)) / n_classes) / (n_classes - 1)
    eigenvalues, vectors = np.linalg.eigh(0.5 * (alike + alike.T))
    return vectors * np.sqrt(np.maximum(eigenvalues, 0.0))
