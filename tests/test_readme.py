"""What the README says is what happens."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_example_in_the_readme_runs():
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(code.strip().splitlines()) <= 12
    exec(compile(code, "README.md", "exec"), {})


# Those on real data are in test_docs.py; few-shot learning on generated images is in the demo, too.
@pytest.mark.parametrize("name", [pytest.param("fewshot.py", marks=pytest.mark.slow), "sinusoid.py"])
def test_examples_run(name, capsys):
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    assert " ± " in capsys.readouterr().out


def test_every_target_and_file_named_in_the_readme_exists():
    readme = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"`?make (\w+)", readme))
    assert {"run", "test"} <= targets
    assert all(f"\n{target}:" in makefile for target in targets)
    links = re.findall(r"\]\(([^)#h][^)#]*)\)", readme)
    assert links
    assert all((ROOT / link).exists() for link in links)
