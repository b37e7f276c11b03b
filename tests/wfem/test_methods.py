"""SVGD against BlackJAX, closed forms and Gaussian targets; MAP; and where particles start."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest
from blackjax.vi import svgd as blackjax_svgd
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree
from scipy.spatial.distance import cdist, pdist

from metaprior.wfem.choices import resolve_inference
from metaprior.wfem.hyperprior import HyperPrior, NormalDensity, groups
from metaprior.wfem.inference import MAP, SVGD, Laplace, place_particles, squared_distances
from metaprior.wfem.kernels import MLPKernel
from metaprior.wfem.likelihoods import Gaussian
from metaprior.wfem.means import ConstantMean
from metaprior.wfem.runs import Settings, draw_prior

STANDARD_ERRORS = 4  # a correct implementation passes a comparison for 99.99 % of all seeds
LENGTH_SCALES = ["median", 0.7]
SHAPES = {"weight": (3, 2), "bias": (3,), "scale": ()}


def tree(seed, n_particles, spread=1.0):
    rng = np.random.default_rng(seed)
    return {name: jnp.asarray(spread * rng.normal(size=(n_particles, *shape))) for name, shape in SHAPES.items()}


def flat(particles):
    return np.concatenate([np.asarray(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(particles)], axis=1)


@functools.partial(jax.jit, static_argnums=0)
def direction(length_scale, particles, scores):
    return SVGD(length_scale=length_scale).direction(particles, scores)


def kernel_value(first, second, length_scale):
    return jnp.exp(-jnp.sum((ravel_pytree(first)[0] - ravel_pytree(second)[0]) ** 2) / (2.0 * length_scale))


def median_length_scale(particles):
    return np.median(pdist(flat(particles), "sqeuclidean")) / (2 * np.log(len(flat(particles)) + 1))


def test_the_kernel_is_exp_of_minus_squared_distance_over_twice_the_length_scale(x64):
    particles = jnp.asarray([[0.0, 0.0], [1.0, 2.0]])
    scores = jnp.asarray([[1.0, -1.0], [3.0, 5.0]])
    kernel = np.exp(-5 / (2 * 2.5))
    apart = np.array([[-1.0, -2.0], [1.0, 2.0]]) / 2.5
    expected = (scores + kernel * scores[::-1] + kernel * apart) / 2
    np.testing.assert_allclose(direction(2.5, particles, scores), expected, rtol=1e-14)


def test_the_median_rule(x64):
    particles = jnp.asarray([[0.0], [1.0], [3.0]])  # squared distances 1, 4, 9
    length_scale = 4 / (2 * np.log(4))
    expected = direction(float(length_scale), particles, particles)
    np.testing.assert_allclose(direction("median", particles, particles), expected, rtol=1e-14)


@pytest.mark.parametrize("method", [MAP(), SVGD(), SVGD(length_scale=0.3)])
def test_one_particle_moves_along_its_score(method):
    scores = tree(1, 1)
    np.testing.assert_array_equal(flat(jax.jit(method.direction)(tree(0, 1), scores)), flat(scores))
    np.testing.assert_array_equal(flat(MAP().direction(tree(0, 5), tree(1, 5))), flat(tree(1, 5)))


@pytest.mark.parametrize("length_scale", LENGTH_SCALES)
def test_particles_spread_on_a_flat_target(length_scale):
    particles, zero = tree(0, 8, spread=0.1), jax.tree.map(jnp.zeros_like, tree(0, 8))
    mean_distances = [pdist(flat(particles)).mean()]
    for _ in range(20):
        moves = direction(length_scale, particles, zero)
        particles = jax.tree.map(lambda value, move: value + 0.05 * move, particles, moves)
        mean_distances.append(pdist(flat(particles)).mean())
    assert (np.diff(mean_distances) > 0).all()
    assert mean_distances[-1] > 1.2 * mean_distances[0]


@pytest.mark.parametrize("length_scale", LENGTH_SCALES)
def test_repulsion_is_the_gradient_of_the_kernel_in_the_first_argument_alone(x64, length_scale):
    particles = tree(2, 5)
    used = median_length_scale(particles) if length_scale == "median" else length_scale
    over_j = jax.vmap(jax.grad(kernel_value), in_axes=(0, None, None))  # the gradient in theta_j
    pairs = jax.jit(jax.vmap(over_j, in_axes=(None, 0, None)))(particles, particles, used)
    expected = jax.tree.map(lambda leaf: np.mean(leaf, axis=1), pairs)
    repulsion = direction(length_scale, particles, jax.tree.map(jnp.zeros_like, particles))
    np.testing.assert_allclose(flat(repulsion), flat(expected), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("length_scale", LENGTH_SCALES)
def test_one_step_equals_blackjax(x64, length_scale):
    particles = tree(3, 7)
    used = median_length_scale(particles) if length_scale == "median" else length_scale

    def log_density(theta):
        return -0.5 * jnp.sum((ravel_pytree(theta)[0] - 0.3) ** 2) + jnp.sum(jnp.sin(theta["weight"])) * theta["scale"]

    optimizer = optax.sgd(0.1)
    state = blackjax_svgd.init(particles, {"length_scale": 2 * used}, optimizer)  # theirs is exp(-d^2 / length_scale)
    step = blackjax_svgd.build_kernel(optimizer)
    theirs = jax.jit(lambda state: step(state, jax.grad(log_density), blackjax_svgd.rbf_kernel).particles)(state)
    moves = direction(length_scale, particles, jax.jit(jax.vmap(jax.grad(log_density)))(particles))
    ours = jax.tree.map(lambda value, move: value + 0.1 * move, particles, moves)
    np.testing.assert_allclose(flat(ours), flat(theirs), rtol=1e-12, atol=1e-14)


def test_svgd_recovers_mean_and_covariance_of_a_gaussian(x64):
    mean, covariance = np.array([1.0, -2.0]), np.array([[1.0, 0.8], [0.8, 2.0]])
    n_particles, precision = 50, jnp.asarray(np.linalg.inv(covariance))
    start = jnp.asarray(np.random.default_rng(0).normal(size=(n_particles, 2)))

    def step(particles, _):
        return particles + 0.5 * SVGD().direction(particles, -(particles - mean[None]) @ precision), None

    particles = np.asarray(jax.jit(lambda start: jax.lax.scan(step, start, None, 800)[0])(start))
    # Deterministic particles are to do no worse than one standard error of as many independent draws:
    # Var(mean_i) = C_ii / K and Var(C_ij) = (C_ii C_jj + C_ij^2) / K.
    variances = np.diag(covariance)
    mean_error = np.sqrt(variances / n_particles)
    covariance_error = np.sqrt((np.outer(variances, variances) + covariance**2) / n_particles)
    np.testing.assert_array_less(np.abs(particles.mean(0) - mean), mean_error)
    np.testing.assert_array_less(np.abs(np.cov(particles.T, bias=True) - covariance), covariance_error)


@pytest.mark.parametrize("length_scale", LENGTH_SCALES)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**31))
def test_direction_is_permutation_equivariant(length_scale, seed):
    order = np.random.default_rng(seed).permutation(5)
    with jax.enable_x64(True):
        particles, scores = tree(seed, 5), tree(seed + 1, 5)
        permuted = direction(length_scale, *jax.tree.map(lambda leaf: leaf[order], (particles, scores)))
        expected = flat(direction(length_scale, particles, scores))[order]
        np.testing.assert_allclose(flat(permuted), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("length_scale", LENGTH_SCALES)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**31), offset=st.floats(-100, 100))
def test_direction_does_not_depend_on_a_common_offset(length_scale, seed, offset):
    with jax.enable_x64(True):
        particles, scores = tree(seed, 5), tree(seed + 1, 5)
        moved = direction(length_scale, jax.tree.map(lambda leaf: leaf + offset, particles), scores)
        expected = flat(direction(length_scale, particles, scores))
        np.testing.assert_allclose(flat(moved), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("length_scale", LENGTH_SCALES)
@pytest.mark.parametrize("offset", [0.0, 2.0**4, 2.0**12])
def test_repulsion_keeps_its_digits_in_single_precision(length_scale, offset):
    """Multiples of 1/1024, so that adding the offset rounds nothing: any difference is made by `direction`."""
    rng = np.random.default_rng(5)
    particles = np.round(1024 * 0.1 * rng.normal(size=(5, 20))) / 1024
    with jax.enable_x64(True):
        exact = np.asarray(direction(length_scale, particles, np.zeros_like(particles)))
    moved = direction(length_scale, (particles + offset).astype("float32"), np.zeros((5, 20), "float32"))
    np.testing.assert_allclose(moved, exact, atol=1e-4 * np.abs(exact).max())


@pytest.mark.parametrize("length_scale", LENGTH_SCALES)
@pytest.mark.parametrize("n_particles", [2, 7])
def test_particles_that_coincide_move_along_their_mean_score(length_scale, n_particles):
    particles = jax.tree.map(lambda leaf: np.repeat(leaf, n_particles, axis=0), tree(4, 1))
    scores = tree(6, n_particles)
    moves = flat(direction(length_scale, particles, scores))
    expected = np.broadcast_to(flat(scores).mean(0), moves.shape)
    np.testing.assert_allclose(moves, expected, rtol=1e-5, atol=1e-5)


def test_a_cluster_of_coincident_particles_does_not_feel_one_far_away():
    """The median distance is zero: kernel one within the cluster, zero to the first particle, and no repulsion."""
    particles, scores = jax.tree.map(lambda leaf: leaf.at[1:].set(leaf[1:2]), tree(4, 7)), tree(6, 7)
    expected = np.repeat(flat(scores).sum(0, keepdims=True) - flat(scores)[:1], 7, axis=0) / 7
    expected[0] = flat(scores)[0] / 7
    np.testing.assert_allclose(flat(direction("median", particles, scores)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_squared_distances_equal_scipy(offset):
    particles = flat(tree(0, 9, spread=10.0)) + np.float32(offset)
    expected = cdist(particles.astype(float), particles.astype(float), "sqeuclidean")
    distances = np.asarray(jax.jit(squared_distances)(jnp.asarray(particles)))
    np.testing.assert_allclose(distances, expected, rtol=1e-5, atol=1e-6 * expected.max())
    np.testing.assert_array_equal(np.diag(distances), 0)


def drawn(method, seed=0, **settings):
    small = {"mean": ConstantMean(), "kernel": MLPKernel(hidden_sizes=(2,)), "likelihood": Gaussian()}
    settings = Settings(method=method, **{**small, **settings})
    particles, _, hyperprior = draw_prior(jax.random.key(seed), 2, settings, 1.0, jnp.zeros(()).dtype)
    return particles, hyperprior


def test_the_first_particle_is_where_map_starts_and_no_leaf_is_shared():
    (alone, _), (several, _) = drawn(MAP()), drawn(SVGD(4))
    np.testing.assert_array_equal(flat(several)[0], flat(alone)[0])
    assert set(jax.tree.leaves(groups(several))) == {"weights", "biases", "scales"}
    for leaf in jax.tree.leaves(several):
        assert len(np.unique(np.asarray(leaf).reshape(4, -1), axis=0)) == 4


def test_particles_that_would_coincide_are_scattered_by_a_tenth_of_the_hyperprior():
    """All but the first, around where they start and not around the hyper-prior's mean; draws stay as they are."""
    n = 4000
    initial = {"fixed": jnp.full((n, 2), 5.0), "drawn": jax.random.normal(jax.random.key(1), (n, 2))}
    hyperprior = NormalDensity(
        {"fixed": jnp.full(2, -3.0), "drawn": jnp.zeros(2)}, {"fixed": jnp.asarray(2.0), "drawn": 1.0}
    )
    placed = place_particles(jax.random.key(0), initial, hyperprior, "initializer")
    np.testing.assert_array_equal(placed["drawn"], initial["drawn"])
    np.testing.assert_array_equal(placed["fixed"][0], [5.0, 5.0])
    moves = (np.asarray(placed["fixed"], float)[1:] - 5.0) / 0.2
    assert np.abs(moves.mean(axis=0)).max() < STANDARD_ERRORS / np.sqrt(n)
    assert np.abs(moves.var(axis=0) - 1.0).max() < STANDARD_ERRORS * np.sqrt(2 / n)
    one = jax.tree.map(lambda leaf: leaf[:1], initial)
    np.testing.assert_array_equal(place_particles(jax.random.key(0), one, hyperprior, "initializer")["fixed"], 5.0)
    drawn = place_particles(jax.random.key(0), one, hyperprior, "hyperprior")["fixed"]
    assert (np.abs(drawn + 3.0) < 8.0).all()
    assert (drawn != -3.0).all()


class CustomKernel(eqx.Module):
    features: eqx.nn.Linear

    def __call__(self, first, second=None):
        first = jax.vmap(self.features)(first)
        return jnp.sum(first**2, 1) if second is None else first @ jax.vmap(self.features)(second).T


def test_particles_of_a_custom_mean_and_kernel_differ_too():
    """The initializer does not randomize custom networks, and particles that coincide would never separate."""
    custom = {"mean": eqx.nn.MLP(2, "scalar", 2, 1, key=jax.random.key(7)), "likelihood": Gaussian(0.1)}
    custom["kernel"] = CustomKernel(eqx.nn.Linear(2, 2, key=jax.random.key(8)))
    particles, _ = drawn(SVGD(3), **custom)
    assert len(np.unique(flat(particles), axis=0)) == 3


@pytest.mark.parametrize("method", [MAP(2000, "hyperprior"), SVGD(2000, start="hyperprior")])
def test_a_start_from_the_hyperprior_has_its_moments(method):
    mean, std = {"weights": 0.5, "biases": -1.0, "scales": "initial"}, {"weights": 2.0, "biases": 0.1, "scales": 0.7}
    particles, hyperprior = drawn(method, hyperprior=HyperPrior(mean, std))
    for name, leaf, center in zip(*map(jax.tree.leaves, (groups(particles), particles, hyperprior.mean)), strict=True):
        standardized = np.asarray((leaf - center[None]) / std[name], float).reshape(2000, -1)
        assert np.abs(standardized.mean(0)).max() < (STANDARD_ERRORS + 1) / np.sqrt(2000)
        assert np.abs(standardized.var(0) - 1).max() < (STANDARD_ERRORS + 1) * np.sqrt(2 / 2000)
        assert name == "scales" or np.asarray(center == mean[name]).all()


@pytest.mark.parametrize("length_scale", [0.0, -1.0, float("nan"), float("inf"), True, "mean"])
def test_bad_arguments_are_named(length_scale, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # beartype would object before the library does
    with pytest.raises(ValueError, match="length_scale must be a positive number, or 'median'; got"):
        SVGD(length_scale=length_scale)
    for method in (MAP, SVGD, Laplace):
        with pytest.raises(ValueError, match="start must be one of initializer, hyperprior; got 'random'"):
            method(start="random")
        for bad in (0, 1.5, True):
            with pytest.raises(ValueError, match=r"(n_particles|n_draws) must be an integer of at least 1; got "):
                method(bad)


@pytest.mark.parametrize("inference", ["vi", "MAP", "auto", None, 3, SVGD])
def test_an_unknown_inference_is_named(inference):
    with pytest.raises(ValueError, match=r"inference must be one of map, svgd, laplace, MAP.*; got "):
        resolve_inference(inference)
    assert [resolve_inference(name) for name in ("map", "svgd", "laplace")] == [MAP(), SVGD(), Laplace()]
