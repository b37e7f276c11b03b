"""The Gibbs hyper-posterior that users' own samplers and optimizers take: against NumPy, and what MAP climbs."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats

from metaprior.wfem import MAP, HyperPrior, Training, WFEMClassifier, WFEMRegressor

PLAIN = {"standardize": False, "dtype": "float64"}
SMALL = {"kernel": "rbf", "mean": "constant", "alpha": 0.3, "random_state": 0, "training": Training(**PLAIN)}


def make_tasks(sizes, seed):
    rng = np.random.default_rng(seed)
    inputs = [rng.uniform(-2, 2, (size, 1)) for size in sizes]
    return [(x, np.sin(x[:, 0]) + 0.1 * rng.normal(size=len(x))) for x in inputs]


SOURCE, TARGET = make_tasks((3, 5, 2, 3), 0), make_tasks((4, 3), 1)
# 1 / gamma = 1 / N + 1 / Mtilde: six tasks whose sizes have the harmonic mean Mtilde.
INVERSE_SIZES = np.array([1 / 3, 1 / 5, 1 / 2, 1 / 3, 1 / 4, 1 / 3])
PAPER = 1 / (1 / 6 + INVERSE_SIZES.mean())

CENTERS = (0.0, 0.0, 0.0, np.log(0.1))  # of the constant, and of logarithms of length, scale and noise


def by_hand(theta, weights=(0.3, 0.7), gamma=PAPER, centers=CENTERS, std=1.0):
    """Return log p(theta) - gamma Lbar(theta) by a loop over tasks."""
    mean, log_length, log_scale, log_noise = theta
    loss = 0.0
    for tasks, weight in zip((SOURCE, TARGET), weights, strict=True):
        for x, y in tasks:
            covariance = np.exp(log_scale - 0.5 * (x - x.T) ** 2 / np.exp(2 * log_length))
            covariance += np.exp(2 * log_noise) * np.eye(len(y))
            evidence = stats.multivariate_normal(np.full(len(y), mean), covariance).logpdf(y)
            loss -= weight / len(tasks) * evidence / len(y)
    return stats.norm(centers, std).logpdf(theta).sum() - gamma * loss


def flatten(gibbs):
    """Return the density of a vector, and where training starts as one."""
    start, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], gibbs.initial))
    return jax.jit(lambda flat: gibbs.log_density(unravel(flat))), start


POINTS = np.array([CENTERS, [0.3, -0.4, 0.2, -1.5], [-1.0, 0.7, -0.5, -0.3]])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("arguments", "how"),
    [
        ({}, {}),
        ({"alpha": 0.0}, {"weights": (0.0, 1.0), "gamma": PAPER}),
        ({"temperature": 7.0}, {"gamma": 7.0}),
        ({"temperature": "bayes", "alpha": "pooled"}, {"weights": (4 / 6, 2 / 6), "gamma": 6 / INVERSE_SIZES.mean()}),
        ({"hyperprior": HyperPrior(std=0.4)}, {"std": 0.4}),
        ({"hyperprior": HyperPrior({"biases": 2.0, "scales": "zero"})}, {"centers": (2.0, 0.0, 0.0, 0.0)}),
    ],
)
def test_it_is_the_formula(arguments, how):
    density, start = flatten(WFEMRegressor(**{**SMALL, **arguments}).gibbs(SOURCE, TARGET))
    np.testing.assert_allclose(start, POINTS[0], atol=1e-12)
    found = jax.jit(jax.vmap(density))(jnp.asarray(POINTS))
    np.testing.assert_allclose(found, [by_hand(point, **how) for point in POINTS], rtol=1e-9)
    score = jax.jit(jax.grad(density))(jnp.asarray(POINTS[1]))
    for slope, step in zip(score, 1e-5 * np.eye(4), strict=True):
        after, before = (by_hand(POINTS[1] + move, **how) for move in (step, -step))
        assert float(slope) == pytest.approx((after - before) / 2e-5, rel=1e-6, abs=1e-8)


@pytest.mark.usefixtures("x64")
def test_another_optimizer_and_map_end_at_the_same_mode():
    meta = WFEMRegressor(**{**SMALL, "training": Training(n_steps=1500, learning_rate=0.02, **PLAIN)})
    density, flat = flatten(meta.gibbs(SOURCE, TARGET))
    search = optax.lbfgs()
    state, loss = search.init(flat), jax.jit(lambda flat: -density(flat))
    slope = optax.value_and_grad_from_state(loss)

    @jax.jit
    def step(flat, state):
        value, gradient = slope(flat, state=state)
        moves, state = search.update(gradient, state, flat, value=value, grad=gradient, value_fn=loss)
        return optax.apply_updates(flat, moves), state

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for _ in range(40):
            flat, state = step(flat, state)
    found = ravel_pytree(meta.fit(SOURCE, TARGET).particles_)[0]
    np.testing.assert_allclose(found, flat, atol=1e-4)
    assert np.abs(np.asarray(flat) - POINTS[0]).max() > 0.1


def test_it_is_in_single_precision_without_the_switch():
    density, start = flatten(WFEMRegressor(**SMALL).gibbs(SOURCE, TARGET))
    assert density(start).dtype == jnp.float32
    assert float(density(start)) == pytest.approx(by_hand(POINTS[0]), rel=1e-4)


@pytest.mark.usefixtures("x64")
def test_it_starts_from_as_many_particles_as_training_does():
    meta = WFEMRegressor(**{**SMALL, "inference": MAP(3), "training": Training(n_steps=0, **PLAIN)})
    initial = jax.tree.leaves(meta.gibbs(SOURCE, TARGET).initial)
    for leaf, trained in zip(initial, jax.tree.leaves(meta.fit(SOURCE, TARGET).particles_), strict=True):
        np.testing.assert_array_equal(leaf, trained)
        assert len(np.unique(leaf)) == 3


@pytest.mark.usefixtures("x64")
def test_an_estimator_stays_as_it_was():
    meta = WFEMRegressor(**SMALL)
    before = dict(vars(meta))
    meta.gibbs(SOURCE, TARGET)
    assert vars(meta) == before


@pytest.mark.usefixtures("x64")
def test_tasks_are_standardized_unless_told_otherwise():
    """Then the density depends on no units, and is that of standardized tasks."""
    asked = {**SMALL, "training": Training()}
    scaled = [[(100.0 * x - 7.0, 3.0 * y + 5.0) for x, y in tasks] for tasks in (SOURCE, TARGET)]
    densities = [flatten(WFEMRegressor(**asked).gibbs(*tasks))[0] for tasks in ((SOURCE, TARGET), scaled)]
    found = [density(jnp.asarray(POINTS[1])) for density in densities]
    assert float(found[0]) == pytest.approx(float(found[1]), rel=1e-9)
    assert float(found[0]) != pytest.approx(by_hand(POINTS[1]), rel=1e-3)


@pytest.mark.parametrize(
    "arguments",
    [{"alpha": "auto"}, {"alpha": [0.0, 0.5]}, {"temperature": "auto"}, {"hyperprior": HyperPrior(std="auto")}],
)
def test_what_is_chosen_must_be_given(arguments):
    with pytest.raises(ValueError, match="alpha, temperature and the hyper-prior must be numbers or rules"):
        WFEMRegressor(**{**SMALL, **arguments}).gibbs(SOURCE, TARGET)


@pytest.mark.usefixtures("x64")
def test_mistakes_are_those_of_fit():
    with pytest.raises(ValueError, match="kernel must be one of mlp"):
        WFEMRegressor(kernel="auto").gibbs(SOURCE, TARGET)
    with pytest.raises(ValueError, match="both empty"):
        WFEMRegressor(**SMALL).gibbs()
    with pytest.raises(ValueError, match=r"source_tasks\[0\]: X and y must have the same"):
        WFEMRegressor(**SMALL).gibbs([(X, [0.0]) for X in ([[0.0], [1.0]],)])


@pytest.mark.usefixtures("x64")
def test_labels_have_one_too():
    """MAP climbs it: the density of its particles is above that of their start."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(6, 6, 1))
    tasks = [(x, np.where(x[:, 0] + 0.3 * rng.normal(size=6) > 0, "b", "a")) for x in inputs]
    how = {"temperature": "bayes", "random_state": 0, "training": Training(n_steps=200, learning_rate=0.03, **PLAIN)}
    meta = WFEMClassifier("rbf", "zero", **how)
    density, start = flatten(meta.gibbs(tasks[:3], tasks[3:]))
    found = ravel_pytree(meta.fit(tasks[:3], tasks[3:]).particles_)[0]
    assert density(jnp.asarray(found)) > density(start) + 0.1
    np.testing.assert_allclose(jax.grad(density)(jnp.asarray(found)), 0.0, atol=0.05)
