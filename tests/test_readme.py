"""The README's code runs, and the commands and files it names exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_examples_in_the_readme_run(capsys):
    """The default first, then the paper's method on the same tasks."""
    blocks, namespace = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL), {}
    for code, name, printed in zip(blocks, ("MetaGPRegressor", "WFEMRegressor"), ("rmse", "articles"), strict=True):
        assert len(code.strip().splitlines()) <= 12
        exec(compile(code, "README.md", "exec"), namespace)
        assert type(namespace["meta"]).__name__ == name
        assert printed in capsys.readouterr().out


def test_both_doors_are_on_the_first_two_screens_of_the_readme():
    start = "\n".join((ROOT / "README.md").read_text().splitlines()[:60])
    installed = ("pip install metaprior ", 'pip install "metaprior[wfem]"')
    assert [name for name in (*installed, "MetaGPRegressor(", "WFEMRegressor(", "SVGD(") if name not in start] == []


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 110


def test_every_target_and_link_in_the_readme_exists():
    readme = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"`?make (\w+)", readme))
    assert {"run", "test"} <= targets
    assert all(f"\n{target}:" in makefile for target in targets)
    links = re.findall(r"\]\((?!https://)([^)#]+)(?:#([^)]+))?\)", readme)
    assert links
    for path, anchor in links:
        assert (ROOT / path).exists(), path
        assert not anchor or anchor in anchors(ROOT / path), f"{path}#{anchor}"


def anchors(page):
    """Anchors of a page's headings, as GitHub and mkdocs make them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}
