"""One contract for every family of priors: any inference, readings or labels, ragged tasks, weights, files."""

import numpy as np
import pytest

import metaprior
from metaprior import (
    SVGD,
    InducingKernel,
    LinearKernel,
    LinearRBFKernel,
    MetaGPClassifier,
    MetaGPRegressor,
    MLPKernel,
    MLPMean,
    RBFKernel,
)
from metaprior.datasets import Sinusoid
from metaprior.estimators import fitting
from metaprior.search import selection
from metaprior.tasks.types import Task
from metaprior.wfem.fit import resolve_families, resolve_parameters
from metaprior.wfem.inference import MAP, Laplace, resolve_inference
from metaprior.wfem.many_runs import TrainingOptions
from metaprior.wfem.runs import Settings
from metaprior.wfem.selection import choose
from metaprior_studies.demo.sinusoid_demo import PAPER

NET = (6,)
FAMILIES = {
    "mlp": {"mean": MLPMean(NET), "kernel": MLPKernel(NET, n_features=3)},
    "linear": {"mean": MLPMean(NET), "kernel": LinearKernel(NET, n_features=3)},
    "linear residual": {"mean": "zero", "kernel": LinearKernel(NET, residual=True)},
    "linear+rbf": {"mean": "linear", "kernel": LinearRBFKernel()},
    "rbf": {"mean": "constant", "kernel": RBFKernel()},
    "inducing": {"kernel": InducingKernel(8, 2)},
}
QUICK = {"n_steps": 25, "random_state": 0, "progress": False}


def ragged(n_tasks, seed, labels=False):
    """Tasks of three and four samples: padded to one size, because every size is compiled."""
    rng = np.random.default_rng(seed)
    tasks = []
    for i in range(n_tasks):
        x = rng.normal(size=(3 if (i + seed) % 3 == 0 else 4, 2))
        y = np.sin(x[:, 0]) + 0.3 * x[:, 1] + rng.normal(scale=0.1, size=len(x))
        tasks.append((x, np.where(y > 0, "up", "down") if labels else y))
    return tasks


@pytest.mark.parametrize(
    ("family", "inference"),
    [
        *((name, "svgd") for name in ("mlp", "rbf")),
        *((name, "laplace") for name in ("linear+rbf", "inducing")),
        *(pytest.param(name, "svgd", marks=pytest.mark.slow) for name in ("linear", "linear residual", "inducing")),
    ],
)
def test_readings(family, inference, tmp_path):
    source, target = ragged(5, 0), ragged(4, 1)
    meta = MetaGPRegressor(0.3, inference=inference, n_particles=3, **FAMILIES[family], **QUICK).fit(source, target)
    assert len(meta.particle_weights_) == 3
    assert np.isfinite(meta.loss_trace_).all()
    if inference == "laplace":  # particles that repel each other need not descend
        assert meta.loss_trace_[-1] < meta.loss_trace_[0]
    x, y = ragged(4, 2)[3]
    queries = np.random.default_rng(3).normal(size=(6, 2))
    mean, std = meta.adapt(x, y).predict(queries, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    meta.save(tmp_path / "prior.safetensors")
    loaded = metaprior.load(tmp_path / "prior.safetensors")
    np.testing.assert_array_equal(loaded.adapt(x, y).predict(queries), mean)
    assert loaded.family_ == meta.family_


@pytest.mark.parametrize(
    ("family", "inference"),
    [
        ("linear", "map"),
        pytest.param("inducing", "map", marks=pytest.mark.slow),
        pytest.param("inducing", SVGD(start="hyperprior"), marks=pytest.mark.slow),
    ],
)
def test_labels(family, inference, tmp_path):
    arguments = {"mean": "constant", **FAMILIES[family]}
    meta = MetaGPClassifier(0.3, inference=inference, n_particles=2, **arguments, **QUICK)
    meta.fit(ragged(5, 0, labels=True), ragged(4, 1, labels=True))
    x, y = ragged(4, 2, labels=True)[3]
    probabilities = meta.adapt(x, y).predict_proba(x)
    assert np.isfinite(probabilities).all()
    meta.save(tmp_path / "prior.safetensors")
    loaded = metaprior.load(tmp_path / "prior.safetensors")
    np.testing.assert_array_equal(loaded.adapt(x, y).predict_proba(x), probabilities)


def test_a_source_of_no_weight_leaves_no_trace():
    """Neither in the scaling, nor in the inducing points, nor in training."""
    target = ragged(5, 1)
    fits = [
        MetaGPRegressor(0.0, inference="map", **FAMILIES["inducing"], **{**QUICK, "n_steps": 5}).fit(source, target)
        for source in (None, [(1e3 + x, -y) for x, y in ragged(4, 0)])
    ]
    x, y = ragged(4, 2)[3]
    one, other = (meta.adapt(x, y).predict(x, return_std=True) for meta in fits)
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)  # other shapes, other rounding


def test_auto_takes_the_family_that_fits_the_inputs():
    def known(meta, input_dim):
        return resolve_families(meta, resolve_parameters(meta), input_dim, resolve_inference(meta.inference))

    def names(meta, input_dim):
        return list(known(meta, input_dim))

    assert names(MetaGPRegressor(), 3) == ["inducing", "mlp"]
    assert names(MetaGPRegressor(), 4) == ["linear+rbf", "mlp"]
    assert names(MetaGPRegressor(encoder=lambda x: x), 2) == ["linear+rbf", "mlp"]
    assert names(MetaGPRegressor(inference="laplace"), 1) == ["inducing"]
    assert names(MetaGPRegressor(kernel="rbf", mean="zero"), 1) == ["rbf"]
    assert names(MetaGPClassifier(), 1) == names(MetaGPClassifier(), 64) == ["linear+rbf"]
    methods = [settings.method for settings in known(MetaGPRegressor(), 1).values()]
    assert methods == [Laplace(), MAP()]


def test_the_family_that_was_chosen_is_used_and_saved(tmp_path):
    tasks = ragged(6, 0)
    meta = MetaGPRegressor(0.0, **{**QUICK, "n_steps": 0})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "choose", lambda *given: (1, choose(*given[:3], given[3][1:], *given[4:])[1]))
        meta.fit(target_tasks=tasks)
    assert meta.family_ == "mlp"
    assert len(meta.particle_weights_) == 1  # too many parameters for Laplace's approximation
    meta.save(tmp_path / "prior.safetensors")
    loaded = metaprior.load(tmp_path / "prior.safetensors")
    assert loaded.family_ == "mlp"
    np.testing.assert_array_equal(
        loaded.adapt(*tasks[0]).predict([[0.1, 0.2]]), meta.adapt(*tasks[0]).predict([[0.1, 0.2]])
    )


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ([0.0, 0.1, 0.2, 0.1, 0.1] * 2, 1),
        ([0.5, -0.3, 0.2, -0.1, 0.1] * 2, 0),  # by less than a standard error
        ([0.6, -0.2, 0.3, 0.0, 0.1] * 2, 0),  # by 1.8 of them
        ([-1.0] * 10, 0),
        ([-np.inf] * 10, 0),
    ],
)
def test_the_first_family_is_left_only_for_one_that_is_clearly_better(gains, expected, monkeypatch):
    families = [Settings(), Settings()]

    def score(validations, candidates, *_):
        [validation] = validations
        new = validation.unscored(candidates)
        scores = np.zeros((len(new), len(validation.folds.splits)))
        scores[0] = -5.0  # the better of two discounts counts
        scores += np.resize(gains, scores.shape[1]) if new[0].settings is families[1] else 0.0
        validation.candidates += new
        queries = np.broadcast_to(scores[:, :, None], (*scores.shape, validation.reference.shape[1]))
        validation.log_densities = np.concatenate([validation.log_densities, queries])
        return True

    monkeypatch.setattr(selection, "score_candidates", score)
    search = selection.SearchOptions(TrainingOptions(10, 0.1), 0)
    task = Task(np.zeros((1, 1)), np.zeros(1))

    def family(n_target, families):
        tasks = [[task] * 3, [task] * n_target]
        return choose(tasks, 1, [(0.0, 1.0)], families, selection.AutoSettings(), search)[0]

    def family_of_two_discounts(n_target):
        tasks = [[task] * 3, [task] * n_target]
        weights = [(0.0, 1.0), (0.5, 0.5)]
        return selection._choose_family(tasks, 1, weights, families, search)[0]

    assert family_of_two_discounts(10) == expected
    assert family(9, families) == 0
    assert family(10, families[:1]) == 0


def test_the_inducing_prior_learns_the_shape_of_a_task():
    """From 15 sinusoids it predicts a new one far better than a plain GP: a quick relative of the next test."""
    environment = Sinusoid(0.75)
    tasks, tests = environment.target_tasks(15, 5, 0), environment.test_tasks(40, 5, 8, 1)
    arguments = {"noise_std": 0.1, "inference": "map", "random_state": 0}
    learned = MetaGPRegressor(0.0, kernel="inducing", n_steps=300, **arguments).fit(target_tasks=tasks)
    plain = MetaGPRegressor(0.0, kernel="rbf", mean="zero", n_steps=0, **arguments).fit(target_tasks=tasks)
    assert learned.evaluate(tests).rmse < 0.5 * plain.evaluate(tests).rmse


@pytest.mark.slow
def test_the_default_learns_more_from_few_tasks_than_the_paper_s_prior():
    """On a draw that no benchmark uses: see studies/benchmarks/priors.py for the figures."""
    environment, rng = Sinusoid(0.75), np.random.default_rng(2_000_000)
    tasks, tests = environment.target_tasks(15, 5, rng), environment.test_tasks(200, 5, 50, rng)
    default, paper = (
        MetaGPRegressor(0.0, noise_std=0.1, random_state=0, progress=False, **arguments)
        .fit(target_tasks=tasks)
        .evaluate(tests)
        for arguments in ({"kernel": "inducing"}, PAPER)
    )
    assert default.rmse < 0.25 < 0.3 < paper.rmse
    assert default.nll < paper.nll - 0.2
    assert 0.86 < default.coverage < 0.96
