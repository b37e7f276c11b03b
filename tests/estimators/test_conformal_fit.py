"""Priors fitted with conformal intervals: fits without each fold, what is proven, and refusals."""

import math

import numpy as np
import pandas as pd
import pytest

import metaprior
from metaprior import (
    ImplausibleContextWarning,
    MetaGPClassifier,
    MetaGPRegressor,
    open_tasks,
    store_tasks,
)
from metaprior.estimators.fit import calibration_splits, deal
from metaprior.files import InvalidFile, read_tensors, write_tensors
from metaprior.plots import plot_prediction
from metaprior.predict.conformal import equal_folds, least_tasks
from metaprior.tasks.splits import ContextRule, as_context_rule, split_widely
from metaprior.tasks.types import Task

QUERIES = [[-0.5], [0.0], [0.7]]


def draw_tasks(n, seed=0, sizes=(1, 7)):
    rng, tasks = np.random.default_rng(seed), []
    for size in rng.integers(sizes[0], sizes[1], n).tolist():
        x = rng.uniform(-1.0, 1.0, size)
        tasks.append((x[:, None], rng.normal() + x + 0.3 * rng.normal(size=size)))
    return tasks


TASKS = draw_tasks(9)


def fit(tasks, **given):
    return MetaGPRegressor(0.0, conformal=True, random_state=0, progress=False, **given).fit(target_tasks=tasks)


@pytest.fixture(scope="module")
def meta():
    return fit(TASKS)


def band(meta, context=TASKS[0], coverage=0.9):
    return np.array(meta.adapt(*context).interval(QUERIES, coverage, method="conformal"))


def test_the_proven_level_stands_beside_the_nominal_one(meta):
    """1 - 2 alpha + 1 / (K + 1) of folds of one task; of six folds of two tasks as docs/guides/conformal.md says."""
    assert repr(meta).endswith("with conformal intervals (nominal coverage 0.9, proven 0.9 or more)")
    with pytest.warns(UserWarning, match="at most 0.75"):  # nominally 1 - 1/4, so 1 - 2/4 + 1/4
        assert "(nominal coverage 0.75, proven 0.75 or more)" in repr(fit(TASKS[:3]))
    strict = 1 - min((2 + 2 * (0.1 * 13 - 1)) / (12 + 2), 2 * (0.1 * 13 + 6 - 1) / (12 + 6))
    assert f"(nominal coverage 0.9, proven {math.floor(1000 * strict) / 1000} or more)" in repr(fit(draw_tasks(12)))


def test_the_prior_of_a_fold_has_not_seen_its_tasks(meta):
    """Other readings of a task change all priors but that of its own fold, and the scores of its own alone."""
    changed = [(x, y + 5.0) if i == 4 else (x, y) for i, (x, y) in enumerate(TASKS)]
    other = fit(changed)
    pairs = list(zip(meta.model_.conformal.folds, other.model_.conformal.folds, strict=True))
    same = [_same(a.model, b.model) for a, b in pairs]
    assert sum(same) == 1
    own, others = pairs[same.index(True)]
    assert not np.array_equal(own.scores, others.scores)


def _same(first, second):
    members = zip(first.members, second.members, strict=False)
    return len(first.members) == len(second.members) and all(
        np.array_equal(getattr(a.terms, name), getattr(b.terms, name)) and a.scaling.y_std == b.scaling.y_std
        for a, b in members
        for name in ("theta", "weights")
    )


def test_the_same_seed_gives_the_same_bands_and_the_model_itself_is_the_usual_one(meta):
    np.testing.assert_array_equal(band(fit(TASKS)), band(meta))
    usual = MetaGPRegressor(0.0, random_state=0, progress=False).fit(target_tasks=TASKS)
    np.testing.assert_array_equal(usual.adapt(*TASKS[0]).interval(QUERIES), meta.adapt(*TASKS[0]).interval(QUERIES))
    with pytest.raises(ValueError, match=r"fitted without conformal intervals. Fit it again with conformal=True"):
        band(usual)


def test_a_file_with_damaged_conformal_intervals_is_refused(meta, tmp_path):
    path = tmp_path / "prior.safetensors"
    meta.save(path)
    header, tensors = read_tensors(path)
    conformal = header["conformal"]
    damages = {
        "n_tasks must be the sum": ({**conformal, "n_tasks": 12}, {}),
        "folds must be a list of length >= 2": ({**conformal, "folds": []}, {}),
        "fold3.scores must ascend": (conformal, {"fold3.scores": tensors["fold3.scores"] - 1e6}),
        "fold1.scores must be float64": (conformal, {"fold1.scores": np.zeros((2, 2))}),
        r"conformal.context\[0\] has an invalid enum value 'last'": ({**conformal, "context": ["last", None]}, {}),
    }
    for expected, (stored, replaced) in damages.items():
        write_tensors(path, {**header, "conformal": stored}, {**tensors, **replaced})
        with pytest.raises(InvalidFile, match=expected):
            metaprior.load(path)
    write_tensors(path, {**header, "conformal": None}, tensors)  # as in a file without any
    assert metaprior.load(path).model_.conformal is None


def test_an_exported_task_says_that_it_has_no_conformal_intervals(meta, tmp_path):
    with pytest.warns(UserWarning, match="interval of the exported file is the model's own"):
        meta.adapt(*TASKS[0]).export(tmp_path / "task.py")


def test_bad_arguments_are_refused(meta):
    task = meta.adapt(*TASKS[0])
    with pytest.raises(ValueError, match="method must be one of model, conformal; got 'exact'"):
        task.interval(QUERIES, method="exact")
    with pytest.raises(ValueError, match="latent=True asks for the function without noise"):
        task.interval(QUERIES, latent=True, method="conformal")
    with pytest.raises(ValueError, match="conformal must be True or False; got 'yes'"):
        MetaGPRegressor(conformal="yes").fit(target_tasks=TASKS)
    with pytest.raises(TypeError, match="conformal"):
        MetaGPClassifier(conformal=True)


def test_plots_have_these_bands(meta):
    axes = plot_prediction(meta, *TASKS[0], method="conformal")
    wide = np.ptp(axes.collections[0].get_paths()[0].vertices[:, 1])
    assert wide > np.ptp(plot_prediction(meta, *TASKS[0]).collections[0].get_paths()[0].vertices[:, 1])


def test_stored_tasks_are_held_out_too(meta, tmp_path):
    names = np.repeat([f"task {i}" for i in range(9)], [len(y) for _, y in TASKS])
    table = {
        "task": names,
        "x": np.concatenate([x[:, 0] for x, _ in TASKS]),
        "y": np.concatenate([y for _, y in TASKS]),
    }
    pd.DataFrame(table).to_csv(tmp_path / "tasks.csv", index=False)
    store_tasks(tmp_path / "tasks.csv", tmp_path / "target", task="task", x="x", y="y")
    np.testing.assert_allclose(band(fit(open_tasks(tmp_path / "target"))), band(meta), rtol=1e-9)


def test_folds_have_as_many_tasks_and_hardly_any_is_left_over():
    for n in range(2, 301):
        folds = deal(n, np.random.default_rng(n))
        assert len({len(fold) for fold in folds}) == 1
        dealt = np.concatenate(folds)
        assert len(set(dealt.tolist())) == len(dealt) >= max(0.9 * n, n - 5)
        assert len(folds) == n if n <= 10 else 6 <= len(folds) <= 10


def test_advice_counts_tasks_that_are_held_out():
    """Of 19 tasks, 18 are held out, in nine folds of two: 95% needs 20."""
    assert [math.prod(equal_folds(n)) for n in (9, 10, 19, 20, 39, 40)] == [9, 10, 18, 20, 36, 40]
    for n in range(1, 60):
        assert math.prod(equal_folds(least_tasks(n))) >= n
        assert all(math.prod(equal_folds(fewer)) < n for fewer in range(n, least_tasks(n)))


def test_contexts_of_held_out_tasks_are_those_of_the_rule():
    rng = np.random.default_rng(0)
    task = Task(np.arange(40.0)[:, None], np.arange(40.0))
    sizes = [len(split.y_context) for split in split_widely(task, ContextRule(), rng, 5)]
    assert [size // 8 for size in sizes] == [0, 1, 2, 3, 4]  # one in each fifth of the range from 0 to 39
    assert {len(split.y_context) for split in split_widely(task, as_context_rule(7), rng, 5)} == {7}
    first = split_widely(task, as_context_rule("first"), rng, 5)
    assert all(split.y_context.tolist() == list(range(len(split.y_context))) for split in first)
    assert [
        len(split.y_context) for split in split_widely(Task(*(each[:1] for each in task)), ContextRule(), rng, 5)
    ] == [0]
    large = Task(np.zeros((900, 1)), np.zeros(900))
    assert {len(s.y_context) + len(s.y_query) for s in calibration_splits(large, as_context_rule(300), rng)} == {500}


def test_a_prior_certifies_that_it_is_better_than_another(meta):
    tests = [(x[:3], y[:3], x[3:], y[3:]) for x, y in draw_tasks(20, seed=8, sizes=(5, 9))]
    far = MetaGPRegressor(0.0, random_state=0).fit(target_tasks=[(x, 50.0 + 9.0 * y) for x, y in TASKS])
    meta.evaluate(tests)  # without a warning, which readings that are far from the other prior bring
    with pytest.warns(ImplausibleContextWarning, match="of 19 of 20 tasks are far"):
        found = meta.certify(tests, far)
    assert found == (20, 0, 20)
    assert found.lower_bound == pytest.approx(0.05 ** (1 / 20))
    assert meta.certify(tests, meta) == (0, 20, 20)
    with pytest.raises(ValueError, match="other must be a fitted prior of numbers; got int"):
        meta.certify(tests, 3)
    with pytest.raises(ValueError, match="other must be a fitted prior of numbers; got MetaGPRegressor"):
        meta.certify(tests, MetaGPRegressor())
