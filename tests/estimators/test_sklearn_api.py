"""The habits of scikit-learn: tags, clone, score, and sentences where the usual calls mean something else here."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, ParameterGrid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import metaprior
from metaprior import MetaGPClassifier, MetaGPRegressor
from metaprior.wfem import Gaussian, HyperPrior, Training, TrainingDiverged, WFEMClassifier, WFEMRegressor

RNG = np.random.default_rng(0)
QUICK = {"alpha": "pooled", "random_state": 0, "progress": False}
KINDS = [MetaGPRegressor, MetaGPClassifier, WFEMRegressor, WFEMClassifier]
TASKS = [(x, np.sin(x[:, 0])) for x in RNG.normal(size=(6, 5, 1))]
TESTS = [(x[:3], y[:3], x[3:], y[3:]) for x, y in TASKS]
LABELS = [(x, np.array([0, 1, 0, 1, 1])) for x, _ in TASKS]
LABEL_TESTS = [(x[:3], y[:3], x[3:], y[3:]) for x, y in LABELS]


def test_estimators_know_what_they_are():
    for kind in KINDS:
        assert is_regressor(kind()) == (kind in (MetaGPRegressor, WFEMRegressor))
        assert is_classifier(kind()) == (kind in (MetaGPClassifier, WFEMClassifier))
        assert kind().__sklearn_tags__().input_tags.two_d_array is False


def test_a_clone_has_the_same_parameters_and_is_not_fitted():
    meta = MetaGPRegressor(**QUICK).fit(TASKS)
    copy = clone(meta)
    assert copy.get_params() == meta.get_params()
    assert not hasattr(copy, "model_")


CALLS = {
    **{name: lambda meta, name=name: getattr(meta, name)([]) for name in ("adapt_many", "predict_many", "evaluate")},
    **{name: lambda meta, name=name: getattr(meta, name)([]) for name in ("compare", "score", "fitted_on")},
    **{name: lambda meta, name=name: getattr(meta, name)() for name in ("transfer_report", "to_sklearn")},
    "alpha_path_": lambda meta: meta.alpha_path_,
    "adapt": lambda meta: meta.adapt([], []),
    "certify": lambda meta: meta.certify([], meta),
    "save": lambda meta: meta.save("nowhere"),
}
OF_NETWORKS = {
    **{name: lambda meta, name=name: getattr(meta, name) for name in ("particles_", "particle_weights_")},
    **{name: lambda meta, name=name: getattr(meta, name)() for name in ("particle_interaction", "to_arviz")},
}


@pytest.mark.parametrize("kind", KINDS)
def test_everything_that_needs_a_fit_says_so(kind):
    for name, call in (CALLS | OF_NETWORKS if kind in (WFEMRegressor, WFEMClassifier) else CALLS).items():
        with pytest.raises(NotFittedError, match=f"^This {kind.__name__} instance is not fitted yet"):
            pytest.fail(f"{name} returned {call(kind())}")


def test_score_is_r2_over_all_queries_and_accuracy():
    meta = MetaGPRegressor(**QUICK).fit(TASKS)
    predicted = meta.predict_many([test[:3] for test in TESTS])
    y = np.concatenate([test[3] for test in TESTS])
    expected = 1 - np.sum((y - np.concatenate(predicted)) ** 2) / np.sum((y - y.mean()) ** 2)
    assert meta.score(TESTS) == pytest.approx(expected, rel=1e-12)
    classifier = MetaGPClassifier(**QUICK).fit(LABELS)
    assert classifier.score(LABEL_TESTS) == pytest.approx(float(classifier.evaluate(LABEL_TESTS).accuracy))


def test_a_loop_over_a_grid_works():
    scores = [
        MetaGPRegressor(**QUICK).set_params(**parameters).fit(TASKS[:4]).score(TESTS[4:])
        for parameters in ParameterGrid({"noise_std": [0.1, 0.5]})
    ]
    assert len(set(scores)) == 2


def test_tools_that_pass_arrays_fail_with_a_sentence():
    x, y = np.zeros((6, 1)), np.zeros(6)
    with pytest.raises(ValueError, match=r"source_tasks must be a sequence of \(X, y\), one pair per task"):
        MetaGPRegressor(**QUICK).fit(x, y)
    with pytest.raises(ValueError, match=r"source_tasks must be a sequence of \(X, y\), one pair per task"):
        make_pipeline(StandardScaler(), MetaGPRegressor(**QUICK)).fit(x, y)
    search = GridSearchCV(MetaGPRegressor(**QUICK), {"noise_std": [0.1]}, cv=2, error_score="raise")
    with pytest.raises(ValueError, match=r"test_tasks\[0\] must be \(X_context, y_context, X_query, y_query\)"):
        search.fit(TASKS)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.zeros((6, 1)), np.zeros(6)),
        (pd.DataFrame({"a": [0.0, 1.0]}), pd.Series([0.0, 1.0])),
        ([[0.0], [1.0]], [0.0, 1.0]),
        ([0.0, 1.0], [0.0, 1.0]),
        (list(np.zeros((6, 1))), np.zeros(6)),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_one_data_set_explains_the_two_steps(kind, x, y):
    for fit in (lambda: kind().fit(x, y), lambda: kind().fit(target_tasks=x)):
        with pytest.raises(ValueError, match=r"_tasks must be a sequence of \(X, y\), one pair per task") as raised:
            fit()
        assert "fit([(X1, y1), (X2, y2), ...]) learns a prior" in str(raised.value)
        assert "adapt(X_context, y_context).predict(X_new)" in str(raised.value)


@pytest.mark.parametrize("kind", KINDS)
def test_score_of_one_data_set_explains_that_it_takes_tasks(kind):
    with pytest.raises(TypeError, match=r"^score takes test tasks, not X and y: score\(\[\(X_context, y_context, "):
        kind().score(np.zeros((6, 1)), np.zeros(6))


def test_fitted_things_describe_themselves_in_words():
    meta = MetaGPRegressor(random_state=0)
    assert repr(meta) == "MetaGPRegressor(random_state=0)"
    meta.fit(target_tasks=TASKS)
    said = "a prior fitted to 6 tasks (6 of target) with 1 input column"
    assert repr(meta) == f"MetaGPRegressor(random_state=0), {said}"
    task = meta.adapt(*TASKS[0])
    assert repr(task) == "AdaptedRegressor(5 readings as context, 1 input column)"
    assert repr(meta.adapt_many(TASKS[:2])) == "AdaptedRegressors(2 tasks, 10 readings as context, dtype='float64')"
    assert repr(task.predictive([[0.0], [1.0]])).endswith("at points of shape (2,))")
    assert repr(meta.model_).startswith("Ensemble(")
    assert max(len(repr(each)) for each in (task, meta.model_, task.predictive([[0.0]]))) < 80


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: MetaGPRegressor(noise_std=1e300), "noise_std must be in the units of y, whose values span"),
        (lambda: MetaGPRegressor(noise_std=1e-300), "noise_std must be in the units of y, whose values span"),
        (lambda: WFEMRegressor(likelihood=Gaussian(1e300)), "noise_std must be in the units of y, whose values span"),
        (lambda: WFEMRegressor(temperature=1e300), "temperature must lie between"),
        (lambda: WFEMRegressor(temperature=1e-300), "temperature must lie between"),
        (lambda: WFEMRegressor(hyperprior=HyperPrior(std=1e-300)), "std must be a positive number"),
        (lambda: WFEMRegressor(hyperprior=HyperPrior(std={"weights": 1e300})), "std must be a positive number"),
        (lambda: WFEMRegressor(hyperprior=HyperPrior(mean={"weights": 1e300})), "mean must be"),
        (lambda: WFEMRegressor(training=Training(learning_rate=1e300)), "learning_rate must lie between"),
    ],
)
def test_numbers_that_cannot_be_computed_with_are_refused_by_name(make, said):
    with pytest.raises(ValueError, match=said):
        make().fit(target_tasks=TASKS)


def test_large_noise_is_refused_beside_constant_readings_but_not_beside_large_ones():
    with pytest.raises(ValueError, match="noise_std must be in the units of y, whose values span 0"):
        MetaGPRegressor(noise_std=1e300).fit(target_tasks=[([[0.0], [1.0]], [5.0, 5.0])])
    large = [(x, 1e30 * y) for x, y in TASKS]
    MetaGPRegressor(noise_std=1e30, random_state=0).fit(target_tasks=large)


@pytest.mark.parametrize("kind", KINDS)
def test_predict_says_to_adapt_first(kind):
    with pytest.raises(TypeError, match=r"adapt\(X_context, y_context\).predict\(X\)"):
        kind().predict([[0.0]])


def test_both_estimators_share_their_defaults():
    regressor, classifier = MetaGPRegressor().get_params(), MetaGPClassifier().get_params()
    assert set(regressor) - set(classifier) == {"noise_std", "likelihood", "exposure", "conformal"}
    assert set(classifier) - set(regressor) == {"calibrate", "shared_classes"}
    assert all(regressor[name] == classifier[name] for name in regressor.keys() & classifier)


def test_so_do_those_of_priors_of_networks():
    regressor, classifier = WFEMRegressor().get_params(), WFEMClassifier().get_params()
    assert set(regressor) - set(classifier) == {"likelihood"}
    assert set(classifier) - set(regressor) == {"shared_classes"}
    assert all(regressor[name] == classifier[name] for name in regressor.keys() & classifier)


def test_errors_and_warnings_that_users_meet_are_exported():
    for name in (
        "ExtrapolationWarning",
        "ImplausibleContextWarning",
        "SeenTasksWarning",
        "InvalidFile",
        "OutOfMemoryWarning",
        "TableWarning",
    ):
        assert issubclass(getattr(metaprior, name), Exception)
        assert name in metaprior.__all__
    assert issubclass(TrainingDiverged, ArithmeticError)
