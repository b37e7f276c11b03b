"""The weighted free energy against plain loops, hand formulas and every possible mini-batch."""

from functools import cache
from itertools import combinations, pairwise, product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree
from scipy import stats

from metaprior.tasks.scaling import fit_scaling, identity_scaling
from metaprior.tasks.types import Task, bucket_sizes
from metaprior.wfem import objective
from metaprior.wfem.hyperprior import HyperPrior, check_mean, check_std, groups, make_density, split
from metaprior.wfem.kernels import RBFKernel
from metaprior.wfem.likelihoods import Gaussian, make_likelihood
from metaprior.wfem.means import ConstantMean, MLPMean
from metaprior.wfem.objective import TaskBatch, TaskSet, pad_tasks
from metaprior.wfem.prior import make_prior

RAGGED = [[2, 3, 3, 9], [9, 1, 3], [3], [2, 3]]
FLAT_THETA = np.array([0.3, -0.2, 0.1, -1.0])  # constant mean; log length scale, output scale, noise
PRIOR_MEAN, PRIOR_STD = -0.4, 0.7


def draw_environments(sizes, seed=0) -> list[list[Task]]:
    rng = np.random.default_rng(seed)
    return [[Task(rng.normal(size=(n, 1)), rng.normal(size=n)) for n in group] for group in sizes]


def assert_close(got, wanted, rtol=0.0, atol=0.0):
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


@cache
def draw_prior(precision):
    theta, rest = split(make_prior(jax.random.key(0), 1, ConstantMean(), RBFKernel(), make_likelihood(Gaussian(), 0.1)))
    return ravel_pytree(theta)[1](jnp.asarray(FLAT_THETA, precision)), rest


def make_problem(environments, weights, gamma=2.5):
    """Theta at FLAT_THETA and a problem, in the precision of the test."""
    dtype = jnp.zeros(()).dtype
    theta, rest = draw_prior(dtype.name)
    groups = ("biases", "scales")
    hyperprior = make_density(theta, dict.fromkeys(groups, PRIOR_MEAN), dict.fromkeys(groups, PRIOR_STD))
    tasks = jax.tree.map(jnp.asarray, pad_tasks(environments, dtype))
    return theta, objective.Problem(tasks, rest, hyperprior, jnp.asarray(weights, dtype), jnp.asarray(gamma, dtype))


@eqx.filter_jit
def density_and_score(theta, problem, batches=None):
    value, score = jax.value_and_grad(objective.log_gibbs)(theta, problem, batches)
    return value, ravel_pytree(score)[0]


def by_hand(flat, environments, weights, gamma=2.5):
    """Loss and log Gibbs density by a loop over tasks, with scipy's normals."""
    mean, log_length, log_scale, log_noise = flat
    loss = 0.0
    for tasks, weight in zip(environments, weights, strict=True):
        for x, y in tasks:
            covariance = np.exp(log_scale - 0.5 * ((x - x.T) * np.exp(-log_length)) ** 2)
            covariance += np.exp(2 * log_noise) * np.eye(len(y))
            log_evidence = stats.multivariate_normal(np.full(len(y), mean), covariance).logpdf(y)
            loss -= weight / len(tasks) * log_evidence / len(y)
    return loss, stats.norm(PRIOR_MEAN, PRIOR_STD).logpdf(flat).sum() - gamma * loss


@pytest.mark.parametrize("n_environments", [1, 4])
def test_loss_density_and_score_equal_a_loop_over_tasks(x64, n_environments):
    environments = draw_environments(RAGGED[:n_environments])
    weights = np.array([0.1, 0.4, 0.2, 0.3])[:n_environments]
    weights /= weights.sum()
    theta, problem = make_problem(environments, weights)
    assert len(problem.tasks.buckets) > 1

    @eqx.filter_jit
    def evaluate(theta, problem):
        loss = objective.weighted_loss(theta, problem.rest, objective.full_batch(problem))
        return loss, *density_and_score(theta, problem)

    loss, value, score = evaluate(theta, problem)
    np.testing.assert_allclose((loss, value), by_hand(FLAT_THETA, environments, weights), rtol=1e-11)
    for slope, step in zip(score, 1e-5 * np.eye(4), strict=True):
        after, before = (by_hand(FLAT_THETA + move, environments, weights)[1] for move in (step, -step))
        np.testing.assert_allclose(slope, (after - before) / 2e-5, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("weights", [(0.1, 0.4, 0.2, 0.3), (0.0, 0.5, 0.5, 0.0), (0.4, 0.3, 0.1, 0.2)])
def test_task_weights_and_temperatures_by_hand(x64, weights):
    tasks = pad_tasks(draw_environments(RAGGED), np.float64)
    of_buckets = objective.task_weights(tasks, jnp.asarray(weights))
    np.testing.assert_allclose(np.concatenate(of_buckets).sum(), 1.0, rtol=1e-14)
    for bucket, got in zip(tasks.buckets, of_buckets, strict=True):
        np.testing.assert_allclose(got, np.repeat(np.divide(weights, [4, 3, 1, 2]), bucket.counts), rtol=1e-14)
    w, sizes = np.repeat(np.divide(weights, [4, 3, 1, 2]), [4, 3, 1, 2]), np.concatenate(RAGGED)
    n_effective = 1 / np.sum(w**2)
    expected = {
        "paper": 1 / (1 / len(sizes) + np.mean(1 / sizes)),
        "effective": 1 / (1 / n_effective + np.sum(w / sizes)),
        "bayes": n_effective / np.sum(w / sizes),
    }
    assert set(expected) == set(objective.TEMPERATURES)
    for rule, gamma in expected.items():
        of_environments = [np.array(sizes, float) for sizes in RAGGED]
        np.testing.assert_allclose(objective.temperature(rule, of_environments, weights), gamma, rtol=1e-13)


def test_temperature_limits():
    source, target = np.array([2.0, 3.0, 9.0]), np.array([5.0, 4.0])

    def gamma(rule, sizes, *weights):
        return objective.temperature(rule, sizes, weights)

    for rule in ("effective", "bayes"):
        assert gamma(rule, [source, target], 0.0, 1.0) == pytest.approx(gamma(rule, [target], 1.0), rel=1e-14)
        near = gamma(rule, [source, target], 1e-9, 1 - 1e-9)
        assert near == pytest.approx(gamma(rule, [source, target], 0.0, 1.0), rel=1e-8)
    for rule in objective.TEMPERATURES:  # alpha = beta is the pooled tasks
        pooled = gamma(rule, [np.concatenate([source, target])], 1.0)
        assert gamma(rule, [source, target], 0.6, 0.4) == pytest.approx(pooled, rel=1e-14)
        assert gamma(rule, [source, np.empty(0)], 1.0, 0.0) == pytest.approx(gamma(rule, [source], 1.0), rel=1e-14)
    equal = [np.array([4.0, 4.0, 4.0])]
    assert gamma("bayes", equal, 1.0) == pytest.approx(12.0)  # every sample counts once


def test_weights_in_proportion_to_tasks_are_pooling(x64):
    environments = draw_environments(RAGGED[:2])
    separate = density_and_score(*make_problem(environments, [4 / 7, 3 / 7]))
    pooled = density_and_score(*make_problem([environments[0] + environments[1]], [1.0]))
    assert_close(separate, pooled, rtol=1e-12)


@pytest.mark.parametrize("absurd", [1e30, -3e38])
def test_an_environment_of_weight_zero_leaves_no_trace(absurd):
    environments = draw_environments([[3, 3, 2], [3, 2]])
    wild = [[Task(absurd * np.sign(x), absurd * np.sign(y)) for x, y in environments[0]], environments[1]]
    got = density_and_score(*make_problem(wild, [0.0, 1.0]))
    assert_close(got, density_and_score(*make_problem(environments, [0.0, 1.0])))  # to the last digit
    assert_close(got, density_and_score(*make_problem(environments[1:], [1.0])), rtol=1e-5)
    assert_close(fit_scaling(wild, [0.0, 1.0])[:4], fit_scaling(environments[1:], [1.0])[:4])


SEVERAL_BUCKETS = [[2, 2, 2, 5, 5], [5, 2, 2, 5, 5]], [0.3, 0.7], 6
ONE_BUCKET = [[3] * 4, [3] * 3], [0.2, 0.8], 3


@pytest.mark.parametrize(("sizes", "weights", "batch_size"), [ONE_BUCKET, SEVERAL_BUCKETS])
def test_mini_batches_average_to_the_full_score(x64, sizes, weights, batch_size):
    theta, problem = make_problem(draw_environments(sizes), weights)
    plan = objective.batch_plan(problem.tasks, batch_size)
    assert sum(map(sum, plan)) == batch_size
    choices = []  # per bucket: all index arrays
    for bucket, sampled in zip(problem.tasks.buckets, plan, strict=True):
        starts = np.cumsum((0, *bucket.counts))
        strata = [combinations(range(s, s + c), k) for s, c, k in zip(starts, bucket.counts, sampled, strict=False)]
        choices.append([sum(parts, ()) for parts in product(*strata)])
    assert len(choices) == len({n for group in sizes for n in group})
    indices = tuple(jnp.asarray(bucket) for bucket in zip(*product(*choices), strict=True))

    @eqx.filter_jit
    def of_every_batch(theta, problem, indices):
        of_batch = lambda chosen: density_and_score(theta, problem, objective.select_batch(problem, chosen, plan))  # noqa: E731
        return jax.vmap(of_batch)(indices)

    values, scores = of_every_batch(theta, problem, indices)
    assert_close((values.mean(), scores.mean(axis=0)), density_and_score(theta, problem), rtol=1e-11)
    assert values.std() > 1e-3


def test_sampling_is_uniform_over_subsets_of_each_stratum():
    tasks = pad_tasks(draw_environments([[2] * 4 + [9], [2] * 4 + [9] * 3]))
    plan = ((2, 2), (1, 2))
    keys = jax.random.split(jax.random.key(0), 3000)
    drawn = jax.jit(jax.vmap(lambda key: objective.sample_indices(key, tasks, plan)))(keys)
    small, large = (np.asarray(indices) for indices in drawn)
    strata = [(small[:, :2], range(4)), (small[:, 2:], range(4, 8)), (large[:, :1], [0]), (large[:, 1:], range(1, 4))]
    for rows, members in strata:
        subsets, frequencies = np.unique(np.sort(rows, axis=1), axis=0, return_counts=True)
        assert [tuple(subset) for subset in subsets] == list(combinations(members, rows.shape[1]))
        if len(subsets) > 1:
            assert stats.chisquare(frequencies).pvalue > 1e-4
    for other in (small[:, 2], large[:, 1]):  # strata are drawn independently
        assert stats.chi2_contingency(stats.contingency.crosstab(small[:, 0], other).count).pvalue > 1e-4


def task_set(counts) -> TaskSet:
    arrays = [
        [np.zeros(shape) for shape in [(sum(row), 1, 1), (sum(row), 1), (sum(row), 1), (sum(row),)]] for row in counts
    ]
    return TaskSet(tuple(TaskBatch(*array, row) for array, row in zip(arrays, counts, strict=True)))


# Tasks of up to four environments in up to three buckets, none of them empty.
COUNTS = st.integers(1, 4).flatmap(lambda k: st.lists(st.tuples(*[st.integers(0, 40)] * k).filter(any), min_size=1))


@given(COUNTS.map(lambda counts: counts[:3]), st.integers(1, 60))
@example([(1, 1, 100)], 10)
def test_batch_plan_shares_the_batch(counts, batch_size):
    plan = np.array(objective.batch_plan(task_set(counts), batch_size))
    counts = np.array(counts)
    assert (plan <= counts).all()
    assert (plan[counts > 0] >= 1).all()
    assert plan.sum() == max(min(batch_size, counts.sum()), np.sum(counts > 0))


def test_batch_plan_splits_evenly_among_environments_and_by_size_within_them():
    assert objective.batch_plan(task_set([(100, 20)]), 10) == ((5, 5),)
    assert objective.batch_plan(task_set([(100, 2)]), 10) == ((8, 2),)
    assert objective.batch_plan(task_set([(60, 4), (40, 6)]), 20) == ((6, 4), (4, 6))


def padded_work(sizes, chosen) -> float:
    return sum(float(min(c for c in chosen if c >= n)) ** 2 for n in sizes)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=10), st.integers(1, 4))
def test_buckets_are_optimal_and_hold_every_task(sizes, max_buckets):
    chosen = bucket_sizes(np.array(sizes), max_buckets)
    others = sorted(set(sizes) - {max(sizes)})
    best = [
        min(padded_work(sizes, (*inner, max(sizes))) for inner in combinations(others, k))
        for k in range(min(max_buckets, len(others) + 1))
    ]
    assert chosen == sorted(set(chosen))
    assert (chosen[-1], len(chosen) <= max_buckets) == (max(sizes), True)
    assert padded_work(sizes, chosen) == best[len(chosen) - 1]
    saves = [after <= 0.8 * before for before, after in pairwise(best)]
    assert len(chosen) == 1 + next((k for k, saved in enumerate(saves) if not saved), len(saves))

    environments = draw_environments([sizes[::2], sizes[1::2]])
    buckets = pad_tasks(environments, np.float64, max_buckets).buckets
    assert [bucket.y.shape[1] for bucket in buckets] == chosen
    rows = [zip(np.repeat([0, 1], b.counts), b.mask, b.x, b.y, strict=True) for b in buckets]
    found = [(e, x[mask].tobytes(), y[mask].tobytes()) for bucket in rows for e, mask, x, y in bucket]
    assert sorted(found) == sorted((e, x.tobytes(), y.tobytes()) for e in (0, 1) for x, y in environments[e])


def test_buckets_of_many_sizes():
    sizes = np.random.default_rng(0).permutation(np.arange(1, 601))
    best = min(padded_work(sizes, (inner, 600)) for inner in range(1, 600, 2))
    assert padded_work(sizes, bucket_sizes(sizes, 2)) <= 1.01 * best


def test_hyperprior_per_group():
    theta = split(
        eqx.filter_jit(make_prior)(
            jax.random.key(1), 2, MLPMean((3,)), RBFKernel(0.5), make_likelihood(Gaussian(), 0.1)
        )
    )[0]
    means = {"weights": -1.0, "biases": 0.5, "scales": "initial"}
    stds = {"weights": 2.0, "biases": 0.3, "scales": 0.1}
    hyperprior = HyperPrior(means, stds).build(theta)
    leaves = [jax.tree.leaves(tree) for tree in (theta, groups(theta), hyperprior.mean, hyperprior.std)]
    assert sorted(leaves[1]) == ["biases"] * 2 + ["scales"] * 3 + ["weights"] * 2
    samples = jax.tree.leaves(jax.jit(jax.vmap(hyperprior.sample))(jax.random.split(jax.random.key(0), 4000)))
    expected = 0.0
    for leaf, group, mean, std, drawn in zip(*leaves, samples, strict=True):
        center = np.broadcast_to(leaf if group == "scales" else means[group], leaf.shape)
        np.testing.assert_array_equal(mean, center.astype(np.float32))
        np.testing.assert_array_equal(std, np.float32(stds[group]))
        expected += stats.norm(center, stds[group]).logpdf(leaf).sum()
        standard = (np.asarray(drawn, np.float64) - center) / stds[group]
        assert np.abs(standard.mean(axis=0)).max() < 4.5 / np.sqrt(4000)
        assert np.abs(standard.var(axis=0) - 1).max() < 4.5 * np.sqrt(2 / 4000)
    np.testing.assert_allclose(hyperprior.log_density(theta), expected, rtol=1e-5)
    flat = np.concatenate([np.asarray(drawn).reshape(4000, -1) for drawn in samples], axis=1)
    correlations = np.corrcoef(flat.T) - np.eye(flat.shape[1])
    assert np.abs(correlations).max() < 5 / np.sqrt(4000)  # no two parameters share a key


def test_hyperprior_arguments():
    assert check_mean("zero") == {"weights": 0.0, "biases": 0.0, "scales": "initial"}
    assert check_mean("initial") == dict.fromkeys(["weights", "biases", "scales"], "initial")
    assert check_mean({"scales": "zero", "biases": 2}) == {"weights": 0.0, "biases": 2, "scales": 0.0}
    assert check_mean({}) == check_mean("zero")
    assert check_std(2) == dict.fromkeys(["weights", "biases", "scales"], 2.0)
    assert check_std({"biases": 0.5}) == {"weights": 1.0, "biases": 0.5, "scales": 1.0}


BAD = ["one", None, {"weight": 1.0}, {"weights": np.nan}, {"weights": [1.0]}, {"weights": np.ones(2)}]
BAD_MEANS, BAD_STDS = [*BAD, 0.0, {"weights": "one"}], [*BAD, 0.0, -1, True, np.inf, {"scales": 0}]


@pytest.mark.parametrize(
    ("check", "value"), [(check_mean, bad) for bad in BAD_MEANS] + [(check_std, bad) for bad in BAD_STDS]
)
def test_bad_hyperprior_arguments_are_named(check, value):
    with pytest.raises(ValueError, match=f"^{check.__name__.removeprefix('check_')} must "):
        check(value)


@pytest.mark.parametrize("size", [1.0, 1e140, 1e-140])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_scaling_is_the_weighted_mean_and_spread(size, offset):
    units = draw_environments(RAGGED)
    weights = [0.1, 0.0, 0.6, 0.3]
    share = np.concatenate([np.full(n, w / len(g) / n) for g, w in zip(RAGGED, weights, strict=True) for n in g])
    moved = [[Task(size * (x + offset), size * y) for x, y in group] for group in units]
    x_mean, x_std, y_mean, y_std, *_ = fit_scaling(moved, weights)
    for part, mean, std in [("x", x_mean / size - offset, x_std / size), ("y", y_mean / size, y_std / size)]:
        values = np.concatenate([getattr(task, part) for group in units for task in group])
        center = np.average(values, axis=0, weights=share)
        spread = np.sqrt(np.average((values - center) ** 2, axis=0, weights=share))
        np.testing.assert_allclose(mean, center, rtol=1e-12, atol=1e-9 if offset else 0.0)
        np.testing.assert_allclose(std, spread, rtol=1e-8 if offset else 1e-12)
    assert_close(identity_scaling(1).task(units[0][0]), units[0][0])


@pytest.mark.parametrize("constant", [0.0, 0.1, -7.3, 1e6 + 0.1, 1.1e20, 1.1e200, 1e-200])
def test_a_constant_column_scales_to_zero(constant):
    y = min(constant, 1e140)  # beyond 1e150 it is refused
    tasks = [Task(np.stack([np.arange(n), np.full(n, constant)], axis=1), np.full(n, y)) for n in (3, 7)]
    scaling = fit_scaling([tasks], [1.0])
    np.testing.assert_allclose(scaling.inputs(tasks[0].x)[:, 1], 0.0, atol=1e-9)
    np.testing.assert_allclose(scaling.outputs(tasks[0].y), 0.0, atol=1e-9)


def test_value_and_score_are_those_of_log_gibbs_in_blocks_of_tasks_too(x64, monkeypatch):
    theta, problem = make_problem(draw_environments([(2, 2, 2, 4, 4), (2, 4, 4)]), (0.3, 0.7))
    expected = density_and_score(theta, problem)
    for samples in (5000, 5):  # at once; two tasks of the small and one of the large at a time
        monkeypatch.setattr(objective, "BLOCK_SAMPLES", samples)
        batches = objective.full_batch(problem)
        value, score, _ = jax.jit(lambda theta: objective.value_and_score(theta, problem, batches))(theta)  # noqa: B023
        assert_close((value, ravel_pytree(score)[0]), expected, rtol=1e-12)
