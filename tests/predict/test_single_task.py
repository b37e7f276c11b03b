"""A task as an estimator of scikit-learn: its checks, its tools, and libraries built on its conventions."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from hand_made_priors import as_classifier, as_regressor, make_label_prior, make_prior
from metaprior import MetaGPClassifier, MetaGPRegressor, SingleTaskClassifier, SingleTaskRegressor

WIDTHS = (1, 2, 3, 4, 5, 10)  # numbers of columns that the checks of scikit-learn use


class OfAnyWidth:
    """Priors of all numbers of columns. A real prior has one, and scikit-learn checks an estimator with several."""

    def __init__(self, priors):
        self.priors = priors

    def __repr__(self):
        return "OfAnyWidth()"  # the same in every process: it names the tests

    def __sklearn_clone__(self):
        return self

    def update(self, X, y):
        return self.priors[X.shape[1]].update(X, y)


CHECKED = [
    SingleTaskRegressor(OfAnyWidth({d: as_regressor(make_prior(columns=d)) for d in WIDTHS})),
    SingleTaskClassifier(OfAnyWidth({d: as_classifier(make_label_prior(0, input_dim=d)) for d in WIDTHS})),
]


@parametrize_with_checks(CHECKED)
@pytest.mark.filterwarnings("ignore")
def test_checks_of_scikit_learn(estimator, check):
    """All pass, with priors of as many columns as each check has."""
    check(estimator)


RNG = np.random.default_rng(0)


def make_task(n=12, noise=0.1):
    x = RNG.uniform(0.0, 5.0, (n, 2))
    return pd.DataFrame(x, columns=["hours", "dose"]), 20.0 + np.sin(x[:, 0]) + noise * RNG.normal(size=n)


def make_labels(n=12):
    codes = np.arange(n) % 3
    return pd.DataFrame(RNG.normal(size=(n, 2)) + codes[:, None], columns=["a", "b"]), np.array(["x", "y", "z"])[codes]


@pytest.fixture(scope="module")
def meta():
    return MetaGPRegressor(alpha=0.0, random_state=0).fit(target_tasks=[make_task() for _ in range(5)])


@pytest.fixture(scope="module")
def labeled():
    return MetaGPClassifier(0.0, random_state=0).fit(target_tasks=[make_labels() for _ in range(5)])


def test_a_task_is_a_fitted_regressor(meta):
    x, y = make_task()
    task = meta.adapt(x, y)
    estimator = task.to_sklearn()
    assert is_regressor(estimator)
    assert estimator.n_features_in_ == 2
    assert estimator.feature_names_in_.tolist() == ["hours", "dose"]
    assert estimator.task_ is task
    np.testing.assert_array_equal(estimator.predict(x), task.predict(x))
    np.testing.assert_array_equal(estimator.predict(x, return_std=True), task.predict(x, return_std=True))
    np.testing.assert_array_equal(estimator.predict(x[["dose", "hours"]]), task.predict(x))
    assert estimator.score(x, y) > 0.9


def test_fit_adapts_the_same_prior_to_other_readings(meta):
    estimator, (x, y) = meta.adapt(*make_task()).to_sklearn(), make_task()
    expected = meta.adapt(x, y).predict(x)
    np.testing.assert_array_equal(estimator.fit(x, y).predict(x), expected)
    np.testing.assert_array_equal(estimator.fit(x[["dose", "hours"]], y).predict(x), expected)
    copy = clone(estimator)
    assert copy.prior is estimator.prior
    with pytest.raises(NotFittedError):
        copy.predict(x)
    np.testing.assert_array_equal(copy.fit(x, y).predict(x), expected)
    read = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(read.predict(x), expected)


def test_tools_of_scikit_learn_take_it(meta):
    x, y = make_task(30)
    estimator = meta.to_sklearn()
    assert cross_val_score(estimator, x, y, cv=3).mean() > 0.5
    pipeline = make_pipeline(FunctionTransformer(), meta.to_sklearn())
    search = GridSearchCV(pipeline, {"singletaskregressor__prior": [meta.adapt([], []), meta.to_sklearn().prior]}, cv=2)
    assert search.fit(x, y).best_estimator_.predict(x).shape == (30,)
    estimator.fit(x, y)
    found = permutation_importance(estimator, x, y, n_repeats=3, random_state=0)
    assert found.importances_mean[0] > 10 * abs(found.importances_mean[1])  # y does not depend on the dose
    curve = partial_dependence(estimator, x, ["hours"], grid_resolution=5)
    assert curve["average"].shape == (1, 5)


def test_a_task_of_labels_is_a_fitted_classifier(labeled):
    x, y = make_labels()
    task = labeled.adapt(x, y)
    estimator = task.to_sklearn()
    assert is_classifier(estimator)
    assert estimator.classes_.tolist() == ["x", "y", "z"]
    for method in ("predict", "predict_proba", "predict_log_proba", "decision_function"):
        np.testing.assert_array_equal(getattr(estimator, method)(x), getattr(task, method)(x))
    assert cross_val_score(labeled.to_sklearn(), x, y, cv=2, scoring="neg_log_loss").max() < 0.0
    assert (cross_val_predict(labeled.to_sklearn(), x, y, cv=2) == y).mean() > 0.5
    with pytest.raises(ValueError, match="y has 0, 1, 2, but all meta-training tasks have the labels 'x', 'y', 'z'"):
        cross_val_predict(labeled.to_sklearn(), x, y, cv=2, method="predict_proba")  # which calls classes 0, 1, 2
    # All tasks share their classes, so that those of a fold without one are known.
    assert clone(estimator).fit(x[:1], y[:1]).classes_.tolist() == ["x", "y", "z"]


def test_probabilities_are_cross_validated_where_classes_are_those_of_the_task():
    x, y = make_labels()
    single = SingleTaskClassifier(as_classifier(make_label_prior(input_dim=2)))
    found = cross_val_predict(single, x, y, cv=2, method="predict_proba")
    np.testing.assert_allclose(found.sum(axis=1), 1.0)


def test_a_single_class_is_refused_where_the_others_are_unknown():
    prior = as_classifier(make_label_prior())
    with pytest.raises(ValueError, match="the only class of y is 'a': what the others are is unknown"):
        SingleTaskClassifier(prior).fit([[0.0], [1.0]], ["a", "a"])
    with pytest.raises(ValueError, match="y has no classes"):
        prior.to_sklearn()


def test_what_is_no_prior_is_refused(meta):
    with pytest.raises(TypeError, match=r"prior must be what meta.adapt\(\[\], \[\]\) returns.*got MetaGPRegressor"):
        SingleTaskRegressor(meta).fit(*make_task())
    x, y = make_task()
    with pytest.raises(ValueError, match="fit: the feature names of X should match"):
        meta.to_sklearn().fit(x.rename(columns={"dose": "mg"}), y)
    with pytest.raises(ValueError, match="X must have 2 columns, like the other tasks; got 1"):
        meta.to_sklearn().fit(x.to_numpy()[:, :1], y)


# scikit-learn's warning, because MAPIE tries a prediction of an array without names.
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_mapie_makes_conformal_intervals(meta):
    regression = pytest.importorskip("mapie.regression")
    (x, y), (x_new, y_new) = make_task(40), make_task(60)
    split = regression.SplitConformalRegressor(meta.adapt(*make_task()).to_sklearn(), confidence_level=0.8, prefit=True)
    _, intervals = split.conformalize(x, y).predict_interval(x_new)
    inside = (intervals[:, 0, 0] <= y_new) & (y_new <= intervals[:, 1, 0])
    assert 0.6 < inside.mean() < 0.95
    cross = regression.CrossConformalRegressor(meta.to_sklearn(), confidence_level=0.8, cv=4)
    assert cross.fit_conformalize(x, y).predict_interval(x_new)[1].shape == (60, 2, 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of SHAP and what it imports
def test_shap_explains_it(meta):
    shap = pytest.importorskip("shap")
    x, y = make_task(30)
    estimator = meta.adapt(x, y).to_sklearn()
    explained = shap.Explainer(estimator.predict, x.iloc[:10])(x.iloc[:4])
    np.testing.assert_allclose(explained.base_values + explained.values.sum(axis=1), estimator.predict(x.iloc[:4]))
    kernel = shap.KernelExplainer(estimator.predict, x.iloc[:5], silent=True).shap_values(x.iloc[:2], silent=True)
    assert np.shape(kernel) == (2, 2)


def with_facts(task, age):
    x, y = task
    return x.assign(age=age, ward=np.where(x["dose"] > 2.5, "a", "b")), y


def test_categories_are_refused_and_covariates_may_be_missing():
    tasks = [with_facts(make_task(), 40.0 + i) for i in range(5)]
    labels = [(x, np.where(y > 20.0, "high", "low")) for x, y in tasks]
    for estimator, of_kind in ((MetaGPRegressor, tasks), (MetaGPClassifier, labels)):
        meta = estimator(alpha=0.0, covariates="age", random_state=0).fit(target_tasks=of_kind)
        for make in (meta.to_sklearn, meta.adapt(*of_kind[0]).to_sklearn):
            with pytest.raises(ValueError, match="X has categories, 'ward': estimators of scikit-learn"):
                make()
    with pytest.raises(ValueError, match="X has categories, 'ward'"):
        SingleTaskClassifier(meta.adapt([], [])).fit(*labels[0])
    numbers = [(x.drop(columns="ward"), y) for x, y in tasks]
    meta = MetaGPRegressor(alpha=0.0, covariates="age", random_state=0).fit(target_tasks=numbers)
    x, y = numbers[0]
    estimator = meta.adapt(x, y).to_sklearn()
    unknown = x.assign(age=np.nan)
    np.testing.assert_array_equal(estimator.predict(unknown), estimator.predict(x))  # that of the context
    np.testing.assert_array_equal(estimator.fit(unknown, y).predict(unknown), meta.adapt(unknown, y).predict(unknown))
    assert estimator.__sklearn_tags__().input_tags.allow_nan
    with pytest.raises(ValueError, match="column 'dose' of X must be finite"):
        estimator.predict(x.assign(dose=np.nan))
