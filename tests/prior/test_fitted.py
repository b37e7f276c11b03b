"""New tasks under a fitted prior, against dense Gaussian conditioning on all training readings, written out here."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from small_problems import IS_TARGET, make_tasks

from metaprior.prior import families
from metaprior.prior.columns import MAX_ARD
from metaprior.prior.families import FEATURES, LINEAR, SHAPES, TrainingTasks, fit_families, fit_features
from metaprior.prior.process import NOISE_FLOOR, deformations
from metaprior.prior.shapes import ONE_SCALE, TaskScales
from metaprior.prior.terms import COMMON_STD, JITTER, n_deformations
from metaprior.tasks.scaling import identity_scaling
from metaprior.tasks.types import Task, pad_to

FAMILIES = (*families.FAMILIES, FEATURES)
FACTORS, WEIGHTS = np.array([0.4, 1.0, 2.5]), np.array([0.2, 0.5, 0.3])


@cache
def fitted(input_dim, environment, noise_only=False):
    """All families fitted to six tasks that count once, with three scales for new tasks."""
    tasks = make_tasks(input_dim)
    training = TrainingTasks(identity_scaling(input_dim), tasks, np.ones(len(tasks)), IS_TARGET)
    priors = fit_families(training, environment, None).priors
    priors[FEATURES] = fit_features(training, environment, None)
    scales = TaskScales(FACTORS, np.log(WEIGHTS), noise_only)
    return {name: replace(prior, scales=scales) for name, prior in priors.items()}


def new_tasks(input_dim, sizes=(4, 0, 2)):
    """Contexts of several sizes, and three queries each; the first is an input of the context where there is one."""
    rng = np.random.default_rng(7)
    contexts = [Task(rng.normal(size=(n, input_dim)), rng.normal(size=n)) for n in sizes]
    queries = rng.normal(size=(len(sizes), 3, input_dim))
    for context, query in zip(contexts, queries, strict=True):
        query[:1] = context.x[:1] if len(context.y) else query[:1]
    return contexts, queries


def rbf(x, z, lengths):
    return np.exp(-0.5 * np.sum(((x[:, None] - z) / lengths) ** 2, axis=-1))


def common_kernel(prior, x, z):
    """Covariance of the common mean: a line, and a curve that is determined by its values at the inducing points."""
    layout, theta, points = prior.terms.layout, prior.terms.theta, prior.terms.points
    slope = COMMON_STD if x.shape[1] <= MAX_ARD else layout.scale(theta, "trend")[0]
    covariance = COMMON_STD**2 + slope**2 * x @ z.T
    if layout.has("curve"):
        lengths = layout.scale(theta, "mean_lengths")
        inner = rbf(points, points, lengths) + JITTER * np.eye(len(points))
        curve = rbf(x, points, lengths) @ np.linalg.solve(inner, rbf(points, z, lengths))
        covariance = covariance + layout.scale(theta, "mean")[0] ** 2 * curve
    if layout.has("features"):
        covariance = (
            covariance + layout.scale(theta, "feature_mean")[0] ** 2 * features(prior, x) @ features(prior, z).T
        )
    return covariance


def features(prior, x):
    """The features of the network, written out."""
    hidden = x
    for weights, bias in (prior.terms.network[:2], prior.terms.network[2:4]):
        hidden = np.tanh(hidden @ weights / len(weights) ** 0.5 + bias)
    return hidden @ prior.terms.network.last / len(hidden.T) ** 0.5


def mean_features(prior, x):
    """F at inputs (n, columns) of the target."""
    return prior.terms.mean_features(prior.process.describe(x[None]), np.ones(1))[0]


def own_kernels(prior, x, z):
    """Covariances of the deviations of one task: of its line, and of the rest, which a factor may multiply."""
    terms = prior.terms
    layout, theta, points, n_line = terms.layout, terms.theta, terms.points, 1 + x.shape[1]
    lines = [np.column_stack([np.ones(len(inputs)), inputs]) for inputs in (x, z)]
    curves = [np.zeros((len(inputs), 0)) for inputs in (x, z)]
    if layout.has("deformation"):
        curves = [deformations(inputs, *terms.curve, n_deformations(layout.columns) - 1) for inputs in (x, z)]
    smooth = np.zeros((len(x), len(z)))
    if layout.has("curve"):
        lengths, scale = layout.scale(theta, "lengths"), layout.scale(theta, "deviation")[0]
        smooth = scale**2 * rbf(x, z, lengths)
    if prior.terms.shape_root is None:
        slopes = np.broadcast_to(layout.scale(theta, "line")[1:], x.shape[1])
        stds = np.concatenate([layout.scale(theta, "line")[:1], slopes])
        deformed = (
            (curves[0] * layout.scale(theta, "deformation") ** 2) @ curves[1].T if layout.has("deformation") else 0.0
        )
        if layout.has("features"):
            deformed = (features(prior, x) * layout.scale(theta, "features") ** 2) @ features(prior, z).T
        return (lines[0] * stds**2) @ lines[1].T, deformed + smooth
    root = np.linalg.cholesky(rbf(points, points, lengths) + JITTER * np.eye(len(points)))
    whitened = [np.linalg.solve(root, rbf(points, inputs, lengths)).T for inputs in (x, z)]
    psi = [np.concatenate(parts, axis=1) for parts in zip(lines, curves, whitened, strict=True)]
    shapes = prior.terms.shape_root @ prior.terms.shape_root.T
    by_line = shapes[:, :n_line] @ np.linalg.solve(shapes[:n_line, :n_line], shapes[:n_line])  # regression on the line
    rest = psi[0] @ (shapes - by_line) @ psi[1].T + smooth - scale**2 * whitened[0] @ whitened[1].T
    return psi[0] @ by_line @ psi[1].T, rest


def own_kernel(prior, x, z, factor=1.0):
    """Covariance of the deviations of a task of the given scale."""
    line, rest = own_kernels(prior, x, z)
    return line + (1.0 if prior.scales.noise_only else factor**2) * rest


class Dense:
    """All training readings, the context and the queries of one new target task as one Gaussian vector."""

    def __init__(self, prior, training, is_target, context, query, factor):
        groups = [*(task.x for task in training), context.x, query]
        task_of = np.repeat([*range(len(training)), len(training), len(training)], [len(x) for x in groups])
        target = np.append(is_target, 1.0)[task_of]
        x = np.concatenate(groups)
        effect = np.exp(prior.terms.theta[-1]) if prior.terms.layout.has("environment") else 0.0
        covariance = common_kernel(prior, x, x) * (1.0 + effect**2 * np.outer(target, target))
        is_new = task_of == len(training)
        own = np.where(np.outer(is_new, is_new), own_kernel(prior, x, x, factor), own_kernel(prior, x, x))
        covariance += own * np.equal.outer(task_of, task_of)
        n_old, n_known = sum(len(task.y) for task in training), len(x) - len(query)
        noises = prior.noise_variance * np.array([1.0, factor**2]) + NOISE_FLOOR
        covariance += np.diag(np.repeat([*noises, 0.0], [n_old, len(context.y), len(query)]))
        known, old = slice(0, n_known), slice(0, n_old)
        y = np.concatenate([*(task.y for task in training), context.y])
        gain = np.linalg.solve(covariance[known, known], covariance[known, n_known:])
        self.mean = gain.T @ y
        self.covariance = covariance[n_known:, n_known:] - covariance[n_known:, known] @ gain
        self.log_evidence = 0.0
        if len(context.y):
            of_all, of_old = (multivariate_normal.logpdf(y[p], cov=covariance[p, p]) for p in (known, old))
            self.log_evidence = of_all - of_old


def predict(prior, contexts, queries, size=None):
    size = max(len(context.y) for context in contexts) if size is None else size
    posterior = prior.condition(*pad_to(contexts, size, np.float64))
    return prior.marginals(posterior, queries), joint(prior, posterior, queries)


def joint(prior, posterior, queries):
    """Return the same prediction with the covariances of every noise and task."""
    alone = [(prior.take([posterior], np.array([i])), queries[i : i + 1]) for i in range(len(queries))]
    covariances = [[prior.weighted_covariance(*each, share) for each in alone] for share in np.eye(prior.n_components)]
    return prior.marginals(posterior, queries)._replace(variance=np.array(covariances))


@pytest.mark.parametrize("noise_only", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("environment", [False, True])
@pytest.mark.parametrize("input_dim", [1, 2, 8])
def test_predictions_equal_dense_conditioning_on_everything(input_dim, environment, family, noise_only):
    """Which includes the uncertainty of the common mean, since the training readings are conditioned on."""
    prior, training = fitted(input_dim, environment, noise_only)[family], make_tasks(input_dim)
    contexts, queries = new_tasks(input_dim)
    marginals, joined = predict(prior, contexts, queries)
    assert marginals.mean.shape == marginals.variance.shape == (3, 3, 3)
    noise_variances = np.exp(2.0 * marginals.parameters[:, 0])
    np.testing.assert_allclose(noise_variances, prior.scaling.y_std**2 * prior.noise_variance * FACTORS**2)
    for i, (context, query) in enumerate(zip(contexts, queries, strict=True)):
        dense = [Dense(prior, training, IS_TARGET, context, query, factor) for factor in FACTORS]
        log_weights = np.log(WEIGHTS) + [each.log_evidence for each in dense]
        np.testing.assert_allclose(marginals.log_weights[:, i], log_weights - logsumexp(log_weights), atol=1e-6)
        for k, each in enumerate(dense):
            np.testing.assert_allclose(marginals.mean[k, i], each.mean, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(marginals.variance[k, i], np.diagonal(each.covariance), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(joined.variance[k, i], each.covariance, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("environment", [False, True])
def test_joint_predictions_have_the_marginals(environment, family):
    prior = fitted(2, environment)[family]
    marginals, joined = predict(prior, *new_tasks(2))
    np.testing.assert_array_equal(joined.mean, marginals.mean)
    np.testing.assert_array_equal(joined.log_weights, marginals.log_weights)
    np.testing.assert_allclose(np.diagonal(joined.variance, axis1=2, axis2=3), marginals.variance, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(joined.variance, np.swapaxes(joined.variance, 2, 3), atol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_uncertainty_of_the_common_mean_by_monte_carlo(family):
    """Weights of the mean drawn from their posterior, weighted by the evidence of the context given them."""
    prior, factor = fitted(1, True)[family], 1.4
    prior = replace(prior, scales=TaskScales(np.array([factor]), np.zeros(1), False))
    contexts, queries = new_tasks(1, sizes=(3,))
    [[mean]], [[variance]] = predict(prior, contexts, queries)[0][:2]
    terms = prior.terms
    m = terms.weights + np.random.default_rng(0).normal(size=(40_000, len(terms.weights))) @ terms.weights_root.T
    context, query = contexts[0], queries[0]
    common = mean_features(prior, np.concatenate([context.x, query])) @ m.T
    noise = prior.noise_variance * factor**2 + NOISE_FLOOR
    covariance = own_kernel(prior, context.x, context.x, factor) + noise * np.eye(3)
    cross = own_kernel(prior, context.x, query, factor)
    gain = np.linalg.solve(covariance, cross)
    residual = context.y - common[:3].T
    log_weights = multivariate_normal.logpdf(residual, cov=covariance)
    weights = np.exp(log_weights - logsumexp(log_weights))
    means = common[3:].T + residual @ gain
    expected = weights @ means
    error = np.sqrt(np.sum((weights[:, None] * (means - expected)) ** 2, axis=0))
    assert np.all(np.abs(mean - expected) < 4.0 * error)
    squares = (means - expected) ** 2
    between = weights @ squares
    error = np.sqrt(np.sum((weights[:, None] * (squares - between)) ** 2, axis=0))
    within = np.diagonal(own_kernel(prior, query, query, factor) - cross.T @ gain)
    assert np.all(np.abs(variance - within - between) < 4.0 * error)
    assert np.all(between > 10.0 * error)


def test_the_linear_family_is_a_linear_mixed_model():
    """Henderson's equations for common and own intercepts and slopes give the same predictions."""
    tasks = make_tasks(2)
    training = TrainingTasks(identity_scaling(2), tasks, np.ones(6), np.ones(6))
    prior = fit_families(training, False, 0.3).priors[LINEAR]
    [context], [query] = new_tasks(2, sizes=(4,))
    lines = [np.column_stack([np.ones(len(task.y)), task.x]) for task in (*tasks, context)]
    y = np.concatenate([task.y for task in (*tasks, context)])
    fixed, random = np.concatenate(lines), np.zeros((len(y), 3 * len(lines)))
    ends = np.cumsum([len(each) for each in lines])
    for i, (each, end) in enumerate(zip(lines, ends, strict=True)):
        random[end - len(each) : end, 3 * i : 3 * i + 3] = each
    design = np.concatenate([fixed, random], axis=1) / np.sqrt(0.09 + NOISE_FLOOR)
    stds = np.concatenate([np.full(3, COMMON_STD), np.tile(np.exp(prior.terms.theta[:3]), len(lines))])
    precision = design.T @ design + np.diag(stds**-2.0)
    effects = np.linalg.solve(precision, design.T @ y / np.sqrt(0.09 + NOISE_FLOOR))
    at_query = np.zeros((3, len(effects)))
    at_query[:, :3] = at_query[:, -3:] = np.column_stack([np.ones(3), query])
    _, joined = predict(prior, [context], query[None])
    np.testing.assert_allclose(joined.mean[0, 0], at_query @ effects, rtol=1e-6)
    np.testing.assert_allclose(joined.variance[0, 0], at_query @ np.linalg.solve(precision, at_query.T), rtol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_of_contexts_does_not_matter(family):
    prior = fitted(2, True)[family]
    contexts, queries = new_tasks(2)
    x, y, mask = pad_to(contexts, 7, np.float64)
    posterior = prior.condition(np.where(mask[..., None], x, 0.4), np.where(mask, y, 9.0), mask)
    joined = prior.marginals(posterior, queries), joint(prior, posterior, queries)
    for i, context in enumerate(contexts):
        alone = predict(prior, [context], queries[i : i + 1])
        for padded, plain in zip(joined, alone, strict=True):
            np.testing.assert_allclose(padded.mean[:, i], plain.mean[:, 0], rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(padded.variance[:, i], plain.variance[:, 0], rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(padded.log_weights[:, i], plain.log_weights[:, 0], atol=1e-9)


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_empty_context_gives_the_prior(family, size):
    prior = fitted(1, False)[family]
    query = np.linspace(-1.0, 1.0, 3)[:, None]
    empty = Task(np.zeros((0, 1)), np.zeros(0))
    _, joined = predict(prior, [empty], query[None], size)
    common = mean_features(prior, query)
    root = common @ prior.terms.weights_root
    for k, factor in enumerate(FACTORS):
        np.testing.assert_allclose(joined.mean[k, 0], common @ prior.terms.weights)
        own = own_kernel(prior, query, query, factor)
        np.testing.assert_allclose(joined.variance[k, 0], root @ root.T + own, atol=1e-9)
    np.testing.assert_allclose(np.exp(joined.log_weights[:, 0]), WEIGHTS)


def test_the_weights_of_scales_follow_the_readings():
    prior = fitted(1, False)[LINEAR]
    x = np.linspace(-1.0, 1.0, 8)[:, None]
    wiggle = np.tile([1.0, -1.0], 4)
    contexts = [Task(x, x[:, 0] + np.sqrt(noise) * wiggle) for noise in prior.factors.noise]
    log_weights = predict(prior, contexts, np.zeros((3, 1, 1)))[0].log_weights
    assert np.argmax(log_weights, axis=0).tolist() == [0, 1, 2]
    np.testing.assert_allclose(np.exp(log_weights).sum(axis=0), 1.0)


@pytest.mark.parametrize("family", [LINEAR, SHAPES])
def test_posteriors_are_joined_and_picked(family):
    prior = fitted(2, True)[family]
    contexts, queries = new_tasks(2, sizes=(4, 2, 3, 1))
    expected = prior.marginals(prior.condition(*pad_to(contexts, 4, np.float64)), queries)
    halves = [prior.condition(*pad_to(half, 4, np.float64)) for half in (contexts[:1], contexts[1:])]
    places = np.array([3, 0, 2])
    found = prior.marginals(prior.take(halves, places), queries[places])
    np.testing.assert_allclose(found.mean, expected.mean[:, places], rtol=1e-9)
    np.testing.assert_allclose(found.variance, expected.variance[:, places], rtol=1e-9)
    np.testing.assert_allclose(found.log_weights, expected.log_weights[:, places], rtol=1e-9)


def test_a_context_without_noise_and_with_repeated_inputs():
    prior = replace(fitted(1, False)[SHAPES], parameters=np.array([-300.0]), scales=ONE_SCALE)
    x = np.repeat(np.linspace(-1.0, 1.0, 10), 3)[:, None]
    context = Task(x, np.sin(x[:, 0]))
    marginals, joined = predict(prior, [context], x[None, ::3])
    np.testing.assert_allclose(marginals.mean[0, 0], context.y[::3], atol=1e-3)
    assert np.all(marginals.variance >= 0.0)
    assert np.all(marginals.variance < 1e-4)
    assert np.isfinite(joined.variance).all()


def test_what_a_member_says_about_itself():
    prior = fitted(2, False)[LINEAR]
    assert (prior.input_dim, prior.n_components) == (2, 3)
    assert prior.float32_problem(10**6, standardized=False) is None
