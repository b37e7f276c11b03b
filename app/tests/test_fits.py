"""A fit in a process of its own: progress, result, errors in words, and a stop that always works."""

import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from metaprior_app import fits
from metaprior_app.fits import Fit
from page_client import PATIENTS, wait_until

STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('{"progress": 1}', file=sys.stderr, flush=True)
time.sleep(60)
"""
PROGRESS = (
    '{"progress": {"phase": "thinking", "number": 1, "of": 2, "total": 3, "unit": "steps", "done": 1, "detail": ""}}'
)


@pytest.fixture
def run_instead(tmp_path, monkeypatch):
    """Return a function of a program in Python that runs it instead of `metaprior fit`."""

    def run(program):
        script = tmp_path / "instead"
        script.write_text(f"#!{sys.executable}\n{program}\n")
        script.chmod(0o755)
        monkeypatch.setattr(fits.sys, "executable", str(script))
        process = Fit(["table.csv"])
        monkeypatch.undo()
        started.append(process)
        return process

    started = []
    yield run
    for process in started:
        process.stop()


def group(process):
    return process._process.pid


def is_running(pid):
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True


def is_alive(pid):
    """Whether a process runs; one that has ended may wait to be asked for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_progress_then_the_result(run_instead):
    process = run_instead(
        "import sys, time\n"
        f"print({PROGRESS!r}, file=sys.stderr, flush=True)\n"
        "time.sleep(0.5)\n"
        'print(\'{"alpha": 0.5, "notes": [{"message": "A note."}]}\')'
    )
    assert process.status == "running"
    wait_until(lambda: process.progress is not None)
    assert process.progress == json.loads(PROGRESS)["progress"]
    process.wait()
    assert (process.status, process.result["alpha"], process.error) == ("done", 0.5, None)
    assert process.result["notes"] == [{"message": "A note."}]
    seconds = process.describe()["seconds"]
    assert seconds >= 0.4
    time.sleep(0.05)
    assert process.describe()["seconds"] == seconds  # it does not go on


def test_a_stopped_process_ends_soon(run_instead):
    process = run_instead("import time; time.sleep(60)")
    started = time.monotonic()
    process.stop()
    assert time.monotonic() - started < 3.0
    assert (process.status, process.error) == ("stopped", None)
    assert not is_running(group(process))


def test_a_process_that_ignores_the_signal_is_stopped_too(run_instead):
    process = run_instead(STUBBORN)
    wait_until(lambda: process.progress is not None)
    started = time.monotonic()
    process.stop()
    assert 1.0 < time.monotonic() - started < 3.0
    assert process.status == "stopped"
    assert not is_running(group(process))


def test_its_children_are_stopped_too(run_instead, tmp_path):
    process = run_instead(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "print('{\"progress\": 1}', file=sys.stderr, flush=True)\n"
        "time.sleep(60)"
    )
    wait_until(lambda: process.progress is not None)
    process.stop()
    child = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_alive(child), 3)


def test_nothing_is_killed_once_the_process_has_ended(run_instead, monkeypatch):
    """Its number may belong to another process by then."""
    process = run_instead("print('{}')")
    process.wait()
    killed = []
    monkeypatch.setattr(fits.os, "killpg", lambda pid, number: killed.append((pid, number)))
    process.stop()
    assert process.status == "done"
    assert not killed


def test_many_may_stop_it_at_once(run_instead):
    process = run_instead("import time; time.sleep(60)")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: process.stop(), range(4)))
    assert process.status == "stopped"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ('print(\'{"error": "The table is empty.", "exit_code": 2}\'); raise SystemExit(2)', "The table is empty."),
        ("raise SystemExit(3)", "exit code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "exit code -9"),
        ("raise MemoryError('no room')", "MemoryError: no room"),
        ("print('[1, 2]')", "exit code 0"),
        ("print('not JSON')", "exit code 0"),
        ("print('{}'); raise SystemExit(1)", "exit code 1"),
    ],
)
def test_what_went_wrong_is_said(run_instead, program, said):
    process = run_instead(program)
    process.wait()
    assert process.status == "failed"
    assert said in process.error


def test_lines_without_end_do_not_fill_the_memory(run_instead):
    process = run_instead("import sys\nfor i in range(1000): print('x' * 10_000, file=sys.stderr)\nraise SystemExit(1)")
    process.wait()
    assert process.status == "failed"
    assert len(process.error) < 4000


def test_bytes_that_are_no_text_and_progress_that_is_no_json(run_instead):
    process = run_instead("import sys\nsys.stderr.buffer.write(b'\\xff\\xfe\\n{\"progress\" nonsense\\n')\nprint('{}')")
    process.wait()
    assert (process.status, process.progress) == ("done", None)


def test_a_real_fit_tells_its_progress_and_is_stopped(tmp_path):
    """`metaprior fit` itself, whose search over weights would take seconds."""
    roles = ["--task=patient", "--x=hours", "--y=heart_rate", "--environment=hospital", "--target=south"]
    out = tmp_path / "prior.safetensors"
    process = Fit([str(PATIENTS), *roles, f"--out={out}"])
    wait_until(lambda: process.progress is not None, 30)
    assert {"phase", "number", "of", "total", "done", "unit", "detail"} == set(process.progress)
    started = time.monotonic()
    process.stop()
    assert time.monotonic() - started < 3.0
    assert process.status == "stopped"
    assert not is_running(group(process))
    assert not list(tmp_path.iterdir()), "a stopped fit leaves no file"


def test_signals_of_the_terminal_do_not_reach_it(run_instead):
    """Ctrl-C is for the page's server, which ends the fit itself."""
    process = run_instead("import time; time.sleep(60)")
    assert os.getpgid(group(process)) == group(process) != os.getpgid(0)
    assert os.getsid(group(process)) != os.getsid(0)
    os.kill(group(process), signal.SIGTERM)
    process.wait()
    assert process.status == "failed"  # nobody stopped it here
    assert "-15" in process.error
