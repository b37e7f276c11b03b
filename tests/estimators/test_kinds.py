"""What the estimators share, whatever fits the prior: a third one is a class, and what its files hold."""

import subprocess
import sys

import flat_prior
import numpy as np
import pytest
from flat_prior import SPREAD, TASKS, FlatRegressor
from sklearn.base import clone

import metaprior
from metaprior import InvalidFile
from metaprior.files import read_tensors, write_tensors
from metaprior.wfem import Training, WFEMRegressor


@pytest.fixture
def flat(monkeypatch):
    flat_prior.use(monkeypatch.setitem)
    return FlatRegressor().fit(TASKS[:1], TASKS[1:])


def test_an_estimator_records_what_fitted_it(flat):
    assert (flat.alpha_, flat.family_, flat.level_, flat.n_features_in_) == (0.375, "flat", 1.25, 1)
    assert flat.environment_weights_.tolist() == [0.375, 0.625]
    assert flat.parameters_ == FlatRegressor().get_params()
    assert flat.training_["environments"]["source"] == {"tasks": 1, "samples": 2}
    assert flat.training_["particles"] == 1
    np.testing.assert_array_equal(flat.transfer_report().temperature, [1.0, 1.0])
    mean, std = flat.adapt(*TASKS[0]).predict([[0.5]], return_std=True)
    assert (mean.item(), std.item()) == pytest.approx((1.25, SPREAD))


def test_its_parameters_and_those_of_its_fit_are_its_own(flat):
    assert clone(flat).set_params(shift=0.5).fit(TASKS, times=2).level_ == 3.0
    with pytest.raises(ValueError, match=r"shift must be a float; got '1'"):
        flat.set_params(shift="1").fit(TASKS)
    assert flat.level_ == 1.25


@pytest.mark.parametrize("name", ["particles_", "particle_weights_", "particle_interaction", "to_arviz", "loss_trace_"])
def test_what_only_trained_priors_have_is_not_there(flat, name):
    default = metaprior.MetaGPRegressor(alpha=0.0, random_state=0).fit(target_tasks=TASKS)
    assert not any(hasattr(meta, name) for meta in (flat, default))


def test_a_file_names_what_fitted_its_prior(flat, tmp_path):
    path = tmp_path / "flat.prior"
    flat.set_params(shift=0.5).fit(TASKS[:1], TASKS[1:]).save(path)
    assert read_tensors(path)[0]["kind"] == "FlatRegressor"
    loaded = metaprior.load(path)
    assert (type(loaded), loaded.shift, loaded.level_, loaded.model_.spread) == (FlatRegressor, 0.5, 1.75, SPREAD)
    for method in ("predict", "interval"):
        found, expected = (getattr(meta.adapt(*TASKS[0]), method)([[0.5]]) for meta in (loaded, flat))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "OtherRegressor"}, "holds a prior of kind 'OtherRegressor', which this version does not know"),
        ({"kind": ["FlatRegressor"]}, "kind must be text, got a list"),
        ({"spread": 0.0}, "spread must be a number >= 1e-06"),
        ({"spread": "wide"}, "spread must be a number, got text"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(flat, tmp_path, change, message):
    path = tmp_path / "flat.prior"
    flat.save(path)
    header, tensors = read_tensors(path)
    write_tensors(path, {**header, **change}, tensors)
    with pytest.raises(InvalidFile, match=message):
        metaprior.load(path)


def test_files_of_trained_priors_hold_no_more_than_what_all_do(tmp_path):
    path = tmp_path / "rbf.prior"
    meta = WFEMRegressor("rbf", "constant", alpha=0.0, training=Training(n_steps=0), random_state=0)
    meta.fit(target_tasks=TASKS).save(path)
    header = read_tensors(path)[0]
    expected = ["fitted", "input_dim", "kind", "members", "n_members", "parameters", "recognized", "report", "spread"]
    assert (sorted(header), header["members"]) == ([*expected, "training"], [])
    assert sorted(header["fitted"]) == ["alpha_", "best_step_", "dtype_", "family_", "temperature_"]
    wide = meta.model_._replace(spread=np.float64(1.5))
    meta.model_ = wide
    meta.save(path)
    assert metaprior.load(path).model_.spread == 1.5
    assert not any("spread" in name for name in read_tensors(path)[1])


def test_it_imports_neither_jax_nor_what_fits_other_priors():
    program = [sys.executable, flat_prior.__file__]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr
