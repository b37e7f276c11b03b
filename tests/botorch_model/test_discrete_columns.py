"""Categories and covariates in tensors: the BoTorch model predicts what `adapt` predicts, and refuses what it must."""

import itertools

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("botorch")

import torch
from botorch.sampling import SobolQMCNormalSampler

from coded_inputs import BENT, MIXED, NAMES, as_cells, draw_codes, make_mixed
from hand_made_priors import make_terms
from metaprior import ImplausibleContextWarning, MetaGPRegressor
from metaprior.botorch import MetaPriorModel
from metaprior.prior.shapes import ONE_SCALE
from metaprior.tasks.categories import ColumnKinds

RNG = np.random.default_rng(0)
KINDS = {
    "bool": ColumnKinds((0, 2)),
    "two categories": ColumnKinds((3, 0, 5)),
    "categories alone": ColumnKinds((2, 4)),
    "many inputs share a length scale": ColumnKinds((0, 0, 0, 0, 3, 0, 0)),
    "numeric covariate": ColumnKinds((0, 0), (1,)),
    "categorical covariate": ColumnKinds((4, 0), (0,)),
    "all": ColumnKinds((2, 0, 5, 0, 3, 0), (0, 3, 4)),
}
SMOOTH = ("curve", "deviation")
TERMS = [(), SMOOTH, (*SMOOTH, "deformation"), (*SMOOTH, "features"), (*SMOOTH, "environment")]
COVARIATES = [(), ("shift",), ("shift", "bend")]
CURVED = ("shift", "curved")  # of covariates that are numbers


def moments(model, x, noise=False):
    posterior = model.posterior(torch.as_tensor(x), observation_noise=noise)
    return posterior.mean.squeeze(-1), posterior.distribution.covariance_matrix


def assert_same(meta, model, task, x):
    """Compare with what a task predicts where codes are levels."""
    for noise in (False, True):
        expected = task.predict(as_cells(meta, x), return_cov=True, latent=not noise)
        for found, wanted in zip(moments(model, x, noise), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-8)


def both(meta, x, y):
    """Return the model and the task of these evaluations."""
    model = MetaPriorModel(meta, torch.as_tensor(x), torch.as_tensor(y)[:, None])
    return model, meta.adapt(as_cells(meta, x), y)


@pytest.fixture(scope="module")
def meta():
    return make_mixed(names=NAMES)


@pytest.fixture
def task():
    """Evaluations of a task, and inputs to predict at."""
    x = draw_codes(np.random.default_rng(1), MIXED, 9)
    return x[:5], np.random.default_rng(2).normal(size=5), x[5:]


def effects_of(kinds):
    """Return what covariates of these kinds may do."""
    if not kinds.covariates:
        return [()]
    return [*COVARIATES, CURVED] if any(not kinds.levels[i] for i in kinds.covariates) else COVARIATES


@pytest.mark.parametrize("sort", KINDS)
@pytest.mark.parametrize("terms", TERMS, ids="+".join)
def test_every_kind_of_column_and_term(sort, terms):
    kinds = KINDS[sort]
    for effect, x_map, n in itertools.product(effects_of(kinds), (False, True), (0, 6)):
        both_terms = make_terms(*terms, *effect), make_terms(*effect)
        meta, x = make_mixed(kinds, both_terms, x_map=x_map), draw_codes(RNG, kinds, 10)
        assert_same(meta, *both(meta, x[:n], RNG.normal(size=n)), x[6:])


@pytest.mark.parametrize("missing", [[3], [4], [3, 4]])
def test_missing_covariates(meta, task, missing):
    x, y, query = task
    prior, asked = MetaPriorModel(meta), query.copy()
    asked[::2, missing] = np.nan  # without a context, rows may be of different tasks
    assert_same(meta, prior, meta.adapt([], []), asked)
    assert_same(meta, *both(meta, x, y), asked)  # those of the context
    x[:, missing], query[:, missing] = np.nan, np.nan
    assert_same(meta, *both(meta, x, y), query)


def test_a_fitted_prior_and_its_warnings():
    rng, tasks = np.random.default_rng(0), []
    for _ in range(14):
        x = pd.DataFrame({"C": rng.uniform(-2, 2, 6), "kernel": rng.permutation(["rbf", "linear", "poly"] * 2)})
        x["shrinking"], x["size"] = rng.permutation([True, False] * 3), rng.normal()
        tasks.append((x, np.sin(x["C"]) + 5.0 * (x["kernel"] == "rbf") + x["size"] + 0.1 * rng.normal(size=6)))
    meta = MetaGPRegressor(alpha=0.0, covariates=["size"], random_state=0, progress=False).fit(target_tasks=tasks)
    assert meta.covariate_weights_["none"] < 0.9
    assert [len(each or ()) for each in meta.column_levels_] == [0, 3, 2, 0]
    cells, y = tasks[0][0].to_numpy(object), tasks[0][1].to_numpy(copy=True)
    x = cells.copy()
    for column in (1, 2):
        x[:, column] = [meta.column_levels_[column].index(cell) for cell in cells[:, column]]
    train_X, train_Y = torch.as_tensor(x.astype(float)), torch.as_tensor(y)[:, None]
    model, task = MetaPriorModel(meta, train_X[:4], train_Y[:4]), meta.adapt(cells[:4], y[:4])
    assert_same(meta, model, task, x[4:].astype(float))
    assert_same(meta, MetaPriorModel(meta), meta.adapt([], []), x.astype(float))
    with pytest.warns(ImplausibleContextWarning):
        MetaPriorModel(meta, train_X, 1e4 + train_Y)
    others = train_X.clone()
    others[:, 1] = (train_X[:, 1] + 1) % 3  # outputs of other kernels: implausible only if codes are not looked up
    with pytest.warns(ImplausibleContextWarning):
        MetaPriorModel(meta, others, train_Y)


def test_batches_equal_loops(meta):
    x = torch.stack([torch.as_tensor(draw_codes(RNG, MIXED, 7)) for _ in range(3)])  # three tasks
    y, queries = torch.as_tensor(RNG.normal(size=(2, 3, 5, 1))), x[:, 5:].clone()
    queries[0, 1, 3:] = torch.nan
    found = MetaPriorModel(meta, x[:, :5], y).posterior(queries)
    assert found.mean.shape == (2, 3, 2, 1)
    for i, j in np.ndindex(2, 3):
        one = MetaPriorModel(meta, x[j, :5], y[i, j]).posterior(queries[j])
        torch.testing.assert_close(found.mean[i, j], one.mean)
        covariances = (each.distribution.covariance_matrix for each in (found, one))
        torch.testing.assert_close(next(covariances)[i, j], next(covariances))


def test_missing_covariates_of_queries_are_those_of_each_task(meta):
    x = torch.stack([torch.as_tensor(draw_codes(RNG, MIXED, 7)) for _ in range(3)])
    y, queries = torch.as_tensor(RNG.normal(size=(3, 5, 1))), x[0, 5:].clone()
    queries[:, 3:] = torch.nan  # the same queries of all tasks
    found = MetaPriorModel(meta, x[:, :5], y).posterior(queries).mean
    for i in range(3):
        given = torch.cat([queries[:, :3], x[i, 5:, 3:]], -1)
        torch.testing.assert_close(found[i], MetaPriorModel(meta, x[i, :5], y[i]).posterior(given).mean)


def test_conditioning_equals_adapting_to_all_readings(meta, task):
    x, y, query = task
    model, expected = MetaPriorModel(meta, *map(torch.as_tensor, (x[:3], y[:3, None]))), both(meta, x, y)[1]
    for covariates in (x[3:, 3:], np.nan):  # given again, or missing: those of the context
        more = x[3:].copy()
        more[:, 3:] = covariates
        assert_same(meta, model.condition_on_observations(*map(torch.as_tensor, (more, y[3:, None]))), expected, query)
    first = MetaPriorModel(meta).condition_on_observations(*map(torch.as_tensor, (x, y[:, None])))
    assert_same(meta, first, expected, query)


def test_fantasies_average_to_the_posterior(task):
    """Of one Gaussian process: the mean of the fantasies is its mean, and by the law of total variance its variance."""
    meta = make_mixed(terms=[BENT], scales=ONE_SCALE)
    meta.model_ = meta.model_._replace(spread=1.0)
    model, query = both(meta, *task[:2])[0], torch.as_tensor(task[2])
    sampler = SobolQMCNormalSampler(torch.Size([1024]), seed=0)
    before, fantasies = model.posterior(query[1:]), model.fantasize(query[:1], sampler).posterior(query[1:])
    torch.testing.assert_close(fantasies.mean.mean(0), before.mean, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(
        fantasies.variance.mean(0) + fantasies.mean.var(0), before.variance, rtol=1e-2, atol=1e-3
    )


def with_numbers(numbers, x):
    """Return inputs with other values of C and gamma, the only columns that are searched."""
    x = x.expand(*numbers.shape[:-1], x.shape[-1])
    return torch.cat([numbers[..., :1], x[..., 1:2], numbers[..., 1:], x[..., 3:]], -1)


@pytest.mark.parametrize("n", [0, 5])
def test_gradients_of_numbers(meta, task, n):
    model, query = both(meta, task[0][:n], task[1][:n])[0], torch.as_tensor(task[2])
    numbers = query[:, [0, 2]].expand(2, 4, 2).clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda each: moments(model, with_numbers(each, query), noise=True), numbers)
    sampler = SobolQMCNormalSampler(torch.Size([2]), seed=0)

    def value(each):
        return model.fantasize(with_numbers(each, query[:1]), sampler).posterior(query[1:]).mean

    assert torch.autograd.gradcheck(value, query[:1, [0, 2]].clone().requires_grad_())


@pytest.mark.parametrize(
    ("column", "said"), [(1, "'kernel', a category"), (3, "'sparse', a .*"), (4, "'size', a covariate")]
)
def test_gradients_of_categories_and_covariates_are_refused(meta, task, column, said):
    x, y, query = task
    for model in (MetaPriorModel(meta), both(meta, x, y)[0]):
        held, free = torch.as_tensor(query), torch.as_tensor(query[:, column]).requires_grad_()
        X = torch.cat([held[:, :column], free[:, None], held[:, column + 1 :]], -1)
        for use in (model.posterior, lambda X: model.condition_on_observations(X, X[:, :1])):  # noqa: B023
            with pytest.raises(ValueError, match=rf"^X .*gradient .*column {said}.*fixed_features"):
                use(X)
        with torch.no_grad():
            model.posterior(X)
    with pytest.raises(ValueError, match="gradient"):  # a leaf
        model.posterior(torch.as_tensor(query).requires_grad_())


def test_gradients_that_stop_before_categories_are_not(meta, task):
    query = torch.as_tensor(task[2]).requires_grad_()
    held = torch.where(torch.tensor([True, False, True, False, False]), query, query.detach())
    copied = torch.zeros_like(query)
    for column in range(5):  # as `fix_features` of BoTorch does
        copied[:, column] = query[:, column] if column in (0, 2) else query.detach()[:, column]
    for X in (held, copied):
        (found,) = torch.autograd.grad(MetaPriorModel(meta).posterior(X).mean.sum(), query)
        assert (found[:, [1, 3, 4]] == 0).all()
        assert (found[:, [0, 2]] != 0).all()


CODES = r"column 'kernel' must hold codes of levels, whole numbers from 0 to 2 \(0: 'rbf', 1: 'linear', 2: 'poly'\)"
BAD = [
    (1, 0.5, rf"{CODES}; got 0.5.*optimize_acqf_mixed"),
    (1, 3.0, rf"{CODES}; got 3"),
    (1, -1.0, rf"{CODES}; got -1"),
    (1, np.nan, "must be finite; column 'kernel'"),
    (
        3,
        2.0,
        r"column 'sparse' must hold codes of levels, .* from 0 to 1 \(0: True, 1: False\).*NaN if it is missing; got 2",
    ),
    (3, np.inf, "must be finite; column 'sparse'"),
    (4, -np.inf, "must be finite; column 'size'"),
    (0, np.nan, "must be finite; column 'C'"),
]


@pytest.mark.parametrize(("column", "value", "said"), BAD)
def test_bad_codes(meta, task, column, value, said):
    x, y, _ = task
    bad, outputs = torch.as_tensor(x), torch.as_tensor(y)[:, None]
    bad[2, column] = value
    model = MetaPriorModel(meta)
    for use in (model.posterior, lambda X: MetaPriorModel(meta, X, outputs)):
        with pytest.raises(ValueError, match=f"X.*{said}"):
            use(bad)
    with pytest.raises(ValueError, match=f"X.*{said}"):
        model.condition_on_observations(bad, outputs)


@pytest.mark.parametrize(("column", "value"), [(3, 0.0), (3, np.nan), (4, 0.5), (4, np.nan)])
def test_covariates_that_differ(meta, task, column, value):
    x, y, query = (torch.as_tensor(each) for each in task)
    x[:, 3] = query[:, 3] = 1.0
    model, name, y = MetaPriorModel(meta, x, y[:, None]), NAMES[column], y[:, None]
    other = x.clone()
    other[2, column] = value
    with pytest.raises(ValueError, match=rf"train_X: covariate '{name}' must have one value within a task.* row 2\. "):
        MetaPriorModel(meta, other, y)
    if not np.isnan(value):  # which stands for that of the context
        for use in (model.posterior, lambda X: model.condition_on_observations(X, y)):
            with pytest.raises(
                ValueError, match=rf"X: covariate '{name}' must be that of the evaluations so far, or NaN"
            ):
                use(other)
    unknown = x.clone()
    unknown[:, column] = np.nan
    with pytest.raises(ValueError, match=rf"X: covariate '{name}' must be that of .* missing there"):
        MetaPriorModel(meta, unknown, y).posterior(query)


def test_columns_without_names():
    model = MetaPriorModel(make_mixed())
    with pytest.raises(ValueError, match=r"X: column 1 must hold codes"):
        model.posterior(torch.full((1, 5), 9.0, dtype=torch.float64))
    x = torch.zeros(2, 5, dtype=torch.float64)
    x[1, 4] = 1.0
    with pytest.raises(ValueError, match=r"X: covariate 4 must have one value"):
        model.condition_on_observations(x, x[:, :1])
    missing = torch.cat([x[:, :4], torch.full_like(x[:, 4:], torch.nan)], -1)
    with pytest.raises(ValueError, match=r"X: covariate 4 must have one value"):  # in the second task of two
        model.condition_on_observations(torch.stack([missing, x]), x[:, :1])
