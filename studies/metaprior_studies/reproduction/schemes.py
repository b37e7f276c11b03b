"""The schemes that are compared, and their scores on every draw.

A scheme is a choice of tasks and weights of one objective. Search, training and adaptation are those of the estimators:
the draws of a scheme are trained as one program, by the functions that `fit` calls for one data set.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaprior.metrics import calibration_error, negative_log_likelihood, root_mean_square_error, summarize_labels
from metaprior.predict.batches import predict_labels, predict_tasks
from metaprior.predict.ensemble import Ensemble
from metaprior.predict.predictive import GaussianMixture, Predictive
from metaprior.search.averaging import DISCOUNTS, Candidate, Choice, discounted
from metaprior.tasks.scaling import identity_scaling
from metaprior.tasks.types import Task, TestTask
from metaprior.wfem import TrainingDiverged
from metaprior.wfem.runs import Settings, TrainingOptions, draw_prior, make_run, make_scaling, train_runs
from metaprior.wfem.selection import STEPS_DIVISOR, CrossValidation, choice_of, score_candidates
from metaprior.wfem.trained import Model
from metaprior_studies.schema import ALL, AUTO, FEW, GP, LABEL_METRICS, POOLED, REGRESSION_METRICS, WFEM

OnChunk = Callable[[str], None]  # called often with a description of the current work


class Draw(NamedTuple):
    """The tasks of one draw, shared by all schemes. All tasks have equally many samples."""

    seed: int
    source: list[Task]
    target: list[Task]
    test: TestTask  # stacked arrays: (tasks, samples, ...)


class Scheme(NamedTuple):
    """A way to learn from the first source and target tasks of a draw."""

    name: str
    n_source: int
    n_target: int
    alpha: float | None  # weight of the source; None: chosen by cross-validation over target tasks
    trained: bool = True
    prior_std: float = 1.0  # times that of the settings


@dataclass(frozen=True)
class Training:
    """The prior and how it is trained."""

    settings: Settings
    learning_rate: float
    n_steps: int

    @property
    def options(self) -> TrainingOptions:
        """The options of the library's training."""
        return TrainingOptions(self.n_steps, self.learning_rate, progress=False)


def paper_schemes(n_tasks: int, n_source: int, alpha: float | None) -> list[Scheme]:
    """Return the schemes of the paper's figures at beta = n_source / N; alpha None leaves WFEM out.

    GP sees no task at all, not even to standardize by; nor does PACOH without target tasks.
    """
    n_target = n_tasks - n_source
    schemes = [
        Scheme(GP, 0, 0, 0.0, trained=False),
        Scheme(FEW, 0, n_target, 0.0),
        Scheme(POOLED, n_source, n_target, n_source / n_tasks),
        Scheme(ALL, 0, n_tasks, 0.0),
    ]
    return schemes if alpha is None else [*schemes, Scheme(WFEM, n_source, n_target, alpha)]


def auto_scheme(n_tasks: int, n_source: int) -> list[Scheme]:
    """Return WFEM with alpha chosen, if there are target tasks to hold out and source tasks to weight."""
    n_target = n_tasks - n_source
    return [Scheme(AUTO, n_source, n_target, None)] if n_target >= 2 and n_source else []


def stack_tests(tasks: Sequence[TestTask]) -> TestTask:
    """Stack test tasks of equal sizes into one."""
    return TestTask(*(np.stack(parts) for parts in zip(*tasks, strict=True)))


def unstack_tests(test: TestTask) -> list[TestTask]:
    """Undo `stack_tests`."""
    return [TestTask(*parts) for parts in zip(*test, strict=True)]


def score(
    draws: Sequence[Draw], schemes: Sequence[Scheme], training: Training, on_chunk: OnChunk = lambda what: None
) -> list[dict[Scheme, dict[str, float]]]:
    """Return the metrics of every scheme on every draw."""
    scores: list[dict[Scheme, dict[str, float]]] = [{} for _ in draws]
    for scheme in schemes:
        for draw, of_draw, ensemble in zip(draws, scores, fit_scheme(draws, scheme, training, on_chunk), strict=True):
            of_draw[scheme] = metrics(ensemble, draw.test, training.settings.labels)
    return scores


def fit_scheme(
    draws: Sequence[Draw], scheme: Scheme, training: Training, on_chunk: OnChunk = lambda what: None
) -> list[Ensemble | None]:
    """Meta-train a scheme on every draw; None for a draw on which every candidate for alpha diverged."""
    hyperprior = training.settings.hyperprior.scaled(scheme.prior_std)
    training = replace(training, settings=replace(training.settings, hyperprior=hyperprior))
    if not scheme.trained or scheme.n_source + scheme.n_target == 0:
        return [_untrained(draw, training.settings) for draw in draws]
    data = [[draw.source[: scheme.n_source], draw.target[: scheme.n_target]] for draw in draws]
    if scheme.alpha is None:
        on_chunk("choosing alpha")
        choices = choose_alpha(draws, data, training)
    else:
        candidate = Candidate((scheme.alpha, 1.0 - scheme.alpha), training.settings)
        choices = [Choice([candidate], np.ones(1), None)] * len(draws)
    on_chunk(f"training {scheme.name}")
    return _train(draws, data, choices, training)


def choose_alpha(draws: Sequence[Draw], data: Sequence[list[list[Task]]], training: Training) -> list[Choice | None]:
    """Return the choice of alpha="auto" for every draw; None if every candidate diverged."""
    settings = training.settings
    counts = [len(tasks) for tasks in data[0]]
    candidates = [Candidate(discounted(counts, 1, discount), settings) for discount in DISCOUNTS]
    pairs = zip(draws, data, strict=True)
    validations = [CrossValidation(environments, 1, draw.seed, settings.labels) for draw, environments in pairs]
    shorter = training.options._replace(n_steps=-(-training.n_steps // STEPS_DIVISOR))
    score_candidates(validations, candidates, shorter)
    choices: list[Choice | None] = []
    for validation in validations:
        try:
            choices.append(choice_of(validation, candidates))
        except TrainingDiverged:
            choices.append(None)
    return choices


def _train(
    draws: Sequence[Draw], data: Sequence[list[list[Task]]], choices: Sequence[Choice | None], training: Training
) -> list[Ensemble | None]:
    """Train the members of every draw's choice, all in one program."""
    members = [[] if choice is None else choice.members for choice in choices]
    scalings, runs = [], []
    for draw, environments, of_draw in zip(draws, data, members, strict=True):
        for candidate, _ in of_draw:
            scalings.append(make_scaling(environments, candidate.weights, candidate.settings))
            runs.append(make_run(environments, candidate.weights, scalings[-1], candidate.settings, draw.seed))
    results = train_runs(runs, training.settings.method, training.options, check_divergence=False) if runs else []
    models = iter(
        Model(result.particles, run.problem.rest, scaling)
        for result, run, scaling in zip(results, runs, scalings, strict=True)
    )
    ensembles = []
    for of_draw in members:
        weights = np.array([weight for _, weight in of_draw])
        ensembles.append(Ensemble(tuple(next(models) for _ in of_draw), weights) if of_draw else None)
    return ensembles


def _untrained(draw: Draw, settings: Settings) -> Ensemble:
    """Return the prior at its initial parameters, for inputs and outputs as they are."""
    input_dim = draw.test.x_query.shape[-1]
    key, _ = jax.random.split(jax.random.key(draw.seed))
    particles, rest, _ = draw_prior(key, input_dim, settings, 1.0, jnp.zeros(()).dtype)
    return Ensemble((Model(particles, rest, identity_scaling(input_dim)),), np.ones(1))


def metrics(ensemble: Ensemble | None, test: TestTask, labels: bool) -> dict[str, float]:
    """Return the metrics of an ensemble on test tasks; NaN if a run diverged."""
    names = LABEL_METRICS if labels else REGRESSION_METRICS
    if ensemble is None or not all(_is_finite(member) for member in ensemble.members):
        return dict.fromkeys(names, np.nan)
    tasks = unstack_tests(test)
    if labels:
        log_probabilities, y, _ = predict_labels(ensemble, tasks, np.full(len(tasks), 2))
        return _means(summarize_labels(y, log_probabilities))
    predictive, y, _ = predict_tasks(ensemble, tasks)
    return score_mixture(predictive, y)


def score_mixture(predictive: GaussianMixture | Predictive, y: np.ndarray) -> dict[str, float]:
    """Return RMSE, NLL, calibration error and the coverage of the central 90% interval."""
    transform = np.clip(predictive.cdf(y), 0.0, 1.0)
    return _means(
        {
            "rmse": root_mean_square_error(y, predictive.mean()),
            "nll": negative_log_likelihood(predictive.log_density(y)),
            "calibration_error": calibration_error(transform),
            "coverage": (transform >= 0.05) & (transform <= 0.95),
        }
    )


def _is_finite(member: Any) -> bool:
    return all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(member.particles))


def _means(values: Mapping[str, np.ndarray | float]) -> dict[str, float]:
    return {name: float(np.mean(value)) for name, value in values.items()}
