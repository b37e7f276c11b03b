"""What is said of a fitted prior depends on its fit alone: not on parameters set later, nor on a fit that failed."""

import numpy as np
import pytest

import metaprior
from metaprior import MetaGPClassifier, MetaGPRegressor, MultiOutputMetaGP
from metaprior.estimators import guaranteed_fit, hierarchical_fit
from metaprior.estimators.base import MetaGP
from metaprior.plots import plot_alpha_path, plot_calibration, plot_prediction, plot_prior_samples, plot_training
from metaprior.prediction.ensemble import predicts_labels

# A value of every parameter that is neither its default nor what the fits below are given.
OTHERS = {
    **{"alpha": 0.0, "inference": "svgd", "n_particles": 7, "mean": "mlp", "kernel": "linear", "encoder": "mlp"},
    **{"noise_std": 0.1, "likelihood": "poisson", "exposure": 0, "temperature": "paper", "prior_mean": "initial"},
    **{"prior_std": 0.1, "optimizer": "sgd", "learning_rate": 1.0, "schedule": "constant", "n_steps": 3},
    **{"batch_size": 2, "standardize": False, "dtype": "float32", "context": "first", "guarantee": True},
    **{"covariates": [0], "categorical": [0], "random_state": 9, "search_time": 1.0, "n_devices": 2, "progress": True},
    **{"shared_classes": False, "calibrate": False},
}


def make_tasks(n_tasks=8, n=6, seed=0, counts=False):
    rng = np.random.default_rng(seed)
    tasks = []
    for _ in range(n_tasks):
        x = rng.uniform(-1, 1, (n, 1))
        y = rng.normal() + rng.normal() * x[:, 0] + 0.1 * rng.normal(size=n)
        tasks.append((x, rng.poisson(np.exp(np.clip(y, -3, 3))) if counts else y))
    return tasks


def make_labels(n_tasks=8, n=8, seed=0, names=("ill", "well")):
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n_tasks):
        x = np.sort(rng.uniform(-1, 1, (n, 1)), axis=0)
        found.append((x, np.array(names)[(x[:, 0] + 0.3 * rng.normal(size=n) > 0).astype(int)]))
    return found


def split(tasks, n=3):
    return [(x[:n], y[:n], x[n:], y[n:]) for x, y in tasks]


FITS = {
    "readings": (MetaGPRegressor, {"alpha": 0.5, "random_state": 0}, make_tasks),
    "counts": (MetaGPRegressor, {"likelihood": "negative-binomial"}, lambda *a: make_tasks(*a, counts=True)),
    "gradient": (MetaGPRegressor, {"alpha": 0.5, "kernel": "rbf", "mean": "constant", "n_steps": 2}, make_tasks),
    "labels": (MetaGPClassifier, {"alpha": 0.5}, make_labels),
}


@pytest.fixture(scope="module")
def fitted():
    found = {}
    for name, (kind, given, make) in FITS.items():
        meta = kind(**{"random_state": 0, **given}).fit(make(8, 8, 0), make(6, 8, 1))
        found[name] = meta, make(3, 8, 5)
    return found


def drawn(axes):
    """Return what a plot says: its words and its lines."""
    figure = axes.figure if hasattr(axes, "figure") else axes
    words = [text.get_text() for text in figure.findobj(lambda each: hasattr(each, "get_text"))]
    lines = [np.asarray(line.get_data(), float).tolist() for axis in figure.axes for line in axis.lines]
    return words, lines


def answers(meta, tasks, folder):
    """Return what every public method says of a fitted prior, as text, and of what it draws."""
    tests, (x, y) = split(tasks), tasks[0]
    meta.save(folder / "prior.safetensors")
    (folder / "prior.safetensors").rename(folder / "saved")
    found = {
        "save": (folder / "saved").read_bytes(),
        "adapt": meta.adapt(x[:3], y[:3]).predict(x),
        "adapt_many": meta.adapt_many([(x[:3], y[:3])]).predict([x]),
        "predict_many": meta.predict_many([(x[:3], y[:3], x)]),
        "evaluate": meta.evaluate(tests),
        "split": meta.evaluate(tasks, context=3),
        "compare": meta.compare(tests),
        "score": meta.score(tests),
        "certify": meta.certify(tests, meta),
        "fitted_on": meta.fitted_on(tasks),
        "transfer_report": meta.transfer_report(),
        "to_sklearn": type(meta.to_sklearn()).__name__,
        "alpha_path_": meta.alpha_path_,
        "features_": meta.features_,
        "labels": predicts_labels(meta),
        "repr": repr(meta).rpartition("), ")[2],  # after the parameters, which are those set
        "training": drawn(plot_training(meta)),
        "alpha": drawn(plot_alpha_path(meta)),
        "calibration": drawn(plot_calibration(meta, tests)),
        "prior": drawn(plot_prior_samples(meta, x=np.linspace(-1, 1, 5))) if not predicts_labels(meta) else None,
        "prediction": drawn(plot_prediction(meta, x[:3], y[:3], x)),
        "table": metaprior.predict_frame(meta, {"x": x[:3, 0], "y": y[:3]}, {"x": x[:, 0]}, x="x", y="y").to_csv(),
        "response_": getattr(meta, "response_", None),
    }
    if meta.engine_ == "gradient":
        found |= {"interaction": meta.particle_interaction(), "weights": meta.particle_weights_}
    with pytest.raises(TypeError):
        meta.predict(x)
    return {name: value if isinstance(value, bytes) else repr(value) for name, value in found.items()}


@pytest.mark.parametrize("name", FITS)
@pytest.mark.filterwarnings("ignore")
def test_parameters_set_after_the_fit_change_nothing_that_is_said_of_it(fitted, tmp_path, name):
    meta, tasks = fitted[name]
    given = meta.get_params()
    before = answers(meta, tasks, tmp_path)
    assert set(given) <= set(OTHERS)
    others = {each: OTHERS[each] for each in given}
    assert not [each for each, value in others.items() if value == given[each]]
    try:
        meta.set_params(**others)
        after = answers(meta, tasks, tmp_path)
    finally:
        meta.set_params(**given)
    assert [name for name in before if after[name] != before[name]] == []


def state(meta):
    """Return all attributes of an estimator, by identity: nothing may be replaced or changed in place."""
    return {name: (id(value), repr(value)) for name, value in vars(meta).items()}


def stop_at(monkeypatch, owner, name, error):
    """Make a step of the fit raise once it has done its work."""
    real = getattr(owner, name)

    def failing(*args, **kwargs):
        real(*args, **kwargs)
        raise error

    monkeypatch.setattr(owner, name, failing)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["readings", "counts", "labels"])
def test_fit_that_fails_leaves_the_estimator_as_it_was(fitted, monkeypatch, name):
    meta, tasks = fitted[name]
    others = make_labels(6, 8, 3, names=("no", "yes")) if name == "labels" else tasks
    wide = [(np.hstack([x, x**2]), y) for x, y in others]
    before = state(meta)

    def fails(error, *args, **kwargs):
        with pytest.raises(error):
            meta.fit(*args, **kwargs)
        assert state(meta) == before

    fails(ValueError, wide, [*wide, (wide[0][0], [None] * len(wide[0][1]))])  # the last task of all
    fails(ValueError, others, others, target="south")
    for owner, step in ((hierarchical_fit, "compare_priors"), (MetaGP, "_remember_tasks")):
        for error in (KeyboardInterrupt(), MemoryError("no")):
            with monkeypatch.context() as patched:
                stop_at(patched, owner, step, error)
                fails(type(error), wide, wide)


@pytest.mark.filterwarnings("ignore")
def test_fit_with_covariates_that_say_nothing_leaves_the_names_of_columns(fitted):
    import pandas as pd

    meta = MetaGPRegressor(random_state=0).fit(
        target_tasks=[(pd.DataFrame(x, columns=["day"]), y) for x, y in make_tasks()]
    )
    before = state(meta)
    with pytest.raises(ValueError, match="tells nothing"):
        meta.set_params(covariates=[1]).fit(target_tasks=[(np.hstack([x, 0 * x]), y) for x, y in make_tasks()])
    meta.set_params(covariates=None)
    assert state(meta) == before
    assert meta.fit(target_tasks=make_tasks()) is meta
    assert not hasattr(meta, "feature_names_in_")  # those of the fit before


@pytest.mark.filterwarnings("ignore")
def test_fit_with_a_guarantee_that_is_interrupted_leaves_the_estimator(fitted, monkeypatch):
    meta, tasks = fitted["readings"]
    before = {each: value for each, value in state(meta).items() if each != "guarantee"}
    stop_at(monkeypatch, guaranteed_fit, "held_out_scores", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        meta.set_params(guarantee=True).fit(tasks, tasks)
    meta.set_params(guarantee=False)
    assert {each: value for each, value in state(meta).items() if each != "guarantee"} == before


@pytest.mark.filterwarnings("ignore")
def test_several_outputs_of_which_one_cannot_be_fitted_stay_as_they_were():
    tasks = {"hct": make_tasks(), "state": make_labels()}
    meta = MultiOutputMetaGP(MetaGPRegressor(random_state=0), MetaGPClassifier(random_state=0)).fit(tasks)
    before, inner = state(meta), {name: state(each) for name, each in meta.estimators_.items()}
    with pytest.raises(ValueError, match="output 'state'"):
        meta.fit({"hct": make_tasks(seed=4), "state": [*make_labels(), ([[1.0]], [None])]})
    assert state(meta) == before
    assert {name: state(each) for name, each in meta.estimators_.items()} == inner


# Values that ask for what the default does anyway.
SAME = {
    **{"inference": "auto", "n_particles": 1, "mean": "auto", "kernel": "auto", "encoder": None},
    **{"temperature": "bayes", "prior_mean": {"weights": "zero"}, "prior_std": {"scales": np.float32(1)}},
    **{"optimizer": "adam", "learning_rate": np.float64(0.01), "schedule": "cosine", "n_steps": None},
    **{"batch_size": None, "standardize": True, "dtype": "float64", "n_devices": 1},
    **{"alpha": "auto", "noise_std": "learned", "likelihood": "gaussian", "exposure": None, "context": "random"},
    **{"guarantee": False, "covariates": (), "categorical": (), "search_time": None, "progress": False},
    **{"shared_classes": "auto", "calibrate": True},
}


@pytest.fixture(scope="module")
def defaults():
    """What the default of each estimator predicts."""
    return {kind: predicted(kind) for kind in (MetaGPRegressor, MetaGPClassifier)}


def predicted(kind, **given):
    make = make_labels if kind is MetaGPClassifier else make_tasks
    meta = kind(random_state=0, **given).fit(target_tasks=make(5))
    (x, y), *_ = make(1, seed=7)
    task = meta.adapt(x[:3], y[:3])
    return task.predict_proba(x) if kind is MetaGPClassifier else np.stack(task.predict(x, return_std=True))


@pytest.mark.parametrize("kind", [MetaGPRegressor, MetaGPClassifier])
@pytest.mark.parametrize("name", SAME)
def test_values_that_ask_for_what_the_default_does_predict_the_same(defaults, kind, name):
    if name not in kind().get_params():
        return
    value = "within-class" if (kind, name) == (MetaGPClassifier, "standardize") else SAME[name]
    np.testing.assert_array_equal(predicted(kind, **{name: value}), defaults[kind])


def test_every_parameter_has_a_value_that_means_the_default():
    known = {*MetaGPRegressor().get_params(), *MetaGPClassifier().get_params()}
    assert known - {"random_state"} == set(SAME)
    assert known == set(OTHERS)


@pytest.mark.parametrize("kind", [MetaGPRegressor, MetaGPClassifier])
@pytest.mark.parametrize(("name", "value"), [("dtype", "float32"), ("n_devices", 2)])
def test_what_only_gradient_training_computes_with_is_an_error_for_the_default(kind, name, value):
    tasks = make_labels(5) if kind is MetaGPClassifier else make_tasks(5)
    found = rf"{name}={value!r} is for gradient training.*hierarchical priors, the default, .*kernel='inducing'"
    with pytest.raises(ValueError, match=found):
        kind(**{name: value}).fit(target_tasks=tasks)
    if name == "dtype":
        assert kind(**{name: value}, kernel="rbf", mean="zero", n_steps=1).fit(target_tasks=tasks).dtype_ == "float32"
