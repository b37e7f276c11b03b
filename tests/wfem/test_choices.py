"""What names stand for: kernels and means, and the defaults of every description and of the estimators."""

import dataclasses
import inspect

import pytest

from metaprior import wfem
from metaprior.wfem import (
    MAP,
    SVGD,
    ConstantMean,
    ConvEncoder,
    Gaussian,
    HyperPrior,
    Laplace,
    LinearKernel,
    LinearMean,
    LinearRBFKernel,
    MLPEncoder,
    MLPKernel,
    MLPMean,
    RBFKernel,
    Training,
    WFEMClassifier,
    WFEMRegressor,
    ZeroMean,
)
from metaprior.wfem.settings import name_of, resolve_kernel, resolve_mean

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
    ZeroMean: {},
    ConstantMean: {},
    LinearMean: {"scale": 4.0},
    MLPMean: {"hidden_sizes": FOUR_LAYERS, "activation": "tanh"},
    MLPEncoder: {"hidden_sizes": FOUR_LAYERS, "activation": "tanh", "n_features": None, "residual": False},
    ConvEncoder: {"channels": (64, 64, 64, 64), "image_shape": None},
    MAP: {"n_particles": 1, "start": "initializer"},
    SVGD: {"n_particles": 10, "length_scale": "median", "start": "initializer"},
    Laplace: {"n_draws": 10, "start": "initializer"},
    Gaussian: {"noise_std": "learned"},
    HyperPrior: {"mean": "zero", "std": 1.0},
    Training: {
        "n_steps": None,
        "learning_rate": 1e-2,
        "optimizer": "adam",
        "schedule": "cosine",
        "batch_size": None,
        "standardize": None,
        "dtype": "auto",
        "n_devices": None,
        "search_time": None,
        "progress": None,
    },
}
OF_THE_PAPER = {
    "kernel": "mlp",
    "mean": "mlp",
    "encoder": None,
    "inference": MAP(),
    "alpha": 0.5,
    "temperature": "paper",
}
OF_THE_PAPER |= {"hyperprior": HyperPrior(), "training": Training(), "categorical": None, "context": "random"}


@pytest.mark.parametrize("description", DEFAULTS, ids=lambda each: each.__name__)
def test_defaults_that_published_results_were_made_with(description):
    """A default that changes makes every figure of the documentation another one."""
    assert dataclasses.asdict(description()) == DEFAULTS[description]


def test_defaults_of_the_estimators_are_those_of_the_paper():
    assert WFEMRegressor().get_params(False) == {**OF_THE_PAPER, "likelihood": Gaussian(), "random_state": None}
    assert WFEMClassifier().get_params(False) == {**OF_THE_PAPER, "shared_classes": "auto", "random_state": None}


def test_every_description_is_listed():
    public = [getattr(wfem, name) for name in wfem.__all__]
    of_settings = {each for each in public if dataclasses.is_dataclass(each) and not inspect.isabstract(each)}
    assert of_settings == set(DEFAULTS)


def test_kernels_are_recorded_by_their_names_and_those_of_users_by_their_class():
    assert [name_of(kernel) for kernel in (LinearRBFKernel(), MLPKernel(), RBFKernel(2.0), LinearKernel())] == [
        "linear+rbf",
        "mlp",
        "rbf",
        "linear",
    ]
    assert name_of(object()) == "object"


def test_names():
    assert (resolve_kernel("mlp"), resolve_mean("mlp")) == (MLPKernel(), MLPMean())
    assert resolve_kernel("linear+rbf") == LinearRBFKernel()
    assert resolve_kernel(MLPKernel((3,))) == MLPKernel((3,))
    assert resolve_mean("zero") == ZeroMean()
    for resolve, name in ((resolve_kernel, "kernel"), (resolve_mean, "mean")):
        for unknown in ("rfb", "auto", "inducing"):
            with pytest.raises(ValueError, match=f"(?s){name} must be one of mlp, .*; got '{unknown}'"):
                resolve(unknown)
