"""The search: which candidates are tried, and that a fold is held out and scored as `fit` and `adapt` would do it."""

import time
from dataclasses import replace
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaprior.search.averaging import Candidate, contaminated, discounted, resolve_weights
from metaprior.search.report import make_report
from metaprior.tasks.types import Task
from metaprior.wfem import (
    MAP,
    SVGD,
    ConstantMean,
    Gaussian,
    HyperPrior,
    Laplace,
    RBFKernel,
    Training,
    TrainingDiverged,
    WFEMRegressor,
    runs,
)
from metaprior.wfem import search as module
from metaprior.wfem.objective import log_gibbs, pad_tasks, task_weights
from metaprior.wfem.runs import make_run, make_scaling, stack_runs
from metaprior.wfem.search import Search, SearchOptions, choose, score_candidates, search_method
from metaprior.wfem.settings import Settings
from metaprior.wfem.training import Deadline, TrainConfig, train

SETTINGS = Settings(mean=ConstantMean(), kernel=RBFKernel(), likelihood=Gaussian(0.2))
AUTO = replace(SETTINGS, temperature="auto", hyperprior=HyperPrior(std="auto"))
WEIGHTS = (0.3, 0.7)
NAMES = ("source", "target")


def make_tasks(seed, sizes):
    rng = np.random.default_rng(seed)
    inputs = [rng.uniform(-2.0, 2.0, (n, 1)) for n in sizes]
    return [Task(x, 2.0 + np.sin(2.0 * x[:, 0]) + 0.1 * rng.normal(size=len(x))) for x in inputs]


# Padded to one size, with any task left out: one program trains all.
ENVIRONMENTS = [make_tasks(0, [4, 4, 4]), make_tasks(1, [4, 4, 3])]
RAGGED = [make_tasks(0, [5, 3, 5]), make_tasks(1, [5, 4, 1])]
INCLUDED = [np.ones(3, bool), np.array([True, False, True])]
KEPT = [RAGGED[0], [RAGGED[1][0], RAGGED[1][2]]]
FIRST, SECOND = Candidate(WEIGHTS, SETTINGS), Candidate((0.0, 1.0), SETTINGS)


def options(n_steps=100, deadline=None, seed=0, **training):
    return SearchOptions(Training(n_steps, progress=False, **training), seed, deadline)


def searched(candidates, given, environments=ENVIRONMENTS):
    search = Search(environments, 1, given.seed, SETTINGS)
    assert score_candidates([search], candidates, given)
    return search


def log_densities(search):
    """Plain log densities of every candidate, (candidates, rows, queries)."""
    return np.array([held_out.log_densities(search.queries.y) for _, held_out in search.scored])


def test_a_task_held_out_is_as_good_as_absent(x64):
    scaling = make_scaling(KEPT, WEIGHTS, SETTINGS)
    held_out = make_run(RAGGED, WEIGHTS, scaling, SETTINGS, 0, INCLUDED)
    absent = make_run(KEPT, WEIGHTS, scaling, SETTINGS, 0)
    theta = jax.tree.map(lambda leaf: leaf[0], held_out.particles)
    for rule in ("paper", "effective", "bayes"):
        settings = replace(SETTINGS, temperature=rule)
        first = make_run(RAGGED, WEIGHTS, scaling, settings, 0, INCLUDED).problem.temperature
        np.testing.assert_allclose(first, make_run(KEPT, WEIGHTS, scaling, settings, 0).problem.temperature, rtol=1e-12)
    density = eqx.filter_jit(jax.value_and_grad(log_gibbs))
    values = [density(theta, run.problem) for run in (held_out, absent)]
    np.testing.assert_allclose(values[0][0], values[1][0], rtol=1e-12)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), values[0][1], values[1][1])
    of_buckets = task_weights(pad_tasks(RAGGED, included=INCLUDED), jnp.asarray(WEIGHTS))
    flat = sorted(float(weight) for weights in of_buckets for weight in weights)
    np.testing.assert_allclose(flat, [0.0, 0.1, 0.1, 0.1, 0.35, 0.35], rtol=1e-6)


def test_scores_are_those_of_a_fit_without_the_fold():
    """Against the estimator: fitted on the tasks that are left, adapted to each split, its log density."""
    settings = replace(SETTINGS, method=SVGD(2))  # the search trains two particles by MAP
    n_steps, seed = 7, int(np.random.RandomState(3).randint(2**31 - 1))
    with jax.enable_x64(True):
        search = searched([Candidate(WEIGHTS, settings)], options(n_steps, seed=seed))
    assert search.n_steps == n_steps
    found, robust, first = log_densities(search)[0], [], 0
    for i, splits in enumerate(search.folds.splits):
        meta = WFEMRegressor(
            RBFKernel(), ConstantMean(), alpha=WEIGHTS[0], likelihood=Gaussian(0.2), inference=MAP(2),
            temperature="bayes", training=Training(n_steps=n_steps, dtype="float64"), random_state=3,
        )  # fmt: skip
        meta.fit(ENVIRONMENTS[0], [task for j, task in enumerate(ENVIRONMENTS[1]) if i != j])
        expected = [meta.adapt(s.x_context, s.y_context).log_density(s.x_query, s.y_query) for s in splits]
        for own, of_split in zip(found[first : first + len(splits)], expected, strict=True):
            np.testing.assert_allclose(own[~np.isnan(own)], of_split, rtol=1e-6)
        reference = search.queries.reference[first : first + len(splits)]
        robust.append(contaminated(np.concatenate(expected), reference[~np.isnan(reference)]).mean())
        first += len(splits)
    [candidate] = [candidate for candidate, _ in search.scored]
    np.testing.assert_allclose(search.scores([candidate])[0], robust, rtol=1e-6)


def test_the_runs_of_a_candidate_hold_out_a_fold_each_and_have_up_to_three_particles():
    assert search_method(SVGD(2, 0.7, "hyperprior")) == MAP(2, "hyperprior")
    assert search_method(Laplace(n_draws=4)) == Laplace(n_draws=4)
    search = Search(RAGGED, 1, 0, SETTINGS)
    for n_particles, trained in ((1, 1), (2, 2), (10, 3)):
        found = list(search.runs(Candidate(WEIGHTS, replace(SETTINGS, method=SVGD(n_particles)))))
        assert [len(run.particles.mean.bias) for run, _ in found] == [trained] * 3
    for (run, scaling), [left_out] in zip(found, search.folds.members, strict=True):
        kept = [RAGGED[0], [task for i, task in enumerate(RAGGED[1]) if i != left_out]]
        assert sum(int(np.sum(bucket.included)) for bucket in run.problem.tasks.buckets) == 5
        assert scaling.y_std == pytest.approx(make_scaling(kept, WEIGHTS, SETTINGS).y_std)


def test_a_run_that_diverges_is_minus_infinity_and_does_not_touch_the_others(x64):
    good, bad, other = (Candidate(WEIGHTS, replace(SETTINGS, temperature=gamma)) for gamma in (1.0, 1e300, 2.0))
    together, beside = (searched(pair, options(3, optimizer="sgd")) for pair in ([good, bad], [good, other]))
    assert np.isneginf(together.scores([bad])).all()
    np.testing.assert_allclose(together.scores([good]), beside.scores([good]), rtol=1e-12)
    assert np.isfinite(beside.scores([other])).all()


def test_data_sets_and_parts_of_memory_are_scored_as_each_alone(x64, monkeypatch):
    data = [ENVIRONMENTS, [make_tasks(5, [4, 4, 4]), make_tasks(6, [4, 4, 3])]]
    together = [Search(environments, 1, 0, SETTINGS) for environments in data]
    score_candidates(together, [FIRST], options(3))
    monkeypatch.setattr(runs, "MAX_BYTES", 1)  # run by run
    monkeypatch.setattr(module, "MAX_NUMBERS", 1)  # row by row
    for environments, search in zip(data, together, strict=True):
        alone = searched([FIRST], options(3), environments)
        np.testing.assert_allclose(log_densities(search), log_densities(alone), rtol=1e-9)


def test_parts_take_the_same_steps_although_time_runs_out(monkeypatch):
    taken = []

    def count(*arguments):
        result = train(*arguments)
        taken.append(result.loss.shape[1])
        return result

    monkeypatch.setattr(runs, "MAX_BYTES", 1)
    monkeypatch.setattr(runs, "train", count)
    search = searched([FIRST], options(250, deadline=time.monotonic() - 1.0))
    assert taken == [100, 100, 100]  # a chunk of steps each
    assert search.n_steps == 100


def test_the_clock_cuts_the_schedule_to_the_deadline(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("metaprior.wfem.training.time.monotonic", lambda: now[0])
    clock = Deadline(1000, 100, deadline=10.0)
    now[0] = 4.0  # the first chunk compiles
    assert clock.affordable_steps(100) == 1000
    now[0] = 6.0  # two seconds a chunk: two more fit
    assert clock.affordable_steps(200) == 400
    now[0] = 6.5  # faster after all
    assert clock.affordable_steps(300) == 1000
    now[0] = 10.5
    assert clock.affordable_steps(400) == 400
    assert Deadline(1000, 100, None).affordable_steps(400) == 1000


def test_a_cut_schedule_is_annealed_to_its_end(monkeypatch):
    """Training that is told to end early takes the steps of a shorter schedule from there on."""
    run = stack_runs([make_run(ENVIRONMENTS, WEIGHTS, make_scaling(ENVIRONMENTS, WEIGHTS, SETTINGS), SETTINGS, 0)])
    monkeypatch.setattr(Deadline, "affordable_steps", lambda self, done: 6)
    result = train(*run, TrainConfig(MAP(), chunk=3), 100, jnp.full(1, 1e-2), deadline=0.0)
    assert result.loss.shape == (1, 6)


def tasks_of(*counts):
    return [[Task(np.zeros((2, 1)), np.array([0.0, 1.0]))] * count for count in counts]


@pytest.fixture
def scored(monkeypatch):
    """Scores by a formula in place of training, `score(candidate)`, equal for all tasks.

    Every round takes eight seconds, and one with a deadline ends after 40 steps; `rounds` has what each was asked for.
    """
    rounds, now = [], [1000.0]

    def use(score=lambda candidate: 0.0):
        def trained(runs, method, training, deadline, **_):
            rounds.append((len(runs), training.n_steps, deadline))
            now[0] += 8.0
            steps = training.n_steps if deadline is None else 40
            return [SimpleNamespace(particles=None, loss=np.zeros(steps))] * len(runs)

        def of_candidate(search, candidate):
            run = SimpleNamespace(problem=SimpleNamespace(rest=candidate))  # the candidate in place of its run
            return [(run, None) for _ in search.folds.members]

        queries = module.HeldOutQueries
        monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
        monkeypatch.setattr(Search, "runs", of_candidate)
        monkeypatch.setattr(module, "train_runs", trained)
        monkeypatch.setattr(queries, "predict_folds", lambda self, models: score(models[0].rest))
        monkeypatch.setattr(queries, "scores", lambda self, value: np.full(len(self.folds.splits), value, float))
        monkeypatch.setattr(queries, "plain_scores", queries.scores)
        return rounds, now

    return use


def choose_auto(counts, settings=SETTINGS, alpha="auto", target=1, given=None):
    names = (*"abcdefgh"[: len(counts) - 1], "target")
    grid = resolve_weights(alpha, names, counts, target)
    return choose(tasks_of(*counts), target, grid, settings, alpha == "auto", given or options())


def test_candidates_are_trained_once(scored):
    rounds, _ = scored(lambda candidate: candidate.weights[0])
    search = Search(ENVIRONMENTS, 1, 0, SETTINGS)
    assert score_candidates([search], [FIRST], options(2))
    assert score_candidates([search], [SECOND, FIRST], options(2))
    assert [n_runs for n_runs, *_ in rounds] == [3, 3]
    assert [candidate for candidate, _ in search.scored] == [FIRST, SECOND]
    assert search.scores([SECOND, FIRST])[:, 0].tolist() == [0.0, 0.3]
    assert search.held_out(Candidate(WEIGHTS, replace(SETTINGS))) is None  # equal settings, but not the same


def test_later_rounds_take_as_many_steps_as_the_first(scored):
    """Only the first may be cut short by the deadline: scores of different numbers of steps cannot be compared."""
    rounds, _ = scored()
    search, whole = (Search(ENVIRONMENTS, 1, 0, SETTINGS) for _ in range(2))
    for candidate in (FIRST, SECOND):
        assert score_candidates([search], [candidate], options(100, deadline=5000.0))
    assert (search.n_steps, search.seconds_per_run) == (40, pytest.approx(8 / 3))
    for candidate in (FIRST, SECOND):
        assert score_candidates([whole], [candidate], options(100))
    assert rounds == [(3, 100, 5000.0), (3, 40, None), (3, 100, None), (3, 100, None)]


@pytest.mark.parametrize(("left", "enough"), [(8.1, True), (7.9, False)])
def test_a_later_round_is_left_out_if_it_would_end_after_the_deadline(scored, left, enough):
    """By the time that a run of the last round took, eight seconds for three runs."""
    rounds, now = scored()
    search = Search(ENVIRONMENTS, 1, 0, SETTINGS)
    assert score_candidates([search], [FIRST], options(deadline=now[0] + 1.0))  # the first is never left out
    assert score_candidates([search], [SECOND], options(deadline=now[0] + left)) is enough
    assert len(rounds) == 1 + enough
    assert (search.held_out(SECOND) is not None) is enough
    assert score_candidates([search], [FIRST], options(deadline=0.0))  # is scored already


def test_nothing_to_choose_is_not_searched(scored):
    rounds, _ = scored()
    choice = choose(tasks_of(3, 3), 1, [WEIGHTS], SETTINGS, False, options())
    assert (choice.weights.tolist(), choice.scores, rounds) == ([1.0], None, [])
    assert choice.members == [(FIRST, 1.0)]


@pytest.mark.parametrize(("n_target", "n_steps", "discounts"), [(1, 100, (0.1, 0.4, 1.0)), (5, 0, (1.0,))])
def test_without_held_out_tasks_the_rule_is_cautious(scored, n_target, n_steps, discounts):
    rounds, _ = scored()
    choice = choose_auto((6, n_target), given=options(n_steps))
    assert (rounds, choice.scores) == ([], None)
    assert [c.weights for c in choice.candidates] == [discounted((6, n_target), 1, r) for r in discounts]
    np.testing.assert_allclose(choice.weights, 1 / len(discounts))


@pytest.mark.parametrize("n_target", [2, 9])
def test_all_folds_and_alphas_are_one_round(scored, n_target):
    rounds, _ = scored(lambda candidate: -abs(candidate.weights[0] - 0.5))
    choice = choose_auto((6, n_target), alpha=[0.0, 0.25, 0.5, 1.0])
    assert [n_runs for n_runs, *_ in rounds] == [4 * (5 if n_target >= 8 else n_target)]
    assert choice.weights.argmax() == 2
    np.testing.assert_allclose(choice.weights.sum(), 1.0)
    assert choice.scores.shape == (4, n_target)


def test_a_source_that_hurts_is_left_out(scored):
    scored(lambda candidate: -20.0 * candidate.weights[0])
    choice = choose_auto((20, 10))
    assert choice.weights[0] > 0.95
    report = make_report(choice, NAMES, 1, 10)
    assert report.verdict.startswith("The source does not help: -")
    assert float(report.weight @ report.alpha) < 0.02
    scored(lambda candidate: -0.05 * candidate.weights[0])  # a little, but surely worse
    assert choose_auto((20, 10)).weights.tolist() == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_several_sources_are_tried_alone_and_together(scored):
    gain = {0: 3.0, 1: -20.0, 2: 2.0}
    rounds, _ = scored(lambda candidate: sum(gain[e] * candidate.weights[e] for e in gain))
    choice = choose_auto((10, 10, 10, 10), target=3)
    assert len(rounds) == 3
    assert choice.candidates[-1].weights == (1 / 3, 0.0, 1 / 3, 1 / 3)
    assert [candidate.from_scores for candidate in choice.candidates] == [False] * (len(choice.candidates) - 1) + [True]
    average = choice.weights @ np.array([c.weights for c in choice.candidates])
    assert average[1] < 0.02
    assert min(average[0], average[2]) > 0.1


def test_no_candidate_comes_twice(scored):
    """Two sources that are best at equal discounts combine to weights of the grid, which are not listed again."""
    scored(lambda candidate: float(candidate.weights[2] < 1.0))
    weights = [candidate.weights for candidate in choose_auto((10, 10, 10), target=2).candidates]
    assert len(set(weights)) == len(weights)


def test_temperature_and_prior_std_are_varied_around_the_best(scored):
    def score(candidate):
        s = candidate.settings
        return -((candidate.weights[0] - 0.5) ** 2) - abs(np.log(s.temperature_factor * s.prior_std["weights"] / 8.0))

    rounds, _ = scored(score)
    choice = choose_auto((6, 9), AUTO, [0.0, 0.5])
    assert [n_runs for n_runs, *_ in rounds] == [2 * 5, 4 * 5]
    best = choice.candidates[choice.weights.argmax()]
    assert (best.weights[0], best.settings.temperature_factor) == (0.5, 4.0)
    report = str(make_report(choice, NAMES, 1, 9))
    assert "alpha = 0.5, temperature x 4" in report
    assert "alpha = 0.5, prior_std x 2" in report


def test_rounds_after_the_deadline_are_left_out(scored):
    rounds, now = scored()
    choice = choose_auto((10, 10, 10), AUTO, target=2, given=options(deadline=now[0] - 1.0))
    assert len(rounds) == 1
    assert len(choice.candidates) == 6


@pytest.mark.parametrize("settings", [SETTINGS, AUTO], ids=["alpha", "all"])
def test_if_all_diverge_that_is_said(scored, settings):
    scored(lambda candidate: -np.inf)
    with pytest.raises(TrainingDiverged, match="smaller learning_rate"):
        choose_auto((3, 3), settings, [0.0, 0.5])
