"""One contract for all likelihoods, inference methods and kernels of priors that are trained by gradients."""

import itertools

import numpy as np
import pytest
from test_likelihoods import LOWEST, NAMES, QUERIES, draw_tasks

import metaprior
from metaprior import MetaGPRegressor
from metaprior.gp.choices import KERNELS
from metaprior.meta.methods import METHODS
from metaprior.storage.stored_tasks import StoredTasks
from metaprior.tasks.types import Task

COUNTS = ("poisson", "negative-binomial")
# Networks have too many parameters for Laplace's approximation.
ALL = [case for case in itertools.product(NAMES, METHODS, KERNELS) if case[1:] != ("laplace", "mlp")]
FEW = [("poisson", "laplace", "rbf")]  # each compiles for seconds: the rest is slow


def fit(name, method, kernel, **parameters):
    rng = np.random.default_rng(0)
    exposure = name in COUNTS
    tasks = [draw_tasks(name, n, 6, rng, exposure) for n in (5, 4)]
    given = {"n_steps": 20, "alpha": 0.5, "random_state": 0, "progress": False} | parameters
    n_particles = None if method == "map" else 3
    given |= {"likelihood": name, "inference": method, "kernel": kernel, "exposure": 1 if exposure else None}
    given |= {"mean": "constant"} if method == "laplace" and kernel != "inducing" else {}
    meta = MetaGPRegressor(n_particles=n_particles, **given)
    return meta.fit(*tasks), draw_tasks(name, 4, 9, rng, exposure)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case in FEW else pytest.mark.slow, id="-".join(case)) for case in ALL],
)
def test_fit_predict_score_save(case, tmp_path):
    meta, tests = fit(*case)
    assert meta.engine_ == "gradient"
    x, y = tests[0]
    queries = np.column_stack([QUERIES, np.full(len(QUERIES), 2.0)]) if x.shape[1] == 2 else QUERIES
    task = meta.adapt(x[:4], y[:4])
    mean, std = task.predict(queries, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    lower, upper = task.interval(queries, coverage=0.9)
    median = task.quantile(queries, 0.5)
    assert ((lower <= median) & (median <= upper)).all()
    drawn = task.sample(queries, 200, random_state=0)
    assert drawn.shape == (200, len(queries))
    np.testing.assert_allclose(task.log_density(queries, median), task.predictive(queries).log_density(median))
    if meta.likelihood != "student-t":
        assert all((values == np.floor(values)).all() for values in (lower, upper, median, drawn))
    if meta.likelihood == "ordinal":
        assert LOWEST <= lower.min() <= upper.max() <= LOWEST + 3
    scores = meta.evaluate(tests, context=4)
    assert np.isfinite([scores.rmse, scores.nll, scores.coverage]).all()
    assert set(meta.response_) == set(make_names(meta.likelihood))
    meta.save(tmp_path / "prior.safetensors")
    loaded = metaprior.load(tmp_path / "prior.safetensors")
    np.testing.assert_array_equal(loaded.adapt(x[:4], y[:4]).predict(queries), mean)
    assert loaded.response_ == meta.response_


def make_names(likelihood):
    return {"student-t": ("sigma", "nu"), "negative-binomial": ("r",), "ordinal": ("cut_points",)}.get(likelihood, ())


@pytest.fixture(scope="module")
def poisson():
    return fit("poisson", "map", "rbf", n_steps=100)


def test_exposure_multiplies_the_mean_and_not_the_latent_function(poisson):
    meta, tests = poisson
    x, y = tests[0]
    task = meta.adapt(x[:5], y[:5])
    once, tenfold = ([[0.3, e]] for e in (1.0, 10.0))
    np.testing.assert_allclose(task.predict(tenfold), 10.0 * task.predict(once))
    np.testing.assert_allclose(task.predict(tenfold, latent=True), task.predict(once, latent=True), rtol=1e-12)
    assert meta.features_.exposure == 1


def test_training_learns_the_common_curve(poisson):
    """The rate of new tasks is predicted better than by the average rate of all readings."""
    meta, _ = poisson
    tests = draw_tasks("poisson", 40, 10, np.random.default_rng(5), exposure=True)
    scores = meta.evaluate(tests, context=5)
    y, e = (np.concatenate(parts) for parts in zip(*((y, x[:, 1]) for x, y in tests), strict=True))
    rate = e * y.sum() / e.sum()
    of_all = np.sqrt(np.mean((y - rate) ** 2))
    assert scores.rmse + 2.0 * scores.rmse_se < of_all


@pytest.mark.slow
def test_the_search_chooses_a_weight():
    meta, _ = fit("negative-binomial", "map", "rbf", alpha=[0.0, 0.5], n_steps=8)
    path = meta.alpha_path_
    assert np.isfinite(path.score).all()
    np.testing.assert_allclose(path.weight.sum(), 1.0)
    assert meta.transfer_report().outputs == "counts"


def test_stored_tasks_with_an_exposure():
    stored = StoredTasks.from_tasks(
        [Task(*pair) for pair in draw_tasks("poisson", 12, 6, np.random.default_rng(0), exposure=True)], 2
    )
    meta = MetaGPRegressor(
        likelihood="poisson", exposure=1, kernel="rbf", alpha=0.0, n_steps=5, random_state=0, progress=False
    ).fit(target_tasks=stored)
    assert np.isfinite(meta.adapt([], []).predict([[0.0, 3.0]])).all()


def test_counts_that_are_all_zero_leave_room_to_learn_and_adapt():
    """log(y + 1/2) does not vary then: units of t are not those of rounding."""
    tasks = [(np.arange(8.0)[:, None], np.zeros(8)) for _ in range(6)]
    meta = MetaGPRegressor(likelihood="poisson", kernel="rbf", alpha=0.0, n_steps=30, random_state=0, progress=False)
    meta.fit(target_tasks=tasks)
    assert meta.adapt([], []).predict([[3.0]])[0] < 0.2
    assert meta.adapt([[3.0], [3.1]], [20, 25]).predict([[3.05]])[0] > 2.0


def test_validation_tasks_are_checked():
    rng = np.random.default_rng(0)
    tasks = draw_tasks("poisson", 4, 6, rng)
    bad = [(x[:3], y[:3], x[3:], y[3:] + 0.5) for x, y in tasks]
    with pytest.raises(ValueError, match="must hold counts"):
        MetaGPRegressor(likelihood="poisson", n_steps=2).fit(target_tasks=tasks, validation_tasks=bad)
