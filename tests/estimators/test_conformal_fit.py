"""Priors fitted with a conformal: fits without each fold, files, one path for one task and many, and refusals."""

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
    predict_frame,
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


def test_a_band_is_finite_and_made_of_all_tasks(meta):
    conformal = meta.model_.conformal
    assert (conformal.n_tasks, len(conformal.folds), conformal.max_coverage) == (9, 9, 0.9)
    lower, upper = band(meta)
    assert np.isfinite([lower, upper]).all()
    assert (lower < upper).all()
    narrow = band(meta, coverage=0.5)
    assert (lower < narrow[0]).all()
    assert (narrow[1] < upper).all()


def test_the_proven_level_stands_beside_the_nominal_one(meta):
    """1 - 2 alpha + 1 / (K + 1) of folds of one task; of six folds of two tasks the formula of docs/conformal.md."""
    assert repr(meta).endswith("with conformal intervals (nominal coverage 0.9, proven 0.9 or more)")
    with pytest.warns(UserWarning, match="at most 0.75"):  # nominally 1 - 1/4, so 1 - 2/4 + 1/4
        assert "(nominal coverage 0.75, proven 0.75 or more)" in repr(fit(TASKS[:3]))
    strict = 1 - min((2 + 2 * (0.1 * 13 - 1)) / (12 + 2), 2 * (0.1 * 13 + 6 - 1) / (12 + 6))
    assert f"(nominal coverage 0.9, proven {math.floor(1000 * strict) / 1000} or more)" in repr(fit(draw_tasks(12)))


def test_one_task_and_many_have_the_same_bands_whatever_the_sizes_of_the_others(meta):
    contexts = [*draw_tasks(4, seed=5, sizes=(2, 12)), (np.empty((0, 1)), np.empty(0))]
    inputs = [QUERIES, QUERIES[:1], QUERIES, [], QUERIES]
    many = meta.adapt_many(contexts).interval([np.reshape(x, (-1, 1)) for x in inputs], method="conformal")
    for i, context in enumerate(contexts):
        for x, *ends in zip(inputs[i], many[0][i], many[1][i], strict=True):
            np.testing.assert_allclose(meta.adapt(*context).interval([x], method="conformal"), np.c_[ends], rtol=1e-9)
    assert [len(lower) for lower in many[0]] == [3, 1, 3, 0, 3]


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


def test_bands_survive_a_file(meta, tmp_path):
    meta.save(tmp_path / "prior.safetensors")
    loaded = metaprior.load(tmp_path / "prior.safetensors")
    np.testing.assert_array_equal(band(loaded), band(meta))
    assert loaded.model_.conformal.rule == ContextRule()


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


def test_what_is_derived_from_a_task_keeps_its_bands(meta):
    x, y = TASKS[1]
    updated = meta.adapt(x[:1], y[:1]).update(x[1:], y[1:]).interval(QUERIES, method="conformal")
    np.testing.assert_allclose(updated, band(meta, TASKS[1]), rtol=1e-9)
    estimator = meta.to_sklearn().fit(x, y)
    np.testing.assert_allclose(estimator.task_.interval(QUERIES, method="conformal"), band(meta, TASKS[1]), rtol=1e-9)


def test_an_exported_task_says_that_it_has_no_conformal_intervals(meta, tmp_path):
    with pytest.warns(UserWarning, match="interval of the exported file is the model's own"):
        meta.adapt(*TASKS[0]).export(tmp_path / "task.py")


def test_few_tasks_are_told_when_fitting_and_when_asking():
    with pytest.warns(UserWarning, match="conformal=True with 2 tasks of the target environment gives .* most 0.666"):
        few = fit(TASKS[:2])
    with pytest.raises(ValueError, match=r"coverage=0.9 is out of reach: .* 2 held-out .* most 0.666\. .* 9 target"):
        band(few)
    assert np.isfinite(band(few, coverage=0.6)).all()
    with pytest.raises(ValueError, match=r"conformal=True needs tasks of the target environment .* there are 1"):
        fit(TASKS[:1])


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


def test_tables_plots_and_scores_have_these_bands(meta):
    context = pd.DataFrame({"x": TASKS[0][0][:, 0], "y": TASKS[0][1]})
    query = pd.DataFrame({"x": np.ravel(QUERIES)})
    frame = predict_frame(meta, context, query, x="x", y="y", method="conformal")
    np.testing.assert_allclose(frame[["lower", "upper"]].T, band(meta))
    own = predict_frame(meta, context, query, x="x", y="y")
    np.testing.assert_array_equal(frame[["mean", "std"]], own[["mean", "std"]])
    axes = plot_prediction(meta, *TASKS[0], method="conformal")
    wide = np.ptp(axes.collections[0].get_paths()[0].vertices[:, 1])
    assert wide > np.ptp(plot_prediction(meta, *TASKS[0]).collections[0].get_paths()[0].vertices[:, 1])
    tests = [(x[:3], y[:3], x[3:], y[3:]) for x, y in draw_tasks(5, seed=8, sizes=(5, 9))]
    scores = meta.evaluate(tests)
    ends = meta.adapt_many([test[:2] for test in tests]).interval([test[2] for test in tests], method="conformal")
    widths = [np.mean(upper - lower) for lower, upper in zip(*ends, strict=True)]
    np.testing.assert_allclose(scores.per_task.conformal_width, widths)
    assert scores.conformal_coverage >= scores.coverage
    assert "conformal_coverage" not in meta.evaluate(tests, coverage=0.95)
    assert "conformal interval" in repr(scores)


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
