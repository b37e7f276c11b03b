"""The covariance of shapes: EM climbs its objective, finds a known covariance, and stays positive definite."""

import numpy as np
import pytest
from scipy.linalg import block_diag
from small_problems import COUNTS, make_problem, make_tasks

from metaprior.prior import shapes
from metaprior.prior.blocks import make_blocks, squared_distances
from metaprior.prior.collapse import Gaussians, collapse
from metaprior.prior.layout import Layout, Parts
from metaprior.prior.modes import Mode
from metaprior.prior.shapes import PRIOR_TASKS, initial_variances, learn_shapes, residual, shape_functions
from metaprior.prior.terms import NOISE_FLOOR, add_noise, deviations, make_basis, mean_features
from metaprior.tasks.types import Task

CURVE = Parts(smooth=True, curve=True)


def mode_of(layout, theta):
    return Mode(layout, theta, 0.0, np.eye(len(theta)))


def of_tasks(layout, theta, blocks, points, covariance, noise):
    """The readings of all blocks given the mean's weights, with the covariance S of the shapes."""
    basis = make_basis(layout, theta, squared_distances(points, points))
    for block in blocks:
        psi = shape_functions(layout, theta, points, block)
        rest = residual(layout, theta, psi, block.between, len(points))
        rest = rest * block.mask[:, :, None] * block.mask[:, None, :]
        total = add_noise(psi @ covariance @ np.swapaxes(psi, 1, 2) + rest, block.mask, noise)
        yield Gaussians(block.y, mean_features(layout, theta, basis, block), total, block.counts)


def objective(layout, theta, blocks, points, covariance, noise):
    """The collapsed evidence, plus the log density of an inverse Wishart that counts as PRIOR_TASKS tasks."""
    initial = np.diag(initial_variances(layout, theta, len(points)))
    log_determinant = np.linalg.slogdet(covariance)[1]
    penalty = -0.5 * PRIOR_TASKS * (log_determinant + np.trace(np.linalg.solve(covariance, initial)))
    return collapse(list(of_tasks(layout, theta, blocks, points, covariance, noise))).value + penalty


def iterates(monkeypatch, layout, theta, blocks, points, n_iterations):
    for n in range(n_iterations):
        monkeypatch.setattr(shapes, "N_ITERATIONS", n)
        yield learn_shapes(mode_of(layout, theta), blocks, points)


@pytest.mark.parametrize("log_noise", [None, -1.3])
@pytest.mark.parametrize("parts", [Parts(smooth=True), CURVE, Parts(True, True, True)], ids=str)
@pytest.mark.parametrize("input_dim", [1, 2, 8])
def test_em_never_decreases_its_objective(monkeypatch, input_dim, parts, log_noise):
    problem = make_problem(parts, input_dim, log_noise)
    values = [objective(*problem, *found) for found in iterates(monkeypatch, *problem, 12)]
    steps = np.diff(values)
    assert np.all(steps > -1e-9)
    assert steps[0] > 0.1


@pytest.mark.parametrize("input_dim", [1, 2, 8])
@pytest.mark.parametrize("parts", [Parts(smooth=True), CURVE], ids=str)
def test_at_first_the_deviations_are_those_of_the_prior_of_few_parameters(parts, input_dim):
    layout, theta, blocks, points = make_problem(parts, input_dim)
    initial = np.diag(initial_variances(layout, theta, len(points)))
    for block, given in zip(blocks, of_tasks(layout, theta, blocks, points, initial, 0.1), strict=True):
        expected = add_noise(deviations(layout, theta, block)[0], block.mask, 0.1)
        np.testing.assert_allclose(given.covariance, expected, atol=1e-10)


def test_one_iteration_is_the_posterior_of_all_shapes_and_the_mean_at_once(monkeypatch):
    """Dense conditioning: weights of the mean, shapes and noise of all tasks are jointly normal."""
    layout, theta, [block], points = make_problem(Parts(True, True, True), 1, counts=np.ones(6), max_blocks=1)
    psi, noise = shape_functions(layout, theta, points, block), layout.noise_variance(theta)
    initial, n_tasks, real = (
        np.diag(initial_variances(layout, theta, len(points))),
        len(block.y),
        block.mask.ravel() == 1,
    )
    [given] = of_tasks(layout, theta, [block], points, initial, noise)
    features = given.features.reshape(len(real), -1)[real]
    shapes_of_all = block_diag(*psi)[real]
    rest = given.covariance - psi @ initial @ np.swapaxes(psi, 1, 2) - noise * np.eye(psi.shape[1])
    prior = block_diag(np.eye(features.shape[1]), *[initial] * n_tasks, noise * np.eye(real.sum()))
    design = np.concatenate([features, shapes_of_all, np.eye(real.sum())], axis=1)
    gain = np.linalg.solve(design @ prior @ design.T + block_diag(*rest)[np.ix_(real, real)], design @ prior)
    mean, covariance = gain.T @ block.y.ravel()[real], prior - prior @ design.T @ gain
    second_moment = covariance + np.outer(mean, mean)
    size, start = len(initial), features.shape[1]
    places = [slice(start + i * size, start + (i + 1) * size) for i in range(n_tasks)]
    expected = PRIOR_TASKS * initial + sum(second_moment[place, place] for place in places)
    monkeypatch.setattr(shapes, "N_ITERATIONS", 1)
    found, found_noise = learn_shapes(mode_of(layout, theta), [block], points)
    np.testing.assert_allclose(found, expected / (PRIOR_TASKS + n_tasks), rtol=1e-6, atol=1e-8)
    assert found_noise == pytest.approx(np.diagonal(second_moment)[places[-1].stop :].mean(), rel=1e-6)


@pytest.mark.parametrize("input_dim", [1, 2, 8])
def test_the_covariance_stays_symmetric_and_positive_definite(input_dim):
    layout, theta, blocks, points = make_problem(CURVE, input_dim)
    covariance, noise = learn_shapes(mode_of(layout, theta), blocks, points)
    np.testing.assert_array_equal(covariance, covariance.T)
    initial = initial_variances(layout, theta, len(points))
    share = PRIOR_TASKS / (PRIOR_TASKS + COUNTS.sum())
    assert np.linalg.eigvalsh(covariance - share * np.diag(initial)).min() > -1e-10
    assert noise > 0.0


def test_a_given_noise_is_kept():
    layout, theta, blocks, points = make_problem(CURVE, 1, log_noise=-1.3)
    assert learn_shapes(mode_of(layout, theta), blocks, points)[1] == pytest.approx(np.exp(-2.6))


def test_counting_twice_is_being_listed_twice():
    tasks, counts = make_tasks(2), np.where(np.arange(6) == 2, 2.0, 1.0)
    layout, theta, blocks, points = make_problem(CURVE, 2, counts=counts)
    copied = make_problem(CURVE, 2, None, [*tasks, tasks[2]], np.ones(7), np.ones(7))[2]
    found, expected = (learn_shapes(mode_of(layout, theta), each, points) for each in (blocks, copied))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-8, atol=1e-10)
    assert found[1] == pytest.approx(expected[1])


def test_with_many_tasks_a_known_covariance_is_recovered():
    rng, n_tasks, noise_std = np.random.default_rng(0), 500, 0.1
    points = np.linspace(-1.5, 1.5, 5)[:, None]
    root = np.array([[1.0, 0.0], [0.8, 0.2], [0.0, 0.7], [-0.6, 0.3], [-0.9, 0.0]])
    truth = root @ root.T + 0.05 * np.eye(5)
    y = rng.multivariate_normal(np.zeros(5), truth + noise_std**2 * np.eye(5), n_tasks)
    blocks = make_blocks([Task(points, each) for each in y], np.ones(n_tasks), np.ones(n_tasks), points)
    layout = Layout(Parts(smooth=True), 1, float(np.log(noise_std)))
    covariance, noise = learn_shapes(mode_of(layout, layout.center), blocks, points)
    errors = []
    for each in (covariance, np.diag(initial_variances(layout, layout.center, len(points)))):
        given = next(of_tasks(layout, layout.center, blocks, points, each, noise))
        found = given.covariance[0] - (noise + NOISE_FLOOR) * np.eye(5)
        total = np.diagonal(truth) + noise_std**2
        errors.append(np.abs(found - truth) / np.sqrt((np.outer(total, total) + truth**2) / n_tasks))
    assert errors[0].max() < 4.0
    assert errors[1].max() > 15.0
