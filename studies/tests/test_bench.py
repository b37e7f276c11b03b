"""The speed benchmarks: times, ratios, floors, and contestants that compute the same result."""

import json

import jax
import numpy as np
import pytest
from speed import contestants_jax, floor, growth_point, laplace, step
from speed.problem import data_of, first_particle, make_settings, make_tasks, measured_run, networks_of
from speed.report import Row, Section, as_json, as_markdown, duration, rows_of
from speed.timing import Contestant, Spread, alternate, ratio, repeat, spread

MACHINE = {
    "processor": "abacus",
    "cores": 2,
    "memory_gb": 1.0,
    "devices": ["cpu"],
    "load_before": 0.0,
    "python": "3",
    "versions": {"jax": "1"},
}


@pytest.fixture
def _as_users_write():
    """The contestants use implicit broadcasting, as most users do."""
    with jax.numpy_rank_promotion("allow"):
        yield


def test_medians_and_ratios():
    assert spread([4.0, 1.0, 2.0, 3.0, 5.0]) == Spread(3.0, 2.0, 4.0, 5)
    # Paired: the second round was ten times slower for both.
    assert ratio([2.0, 30.0, 4.0], [1.0, 10.0, 1.0]) == Spread(3.0, 2.5, 3.5, 3)


def test_contestants_take_turns_and_pay_per_unit():
    called: list[str] = []
    contestants = [Contestant(name, lambda name=name: called.append(name), 4.0) for name in ("a", "b")]
    times = alternate(contestants, rounds=3, say=lambda text: None)
    assert called == ["a", "b", "a", "b", "b", "a", "a", "b"]  # one call each to warm up, then another first each time
    assert {name: len(of_name) for name, of_name in times.items()} == {"a": 3, "b": 3}
    assert len(repeat(lambda: None, budget=0.0, least=4)) == 4


def test_a_table_and_a_file():
    times = {"ours": np.array([1e-3, 1e-3, 2e-3]), "other": np.array([3e-3, 4e-3, 4e-3])}
    section = Section("Steps", {"tasks": 3}, "step", rows_of(times, "ours", floor=5e-4), ["a note"], {"n": np.int64(1)})
    text = as_markdown(MACHINE, [section])
    assert "| other | 4 ms (3.5 ms to 4 ms) | 3 (2.5 to 3.5) | 8 |" in text
    assert "| ours | 1 ms (1 ms to 1.5 ms) | 1 | 2 |" in text
    written = json.loads(as_json({"quick": True}, MACHINE, [section]))
    assert written["sections"][0]["rows"][1]["over_ours"] == {"median": 3.0, "low": 2.5, "high": 3.5, "n": 3}
    assert [duration(value) for value in (2.0, 0.0123, 4.5e-5, 1e-8)] == ["2 s", "12.3 ms", "45 µs", "10 ns"]
    alone = Section("Growth", {}, "step", [Row("10", spread([1.0]), columns={"memory": "1 MB"})], [])
    assert "| 10 | 1 s (1 s to 1 s) | 1 MB |" in as_markdown(MACHINE, [alone])


@pytest.mark.usefixtures("_as_users_write")
def test_plain_jax_has_the_librarys_loss_and_gradient():
    run = measured_run(make_settings(hidden=(3,)), tasks=make_tasks(n_source=2, n_target=1))
    networks, data = networks_of(first_particle(run.particles)), data_of(run)
    results = {
        "ours": step.our_loss_and_gradient(run),
        "plain": step.plain_loss_and_gradient(networks, data),
    }
    assert results["ours"][1].shape == ((2 * 3 + 4 * 1) + (2 * 3 + 4 * 8),)
    assert step.check_agreement(results)["plain"] < 1e-5
    off = step.plain_loss_and_gradient(networks, data._replace(temperature=1.01 * data.temperature))
    with pytest.raises(step.Disagreement, match="off does not compute what the others do"):
        step.check_agreement({**results, "off": off})


@pytest.mark.slow
@pytest.mark.usefixtures("_as_users_write")
def test_newton_differentiated_through_has_the_librarys_loss_and_gradient():
    run = laplace.label_run("linear+rbf", n_tasks=4, n_samples=3)
    assert laplace.check_agreement("linear+rbf", run, laplace.plain_objective("linear+rbf", run)) < 1e-5
    # So wide a prior that one step does not reach the mode: the steps do count.
    parameters = laplace.plain_parameters("linear+rbf", first_particle(run.particles))
    losses = [laplace.plain_objective("linear+rbf", run, n_newton)(parameters) for n_newton in (1, 10)]
    assert abs(losses[0] - losses[1]) > 1e-3 * abs(losses[1])


@pytest.mark.usefixtures("_as_users_write")
def test_stein_direction_is_the_librarys():
    method = step.SVGD(3)
    run = measured_run(make_settings((3,), method), tasks=make_tasks(n_source=2, n_target=1))
    data = data_of(run)
    ours = step.our_direction(run, method)
    plain = step.plain_direction(networks_of(run.particles), lambda networks: contestants_jax.loss(networks, data))
    assert step.check_agreement({"ours": ours, "plain": plain})["plain"] < 1e-5


def test_floors_are_as_counted_by_hand():
    # Networks 1-3-1 and 1-3-2: 6 and 9 multiply-adds a point, 3 + 3 tanhs, 10 + 14 parameters. Two points of one task.
    of_task = 3 * (3 * 2 + 2) + 8 / 3 + 2 * 4 + 4 * 2  # kernel of 3 pairs, Cholesky, solves, determinant
    work = floor.step_work(1, 2, hidden=(3,), n_features=2)
    assert work.operations == pytest.approx(2 * 2 * (3 * 15 - 6) + 3 * of_task + 16 * 24)
    assert work.tanhs == 12
    assert work.bytes == 4 * (2 * 2 + 6 * 24)
    adapted = floor.adaptation_work(10, 2, 1, hidden=(3,), n_features=2)
    assert adapted.operations == pytest.approx(10 * (3 * 2 * 15 + of_task + 2 * (3 * 2 + 2) + 4 + 8))
    assert (adapted.tanhs, adapted.bytes) == (10 * 3 * 6, 4 * (10 * 3 + 10 * (2 + 2)))
    assert floor.seconds_at_least(floor.Work(6.0, 4.0, 0.0), floor.Rates(3.0, 8.0)) == 2.5
    assert floor.seconds_at_least(work.times(2), floor.Rates(1.0, 1.0)) == pytest.approx(2 * (work.operations + 12))


def test_the_peak_of_memory_is_seen():
    before = growth_point.held_before()
    held = np.ones(2**23)  # 64 MB
    assert growth_point.peak() - before > 0.9 * held.nbytes


def test_ragged_tasks_are_padded_less_with_more_buckets():
    sizes = growth_point.ragged_sizes()
    assert (sizes.min(), sizes.max()) == (1, growth_point.LARGEST)
    padded = {n: sum(np.size(bucket.y) for bucket in growth_point.ragged_tasks(n).buckets) for n in (1, 3)}
    assert padded[1] == len(sizes) * growth_point.LARGEST
    assert sizes.sum() < padded[3] < 0.6 * padded[1]


@pytest.mark.filterwarnings("ignore")  # from torch
@pytest.mark.usefixtures("_as_users_write")
def test_torch_contestants_have_the_same_loss_and_gradient():
    pytest.importorskip("gpytorch")
    from speed import contestants_torch

    run = measured_run(make_settings(hidden=(3,)), tasks=make_tasks(n_source=2, n_target=1))
    networks, data = networks_of(first_particle(run.particles)), data_of(run)
    results = {"ours": step.our_loss_and_gradient(run)}
    for make in (contestants_torch.gpytorch_loop, contestants_torch.gpytorch_batched, contestants_torch.plain):
        results[make.__name__] = make(networks, data).loss_and_gradient()
    assert max(step.check_agreement(results).values()) < 1e-4
