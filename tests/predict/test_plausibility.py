"""Readings of a context that the prior cannot explain are told, wherever contexts enter; honest ones are not."""

import warnings

import numpy as np
import pandas as pd
import pytest

from metaprior import ExtrapolationWarning, HeavyTailWarning, ImplausibleContextWarning, MetaGPRegressor, predict_frame
from metaprior.likelihoods import make_likelihood
from metaprior.predict.batches import Posteriors
from metaprior.predict.plausibility import MAX_ERROR, MAX_JOINT, _errors, _extremes, context_errors
from metaprior.tasks.types import Ragged

RNG = np.random.default_rng(0)


def make_task(n=6, noise=0.1):
    x = RNG.uniform(0.0, 5.0, n)
    return x[:, None], 20.0 + RNG.normal() + np.sin(x) + noise * RNG.standard_t(3, n)  # heavy tails


HONEST = [make_task(12) for _ in range(200)]
PARAMETERS = {
    "poisson": np.zeros(0),
    "negative-binomial": np.array([1.5]),
    "ordinal": np.array([-3.0, *np.zeros(6)]),
    "student-t": np.log([0.2, 4.0]),
}
FAR = {"poisson": 99999999, "negative-binomial": 99999999, "student-t": 1e9}
ABSURD, CONTRADICTING = ([[1.0], [1.0]], [18.0, 99999999.0]), ([[2.0], [1.0], [2.0]], [14.0, 20.0, 26.0])


@pytest.fixture(scope="module")
def meta():
    return MetaGPRegressor(alpha=0.3, random_state=0).fit(*([make_task() for _ in range(n)] for n in (6, 4)))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda meta, x, y: meta.adapt(x, y), "^Readings are far .*: in adapt, at X"),
        (
            lambda meta, x, y: meta.adapt_many([*HONEST[:3], (x, y)]),
            r"^Readings of 1 of 4 tasks .*: in contexts\[3\], at X",
        ),
        (lambda meta, x, y: meta.predict_many([(x, y, [[1.0]])]), r": in tasks\[0\] context, at X"),
        (lambda meta, x, y: meta.evaluate([(x, y, *HONEST[0])]), r": in test_tasks\[0\] context, at X"),
        (lambda meta, x, y: meta.score([(x, y, *HONEST[0])]), r": in test_tasks\[0\] context, at X"),
        (
            lambda meta, x, y: predict_frame(
                meta,
                pd.DataFrame({"id": "a", "t": np.ravel(x), "y": y}),
                pd.DataFrame({"id": ["a"], "t": [1.0]}),
                **{"task": "id", "x": "t", "y": "y"},
            ),
            ": in the context of task 'a', at X",
        ),
    ],
)
@pytest.mark.parametrize(
    ("context", "values"),
    [
        (ABSURD, r"= \[1\.\], y is 99999999 where the prior expects 20\."),
        (CONTRADICTING, r"= \[2\.\], y is both 14 and 26, "),
    ],
)
def test_absurd_readings_are_told_once_wherever_they_enter(meta, call, said, context, values):
    with pytest.warns(ImplausibleContextWarning, match=f"{said} {values}") as caught:
        call(meta, *context)
    assert len([each for each in caught if each.category is ImplausibleContextWarning]) == 1


def test_honest_readings_are_far_from_the_limit(meta):
    x, y = Ragged.of([x for x, _ in HONEST], (1,)), Ragged.of([y for _, y in HONEST])
    found = context_errors(Posteriors(meta.model_, x, y))
    assert found.errors.max() < MAX_ERROR / 2
    assert found.gaps.max() == 0.0  # no input occurs twice
    assert 0.05 < _errors(meta.model_, x, y)[2] < 1.0  # the noise
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        meta.adapt_many(HONEST)
        meta.adapt(np.repeat(x.rows[:5], 2, axis=0), np.repeat(y.rows[:5], 2))  # repeated, not contradicting
        meta.adapt([], [])


def test_errors_are_those_of_the_prior_predictive(meta):
    """Of every row on its own, also of more rows than are predicted at once; the best component counts."""
    x = Ragged.of([x for x, _ in HONEST[:30]], (1,))
    y = Ragged.of([y for _, y in HONEST[:30]])
    errors, _, _ = _errors(meta.model_, x, y)
    predictive = meta.adapt([], []).predictive(x.rows[:-1]).noisy()
    expected = np.abs(y.rows[:-1] - predictive.means) / np.sqrt(predictive.variances)
    np.testing.assert_allclose(errors, expected.min(axis=0), rtol=1e-9)


def test_extremes_of_repeated_points():
    point = np.array([7, 3, 7, 3, 9, 7], np.uint64)
    lowest, highest = _extremes(point, np.array([1.0, 5.0, -2.0, 4.0, 8.0, 0.0]))
    assert lowest.tolist() == [-2.0, 4.0, -2.0, 4.0, 8.0, -2.0]
    assert highest.tolist() == [1.0, 5.0, 1.0, 5.0, 8.0, 1.0]


def draw_observed(name, rng, n_tasks, level=0.0, spread=0.3, n=8):
    """Tasks that share a curve, around a level that differs little between them."""
    likelihood, tasks = make_likelihood(name).learned([np.arange(8.0)]), []
    for _ in range(n_tasks):
        x = rng.uniform(-2, 2, n)
        t = level + spread * rng.normal() + 0.5 * np.sin(2 * x)
        tasks.append((x[:, None], likelihood.draw(t, PARAMETERS[name], rng)))
    return tasks


@pytest.fixture(scope="module", params=PARAMETERS)
def observed(request):
    rng = np.random.default_rng(0)
    tasks = draw_observed(request.param, rng, 30)
    return MetaGPRegressor(likelihood=request.param, alpha=0.0, random_state=0).fit(target_tasks=tasks)


def test_absurd_contexts_of_every_likelihood_are_told(observed):
    """A reading that cannot be, where there is such a one, and readings that are far off only together."""
    name = observed.likelihood
    if name in FAR:
        with pytest.warns(ImplausibleContextWarning, match=f"y is {FAR[name]:.10g} where the prior expects"):
            task = observed.adapt([[0.5], [1.0]], [1, FAR[name]])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HeavyTailWarning)
            assert np.isfinite(task.predict([[0.5]])).all()
        assert np.isfinite(task.interval([[0.5]])).all()
    level = -6.0 if name == "ordinal" else 6.0
    tasks = draw_observed(name, np.random.default_rng(1), 1, level=level, n=20)
    with pytest.warns(ImplausibleContextWarning, match=r"(off\.|as it should be\.) (Predictions|This task)"):
        observed.adapt(*possible(observed, tasks)[0])


def possible(meta, tasks):
    """Tasks with ranks of the fit only."""
    if meta.likelihood != "ordinal":
        return tasks
    levels = meta.model_.likelihood.levels
    return [(x, np.clip(y, levels[0], levels[-1])) for x, y in tasks]


def test_honest_contexts_of_every_likelihood_are_not(observed):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (1, 8):
            tasks = draw_observed(observed.likelihood, np.random.default_rng(n), 300, n=n)
            observed.adapt_many(possible(observed, tasks))


@pytest.fixture(scope="module")
def alike():
    """Three tasks with a common level by chance: levels of others differ."""
    rng = np.random.default_rng(0)
    return MetaGPRegressor(random_state=0).fit(target_tasks=[draw_level(0.02 * rng.normal(), 8, rng) for _ in range(3)])


def draw_level(level, n, rng):
    x = rng.uniform(0.0, 4.0, n)
    return x[:, None], level + np.sin(x) + 0.1 * rng.normal(size=n)


def test_readings_that_are_far_off_only_together_are_told(alike):
    """Bands of such a task hold far less than 90%, though each reading is possible."""
    rng = np.random.default_rng(1)
    x, y = draw_level(1.5, 5, rng)
    with pytest.warns(ImplausibleContextWarning, match="in adapt, 5 readings together say") as caught:
        task = alike.adapt(x, y)
    assert "bands are too narrow" in str(caught[0].message)
    x, y = draw_level(1.5, 200, rng)
    lower, upper = task.interval(x, 0.9)
    assert np.mean((lower <= y) & (y <= upper)) < 0.75
    with pytest.warns(ImplausibleContextWarning, match="of 1 of 2 tasks"):
        alike.adapt_many([draw_level(0.0, 5, rng), draw_level(-3.0, 5, rng)])


def test_honest_tasks_are_told_one_time_in_a_thousand_at_most():
    """Tasks from the distribution of the fit, of any size, and any number of degrees of freedom."""
    rng = np.random.default_rng(0)
    meta = MetaGPRegressor(alpha=0.0, random_state=0).fit(
        target_tasks=[draw_level(rng.normal(), 8, rng) for _ in range(15)]
    )
    for n in (1, 5, 40):
        tests = [draw_level(rng.normal(), n, rng) for _ in range(1000)]
        x, y = Ragged.of([x for x, _ in tests], (1,)), Ragged.of([y for _, y in tests])
        assert np.sum(context_errors(Posteriors(meta.model_, x, y)).joint > MAX_JOINT) <= 3  # two stds above one


def test_joint_scores_are_those_of_the_latent_gaussian(alike):
    """a' K a, and the degrees of freedom that give its mean and variance, by matrices of the prior predictive."""
    x, y = draw_level(0.5, 6, np.random.default_rng(4))
    member = alike.model_.members[0]
    prior = member.condition(np.zeros((1, 0, 1)), np.zeros((1, 0)), np.zeros((1, 0), bool))
    scaled, n = member.scaling.inputs(x)[None], len(y)
    found = member.latent_distances(member.condition(scaled, member.scaling.outputs(y)[None], np.ones((1, n), bool)))
    predicted = member.marginals(prior, scaled)
    for k, alone in enumerate(np.eye(member.n_components)):
        latent = member.weighted_covariance(prior, scaled, alone)
        total = latent + np.exp(2.0 * predicted.parameters[k]) * np.eye(n)
        a = np.linalg.solve(total, y - predicted.mean[k, 0])
        share = np.linalg.eigvals(latent @ np.linalg.inv(total)).real
        ratio = share.sum() / np.sum(share**2)
        np.testing.assert_allclose(found[:, k, 0], [a @ latent @ a * ratio, share.sum() * ratio], rtol=1e-6)


@pytest.mark.parametrize("exposure", [1e100, 1e-30])
def test_exposures_far_from_those_of_the_fit_are_refused(exposure):
    rng = np.random.default_rng(0)
    tasks = [(np.column_stack([x, np.full(8, 2.0)]), y) for (x, y) in draw_observed("poisson", rng, 6)]
    meta = MetaGPRegressor(likelihood="poisson", exposure=1, alpha=0.0, random_state=0).fit(target_tasks=tasks)
    with pytest.raises(ValueError, match=r"adapt: X\[:, 1\] is the exposure, 2 to 2 in the fit; got 1e"):
        meta.adapt([[1.0, exposure]], [2])
    with pytest.raises(ValueError, match=r"1e\+06 times outside\. Check its units"):
        meta.adapt([], []).interval([[1.0, exposure]])
    assert (meta.adapt([], []).predict([[1.0, 2e5]]) > 1e4).all()  # as far as that they are fine


@pytest.mark.parametrize(("place", "part"), [(1, "context"), (3, "query")])
def test_readings_whose_errors_could_not_be_squared_are_refused_by_their_task(alike, place, part):
    x, y = draw_level(0.0, 6, np.random.default_rng(0))
    tests = [[x[:3], y[:3], x[3:], y[3:]] for _ in range(2)]
    tests[1][place] = np.full(3, 1e308)
    with pytest.raises(ValueError, match=rf"^test_tasks\[1\] {part}: y is more than 1e\+100 standard deviations"):
        alike.evaluate([tuple(test) for test in tests])


def test_means_of_counts_are_finite_far_outside():
    tasks = draw_observed("poisson", np.random.default_rng(0), 6)
    meta = MetaGPRegressor(likelihood="poisson", alpha=0.0, random_state=0).fit(target_tasks=tasks)
    task = meta.adapt([[0.0]], [2])
    with pytest.warns(HeavyTailWarning, match="are the median"), pytest.warns(ExtrapolationWarning):
        assert np.isfinite(task.predict([[1e6]])).all()
    with pytest.warns(HeavyTailWarning, match="deviations may be infinite"), pytest.warns(ExtrapolationWarning):
        assert np.isinf(task.predict([[1e6]], return_std=True)[1]).all()
