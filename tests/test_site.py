"""The site: pages of examples are those of the examples, formulas are balanced, nothing comes from other servers."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [path for path in sorted(DOCS.rglob("*.md")) if path.name not in ("index.md", "mg_execution_times.md")]
MOST_BYTES = 2_000_000  # of the gallery, pictures included


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_page_of_an_example_is_current(path):
    """If this fails, run `make gallery` where the data are, and commit docs/gallery."""
    folder = DOCS / "gallery"
    assert (folder / f"{path.name}.md5").read_text() == hashlib.md5(path.read_text().encode()).hexdigest()
    page = (folder / f"{path.stem}.md").read_text()
    pictures = re.findall(r"\]\(\./(images/[\w.-]+)\)", page)
    assert pictures
    assert all((folder / picture).stat().st_size > 5_000 for picture in pictures)
    assert json.loads((folder / f"{path.stem}.ipynb").read_text())["cells"]
    assert str(ROOT) not in page
    assert "/work/" not in page
    assert "Warning" not in page.replace("ExtrapolationWarning", "").replace("TableWarning", "")


def test_the_gallery_is_small_and_has_no_picture_too_many():
    folder = DOCS / "gallery"
    listed = subprocess.run(["git", "ls-files", str(folder)], cwd=ROOT, capture_output=True, text=True)
    files = [ROOT / name for name in listed.stdout.split()] or list(folder.rglob("*.*"))
    assert sum(path.stat().st_size for path in files if path.exists()) < MOST_BYTES
    text = "".join(page.read_text() for page in folder.glob("*.md"))
    assert [path.name for path in (folder / "images").glob("*.png") if path.name not in text] == []


@pytest.mark.parametrize("page", [*PAGES, DOCS / "index.md"], ids=lambda path: path.stem)
def test_formulas_are_balanced(page):
    """A dollar sign outside of code opens or closes a formula, and braces within formulas are in pairs."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    blocks = re.findall(r"^\$\$\n(.*?)\n\$\$$", text, flags=re.DOTALL | re.MULTILINE)
    assert text.count("$$") == 2 * len(blocks)
    for line in re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL).splitlines():
        assert line.count("$") % 2 == 0, line
        formulas = re.findall(r"\$(.+?)\$", line)
        assert not any("|" in formula for formula in formulas), f"a bar ends a cell of a table: {line}"
        blocks += formulas
    for formula in blocks:
        assert formula.count("{") == formula.count("}"), formula
        assert formula.strip() == formula, formula
        assert not re.search(r"\\[,;:!{}]", formula), f"GitHub eats the backslash of {formula}"


def test_katex_is_complete():
    """Its style names the fonts that are there, in one format, and nothing else."""
    folder = DOCS / "katex"
    named = set(re.findall(r"url\(([^)]+)\)", (folder / "katex.min.css").read_text()))
    assert named == {f"fonts/{path.name}" for path in (folder / "fonts").iterdir()}
    assert all(name.endswith(".woff2") for name in named)
    assert "MIT" in (folder / "LICENSE").read_text()


@pytest.mark.slow
def test_the_site_builds_without_data_and_loads_nothing_from_elsewhere(tmp_path, monkeypatch):
    pytest.importorskip("mkdocs_gallery")
    pytest.importorskip("mkdocstrings")
    project, site = tmp_path / "project", tmp_path / "site"
    kept = shutil.ignore_patterns("__pycache__")
    for name in ("docs", "examples", "src", "studies", "tools"):
        shutil.copytree(ROOT / name, project / name, ignore=kept)
    for name in ("mkdocs.yml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, project)
    monkeypatch.setenv("METAPRIOR_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    monkeypatch.delenv("METAPRIOR_GALLERY", raising=False)
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)],
        cwd=project, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]  # its paths are those of a server
    assert len(pages) > 20
    for page in pages:
        text = page.read_text()
        loaded = re.findall(
            r"<(?:img|script|link|iframe|source)\b[^>]*?\b(?:src|href|srcset)=[\"']?(?:https?:)?//[^>]*", text
        )
        assert [tag for tag in loaded if 'rel="canonical"' not in tag] == [], page
        for source in re.findall(r'<(?:img|script)\b[^>]*?\bsrc="([^"#?:]+)"', text):
            assert (page.parent / source).exists(), f"{page.name}: {source}"
        for link in re.findall(r'<a\b[^>]*?\bhref="([^"#?:]+)"', text):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", style.read_text()), style
    (project / "examples" / "wifi_maps.py").write_text("changed")
    again = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet"], cwd=project, capture_output=True, text=True
    )
    assert again.returncode == 1
    assert "no current page of wifi_maps.py. Run `make gallery`" in again.stderr
