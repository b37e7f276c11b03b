"""Prior files with wrong content and valid checksums: each is refused at once with one sentence, or predicts."""

import json
import math
import subprocess
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from counters import COUNTS, count
from limits import at_most, end_if_it_hangs
from safetensors.numpy import save
from sklearn.exceptions import ConvergenceWarning
from typer.testing import CliRunner

from metaprior import (
    ExtrapolationWarning,
    ImplausibleContextWarning,
    InvalidFile,
    MetaGPClassifier,
    MetaGPRegressor,
    files,
    load,
)
from metaprior.cli import app
from metaprior.wfem import Training, WFEMClassifier

RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, size=(6, 5, 1))
TASKS = [(x, np.sin(x[:, 0]) + shift) for x, shift in zip(X, RNG.normal(size=6), strict=True)]
LABELED = {n: [(x, np.array(["a", "b", "c"])[y.argsort().argsort() * n // 5]) for x, y in TASKS] for n in (2, 3)}
QUERY = np.linspace(-2.0, 2.0, 4)[:, None]
EXPECTED = (ExtrapolationWarning, ImplausibleContextWarning, ConvergenceWarning)  # of a prior with other numbers
pytestmark = [pytest.mark.filterwarnings(f"ignore::{warning.__module__}.{warning.__name__}") for warning in EXPECTED]
EARLIER = Path(__file__).parents[1] / "data" / "jax-0.10-python-3.11.safetensors"


NESTED = {f"nested {depth}": "[" * depth + "]" * depth for depth in (20, 40, 900, 5000)}  # put in as text
HELD_OUT = {"tasks": 3, "context": 5, "overall": {"metaprior": {"rmse": 1.0}, "other": {"nll": 1.0}}}
BIG_NETWORK = {"description": "MLPKernel", "fields": {"hidden_sizes": [10**6] * 60}}
VALUES = [
    *(None, True, False, -1, 0, 1, 2, 10**8, 10**9, 2**63, 10**400, 0.5, -1e-300, 1e300, math.nan, math.inf, -math.inf),
    *("", "auto", "float64", "x" * 10_000, [], {}, [[]], [0.5, 0.5], {"own": "x"}, {"mapping": {"a": 1}}),
    *({"description": "RBFKernel", "fields": {}}, {"description": "eval", "fields": {"x": 1}}, BIG_NETWORK),
    *({"description": "ConvEncoder", "fields": {"channels": [10**6] * 60}}, *NESTED),
]
MAX_SECONDS = 5.0  # of CPU time: a few milliseconds, except for the first file that JAX is needed for
NUMBERS = [math.nan, math.inf, -math.inf, 0.0, -1.0, 1.0, 1e-300, 1e30, -1e30, 1e60, 1e308]
TYPES = ["f2", "f4", "f8", "i1", "i8", "u8", "?"]


def places(value, inside=()):
    """All places in JSON, as paths of keys."""
    yield inside
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*inside, key))


def change_header(rng, header, tensors):
    """Replace, remove or add a value somewhere."""
    found = list(places(header))
    *outer, last = found[rng.integers(1, len(found))]
    parent = header
    for key in outer:
        parent = parent[key]
    action = rng.integers(6)
    if action == 0:
        del parent[last]
    elif action == 1 and isinstance(parent, list):
        parent.append(json.loads(json.dumps(parent[last])))
    elif action == 2 and isinstance(parent[last], int | float):
        parent[last] = parent[last] * 10.0 ** rng.integers(-9, 9)
    else:
        parent[last] = json.loads(json.dumps(VALUES[rng.integers(len(VALUES))]))


def change_numbers(rng, header, tensors):
    """Replace one number of a tensor, or all of them."""
    name = rng.choice(sorted(name for name in tensors if tensors[name].size))
    tensor = np.array(tensors[name])
    with np.errstate(all="ignore"):
        value = np.float64(NUMBERS[rng.integers(len(NUMBERS))]).astype(tensor.dtype)
    if rng.random() < 0.5:
        tensor[...] = value
    else:
        tensor.flat[rng.integers(tensor.size)] = value
    tensors[name] = tensor


def change_shape(rng, header, tensors):
    name = rng.choice(sorted(tensors))
    tensor = tensors[name]
    shapes = [tensor[None], tensor.ravel(), tensor.T, tensor[..., None], np.concatenate([tensor.ravel()] * 2)]
    shapes += [tensor[:-1], tensor[:0]] if tensor.ndim else [np.zeros((0, 3))]
    tensors[name] = np.ascontiguousarray(shapes[rng.integers(len(shapes))])


def change_type(rng, header, tensors):
    name = rng.choice(sorted(tensors))
    with np.errstate(all="ignore"):
        tensors[name] = tensors[name].astype(TYPES[rng.integers(len(TYPES))])


def change_names(rng, header, tensors):
    """Remove a tensor, swap two, or add one."""
    first, second = rng.choice(sorted(tensors), 2)
    action = rng.integers(3)
    if action == 0:
        del tensors[first]
    elif action == 1:
        tensors[first], tensors[second] = tensors[second], tensors[first]
    else:
        tensors[first.replace("0", "7") + "x"] = tensors[first]


CHANGES = (change_header, change_header, change_numbers, change_shape, change_type, change_names)


def damaged(rng, header, tensors):
    """Return the bytes of a file with one to three changes and a checksum that fits; some are then cut or edited."""
    header, tensors = json.loads(header), dict(tensors)
    for _ in range(rng.choice([1, 1, 2, 3])):
        CHANGES[rng.integers(len(CHANGES))](rng, header, tensors)
    text = json.dumps(header)
    for name, value in NESTED.items():
        text = text.replace(f'"{name}"', value)
    metadata = {"format": "metaprior", "version": str(files.FORMAT_VERSION), "header": text}
    metadata["sha256"] = files._digest(metadata["header"], tensors)
    content = save(tensors, metadata)
    if rng.random() < 0.05:
        content = content[: rng.integers(len(content))]
    elif rng.random() < 0.05:  # an offset, a shape or a type in the outer header
        size = int.from_bytes(content[:8], "little")
        place = 8 + rng.integers(size)
        content = content[:place] + bytes([rng.integers(32, 127)]) + content[place + 1 :]
    return content


def outcome(path, predict):
    """Load a file and predict; return what became of it. Anything unexpected raises."""
    with at_most(MAX_SECONDS):
        meta, refusal = attempt(load, path)
    if refusal is not None:
        custom = "This prior was fitted with a custom" in str(refusal)
        assert custom or (isinstance(refusal, InvalidFile) and str(path) in str(refusal)), refusal
        assert "\n" not in str(refusal)
        return "refused"
    _, refusal = attempt(predict, meta)
    if refusal is not None:  # because of the units that the file claims
        assert "standard deviations from the meta-training" in str(refusal), refusal
        return "loaded, data refused"
    return "loaded, predictions finite"


def attempt(function, argument):
    """Return the result, or the ValueError."""
    try:
        return function(argument), None
    except ValueError as error:
        return None, error


def predict_numbers(meta):
    mean, std = meta.adapt(*TASKS[0]).predict(QUERY, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()


def predict_labels(meta):
    classes = np.array([0, 1]) if meta.classes_ is None else meta.classes_
    probabilities = meta.adapt(TASKS[0][0], classes[[0, 1, 0, 1, 1]]).predict_proba(QUERY)
    assert np.isfinite(probabilities).all()


def attack(path, original, n_files, seed, predict, guard=nullcontext):
    rng = np.random.default_rng(seed)
    kept = load(original)  # as long as a prior is in use, so are its compiled programs
    header, tensors = files.read_tensors(original)
    header = json.dumps(header)
    for i in range(n_files):
        path.write_bytes(damaged(rng, header, tensors))
        try:
            with guard():
                count("files", outcome(path, predict))
        except Exception as error:
            raise AssertionError(f"file {i} of seed {seed}, {path}, after changes to {kept}: {error!r}") from error


@pytest.fixture(scope="module")
def default(tmp_path_factory):
    path = tmp_path_factory.mktemp("default") / "prior"
    MetaGPRegressor(random_state=0).fit(TASKS[:3], TASKS[3:]).save(path)
    return path


def test_files_of_the_default(default, tmp_path):
    attack(tmp_path / "prior", default, 250, 0, predict_numbers)


@pytest.fixture(scope="module")
def default_labels(tmp_path_factory):
    path = tmp_path_factory.mktemp("labels") / "prior"
    MetaGPClassifier(random_state=0).fit(LABELED[3][:3], LABELED[3][3:]).save(path)
    return path


def test_files_of_labels(default_labels, tmp_path):
    attack(tmp_path / "prior", default_labels, 80, 0, predict_labels)


@pytest.mark.parametrize("log_scale", [15.0, 30.0, 50.0])
def test_labels_with_scales_up_to_the_largest_that_a_file_may_have(default_labels, log_scale, tmp_path):
    """Variances of 1e13 to 1e43, of which rounding makes matrices that are not positive definite."""
    header, tensors = files.read_tensors(default_labels)
    thetas = {name: np.full(tensor.shape, log_scale) for name, tensor in tensors.items() if name.endswith("theta")}
    files.write_tensors(tmp_path / "prior", header, {**tensors, **thetas})
    x = np.linspace(-2.0, 2.0, 12)[:, None]
    probabilities = load(tmp_path / "prior").adapt(x, np.tile(["a", "b", "c"], 4)).predict_proba(QUERY)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)


def test_files_of_gradient_training(tmp_path):
    attack(tmp_path / "prior", EARLIER, 60, 0, predict=lambda meta: None)  # predicting would compile


def test_numbers_beyond_single_precision_give_no_warning(tmp_path):
    header, tensors = files.read_tensors(EARLIER)
    assert header["fitted"]["dtype_"] == "float32"
    header["parameters"]["likelihood"]["fields"]["noise_std"] = 1e300
    files.write_tensors(tmp_path / "prior", header, tensors)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attempt(load, tmp_path / "prior")


def test_info_tells_about_a_file_or_refuses_it_in_one_line(default, tmp_path):
    rng, path = np.random.default_rng(4), tmp_path / "prior"
    header, tensors = files.read_tensors(default)
    for i in range(40):
        path.write_bytes(damaged(rng, json.dumps(header), tensors))
        result = CliRunner().invoke(app, ["info", str(path), *(["--json"] if i % 2 else [])])
        assert isinstance(result.exception, SystemExit | None), result.exception
        assert result.exit_code == 0 or (result.exit_code == 2 and len(result.output.splitlines()) == 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "n_files"),
    [("default", 50_000), ("gradient", 20_000), ("labels", 20_000), ("gradient labels", 10_000)],
    ids=lambda value: str(value),
)
def test_100000_files(default, default_labels, kind, n_files, tmp_path):
    """In a process without the type checks of these tests, which would catch mistakes that users meet."""
    trained = tmp_path / "labels"
    originals = {"default": default, "gradient": EARLIER, "labels": default_labels, "gradient labels": trained}
    if kind == "gradient labels":
        meta = WFEMClassifier("rbf", "constant", training=Training(n_steps=0), random_state=0)
        meta.fit(LABELED[2][:3], LABELED[2][3:]).save(trained)
    arguments = [str(tmp_path / "prior"), str(originals[kind]), str(n_files), "1", kind]
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for (_, outcome_of_file), n in json.loads(done.stdout):
        count("files", outcome_of_file, n)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header, _: header.update(n_members=10**8), "n_members must be an integer <= 10000"),
        (lambda header, _: header.update(n_members=10**4), "members must be a list of 10000"),
        (lambda header, _: header.update(input_dim=10**9), r"input columns|feature_names|feature_range_"),
        (lambda header, _: header["fitted"].update(alpha_="a"), "fitted.alpha_ must be a number, got text"),
        (
            lambda header, _: header["report"].update(target="elsewhere"),
            "report must have a target that is one of its names",
        ),
        (lambda header, _: header["report"].pop("weight"), "report lacks weight"),
        (
            lambda header, _: header["training"].update(csv={"sep": 3}),
            "training.csv.sep must be text or null, got an integer",
        ),
        (
            lambda header, _: header["training"].update(held_out=HELD_OUT),
            "training.held_out must have overall the same",
        ),
        (
            lambda header, _: header["parameters"].update(batch_size=10**400),
            "parameters.batch_size must be an integer <= ",
        ),
        (lambda _, tensors: tensors["member0.weights"].fill(np.nan), "weights must have finite numbers"),
        (lambda _, tensors: tensors["member0.scaling.y_std"].fill(-1.0), "y_std must be positive"),
        (
            lambda _, tensors: tensors["member0.scaling.y_mean"].fill(1e160),
            "y_std must have the size that training",
        ),
        (lambda _, tensors: tensors["member0.scaling.x_mean"].fill(-1e160), "scaling.x_std must have the size"),
        (lambda _, tensors: tensors["member0.scaling.x_std"].fill(1e-308), "scaling.x_std must have the size"),
        (lambda _, tensors: np.multiply(y := tensors["member0.scaling.y_std"], 1e100, out=y), "must have the size"),
        (lambda header, _: header["training"]["scaling"].update(y_std=1e-60), "must have the size"),
        (lambda _, tensors: tensors["member_weights"].fill(0.9), "member_weights must be positive numbers of sum one"),
        (lambda _, tensors: tensors.pop("member0.theta"), "theta must be float64.*the file has nothing"),
    ],
)
def test_a_refusal_says_what_is_wrong_in_milliseconds(default, change, message, tmp_path):
    header, tensors = files.read_tensors(default)
    tensors = {name: np.array(tensor) for name, tensor in tensors.items()}
    change(header, tensors)
    files.write_tensors(tmp_path / "prior", header, tensors)
    with at_most(0.5), pytest.raises(InvalidFile, match=message):
        load(tmp_path / "prior")


if __name__ == "__main__":
    warnings.simplefilter("error")
    for warning in EXPECTED:
        warnings.simplefilter("ignore", warning)
    path, original, n_files, seed, kind = sys.argv[1:]
    predict = predict_labels if "labels" in kind else predict_numbers
    attack(Path(path), original, int(n_files), int(seed), predict, end_if_it_hangs)
    print(json.dumps(list(COUNTS.items())))
