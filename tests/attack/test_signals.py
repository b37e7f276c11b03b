"""Ctrl-C, SIGTERM and SIGKILL at any moment of a fit: one line, an exit code, no half-written file."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from counters import count
from limits import HANG

from metaprior import __version__
from metaprior.files import read_tensors

TABLE = str(resources.files("metaprior").joinpath("datasets", "example", "patients.csv"))
COLUMNS = ["--task", "patient", "--x", "hours", "--environment", "hospital", "--target", "south"]
READINGS = ("--y", "heart_rate")
FIT, WFEM = ("fit", *READINGS), ("wfem", *READINGS, "--kernel", "rbf", "--mean", "constant")
LABELS = ("--kind", "classification", "--y", "high")
STOPPED = "Stopped."
KEPT = "Stopped. The checkpoint is kept: run the same command again to resume."
CHECKPOINT = ".prior.safetensors.checkpoint"
CAUGHT = 1 << (signal.SIGHUP - 1)  # the last of the signals that get a handler

# Undoes what nohup, or a shell that runs these tests in the background, makes processes ignore. Not a `preexec_fn`, for
# which a process that uses JAX would fork.
HEED_SIGNALS = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
PYTHON = [sys.executable, "-c", HEED_SIGNALS]

needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads signal masks from /proc")


def start(out, command, *options):
    """Start a fit; return once signals are handled. Before that, Python itself is starting."""
    arguments = [*PYTHON, "-m", "metaprior", command, TABLE, *COLUMNS, *options, "--out", str(out)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        if int(status.split("SigCgt:")[1].split()[0], 16) & CAUGHT:
            break
        time.sleep(0.002)
    return process


def interrupt(folder, number, delay, *command):
    """Send a signal after a delay; return the exit code, standard error and whether a checkpoint was there before."""
    folder.mkdir(exist_ok=True)
    resumed = (folder / CHECKPOINT).exists()
    process = start(folder / "prior.safetensors", *command)
    time.sleep(delay)
    before, sent = cpu_seconds(process), time.monotonic()
    os.kill(process.pid, number)  # not `send_signal`, which reaps one that is done
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        assert time.monotonic() - sent < HANG, "hangs"
        time.sleep(0.01)
    assert cpu_seconds(process) - before < 10.0, "took long to stop"
    _, error = process.communicate(timeout=HANG)
    return process.returncode, error, resumed


def cpu_seconds(process):
    """Return what all threads of a process have computed, also after its end: a busy machine does not count."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def check(folder, number, code, error, resumed):
    """The process has either stopped as promised, or was done before the signal came.

    One that is stopped while the command line is imported does not know of the checkpoint of an earlier one.
    """
    lines = [line for line in error.splitlines() if not line.startswith("Note: found a checkpoint")]
    files = {path.name for path in folder.iterdir()}
    assert files <= {"prior.safetensors", CHECKPOINT}
    if code == 0:
        assert "prior.safetensors" in files
        count("signals", "fit had finished")
        return False
    assert code == 128 + number, error
    assert lines == [KEPT if CHECKPOINT in files else STOPPED] or (resumed and lines == [STOPPED])
    count("signals", "stopped with one line")
    return True


@needs_proc
def test_a_fit_stops_at_any_moment(tmp_path):
    """All at once: while modules are imported, the table is read, priors are fitted and XLA compiles."""
    attacks = [(signal.SIGINT, delay) for delay in (0.0, 0.2, 0.8, 1.4)] + [(signal.SIGTERM, 0.5)]
    attacks = [(number, delay, FIT) for number, delay in attacks] + [(signal.SIGINT, 2.5, WFEM)]
    folders = [tmp_path / str(i) for i in range(len(attacks))]
    with ThreadPoolExecutor(len(attacks)) as pool:
        ends = list(pool.map(lambda folder, attack: interrupt(folder, *attack[:2], *attack[2]), folders, attacks))
    stopped = [check(folder, attack[0], *end) for folder, attack, end in zip(folders, attacks, ends, strict=True)]
    assert sum(stopped) >= 4


def test_a_command_that_is_done_ends_in_peace():
    """Signals while Python exits, which takes longer with JAX than here."""
    program = (
        "import os, sys; sys.argv = ['metaprior', '--version']; from metaprior import __main__\n"
        "class Last:\n"
        "    def __del__(self, kill=os.kill, process=os.getpid()): kill(process, 2)\n"
        "last = Last()  # deleted after Python has put signals back to their default\n"
        "__main__.main()"
    )
    done = subprocess.run([*PYTHON, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A folder with a small table, and a prior that is fitted to it."""
    folder, rng = tmp_path_factory.mktemp("small"), np.random.default_rng(0)
    rows = [f"{i},{x:.3f},{x + i + 0.1 * rng.normal():.3f}" for i in range(4) for x in rng.uniform(size=6)]
    (folder / "t.csv").write_text("\n".join(["t,x,y", *rows]))
    command = [
        sys.executable,
        "-m",
        "metaprior",
        "fit",
        "t.csv",
        "--task",
        "t",
        "--x",
        "x",
        "--y",
        "y",
        "--out",
        "p.st",
    ]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize(
    "command",
    [
        ["fit", "t.csv", "--task", "t", "--x", "x", "--y", "y"],
        ["store", "t.csv", "--task", "t", "--x", "x", "--y", "y"],
        pytest.param(["predict", "p.st", "t.csv", "t.csv"], marks=pytest.mark.slow),
        pytest.param(["evaluate", "p.st", "t.csv"], marks=pytest.mark.slow),
    ],
    ids=lambda command: command[0],
)
def test_a_command_whose_files_are_written_ends_as_it_would_have(command, small):
    """One signal when the last file gets its name, another when everything is printed."""
    out = str(small / f"{command[0]}.csv")
    program = (
        "import os, sys, time; from metaprior import __main__, cli\n"
        "replace, exit_with = os.replace, cli.exit_with\n"
        "def interrupt(number): os.kill(os.getpid(), number); time.sleep(0.05)\n"
        "def placed(new, target):\n"
        "    replace(new, target)\n"
        f"    if os.fspath(target) == {out!r}: interrupt(2)\n"
        "def printed(*given): interrupt(15); exit_with(*given)\n"
        "os.replace, cli.exit_with = placed, printed\n"
        f"sys.argv = ['metaprior', *{command!r}, '--out', {out!r}]\n"
        "__main__.main()"
    )
    done = subprocess.run([*PYTHON, "-c", program], cwd=small, capture_output=True, text=True, check=False)
    assert (done.returncode, "Stopped." in done.stderr) == (0, False), done.stderr
    assert done.stdout
    assert Path(out).exists()
    assert not list(small.glob(".*"))


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "seconds", "n_signals"),
    [(FIT, 1.5, 40), (WFEM, 8.0, 25), (("fit", *LABELS), 2.0, 20), (("wfem", *LABELS, "--n-steps", "300"), 12.0, 15)],
    ids=["fit", "wfem", "fit of labels", "wfem of labels"],
)
def test_100_interruptions(command, seconds, n_signals, tmp_path, monkeypatch):
    if "--kind" in command:
        monkeypatch.setattr(sys.modules[__name__], "TABLE", with_labels(tmp_path / "labels.csv"))
    rng = np.random.default_rng(n_signals)
    attacks = [(signal.SIGTERM if i % 5 == 4 else signal.SIGINT, rng.uniform(0.0, seconds)) for i in range(n_signals)]
    folders = [tmp_path / str(i % 2) for i in range(n_signals)]  # two at a time; later fits resume earlier ones
    stopped = []
    for i in range(0, n_signals, 2):
        with ThreadPoolExecutor(2) as pool:
            pair = list(zip(folders[i : i + 2], attacks[i : i + 2], strict=True))
            ends = list(pool.map(lambda each: interrupt(each[0], *each[1], *command), pair))
        stopped += [check(folder, attack[0], *end) for (folder, attack), end in zip(pair, ends, strict=True)]
    assert np.mean(stopped) > 0.5


def with_labels(path):
    import pandas as pd

    table = pd.read_csv(TABLE)
    table["high"] = (table.heart_rate > table.groupby("patient").heart_rate.transform("median")).astype(int)
    table.to_csv(path, index=False)
    return str(path)


@needs_proc
@pytest.mark.slow
def test_a_killed_fit_resumes_from_the_middle_to_the_same_prior(tmp_path):
    """SIGKILL as soon as a checkpoint has been written, three times; then the fit is completed."""
    command = [*WFEM, "--n-steps", "20000"]
    checkpoint = tmp_path / CHECKPOINT
    taken = [0]
    for _ in range(3):
        process = start(tmp_path / "prior.safetensors", *command)
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else None
        while process.poll() is None and (not checkpoint.exists() or checkpoint.stat().st_mtime_ns == before):
            time.sleep(0.01)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "the fit ended before it was killed: give it more steps"
        taken.append(max(array.size for array in read_tensors(checkpoint)[1].values()) // 2)
        assert taken[-1] > taken[-2]
        count("signals", "killed, then resumed")
    for name in ("prior", "whole"):
        assert start(tmp_path / f"{name}.safetensors", *command).communicate()
    assert {path.name for path in tmp_path.iterdir()} == {"prior.safetensors", "whole.safetensors"}
    assert (tmp_path / "prior.safetensors").read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
