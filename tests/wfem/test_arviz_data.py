"""Draws of theta as data of ArviZ."""

import sys
import warnings

import numpy as np
import pytest

from metaprior import MetaGPRegressor
from metaprior.wfem import MAP, SVGD, Laplace, Training, WFEMRegressor
from metaprior.wfem.trained import _method

RNG = np.random.default_rng(0)
TASKS = [(x, np.sin(x[:, 0])) for x in RNG.normal(size=(6, 5, 1))]
QUICK = {"kernel": "rbf", "mean": "linear", "temperature": "bayes", "random_state": 0}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # ArviZ announces its next version
    arviz = pytest.importorskip("arviz")


class Chains(MAP):
    """A method of a user's own, whose particles are draws."""


@pytest.fixture(scope="module")
def meta():
    about = {"alpha": [0.0, 0.5], "inference": Laplace(n_draws=4), "training": Training(n_steps=2)}
    return WFEMRegressor(**about, **QUICK).fit(TASKS[:3], TASKS[3:])


def test_every_parameter_is_a_variable(meta):
    data = meta.to_arviz()
    posterior = data["posterior"]
    assert set(posterior.data_vars) == {
        "mean.weight",
        "mean.bias",
        "kernel.log_length_scale",
        "kernel.log_output_scale",
        "likelihood.log_noise_std",
    }
    n_members = len(meta.model_.members)
    assert dict(posterior.sizes) | {"chain": n_members, "draw": 4} == dict(posterior.sizes)
    assert posterior["mean.weight"].shape == (n_members, 4, 1)
    drawn = posterior["kernel.log_length_scale"].values.ravel()
    np.testing.assert_array_equal(drawn, np.ravel(meta.particles_.kernel.log_length_scale))
    weights = data["sample_stats"]["particle_weight"].values
    np.testing.assert_allclose(weights.ravel(), meta.particle_weights_)
    assert weights.sum() == pytest.approx(1.0)
    assert data.attrs["inference"] == "laplace"
    assert data.attrs["inference_library"] == "metaprior"


def test_arviz_summarizes_it(meta):
    table = arviz.summary(meta.to_arviz(), kind="stats", var_names=["likelihood.log_noise_std"])
    expected = np.mean(meta.particles_.likelihood.log_noise_std)
    assert float(table["mean"].iloc[0]) == pytest.approx(expected, abs=0.02)


def test_methods_are_named_and_modes_refused(meta):
    quick = {**QUICK, "alpha": 0.0, "training": Training(n_steps=0)}
    svgd = WFEMRegressor(inference=SVGD(), **quick).fit(target_tasks=TASKS)
    assert _method(svgd) == "svgd"
    svgd.parameters_["inference"] = "laplace"
    assert _method(svgd) == "laplace"
    svgd.parameters_["inference"] = Chains()
    assert _method(svgd) == "chains"
    modes = WFEMRegressor(**quick).fit(target_tasks=TASKS)
    with pytest.raises(ValueError, match="inference='map' finds modes of theta"):
        modes.to_arviz()


def test_hierarchical_priors_say_what_they_have():
    meta = MetaGPRegressor(alpha=0.0, random_state=0).fit(target_tasks=TASKS)
    with pytest.raises(AttributeError, match="to_arviz"):
        meta.to_arviz()


def test_without_arviz_the_extra_is_named(meta, monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match=r"pip install 'metaprior\[arviz\]'"):
        meta.to_arviz()
