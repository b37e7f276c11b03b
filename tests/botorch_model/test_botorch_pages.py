"""The code for BoTorch on the documentation pages runs, and so does the example."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("botorch")

import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[2]


def test_the_code_on_the_page_runs():
    page = (ROOT / "docs" / "guides" / "other-libraries.md").read_text()
    first = re.search(r"```python\n(.*?)```", page, flags=re.DOTALL).group(1)
    section = page.partition("## BoTorch")[2].partition("\n## ")[0]
    code, namespace = [first, *re.findall(r"```\n(.*?)```", section, flags=re.DOTALL)], {}
    exec(compile("\n".join(code), "page", "exec"), namespace)
    assert namespace["candidate"].shape == (1, 1)
    assert namespace["kernels"][int(namespace["setting"][0, 1])] == "rbf"
    assert abs(namespace["setting"][0, 0] - 0.5) < 1.0  # the best log_C of this data set
    assert namespace["setting"][0, 2] == namespace["new"]


@pytest.mark.slow
def test_the_example_runs(monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.gcf()))
    space = runpy.run_path(str(ROOT / "examples" / "tuning_botorch.py"), run_name="__main__")
    assert len(shown) == 1
    plt.close("all")
    printed = capsys.readouterr().out
    assert all(name in printed for name in space["names"])
    learned, copied, alone = space["best"]
    np.testing.assert_array_equal(learned[:, 0], copied[:, 0])  # both start at the same past optimum
    assert learned[:, 4].mean() > alone[:, 4].mean()
    assert all(np.all(np.diff(found, axis=1) >= 0) for found in space["best"])
