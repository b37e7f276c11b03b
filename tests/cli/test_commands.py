"""fit, evaluate, predict and info on tables, as they are typed."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from make_example import tables
from running import call, words

from metaprior import MetaGPRegressor, load, predict_frame, tasks_from_frame
from metaprior.cli.data import TABLES
from metaprior.tables import reading
from metaprior.tables.columns import as_columns
from metaprior.tables.frames import split_table
from metaprior.tables.grouping import group_rows

QUICK = ["--alpha", "0.5"]
COLUMNS = ["--task", "patient", "--x", "hours", "--y", "heart_rate", "--environment", "hospital", "--target", "south"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The example, and a prior of it."""
    folder = tmp_path_factory.mktemp("example")
    call("example", "--out", folder)
    call("fit", folder / "patients.csv", *COLUMNS, *QUICK, "--out", folder / "prior.safetensors")
    return folder


def test_the_example_ships_and_is_what_its_script_makes(folder):
    made = tables()
    assert set(made) == set(TABLES)
    for name, rows in made.items():
        assert (folder / name).read_text() == "".join(",".join(row) + "\n" for row in rows)


def test_fit_is_that_of_the_library(folder):
    tasks = tasks_from_frame(folder / "patients.csv", task="patient", x="hours", y="heart_rate", environment="hospital")
    meta = MetaGPRegressor(0.5, random_state=0).fit(tasks, target="south")
    loaded = load(folder / "prior.safetensors")
    np.testing.assert_array_equal(predictions(loaded), predictions(meta))
    assert loaded.training_["columns"] == {
        "task": ["patient"],
        "x": ["hours"],
        "y": "heart_rate",
        "environment": "hospital",
    }
    assert not list(folder.glob(".*checkpoint"))
    assert loaded.feature_names_in_.tolist() == ["hours"]


def predictions(meta):
    """Mean and standard deviation of a new patient."""
    return meta.adapt([[1.0], [5.0]], [90.0, 85.0]).predict([[3.0], [20.0]], return_std=True)


def test_predict_knows_the_columns_and_writes_what_predict_frame_gives(folder, tmp_path):
    out, picture = tmp_path / "predictions.csv", tmp_path / "predictions.png"
    files = (folder / "readings.csv", folder / "hours.csv")
    result = call("predict", folder / "prior.safetensors", *files, "--out", out, "--plot", picture)
    expected = predict_frame(load(folder / "prior.safetensors"), *files, task="patient", x="hours", y="heart_rate")
    written = pd.read_csv(out)
    assert list(written) == ["patient", "hours", "mean", "std", "lower", "upper", "extrapolates"]
    np.testing.assert_allclose(written[["mean", "lower"]], expected[["mean", "lower"]], rtol=1e-12)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "75 rows, of which the first 8 are shown" in words(result)
    parsed = json.loads(call("predict", folder / "prior.safetensors", *files, "--out", out, "--json").stdout)
    assert len(parsed["rows"]) == 75
    assert parsed["rows"][0]["mean"] == pytest.approx(expected["mean"].iloc[0])


def test_a_query_without_context_is_predicted_from_the_prior(folder, tmp_path):
    empty = tmp_path / "nothing.csv"
    empty.write_text("patient,hours,heart_rate\n")
    result = call("predict", folder / "prior.safetensors", empty, folder / "hours.csv", "--out", tmp_path / "p.parquet")
    assert "Note: 3 of 3 query tasks have no context" in words(result)
    predicted = pd.read_parquet(tmp_path / "p.parquet")
    call(
        "predict",
        folder / "prior.safetensors",
        empty,
        folder / "hours.csv",
        "--out",
        tmp_path / "q.csv",
        "--plot",
        tmp_path / "p.png",
    )
    assert (tmp_path / "p.png").exists()
    mean = load(folder / "prior.safetensors").adapt(np.empty((0, 1)), []).predict([[0.0]])[0]
    np.testing.assert_allclose(predicted["mean"].iloc[::25], mean)


def untidy(path, table, column):
    """Write the table with a row repeated and a value missing."""
    hole = table[:1].assign(**{column: np.nan})
    pd.concat([table, table[:2], hole]).to_csv(path, index=False)
    return path


def test_options_of_predict(folder, tmp_path):
    """--coverage, --drop missing and --drop duplicates do what they say."""
    prior, hours, out = folder / "prior.safetensors", folder / "hours.csv", tmp_path / "p.csv"
    readings = pd.read_csv(folder / "readings.csv")
    columns = {"task": "patient", "x": "hours", "y": "heart_rate"}
    expected = predict_frame(load(prior), readings, hours, coverage=0.5, **columns)
    command = ("predict", prior, untidy(tmp_path / "t.csv", readings, "heart_rate"), hours, "--out", out)
    result = call(*command, "--coverage", "0.5", "--drop", "missing", "duplicates")
    found = pd.read_csv(out)
    np.testing.assert_allclose(found[["mean", "lower", "upper"]], expected[["mean", "lower", "upper"]], rtol=1e-7)
    assert "dropped 1 of" in words(result)
    assert "dropped 2 rows that repeat" in words(result)
    call(*command, "--drop", "missing")
    found = pd.read_csv(out)
    assert np.abs(found["mean"] - expected["mean"]).max() > 1e-3  # two readings count twice
    assert (found["upper"] - found["lower"] > 1.5 * (expected["upper"] - expected["lower"])).all()  # of 90%
    assert "missing" in words(call(*command, "--drop", "duplicates", code=2))


def test_fit_and_evaluate_drop_what_they_are_told_to(folder, tmp_path):
    prior = folder / "prior.safetensors"
    drops = ("--drop", "missing", "duplicates")
    table = untidy(tmp_path / "t.csv", pd.read_csv(folder / "patients.csv"), "heart_rate")
    call("fit", table, *COLUMNS, *QUICK, *drops, "--out", tmp_path / "prior")
    np.testing.assert_array_equal(predictions(load(tmp_path / "prior")), predictions(load(prior)))
    table = untidy(tmp_path / "t.csv", pd.read_csv(folder / "test.csv"), "heart_rate")
    scores = [
        json.loads(call("evaluate", prior, *given, "--json").stdout)
        for given in ((table, *drops), (folder / "test.csv",))
    ]
    assert scores[0]["overall"] == scores[1]["overall"]
    assert "missing" in words(call("evaluate", prior, table, "--drop", "duplicates", code=2))


def test_the_seed_of_evaluate_chooses_the_context(folder):
    prior, test = folder / "prior.safetensors", folder / "test.csv"
    grouped = group_rows(test, as_columns(task="patient", x="hours", y="heart_rate"))
    found = {}
    for seed in (0, 1):
        scores = json.loads(call("evaluate", prior, test, "--random-state", seed, "--json").stdout)["overall"]
        tests, *_ = split_table(grouped, 5, np.random.default_rng(seed), load(prior).features_)
        assert scores["metaprior"]["rmse"] == pytest.approx(load(prior).evaluate(tests).rmse, rel=1e-6)
        found[seed] = scores["GP per task"]["rmse"]
    assert found[0] != found[1]


def test_one_task_needs_no_column(folder, tmp_path):
    for name in ("readings", "hours"):
        table = pd.read_csv(folder / f"{name}.csv")
        table[table["patient"] == "new1"].drop(columns="patient").to_csv(tmp_path / f"{name}.csv", index=False)
    arguments = ("predict", folder / "prior.safetensors", tmp_path / "readings.csv", tmp_path / "hours.csv")
    assert "no column 'patient'" in words(call(*arguments, "--out", tmp_path / "p.csv", code=2))
    call(*arguments, "--out", tmp_path / "p.csv", "--one-task")
    assert list(pd.read_csv(tmp_path / "p.csv")) == ["hours", "mean", "std", "lower", "upper", "extrapolates"]


def test_evaluate_compares_with_the_baseline(folder, tmp_path):
    out, picture = tmp_path / "metrics.csv", tmp_path / "calibration.png"
    result = call("evaluate", folder / "prior.safetensors", folder / "test.csv", "--out", out, "--plot", picture)
    assert "GP per task" in words(result)
    assert "30 tasks, with 5 random readings of each as context" in words(result)
    per_task = pd.read_csv(out)
    assert len(per_task) == 30
    parsed = json.loads(call("evaluate", folder / "prior.safetensors", folder / "test.csv", "--json").stdout)
    assert parsed["overall"]["metaprior"]["rmse"] == pytest.approx(per_task["rmse"].mean())
    assert [row["patient"] for row in parsed["per_task"]] == list(per_task["patient"])
    assert picture.exists()


def test_evaluate_takes_the_target_tasks_or_all_where_there_is_no_such_column(folder, tmp_path):
    prior, table = folder / "prior.safetensors", pd.read_csv(folder / "patients.csv")
    assert json.loads(call("evaluate", prior, folder / "patients.csv", "--json").stdout)["tasks"] == 8
    result = call("evaluate", prior, folder / "patients.csv", "--target", "north", "--context", 9, "--json")
    assert 20 < json.loads(result.stdout)["tasks"] < 40
    assert "with at most 9 readings; the first is" in words(result)
    table.drop(columns="hospital").to_csv(tmp_path / "plain.csv", index=False)
    result = call("evaluate", prior, tmp_path / "plain.csv", "--json")
    assert json.loads(result.stdout)["tasks"] == 48
    assert "no column 'hospital': all its tasks are evaluated as 'south'" in words(result)
    result = call("evaluate", prior, folder / "test.csv", "--target", "west", code=2)
    assert "--target 'west' does not occur in column 'hospital', whose values are 'south'" in words(result)
    assert "smaller --context" in words(call("evaluate", prior, folder / "test.csv", "--context", 99, code=2))


def test_info_tells_the_story(folder):
    result = words(call("info", folder / "prior.safetensors"))
    for part in (
        "patients.csv",
        "hours",
        "heart_rate",
        "40 tasks, 445 readings",
        "priors averaged",
        "spread",
        "numpy",
    ):
        assert part in result
    parsed = json.loads(call("info", folder / "prior.safetensors", "--json").stdout)
    assert parsed["training"]["target"] == "south"
    assert parsed["training"]["versions"]["python"] == sys.version.split()[0]
    report = parsed["report"]
    assert (report["outputs"], report["hint"], report["covariates"]) == ("readings", "", None)  # also where not used


def test_labels_make_a_classifier(folder, tmp_path):
    table = pd.read_csv(folder / "patients.csv")
    table["state"] = np.where(table["heart_rate"] > 85, "fast", "calm")
    table.to_csv(tmp_path / "labels.csv", index=False)
    columns = [{"heart_rate": "state"}.get(column, column) for column in COLUMNS]
    quick = [*QUICK, "--out", tmp_path / "prior", "--json"]
    fitted = json.loads(call("fit", tmp_path / "labels.csv", *columns, *quick).stdout)
    assert fitted["environments"]["south"]["tasks"] == 8
    tables = tmp_path / "labels.csv", folder / "hours.csv"
    call("predict", tmp_path / "prior", *tables, "--from-prior", "--out", tmp_path / "p.csv")
    predicted = pd.read_csv(tmp_path / "p.csv")
    assert set(predicted["label"]) <= {"fast", "calm"}
    np.testing.assert_allclose(predicted["probability_fast"] + predicted["probability_calm"], 1.0)
    assert fitted["kind"] == "classification"
    scores = json.loads(call("evaluate", tmp_path / "prior", tmp_path / "labels.csv", "--json").stdout)
    assert set(scores["overall"]) == {"metaprior", "nearest class mean", "logistic regression"}


def edited(folder, tmp_path, change):
    table = pd.read_csv(folder / "patients.csv")
    change(table).to_csv(tmp_path / "table.csv", index=False)
    return tmp_path / "table.csv"


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (None, ["--y", "heart_rat"], "no column 'heart_rat'; did you mean 'heart_rate'?"),
        (
            None,
            ["--target", "souht"],
            "whose values are 'north', 'south'. Did you mean 'south'?",
        ),
        (None, ["--alpha", "0,5"], "--alpha must be a number in [0, 1], 'pooled', 'auto'"),
        (None, ["--alpha", "2"], "alpha must"),
        (None, ["--kernel", "rbf"], "No such option: --kernel (metaprior wfem has it)."),
        (None, ["--y", "heart_rate", "hours"], "(hours). See metaprior fit --help."),
        (None, ["--set", "noise_std=-1"], "--set noise_std must be a positive number"),
        (None, ["--out", "{tmp}"], "is a folder"),
        (None, ["--out", "{tmp}/a.html", "--report", "{tmp}/a.html"], "must be two files"),
        (
            None,
            ["--set", "noise=1"],
            "--set takes NAME=VALUE, with the names calibrate, conformal, exposure, noise_std,",
        ),
        (None, ["--set", "alpha=1"], "got 'alpha=1'."),
        (None, ["--set", "calibrate"], "got 'calibrate'."),
        (None, ["--csv", "separator=;"], "--csv takes NAME=VALUE, with the names sep, decimal, encoding; got"),
        (None, ["--x", "nowhere"], "no column 'nowhere'"),
        (lambda t: t.assign(hours=t["hours"].astype(str).replace("1.0", "one")), [], "line 2, column hours"),
        (
            lambda t: t.assign(hospital=np.where(t.index == 0, "south", t["hospital"])),
            [],
            "task 'N01' is in two environments",
        ),
        (lambda t: t.assign(heart_rate=t["heart_rate"].where(t.index != 3)), [], "1 in heart_rate"),
        (lambda t: t.iloc[:0], [], "at least one row"),
    ],
)
def test_mistakes_are_told_in_words(folder, tmp_path, change, options, message):
    data = folder / "patients.csv" if change is None else edited(folder, tmp_path, change)
    options = [option.format(tmp=tmp_path) for option in options]
    result = call("fit", data, *COLUMNS, *QUICK, "--out", tmp_path / "prior", *options, code=2)
    assert message in words(result)
    assert not (tmp_path / "prior").exists()


def test_messages_name_options_and_not_arguments(folder, tmp_path):
    """What Python calls drop_missing=True is --drop missing here."""
    fit = ("fit", "{table}", *COLUMNS, *QUICK, "--out", tmp_path / "prior")
    store = ("store", "{table}", *COLUMNS[:-2], "--out", tmp_path / "stored")
    hole = lambda t: t.assign(heart_rate=t["heart_rate"].where(t.index != 3))  # noqa: E731
    moved = lambda t: t.assign(hospital=np.where(t.index == 0, "south", t["hospital"]))  # noqa: E731
    for change, command, message in (
        (hole, fit, "Fill them in, or pass --drop missing to leave them out."),
        (hole, store, "Fill them in, or pass --drop missing to leave them out."),
        (moved, fit, "name tasks by both columns: --task hospital patient. If not,"),
        (moved, store, "name tasks by both columns: --task hospital patient. If not,"),
        (None, (*fit, "--x", ""), "--x must be the name of a column"),
        (None, (*fit, "--set", "search_time=-1"), "--set search_time must be a positive number of seconds"),
        (
            None,
            ("fit", tmp_path, "--target", "south"),
            "expected a folder of stored tasks.",
        ),
        (None, (*store[:-1], tmp_path), "--out must be a new folder"),
    ):
        table = folder / "patients.csv" if change is None else edited(folder, tmp_path, change)
        result = words(call(*(table if part == "{table}" else part for part in command), code=2))
        assert message in result
        assert "=True" not in result
    twice = edited(folder, tmp_path, lambda t: pd.concat([t, t.iloc[:2]]))
    command = (twice if part == "{table}" else part for part in fit)
    assert "if they are copies, pass --drop duplicates." in words(call(*command))


@pytest.mark.parametrize("command", ["evaluate", "predict", "info"])
def test_a_plot_without_matplotlib_is_refused_before_any_work(folder, tmp_path, monkeypatch, command):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    prior = folder / "prior.safetensors"
    arguments = {
        "evaluate": (prior, folder / "test.csv", "--out", tmp_path / "metrics.csv"),
        "predict": (prior, folder / "readings.csv", folder / "hours.csv", "--out", tmp_path / "predictions.csv"),
        "info": (prior,),
    }[command]
    result = call(command, *arguments, "--plot", tmp_path / "plot.png", code=2)
    assert "Plots need matplotlib, which is not installed: run pip install 'metaprior[plots]'." in words(result)
    assert not list(tmp_path.iterdir())


def test_predict_reads_every_table_once(folder, tmp_path, monkeypatch):
    opened = []
    read = reading.read_table
    monkeypatch.setattr(reading, "read_table", lambda file, columns: (opened.append(file.path), read(file, columns))[1])
    tables = folder / "readings.csv", folder / "hours.csv"
    out = ("--out", tmp_path / "p.csv", "--plot", tmp_path / "p.png")
    call("predict", folder / "prior.safetensors", *tables, *out)
    assert sorted(opened) == sorted(tables)


def test_no_input_is_overwritten(folder, tmp_path):
    prior, table = tmp_path / "prior.safetensors", tmp_path / "table.csv"
    prior.write_bytes((folder / "prior.safetensors").read_bytes())
    table.write_bytes((folder / "test.csv").read_bytes())
    (tmp_path / "link.csv").symlink_to(table)
    for command in (
        ("fit", table, *COLUMNS, *QUICK, "--out", tmp_path / "link.csv"),
        ("evaluate", prior, table, "--out", table),
        ("predict", prior, table, folder / "hours.csv", "--out", table),
        ("info", prior, "--plot", prior),
    ):
        assert "is a file that this command reads" in words(call(*command, code=2))
    assert table.read_bytes() == (folder / "test.csv").read_bytes()
    assert prior.read_bytes() == (folder / "prior.safetensors").read_bytes()


def test_names_that_look_like_markup_are_shown_as_they_are(folder, tmp_path):
    table = pd.read_csv(folder / "test.csv")
    table["patient"] = table["patient"].replace({"T01": "[/x]", "T02": "[b]T2"})
    table.to_csv(tmp_path / "table.csv", index=False)
    result = words(call("evaluate", folder / "prior.safetensors", tmp_path / "table.csv"))
    assert "[/x]" in result
    assert "[b]T2" in result


def test_several_columns_name_a_task(folder, tmp_path):
    both = [*COLUMNS, "--task", "hospital"]
    call("fit", folder / "patients.csv", *both, *QUICK, "--out", tmp_path / "prior")
    call("evaluate", tmp_path / "prior", folder / "test.csv", "--out", tmp_path / "metrics.csv")
    assert list(pd.read_csv(tmp_path / "metrics.csv"))[:3] == ["patient", "hospital", "rmse"]
    files = folder / "readings.csv", folder / "readings.csv"
    call("predict", tmp_path / "prior", *files, "--out", tmp_path / "p.csv", "--plot", tmp_path / "p.png")
    assert list(pd.read_csv(tmp_path / "p.csv"))[:3] == ["patient", "hospital", "hours"]


def test_environment_and_target_go_together(folder, tmp_path):
    data = ("fit", folder / "patients.csv", *COLUMNS[:6], *QUICK, "--out", tmp_path / "prior")
    assert "--environment needs --target" in words(call(*data, "--environment", "hospital", code=2))
    assert "--target needs --environment" in words(call(*data, "--target", "south", code=2))
    assert "--alpha weights other environments" in words(call(*data, code=2))
    call(*(part for part in data if part not in ("--alpha", "0.5")))
    assert load(tmp_path / "prior").alpha_ == 0.0


def test_notes_of_what_is_strange_but_can_be_used(folder, tmp_path):
    twice = edited(folder, tmp_path, lambda t: pd.concat([t, t.iloc[:2]]))
    small = [*QUICK, "--out", tmp_path / "prior"]
    result = call("fit", twice, *COLUMNS, *small)
    assert "Note:" in result.stderr
    assert "2 rows that repeat an earlier row exactly" in words(result)
    dated = edited(
        folder, tmp_path, lambda t: t.assign(hours=pd.Timestamp("2026-01-01") + pd.to_timedelta(t["hours"], "h"))
    )
    result = call("fit", dated, *COLUMNS, *small)
    assert "days since 1970-01-01" in words(result)
    tables = dated, dated, "--out", tmp_path / "p.csv"
    parsed = json.loads(call("predict", tmp_path / "prior", *tables, "--plot", tmp_path / "p.png", "--json").stdout)
    assert parsed["rows"][0]["hours"].startswith("2026-01-01")


@pytest.mark.parametrize("command", ["info", "evaluate", "predict"])
def test_what_is_no_prior_is_refused(folder, tmp_path, command):
    more = {"info": [], "evaluate": [folder / "test.csv"], "predict": [folder / "readings.csv", folder / "hours.csv"]}
    result = call(command, folder / "patients.csv", *more[command], code=2)
    assert "not a file saved by metaprior" in words(result)
    assert "No such file" in words(call(command, tmp_path / "nowhere", *more[command], code=2))


def test_the_walk_through_in_the_readme_works(tmp_path, monkeypatch):
    """As typed, but for a given alpha, which is quicker."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    block = readme[readme.index("metaprior example ") :].split("```")[0]
    commands = [line.split("#")[0].split()[1:] for line in block.splitlines() if line.startswith("metaprior")]
    assert [command[0] for command in commands] == ["example", "fit", "evaluate", "predict", "info"]
    monkeypatch.chdir(tmp_path)
    for command in commands:
        call(*command, *(QUICK if command[0] == "fit" else []))
    assert {"predictions.csv", "predictions.png", "prior.safetensors"} <= {
        path.name for path in Path("example").iterdir()
    }


def test_a_fit_on_stored_tasks(folder, tmp_path):
    stored, prior = tmp_path / "stored", tmp_path / "prior.safetensors"
    columns = COLUMNS[: COLUMNS.index("--target")]
    result = call("store", folder / "patients.csv", *columns, "--out", stored)
    expected = load(folder / "prior.safetensors")
    assert f"south: {expected.report_.n_target_tasks} tasks" in words(result)
    call("fit", stored, "--target", "south", *QUICK, "--out", prior)
    np.testing.assert_allclose(predictions(load(prior)), predictions(expected), rtol=1e-6)
    assert load(prior).training_["columns"] == expected.training_["columns"]
    for arguments, problem in (
        (["store", folder / "patients.csv", *columns, "--out", stored], "--overwrite"),
        (["fit", stored, "--target", "suoth"], "Did you mean 'south'?"),
        (["fit", stored, *COLUMNS], "Leave out --task"),
        (["fit", stored], "pass --target, the one to predict in"),
        (["fit", tmp_path, "--target", "south"], "has no tasks.json"),
        (
            ["fit", folder / "patients.csv", "--x", "hours"],
            "Missing --task, --y: each must name a column of the table.",
        ),
    ):
        assert problem in words(call(*arguments, code=2)), problem


def test_covariates_and_categories_from_fit_to_predict(tmp_path):
    rng, rows = np.random.default_rng(0), []
    for i in range(8):
        age, sex = float(rng.integers(40, 80)), rng.choice(["male", "female"])
        rows += [(f"p{i}", hours, age, sex, hours + age / 10 + 0.1 * rng.normal()) for hours in range(4)]
    table = pd.DataFrame(rows, columns=["patient", "hours", "age", "sex", "y"])
    table.to_csv(tmp_path / "table.csv", index=False)
    new = table[table["patient"] == "p0"].assign(patient="new", y=lambda frame: frame["y"] + 0.5)
    new.drop(columns=["age", "sex"]).head(2).to_csv(tmp_path / "context.csv", index=False)
    new.drop(columns="y").to_csv(tmp_path / "query.csv", index=False)
    prior = str(tmp_path / "prior.safetensors")
    named = ["--task", "patient", "--x", "hours", "--covariates", "age", "sex", "--y", "y"]
    result = call("fit", tmp_path / "table.csv", *named, "--out", prior)
    assert "column sex holds text, taken for categories" in words(result)
    shown = words(call("info", prior))
    assert "levels of sex" in shown
    assert "age, sex" in shown
    call("predict", prior, tmp_path / "context.csv", tmp_path / "query.csv", "--out", tmp_path / "out.csv")
    assert pd.read_csv(tmp_path / "out.csv")["mean"].notna().all()
    call("fit", tmp_path / "table.csv", *named, "--report", tmp_path / "page.html", "--out", prior)
    assert "At age " in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_covariates_that_vary_within_a_task_are_named_by_lines_of_the_file(tmp_path):
    lines = [f"{task},{hours},{40 + task},{hours}" for task in range(4) for hours in range(3)]
    lines[4] = "1,1,50,1"
    (tmp_path / "t.csv").write_text("\n".join(["id,hours,age,y", *lines]))
    named = ("--task", "id", "--x", "hours", "--y", "y", "--covariates", "age")
    said = words(call("fit", tmp_path / "t.csv", *named, "--out", tmp_path / "prior", code=2))
    assert "line 6, column age: covariate 'age' must have one value within a task; task '1' has 50 here and 41" in said
    assert "in line 5" in said
    assert "out of --covariates" in said
