"""The contract of terms, each alone and all together; and what they are, against tinygp and formulas written out."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
import tinygp
from small_problems import COUNTS, IS_TARGET, KINDS, MIXED, blocks_of, make_problem, make_tasks
from test_member_files import read_back

from hand_made_priors import ALL_TERMS, LINES, SMOOTH, TERMS_OF_COVARIATES, make_prior, make_terms
from metaprior.prior.blocks import make_blocks
from metaprior.prior.columns import MAX_ARD, Columns
from metaprior.prior.evidence import collapse
from metaprior.prior.features import with_features
from metaprior.prior.layout import Layout
from metaprior.prior.modes import log_density, with_curve
from metaprior.prior.process import KERNELS
from metaprior.tasks.types import Task

SHARED = replace(MIXED, separate=False)
COLUMNS = {"one input": 1, "three": 3, "eight": 8, "mixed": MIXED, "mixed, shared scales": SHARED}
CASES = [(name, terms, of, columns) for name, terms in ALL_TERMS.items() for of, columns in COLUMNS.items()]
CASES += [(name, each, of, COLUMNS[of]) for name, each in TERMS_OF_COVARIATES.items() for of in list(COLUMNS)[3:]]
all_cases = pytest.mark.parametrize(
    ("terms", "columns"), [pytest.param(*case[1::2], id=f"{case[0]}, {case[2]}") for case in CASES]
)
MATERN, EVERYTHING, ALL = ALL_TERMS["deviation, matern32"], ALL_TERMS["everything"], TERMS_OF_COVARIATES["everything"]
UNCORRELATED = (LINES[0], *EVERYTHING[1:])


def finite_differences(function, theta, step=1e-5):
    steps = step * np.eye(len(theta))
    return np.array([(function(theta + change) - function(theta - change)) / (2.0 * step) for change in steps])


def assert_gradient(layout, theta, blocks, points):
    expected = finite_differences(lambda t: log_density(layout, t, blocks, points, gradient=False).value, theta)
    np.testing.assert_allclose(log_density(layout, theta, blocks, points).slope, expected, rtol=1e-5, atol=1e-6)


def parts_of(layout, theta, blocks, points):
    prior = layout.at(theta, points)
    return [prior.on(block) for block in blocks]


@all_cases
def test_the_gradient(terms, columns):
    assert_gradient(*make_problem(terms, columns))


@pytest.mark.parametrize("columns", [1, 3, MIXED])
def test_the_gradient_where_all_inputs_coincide_and_the_noise_is_given(columns):
    width = columns if isinstance(columns, int) else 4 + 7
    tasks = [Task(np.ones((3, width)), np.array([0.1, 0.5, -0.2])), Task(np.ones((1, width)), np.ones(1))]
    for terms in (EVERYTHING, MATERN) if isinstance(columns, int) else (ALL,):
        assert_gradient(*make_problem(terms, columns, -1.3, tasks, np.ones(2), np.array([1.0, 0.0])))


@all_cases
def test_the_process_of_a_new_task_is_that_of_the_fit(terms, columns):
    """`describe` and `covariance` say of padded tasks what blocks do; saved terms say the same."""
    kinds = KINDS if isinstance(columns, Columns) else None
    prior = make_prior(terms, columns, kinds=kinds)
    fitted = prior.terms
    layout, points = fitted.layout, fitted.points
    blocks = make_blocks(make_tasks(layout.columns), COUNTS, IS_TARGET, points, layout.columns)
    blocks = blocks if fitted.curve is None else with_curve(blocks, fitted.curve, layout)
    blocks = blocks if fitted.network is None else with_features(blocks, fitted.network)
    again = read_back(prior, kinds=kinds).process
    for part in parts_of(layout, fitted.theta, blocks, points):
        block = part.block
        described = fitted.process.describe(block.x, block.mask)
        features = fitted.mean_features(described, block.is_target)
        np.testing.assert_allclose(features, part.features, rtol=1e-9, atol=1e-10)
        lines, rest = fitted.process.deviations(described, described)
        np.testing.assert_allclose(lines + rest, part.covariance(), rtol=1e-9, atol=1e-10)
        target = fitted.mean_features(described, np.ones(len(block.y)))
        found = described.common @ fitted.process.common_mean
        np.testing.assert_allclose(found, target @ fitted.weights, rtol=1e-9, atol=1e-10)
        root = target @ fitted.weights_root
        fixed, scaled = fitted.process.covariance(described, described)
        np.testing.assert_allclose(fixed, lines + root @ root.mT, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(scaled, rest)
        variances = np.add(*fitted.process.variance(described)) * block.mask
        np.testing.assert_allclose(variances, np.diagonal(fixed + scaled, axis1=1, axis2=2), rtol=1e-9, atol=1e-10)
        for kept, expected in zip(again.describe(block.x, block.mask), described, strict=True):
            np.testing.assert_array_equal(kept, expected)


def everything_of(layout, theta, blocks, points):
    value, slope, parts = log_density(layout, theta, blocks, points)
    collapsed = collapse([part.given() for part in parts])
    return np.concatenate([[value], slope, collapsed.mean, (collapsed.root @ collapsed.root.T).ravel()])


@pytest.mark.parametrize(("terms", "columns"), [(EVERYTHING, 1), (EVERYTHING, 8), (MATERN, 2), (ALL, MIXED)])
def test_padding_order_counts_of_two_and_counts_of_zero(terms, columns):
    """Given the common mean, copies of a task are independent: each has a deviation of its own."""
    tasks, counts = make_tasks(columns), np.where(np.arange(6) == 2, 2.0, COUNTS)
    layout, theta, blocks, points = make_problem(terms, columns, counts=counts)
    assert len(blocks) > 1
    wild = Task(np.full((4, tasks[0].x.shape[1]), 0.7) * np.arange(4)[:, None], np.array([50.0, -50.0, 3.0, 0.0]))
    order = np.array([3, 0, 5, 1, 4, 2])
    others = {
        "one block": (tasks, counts, IS_TARGET, 1),
        "order": ([tasks[i] for i in order], counts[order], IS_TARGET[order]),
        "a copy": (
            [*tasks, tasks[2]],
            np.append(np.minimum(counts, 1.0) + 1.5 * (counts == 2.5), 1.0),
            [*IS_TARGET, 0],
        ),
        "no count": ([*tasks, wild], [*counts, 0.0], [*IS_TARGET, 1.0]),
    }
    expected = everything_of(layout, theta, blocks, points)
    for name, (each, of_each, is_target, *rest) in others.items():
        changed = blocks_of(layout, points, each, np.array(of_each), np.array(is_target), *rest)
        found = everything_of(layout, theta, changed, points)
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8, err_msg=name)


def linear_kernel(stds):
    """tinygp's kernel of a line with independent normal intercept and slopes."""
    slopes = tinygp.transforms.Linear(jnp.asarray(stds[1:]), tinygp.kernels.DotProduct())
    return tinygp.kernels.Constant(jnp.asarray(stds[0] ** 2)) + slopes


def smooth_kernel(kernel, scale, lengths, input_dim):
    inverse = jnp.asarray(np.broadcast_to(1.0 / lengths, input_dim))
    return jnp.asarray(scale**2) * tinygp.transforms.Linear(inverse, kernel)


def matern32():
    return tinygp.kernels.Matern32(distance=tinygp.kernels.distance.L2Distance())


PEERS = {"rbf": tinygp.kernels.ExpSquared, "matern32": matern32}  # made when used: in 64 bits


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("input_dim", [1, 2, 8])
def test_deviations_against_tinygp(x64, input_dim, name):
    layout, theta, blocks, points = make_problem(make_terms("curve", "deviation", kernel=name), input_dim)
    lengths, scale = layout.scale(theta, "lengths"), layout.scale(theta, "deviation")[0]
    stds = layout.scale(theta, "line")
    kernel = linear_kernel(np.concatenate([stds[:1], np.broadcast_to(stds[1:], input_dim)]))
    kernel += smooth_kernel(PEERS[name](), scale, lengths, input_dim)
    for part in parts_of(layout, theta, blocks, points):
        for x, mask, found in zip(part.block.x, part.block.mask, part.covariance(), strict=True):
            expected = np.asarray(kernel(jnp.asarray(x), jnp.asarray(x))) * np.outer(mask, mask)
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)


def test_the_hyper_prior_of_every_group():
    layout = Layout(UNCORRELATED, Columns(2))
    assert layout.places == {
        "noise": slice(0, 1),
        "line": slice(1, 4),
        "mean": slice(4, 5),
        "mean_lengths": slice(5, 7),
        "deviation": slice(7, 8),
        "lengths": slice(8, 10),
        "deformation": slice(10, 13),
        "feature_mean": slice(13, 14),
        "features": slice(14, 22),
        "environment": slice(22, 23),
    }
    center = [-1.0] * 4 + [-0.5, 0.5, 0.5, -1.0, 0.5, 0.5] + [-1.5] * 3 + [0.0] * 9 + [-1.5]
    np.testing.assert_array_equal(layout.center, center)
    np.testing.assert_array_equal(layout.spread, [1.5] * 4 + [1.0] * 3 + [1.5] + [1.0] * 5 + [1.5] * 9 + [1.0])
    assert Layout(SMOOTH, Columns(1)).center.tolist() == [-1.0, -1.0, -1.0, -0.5, 0.0, -1.0, 0.0]
    many = Layout(UNCORRELATED, Columns(MAX_ARD + 1))
    sizes = {name: place.stop - place.start for name, place in many.places.items()}
    assert (sizes["line"], sizes["trend"], sizes["lengths"], sizes["deformation"]) == (2, 1, 1, 1)
    at = many.at(np.log(np.arange(1.0, 1.0 + len(many.center))), np.zeros((1, MAX_ARD + 1)))
    np.testing.assert_allclose(many.find("line").stds(at), [2.0] + [3.0] * (MAX_ARD + 1))


def test_the_density_adds_the_hyper_prior():
    layout, theta, blocks, points = make_problem(LINES, 1)
    without = log_density(layout, theta, blocks, points)
    z = (theta - layout.center) / layout.spread
    assert without[0] == pytest.approx(collapse([part.given() for part in without.parts]).value - 0.5 * np.sum(z**2))


def test_starting_points_vary_the_length_scales():
    layout = Layout(UNCORRELATED, Columns(2))
    starts = np.array(layout.starts()) - layout.center
    lengths = np.r_[5:7, 8:10]
    np.testing.assert_allclose(starts[:, lengths], np.repeat([[0.0], [-1.4], [-0.7], [0.7]], 4, axis=1))
    assert not np.delete(starts, lengths, axis=1).any()
    line = Layout(make_terms("environment"), Columns(2))
    [only] = line.starts()
    np.testing.assert_array_equal(only, line.center)
