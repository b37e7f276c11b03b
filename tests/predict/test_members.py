"""Ensembles of members of any kind: numbers of components that differ, weights that depend on the task, a spread."""

import pickle
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats
from scipy.special import log_softmax

from metaprior.likelihoods.base import Prediction
from metaprior.likelihoods.gaussian import Gaussian
from metaprior.predict import batches
from metaprior.predict.adapted import AdaptedRegressors
from metaprior.predict.ensemble import Ensemble, NumberMember
from metaprior.predict.predictive import Predictive
from metaprior.tasks.scaling import Scaling
from metaprior.tasks.types import Ragged, TestTask


class Levels(NamedTuple):
    """Component k predicts offset_k plus the sum of the context, with variances c_k (1 + 1 / (1 + n)).

    Two queries have half of that as their covariance.
    """

    offsets: np.ndarray
    variances: np.ndarray
    noise: np.ndarray
    scaling: Scaling
    weighted: bool  # whether the weights of the components depend on the context

    input_dim = 1

    @property
    def n_components(self):
        return len(self.offsets)

    def condition(self, x, y, mask):
        return {"n": mask.sum(axis=1), "total": np.where(mask, y, 0.0).sum(axis=1)}

    def take(self, posteriors, places):
        return {name: np.concatenate([each[name] for each in posteriors])[places] for name in ("n", "total")}

    likelihood = Gaussian()

    @property
    def component_parameters(self):
        return 0.5 * np.log(self.scaling.y_std**2 * self.noise)[:, None]

    def marginals(self, posterior, x):
        n, total = posterior["n"], posterior["total"]
        mean = self.offsets[:, None, None] + total[:, None] + x[..., 0]
        scale = self.variances[:, None] * (1.0 + 1.0 / (1.0 + n))
        weights = log_softmax(self.offsets[:, None] * total, axis=0) if self.weighted else None
        variance = self.scaling.undo_variance(np.repeat(scale[..., None], x.shape[1], axis=2))
        return Prediction(self.scaling.undo_mean(mean), variance, self.component_parameters, weights)

    def weighted_covariance(self, posterior, x, shares):
        same = np.where(np.eye(x.shape[1], dtype=bool), 1.0, 0.5)
        return shares @ self.marginals(posterior, x).variance[:, 0, 0] * same

    def float32_problem(self, largest_context, standardized):
        return "levels" if largest_context > 2 else None


PLAIN = Levels(np.array([0.5]), np.array([0.3]), np.array([0.2]), Scaling(np.zeros(1), np.ones(1), 1.0, 2.0), False)
VARYING = Levels(
    *(np.array([0.0, 1.0, -1.0]), np.array([0.1, 0.2, 0.4]), np.array([0.3, 0.1, 0.5])),
    *(Scaling(np.ones(1), 2.0 * np.ones(1), 0.0, 1.0), True),
)
WEIGHTS = np.array([0.25, 0.75])
CONTEXTS = [(np.zeros((n, 1)), np.linspace(0.2, 0.5, n)) for n in (0, 1, 3, 2)]
QUERIES = [np.linspace(-1.0, 1.0, n)[:, None] for n in (2, 1, 2, 0)]


def adapted(members=(PLAIN, VARYING), weights=WEIGHTS, spread=1.0):
    x, y = Ragged.of([x for x, _ in CONTEXTS], (1,)), Ragged.of([y for _, y in CONTEXTS])
    return AdaptedRegressors(Ensemble(tuple(members), np.asarray(weights), spread), x, y, "float64")


def by_hand(task, query, latent=False):
    """Return weights, means and variances of the four components, in the units of y."""
    parts = []
    for member, weight in ((PLAIN, WEIGHTS[0]), (VARYING, WEIGHTS[1])):
        y = (CONTEXTS[task][1] - member.scaling.y_mean) / member.scaling.y_std
        at = (query - member.scaling.x_mean[0]) / member.scaling.x_std[0]
        evidence = np.exp(member.offsets * y.sum()) if member.weighted else np.ones(len(member.offsets))
        variance = member.variances * (1.0 + 1.0 / (1.0 + len(y))) + (0.0 if latent else member.noise)
        mean = member.scaling.y_mean + member.scaling.y_std * (member.offsets + y.sum() + at)
        parts.append((weight * evidence / evidence.sum(), mean, variance * member.scaling.y_std**2))
    return tuple(np.concatenate(part) for part in zip(*parts, strict=True))


@pytest.mark.parametrize("latent", [False, True])
def test_weights_of_components_may_depend_on_the_task(latent):
    assert isinstance(PLAIN, NumberMember)
    many = adapted()
    found = {
        "std": many.predict(QUERIES, return_std=True, latent=latent)[1],
        "density": many.log_density(QUERIES, [np.zeros(len(q)) for q in QUERIES], latent=latent),
        "lower": many.interval(QUERIES, 0.8, latent=latent)[0],
        "cdf": [predictive.cdf(0.3) for predictive in many.predictive(QUERIES, latent=latent)],
    }
    for i, queries in enumerate(QUERIES):
        for j, query in enumerate(queries[:, 0]):
            weights, means, variances = by_hand(i, query, latent)
            stds = np.sqrt(variances)
            mean = weights @ means
            expected = {
                "std": np.sqrt(weights @ (variances + (means - mean) ** 2)),
                "density": np.log(weights @ stats.norm.pdf(0.0, means, stds)),
                "cdf": weights @ stats.norm.cdf(0.3, means, stds),
            }
            for name, value in expected.items():
                np.testing.assert_allclose(found[name][i][j], value, rtol=1e-10, err_msg=name)
            assert weights @ stats.norm.cdf(found["lower"][i][j], means, stds) == pytest.approx(0.1, abs=1e-9)
            assert many[i].predict(queries, latent=latent)[j] == pytest.approx(mean)


def test_covariances_and_draws_of_weighted_components():
    many = adapted()
    means, covariances = many.predict(QUERIES, return_cov=True)
    _, stds = many.predict(QUERIES, return_std=True)
    draws = many.sample(QUERIES, 20_000, random_state=0)
    for i in (0, 2):
        np.testing.assert_allclose(np.sqrt(np.diag(covariances[i])), stds[i], rtol=1e-10)
        np.testing.assert_allclose(draws[i].mean(axis=0), means[i], atol=4.0 * stds[i].max() / np.sqrt(20_000))
        np.testing.assert_allclose(np.cov(draws[i].T), covariances[i], rtol=0.1)
    weights, component_means, _ = by_hand(2, QUERIES[2][0, 0])
    shared = np.array([0.3 * 4.0, 0.1, 0.2, 0.4]) * 0.5 * (1.0 + 1.0 / 4.0)
    slopes = np.array([1.0 * 2.0, 0.5, 0.5, 0.5])  # of the means between the two queries, which are 2 apart
    others = component_means + 2.0 * slopes
    between = weights @ ((component_means - weights @ component_means) * (others - weights @ others))
    assert covariances[2][0, 1] == pytest.approx(weights @ shared + between)


def test_test_tasks_have_the_weights_of_their_contexts():
    tests = [TestTask(*context, x, np.zeros(len(x))) for context, x in zip(CONTEXTS[:3], QUERIES[:3], strict=True)]
    predictive, _, mask = batches.predict_tasks(Ensemble((PLAIN, VARYING), WEIGHTS), tests)
    expected = [by_hand(i, query)[:2] for i, queries in enumerate(QUERIES) for query in queries[:, 0]]
    np.testing.assert_allclose(predictive.mean()[mask], [weights @ means for weights, means in expected])


@pytest.mark.parametrize("member", [PLAIN, VARYING], ids=["one component", "weighted components"])
def test_a_member_alone_is_an_ensemble(member):
    alone, together = adapted([member], [1.0]), adapted([member, member], [0.3, 0.7])
    for one, other in zip(alone.predictive(QUERIES), together.predictive(QUERIES), strict=True):
        np.testing.assert_allclose(one.mean(), other.mean())
        np.testing.assert_allclose(one.quantile(0.2), other.quantile(0.2))


@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize("members", [(PLAIN, PLAIN), (PLAIN, VARYING)], ids=["equal weights", "weighted"])
def test_spread_stretches_about_the_mean(members, latent):
    plain, wide = adapted(members), adapted(members, spread=1.5)
    predictives = (each.predictive(QUERIES, latent) for each in (plain, wide))
    for one, other in zip(*predictives, strict=True):
        np.testing.assert_allclose(other.mean(), one.mean())
        for level in (0.1, 0.5, 0.9):
            np.testing.assert_allclose(other.quantile(level) - one.mean(), 1.5 * (one.quantile(level) - one.mean()))
    means, covariances = plain.predict(QUERIES, return_cov=True, latent=latent)
    wide_means, wide_covariances = wide.predict(QUERIES, return_cov=True, latent=latent)
    for i in range(len(QUERIES)):
        np.testing.assert_allclose(wide_means[i], means[i])
        np.testing.assert_allclose(wide_covariances[i], 1.5**2 * covariances[i])


def test_no_spread_changes_no_bit():
    for one, other in zip(adapted().predictive(QUERIES), adapted(spread=1.0).predictive(QUERIES), strict=True):
        for name in ("means", "variances", "log_weights"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    ensemble = Ensemble((PLAIN, PLAIN), WEIGHTS)
    np.testing.assert_array_equal(ensemble.log_weights([None, None]), np.log(WEIGHTS))


def test_kept_posteriors_are_taken_by_task_and_pickled(monkeypatch):
    many = adapted()
    expected = many.predict(QUERIES)
    copied = pickle.loads(pickle.dumps(many))
    monkeypatch.setattr(Levels, "condition", lambda *_: pytest.fail("conditioned again"))
    for task in (many, copied):
        for found, wanted in zip(task.predict(QUERIES), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
        assert task._posteriors._n_bytes > 0
        taken = task._posteriors.evaluate(batches.marginals, np.array([2, 0]), np.zeros((2, 1, 1)))
        assert taken[0].mean[0, 0, 0] - taken[0].mean[0, 1, 0] == pytest.approx(1.05 - 3.0)


def test_each_member_is_asked_about_single_precision():
    ensemble = Ensemble((PLAIN, VARYING), WEIGHTS)
    batches.check_precision("float32", ensemble, Ragged.of([np.zeros((2, 1))], (1,)))
    with pytest.raises(ValueError, match=r"dtype='float32' is too coarse for levels\. Use"):
        batches.check_precision("float32", ensemble, Ragged.of([np.zeros((3, 1))], (1,)))


def test_what_has_no_queries_is_empty():
    empty = adapted().predictive(QUERIES)[3]
    assert isinstance(empty, Predictive)
    assert empty.mean().shape == (0,)
