"""Standard output that cannot spell names, ± and boxes; and exit codes of mistakes in metaprior itself."""

import io
import json
import subprocess
import sys

import pandas as pd
import pytest
from typer.testing import CliRunner

from metaprior.cli import app
from metaprior.cli.console import PLAIN

ENCODINGS = ("ascii", "cp1252")
COLUMNS = ["--task", "患者", "--x", "stunde", "--y", "wärme", "--environment", "ort", "--target", "Süd"]
FIT = ["fit", "../tafel.csv", *COLUMNS, "--alpha", "0.5", "--hold-out", "0.4", "--out"]
COMMANDS = {
    "fit": [*FIT, "a.safetensors"],
    "fit in JSON": [*FIT, "b.safetensors", "--json"],
    "info": ["info", "a.safetensors"],
    "info in JSON": ["info", "a.safetensors", "--json"],
    "evaluate": ["evaluate", "a.safetensors", "../tafel.csv", "--context", "2"],
    "evaluate in JSON": ["evaluate", "a.safetensors", "../tafel.csv", "--context", "2", "--json"],
    "predict": ["predict", "a.safetensors", "../tafel.csv", "../tafel.csv", "--out", "p.csv"],
    "predict in JSON": ["predict", "a.safetensors", "../tafel.csv", "../tafel.csv", "--out", "q.csv", "--json"],
    "store": ["store", "../tafel.csv", *COLUMNS[:-2], "--out", "gespeichert"],
    "example": ["example", "--out", "Beispiel-ß-患者"],
    "help": ["fit", "--help"],
    "a mistake": ["fit", "../tafel.csv", *COLUMNS[:-1], "北"],
    "a mistake in JSON": ["fit", "../tafel.csv", *COLUMNS[:-1], "北", "--json"],
}
RUN = """
import json, os, sys
import metaprior.cli, metaprior.estimators.comparison, metaprior.estimators.fit, metaprior.tables.frames
import pandas, sklearn.gaussian_process

encodings, commands = map(json.loads, sys.argv[1:])
for encoding in encodings:
    os.mkdir(encoding)
    for name, arguments in commands.items():
        if not (child := os.fork()):  # imports take longer than all commands
            os.chdir(encoding)
            for stream, end in ((sys.stdout, "out"), (sys.stderr, "err")):
                stream.reconfigure(encoding=encoding, errors="strict")  # as by PYTHONIOENCODING
                os.dup2(os.open(f"{name}.{end}", os.O_WRONLY | os.O_CREAT), stream.fileno())
            sys.argv = ["metaprior", *arguments]
            metaprior.cli.run()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        open(f"{encoding}/{name}.code", "w").write(str(code))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder where all commands have run, and have written exit codes and what they printed."""
    folder = tmp_path_factory.mktemp("encodings")
    towns = ("Nørd", "Süd")
    rows = [
        (f"患者{i}", towns[i % 2], hour, i + hour * 0.5 + (i * hour) % 3 / 10) for i in range(8) for hour in range(4)
    ]
    pd.DataFrame(rows, columns=["患者", "ort", "stunde", "wärme"]).to_csv(folder / "tafel.csv", index=False)
    subprocess.run([sys.executable, "-c", RUN, json.dumps(ENCODINGS), json.dumps(COMMANDS)], cwd=folder, check=True)
    return folder


@pytest.fixture(params=ENCODINGS)
def endings(request, folder):
    """The encoding, the exit code, standard output and error of every command, and their folder."""
    here = folder / request.param

    def text(name):
        return (here / name).read_bytes().decode(request.param)

    ended = {name: (int(text(f"{name}.code")), text(f"{name}.out"), text(f"{name}.err")) for name in COMMANDS}
    return ended | {"encoding": request.param, "folder": here}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_ends_as_it_does_elsewhere(name, endings):
    code, out, err = endings[name]
    assert code == (2 if name.startswith("a mistake") else 0), err
    assert "Traceback" not in out + err
    if name.endswith("JSON"):
        assert json.loads(out)


def test_what_is_printed_can_be_read(endings):
    assert ("+-" if endings["encoding"] == "ascii" else "±") in endings["info"][1]
    assert "\\u60a3\\u80051" in endings["predict"][1]
    assert "\\u5317" in endings["a mistake"][2]
    assert json.loads(endings["predict in JSON"][1])["rows"][0]["患者"] == "患者0"


def test_files_are_utf8_whatever_the_output_is(endings):
    folder = endings["folder"]
    assert pd.read_csv(folder / "p.csv", encoding="utf-8")["患者"][0] == "患者0"
    assert json.loads((folder / "gespeichert" / "tasks.json").read_text(encoding="utf-8"))["columns"]["y"] == "wärme"


def test_characters_that_an_encoding_lacks():
    raw = io.BytesIO()
    text = io.TextIOWrapper(raw, "ascii", errors=PLAIN, write_through=True)
    text.write("1 ± 2 … 3–4 −5 “a” 患 é ┏━┓ \udcff")
    assert raw.getvalue() == rb"""1 +- 2 ... 3-4 -5 "a" \u60a3 \xe9 +-+ \udcff"""


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    "error", [KeyError("theta"), RuntimeError("of JAX"), EOFError(), AssertionError(), ZeroDivisionError()]
)
def test_a_mistake_in_metaprior_has_an_exit_code_of_its_own(error, as_json, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr("metaprior.estimators.files.read_prior", fail)
    result = CliRunner().invoke(app, ["info", "prior.safetensors", *(["--json"] if as_json else [])])
    assert result.exit_code == 70
    assert f"{type(error).__name__}" in result.stderr.splitlines()[-1]
    assert "Traceback" in result.stderr
    if as_json:
        assert json.loads(result.stdout)["exit_code"] == 70


def test_the_traceback_of_an_error_in_arguments_keeps_the_exit_code(monkeypatch):
    monkeypatch.setenv("METAPRIOR_TRACEBACK", "1")
    result = CliRunner().invoke(app, ["info", "nowhere.safetensors"])
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "nowhere.safetensors" in result.stderr.splitlines()[-1]
