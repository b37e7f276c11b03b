"""One contract for every kernel: any inference, readings or labels, ragged tasks, weights, files."""

import numpy as np
import pytest

import metaprior
from metaprior import MetaGPRegressor
from metaprior.datasets import Sinusoid
from metaprior.wfem import (
    MAP,
    SVGD,
    Gaussian,
    Laplace,
    LinearKernel,
    LinearRBFKernel,
    MLPKernel,
    MLPMean,
    RBFKernel,
    Training,
    WFEMClassifier,
    WFEMRegressor,
)

NET = (6,)
FAMILIES = {
    "mlp": {"mean": MLPMean(NET), "kernel": MLPKernel(NET, n_features=3)},
    "linear": {"mean": MLPMean(NET), "kernel": LinearKernel(NET, n_features=3)},
    "linear residual": {"mean": "zero", "kernel": LinearKernel(NET, residual=True)},
    "linear+rbf": {"mean": "linear", "kernel": LinearRBFKernel()},
    "rbf": {"mean": "constant", "kernel": RBFKernel()},
}
QUICK = {"temperature": "bayes", "training": Training(n_steps=25, progress=False), "random_state": 0}


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
        *((name, SVGD(n_particles=3)) for name in ("mlp", "rbf")),
        *((name, Laplace(n_draws=3)) for name in ("linear+rbf", "rbf")),
        *(pytest.param(name, SVGD(n_particles=3), marks=pytest.mark.slow) for name in ("linear", "linear residual")),
    ],
    ids=str,
)
def test_readings(family, inference, tmp_path):
    source, target = ragged(5, 0), ragged(4, 1)
    meta = WFEMRegressor(alpha=0.3, inference=inference, **FAMILIES[family], **QUICK).fit(source, target)
    assert len(meta.particle_weights_) == 3
    assert np.isfinite(meta.loss_trace_).all()
    if isinstance(inference, Laplace):  # particles that repel each other need not descend
        assert meta.loss_trace_[-1] < meta.loss_trace_[0]
    x, y = ragged(4, 2)[3]
    queries = np.random.default_rng(3).normal(size=(6, 2))
    mean, std = meta.adapt(x, y).predict(queries, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    meta.save(tmp_path / "prior.safetensors")
    loaded = metaprior.load(tmp_path / "prior.safetensors")
    np.testing.assert_array_equal(loaded.adapt(x, y).predict(queries), mean)
    assert loaded.family_ == meta.family_ == family.partition(" ")[0]


@pytest.mark.parametrize(
    ("family", "inference"),
    [
        ("linear+rbf", MAP(n_particles=2)),
        pytest.param("linear", MAP(n_particles=2), marks=pytest.mark.slow),
        pytest.param("linear+rbf", SVGD(n_particles=2, start="hyperprior"), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_labels(family, inference, tmp_path):
    arguments = {**FAMILIES[family], "mean": "constant"}
    meta = WFEMClassifier(alpha=0.3, inference=inference, **arguments, **QUICK)
    meta.fit(ragged(5, 0, labels=True), ragged(4, 1, labels=True))
    x, y = ragged(4, 2, labels=True)[3]
    probabilities = meta.adapt(x, y).predict_proba(x)
    assert np.isfinite(probabilities).all()
    meta.save(tmp_path / "prior.safetensors")
    loaded = metaprior.load(tmp_path / "prior.safetensors")
    np.testing.assert_array_equal(loaded.adapt(x, y).predict_proba(x), probabilities)


def test_the_paper_s_prior_learns_the_shape_of_a_task():
    """From 15 sinusoids it predicts a new one far better than a plain GP."""
    environment = Sinusoid(0.75)
    tasks, tests = environment.target_tasks(15, 5, 0), environment.test_tasks(40, 5, 8, 1)
    arguments = {"alpha": 0.0, "likelihood": Gaussian(noise_std=0.1), "temperature": "bayes", "random_state": 0}
    learned = WFEMRegressor(**arguments, training=Training(n_steps=300)).fit(target_tasks=tasks)
    plain = WFEMRegressor("rbf", "zero", **arguments, training=Training(n_steps=0)).fit(target_tasks=tasks)
    assert learned.evaluate(tests).rmse < 0.5 * plain.evaluate(tests).rmse


@pytest.mark.slow
def test_the_default_learns_more_from_few_tasks_than_the_paper_s_prior():
    """On a draw that no benchmark uses: see studies/benchmarks/priors.py for the figures."""
    environment, rng = Sinusoid(0.75), np.random.default_rng(2_000_000)
    tasks, tests = environment.target_tasks(15, 5, rng), environment.test_tasks(200, 5, 50, rng)
    paper = WFEMRegressor(
        alpha=0.0, likelihood=Gaussian(noise_std=0.1), temperature="bayes", training=Training(progress=False)
    )
    default, paper = (
        meta.set_params(random_state=0).fit(target_tasks=tasks).evaluate(tests)
        for meta in (MetaGPRegressor(0.0, noise_std=0.1, progress=False), paper)
    )
    assert default.rmse < 0.25 < 0.3 < paper.rmse
    assert default.nll < paper.nll - 0.2
    assert 0.86 < default.coverage < 0.96
