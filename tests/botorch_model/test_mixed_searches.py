"""BoTorch's optimizers over categories, with covariates fixed: they find the best, or are told what to do instead."""

import itertools

import numpy as np
import pytest

pytest.importorskip("botorch")

import torch
from botorch.acquisition import (
    LogExpectedImprovement,
    PosteriorMean,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
)
from botorch.acquisition.fixed_feature import FixedFeatureAcquisitionFunction
from botorch.optim import optimize_acqf, optimize_acqf_discrete, optimize_acqf_mixed
from botorch.optim.optimize_mixed import optimize_acqf_mixed_alternating
from botorch.sampling import SobolQMCNormalSampler

from coded_inputs import MIXED, NAMES, draw_codes, make_mixed
from metaprior.botorch import MetaPriorModel

SIZE = 0.5
TASK = {3: 1.0, 4: SIZE}  # its covariates
FIXED = [{1: float(code), **TASK} for code in range(3)]
BOUNDS = torch.tensor([[-2.0, 0.0, -2.0, 0.0, 0.0], [2.0, 2.0, 2.0, 1.0, 1.0]], dtype=torch.float64)
FEW = {"num_restarts": 2, "raw_samples": 8, "options": {"maxiter": 15}}
SAMPLER = SobolQMCNormalSampler(torch.Size([16]), seed=0)


@pytest.fixture(scope="module")
def model():
    x = draw_codes(np.random.default_rng(0), MIXED, 6)
    x[:, 3:] = 1.0, SIZE
    y = np.random.default_rng(1).normal(size=(6, 1))
    return MetaPriorModel(make_mixed(names=NAMES), torch.as_tensor(x), torch.as_tensor(y))


@pytest.fixture(scope="module")
def grid():
    """A fine grid of all inputs that can be tried."""
    axis = torch.linspace(-2, 2, 25, dtype=torch.float64)
    return torch.tensor(
        [[float(c), code, float(gamma), 1.0, SIZE] for c, code, gamma in itertools.product(axis, range(3), axis)],
        dtype=torch.float64,
    )


@pytest.mark.parametrize("method", ["L-BFGS-B", "SLSQP"])  # in parallel, and one after another
def test_mixed_search_finds_the_best(model, grid, method):
    torch.manual_seed(0)
    improvement = LogExpectedImprovement(model, model.train_targets.max())
    found, value = optimize_acqf_mixed(improvement, BOUNDS, 1, 4, FIXED, 32, {"maxiter": 100, "method": method})
    assert found.shape == (1, 5)
    assert found[0, 1] in (0, 1, 2)
    assert found[0, 3:].tolist() == [1.0, SIZE]
    assert value >= improvement(grid[:, None]).max() - 1e-6
    torch.testing.assert_close(improvement(found[None])[0], value)


def test_mixed_search_moves_by_gradients(model):
    start = torch.tensor([[[0.1, 1.0, -0.3, 1.0, SIZE]]], dtype=torch.float64)
    mean = PosteriorMean(model)
    found, value = optimize_acqf_mixed(mean, BOUNDS, 1, 1, [FIXED[1]], batch_initial_conditions=start)
    assert value > mean(start) + 1e-3
    assert (found[0, [0, 2]] != start[0, 0, [0, 2]]).all()


@pytest.mark.parametrize("name", ["qLogEI", "qLogNEI", "qKG"])
def test_mixed_search_of_batches_and_fantasies(model, name):
    torch.manual_seed(0)
    acquisition = {
        "qLogEI": lambda: qLogExpectedImprovement(model, model.train_targets.max(), SAMPLER),
        "qLogNEI": lambda: qLogNoisyExpectedImprovement(model, model.train_inputs[0], SAMPLER, cache_root=False),
        "qKG": lambda: qKnowledgeGradient(model, num_fantasies=2),
    }[name]()
    q = 1 if name == "qKG" else 2
    found, _ = optimize_acqf_mixed(acquisition, BOUNDS, q, fixed_features_list=FIXED, **FEW)
    assert found.shape == (q, 5)
    assert all(code in (0, 1, 2) for code in found[:, 1])


def test_alternating_search(model, grid):
    torch.manual_seed(0)
    mean = PosteriorMean(model)
    options = {"initialization_strategy": "random"}  # by default it starts between levels, and warns that it cannot
    found, value = optimize_acqf_mixed_alternating(
        mean, BOUNDS, None, {1: [0.0, 1.0, 2.0]}, options, raw_samples=32, num_restarts=4, fixed_features=TASK
    )
    assert found[0, 1] in (0, 1, 2)
    assert value >= mean(grid[:, None]).max() - 1e-6


def test_discrete_search_finds_the_best(model, grid):
    mean = PosteriorMean(model)
    found, value = optimize_acqf_discrete(mean, 1, choices=grid[::7])
    assert value == mean(grid[::7, None]).max()
    assert (found == grid).all(-1).any()
    improvement = qLogExpectedImprovement(model, model.train_targets.max(), SAMPLER)
    found, _ = optimize_acqf_discrete(improvement, 2, choices=grid[::97])
    assert found.shape == (2, 5)


def test_a_wrapper_fixes_columns(model):
    mean = PosteriorMean(model)
    fixed = FixedFeatureAcquisitionFunction(mean, 5, [1, 3, 4], [2.0, 1.0, SIZE])
    found, value = optimize_acqf(fixed, BOUNDS[:, [0, 2]], 1, **FEW)
    whole = torch.tensor([[[found[0, 0], 2.0, found[0, 1], 1.0, SIZE]]], dtype=torch.float64)
    torch.testing.assert_close(mean(whole)[0], value)


def test_missing_covariates_are_those_of_the_task(model):
    mean, missing = PosteriorMean(model), [{**each, 4: np.nan} for each in FIXED]
    torch.manual_seed(0)
    _, given = optimize_acqf_mixed(mean, BOUNDS, 1, fixed_features_list=FIXED, **FEW)
    torch.manual_seed(0)
    found, value = optimize_acqf_mixed(mean, BOUNDS, 1, fixed_features_list=missing, **FEW)
    assert found[0, 4].isnan()
    torch.testing.assert_close(value, given)


def test_searches_through_a_category_are_refused(model):
    mean = PosteriorMean(model)
    with pytest.raises(ValueError, match=r"column 'kernel' must hold codes .* got .*optimize_acqf_mixed"):
        optimize_acqf(mean, BOUNDS, 1, fixed_features=TASK, **FEW)
    whole = torch.tensor([[[0.1, 1.0, -0.3, 1.0, SIZE]]], dtype=torch.float64)  # codes, at first
    for options in ({"maxiter": 2}, {"method": "SLSQP"}):
        with pytest.raises(ValueError, match=r"gradient .* column 'kernel', a category.*optimize_acqf_mixed"):
            optimize_acqf(mean, BOUNDS, 1, 1, options=options, batch_initial_conditions=whole, fixed_features=TASK)


def test_searches_through_a_covariate_are_refused(model):
    mean, kernel = PosteriorMean(model), {1: 0.0, 3: 1.0}
    with pytest.raises(ValueError, match=r"covariate 'size' must be that of .*; got .*fixed_features=\{4: value\}"):
        optimize_acqf(mean, BOUNDS, 1, fixed_features=kernel, **FEW)
    first = PosteriorMean(MetaPriorModel(make_mixed(names=NAMES)))  # of a task without evaluations
    with pytest.raises(ValueError, match=r"gradient .* column 'size', a covariate.*fixed_features=\{4: value\}"):
        optimize_acqf(first, BOUNDS, 1, fixed_features=kernel, **FEW)
    found, _ = optimize_acqf(first, BOUNDS, 1, fixed_features={**kernel, 4: SIZE}, **FEW)
    assert found[0, 4] == SIZE
