"""Parts of a user's own: a method of inference, a hyper-prior, a kernel, a mean and an encoder."""

from dataclasses import dataclass
from typing import Any, ClassVar

import blackjax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tinygp
from jax.flatten_util import ravel_pytree
from scipy import stats

from metaprior import StoredTasks, load
from metaprior.tasks.types import Task
from metaprior.wfem import MAP, SVGD, Laplace, Training, WFEMRegressor

X = np.linspace(-2.0, 2.0, 5)[:, None]
SMALL = {"kernel": "rbf", "mean": "constant", "temperature": "bayes", "random_state": 0}
DOUBLE = {"dtype": "float64", "standardize": False}
FEW = Training(n_steps=30, **DOUBLE)


def make_tasks(n_tasks, seed, size=5):
    rng = np.random.default_rng(seed)
    inputs = [rng.uniform(-2, 2, (size, 1)) for _ in range(n_tasks)]
    return [(x, np.sin(x[:, 0] + 0.3 * rng.normal()) + 0.1 * rng.normal(size=size)) for x in inputs]


SOURCE, TARGET = make_tasks(3, 0), make_tasks(3, 1)


def rows(particles):
    """Return particles as a matrix, in their own precision."""
    return np.concatenate([np.asarray(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(particles)], axis=1)


def predict(meta):
    return np.array(meta.adapt(*TARGET[0]).predict(X, return_std=True))


# --- a method of inference


@dataclass(frozen=True)
class Chain(MAP):
    """Draws of a Markov chain that starts at the mode: BlackJAX's NUTS."""

    n_draws: int = 40
    step_size: float = 0.1

    def finish(self, particles, gibbs, key):
        mode = jax.tree.map(lambda leaf: leaf[0], particles)
        ones = jnp.ones(ravel_pytree(mode)[0].shape)
        nuts = blackjax.nuts(gibbs.log_density, self.step_size, ones, max_num_doublings=4)

        def step(state, key):
            state, _ = nuts.step(key, state)
            return state, state.position

        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # BlackJAX relies on both
            return jax.lax.scan(step, nuts.init(mode), jax.random.split(key, self.n_draws))[1]


@pytest.fixture(scope="module")
def chain():
    return WFEMRegressor(inference=Chain(), training=FEW, **SMALL).fit(SOURCE, TARGET)


def test_a_chain_starts_at_the_mode_and_has_the_spread_of_the_hyper_posterior(chain):
    mode = WFEMRegressor(training=FEW, **SMALL).fit(SOURCE, TARGET)
    normal = WFEMRegressor(inference=Laplace(400), training=FEW, **SMALL).fit(SOURCE, TARGET)
    draws, expected = rows(chain.particles_), rows(normal.particles_)
    assert draws.shape == (40, 4)
    np.testing.assert_array_equal(chain.loss_trace_, mode.loss_trace_)
    assert len(np.unique(draws, axis=0)) > 20
    ratio = draws.std(axis=0) / expected.std(axis=0)  # of 40 correlated draws of a density that is nearly normal
    assert ((ratio > 0.4) & (ratio < 2.5)).all()
    np.testing.assert_allclose(chain.particle_weights_, 1 / 40)


def test_predictions_average_over_the_draws_of_a_chain(chain):
    mixture = chain.adapt(*TARGET[0]).predictive(X)
    assert mixture.means.shape == (40, 5)
    np.testing.assert_allclose(predict(chain)[0], mixture.means.mean(axis=0), rtol=1e-12)


def test_a_search_trains_modes_in_place_of_a_chain():
    short = Training(n_steps=8, **DOUBLE)
    meta = WFEMRegressor(inference=Chain(n_draws=3), alpha=[0.0, 0.5], training=short, **SMALL).fit(SOURCE, TARGET)
    modes = WFEMRegressor(alpha=[0.0, 0.5], training=short, **SMALL).fit(SOURCE, TARGET)
    np.testing.assert_array_equal(meta.alpha_path_.score, modes.alpha_path_.score)
    assert {member.n_components for member in meta.model_.members} == {3}


@dataclass(frozen=True)
class Together(MAP):
    """All particles move by the average score, so that their distances stay."""

    interacts: ClassVar[bool] = True

    def direction(self, particles, scores):
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf.mean(axis=0), leaf.shape), scores)


def test_a_direction_of_its_own_is_where_particles_move():
    about = {**SMALL, "inference": Together(3)}
    one = Training(n_steps=1, optimizer="sgd", schedule="constant", **DOUBLE)
    with jax.enable_x64(True):
        gibbs = WFEMRegressor(**about, training=one).gibbs(SOURCE, TARGET)
        scores = rows(jax.jit(jax.vmap(jax.grad(gibbs.log_density)))(gibbs.initial))
    meta = WFEMRegressor(**about, training=one).fit(SOURCE, TARGET)
    moves = rows(meta.particles_) - rows(gibbs.initial)
    np.testing.assert_allclose(moves, 0.01 * np.tile(scores.mean(axis=0), (3, 1)), rtol=1e-8, atol=1e-12)
    assert np.abs(moves).max() > 1e-3


# --- a hyper-prior


class HeavyTails(eqx.Module):
    """Student's t with three degrees of freedom, or Laplace's density."""

    mean: Any
    std: Any
    family: str = eqx.field(static=True)

    def log_density(self, theta):
        flat, center = ravel_pytree(theta)[0], ravel_pytree(self.mean)[0]
        scale = ravel_pytree(jax.tree.map(jnp.broadcast_to, self.std, jax.tree.map(jnp.shape, theta)))[0]
        standard = (flat - center) / scale
        each = {"t": lambda z: jax.scipy.stats.t.logpdf(z, 3.0), "laplace": jax.scipy.stats.laplace.logpdf}[self.family]
        return jnp.sum(each(standard) - jnp.log(scale))

    def sample(self, key):
        flat, unravel = ravel_pytree(self.mean)
        draw = jax.random.t(key, 3.0, flat.shape, flat.dtype)
        return jax.tree.map(lambda mean, std, move: mean + std * move, self.mean, self.std, unravel(draw))


@dataclass(frozen=True)
class HeavyTailed:
    """A hyper-prior around the initial values."""

    scale: float = 0.5
    family: str = "t"

    def build(self, theta):
        return HeavyTails(theta, jax.tree.map(lambda leaf: jnp.asarray(self.scale, leaf.dtype), theta), self.family)


@pytest.mark.parametrize("family", ["t", pytest.param("laplace", marks=pytest.mark.slow)])
def test_the_mode_under_a_hyper_prior_of_its_own(family):
    """MAP climbs log p(theta) - gamma Lbar(theta), whatever p is; here by hand."""
    about = {**SMALL, "hyperprior": HeavyTailed(0.3, family)}
    meta = WFEMRegressor(**about, training=Training(n_steps=300, learning_rate=0.02, **DOUBLE)).fit(SOURCE, TARGET)
    with jax.enable_x64(True):
        gibbs = WFEMRegressor(**about, training=FEW).gibbs(SOURCE, TARGET)
        start, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], gibbs.initial))
        density = jax.jit(lambda flat: gibbs.log_density(unravel(flat)))
        [found] = rows(meta.particles_)
        moved = found - np.asarray(start)
        assert np.abs(moved).max() > 1e-2
        for step in np.concatenate([0.02 * np.eye(4), -0.02 * np.eye(4)]):
            assert density(jnp.asarray(found + step)) < density(jnp.asarray(found))
        normal = WFEMRegressor(**SMALL, training=FEW).gibbs(SOURCE, TARGET)
        gained = density(jnp.asarray(found)) - normal.log_density(unravel(jnp.asarray(found)))
    known = {"t": stats.t(3.0, scale=0.3), "laplace": stats.laplace(scale=0.3)}[family]
    expected = known.logpdf(moved).sum() - stats.norm(start, 1.0).logpdf(found).sum()  # the constant starts at zero
    assert float(gained) == pytest.approx(expected, rel=1e-9)


def test_particles_start_from_draws_of_a_hyper_prior_of_its_own():
    untrained = {**SMALL, "training": Training(n_steps=0, **DOUBLE)}
    around = WFEMRegressor(inference=MAP(2000, "hyperprior"), hyperprior=HeavyTailed(0.5), **untrained)
    initial = WFEMRegressor(**untrained).fit(SOURCE, TARGET)
    moves = rows(around.fit(SOURCE, TARGET).particles_) - rows(initial.particles_)
    assert stats.kstest(moves.ravel(), stats.t(3.0, scale=0.5).cdf).pvalue > 1e-3
    svgd = WFEMRegressor(inference=SVGD(3), hyperprior=HeavyTailed(), training=FEW, **SMALL).fit(SOURCE, TARGET)
    assert len(np.unique(rows(svgd.particles_), axis=0)) == 3


def test_laplace_takes_the_curvature_of_a_hyper_prior_of_its_own():
    """With tasks that do not count, the curvature of -log t_3 at its mode, 4 / 3 in units of its scale, is all of it.

    No direction gets more variance than the square of the density's `std`, which is more here.
    """
    about = {**SMALL, "temperature": 1e-9, "inference": Laplace(2000), "hyperprior": HeavyTailed(0.5)}
    meta = WFEMRegressor(**about, training=Training(n_steps=1, **DOUBLE)).fit(SOURCE, TARGET)
    draws = rows(meta.particles_)
    expected = 0.5 * np.sqrt(3.0 / 4.0)
    np.testing.assert_allclose(draws.std(axis=0), expected, rtol=4.0 / np.sqrt(2 * 1000))  # 1000 pairs
    correlations = np.corrcoef(draws.T) - np.eye(4)
    assert np.abs(correlations).max() < 4.0 / np.sqrt(1000)


# --- a kernel, a mean and an encoder


class Periodic(eqx.Module):
    """An Equinox module, called as kernel(X1, X2) and kernel(X)."""

    log_period: jax.Array

    def __call__(self, X1, X2=None):
        if X2 is None:
            return jnp.ones(len(X1), X1.dtype)
        apart = X1[:, None, 0] - X2[None, :, 0]
        return jnp.exp(-2.0 * jnp.sin(jnp.pi * apart / jnp.exp(self.log_period)) ** 2)


class Slope(eqx.Module):
    slope: float = 0.5

    def __call__(self, x):
        return self.slope * jnp.sum(x)


class Turned(eqx.Module):
    weight: jax.Array

    def __call__(self, x):
        return jnp.tanh(self.weight @ x)


PARTS = {
    "tinygp": {"kernel": 1.5 * tinygp.kernels.Matern32(scale=0.7), "mean": Slope()},
    "module": {"kernel": Periodic(jnp.asarray(1.0)), "mean": lambda x: jnp.sin(x[0])},
    "encoder": {"kernel": tinygp.kernels.ExpSquared(scale=0.7), "encoder": Turned(jnp.ones((2, 1)))},
}


@pytest.mark.parametrize("name", PARTS)
def test_priors_of_parts_of_its_own_are_trained_as_their_formula_says(name):
    """The initial prior predicts as scipy's normal does, and training changes every parameter."""
    initial = {**SMALL, **PARTS[name], "training": Training(n_steps=0, **DOUBLE)}
    meta = WFEMRegressor(**initial).fit(SOURCE, TARGET)
    x, y = TARGET[0]
    z = [np.tanh(np.tile(each, (1, 2))) if name == "encoder" else each for each in (x, X)]
    kernel = {
        "tinygp": lambda a, b: 1.5 * (1 + (r := np.sqrt(3) * np.abs(a - b.T) / 0.7)) * np.exp(-r),
        "module": lambda a, b: np.exp(-2 * np.sin(np.pi * (a - b.T) / np.e) ** 2),
        "encoder": lambda a, b: np.exp(-0.5 * np.sum((a[:, None] - b[None]) ** 2, axis=2) / 0.49),
    }[name]
    mean = {"tinygp": lambda a: 0.5 * a[:, 0], "module": lambda a: np.sin(a[:, 0]), "encoder": lambda a: 0 * a[:, 0]}
    noise = float(np.exp(2 * meta.particles_.likelihood.log_noise_std[0]))
    gain = kernel(z[1], z[0]) @ np.linalg.inv(kernel(z[0], z[0]) + noise * np.eye(5))
    expected = mean[name](z[1]) + gain @ (y - mean[name](z[0]))
    variance = np.diag(kernel(z[1], z[1])) - np.sum(gain * kernel(z[1], z[0]), axis=1) + noise
    np.testing.assert_allclose(predict(meta), [expected, np.sqrt(variance)], rtol=1e-6)
    trained = WFEMRegressor(**{**initial, "training": FEW}).fit(SOURCE, TARGET)
    assert (np.abs(rows(trained.particles_) - rows(meta.particles_)) > 1e-4).all()
    assert trained.loss_trace_[-1] < trained.loss_trace_[0]


# --- files


def all_of_its_own():
    return {
        "kernel": 1.5 * tinygp.kernels.Matern32(scale=0.7),
        "mean": Slope(),
        "encoder": Turned(jnp.eye(2, 1)),
        "hyperprior": HeavyTailed(),
        "inference": Together(2),
    }


def test_priors_are_loaded_with_the_parts_that_their_files_lack(tmp_path):
    path, parts = tmp_path / "prior", all_of_its_own()
    meta = WFEMRegressor(**{**SMALL, **parts}, training=Training(n_steps=3)).fit(SOURCE, TARGET)
    meta.save(path)
    loaded = load(path, **all_of_its_own())
    np.testing.assert_array_equal(predict(loaded), predict(meta))
    assert {name: type(getattr(loaded, name)) for name in parts} == {name: type(parts[name]) for name in parts}
    again = loaded.fit(SOURCE, TARGET)
    np.testing.assert_array_equal(predict(again), predict(meta))


@pytest.mark.parametrize("name", all_of_its_own())
def test_a_part_that_is_missing_is_told_in_one_sentence(name, tmp_path):
    path, part = tmp_path / "prior", {name: all_of_its_own()[name]}
    WFEMRegressor(**{**SMALL, **part}, training=Training(n_steps=0)).fit(SOURCE, TARGET).save(path)
    missing = rf"^This prior was fitted with a custom {name}, \w+.*: pass load\(path, {name}=\.\.\.\)\.$"
    with pytest.raises(ValueError, match=missing):
        load(path)
    another = Turned(jnp.eye(2, 1)) if name != "encoder" else Slope()
    with pytest.raises(ValueError, match=rf"^{name} must be \w+.*, as this prior was fitted with; got \w+\.$"):
        load(path, **{name: another})
    load(path, **part)


def test_all_parts_that_are_missing_are_told_at_once(tmp_path):
    path = tmp_path / "prior"
    own = {"mean": Slope(), "hyperprior": HeavyTailed()}
    WFEMRegressor(**{**SMALL, **own}, training=Training(n_steps=0)).fit(SOURCE, TARGET).save(path)
    both = (
        r"a custom hyperprior, HeavyTailed and a custom mean, Slope: pass load\(path, hyperprior=\.\.\., mean=\.\.\.\)"
    )
    with pytest.raises(ValueError, match=f"^This prior was fitted with {both}"):
        load(path)
    with pytest.raises(ValueError, match=r"a custom mean, Slope: pass load\(path, mean=\.\.\.\)"):
        load(path, hyperprior=HeavyTailed())
    with pytest.raises(ValueError, match="kernel is stored in the file: this prior was not fitted with a custom"):
        load(path, **own, kernel=Periodic(jnp.asarray(1.0)))


# --- mistakes


@dataclass(frozen=True)
class Broken(MAP):
    """A method whose `finish` returns something else than particles."""

    kind: str = "one particle"

    def finish(self, particles, gibbs, key):
        first = jax.tree.map(lambda leaf: leaf[0], particles)
        none = jax.tree.map(lambda leaf: leaf[:0], particles)
        return {"one particle": first, "none": none, "a list": jax.tree.leaves(particles)}[self.kind]


@dataclass(frozen=True)
class Listed(MAP):
    sizes: Any = ()


class Shapeless(HeavyTails):
    def sample(self, key):
        return jax.random.normal(key)


class Vector(HeavyTails):
    def log_density(self, theta):
        return ravel_pytree(theta)[0]


@dataclass(frozen=True)
class Builds:
    """A hyper-prior whose density is made by a function of theta."""

    make: Any

    def build(self, theta):
        return self.make(theta)


def tree_of(theta, value):
    return jax.tree.map(lambda leaf: jnp.asarray(value, leaf.dtype), theta)


NOT_PARTICLES = r"inference: Broken\.finish must return particles: a pytree like those it gets, with a leading axis"
MISTAKES = [
    ({"inference": Broken(kind="one particle")}, NOT_PARTICLES),
    ({"inference": Broken(kind="none")}, NOT_PARTICLES),
    ({"inference": Broken(kind="a list")}, NOT_PARTICLES),
    ({"inference": HeavyTailed()}, "inference must be one of map.* or a method of your own with a direction"),
    ({"hyperprior": HeavyTailed}, "hyperprior must be HyperPrior.* or an object of your own with a method build"),
    (
        {"hyperprior": Builds(lambda theta: None)},
        r"must return a density .*; NoneType lacks log_density, sample, mean, std",
    ),
    (
        {"hyperprior": Builds(lambda theta: HeavyTails(jnp.zeros(()), tree_of(theta, 1.0), "t"))},
        "mean of a density must have the shapes of theta",
    ),
    ({"hyperprior": Builds(lambda theta: HeavyTails(theta, 1.0, "t"))}, "std of a density must have a number per leaf"),
    (
        {"hyperprior": Builds(lambda theta: Shapeless(theta, tree_of(theta, 1.0), "t"))},
        r"sample\(key\) of a density must have the shapes of theta",
    ),
    (
        {"hyperprior": Builds(lambda theta: Vector(theta, tree_of(theta, 1.0), "t"))},
        r"log_density\(theta\) must be a number; got shape \(4,\)",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_mistakes_in_parts_are_told(arguments, message):
    with pytest.raises(ValueError, match=message):
        WFEMRegressor(**{**SMALL, **arguments}, training=Training(n_steps=1)).fit(SOURCE, TARGET)


def test_parts_are_hashable_but_for_their_arrays():
    with pytest.raises(
        ValueError, match=r"^inference must be hashable, and Listed\(.* is not: make it a frozen dataclass"
    ):
        WFEMRegressor(**SMALL, inference=Listed(sizes=[1])).fit(SOURCE, TARGET)
    with pytest.raises(ValueError, match=r"^hyperprior must be hashable"):
        WFEMRegressor(**SMALL, hyperprior=HeavyTailed(scale=np.ones(2))).fit(SOURCE, TARGET)


def test_what_follows_training_needs_all_tasks():
    """Stored tasks are streamed: a chain of the few that are in memory would be another one."""
    stored = StoredTasks.from_tasks([Task(*task) for task in SOURCE], 1)
    with pytest.raises(ValueError, match=r"inference=Chain\(.*\) needs all tasks in memory"):
        WFEMRegressor(inference=Chain(), training=FEW, **SMALL).fit(stored, TARGET)
    with pytest.raises(ValueError, match="gibbs needs tasks in memory"):
        WFEMRegressor(training=FEW, **SMALL).gibbs(stored, TARGET)
