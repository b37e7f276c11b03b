"""Random draws of grouped tasks."""

import numpy as np
import pytest

from metaprior.tasks.types import Task, TestTask
from metaprior_studies.environments.grouped_tasks import GroupedTasks


def numbered(groups=None, n_target=12, n_context=3, n_source=6):
    """Make tasks where y // 100 is the number of the task and y % 100 that of the reading; x equals y."""
    source, target = (
        tuple(Task((y := 100.0 * i + np.arange(8 + i % 3))[:, None], y) for i in range(first, first + n))
        for first, n in ((0, n_source), (50, n_target))
    )
    return GroupedTasks("numbers", source, target, n_context, groups)


def numbers(tasks):
    """Return the number of each task, after checking that it has no readings of another."""
    whole = [np.concatenate(task[1::2]) // 100 for task in tasks]
    assert all(len(set(task)) == 1 for task in whole)
    return [int(task[0]) for task in whole]


GROUPS = (0, 0, 0, 0, 1, 1, 2, 3, 3, 4, 5, 5)


@pytest.mark.parametrize(("groups", "sizes"), [(None, (6, 4, 8)), (None, (0, 12, 0)), (GROUPS, (3, 2, 6))])
def test_no_task_comes_twice_and_no_group_on_both_sides(groups, sizes):
    data, seen = numbered(groups), set()
    for seed in range(40):
        drawn = data.draw(*sizes, seed)
        source, target, test = map(numbers, drawn)
        assert tuple(map(len, (source, target, test))) == sizes
        assert [len(set(tasks)) for tasks in (source, target, test)] == list(sizes)
        assert set(source) <= set(range(6))
        group_of = dict(zip(range(50, 62), groups or range(12), strict=True))
        assert not {group_of[i] for i in target} & {group_of[i] for i in test}
        seen |= {("target", i) for i in target} | {("test", i) for i in test}
        for task in drawn.test:
            assert isinstance(task, TestTask)
            assert len(task.y_context) == 3
            np.testing.assert_array_equal(np.concatenate(task[::2])[:, 0], np.concatenate(task[1::2]))
            whole = data.target[numbers([task])[0] - 50]
            np.testing.assert_array_equal(np.sort(np.concatenate(task[1::2])), whole.y)
    kinds = [kind for kind, size in (("target", sizes[1]), ("test", sizes[2])) if size]
    assert seen == {(kind, i) for kind in kinds for i in range(50, 62)}  # every task has its turn


def test_max_samples_keeps_readings_at_random_and_test_tasks_whole():
    data, kept = numbered(), set()
    for seed in range(30):
        drawn = data.draw(6, 4, 4, seed, max_samples=2)
        for x, y in drawn.source + drawn.target:
            np.testing.assert_array_equal(x[:, 0], y)
            assert len(y) == 2
            assert y[0] < y[1]
            kept |= set(y % 100)
        np.testing.assert_equal(drawn.test, data.draw(6, 4, 4, seed).test)
    assert kept == set(range(10))
    np.testing.assert_equal(data.draw(6, 4, 4, 0, max_samples=10), data.draw(6, 4, 4, 0))


@pytest.mark.parametrize("groups", [None, GROUPS])
def test_draws_are_those_of_their_seed_and_begin_alike(groups):
    data = numbered(groups)
    drawn = data.draw(6, 4, 4, 0, max_samples=5)
    fewer = data.draw(2, 1, 3, np.random.default_rng(0), max_samples=5)
    np.testing.assert_equal(tuple(fewer), (drawn.source[:2], drawn.target[:1], drawn.test[:3]))
    rng = np.random.default_rng(0)
    again = [data.draw(6, 4, 4, rng, max_samples=5) for _ in range(2)]
    np.testing.assert_equal(again[0], drawn)
    assert numbers(again[1].source) != numbers(drawn.source)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((7, 1, 1), r"n_source must be at most 6, the source tasks of numbers; got 7"),
        ((1, 6, 7), r"n_target \+ n_test must be at most 12, .* 6 groups; got 6 \+ 7"),
        ((1, 13, 0), r"n_target \+ n_test must be at most 12, .* got 13 \+ 0"),
        ((1, 11, 1), r"less if that would split one of their 6 groups; got 11 \+ 1"),
        ((1, -1, 1), "n_target must be an integer of at least 0; got -1"),
    ],
)
def test_more_tasks_than_there_are_is_an_error(sizes, message):
    groups = (0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5)
    with pytest.raises(ValueError, match=message):
        numbered(groups).draw(*sizes, 0)


def test_impossible_settings_are_an_error():
    with pytest.raises(ValueError, match="max_samples must be an integer of at least 1; got 0"):
        numbered().draw(1, 1, 1, 0, max_samples=0)
    with pytest.raises(ValueError, match=r"n_context must leave a reading .* of numbers, .* has 8; got 8"):
        numbered(n_context=8)
    with pytest.raises(ValueError, match="target_groups must have one group per target task, 12; got 2"):
        numbered(groups=(0, 1))
