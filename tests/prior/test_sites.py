"""Posteriors of tasks by sites, against importance sampling; fits to counts, ranks and readings with outliers.

With the linear family all that is known of t is written out as one covariance of all readings, so that sites of all
tasks together (`find_sites`) are the reference of a fit, and Gaussian conditioning on them that of a new task.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from covariate_problems import common_kernel, own_kernel
from covariate_problems import make_tasks as make_mixed
from likelihood_problems import NAMES, PARAMETERS, likelihood_of
from scipy import stats
from scipy.linalg import block_diag
from scipy.special import logsumexp
from small_problems import COUNTS, IS_TARGET, KINDS, make_tasks, make_theta
from test_member_files import read_back

from hand_made_priors import make_curve, make_prior, make_terms
from metaprior.likelihoods import make_likelihood
from metaprior.prior.families import BEND, LINEAR, SHIFT, TrainingTasks, _Fitter, fit_families, terms_of, with_mean_of
from metaprior.prior.modes import with_curve
from metaprior.prior.process import NOISE_FLOOR
from metaprior.prior.sites import HyperPrior, Observed, find_sites
from metaprior.search.numbers import Numbers
from metaprior.search.search import Option
from metaprior.tasks.categories import ColumnKinds
from metaprior.tasks.scaling import identity_scaling
from metaprior.tasks.types import Task


def draw_moments(n_tasks, n, seed=0):
    """Return prior means and covariances of tasks, (tasks, n) and (tasks, n, n)."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (n_tasks, n, 1))
    covariance = 0.5 + 0.6 * np.exp(-0.5 * (x - np.swapaxes(x, 1, 2)) ** 2)
    return rng.normal(0.3, 0.3, (n_tasks, n)), covariance


def observe(name, mean, covariance, seed=0):
    rng, likelihood = np.random.default_rng(seed), likelihood_of(name)
    t = mean + (np.linalg.cholesky(covariance) @ rng.normal(size=mean.shape)[..., None])[..., 0]
    y, ones = likelihood.draw(t, PARAMETERS[name], rng), np.ones(mean.shape)
    return Observed(likelihood, y, 0.2 * ones if likelihood.takes_exposure else 0.0 * ones, ones, 0.1, 1.3)


def moments(found, mean, covariance):
    """Return the posterior's means and variances of u."""
    solved = found.inverse_root @ covariance
    means = mean + (np.swapaxes(solved, 1, 2) @ found.residual[..., None])[..., 0]
    return means, np.diagonal(covariance, axis1=1, axis2=2) - np.sum(solved**2, axis=1)


@pytest.mark.parametrize("name", NAMES)
def test_posterior_and_evidence_are_those_of_importance_sampling(name):
    mean, covariance = draw_moments(4, 5)
    observed = observe(name, mean, covariance)
    found = find_sites(observed, PARAMETERS[name], mean, covariance)
    assert found.converged.all()
    means, variances = moments(found, mean, covariance)
    rng, n = np.random.default_rng(1), 20_000
    for task in range(len(mean)):
        cov = covariance[task] - (found.inverse_root[task] @ covariance[task]).T @ (
            found.inverse_root[task] @ covariance[task]
        )
        root = np.linalg.cholesky(1.5 * cov + 1e-10 * np.eye(5))
        z = rng.normal(size=(n, 5))
        u = means[task] + z @ root.T
        deviation = np.linalg.solve(np.linalg.cholesky(covariance[task]), (u - mean[task]).T)
        log_prior = -0.5 * np.sum(deviation**2, axis=0) - 0.5 * np.linalg.slogdet(covariance[task])[1]
        log_proposal = -0.5 * np.sum(z**2, axis=1) - np.log(np.diag(root)).sum()
        t = observed.center + observed.scale * u + observed.offset[task]
        of_y = observed.likelihood.log_density(observed.y[task], t, np.full(t.shape, 1e-12), PARAMETERS[name])
        log_weight = of_y.sum(axis=1) + log_prior - log_proposal
        exact = logsumexp(log_weight) - np.log(n)
        share = np.exp(log_weight - logsumexp(log_weight))
        mean_error = share @ u - means[task]
        std = np.sqrt(share @ (u - share @ u) ** 2)
        assert np.abs(mean_error / std).max() < (0.35 if name == "student-t" else 0.12)
        # A Gaussian posterior that is nearest in this divergence is a little narrow, Student's the most.
        np.testing.assert_allclose(np.sqrt(variances[task]) / std, 1.0, atol=0.35 if name == "student-t" else 0.12)
        assert exact - (0.9 if name == "student-t" else 0.25) < found.bound[task] < exact + 0.02


@pytest.mark.parametrize("name", NAMES)
def test_padded_equals_unpadded(name):
    mean, covariance = draw_moments(3, 4)
    observed = observe(name, mean, covariance)
    alone = find_sites(observed, PARAMETERS[name], mean, covariance)
    wider = ((0, 0), (0, 3))
    padded = observed._replace(
        y=np.pad(observed.y, wider), offset=np.pad(observed.offset, wider), mask=np.pad(observed.mask, wider)
    )
    found = find_sites(padded, PARAMETERS[name], np.pad(mean, wider), np.pad(covariance, ((0, 0), (0, 3), (0, 3))))
    np.testing.assert_allclose(found.bound, alone.bound, rtol=1e-9)
    np.testing.assert_allclose(found.sites.reading[:, :4], alone.sites.reading, rtol=1e-7)
    np.testing.assert_allclose(found.residual[:, :4], alone.residual, rtol=1e-7)
    assert (found.residual[:, 4:] == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_tasks_do_not_depend_on_others(name):
    mean, covariance = draw_moments(5, 3)
    observed = observe(name, mean, covariance)
    together = find_sites(observed, PARAMETERS[name], mean, covariance)
    one = find_sites(observed.take(np.array([3])), PARAMETERS[name], mean[3:4], covariance[3:4])
    np.testing.assert_allclose(together.sites.reading[3], one.sites.reading[0], rtol=1e-9)


@pytest.mark.parametrize(
    ("y", "sigma", "least"),
    [
        ([-2, 2], 0.5, 0.7),
        ([-2, -2.1, 2, 2.1], 0.5, 0.7),
        ([-3, 3], 1.0, 0.7),
        ([-1.5, 1.6, -1.4, 1.4], 0.5, 0.7),
        ([-3, 3], 0.3, 0.7),
        ([-1, 2, 2], 0.3, 0.6),  # one in a mode of its own
    ],
)
def test_student_t_where_readings_contradict_each_other(y, sigma, least):
    """Readings of one number t ~ N(0, 4): the nearest Gaussian is too narrow for two modes, by up to 38% here."""
    y, t = np.array(y, float), np.linspace(-12.0, 12.0, 20001)
    log_p = stats.norm.logpdf(t, 0.0, 2.0) + stats.t.logpdf((y[:, None] - t) / sigma, 2.0).sum(axis=0)
    weights = np.exp(log_p - log_p.max())
    mean = np.sum(weights * t) / weights.sum()
    exact = np.sqrt(np.sum(weights * (t - mean) ** 2) / weights.sum())
    n = len(y)
    observed = Observed(make_likelihood("student-t"), y[None], np.zeros((1, n)), np.ones((1, n)), 0.0, 1.0)
    sites = find_sites(observed, np.log([sigma, 2.0]), np.zeros((1, n)), np.full((1, n, n), 4.0)).sites
    precision = 0.25 + sites.precision.sum()
    assert abs(sites.shift.sum() / precision - mean) < 0.1
    assert least * exact < precision**-0.5 < exact


def test_student_t_with_many_degrees_of_freedom_is_gaussian():
    mean, covariance = draw_moments(3, 4)
    observed = observe("student-t", mean, covariance)._replace(center=0.0, scale=1.0)
    found = find_sites(observed, np.log([0.4, 1e6]), mean, covariance)
    np.testing.assert_allclose(found.sites.reading, observed.y, rtol=1e-5)
    np.testing.assert_allclose(found.sites.variance, 0.16, rtol=1e-3)
    total = covariance + 0.16 * np.eye(4)
    residual = observed.y - mean
    exact = -0.5 * np.einsum("ti,tij,tj->t", residual, np.linalg.inv(total), residual)
    exact -= 0.5 * np.linalg.slogdet(total)[1] + 2.0 * np.log(2.0 * np.pi)
    np.testing.assert_allclose(found.bound, exact, atol=2e-3)


def test_large_counts_are_gaussian_in_their_logarithm():
    mean, covariance = draw_moments(2, 3)
    observed = observe("poisson", mean, covariance)._replace(center=12.0, scale=1.0)
    y = np.round(np.exp(12.0 + observed.offset + mean))
    found = find_sites(observed._replace(y=y), np.zeros(0), mean, covariance)
    np.testing.assert_allclose(found.sites.variance, 1.0 / y, rtol=1e-2)
    np.testing.assert_allclose(moments(found, mean, covariance)[0], mean, atol=1e-3)


ONE = Option((1.0,))
# Tasks that are not of the fit: a level is unseen, and values are missing.
NEW = np.array([[0.2, 1, 0.5, 2], [0.2, 2, np.nan, 3], [-0.4, 0, 0.1, np.nan], [1.0, 1, 0.1, 0]])


def draw_tasks(name, sizes, seed=0):
    """Observe readings of one input."""
    rng, tasks = np.random.default_rng(seed), make_tasks(1, sizes, seed)
    return [Task(task.x, likelihood_of(name).draw(task.y + 0.5, PARAMETERS[name], rng)) for task in tasks]


def draw_mixed(name, exposure=None, n=6, seed=0):
    """Observe readings with categories and covariates; with `exposure`, that column of X multiplies counts."""
    rng, drawn = np.random.default_rng(seed), []
    for task in make_mixed(n, seed):
        e = rng.uniform(0.5, 4.0, len(task.y))
        y = likelihood_of(name).draw(0.7 * task.y + (0.0 if exposure is None else np.log(e)), PARAMETERS[name], rng)
        drawn.append(Task(task.x if exposure is None else np.insert(task.x, exposure, e, axis=1), y))
    return drawn


def kinds_with(exposure):
    return KINDS if exposure is None else KINDS.with_number(exposure)


@cache
def training_of(name, exposure=None, mixed=True):
    tasks = draw_mixed(name, exposure) if mixed else draw_tasks(name, (1, 3, 5, 2, 3, 4))
    kinds = kinds_with(exposure) if mixed else None
    training = Numbers(likelihood_of(name), None, exposure).training([tasks], 0, ONE, kinds)
    return training if mixed else replace(training, counts=COUNTS, is_target=IS_TARGET)


@cache
def fitted(name, covariates, exposure=None):
    return fit_families(training_of(name, exposure), False, None, None, 40, None, covariates)


@pytest.fixture
def exact(monkeypatch):
    """Sites at their optimum."""
    for limit in ("FIRST_UPDATES", "MAX_UPDATES", "MAX_STEPS"):
        monkeypatch.setattr(f"metaprior.prior.sites.{limit}", 300)
    for tolerance in ("TOLERANCE", "BOUND_TOLERANCE"):
        monkeypatch.setattr(f"metaprior.prior.sites.{tolerance}", 1e-12)


def bound_of(training, terms, separate=None):
    """Return where parameters stand, and the bound as a function of theta with its slope."""
    fitter = _Fitter(training, None, None, 0, separate)
    layout, blocks = fitter.layout(terms), fitter.blocks
    if layout.has("deformation"):
        blocks = with_curve(blocks, make_curve(np.random.default_rng(0), fitter.points, layout.columns), layout)
    return layout, fitter.bound.density(layout, blocks, fitter.points)


OWN_CURVE = make_terms("curve", "deviation", "deformation", "environment")


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("terms", "separate"),
    [
        (make_terms(), None),
        (OWN_CURVE, None),
        (make_terms("curve", "deviation", kernel="matern32"), None),
        (make_terms("shift", "bend"), True),
        (make_terms("curve", "deviation", "shift", "bend", "environment"), False),
        (make_terms("curve", "deviation", "deformation", "shift", "bend", "curved"), True),
    ],
)
def test_derivatives_of_the_bound(name, terms, separate):
    layout, density = bound_of(training_of(name, None, separate is not None), terms, separate)
    theta, h = np.concatenate([make_theta(layout)[: -len(PARAMETERS[name]) or None], PARAMETERS[name]]), 1e-4
    _, slope = density(theta)
    numeric = [(density(theta + h * e)[0] - density(theta - h * e)[0]) / (2 * h) for e in np.eye(len(theta))]
    # Student's sites have a least precision, so that the bound is not quite stationary in them.
    error = 5e-2 if name == "student-t" else 5e-4
    np.testing.assert_allclose(slope, numeric, rtol=error, atol=error)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("name", ["poisson", "ordinal"])
def test_a_task_alone_has_the_bound_of_its_marginal_prior(name):
    """With one task that counts once, integrating the mean out first or last is the same."""
    parameters, ones = PARAMETERS[name], np.ones(1)
    hyper_prior = HyperPrior(parameters, np.ones(len(parameters)))
    given = identity_scaling(1), draw_tasks(name, (6,)), ones, ones, None, likelihood_of(name), hyper_prior
    fitter = _Fitter(TrainingTasks(*given, [np.zeros(6)]), None, None, 0)
    layout, [block] = fitter.layout(make_terms("curve", "deviation")), fitter.blocks
    bound, _ = fitter.bound.density(layout, [block], fitter.points)(layout.center)
    part = layout.at(layout.center, fitter.points).on(block)
    covariance = part.covariance() + part.features @ part.features.mT
    found = find_sites(fitter.bound.observed[0], parameters, np.zeros((1, 6)), covariance)
    assert bound == pytest.approx(found.bound[0], abs=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_fit_finds_all_families_and_their_parameters(name):
    tasks = [draw_tasks(name, [6] * 20, 3), draw_tasks(name, [1, 3, 5] * 3, 4)]
    fit = fit_families(Numbers(likelihood_of(name)).training(tasks, 1, Option((0.5, 0.5)), None), environment=False)
    assert list(fit.priors) == ["linear", "smooth", "curve", "shapes"]
    prior = fit.priors["smooth"]
    context = prior.condition(np.zeros((2, 1, 1)), np.ones((2, 1)), np.array([[True], [False]]))
    found = prior.marginals(context, np.linspace(-1, 1, 5)[None, :, None].repeat(2, axis=0))
    assert found.mean.shape == (1, 2, 5)
    assert np.isfinite(found.mean).all()
    assert (found.variance > 0).all()
    assert (found.variance[0, 0] < found.variance[0, 1]).all()  # an empty context says nothing


@pytest.mark.parametrize("name", NAMES)
def test_the_mean_of_the_same_tasks_changes_little(name):
    """Sites of each task alone are not quite those of all together."""
    training = Numbers(likelihood_of(name)).training([draw_tasks(name, [6] * 30)], 0, ONE, None)
    prior = fit_families(training, environment=False, simple=True).priors["smooth"]
    x, nothing = np.linspace(-1, 1, 5)[None, :, None], (np.zeros((1, 0, 1)), np.zeros((1, 0)), np.zeros((1, 0), bool))
    found, expected = (each.marginals(each.condition(*nothing), x) for each in (with_mean_of(prior, [training]), prior))
    scale = float(training.scaling.y_std)
    np.testing.assert_allclose(found.mean, expected.mean, atol=0.1 * scale)
    np.testing.assert_allclose(found.variance, expected.variance, rtol=0.1)


def test_parameters_are_recovered_from_many_tasks():
    rng = np.random.default_rng(0)
    cases = (("negative-binomial", [0], 0.35), ("student-t", [0], 0.15), ("ordinal", [1, 2, 3], 0.3))
    for name, places, error in cases:
        likelihood, tasks = likelihood_of(name), []
        for _ in range(60):
            x = rng.uniform(-2, 2, (10, 1))
            t = 0.6 + 0.5 * rng.normal() + np.sin(2 * x[:, 0])
            tasks.append(Task(x, likelihood.draw(t, PARAMETERS[name], rng)))
        fit = fit_families(Numbers(likelihood).training([tasks], 0, ONE, None), environment=False)
        np.testing.assert_allclose(fit.priors["smooth"].parameters[places], PARAMETERS[name][places], atol=error)


def dense(given, prior):
    """Return the inputs of all readings, what is observed, and their covariance, with explicit columns."""
    tasks, scaling = given.tasks, given.scaling
    x, y = np.concatenate([task.x for task in tasks]), np.concatenate([task.y for task in tasks])
    covariance = common_kernel(prior, x, x) + block_diag(*(own_kernel(prior, task.x, task.x) for task in tasks))
    units = float(scaling.y_mean), float(scaling.y_std)
    offset, ones = np.concatenate(given.offsets)[None], np.ones((1, len(y)))
    return x, Observed(given.likelihood, y[None], offset, ones, *units), covariance


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(("name", "exposure"), [("poisson", 1), ("negative-binomial", 4), ("ordinal", None)])
@pytest.mark.parametrize("covariates", [SHIFT, BEND])
def test_the_bound_and_new_tasks_are_those_of_explicit_columns(name, exposure, covariates):
    given, fit = training_of(name, exposure), fitted(name, covariates, exposure)
    first, parameters = fit.priors[LINEAR], fit.priors[LINEAR].parameters
    layout, density = bound_of(given, terms_of(LINEAR, False, covariates))
    bound, _ = density(first.terms.theta)
    z = (first.terms.theta - layout.center) / layout.spread
    x, observed, covariance = dense(given, first)
    found = find_sites(observed, parameters, np.zeros((1, len(x))), covariance[None])
    assert bound + 0.5 * float(z @ z) == pytest.approx(found.bound[0], abs=1e-4)

    # The fit's own sites have converged to some thousandths of a nat; those of `prior` have the optimum.
    prior = fit_families(given, False, None, fit, 0, None, covariates).priors[LINEAR]
    new, days = make_mixed(1, seed=3)[0].x, np.array([2.0, 0.7, 1.0, 3.0])
    inputs = given.scaling.inputs
    new_x, query = inputs(new), inputs(NEW)
    y = likelihood_of(name).draw(0.5 + 0.0 * new[:, 0], PARAMETERS[name], np.random.default_rng(1))
    total = covariance + np.diag(found.sites.variance[0] + NOISE_FLOOR)
    both = np.concatenate([new_x, query])
    cross = common_kernel(first, both, x)
    mean = cross @ np.linalg.solve(total, found.sites.reading[0])
    own = common_kernel(first, both, both) + own_kernel(first, both, both)
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
    own_scaling = given.scaling
    np.testing.assert_allclose(predicted.mean[0, 0], own_scaling.undo_mean(expected), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(predicted.variance[0, 0], own_scaling.undo_variance(variance), rtol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_unseen_levels_and_missing_values_are_the_average_with_the_learned_spread(name):
    prior = fitted(name, SHIFT).priors["smooth"]
    average = np.zeros((1, 3, 11))
    average[0, 1, 5] = average[0, 2, 9] = 1.0  # the age is missing; a unit that the fit has not seen
    nothing = prior.condition(np.zeros((1, 0, 11)), np.zeros((1, 0)), np.zeros((1, 0), bool))
    found, scales = prior.marginals(nothing, average), prior.terms.layout.scale(prior.terms.theta, "shift")
    np.testing.assert_allclose(found.mean[0, 0], found.mean[0, 0, 0], rtol=1e-10)
    added = (found.variance[0, 0, 1:] - found.variance[0, 0, 0]) / float(prior.terms.scaling.y_std) ** 2
    np.testing.assert_allclose(added, scales**2, rtol=1e-6)


@pytest.mark.parametrize("exposure", [0, 2, 3])
def test_the_exposure_may_stand_anywhere(exposure):
    first = fitted("poisson", BEND, 4)
    for name, prior in fitted("poisson", BEND, exposure).priors.items():
        other, days = first.priors[name], np.array([1.0, 3.0, 0.5, 2.0])
        np.testing.assert_allclose(prior.terms.theta, other.terms.theta, rtol=1e-8)
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


@pytest.mark.parametrize("name", ["poisson", "negative-binomial"])
def test_distances_of_huge_counts_at_one_input_are_finite(name):
    """Their noise is far below rounding, and the covariance of t at equal inputs is singular."""
    huge = make_prior()
    weights = huge.terms.weights.copy()
    weights[0] = 400.0
    parameters = np.full(len(PARAMETERS[name]), -80.0)
    prior = replace(
        huge, terms=replace(huge.terms, weights=weights), likelihood=likelihood_of(name), parameters=parameters
    )
    x, counts = np.zeros((1, 3, 1)), np.full((1, 3), 5.0)
    posterior = prior.condition(x, counts, np.ones((1, 3), bool))
    squares, degrees = prior.latent_distances(posterior)
    assert np.isfinite(squares).all()
    assert (degrees > 0).all()
