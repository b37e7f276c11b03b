"""A fit that is stopped and run again ends as one that was not."""

import jax
import numpy as np
import pytest
import tinygp

from metaprior import load
from metaprior.files import InvalidFile, read_tensors, write_tensors
from metaprior.wfem import (
    MAP,
    SVGD,
    RBFKernel,
    Training,
    WFEMRegressor,
    checkpoint,
    search,
    training,
)
from metaprior.wfem.checkpoint import Checkpoint

RNG = np.random.default_rng(0)
TASKS = [(RNG.normal(size=(4, 1)), RNG.normal(size=4)) for _ in range(8)]
SMALL = {"kernel": "rbf", "mean": "constant", "alpha": 0.3, "temperature": "bayes", "random_state": 3}
SMALL |= {"training": Training(n_steps=500)}


class Stopped(Exception):
    pass


def stop_after(monkeypatch, n_chunks):
    """The n-th chunk from now on is the last."""
    left = [n_chunks]
    original = training.run_chunk

    def run_chunk(*arguments):
        if left[0] == 0:
            raise Stopped
        left[0] -= 1
        return original(*arguments)

    monkeypatch.setattr(training, "run_chunk", run_chunk)
    return left


def counting(function, calls):
    def counted(*arguments):
        calls.append(arguments)
        return function(*arguments)

    return counted


def same(first, second):
    np.testing.assert_array_equal(first.loss_trace_, second.loss_trace_)
    np.testing.assert_array_equal(first.validation_trace_, second.validation_trace_)
    np.testing.assert_array_equal(first.alpha_path_.weight, second.alpha_path_.weight)
    x = np.linspace(-1, 1, 5)[:, None]
    np.testing.assert_array_equal(
        first.adapt(*TASKS[0]).predict(x, return_std=True), second.adapt(*TASKS[0]).predict(x, return_std=True)
    )


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        ({}, {}),
        pytest.param({"alpha": "auto", "inference": "laplace"}, {}, marks=pytest.mark.slow),
        ({"alpha": "pooled", "inference": SVGD(2), "training": Training(500, batch_size=3, dtype="float64")}, {}),
        ({}, {"validation_tasks": [(*TASKS[0], *TASKS[1])], "patience": 2}),
    ],
    ids=["map", "auto", "svgd", "validation"],
)
def test_a_fit_stopped_anywhere_goes_on_to_the_same_result(arguments, keywords, tmp_path, monkeypatch):
    path = tmp_path / "checkpoint"
    fit = lambda **more: WFEMRegressor(**{**SMALL, **arguments}).fit(TASKS[:4], TASKS[4:], **keywords, **more)  # noqa: E731
    whole = fit()
    taken = []
    for _ in range(20):
        with monkeypatch.context() as patch:
            left = stop_after(patch, 2)
            try:
                resumed = fit(checkpoint=path)
            except Stopped:
                assert path.exists()
                taken.append(2)
                continue
        taken.append(2 - left[0])
        break
    assert len(taken) > 2
    same(whole, resumed)
    with monkeypatch.context() as patch:
        stop_after(patch, 0)
        same(whole, fit(checkpoint=path))  # the file has all of it
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize(
    ("arguments", "tasks"),
    [
        ({"training": Training(n_steps=400)}, TASKS),
        ({"random_state": 4}, TASKS),
        ({}, [*TASKS[:7], (TASKS[7][0], TASKS[7][1] + 1e-3)]),
    ],
    ids=["steps", "seed", "data"],
)
@pytest.mark.filterwarnings("ignore:.*checkpoint of another fit")
def test_another_fit_starts_anew(arguments, tasks, tmp_path, monkeypatch):
    path = tmp_path / "checkpoint"
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stopped):
            WFEMRegressor(**SMALL).fit(TASKS[:4], TASKS[4:], checkpoint=path)
    other = WFEMRegressor(**{**SMALL, **arguments})
    with monkeypatch.context() as patch:
        left = stop_after(patch, 100)
        other.fit(tasks[:4], tasks[4:], checkpoint=path)
    assert 100 - left[0] == other.training.n_steps // 100


def test_the_checkpoint_of_another_fit_is_kept_and_resumed(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint"
    first, second = (WFEMRegressor(**{**SMALL, "random_state": i}) for i in (4, 5))
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stopped):
            first.fit(TASKS[:4], TASKS[4:], checkpoint=path)
    with pytest.warns(UserWarning, match=r"checkpoint of another fit. It is kept as .*checkpoint\.[0-9a-f]{8}"):
        second.fit(TASKS[:4], TASKS[4:], checkpoint=path)
    path.unlink()  # as the command line does
    with monkeypatch.context() as patch:
        left = stop_after(patch, 100)
        first.fit(TASKS[:4], TASKS[4:], checkpoint=path)
    assert 100 - left[0] < first.training.n_steps // 100
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint"]


def test_without_a_random_state_the_seed_is_kept(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint"
    meta = WFEMRegressor(**{**SMALL, "random_state": None})
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stopped):
            meta.fit(TASKS[:4], TASKS[4:], checkpoint=path)
    seed = read_tensors(path)[0]["seed"]
    with monkeypatch.context() as patch:
        left = stop_after(patch, 100)
        meta.fit(TASKS[:4], TASKS[4:], checkpoint=path)
    assert 100 - left[0] == 3

    class Known(np.random.RandomState):
        def randint(self, *_):
            return seed

    same(meta, WFEMRegressor(**{**SMALL, "random_state": Known()}).fit(TASKS[:4], TASKS[4:]))


def test_a_checkpoint_is_written_in_time_and_is_no_prior(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint"
    monkeypatch.setattr(checkpoint, "INTERVAL", 0.0)
    monkeypatch.setattr(checkpoint, "SHARE", np.inf)
    monkeypatch.setattr(Checkpoint, "flush", counting(Checkpoint.flush, counted := []))
    stop_after(monkeypatch, 3)
    with pytest.raises(Stopped):
        WFEMRegressor(**SMALL).fit(TASKS[:4], TASKS[4:], checkpoint=path)
    assert len(counted) == 4  # after every chunk, and at the end
    with pytest.raises(InvalidFile, match=r"checkpoint of an interrupted fit.*Re-run the same fit to resume it"):
        load(path)


def test_what_is_no_checkpoint_is_not_overwritten(tmp_path):
    path, meta = tmp_path / "checkpoint", WFEMRegressor(**{**SMALL, "training": Training(n_steps=0)})
    path.write_bytes(b"a table of somebody's")
    with pytest.raises(ValueError, match=r"checkpoint: .* is not a file saved by metaprior.*Remove that file or"):
        meta.fit(TASKS[:4], TASKS[4:], checkpoint=path)
    assert path.read_bytes() == b"a table of somebody's"
    meta.fit(TASKS[:4], TASKS[4:]).save(path)
    with pytest.raises(ValueError, match=r"is a prior, not a checkpoint. Choose another path"):
        meta.fit(TASKS[:4], TASKS[4:], checkpoint=path)


def made(slope):
    def mean(x):
        return slope * x[0]

    return mean


def other(x):
    return 2.0 * x[0] + 1.0


other.__name__ = other.__qualname__ = made(2.0).__qualname__


def method(half, frozen):
    """Return a method of a class that is made anew, as in a notebook whose cell is changed and run again."""

    class Own(MAP):
        def direction(self, particles, scores):
            return scores

    class Half(MAP):
        def direction(self, particles, scores):
            return jax.tree.map(lambda score: 0.5 * score, scores)

    class Plain:
        n_particles, start, interacts = 1, "initializer", False

        def direction(self, particles, scores):
            return jax.tree.map(lambda score: self.factor * score, scores)

    kind = (Half if half else Own) if frozen else Plain
    kind.__qualname__ = kind.__name__ = "Own"
    made = kind()
    if not frozen:
        made.factor = 0.5 if half else 1.0
    return made


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"mean": made(2.0)}, {"mean": made(3.0)}),
        ({"mean": made(2.0)}, {"mean": other}),
        ({"kernel": tinygp.kernels.Matern32(1.0)}, {"kernel": tinygp.kernels.Matern32(5.0)}),
        ({"kernel": RBFKernel(length_scale=1.0)}, {"kernel": RBFKernel(length_scale=2.0)}),
        ({"inference": method(False, True)}, {"inference": method(True, True)}),
        ({"inference": method(False, False)}, {"inference": method(True, False)}),
    ],
    ids=["closure", "body", "tinygp", "description", "method of a class", "attribute"],
)
@pytest.mark.filterwarnings("ignore:.*checkpoint of another fit")
def test_custom_parts_that_act_differently_start_anew(first, second, tmp_path, monkeypatch):
    path = tmp_path / "checkpoint"
    for arguments, expected in ((first, 2), (second, 5), (second, 0)):
        meta = WFEMRegressor(**{**SMALL, **arguments})
        with monkeypatch.context() as patch:
            left = stop_after(patch, expected if arguments is first else 100)
            if arguments is first:
                with pytest.raises(Stopped):
                    meta.fit(TASKS[:4], TASKS[4:], checkpoint=path)
            else:
                meta.fit(TASKS[:4], TASKS[4:], checkpoint=path)
                assert 100 - left[0] == expected


@pytest.mark.parametrize("frozen", [True, False])
def test_a_class_that_is_defined_again_as_it_was_goes_on(frozen, tmp_path, monkeypatch):
    path, fit = tmp_path / "checkpoint", lambda: WFEMRegressor(**SMALL, inference=method(True, frozen)).fit
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stopped):
            fit()(TASKS[:4], TASKS[4:], checkpoint=path)
    with monkeypatch.context() as patch:
        left = stop_after(patch, 100)
        fit()(TASKS[:4], TASKS[4:], checkpoint=path)
    assert 100 - left[0] == 3


def test_a_search_cut_by_the_clock_is_never_taken_for_another(tmp_path, monkeypatch):
    """Rounds of the search that there was no time for may come on resuming; each has its own results."""
    path = tmp_path / "checkpoint"
    arguments = {**SMALL, "alpha": "auto", "temperature": "auto"}
    unhurried = WFEMRegressor(**{**arguments, "training": Training(n_steps=1600, search_time=1e4)})
    with monkeypatch.context() as patch:
        patch.setattr(search, "score_candidates", first_round_only)
        stop_after(patch, 6)
        with pytest.raises(Stopped):
            unhurried.fit(TASKS[:4], TASKS[4:], checkpoint=path)
    resumed = unhurried.fit(TASKS[:4], TASKS[4:], checkpoint=path)
    same(resumed, WFEMRegressor(**{**arguments, "training": Training(n_steps=1600)}).fit(TASKS[:4], TASKS[4:]))


def first_round_only(validations, *arguments, score=search.score_candidates):
    return not validations[0].scored and score(validations, *arguments)


def test_a_checkpoint_that_cannot_be_written_is_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match="checkpoint must be a writable file"):
        WFEMRegressor(**{**SMALL, "alpha": "pooled"}).fit(TASKS, checkpoint=tmp_path / "nowhere" / "checkpoint")


def test_a_fit_that_fails_before_it_has_anything_leaves_no_checkpoint(tmp_path, monkeypatch):
    stop_after(monkeypatch, 0)
    with pytest.raises(Stopped):
        WFEMRegressor(**SMALL).fit(TASKS[:4], TASKS[4:], checkpoint=tmp_path / "empty")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("header", [{"seed": "3"}, {"asked": 3}, {"seed": -1}, {"seed": 10**400}], ids=str)
def test_a_checkpoint_with_a_header_of_another_kind_is_refused(header, tmp_path):
    path = tmp_path / "checkpoint"
    write_tensors(path, {"kind": "checkpoint", "asked": "", "seed": 0, **header}, {})
    with pytest.raises(ValueError, match=r"checkpoint: .*(asked|seed) must be .* Remove that file"):
        WFEMRegressor(**SMALL).fit(TASKS[:4], TASKS[4:], checkpoint=path)


def test_slow_disks_are_written_to_less_often(monkeypatch):
    now = [0.0]

    def write(arrays):
        now[0] += 0.2

    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    saved = Checkpoint(write, {"earlier": np.zeros(3)})
    saved.flush()
    times = []
    for _ in range(100):
        now[0] += 0.5
        before = now[0]
        saved.update(np.zeros(2))
        times += [before] if now[0] > before else []
    np.testing.assert_array_less(3.9, np.diff(times))  # seconds for 0.2 seconds of writing
