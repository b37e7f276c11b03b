"""The search for numbers: how much tasks count, what the evidence rules out, and what the search prefers."""

from dataclasses import replace

import numpy as np
import pytest
from searches import Failing, options_of, search_for, training_tasks
from threadpoolctl import threadpool_limits

from metaprior.datasets import Sinusoid
from metaprior.prior.families import LINEAR, SHAPES, SMOOTH, fit_families
from metaprior.search.averaging import CLEARLY_WORSE, Candidate, merge_similar
from metaprior.search.held_out import HeldOut
from metaprior.search.problems import Numbers
from metaprior.search.search import choose_members, without_test
from metaprior.tasks.scaling import fit_scaling
from metaprior.tasks.types import Task

SAME = Sinusoid(deviation=0.0)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    with threadpool_limits(1, user_api="blas"):
        yield


class Lenient(Numbers):
    """Every family is scored, whatever the evidence says."""

    def outweighed(self, fit):
        return set()


def search_of(environments, options, problem=Lenient(), **settings):  # noqa: B008
    search = search_for(environments, problem=problem, **settings)
    for option in options:
        search.add(option)
    return search


@pytest.fixture(scope="module")
def small():
    """Three target tasks, one of a single reading, and four of a source."""
    target = [*SAME.target_tasks(2, 5, rng=1), *SAME.target_tasks(1, 1, rng=2)]
    environments = [SAME.source_tasks(4, 5, rng=0), target]
    options = [*options_of(environments, (0.0, 0.4)), *options_of(environments, (1.0,), environment=True)]
    return search_of(environments, options)


def without(environments, members):
    kept = [task for i, task in enumerate(environments[1]) if i not in members]
    return [environments[0], kept]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.0, 9.9, 19.8), set()),
        ((0.0, 10.1, 19.8), {LINEAR}),
        ((0.0, -5.0, 30.0), {SMOOTH}),
        ((0.0, 20.0, 40.0), {LINEAR, SMOOTH}),
    ],
)
def test_families_are_outweighed_by_the_evidence_of_a_larger_one(small, values, expected):
    fitted = fit_families(training_tasks(small.environments, 1, small.options[0]), False, None)
    modes = {name: replace(fitted.modes[name], value=v) for name, v in zip(fitted.modes, values, strict=True)}
    assert Numbers().outweighed(replace(fitted, modes=modes)) == expected
    without_smooth = {name: prior for name, prior in fitted.priors.items() if name != SMOOTH}
    assert Numbers().outweighed(replace(fitted, priors=without_smooth, modes=modes)) == set()


def test_outweighed_families_are_not_scored_but_reported():
    curves = Sinusoid(deviation=0.0, noise_std=0.05).target_tasks(12, 8, rng=3)  # far from lines
    search = search_of([[], curves], [Candidate((0.0, 1.0))], Numbers())
    assert LINEAR not in [each.family for each in search.scored]
    assert choose_members(search).families[LINEAR] == 0.0


def test_a_family_is_not_outweighed_by_one_that_fails_without_a_fold():
    curves = Sinusoid(deviation=0.0, noise_std=0.05).target_tasks(12, 8, rng=3)
    problem = Failing(Numbers(), lambda call, name: call == 3 and name != LINEAR)
    search = search_of([[], curves], [Candidate((0.0, 1.0))], problem)
    assert [each.family for each in search.scored] == [LINEAR]
    assert choose_members(search).families == {LINEAR: 1.0}


def test_without_tasks_to_hold_out_lines_and_smooth_functions_have_the_noise_that_is_given():
    environments = [SAME.source_tasks(1, 5, rng=0), SAME.target_tasks(1, 5, rng=1)]
    found = without_test(Numbers(noise_std=0.1), environments, 1, options_of(environments, (0.1, 1.0)))
    assert found.families == {LINEAR: 0.5, SMOOTH: 0.5, "curve": 0.0, SHAPES: 0.0}
    assert [prior.terms.layout.has("curve") for prior in found.priors] == [False, True] * 2
    np.testing.assert_allclose([prior.noise_variance * prior.scaling.y_std**2 for prior in found.priors], 0.01)


def test_tasks_count_by_the_weight_of_their_environment():
    environments = [SAME.source_tasks(4, 3, rng=0), SAME.target_tasks(2, 3, rng=1), SAME.source_tasks(1, 3, rng=2)]
    training = training_tasks(environments, 1, Candidate((0.4, 0.5, 0.1)))
    np.testing.assert_allclose(training.counts, [0.4] * 4 + [1.0] * 2 + [0.4])  # 0.1, 0.25 and 0.1 per task
    np.testing.assert_allclose(training.of_environment, [0.4, 1.0, 0.4])
    np.testing.assert_array_equal(training.is_target, [0.0] * 4 + [1.0] * 2 + [0.0])
    scaling = fit_scaling(environments, (0.4, 0.5, 0.1))
    for task, given in zip(training.tasks, [task for tasks in environments for task in tasks], strict=True):
        np.testing.assert_allclose(task.x, scaling.inputs(given.x))
        np.testing.assert_allclose(task.y, scaling.outputs(given.y))


def test_an_environment_without_weight_has_no_effect():
    environments = [SAME.source_tasks(4, 3, rng=0), SAME.target_tasks(2, 3, rng=1)]
    training = training_tasks(environments, 1, Candidate((0.0, 1.0)))
    assert len(training.tasks) == 2
    np.testing.assert_array_equal(training.counts, np.ones(2))
    expected = fit_scaling([environments[1]], [1.0])
    for found, value in zip(training.scaling[:4], expected[:4], strict=True):
        np.testing.assert_array_equal(found, value)


def test_a_source_like_the_target_is_used():
    gains, of_pooled = [], []
    for seed in range(3):
        environments = [SAME.source_tasks(12, 6, rng=seed), SAME.target_tasks(4, 6, rng=100 + seed)]
        choice = choose_members(search_of(environments, options_of(environments, (0.0, 1.0)))).choice
        gains.append(choice.scores[1] - choice.scores[0])
        of_pooled.append(choice.weights[1])
    assert np.mean(gains) > CLEARLY_WORSE * np.std(gains, ddof=1) / np.sqrt(12)
    assert np.mean(of_pooled) > 0.75


def test_a_source_of_pure_noise_gets_no_weight():
    """In 9 of 10 draws: of six target tasks each may be predicted a little better by chance, as in draw 1."""
    weights = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        noise = [Task(rng.uniform(-5.0, 5.0, (6, 1)), 5.0 + 3.0 * rng.normal(size=6)) for _ in range(8)]
        environments = [noise, SAME.target_tasks(6, 6, rng=100 + seed)]
        choice = choose_members(search_of(environments, options_of(environments, (0.0, 0.4)))).choice
        weights.append(choice.weights[1])
        assert choice.weights.sum() == pytest.approx(1.0)
    assert np.mean(np.array(weights) == 0.0) > 0.8
    assert np.mean(weights) < 0.01


def test_curves_beat_lines_where_the_common_mean_is_a_curve():
    environments = [[], SAME.target_tasks(10, 8, rng=0)]
    families = choose_members(search_of(environments, [Candidate((0.0, 1.0))])).families
    assert families[LINEAR] == 0.0


def test_lines_are_enough_where_tasks_are_lines():
    rng = np.random.default_rng(0)
    tasks = [Task(x, x[:, 0] * rng.normal(2.0, 0.5) + 0.3 * rng.normal(size=6)) for x in rng.normal(size=(12, 6, 1))]
    search = search_of([[], tasks], [Candidate((0.0, 1.0))])
    best = search.scores().mean(axis=1).max()
    assert search.scores()[0].mean() > best - 0.05
    assert choose_members(search).families[LINEAR] > 0.1


def test_tasks_count_as_much_without_a_fold_as_with_it(small):
    [_, option, _] = small.options
    full = training_tasks(small.environments, 1, option)
    kept = without(small.environments, [0])
    training = training_tasks(kept, 1, option, [4, 3])
    np.testing.assert_allclose(training.counts, full.counts[[0, 1, 2, 3, 5, 6]])
    np.testing.assert_allclose(training.counts, [0.4] * 4 + [1.0] * 2)


def test_candidates_clearly_worse_than_target_only_are_dropped(small, monkeypatch):
    """Target-only is its best family; a small but certain loss costs the others their weight."""
    scores = np.tile([0.0, 0.1, -0.1], (12, 1))
    scores[1] += 1.0
    scores[4:8] += 0.95 + 0.001 * np.arange(3)
    scores[8:] += [1.5, 0.4, 1.1]
    monkeypatch.setattr(small, "scores", lambda: scores)
    found = choose_members(small)
    assert found.choice.weights[1] == 0.0
    assert found.choice.weights[0] > 0.0
    assert found.choice.weights[2] > 0.0
    assert found.families[LINEAR] == found.families[SHAPES] > 0.0


def test_more_than_six_members_are_merged(small, monkeypatch):
    monkeypatch.setattr(small, "scores", lambda: np.zeros((12, 3)))
    found = choose_members(small)
    distances = HeldOut.distances([each.held_out for each in small.scored], small.queries.asked)
    merged = merge_similar(np.full(12, 1 / 12), distances)
    np.testing.assert_allclose(found.weights, merged[merged > 0])
    expected = [each.prior for each, weight in zip(small.scored, merged, strict=True) if weight > 0]
    assert len(expected) == 6
    assert all(prior is other for prior, other in zip(found.priors, expected, strict=True))
    np.testing.assert_allclose(found.choice.weights, np.full(3, 1 / 3))  # before merging
    np.testing.assert_allclose(list(found.families.values()), np.full(4, 1 / 4))


def test_with_many_inputs_own_and_shared_scales_are_compared():
    """Two of eight columns matter: scales of their own find that out, and the average uses them."""
    rng = np.random.default_rng(0)

    def tasks(n):
        inputs = [rng.normal(size=(8, 8)) for _ in range(n)]
        return [Task(x, np.sin(2.0 * x[:, 0]) + rng.normal() * x[:, 1] + 0.1 * rng.normal(size=8)) for x in inputs]

    search = search_for([[], tasks(12)])
    search.add(Candidate((0.0, 1.0)))
    assert {each.prior.terms.layout.columns.separate for each in search.scored} == {True, False}
    assert {len(each.prior.terms.layout.scale(each.prior.terms.theta, "line")) for each in search.scored} == {2, 9}
    best = search.scored[int(np.argmax(search.scores().mean(axis=1)))]
    assert best.prior.terms.layout.columns.separate
    assert search_for([[], [Task(np.zeros((2, 6)), np.zeros(2))] * 3]).scales == (None,)
    assert search_for([[], [Task(np.zeros((2, 33)), np.zeros(2))] * 3]).scales == (None,)
