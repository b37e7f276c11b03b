"""What the command line says where a result would otherwise be wrong, missing or hard to read."""

import json
import os

import numpy as np
import pandas as pd
import pytest
from running import call, words

from metaprior import load
from metaprior.cli.console import print_table
from metaprior.cli.evaluate import hold_out

COLUMNS = ("--task", "shop", "--x", "week", "price", "--y", "sold")


def sales(shops, seed, n_rows=8):
    rng = np.random.default_rng(seed)
    rows = []
    for shop in shops:
        level, slope = rng.normal(30, 5), rng.normal(-2, 0.5)
        for week in np.sort(rng.choice(52, n_rows, replace=False)).tolist():
            price = round(float(rng.uniform(1, 9)), 1)
            rows.append((shop, week, price, round(level + slope * price + 0.05 * week + rng.normal(0, 0.5), 2)))
    return pd.DataFrame(rows, columns=["shop", "week", "price", "sold"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sales of shops, new ones, and a prior of two inputs."""
    folder = tmp_path_factory.mktemp("sales")
    sales([f"{i:04d}" for i in range(101, 113)], 0).to_csv(folder / "sales.csv", index=False)
    new = sales(["0301", "0302"], 1)
    new.to_csv(folder / "new.csv", index=False)
    new.drop(columns="sold").to_csv(folder / "asked.csv", index=False)
    call("fit", folder / "sales.csv", *COLUMNS, "--hold-out", "0.25", "--out", folder / "prior")
    return folder


@pytest.fixture(scope="module")
def long_sales(tmp_path_factory):
    """Sales of shops with so many rows that nobody can guess them."""
    path = tmp_path_factory.mktemp("long") / "sales.csv"
    sales([f"{i:04d}" for i in range(101, 113)], 0, n_rows=20).to_csv(path, index=False)
    return path


def test_scores_on_the_tasks_of_the_fit_are_called_so(folder, long_sales, tmp_path):
    call("fit", long_sales, *COLUMNS, "--hold-out", "0.25", "--out", tmp_path / "prior")
    seen = call("evaluate", tmp_path / "prior", long_sales)
    assert "the prior was fitted on 9 of these 12 tasks (the first is 01" in words(seen)
    assert "not how well it predicts new tasks" in words(seen)
    parsed = json.loads(call("evaluate", tmp_path / "prior", long_sales, "--json").stdout)
    assert parsed["fitted_on"] == 9
    assert sum(row["fitted_on"] for row in parsed["per_task"]) == 9
    assert "fitted on" not in words(call("evaluate", tmp_path / "prior", folder / "new.csv"))
    assert "tasks recognized by fitted_on │ 9 of 9" in words(call("info", tmp_path / "prior"))


def test_a_prior_that_cannot_recognize_its_tasks_says_so(folder, tmp_path):
    short = call("evaluate", folder / "prior", folder / "sales.csv")
    assert (
        "This prior recognizes 0 of the 9 tasks of its fit, because a file leaves out those that could be guessed"
        in words(short)
    )
    call("fit", folder / "sales.csv", *COLUMNS, "--private", "--out", tmp_path / "prior")
    assert b"sales.csv" not in (tmp_path / "prior").read_bytes()
    assert "tasks recognized by fitted_on │ none: saved with --private" in words(call("info", tmp_path / "prior"))
    private = call("evaluate", tmp_path / "prior", folder / "sales.csv", "--json", "--out", tmp_path / "scores.csv")
    parsed = json.loads(private.stdout)
    assert parsed["fitted_on"] is None
    assert {row["fitted_on"] for row in parsed["per_task"]} == {None}
    assert pd.read_csv(tmp_path / "scores.csv")["fitted_on"].isna().all()
    assert "saved with --private: whether it was fitted on some of these tasks cannot be told" in words(private)


def test_held_out_tasks_are_not_fitted_to_and_their_scores_are_kept(folder):
    training = load(folder / "prior").training_
    assert training["environments"]["target"]["tasks"] == 9
    assert training["held_out"]["tasks"] == 3
    assert training["held_out"]["overall"]["metaprior"]["rmse"] < training["held_out"]["overall"]["GP per task"]["rmse"]
    shown = words(call("info", folder / "prior"))
    assert "3 held-out tasks of the target, which the prior has not seen" in shown
    assert f"{training['held_out']['overall']['metaprior']['rmse']:.3g} ±" in shown
    whole = json.loads(call("info", folder / "prior", "--json").stdout)
    assert whole["training"]["held_out"] == training["held_out"]
    for share in ("0", "1", "0.99", "-1"):
        fit = ("fit", folder / "sales.csv", *COLUMNS, "--out", folder / "p", "--hold-out", share)
        assert f"--hold-out {share if share == '0.99' else 'must be'}" in words(call(*fit, code=2))


def test_every_number_has_a_meaning(folder):
    scores = words(call("evaluate", folder / "prior", folder / "new.csv"))
    assert "in the units of sold; nll: negative log likelihood, nats per reading" in scores
    assert "±: standard error over tasks" in scores
    predicted = words(
        call("predict", folder / "prior", folder / "new.csv", folder / "asked.csv", "--out", folder / "p.csv")
    )
    assert "in the units of sold; it is between lower and upper with a probability of 0.9." in predicted
    assert "week: mean, standard deviation" in words(call("info", folder / "prior"))


def test_the_scale_of_a_latent_function_is_not_called_that_of_the_column(folder, tmp_path):
    counts = sales([f"S{i}" for i in range(6)], 3).assign(sold=lambda frame: frame["sold"].clip(0).round().astype(int))
    counts.to_csv(tmp_path / "counts.csv", index=False)
    out = tmp_path / "counts.safetensors"
    call("fit", tmp_path / "counts.csv", *COLUMNS, "--likelihood", "poisson", "--out", out)
    assert "sold: mean, standard deviation" in words(call("info", folder / "prior"))
    shown = words(call("info", out))
    assert "week: mean, standard deviation" in shown
    assert "sold: mean, standard deviation" not in shown


def test_a_fit_without_environments_prints_no_table_about_a_source(folder, tmp_path):
    """Nor of one that is held out; it says what it was fitted to."""
    result = call("fit", folder / "sales.csv", *COLUMNS, "--out", tmp_path / "p")
    assert "Fitted to readings: sold holds numbers. all: 12 tasks, 96 readings" in words(result)
    assert "one environment: there is no source" in words(result)
    for absent in ("0 tasks", "target-only", "gain"):
        assert absent not in result.stdout


def test_inputs_outside_the_range_of_the_fit_are_told_once_and_marked(folder, tmp_path):
    asked = pd.read_csv(folder / "asked.csv", dtype={"shop": str})
    asked.loc[3, "week"] = 500
    asked.to_csv(tmp_path / "far.csv", index=False)
    tables = folder / "new.csv", tmp_path / "far.csv", "--out", tmp_path / "p.csv"
    result = call("predict", folder / "prior", *tables, "--plot", tmp_path / "p.png")
    assert result.stderr.count("Note: Predictions extrapolate at 1 of 16 inputs: 'week' is 500 and was") == 1
    assert "The column extrapolates tells which" in words(result)
    assert pd.read_csv(tmp_path / "p.csv")["extrapolates"].tolist() == [i == 3 for i in range(16)]
    rows = json.loads(call("predict", folder / "prior", *tables, "--json").stdout)["rows"]
    assert [row["extrapolates"] for row in rows] == [i == 3 for i in range(16)]
    asked.assign(sold=20.0).to_csv(tmp_path / "far.csv", index=False)
    scores = call("evaluate", folder / "prior", tmp_path / "far.csv", "--context", 0, "--json")
    assert scores.stderr.count("Note: Predictions extrapolate at 1 of 16 inputs: 'week' is 500") == 1
    assert [task["extrapolates"] for task in json.loads(scores.stdout)["per_task"]] == [1, 0]


def test_notes_are_in_the_json(folder, tmp_path):
    """Also those without a field of their own, such as of readings that the prior cannot explain."""
    readings = pd.read_csv(folder / "new.csv", dtype={"shop": str})
    readings["sold"] = readings["sold"].astype(float)
    readings.loc[0, "sold"] = 1e9
    readings.to_csv(tmp_path / "typo.csv", index=False)
    command = "predict", folder / "prior", tmp_path / "typo.csv", folder / "asked.csv", "--out", tmp_path / "p.csv"
    result = call(*command, "--json")
    [note] = json.loads(result.stdout)["notes"]
    assert note["kind"] == "ImplausibleContextWarning"
    assert f"Note: {note['message']}" in result.stderr
    right = "predict", folder / "prior", folder / "new.csv", folder / "asked.csv", "--out", tmp_path / "p.csv"
    assert json.loads(call(*right, "--json").stdout)["notes"] == []  # not those of the command before


def test_names_that_match_no_query_are_refused(folder, tmp_path):
    readings = pd.read_csv(folder / "new.csv")  # 301 in place of 0301
    readings.to_csv(tmp_path / "readings.csv", index=False)
    command = (
        "predict",
        folder / "prior",
        tmp_path / "readings.csv",
        folder / "asked.csv",
        "--out",
        tmp_path / "p.csv",
    )
    refused = words(call(*command, code=2))
    assert "2 of 2 query tasks have no context (the first is '0301'). The context has '301'" in refused
    assert "pass --from-prior" in refused
    assert not (tmp_path / "p.csv").exists()
    assert "2 of 2 tasks of the context have no query, and are not used" in words(call(*command, "--from-prior"))


def test_a_picture_of_two_inputs_is_drawn_and_the_table_written(folder, tmp_path):
    tables = folder / "new.csv", folder / "asked.csv", "--out", tmp_path / "p.csv"
    call("predict", folder / "prior", *tables, "--plot", tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert len(pd.read_csv(tmp_path / "p.csv")) == 16


def test_the_order_of_inputs_is_that_of_the_fit(folder, tmp_path):
    tables = folder / "new.csv", folder / "asked.csv"
    call("predict", folder / "prior", *tables, "--out", tmp_path / "a.csv")
    call("predict", folder / "prior", *tables, "--x", "price", "week", "--out", tmp_path / "b.csv")
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()


@pytest.mark.parametrize(
    "given",
    [
        ("sales.csv", "--x", "week", "price", "--task", "shop", "--y", "sold"),
        ("--x", "week", "price", "sales.csv", "--task", "shop", "--y", "sold"),
        ("--task", "shop", "--y", "sold", "--x=week", "price", "sales.csv"),
        ("sales.csv", "--x", "week", "--x", "price", "--task", "shop", "--y", "sold"),
    ],
)
@pytest.mark.parametrize("command", ["fit", "store"])
def test_several_columns_after_one_option(folder, monkeypatch, tmp_path, command, given):
    """Stored, which takes any number of tables, or refused by a fit for a reason that comes later."""
    monkeypatch.chdir(folder)
    if command == "store":
        assert "all: 12 tasks, 96 readings" in words(call("store", *given, "--out", tmp_path / "stored"))
    else:
        assert "--set noise_std must be a positive" in words(
            call("fit", *given, "--set", "noise_std=-1", "--out", "p", code=2)
        )
    assert "See metaprior" in words(call("fit", "a.csv", "b.csv", "--y", "sold", code=2))


def test_files_of_a_spreadsheet_with_decimal_commas(folder, tmp_path):
    """The way to a prior, as messages show it; `predict` remembers how files are written."""
    for name in ("sales", "new", "asked"):
        table = pd.read_csv(folder / f"{name}.csv", dtype={"shop": str})
        table.to_csv(tmp_path / f"{name}.csv", sep=";", decimal=",", index=False, encoding="cp1252")
    fit = ["fit", tmp_path / "sales.csv", *COLUMNS, "--out", tmp_path / "p"]
    assert "read it with --csv sep=';'." in words(call(*fit, code=2))
    assert "line 2, column price: " in words(call(*fit, "--csv", "sep=;", code=2))
    assert "read it with --csv decimal=,." in words(call(*fit, "--csv", "sep=;", code=2))
    call(*fit, "--csv", "sep=;", "decimal=,", "encoding=cp1252")
    call("predict", tmp_path / "p", tmp_path / "new.csv", tmp_path / "asked.csv", "--out", tmp_path / "out.csv")
    assert len(pd.read_csv(tmp_path / "out.csv")) == 16
    scores = [
        json.loads(call("evaluate", tmp_path / "p", path / "new.csv", *how, "--json").stdout)["overall"]
        for path, how in ((tmp_path, ()), (folder, ("--csv", "sep=,", "decimal=.")))
    ]
    assert scores[0] == scores[1]


def test_two_numbers_may_be_labels(folder, tmp_path):
    table = pd.read_csv(folder / "sales.csv", dtype={"shop": str})
    table.assign(sold=(table["sold"] > 20).astype(int)).to_csv(tmp_path / "t.csv", index=False)
    fit = ("fit", tmp_path / "t.csv", *COLUMNS, "--out", tmp_path / "p")
    assert "sold has two values only, 0 and 1, fitted as numbers. For labels pass --kind classification." in words(
        call(*fit)
    )
    refused = call(*fit, "--kind", "classification", "--set", "noise_std=0.1", code=2)
    assert "--set noise_std is for numbers; y holds labels" in words(refused)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fit", "{folder}/sales.csv", "--task", "shop", "--x", "wek", "--y", "sold"), "did you mean 'week'?"),
        (("fit", "{folder}/sales.csv", "--nonsense"), "No such option"),
        (("fit", "{folder}/sales.csv", "--json=yes"), "does not take a value. See metaprior fit --help."),
        (("fit",), "Missing argument"),
        (("evaluate", "{folder}/prior", "{folder}/new.csv", "--context", "many"), "--context must be"),
        (("predict", "{folder}/prior", "{folder}/nowhere.csv", "{folder}/asked.csv"), "nowhere.csv does not exist"),
        (("info", "{folder}/sales.csv"), "not a file saved by metaprior"),
        (("fti",), "No such command"),
    ],
)
def test_errors_are_one_line_of_text_or_of_json(folder, arguments, message):
    arguments = [argument.format(folder=folder) for argument in arguments]
    text = call(*arguments, code=2)
    assert text.stdout == ""
    assert len(text.stderr.strip().splitlines()) == 1
    assert message in text.stderr
    parsed = json.loads(call(*arguments, "--json", code=2).stdout)
    assert message in parsed["error"]
    assert parsed["exit_code"] == 2


def test_messages_stay_short_and_in_one_line(folder, tmp_path):
    asked = pd.read_csv(folder / "asked.csv", dtype={"shop": str})
    asked.assign(shop="a\nb" + "s" * 10**6).to_csv(tmp_path / "asked.csv", index=False)
    refused = call("predict", folder / "prior", folder / "new.csv", tmp_path / "asked.csv", code=2).stderr
    assert len(refused.splitlines()) == 1
    assert len(refused) < 1100
    assert "pass --from-prior" in refused
    tabs = (folder / "sales.csv").read_text().replace(",", "\t")
    (tmp_path / "tabs.csv").write_text(tabs)
    assert "read it with --csv sep=tab." in words(call("fit", tmp_path / "tabs.csv", *COLUMNS, code=2))


def test_names_of_columns_are_never_cut_off(capsys):
    names = [f"a_rather_long_name_of_column_{i}" for i in range(12)]
    print_table(tuple(names), [tuple(["1.234"] * 12)])
    shown = capsys.readouterr().out
    assert all(name in shown for name in names)
    assert "…" not in shown


def test_stored_tasks_are_held_out_too(long_sales, tmp_path):
    """The last ones: stored tasks are read in one piece."""
    call("store", long_sales, *COLUMNS, "--out", tmp_path / "stored")
    result = call("fit", tmp_path / "stored", "--hold-out", "0.25", "--out", tmp_path / "p")
    assert "Note: holding out 3 stored tasks, the last of the target." in words(result)
    prior = load(tmp_path / "p")
    assert prior.training_["environments"]["target"]["tasks"] == 9
    assert prior.training_["held_out"]["tasks"] == 3
    scores = json.loads(call("evaluate", tmp_path / "p", long_sales, "--json").stdout)
    assert [task["fitted_on"] for task in scores["per_task"]] == [True] * 9 + [False] * 3


def test_a_sample_of_many_stored_tasks_is_tested(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("metaprior.cli.training_data.MAX_TESTED", 1)
    call("store", folder / "sales.csv", *COLUMNS, "--out", tmp_path / "stored")
    result = call("fit", tmp_path / "stored", "--hold-out", "0.25", "--out", tmp_path / "p")
    assert "the last of the target, and testing on 1 of them, drawn at random." in words(result)
    assert "1 held-out task of the target, which" in words(result)


def test_a_share_that_leaves_nothing_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match=r"^--hold-out 0.5 holds out 1 of 2 tasks of the target. It must leave two"):
        hold_out([5, 5], 0.5, [0, 1])
    with pytest.raises(ValueError, match=r"^--hold-out 0.3 drew 1 task with one reading each: there is none to test"):
        hold_out([5, 5, 1], 0.3, [2, 1, 0])
    assert hold_out([5, 5, 1, 5], 0.5, [2, 1, 0, 3]) == ([0, 3], [1])


def test_rows_of_several_tasks_are_merged_with_a_note(folder, tmp_path):
    command = ("predict", folder / "prior", folder / "new.csv", folder / "asked.csv", "--out", tmp_path / "p.csv")
    merged = call(*command, "--one-task").stderr
    assert merged.count("names 2 tasks in shop, which --one-task predicts as one.") == 2
    one = pd.read_csv(folder / "new.csv", dtype={"shop": str}).query("shop == '0301'")
    one.to_csv(tmp_path / "one.csv", index=False)
    alone = ("predict", folder / "prior", tmp_path / "one.csv", tmp_path / "one.csv", "--out", tmp_path / "p.csv")
    assert "as one" not in call(*alone, "--one-task").stderr


def test_a_table_may_come_through_a_pipe(folder, tmp_path):
    """As of `<(command)`: a descriptor of this process."""
    reader, writer = os.pipe()
    os.write(writer, (folder / "new.csv").read_bytes())
    os.close(writer)
    result = call("evaluate", folder / "prior", f"/dev/fd/{reader}")
    os.close(reader)
    assert "2 tasks, with 5 random readings of each as context." in words(result)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError("Unable to allocate 9 GiB"), "Out of memory: Unable to allocate 9 GiB. Use fewer tasks"),
        (MemoryError(), "Out of memory: an array could not be allocated. Use fewer tasks"),
    ],
)
def test_a_fit_without_memory_names_an_option(folder, tmp_path, monkeypatch, error, said):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("metaprior.MetaGPRegressor.fit", fail)
    refused = words(call("fit", folder / "sales.csv", *COLUMNS, "--out", tmp_path / "p", code=2))
    assert said in refused
    assert refused.endswith("Use fewer tasks.")


def test_the_checkpoint_of_another_fit_is_kept(folder, tmp_path):
    """`metaprior fit` writes none, so the one beside its file is that of `metaprior wfem`."""
    kept = tmp_path / ".prior.checkpoint"
    kept.write_bytes(b"of another fit")
    fitted = call("fit", folder / "sales.csv", *COLUMNS, "--out", tmp_path / "prior")
    assert "it is resumed" not in words(fitted)
    assert kept.read_bytes() == b"of another fit"


def test_what_a_fit_leaves_out_of_long_tasks_is_said(tmp_path):
    rng = np.random.default_rng(0)
    rows = [(task, x, task * x + rng.normal()) for task, n in enumerate((130, 5, 5)) for x in rng.uniform(size=n)]
    pd.DataFrame(rows, columns=["t", "x", "y"]).to_csv(tmp_path / "t.csv", index=False)
    fit = ("fit", tmp_path / "t.csv", "--task", "t", "--x", "x", "--y", "y", "--out", tmp_path / "prior")
    said = "3 tasks, 140 readings (a random part is used: 3 tasks, 110 readings)"
    assert f"all: {said}" in words(call(*fit))
    assert said in call("info", tmp_path / "prior").stdout
    counts = json.loads(call("info", tmp_path / "prior", "--json").stdout)["training"]["environments"]["target"]
    assert counts == {"tasks": 3, "samples": 140, "used_tasks": 3, "used_samples": 110}
