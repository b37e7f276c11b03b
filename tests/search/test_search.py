"""Searches of every problem: scores by hand, what is chosen from them, and what a search does without."""

import time
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp
from searches import Failing, options_of, search_for, training_tasks
from threadpoolctl import threadpool_limits

from metaprior.datasets import Sinusoid
from metaprior.likelihoods import Ordinal, Poisson
from metaprior.prior.blocks import make_blocks
from metaprior.prior.families import LINEAR, SHAPES, SMOOTH, fit_families
from metaprior.prior.modes import log_density
from metaprior.search.averaging import CLEARLY_WORSE, Candidate, averaging_weights, merge_similar
from metaprior.search.compare import add_options
from metaprior.search.held_out import HeldOut
from metaprior.search.problems import SIMPLE, Labels, Numbers, Request
from metaprior.search.search import choose_members, choose_untested, free_energy, without_test
from metaprior.tasks.scaling import fit_scaling
from metaprior.tasks.types import Task

SAME = Sinusoid(deviation=0.0)
RANKS = Ordinal().learned([np.arange(4.0)])
PROBLEMS = {
    "readings": (Numbers(), lambda y: y),
    "counts": (Numbers(Poisson()), lambda y: np.floor(np.exp(0.2 * y))),
    "ranks": (Numbers(RANKS), lambda y: np.digitize(y, [2.0, 5.0, 8.0]).astype(float)),
    "labels": (Labels(2), lambda y: (y > np.median(y)).astype(float)),
    "labels of tasks of their own": (Labels(None, calibrate=False), lambda y: (y > np.median(y)).astype(float)),
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture(scope="module", params=PROBLEMS)
def searched(request):
    """A search over two or three options, with three target tasks, one of a single sample, and four of a source."""
    problem, observe = PROBLEMS[request.param]
    target = [*SAME.target_tasks(2, 6, rng=1), *SAME.target_tasks(1, 1, rng=2)]
    drawn = [SAME.source_tasks(4, 6, rng=0), target]
    environments = [[Task(x, observe(y)) for x, y in tasks] for tasks in drawn]
    options = options_of(environments, (0.0, 0.4))
    if not problem.labels:
        options += options_of(environments, (1.0,), environment=True)
    search = search_for(environments, problem=problem)
    for option in options:
        search.add(option)
    return search


def again(search, options, problem=None, seed=0, **settings):
    """Search the same tasks anew."""
    found = search_for(search.environments, seed=seed, problem=problem or search.problem, **settings)
    for option in options:
        found.add(option)
    return found


def rows_of_option(search, option):
    return [i for i, each in enumerate(search.scored) if each.option == option]


def test_scores_are_those_of_fits_without_the_fold(searched):
    problem, queries, near, expected = searched.problem, searched.queries, None, {}
    sizes = [len(tasks) for tasks in searched.environments]
    for place, option in enumerate(searched.options):
        near = full = problem.fit(Request(searched.environments, 1, option, near=near))
        parts = {name: [] for name in full.priors}
        for members in searched.folds.members:
            assert len(members) == 1
            source, target = searched.environments
            kept = [source, [task for i, task in enumerate(target) if i not in members]]
            fold = problem.fit(Request(kept, 1, option, None, sizes, full, problem.fold_iterations))
            for name, own in parts.items():
                own.append((queries.rows_of(members), fold.priors[name]))
        for name in [name for name in full.priors if name not in problem.outweighed(full)]:
            _, held_out = problem.tested(queries, full.priors[name], parts[name])
            contaminated = np.log(0.9 * np.exp(held_out.log_densities(queries.y)) + 0.1 * np.exp(queries.reference))
            of_tasks = [np.nanmean(contaminated[queries.owner == i]) for i in range(len(searched.tasks))]
            expected[place, name] = of_tasks
    assert [(each.option, each.family) for each in searched.scored] == list(expected)
    np.testing.assert_allclose(searched.scores(), list(expected.values()), rtol=1e-9, atol=1e-12)  # one class: zero


def test_priors_are_fitted_to_all_tasks(searched):
    first = searched.problem.fit(Request(searched.environments, 1, searched.options[0]))
    for each in [searched.scored[i] for i in rows_of_option(searched, 0)]:
        np.testing.assert_allclose(each.prior.terms.theta, first.priors[each.family].terms.theta)
        np.testing.assert_allclose(each.prior.terms.weights, first.priors[each.family].terms.weights)
    assert all(
        each.prior.terms.layout.has("environment") == searched.options[each.option].environment
        for each in searched.scored
    )


def test_options_are_scored_by_the_average_of_their_families(searched):
    scores, queries = searched.scores(), searched.queries
    for option, found in enumerate(searched.option_scores()):
        rows = rows_of_option(searched, option)
        weights = averaging_weights(scores[rows], searched.problem.per_task)
        average = searched.average(rows, weights)
        np.testing.assert_allclose(found, queries.scores(average))
        assert np.all(found >= scores[rows].min(axis=0) - 1e-9)


def test_weights_of_options_families_and_members_agree(searched):
    found = choose_members(searched)
    for weights in (found.weights, found.choice.weights, list(found.families.values())):
        assert sum(weights) == pytest.approx(1.0)
    assert list(found.families) == list(searched.families)
    assert len(found.priors) == len(found.weights) <= 6
    scored = {id(each.prior): each for each in searched.scored}
    assert all(id(prior) in scored for prior in found.priors)
    np.testing.assert_allclose(found.choice.scores, searched.option_scores())
    assert [each.weights for each in found.choice.candidates] == [option.weights for option in searched.options]
    members = [i for i, each in enumerate(searched.scored) if any(each.prior is prior for prior in found.priors)]
    sizes = [3.0, 0.4 * 4 + 3, 4.0 + 3]  # of options: tasks of the source count 0, 0.4 and 1
    n_tasks = 1.0 / sum(w / sizes[scored[id(p)].option] for p, w in zip(found.priors, found.weights, strict=True))
    average = searched.average(members, found.weights)
    assert found.spread == pytest.approx(searched.problem.spread(n_tasks, searched.queries, average))


def test_the_same_seed_gives_the_same_result(searched):
    same, other = again(searched, searched.options[:1]), again(searched, searched.options[:1], seed=1)
    rows = rows_of_option(searched, 0)
    np.testing.assert_allclose(same.scores(), searched.scores()[rows], rtol=1e-6)
    assert not np.allclose(other.scores(), same.scores(), rtol=1e-3)


def test_a_family_that_fails_without_a_fold_is_left_out(searched):
    """It is neither scored nor listed."""
    *kept, lost = [searched.scored[i].family for i in rows_of_option(searched, 0)]
    problem = Failing(searched.problem, lambda call, name: name == lost and call == 3)
    search = again(searched, searched.options[:1], problem)
    assert [each.family for each in search.scored] == kept
    assert lost not in search.families
    np.testing.assert_allclose(search.scores(), searched.scores()[: len(kept)], rtol=1e-6)


def test_without_any_family_the_search_says_so(searched):
    search = again(searched, searched.options[:1], Failing(searched.problem, lambda *_: True))
    with pytest.raises(ValueError, match="No prior could be fitted"):
        search.scores()


def test_an_option_without_the_held_out_environment_is_fitted_once(searched):
    problem = Failing(searched.problem, lambda *_: False)
    search = again(searched, [Candidate((1.0, 0.0))], problem)
    assert problem.n_calls == 1
    known = problem.fit(Request(searched.environments, 1, Candidate((1.0, 0.0))))
    rows = np.arange(len(search.queries.splits))
    for each in search.scored:
        prior = known.priors[each.family]
        _, expected = problem.tested(search.queries, prior, [(rows, prior)])
        np.testing.assert_allclose(search.queries.scores(each.held_out), search.queries.scores(expected), rtol=1e-6)


def test_a_deadline_in_the_past_still_compares_the_first_option(searched):
    search = again(searched, [])
    assert not add_options(search, searched.options, "environment weights", time.monotonic() - 1.0, False)
    assert search.options == searched.options[:1]
    np.testing.assert_allclose(search.scores(), searched.scores()[rows_of_option(searched, 0)], rtol=1e-6)
    np.testing.assert_allclose(choose_members(search).choice.weights, [1.0])


def test_without_target_tasks_to_hold_out_source_tasks_choose_the_family(searched):
    source, target = searched.environments
    search = search_for([source, target[:1]], problem=searched.problem, held_out=0)
    for option in options_of(search.environments, (0.1, 1.0)):
        search.add(option)
    found, scores = choose_untested(search), search.scores()
    assert scores.shape[1] == len(source)
    np.testing.assert_allclose(found.choice.weights, [0.5, 0.5])
    assert found.choice.scores is None
    expected = dict.fromkeys(search.families, 0.0)
    for option in range(2):
        rows = rows_of_option(search, option)
        weights = averaging_weights(scores[rows], search.problem.per_task)
        for i, weight in zip(rows, weights, strict=True):
            expected[search.scored[i].family] += 0.5 * weight
    assert found.families == pytest.approx(expected)
    assert found.weights.sum() == pytest.approx(1.0)


def test_without_tasks_to_hold_out_simple_families_are_averaged(searched):
    problem, environments = searched.problem, [tasks[:1] for tasks in searched.environments]
    options = options_of(environments, (0.1, 1.0))
    found = without_test(problem, environments, 1, options)
    assert tuple(name for name, weight in found.families.items() if weight) == SIMPLE
    np.testing.assert_allclose(found.weights, np.full(4, 0.25))
    np.testing.assert_array_equal(found.choice.weights, [0.5, 0.5])
    assert found.choice.scores is None
    np.testing.assert_allclose(found.priors[0].counts, [0.1, 1.0])
    n_tasks = 1.0 / np.mean([1.0 / 1.1, 1.0 / 2.0])  # the source counts 0.1 and 1
    assert found.spread == pytest.approx(1.0 if problem.labels else (1.0 + 1.0 / n_tasks) ** 0.25)


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
    without = [environments[0], environments[1][1:], []]  # tasks count as much without a fold as with it
    training = training_tasks(without, 1, Candidate((0.4, 0.5, 0.1)), [4, 2, 1])
    np.testing.assert_allclose(training.counts, [0.4] * 4 + [1.0])
    training = training_tasks(environments, 1, Candidate((0.0, 1.0, 0.0)))  # others have no effect
    np.testing.assert_allclose(training.counts, [1.0] * 2)
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


def test_lines_are_enough_where_tasks_are_lines():
    rng = np.random.default_rng(0)
    tasks = [Task(x, x[:, 0] * rng.normal(2.0, 0.5) + 0.3 * rng.normal(size=6)) for x in rng.normal(size=(12, 6, 1))]
    search = search_of([[], tasks], [Candidate((0.0, 1.0))])
    best = search.scores().mean(axis=1).max()
    assert search.scores()[0].mean() > best - 0.05
    assert choose_members(search).families[LINEAR] > 0.1


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


def test_the_free_energy_is_minus_the_log_integral_of_the_gibbs_density():
    rng = np.random.default_rng(0)
    tasks = []
    for _ in range(12):
        x = rng.uniform(-1, 1, 6)
        tasks.append(Task(x[:, None], 3.0 + 5.0 * (rng.normal() + x + 0.3 * rng.normal(size=6))))
    environments = [tasks[:6], tasks[6:]]
    training = training_tasks(environments, 1, Candidate((0.3, 0.7)))
    fit = fit_families(training, False, None)
    mode, prior = fit.modes[LINEAR], fit.priors[LINEAR]
    blocks = make_blocks(training.tasks, training.counts, training.is_target, prior.terms.points, mode.layout.columns)
    # Importance sampling of theta from a wide normal around the mode, with all constants.
    proposal = stats.multivariate_normal(mode.theta, 2.0 * mode.inverse_hessian)
    draws = proposal.rvs(4000, random_state=1)
    n = float(training.counts @ [len(task.y) for task in training.tasks])
    hyper = -np.sum(np.log(mode.layout.spread)) - 0.5 * len(mode.theta) * np.log(2 * np.pi)
    values = [log_density(mode.layout, each, blocks, prior.terms.points, gradient=False).value for each in draws]
    log_z = (
        logsumexp(np.array(values) - proposal.logpdf(draws)) - np.log(len(draws)) + hyper - n / 2 * np.log(2 * np.pi)
    )
    expected = -log_z / n + np.log(prior.scaling.y_std)
    only = type(fit)({LINEAR: prior}, {LINEAR: mode})
    assert free_energy(only, environments) == pytest.approx(expected, abs=0.02)
    both = free_energy(fit, environments)
    assert both <= free_energy(only, environments)
    assert SMOOTH in fit.modes
    assert np.isnan(free_energy(type(fit)({}, {}), environments))
