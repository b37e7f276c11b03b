import subprocess
import sys
import time
from pathlib import Path

import pytest
from limits import at_most

HERE = Path(__file__).parent


def test_computing_counts():
    def compute():
        with at_most(0.05):
            started = time.thread_time()
            while time.thread_time() - started < 0.1:
                pass

    with pytest.raises(AssertionError, match=r"computed for 0\.1"):
        compute()


def test_waiting_for_a_busy_machine_does_not_count():
    with at_most(0.05):
        time.sleep(0.1)


def test_a_hang_counts(monkeypatch):
    monkeypatch.setattr("limits.HANG", 0.05)

    def hang():
        with at_most(1.0):
            time.sleep(0.1)

    with pytest.raises(AssertionError, match="took"):
        hang()


def test_a_process_that_hangs_ends_with_its_stack():
    program = "import time; from limits import end_if_it_hangs\nwith end_if_it_hangs(0.2): time.sleep(60)"
    done = subprocess.run([sys.executable, "-c", program], cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "line 2 in <module>" in done.stderr
