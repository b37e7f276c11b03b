"""What a fitted prior knows of its tasks: names and ranges of inputs, and whether it is scored on them."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from metaprior import ExtrapolationWarning, InvalidFile, MetaGPRegressor, SeenTasksWarning, StoredTasks, load
from metaprior.estimators import environments as seen_tasks
from metaprior.files import read_tensors, write_tensors
from metaprior.plots import plot_prior_samples

RNG = np.random.default_rng(0)


def make_task(n=6):
    week, price = RNG.integers(0, 52, n).astype(float), RNG.uniform(1, 9, n)
    y = 20 + 0.1 * week - price + RNG.normal(0, 1) + RNG.normal(0, 0.1, n)
    return pd.DataFrame({"week": week, "price": price}), pd.Series(y)


def split(tasks, n=3):
    return [(x[:n], y[:n], x[n:], y[n:]) for x, y in tasks]


def assert_same(one, other):
    assert all(one.values[digest].tolist() == values.tolist() for digest, values in other.values.items())
    for name in ("lower", "upper", "digests"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


SOURCE, TARGET = ([make_task(20) for _ in range(n)] for n in (6, 4))
NEW = [make_task() for _ in range(5)]
QUERY = pd.DataFrame({"week": [10.0, 20.0, 30.0], "price": [3.0, 4.0, 5.0]})
SWAPPED = QUERY[["price", "week"]]


@pytest.fixture(scope="module")
def meta():
    return MetaGPRegressor(alpha=0.3, random_state=0).fit(SOURCE, TARGET)


@pytest.fixture(scope="module", params=["fitted", "loaded"])
def prior(request, meta, tmp_path_factory):
    if request.param == "fitted":
        return meta
    path = tmp_path_factory.mktemp("prior") / "prior.safetensors"
    meta.save(path)
    return load(path)


@pytest.fixture
def strict():
    """Make every warning an error, those that other tests ignore too."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)  # of old libraries: `make test-floors`
        yield


def test_a_prior_knows_its_tasks_in_any_order_of_their_readings(prior):
    backwards = [(x[::-1], y[::-1]) for x, y in SOURCE]
    swapped = [(x[["price", "week"]], y) for x, y in TARGET]
    assert prior.fitted_on([*SOURCE, *TARGET, *backwards, *swapped]).all()
    assert not prior.fitted_on([*NEW, (SOURCE[0][0][:3], SOURCE[0][1][:3])]).any()
    assert prior.fitted_on([]).shape == (0,)


def test_only_whole_tasks_are_recognized(prior):
    x, y = SOURCE[0]
    assert not prior.fitted_on([(x[:15], y[:15]), (x, y + 1e-7), (x.astype(np.float32), y)]).any()


def test_evaluation_on_training_tasks_warns(prior):
    for tasks in (split(TARGET), [(x[:2], y[:2], x, y) for x, y in SOURCE]):
        with pytest.warns(SeenTasksWarning, match=rf"^{len(tasks)} of {len(tasks)} test tasks .* is test_tasks\[0\]"):
            prior.evaluate(tasks)
    with pytest.warns(SeenTasksWarning, match=r"^1 of 3 test tasks .* is test_tasks\[2\]"):
        prior.score(split([*NEW[:2], TARGET[1]]))


@pytest.mark.usefixtures("strict")
def test_evaluation_on_new_tasks_is_quiet(prior):
    prior.evaluate(split(NEW))


def test_evaluation_outside_the_range_warns_once_and_counts_tasks(prior):
    far = [(x, y, x_new.assign(week=500.0), y_new) for x, y, x_new, y_new in split(NEW)]
    for call in (prior.evaluate, prior.score):
        with pytest.warns(ExtrapolationWarning, match="at 6 of 15 inputs, in 2 of 5 tasks: 'week' is 500") as caught:
            call([*far[:2], *split(NEW[2:])])
        assert len(caught) == 1


def test_environments_without_effect_are_not_known():
    target_only = MetaGPRegressor(alpha=0.0, random_state=0).fit([(x * 2.0, y) for x, y in SOURCE], TARGET)
    assert target_only.fitted_on(TARGET).all()
    assert not target_only.fitted_on([(x * 2.0, y) for x, y in SOURCE]).any()
    every = np.concatenate([x for x, _ in TARGET])
    np.testing.assert_array_equal(target_only.feature_range_, [every.min(axis=0), every.max(axis=0)])


def test_stored_tasks_are_known_as_tasks_in_memory_are(meta):
    offsets = np.cumsum([0, *(len(y) for _, y in SOURCE)])
    x, y = (np.concatenate([np.asarray(task[part]) for task in SOURCE]) for part in (0, 1))
    stored = StoredTasks.from_arrays(x, y, offsets)
    in_memory, streamed = (seen_tasks.remember(tasks, 2) for tasks in (list(stored), stored))
    assert_same(in_memory, streamed)
    assert meta.fitted_on(stored).all()
    labels = stored.encoded(np.array([[y[start], np.inf] for start in offsets[:-1]]))  # 1 above the first reading
    np.testing.assert_array_equal(seen_tasks.remember(labels, 2).digests, seen_tasks.remember(list(labels), 2).digests)


def test_blocks_change_nothing(meta, monkeypatch):
    tasks = meta._check_tasks([*SOURCE, *TARGET[:3]], "tasks", meta.features_)
    whole = seen_tasks.remember(tasks, 2)
    monkeypatch.setattr(seen_tasks, "BLOCK_TASKS", 2)
    assert_same(whole, seen_tasks.remember(tasks, 2))


def test_a_prior_with_too_many_tasks_says_so(meta, monkeypatch):
    monkeypatch.setattr(seen_tasks, "MAX_DIGESTS", 10)
    with pytest.warns(SeenTasksWarning, match="^At least 4 of 4 test tasks"):
        meta.evaluate(split(TARGET))
    with pytest.warns(UserWarning, match="^This prior recognizes 10 of the tasks of its fit; fitted_on answers False"):
        meta.fitted_on(TARGET)
    with pytest.warns(UserWarning, match="^This prior recognizes 10 of the tasks of its fit; fitted_on answers False"):
        meta.fitted_on(TARGET)


def test_names_are_kept_and_checked_wherever_x_enters(prior):
    assert prior.feature_names_in_.tolist() == ["week", "price"]
    (x, y), (other_x, other_y) = NEW[:2]
    x_swapped = x[["price", "week"]]
    task = prior.adapt(x, y)
    expected = task.predict(QUERY)
    assert task.predict(QUERY.to_numpy()).tolist() == expected.tolist()
    swapped = prior.adapt(x_swapped, y)
    for found in (
        task.predict(SWAPPED),
        swapped.predict(SWAPPED),
        prior.adapt_many([(x_swapped, y)]).predict([SWAPPED])[0],
        prior.adapt_many([(x, y)]).predict(SWAPPED)[0],
        prior.predict_many([(x_swapped, y, SWAPPED)])[0],
        swapped.predictive(SWAPPED).mean(),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_array_equal(task.log_density(SWAPPED, [1.0, 2.0, 3.0]), task.log_density(QUERY, [1.0, 2.0, 3.0]))
    test = (x, y, other_x, other_y)
    same = prior.evaluate([(x_swapped, y, other_x[["price", "week"]], other_y)])
    assert same.rmse == prior.evaluate([test]).rmse


@pytest.mark.parametrize(
    "call",
    [
        lambda meta, bad: meta.adapt(bad, [1.0] * 3),
        lambda meta, bad: meta.adapt_many([(bad, [1.0] * 3)]),
        lambda meta, bad: meta.predict_many([(QUERY, [1.0] * 3, bad)]),
        lambda meta, bad: meta.evaluate([(QUERY, [1.0] * 3, bad, [1.0] * 3)]),
        lambda meta, bad: meta.fitted_on([(bad, [1.0] * 3)]),
        lambda meta, bad: meta.adapt([], []).predict(bad),
        lambda meta, bad: meta.adapt([], []).extrapolates(bad),
        lambda meta, bad: meta.adapt_many([([], [])]).interval(bad),
        lambda meta, bad: MetaGPRegressor().fit(SOURCE, [(bad, [1.0] * 3)]),
    ],
)
def test_other_names_are_refused_wherever_x_enters(meta, call):
    with pytest.raises(ValueError, match=r"Unseen at fit time: 'day'\. Seen at fit time, yet now missing: 'week'"):
        call(meta, QUERY.rename(columns={"week": "day"}))


def test_a_prior_of_arrays_has_no_names_and_takes_data_frames():
    tasks = [(x.to_numpy(), y.to_numpy()) for x, y in TARGET]
    meta = MetaGPRegressor(random_state=0).fit(target_tasks=TARGET).fit(target_tasks=tasks)
    assert not hasattr(meta, "feature_names_in_")
    meta.adapt(*NEW[0]).predict(QUERY.rename(columns={"week": "day"}))


def test_inputs_outside_the_range_are_told(prior):
    x, y = NEW[0]
    task, tasks = prior.adapt(x, y), prior.adapt_many([(x, y), ([], [])])
    far = QUERY.assign(week=[10.0, 500.0, 50.0])
    assert task.extrapolates(far).tolist() == [False, True, False]
    assert [marks.tolist() for marks in tasks.extrapolates([far, QUERY])] == [[False, True, False], [False] * 3]
    assert tasks[1].extrapolates(far[["price", "week"]]).tolist() == [False, True, False]
    assert task.extrapolates(QUERY[:0]).tolist() == []
    every = np.concatenate([x for x, _ in (*SOURCE, *TARGET)])
    np.testing.assert_array_equal(prior.feature_range_, [every.min(axis=0), every.max(axis=0)])


@pytest.mark.parametrize(
    "call",
    [
        lambda task, far: task.predict(far),
        lambda task, far: task.predict(far, return_std=True),
        lambda task, far: task.predict(far, return_cov=True),
        lambda task, far: task.interval(far),
        lambda task, far: task.sample(far, random_state=0),
        lambda task, far: task.log_density(far, [0.0, 1.0, 2.0]),
        lambda task, far: task.predictive(far),
    ],
)
def test_a_prediction_outside_the_range_warns_once(meta, call):
    with pytest.warns(ExtrapolationWarning, match="at 1 of 3 inputs: 'week' is 500 and was [0-9]+ to [0-9]+") as caught:
        call(meta.adapt(*NEW[0]), QUERY.assign(week=[10.0, 500.0, 20.0]))
    assert len(caught) == 1


def test_many_tasks_warn_once(meta):
    far = QUERY.assign(week=500.0)
    for call in (
        lambda: meta.adapt_many(NEW).predict([far] * len(NEW)),
        lambda: meta.predict_many([(x, y, far) for x, y in NEW]),
    ):
        with pytest.warns(ExtrapolationWarning, match="at 15 of 15 inputs") as caught:
            call()
        assert len(caught) == 1


@pytest.mark.usefixtures("strict")
def test_predictions_inside_the_range_and_plots_are_quiet(meta):
    meta.adapt(*NEW[0]).predict(QUERY)
    meta.adapt_many(NEW).interval(QUERY)
    plot_prior_samples(meta, n_samples=1)


def test_a_file_recognizes_only_tasks_that_cannot_be_guessed(tmp_path):
    short = [make_task(5) for _ in range(8)]  # 40 readings, 5.3 bits each
    counts = [(x, np.round(np.exp(y / 10))) for x, y in (make_task(60) for _ in range(6))]  # few values
    same = [(x, y * 0 + i) for i, (x, y) in enumerate(make_task(60) for _ in range(6))]
    meta = MetaGPRegressor(alpha=0.3, random_state=0).fit([*short, *counts, *same], SOURCE)
    assert meta.fitted_on([*short, *counts, *same, *SOURCE]).all()
    loaded = load(_saved(meta, tmp_path / "prior.safetensors"))
    with pytest.warns(
        UserWarning, match="^This prior recognizes 6 of the 26 tasks of its fit, .* answers False for the others"
    ):
        found = loaded.fitted_on([*short, *counts, *same, *SOURCE])
    assert found.tolist() == [False] * 20 + [True] * 6
    with pytest.warns(SeenTasksWarning, match="^At least 1 of 2"):
        loaded.score(split([short[0], SOURCE[0]]))


def test_what_a_file_recognizes_stays_when_it_is_loaded_and_saved_again(meta, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    meta.save(first)
    load(first).save(second)
    assert first.read_bytes() == second.read_bytes()
    meta.save(second)
    assert first.read_bytes() == second.read_bytes()


def test_of_many_tasks_some_are_recognized_in_bounded_time(meta, tmp_path, monkeypatch):
    calls = []
    slow = seen_tasks.slow_digests
    monkeypatch.setattr(seen_tasks, "slow_digests", lambda quick, salt: calls.append(len(quick)) or slow(quick, salt))
    monkeypatch.setattr(seen_tasks, "MAX_SLOW", 4)
    again = MetaGPRegressor(alpha=0.3, random_state=0).fit(SOURCE, TARGET)
    loaded = load(_saved(again, tmp_path / "prior.safetensors"))
    tests = split([*SOURCE, *TARGET])
    with pytest.warns(SeenTasksWarning, match="^At least 4 of 10"):
        loaded.evaluate(tests)
    with pytest.warns(SeenTasksWarning, match="^At least 4 of 10"):
        loaded.compare(tests)
    monkeypatch.setattr(loaded, "_tasks", replace(loaded._tasks, n_tasks=4))
    with pytest.warns(
        UserWarning, match="^A loaded prior looks for 4 tasks of 10; fitted_on answers False for the others"
    ):
        assert loaded.fitted_on([*SOURCE, *TARGET]).sum() == 4
    assert calls == [4, 4, 0, 0]  # to save, to evaluate, and what is known by then


def test_a_private_file_recognizes_nothing_and_says_so(meta, tmp_path):
    path = tmp_path / "prior.safetensors"
    meta.save(path, private=True)
    private = load(path)
    assert private.private_
    assert not meta.private_
    assert "saved as private: it recognizes none of them" in repr(private)
    with pytest.raises(ValueError, match=r"^This prior was saved with private=True: its file holds nothing that could"):
        private.fitted_on(TARGET)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SeenTasksWarning)
        assert private.evaluate(split(TARGET)).n_tasks == 4
    private.save(path)
    assert load(path).private_
    header, tensors = read_tensors(path)
    assert "recognized" not in header
    assert not [name for name, tensor in tensors.items() if tensor.dtype.kind != "f"]
    (lower, upper), (coarse_lower, coarse_upper) = meta.feature_range_, private.feature_range_
    assert (coarse_lower <= lower).all()
    assert (coarse_upper >= upper).all()
    assert (coarse_upper - coarse_lower <= 1.2 * (upper - lower)).all()
    np.testing.assert_allclose(coarse_lower[1] % 0.5, 0.0)  # prices from 1 to 9
    with pytest.raises(ValueError, match="private must be True or False; got 'yes'"):
        meta.save(path, private="yes")


def _saved(meta, path):
    meta.save(path)
    return path


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"feature_range_": np.zeros((2, 3))}, r"feature_range_ must be float64\[2, 2\]"),
        ({"feature_range_": np.array([[0.0, np.nan], [1.0, 1.0]])}, "feature_range_ must have finite numbers"),
        ({"feature_range_": np.array([[0.0, 2.0], [1.0, 1.0]])}, "feature_range_ must have the smaller values first"),
        ({"task_digests": np.zeros(3)}, r"task_digests must be uint64\[3\], of 4 tasks; the file has float64\[3\]"),
        ({"task_digests": np.zeros((1, 3), np.uint64)}, r"the file has uint64\[1, 3\]"),
        ({"task_digests": np.zeros(2, np.uint64)}, r"the file has uint64\[2\]"),
        (
            {"task_digests": np.array([2, 1, 3], np.uint64)},
            "task_digests must be different numbers, the smallest first",
        ),
        ({}, "task_digests and recognized must both be there, or neither"),
    ],
)
def test_what_a_file_tells_of_the_tasks_is_checked(meta, arrays, said, tmp_path):
    header, tensors = read_tensors(_saved(meta, tmp_path / "prior.safetensors"))
    header["recognized"] = {"tasks": 3, "of": 4, "salt": "0" * 32}
    kept = {name: tensor for name, tensor in tensors.items() if name != "task_digests"}
    for changed, message in ({**kept, **arrays}, said), ({**kept, **arrays, "feature_range_": None}, "nothing"):
        left = {name: tensor for name, tensor in changed.items() if tensor is not None}
        write_tensors(tmp_path / "p", header, left)
        with pytest.raises(InvalidFile, match=message):
            load(tmp_path / "p")


def test_a_file_with_a_salt_of_another_kind_is_refused(meta, tmp_path):
    header, tensors = read_tensors(_saved(meta, tmp_path / "prior.safetensors"))
    write_tensors(tmp_path / "p", {**header, "recognized": {**header["recognized"], "salt": "x" * 32}}, tensors)
    with pytest.raises(InvalidFile, match=r"recognized\.salt must be text matching regex"):
        load(tmp_path / "p")


def test_a_file_with_names_of_other_columns_is_refused(meta, tmp_path):
    header, tensors = read_tensors(_saved(meta, tmp_path / "prior.safetensors"))
    write_tensors(tmp_path / "prior.safetensors", {**header, "feature_names": ["week"]}, tensors)
    with pytest.raises(InvalidFile, match="must have 2 feature_names"):
        load(tmp_path / "prior.safetensors")
