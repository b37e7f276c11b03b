"""Messages name tasks as users know them: by table, line, column and name."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from metaprior import MetaGPRegressor
from metaprior.checks import Argument, Message
from metaprior.cli import app
from metaprior.cli.console import with_options
from metaprior.cli.training_data import tasks_by_name
from metaprior.tables.csv_files import Source

NAMES = ("--task", "shop", "--x", "week", "--y", "state")
ENVIRONMENTS = ("--environment", "town", "--target", "south")


def refused(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 2, result.output
    assert not re.search(r"(source|target|test)_tasks\[", result.stderr)
    return " ".join(result.stderr.split())


@pytest.fixture
def table(tmp_path):
    """Two towns of three shops; the last shop of the first town has one label, which no other has."""
    labels = [["open", "shut"]] * 2 + [["sold"] * 3] + [["open", "shut"]] * 3
    rows = [
        (f"s{shop}", 'it\'s "north"' if shop < 3 else "south", week, state)
        for shop, of_shop in enumerate(labels)
        for week, state in enumerate(of_shop)
    ]
    pd.DataFrame(rows, columns=["shop", "town", "week", "state"]).to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


@pytest.mark.parametrize("environments", [(), ENVIRONMENTS])
@pytest.mark.parametrize("more", [(), ("--max-tasks", "6"), ("--hold-out", "0.2")])
def test_labels_of_a_task_are_refused_by_its_name(table, tmp_path, environments, more):
    """Whatever the tasks that were left out before; towns may have any name."""
    said = refused("fit", table, *NAMES, *environments, *more, "--out", tmp_path / "p")
    assert f"{table}: task 's2' (from line 6), column state: y has one label only, 'sold'" in said


def test_all_labels_of_a_column_are_refused_by_its_name(table, tmp_path):
    frame = pd.read_csv(table).assign(state="open")
    frame.to_csv(table, index=False)
    said = refused("fit", table, *NAMES, "--out", tmp_path / "p")
    assert f"{table}: column state: y must have two or more labels; got 'open'" in said


def test_stored_tasks_have_numbers(table, tmp_path):
    frame = pd.read_csv(table)
    codes = frame["state"].map({"open": 0, "shut": 1, "sold": 2})
    frame.assign(state=codes, town=frame["town"].replace('it\'s "north"', "north")).to_csv(table, index=False)
    arguments = {"task": "shop", "x": "week", "y": "state", "environment": "town", "out": tmp_path / "stored"}
    options = [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
    assert CliRunner().invoke(app, ["store", str(table), *options]).exit_code == 0
    said = refused("fit", tmp_path / "stored", "--target", "south", "--kind", "classification", "--out", tmp_path / "p")
    assert f"{tmp_path / 'stored'}: task '3 of north', column state: y has one label only, 2" in said
    assert "if labels mean the same in all tasks, pass --shared-classes." in said


@pytest.fixture
def names(tmp_path):
    (tmp_path / "t.csv").write_text("shop,sold\n" + "a,1\n" * 5 + "b,2\n" * 5)
    return tasks_by_name(Source.of(tmp_path / "t.csv", "data"), "sold", {"tasks": lambda i: ("ab"[i], 5 * i)})


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("tasks[1] context: y must be finite", "t.csv: task 'b' (from line 7) context, column sold: y must be finite"),
        ("tasks[0]: X must be finite", "t.csv: task 'a' (from line 2): X must be finite"),
        ("y has one label", "t.csv: column sold: y has one label"),
        ("my_tasks[1] stays", "my_tasks[1] stays"),
        (
            Message("tasks[1]: pass ", Argument("drop_missing", True)),
            "t.csv: task 'b' (from line 7): pass --drop-missing",
        ),
    ],
)
def test_messages_are_renamed_and_keep_their_options(names, tmp_path, message, expected):
    with pytest.raises(ValueError, match=r".") as raised, names:
        raise ValueError(message)
    assert with_options(raised.value).replace(f"{tmp_path}/", "") == expected


def test_warnings_are_renamed_too(names, tmp_path, monkeypatch):
    shown = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", lambda message, *_, **__: shown.append(str(message)))
        with names:
            warnings.warn("tasks[1] is far", stacklevel=1)
    assert shown == [f"{tmp_path / 't.csv'}: task 'b' (from line 7) is far"]


def test_evaluate_names_the_task_of_an_error(tmp_path):
    rng = np.random.default_rng(0)
    tasks = [(rng.normal(size=(6, 1)), rng.normal(size=6)) for _ in range(3)]
    MetaGPRegressor(random_state=0).fit(None, tasks).save(tmp_path / "p")
    frame = pd.DataFrame({"shop": np.repeat(["a", "b"], 7), "week": np.tile(np.arange(7) / 7, 2), "sold": 1.0})
    frame.loc[7:, "sold"] = 1e308
    frame.to_csv(tmp_path / "t.csv", index=False)
    columns = ("--task", "shop", "--x", "week", "--y", "sold")
    assert f"{tmp_path / 't.csv'}: task 'b' (from line 9)" in refused(
        "evaluate", tmp_path / "p", tmp_path / "t.csv", *columns
    )
