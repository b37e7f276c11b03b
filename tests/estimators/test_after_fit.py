"""What is said of a fitted prior depends on its fit alone: not on parameters set later, nor on a fit that failed."""

from dataclasses import fields

import numpy as np
import pytest

import metaprior
from metaprior import MetaGPClassifier, MetaGPRegressor
from metaprior.estimators import fit
from metaprior.estimators.base import MetaGP
from metaprior.plots import plot_alpha_path, plot_calibration, plot_prediction, plot_prior_samples, plot_training
from metaprior.predict.ensemble import predicts_labels
from metaprior.wfem import (
    SVGD,
    Gaussian,
    HyperPrior,
    MLPKernel,
    MLPMean,
    Training,
    WFEMClassifier,
    WFEMRegressor,
)

# A value of every parameter that is neither its default nor what the fits below are given.
OTHERS = {
    **{"alpha": 0.0, "noise_std": 0.1, "likelihood": "poisson", "exposure": 0, "context": "first", "conformal": True},
    **{"covariates": [0], "categorical": [0], "random_state": 9, "search_time": 1.0, "progress": True},
    **{"shared_classes": False, "calibrate": False},
}
OTHERS_OF_NETWORKS = {
    **{"kernel": "linear", "mean": "mlp", "encoder": "mlp", "likelihood": Gaussian(noise_std=0.1)},
    **{"inference": SVGD(n_particles=7), "temperature": "effective", "hyperprior": HyperPrior(std=0.1)},
    **{"training": Training(n_steps=3, standardize=False, dtype="float64")},
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


SHORT = Training(n_steps=2)
FITS = {
    "readings": (MetaGPRegressor, {"alpha": 0.5, "random_state": 0}, make_tasks),
    "counts": (MetaGPRegressor, {"likelihood": "negative-binomial"}, lambda *a: make_tasks(*a, counts=True)),
    "labels": (MetaGPClassifier, {"alpha": 0.5}, make_labels),
    "networks": (WFEMRegressor, {"kernel": "rbf", "mean": "constant", "training": SHORT}, make_tasks),
    "labels, networks": (WFEMClassifier, {"kernel": "rbf", "mean": "zero", "training": SHORT}, make_labels),
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
        "training": drawn(plot_training(meta)) if hasattr(meta, "loss_trace_") else None,
        "alpha": drawn(plot_alpha_path(meta)),
        "calibration": drawn(plot_calibration(meta, tests)),
        "prior": drawn(plot_prior_samples(meta, x=np.linspace(-1, 1, 5))) if not predicts_labels(meta) else None,
        "prediction": drawn(plot_prediction(meta, x[:3], y[:3], x)),
        "table": metaprior.predict_frame(meta, {"x": x[:3, 0], "y": y[:3]}, {"x": x[:, 0]}, x="x", y="y").to_csv(),
        "response_": getattr(meta, "response_", None),
    }
    if hasattr(meta, "loss_trace_"):
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
    other = OTHERS | (OTHERS_OF_NETWORKS if hasattr(meta, "loss_trace_") else {})
    others = {each: other[each] for each in given}
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
    for owner, step in ((fit, "compare_priors"), (MetaGP, "_remember_tasks")):
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
def test_fit_with_conformal_intervals_that_is_interrupted_leaves_the_estimator(fitted, monkeypatch):
    meta, tasks = fitted["readings"]
    before = {each: value for each, value in state(meta).items() if each != "conformal"}
    stop_at(monkeypatch, fit, "held_out_scores", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        meta.set_params(conformal=True).fit(tasks, tasks)
    meta.set_params(conformal=False)
    assert {each: value for each, value in state(meta).items() if each != "conformal"} == before


# Values that ask for what the default does anyway.
SAME = {
    **{"alpha": "auto", "noise_std": "learned", "likelihood": "gaussian", "exposure": None, "context": "random"},
    **{"conformal": False, "covariates": (), "categorical": (), "search_time": None, "progress": False},
    **{"shared_classes": "auto", "calibrate": True},
}
SAME_OF_NETWORKS = {
    **{"kernel": MLPKernel(), "mean": MLPMean(), "encoder": None, "likelihood": "gaussian", "inference": "map"},
    **{"alpha": np.float64(0.5), "temperature": "paper", "categorical": (), "context": "random"},
    **{"hyperprior": HyperPrior(mean={"weights": "zero"}, std={"scales": 1}), "shared_classes": "auto"},
}


KINDS = dict.fromkeys([MetaGPRegressor, MetaGPClassifier], SAME)
KINDS |= dict.fromkeys([WFEMRegressor, WFEMClassifier], SAME_OF_NETWORKS)


@pytest.fixture(scope="module")
def defaults():
    """What the default of each estimator predicts, at a given alpha: that is quicker than a search."""
    return {kind: predicted(kind, alpha=0.5) for kind in KINDS}


def predicted(kind, **given):
    labels = kind in (MetaGPClassifier, WFEMClassifier)
    make = make_labels if labels else make_tasks
    if kind in (WFEMRegressor, WFEMClassifier):
        given = {"training": Training(n_steps=1), **given}
    meta = kind(random_state=0, **given).fit(make(5), make(5, seed=1))
    (x, y), *_ = make(1, seed=7)
    task = meta.adapt(x[:3], y[:3])
    return task.predict_proba(x) if labels else np.stack(task.predict(x, return_std=True))


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, same in KINDS.items() for name in same if name in kind().get_params()]
)
def test_values_that_ask_for_what_the_default_does_predict_the_same(defaults, kind, name):
    expected = predicted(kind) if name == "alpha" else defaults[kind]
    np.testing.assert_array_equal(predicted(kind, **{"alpha": 0.5, name: KINDS[kind][name]}), expected)


@pytest.mark.parametrize("kind", [WFEMRegressor, WFEMClassifier])
def test_settings_of_training_that_ask_for_what_the_default_does_predict_the_same(defaults, kind):
    labels = kind is WFEMClassifier
    same = {"learning_rate": np.float64(0.01), "optimizer": "adam", "schedule": "cosine", "batch_size": None}
    same |= {"standardize": "within-class" if labels else True, "dtype": "float32", "n_devices": 1}
    same |= {"search_time": None, "progress": False}
    assert {"n_steps", *same} == {each.name for each in fields(Training)}
    found = predicted(kind, alpha=0.5, training=Training(n_steps=1, **same))
    np.testing.assert_array_equal(found, defaults[kind])


def test_every_parameter_has_a_value_that_means_the_default():
    known = {*MetaGPRegressor().get_params(), *MetaGPClassifier().get_params()}
    assert known - {"random_state"} == set(SAME)
    assert known == set(OTHERS)
    of_networks = {*WFEMRegressor().get_params(), *WFEMClassifier().get_params()}
    assert of_networks - {"random_state", "training"} == set(SAME_OF_NETWORKS)
    assert of_networks <= {*OTHERS, *OTHERS_OF_NETWORKS}
