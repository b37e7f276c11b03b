"""Predictions of held-out tasks: log densities, scores, distances and the calibration of averages, by hand."""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from metaprior.likelihoods.gaussian import Gaussian
from metaprior.prior.families import LINEAR, SMOOTH, TrainingTasks, fit_families
from metaprior.search.held_out import (
    ARRAYS,
    LOG_SPREADS,
    PER_TASK,
    SPREAD_STD,
    HeldOut,
    Queries,
    gather,
    join,
    make_folds,
)
from metaprior.tasks.scaling import fit_scaling
from metaprior.tasks.types import Task

SIZES = (5, 1, 4, 2)
NO_NOISE = -300.0  # its logarithm


def make_tasks(sizes=SIZES, seed=0):
    rng = np.random.default_rng(seed)
    return [Task(x, 30.0 + 4.0 * x[:, 0] + rng.normal(size=len(x))) for x in (rng.normal(size=(n, 1)) for n in sizes)]


TASKS = make_tasks()
FOLDS = make_folds(TASKS, 0, labels=False)
QUERIES = Queries(TASKS, FOLDS)
SPLITS = [(i, split) for i, splits in enumerate(FOLDS.splits) for split in splits]


def random_member(seed, n_components=2):
    """A mixture at every query of QUERIES."""
    rng, shape = np.random.default_rng(seed), QUERIES.y.shape
    means, variances = (
        30.0 + 4.0 * rng.normal(size=(n_components, *shape)),
        rng.uniform(0.5, 9.0, (n_components, *shape)),
    )
    real = np.isfinite(QUERIES.y)
    weights = rng.dirichlet(np.ones(n_components), shape[0]).T
    means, variances = np.where(real, means, np.nan), np.where(real, variances, np.nan)
    return HeldOut(Gaussian(), means, variances, np.full((n_components, shape[0], 1), NO_NOISE), np.log(weights))


def density(member, row, query):
    """The density of a mixture, by scipy."""
    stds = np.sqrt(member.variances[:, row, query])
    return np.exp(member.log_weights[:, row]) @ norm.pdf(QUERIES.y[row, query], member.means[:, row, query], stds)


def test_rows_are_the_splits_of_the_tasks_in_order():
    assert QUERIES.owner.tolist() == [0] * 5 + [1] + [2] * 4 + [3] * 2
    assert QUERIES.n_queries == 3
    for row, (_, split) in enumerate(SPLITS):
        np.testing.assert_array_equal(QUERIES.y[row][np.isfinite(QUERIES.y[row])], split.y_query)
    assert QUERIES.rows_of(np.array([1, 3])).tolist() == [5, 10, 11]


def test_log_densities_against_scipy():
    member = random_member(0)
    found = member.log_densities(QUERIES.y)
    assert np.array_equal(np.isnan(found), np.isnan(QUERIES.y))
    for row, query in np.argwhere(np.isfinite(QUERIES.y)):
        assert found[row, query] == pytest.approx(np.log(density(member, row, query)), rel=1e-9)


def test_scores_are_the_means_of_contaminated_log_densities():
    member = random_member(1)
    mean = np.mean([task.y.mean() for task in TASKS])  # tasks count alike, whatever their size
    std = np.sqrt(np.mean([np.mean((task.y - mean) ** 2) for task in TASKS]))
    found = QUERIES.scores(member)
    for task in range(4):
        values = []
        for row in np.flatnonzero(QUERIES.owner == task):
            for query in np.flatnonzero(np.isfinite(QUERIES.y[row])):
                reference = norm.pdf(QUERIES.y[row, query], mean, std)
                values.append(np.log(0.9 * density(member, row, query) + 0.1 * reference))
        assert found[task] == pytest.approx(np.mean(values), rel=1e-9)


def test_moments_and_stretching():
    member, asked = random_member(2), np.isfinite(QUERIES.y)
    mean, log_std = member.moments(asked)
    rng, n = np.random.default_rng(0), 20_000
    row, query = np.argwhere(asked)[4]
    which = rng.choice(2, n, p=np.exp(member.log_weights[:, row]))
    draws = rng.normal(member.means[which, row, query], np.sqrt(member.variances[which, row, query]))
    assert mean[4] == pytest.approx(draws.mean(), abs=4.0 * draws.std() / np.sqrt(n))
    assert log_std[4] == pytest.approx(np.log(draws.std()), abs=4.0 / np.sqrt(n))
    stretched = member.stretched(1.7).moments(asked)
    np.testing.assert_allclose(stretched[0], mean)
    np.testing.assert_allclose(stretched[1], log_std + np.log(1.7))
    same = member.stretched(1.0)
    np.testing.assert_allclose(same.means, member.means)
    np.testing.assert_array_equal(same.variances, member.variances)


def test_joined_members_have_the_average_density():
    members, weights = [random_member(0), random_member(1, 3), random_member(2, 1)], np.array([0.3, 0.7, 0.0])
    found = join(members, weights)
    assert len(found.means) == 5
    np.testing.assert_allclose(np.exp(found.log_weights).sum(axis=0), 1.0)
    expected = logsumexp([m.log_densities(QUERIES.y) for m in members], axis=0, b=weights[:, None, None])
    np.testing.assert_allclose(found.log_densities(QUERIES.y), expected, rtol=1e-9)


def test_folds_are_put_together():
    few, many = random_member(0, 1), random_member(1, 3)
    first, second = np.array([0, 3, 7, 11]), np.array([1, 2, 4, 5, 6, 8, 9, 10])
    parts = [
        (rows, m._replace(**{name: getattr(m, name)[:, rows] for name in (*ARRAYS, "log_weights")}))
        for rows, m in ((first, few), (second, many))
    ]
    found = gather(parts, 12)
    assert found.means.shape == (3, 12, 3)
    expected = np.where(np.isin(np.arange(12), first)[:, None], *(m.log_densities(QUERIES.y) for m in (few, many)))
    np.testing.assert_allclose(found.log_densities(QUERIES.y), expected)
    np.testing.assert_allclose(np.exp(found.log_weights).sum(axis=0), 1.0)
    asked = np.isfinite(QUERIES.y)
    assert np.isfinite(found.moments(asked)[0]).all()


def test_distances_between_normal_predictions():
    """Squared differences of the means in units of the geometric mean of the standard deviations, and of log stds."""
    members = [random_member(seed, 1) for seed in range(3)]
    asked = np.isfinite(QUERIES.y)
    means = np.array([m.means[0][asked] for m in members])
    stds = np.sqrt([m.variances[0][asked] for m in members])
    scale = np.prod(stds, axis=0) ** (1 / 3)
    found = QUERIES.distances(members)
    for i in range(3):
        for j in range(3):
            of_means, of_logs = (means[i] - means[j]) / scale, np.log(stds[i] / stds[j])
            assert found[i, j] == pytest.approx(np.mean(of_means**2 + 2.0 * of_logs**2))
    assert QUERIES.distances([members[0], members[0]]).tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("name", [LINEAR, SMOOTH])
def test_predictions_are_those_of_a_new_task_in_the_units_of_y(name):
    scaling = fit_scaling([TASKS], [1.0])
    training = TrainingTasks(scaling, [scaling.task(task) for task in TASKS], np.ones(4), np.ones(4))
    prior = fit_families(training, False, None).priors[name]
    rows = np.array([9, 0, 5])
    found = QUERIES.predict(prior, rows)
    for i, row in enumerate(rows):
        _, split = SPLITS[row]
        x, y, n = scaling.inputs(split.x_context), scaling.outputs(split.y_context), len(split.y_query)
        posterior = prior.condition(x[None], y[None], np.ones((1, len(y)), bool))
        queries = scaling.inputs(split.x_query)[None]
        expected = prior.marginals(posterior, queries)
        alone = np.eye(prior.n_components)
        variances = [np.diag(prior.weighted_covariance(posterior, queries, component)) for component in alone]
        np.testing.assert_allclose(found.means[:, i, :n], expected.mean[:, 0])
        np.testing.assert_allclose(found.variances[:, i, :n], variances)
        np.testing.assert_allclose(found.parameters[:, i], expected.parameters)
        np.testing.assert_allclose(found.log_weights[:, i], expected.log_weights[:, 0], atol=1e-9)
        assert np.isnan(found.means[:, i, n:]).all()
        assert np.isnan(found.variances[:, i, n:]).all()


def calibrated_problem(n_tasks, log_stretch, seed=0):
    """Standard normal readings, predicted with standard deviations that are off by a factor."""
    rng = np.random.default_rng(seed)
    tasks = [Task(np.zeros((4, 1)), rng.normal(size=4)) for _ in range(n_tasks)]
    queries = Queries(tasks, make_folds(tasks, 0, labels=False))
    shape = (1, *queries.y.shape)
    noise = np.full((*shape[:2], 1), log_stretch)
    return queries, HeldOut(Gaussian(), np.zeros(shape), np.zeros(shape), noise, np.zeros(shape[:2]))


@pytest.mark.parametrize("log_stretch", [-0.35, 0.0, 0.35])
def test_with_many_tasks_the_spread_undoes_a_stretch(log_stretch):
    queries, member = calibrated_problem(400, log_stretch)
    standard_error = 1.0 / np.sqrt(2 * 1600)
    assert np.log(queries.spread([member], np.ones(1), np.inf)) == pytest.approx(
        -log_stretch, abs=0.025 + 3.0 * standard_error
    )


def test_with_few_tasks_the_spread_stays_near_one():
    spreads = [
        np.log(q.spread([m], np.ones(1), np.inf)) for q, m in (calibrated_problem(3, 0.35, seed) for seed in range(20))
    ]
    assert np.abs(spreads).max() <= 0.3
    assert -0.15 < np.mean(spreads) < 0.0


@pytest.mark.parametrize("n_tasks", [2.0, np.inf])
def test_the_spread_is_the_mode_of_its_posterior(n_tasks):
    """Every task counts as PER_TASK readings, and the log factor is normal a priori, around that for few tasks."""
    queries, members = calibrated_problem(12, 0.3)[0], [calibrated_problem(12, s)[1] for s in (0.1, 0.6)]
    weights = np.array([0.4, 0.6])

    def log_posterior(log_factor):
        stds = np.exp(log_factor) * np.exp([0.1, 0.6])
        densities = sum(w * norm.pdf(queries.y, 0.0, s) for w, s in zip(weights, stds, strict=True))
        by_task = [np.log(densities[queries.owner == task]).mean() for task in range(12)]
        return PER_TASK * np.sum(by_task) + norm.logpdf(
            log_factor, 0.5 * np.log(np.sqrt(1.0 + 1.0 / n_tasks)), SPREAD_STD
        )

    grid = np.linspace(LOG_SPREADS[0], LOG_SPREADS[-1], 1001)
    best = grid[np.argmax([log_posterior(each) for each in grid])]
    assert best < -0.1
    assert np.log(queries.spread(members, weights, n_tasks)) == pytest.approx(best, abs=0.003)


@pytest.mark.parametrize("size", [1e-100, 1e100])
def test_readings_of_any_size_have_the_same_gains(size):
    tasks = [Task(task.x, size * task.y) for task in TASKS]
    queries = Queries(
        tasks,
        FOLDS._replace(splits=[[s._replace(y_query=size * s.y_query) for s in of_task] for of_task in FOLDS.splits]),
    )
    scores = []
    for each, unit in ((QUERIES, 1.0), (queries, size)):
        members = [random_member(seed) for seed in (0, 1)]
        scaled = [m._replace(means=unit * m.means, variances=unit**2 * m.variances) for m in members]
        first, second = (each.scores(m) for m in scaled)
        scores.append(first - second)
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-6)


def test_constant_readings_have_finite_scores():
    tasks = [Task(task.x, np.full_like(task.y, 2.5)) for task in TASKS]
    queries = Queries(tasks, make_folds(tasks, 0, labels=False))
    assert np.isfinite(queries.scores(random_member(0))).all()
