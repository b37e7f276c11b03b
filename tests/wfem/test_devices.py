"""The same fit on one device, on eight, and by two processes over loopback, one of which is lost and comes again."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import jax
import many_devices
import numpy as np
import pytest

from metaprior.tasks.types import Task
from metaprior.wfem import devices
from metaprior.wfem.devices import ProcessLost, check_n_devices, check_same_tasks, detect_lost_process

SCRIPT = Path(many_devices.__file__)


def start(*arguments, n_devices=1):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={n_devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.slow
def test_eight_devices_give_what_one_gives():
    said, _ = start("devices", n_devices=8).communicate(timeout=400)
    assert "n_devices 8" in said, said
    differences = dict(re.findall(r"^(.+): (\d\.\de[+-]\d+)$", said, flags=re.MULTILINE))
    assert set(differences) == set(many_devices.FITS), said
    assert all(float(value) < 1e-10 for value in differences.values()), differences


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def run_two(n_steps, checkpoint, out, n_chunks_of_second=0):
    """What both said, and how they ended. Each has two devices."""
    address = free_address()
    both = [
        start("process", rank, address, n_chunks if rank else 0, n_steps, checkpoint, out, n_devices=2)
        for rank, n_chunks in ((0, 0), (1, n_chunks_of_second))
    ]
    said = [process.communicate(timeout=300)[0] for process in both]
    return said, [process.returncode for process in both]


def assert_as_one_device(out, n_steps):
    """Both processes have the result of one process with one device and the first process's seed."""
    alone = many_devices.fit(**many_devices.SHARED, n_steps=n_steps)
    first, second = (np.load(f"{out}.{rank}.npz") for rank in (0, 1))
    for name, expected in zip(first.files, [alone.loss_trace_, *jax.tree.leaves(alone.particles_)], strict=True):
        np.testing.assert_array_equal(first[name], second[name])
        np.testing.assert_allclose(first[name], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_two_processes_of_two_devices_give_what_one_device_gives(tmp_path):
    """Particles, tasks and mini-batches divided among processes and devices."""
    said, ended = run_two(20, tmp_path / "checkpoint", tmp_path / "once")
    assert ended == [0, 0], said
    assert_as_one_device(tmp_path / "once", 20)


@pytest.mark.slow
def test_a_lost_process_ends_all_and_both_go_on_from_the_checkpoint(tmp_path):
    checkpoint = tmp_path / "checkpoint"
    said, ended = run_two(500, checkpoint, tmp_path / "lost", n_chunks_of_second=2)
    assert ended[0] != 0
    assert ended[1] == 9
    ours, of_jax = "This run of 2 processes cannot continue: another process has ended", "another task died"
    assert ours in said[0] or of_jax in said[0]  # JAX ends a process that waits for a connection to the lost one
    assert checkpoint.exists()
    assert not list(tmp_path.glob("lost*.npz"))
    said, ended = run_two(500, checkpoint, tmp_path / "again")
    assert ended == [0, 0], said
    assert_as_one_device(tmp_path / "again", 500)


@pytest.mark.parametrize("n_devices", [0, 2])
def test_devices_that_are_not_there(n_devices):
    with pytest.raises(ValueError, match="n_devices must be"):
        many_devices.fit(n_devices)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "Out of memory on process 0 of 2. All processes stop. "),
        (ValueError("UNKNOWN: Gloo all-reduce failed"), "another process has ended"),
        (jax.errors.JaxRuntimeError("INTERNAL: Connection closed"), "another process has ended"),
    ],
)
def test_what_ends_one_process_is_said_to_end_all(monkeypatch, error, message):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ProcessLost, match=message), detect_lost_process():
        raise error
    with pytest.raises(ValueError, match="mistake"), detect_lost_process():
        raise ValueError("a mistake of the user's")
    monkeypatch.setattr(jax, "process_count", lambda: 1)
    with pytest.raises(type(error)), detect_lost_process():
        raise error


def test_processes_take_part_with_all_devices_and_the_same_tasks(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "device_count", lambda: 2)
    with pytest.raises(ValueError, match="n_devices must be None or 2 if several processes"):
        check_n_devices(1)
    with pytest.raises(ValueError, match="search_time must be None"):
        check_same_tasks([], 3.0)
    monkeypatch.setattr(devices, "broadcast_from_first", lambda value: "another")
    with pytest.raises(ValueError, match="was given different tasks than the first"):
        check_same_tasks([[Task(np.zeros((1, 1)), np.zeros(1))]], None)
