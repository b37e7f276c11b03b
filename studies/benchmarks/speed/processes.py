"""Measurements that need their own process."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]


def run_module(module: str, *arguments: str, timeout: float) -> str:
    """Return the output of `python -m module`; if it fails, raise an error with its messages."""
    return run_python("-m", module, *arguments, timeout=timeout)


def run_python(*arguments: str, timeout: float, environment: Mapping[str, str] | None = None) -> str:
    """Return the output of python, with `speed` on the path."""
    path = os.pathsep.join(filter(None, [str(BENCHMARKS), os.environ.get("PYTHONPATH")]))
    settings = {**os.environ, "PYTHONPATH": path, **(environment or {})}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=settings, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout
