"""Saved priors predict as before, bit for bit; anything else is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jaxtyping
import numpy as np
import pytest
import tinygp
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from sklearn.base import clone

from metaprior import MetaGPRegressor, files, load
from metaprior.files import InvalidFile
from metaprior.wfem import (
    SVGD,
    Gaussian,
    HyperPrior,
    LinearKernel,
    MLPKernel,
    MLPMean,
    RBFKernel,
    Training,
    WFEMRegressor,
)

RNG = np.random.default_rng(0)
TASKS = [(x, np.sin(x[:, 0])) for x in RNG.normal(size=(3, 4, 1))]
POOLED = {"alpha": "pooled", "temperature": "bayes", "training": Training(n_steps=0), "random_state": 0}
SMALL = {**POOLED, "mean": MLPMean((4,)), "kernel": MLPKernel((4,), n_features=2)}
REFUSED = """
import sys
from metaprior import load
try:
    load(sys.argv[1])
except ValueError as error:
    print(type(error).__name__, [name for name in ("jax", "scipy", "sklearn", "pandas") if name in sys.modules])
"""
FITTED = ["alpha_", "temperature_", "best_step_", "n_features_in_", "environment_weights_", "loss_trace_"]


@pytest.fixture(scope="module")
def trained():
    given = {"alpha": 0.25, "training": Training(n_steps=5), "inference": SVGD(2, length_scale=2.0)}
    meta = WFEMRegressor(**{**SMALL, **given})
    return meta.fit(TASKS[:2], TASKS[2:], validation_tasks=[(*TASKS[0], *TASKS[1])])


@pytest.fixture
def path(trained, tmp_path):
    trained.save(tmp_path / "prior.safetensors")
    return tmp_path / "prior.safetensors"


def own_kernel():
    return 2.0 * tinygp.kernels.Matern32(0.5) + tinygp.kernels.ExpSquared(1.5)


def default_mean(x):
    return 0.5 * x[0]


def assert_predicts_the_same(meta, loaded):
    before, after = (estimator.adapt(*TASKS[0]).predictive(TASKS[1][0]) for estimator in (meta, loaded))
    np.testing.assert_array_equal(before.means, after.means, strict=True)
    np.testing.assert_array_equal(before.variances, after.variances, strict=True)


def assert_the_same_bits(meta, loaded):
    """What predictions are computed from is the same, which takes no time to compile."""
    assert jax.tree.structure(meta.model_) == jax.tree.structure(loaded.model_)
    for before, after in zip(jax.tree.leaves(meta.model_), jax.tree.leaves(loaded.model_), strict=True):
        np.testing.assert_array_equal(before, after, strict=hasattr(before, "dtype"))


def rewrite(path, change):
    """Save the file again with `change(metadata, tensors)` made, and a digest that fits."""
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    change(metadata, tensors)
    if "header" in metadata:
        metadata["sha256"] = files._digest(metadata["header"], tensors)
    save_file(tensors, path, metadata)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"inference": SVGD(n_particles=3)},
        {"likelihood": Gaussian(noise_std=0.2), "training": Training(n_steps=0, dtype="float64")},
        {"kernel": RBFKernel(length_scale=0.5), "mean": "constant", "hyperprior": HyperPrior(std={"scales": 0.5})},
        {
            "kernel": LinearKernel((4,), n_features=2),
            "mean": "zero",
            "hyperprior": HyperPrior(mean={"weights": "initial"}),
        },
        {
            "kernel": MLPKernel((3,), residual=True, learn_output_scale=True),
            "training": Training(n_steps=0, standardize=False),
        },
        {"kernel": "rbf", "mean": "constant", "random_state": np.random.RandomState(1)},
    ],
    ids=["map", "svgd", "float64", "rbf", "linear", "residual", "names"],
)
def test_loaded_prior_has_the_same_bits(arguments, tmp_path):
    meta = WFEMRegressor(**{**SMALL, **arguments}).fit(TASKS)
    meta.save(str(tmp_path / "prior"))
    loaded = load(str(tmp_path / "prior"))
    assert_the_same_bits(meta, loaded)
    expected = {name: value for name, value in meta.get_params().items() if name != "random_state"}
    assert {name: value for name, value in loaded.get_params().items() if name != "random_state"} == expected


@pytest.mark.parametrize(
    ("part", "key", "value", "message"),
    [
        (None, "input_dim", -1, "input_dim must be an integer >= 1"),
        (None, "input_dim", True, "input_dim must be an integer, got true or false"),
        ("fitted", "family_", ["rbf"], "fitted.family_ must be text, got a list"),
        ("fitted", "family_", "mlp", "kernel 'mlp' that its parameters do not have"),
        ("parameters", "inference", "guess", "inference must be"),
        (
            "parameters",
            "training",
            {"description": "Training", "fields": {"schedule": "linear"}},
            "schedule must be one",
        ),
        ("parameters", "training", {"description": "Training", "fields": {"speed": 2.0}}, "speed"),
    ],
)
def test_a_header_that_makes_no_sense_is_refused_with_the_name_of_the_file(part, key, value, message, tmp_path):
    path = tmp_path / "prior"
    WFEMRegressor("rbf", "constant", **POOLED).fit(TASKS).save(path)

    def change(metadata, tensors):
        header = json.loads(metadata["header"])
        (header if part is None else header[part])[key] = value
        metadata["header"] = json.dumps(header)

    rewrite(path, change)
    with pytest.raises(InvalidFile, match=f"{path} is damaged.*{message}"):
        load(path)


def test_parameters_that_a_file_lacks_have_their_defaults(tmp_path):
    path = tmp_path / "prior"
    meta = WFEMRegressor("rbf", "constant", **POOLED).fit(TASKS)
    meta.save(path)

    def change(metadata, tensors):
        header = json.loads(metadata["header"])
        del header["parameters"]["encoder"]
        metadata["header"] = json.dumps(header)

    rewrite(path, change)
    assert_predicts_the_same(meta, load(path))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_own_kernel_and_mean_are_passed_again(dtype, tmp_path):
    arguments = {**POOLED, "training": Training(n_steps=2, dtype=dtype)}
    meta = WFEMRegressor(own_kernel(), default_mean, **arguments).fit(TASKS)
    meta.save(tmp_path / "prior")
    assert_predicts_the_same(meta, load(tmp_path / "prior", kernel=own_kernel(), mean=default_mean))
    with pytest.raises(ValueError, match=r"custom mean, default_mean.* load\(path, mean=\.\.\.\)"):
        load(tmp_path / "prior", kernel=own_kernel())
    with pytest.raises(ValueError, match=r"custom kernel, Sum\(.* load\(path, kernel=\.\.\.\)"):
        load(tmp_path / "prior", mean=default_mean)
    with pytest.raises(ValueError, match="kernel"):
        load(tmp_path / "prior", mean=default_mean, kernel=tinygp.kernels.ExpSquared(1.0))


def test_another_own_kernel_is_refused_although_its_parameters_fit(tmp_path):
    meta = WFEMRegressor(**POOLED, mean="zero", kernel=tinygp.kernels.ExpSquared(1.0)).fit(TASKS)
    meta.save(tmp_path / "prior")
    with pytest.raises(ValueError, match=r"kernel.*ExpSquared.*Matern32"):
        load(tmp_path / "prior", kernel=tinygp.kernels.Matern32(1.0))


@pytest.mark.parametrize("own", [{"kernl": "rbf"}, {"kernel": "rbf"}, {"alpha": 0.5}], ids=str)
def test_load_ignores_no_argument(path, own):
    with pytest.raises((ValueError, TypeError), match=next(iter(own))):
        load(path, **own)


def test_loaded_prior_predicts_the_same_bits(trained, path):
    assert_the_same_bits(trained, load(path))
    assert_predicts_the_same(trained, load(path))


def test_fitted_attributes_travel(trained, path):
    loaded = load(path)
    for name in [*FITTED, "validation_trace_"]:
        before, after = getattr(trained, name), getattr(loaded, name)
        assert type(before) is type(after), name
        np.testing.assert_array_equal(before, after, strict=True)
    assert len(trained.loss_trace_) == 5
    assert len(trained.validation_trace_) == 1
    np.testing.assert_array_equal(loaded.environment_weights_, [0.25, 0.75])


def test_header_is_json_and_holds_no_code(path, tmp_path):
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    header = json.loads(metadata["header"])
    assert (metadata["format"], metadata["version"]) == ("metaprior", "4")
    assert (header["kind"], header["n_members"]) == ("WFEMRegressor", 1)
    assert header["parameters"]["alpha"] == 0.25
    assert header["parameters"]["kernel"]["description"] == "MLPKernel"
    own = WFEMRegressor(own_kernel(), "constant", **POOLED).fit(TASKS)
    own.save(tmp_path / "own")
    with safe_open(tmp_path / "own", framework="numpy") as file:
        assert json.loads(file.metadata()["header"])["parameters"]["kernel"] == {
            "own": "Sum(Product(Constant, Matern32(L1Distance)), ExpSquared(L2Distance))"
        }
    assert b"pickle" not in path.read_bytes()


def test_numpy_numbers_in_arguments_can_be_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # users have no type checks
    kernel = MLPKernel((4,), n_features=2, output_scale=np.float32(0.5))
    numbers = {
        "hyperprior": HyperPrior(std={"weights": np.float32(0.5)}),
        "training": Training(n_steps=np.int64(0)),
        "likelihood": Gaussian(noise_std=np.float32(0.1)),
        "alpha": np.float64(1.0),
    }
    meta = WFEMRegressor(kernel, "constant", **{**POOLED, **numbers}).fit(TASKS)
    meta.save(tmp_path / "prior")
    assert_predicts_the_same(meta, load(tmp_path / "prior"))


def with_header(**changes):
    def change(metadata, tensors):
        metadata["header"] = json.dumps({**json.loads(metadata["header"]), **changes})

    return change


def with_metadata(name, edit):
    def change(metadata, tensors):
        metadata[name] = edit(metadata[name])

    return change


def with_tensor(part, edit):
    def change(metadata, tensors):
        name = next(name for name in sorted(tensors) if part in name)
        edited = edit(tensors.pop(name))
        tensors.update({} if edited is None else {name: edited})

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_metadata("version", lambda _: "5"), "format version '5'; this metaprior reads 4. Update metaprior"),
        (with_metadata("version", lambda _: "2"), "format version '2'; this metaprior reads 4.*save the prior again"),
        (with_metadata("format", lambda _: "other"), "not one written by metaprior"),
        (lambda metadata, _: metadata.clear(), "not one written by metaprior"),
        (with_header(kind="MetaGPRanker"), "MetaGPRanker"),
        (with_metadata("header", lambda header: header[:-5]), "not a file saved by metaprior, or it is damaged"),
        (with_metadata("header", lambda _: "{}"), "damaged"),
        (with_header(parameters={"color": "red"}), "color"),
        (with_header(parameters={"conformal": True}), "conformal"),
        (with_header(kind="MetaGPRegressor"), "does not know"),
        (with_metadata("header", lambda header: header.replace('"MLPKernel"', '"Other"')), "kernel is a 'Other'"),
        (with_tensor("particles", np.float64), r"must be float32\[2, .*the file has float64\[2, "),
        (with_tensor("particles", lambda tensor: tensor[:1]), r"must be float32\[2, .*the file has float32\[1, "),
        (with_tensor("particles", lambda _: None), r"must be float32\[2, .*the file has nothing"),
        (with_tensor("loss_trace_", lambda _: None), "loss_trace_"),
        (with_header(training=None), "training"),
        (with_metadata("header", lambda _: "[" * 100_000), "damaged"),
    ],
    ids=[
        "newer",
        "older",
        "format",
        "foreign",
        "kind",
        "json",
        "empty",
        "parameter",
        "parameter of another",
        "another kind",
        "kernel",
        "dtype",
        "shape",
        "gone",
        "trace",
        "training",
        "nested",
    ],
)
def test_a_file_that_is_not_ours_is_refused(path, change, message):
    rewrite(path, change)
    with pytest.raises(InvalidFile, match=message):
        load(path)


def test_equal_fits_make_equal_files(tmp_path):
    for name, seed in (("one", 0), ("other", 0), ("different", 1)):
        meta = MetaGPRegressor(0.5, random_state=seed).fit(TASKS[:2], TASKS[2:])
        assert meta.training_["seconds"] > 0.0
        meta.training_["seconds"] += seed + len(name)  # as if it had taken longer
        meta.save(tmp_path / name)
    load(tmp_path / "one").save(tmp_path / "loaded")
    content = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert content["one"] == content["other"] == content["loaded"] != content["different"]


def test_a_file_is_refused_before_anything_slow_is_imported(trained, path):
    header, tensors = files.read_tensors(path)
    files.write_tensors(path, {**header, "n_members": -1}, tensors)
    refused = subprocess.run([sys.executable, "-c", REFUSED, str(path)], capture_output=True, text=True, check=True)
    assert refused.stdout.strip() == "InvalidFile []"


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_truncated_file_is_refused(path, keep):
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InvalidFile, match=r"prior\.safetensors is not a file saved by metaprior, or"):
        load(path)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.safetensors"):
        load(tmp_path / "nowhere.safetensors")
    with pytest.raises((OSError, ValueError), match=tmp_path.name):
        load(tmp_path)


@pytest.mark.parametrize("failing", ["replace", "fsync"])
def test_a_failed_save_leaves_the_old_file(trained, path, monkeypatch, failing):
    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    path.write_bytes(b"the old file")
    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fail)
        with pytest.raises(OSError, match="No space left"):
            trained.save(path)
    assert path.read_bytes() == b"the old file"
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda meta: setattr(meta, "model_", meta.model_._replace(spread=1e9)), "loaded: spread must be"),
        (lambda meta: meta.model_.members[0].terms.theta.fill(np.nan), "loaded: theta must have finite numbers"),
        (lambda meta: setattr(meta, "__class__", type("Mine", (MetaGPRegressor,), {})), "hold a prior of kind 'Mine'"),
    ],
)
def test_what_could_not_be_loaded_is_not_written(change, message, tmp_path):
    meta = MetaGPRegressor(random_state=0).fit(target_tasks=TASKS)
    change(meta)
    with pytest.raises(InvalidFile, match=rf"prior is not written.*{message}"):
        meta.save(tmp_path / "prior")
    assert not list(tmp_path.iterdir())


def test_saving_again_replaces_the_file_and_keeps_to_the_umask(trained, path):
    retrained = clone(trained).set_params(training=Training(n_steps=0), random_state=5).fit(TASKS[:2], TASKS[2:])
    retrained.save(path)
    assert_predicts_the_same(retrained, load(path))
    path.with_name("reference").touch()
    assert oct(path.stat().st_mode) == oct(path.with_name("reference").stat().st_mode)


def test_a_loaded_estimator_is_cloned_and_fitted_again(trained, path):
    again = clone(load(path)).fit(TASKS[:2], TASKS[2:], validation_tasks=[(*TASKS[0], *TASKS[1])])
    assert_predicts_the_same(trained, again)
    np.testing.assert_array_equal(trained.loss_trace_, again.loss_trace_)


def test_a_prior_of_another_python_and_jax_predicts_the_same():
    """Saved with JAX 0.10 on Python 3.11; read with whatever runs this."""
    kept = Path(__file__).parents[1] / "data" / "jax-0.10-python-3.11"
    meta, expected = load(kept.with_suffix(".11.safetensors")), json.loads(kept.with_suffix(".11.json").read_text())
    assert meta.training_["versions"]["jax"].startswith("0.10.")
    mean, std = meta.adapt(expected["x_context"], expected["y_context"]).predict(expected["x"], return_std=True)
    np.testing.assert_allclose([mean, std], [expected["mean"], expected["std"]], rtol=1e-9)
