"""The code on the documentation pages runs, and what they name exists. Examples have tests of their own."""

import pkgutil
import re
import sys
from importlib import resources
from pathlib import Path

import jax
import pytest
from running import call

import metaprior
from metaprior import wfem
from metaprior.wfem import Training

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if page.parent.name != "gallery")
SHORT = Training(n_steps=20, progress=False)


@pytest.fixture
def quick(monkeypatch):
    """Leave out the search and most steps where a page does not ask for them, so that the pages run in seconds."""
    default, networks = metaprior.MetaGPRegressor, wfem.WFEMRegressor
    monkeypatch.setattr(metaprior, "MetaGPRegressor", lambda **given: default(**{"alpha": 0.3, **given}))
    monkeypatch.setattr(wfem, "WFEMRegressor", lambda *given, **named: networks(*given, **{"training": SHORT, **named}))


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Write the tables of `metaprior example` to the working folder."""
    (tmp_path / "example").mkdir()
    for table in resources.files("metaprior").joinpath("datasets", "example").iterdir():
        if table.name.endswith(".csv"):
            (tmp_path / "example" / table.name).write_bytes(table.read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("METAPRIOR_DATA", str(tmp_path / "nowhere"))


@pytest.mark.parametrize("page", ["first-steps", "quickstart", "data", "wfem", "custom-parts"])
@pytest.mark.filterwarnings("ignore::metaprior.TableWarning")
@pytest.mark.usefixtures("quick", "tables")
def test_the_code_on_a_page_runs(page, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "guides" / f"{page}.md").read_text(), flags=re.DOTALL)
    namespace = {"__name__": page}
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):  # as users have them
        exec(compile("\n".join(blocks), page, "exec"), namespace)
    assert namespace["meta"].n_features_in_ == 1
    assert capsys.readouterr().out


@pytest.mark.usefixtures("tables")
def test_the_quickstart_shows_what_a_fit_prints():
    """Its verdict above all, and the names of columns; numbers may differ in their last digits between machines."""
    page = (DOCS / "guides" / "quickstart.md").read_text()
    command, shown = re.search(r"\$ metaprior (fit example.*?[^\\]\n)(.*?)```", page, flags=re.DOTALL).groups()
    printed = call(*command.replace("\\\n", " ").split()).stdout

    def in_words(text):
        return " ".join(re.sub(r"[\d.]+", "#", text).split())

    assert in_words(shown) == in_words(printed)


def test_the_page_on_conformal_intervals_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "guides" / "conformal.md").read_text(), flags=re.DOTALL)
    namespace = {"__name__": "conformal.md"}
    exec(compile("\n".join(blocks), "conformal.md", "exec"), namespace)
    assert (namespace["lower"] < namespace["upper"]).all()
    assert "of 15 tasks are predicted better" in capsys.readouterr().out


def test_the_page_on_other_libraries_runs(tmp_path, monkeypatch, capsys):
    """With the default prior: others cannot be exported. MAPIE, SHAP and ArviZ have tests of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "guides" / "other-libraries.md").read_text(), flags=re.DOTALL)
    namespace = {"__name__": "other-libraries.md"}
    try:
        exec(compile("\n".join(blocks), "other-libraries.md", "exec"), namespace)
    finally:
        sys.modules.pop("patient", None)
    assert "AdaptedRegressor(6 readings as context, 1 input column)" in capsys.readouterr().out
    assert namespace["patient"].__file__ == str(tmp_path / "patient.py")


def test_the_navigation_lists_every_page():
    listed = re.findall(r"[:-] ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    assert sorted(listed) == [page.relative_to(DOCS).as_posix() for page in PAGES]


def test_measurements_are_on_the_pages_of_results_with_their_commands():
    """Elsewhere stands a link; what a command prints may stand on a guide."""
    for page in PAGES:
        text, kind = page.read_text(), page.parent.name
        if kind == "results":
            assert re.search(r"(?:python studies/benchmarks|python -m pytest|metaprior reproduce|make bench)", text), (
                page.name
            )
        else:
            outside_of_code = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
            assert "studies/results" not in outside_of_code, page.name
            assert kind == "reference" or "±" not in outside_of_code, page.name


def test_every_file_named_in_the_docs_exists():
    """Scripts, results and modules are named as paths from the root of the repository."""
    for page in PAGES:
        for path in re.findall(r"(?:studies|examples|docs/images)/[\w/.-]*\w/?", page.read_text()):
            assert (ROOT / path).exists(), f"{page.name}: {path}"


def test_every_name_in_the_notation_table_exists():
    """Names such as `wfem.gp.condition` are modules, functions or classes of the package."""
    rooms = "tasks|likelihoods|prior|predict|search|wfem"
    names = re.findall(rf"`((?:{rooms})\.[\w.]+)", (DOCS / "reference" / "notation.md").read_text())
    assert len(names) > 25
    for name in names:
        pkgutil.resolve_name(f"metaprior.{name}")


def test_every_file_of_the_package_named_in_the_docs_exists():
    """Pages name modules as paths below the package, such as `prior/terms.py`."""
    for page in (*PAGES, ROOT / "CONTRIBUTING.md"):
        for path in re.findall(r"`((?:\w+/)+\w+\.py)`", page.read_text()):
            assert (ROOT / path).exists() or (ROOT / "src" / "metaprior" / path).exists(), f"{page.name}: {path}"


def test_every_name_for_contributors_exists():
    """Functions and classes are named with their module, such as `prior.terms.Term`; folders end in a slash."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = re.findall(r"`((?:src|studies|tests|docs|examples|tools)/[\w/.-]*)`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    rooms = [path.name for path in (ROOT / "src" / "metaprior").iterdir() if (path / "__init__.py").exists()]
    names = re.findall(rf"`((?:{'|'.join(rooms)})\.[\w.]+)`", text)
    assert len(names) > 10
    for name in names:
        pkgutil.resolve_name(f"metaprior.{name}")
    assert [room for room in rooms if f"`{room}/`" not in text] == []


def test_every_public_name_is_on_one_page_of_the_reference():
    """A class has a page of its own, which has its name."""
    public = {*metaprior.__all__, *(f"wfem.{name}" for name in wfem.__all__)}
    listed = []
    for page in (DOCS / "reference" / "python").glob("*.md"):
        names = re.findall(r"^::: metaprior\.([\w.]+)$", page.read_text(), flags=re.MULTILINE)
        assert len(names) != 1 or names[0].rpartition(".")[2] == page.stem
        listed += [name for name in names if name in public]
    assert sorted(listed) == sorted(public)
