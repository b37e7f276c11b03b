"""The evidence of labels against dense algebra, its slopes, and the mode of theta."""

import numpy as np
import pytest
from label_problems import as_tasks, dense_evidence, make_block
from small_problems import make_problem, make_tasks

from hand_made_priors import LINES, SMOOTH, make_terms
from metaprior.prior.label_evidence import EvidenceOfLabels, LabelBlock, label_evidence, label_slopes
from metaprior.prior.modes import climb, log_density
from metaprior.tasks.types import Task

PROBLEMS = {
    "two classes": {"n_classes": (2, 2, 2)},
    "three classes": {"n_classes": (3, 3, 3)},
    "two classes, common mean": {"n_classes": (2, 2, 2), "n_features": 3},
    "three classes, common mean": {"n_features": 4, "counts": (1.0, 0.3, 2.5)},
    "different numbers of classes": {"n_classes": (2, 4, 3), "n_features": 2, "counts": (0.5, 1.0, 1.0)},
    "one sample": {"sizes": (1, 1, 5), "n_classes": (3, 2, 3), "n_features": 2, "n": 7},
}


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_mode_and_evidence_are_those_of_dense_algebra(problem):
    block = make_block(**problem)
    found, expected = label_evidence([block]), dense_evidence(as_tasks(block))
    assert found.converged
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-9)
    np.testing.assert_allclose(found.weights.ravel(), expected.weights, atol=1e-5)
    np.testing.assert_allclose(found.root @ found.root.T @ expected.precision, np.eye(len(found.root)), atol=1e-5)
    latent = block.mean(found.weights) + block.labels.deviation(found.coefficients[0])
    for t, mask, of_task in zip(latent, block.labels.mask, expected.latent, strict=True):
        np.testing.assert_allclose(t[:, mask > 0].ravel(), of_task, atol=1e-4)


def test_two_classes_are_softmax_with_two_latent_functions():
    """Whose difference has twice the covariance, and features that are larger by the root of two."""
    block = make_block(sizes=(6, 4), n_classes=(2, 2), n_features=3, counts=(1.0, 0.4))
    softmax = []
    for task in as_tasks(block):
        y, identity = np.concatenate([1.0 - task.y, task.y]), np.eye(2)
        parts = np.kron(identity, 0.5 * task.covariance), np.kron(identity, np.sqrt(0.5) * task.features)
        softmax.append(task._replace(y=y, possible=np.ones(2, bool), covariance=parts[0], features=parts[1]))
    expected, found = dense_evidence(softmax), label_evidence([block])
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-9)
    first, second = expected.weights.reshape(2, 3)
    np.testing.assert_allclose(found.weights[0], np.sqrt(0.5) * (second - first), atol=1e-5)


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_slopes_are_those_of_central_differences(problem, scale):
    block = make_block(seed=1, scale=scale, **problem)
    labels, blocks = block.labels, [block, block._replace(counts=0.5 * block.counts)]
    found = label_evidence(blocks)
    [(by_covariance, by_features), _] = label_slopes(blocks, found)
    rng, inside = np.random.default_rng(2), labels.mask[:, :, None] * labels.mask[:, None]
    change = rng.normal(size=labels.covariance.shape) * inside
    change = labels.covariance * (change + np.swapaxes(change, 1, 2))
    change_features = rng.normal(size=block.features.shape) * labels.mask[..., None]

    def value(step, step_features):
        moved = labels._replace(covariance=labels.covariance + step * change)
        first = block._replace(labels=moved, features=block.features + step_features * change_features)
        return label_evidence([first, blocks[1]], found.coefficients).value

    step = 1e-5
    expected = (value(step, 0.0) - value(-step, 0.0)) / (2.0 * step)
    np.testing.assert_allclose(np.sum(by_covariance * change), expected, rtol=1e-4, atol=1e-5)
    expected = (value(0.0, step) - value(0.0, -step)) / (2.0 * step)
    np.testing.assert_allclose(np.sum(by_features * change_features), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n_features", [0, 3])
def test_padding_changes_nothing(n_features):
    problem = {"sizes": (5, 3), "n_classes": (3, 2), "n_features": n_features}
    block = make_block(**problem)
    labels = block.labels
    wider = [(0, 0), (0, 2)]
    padded = LabelBlock(
        labels._replace(
            y=np.pad(labels.y, [(0, 0), (0, 1), (0, 2)]),  # a class that no task has
            possible=np.pad(labels.possible, [(0, 0), (0, 1)]),
            mask=np.pad(labels.mask, wider),
            covariance=np.pad(labels.covariance, [*wider, (0, 2)]),
        ),
        np.pad(block.features, [*wider, (0, 0)]),
        block.counts,
    )
    plain, wide = label_evidence([block]), label_evidence([padded])
    np.testing.assert_allclose(wide.value, plain.value, rtol=1e-12)
    np.testing.assert_allclose(wide.weights[:3], plain.weights, atol=1e-10)
    np.testing.assert_allclose(wide.coefficients[0][:, :3, :5], plain.coefficients[0], atol=1e-10)
    for of_wide, of_plain in zip(label_slopes([padded], wide)[0], label_slopes([block], plain)[0], strict=True):
        np.testing.assert_allclose(of_wide[:, :5, : of_plain.shape[2]], of_plain, atol=1e-8)


def test_a_start_near_the_mode_finds_the_same():
    for n_features in (0, 3):
        block = make_block(n_features=n_features)
        found = label_evidence([block])
        other = make_block(n_features=n_features, scale=5.0)
        for start in (found.coefficients, label_evidence([other]).coefficients, [-3.0 * found.coefficients[0]]):
            np.testing.assert_allclose(label_evidence([block], start).value, found.value, rtol=1e-9)


SLOPE_PROBLEMS = [(LINES, 2), (SMOOTH, 2), (make_terms("curve", "deviation", "environment"), 1)]


def make_density(terms, input_dim, n_classes, common):
    """Readings of small tasks, cut into classes of about the same size."""
    tasks = make_tasks(input_dim)
    cuts = np.quantile(np.concatenate([task.y for task in tasks]), np.arange(1, n_classes) / n_classes)
    tasks = [Task(task.x, np.searchsorted(cuts, task.y).astype(float)) for task in tasks]
    layout, theta, blocks, points = make_problem(terms, input_dim, 0.0, tasks)
    numbers = [np.full(len(block.counts), n_classes) for block in blocks]
    given = {"blocks": blocks, "points": points, "evidence": EvidenceOfLabels(numbers, common)}
    return layout, lambda t, gradient=True: log_density(layout, t, gradient=gradient, **given), theta


@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize(("terms", "input_dim"), SLOPE_PROBLEMS)
def test_the_slope_is_that_of_central_differences(terms, input_dim, n_classes, common):
    _, density, theta = make_density(terms, input_dim, n_classes, common)
    for i, step in enumerate(1e-4 * np.eye(len(theta))):
        expected = (density(theta + step, False).value - density(theta - step, False).value) / 2e-4
        np.testing.assert_allclose(density(theta).slope[i], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_mode_is_stationary_and_a_maximum(n_classes):
    layout, density, theta = make_density(SMOOTH, 2, n_classes, common=True)
    mode = climb(layout, lambda t, gradient=True: density(t, gradient)[:2])
    value, slope, _ = density(mode.theta)
    assert mode.value == pytest.approx(value, rel=1e-8)
    assert np.max(np.abs(slope)) < 0.02
    rng = np.random.default_rng(0)
    for other in (theta, *(mode.theta + 0.2 * rng.normal(size=(4, len(theta))))):
        assert density(other, False).value < value
