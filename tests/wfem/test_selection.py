"""What is searched, and what is not: candidates, rounds, and fall-backs."""

import time
from typing import NamedTuple

import numpy as np
import pytest

from metaprior.search.averaging import discounted, resolve_weights
from metaprior.search.report import make_report
from metaprior.tasks.types import Task
from metaprior.wfem import TrainingDiverged
from metaprior.wfem import selection as module
from metaprior.wfem.runs import Settings, TrainingOptions
from metaprior.wfem.selection import AutoSettings, HeldOutRun, SearchOptions, choose

SETTINGS = Settings()
NAMES = ("source", "target")


def tasks_of(*counts):
    return [[Task(np.zeros((2, 1)), np.array([0.0, 1.0]))] * count for count in counts]


def options(n_steps=100, deadline=None):
    return SearchOptions(TrainingOptions(n_steps, 1e-2, progress=False), 0, deadline)


class FakeResult(NamedTuple):
    particles: None
    loss: np.ndarray


@pytest.fixture
def scored(monkeypatch):
    """Scores by a formula in place of training: `score(candidate)`, the same for every query of every task."""
    rounds = []

    def use(score):
        def trained(runs, method, options, **_):
            rounds.append(len(runs))
            return [FakeResult(None, np.zeros(options.n_steps))] * len(runs)

        def gathered(values, runs, folds):
            of_candidates = values[:: len(folds.members)]
            return np.broadcast_to(of_candidates[:, None, None], (len(of_candidates), len(folds.splits), 4)).copy()

        def held_out(validation, candidate):
            return [HeldOutRun(candidate, None, np.empty(0, int), 0.0) for _ in validation.folds.members]

        monkeypatch.setattr(module, "held_out_runs", held_out)  # the candidate in place of its run
        monkeypatch.setattr(module, "train_runs", trained)
        monkeypatch.setattr(module, "_score", lambda _, runs: np.array([score(held_out.run) for held_out in runs]))
        monkeypatch.setattr(module, "gather_by_task", gathered)
        monkeypatch.setattr(module, "reference_log_densities", lambda tasks, folds, labels: np.zeros((len(tasks), 4)))
        return rounds

    return use


def test_nothing_to_choose_is_not_searched(scored):
    rounds = scored(lambda candidate: 0.0)
    choice = choose(tasks_of(3, 3), 1, [(0.3, 0.7)], SETTINGS, AutoSettings(), options())
    assert (choice.weights.tolist(), choice.scores, rounds) == ([1.0], None, [])
    [(candidate, weight)] = choice.members
    assert (candidate.weights, weight) == ((0.3, 0.7), 1.0)


@pytest.mark.parametrize(("n_target", "n_steps", "discounts"), [(1, 100, (0.1, 0.4, 1.0)), (5, 0, (1.0,))])
def test_without_held_out_tasks_the_rule_is_cautious(scored, n_target, n_steps, discounts):
    rounds = scored(lambda candidate: 0.0)
    counts = (6, n_target)
    grid = resolve_weights("auto", NAMES, counts, 1)
    choice = choose(tasks_of(*counts), 1, grid, SETTINGS, AutoSettings(weights=True), options(n_steps))
    assert rounds == []
    assert choice.scores is None
    assert [c.weights for c in choice.candidates] == [discounted(counts, 1, r) for r in discounts]
    np.testing.assert_allclose(choice.weights, 1 / len(discounts))


@pytest.mark.parametrize("n_target", [2, 5, 9])
def test_all_folds_and_alphas_are_one_round(scored, n_target):
    rounds = scored(lambda candidate: -abs(candidate.weights[0] - 0.5))
    grid = resolve_weights([0.0, 0.25, 0.5, 1.0], NAMES, (6, n_target), 1)
    choice = choose(tasks_of(6, n_target), 1, grid, SETTINGS, AutoSettings(), options())
    assert rounds == [4 * min(n_target, 5 if n_target >= 8 else n_target)]
    assert choice.weights.argmax() == 2
    np.testing.assert_allclose(choice.weights.sum(), 1.0)
    assert choice.scores.shape == (4, n_target)


def test_a_source_that_hurts_is_left_out(scored):
    scored(lambda candidate: -20.0 * candidate.weights[0])
    grid = resolve_weights("auto", NAMES, (20, 10), 1)
    choice = choose(tasks_of(20, 10), 1, grid, SETTINGS, AutoSettings(weights=True), options())
    assert choice.weights[0] > 0.95
    report = make_report(choice, NAMES, 1, 10)
    assert report.verdict.startswith("The source does not help: -")
    assert float(report.weight @ report.alpha) < 0.02


def test_several_sources_are_tried_alone_and_together(scored):
    gain = {0: 3.0, 1: -20.0, 2: 2.0}
    rounds = scored(lambda candidate: sum(gain[e] * candidate.weights[e] for e in gain))
    counts, names = (10, 10, 10, 10), ("a", "noise", "b", "target")
    choice = choose(
        tasks_of(*counts),
        3,
        resolve_weights("auto", names, counts, 3),
        SETTINGS,
        AutoSettings(weights=True),
        options(),
    )
    assert len(rounds) == 3
    assert choice.candidates[-1].weights == (1 / 3, 0.0, 1 / 3, 1 / 3)
    assert [candidate.from_scores for candidate in choice.candidates] == [False] * (len(choice.candidates) - 1) + [True]
    average = choice.weights @ np.array([c.weights for c in choice.candidates])
    assert average[1] < 0.02
    assert min(average[0], average[2]) > 0.1


def test_no_candidate_comes_twice(scored):
    """Two sources that are best at equal discounts combine to weights of the grid, which are not listed again."""
    scored(lambda candidate: float(candidate.weights[2] < 1.0))
    counts, names = (10, 10, 10), ("a", "b", "target")
    grid = resolve_weights("auto", names, counts, 2)
    choice = choose(tasks_of(*counts), 2, grid, SETTINGS, AutoSettings(weights=True), options())
    weights = [candidate.weights for candidate in choice.candidates]
    assert len(set(weights)) == len(weights)


def test_temperature_and_prior_std_are_varied_around_the_best(scored):
    def score(candidate):
        s = candidate.settings
        return -((candidate.weights[0] - 0.5) ** 2) - abs(np.log(s.temperature_factor * s.prior_std["weights"] / 8.0))

    rounds = scored(score)
    grid = resolve_weights([0.0, 0.5], NAMES, (6, 9), 1)
    choice = choose(tasks_of(6, 9), 1, grid, SETTINGS, AutoSettings(temperature=True, prior_std=True), options())
    assert rounds == [2 * 5, 4 * 5]
    best = choice.candidates[choice.weights.argmax()]
    assert (best.weights[0], best.settings.temperature_factor) == (0.5, 4.0)
    report = make_report(choice, NAMES, 1, 9)
    assert "alpha = 0.5, temperature x 4" in str(report)
    assert "alpha = 0.5, prior_std x 2" in str(report)


def test_rounds_after_the_deadline_are_left_out(scored):
    rounds = scored(lambda candidate: 0.0)
    counts, names = (10, 10, 10), ("a", "b", "target")
    choice = choose(
        tasks_of(*counts), 2, resolve_weights("auto", names, counts, 2), SETTINGS, AutoSettings(True, True, True),
        options(deadline=time.monotonic() - 1.0),
    )  # fmt: skip
    assert len(rounds) == 1
    assert len(choice.candidates) == 6


@pytest.mark.parametrize("auto", [AutoSettings(), AutoSettings(temperature=True, prior_std=True)], ids=["alpha", "all"])
def test_if_all_diverge_that_is_said(scored, auto):
    scored(lambda candidate: -np.inf)
    with pytest.raises(TrainingDiverged, match="smaller learning_rate"):
        choose(tasks_of(3, 3), 1, [(0.0, 1.0), (0.5, 0.5)], SETTINGS, auto, options())


def test_a_source_that_is_a_little_but_surely_worse_goes(scored):
    scored(lambda candidate: -0.05 * candidate.weights[0])
    grid = resolve_weights("auto", NAMES, (20, 10), 1)
    choice = choose(tasks_of(20, 10), 1, grid, SETTINGS, AutoSettings(weights=True), options())
    assert choice.weights.tolist() == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
