"""Training on a stream of stored tasks is training on all of them."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone

from metaprior import StoredTasks, load
from metaprior.search.averaging import Candidate
from metaprior.storage.stored_tasks import sample_tasks
from metaprior.tasks.scaling import fit_scaling
from metaprior.tasks.types import Task
from metaprior.wfem import SVGD, ConstantMean, RBFKernel, Training, WFEMClassifier, WFEMRegressor, task_sources
from metaprior.wfem import task_sources as stream
from metaprior.wfem.objective import allocate, full_batch, weighted_loss
from metaprior.wfem.runs import Settings, make_run
from metaprior.wfem.task_sources import Feed, make_strata

WEIGHTS = (0.25, 0.0, 0.75)


def draw_tasks(sizes, rng):
    rng = np.random.default_rng(rng)
    return [Task(rng.normal(size=(m, 2)), 3 + rng.normal(size=m)) for m in sizes]


ENVIRONMENTS = [draw_tasks([2, 2, 4, 4, 2, 2, 4, 4], 0), draw_tasks([3], 1), draw_tasks([2, 4, 2, 4], 2)]
STORED = [StoredTasks.from_tasks(tasks, 2) for tasks in ENVIRONMENTS]
SCALING = fit_scaling(ENVIRONMENTS, WEIGHTS)


def make_feed(batch_size=6, seed=0, n_steps=20, **more):
    return Feed(STORED, WEIGHTS, SCALING, batch_size, seed, n_steps, **more)


def of_step(batches, step):
    return jax.tree.map(lambda leaf: leaf[step, 0], batches)


def test_an_epoch_of_mini_batches_averages_to_the_loss_of_all_tasks(x64):
    run = make_run(ENVIRONMENTS, WEIGHTS, SCALING, Settings(ConstantMean(), RBFKernel()), 0)
    theta = jax.tree.map(lambda leaf: leaf[0], run.particles)
    loss = jax.jit(lambda batches: weighted_loss(theta, run.problem.rest, batches))
    with make_feed(dtype=np.float64) as feed:
        assert sorted((s.environment, s.size, len(s.tasks), s.sampled) for s in feed.strata) == [
            (0, 2, 4, 2),
            (0, 4, 4, 1),
            (2, 2, 2, 2),
            (2, 4, 2, 1),
        ]
        batches = feed.chunk(4, 4)  # an epoch of every stratum
        losses = [float(loss(of_step(batches, step))) for step in range(4)]
    assert np.std(losses) > 1e-3
    np.testing.assert_allclose(np.mean(losses), float(loss(full_batch(run.problem))), rtol=1e-12)


def test_every_task_comes_once_an_epoch_in_another_order():
    tasks = StoredTasks.from_arrays(np.arange(10.0), np.arange(10.0), np.arange(11))
    feed = Feed([tasks], [1.0], SCALING._replace(x_mean=0.0, x_std=1.0), 3, 0, 20)
    drawn = feed._indices(0, 0, 20).ravel()
    epochs = drawn.reshape(6, 10)
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs.tolist())
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 6
    np.testing.assert_array_equal(feed._indices(0, 7, 4).ravel(), drawn[21:33])


@pytest.mark.parametrize("prefetch", [True, False])
def test_batches_depend_on_the_step_alone(prefetch):
    with make_feed(prefetch=prefetch) as feed, make_feed(prefetch=False) as other:
        whole = other.chunk(0, 12)
        for first, n in ((0, 4), (4, 4), (8, 4), (3, 5), (8, 2), (10, 2)):
            part = jax.tree.map(lambda leaf, first=first, n=n: leaf[first : first + n], whole)
            for one, two in zip(jax.tree.leaves(feed.chunk(first, n)), jax.tree.leaves(part), strict=True):
                np.testing.assert_array_equal(one, two)
        assert feed.identity == other.identity
    with make_feed(seed=1) as other:
        assert other.identity != feed.identity
        assert not np.array_equal(other.chunk(0, 12)[0].batch.y, whole[0].batch.y)


def test_a_batch_in_double_precision_is_so_from_the_thread_too(x64):
    with make_feed(dtype=np.float64) as feed:
        assert [feed.chunk(first, 2)[0].batch.x.dtype for first in (0, 2)] == [jnp.float64] * 2


def test_what_fails_in_the_thread_is_raised_and_the_thread_ends(monkeypatch):
    gather = StoredTasks.gather
    here = threading.current_thread()
    failing = lambda *given: gather(*given) if threading.current_thread() is here else 1 / 0  # noqa: E731
    monkeypatch.setattr(StoredTasks, "gather", failing)
    with make_feed() as feed:
        feed.chunk(0, 2)
        assert any("metaprior-feed" in thread.name for thread in threading.enumerate())
        with pytest.raises(ZeroDivisionError):
            feed.chunk(2, 2)
    assert not any("metaprior-feed" in thread.name for thread in threading.enumerate())


@pytest.mark.parametrize("rule", ["paper", "effective", "bayes"])
def test_the_temperature_is_that_of_all_tasks_not_of_the_sample(rule, x64):
    settings = Settings(ConstantMean(), RBFKernel(), temperature=rule)
    whole = make_run(ENVIRONMENTS, WEIGHTS, SCALING, settings, 0)
    sample = [tasks[:1] for tasks in ENVIRONMENTS]
    source = task_sources.StreamedTasks(STORED, 6)
    streamed = source.make_run(sample, Candidate(WEIGHTS, settings), SCALING, 0)
    np.testing.assert_allclose(streamed.problem.temperature, whole.problem.temperature, rtol=1e-12)


def test_a_batch_is_split_evenly_among_environments():
    np.testing.assert_array_equal(allocate(np.array([0.5, 0.5]), np.array([10**6, 100]), 256), [156, 100])
    np.testing.assert_array_equal(allocate(np.array([0.5, 0.5]), np.array([10**6, 1000]), 256), [128, 128])
    np.testing.assert_array_equal(allocate(np.array([1.0, 1e-9]), np.array([50, 50]), 20), [19, 1])
    np.testing.assert_array_equal(allocate(np.array([1.0, 1e-9]), np.array([50, 50]), 1), [1, 1])
    for batch_size in (4, 7, 100):
        strata = make_strata(STORED, WEIGHTS, batch_size)
        assert sum(s.sampled for s in strata) == min(batch_size, 12)
        np.testing.assert_allclose(sum(s.sampled * s.weight for s in strata), 1.0, rtol=1e-12)


def test_chunks_are_bounded():
    assert make_feed().chunk_steps == 100
    large = StoredTasks.from_arrays(np.zeros((4, 100_000)), np.zeros(4), np.arange(5))
    scaling = SCALING._replace(x_mean=np.zeros(100_000), x_std=np.ones(100_000))
    assert Feed([large], [1.0], scaling, 4, 0, 10).chunk_steps == 10  # of 15 that fit, what goes into 100


def test_a_sample_is_drawn_from_every_environment():
    some = sample_tasks(STORED, 3, 0)
    assert [len(tasks) for tasks in some] == [3, 1, 3]
    for tasks, every in zip(some, ENVIRONMENTS, strict=True):
        assert all(any(np.array_equal(task.x, other.x) for other in every) for task in tasks)
    assert len(sample_tasks(STORED, 100, 0)[0]) == 8


def test_a_sample_is_random_and_every_task_is_as_likely():
    """Stored tasks may be sorted, so the first of them are not like the others."""
    numbered = [StoredTasks.from_arrays(np.arange(n), np.arange(n), np.arange(n + 1)) for n in (20, 20, 5)]
    drawn = np.zeros(20)
    for seed in range(400):
        samples = [[int(task.y[0]) for task in tasks] for tasks in sample_tasks(numbered, 5, seed)]
        assert all(tasks == sorted(set(tasks)) for tasks in samples)
        assert [len(tasks) for tasks in samples] == [5, 5, 5]
        drawn[samples[0]] += 1
    assert np.abs(drawn - 100).max() < 4 * np.sqrt(400 * 0.25 * 0.75)
    first, second, _ = sample_tasks(numbered, 5, 0)
    assert [task.y[0] for task in first] != [task.y[0] for task in second]  # environments are drawn on their own
    again = sample_tasks(numbered, 5, 0)[0]
    assert [task.y[0] for task in again] == [task.y[0] for task in first]


def sorted_stream():
    """Tasks sorted by their readings and sizes, so that the first are far from the others."""
    tasks = [Task(np.full((n, 1), float(i)), np.arange(n) + 10.0 * i) for i, n in enumerate([1, 1, 2, 5, 5, 9, 9, 9])]
    return tasks, task_sources.StreamedTasks([StoredTasks.from_tasks(tasks, 1)], 4)


def test_a_stream_is_scaled_by_all_tasks_not_by_the_sample():
    tasks, source = sorted_stream()
    settings = Settings(ConstantMean(), RBFKernel())
    expected = fit_scaling([tasks], [1.0])
    for got, wanted in zip(source.scaling((1.0,), settings, [tasks[:2]])[:4], expected[:4], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12)
    plain = source.scaling((1.0,), Settings(ConstantMean(), RBFKernel(), standardize=False), [tasks[:2]])
    assert (plain.x_mean.tolist(), plain.x_std.tolist(), float(plain.y_std)) == ([0.0], [1.0], 1.0)


def test_the_settings_of_a_stream_are_chosen_by_a_random_sample(monkeypatch):
    monkeypatch.setattr(task_sources, "SAMPLE_SIZE", 3)
    _, source = sorted_stream()
    drawn = [[int(task.x[0, 0]) for task in source.sample(seed)[0]] for seed in range(20)]
    assert all(len(sample) == 3 for sample in drawn)
    assert {i for sample in drawn for i in sample} == set(range(8))
    assert source.counts("auto") == [3]  # the ratio of weights is between tasks of the sample
    assert source.counts(0.3) == [8]


def test_the_temperature_of_a_stream_has_its_factor_and_may_be_a_number():
    tasks, source = sorted_stream()
    gammas = []
    for rule, factor in (("bayes", 1.0), ("bayes", 4.0), (7.0, 4.0)):
        settings = Settings(ConstantMean(), RBFKernel(), temperature=rule, temperature_factor=factor)
        run = source.make_run([tasks[:2]], Candidate((1.0,), settings), fit_scaling([tasks], [1.0]), 0)
        gammas.append(float(run.problem.temperature))
    harmonic = 8 / sum(1 / len(task.y) for task in tasks)
    np.testing.assert_allclose(gammas, [8 * harmonic, 4 * 8 * harmonic, 28.0], rtol=1e-6)


def test_the_precision_of_a_stream_follows_its_largest_task(monkeypatch):
    asked = []
    monkeypatch.setattr(task_sources, "training_dtype", lambda tasks, *_: asked.append(len(tasks[0][0].y)) or "float32")
    assert sorted_stream()[1].dtype([(1.0,)], Settings(ConstantMean(), RBFKernel())) == "float32"
    assert asked == [9]


SMALL = {"kernel": "rbf", "mean": "constant", "alpha": 0.25, "temperature": "bayes", "random_state": 3}
SMALL |= {"training": Training(n_steps=300)}
STORES = {"source": STORED[0], "target": STORED[2]}
EVEN = draw_tasks([3] * 8, 5)  # one size compiles once
QUERIES = np.linspace(-1, 1, 8).reshape(4, 2)


def predict(meta):
    return meta.adapt(*ENVIRONMENTS[0][2]).predict(QUERIES, return_std=True)


def test_a_stream_of_all_tasks_in_every_step_is_the_fit_in_memory():
    """Stored tasks beside tasks in memory."""
    arguments = {**SMALL, "training": Training(n_steps=150)}
    whole = WFEMRegressor(**arguments).fit(ENVIRONMENTS[0], ENVIRONMENTS[2])
    streamed = WFEMRegressor(**arguments).fit(STORED[0], ENVIRONMENTS[2])
    np.testing.assert_allclose(streamed.loss_trace_, whole.loss_trace_, atol=1e-4)
    np.testing.assert_allclose(predict(streamed), predict(whole), atol=1e-3)
    np.testing.assert_allclose(streamed.temperature_, whole.temperature_, rtol=1e-5)
    assert streamed.training_["environments"] == whole.training_["environments"]


@pytest.mark.slow  # quicker: an epoch of mini-batches averages to the loss, a stopped stream, a stream of all tasks
def test_a_stream_of_a_few_tasks_a_step_comes_near_the_fit_in_memory():
    whole, streamed = (
        WFEMRegressor(**{**SMALL, "training": Training(1000, 0.02, batch_size=size)}) for size in (None, 6)
    )
    whole.fit(ENVIRONMENTS[0], ENVIRONMENTS[2])
    streamed.fit(STORES, target="target")
    assert np.std(streamed.loss_trace_[-50:]) > 0.01
    np.testing.assert_allclose(predict(streamed), predict(whole), atol=0.1)


class Stopped(Exception):
    pass


def test_a_stopped_stream_goes_on_to_the_same_result(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "CHUNK", 50)
    arguments = {**SMALL, "inference": SVGD(2), "training": Training(n_steps=300, batch_size=6)}
    fit = lambda stores=STORES, **more: WFEMRegressor(**arguments).fit(stores, target="target", **more)  # noqa: E731
    whole = fit()
    path = tmp_path / "checkpoint"
    chunk = Feed.chunk
    asked = []

    def stopping(feed, first, n_steps):
        asked.append(first)
        if len(asked) == 4:
            raise Stopped
        return chunk(feed, first, n_steps)

    monkeypatch.setattr(Feed, "chunk", stopping)
    with pytest.raises(Stopped):
        fit(checkpoint=path)
    assert not any("metaprior-feed" in thread.name for thread in threading.enumerate())
    resumed = fit(checkpoint=path)
    assert asked == [0, 50, 100, 150, 150, 200, 250]
    np.testing.assert_array_equal(resumed.loss_trace_, whole.loss_trace_)
    np.testing.assert_array_equal(predict(resumed), predict(whole))
    moved = [Task(task.x, task.y + 1e-9) for task in ENVIRONMENTS[0]]
    fit({**STORES, "source": StoredTasks.from_tasks(moved, 2)}, checkpoint=path)
    assert asked[7] == 0


def test_alpha_is_chosen_on_a_sample(tmp_path, monkeypatch):
    monkeypatch.setattr(task_sources, "SAMPLE_SIZE", 6)
    arguments = {**SMALL, "alpha": "auto", "training": Training(n_steps=20)}
    even = StoredTasks.from_tasks(EVEN, 2)
    meta = WFEMRegressor(**arguments).fit(even, even[4:])
    assert meta.report_.n_target_tasks == 4
    np.testing.assert_allclose(sorted(meta.alpha_path_.alpha)[-2], 6 / 10)  # r = 1, of six source tasks
    meta.save(tmp_path / "prior")
    loaded = load(tmp_path / "prior")
    np.testing.assert_array_equal(predict(loaded), predict(meta))
    assert (loaded.inference, meta.model_.members[0].n_components) == (meta.inference, 1)


def test_labels_of_a_stream_are_zero_and_one():
    labeled = [[Task(task.x, (task.y > 3).astype(int)) for task in tasks] for tasks in (EVEN, [], EVEN[4:])]
    stored = [StoredTasks.from_tasks(tasks, 2) for tasks in labeled]
    meta = WFEMClassifier(**{**SMALL, "training": Training(n_steps=20)})
    whole = clone(meta).fit(labeled[0], labeled[2])
    streamed = clone(meta).fit(stored[0], labeled[2])
    np.testing.assert_allclose(streamed.loss_trace_, whole.loss_trace_, atol=1e-4)
    assert streamed.classes_.tolist() == [0, 1]
    with pytest.raises(ValueError, match=r"source_tasks\[\d+\]: y must have integers.* use MetaGPRegressor"):
        meta.fit(STORED[0], labeled[2])


def test_what_a_stream_cannot_do_is_said():
    narrow = StoredTasks.from_arrays(np.zeros((3, 1)), np.zeros(3), [0, 3])
    for arguments, tasks, match in (
        ({"inference": "laplace"}, STORES, "inference='laplace' needs all tasks in memory"),
        ({}, {"source": narrow, "target": STORED[2]}, r"source_tasks\['target'\] must have 1 input column, .*; got 2"),
        ({}, {"source": STORED[0][:0], "target": STORED[2][:0]}, "has no tasks"),
        ({}, {"source": STORED[0], "target": STORED[2][:0]}, "to the target environment, which has no tasks"),
    ):
        with pytest.raises(ValueError, match=match):
            WFEMRegressor(**{**SMALL, **arguments}).fit(tasks, target="target")
