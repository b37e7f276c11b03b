"""Contestants of the default of labels: calibrated as the package does, and in hindsight."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from gaussian_sites import laplace
from label_contestants import ContestantLatent, Fitted, Predicted, fit_prior, given_classes, scores_of, softmax_laplace
from label_inference import gaussian

from metaprior.search.held_out import HeldOutLabels
from metaprior.search.problems import SHRINKS, Calibration, Labels, calibrate, gather
from metaprior.tasks.types import Task, TestTask


def draw(n_tasks, n_inputs, rng):
    """Draw tasks of two classes with five samples each, whose means differ by a standard normal vector."""
    y = np.tile([0.0, 1.0], 5)
    return [Task(rng.normal(size=(10, n_inputs)) + y[:, None] * rng.normal(size=n_inputs), y) for _ in range(n_tasks)]


@pytest.fixture(scope="module", params=[2, 12])
def fitted(request) -> Fitted:
    """Return a prior of fewer or more inputs than a context has samples, of which other calibrations are expected."""
    rng = np.random.default_rng(0)
    return fit_prior(draw(4, request.param, rng), draw(8, request.param, rng), seed=0)


@pytest.fixture
def tests(fitted):
    drawn = draw(6, fitted.prior.input_dim, np.random.default_rng(1))
    return [TestTask(task.x[:6], task.y[:6], task.x[6:], task.y[6:]) for task in drawn]


@pytest.mark.parametrize("contestant", [softmax_laplace, gaussian(laplace)])
def test_laplace_as_a_contestant_is_calibrated_as_in_the_package(fitted, contestant):
    expected, log_p = calibrate(fitted.queries, fitted.without, partial(Labels(None).latent, fitted.queries))
    found, log_loss = fitted.calibrate(contestant)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    labels = np.nanmean(HeldOutLabels(log_p).log_densities(fitted.queries.y))  # as many of every task
    np.testing.assert_allclose(log_loss, -labels, rtol=1e-4)


def test_covariances_are_found_where_they_were_not_needed_before(fitted):
    latent, parts = ContestantLatent(fitted.queries, softmax_laplace), fitted.without[:1]
    assert gather(parts, latent, 1.0, ratio=0.0).covariance is None
    assert gather(parts, latent, 1.0).covariance is not None


def test_covariances_of_contestants_are_those_of_shrunk_functions(fitted, tests):
    prior = replace(fitted.prior, shrink=0.3)
    found = gaussian(laplace)(prior, tests)
    expected = softmax_laplace(prior, tests)
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-5)
    np.testing.assert_allclose(found.covariance, expected.covariance, atol=1e-5)
    ratio = given_classes(prior, tests).variance / given_classes(fitted.prior, tests).variance
    np.testing.assert_allclose(ratio, 0.09)


def test_no_calibration_is_better_than_that_of_hindsight(fitted, tests):
    predicted = Predicted.of(softmax_laplace, fitted.prior, tests)
    best = predicted.scores(predicted.in_hindsight())["log_loss"]
    for shrink in SHRINKS:
        for scale in (0.3, 0.7, 1.4, 3.0):
            assert best < predicted.scores(Calibration(scale / shrink, 0.0, shrink))["log_loss"] + 1e-3


def test_predictions_as_they_are_are_those_of_the_prior(fitted, tests):
    x, y, x_query, _ = (np.stack(part) for part in zip(*tests, strict=True))
    x, x_query = fitted.prior.scaling.inputs(x), fitted.prior.scaling.inputs(x_query)
    posterior = fitted.prior.condition_labels(x, y, np.ones(y.shape, bool), np.full(len(y), 2))
    log_p = np.moveaxis(fitted.prior.class_log_probabilities(posterior, x_query), 0, -1)
    predicted = Predicted.of(softmax_laplace, fitted.prior, tests)
    assert predicted.scores(Calibration(1.0, 1.0, 1.0)) == pytest.approx(scores_of(log_p, tests))
