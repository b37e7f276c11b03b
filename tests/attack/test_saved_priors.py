"""What can be read off a saved prior: readings of the tasks it was fitted to, sought with nothing but the file.

The attacker knows the columns and the resolution of each (hours, heart rates, ages), how metaprior makes digests, and
for short tasks even guesses right: the file must not confirm it.
"""

import json
from itertools import product

import numpy as np
import pandas as pd
import pytest
from counters import count
from safetensors import safe_open
from typer.testing import CliRunner

from metaprior import MetaGPClassifier, MetaGPRegressor, load
from metaprior.cli import app
from metaprior.estimators import seen_tasks
from metaprior.predict.batches import predict_rows, read_tests
from metaprior.predict.conformal import own_band
from metaprior.tasks.types import TestTask, digest, row_hashes, sum_rows
from metaprior.wfem import Training, WFEMRegressor

ROW_BITS = np.uint64(16)  # files had digests of rows, of 48 bits, with a tag of the task in the others
TRIVIAL = (-1.0, 0.0, 1.0)
EQUAL = 1e-9
NAMES = ("x_mean", "y_mean")


class Stolen:
    """A file of a prior, the tasks it was fitted to, and the grid that their rows lie on."""

    def __init__(self, path, tasks, grid):
        self.path = path
        self.tasks = [(np.asarray(x, float), np.asarray(y, float)) for x, y in tasks]
        self.grid = np.array(grid, float)
        with safe_open(path, framework="numpy") as file:
            self.header = json.loads(file.metadata()["header"])
            self.tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        self.integers = [tensor for tensor in self.tensors.values() if tensor.dtype.kind in "iu"]
        self.rows = np.concatenate([np.column_stack(task) for task in self.tasks])

    def confirms(self, digests):
        """Which digests an array of integers of the file has, whole or without a tag."""
        held = [each for tensor in self.integers for each in (tensor, tensor >> ROW_BITS)]
        return np.isin(digests, np.concatenate(held)) if held else np.zeros(len(digests), bool)

    def guessed_rows(self):
        """Rows of the grid that the file confirms: raw, or rounded as it says."""
        cells = [(0.0, 1.0), *(tuple(tensor) for name, tensor in self.tensors.items() if "grid" in name)]
        found = np.zeros(len(self.grid), bool)
        for origin, step in cells:
            rounded = self.grid if np.ndim(origin) == 0 else np.rint(self.grid / step - origin / step)
            hashes = row_hashes(rounded[:, :-1], rounded[:, -1])
            found |= self.confirms(hashes) | self.confirms(hashes >> ROW_BITS)
            found |= self.confirms(digest(hashes, np.ones(len(hashes), int)))
        return self.grid[found]

    def confirmed_tasks(self):
        """Bits of the tasks that the file confirms to whoever guesses all of their readings."""
        quick = np.concatenate([_quick(x, y) for x, y in self.tasks])
        found = self.confirms(quick)
        if "recognized" in self.header:
            found |= self.confirms(seen_tasks.slow_digests(quick, bytes.fromhex(self.header["recognized"]["salt"])))
        place, counts = np.unique(np.concatenate([np.unique(y) for _, y in self.tasks]), return_counts=True)
        bits = np.log2(counts.sum() / counts)
        return [bits[np.isin(place, y)].sum() for (_, y), known in zip(self.tasks, found, strict=True) if known]

    def numbers(self):
        """All floats of the file, with their names, but for the ranges and levels that are documented."""
        documented = self.tensors.get("feature_range_", np.empty(0)).ravel()
        for name, tensor in self.tensors.items():
            if tensor.dtype.kind == "f" and name != "feature_range_":
                yield name, _others(tensor, [*TRIVIAL, *documented])
        yield (
            "header",
            _others(
                np.array([each for each in _leaves({**self.header, "columns": 0}) if type(each) is float]), TRIVIAL
            ),
        )

    def copied_values(self):
        """Numbers of the file that are values of the training data, as they are or standardized by what it holds."""
        columns, found = list(self.rows.T), []
        prefixes = [name.removesuffix("x_mean") for name in self.tensors if name.endswith("scaling.x_mean")]
        for prefix in {""} | set(prefixes):
            known = columns
            if prefix:
                x_mean, x_std, y_mean, y_std = (
                    np.ravel(self.tensors[f"{prefix}{name}"]) for name in ("x_mean", "x_std", "y_mean", "y_std")
                )
                x = [(column - m) / s for column, m, s in zip(columns, x_mean, x_std, strict=False)]
                known = [*x, (columns[-1] - y_mean[0]) / y_std[0]]
            values = np.unique(np.concatenate(known))
            for name, numbers in self.numbers():
                is_own = name.startswith(prefix.split(".")[0]) if prefix else "points" not in name  # in other units
                if len(numbers) and is_own:
                    place = np.clip(np.searchsorted(values, numbers), 1, len(values) - 1)
                    apart = np.minimum(abs(values[place] - numbers), abs(values[place - 1] - numbers))
                    found += [(name, number) for number in numbers[apart < EQUAL]]
        return found


def _quick(x, y):
    sizes = np.array([len(y)])
    return digest(sum_rows(row_hashes(x, y), sizes), sizes)


def _others(numbers, known):
    """Numbers that are none of the known ones, up to rounding."""
    numbers = np.unique(numbers)
    return numbers[np.abs(numbers[:, None] - np.asarray(known)).min(axis=1) > EQUAL]


def _leaves(value):
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _leaves(each)
    else:
        yield value


def quickstart(folder):
    """The prior of the README."""
    for command in (
        f"example --out {folder}",
        f"fit {folder}/patients.csv --task patient --x hours --y heart_rate --environment hospital --target south "
        f"--out {folder}/prior.safetensors",
    ):
        assert CliRunner().invoke(app, command.split()).exit_code == 0
    table = pd.read_csv(folder / "patients.csv")
    tasks = [(rows[["hours"]], rows["heart_rate"]) for _, rows in table.groupby("patient")]
    return Stolen(folder / "prior.safetensors", tasks, list(product(np.arange(0, 48.5, 0.5), np.arange(40, 160))))


def patients(n, n_readings=10):
    """Patients with age, sex and ward, and heart rates at given hours."""
    rng, hours, tasks = np.random.default_rng(0), np.arange(n_readings) * 4.0, []
    for _ in range(n):
        age, sex, ward = rng.integers(20, 95), rng.integers(0, 2), rng.integers(0, 4)
        rate = 60 + 0.4 * age + 5 * sex + rng.normal(0, 6) - 0.3 * hours + rng.normal(0, 2, n_readings)
        x = np.column_stack([hours, *(np.full(n_readings, float(each)) for each in (age, sex, ward))])
        tasks.append((x, np.round(rate)))
    return tasks


GRID = list(product(np.arange(10) * 4.0, range(20, 95), (0, 1), range(4), range(40, 130)))


def with_covariates(folder):
    """A prior of heart rates that depend on the age, sex and ward of a patient."""
    tasks = patients(60)
    meta = MetaGPRegressor(covariates=[1, 2, 3], categorical=[3], random_state=0, progress=False).fit(
        target_tasks=tasks
    )
    meta.save(folder / "prior.safetensors")
    return Stolen(folder / "prior.safetensors", tasks, GRID)


def of_labels(folder):
    """A prior of labels, whose covariates are inputs like others."""
    tasks = [(x[:, 1:], y > 95) for x, y in patients(24)]
    MetaGPClassifier(random_state=0, progress=False).fit(target_tasks=tasks).save(folder / "prior.safetensors")
    return Stolen(folder / "prior.safetensors", tasks, list(product(range(20, 95), (0, 1), range(4), (0, 1))))


def trained_by_gradients(folder):
    """A prior of networks."""
    tasks = patients(24)
    meta = WFEMRegressor(alpha=0.0, training=Training(n_steps=3), random_state=0).fit(target_tasks=tasks)
    meta.save(folder / "prior.safetensors")
    return Stolen(folder / "prior.safetensors", tasks, GRID)


@pytest.fixture(
    scope="module",
    params=[quickstart, with_covariates, of_labels, pytest.param(trained_by_gradients, marks=pytest.mark.slow)],
)
def stolen(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("stolen"))


def test_no_row_is_confirmed_to_whoever_tries_all_of_the_grid(stolen):
    found = stolen.guessed_rows()
    truth = {tuple(row) for row in stolen.rows.tolist()} & {tuple(row) for row in found.tolist()}
    count("readings sought in saved priors", "recovered", len(truth))
    count("readings sought in saved priors", "not recovered", len(stolen.rows) - len(truth))
    assert len(found) == 0


def test_no_short_task_is_confirmed_to_whoever_guesses_it(stolen):
    assert min(stolen.confirmed_tasks(), default=np.inf) >= 100.0


def test_no_number_of_the_file_is_a_value_of_the_data(stolen):
    assert stolen.copied_values() == []


def test_arrays_of_integers_do_not_grow_with_the_readings(stolen):
    assert sum(map(len, stolen.integers)) <= len(stolen.tasks)


def test_a_private_file_has_no_integers_and_no_name_of_a_table(stolen, tmp_path):
    load(stolen.path).save(tmp_path / "private", private=True)
    assert Stolen(tmp_path / "private", stolen.tasks, stolen.grid).integers == []
    assert b"patients.csv" not in (tmp_path / "private").read_bytes()


def along_rules():
    """Tasks of many different readings that few numbers decide: lines, counters, and one curve at many heights."""
    rng, hours = np.random.default_rng(0), np.arange(20.0)
    lines = [rng.integers(1, 60) * hours + rng.integers(0, 10) for _ in range(12)]
    counters = [rng.integers(20, 60) + 0.5 * np.cumsum(rng.integers(1, 4, 20)) for _ in range(12)]
    curves = [np.round(10 * np.sin(hours), 2) + rng.integers(0, 30) for _ in range(12)]
    return [(hours[:, None], y) for y in [*lines, *counters, *curves]]


def test_no_task_that_follows_a_rule_is_confirmed_to_whoever_knows_the_rule(tmp_path):
    tasks = along_rules()
    noisy = [(x, y + np.random.default_rng(1).normal(0, 1, 20)) for x, y in tasks[:1]]  # 20 numbers to guess
    meta = MetaGPRegressor(alpha=0.5, random_state=0, progress=False).fit(tasks, noisy)
    meta.save(tmp_path / "prior")
    stolen = Stolen(tmp_path / "prior", [*tasks, *noisy], [])
    assert len(stolen.confirmed_tasks()) == 1
    shuffled = [(x[::-1], y[::-1]) for x, y in tasks]  # the order of rows tells nothing
    MetaGPRegressor(alpha=0.5, random_state=0, progress=False).fit(shuffled, noisy).save(tmp_path / "shuffled")
    assert len(Stolen(tmp_path / "shuffled", [*tasks, *noisy], []).confirmed_tasks()) == 1


@pytest.fixture(scope="module")
def with_intervals(tmp_path_factory):
    """A prior of nine patients with conformal intervals, which need a fit without each of them."""
    tasks, path = [(x[:, :2], y) for x, y in patients(9)], tmp_path_factory.mktemp("intervals") / "prior"
    meta = MetaGPRegressor(covariates=[1], conformal=True, random_state=0, progress=False).fit(target_tasks=tasks)
    meta.save(path)
    return meta, Stolen(path, tasks, [])


def averages_of_folds(tensors):
    """Age and sum of the heart rates of each held-out patient: what the averages of a fit without it lack."""
    for i in range(9):
        x, y = (9 * tensors[f"member0.scaling.{n}"] - 8 * tensors[f"fold{i}.member0.scaling.{n}"] for n in NAMES)
        yield round(float(x[1])), round(10 * float(y))


def test_conformal_intervals_tell_averages_of_tasks_and_are_never_private(with_intervals, tmp_path):
    meta, stolen = with_intervals
    assert set(averages_of_folds(stolen.tensors)) == {(round(x[0, 1]), round(y.sum())) for x, y in stolen.tasks}
    with pytest.raises(ValueError, match=r"^private=True cannot hide what conformal intervals need: .*conformal=True"):
        meta.save(tmp_path / "private", private=True)
    assert not (tmp_path / "private").exists()


def test_scores_of_conformal_intervals_do_not_give_back_the_readings(with_intervals):
    """Of a reading that was predicted from nothing, y = median +- score * half-width is an integer."""
    _, stolen = with_intervals
    folds, solved = load(stolen.path).model_.conformal.folds, 0
    for fold, (age, _) in zip(folds, averages_of_folds(stolen.tensors), strict=True):
        x = np.column_stack([np.arange(10) * 4.0, np.full(10, float(age))])
        asked = TestTask(np.empty((0, 2)), np.empty(0), x, np.zeros(10))
        lower, median, upper = predict_rows(*read_tests(fold.model, [asked]), own_band)
        scores = fold.scores[:, None]
        y = np.stack([median + scores * (upper - median), median - scores * (median - lower)])
        solved += int((np.abs(y - np.round(y)) < 1e-6).sum())
    assert solved == 0
