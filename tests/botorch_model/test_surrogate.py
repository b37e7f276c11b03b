"""The BoTorch model predicts what `adapt` predicts, with gradients, in batches, for any acquisition function."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("botorch")

import torch
from botorch.acquisition import (
    LogExpectedImprovement,
    PosteriorMean,
    UpperConfidenceBound,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qUpperConfidenceBound,
)
from botorch.acquisition.max_value_entropy_search import qMaxValueEntropy
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.models import ModelList
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from sklearn.exceptions import NotFittedError

from hand_made_priors import ALL_TERMS, CURVE, NOISE_SCALES, SMOOTH, THREE_SCALES, as_meta, make_prior, make_terms
from metaprior import ImplausibleContextWarning, MetaGPClassifier, MetaGPRegressor
from metaprior.botorch import MetaPriorModel
from metaprior.botorch.surrogate import stable_cholesky

RNG = np.random.default_rng(0)


def draw(*shape):
    return torch.as_tensor(RNG.normal(size=shape))


def assert_same(model, task, x):
    """Compare means, standard deviations and covariances, of the latent function and of observations."""
    for latent in (True, False):
        found = model.posterior(torch.as_tensor(x), observation_noise=not latent)
        mean, covariance = task.predict(x, return_cov=True, latent=latent)
        _, std = task.predict(x, return_std=True, latent=latent)
        np.testing.assert_allclose(found.mean[:, 0], mean, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(found.distribution.covariance_matrix, covariance, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(found.variance[:, 0].sqrt(), std, rtol=1e-8, atol=1e-8)


@pytest.fixture(scope="module")
def meta():
    """Three members with shapes, curves and scales of tasks, of two inputs."""
    priors = [
        make_prior(CURVE, 2, scales=THREE_SCALES, seed=1),
        make_prior(SMOOTH, 2, shapes=True, scales=NOISE_SCALES, seed=2),
        make_prior(make_terms("environment"), 2, seed=3),
    ]
    return as_meta(*priors, weights=[0.5, 0.2, 0.3], spread=1.3)


@pytest.fixture(scope="module")
def model(meta):
    return MetaPriorModel(meta, draw(5, 2), draw(5, 1))


@pytest.mark.parametrize("input_dim", [1, 3, 8])  # with many inputs all share a length scale
@pytest.mark.parametrize("terms", ALL_TERMS.values(), ids=ALL_TERMS)
def test_every_term_of_a_prior(terms, input_dim):
    names = {term.name for term in terms}
    shapes = [False, True] if "deviation" in names and "features" not in names else [False]
    for shape, scales, n in itertools.product(shapes, (THREE_SCALES, NOISE_SCALES), (0, 6)):
        priors = [make_prior(terms, input_dim, shape, scales, seed, x_map=bool(seed)) for seed in (0, 1)]
        meta, x, y = (
            as_meta(*priors, weights=[0.3, 0.7], spread=1.4),
            RNG.normal(size=(n, input_dim)),
            RNG.normal(size=n),
        )
        model = MetaPriorModel(meta, torch.as_tensor(x), torch.as_tensor(y)[:, None])
        assert_same(model, meta.adapt(x, y), RNG.normal(size=(4, input_dim)))


def test_a_fitted_prior_and_its_warnings(meta):
    tasks = [(x, np.sin(x[:, 0]) + RNG.normal()) for x in RNG.uniform(-2, 2, (6, 7, 1))]
    fitted = MetaGPRegressor(alpha=0.0, random_state=0, progress=False).fit(target_tasks=tasks)
    x, y = tasks[0]
    model = MetaPriorModel(fitted, torch.as_tensor(x), torch.as_tensor(y)[:, None])
    assert_same(model, fitted.adapt(x, y), np.linspace(-2, 2, 5)[:, None])
    assert_same(MetaPriorModel(fitted), fitted.adapt([], []), x)
    with pytest.warns(ImplausibleContextWarning):
        MetaPriorModel(fitted, torch.as_tensor(x), torch.as_tensor(1e4 + y)[:, None])


def test_gradients(model):
    x = draw(3, 2, 2).requires_grad_()

    def values(x):
        posterior = model.posterior(x, observation_noise=True)
        return posterior.mean, posterior.distribution.covariance_matrix

    assert torch.autograd.gradcheck(values, x)
    at_readings = model.train_inputs[0][:2].clone().requires_grad_()  # where distances are zero
    assert torch.autograd.gradcheck(values, at_readings)


def test_gradients_through_fantasies(model):
    sampler = SobolQMCNormalSampler(torch.Size([2]), seed=0)
    queries = draw(1, 2)

    def value(x):
        return model.fantasize(x, sampler).posterior(queries).mean

    assert torch.autograd.gradcheck(value, draw(1, 1, 2).requires_grad_())


def test_batches_equal_loops(meta, model):
    x = draw(2, 3, 4, 2)
    found = model.posterior(x)
    assert found.mean.shape == (2, 3, 4, 1)
    for place in np.ndindex(2, 3):
        expected = model.posterior(x[place])
        torch.testing.assert_close(found.mean[place], expected.mean)
        torch.testing.assert_close(found.distribution.covariance_matrix[place], expected.distribution.covariance_matrix)
    batched = MetaPriorModel(meta, draw(3, 5, 2), draw(3, 5, 1))
    assert batched.batch_shape == (3,)
    found = batched.posterior(x)
    for i, j in np.ndindex(2, 3):
        one = MetaPriorModel(meta, batched.train_inputs[0][j], batched.train_targets[j][:, None])
        torch.testing.assert_close(found.mean[i, j], one.posterior(x[i, j]).mean)


def test_conditioning_equals_adapting_to_all_readings(meta, model):
    x, y = draw(2, 2), draw(2, 1)
    more = model.condition_on_observations(x, y)
    x, y = torch.cat([model.train_inputs[0], x]), torch.cat([model.train_targets, y[:, 0]])
    assert_same(more, meta.adapt(x.numpy(), y.numpy()), RNG.normal(size=(4, 2)))
    assert len(model.train_targets) == 5


def test_conditioning_in_batches(model):
    x, y, queries = draw(3, 2, 2), draw(4, 3, 2, 1), draw(2, 2)
    more = model.condition_on_observations(x, y).condition_on_observations(queries[:1], draw(1, 1))
    assert more.batch_shape == (4, 3)
    more = model.condition_on_observations(x, y)
    found = more.posterior(queries)
    for i, j in np.ndindex(4, 3):
        expected = model.condition_on_observations(x[j], y[i, j]).posterior(queries)
        torch.testing.assert_close(found.mean[i, j], expected.mean)
        torch.testing.assert_close(found.variance[i, j], expected.variance)


def test_fantasies_average_to_the_posterior():
    """Of one Gaussian process: the mean of the fantasies is its mean, and by the law of total variance its variance."""
    model = MetaPriorModel(as_meta(make_prior(columns=2), spread=1.0), draw(3, 2), draw(3, 1))
    queries = draw(3, 2)
    before = model.posterior(queries)
    fantasies = model.fantasize(draw(1, 2), SobolQMCNormalSampler(torch.Size([1024]), seed=0)).posterior(queries)
    torch.testing.assert_close(fantasies.mean.mean(0), before.mean, rtol=1e-2, atol=1e-3)
    total = fantasies.variance.mean(0) + fantasies.mean.var(0)
    torch.testing.assert_close(total, before.variance, rtol=1e-2, atol=1e-3)


ACQUISITIONS = {
    "LogEI": lambda model, best: LogExpectedImprovement(model, best),
    "UCB": lambda model, best: UpperConfidenceBound(model, 2.0),
    "mean": lambda model, best: PosteriorMean(model),
    "qLogEI": lambda model, best: qLogExpectedImprovement(model, best, SobolQMCNormalSampler(torch.Size([16]), seed=0)),
    "qLogNEI": lambda model, best: qLogNoisyExpectedImprovement(
        model, model.train_inputs[0], SobolQMCNormalSampler(torch.Size([16]), seed=0), cache_root=False
    ),
    "qUCB": lambda model, best: qUpperConfidenceBound(model, 2.0, SobolQMCNormalSampler(torch.Size([16]), seed=0)),
    "MES": lambda model, best: qMaxValueEntropy(model, draw(20, 2)),
    "qKG": lambda model, best: qKnowledgeGradient(model, num_fantasies=2),
}


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_acquisition_functions_are_optimized(model, name):
    torch.manual_seed(0)
    acquisition, bounds = ACQUISITIONS[name](model, model.train_targets.max()), torch.tensor([[-2.0] * 2, [2.0] * 2])
    q = 2 if name.startswith("q") and name != "qKG" else 1
    options = {"maxiter": 10}
    found, value = optimize_acqf(acquisition, bounds.double(), q, 2, 8, options)
    assert found.shape == (q, 2)
    if name != "qKG":  # whose points come with those of its fantasies
        others = acquisition(4 * torch.rand(5, q, 2, dtype=torch.float64) - 2)
        assert value >= others.max() - 1e-6


def test_minimizing(model):
    minus = ScalarizedPosteriorTransform(torch.tensor([-1.0], dtype=torch.float64))
    x = draw(4, 1, 2)
    torch.testing.assert_close(model.posterior(x, posterior_transform=minus).mean, -model.posterior(x).mean)


def test_given_noise_is_added(model):
    x, noise = draw(3, 2), torch.tensor([[0.1], [0.2], [0.3]], dtype=torch.float64)
    more = model.posterior(x, observation_noise=noise).variance - model.posterior(x).variance
    torch.testing.assert_close(more, noise)


def test_conventions_of_models(model):
    assert (model.num_outputs, model.batch_shape) == (1, torch.Size([]))
    assert model.subset_output([0]) is model
    assert ModelList(model, model).posterior(draw(3, 2)).mean.shape == (3, 2)
    assert model.transform_inputs(x := draw(2, 2)) is x


def test_casting_keeps_double_precision(model):
    x = draw(3, 2)
    before = model.posterior(x).mean
    model.to(torch.float32)
    torch.testing.assert_close(model.posterior(x).mean, before, rtol=0, atol=0)


def test_many_close_points_are_sampled(model):
    x = torch.linspace(0, 0.1, 40, dtype=torch.float64)[:, None].expand(40, 2)
    assert torch.isfinite(model.posterior(x).rsample(torch.Size([2]))).all()


def test_singular_matrices_get_no_more_than_they_need():
    singular = torch.ones(3, 3, dtype=torch.float64)
    given = torch.stack([2.0 * torch.eye(3, dtype=torch.float64), singular])
    root = stable_cholesky(given)
    torch.testing.assert_close(root[0], np.sqrt(2.0) * torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-15)
    torch.testing.assert_close(root[1] @ root[1].T, singular, rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match="not positive definite"):
        stable_cholesky(-given)


FLOATS = torch.zeros(2, 2), "must be a tensor of torch.float64; got torch.float32. Call"
BAD_X = [
    FLOATS,
    (np.zeros((2, 2)), r"must be a tensor of torch.float64; got ndarray"),
    (torch.zeros(2, 3).double(), r"\(batch_shape, points, 2\), .* got \(2, 3\)"),
    (torch.zeros(2).double(), r"got \(2,\)"),
    (torch.full((2, 2), torch.nan).double(), "must be finite"),
]


@pytest.mark.parametrize(("x", "said"), BAD_X)
@pytest.mark.filterwarnings("ignore")
def test_bad_inputs(meta, model, x, said):
    for use in (model.posterior, lambda x: MetaPriorModel(meta, x, draw(2, 1))):
        with pytest.raises(Exception, match=rf"X .*{said}|type"):
            use(x)


BAD_Y = [
    (torch.zeros(2, 1), "must be a tensor of torch.float64"),
    (torch.zeros(2, 2).double(), "one output for each input; got .* pass a ModelList"),
    (torch.zeros(2).double(), r"got \(2,\)"),
    (torch.zeros(3, 1).double(), r"\(batch_shape, 2, 1\)"),
    (torch.full((2, 1), torch.inf).double(), "must be finite.* failed evaluations"),
]


@pytest.mark.parametrize(("y", "said"), BAD_Y)
def test_bad_outputs(meta, model, y, said):
    for use in (model.condition_on_observations, lambda x, y: MetaPriorModel(meta, x, y)):
        with pytest.raises(ValueError, match=rf"Y .*{said}"):
            use(draw(2, 2), y)


def test_what_cannot_be_asked_for(meta, model):
    with pytest.raises(ValueError, match=r"train_X and train_Y must be given together"):
        MetaPriorModel(meta, draw(2, 2))
    with pytest.raises(ValueError, match=r"output_indices must be \[0\].*got \[1\]"):
        model.posterior(draw(2, 2), output_indices=[1])
    with pytest.raises(ValueError, match=r"idcs must be \[0\]"):
        model.subset_output([0, 1])
    with pytest.raises(ValueError, match=r"takes X and Y alone; got noise"):
        model.condition_on_observations(draw(1, 2), draw(1, 1), noise=draw(1, 1))
    with pytest.raises(ValueError, match=r"observation_noise must be None"):
        model.fantasize(draw(1, 2), SobolQMCNormalSampler(torch.Size([2])), observation_noise=draw(1, 1))


def test_priors_that_torch_cannot_compute():
    with pytest.raises(ValueError, match="meta must be a fitted MetaGPRegressor"):
        MetaPriorModel("prior.safetensors")
    with pytest.raises(NotFittedError):
        MetaPriorModel(MetaGPRegressor())
    classes = [([[0.0], [1.0], [2.0], [3.0]], ["a", "b", "b", "a"])] * 3
    with pytest.raises(ValueError, match="no Gaussian posterior"):
        MetaPriorModel(MetaGPClassifier(progress=False).fit(target_tasks=classes))
    trained = MetaGPRegressor()
    trained.model_, trained.likelihood_ = SimpleNamespace(members=[object()]), "gaussian"
    with pytest.raises(ValueError, match=r"trained by gradients.*Fit a MetaGPRegressor"):
        MetaPriorModel(trained)
