"""Covariates and categories with counts, ranks and outliers: derivatives of the bound, and dense computation.

With the linear family all that is known of t is written out as one covariance of all readings, so that sites of all
tasks together (`find_sites`) are the reference of a fit, and Gaussian conditioning on them that of a new task.
"""

from functools import cache

import numpy as np
import pytest
from covariate_problems import IS_TARGET, KINDS, common_kernel, make_tasks, own_kernel
from metaprior.prior.response_families import NO_NOISE, fit_response_families, observe
from metaprior.prior.response_modes import Evidence
from scipy.linalg import block_diag
from small_problems import make_curve
from test_member_files import read_back

from metaprior.likelihoods import make_likelihood
from metaprior.prior.blocks import make_blocks, place_points
from metaprior.prior.families import BEND, LINEAR, SHIFT
from metaprior.prior.layout import Layout, Parts
from metaprior.prior.modes import with_curve
from metaprior.prior.sites import Observed, find_sites
from metaprior.prior.terms import NOISE_FLOOR
from metaprior.search.family_search import Option
from metaprior.search.response_search import training_responses
from metaprior.tasks.column_kinds import ColumnKinds
from metaprior.tasks.types import Task

PARAMETERS = {
    "poisson": np.zeros(0),
    "negative-binomial": np.array([1.2]),
    "student-t": np.log([0.4, 4.0]),
    "ordinal": np.array([-1.0, 0.2, -0.3, 0.1]),
}
NAMES = tuple(PARAMETERS)
ONE = Option((1.0,))
# Tasks that are not of the fit: a level is unseen, and values are missing.
NEW = np.array([[0.2, 1, 0.5, 2], [0.2, 2, np.nan, 3], [-0.4, 0, 0.1, np.nan], [1.0, 1, 0.1, 0]])


def likelihood_of(name):
    return make_likelihood(name).learned([np.arange(5.0)])


def draw_tasks(name, exposure=None, n=6, seed=0):
    """Observe readings of `make_tasks`; with `exposure`, that column of X multiplies the mean of counts."""
    rng, drawn = np.random.default_rng(seed), []
    for task in make_tasks(n, seed):
        e = rng.uniform(0.5, 4.0, len(task.y))
        y = likelihood_of(name).draw(0.7 * task.y + (0.0 if exposure is None else np.log(e)), PARAMETERS[name], rng)
        drawn.append(Task(task.x if exposure is None else np.insert(task.x, exposure, e, axis=1), y))
    return drawn


def kinds_with(exposure):
    return KINDS if exposure is None else KINDS.with_number(exposure)


@cache
def given_of(name, exposure=None):
    tasks, kinds = draw_tasks(name, exposure), kinds_with(exposure)
    return training_responses([tasks], 0, ONE, likelihood_of(name), exposure, None, kinds)


@cache
def fitted(name, covariates, exposure=None):
    given = given_of(name, exposure)
    return fit_response_families(given, False, None, 40, None, covariates)


@pytest.fixture
def exact(monkeypatch):
    """Sites at their optimum."""
    for limit in ("FIRST_UPDATES", "MAX_UPDATES"):
        monkeypatch.setattr(f"metaprior.prior.response_modes.{limit}", 300)
    monkeypatch.setattr("metaprior.prior.response_modes.TOLERANCE", 1e-12)
    monkeypatch.setattr("metaprior.prior.sites.TOLERANCE", 1e-12)
    monkeypatch.setattr("metaprior.prior.sites.MAX_STEPS", 300)


def make_evidence(given, parts, separate):
    """Return the bound of given tasks as a function of theta and parameters."""
    data, widths = given.training, KINDS.input_widths
    points, log_noise = place_points(data.tasks, sum(widths)), float(np.log(NO_NOISE))
    layout = Layout(parts, sum(widths), log_noise, separate, False, widths, KINDS.covariate_widths)
    blocks = make_blocks(data.tasks, data.counts, IS_TARGET, points, separate=separate, widths=widths)
    observed = observe(given, blocks)
    sites = [of.start(0.0 * of.y, 0.0 * of.y + 1.0, given.hyper_prior.center) for of in observed]
    if parts.curve:
        blocks = with_curve(blocks, make_curve(points), layout.n_curve)
    return Evidence(layout, blocks, observed, points, given.hyper_prior, sites)


PARTS = (Parts(), Parts(smooth=True, environment=True), Parts(smooth=True, curve=True))


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("parts", "separate"), [(PARTS[0], True), (PARTS[1], True), (PARTS[1], False), (PARTS[2], True)]
)
def test_derivatives_of_the_bound(name, parts, separate):
    parts = Parts(**{**vars(parts), "covariates": True, "bend": True})
    evidence = make_evidence(given_of(name), parts, separate)
    theta = evidence.layout.center + 0.3 * np.random.default_rng(0).normal(size=len(evidence.layout.center))
    packed, h = np.concatenate([theta, PARAMETERS[name]]), 1e-4
    slope = evidence(packed).slope
    numeric = [(evidence(packed + h * e).value - evidence(packed - h * e).value) / (2 * h) for e in np.eye(len(packed))]
    error = 2e-2 if name == "student-t" else 5e-4  # its sites have a least precision
    np.testing.assert_allclose(slope, numeric, rtol=error, atol=error)


def dense(given, process):
    """Return the inputs of all readings, what is observed, and their covariance, with explicit columns."""
    tasks, scaling = given.training.tasks, given.training.scaling
    x, y = np.concatenate([task.x for task in tasks]), np.concatenate([task.y for task in tasks])
    covariance = common_kernel(process, x, x) + block_diag(*(own_kernel(process, task.x, task.x) for task in tasks))
    units = float(scaling.y_mean), float(scaling.y_std)
    offset, ones = np.concatenate(given.offsets)[None], np.ones((1, len(y)))
    return x, Observed(given.likelihood, y[None], offset, ones, *units), covariance


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(("name", "exposure"), [("poisson", 1), ("negative-binomial", 4), ("ordinal", None)])
@pytest.mark.parametrize("covariates", [SHIFT, BEND])
def test_the_bound_and_new_tasks_are_those_of_explicit_columns(name, exposure, covariates):
    given, fit = given_of(name, exposure), fitted(name, covariates, exposure)
    process, parameters = fit.priors[LINEAR].process, fit.priors[LINEAR].parameters
    layout = fit.modes[LINEAR].layout
    evidence = make_evidence(given, layout.parts, layout.separate)
    bound = evidence(np.concatenate([process.theta, parameters])).value
    z = np.concatenate([(process.theta - layout.center) / layout.spread, evidence._scores(parameters)])
    x, observed, covariance = dense(given, process)
    found = find_sites(observed, parameters, np.zeros((1, len(x))), covariance[None])
    assert bound + 0.5 * float(z @ z) == pytest.approx(found.bound[0], abs=1e-4)

    # The fit's own sites have converged to some thousandths of a nat; those of `prior` have the optimum.
    prior = fit_response_families(given, False, fit, 0, None, covariates).priors[LINEAR]
    new, days = make_tasks(1, seed=3)[0].x, np.array([2.0, 0.7, 1.0, 3.0])
    inputs = given.training.scaling.inputs
    new_x, query = inputs(new), inputs(NEW)
    y = likelihood_of(name).draw(0.5 + 0.0 * new[:, 0], PARAMETERS[name], np.random.default_rng(1))
    total = covariance + np.diag(found.sites.variance[0] + NOISE_FLOOR)
    both = np.concatenate([new_x, query])
    cross = common_kernel(process, both, x)
    mean = cross @ np.linalg.solve(total, found.sites.reading[0])
    own = common_kernel(process, both, both) + own_kernel(process, both, both)
    own = own - cross @ np.linalg.solve(total, cross.T)
    n, offset = len(new), 0.0 if exposure is None else np.log(days[: len(new)])
    of_new = Observed(given.likelihood, y[None], np.zeros((1, n)) + offset, np.ones((1, n)), *observed[4:])
    sites = find_sites(of_new, parameters, mean[None, :n], own[None, :n, :n])
    solved = sites.inverse_root[0] @ own[:n, n:]
    expected = mean[n:] + solved.T @ sites.residual[0]
    variance = np.diag(own)[n:] - np.sum(solved**2, axis=0)

    if exposure is not None:
        new, asked = np.insert(new, exposure, days[:n], axis=1), np.insert(NEW, exposure, 1.0, axis=1)
    else:
        asked = NEW
    posterior = prior.condition(prior.scaling.inputs(new)[None], y[None], np.ones((1, n), bool))
    predicted = prior.marginals(posterior, prior.scaling.inputs(asked)[None])
    own_scaling = given.training.scaling
    np.testing.assert_allclose(predicted.mean[0, 0], own_scaling.undo_mean(expected), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(predicted.variance[0, 0], own_scaling.undo_variance(variance), rtol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_unseen_levels_and_missing_values_are_the_average_with_the_learned_spread(name):
    prior = fitted(name, SHIFT).priors["smooth"]
    average = np.zeros((1, 3, 11))
    average[0, 1, 5] = average[0, 2, 9] = 1.0  # the age is missing; a unit that the fit has not seen
    nothing = prior.condition(np.zeros((1, 0, 11)), np.zeros((1, 0)), np.zeros((1, 0), bool))
    found, scales = prior.marginals(nothing, average), prior.process.layout.scale(prior.process.theta, "covariates")
    np.testing.assert_allclose(found.mean[0, 0], found.mean[0, 0, 0], rtol=1e-10)
    added = (found.variance[0, 0, 1:] - found.variance[0, 0, 0]) / float(prior.process.scaling.y_std) ** 2
    np.testing.assert_allclose(added, scales**2, rtol=1e-6)


@pytest.mark.parametrize("exposure", [0, 2, 3])
def test_the_exposure_may_stand_anywhere(exposure):
    first = fitted("poisson", BEND, 4)
    for name, prior in fitted("poisson", BEND, exposure).priors.items():
        other, days = first.priors[name], np.array([1.0, 3.0, 0.5, 2.0])
        np.testing.assert_allclose(prior.process.theta, other.process.theta, rtol=1e-8)
        predictions = []
        for each in (prior, other):
            x = each.scaling.inputs(np.insert(NEW, each.exposure, days, axis=1))[None]
            assert x.shape[-1] == each.scaling.width == 12
            posterior = each.condition(x, np.array([[1.0, 0.0, 2.0, 4.0]]), np.ones((1, 4), bool))
            found = each.marginals(posterior, x)
            np.testing.assert_allclose(found.offset[0], np.log(days))
            predictions.append(np.concatenate([found.mean, found.variance]))
        np.testing.assert_allclose(*predictions, rtol=1e-6)


def test_files_keep_them():
    kinds = kinds_with(1)
    for prior in fitted("poisson", BEND, 1).priors.values():
        again = read_back(prior, "poisson", kinds=kinds)
        x = prior.scaling.inputs(np.insert(NEW, 1, 2.0, axis=1))[None]
        np.testing.assert_array_equal(again.scaling.inputs(np.insert(NEW, 1, 2.0, axis=1))[None], x)
        nothing = np.zeros((1, 0, 12)), np.zeros((1, 0)), np.zeros((1, 0), bool)
        found, expected = (each.marginals(each.condition(*nothing), x) for each in (again, prior))
        np.testing.assert_array_equal(found.mean, expected.mean)
        np.testing.assert_array_equal(found.variance, expected.variance)
        for bad in (ColumnKinds((0, 2, 0, 0, 3), (3, 4)), ColumnKinds((0, 0, 2, 0, 3), (1, 3, 4))):
            with pytest.raises(ValueError, match="exposure must be a column of numbers"):
                read_back(prior, "poisson", kinds=bad)
