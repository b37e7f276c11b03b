"""Held-out accuracies of scikit-learn's classifiers at the same settings of their hyper-parameters, on many data sets.

There are past runs of other data sets (`source`), problems of one family (`target` for past runs, `new` for those to
tune) and more of the family to choose settings on (`validation`). A problem of the family is a small sample of
scikit-learn's digits: three to six of the ten digits, 60 to 200 rows, and a quarter of the pixels. The others are
scikit-learn's other bundled data sets, and generated ones. Accuracies are those of up to 500 rows that the classifier
was not fitted to.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import qmc
from sklearn import datasets
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

N_SETTINGS = 512  # of the hyper-parameters of a classifier, the same for all data sets
MOST_HELD_OUT = 500  # rows that an accuracy is computed from
N_TASKS = {"target": 3, "new": 30, "validation": 10}
FIRST_SEEDS = {"source": 0, "target": 100, "new": 200, "validation": 1000}


class Range(NamedTuple):
    """A hyper-parameter, with the logarithms to base 10 of its smallest and its largest value."""

    name: str
    lower: float
    upper: float


@dataclass(frozen=True)
class Space:
    """The hyper-parameters of a classifier, all on logarithmic scales."""

    ranges: tuple[Range, ...]
    make: Callable[..., Any]

    def settings(self) -> np.ndarray:
        """Return the settings that are tabulated, Sobol points of the unit cube (settings, hyper-parameters)."""
        return qmc.Sobol(len(self.ranges), seed=0).random(N_SETTINGS)  # type: ignore[call-arg]

    def values(self, setting: np.ndarray) -> dict[str, float]:
        """Return the values of the hyper-parameters at a point of the unit cube."""
        pairs = zip(self.ranges, setting.tolist(), strict=True)
        return {each.name: 10.0 ** (each.lower + at * (each.upper - each.lower)) for each, at in pairs}


def _network(alpha: float, learning_rate: float, width: float, epochs: float) -> MLPClassifier:
    return MLPClassifier(
        (round(width),), alpha=alpha, learning_rate_init=learning_rate, max_iter=round(epochs), random_state=0
    )


SPACES = {
    "svc": Space((Range("C", -2.0, 4.0), Range("gamma", -5.0, 1.0)), SVC),
    "network": Space(
        (
            Range("learning_rate", -4.0, -1.0),
            Range("alpha", -5.0, 1.0),
            Range("width", 0.5, 2.0),
            Range("epochs", 0.5, 2.0),
        ),
        _network,
    ),
}


class DataSet(NamedTuple):
    """Rows that a classifier is fitted to, and others that it is scored on."""

    x: np.ndarray
    y: np.ndarray
    x_held_out: np.ndarray
    y_held_out: np.ndarray


def digits_problem(seed: int) -> DataSet:
    """Draw a problem of the family: some digits, some rows and a quarter of the pixels."""
    rng = np.random.default_rng(seed)
    x, y = (np.asarray(each) for each in datasets.load_digits(return_X_y=True))
    rows = np.isin(y, rng.choice(10, rng.integers(3, 7), replace=False))
    return _split(x[rows][:, rng.permutation(64)[:16]], y[rows], rng)


def other_data_sets() -> dict[str, DataSet]:
    """Return the twenty data sets of past runs."""
    found = {}
    for seed, (name, make) in enumerate(_makers().items(), FIRST_SEEDS["source"]):
        x, y = make(seed)
        found[name] = _split(x, y, np.random.default_rng(seed))
    return found


def _makers() -> dict[str, Callable[[int], Any]]:
    """Return functions of a seed that load or generate X and y."""
    makers: dict[str, Callable[[int], Any]] = {
        "iris": lambda _: datasets.load_iris(return_X_y=True),
        "wine": lambda _: datasets.load_wine(return_X_y=True),
        "breast cancer": lambda _: datasets.load_breast_cancer(return_X_y=True),
        "moons": lambda seed: datasets.make_moons(600, noise=0.3, random_state=seed),
        "circles": lambda seed: datasets.make_circles(600, noise=0.15, factor=0.6, random_state=seed),
        "quantiles": lambda seed: datasets.make_gaussian_quantiles(
            n_samples=600, n_features=5, n_classes=3, random_state=seed
        ),
        "hastie": lambda seed: datasets.make_hastie_10_2(600, random_state=seed),
        "blobs": lambda seed: datasets.make_blobs(600, n_features=8, centers=5, cluster_std=5.0, random_state=seed),
    }
    return makers | {f"generated {i}": _generated for i in range(1, 13)}


def _generated(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    n_informative = int(rng.integers(3, 9))
    return datasets.make_classification(
        600,
        n_features=n_informative + int(rng.integers(2, 25)),
        n_informative=n_informative,
        n_classes=int(rng.integers(2, 5)),
        n_clusters_per_class=2,
        class_sep=float(rng.uniform(0.7, 1.5)),
        flip_y=float(rng.uniform(0.0, 0.1)),
        random_state=seed,
    )


def _split(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> DataSet:
    """Draw 60 to 200 rows, at most two thirds of all, to fit to; others are held out."""
    order, n = rng.permutation(len(y)), min(int(rng.integers(60, 201)), 2 * len(y) // 3)
    fitted, held_out = order[:n], order[n : n + MOST_HELD_OUT]
    return DataSet(x[fitted], y[fitted], x[held_out], y[held_out])


def accuracies(space: Space, data: DataSet) -> np.ndarray:
    """Return the held-out accuracy at every setting."""
    scaler = StandardScaler().fit(data.x)
    x, x_held_out = scaler.transform(data.x), scaler.transform(data.x_held_out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the number of epochs is a hyper-parameter
        classifiers: list[Any] = [space.make(**space.values(setting)).fit(x, data.y) for setting in space.settings()]
    return np.array([classifier.score(x_held_out, data.y_held_out) for classifier in classifiers])


def tabulate(name: str) -> pd.DataFrame:
    """Return a table with a row for every hyper-parameter and every data set, and a column for every setting."""
    space = SPACES[name]
    pairs = zip(space.ranges, space.settings().T, strict=True)
    rows: list[tuple[Any, ...]] = [(name, "setting", each.name, *column) for each, column in pairs]
    rows += [(name, "source", of, *accuracies(space, data)) for of, data in other_data_sets().items()]
    for group, n in N_TASKS.items():
        for i in range(n):
            found = accuracies(space, digits_problem(FIRST_SEEDS[group] + i))
            rows.append((name, group, f"digits {i}", *found))
    return pd.DataFrame(rows, columns=["space", "group", "task", *map(str, range(N_SETTINGS))])


class Scores(NamedTuple):
    """What is tabulated of one space."""

    settings: np.ndarray  # (settings, hyper-parameters), in the unit cube
    groups: Mapping[str, np.ndarray]  # accuracies of "source", "target", "new" and "validation", (tasks, settings)


def read_scores(path: Path, name: str) -> Scores:
    """Read what `tabulate` wrote of a space."""
    table: Any = pd.read_csv(path)
    table = table[table["space"] == name]
    values = {str(group): rows.iloc[:, 3:].to_numpy(float) for group, rows in table.groupby("group")}
    return Scores(values.pop("setting").T, values)
