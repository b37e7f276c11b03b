"""Families fitted to tasks: what changes nothing, relearning of the common mean, and degenerate data."""

from dataclasses import replace

import numpy as np
import pytest
from small_problems import COUNTS, IS_TARGET, make_tasks
from test_member_files import read_back, with_array

from metaprior.prior import families as module
from metaprior.prior.blocks import place_points
from metaprior.prior.families import (
    CURVE,
    FAMILIES,
    FEATURES,
    LINEAR,
    SMOOTH,
    FamilyFit,
    TrainingTasks,
    fit_families,
    fit_features,
    with_mean_of,
)
from metaprior.prior.modes import MEAN_PRIOR
from metaprior.prior.shapes import ONE_SCALE
from metaprior.tasks.scaling import fit_scaling, identity_scaling
from metaprior.tasks.types import Task


def training_of(tasks, counts=None, is_target=None):
    counts, is_target = (np.ones(len(tasks)) if each is None else each for each in (counts, is_target))
    return TrainingTasks(identity_scaling(tasks[0].x.shape[1]), tasks, counts, is_target)


@pytest.fixture(scope="module")
def fitted():
    training = training_of(make_tasks(2), COUNTS, IS_TARGET)
    fit = fit_families(training, True, None)
    return FamilyFit(fit.priors | {FEATURES: fit_features(training, True, None)}, fit.modes)


def predictions(prior, input_dim=2):
    """Means, variances and log weights at a few queries, given two contexts."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, 3, input_dim)), rng.normal(size=(2, 3))
    posterior = prior.condition(x, y, np.array([[True, True, True], [True, False, False]]))
    found = prior.marginals(posterior, rng.normal(size=(2, 4, input_dim)))
    return found.mean, found.variance, found.log_weights


def assert_same(prior, other, **tolerances):
    for found, expected in zip(predictions(prior), predictions(other), strict=True):
        np.testing.assert_allclose(found, expected, **tolerances)


def test_each_family_adds_to_the_one_before(fitted):
    terms = [fitted.priors[name].terms for name in FAMILIES]
    for name, expected in {"curve": [0, 1, 1, 1], "deformation": [0, 0, 1, 1], "environment": [1, 1, 1, 1]}.items():
        assert [each.layout.has(name) for each in terms] == expected
    assert [each.curve is None for each in terms] == [True, True, False, False]
    assert [each.shape_root is None for each in terms] == [True, True, True, False]
    layout, theta = terms[-1].layout, terms[-1].theta
    same = np.ones(len(theta), bool)
    for group in MEAN_PRIOR:  # which is checked in each family, see `common_mean`
        same[layout.places[group]] = False
    np.testing.assert_array_equal(theta[same], fitted.modes[CURVE].theta[same])
    assert list(fitted.modes) == [LINEAR, SMOOTH, CURVE]


@pytest.mark.parametrize("name", [*FAMILIES, FEATURES])
def test_the_mean_of_the_same_tasks_changes_nothing(fitted, name):
    prior = fitted.priors[name]
    n_weights = len(prior.terms.weights)
    forgotten = replace(prior.terms, weights=np.zeros(n_weights), weights_root=np.eye(n_weights))
    tasks = make_tasks(2)
    chunks = [training_of(tasks[s], COUNTS[s], IS_TARGET[s]) for s in (slice(0, 2), slice(2, 6))]
    for parts in ([training_of(tasks, COUNTS, IS_TARGET)], iter(chunks)):
        again = with_mean_of(replace(prior, terms=forgotten), parts)
        np.testing.assert_allclose(again.terms.weights, prior.terms.weights, atol=1e-6)
        assert_same(again, prior, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", [*FAMILIES, FEATURES])
def test_the_mean_follows_other_tasks_and_all_else_stays(fitted, name):
    prior = fitted.priors[name]
    shifted = [Task(task.x, task.y + 5.0) for task in make_tasks(2)]
    moved = with_mean_of(prior, [training_of(shifted, COUNTS, np.ones(6))])
    assert np.mean(predictions(moved)[0][:, 1] - predictions(prior)[0][:, 1]) > 0.5
    assert moved.terms.theta is prior.terms.theta
    assert moved.terms.points is prior.terms.points
    assert moved.terms.shape_root is prior.terms.shape_root
    without = with_mean_of(prior, [])
    np.testing.assert_array_equal(without.terms.weights, 0.0)
    np.testing.assert_allclose(without.terms.weights_root, np.eye(len(prior.terms.weights)))


def test_counting_twice_is_being_listed_twice(monkeypatch):
    """But for the check of the common curve, where a copy of a task that is left out would stay."""
    monkeypatch.setattr(module, "checked_theta", lambda mode, *_: mode.theta)
    tasks = make_tasks(1)
    counts = np.where(np.arange(6) == 2, 2.0, 1.0)
    once = fit_families(training_of(tasks, counts), False, None)
    twice = fit_families(training_of([*tasks, tasks[2]]), False, None)
    for name in FAMILIES:
        np.testing.assert_allclose(once.priors[name].terms.theta, twice.priors[name].terms.theta, atol=1e-3)
        for found, expected in zip(predictions(once.priors[name], 1), predictions(twice.priors[name], 1), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-3)


def test_tasks_of_no_count_change_nothing_but_the_inducing_points():
    tasks, ignored = make_tasks(1), [Task(task.x, 100.0 * task.y) for task in make_tasks(1)]
    assert len(place_points([*tasks, *ignored])) == len(place_points(tasks))
    alone = fit_families(training_of(tasks), False, None)
    counts = np.repeat([1.0, 0.0], 6)
    more = fit_families(training_of([*tasks, *ignored], counts), False, None)
    for name in FAMILIES:
        for found, expected in zip(predictions(alone.priors[name], 1), predictions(more.priors[name], 1), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.parametrize("iterations", [60, 4])
def test_starting_from_a_fit_to_the_same_tasks_stays_there(fitted, iterations):
    training = training_of(make_tasks(2), COUNTS, IS_TARGET)
    again = fit_families(training, True, None, fitted, iterations)
    for name in FAMILIES:
        np.testing.assert_allclose(again.priors[name].terms.theta, fitted.priors[name].terms.theta, atol=0.05)


@pytest.mark.parametrize("noise_only", [True, False])
def test_with_few_iterations_what_the_scales_of_tasks_multiply_stays(fitted, monkeypatch, noise_only):
    kinds, training = [], training_of(make_tasks(2), COUNTS, IS_TARGET)
    scales = ONE_SCALE._replace(noise_only=noise_only)
    near = replace(fitted, priors={name: replace(prior, scales=scales) for name, prior in fitted.priors.items()})
    monkeypatch.setattr(module, "learn_scales", lambda *args: kinds.append(args[-1]) or ONE_SCALE)
    for iterations, expected in ((4, noise_only), (60, None)):
        kinds.clear()
        fit_families(training, True, None, near, iterations)
        assert kinds == [True, expected, expected, expected]  # lines have no smooth deviation


def test_few_iterations_from_a_fit_without_one_of_the_families(fitted):
    training = training_of(make_tasks(2), COUNTS, IS_TARGET)
    known = FamilyFit(fitted.priors, {name: fitted.modes[name] for name in (LINEAR, SMOOTH)})
    again = fit_families(training, True, None, known, 4)
    assert list(again.priors) == list(FAMILIES)


def test_families_that_cannot_be_computed_are_left_out(monkeypatch):
    def fail(*args):
        raise np.linalg.LinAlgError

    training = training_of(make_tasks(1))
    monkeypatch.setattr(module.Shapes, "learn", fail)
    assert list(fit_families(training, False, None).priors) == [LINEAR, SMOOTH, CURVE]
    monkeypatch.setattr(module, "common_curve", fail)
    assert list(fit_families(training, False, None).priors) == [LINEAR, SMOOTH]


def test_families_that_are_not_finite_are_left_out(monkeypatch):
    monkeypatch.setattr(module.Shapes, "learn", lambda shapes: (np.diag(shapes.initial), np.nan))
    monkeypatch.setattr(module, "learn_scales", lambda *args: ONE_SCALE)
    with np.errstate(all="ignore"):
        fit = fit_families(training_of(make_tasks(1)), False, None)
    assert list(fit.priors) == [LINEAR, SMOOTH, CURVE]


def test_a_given_noise_is_in_the_units_of_y():
    tasks = [Task(task.x, 50.0 * task.y) for task in make_tasks(1)]
    scaling = fit_scaling([tasks], [1.0])
    training = TrainingTasks(scaling, [scaling.task(task) for task in tasks], np.ones(6), np.ones(6))
    for prior in fit_families(training, False, 7.0).priors.values():
        np.testing.assert_allclose(prior.factors.noise * scaling.y_std**2, [49.0])
        assert prior.scales is ONE_SCALE


def rows(rng, n, input_dim):
    return rng.normal(size=(n, input_dim))


def constant_column(rng):
    return [Task(np.column_stack([x, np.full(5, 3.0)]), x[:, 0]) for x in (rows(rng, 5, 1) for _ in range(4))]


def collinear_columns(rng):
    return [Task(x @ np.array([[1.0, 2.0, -1.0]]), x[:, 0] ** 2) for x in (rows(rng, 5, 1) for _ in range(4))]


def zeros_and_ones(rng):
    tasks = [rng.integers(0, 2, (6, 4)).astype(float) for _ in range(4)]
    return [Task(x, x @ [1.0, -1.0, 0.5, 0.0] + 0.1 * rng.normal(size=6)) for x in tasks]


def fewer_tasks_than_columns(rng):
    return [Task(x, x.sum(axis=1)) for x in (rows(rng, 4, 6) for _ in range(2))]


def one_task(rng):
    return [Task(rows(rng, 6, 2), rng.normal(size=6))]


def single_readings(rng):
    return [Task(rows(rng, 1, 2), rng.normal(size=1)) for _ in range(8)]


def one_reading(rng):
    return [Task(rows(rng, 1, 1), rng.normal(size=1))]


def equal_readings(rng):
    return [Task(rows(rng, 4, 2), np.full(4, 2.5)) for _ in range(4)]


def equal_inputs(rng):
    return [Task(np.ones((4, 2)), rng.normal(size=4)) for _ in range(4)]


def huge_readings(rng):
    return [Task(rows(rng, 5, 1), 1e100 * rng.normal(size=5)) for _ in range(4)]


def tiny_readings(rng):
    return [Task(rows(rng, 5, 1), 1e-100 * rng.normal(size=5)) for _ in range(4)]


def duplicated_inputs(rng):
    return [Task(np.repeat(x, 3, axis=0), rng.normal(size=6)) for x in (rows(rng, 2, 1) for _ in range(4))]


def without_noise(rng):
    return [Task(x, np.sin(x[:, 0])) for x in (rows(rng, 12, 1) for _ in range(6))]


def an_outlier(rng):
    tasks = [Task(rows(rng, 5, 1), rng.normal(size=5)) for _ in range(5)]
    tasks[2].y[1] = 1e6
    return tasks


def a_far_input(rng):
    tasks = [Task(rows(rng, 5, 1), rng.normal(size=5)) for _ in range(5)]
    tasks[2].x[1] = 1e9
    return tasks


def twenty_columns(rng):
    return [Task(x, x[:, 0] + 0.1 * rng.normal(size=6)) for x in (rows(rng, 6, 20) for _ in range(5))]


def sixty_four_columns(rng):
    return [Task(x, x[:, 0] + 0.1 * rng.normal(size=6)) for x in (rows(rng, 6, 64) for _ in range(5))]


DEGENERATE = [
    constant_column,
    collinear_columns,
    zeros_and_ones,
    fewer_tasks_than_columns,
    one_task,
    single_readings,
    one_reading,
    equal_readings,
    equal_inputs,
    huge_readings,
    tiny_readings,
    duplicated_inputs,
    without_noise,
    an_outlier,
    a_far_input,
    twenty_columns,
    sixty_four_columns,
]


def check_predictions(fit, task):
    """Predict readings of a task and far from them, given none, half and all of it."""
    assert list(fit.priors) == list(FAMILIES)
    x, y = task
    for prior in fit.priors.values():
        for n in (0, len(y) // 2, len(y)):
            posterior = prior.condition(x[None], y[None], np.arange(len(y))[None] < n)
            found = prior.marginals(posterior, np.concatenate([x, x + 3.0])[None])
            assert np.isfinite(found.mean).all()
            assert np.isfinite(found.variance).all()
            assert np.all(found.variance >= 0.0)
            np.testing.assert_allclose(np.exp(found.log_weights).sum(axis=0), 1.0)


@pytest.mark.parametrize("environment", [False, True])
@pytest.mark.parametrize("make", DEGENERATE)
def test_degenerate_data_gives_finite_predictions(make, environment):
    tasks = make(np.random.default_rng(0))
    scaling = fit_scaling([tasks], [1.0])
    standardized = [scaling.task(task) for task in tasks]
    is_target = (np.arange(len(tasks)) < max(len(tasks) // 2, 1)).astype(float)
    training = TrainingTasks(scaling, standardized, np.where(is_target == 1.0, 1.0, 0.4), is_target)
    check_predictions(fit_families(training, environment, None), standardized[0])


@pytest.mark.parametrize("noise_std", [1e-9, 1e-3, 1e6])
def test_far_too_small_or_large_a_given_noise_gives_finite_predictions(noise_std):
    tasks = make_tasks(2)  # with two readings at the same inputs
    fit = fit_families(training_of(tasks), False, noise_std)
    check_predictions(fit, tasks[2])


def test_length_scales_of_a_file_must_be_numbers_whose_squares_can_be_divided_by(fitted):
    assert_same(read_back(fitted.priors[CURVE]), fitted.priors[CURVE], rtol=1e-12)
    with pytest.raises(ValueError, match=r"curve\.lengths must be positive, and at least 1e-50"):
        read_back(fitted.priors[CURVE], change=with_array("curve.lengths", lambda each: np.full_like(each, 1e-308)))
