"""From candidate settings to the few that predictions are averaged over, and the record of how they were found."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from metaprior.meta.runs import Run, Settings
from metaprior.search.averaging import choose_weights, contaminated
from metaprior.search.held_out import (
    Candidate,
    by_task,
    held_out_runs,
    hold_out,
    reference_log_densities,
    train_and_score,
)
from metaprior.search.weights import (
    DISCOUNTS_UNTRIED,
    Weights,
    combined_source_weights,
    discounted,
    single_source_weights,
)
from metaprior.tasks.types import Task
from metaprior.training.checkpoint import Checkpoint
from metaprior.training.loop import TrainingDiverged
from metaprior.training.steps import TrainConfig

TEMPERATURE_FACTORS = (0.25, 4.0)  # besides the temperature 'bayes' itself
PRIOR_STD_FACTORS = (0.5, 2.0)  # besides 1
FAMILY_DISCOUNTS = (0.1, 1.0)  # by which families of priors are compared
FAMILY_TASKS, FAMILY_ERRORS = 10, 2.0  # target tasks and standard errors that it takes to leave the first one
STEPS_DIVISOR = 4  # a run of the search takes a quarter of the steps


@dataclass(frozen=True)
class AutoSettings:
    """What is to be chosen by held-out tasks."""

    weights: bool = False
    temperature: bool = False
    prior_std: bool = False


class Choice(NamedTuple):
    """The candidates that were weighed, their weights in the average (zero: dropped), and the scores behind them."""

    candidates: list[Candidate]
    weights: np.ndarray  # (candidates,)
    # (candidates, target tasks): mean contaminated log density per query of each held-out task. None: nothing could be
    # held out, or there was nothing to choose.
    scores: np.ndarray | None

    @property
    def members(self) -> list[tuple[Candidate, float]]:
        """Those that predictions are averaged over, with their weights."""
        pairs = zip(self.candidates, self.weights.tolist(), strict=True)
        return [(candidate, weight) for candidate, weight in pairs if weight > 0]


class SearchOptions(NamedTuple):
    """How runs of the search are trained."""

    train_config: Callable[[Run], TrainConfig]
    n_steps: int
    learning_rate: float
    seed: int
    deadline: float | None  # of time.monotonic
    progress: Callable[[str, int], Any]  # a context manager that yields the loop's `on_chunk`
    checkpoint: Checkpoint | None = None


def choose_family(
    environments: Sequence[Sequence[Task]],
    target: int,
    options: Sequence[Weights],
    families: Sequence[Settings],
    schedules: Sequence[SearchOptions],
) -> int:
    """Which of several priors to take: the first, unless another predicts held-out target tasks clearly better.

    That is, by more than two standard errors over ten tasks or more; each at the better of two discounts, or at the one
    option there is. On five tasks, and by one standard error, networks were taken that did worse on new ones.
    """
    counts = [len(tasks) for tasks in environments]
    if len(families) == 1 or counts[target] < FAMILY_TASKS or schedules[0].n_steps == 0:
        return 0
    if len(options) > 1:
        options = [discounted(counts, target, r) for r in FAMILY_DISCOUNTS]
    scores = []
    for i, (settings, schedule) in enumerate(zip(families, schedules, strict=True)):
        if schedule.deadline is not None:  # what is left is shared with the families to come, and with what follows
            left = schedule.deadline - time.monotonic()
            schedule = schedule._replace(deadline=time.monotonic() + left / (len(families) - i + 1))
        search = _Search(environments, target, schedule, settings.likelihood == "bernoulli")
        search.add([Candidate(weights, settings) for weights in options])
        of_task = search.scores()
        scores.append(of_task[int(np.argmax(of_task.mean(axis=1)))])
    first, best = scores[0], int(np.argmax([score.mean() for score in scores]))
    if not np.isfinite(first).all() or not np.isfinite(scores[best]).all():
        return best
    gain = scores[best] - first
    return best if gain.mean() > FAMILY_ERRORS * gain.std(ddof=1) / np.sqrt(len(gain)) else 0


def choose(
    environments: Sequence[Sequence[Task]],
    target: int,
    options: Sequence[Weights],
    settings: Settings,
    auto: AutoSettings,
    schedule: SearchOptions,
) -> Choice:
    """Weigh the options, and variations of the settings where asked, by how they predict held-out target tasks.

    With one option and nothing to vary there is nothing to choose. With fewer than two target tasks nothing can be held
    out: then source tasks count a tenth, 0.4 times and as much as a target task, and the three are averaged alike.
    """
    counts = [len(tasks) for tasks in environments]
    if len(options) == 1 and not (auto.temperature or auto.prior_std):
        return Choice([Candidate(options[0], settings)], np.ones(1), None)
    if counts[target] < 2 or schedule.n_steps == 0:
        if auto.weights and len(options) > 1:
            untried = DISCOUNTS_UNTRIED if schedule.n_steps > 0 else (1.0,)
            options = [discounted(counts, target, discount) for discount in untried]
        return Choice([Candidate(w, settings) for w in options], np.full(len(options), 1.0 / len(options)), None)
    search = _Search(environments, target, schedule, settings.likelihood == "bernoulli")
    search.add([Candidate(weights, settings) for weights in options])
    if auto.weights and len(options) > 1:
        _weigh_sources(search, counts, target, settings)
    if auto.temperature or auto.prior_std:
        search.add(_variations(search.candidates[int(search.weights().argmax())], auto))
    return search.choice()


def _weigh_sources(search: "_Search", counts: list[int], target: int, settings: Settings) -> None:
    """With several sources: each alone with the target, then those that help together."""
    sources = single_source_weights(counts, target)
    first = len(search.candidates)
    if not sources or not search.add([Candidate(weights, settings) for _, _, weights in sources]):
        return
    means = search.scores().mean(axis=1)
    scores = [(source, r, score) for (source, r, _), score in zip(sources, means[first:].tolist(), strict=True)]
    together = combined_source_weights(counts, target, float(means[0]), scores)
    if together:
        search.add([Candidate(weights, settings) for weights in together])


def _variations(candidate: Candidate, auto: AutoSettings) -> list[Candidate]:
    """The candidate with other temperatures, and with other scales of the hyper-prior."""
    settings = candidate.settings
    varied = [replace(settings, temperature_factor=factor) for factor in TEMPERATURE_FACTORS if auto.temperature]
    for factor in PRIOR_STD_FACTORS if auto.prior_std else ():
        prior_std = {name: factor * value for name, value in settings.prior_std.items()}
        varied.append(replace(settings, prior_std=prior_std))
    return [replace(candidate, settings=each) for each in varied]


class _Search:
    """Candidates scored so far, all on the same folds, splits and initial particles."""

    def __init__(self, environments: Sequence[Sequence[Task]], target: int, schedule: SearchOptions, labels: bool):
        self.environments, self.target, self.schedule = environments, target, schedule
        self.folds = hold_out(environments[target], schedule.seed, labels)
        self.reference = reference_log_densities(environments[target], self.folds, labels)
        self.candidates: list[Candidate] = []
        self.n_steps = schedule.n_steps
        self.seconds_per_run: float | None = None
        self.log_densities = np.empty((0, *self.reference.shape))

    def add(self, candidates: Sequence[Candidate]) -> bool:
        """Train and score candidates, unless they would take longer than there is time for. The first are cut short."""
        train_config, _, learning_rate, seed, deadline, progress, checkpoint = self.schedule
        runs = [
            run
            for candidate in candidates
            for run in held_out_runs(self.environments, self.target, candidate, self.folds, seed)
        ]
        started = time.monotonic()
        if self.seconds_per_run is not None and deadline is not None:
            if started + len(runs) * self.seconds_per_run > deadline:
                return False
            deadline = None  # candidates of all rounds take the same steps, or comparing them would mean nothing
        with progress(f"choosing among {len(candidates)} settings", self.n_steps) as on_chunk:
            scored, self.n_steps = train_and_score(
                runs, train_config(runs[0].run), self.n_steps, learning_rate, on_chunk, deadline, checkpoint
            )
        self.seconds_per_run = (time.monotonic() - started) / len(runs)
        gathered = by_task(scored, runs, self.folds)
        diverged = np.isneginf(gathered)
        gathered = np.where(diverged, -np.inf, contaminated(gathered, self.reference))
        self.candidates += candidates
        self.log_densities = np.concatenate([self.log_densities, gathered])
        return True

    def scores(self) -> np.ndarray:
        return np.nanmean(self.log_densities, axis=2)

    def weights(self) -> np.ndarray:
        """Weights in the average."""
        scores = self.scores()
        if not np.isfinite(scores).all(axis=1).any():
            raise TrainingDiverged(
                "Every candidate setting diverged while alpha, temperature or prior_std was chosen. Try a smaller "
                "learning_rate, a larger noise_std, or dtype='float64'."
            )
        target_only = [i for i, candidate in enumerate(self.candidates) if candidate.weights[self.target] == 1.0]
        return choose_weights(scores, target_only[0] if target_only else None)

    def choice(self) -> Choice:
        return Choice(self.candidates, self.weights(), self.scores())
