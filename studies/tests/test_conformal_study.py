"""The study of conformal intervals: kinds of tasks, a row of every command, and the means that it prints."""

import conformal
import conformal_responses
import numpy as np
import pandas as pd
import pytest

from metaprior.tasks.types import Task


def test_kinds_are_what_they_are_called():
    x, rng = np.zeros(20_000), np.random.default_rng(0)
    noise = {kind: draw(x, rng) for kind, draw in conformal.KINDS.items()}
    centered = noise["skewed"] - noise["skewed"].mean()
    assert np.mean(centered**3) / np.std(centered) ** 3 == pytest.approx(2.0, abs=0.3)
    assert set(np.unique(noise["clipped"])) <= set(range(3, 16))
    at_top = [np.mean(y == 15.0) for _, y in conformal.draw_tasks("clipped", 300, rng)]
    assert 0.4 < np.mean(at_top) < 0.65


def test_a_simulated_problem_gives_a_row_and_the_report_its_means(tmp_path, capsys):
    row = conformal.simulated_row({"kind": "gaussian", "n_tasks": 10, "draw": 3})
    assert 0.8 < row["coverage"] <= 1.0
    assert row["width"] / row["own_width"] == pytest.approx(row["width_ratio"], rel=1e-4)
    path = tmp_path / "rows.csv"
    pd.DataFrame([row, {**row, "draw": 4, "coverage": row["coverage"] - 0.1}]).to_csv(path, index=False)
    conformal.report(path)
    assert f"{row['coverage'] - 0.05:.4f} ± 0.0500" in capsys.readouterr().out


def test_a_certificate_is_compared_with_new_tasks():
    row = conformal.certified_row({"shift": 0.0, "n_tasks": 6, "draw": 1})
    assert row["of"] == 6
    assert 0.0 <= row["bound"] <= 1.0
    assert 0.0 <= row["chance"] <= 1.0


def test_a_draw_of_counts_gives_a_row(monkeypatch):
    tasks = conformal.draw_tasks("gaussian", 24, np.random.default_rng(0))
    counts = [Task(x[:4], np.floor(np.exp(y[:4]))) for x, y in tasks]
    monkeypatch.setattr(conformal_responses, "epil", lambda: counts)
    row = conformal_responses.response_row({"kind": "epil, poisson", "draw": 0})
    assert (row["n_tasks"], row["target"], row["test"]) == (12, 12, 12)
    assert 0.7 < row["own_coverage"] <= 1.0
    assert row["coverage"] >= row["own_coverage"]
