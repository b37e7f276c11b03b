"""Conformal intervals: one contract for every likelihood."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning

import metaprior
from metaprior import MetaGPRegressor, predict_frame
from metaprior.estimators import fit as fitting
from metaprior.likelihoods import make_likelihood
from metaprior.predict import conformal
from metaprior.predict.batches import predict_tasks
from metaprior.predict.conformal import held_out_scores, integer_scores
from metaprior.tasks.types import TestTask

PARAMETERS = {
    "gaussian": np.log([0.3]),
    "student-t": np.log([0.2, 3.0]),
    "poisson": np.zeros(0),
    "negative-binomial": np.array([1.5]),
    "ordinal": np.array([-0.5, 0.0, 0.0]),
}
LOWEST = 3
QUERIES = np.linspace(-1.5, 1.5, 6)[:, None]
NOTHING = (np.empty((0, 1)), np.empty(0))


def draw_tasks(name, n_tasks, seed, n=6, exposure=False):
    rng, tasks = np.random.default_rng(seed), []
    likelihood = make_likelihood(name).learned([np.arange(LOWEST, LOWEST + 4.0)])
    for _ in range(n_tasks):
        x, e = rng.uniform(-2, 2, (n, 1)), rng.uniform(0.5, 5.0, n)
        t = 0.7 + 0.5 * rng.normal() + 0.5 * x[:, 0]
        y = likelihood.draw(t + np.log(e) * exposure, PARAMETERS[name], rng)
        tasks.append((np.column_stack([x, e]) if exposure else x, y))
    return tasks


def fit(name, tasks, **given):
    given = {"context": 3, **given}
    meta = MetaGPRegressor(0.0, likelihood=name, conformal=True, random_state=0, progress=False, **given)
    return meta.fit(target_tasks=tasks)


SOME = [
    pytest.param(name, marks=() if name in ("gaussian", "poisson", "ordinal") else pytest.mark.slow)
    for name in PARAMETERS
]


@pytest.fixture(scope="module", params=SOME)
def meta(request):
    return fit(request.param, draw_tasks(request.param, 9, 0))


def band(meta, context=NOTHING, coverage=0.9):
    return np.array(meta.adapt(*context).interval(QUERIES, coverage, method="conformal"))


def check_possible(meta, ends):
    """Ends are finite; those of counts and ranks are integers that can be observed."""
    assert np.isfinite(ends).all()
    assert (ends[0] <= ends[1]).all()
    if meta.model_.likelihood.discrete:
        assert (ends == np.round(ends)).all()
        assert (ends >= (LOWEST if meta.likelihood == "ordinal" else 0)).all()
    if meta.likelihood == "ordinal":
        assert (ends < LOWEST + 4).all()


def test_bands_are_possible_values_and_widen_with_their_coverage(meta):
    assert (meta.model_.conformal.n_tasks, len(meta.model_.conformal.folds)) == (9, 9)
    for context in (NOTHING, *draw_tasks(meta.likelihood, 3, seed=1)):
        narrow, wide = band(meta, context, 0.5), band(meta, context)
        check_possible(meta, wide)
        assert (wide[0] <= narrow[0]).all()
        assert (narrow[1] <= wide[1]).all()
        assert (wide[1] - wide[0] > narrow[1] - narrow[0]).any()
    check_possible(meta, band(meta, NOTHING, 0.05))


def test_a_band_holds_every_value_that_scores_less_than_held_out_readings(meta):
    """With nine tasks, a 90% band leaves out the values that score more than all readings of all of them."""
    if not meta.model_.likelihood.discrete:
        return
    x, y = draw_tasks(meta.likelihood, 1, seed=2)[0]
    lower, upper = band(meta, (x[:3], y[:3]))
    least, most = (LOWEST, LOWEST + 3) if meta.likelihood == "ordinal" else (0, 200)
    for query, low, high in zip(QUERIES, lower, upper, strict=True):
        values = np.arange(max(low - 2, least), min(high + 3, most + 1))
        test = TestTask(x[:3], y[:3], np.repeat(query[None], len(values), axis=0), values)
        beaten = []
        for fold in meta.model_.conformal.folds:
            predictive, *_ = predict_tasks(fold.model, [test])
            own = integer_scores(predictive._at(np.ones((1, len(values)), bool)), values)
            beaten.append(own > fold.scores[-1])
        assert values[~np.all(beaten, axis=0)].tolist() == np.arange(low, high + 1).tolist()


def test_one_task_and_many_have_the_same_bands_in_any_chunks(meta, monkeypatch):
    contexts = [*draw_tasks(meta.likelihood, 3, seed=5, n=4), NOTHING]
    inputs = [QUERIES, QUERIES[:1], QUERIES[:0], QUERIES[2:]]
    many = meta.adapt_many(contexts).interval(inputs, method="conformal")
    monkeypatch.setattr(conformal, "CHUNK_ROWS", 4)
    parts = meta.adapt_many(contexts).interval(inputs, method="conformal")
    for i, (context, x) in enumerate(zip(contexts, inputs, strict=True)):
        assert len(many[0][i]) == len(x)
        if len(x):
            np.testing.assert_allclose(
                meta.adapt(*context).interval(x, method="conformal"), np.c_[many[0][i], many[1][i]].T
            )
        np.testing.assert_allclose((parts[0][i], parts[1][i]), (many[0][i], many[1][i]))


def test_bands_survive_a_file_and_more_readings(meta, tmp_path):
    x, y = draw_tasks(meta.likelihood, 1, seed=3)[0]
    meta.save(tmp_path / "prior.safetensors")
    loaded = metaprior.load(tmp_path / "prior.safetensors")
    np.testing.assert_array_equal(band(loaded, (x, y)), band(meta, (x, y)))
    updated = meta.adapt(x[:2], y[:2]).update(x[2:], y[2:]).interval(QUERIES, method="conformal")
    np.testing.assert_allclose(updated, band(meta, (x, y)))
    single = meta.to_sklearn().fit(x, y).task_
    np.testing.assert_allclose(single.interval(QUERIES, method="conformal"), band(meta, (x, y)))


def test_tables_and_scores_have_these_bands(meta):
    x, y = draw_tasks(meta.likelihood, 1, seed=4)[0]
    context, query = pd.DataFrame({"x": x[:, 0], "y": y}), pd.DataFrame({"x": QUERIES[:, 0]})
    frame = predict_frame(meta, context, query, x="x", y="y", method="conformal")
    np.testing.assert_allclose(frame[["lower", "upper"]].T, band(meta, (x, y)))
    own = predict_frame(meta, context, query, x="x", y="y")
    np.testing.assert_array_equal(frame[["mean", "std"]], own[["mean", "std"]])
    tests = [(x[:3], y[:3], x[3:], y[3:]) for x, y in draw_tasks(meta.likelihood, 5, seed=8)]
    scores = meta.evaluate(tests)
    ends = meta.adapt_many([test[:2] for test in tests]).interval([test[2] for test in tests], method="conformal")
    inside = [np.mean((low <= t[3]) & (t[3] <= high)) for low, high, t in zip(*ends, tests, strict=True)]
    np.testing.assert_allclose(scores.per_task.conformal_coverage, inside)
    np.testing.assert_allclose(
        scores.per_task.conformal_width, [np.mean(high - low) for low, high in zip(*ends, strict=True)]
    )
    assert scores.conformal_coverage >= scores.coverage
    assert "conformal_coverage" not in meta.evaluate(tests, coverage=0.95)
    assert "conformal interval" in repr(scores)


def test_bands_of_counts_grow_with_the_exposure():
    tasks = draw_tasks("poisson", 9, 0, exposure=True)
    task = fit("poisson", tasks, exposure=1).adapt(*tasks[0])
    lower, upper = task.interval([[0.5, 1.0], [0.5, 100.0], [0.5, 1e6]], method="conformal")
    assert (lower == np.round(lower)).all()
    assert 0.0 <= lower[0] <= upper[0] < upper[1] < lower[2]
    mean = task.predict([[0.5, 100.0], [0.5, 1e6]])
    assert ((lower[1:] < mean) & (mean < upper[1:])).all()
    assert ((lower[1:] > 0.1 * mean) & (upper[1:] < 10.0 * mean)).all()


def test_every_fold_knows_the_levels_of_all_tasks():
    """Though one task alone has the lowest level, the fit without it can tell its probability."""
    tasks = [(x, np.maximum(y, LOWEST + 1)) for x, y in draw_tasks("ordinal", 9, 0)]
    tasks[4][1][0] = LOWEST
    meta = fit("ordinal", tasks)
    conformal = meta.model_.conformal
    assert {(fold.model.likelihood.lowest, fold.model.likelihood.n_levels) for fold in conformal.folds} == {(LOWEST, 4)}
    assert all(np.isfinite(fold.scores).all() for fold in conformal.folds)
    check_possible(meta, band(meta, tasks[4]))


@pytest.mark.parametrize("name", SOME)
def test_few_tasks_are_told_when_fitting_and_when_asking(name):
    tasks = draw_tasks(name, 2, 0)
    with pytest.warns(UserWarning, match="conformal=True with 2 tasks of the target environment gives .* most 0.666"):
        few = fit(name, tasks)
    with pytest.raises(ValueError, match=r"coverage=0.9 is out of reach: .* 2 held-out .* most 0.666\. .* 9 target"):
        band(few)
    check_possible(few, band(few, coverage=0.6))
    with pytest.raises(ValueError, match=r"conformal=True needs tasks of the target environment .* there are 1"):
        fit(name, tasks[:1])


def test_inexact_posteriors_of_held_out_tasks_are_no_matter_of_the_fit(monkeypatch):
    """Their numbers among the tasks of a fold would mean nothing to users, and scores stay valid."""

    def warned(*given):
        warnings.warn("The approximate posterior did not converge for task 0.", ConvergenceWarning, stacklevel=2)
        return held_out_scores(*given)

    monkeypatch.setattr(fitting, "held_out_scores", warned)
    with pytest.warns(UserWarning, match="with 3 tasks of the target environment") as found:
        fit("poisson", draw_tasks("poisson", 3, 0))
    assert not any(issubclass(each.category, ConvergenceWarning) for each in found)


@pytest.mark.filterwarnings("ignore:y holds 2 of the 4 levels")
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("poisson", [0.0]),
        pytest.param("negative-binomial", [0.0, 50.0], marks=pytest.mark.slow),
        pytest.param("ordinal", [3.0, 6.0], marks=pytest.mark.slow),
    ],
)
def test_tasks_that_are_all_alike_have_bands_too(name, values):
    """Every reading of a task is the same number, so that own bands are hardly wider than a point."""
    tasks = [(x, np.full(6, values[i % len(values)])) for i, (x, _) in enumerate(draw_tasks(name, 9, 0))]
    meta = fit(name, tasks)
    warnings.simplefilter("ignore", ConvergenceWarning)  # of tasks this far apart
    for task in tasks[:2]:
        lower, upper = band(meta, task)
        check_possible(meta, np.array([lower, upper]))
        assert (lower <= task[1][0]).all()
        assert (task[1][0] <= upper).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_nine_of_ten_readings_of_new_tasks_are_inside(name):
    """The whole way, fits included. The model is wrong: some readings are four times too large, or at the bottom."""
    inside = []
    for seed in range(10):
        wild = [(x, _wilder(name, y, seed + i)) for i, (x, y) in enumerate(draw_tasks(name, 60, seed))]
        meta = fit(name, wild[:10])
        warnings.simplefilter("ignore", ConvergenceWarning)
        new = [(x, y) for x, y in wild[10:] if name != "ordinal" or np.isin(y, _levels(wild[:10])).all()]
        adapted = meta.adapt_many([(x[:3], y[:3]) for x, y in new])
        ends = adapted.interval([x[3:] for x, _ in new], 0.9, method="conformal")
        pairs = zip(*ends, [y[3:] for _, y in new], strict=True)
        inside.append(np.mean([(lower <= y) & (y <= upper) for lower, upper, y in pairs]))
    error = np.std(inside, ddof=1) / np.sqrt(10)
    assert np.mean(inside) > 0.9 - 3.0 * error
    assert error < 0.03


def _wilder(name, y, seed):
    rng = np.random.default_rng(seed)
    if name == "ordinal":
        return np.where(rng.uniform(size=y.shape) < 0.3, LOWEST, y)
    return y * np.where(rng.uniform(size=y.shape) < 0.15, 4.0, 1.0)


def _levels(tasks):
    y = np.concatenate([y for _, y in tasks])
    return np.arange(y.min(), y.max() + 1)
