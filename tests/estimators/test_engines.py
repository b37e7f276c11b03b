"""What the estimators share, whatever fits the prior."""

import subprocess
import sys

import flat_engine
import numpy as np
import pytest
from flat_engine import SPREAD, TASKS

import metaprior
from metaprior import InvalidFile, MetaGPRegressor
from metaprior.estimators import arguments
from metaprior.estimators.prior_header import HEADER
from metaprior.files import read_tensors, write_tensors
from metaprior.wfem import objective, steps


@pytest.fixture
def flat(monkeypatch):
    flat_engine.use(monkeypatch.setitem)
    return MetaGPRegressor().fit(TASKS[:1], TASKS[1:])


def test_names_are_those_of_the_modules_that_training_imports():
    assert set(arguments.TEMPERATURES) == set(objective.TEMPERATURES)
    assert tuple(steps.OPTIMIZERS) == arguments.OPTIMIZERS
    assert tuple(steps.SCHEDULES) == arguments.SCHEDULES


def test_an_estimator_records_what_fitted_it(flat):
    assert (flat.alpha_, flat.family_, flat.dtype_, flat.n_features_in_) == (0.375, "flat", "float64", 1)
    assert flat.environment_weights_.tolist() == [0.375, 0.625]
    assert (flat.parameters_["n_steps"], flat.n_steps) == (0, None)
    assert flat.training_["environments"]["source"] == {"tasks": 1, "samples": 2}
    assert flat.training_["components"] == 1
    np.testing.assert_array_equal(flat.transfer_report().temperature, [1.0, 1.0])
    mean, std = flat.adapt(*TASKS[0]).predict([[0.5]], return_std=True)
    assert (mean.item(), std.item()) == pytest.approx((1.25, SPREAD))


@pytest.mark.parametrize("name", ["particles_", "particle_weights_", "particle_interaction"])
def test_priors_without_particles_say_so(flat, name):
    with pytest.raises(AttributeError, match=r"have no particles\. Fit with kernel='inducing'"):
        _ = getattr(flat, name)()


def test_a_file_names_what_fitted_its_prior(flat, tmp_path):
    path = tmp_path / "flat.prior"
    flat.save(path)
    loaded = metaprior.load(path)
    assert (loaded.engine_, loaded.n_steps, loaded.model_.spread) == ("flat", 0, SPREAD)
    for method in ("predict", "interval"):
        found, expected = (getattr(meta.adapt(*TASKS[0]), method)([[0.5]]) for meta in (loaded, flat))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"engine": "other"}, "holds a prior fitted by 'other', which this version does not know"),
        ({"engine": ["flat"]}, r"engine must be text; got \['flat'\]"),
        ({"spread": 0.0}, r"spread must be a finite number from .*; got 0\.0"),
        ({"spread": "wide"}, "spread must be a finite number from .*; got 'wide'"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(flat, tmp_path, change, message):
    path = tmp_path / "flat.prior"
    flat.save(path)
    header, tensors = read_tensors(path)
    write_tensors(path, {**header, **change}, tensors)
    with pytest.raises(InvalidFile, match=message):
        metaprior.load(path)


def test_files_of_trained_priors_name_no_engine(tmp_path):
    path = tmp_path / "rbf.prior"
    meta = MetaGPRegressor(alpha=0.0, kernel="rbf", mean="constant", inference="map", n_steps=0, random_state=0)
    meta.fit(target_tasks=TASKS).save(path)
    assert sorted(read_tensors(path)[0]) == sorted([*HEADER, "recognized"])
    wide = meta.model_._replace(spread=np.float64(1.5))
    meta.model_ = wide
    meta.save(path)
    assert metaprior.load(path).model_.spread == 1.5
    assert not any("spread" in name for name in read_tensors(path)[1])


def test_a_prior_without_jax_never_imports_it():
    program = [sys.executable, flat_engine.__file__]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr
