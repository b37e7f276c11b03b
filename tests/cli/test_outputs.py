"""What commands replace: files that were named, and nothing else."""

from pathlib import Path

import pytest
from running import call, words

from metaprior.cli.options import named_values

NAMES = ["--task", "patient", "--x", "hours", "--y", "heart_rate", "--environment", "hospital"]
FIT = [*NAMES, "--target", "south", "--alpha", "0.5"]


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The example, and a prior of it."""
    folder = tmp_path_factory.mktemp("outputs")
    call("example", "--out", folder)
    call("fit", folder / "patients.csv", *FIT, "--out", folder / "prior.safetensors")
    return folder


def test_an_example_replaces_no_other_file_unless_told_so(tmp_path):
    written = {path.name: path.read_bytes() for path in _example(tmp_path)}
    _example(tmp_path)  # what is there already is no mistake
    (tmp_path / "patients.csv").write_text("mine\n")
    (tmp_path / "hours.csv").unlink()
    problem = words(call("example", "--out", tmp_path, code=2))
    assert f"{tmp_path / 'patients.csv'} would be replaced. Pass --overwrite" in problem
    assert (tmp_path / "patients.csv").read_text() == "mine\n"
    assert not (tmp_path / "hours.csv").exists()  # nothing was begun
    assert {path.name: path.read_bytes() for path in _example(tmp_path, "--overwrite")} == written


def _example(folder, *options):
    call("example", "--out", folder, *options)
    return sorted(folder.iterdir())


def test_an_example_in_place_of_files_and_folders(tmp_path):
    (tmp_path / "file").write_text("mine")
    call("example", "--out", tmp_path / "file", code=2)
    (tmp_path / "folder" / "test.csv").mkdir(parents=True)
    assert "would be replaced" in words(call("example", "--out", tmp_path / "folder", code=2))
    assert "Is a directory" in words(call("example", "--out", tmp_path / "folder", "--overwrite", code=2))
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["prior.safetensors", "predictions.csv"])
def test_a_file_of_the_default_name_stays_unless_it_is_named(name, example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tables = [example / each for each in ("readings.csv", "hours.csv")]
    command = ["fit", example / "patients.csv", *FIT] if name == "prior.safetensors" else None
    command = command or ["predict", example / "prior.safetensors", *tables]
    Path(name).write_text("mine")
    assert f"{name} exists already. Pass --out {name} to replace it" in words(call(*command, code=2))
    assert Path(name).read_text() == "mine"
    call(*command, "--out", name)
    assert Path(name).read_bytes() != b"mine"


def test_no_command_replaces_what_it_reads(example):
    """By its name, another spelling of it, a link, and from every option that names a file."""
    prior, table = example / "prior.safetensors", example / "patients.csv"
    before = {path: path.read_bytes() for path in (prior, table)}
    (example / "link.csv").symlink_to(table)
    (example / "hard.csv").hardlink_to(table)
    spelled = example / "." / ".." / example.name / table.name
    others = [example / "readings.csv", example / "hours.csv"]
    for command in (
        *(["fit", table, *FIT, "--out", out] for out in (table, spelled, example / "link.csv", example / "hard.csv")),
        ["fit", table, *FIT, "--out", example / "new", "--report", table],
        ["evaluate", prior, table, "--out", table],
        ["evaluate", prior, table, "--out", prior],
        ["evaluate", prior, table, "--plot", prior],
        ["predict", prior, table, others[1], "--out", table],
        ["predict", prior, *others, "--out", prior],
        ["predict", prior, *others, "--out", example / "new.csv", "--plot", others[0]],
        ["info", prior, "--plot", prior],
    ):
        assert "that this command reads" in words(call(*command, code=2)), command
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    "twice",
    [
        ["--out", "a.safetensors", "--out", "b.safetensors"],
        ["--kind=regression", "--kind", "classification"],
        ["--hold-out=0.2", "--hold-out=0.3"],
    ],
)
def test_of_an_option_with_two_values_the_last_counts_and_the_first_is_noted(twice, example):
    told = words(call("fit", example / "nowhere.csv", *FIT, *twice, code=2))
    first, last = " ".join(twice).replace("=", " ").rsplit(" --", 1)
    assert f"Note: {first} does not count: --{last} comes later." in told


def test_an_option_may_be_repeated(example):
    out = ["--out", "prior.safetensors"]
    assert "does not count" not in words(call("fit", "nowhere.csv", *FIT, "--x", "hours", *out, *out, code=2))


@pytest.mark.parametrize(
    ("command", "option", "instead"),
    [
        ("fit", "--exposure=days", "--set exposure=..."),
        ("fit", "--noise=2", "--set noise_std=..."),
        ("fit", "--sep=;", "--csv sep=..."),
        ("store", "--encoding=cp1252", "--csv encoding=..."),
        ("predict", "--conformal", "--method conformal"),
    ],
)
def test_what_has_no_option_of_its_own_is_given_by_another(command, option, instead, example):
    assert f"(write {instead})" in words(call(command, example / "nowhere.csv", option, code=2))


@pytest.mark.parametrize("place", range(3))
def test_a_folder_in_place_of_a_file_is_told(place, example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = [example / each for each in ("prior.safetensors", "readings.csv", "hours.csv")]
    files[place] = "."
    assert ". is a folder" in words(call("predict", *files, "--out", "new.csv", code=2))


def test_a_context_that_is_none_is_told_in_the_spelling_of_options(example):
    told = words(call("fit", example / "patients.csv", *FIT, "--context", "foo", code=2))
    assert "or 'first 5'; got 'foo'." in told
    assert "Value error" not in words(call("fit", example / "patients.csv", *FIT, "--kind", "foo", code=2))


def test_a_name_given_two_values_is_refused():
    assert named_values("--set", ["a=1", "a=1"], ["a"]) == {"a": "1"}
    with pytest.raises(ValueError, match=r"--set a is given twice, as '1' and '2'\. Leave one out\."):
        named_values("--set", ["a=1", "a=2"], ["a"])
