"""Exported tasks know levels in every spelling that the task knows, and name those that they do not know."""

import numpy as np
import pandas as pd
import pytest

from hand_made_priors import export
from metaprior import ExtrapolationWarning, MetaGPRegressor

SPELLINGS = {
    "numbers": ([1, 2], [[1, 2], [1.0, 2.0], ["1", "2"], [np.int64(1), np.float64(2.0)], [True, "2"]]),
    "text": (["1", "2"], [["1", "2"], [1, 2], [1.0, 2.0]]),
    "bools": ([True, False], [[True, False], ["True", "False"], [1, 0], [np.True_, np.False_]]),
}


def make_tasks(levels, seed=0, hours=True):
    rng = np.random.default_rng(seed)
    tasks = []
    for _ in range(4):
        codes = rng.permutation(np.arange(8) % 2)
        x = pd.DataFrame({"hours": rng.random(8), "ward": pd.Series([levels[i] for i in codes], dtype=object)})
        tasks.append((x if hours else x[["ward"]], 5.0 * codes + rng.normal(size=8)))
    return tasks


@pytest.mark.parametrize("kind", SPELLINGS)
def test_levels_are_found_in_every_spelling(tmp_path, kind):
    levels, spellings = SPELLINGS[kind]
    tasks = make_tasks(levels)
    task = MetaGPRegressor(alpha=0.0, categorical=["ward"], random_state=0).fit(target_tasks=tasks).adapt(*tasks[0])
    module = export(task, tmp_path)
    for cells in spellings:
        x = np.array([[0.5, cells[0]], [0.5, cells[1]]], dtype=object)
        expected = task.predict(x, return_std=True)
        assert abs(expected[0][1] - expected[0][0]) > 1.0  # both were found
        np.testing.assert_allclose(module.predict(x, return_std=True), expected, rtol=1e-10)
        assert not module.task.extrapolates(x).any()


def test_unseen_levels_are_named(tmp_path):
    tasks = make_tasks(["a", "b"])
    task = MetaGPRegressor(alpha=0.0, random_state=0).fit(target_tasks=tasks).adapt(*tasks[0])
    module = export(task, tmp_path)
    x = pd.DataFrame({"ward": ["a", "c", "d", "c"], "hours": 0.5})
    with pytest.warns(UserWarning, match=r"at 3 of 4 inputs\. Levels .* not fitted to: 'ward' is 'c', 'd'\.$"):
        found = module.predict(x)
    with pytest.warns(ExtrapolationWarning, match="'ward' is 'c', 'd'"):
        np.testing.assert_allclose(found, task.predict(x), rtol=1e-10)


def test_a_category_may_be_the_only_column(tmp_path):
    tasks = make_tasks(["a", "b"], hours=False)
    task = MetaGPRegressor(alpha=0.0, random_state=0).fit(target_tasks=tasks).adapt(*tasks[0])
    module = export(task, tmp_path)
    np.testing.assert_allclose(module.predict(["b", "a"]), task.predict([["b"], ["a"]]), rtol=1e-10)
