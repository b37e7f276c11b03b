"""Cross-validation over target tasks: candidates are trained without each fold, and predict it.

Candidates are environment weights, temperatures and scales of the hyper-prior. Those of one step, and all folds, are
trained in one program. Scores, averaging and the report are those of `metaprior.search`.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import Message
from metaprior.likelihoods.base import Prediction
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
from metaprior.search.held_out import (
    DEFAULT_RULE,
    Folds,
    HeldOut,
    Queries,
    make_folds,
    without_model,
)
from metaprior.tasks.scaling import Scaling
from metaprior.tasks.splits import ContextRule
from metaprior.tasks.types import Task
from metaprior.wfem.checkpoint import Checkpoint
from metaprior.wfem.inference import MAP, Laplace, Method
from metaprior.wfem.likelihoods import in_predictions, make_likelihood
from metaprior.wfem.model import Model
from metaprior.wfem.runs import Run, make_run, make_scaling, train_runs
from metaprior.wfem.settings import Settings, Training
from metaprior.wfem.training import DIVERGENCE_ADVICE, TrainingDiverged

MAX_PARTICLES = 3  # per run of the search
TEMPERATURE_FACTORS = (0.25, 4.0)  # besides the temperature 'bayes' itself
PRIOR_STD_FACTORS = (0.5, 2.0)  # besides 1
STEPS_DIVISOR = 4  # a run of the search takes a quarter of the steps
MAX_NUMBERS = 2**28  # of the covariances of contexts that are predicted from at once


class SearchOptions(NamedTuple):
    """How the runs of a search are trained, and when it has to end."""

    training: Training  # with a number of steps
    seed: int
    deadline: float | None = None  # of time.monotonic
    rule: ContextRule = DEFAULT_RULE  # by which held-out tasks are split into context and queries
    checkpoint: Checkpoint | None = None


class PaddedModel(NamedTuple):
    """A model of one fold, as `Queries.predict` takes it. All folds have contexts and rows of one size: one program."""

    model: Model
    n_rows: int
    n_context: int

    @property
    def scaling(self) -> Scaling:
        """The scaling of the tasks that it was trained on."""
        return self.model.scaling

    def condition(self, x: np.ndarray, y: np.ndarray, mask: np.ndarray) -> Any:
        """Return the posterior given padded contexts."""
        size = ((0, self.n_rows - len(x)), (0, self.n_context - x.shape[1]))
        return self.model.condition(np.pad(x, (*size, (0, 0))), np.pad(y, size), np.pad(mask, size))

    def marginals(self, posterior: Any, x: np.ndarray) -> Prediction:
        """Predict the queries of some rows; particles have equal weights."""
        found = self.model.marginals(posterior, np.pad(x, ((0, self.n_rows - len(x)), (0, 0), (0, 0))))
        log_weights = np.full((self.model.n_components, len(x)), -np.log(self.model.n_components))
        return Prediction(found.mean[:, : len(x)], found.variance[:, : len(x)], found.parameters, log_weights)


class HeldOutQueries(Queries):
    """The splits of all held-out tasks, scored without a model of y but for their mean, spread and classes."""

    def __init__(self, tasks: Sequence[Task], folds: Folds, settings: Settings):
        self.folds, self.likelihood = folds, in_predictions(make_likelihood(settings.likelihood, 1.0))
        super().__init__(tasks, folds, partial(without_model, labels=settings.labels))
        self.n_context = max(1, *(len(split.y_context) for split in self.splits))
        self.rows = [self.rows_of(members) for members in folds.members]
        most = max(MAX_NUMBERS // (MAX_PARTICLES * self.n_context**2), 1)
        self.n_rows = min(max(map(len, self.rows)), most)

    def predict_folds(self, models: Sequence[Model]) -> HeldOut:
        """Return the predictions of all rows, each by the model that was trained without its task."""
        parts: list[tuple[np.ndarray, HeldOut]] = []
        for model, rows in zip(models, self.rows, strict=True):
            padded = PaddedModel(model, self.n_rows, self.n_context)
            blocks = np.array_split(rows, -(-len(rows) // self.n_rows))
            parts += [(some, self.predict(padded, some, self.likelihood)) for some in blocks]
        return HeldOut.gather(parts, len(self.splits))

    def scores(self, held_out: HeldOut) -> np.ndarray:
        """Return the mean contaminated log density of every task, minus infinity where a run diverged."""
        densities = held_out.log_densities(self.y)
        failed = np.isfinite(self.y) & ~np.isfinite(densities)
        scores = self.by_task(contaminated(densities, self.reference))
        scores[self.owner[failed.any(axis=1)]] = -np.inf
        return scores


class Search:
    """Candidates, and what each predicts of the held-out target tasks of one data set.

    All share the folds, the splits into context and queries, and the initial particles.
    """

    def __init__(
        self,
        environments: Sequence[Sequence[Task]],
        target: int,
        seed: int,
        settings: Settings,
        rule: ContextRule = DEFAULT_RULE,
    ):
        self.environments, self.target, self.seed = environments, target, seed
        self.folds = make_folds(environments[target], seed, settings.labels, rule)
        self.queries = HeldOutQueries(environments[target], self.folds, settings)
        self.scored: list[tuple[Candidate, Any]] = []
        self.n_steps: int | None = None  # that every candidate is trained for
        self.seconds_per_run = 0.0

    def held_out(self, wanted: Candidate) -> Any:
        """Return the predictions of a candidate, if it is scored."""
        same = (h for c, h in self.scored if c.settings is wanted.settings and c.weights == wanted.weights)
        return next(same, None)

    def scores(self, candidates: Sequence[Candidate], plain: bool = False) -> np.ndarray:
        """Return the robust, or the plain, log density per query of every held-out task, (candidates, tasks)."""
        score = self.queries.plain_scores if plain else self.queries.scores
        return np.array([score(self.held_out(candidate)) for candidate in candidates])

    def runs(self, candidate: Candidate) -> Iterator[tuple[Run, Scaling]]:
        """Yield the candidate's runs and their scalings, one per fold, each standardized by the tasks it sees.

        The environments keep their weights: without a fold, the other target tasks weigh a little more. Up to three
        independent particles stand in for many, or for interacting ones. One would not do: averaging particles makes up
        for overconfidence, and so moves the best alpha towards zero.
        """
        weights, settings = candidate.weights, candidate.settings
        settings = replace(settings, method=search_method(settings.method))
        for members in self.folds.members:
            included = [np.ones(len(tasks), bool) for tasks in self.environments]
            included[self.target][members] = False
            pairs = zip(self.environments, included, strict=True)
            kept = [[task for task, keep in zip(*pair, strict=True) if keep] for pair in pairs]
            scaling = make_scaling(kept, weights, settings)
            yield make_run(self.environments, weights, scaling, settings, self.seed, included), scaling


def score_candidates(
    searches: Sequence[Search], candidates: Sequence[Candidate], options: SearchOptions, what: str = "settings"
) -> bool:
    """Train and score candidates on every data set, all runs in one program, and return whether there was time for it.

    The data sets must have equal shapes; an estimator has one. Candidates that are scored already are skipped. Only the
    first call may be shortened to meet the deadline: scores can be compared only between candidates that are trained
    for the same number of steps.
    """
    first = searches[0]
    candidates = [candidate for candidate in candidates if first.held_out(candidate) is None]
    if not candidates:
        return True
    pairs = [pair for search in searches for candidate in candidates for pair in search.runs(candidate)]
    runs, scalings = zip(*pairs, strict=True)
    started, training, deadline = time.monotonic(), options.training, options.deadline
    if first.n_steps is not None:
        if deadline is not None and started + len(runs) * first.seconds_per_run > deadline:
            return False
        training, deadline = replace(training, n_steps=first.n_steps), None
    results = train_runs(
        runs,
        search_method(candidates[0].settings.method),
        training,
        description=f"comparing {what}",
        deadline=deadline,
        check_divergence=False,
        checkpoint=options.checkpoint,
    )
    trained = zip(results, runs, scalings, strict=True)
    models = iter([Model(result.particles, run.problem.rest, scaling) for result, run, scaling in trained])
    for search in searches:
        for candidate in candidates:
            own = [next(models) for _ in search.folds.members]
            with np.errstate(all="ignore"):  # of runs that diverged
                search.scored.append((candidate, search.queries.predict_folds(own)))
        search.n_steps, search.seconds_per_run = len(results[0].loss), (time.monotonic() - started) / len(runs)
    return True


def search_method(method: Method) -> Method:
    """Return the method that the search trains by: a few independent MAP particles in place of interacting ones."""
    return method if isinstance(method, Laplace) else MAP(min(method.n_particles, MAX_PARTICLES), method.start)


def choose(
    environments: Sequence[Sequence[Task]],
    target: int,
    grid: Sequence[Weights],
    settings: Settings,
    general: bool,
    options: SearchOptions,
) -> Choice:
    """Weight environment weights (and variations of the settings) by cross-validation.

    If the grid is `general`, other weights are tried too. With fewer than two target tasks nothing can be held out:
    then source tasks count a tenth, 0.4 times and as much as a target task, and the three are averaged with equal
    weights.
    """
    counts = [len(tasks) for tasks in environments]
    n_steps = options.training.n_steps
    varied = settings.tries_temperatures or settings.tries_prior_stds
    if len(grid) == 1 and not varied:
        return Choice([Candidate(grid[0], settings)], np.ones(1), None)
    if counts[target] < 2 or n_steps == 0:
        return untested(counts, target, grid, settings, general, DISCOUNTS_UNTRIED if n_steps else (1.0,))
    candidates = [Candidate(weights, settings) for weights in grid]
    search = Search(environments, target, options.seed, settings, options.rule)
    score_candidates([search], candidates, options, "environment weights")
    if general and len(grid) > 1:
        candidates += _compare_sources(search, candidates, counts, options)
    if varied:
        best = candidates[int(choice_of(search, candidates).weights.argmax())]
        variations = [replace(best, settings=each) for each in _variations(best.settings)]
        if score_candidates([search], variations, options, "variations"):
            candidates += variations
    return choice_of(search, candidates)


def n_phases(counts: Sequence[int], target: int, grid: Sequence[Weights], settings: Settings, general: bool) -> int:
    """Return how many phases `choose` has, at most: without helpful sources none are combined."""
    varied = settings.tries_temperatures or settings.tries_prior_stds
    if (len(grid) == 1 and not varied) or counts[target] < 2:
        return 0
    sources = general and len(grid) > 1 and bool(single_source_weights(counts, target))
    return 1 + 2 * sources + varied


def untested(
    counts: Sequence[int],
    target: int,
    grid: Sequence[Weights],
    settings: Settings,
    general: bool,
    discounts: Sequence[float] = DISCOUNTS_UNTRIED,
) -> Choice:
    """Average over the given weights or, if the grid is `general`, over some discounts of the source."""
    if general and len(grid) > 1:
        grid = [discounted(counts, target, discount) for discount in discounts]
    return Choice([Candidate(weights, settings) for weights in grid], np.full(len(grid), 1.0 / len(grid)), None)


def choice_of(search: Search, candidates: list[Candidate]) -> Choice:
    """Weight scored candidates in the averaged prediction."""
    scores = search.scores(candidates)
    if not np.isfinite(scores).all(axis=1).any():
        raise TrainingDiverged(
            Message("Every candidate diverged in the search. Try, in this order: ", *DIVERGENCE_ADVICE)
        )
    target_only = [i for i, candidate in enumerate(candidates) if candidate.weights[search.target] == 1.0]
    weights = select_weights(averaging_weights(scores), scores, target_only[0] if target_only else None)
    return Choice(candidates, weights, scores, search.scores(candidates, plain=True))


def _compare_sources(
    search: Search, known: list[Candidate], counts: list[int], options: SearchOptions
) -> list[Candidate]:
    """With several sources, score each source alone with the target, then the helpful ones combined.

    The first known candidate is target-only. Return the new candidates that there was time to score.
    """
    first, tried = known[0], [candidate.weights for candidate in known]
    sources = single_source_weights(counts, search.target)
    single = [Candidate(weights, first.settings) for _, _, weights in sources]
    if not sources or not score_candidates([search], single, options, "single sources"):
        return []
    of_target, *means = search.scores([first, *single]).mean(axis=1).tolist()
    scores = [(source, discount, score) for (source, discount, _), score in zip(sources, means, strict=True)]
    several = combined_source_weights(counts, search.target, of_target, scores)
    combined = [Candidate(weights, first.settings, from_scores=True) for weights in several if weights not in tried]
    if not score_candidates([search], combined, options, "combined sources"):
        combined = []
    return [*single, *combined]


def _variations(settings: Settings) -> list[Settings]:
    """Return the settings with other temperatures, and with other scales of the hyper-prior."""
    factors = TEMPERATURE_FACTORS if settings.tries_temperatures else ()
    scales = PRIOR_STD_FACTORS if settings.tries_prior_stds else ()
    varied = [replace(settings, temperature_factor=factor) for factor in factors]
    return [*varied, *(replace(settings, hyperprior=settings.hyperprior.scaled(scale)) for scale in scales)]
