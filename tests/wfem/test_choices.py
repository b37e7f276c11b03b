"""What names and 'auto' stand for: kernels, means, families, and the defaults of every description."""

import dataclasses
import inspect
import re

import pytest

import metaprior
from metaprior import (
    ConstantMean,
    ConvEncoder,
    InducingKernel,
    InducingMean,
    LinearKernel,
    LinearMean,
    LinearRBFKernel,
    MLPEncoder,
    MLPKernel,
    MLPMean,
    RBFKernel,
    ZeroMean,
)
from metaprior.checks import check_noise
from metaprior.wfem.choices import AUTO, check_encoded, choose_mean, families, resolve_kernel, resolve_mean

FOUR_LAYERS = (32, 32, 32, 32)
DEFAULTS = {
    RBFKernel: {"length_scale": 1.0, "output_scale": 1.0, "learn_output_scale": True},
    MLPKernel: {
        "hidden_sizes": FOUR_LAYERS,
        "activation": "tanh",
        "n_features": None,
        "residual": False,
        "output_scale": 0.5,
        "learn_output_scale": False,
    },
    LinearRBFKernel: {"linear_scale": 16.0, "rbf_scale": 4.0, "length_scale": 1.0},
    LinearKernel: {
        "hidden_sizes": FOUR_LAYERS,
        "activation": "tanh",
        "n_features": None,
        "residual": False,
        "output_scale": 1.0,
        "learn_output_scale": False,
        "rbf_scale": 0.01,
        "rbf_length_scale": 0.5,
    },
    InducingKernel: {
        "n_points": None,
        "rank": 4,
        "length_scale": None,
        "output_scale": 1.0,
        "factor_scale": 0.5,
        "line_std": 1.0,
    },
    InducingMean: {"n_points": None, "length_scale": None, "scale": 2.0},
    ZeroMean: {},
    ConstantMean: {},
    LinearMean: {"scale": 4.0},
    MLPMean: {"hidden_sizes": FOUR_LAYERS, "activation": "tanh"},
    MLPEncoder: {"hidden_sizes": FOUR_LAYERS, "activation": "tanh", "n_features": None, "residual": False},
    ConvEncoder: {"channels": (64, 64, 64, 64), "image_shape": None},
    metaprior.MAP: {"start": "initializer"},
    metaprior.SVGD: {"length_scale": "median", "start": "initializer"},
    metaprior.Laplace: {"start": "initializer", "n_draws": 10},
}


@pytest.mark.parametrize("description", DEFAULTS, ids=lambda each: each.__name__)
def test_defaults_that_published_results_were_made_with(description):
    """A default that changes makes every figure of the documentation another one."""
    assert dataclasses.asdict(description()) == DEFAULTS[description]


def test_every_description_is_listed():
    public = [getattr(metaprior, name) for name in metaprior.__all__]
    described = {each for each in public if inspect.isclass(each) and re.search("Kernel|Mean|Encoder", each.__name__)}
    assert described <= set(DEFAULTS)


def test_automatic_kernels():
    """The inducing prior for up to three inputs, unless an encoder moves them; the default comes first."""
    assert list(families(AUTO, 3, None, False).items()) == [("inducing", InducingKernel()), ("mlp", MLPKernel())]
    far = [("linear+rbf", LinearRBFKernel()), ("mlp", MLPKernel())]
    assert list(families(AUTO, 4, None, False).items()) == far
    assert list(families(AUTO, 1, MLPEncoder(), False).items()) == far
    assert families(AUTO, 1, None, True) == {"linear+rbf": LinearRBFKernel()}
    assert families(RBFKernel(2.0), 1, None, False) == {"rbf": RBFKernel(2.0)}
    assert list(families(object(), 1, None, False)) == ["object"]


def test_automatic_means():
    assert choose_mean(AUTO, InducingKernel(7)) == InducingMean(7)
    assert choose_mean(AUTO, LinearRBFKernel()) == LinearMean(1.0)
    assert choose_mean(AUTO, MLPKernel()) == MLPMean()
    assert choose_mean(ZeroMean(), MLPKernel()) == ZeroMean()


def test_names():
    assert resolve_kernel("auto") == resolve_mean("auto") == AUTO
    assert resolve_kernel("linear+rbf") == LinearRBFKernel()
    assert resolve_kernel(MLPKernel((3,))) == MLPKernel((3,))
    assert resolve_mean("zero") == ZeroMean()
    for resolve, name in ((resolve_kernel, "kernel"), (resolve_mean, "mean")):
        with pytest.raises(ValueError, match=f"(?s){name} must be one of auto, .*; got 'rfb'"):
            resolve("rfb")


def test_noise():
    assert check_noise("learned") is None
    assert check_noise(0.1) == 0.1
    for bad in (0.0, -1.0, "learnt"):
        with pytest.raises(ValueError, match="noise_std must be"):
            check_noise(bad)


def test_the_inducing_prior_takes_no_encoder():
    check_encoded(InducingMean(), InducingKernel(), None)
    check_encoded(MLPMean(), MLPKernel(), MLPEncoder())
    with pytest.raises(ValueError, match="kernel='inducing' cannot be combined with an encoder"):
        check_encoded(MLPMean(), InducingKernel(), MLPEncoder())
    with pytest.raises(ValueError, match="mean='inducing' cannot be combined with an encoder"):
        check_encoded(InducingMean(), MLPKernel(), MLPEncoder())
