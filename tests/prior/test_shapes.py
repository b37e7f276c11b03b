"""The covariance of shapes: EM climbs its objective, finds a known covariance, and stays positive definite."""

import numpy as np
import pytest
from scipy.linalg import block_diag
from small_problems import COUNTS, IS_TARGET, KINDS, MIXED, make_problem, make_tasks

from hand_made_priors import CURVE, SMOOTH, make_prior, make_terms
from metaprior.prior import shapes as module
from metaprior.prior.blocks import make_blocks
from metaprior.prior.evidence import collapse
from metaprior.prior.modes import with_curve
from metaprior.prior.process import add_noise
from metaprior.prior.shapes import PRIOR_TASKS, Shapes

OWN_CURVE = make_terms("curve", "deviation", "deformation", "environment")
MATERN = make_terms("curve", "deviation", "deformation", kernel="matern32")


def learn(monkeypatch, shapes, n_iterations):
    monkeypatch.setattr(module, "N_ITERATIONS", n_iterations)
    return shapes.learn()


def shapes_of(layout, theta, blocks, points):
    return Shapes(layout.at(theta, points), blocks)


def objective(shapes, covariance, noise):
    """The collapsed evidence, plus the log density of an inverse Wishart that counts as PRIOR_TASKS tasks."""
    log_determinant = np.linalg.slogdet(covariance)[1]
    penalty = -0.5 * PRIOR_TASKS * (log_determinant + np.trace(np.linalg.solve(covariance, np.diag(shapes.initial))))
    return collapse(shapes.given(covariance, noise)).value + penalty


@pytest.mark.parametrize("log_noise", [None, -1.3])
@pytest.mark.parametrize("terms", [SMOOTH, CURVE, OWN_CURVE, MATERN])
@pytest.mark.parametrize("input_dim", [1, 2, 8])
def test_em_never_decreases_its_objective(monkeypatch, input_dim, terms, log_noise):
    shapes = shapes_of(*make_problem(terms, input_dim, log_noise))
    steps = np.diff([objective(shapes, *learn(monkeypatch, shapes, n)) for n in range(12)])
    assert np.all(steps > -1e-9)
    assert steps[0] > 0.1


@pytest.mark.parametrize("input_dim", [1, 2, 8])
@pytest.mark.parametrize("terms", [SMOOTH, CURVE, MATERN])
def test_at_first_the_deviations_are_those_of_the_prior_of_few_parameters(terms, input_dim):
    shapes = shapes_of(*make_problem(terms, input_dim))
    for part, given in zip(shapes.parts, shapes.given(np.diag(shapes.initial), 0.1), strict=True):
        np.testing.assert_allclose(given.covariance, part.given(0.1).covariance, atol=1e-10)


@pytest.mark.parametrize("terms", [SMOOTH, CURVE, OWN_CURVE, MATERN])
@pytest.mark.parametrize("columns", [1, 3, MIXED])
def test_the_process_of_a_new_task_is_that_of_the_fit(terms, columns):
    fitted = make_prior(terms, columns, True, kinds=KINDS if columns == MIXED else None).terms
    layout, points, root = fitted.layout, fitted.points, fitted.shape_root
    blocks = make_blocks(make_tasks(layout.columns), COUNTS, IS_TARGET, points, layout.columns)
    blocks = blocks if fitted.curve is None else with_curve(blocks, fitted.curve, layout)
    shapes = shapes_of(layout, fitted.theta, blocks, points)
    for block, given in zip(blocks, shapes.given(root @ root.T, 0.0), strict=True):
        described = fitted.process.describe(block.x, block.mask)
        found = add_noise(np.add(*fitted.process.deviations(described, described)), block.mask, 0.0)
        np.testing.assert_allclose(found, given.covariance, rtol=1e-7, atol=1e-7)


def test_one_iteration_is_the_posterior_of_all_shapes_and_the_mean_at_once(monkeypatch):
    """Dense conditioning: weights of the mean, shapes and noise of all tasks are jointly normal."""
    layout, theta, [block], points = make_problem(OWN_CURVE, 1, counts=np.ones(6), max_blocks=1)
    shapes = shapes_of(layout, theta, [block], points)
    [psi], noise = shapes.functions, layout.noise_variance(theta)
    initial, n_tasks, real = np.diag(shapes.initial), len(block.y), block.mask.ravel() == 1
    [given] = shapes.given(initial, noise)
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
    found, found_noise = learn(monkeypatch, shapes, 1)
    np.testing.assert_allclose(found, expected / (PRIOR_TASKS + n_tasks), rtol=1e-6, atol=1e-8)
    assert found_noise == pytest.approx(np.diagonal(second_moment)[places[-1].stop :].mean(), rel=1e-6)


def test_a_given_noise_is_kept():
    assert shapes_of(*make_problem(CURVE, 1, log_noise=-1.3)).learn()[1] == pytest.approx(np.exp(-2.6))
