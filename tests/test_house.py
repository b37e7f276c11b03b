"""The rules of the house that no linter holds: the size of the core, lengths of functions, imports when used."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = sorted((ROOT / "src" / "metaprior").rglob("*.py"))
MODULES = [*CORE, *sorted((ROOT / "app" / "metaprior_app").rglob("*.py"))]
# Of the core. Lower them when it shrinks: new ideas replace old ones.
MAX_FILES, MAX_LINES = 111, 28_350
MAX_FUNCTION_LINES = 60
# Command functions are long by their options, constructors by their parameters.
LONG_BY_SIGNATURE = {"fit", "wfem", "evaluate", "predict", "predict_frame"}


def test_functions_fit_on_a_screen():
    long = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name not in LONG_BY_SIGNATURE | {"__init__"}:
                n_lines = node.end_lineno - node.lineno + 1
                if n_lines > MAX_FUNCTION_LINES:
                    long.append((str(path.relative_to(ROOT)), node.name, n_lines))
    assert long == []


def test_the_core_stays_small():
    assert len(CORE) <= MAX_FILES
    assert sum(path.read_text().count("\n") for path in CORE) <= MAX_LINES


def test_there_are_at_most_ten_layers():
    contract, _ = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert contract["exhaustive"]
    assert len(contract["layers"]) <= 10


def test_there_are_at_most_nine_hard_dependencies():
    assert len(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]) <= 9


def test_every_room_has_deliberate_errors_and_tests():
    sys.path.insert(0, str(ROOT / "tools"))
    import mutants

    rooms = {path.parent.name for path in CORE} - {"metaprior"}
    assert rooms == {*mutants.PACKAGES} - {"root"}
    for path in CORE:
        assert mutants.tests_of(str(path.relative_to(ROOT))), path


def test_folders_of_tests_do_not_pass_for_libraries():
    """A folder on pytest's path is importable: `tests/botorch` was found where BoTorch was not installed."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = [settings["project"]["dependencies"], *settings["project"]["optional-dependencies"].values()]
    libraries = {re.match(r"[\w-]+", line).group().replace("-", "_") for lines in named for line in lines}
    paths = settings["tool"]["pytest"]["ini_options"]["pythonpath"]
    folders = {folder.name for path in paths for folder in (ROOT / path).iterdir() if folder.is_dir()}
    assert libraries & folders == set()


def test_matplotlib_and_the_studies_are_imported_when_used():
    code = "import sys, metaprior, metaprior.cli; print([m for m in sys.modules if m.split('.')[0] in NOT_YET])"
    code = code.replace("NOT_YET", "('matplotlib', 'metaprior_studies', 'PIL', 'narwhals', 'pandas')")
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"


def test_plurals_are_made_in_one_place():
    """`checks.counted` also groups thousands, and gets one thing right."""
    found = [path.name for path in MODULES if re.search(r"""['"]s['"] (\*|if) """, path.read_text())]
    assert found == ["checks.py"]


def test_types_and_shapes_are_checked_while_tests_run():
    """In metaprior.wfem, where annotations have shapes."""
    from metaprior.wfem.linalg import cholesky

    with pytest.raises(Exception, match=r"type|violates"):
        cholesky("no array")
