"""Families of priors of labels: linear or smooth, each with and without a rule that all tasks have in common."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from metaprior.prior.blocks import make_blocks, place_points
from metaprior.prior.columns import Columns
from metaprior.prior.families import FamilyFit
from metaprior.prior.fitted import FittedTerms
from metaprior.prior.label_evidence import LabelEvidence
from metaprior.prior.label_modes import LabelObjective
from metaprior.prior.label_prior import LabelPrior
from metaprior.prior.label_process import within_reach
from metaprior.prior.layout import Layout
from metaprior.prior.modes import MAX_ITERATIONS, Mode
from metaprior.prior.terms import Curve, Deviation, Line
from metaprior.tasks.padding import group_by_size
from metaprior.tasks.scaling import Scaling
from metaprior.tasks.types import Task

PLAIN = {"linear": False, "smooth": True}  # families without a common rule, and whether latent functions are smooth
COMMON = {"common linear": "linear", "common smooth": "smooth"}  # with one, and the same without
RULE_EVIDENCE = 1.0  # nats for a common rule from which on one is considered (Kass and Raftery, 1995: "positive")
OVERWHELMING = 10.0  # nats for a common rule from which on only that is


@dataclass(frozen=True, eq=False)
class LabelTasks:
    """Standardized tasks with classes 0, 1, ..., and how much the evidence of each counts."""

    scaling: Scaling
    tasks: Sequence[Task]
    n_classes: np.ndarray  # (tasks,)
    counts: np.ndarray  # (tasks,)
    of_environment: np.ndarray | None = None  # (environments,): the count of a task of each


def fit_label_families(
    training: LabelTasks,
    shared: bool,
    near: FamilyFit | None = None,
    max_iterations: int = MAX_ITERATIONS,
    separate: bool | None = None,
    only: Collection[str] | None = None,
) -> FamilyFit:
    """Fit the families, `only` some of them or those that the evidence speaks for.

    Only classes that are `shared` by all tasks can follow a common rule. The evidence of all tasks tells whether they
    do where held-out tasks are too few to: a rule of many inputs also fits labels that mean nothing, and then predicts
    worse than none. `near` has fits to similar tasks; with almost the same tasks a few iterations are enough.
    """
    fitter = _Fitter(training, near, max_iterations, separate)
    for name in PLAIN if only is None else only:
        fitter.fit(name)
    for name, plain in COMMON.items() if shared and only is None else ():
        if not (fitter.fit(name) and plain in fitter.modes):
            continue
        gain = fitter.modes[name].value - fitter.modes[plain].value
        if gain < RULE_EVIDENCE:
            fitter.drop(name)
            break  # a smooth rule is not worth the time then
        if gain > OVERWHELMING:
            fitter.drop(plain)
    return FamilyFit(fitter.priors, fitter.modes)


class _Fitter:
    """The fits of one family after another to the same tasks."""

    def __init__(self, training: LabelTasks, near: FamilyFit | None, max_iterations: int, separate: bool | None):
        self.training, self.near, self.max_iterations = training, near, max_iterations
        tasks = [Task(within_reach(task.x), task.y) for task in training.tasks]
        self.points = place_points(tasks)
        self.columns = Columns(self.points.shape[1], separate)
        self.blocks = make_blocks(tasks, training.counts, np.zeros(len(tasks)), self.points, self.columns)
        sizes = np.array([len(task.y) for task in tasks])
        self.n_classes = [training.n_classes[members] for _, members in group_by_size(sizes, 3)]
        self.priors: dict[str, LabelPrior] = {}
        self.modes: dict[str, Mode] = {}

    def fit(self, name: str) -> bool:
        """Find the mode of theta, and the prior there; return whether it was found."""
        smooth, common = PLAIN[COMMON.get(name, name)], name in COMMON
        terms = Line(learned_trend=True), *((Curve(), Deviation()) if smooth else ())
        layout = Layout(terms, self.columns, 0.0)
        objective = LabelObjective(layout, self.blocks, self.n_classes, self.points, common)
        known = [self.near.modes[name]] if self.near is not None and name in self.near.modes else []
        if not known and common and COMMON[name] in self.modes:
            known = [self.modes[COMMON[name]]]
        try:
            mode = objective.find_mode(known, self.max_iterations)
            evidence = objective.evidence(mode.theta)
        except np.linalg.LinAlgError:
            return False
        if not (np.isfinite(mode.value) and evidence.converged):
            return False
        self.priors[name] = _prior(self.training, mode, self.points, evidence, common)
        self.modes[name] = mode
        return True

    def drop(self, name: str) -> None:
        """Leave a family out; its mode stays, to start similar fits from."""
        del self.priors[name]


def _prior(training: LabelTasks, mode: Mode, points: np.ndarray, evidence: LabelEvidence, common: bool) -> LabelPrior:
    n_weights = mode.layout.n_weights(len(points))
    nothing = np.zeros(n_weights), np.zeros((n_weights, n_weights))
    given = training.scaling, mode.layout, mode.theta, points, *nothing
    prior = LabelPrior(FittedTerms(*given, counts=training.of_environment), np.zeros((0, n_weights)))
    return _with_rule(prior, evidence) if common else prior


def with_rule_of(prior: LabelPrior, tasks: Sequence[Task], counts: np.ndarray) -> LabelPrior:
    """Return the prior with its common rule learned from other tasks; all else stays as it is.

    Tasks must be standardized by the prior's scaling.
    """
    layout, points = prior.terms.layout, prior.terms.points
    tasks = [Task(within_reach(task.x), task.y) for task in tasks]
    blocks = make_blocks(tasks, counts, np.zeros(len(tasks)), points, layout.columns)
    most = max(len(prior.weights), 2)
    n_classes = [np.full(len(block.counts), most) for block in blocks]
    evidence = LabelObjective(layout, blocks, n_classes, points, common=True).evidence(prior.terms.theta)
    return _with_rule(prior, evidence) if evidence.converged else prior


def _with_rule(prior: LabelPrior, evidence: LabelEvidence) -> LabelPrior:
    # The features of the difference of two classes are larger by the root of two.
    weights = evidence.weights * (2.0**0.5 if len(evidence.weights) == 1 else 1.0)
    return replace(prior, terms=replace(prior.terms, weights_root=contrast_root(evidence)), weights=weights)


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
