"""One contract for every kernel and every mean, which parameters are learned, and errors for bad ones."""

from collections.abc import Callable
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
import tinygp
from jaxtyping import Array

from metaprior.checks import check_noise
from metaprior.wfem.choices import resolve_kernel, resolve_mean
from metaprior.wfem.hyperprior import Fixed, groups, merge, split
from metaprior.wfem.kernels import LinearKernel, MLPKernel, RBFKernel
from metaprior.wfem.likelihoods import Gaussian, make_likelihood
from metaprior.wfem.means import MLPMean, ZeroMean
from metaprior.wfem.prior import check_prior, make_prior

KEY = jax.random.key(0)
MATERN = tinygp.kernels.Matern32(scale=0.7)


class CustomKernel(eqx.Module):
    """Not a tinygp kernel: only called as kernel(X1, X2) and kernel(X)."""

    scales: Array

    def __call__(self, X1, X2=None):
        if X2 is None:
            return jnp.sum((X1 * self.scales[None]) ** 2, axis=1)
        return (X1 * self.scales[None]) @ (X2 * self.scales[None]).T


class CustomMean(eqx.Module):
    slope: Array

    def __call__(self, x):
        return self.slope * jnp.sum(x)


class Wrong(eqx.Module):
    function: Callable = eqx.field(static=True)

    def __call__(self, X1, X2=None):
        return self.function(X1, X1 if X2 is None else X2)


@cache
def raw(description):
    return eqx.filter_jit(description.build)(KEY, 2)


def build(description):
    return merge(*split(raw(description)))  # with Fixed numbers in their places


def draw_inputs(n: int) -> np.ndarray:
    return np.random.default_rng(n).normal(size=(n, 2)).astype(np.float32)


KERNELS = {
    **{name: lambda name=name: name for name in ("mlp", "rbf", "linear", "linear+rbf")},
    "mlp residual": lambda: MLPKernel((4,), residual=True),
    "linear residual": lambda: LinearKernel((4,), residual=True),
    "matern": lambda: MATERN,
    "tinygp sum": lambda: 1.5 * MATERN + tinygp.kernels.DotProduct(),
    "tinygp custom": lambda: tinygp.kernels.Custom(lambda a, b: jnp.exp(-jnp.sum((a - b) ** 2))),
    "ours with tinygp": lambda: raw(RBFKernel()) * MATERN + raw(MLPKernel((4,))),
    "custom module": lambda: CustomKernel(jnp.asarray([0.5, 2.0])),
}
MEANS = {
    **{name: lambda name=name: name for name in ("mlp", "linear", "constant", "zero")},
    "mlp description": lambda: MLPMean((3,), "relu"),
    "custom function": lambda: lambda x: jnp.sin(x[0]),
    "custom module": lambda: CustomMean(jnp.asarray(2.0)),
}


def draw_prior(kernel="rbf", mean="zero"):
    return eqx.filter_jit(make_prior)(
        KEY, 2, resolve_mean(mean), resolve_kernel(kernel), make_likelihood(Gaussian(), 0.1)
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel_contract(kernel):
    prior = draw_prior(KERNELS[kernel]())
    check_prior(prior, 2)
    x1, x2 = draw_inputs(6), draw_inputs(4)
    x1[5] = x1[0]  # a coincident pair

    @eqx.filter_jit
    def evaluate(prior, x1, x2):
        kernel = merge(*split(prior)).kernel
        pair = getattr(kernel, "evaluate", lambda a, b: kernel(a[None], b[None])[0, 0])
        by_pairs = jax.vmap(lambda a: jax.vmap(lambda b: pair(a, b))(x2))(x1)
        return kernel(x1, x1), kernel(x1, x1 + 0.0), kernel(x1, x2), kernel(x2, x1), kernel(x1), by_pairs

    square, copied, cross, transposed, diagonal, by_pairs = evaluate(prior, x1, x2)
    assert (square.shape, cross.shape, diagonal.shape, square.dtype) == ((6, 6), (6, 4), (6,), jnp.float32)
    np.testing.assert_array_equal(square, square.T)
    np.testing.assert_allclose(square, copied, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(cross, transposed.T, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(diagonal, np.diag(square), rtol=1e-6)
    np.testing.assert_allclose(square[0], square[5], rtol=1e-6)
    rounding = 6 * np.finfo(np.float32).eps * np.max(diagonal)
    assert np.linalg.eigvalsh(np.asarray(square, np.float64)).min() > -rounding
    np.testing.assert_allclose(by_pairs, cross, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mean", MEANS)
def test_mean_contract(mean):
    prior = draw_prior(mean=MEANS[mean]())
    check_prior(prior, 2)
    x = draw_inputs(5)
    values = evaluate(jax.vmap(merge(*split(prior)).mean), x)
    assert (values.shape, values.dtype) == ((5,), jnp.float32)
    expected = {"zero": 0.0 * values, "custom function": np.sin(x[:, 0]), "custom module": 2.0 * x.sum(axis=1)}
    np.testing.assert_allclose(values, expected.get(mean, values), rtol=1e-6)


def features_by_hand(module, x):
    """Phi(x) of a feature kernel, and the widths of its layers."""
    residual = hasattr(module.features, "network")
    *hidden, last = (module.features.network if residual else module.features).layers
    phi = x
    for layer in hidden:
        phi = np.tanh(phi @ np.asarray(layer.weight).T + np.asarray(layer.bias))
    phi = phi @ np.asarray(last.weight).T + np.asarray(last.bias)
    return phi + x if residual else phi, [layer.weight.shape[0] for layer in (*hidden, last)]


@eqx.filter_jit
def evaluate(function, x):
    return function(x, x) if isinstance(function, tinygp.kernels.Kernel) else function(x)


@pytest.mark.parametrize("residual", [False, True])
def test_kernels_by_hand(residual):
    x = draw_inputs(5)
    difference = x[:, None] - x[None]
    mlp = build(MLPKernel(residual=residual))
    phi, widths = features_by_hand(mlp, x)
    assert widths == [32, 32, 32, 32, 2 if residual else 8]
    squares = np.sum((phi[:, None] - phi[None]) ** 2, axis=2)
    np.testing.assert_allclose(evaluate(mlp, x), 0.5 * np.exp(-squares), rtol=1e-5)  # the paper's kernel

    linear = build(LinearKernel(residual=residual, output_scale=3.0, rbf_scale=0.2, rbf_length_scale=0.7))
    rbf = 0.2 * np.exp(-0.5 * np.sum(difference**2, axis=2) / 0.7**2)
    phi, _ = features_by_hand(linear.first, x)
    np.testing.assert_allclose(evaluate(linear, x), 3.0 * phi @ phi.T + rbf, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(evaluate(build(RBFKernel(0.7, 0.2)), x), rbf, rtol=1e-5)
    per_input = eqx.tree_at(lambda k: k.log_length_scale, build(RBFKernel()), jnp.log(jnp.asarray([0.5, 2.0])))
    expected = np.exp(-0.5 * np.sum((difference / [0.5, 2.0]) ** 2, axis=2))
    np.testing.assert_allclose(evaluate(per_input, x), expected, rtol=1e-5)


@cache
def values_and_shapes(family, **arguments):
    module = build(family(**arguments))
    values = evaluate(jax.vmap(module) if family is MLPMean else lambda x: module(x, x), draw_inputs(3))
    return values, [leaf.shape for leaf in jax.tree.leaves(module)]


FAMILIES = (MLPKernel, LinearKernel, RBFKernel, MLPMean)
CHANGED = {"hidden_sizes": (5, 3), "activation": "relu", "n_features": 3, "residual": True, "output_scale": 2.5}
CHANGED |= {"length_scale": 0.4, "rbf_scale": 0.3, "rbf_length_scale": 2.0}


@pytest.mark.parametrize(("family", "argument"), [(f, name) for f in FAMILIES for name in CHANGED if hasattr(f, name)])
def test_every_argument_changes_the_result(family, argument):
    small = {} if family is RBFKernel else {"hidden_sizes": (4,)}
    before, shapes_before = values_and_shapes(family, **small)
    after, shapes_after = values_and_shapes(family, **small | {argument: CHANGED[argument]})
    assert not np.allclose(before, after, rtol=1e-3)
    assert (shapes_before != shapes_after) == (argument in ("hidden_sizes", "n_features", "residual"))


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (MLPKernel((4,), learn_output_scale=True), {"weights": 2, "biases": 2, "scales": 1}),
        (RBFKernel(learn_output_scale=False), {"scales": 1}),
        (LinearKernel((4, 4), learn_output_scale=True, residual=True), {"weights": 3, "biases": 3, "scales": 3}),
        (LinearKernel((4,)), {"weights": 2, "biases": 2, "scales": 2}),
    ],
)
def test_theta_holds_what_is_learned(kernel, expected):
    theta, rest = split(raw(kernel))
    names = jax.tree.leaves(groups(theta))
    assert {name: names.count(name) for name in set(names)} == expected
    merged = jax.tree.leaves(merge(theta, rest), is_leaf=lambda leaf: isinstance(leaf, Fixed))
    assert all(isinstance(leaf, jax.Array) for leaf in merged)
    assert len(merged) == len(names) + len(jax.tree.leaves(rest))


@pytest.mark.parametrize("learned", [True, False])
def test_noise_is_learned_or_fixed(learned):
    theta, rest = split(
        make_prior(KEY, 1, ZeroMean(), RBFKernel(), make_likelihood(Gaussian("learned" if learned else 0.2), 0.2))
    )
    assert len(jax.tree.leaves(theta)) == 2 + learned
    np.testing.assert_allclose(merge(theta, rest).likelihood.variance, 0.04, rtol=1e-6)


def test_custom_kernels_keep_their_positive_numbers_positive():
    kernel = 1.5 * tinygp.kernels.Polynomial(order=2, scale=0.7, sigma=-0.3) + tinygp.kernels.Matern32(scale=3)
    custom = resolve_kernel(kernel)
    x = draw_inputs(4)
    np.testing.assert_allclose(evaluate(merge(*split(custom)), x), evaluate(kernel, x), rtol=1e-5)
    theta, rest = split(custom)
    learned = sorted(float(leaf) for leaf in jax.tree.leaves(theta))
    np.testing.assert_allclose(learned, sorted([np.log(1.5), np.log(0.7), -0.3]), rtol=1e-6)  # not the integers
    far = merge(jax.tree.map(lambda leaf: leaf - 5.0, theta), rest).kernel()
    polynomial = far.kernel1.kernel2
    got = far.kernel1.kernel1.value, polynomial.scale, polynomial.sigma  # sigma starts negative: learned as it is
    np.testing.assert_allclose(got, [1.5 * np.exp(-5.0), 0.7 * np.exp(-5.0), -5.3], rtol=1e-5)
    assert (polynomial.order, far.kernel2.scale) == (2, 3)


@pytest.mark.parametrize("scale", [np.float32(0.7), np.asarray(0.7), 0.7, jnp.asarray(0.7)], ids=lambda s: type(s))
def test_custom_kernels_take_any_kind_of_float(scale):
    theta, _ = split(resolve_kernel(tinygp.kernels.Matern32(scale=scale)))
    np.testing.assert_allclose(jax.tree.leaves(theta), [np.log(0.7)], rtol=1e-6)


def test_our_kernels_combined_with_tinygp_are_the_same_function():
    x = draw_inputs(4)
    description = MLPKernel((4,), output_scale=0.3)
    combined = resolve_kernel(raw(description) + MATERN)
    expected = evaluate(build(description), x) + evaluate(MATERN, x)
    np.testing.assert_allclose(evaluate(merge(*split(combined)), x), expected, rtol=1e-5)
    names = jax.tree.leaves(groups(split(combined)[0]))
    assert sorted(names) == ["biases", "biases", "scales", "weights", "weights"]  # output_scale is still fixed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel": Wrong(lambda a, b: b @ a.T)}, r"kernel: .*\(2, 3\).*got \(3, 2\)"),
        ({"kernel": Wrong(lambda a, b: a @ b.T)}, r"kernel: .*\(2,\).*got \(2, 2\)"),
        ({"kernel": Wrong(lambda a, b: 1 / 0)}, "kernel: .*ZeroDivisionError"),
        ({"kernel": CustomKernel(jnp.ones(3))}, "kernel: .*2 input dimensions failed"),
        ({"mean": lambda x: x}, r"mean: .*got \(2,\)"),
        ({"mean": lambda: 0.0}, "mean: .*TypeError"),
        ({"mean": "Mlp"}, "mean must be one of mlp, linear, constant, zero.*'Mlp'"),
        ({"mean": 0.0}, "mean must be .*got float"),
        ({"mean": MLPMean}, "mean"),
        ({"kernel": "matern"}, r"kernel must be one of mlp, linear, linear\+rbf, rbf.*'matern'"),
        ({"kernel": lambda a, b: 1.0}, "kernel must be .*Custom.*got function"),
        ({"kernel": tinygp.kernels.Matern32}, "kernel must be "),
        ({"kernel": None}, "kernel must be .*got NoneType"),
        ({"kernel": MLPKernel}, "kernel"),
    ],
)
def test_bad_kernels_and_means_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        check_prior(draw_prior(**arguments), 2)


BAD = {"output_scale": (-1, 0, np.inf, "1"), "length_scale": (0.0, np.nan, [1.0, 2.0]), "rbf_scale": (-0.1,)}
BAD |= {"rbf_length_scale": (0,), "n_features": (0, 2.5, True), "hidden_sizes": (8, "32", (4, 0), (4, 1.5))}
BAD |= {"activation": ("sigmoyd", None, np.tanh)}
BAD_CASES = [(f, name, value) for f in FAMILIES for name in BAD if hasattr(f, name) for value in BAD[name]]


@pytest.mark.parametrize(("family", "argument", "value"), BAD_CASES)
def test_bad_arguments_are_named(family, argument, value, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # users have no shape checker
    with pytest.raises(ValueError, match=rf"{argument}.* must be .*got "):
        family(**{argument: value})


@pytest.mark.parametrize("noise_std", [0.0, -1.0, np.nan, "learn", None, [0.1]])
def test_bad_noise_is_named(noise_std):
    with pytest.raises(ValueError, match="noise_std must be"):
        check_noise(noise_std)
    assert (check_noise("learned"), check_noise(np.float32(0.5))) == (None, 0.5)
