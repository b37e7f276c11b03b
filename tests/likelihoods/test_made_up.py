"""A likelihood that is not ours, from its class and one line of the registry: fitted, predicted, scored and saved."""

import numpy as np
import pytest

from metaprior import MetaGPRegressor, load
from metaprior.likelihoods import LIKELIHOODS
from metaprior.likelihoods.base import Broad, ConditionalLikelihood, Expected, Start


class Waiting(ConditionalLikelihood):
    """Exponential waiting times of mean exp(t)."""

    name = "waiting"

    def check(self, y, name):
        if (y <= 0).any():
            raise ValueError(f"{name} must be positive waiting times; got {y.min():g}.")

    def log_density_given(self, y, t):
        return -t - y * np.exp(-t)

    def cdf_given(self, y, t):
        return -np.expm1(-np.maximum(y, 0.0) * np.exp(-t))

    def moments_given(self, t):
        return np.exp(t), np.exp(2 * t)

    def draw_given(self, t, rng):
        return rng.exponential(np.exp(t))

    def noise(self, mean, parameters):
        return np.full(np.shape(mean), 1.6)

    def start(self, y, mean, variance, parameters):
        return Start(np.log(np.maximum(y, 1e-9)), np.ones(y.shape))

    def latent(self, y, parameters):
        return np.log(y)

    def initial(self, y, weights):
        return np.zeros(0), np.zeros(0)

    def broad(self, y, offsets):
        return Broad(self, np.asarray(np.log(np.mean(np.concatenate(y)))), 1.0, np.zeros(0))

    def expected(self, y, mean, variance, parameters, gradient=False):
        pull = y * np.exp(-mean + 0.5 * variance)
        return Expected(-mean - pull, pull - 1.0, pull, np.zeros((*pull.shape, 0)))


def draw_task(rng):
    x = rng.uniform(-2.0, 2.0, (8, 1))
    return x, rng.exponential(np.exp(1.0 + 0.7 * x[:, 0] + 0.5 * rng.normal()))


def test_a_made_up_likelihood_is_its_class_and_its_registry_line(monkeypatch, tmp_path):
    monkeypatch.setitem(LIKELIHOODS, "waiting", Waiting)
    rng = np.random.default_rng(0)
    tasks = [draw_task(rng) for _ in range(16)]
    meta = MetaGPRegressor(likelihood="waiting", conformal=True, random_state=0).fit(target_tasks=tasks)
    x, y = draw_task(rng)
    task = meta.adapt(x, y)
    low, high = task.predict([[-1.5], [1.5]])
    assert 2.0 < high / low < 60.0  # exp(2.1) is 8
    for method in ("model", "conformal"):
        lower, upper = task.interval(x, 0.8, method=method)
        assert (lower < upper).all()
    drawn = task.sample(x, 400, random_state=0)
    assert (drawn > 0).all()
    assert meta.evaluate([(x[:3], y[:3], x[3:], y[3:])])["nll"] < 10.0
    meta.save(tmp_path / "prior")
    again = load(tmp_path / "prior").adapt(x, y)
    np.testing.assert_array_equal(again.quantile(x, [0.1, 0.9]), task.quantile(x, [0.1, 0.9]))
    with pytest.raises(ValueError, match="adapt: y must be positive waiting times; got -1"):
        meta.adapt([[0.0]], [-1.0])
