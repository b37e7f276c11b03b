"""The weighted free energy of labeled tasks: against scikit-learn and finite differences, ragged and weighted."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from metaprior.tasks.types import Task
from metaprior.wfem import objective
from metaprior.wfem.hyperprior import make_density, split
from metaprior.wfem.kernels import RBFKernel
from metaprior.wfem.likelihoods import Bernoulli
from metaprior.wfem.means import ZeroMean
from metaprior.wfem.objective import pad_tasks
from metaprior.wfem.prior import make_prior

FLAT = np.array([0.2, 1.1])  # log length scale and log output scale
RAGGED, WEIGHTS = [[2, 9, 3], [3, 9]], (0.3, 0.7)


def draw_environments(sizes, seed=0):
    rng = np.random.default_rng(seed)
    return [[Task(rng.normal(size=(n, 1)), (np.arange(n) % 2).astype(float)) for n in group] for group in sizes]


def make_problem(environments, weights, gamma=2.5):
    dtype = jnp.zeros(()).dtype
    theta, rest = split(make_prior(jax.random.key(0), 1, ZeroMean(), RBFKernel(), Bernoulli()))
    theta = ravel_pytree(theta)[1](jnp.asarray(FLAT, dtype))
    hyperprior = make_density(theta, {"scales": 0.0}, {"scales": 0.7})
    tasks = jax.tree.map(jnp.asarray, pad_tasks(environments, dtype))
    return theta, objective.Problem(tasks, rest, hyperprior, jnp.asarray(weights, dtype), jnp.asarray(gamma, dtype))


@eqx.filter_jit
def density_and_score(theta, problem, batches=None):
    value, score = jax.value_and_grad(objective.log_gibbs)(theta, problem, batches)
    return value, ravel_pytree(score)[0]


def by_hand(flat, environments, weights, gamma=2.5):
    """Log Gibbs density by a loop over tasks, the evidence of each by scikit-learn."""
    kernel = ConstantKernel(np.exp(flat[1]), "fixed") * RBF(np.exp(flat[0]), "fixed")
    loss = 0.0
    for tasks, weight in zip(environments, weights, strict=True):
        for x, y in tasks:
            model = GaussianProcessClassifier(kernel, optimizer=None, max_iter_predict=1000).fit(x, y)
            loss -= weight / len(tasks) * model.log_marginal_likelihood_value_ / len(y)
    return stats.norm(0.0, 0.7).logpdf(flat).sum() - gamma * loss


def test_density_and_score_equal_a_loop_over_tasks(x64):
    environments = draw_environments(RAGGED)
    value, score = density_and_score(*make_problem(environments, WEIGHTS))
    assert value == pytest.approx(by_hand(FLAT, environments, WEIGHTS), rel=1e-8)
    for slope, step in zip(score, 1e-3 * np.eye(2), strict=True):  # scikit-learn stops its Newton steps at 1e-10
        after, before = (by_hand(FLAT + move, environments, WEIGHTS) for move in (step, -step))
        assert slope == pytest.approx((after - before) / 2e-3, rel=1e-4)


def test_an_environment_of_weight_zero_leaves_no_trace(x64):
    environments = draw_environments(RAGGED)
    wild = [[Task(1e200 * np.sign(x), y) for x, y in environments[0]], environments[1]]
    got = density_and_score(*make_problem(wild, (0.0, 1.0)))
    for part, other in zip(got, density_and_score(*make_problem(environments, (0.0, 1.0))), strict=True):
        np.testing.assert_array_equal(part, other)
