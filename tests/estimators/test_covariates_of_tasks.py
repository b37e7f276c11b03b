"""Covariates and categories through the estimators: fits, predictions, files, exports, and what is refused."""

import importlib.util
import warnings

import numpy as np
import pandas as pd
import pytest

import metaprior
from metaprior import MetaGPClassifier, MetaGPRegressor
from metaprior.files import InvalidFile, read_tensors, write_tensors
from metaprior.tasks.columns import ExtrapolationWarning


def make_tasks(n=24, seed=0, effect=1.0):
    """Readings that depend on the age of a patient, as data frames."""
    rng, tasks = np.random.default_rng(seed), []
    for _ in range(n):
        m, age, sex = int(rng.integers(4, 8)), rng.uniform(40, 80), rng.choice(["male", "female"])
        x = pd.DataFrame({"hours": rng.uniform(0, 10, m), "shift": rng.choice(["day", "night"], m)})
        x["age"], x["sex"] = (None if len(tasks) == 3 else age), sex
        y = np.sin(x["hours"]) + effect * (age - 60) / 10 + (x["shift"] == "night") + 0.2 * rng.normal(size=m)
        tasks.append((x.assign(age=x["age"].astype(float)), y.to_numpy()))
    return tasks


@pytest.fixture(scope="module")
def meta():
    return MetaGPRegressor(covariates=["age", "sex"], random_state=0).fit(target_tasks=make_tasks())


@pytest.fixture(scope="module")
def queries():
    """A known patient, one of unknown age, and one of a sex that the fit has not seen."""
    known = make_tasks(1, seed=5)[0][0].iloc[:2]
    return [known, known.assign(age=np.nan), known.assign(sex="diverse")]


def test_the_search_uses_covariates_that_matter(meta):
    assert (
        meta.covariate_weights_["none"] == 0.0
    )  # the evidence rules it out, though contexts tell the age's effect too
    assert meta.column_levels_ == (None, ("day", "night"), None, ("female", "male")) or set(meta.column_levels_[3]) == {
        "female",
        "male",
    }
    assert meta.covariates_ == (2, 3)
    assert meta.n_features_in_ == 4
    young, old = (make_tasks(1, seed=5)[0][0].assign(age=age) for age in (45.0, 75.0))
    prior = meta.adapt([], [])
    assert (prior.predict(old) - prior.predict(young) > 0.8).all()


def draw_ages(n, effect, seed):
    """Tasks of readings at random hours, whose level is a function of the age of the patient."""
    rng, tasks = np.random.default_rng(seed), []
    for _ in range(n):
        age, hours = rng.uniform(40, 80), rng.uniform(0, 10, 6)
        y = np.sin(hours / 2) + effect((age - 60) / 12) + 0.5 * rng.normal() + 0.3 * rng.normal(size=6)
        tasks.append((np.column_stack([hours, np.full(6, age)]), y))
    return tasks


@pytest.mark.parametrize(("use", "effect"), [("shift", lambda z: 1.2 * z), ("curved", lambda z: z**2)])
def test_covariates_tell_nearly_all_before_the_first_reading(use, effect):
    """The negative log likelihood without a reading is near that of the task's own spread, sqrt(0.5^2 + 0.3^2)."""
    source, target, tests = (draw_ages(n, effect, seed) for n, seed in ((40, 0), (16, 1), (60, 2)))
    meta = MetaGPRegressor(covariates=[1], random_state=0).fit(source, target)
    assert meta.covariate_weights_["none"] == 0.0
    assert meta.covariate_weights_[use] > 0.5
    known = meta.evaluate(tests, context=0)
    unknown = meta.evaluate([(x * [1, np.nan], y) for x, y in tests], context=0)
    floor = 0.5 * np.log(2 * np.pi * np.e * 0.34)
    assert floor - 0.1 < known.nll < floor + 0.4
    assert unknown.nll > known.nll + 0.2
    assert known.coverage > 0.77  # 0.79 to 0.81 before and after the check of the common curve, ± 0.03
    assert unknown.width > 1.4 * known.width


def test_an_effect_that_only_the_source_has_is_not_taken_for_the_targets():
    source, target, tests = (
        draw_ages(40, lambda z: 1.5 * z, 0),
        draw_ages(6, lambda z: 0.0, 1),
        draw_ages(60, lambda z: 0.0, 2),
    )
    given = MetaGPRegressor(covariates=[1], random_state=0).fit(source, target)
    assert given.covariate_weights_["none"] > 0.3
    without = [[(x[:, :1], y) for x, y in tasks] for tasks in (source, target, tests)]
    plain = MetaGPRegressor(random_state=0).fit(*without[:2])
    lost = given.evaluate(tests, context=0).per_task["nll"] - plain.evaluate(without[2], context=0).per_task["nll"]
    assert lost.mean() < 0.1


def test_useless_covariates_change_nothing():
    tasks = make_tasks(effect=0.0)
    without = [(x[["hours", "shift"]], y) for x, y in tasks]
    plain = MetaGPRegressor(random_state=0).fit(target_tasks=without)
    given = MetaGPRegressor(covariates=["age", "sex"], random_state=0).fit(target_tasks=tasks)
    assert given.covariate_weights_["none"] == 1.0
    x = tasks[0][0]
    found, expected = given.adapt([], []).predict(x), plain.adapt([], []).predict(x[["hours", "shift"]])
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_unseen_levels_widen_the_band_and_are_named(meta, queries):
    prior = meta.adapt([], [])
    stds = [prior.predict(x, return_std=True)[1] for x in queries[:2]]
    with pytest.warns(ExtrapolationWarning, match="'sex' is 'diverse'"):
        unseen = prior.predict(queries[2], return_std=True)[1]
    assert (stds[1] > stds[0]).all()
    assert (unseen > stds[0] - 1e-9).all()
    assert prior.extrapolates(queries[2]).all()
    assert not prior.extrapolates(queries[1]).any()


@pytest.mark.filterwarnings("ignore::metaprior.ExtrapolationWarning")
def test_saved_and_exported_tasks_predict_the_same(meta, queries, tmp_path):
    meta.save(tmp_path / "prior.safetensors")
    loaded, (x, y) = metaprior.load(tmp_path / "prior.safetensors"), make_tasks(1, seed=6)[0]
    assert loaded.covariate_weights_ == meta.covariate_weights_
    of_patient = [query.assign(age=x["age"].iloc[0], sex=x["sex"].iloc[0]) for query in queries[:1]]
    for context, asked in ((([], []), queries), ((x, y), of_patient)):
        task, again = meta.adapt(*context), loaded.adapt(*context)
        task.export(tmp_path / "patient.py")
        spec = importlib.util.spec_from_file_location("patient", tmp_path / "patient.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for query in asked:
            expected = task.predict(query, return_std=True)
            np.testing.assert_allclose(again.predict(query, return_std=True), expected, rtol=1e-12)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an unseen level
                found = module.predict(query, return_std=True)
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)


DAMAGED = {
    "levels of 4 input columns": {"levels": [None], "covariates": []},
    "levels that are different": {"levels": [None, ["a", "a"], None, ["b", "c"]], "covariates": [2, 3]},
    "covariates that are numbers of input columns": {"levels": [None, ["a", "b"], None, None], "covariates": [3, 2]},
    "members must have": {"levels": [None, ["a", "b", "c"], None, ["d", "e"]], "covariates": [2, 3]},
}


@pytest.mark.parametrize("message", DAMAGED)
def test_damaged_files_are_refused(meta, message, tmp_path):
    path = tmp_path / "prior.safetensors"
    meta.save(path)
    header, tensors = read_tensors(path)
    write_tensors(path, {**header, "columns": DAMAGED[message]}, tensors)
    with pytest.raises(InvalidFile, match=message):
        metaprior.load(path)


def test_many_tasks_updates_and_evaluation_agree_with_one_task(meta):
    tasks = make_tasks(3, seed=8)
    many = meta.adapt_many(tasks)
    for (x, y), of_many in zip(tasks, many, strict=True):
        task = meta.adapt(x, y)
        np.testing.assert_allclose(of_many.predict(x), task.predict(x), rtol=1e-10)
        np.testing.assert_allclose(meta.adapt(x[:2], y[:2]).update(x[2:], y[2:]).predict(x), task.predict(x), rtol=1e-8)
    tests = [(x[:2], y[:2], x[2:], y[2:]) for x, y in tasks]
    assert np.isfinite(meta.evaluate(tests).nll)
    assert meta.fitted_on(make_tasks(2)).all()
    other = tests[0][2].assign(age=1.0)
    with pytest.raises(ValueError, match=r"context and query.*'age' must have one value"):
        meta.evaluate([(*tests[0][:2], other, tests[0][3])])


def test_covariates_that_tell_nothing_are_refused():
    tasks = [(x.assign(age=50.0), y) for x, y in make_tasks(4)]
    with pytest.raises(ValueError, match="covariate 'age' is 50 in all tasks"):
        MetaGPRegressor(covariates="age").fit(target_tasks=tasks)
    tasks = [(x.assign(age=np.nan), y) for x, y in make_tasks(4)]
    with pytest.raises(ValueError, match="covariate 'age' is missing in all tasks"):
        MetaGPRegressor(covariates="age").fit(target_tasks=tasks)


def test_labels_take_them_as_inputs(tmp_path):
    tasks = [(x, np.where(y > np.median(y), "high", "low")) for x, y in make_tasks(8)]
    meta = MetaGPClassifier(covariates=["age", "sex"], random_state=0).fit(target_tasks=tasks)
    meta.save(tmp_path / "prior.safetensors")
    x, y = tasks[0]
    expected = meta.adapt(x[:3], y[:3]).predict_proba(x)
    found = metaprior.load(tmp_path / "prior.safetensors").adapt(x[:3], y[:3]).predict_proba(x)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("likelihood", ["gaussian", "poisson"])
def test_without_tasks_to_hold_out_covariates_are_left_out_with_a_warning(tmp_path, likelihood):
    rng = np.random.default_rng(0)
    tasks = [(np.column_stack([np.arange(6.0), np.full(6, age)]), rng.poisson(5.0, 6)) for age in (40.0, 60.0)]
    with pytest.warns(UserWarning, match="covariates are not used: .* no environment with weight has two tasks"):
        meta = MetaGPRegressor(covariates=[1], likelihood=likelihood, random_state=0).fit(tasks[:1], tasks[1:])
    meta.save(tmp_path / "prior")
    assert meta.covariate_weights_ == metaprior.load(tmp_path / "prior").covariate_weights_ == {"none": 1.0}
