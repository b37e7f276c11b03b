"""Encoders: what they compute, that mean and kernel share them, and that they are trained."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.signal import correlate

from metaprior import load
from metaprior.wfem import ConvEncoder, HyperPrior, MLPEncoder, Training, WFEMClassifier, WFEMRegressor, exact
from metaprior.wfem.choices import resolve_encoder
from metaprior.wfem.hyperprior import groups, merge, split
from metaprior.wfem.kernels import LinearRBFKernel, MLPKernel, RBFKernel
from metaprior.wfem.likelihoods import Bernoulli, GaussianNoise
from metaprior.wfem.means import ConstantMean, LinearMean, MLPMean
from metaprior.wfem.prior import GPPrior, check_prior, make_prior

KEY = jax.random.key(3)
RNG = np.random.default_rng(0)
CONV = ConvEncoder((3, 2), image_shape=(5, 6, 2))


def log_evidence(prior, x, y, mask):
    return exact.log_evidence(prior, prior.points(x), y, mask)


def build(description, input_dim):
    return eqx.filter_jit(description.build)(KEY, input_dim)


def test_convolutions_by_hand(x64):
    module = build(CONV, 60)
    image = RNG.normal(size=(5, 6, 2))
    channels = [image[..., c] for c in range(2)]
    for block in module.blocks:
        weight, bias = np.asarray(block.weight), np.asarray(block.bias)
        maps = [
            sum(correlate(np.pad(channel, 1), weight[o, c], mode="valid") for c, channel in enumerate(channels))
            + bias[o, 0, 0]
            for o in range(len(weight))
        ]
        maps = (np.array(maps) - np.mean(maps)) / np.sqrt(np.var(maps) + 1e-5)
        rows, columns = maps.shape[1] // 2, maps.shape[2] // 2
        positive = np.maximum(maps, 0.0)[:, : 2 * rows, : 2 * columns]
        channels = [m.reshape(rows, 2, columns, 2).max(axis=(1, 3)) for m in positive]
    np.testing.assert_allclose(module(jnp.asarray(image.ravel())), np.ravel(channels), rtol=1e-9)


@pytest.mark.parametrize(
    ("input_dim", "shape", "n_features"),
    [(21168, (84, 84, 3), 1600), (28 * 28, (28, 28, 1), 64), (3 * 256, (16, 16, 3), 64)],
)
def test_conv4_finds_the_shape_of_square_images(input_dim, shape, n_features):
    encoder = eqx.filter_eval_shape(ConvEncoder().build, KEY, input_dim)
    assert encoder.image_shape == shape
    assert [block.weight.shape[:2] for block in encoder.blocks] == [(64, shape[2]), (64, 64), (64, 64), (64, 64)]
    x = jax.ShapeDtypeStruct((input_dim,), jnp.float32)
    assert eqx.filter_eval_shape(lambda encoder, x: encoder(x), encoder, x).shape == (n_features,)


def test_encoder_mean_and_kernel_start_from_different_numbers():
    networks = MLPMean(), MLPKernel(), MLPEncoder()
    prior = make_prior(KEY, 32, networks[0], networks[1], Bernoulli(), networks[2])
    weights = [prior.mean.network, prior.kernel.features, prior.encoder]
    first = [np.asarray(network.layers[0].weight).ravel()[:100] for network in weights]
    assert all(np.abs(np.corrcoef(first)[i, j]) < 0.4 for i in range(3) for j in range(i))


def test_a_residual_encoder_starts_as_the_identity_and_learns():
    module = build(MLPEncoder((4,), residual=True), 3)
    x = jnp.asarray([0.3, -2.0, 1.0])
    np.testing.assert_array_equal(module(x), x)
    gradient = jax.grad(lambda theta: jnp.sum(theta(x) ** 3))(module).network.layers[-1].weight
    assert np.abs(gradient).max() > 0.1
    assert build(MLPEncoder((4,), n_features=5), 3)(x).shape == (5,)
    assert build(MLPEncoder(), 3)(x).shape == (32,)


@eqx.filter_jit
def seen(prior, x, y, mask):
    """All that inference takes from a prior: mean and embedded points, all at once and one by one; and the evidence."""
    points = prior.points(x)
    return points, prior.covariance(points), exact.moments(prior, x, mask), log_evidence(prior, x, y, mask)


def test_mean_and_kernel_see_the_same_encoding():
    likelihood = GaussianNoise(jnp.log(0.3))
    prior = make_prior(KEY, 3, MLPMean((5,)), RBFKernel(0.8, 2.0), likelihood, MLPEncoder((4,), n_features=2))
    inside = merge(*split(prior))
    outside = GPPrior(inside.mean, inside.kernel, likelihood)
    x, y = jnp.asarray(RNG.normal(size=(3, 3)), jnp.float32), jnp.asarray([0.0, 1.0, 1.0])
    mask = jnp.asarray([True, True, False])
    encoded = jnp.stack([inside.encoder(each) for each in x])
    results = [jax.tree.leaves(seen(inside, x, y, mask)), jax.tree.leaves(seen(outside, encoded, y, mask))]
    for part, other in zip(*results, strict=True):
        np.testing.assert_allclose(part, other, rtol=1e-5, atol=1e-6)
    theta, rest = split(prior)
    gradient = eqx.filter_jit(jax.grad(lambda theta: log_evidence(merge(theta, rest), x, y, mask)))(theta)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient.encoder))


def test_parameters_of_encoders_are_weights_and_biases():
    prior = make_prior(KEY, 60, ConstantMean(), LinearRBFKernel(), Bernoulli(), CONV)
    theta = split(prior)[0]
    names = jax.tree.leaves(groups(theta))
    assert {name: names.count(name) for name in names} == {"weights": 2, "biases": 3, "scales": 3}
    check_prior(prior, 60)


class Projection(eqx.Module):
    """A custom encoder."""

    weight: jax.Array

    def __call__(self, x):
        return self.weight @ x


def images(seed, n_tasks, side=8):
    """Stripes across or along: no pixel alone tells the classes apart."""
    rng = np.random.default_rng(seed)
    tasks = []
    for _ in range(n_tasks):
        y = np.arange(10) % 2
        phase, waves = rng.uniform(0, 2 * np.pi, (10, 1, 1)), 2 * np.pi * np.arange(side) / 4
        across = np.broadcast_to(np.sin(waves[None, :, None] + phase), (10, side, side))
        x = np.where(y[:, None, None] == 0, across, np.swapaxes(across, 1, 2)) + 0.3 * rng.normal(size=(10, side, side))
        tasks.append((x[..., None], y if rng.random() < 0.5 else 1 - y))
    return tasks


@pytest.mark.slow
def test_a_convolutional_encoder_learns_what_pixels_do_not_show(tmp_path):
    train, tests = images(0, 4), [(x[:4], y[:4], x[4:], y[4:]) for x, y in images(1, 20)]
    prior_std = {"weights": 0.3, "biases": 0.3, "scales": 0.3}
    arguments = {"alpha": "pooled", "temperature": "bayes", "hyperprior": HyperPrior(std=prior_std), "random_state": 0}
    arguments |= {"kernel": "linear+rbf", "mean": LinearMean(1.0), "training": Training(n_steps=40, standardize=True)}
    conv = WFEMClassifier(encoder=ConvEncoder((4, 4)), **arguments).fit(train)
    pixels = WFEMClassifier(**arguments).fit(train)
    accuracy = conv.evaluate(tests).accuracy
    assert accuracy > 0.9 > 0.7 > pixels.evaluate(tests).accuracy
    assert conv.loss_trace_[-1] < conv.loss_trace_[0]
    conv.save(tmp_path / "conv.safetensors")
    assert load(tmp_path / "conv.safetensors").evaluate(tests).accuracy == accuracy


SMALL = {"kernel": "rbf", "mean": "zero", "alpha": "pooled", "temperature": "bayes", "random_state": 0}
SMALL |= {"training": Training(n_steps=5)}


def test_a_convolutional_encoder_is_trained_and_kept(tmp_path):
    tasks = [(x, x[:, 0, 0, 0]) for x in RNG.normal(size=(4, 6, 4, 4, 1))]
    meta = WFEMRegressor(encoder=ConvEncoder((2,)), **SMALL).fit(tasks)
    start = WFEMRegressor(encoder=ConvEncoder((2,)), **{**SMALL, "training": Training(n_steps=0)}).fit(tasks)
    moves = [np.abs(a.weight - b.weight).max() for a, b in zip(*_blocks(meta, start), strict=True)]
    assert min(moves) > 1e-3
    meta.save(tmp_path / "conv.safetensors")
    context, query = tasks[0], tasks[1][0]
    expected = meta.adapt(*context).predict(query)
    assert np.std(expected) > 1e-3
    np.testing.assert_array_equal(load(tmp_path / "conv.safetensors").adapt(*context).predict(query), expected)


def _blocks(*estimators):
    return [meta.particles_.encoder.blocks for meta in estimators]


def test_custom_encoders_work_in_regression_and_are_passed_again(tmp_path):
    tasks = [(x, np.sin(x[:, 0])) for x in np.random.default_rng(0).normal(size=(4, 6, 3))]
    custom = Projection(np.eye(2, 3))
    meta = WFEMRegressor(encoder=custom, **SMALL).fit(tasks)
    assert np.abs(meta.particles_.encoder.weight[0] - np.eye(2, 3)).max() > 1e-3
    meta.save(tmp_path / "custom.safetensors")
    loaded = load(tmp_path / "custom.safetensors", encoder=custom)
    np.testing.assert_array_equal(
        loaded.adapt(*tasks[0]).predict(tasks[1][0]), meta.adapt(*tasks[0]).predict(tasks[1][0])
    )
    with pytest.raises(ValueError, match="custom encoder"):
        load(tmp_path / "custom.safetensors")


def test_a_plain_function_encodes():
    prior = make_prior(KEY, 3, MLPMean((5,)), RBFKernel(), Bernoulli(), resolve_encoder(lambda x: x[:1]))
    assert prior.mean.network.layers[0].weight.shape == (5, 1)
    x = jnp.asarray(RNG.normal(size=(6, 3)), jnp.float32)
    np.testing.assert_array_equal(prior.encode(x), x[:, :1])
    np.testing.assert_array_equal(prior.points(x).embedded, x[:, :1])


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: ConvEncoder(channels=()), ["channels", "sequence of integers"]),
        (lambda: ConvEncoder(channels=(4, 0)), ["channels[1]", "at least 1"]),
        (lambda: ConvEncoder(image_shape=(8, 8)), ["image_shape", "(height, width, channels)"]),
        (lambda: build(ConvEncoder(), 50), ["50 inputs", "square image", "image_shape"]),
        (lambda: build(ConvEncoder(image_shape=(20, 20, 1)), 401), ["(20, 20, 1)", "400", "401"]),
        (lambda: build(ConvEncoder(), 64), ["16x16", "8x8", "fewer channels"]),
        (lambda: MLPEncoder(residual=True, n_features=3), ["n_features", "residual"]),
        (lambda: MLPEncoder(hidden_sizes=(0,)), ["hidden_sizes[0]"]),
        (lambda: resolve_encoder(MLPEncoder), ["class MLPEncoder", "not an instance"]),
        (lambda: resolve_encoder(3), ["encoder must be one of None", "int"]),
        (
            lambda: make_prior(KEY, 3, ConstantMean(), RBFKernel(), Bernoulli(), lambda x: x @ jnp.zeros((2, 2))),
            ["encoder(x) of one point", "3 input dimensions failed"],
        ),
        (
            lambda: make_prior(KEY, 3, ConstantMean(), RBFKernel(), Bernoulli(), lambda x: x[:, None]),
            ["encoder(x)", "shape (n_features,)", "(3, 1)"],
        ),
    ],
)
def test_bad_encoders(make, parts):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        make()
    assert all(part in str(error.value) for part in parts), error.value
