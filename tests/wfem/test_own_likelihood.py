"""A likelihood of a user's own: counts, against scipy."""

from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from metaprior import likelihoods, load
from metaprior.wfem import Training, WFEMRegressor

X = np.linspace(-2.0, 2.0, 5)[:, None]
SMALL = {"kernel": "rbf", "mean": "constant", "temperature": "bayes", "random_state": 0}
DOUBLE = {"dtype": "float64", "standardize": False}
FEW = Training(n_steps=30, **DOUBLE)


@dataclass(frozen=True)
class Poisson:
    """y ~ Poisson(e^t)."""

    response: likelihoods.Poisson = field(default_factory=likelihoods.Poisson)

    def log_density(self, y, t):
        return y * t - jnp.exp(t) - jax.scipy.special.gammaln(y + 1.0)


def make_counts(n_tasks, seed, size=5):
    rng = np.random.default_rng(seed)
    inputs = [rng.uniform(-2, 2, (size, 1)) for _ in range(n_tasks)]
    return [(x, rng.poisson(np.exp(1.5 + np.sin(x[:, 0] + 0.3 * rng.normal())))) for x in inputs]


COUNTS, MORE_COUNTS = make_counts(3, 0), make_counts(3, 1)


def laplace_by_hand(x, y, query=None):
    """The log evidence of counts under t ~ GP(0, exp(-d^2 / 2)), and mean and variance of t at the queries."""
    rbf = lambda a, b: np.exp(-0.5 * (a - b.T) ** 2)  # noqa: E731
    precision = np.linalg.inv(covariance := rbf(x, x) + 1e-12 * np.eye(len(y)))

    def negative_log_posterior(t):
        return 0.5 * t @ precision @ t - stats.poisson(np.exp(t)).logpmf(y).sum(), precision @ t - y + np.exp(t)

    start = np.linalg.solve(np.eye(len(y)) + covariance, np.log(y + 0.5))
    found = optimize.minimize(negative_log_posterior, start, jac=True, options={"gtol": 1e-10})
    t, curvature = found.x, np.exp(found.x)
    evidence = -found.fun - 0.5 * np.linalg.slogdet(np.eye(len(y)) + curvature[:, None] * covariance)[1]
    if query is None:
        return evidence
    cross = rbf(query, x)
    gain = cross @ np.linalg.inv(covariance + np.diag(1.0 / curvature))
    return cross @ precision @ t, 1.0 - np.sum(gain * cross, axis=1)


@pytest.fixture(scope="module")
def counts():
    return WFEMRegressor(likelihood=Poisson(), training=FEW, **SMALL).fit(COUNTS, MORE_COUNTS)


def test_the_latent_function_and_the_evidence_are_those_of_scipy():
    about = {**SMALL, "mean": "zero", "temperature": 7.0, "alpha": 0.3, "likelihood": Poisson()}
    x, y = np.array([[-1.0], [0.2], [1.5]]), np.array([0, 3, 5])
    initial = WFEMRegressor(**about, training=Training(n_steps=0, **DOUBLE)).fit(COUNTS, MORE_COUNTS)
    latent = initial.adapt(x, y).predictive(X, latent=True)
    mean, variance = laplace_by_hand(x, y, X)
    np.testing.assert_allclose(latent.mean(), mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(latent.variances[0], variance, rtol=1e-6, atol=1e-8)
    with jax.enable_x64(True):
        gibbs = WFEMRegressor(**about, training=FEW).gibbs(COUNTS, MORE_COUNTS)
        found = gibbs.log_density(jax.tree.map(lambda leaf: leaf[0], gibbs.initial))
    losses = [np.mean([-laplace_by_hand(*task) / 5 for task in tasks]) for tasks in (COUNTS, MORE_COUNTS)]
    expected = 2 * stats.norm.logpdf(0.0) - 7.0 * np.dot([0.3, 0.7], losses)
    assert float(found) == pytest.approx(expected, rel=1e-8)


def test_counts_are_predicted_as_the_response_says(counts):
    x, y = MORE_COUNTS[0]
    adapted = counts.adapt(x, y)
    latent = adapted.predictive(X, latent=True)
    t = latent.means[0][:, None] + np.sqrt(latent.variances[0])[:, None] * np.linspace(-8, 8, 4001)
    weights = np.exp(-0.5 * np.linspace(-8, 8, 4001) ** 2)
    average = lambda values: values @ weights / weights.sum()  # noqa: E731
    mean = average(np.exp(t))
    np.testing.assert_allclose(adapted.predict(X), mean, rtol=1e-6)
    np.testing.assert_allclose(adapted.predict(X, return_std=True)[1] ** 2, mean + average(np.exp(2 * t)) - mean**2)
    observed = np.array([0, 1, 4, 9, 30])
    expected = np.log(average(stats.poisson(np.exp(t)).pmf(observed[:, None])))
    np.testing.assert_allclose(adapted.log_density(X, observed), expected, atol=1e-3)
    below = lambda ends: average(stats.poisson(np.exp(t)).cdf(ends[:, None]))  # noqa: E731
    median = adapted.quantile(X, 0.5)
    assert ((below(median) > 0.5 - 1e-3) & (below(median - 1) < 0.5 + 1e-3)).all()
    lower, upper = adapted.interval(X, 0.8)
    inside = below(upper) - below(lower - 1)
    assert ((inside > 0.8 - 1e-3) & (inside < 0.95) & (lower <= median) & (median <= upper)).all()
    tests = [(x[:3], y[:3], x[3:], y[3:]) for x, y in make_counts(4, 2)]
    scores = counts.evaluate(tests)
    by_hand = [-np.mean(counts.adapt(x, y).log_density(*query)) for x, y, *query in tests]
    np.testing.assert_allclose(scores.per_task["nll"], by_hand, rtol=1e-9)
    assert counts.likelihood_ == "poisson"
    with pytest.raises(ValueError, match="y must hold counts, the integers 0, 1, 2"):
        counts.adapt(x, y + 0.5)


def test_held_out_counts_are_scored_as_predictions_are(counts):
    """The validation score of training, in JAX, is that of `evaluate`, of large counts too."""
    tests = [(x[:3], 40 * y[:3], x[3:], 40 * y[3:]) for x, y in make_counts(4, 2)]
    meta = WFEMRegressor(likelihood=Poisson(), training=Training(n_steps=1, **DOUBLE), **SMALL)
    meta.fit(COUNTS, MORE_COUNTS, validation_tasks=tests)
    assert meta.validation_trace_ == pytest.approx(meta.evaluate(tests).nll, abs=1e-3)
    chosen = WFEMRegressor(**{**SMALL, "alpha": [0.0, 0.5]}, likelihood=Poisson(), training=FEW)
    assert np.isfinite(chosen.fit(COUNTS, MORE_COUNTS).alpha_path_.score).all()


@dataclass(frozen=True)
class Exponential:
    """y ~ Exponential with mean e^t, of which scikit-learn and metaprior have nothing: a response of its own too."""

    @dataclass(frozen=True)
    class Response(likelihoods.Poisson):
        name: ClassVar[str] = "exponential"
        discrete: ClassVar[bool] = False

        def check(self, y, name):
            assert (y > 0).all()

        def moments(self, mean, variance, parameters):
            first = np.exp(mean + 0.5 * variance)
            return first, 2 * np.exp(2 * mean + 2 * variance) - first**2

    response: Response = field(default_factory=Response)

    def log_density(self, y, t):
        return -t - y * jnp.exp(-t)


def test_a_response_of_another_name_is_kept():
    tasks = [(x, y + 0.5) for x, y in COUNTS]
    meta = WFEMRegressor(likelihood=Exponential(), training=FEW, **SMALL).fit(tasks[:2], tasks[2:])
    latent = meta.adapt(*tasks[0]).predictive(X, latent=True)
    expected = np.exp(latent.means[0] + 0.5 * latent.variances[0])
    np.testing.assert_allclose(meta.adapt(*tasks[0]).predict(X), expected, rtol=1e-9)
    assert (meta.likelihood_, meta.report_.outputs) == ("exponential", "readings")


def test_a_prior_of_counts_is_loaded_with_its_likelihood(counts, tmp_path):
    path, task = tmp_path / "prior", MORE_COUNTS[0]
    counts.save(path)
    loaded = load(path, likelihood=Poisson())
    expected = counts.adapt(*task).predict(X, return_std=True)
    np.testing.assert_array_equal(loaded.adapt(*task).predict(X, return_std=True), expected)
    missing = r"^This prior was fitted with a custom likelihood, Poisson: pass load\(path, likelihood=\.\.\.\)\.$"
    with pytest.raises(ValueError, match=missing):
        load(path)
    with pytest.raises(
        ValueError, match=r"^likelihood must be Poisson, as this prior was fitted with; got Exponential"
    ):
        load(path, likelihood=Exponential())


@dataclass(frozen=True)
class NoResponse:
    response: str = "poisson"

    def log_density(self, y, t):
        return y * t - jnp.exp(t)


@dataclass(frozen=True)
class WithParameters(NoResponse):
    response: likelihoods.NegativeBinomial = field(default_factory=likelihoods.NegativeBinomial)


@dataclass(frozen=True)
class WithArrays(Poisson):
    weights: jax.Array = field(default_factory=lambda: jnp.ones(2))


@pytest.mark.parametrize(
    ("likelihood", "message"),
    [
        (Poisson, r"likelihood must be Gaussian\(\.\.\.\), or one of your own with .*; got <class"),
        (
            NoResponse(),
            r"or one of your own with log_density\(y, t\) and a response, such as Poisson\(\) of .*; got NoResp",
        ),
        (WithParameters(), "likelihood must have a response without parameters; NegativeBinomial has 1"),
        (WithArrays(), "likelihood must be hashable, and WithArrays.* is not: make it a frozen dataclass, with tuples"),
    ],
)
def test_likelihoods_that_cannot_be(likelihood, message):
    with pytest.raises(ValueError, match=message):
        WFEMRegressor(likelihood=likelihood, training=FEW, **SMALL).fit(COUNTS, MORE_COUNTS)
