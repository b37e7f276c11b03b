"""From settings to runs: precision, what each method can be had of, scaling, seeds."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from metaprior.tasks.scaling import identity_scaling
from metaprior.tasks.types import Task
from metaprior.wfem import MAP, SVGD, ConstantMean, ConvEncoder, Gaussian, Laplace, MLPKernel, RBFKernel, ZeroMean
from metaprior.wfem.likelihoods import Bernoulli
from metaprior.wfem.runs import (
    check_method,
    draw_prior,
    make_run,
    make_scaling,
    scaling_template,
    stack_runs,
    training_dtype,
)
from metaprior.wfem.settings import Settings

SMALL = Settings(mean=ConstantMean(), kernel=RBFKernel(), likelihood=Gaussian(0.1))
LABELS = replace(SMALL, likelihood=Bernoulli())


def tasks_of(*sizes, seed=0):
    rng = np.random.default_rng(seed)
    return [Task(rng.normal(size=(n, 2)), rng.normal(size=n)) for n in sizes]


@pytest.mark.parametrize(
    ("settings", "sizes", "expected"),
    [
        (LABELS, (100, 5), "float32"),
        (LABELS, (101, 5), "float64"),
        (replace(LABELS, standardize=False), (5, 5), "float64"),
        (SMALL, (5, 5), "float32"),
        (replace(SMALL, likelihood=Gaussian(0.001)), (5, 5), "float64"),
        (replace(SMALL, likelihood=Gaussian()), (5, 5), "float32"),  # starts at a tenth of the spread
        (SMALL, (900, 5), "float64"),
    ],
)
def test_precision(settings, sizes, expected):
    """Single precision where it resolves the noise: noise^2 > 100 eps n for noise relative to the spread of y."""
    scaling = identity_scaling(2)
    assert training_dtype([tasks_of(*sizes)], (1.0,), scaling, settings) == expected
    large = tasks_of(5000)
    assert training_dtype([large, tasks_of(*sizes)], (0.0, 1.0), scaling, settings) == expected  # without weight


def test_noise_is_relative_to_the_spread():
    scaling = identity_scaling(2)._replace(y_std=np.float64(1000.0))
    assert training_dtype([tasks_of(5)], (1.0,), scaling, SMALL) == "float64"


@pytest.mark.parametrize("settings", [LABELS, replace(SMALL, kernel=MLPKernel())])
def test_laplace_is_for_gaussian_noise_and_few_parameters(settings):
    for method in (MAP(), SVGD(), MAP(3)):
        check_method(replace(settings, method=method), 2)
    check_method(replace(SMALL, method=Laplace()), 2)
    with pytest.raises(
        ValueError, match=r"inference='laplace' is for (Gaussian noise; for labels|priors of up to 2000)"
    ):
        check_method(replace(settings, method=Laplace()), 2)


def test_the_limit_of_laplace_is_included(monkeypatch):
    n_parameters, settings = 3, replace(SMALL, method=Laplace())  # a constant, two logarithms of scales
    monkeypatch.setattr("metaprior.wfem.runs.MAX_PARAMETERS", n_parameters)
    check_method(settings, 1)
    monkeypatch.setattr("metaprior.wfem.runs.MAX_PARAMETERS", n_parameters - 1)
    with pytest.raises(ValueError, match="up to 2 parameters; this one has 3"):
        check_method(settings, 1)


def test_templates_have_the_shapes_of_scalings():
    tasks = [Task(task.x, (task.y > 0).astype(float)) for task in tasks_of(6, 6)]
    for settings in (SMALL, LABELS, replace(LABELS, standardize="within-class"), replace(SMALL, standardize=False)):
        made, template = make_scaling([tasks], (1.0,), settings), scaling_template(2, settings)
        assert [np.shape(part) for part in made] == [np.shape(part) for part in template]
    images = replace(LABELS, standardize="within-class", encoder=ConvEncoder((2,)))
    assert scaling_template(2, images).x_map is None  # decorrelated pixels would have no neighbors


def test_noise_of_a_prior_is_in_units_of_the_spread():
    draw = lambda settings, y_std: draw_prior(jax.random.key(0), 1, settings, y_std, np.dtype("float32"))  # noqa: E731
    _, rest, _ = draw(SMALL, 2.0)
    assert np.exp(rest.likelihood.log_noise_std.value) == pytest.approx(0.05, rel=1e-5)
    theta, _, _ = draw(replace(SMALL, likelihood=Gaussian()), 2.0)
    assert np.exp(theta.likelihood.log_noise_std[0]) == pytest.approx(0.1, rel=1e-5)
    with pytest.raises(ValueError, match="leave nothing to learn"):
        draw(Settings(mean=ZeroMean(), kernel=Untrained()), 1.0)


class Untrained:
    """A kernel without parameters."""

    def build(self, key, input_dim):
        return lambda X1, X2=None: X1[:, 0] * 0.0 + 1.0 if X2 is None else X1 @ X2.T * 0.0 + 1.0


def test_runs_are_stacked_and_do_not_depend_on_the_number_of_particles():
    environments = [tasks_of(4, 4), tasks_of(4, seed=1)]
    scaling = make_scaling(environments, (0.3, 0.7), SMALL)
    one, two = (make_run(environments, (0.3, 0.7), scaling, SMALL, seed) for seed in (0, 1))
    stacked = stack_runs([one, two])
    for leaf, first, second in zip(
        *map(jax.tree.leaves, (stacked.particles, one.particles, two.particles)), strict=True
    ):
        np.testing.assert_array_equal(leaf, np.stack([first, second]))
    assert stacked.key.shape == (2,)
    np.testing.assert_allclose(stacked.problem.environment_weights, [[0.3, 0.7]] * 2, rtol=1e-6)
    several = make_run(environments, (0.3, 0.7), scaling, replace(SMALL, method=SVGD(3)), 0)
    for leaf, first in zip(*map(jax.tree.leaves, (several.particles, one.particles)), strict=True):
        np.testing.assert_array_equal(leaf[0], first[0])
    given = make_run(environments, (0.3, 0.7), scaling, replace(SMALL, temperature=7.0, temperature_factor=2.0), 0)
    assert float(given.problem.temperature) == 14.0
