"""Where inducing points lie and which length scale their functions get: the tasks that decide, and how they count."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from metaprior import InducingKernel, InducingMean, RBFKernel, ZeroMean
from metaprior.tasks import farthest_points as farthest_points_module
from metaprior.tasks.farthest_points import STEP_SEVERAL, farthest_points
from metaprior.tasks.types import Task
from metaprior.wfem import placement
from metaprior.wfem.inducing import InducingBasis
from metaprior.wfem.likelihoods import Bernoulli, Gaussian
from metaprior.wfem.objective import Problem
from metaprior.wfem.parameters import Fixed
from metaprior.wfem.placement import (
    DEVIATION_VARIANCES,
    LENGTH_SCALE_FACTOR,
    LENGTH_SCALES,
    LINE_VARIANCE,
    MAX_TASKS,
    MEAN_STD,
    TaskSample,
    choose_length_scale,
    has_basis,
    place_points,
    whitening_matrix,
)
from metaprior.wfem.prior import make_likelihood, make_prior
from metaprior.wfem.runs import Settings, _sample_counts, make_run, make_scaling
from metaprior.wfem.task_sets import pad_tasks

SETTINGS = Settings(mean=InducingMean(6), kernel=InducingKernel(6, 2))
KEY = jax.random.key(0)


def tasks_of(n_tasks, input_dim=1, n_samples=6, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_tasks, n_samples, input_dim))
    return [Task(each, np.sin(each.sum(axis=1)) + rng.normal(scale=0.1, size=n_samples)) for each in x]


def rbf(x1, x2, length_scale):
    return np.exp(-0.5 * np.sum((x1[:, None] - x2[None]) ** 2, axis=2) / length_scale**2)


def prior_with(likelihood, kernel=SETTINGS.kernel, mean=SETTINGS.mean):
    return make_prior(KEY, 1, mean, kernel, likelihood)


def assert_equal(one, other):
    for leaf, same in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(leaf, same)


# --- which tasks decide


def test_held_out_tasks_take_no_part():
    """Otherwise cross-validation would let the tasks that score a prior shape it."""
    kept, held_out = tasks_of(6), tasks_of(3, seed=1)
    scaling = make_scaling([kept], (1.0,), SETTINGS)
    alone = make_run([kept], (1.0,), scaling, SETTINGS, 0).problem.rest
    for move in (0.0, 100.0):  # from among the others, or far outside
        moved = [Task(move + 0.5 * x, 3.0 * y[::-1]) for x, y in held_out]
        included = [np.arange(9) < 6]
        assert_equal(make_run([kept + moved], (1.0,), scaling, SETTINGS, 0, included).problem.rest, alone)


def test_tasks_without_weight_have_no_effect():
    target, other = tasks_of(6), tasks_of(6, seed=1)
    scaling = make_scaling([target], (1.0,), SETTINGS)
    alone = make_run([target], (1.0,), scaling, SETTINGS, 0).problem.rest
    shifted = [Task(task.x + 100.0, task.y) for task in other]
    assert_equal(make_run([shifted, target], (0.0, 1.0), scaling, SETTINGS, 0).problem.rest, alone)


def test_padding_is_no_input():
    """Tasks of different sizes: points lie at the inputs, never at the numbers that fill up the smaller tasks."""
    tasks = [Task(np.full((n, 1), 5.0 + i), np.zeros(n)) for i, n in enumerate((2, 7, 4))]
    padded = pad_tasks([tasks], max_buckets=1)
    padded.buckets[0].x[~padded.buckets[0].mask] = -50.0
    prior = place_points(prior_with(make_likelihood("gaussian", 0.1, False)), padded, [np.ones(3)])
    assert sorted(set(np.ravel(prior.kernel.basis.points.value).tolist())) == [5.0, 6.0, 7.0]


def test_counts_are_the_temperature_times_the_weight_over_the_size():
    """The exponent of a task's likelihood in the Gibbs density."""
    environments = [tasks_of(2, n_samples=4), tasks_of(3, n_samples=8)]
    run = make_run(environments, (0.25, 0.75), make_scaling(environments, (0.25, 0.75), SETTINGS), SETTINGS, 0)
    problem = eqx.tree_at(lambda problem: problem.temperature, run.problem, jnp.asarray(40.0))
    assert isinstance(problem, Problem)
    expected = {4: [40 * 0.125 / 4] * 2, 8: [40 * 0.25 / 8] * 3}
    for bucket, counts in zip(problem.tasks.buckets, _sample_counts(problem), strict=True):
        np.testing.assert_allclose(counts, expected[bucket.y.shape[1]], rtol=1e-6)


# --- how many of them, and how they count


def copies(*groups):
    """Padded tasks in one bucket: for every (number, value) as many equal tasks at that value."""
    tasks = [Task(np.array([[value], [value + 0.5]]), np.array([value, -1.0])) for n, value in groups for _ in range(n)]
    return pad_tasks([tasks])


def subsample(tasks, counts):
    return list(placement._subsample(tasks, counts))


def shares(samples):
    """The total count at every value of the first input."""
    found = {}
    for sample in samples:
        for x, count in zip(sample.x[:, 0, 0].tolist(), sample.counts.tolist(), strict=True):
            found[x] = found.get(x, 0.0) + count
    return found


def test_every_environment_keeps_its_share_when_tasks_are_sampled():
    """A hundred source tasks weigh 0.2 together, ten target tasks 0.8: so do those that are drawn of them."""
    counts = [np.repeat([3.0 * 0.2 / 100, 3.0 * 0.8 / 10], [100, 10])]
    [sample] = subsample(copies((100, 0.0), (10, 1.0)), counts)
    assert len(sample.counts) <= MAX_TASKS
    assert shares([sample]) == {0.0: pytest.approx(0.6), 1.0: pytest.approx(2.4)}


def test_the_evidence_of_a_sample_is_that_of_all_tasks():
    """Exactly, where a sample can have the right shares: 120 tasks of which each of four kinds is a quarter."""
    values = (-1.0, -0.2, 0.7, 1.5)
    tasks, counts = copies(*((30, value) for value in values)), [np.full(120, 0.1)]
    [bucket] = tasks.buckets
    every = TaskSample(*(np.asarray(part, float) for part in (bucket.x, bucket.y)), bucket.mask, counts[0])
    points = farthest_points(np.array(values)[:, None], 3)
    for length_scale in (0.3, 1.1):
        whitening = whitening_matrix(points, length_scale)
        evidences = []
        for samples in ([every], subsample(tasks, counts)):
            phi = [np.stack([rbf(x, points, length_scale) @ whitening.T for x in sample.x]) for sample in samples]
            evidences.append(placement._log_evidence(samples, phi, 0.03, 0.3))
        assert evidences[1] == pytest.approx(evidences[0], rel=1e-10)


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_a_sample_estimates_sums_over_all_tasks_without_bias(spread):
    """Over random orders of 60 tasks of different counts: of any function of a task, here of its number."""
    rng = np.random.default_rng(0)
    counts, values = np.exp(spread * rng.normal(size=60)), rng.normal(size=60)
    estimates = []
    for _ in range(400):
        order = rng.permutation(60)
        found = shares(subsample(copies(*((1, float(value)) for value in order)), [counts[order]]))
        assert sum(found.values()) == pytest.approx(counts.sum())
        estimates.append(sum(values[int(task)] * count for task, count in found.items()))
    error = np.std(estimates) / np.sqrt(400)
    assert error > 0
    assert abs(np.mean(estimates) - values @ counts) < 4 * error


def test_up_to_forty_tasks_are_all_taken_with_their_own_counts():
    counts = np.linspace(0.1, 2.0, MAX_TASKS)
    every = np.concatenate([counts, np.zeros(30)])  # tasks without weight are not among the forty
    found = shares(subsample(copies(*((1, float(i)) for i in range(MAX_TASKS + 30))), [every]))
    assert found == {float(i): pytest.approx(count) for i, count in enumerate(counts)}
    more = subsample(copies(*((1, float(i)) for i in range(MAX_TASKS + 1))), [np.linspace(0.1, 2.0, MAX_TASKS + 1)])
    assert len(shares(more)) < MAX_TASKS + 1


def test_sampled_tasks_come_from_all_buckets():
    """A draw in proportion to the counts runs over the buckets as over one list of tasks."""
    small, large = tasks_of(60, n_samples=2), tasks_of(30, n_samples=9, seed=1)
    padded = pad_tasks([small + large])
    assert [len(bucket.y) for bucket in padded.buckets] == [60, 30]
    samples = subsample(padded, [np.full(60, 0.5), np.full(30, 3.0)])
    assert [sample.y.shape[1] for sample in samples] == [2, 9]
    np.testing.assert_allclose([sample.counts.sum() for sample in samples], [30.0, 90.0])
    [only] = subsample(padded, [np.zeros(60), np.ones(30)])
    assert only.y.shape == (30, 9)


def test_twenty_samples_of_a_long_task_are_spread_over_it():
    [sample] = subsample(pad_tasks([[Task(np.arange(101.0)[:, None], np.arange(101.0))]]), [np.ones(1)])
    assert sample.y.shape == (1, 20)
    assert (sample.x[0, 0, 0], sample.x[0, -1, 0]) == (0.0, 100.0)
    assert set(np.diff(sample.x[0, :, 0])) == {5.0, 6.0}
    np.testing.assert_array_equal(sample.y, sample.x[..., 0])
    [short] = subsample(pad_tasks([[Task(np.arange(20.0)[:, None], np.arange(20.0))]]), [np.ones(1)])
    np.testing.assert_array_equal(short.y, [np.arange(20.0)])


def test_target_tasks_are_subsampled_however_many_sources_there_are():
    rng = np.random.default_rng(0)
    draw = lambda n, shift: [Task(x := rng.uniform(-2, 2, (4, 1)) + shift, np.sin(3 * x[:, 0])) for _ in range(n)]  # noqa: E731
    groups, weights = [draw(203, 0.0), draw(3, 10.0), draw(200, 0.0)], (0.05, 0.9, 0.05)
    settings = Settings(mean=InducingMean(6), kernel=InducingKernel(6, 2), standardize=False)
    scales = []
    for order in ((0, 1, 2), (0, 2, 1)):
        mixed, of_each = [groups[i] for i in order], [weights[i] for i in order]
        basis = make_run(mixed, of_each, make_scaling(mixed, of_each, settings), settings, 0).problem.rest.kernel.basis
        assert (np.asarray(basis.points.value) > 8).sum() >= 1
        scales.append(float(basis.log_length_scale.value))
    assert scales[0] == pytest.approx(scales[1])


# --- points


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 3), st.integers(0, 100))
def test_points_are_near_inputs_and_spread(n_inputs, n_points, input_dim, seed):
    inputs = np.random.default_rng(seed).normal(size=(n_inputs, input_dim))
    points = farthest_points(inputs, n_points)
    assert points.shape == (n_points, input_dim)
    near = np.abs(points[:, None] - inputs) <= STEP_SEVERAL * inputs.std(axis=0)  # rounded
    assert near.all(axis=2).any(axis=1).all()


def test_points_cover_the_range_evenly():
    points = np.sort(farthest_points(np.random.default_rng(0).uniform(-1, 1, size=(2000, 1)), 17)[:, 0])
    gaps = np.diff(points)
    assert gaps.max() < 2.5 * gaps.min()
    assert (np.abs(points[[0, -1]]) > 0.99).all()


def test_the_first_point_is_the_input_nearest_to_the_mean_and_each_next_the_farthest():
    inputs = np.array([[-4.0], [0.5], [1.0], [3.0], [9.0]])  # mean 1.9
    assert farthest_points(inputs, 5)[:, 0].tolist() == [1.0, 9.0, -4.0, 3.0, 0.5]


def test_of_many_inputs_every_nth_is_looked_at(monkeypatch):
    monkeypatch.setattr(farthest_points_module, "MAX_INPUTS", 11)
    points = farthest_points(np.arange(101.0)[:, None], 11)
    assert sorted(points[:, 0]) == list(range(0, 101, 10))
    assert len(np.unique(farthest_points(np.arange(11.0)[:, None], 11))) == 11


@pytest.mark.parametrize("length_scale", [0.2, 1.0, 3.0])
def test_functions_are_independent_with_unit_variance_under_the_base_kernel(length_scale):
    points = farthest_points(np.random.default_rng(0).uniform(-2, 2, size=(100, 1)), 24)
    whitening = whitening_matrix(points, length_scale)
    base = rbf(points, points, length_scale)
    covariance = whitening @ base @ whitening.T
    rank = np.count_nonzero(np.any(whitening != 0, axis=1))
    np.testing.assert_allclose(covariance[:rank, :rank], np.eye(rank), atol=1e-8)
    assert np.all(whitening[rank:] == 0)
    eigenvalues = np.linalg.eigvalsh(base)[::-1]
    assert rank == np.count_nonzero(eigenvalues > 1e-6 * eigenvalues[0])
    sizes = np.linalg.norm(whitening[:rank], axis=1)  # one over the root of the eigenvalue: smoothest first
    np.testing.assert_allclose(sizes, eigenvalues[:rank] ** -0.5, rtol=1e-6)


# --- the length scale


def test_the_length_scale_of_most_evidence_is_that_of_the_joint_normal():
    """All samples of all tasks are jointly normal; a task that counts twice is as good as observed twice."""
    rng = np.random.default_rng(3)
    x, y = rng.uniform(-2, 2, size=(5, 4, 1)), rng.normal(size=(5, 4))
    mask = rng.uniform(size=(5, 4)) < 0.8
    mask[:, 0] = True
    points = farthest_points(x.reshape(-1, 1), 8)
    sample = TaskSample(x, y, mask, np.ones(5))
    evidence = []
    flat, owner, readings = x[mask], np.nonzero(mask)[0], y[mask]
    line = np.concatenate([np.ones_like(flat), flat], axis=1)
    for length_scale in LENGTH_SCALES:
        whitening, of_sizes = whitening_matrix(points, length_scale), []
        phi = rbf(flat, points, length_scale) @ whitening.T
        of_tasks = np.stack([rbf(each, points, length_scale) @ whitening.T for each in x]) * mask[..., None]
        for variance in DEVIATION_VARIANCES:
            own = (owner[:, None] == owner[None]) * (variance * phi @ phi.T + LINE_VARIANCE * line @ line.T)
            covariance = MEAN_STD**2 * phi @ phi.T + line @ line.T + own + 0.3**2 * np.eye(len(flat))
            of_sizes.append(multivariate_normal(cov=covariance).logpdf(readings))
            ours = placement._log_evidence([sample], [of_tasks], variance, 0.3)
            assert ours - 0.5 * len(flat) * np.log(2 * np.pi) == pytest.approx(of_sizes[-1], rel=1e-9)
        evidence.append(max(of_sizes))
    chosen = choose_length_scale(points, [sample], [0.3])
    assert chosen == pytest.approx(LENGTH_SCALE_FACTOR * LENGTH_SCALES[np.argmax(evidence)])


def test_a_task_that_counts_twice_is_as_good_as_observed_twice_in_any_bucket():
    rng = np.random.default_rng(3)
    x, y, mask = rng.uniform(-2, 2, size=(5, 4, 1)), rng.normal(size=(5, 4)), np.ones((5, 4), bool)
    functions = rng.normal(size=(5, 4, 3))
    weighted = placement._log_evidence([TaskSample(x, y, mask, np.full(5, 2.0))], [functions], 0.03, 0.3)
    once = TaskSample(x, y, mask, np.ones(5))
    assert placement._log_evidence([once, once], [functions] * 2, 0.03, 0.3) == pytest.approx(weighted, rel=1e-10)
    assert placement._log_evidence([once], [functions], 0.03, 0.3) != pytest.approx(weighted, rel=1e-3)


def test_candidates_of_the_length_scale():
    np.testing.assert_allclose(LENGTH_SCALES[[0, 2, -1]], [0.2, 0.4, 3.2])
    np.testing.assert_allclose(LENGTH_SCALES[1:] / LENGTH_SCALES[:-1], np.sqrt(2.0))
    assert LENGTH_SCALE_FACTOR == 1.25


@pytest.mark.parametrize(("frequency", "expected"), [(0.4, (0.9, 5.0)), (6.0, (0.1, 0.6))])
def test_the_length_scale_follows_the_data(frequency, expected):
    rng = np.random.default_rng(0)
    tasks = [
        Task(x := rng.uniform(-2, 2, (8, 1)), np.sin(frequency * x[:, 0] + rng.normal(scale=0.2))) for _ in range(20)
    ]
    prior = prior_with(make_likelihood("gaussian", 0.1, False), InducingKernel(), InducingMean())
    placed = place_points(prior, pad_tasks([tasks]), [np.ones(20)])
    assert expected[0] < np.exp(placed.kernel.basis.log_length_scale.value) < expected[1]
    assert_equal(placed.kernel.basis, placed.mean.basis)
    given_scale = InducingKernel(length_scale=0.37)
    prior = prior_with(make_likelihood("gaussian", 0.1, False), given_scale, given_scale.default_mean)
    placed = place_points(prior, pad_tasks([tasks]), [np.ones(20)])
    np.testing.assert_allclose(np.exp(placed.kernel.basis.log_length_scale.value), 0.37, rtol=1e-6)


@pytest.mark.parametrize(
    ("likelihood", "expected"),
    [
        (Bernoulli(), (1.0,)),
        (Gaussian(jnp.log(jnp.asarray(0.25))), (0.1, 0.3, 0.6)),  # learned
        (Gaussian(Fixed(jnp.log(jnp.asarray(0.25)))), (0.25,)),
        (Gaussian(Fixed(jnp.log(jnp.asarray(1e-5)))), (1e-3,)),
    ],
    ids=["labels", "learned", "fixed", "tiny"],
)
def test_the_noise_that_the_length_scale_is_chosen_with(likelihood, expected):
    assert placement._noise_stds(prior_with(likelihood)) == pytest.approx(expected, rel=1e-6)


def test_labels_count_as_minus_one_and_one(monkeypatch):
    seen = []
    monkeypatch.setattr(placement, "choose_length_scale", lambda points, samples, noise: seen.append(samples) or 1.0)
    tasks = pad_tasks([[Task(np.arange(3.0)[:, None], np.array([0.0, 1.0, 1.0]))]])
    for likelihood in (Bernoulli(), make_likelihood("gaussian", 0.1, True)):
        place_points(prior_with(likelihood), tasks, [np.ones(1)])
    assert [samples[0].y.tolist() for samples in seen] == [[[-1.0, 1.0, 1.0]], [[0.0, 1.0, 1.0]]]


def test_bases_of_equal_sizes_are_filled_once_and_others_on_their_own(monkeypatch):
    calls = []
    choose = lambda points, samples, noise: calls.append(len(points)) or 0.5  # noqa: E731
    monkeypatch.setattr(placement, "choose_length_scale", choose)
    tasks, noise = pad_tasks([tasks_of(3)]), make_likelihood("gaussian", 0.1, True)
    placed = place_points(prior_with(noise, InducingKernel(6, 2), InducingMean(6)), tasks, [np.ones(3)])
    assert calls == [6]
    assert_equal(placed.kernel.basis, placed.mean.basis)
    placed = place_points(prior_with(noise, InducingKernel(6, 2), InducingMean(4, 0.7)), tasks, [np.ones(3)])
    assert calls == [6, 6]
    assert placed.mean.basis.points.value.shape == (4, 1)
    np.testing.assert_allclose(np.exp([placed.kernel.basis.log_length_scale.value]), 0.5, rtol=1e-6)
    np.testing.assert_allclose(np.exp([placed.mean.basis.log_length_scale.value]), 0.7, rtol=1e-6)
    for basis in (placed.kernel.basis, placed.mean.basis):
        assert isinstance(basis, InducingBasis)
        whitening = whitening_matrix(np.asarray(basis.points.value, float), np.exp(float(basis.log_length_scale.value)))
        np.testing.assert_allclose(np.abs(basis.whitening.value), np.abs(whitening), rtol=1e-3, atol=1e-4)
        assert basis.points.value.dtype == jnp.float32


def test_other_priors_have_nothing_to_place():
    noise = make_likelihood("gaussian", 0.1, True)
    assert has_basis(prior_with(noise))
    assert has_basis(prior_with(noise, mean=ZeroMean()))
    assert not has_basis(prior_with(noise, RBFKernel(), ZeroMean()))
