"""Covariates and categories with counts, ranks and outliers through the estimators, with an exposure and without."""

import numpy as np
import pandas as pd
import pytest

import metaprior
from metaprior import MetaGPRegressor, predict_frame, tasks_from_frame
from metaprior.files import InvalidFile, read_tensors, write_tensors
from metaprior.likelihoods import make_likelihood
from metaprior.storage.stored_tasks import StoredTasks
from metaprior.tasks.columns import ExtrapolationWarning

PARAMETERS = {
    "student-t": np.log([0.2, 3.0]),
    "poisson": np.zeros(0),
    "negative-binomial": np.array([1.5]),
    "ordinal": np.array([-0.5, 0.0, 0.0]),
}
SLOW = pytest.mark.slow
NAMES = tuple(PARAMETERS)
COUNTS = ("poisson", "negative-binomial")
INPUTS, COVARIATES = ["hours", "shift"], ["age", "sex"]


def make_tasks(name, n=24, seed=0, effect=1.0, exposure=False):
    """Observations whose latent function depends on the age of a patient; the age of one is missing."""
    rng, tasks = np.random.default_rng(seed), []
    likelihood = make_likelihood(name).learned([np.arange(3.0, 7.0)])
    for _ in range(n):
        m, age, sex = int(rng.integers(4, 8)), rng.uniform(40, 80), rng.choice(["male", "female"])
        x = pd.DataFrame({"hours": rng.uniform(0, 6, m), "shift": rng.choice(["day", "night"], m)})
        t = 0.5 + 0.5 * np.sin(x["hours"]) + effect * (age - 60) / 12 + 0.5 * (x["shift"] == "night")
        t = t + 0.3 * rng.normal()
        if exposure:
            x.insert(1, "days", rng.integers(1, 6, m).astype(float))
            t = t + np.log(x["days"])
        x["age"], x["sex"] = (np.nan if len(tasks) == 3 else age), sex
        tasks.append((x, likelihood.draw(t.to_numpy(), PARAMETERS[name], rng)))
    return tasks


def fit(name, tasks, **settings):
    settings = {"covariates": COVARIATES, "random_state": 0, **settings}
    return MetaGPRegressor(likelihood=name, **settings).fit(target_tasks=tasks)


@pytest.fixture(scope="module", params=NAMES)
def meta(request):
    """A prior with covariates and a category; counts have an exposure too."""
    exposure = "days" if request.param in COUNTS else None
    return fit(request.param, make_tasks(request.param, exposure=exposure is not None), exposure=exposure)


def new_tasks(meta, n, seed=5):
    return make_tasks(meta.likelihood, n, seed, exposure=meta.exposure is not None)


def losses(meta, tests, columns):
    """Return the log loss of every task, given its first observation."""
    many = meta.adapt_many([(x[columns][:1], y[:1]) for x, y in tests])
    densities = many.log_density([x[columns][1:] for x, _ in tests], [y[1:] for _, y in tests])
    return np.array([-of_task.mean() for of_task in densities])


def gains(name, effect, seeds):
    """Return by how much covariates lower the log loss of test tasks, of some fits each."""
    found = []
    for seed in seeds:
        tasks, tests = make_tasks(name, 24, seed, effect), make_tasks(name, 40, 100 + seed, effect)
        plain = fit(name, [(x[INPUTS], y) for x, y in tasks], covariates=None)
        found.append(losses(plain, tests, INPUTS) - losses(fit(name, tasks), tests, INPUTS + COVARIATES))
    return np.array(found)


@pytest.mark.parametrize("name", ["poisson", *(pytest.param(name, marks=SLOW) for name in NAMES if name != "poisson")])
def test_a_covariate_that_matters_lowers_the_log_loss(name):
    gain = gains(name, 1.0, (0, 1))
    assert gain.mean() > 2.0 * gain.std(ddof=1) / np.sqrt(gain.size)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["negative-binomial", "ordinal"])
def test_covariates_that_are_noise_cost_little(name):
    gain = gains(name, 0.0, range(4))
    assert gain.mean() > -0.01 - 2.0 * gain.std(ddof=1) / np.sqrt(gain.size)
    untouched = np.abs(gain).max(axis=1) < 1e-6
    assert untouched.mean() >= 0.5  # most are not even considered, and leave the prior as it is


def test_the_search_decides_and_describes(meta):
    assert meta.covariate_weights_["none"] < 0.6
    assert sum(meta.covariate_weights_.values()) == pytest.approx(1.0)
    places = (3, 4) if meta.exposure else (2, 3)
    assert meta.covariates_ == places
    assert meta.n_features_in_ == (5 if meta.exposure else 4)
    assert [None if each is None else set(each) for each in meta.column_levels_] == [
        *([None, None] if meta.exposure else [None]),
        *({"day", "night"}, None, {"female", "male"}),
    ]
    [(x, _)] = new_tasks(meta, 1)
    young, old = (meta.adapt([], []).predict(x.assign(age=age), latent=True) for age in (45.0, 75.0))
    assert (old - young > 0.5).all()


def test_missing_values_and_unseen_levels_widen_the_band_and_are_named(meta):
    [(x, _)] = new_tasks(meta, 1)
    x = x.assign(
        age=60.0
    )  # the average: elsewhere, priors with and without covariates disagree, which widens bands too
    prior = meta.adapt([], [])
    known, missing = (prior.predict(each, return_std=True, latent=True)[1] for each in (x, x.assign(age=np.nan)))
    assert (missing > known).all()
    with pytest.warns(ExtrapolationWarning, match="'sex' is 'diverse'"):
        unseen = prior.predict(x.assign(sex="diverse"), return_std=True, latent=True)[1]
    assert (unseen > known).all()
    with pytest.warns(ExtrapolationWarning, match="'shift' is 'evening'"):
        unseen = prior.predict(x.assign(shift="evening"), return_std=True, latent=True)[1]
    assert (unseen > known).all()
    assert prior.extrapolates(x.assign(sex="diverse")).all()
    assert not prior.extrapolates(x.assign(age=np.nan)).any()


def test_covariates_come_from_the_context_and_must_agree(meta):
    [(x, y)] = new_tasks(meta, 1)
    task = meta.adapt(x[:2], y[:2])
    np.testing.assert_array_equal(task.predict(x[2:].assign(age=np.nan)), task.predict(x[2:]))
    with pytest.raises(ValueError, match="covariate 'age' must be that of the context"):
        task.predict(x[2:].assign(age=41.0))


@pytest.mark.filterwarnings("ignore::metaprior.ExtrapolationWarning")
def test_saved_priors_predict_the_same(meta, tmp_path):
    meta.save(tmp_path / "prior.safetensors")
    again = metaprior.load(tmp_path / "prior.safetensors")
    assert again.covariate_weights_ == meta.covariate_weights_
    assert again.features_.exposure == meta.features_.exposure
    [(x, y)] = new_tasks(meta, 1)
    for context, query in (((x, y), x), (([], []), x.assign(age=np.nan, sex="diverse"))):
        expected = meta.adapt(*context).quantile(query, [0.1, 0.9])
        np.testing.assert_array_equal(again.adapt(*context).quantile(query, [0.1, 0.9]), expected)
        latent = [each.adapt(*context).predict(query, return_std=True, latent=True) for each in (meta, again)]
        np.testing.assert_array_equal(*latent)


def test_damaged_files_are_refused(meta, tmp_path):
    path = tmp_path / "prior.safetensors"
    meta.save(path)
    header, tensors = read_tensors(path)
    columns, n = header["columns"], meta.n_features_in_
    damaged = [{**columns, "levels": [None, ["a", "b"], None, *[None] * (n - 3)]}]
    damaged += [{**columns, "covariates": [1, *columns["covariates"]]}] if meta.exposure else []
    for each in damaged:
        write_tensors(path, {**header, "columns": each}, tensors)
        with pytest.raises(InvalidFile, match=r"scaling.shares must be|exposure must be a column of numbers"):
            metaprior.load(path)


def test_many_tasks_updates_and_evaluation_agree_with_one_task(meta):
    tasks = new_tasks(meta, 3, seed=8)
    many = meta.adapt_many(tasks)
    for (x, y), of_many in zip(tasks, many, strict=True):
        task = meta.adapt(x, y)
        np.testing.assert_allclose(of_many.predict(x), task.predict(x), rtol=1e-6)
        np.testing.assert_allclose(meta.adapt(x[:2], y[:2]).update(x[2:], y[2:]).predict(x), task.predict(x), rtol=1e-6)
    tests = [(x[:2], y[:2], x[2:], y[2:]) for x, y in tasks]
    assert np.isfinite(meta.evaluate(tests).nll)
    assert meta.fitted_on(make_tasks(meta.likelihood, 2, exposure=meta.exposure is not None)).all()


@pytest.mark.parametrize("name", ["poisson", pytest.param("negative-binomial", marks=SLOW)])
def test_the_exposure_multiplies_the_mean_and_nothing_else(name):
    meta = fit(name, make_tasks(name, exposure=True), exposure="days")
    [(x, y)] = make_tasks(name, 1, 5, exposure=True)
    task = meta.adapt(x[:2], y[:2])
    np.testing.assert_allclose(task.predict(x.assign(days=30.0)), 30.0 * task.predict(x.assign(days=1.0)))
    latent = [task.predict(x.assign(days=days), latent=True) for days in (1.0, 30.0)]
    np.testing.assert_array_equal(*latent)
    # The same columns in another order are the same prior.
    last = [(each[["hours", "shift", "age", "sex", "days"]], of) for each, of in make_tasks(name, exposure=True)]
    other = fit(name, last, exposure="days").adapt(x[:2], y[:2])
    np.testing.assert_allclose(other.predict(x), task.predict(x), rtol=1e-6)
    with pytest.raises(ValueError, match="'days' is the exposure and must be positive"):
        task.predict(x.assign(days=0.0))


BAD = [
    ({"exposure": "age"}, "exposure names 'age', which is a covariate too.*out of covariates"),
    ({"exposure": "shift"}, "exposure must be a column of positive numbers; 'shift' holds categories"),
    ({"exposure": "days", "categorical": ["days"]}, "exposure must be a column of positive numbers; 'days' holds"),
    ({"exposure": "days", "covariates": ["shift", "age", "sex", "hours"]}, "'hours' must have one value"),
    ({"covariates": ["weight"]}, "covariates names 'weight', which is no column"),
    ({"covariates": ["hours"]}, "'hours' must have one value within a task"),
]


@pytest.mark.parametrize(("settings", "message"), BAD)
def test_bad_columns_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        fit("poisson", make_tasks("poisson", 8, exposure=True), **settings)


def test_an_input_beside_exposure_and_covariates_is_needed():
    tasks = [(x[["days", "age"]], y) for x, y in make_tasks("poisson", 4, exposure=True)]
    with pytest.raises(ValueError, match="must have an input column beside that of the exposure and covariates"):
        fit("poisson", tasks, covariates="age", exposure="days")


def test_tasks_that_cannot_be_held_out():
    tasks = [(x.assign(sex=sex), y) for (x, y), sex in zip(make_tasks("poisson", 3, exposure=True), "fmf", strict=True)]
    meta = MetaGPRegressor(likelihood="poisson", exposure="days", covariates=COVARIATES, alpha=0.5, random_state=0)
    with pytest.warns(UserWarning, match="covariates are not used"):
        meta.fit(tasks[:1], tasks[1:2])
    assert meta.covariate_weights_ == {"none": 1.0}
    x = tasks[2][0].assign(age=np.nan)  # no number: it is known to be a covariate
    assert np.isfinite(meta.adapt([], []).predict(x)).all()


def test_the_mean_is_learned_from_all_tasks(monkeypatch):
    monkeypatch.setattr("metaprior.estimators.fit.MAX_TASKS", 20)
    meta = fit("poisson", make_tasks("poisson", 60, exposure=True), exposure="days")
    prior, [(x, _)] = meta.adapt([], []), make_tasks("poisson", 1, 5, exposure=True)
    slope = (prior.predict(x.assign(age=75.0), latent=True) - prior.predict(x.assign(age=45.0), latent=True)) / 30.0
    assert slope == pytest.approx(np.full(len(x), 1.0 / 12), abs=0.03)


def test_stored_tasks_have_covariates_that_are_numbers(tmp_path):
    tasks = [(x[["hours", "days", "age"]].fillna(60.0).to_numpy(), y) for x, y in make_tasks("poisson", exposure=True)]
    settings = {"covariates": [2], "exposure": 1}
    stored = fit(
        "poisson", StoredTasks.from_tasks([metaprior.tasks.types.Task(*task) for task in tasks], 3), **settings
    )
    expected = fit("poisson", tasks, **settings).adapt([], []).predict(tasks[0][0])
    np.testing.assert_allclose(stored.adapt([], []).predict(tasks[0][0]), expected, rtol=1e-10)


def test_tables():
    frames = [x.assign(patient=f"p{i}", calls=y) for i, (x, y) in enumerate(make_tasks("poisson", exposure=True))]
    table = pd.concat(frames).fillna({"age": 60.0})
    columns = {"task": "patient", "x": ["hours", "days", "shift"], "y": "calls", "covariates": COVARIATES}
    tasks = tasks_from_frame(table, **columns, categorical=["shift", "sex"])
    meta = MetaGPRegressor(likelihood="poisson", exposure="days", covariates=COVARIATES, random_state=0)
    meta.fit(target_tasks=tasks)
    new = table[table["patient"] == "p0"].assign(patient="new", age=55.0, sex="male")
    context, query = new[:2], new[2:].drop(columns=["age", "sex"])
    found = predict_frame(meta, context, query, **columns)
    task = meta.adapt(context[meta.feature_names_in_], context["calls"])
    np.testing.assert_allclose(found["mean"], task.predict(new[2:][meta.feature_names_in_]), rtol=1e-6)
    assert set(meta.covariate_weights_) == {"none", "shift", "curved", "bend"}
