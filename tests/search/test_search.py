"""One suite for searches of every problem: scores by hand, what is chosen from them, and what a search does without."""

import time

import numpy as np
import pytest
from searches import Failing, options_of, search_for
from threadpoolctl import threadpool_limits

from metaprior.datasets import Sinusoid
from metaprior.likelihoods import Ordinal, Poisson
from metaprior.search.averaging import Candidate, averaging_weights
from metaprior.search.compare import add_options
from metaprior.search.problems import SIMPLE, Labels, Numbers, Request
from metaprior.search.search import choose_members, choose_untested, without_test
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
