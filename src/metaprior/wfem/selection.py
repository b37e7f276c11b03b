"""Cross-validation over target tasks: every candidate is trained without each fold, and scored on that fold.

From candidate settings to the few that predictions are averaged over.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaprior.checks import Message
from metaprior.memory import RUN_ADVICE, in_chunks
from metaprior.search.averaging import (
    DISCOUNTS_UNTRIED,
    Candidate,
    Choice,
    Weights,
    averaging_weights,
    combined_source_weights,
    contaminated,
    discounted,
    select_weights,
    single_source_weights,
)
from metaprior.search.held_out import DEFAULT_RULE, Folds, make_folds, reference_log_densities
from metaprior.tasks.scaling import Scaling
from metaprior.tasks.splits import ContextRule
from metaprior.tasks.types import Task, TestTask
from metaprior.wfem.adaptation import pad_queries
from metaprior.wfem.inference import MAP, Laplace, Method
from metaprior.wfem.loop import DIVERGENCE_ADVICE, TrainingDiverged, Validation, query_log_densities
from metaprior.wfem.runs import (
    Run,
    Settings,
    TrainingOptions,
    make_run,
    make_scaling,
    numbers_per_sample,
    runs_that_fit,
    stack_runs,
    stack_validation,
    train_runs,
)

MAX_PARTICLES = 3  # per run of the search


class HeldOutRun(NamedTuple):
    """A run without one fold of the target tasks, and that fold to score it on."""

    run: Run
    validation: Validation  # a row for every split of every task of the fold
    tasks: np.ndarray  # (rows,): the target task of each row, -1 for padding
    log_unit: float  # log y_std: converts log densities to the units of y


class CrossValidation:
    """The scores of candidates on the held-out target tasks of one data set.

    All candidates share the folds, the splits into context and queries, and the initial particles.
    """

    def __init__(
        self,
        environments: Sequence[Sequence[Task]],
        target: int,
        seed: int,
        labels: bool,
        rule: ContextRule = DEFAULT_RULE,
    ):
        self.environments, self.target, self.seed = environments, target, seed
        self.folds = make_folds(environments[target], seed, labels, rule)
        self.reference = reference_log_densities(environments[target], self.folds, labels)
        self.candidates: list[Candidate] = []
        self.log_densities = np.empty((0, *self.reference.shape))  # (candidates, target tasks, queries), contaminated
        self.n_steps: int | None = None  # that every candidate is trained for
        self.seconds_per_run: float | None = None

    def scores(self, candidates: Sequence[Candidate]) -> np.ndarray:
        """Return the mean log density per query of every held-out task, (candidates, target tasks)."""
        rows = [self._index(candidate) for candidate in candidates]
        assert all(row is not None for row in rows), "a candidate has no score"
        return np.nanmean(self.log_densities[np.array(rows, int)], axis=2)

    def unscored(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates that have no score yet."""
        return [candidate for candidate in candidates if self._index(candidate) is None]

    def add(self, candidates: Sequence[Candidate], runs: Sequence[HeldOutRun], log_densities: np.ndarray) -> None:
        """Add the candidates whose runs gave these log densities (runs, rows, queries)."""
        by_task = gather_by_task(log_densities, runs, self.folds)
        robust = np.where(np.isneginf(by_task), -np.inf, contaminated(by_task, self.reference))
        self.candidates += candidates
        self.log_densities = np.concatenate([self.log_densities, robust])

    def _index(self, wanted: Candidate) -> int | None:
        pairs = enumerate(self.candidates)
        return next((i for i, c in pairs if c.settings is wanted.settings and c.weights == wanted.weights), None)


def score_candidates(
    validations: Sequence[CrossValidation],
    candidates: Sequence[Candidate],
    options: TrainingOptions,
    deadline: float | None = None,
    what: str = "settings",
) -> bool:
    """Train and score candidates on every data set, all runs in one program, and return whether there was time for it.

    The data sets must have equal shapes; an estimator has one. Candidates that are scored already are skipped. Only the
    first call may be shortened to meet the deadline (of `time.monotonic`): scores can be compared only between
    candidates that are trained for the same number of steps.
    """
    first = validations[0]
    candidates = first.unscored(candidates)
    if not candidates:
        return True
    runs = [[run for c in candidates for run in held_out_runs(validation, c)] for validation in validations]
    flat, started = [run for of_validation in runs for run in of_validation], time.monotonic()
    if first.n_steps is not None and deadline is not None:
        if started + len(flat) * (first.seconds_per_run or 0.0) > deadline:
            return False
        deadline = None
    options = options._replace(n_steps=first.n_steps if first.n_steps is not None else options.n_steps)
    method = search_method(candidates[0].settings.method)
    description = f"comparing {what}"
    results = train_runs(
        [run.run for run in flat], method, options, description=description, deadline=deadline, check_divergence=False
    )
    log_densities = _score([result.particles for result in results], flat)
    seconds = (time.monotonic() - started) / len(flat)
    n_each = len(runs[0])
    for i, (validation, of_validation) in enumerate(zip(validations, runs, strict=True)):
        validation.add(candidates, of_validation, log_densities[i * n_each : (i + 1) * n_each])
        validation.n_steps, validation.seconds_per_run = len(results[0].loss), seconds
    return True


def held_out_runs(validation: CrossValidation, candidate: Candidate) -> list[HeldOutRun]:
    """Return the candidate's runs, one per fold, each standardized by the tasks it sees.

    The environments keep their weights: without a fold, the other target tasks weigh a little more. Up to three
    independent particles stand in for many, or for interacting ones. One would not do: averaging particles makes up for
    overconfidence, and so moves the best alpha towards zero.
    """
    environments, folds = validation.environments, validation.folds
    settings = candidate.settings
    settings = replace(settings, method=search_method(settings.method))
    n_rows = max(sum(len(folds.splits[i]) for i in members.tolist()) for members in folds.members)
    runs = []
    for members in folds.members:
        included = [np.ones(len(tasks), bool) for tasks in environments]
        included[validation.target][members] = False
        kept = [[t for t, keep in zip(*pair, strict=True) if keep] for pair in zip(environments, included, strict=True)]
        scaling = make_scaling(kept, candidate.weights, settings)
        run = make_run(environments, candidate.weights, scaling, settings, validation.seed, included)
        rows = [(i, split) for i in members.tolist() for split in folds.splits[i]]
        padded = _pad_rows([split for _, split in rows], n_rows, folds, scaling)
        owners = np.array([i for i, _ in rows] + [-1] * (n_rows - len(rows)))
        runs.append(HeldOutRun(run, padded, owners, math.log(scaling.y_std)))
    return runs


def search_method(method: Method) -> Method:
    """Return the method that the search trains by: a few independent MAP particles in place of interacting ones."""
    return method if isinstance(method, Laplace) else MAP(min(method.n_particles, MAX_PARTICLES), method.start)


def gather_by_task(log_densities: np.ndarray, runs: Sequence[HeldOutRun], folds: Folds) -> np.ndarray:
    """Rearrange the log densities of all runs as (candidates, target tasks, queries), NaN where there is no query.

    The queries of all splits of a task lie side by side.
    """
    n_folds, n_queries = len(folds.members), log_densities.shape[2]
    n_splits = max(len(splits) for splits in folds.splits)
    gathered = np.full((len(runs) // n_folds, len(folds.splits), n_splits, n_queries), np.nan)
    for i, held_out in enumerate(runs):
        for task in np.unique(held_out.tasks[held_out.tasks >= 0]).tolist():
            rows = np.flatnonzero(held_out.tasks == task)
            gathered[i // n_folds, task, : len(rows)] = log_densities[i, rows]
    return gathered.reshape(*gathered.shape[:2], -1)


def _score(particles: Sequence[object], runs: Sequence[HeldOutRun]) -> np.ndarray:
    """Return the log density of every query, (runs, rows, queries), in the units of y.

    It is NaN where there is no query, and minus infinity where a run diverged.
    """

    def score_part(part: range, _: int) -> np.ndarray:
        chosen = slice(part.start, part.stop)
        rest = stack_runs([held_out.run for held_out in runs[chosen]]).problem.rest
        validation = stack_validation([held_out.validation for held_out in runs[chosen]])
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *particles[chosen])
        score = np.asarray(query_log_densities(stacked, rest, validation), np.float64)
        units = np.array([held_out.log_unit for held_out in runs[chosen]])
        score = np.where(np.isfinite(score), score, -np.inf) - units[:, None, None]
        return np.where(validation.mask, score, np.nan)

    x_context, _, _, x_query = runs[0].validation.queries
    (n_tasks, n_context, input_dim), n_query = np.shape(x_context), np.shape(x_query)[1]
    rest = runs[0].run.problem.rest
    per_sample = numbers_per_sample(n_context, input_dim, rest.encoder is not None)
    n_particles = len(jax.tree.leaves(particles[0])[0])
    at_once = runs_that_fit(per_sample * n_tasks * (n_context + n_query) * n_particles)
    return np.concatenate(list(in_chunks(score_part, range(len(runs)), at_once, "runs", RUN_ADVICE)))


def _pad_rows(splits: Sequence[TestTask], n_rows: int, folds: Folds, scaling: Scaling) -> Validation:
    """Standardize rows and pad them to the sizes that all folds share."""
    dtype = jnp.zeros(()).dtype
    every = [split for task in folds.splits for split in task]
    n_context, n_query = (max(len(getattr(split, part)) for split in every) for part in ("y_context", "y_query"))
    padded = pad_queries(splits, scaling, n_context, n_query, dtype)
    missing = n_rows - len(splits)
    return jax.tree.map(lambda part: np.pad(part, ((0, missing), *((0, 0),) * (part.ndim - 1))), Validation(*padded))


TEMPERATURE_FACTORS = (0.25, 4.0)  # besides the temperature 'bayes' itself
PRIOR_STD_FACTORS = (0.5, 2.0)  # besides 1
STEPS_DIVISOR = 4  # a run of the search takes a quarter of the steps
WEIGHTS = "environment weights"


@dataclass(frozen=True)
class AutoSettings:
    """Which settings are chosen by cross-validation."""

    weights: bool = False
    temperature: bool = False
    prior_std: bool = False


class SearchOptions(NamedTuple):
    """How the runs of a search are trained, and when it has to end."""

    training: TrainingOptions
    seed: int
    deadline: float | None = None  # of time.monotonic
    rule: ContextRule = DEFAULT_RULE  # by which held-out tasks are split into context and queries


def choose(
    environments: Sequence[Sequence[Task]],
    target: int,
    options: Sequence[Weights],
    settings: Settings,
    auto: AutoSettings,
    search: SearchOptions,
) -> Choice:
    """Weight the options (and variations of the settings) by cross-validation.

    With fewer than two target tasks nothing can be held out: then source tasks count a tenth, 0.4 times and as much as
    a target task, and the three are averaged with equal weights.
    """
    counts = [len(tasks) for tasks in environments]
    n_steps = search.training.n_steps
    if len(options) == 1 and not (auto.temperature or auto.prior_std):
        return Choice([Candidate(options[0], settings)], np.ones(1), None)
    if counts[target] < 2 or n_steps == 0:
        return untested(counts, target, options, settings, auto, DISCOUNTS_UNTRIED if n_steps > 0 else (1.0,))
    candidates = [Candidate(weights, settings) for weights in options]
    validation = CrossValidation(environments, target, search.seed, settings.labels, search.rule)
    score_candidates([validation], candidates, search.training, search.deadline, WEIGHTS)
    if auto.weights and len(options) > 1:
        candidates += _compare_sources(validation, candidates, counts, search)
    if auto.temperature or auto.prior_std:
        best = candidates[int(choice_of(validation, candidates).weights.argmax())]
        varied = _variations(best, auto)
        if score_candidates([validation], varied, search.training, search.deadline, "variations"):
            candidates += varied
    return choice_of(validation, candidates)


def n_phases(counts: Sequence[int], target: int, options: Sequence[Weights], auto: AutoSettings, n_steps: int) -> int:
    """Return how many phases `choose` has, at most: without helpful sources none are combined."""
    varied = auto.temperature or auto.prior_std
    if (len(options) == 1 and not varied) or counts[target] < 2 or n_steps == 0:
        return 0
    sources = auto.weights and len(options) > 1 and bool(single_source_weights(counts, target))
    return 1 + 2 * sources + varied


def untested(
    counts: Sequence[int],
    target: int,
    options: Sequence[Weights],
    settings: Settings,
    auto: AutoSettings,
    discounts: Sequence[float] = DISCOUNTS_UNTRIED,
) -> Choice:
    """Average over the given options or, if these are to be chosen, over some discounts of the source."""
    if auto.weights and len(options) > 1:
        options = [discounted(counts, target, discount) for discount in discounts]
    return Choice(
        [Candidate(weights, settings) for weights in options], np.full(len(options), 1.0 / len(options)), None
    )


def choice_of(validation: CrossValidation, candidates: list[Candidate]) -> Choice:
    """Weight scored candidates in the averaged prediction."""
    scores = validation.scores(candidates)
    if not np.isfinite(scores).all(axis=1).any():
        raise TrainingDiverged(
            Message("Every candidate diverged in the search. Try, in this order: ", *DIVERGENCE_ADVICE)
        )
    target_only = [i for i, candidate in enumerate(candidates) if candidate.weights[validation.target] == 1.0]
    weights = select_weights(averaging_weights(scores), scores, target_only[0] if target_only else None)
    return Choice(candidates, weights, scores)


def _compare_sources(
    validation: CrossValidation, known: list[Candidate], counts: list[int], search: SearchOptions
) -> list[Candidate]:
    """With several sources, score each source alone with the target, then the helpful ones combined.

    The first known candidate is target-only. Return the new candidates that there was time to score.
    """
    first, tried = known[0], [candidate.weights for candidate in known]
    sources = single_source_weights(counts, validation.target)
    single = [Candidate(weights, first.settings) for _, _, weights in sources]
    if not sources or not score_candidates([validation], single, search.training, search.deadline, "single sources"):
        return []
    of_target, *means = validation.scores([first, *single]).mean(axis=1).tolist()
    scores = [(source, discount, score) for (source, discount, _), score in zip(sources, means, strict=True)]
    several = combined_source_weights(counts, validation.target, of_target, scores)
    combined = [Candidate(weights, first.settings, from_scores=True) for weights in several if weights not in tried]
    if combined and not score_candidates([validation], combined, search.training, search.deadline, "combined sources"):
        combined = []
    return [*single, *combined]


def _variations(candidate: Candidate, auto: AutoSettings) -> list[Candidate]:
    """Return the candidate with other temperatures, and with other scales of the hyper-prior."""
    settings = candidate.settings
    varied = [replace(settings, temperature_factor=factor) for factor in TEMPERATURE_FACTORS if auto.temperature]
    scaled = PRIOR_STD_FACTORS if auto.prior_std else ()
    varied += [replace(settings, hyperprior=settings.hyperprior.scaled(factor)) for factor in scaled]
    return [replace(candidate, settings=each) for each in varied]
