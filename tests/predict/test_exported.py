"""Exported tasks predict with NumPy alone, as the tasks do, for all kinds of hierarchical priors."""

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import special

from coded_inputs import MIXED, as_cells, draw_codes, make_mixed
from hand_made_priors import (
    ALL_TERMS,
    CURVE,
    NOISE_SCALES,
    SMOOTH,
    TERMS_OF_COVARIATES,
    THREE_SCALES,
    as_classifier,
    as_regressor,
    make_label_prior,
    make_prior,
    make_terms,
)
from metaprior import MetaGPClassifier, MetaGPRegressor, linalg, load
from metaprior.likelihoods.softmax import log_logistic, log_probabilities
from metaprior.predict import exported
from metaprior.predict.predictive import GaussianMixture
from metaprior.prior import families
from metaprior.tasks.labels import ClassRules
from metaprior.wfem import Training, WFEMRegressor

RNG = np.random.default_rng(0)
ONLY_NUMPY = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("metaprior", "jax", "jaxlib", "scipy", "sklearn", "pandas", "equinox"):
            raise ImportError(f"{name} is not there")
sys.meta_path.insert(0, Refuse())
import json, numpy as np
sys.path.insert(0, sys.argv[1])
import patient
"""


def export(task, folder, name="exported"):
    """Return the module that a task is exported as."""
    path = folder / f"{name}.py"
    task.export(path)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def assert_same_readings(module, task, x):
    for latent in (False, True):
        found, expected = (each.predict(x, return_std=True, latent=latent) for each in (module.task, task))
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
        for coverage in (0.5, 0.99):
            found, expected = (each.interval(x, coverage, latent=latent) for each in (module.task, task))
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("input_dim", [1, 3])
@pytest.mark.parametrize("terms", ALL_TERMS.values(), ids=ALL_TERMS)
def test_every_term_of_a_prior(tmp_path, terms, input_dim):
    x, y = RNG.normal(size=(7, input_dim)), RNG.normal(size=7)
    task = as_regressor(make_prior(terms, input_dim, scales=THREE_SCALES)).update(x, y)
    module = export(task, tmp_path)
    assert_same_readings(module, task, RNG.normal(size=(5, input_dim)))
    np.testing.assert_array_equal(module.predict(x), module.task.predict(x))


@pytest.mark.parametrize("terms", TERMS_OF_COVARIATES.values(), ids=TERMS_OF_COVARIATES)
def test_terms_of_covariates_and_categories(tmp_path, terms):
    meta = make_mixed(terms=[terms, SMOOTH])
    for missing in ([], [4]):
        x = draw_codes(RNG, MIXED, 9)
        x[:, missing] = np.nan
        cells = as_cells(meta, x)
        task = meta.adapt(cells[:6], RNG.normal(size=6))
        assert_same_readings(export(task, tmp_path), task, cells[6:])


@pytest.mark.parametrize("terms", [SMOOTH, make_terms("curve", "deviation", "deformation", "environment")])
@pytest.mark.parametrize("scales", [THREE_SCALES, NOISE_SCALES])
def test_shapes_and_scales_of_tasks(tmp_path, terms, scales):
    task = as_regressor(make_prior(terms, 2, shapes=True, scales=scales)).update(
        RNG.normal(size=(6, 2)), RNG.normal(size=6)
    )
    assert_same_readings(export(task, tmp_path), task, RNG.normal(size=(5, 2)))


def test_members_are_averaged_and_stretched(tmp_path):
    priors = [make_prior(seed=seed, scales=THREE_SCALES) for seed in range(3)]
    task = as_regressor(*priors, weights=[0.2, 0.5, 0.3], spread=1.3).update(
        RNG.normal(size=(4, 1)), RNG.normal(size=4)
    )
    assert_same_readings(export(task, tmp_path), task, RNG.normal(size=(6, 1)))


@pytest.mark.parametrize("input_dim", [1, 8])  # with many inputs all share a length scale
def test_contexts_of_any_size_and_other_tasks(tmp_path, input_dim):
    prior = as_regressor(make_prior(CURVE, input_dim, scales=THREE_SCALES))
    module = export(prior, tmp_path)
    for n in (0, 1, 80):
        x, y = RNG.normal(size=(n, input_dim)), RNG.normal(size=n)
        assert_same_readings(module, prior, x)
        other, expected = module.adapt(x, y), prior.update(x, y)
        queries = RNG.normal(size=(3, input_dim))
        np.testing.assert_allclose(other.predict(queries, return_std=True), expected.predict(queries, return_std=True))
        more = module.adapt(x[:1], y[:1]).update(x[1:], y[1:])
        np.testing.assert_allclose(more.predict(queries), other.predict(queries), rtol=1e-10)


@pytest.mark.parametrize("n_classes", [2, 3, 5, 12])
@pytest.mark.parametrize("ruled", [False, True])
@pytest.mark.parametrize("calibration", [{}, {"factor": 1.7, "ratio": 0.4, "shrink": 0.6}, {"ratio": 0.0}])
def test_labels(tmp_path, n_classes, ruled, calibration):
    names = np.array([f"class {i:02}" for i in range(n_classes)])
    n_rules = (1 if n_classes == 2 else n_classes) * ruled
    rules = ClassRules(names if ruled else None, fixed=ruled)
    priors = [
        make_label_prior(
            n_rules, (*SMOOTH, *make_terms("environment")[1:]) if ruled else SMOOTH, 2, seed, **calibration
        )
        for seed in (0, 1)
    ]
    x, y = RNG.normal(size=(3 * n_classes, 2)), names[np.arange(3 * n_classes) % n_classes]
    prior = as_classifier(*priors, rules=rules)
    task = prior.update(x, y)
    module = export(task, tmp_path)
    assert names.tolist() == module.CLASSES
    queries = np.concatenate([RNG.normal(size=(6, 2)), [[30.0, -40.0], [400.0, 0.0]]])  # far ones too
    np.testing.assert_allclose(module.predict_proba(queries), task.predict_proba(queries), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(
        module.predict_log_proba(queries), task.predict_log_proba(queries), rtol=1e-9, atol=1e-12
    )
    assert module.predict(queries).tolist() == task.predict(queries).tolist()
    other, codes = module.adapt(x[:4], y[:4]), module.CLASSES
    expected = as_classifier(*priors, rules=ClassRules(names, names, fixed=ruled)).update(x[:4], y[:4])
    np.testing.assert_allclose(other.predict_proba(queries), expected.predict_proba(queries), atol=1e-10)
    assert other.classes_ == codes
    if ruled:
        with pytest.raises(ValueError, match="classes must be those of the fit"):
            module.adapt(x[:1], ["a"], classes=list("abcdefg"))


def make_task(n=8):
    x = pd.DataFrame({"hours": RNG.uniform(0, 5, n), "dose": RNG.uniform(0, 1, n)})
    return x, 20.0 + np.sin(x["hours"].to_numpy()) + 0.1 * RNG.normal(size=n)


@pytest.fixture(scope="module")
def meta():
    return MetaGPRegressor(random_state=0).fit([make_task() for _ in range(6)], [make_task() for _ in range(4)])


def test_a_fitted_prior_without_anything_but_numpy(meta, tmp_path):
    """In a process of its own, where neither metaprior nor what it is built on can be imported."""
    task, (x, _) = meta.adapt(*make_task()), make_task(5)
    task.export(tmp_path / "patient.py")
    code = ONLY_NUMPY + (
        "X = json.loads(sys.argv[2]); mean, std = patient.predict(X, return_std=True)\n"
        "lower, upper = patient.interval(X, coverage=0.9)\n"
        "print(json.dumps([list(each) for each in (mean, std, lower, upper)]))\n"
        "assert not {'metaprior', 'scipy', 'sklearn', 'pandas', 'jax'} & {name.split('.')[0] for name in sys.modules}\n"
    )
    arguments = [sys.executable, "-I", "-c", code, str(tmp_path), json.dumps(x.to_numpy().tolist())]
    said = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    mean, std = task.predict(x, return_std=True)
    np.testing.assert_allclose(json.loads(said), [mean, std, *task.interval(x)], rtol=1e-10)


def test_columns_and_ranges_are_known(meta, tmp_path):
    task, (x, _) = meta.adapt(*make_task()), make_task(5)
    module = export(task, tmp_path)
    np.testing.assert_allclose(module.predict(x[["dose", "hours"]]), task.predict(x), rtol=1e-10)
    far = [[2.0, 0.5], [200.0, 0.5]]
    assert module.extrapolates(far).tolist() == task.extrapolates(far).tolist() == [False, True]
    with pytest.warns(UserWarning, match="Predictions extrapolate at 1 of 2 inputs"):
        module.predict(far)
    for bad, said in (([[1.0]], r"X must have shape \(n, 2\); got \(1, 1\)"), ([[1.0, np.nan]], "X must be finite")):
        with pytest.raises(ValueError, match=said):
            module.predict(bad)
    with pytest.raises(ValueError, match="y must be 1 finite numbers"):
        module.adapt([[1.0, 1.0]], [1.0, 2.0])


def test_equal_tasks_make_equal_files_that_execute_nothing(meta, tmp_path):
    context = make_task()
    for name in ("one.py", "two.py"):
        (tmp_path / name).unlink(missing_ok=True)
    meta.adapt(*context).export(tmp_path / "one.py")
    meta.adapt(*context).export(tmp_path / "two.py")
    one = (tmp_path / "one.py").read_text()
    assert one.replace("one", "two") == (tmp_path / "two.py").read_text().replace("one", "two")
    assert "eval(" not in one
    assert "pickle" not in one
    assert "metaprior" not in one.split('"""', 2)[2]  # but for the first lines
    compile(one, "one.py", "exec")


def test_awkward_names_of_columns_and_classes_are_text(tmp_path):
    names = ['"""; import os', "a\\n'b"]
    tasks = [(pd.DataFrame(RNG.normal(size=(8, 2)), columns=names), np.array(['q"', "'\n"])[np.arange(8) % 2])] * 4
    task = MetaGPClassifier(0.0, random_state=0).fit(target_tasks=tasks).adapt(*tasks[0])
    module = export(task, tmp_path)
    assert names == module.COLUMNS
    assert task.classes_.tolist() == module.CLASSES
    np.testing.assert_allclose(module.predict_proba(tasks[0][0]), task.predict_proba(tasks[0][0]), atol=1e-10)


def test_what_cannot_be_exported_is_refused(meta, tmp_path):
    task = meta.adapt(*make_task())
    for name in ("patient", "patient.json", "7.py", "a b.py"):
        with pytest.raises(ValueError, match=r"path must be that of a Python module, such as 'patient\.py'"):
            task.export(tmp_path / name)
    settings = {"alpha": 0.0, "kernel": "rbf", "mean": "linear", "training": Training(n_steps=0), "random_state": 0}
    trained = WFEMRegressor(**settings).fit(target_tasks=[make_task()])
    with pytest.raises(ValueError, match="Priors trained by gradients cannot be exported"):
        trained.adapt(*make_task()).export(tmp_path / "patient.py")
    assert not list(tmp_path.iterdir())


def test_functions_in_place_of_scipys():
    z = np.array([-1e10, -1e3, -40.0, -35.0, -34.9, -5.0, 0.0, 5.0, 40.0, 700.0])
    for name in ("log_ndtr", "ndtr", "expit", "log_expit"):
        found, expected = getattr(exported, name)(z), getattr(special, name)(z)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15, err_msg=name)
    p = np.array([0.0, 1e-300, 1e-9, 0.3, 0.5, 0.99, 1.0])
    np.testing.assert_allclose(exported.ndtri(p), special.ndtri(p), rtol=1e-12)
    assert exported.ndtri(0.3) == pytest.approx(special.ndtri(0.3))


@pytest.mark.parametrize("n", [1, 5, 80])  # from 64 on, LAPACK takes one matrix at a time
def test_inverses_in_place_of_lapacks(n):
    root = RNG.normal(size=(2, 3, n, n)) / np.sqrt(n)
    matrices = root @ root.mT + 0.1 * np.eye(n)
    found, expected = matrices.copy(), matrices.copy()
    exported.invert_roots(found)
    linalg.invert_roots(expected)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found @ matrices @ found.mT, np.broadcast_to(np.eye(n), found.shape), atol=1e-8)
    for name in ("triangular_inverses", "positive_inverses"):
        given = np.linalg.cholesky(matrices) if name.startswith("tri") else matrices
        ours, peer = (getattr(module, name)(given) for module in (exported, linalg))
        np.testing.assert_allclose(ours, peer, rtol=1e-8, atol=1e-10)


def test_the_file_has_the_functions_that_the_library_tests(tmp_path):
    """Quantiles, and probabilities far in the tails, from the text of the modules with NumPy's functions."""
    readings = export(as_regressor(make_prior()).update(RNG.normal(size=(3, 1)), RNG.normal(size=3)), tmp_path, "one")
    means = np.array([[0.0, 1.0, 100.0], [0.0, 2.0, -100.0], [1e-9, 50.0, 0.0]])
    stds, weights = np.array([[1.0, 0.1, 1e-3], [2.0, 0.1, 1e-3], [1e-6, 3.0, 5.0]]), np.array([0.32, 0.57, 0.11])
    mixture = GaussianMixture(means, stds**2, np.log(weights))
    for level in (1e-9, 0.05, 0.3, 0.5, 0.7, 0.95, 1 - 1e-9):
        found = readings.normal_quantile(means, stds, np.repeat(weights[:, None], 3, axis=1), level)
        np.testing.assert_allclose(found, mixture.quantile(level), rtol=1e-10, atol=1e-12)
    rules = ClassRules(np.array(["a", "b"]), fixed=True)
    labels = export(as_classifier(make_label_prior(1), rules=rules).update(np.zeros((1, 1)), ["a"]), tmp_path, "two")
    mean, variance = np.meshgrid([-900.0, -80.0, -5.0, 0.0, 3.0, 700.0], [0.0, 1e-8, 1.0, 3.2, 50.0, 1e6])
    found = labels.log_logistic(mean.ravel(), variance.ravel())
    np.testing.assert_allclose(found, log_logistic(mean.ravel(), variance.ravel()), rtol=1e-10)
    mean, root = 30.0 * RNG.normal(size=(20, 4)), 10.0 * RNG.normal(size=(20, 4, 4))
    for covariance in (None, root @ root.mT):
        found = labels.log_probabilities(mean, covariance)
        np.testing.assert_allclose(found, log_probabilities(mean, covariance), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("environment", [False, True])
def test_another_kernel_of_the_deviations_from_fit_to_file(tmp_path, monkeypatch, environment):
    """What a kernel costs: a class. Its prior is fitted, predicts, and is saved, loaded and exported."""
    terms = {name: make_terms(*(each.name for each in of), kernel="matern32") for name, of in families.TERMS.items()}
    monkeypatch.setattr(families, "TERMS", {name: each[1:] for name, each in terms.items()})
    tasks = [make_task() for _ in range(6)]
    source = {"source_tasks": [make_task() for _ in range(4)]} if environment else {}
    meta = MetaGPRegressor(0.5 if environment else 0.0, random_state=0).fit(target_tasks=tasks, **source)
    kernels = {
        each.kernel for prior in meta.model_.members for each in prior.terms.layout.terms if hasattr(each, "kernel")
    }
    assert kernels == {"matern32"}
    meta.save(tmp_path / "prior.safetensors")
    (x, y), (queries, _) = make_task(), make_task(20)
    task = meta.adapt(x, y)
    assert_same_readings(export(task, tmp_path), task, queries)
    again = load(tmp_path / "prior.safetensors").adapt(x, y)
    found, expected = (each.predict(queries, return_std=True) for each in (again, task))
    np.testing.assert_array_equal(found, expected)
