"""Progress as lines of JSON, for programs that run metaprior."""

import json

import pytest

from metaprior import progress
from metaprior.progress import phases, progress_bar


@pytest.fixture
def lines(monkeypatch, capsys):
    """Return a function that gives the lines printed so far."""
    monkeypatch.setenv("METAPRIOR_PROGRESS", "json")
    return lambda: [json.loads(line)["progress"] for line in capsys.readouterr().err.splitlines()]


def test_the_beginning_and_the_end_are_always_told(lines):
    with progress_bar("fitting", 100, "steps") as move:
        for done in range(100):
            move(done, "close")
    first, *_, last = lines()
    assert first == {"phase": "fitting", "number": 1, "of": 1, "total": 100, "unit": "steps", "done": 0, "detail": ""}
    assert (last["done"], last["total"]) == (100, 100)


def test_lines_between_are_few(lines):
    with progress_bar("fitting", 10**4, "steps") as move:
        for done in range(10**4):
            move(done, "")
    assert len(lines()) < 20


def test_every_move_is_told_if_moves_are_slow(lines, monkeypatch):
    monkeypatch.setattr(progress, "MIN_SECONDS", -1.0)
    with progress_bar("fitting", 3, "steps") as move:
        move(1, "a")
        move(2, "b")
    assert [(each["done"], each["detail"]) for each in lines()] == [(0, ""), (1, "a"), (2, "b"), (3, "")]


def test_phases_are_numbered_and_one_name_is_one_phase(lines):
    with phases(3):
        for name in ("search", "search", "fit"):
            with progress_bar(name, 1, "steps"):
                pass
    found = lines()
    assert [(each["phase"], each["number"], each["of"]) for each in found[::2]] == [
        ("search", 1, 3),
        ("search", 1, 3),
        ("fit", 2, 3),
    ]


def test_an_unknown_total(lines):
    with progress_bar("reading", None, "rows") as move:
        assert move is not None
    assert [each["total"] for each in lines()] == [None, None]


def test_show_false_does_not_silence_programs_that_ask(lines):
    with progress_bar("fitting", 1, "steps", show=False):
        pass
    assert len(lines()) == 2


def test_without_the_variable_nothing_is_printed(monkeypatch, capsys):
    monkeypatch.delenv("METAPRIOR_PROGRESS", raising=False)
    with progress_bar("fitting", 1, "steps") as move:
        assert move is None
    assert capsys.readouterr().err == ""


def test_an_error_inside_is_not_told_as_an_end(lines):
    with pytest.raises(ValueError, match="wrong"), progress_bar("fitting", 5, "steps"):
        raise ValueError("wrong")
    assert [each["done"] for each in lines()] == [0]
