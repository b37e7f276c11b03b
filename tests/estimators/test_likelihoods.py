"""One contract for every likelihood of `MetaGPRegressor`: fit, adapt, predict, evaluate, save; and bad input."""

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import metaprior
from metaprior import LikelihoodHint, MetaGPRegressor
from metaprior.likelihoods import make_likelihood, suggestion
from metaprior.likelihoods.ordinal import Ordinal
from metaprior.tasks.columns import Features

PARAMETERS = {
    "student-t": np.log([0.2, 3.0]),
    "poisson": np.zeros(0),
    "negative-binomial": np.array([1.5]),
    "ordinal": np.array([-0.5, 0.0, 0.0]),
}
NAMES = tuple(PARAMETERS)
LOWEST = 3  # level
QUERIES = np.linspace(-1.5, 1.5, 6)[:, None]


def draw_tasks(name, n_tasks, n, rng, exposure=False):
    likelihood = make_likelihood(name).learned([np.arange(LOWEST, LOWEST + 4.0)])
    tasks = []
    for _ in range(n_tasks):
        x = rng.uniform(-2, 2, (n, 1))
        t, e = 0.7 + 0.5 * rng.normal() + np.sin(2 * x[:, 0]), rng.uniform(0.5, 5.0, n)
        y = likelihood.draw(t + np.log(e) * exposure, PARAMETERS[name], rng)
        tasks.append((np.column_stack([x, e]) if exposure else x, y))
    return tasks


@pytest.fixture(scope="module", params=NAMES)
def fitted(request):
    name, rng = request.param, np.random.default_rng(0)
    source, target = draw_tasks(name, 8, 6, rng), draw_tasks(name, 5, 6, rng)
    meta = MetaGPRegressor(likelihood=name, alpha=[0.0, 0.5], random_state=0).fit(source, target)
    return meta, draw_tasks(name, 6, 12, rng)


def test_predictions_go_together(fitted):
    meta, tests = fitted
    task = meta.adapt(tests[0][0][:5], tests[0][1][:5])
    mean, std = task.predict(QUERIES, return_std=True)
    median, upper = task.quantile(QUERIES, [0.5, 0.95])
    lower = task.quantile(QUERIES, 0.05)
    assert (std > 0).all()
    assert ((lower <= median) & (median <= upper)).all()
    predictive, central = task.predictive(QUERIES), (lower, upper)
    lower, upper = task.interval(QUERIES, 0.9)
    if meta.likelihood == "student-t":
        np.testing.assert_allclose((lower, upper), central, rtol=1e-12)
    else:  # shorter, where the central interval holds more than it should
        assert ((lower == central[0]) | (upper == central[1])).all()
        assert ((lower >= central[0]) & (upper <= central[1])).all()
        assert (predictive.cdf(upper) - predictive.below(lower) >= 0.9 - 1e-9).all()
    np.testing.assert_allclose(predictive.mean(), mean)
    np.testing.assert_allclose(task.log_density(QUERIES, median), predictive.log_density(median))
    drawn = task.sample(QUERIES, 4000, random_state=0)
    assert drawn.shape == (4000, 6)
    assert (np.abs(drawn.mean(axis=0) - mean) < 5 * drawn.std(axis=0) / np.sqrt(4000)).all()
    assert (np.mean((lower <= drawn) & (drawn <= upper), axis=0) > 0.88).all()
    if meta.likelihood != "student-t":
        for values in (median, lower, upper, drawn):
            assert (values == np.floor(values)).all()
    if meta.likelihood == "ordinal":
        assert drawn.min() >= LOWEST
        assert drawn.max() <= LOWEST + 3
    latent = task.predictive(QUERIES, latent=True)
    assert isinstance(latent, metaprior.GaussianMixture)
    with pytest.raises(ValueError, match="latent=True"):
        task.predict(QUERIES, return_cov=True)
    assert task.predict(QUERIES, return_cov=True, latent=True)[1].shape == (6, 6)


def test_one_or_many_and_in_steps(fitted):
    meta, tests = fitted
    contexts = [(x[:n], y[:n]) for n, (x, y) in enumerate(tests)]  # the first is empty
    many = meta.adapt_many(contexts)
    for i, context in enumerate(contexts):
        one = meta.adapt(*context).predict(QUERIES)
        np.testing.assert_allclose(many.predict(QUERIES)[i], one, rtol=1e-6)
        np.testing.assert_allclose(many[i].predict(QUERIES), one, rtol=1e-6)
    x, y = tests[1]
    stepwise = meta.adapt(x[:3], y[:3]).update(x[3:7], y[3:7])
    np.testing.assert_allclose(stepwise.predict(QUERIES), meta.adapt(x[:7], y[:7]).predict(QUERIES), rtol=1e-6)
    np.testing.assert_allclose(meta.to_sklearn().fit(x, y).predict(QUERIES), meta.adapt(x, y).predict(QUERIES))
    order = np.arange(7)[::-1]
    np.testing.assert_allclose(
        meta.adapt(x[order], y[order]).predict(QUERIES), meta.adapt(x[:7], y[:7]).predict(QUERIES), rtol=1e-5
    )


def test_scores_and_report(fitted):
    meta, tests = fitted
    scores = meta.evaluate(tests, context=5)
    assert np.isfinite([scores.rmse, scores.nll, scores.coverage, scores.calibration_error]).all()
    assert scores.coverage > 0.6
    assert np.isfinite(meta.score([(x[:5], y[:5], x[5:], y[5:]) for x, y in tests]))
    outputs = {"student-t": "readings", "ordinal": "ranks"}.get(meta.likelihood, "counts")
    assert meta.transfer_report().outputs == outputs
    assert f"nats per {outputs[:-1]}" in str(meta.transfer_report())
    assert set(meta.response_) == {
        "student-t": {"sigma", "nu"},
        "negative-binomial": {"r"},
        "ordinal": {"cut_points"},
    }.get(meta.likelihood, set())


def test_files_and_pickles(fitted, tmp_path):
    meta, tests = fitted
    meta.save(tmp_path / "prior.safetensors")
    again = metaprior.load(tmp_path / "prior.safetensors")
    expected = meta.adapt(*tests[0]).quantile(QUERIES, [0.1, 0.9])
    for other in (again, pickle.loads(pickle.dumps(meta))):
        np.testing.assert_array_equal(other.adapt(*tests[0]).quantile(QUERIES, [0.1, 0.9]), expected)
    assert again.response_ == meta.response_
    assert again.transfer_report().outputs == meta.transfer_report().outputs
    with pytest.raises(ValueError, match="Gaussian noise"):
        meta.adapt(*tests[0]).export(tmp_path / "task.py")


def test_tasks_of_one_sample_and_no_held_out_task(fitted):
    meta, _ = fitted
    rng = np.random.default_rng(1)
    other = MetaGPRegressor(likelihood=meta.likelihood, alpha=0.5, random_state=0)
    other.fit(draw_tasks(meta.likelihood, 6, 1, rng), draw_tasks(meta.likelihood, 1, 3, rng))
    assert np.isfinite(other.adapt([], []).predict(QUERIES)).all()


def test_exposure_multiplies_the_mean():
    rng = np.random.default_rng(0)
    tasks = draw_tasks("poisson", 12, 8, rng, exposure=True)
    frames = [(pd.DataFrame(x, columns=["time", "days"]), y) for x, y in tasks]
    given = {"likelihood": "poisson", "alpha": 0.0, "random_state": 0}
    by_number = MetaGPRegressor(exposure=1, **given).fit(target_tasks=tasks)
    by_name = MetaGPRegressor(exposure="days", **given).fit(target_tasks=frames)
    context = tasks[0][0][:4], tasks[0][1][:4]
    one, ten = (by_number.adapt(*context).predict([[0.3, days]]) for days in (1.0, 10.0))
    np.testing.assert_allclose(ten, 10.0 * one)
    latent = [by_number.adapt(*context).predict([[0.3, days]], latent=True) for days in (1.0, 10.0)]
    np.testing.assert_allclose(*latent)
    swapped = frames[0][0].iloc[:4][["days", "time"]]
    query = pd.DataFrame({"days": [1.0], "time": [0.3]})
    np.testing.assert_allclose(by_name.adapt(swapped, context[1]).predict(query), one)
    # The same counts in other units of the exposure are the same model.
    weeks = [(x / [1.0, 7.0], y) for x, y in tasks]
    other = MetaGPRegressor(exposure=1, **given).fit(target_tasks=weeks)
    same = other.adapt(context[0] / [1.0, 7.0], context[1]).predict([[0.3, 1.0 / 7.0]])
    np.testing.assert_allclose(same, one, rtol=1e-3)
    with pytest.raises(ValueError, match=r"adapt: X\[:, 1\] is the exposure and must be positive; got 0"):
        by_number.adapt([[0.0, 0.0]], [1])
    with pytest.raises(ValueError, match="'days' is the exposure and must be positive"):
        by_name.adapt(swapped, context[1]).predict(pd.DataFrame({"days": [-1.0], "time": [0.3]}))


def test_outliers_hardly_move_the_prediction():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (30, 8, 1))
    tasks = [(each, np.sin(2 * each[:, 0]) + 0.3 * rng.normal() + 0.1 * rng.standard_t(2, 8)) for each in x]
    meta = MetaGPRegressor(likelihood="student-t", alpha=0.0, random_state=0).fit(target_tasks=tasks)
    context = np.linspace(-2, 2, 9)[:, None]
    clean, spoiled = np.sin(2 * context[:, 0]), np.sin(2 * context[:, 0])
    spoiled[4] += 100.0
    moved = meta.adapt(context, spoiled).quantile(QUERIES, 0.5) - meta.adapt(context, clean).quantile(QUERIES, 0.5)
    assert np.abs(moved).max() < 0.1


BAD = [
    ("poisson", {}, [1.0, -1.0, 2.0], r"target_tasks\[0\]: y must hold counts.*got -1"),
    ("negative-binomial", {}, [1.0, 0.5, 2.0], r"target_tasks\[0\]: y must hold counts.*got 0.5.*exposure"),
    ("ordinal", {}, [1.0, 0.5, 2.0], r"target_tasks\[0\]: y must hold integer ranks.*got 0.5"),
    ("ordinal", {}, [2.0, 2.0, 2.0], "at least two levels.*2 only"),
    ("ordinal", {}, [0.0, 50.0, 100.0], "must not skip levels.*5 of the 101 from 0 to 100, and 3 is never seen"),
    ("poisson", {"exposure": 1}, [1.0, 2.0, 3.0], r"target_tasks\[0\]: X\[:, 1\] is the exposure and must be positive"),
    ("poisson", {"exposure": 2}, [1.0, 2.0, 3.0], "exposure must be a column of X.*got 2"),
    ("poisson", {"exposure": "days"}, [1.0, 2.0, 3.0], "exposure must be a column of X.*got 'days'"),
    ("ordinal", {"exposure": 1}, [1.0, 2.0, 3.0], "exposure is for counts"),
    (
        "poisson",
        {"noise_std": 0.1},
        [1.0, 2.0, 3.0],
        "noise_std must be 'learned': that of likelihood='poisson' has no",
    ),
    ("student-t", {"noise_std": 0.1}, [1.0, 2.0, 3.0], "noise_std must be 'learned': that.*is learned"),
    ("binomial", {}, [1.0, 2.0, 3.0], "likelihood must be"),
    ("bernoulli", {}, [1.0, 2.0, 3.0], "likelihood must be"),
]


@pytest.mark.parametrize(("likelihood", "arguments", "y", "message"), BAD)
def test_bad_input_is_refused(likelihood, arguments, y, message):
    X = [[0.0, 0.0], [1.0, 2.0], [2.0, 1.0]]
    with pytest.raises(ValueError, match=message):
        MetaGPRegressor(likelihood=likelihood, **arguments).fit(
            target_tasks=[(X, y), (X, y if message.endswith("2 only") else [1.0, 2.0, 0.0])]
        )


def test_new_observations_must_be_possible(fitted):
    meta, _ = fitted
    if meta.likelihood == "student-t":
        return
    bad = 9.0 if meta.likelihood == "ordinal" else -1.0
    expected = "levels from 3 to 6" if meta.likelihood == "ordinal" else "must hold counts"
    X, y = np.zeros((1, 1)), np.array([bad])
    for call in (
        lambda: meta.adapt(X, y),
        lambda: meta.adapt_many([(X, np.array([4.0])), (X, y)]),
        lambda: meta.predict_many([(X, y, X)]),
        lambda: meta.evaluate([(X, y, X, y)]),
        lambda: meta.adapt([], []).update(X, y),
        lambda: meta.adapt([], []).log_density(X, y),
    ):
        with pytest.raises(ValueError, match=expected):
            call()


def test_values_suggest_a_likelihood():
    rng = np.random.default_rng(0)
    scores = np.minimum(rng.binomial(14, 0.85, 400) + 3, 15)
    assert suggestion(scores.astype(float)) == f"y holds {len(set(scores))} integer scores: try likelihood='ordinal'"
    assert "counts from 0" in suggestion(stats.nbinom(0.7, 0.1).rvs(400, random_state=0).astype(float))
    assert suggestion(np.round(rng.normal(120.0, 15.0, 400))) is None  # blood pressure
    assert suggestion(rng.normal(size=400)) is None
    assert suggestion(rng.integers(0, 2, 400).astype(float)) is None
    assert suggestion(rng.integers(0, 100, 400).astype(float)) is None
    x = np.arange(40.0)[:, None]
    tasks = [(x, np.minimum(rng.binomial(5, 0.8, 40), 4).astype(float)) for _ in range(3)]
    with pytest.warns(LikelihoodHint, match="integer scores: try likelihood='ordinal'"):
        MetaGPRegressor(alpha=0.0, random_state=0).fit(target_tasks=tasks)


@pytest.mark.parametrize(
    ("likelihood", "y", "message"),
    [
        ("ordinal", [1e25, 2e25, 3e25], r"y must hold ranks of at most 1e\+09 in size .*got 1e\+25. Code the levels"),
        ("ordinal", [0.0, 1.0, 1e8], "it holds 3 of the 100000001 from 0 to 100000000, and 2 is never seen"),
        ("poisson", [1.0, 2.0, 1e13], r"y must hold counts of at most 1e\+12 for .*got 1e\+13. Count in larger units"),
        ("student-t", [1.0, 2.0, 1e300], r"y must be at most 1e\+100 in size .*got 1e\+300. Change its units"),
    ],
)
def test_numbers_that_are_too_large_are_refused_at_once(likelihood, y, message):
    with pytest.raises(ValueError, match=message):
        MetaGPRegressor(likelihood=likelihood).fit(target_tasks=[(np.arange(3.0), np.array(y))] * 3)


def test_levels_that_are_never_seen_are_named():
    with pytest.warns(UserWarning, match="5 of the 9 levels from 0 to 8: 1, 3, 5, 7 .*some probability"):
        assert Ordinal().learned([np.array([0.0, 2.0, 4.0]), np.array([6.0, 8.0])]) == Ordinal(9, 0)
    assert Ordinal().learned([np.arange(5.0)]) == Ordinal(5, 0)


def test_a_hint_at_counts_without_a_zero_leaves_ordinary_integers_alone():
    rng, hinted = np.random.default_rng(0), []
    for _ in range(20):
        counts = rng.poisson(np.exp(3.0 + 0.9 * rng.normal(size=60))).astype(float)
        hinted.append(suggestion(np.maximum(counts, 1.0)) is not None)
    assert np.mean(hinted) > 0.7
    for n in (60, 400):
        readings = {
            "heart rates": rng.normal(80.0, 12.0, n).clip(60, 120),
            "ages": rng.uniform(18, 90, n),
            "ages of all": 90.0 * rng.beta(1.1, 1.5, n) + 1.0,
            "exam scores": 100.0 * rng.beta(5.0, 2.0, n) + 1.0,
            "hard exam": 100.0 * rng.beta(2.0, 4.0, n) + 1.0,
            "salaries": np.exp(10.5 + 0.6 * rng.normal(size=n)),
            "systolic": rng.normal(125.0, 18.0, n),
        }
        assert {name: suggestion(np.round(y)) for name, y in readings.items()} == dict.fromkeys(readings)


def test_an_exposure_of_categories_is_refused_wherever_it_is_checked():
    features = Features(names=("x", "days"), count=2, exposure=1)
    features.categories.levels = {1: {"one": 0, "two": 1}}
    with pytest.raises(ValueError, match="query: 'days' is the exposure and must hold positive numbers; it holds"):
        features.check_exposure(np.array([[0.0, 1.0]]), "query")
