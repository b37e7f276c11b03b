"""Tensors that a BoTorch model cannot take are refused with its own words, not with those of torch."""

import numpy as np
import pytest

pytest.importorskip("botorch")

import torch
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.generation import MaxPosteriorSampling

from hand_made_priors import as_meta, make_prior
from metaprior.botorch import MetaPriorModel
from metaprior.botorch.checks import check_inputs, check_outputs
from metaprior.tasks.columns import Features


def zeros(*shape):
    return torch.zeros(*shape, dtype=torch.float64)


@pytest.fixture(scope="module")
def meta():
    return as_meta(make_prior(seed=0), make_prior(seed=1))


def test_batch_shapes_that_do_not_broadcast(meta):
    with pytest.raises(ValueError, match=r"must broadcast.* got \(2,\) of train_X, \(4,\) of train_Y"):
        MetaPriorModel(meta, zeros(2, 3, 1), zeros(4, 3, 1))
    model = MetaPriorModel(meta, zeros(2, 3, 1), zeros(2, 3, 1))
    with pytest.raises(ValueError, match=r"must broadcast.* got \(4,\) of X, \(2,\) of the evaluations so far"):
        model.posterior(zeros(4, 1, 1))
    with pytest.raises(ValueError, match=r"got \(2,\) of X, \(4,\) of Y, \(2,\) of the evaluations so far"):
        model.condition_on_observations(zeros(2, 1, 1), zeros(4, 1, 1))
    with pytest.raises(ValueError, match=r"observation_noise must be .* shape \(2, 5, 1\); got \(3, 5, 1\)"):
        model.posterior(zeros(2, 5, 1), observation_noise=zeros(3, 5, 1))
    more = model.condition_on_observations(zeros(2, 1, 1), zeros(7, 2, 1, 1))  # fantasies at the same inputs
    assert more.posterior(zeros(1, 1, 1)).mean.shape == (7, 2, 1, 1)


@pytest.mark.parametrize("huge", [1e150, -1e200, 1e308])
def test_inputs_and_outputs_that_adapt_refuses(meta, huge):
    x, model = torch.full((1, 1), huge, dtype=torch.float64), MetaPriorModel(meta)
    for name, use in {
        "X": lambda: model.posterior(x),
        "train_X": lambda: MetaPriorModel(meta, x, zeros(1, 1)),
        "train_Y": lambda: MetaPriorModel(meta, zeros(1, 1), x),
        "Y": lambda: model.condition_on_observations(zeros(1, 1), x),
    }.items():
        with pytest.raises(ValueError, match=rf"^{name} is more than 1e\+100 standard deviations from the"):
            use()
    with pytest.raises(ValueError, match=r"X is more than 1e\+100 standard deviations"):
        meta.adapt([], []).predict([[huge]])
    assert torch.isfinite(model.posterior(torch.full((1, 1), 1e90, dtype=torch.float64)).variance).all()


def test_arrays_are_told_to_become_tensors(meta):
    with pytest.raises(ValueError, match=r"got ndarray\. Pass torch\.as_tensor\(train_X, dtype=torch\.float64\)"):
        check_inputs("train_X", np.zeros((2, 1)), Features(1))
    with pytest.raises(ValueError, match=r"got list\. Pass torch\.as_tensor\(Y, dtype"):
        check_outputs("Y", [[1.0]], zeros(1, 1))
    with pytest.raises(ValueError, match=r"got torch\.float32\. Call Y\.double\(\)"):
        check_outputs("Y", zeros(1, 1).float(), zeros(1, 1))
    with pytest.raises(ValueError, match="meta must be a fitted MetaGPRegressor; got str"):
        MetaPriorModel("prior.safetensors")


def test_thompson_sampling_as_the_page_says(meta):
    model = MetaPriorModel(meta, zeros(1, 1), zeros(1, 1))
    with pytest.raises(NotImplementedError):
        PathwiseThompsonSampling(model)(zeros(1, 1, 1))
    assert MaxPosteriorSampling(model)(zeros(5, 1), num_samples=2).shape == (2, 1)
