"""Counts of what the attacks tried and what became of it, printed at the end of a run.

`count("files", "refused")` in a test adds one; `conftest.py` at the root loads this module as a plugin, because under
pytest-xdist only the workers read `tests/attack/`, while the controller prints the sums.
"""

from collections import Counter

import pytest

COUNTS: Counter[tuple[str, str]] = Counter()


def count(kind: str, outcome: str, n: int = 1) -> None:
    """Count attacks of a kind ("files", "tasks", "signals", "command lines") by what became of them."""
    COUNTS[kind, outcome] += n


def pytest_sessionfinish(session):
    """Hand a worker's counts to the controller."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["attack"] = [[*key, n] for key, n in COUNTS.items()]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Add the counts of a worker, if it lived to report them."""
    for kind, outcome, n in getattr(node, "workeroutput", {}).get("attack", []):
        count(kind, outcome, n)


def pytest_terminal_summary(terminalreporter):
    """Print one line per kind."""
    for kind in dict.fromkeys(kind for kind, _ in COUNTS):
        found = {outcome: n for (each, outcome), n in sorted(COUNTS.items()) if each == kind}
        shares = ", ".join(f"{n:,} {outcome}" for outcome, n in found.items())
        terminalreporter.write_line(f"attack: {sum(found.values()):,} {kind}: {shares}")
