"""What is published: the wheel and the sdist, an empty environment with the wheel, and how to cite it."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import metaprior

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "metaprior"
# Not of the environment that runs the tests, and without the settings of the tests.
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "JAX", "XLA", "COV"))}
FIT = "--task patient --x hours --y heart_rate --environment hospital --target south --out example/prior.safetensors"
WALK = [
    "example",
    f"fit example/patients.csv {FIT}",
    "evaluate example/prior.safetensors example/test.csv",
    "predict example/prior.safetensors example/readings.csv example/hours.csv --out example/predictions.csv",
    "info example/prior.safetensors",
]


def test_the_citation_names_this_version_and_the_paper():
    """`cffconvert --validate` checks its form."""
    text = (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^version: {re.escape(metaprior.__version__)}$", text, flags=re.MULTILINE)
    for name in ("README.md", "docs/index.md"):
        page = (ROOT / name).read_text()
        assert "Yunchuan Zhang, Sharu Theresa Jose" in page
        assert re.search(r"^    url: (.*)$", text, flags=re.MULTILINE)[1] in page


def test_extras_and_versions_are_consistent():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = [each.rpartition(" ")[2] for each in project["classifiers"] if "Python :: 3." in each]
    assert project["requires-python"] == f">={versions[0]}"
    assert {"app", "arviz", "plots"} <= set(project["optional-dependencies"])


@pytest.mark.skipif(Path(sys.prefix).name != ".venv-floors", reason="`make test-floors` runs it")
def test_the_lower_bounds_can_be_installed_together():
    """A resolver raises a bound that conflicts with another, silently: then it is not true."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["app"], *extras["plots"], *extras["studies"], *extras["test"]]
    declared = [each for each in map(Requirement, lines) if each.name != "metaprior"]
    floors = {each.name: str(each.specifier).split(">=")[1].split(",")[0] for each in declared}
    installed = {name: version(name) for name in floors}
    assert {name: Version(found) for name, found in installed.items()} == {n: Version(low) for n, low in floors.items()}


def run(command, folder, **arguments):
    done = subprocess.run(command, cwd=folder, env=CLEAN, capture_output=True, text=True, **arguments)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def expected_files():
    """The files of both packages in the repository."""
    folders = ["src/metaprior", "app/metaprior_app"]
    files = run(["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders], ROOT).split()
    return {name.partition("/")[2] for name in files if (ROOT / name).exists()}


def content(wheel):
    """The files of a wheel but for the record of the installation, with their bytes."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """An sdist, the wheel that is built from it, and one that is built from the repository. It asks for hatchling."""
    pytest.importorskip("build")
    folders = [tmp_path_factory.mktemp(name) for name in ("from_sdist", "direct")]
    run([sys.executable, "-m", "build", "--outdir", str(folders[0]), str(ROOT)], ROOT)
    run([sys.executable, "-m", "build", "--wheel", "--outdir", str(folders[1]), str(ROOT)], ROOT)
    [sdist], [wheel], [direct] = folders[0].glob("*.tar.gz"), folders[0].glob("*.whl"), folders[1].glob("*.whl")
    return sdist, wheel, direct


@pytest.mark.slow
def test_the_wheel_has_the_package_and_nothing_else(built):
    sdist, wheel, direct = built
    files = content(wheel)
    assert files == content(direct)
    package = {name for name in files if not name.startswith(f"metaprior-{metaprior.__version__}.dist-info/")}
    assert package == expected_files()
    for part in ("datasets/example/patients.csv", "py.typed"):
        assert files[f"metaprior/{part}"] == (PACKAGE / part).read_bytes()
    for part in ("templates/page.html", "static/charts.js"):
        assert files[f"metaprior_app/{part}"] == (ROOT / "app" / "metaprior_app" / part).read_bytes()
    with tarfile.open(sdist) as archive:
        top = {Path(name).parts[1] for name in archive.getnames() if len(Path(name).parts) > 1}
    assert {"src", "app", "tests", "docs", "LICENSE", "CITATION.cff", "pyproject.toml"} <= top
    assert not {"studies", ".venv", "site", "tools"} & top


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(built, tmp_path):
    """All dependencies are installed anew, which takes minutes and needs a package index."""
    environment, work = tmp_path / "environment", tmp_path / "work"
    work.mkdir()
    venv.create(environment, with_pip=True)
    folder = environment / ("Scripts" if os.name == "nt" else "bin")
    run([folder / "python", "-m", "pip", "install", "--quiet", str(built[1])], work)
    where, version = run(
        [folder / "python", "-c", "import metaprior as m; print(m.__file__); print(m.__version__)"], work
    ).split()
    assert Path(where).is_relative_to(environment)
    assert version == metaprior.__version__
    said = [run([folder / "metaprior", *command.split()], work) for command in WALK]
    assert (work / "example" / "predictions.csv").stat().st_size > 0
    assert "south" in said[1] + said[-1]
    code = "import metaprior, patient_page as p; print(p.predict([[3.0]], return_std=True))"
    export = "import metaprior; metaprior.load('example/prior.safetensors').adapt([], []).export('patient_page.py')"
    run([folder / "python", "-c", export], work)
    run([folder / "python", "-c", code], work)
    said = run([folder / "python", "-m", "pip", "check"], work)
    assert "No broken requirements" in said
