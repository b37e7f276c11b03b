"""A changed context is answered at once: generous bounds here, the figures by studies/benchmarks/page_speed.py."""

import re
import subprocess
import sys

import numpy as np
import page_speed
import pytest

BOUND = 250.0  # milliseconds; the goal is 50, which a busy machine may miss
GROWTH = 20.0  # MB


@pytest.mark.parametrize("n_clicks", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_clicks_are_answered_at_once_and_leave_memory_where_it_was(prior_file, n_clicks):
    command = [sys.executable, "-m", "metaprior", "app", str(prior_file("patients")), "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = re.findall(r"http://\S+", process.stdout.readline())[0]
        rng = np.random.default_rng(0)
        page_speed.click(address, 20, rng)
        before = page_speed.resident(process.pid)
        took = np.array(page_speed.click(address, n_clicks, rng))
        grown = page_speed.resident(process.pid) - before
    finally:
        process.terminate()
        process.communicate()
    assert np.percentile(took[:, 0], 95) < BOUND, took
    assert grown < GROWTH
