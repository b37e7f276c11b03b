"""`metaprior app` as users start and end it."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest

from page_client import JSON, PATIENTS, wait_until

# Undoes what a shell that runs these tests in the background makes processes ignore.
HEED_SIGNALS = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.fixture
def start(tmp_path):
    """Return a function that starts `metaprior app` and returns its process and the address that it prints."""
    running = []
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def run(*arguments, **more):
        command = [sys.executable, "-c", HEED_SIGNALS, "-m", "metaprior", "app", *map(str, arguments)]
        environment = {**os.environ, "TMPDIR": str(temporary), "BROWSER": "true", **more}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        running.append(process)
        found = re.search(r"http://127\.0\.0\.1:\d+/[\w-]+/", process.stdout.readline())
        return process, found and found[0]

    yield run
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ask(address, path, body=None):
    request = urllib.request.Request(address + path, data=body, headers={"Content-Type": JSON})
    with urllib.request.urlopen(request, timeout=20) as response:
        return response.read().decode()


def refused(*arguments):
    """Run a command that must end at once; return what it says, which is one line."""
    command = [sys.executable, "-m", "metaprior", "app", "--no-browser", *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert found.returncode == 2, found.stdout + found.stderr
    assert "Traceback" not in found.stderr
    return found.stdout + found.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_page_its_fit_and_its_folder(start, tmp_path, number, code):
    process, address = start(PATIENTS, "--no-browser")
    assert "patients.csv" in ask(address, "api/state")
    folder, mode = next((tmp_path / "temporary").iterdir()), None
    mode = folder.stat().st_mode & 0o777
    assert mode == 0o700, "others on this machine must not read uploads"
    roles = b'{"task": ["patient"], "x": ["hours"], "y": "heart_rate", "environment": "hospital", "target": "south"}'
    assert "running" in ask(address, "api/fit", roles)
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split() or children(process.pid)
    process.send_signal(number)
    started = time.monotonic()
    _, said = process.communicate(timeout=10)
    assert time.monotonic() - started < 3.0
    assert process.returncode == code
    assert said.strip().endswith("Stopped.")
    assert "Traceback" not in said
    wait_until(lambda: not is_alive(child), 3)
    assert not list((tmp_path / "temporary").iterdir())


SLOW_FIT = b'{"task": ["patient"], "x": ["hours"], "y": "heart_rate", "environment": "hospital", "target": "south"}'


def test_a_killed_page_takes_its_fit_along_and_the_next_removes_its_folder(start, tmp_path):
    """SIGKILL lets nobody clean up: the fit notices by itself, and the table goes when a page starts again."""
    temporary = tmp_path / "temporary"
    killed, address = start("--no-browser")
    upload(address, PATIENTS)
    assert "running" in ask(address, "api/fit", SLOW_FIT)
    (child,) = children(killed.pid)
    (left,) = temporary.iterdir()
    killed.kill()
    killed.communicate(timeout=10)
    wait_until(lambda: not is_alive(child), 5)
    assert list(left.rglob("patients.csv")), "nobody was there to remove it"
    running, address = start("--no-browser")
    assert "revision" in ask(address, "api/state")
    assert not left.exists()
    (own,) = temporary.iterdir()
    upload(address, PATIENTS)
    third, _ = start("--no-browser")  # which leaves alone what belongs to a running page
    assert list(own.rglob("patients.csv"))
    assert len(list(temporary.iterdir())) == 2
    for process in (running, third):
        process.terminate()
        process.communicate(timeout=10)
    assert not list(temporary.iterdir())


def test_only_folders_of_pages_that_have_ended_are_removed(start, tmp_path):
    temporary = tmp_path / "temporary"
    killed, address = start("--no-browser")
    upload(address, PATIENTS)
    killed.kill()
    killed.communicate(timeout=10)
    (left,) = temporary.iterdir()
    elsewhere = tmp_path / "elsewhere"
    left.rename(elsewhere)  # as it looks, but reached by a link only
    like_ours = [temporary / left.name.replace(left.name[-13:-5], f"0000000{i}") for i in range(4)]
    link, file, strange, beginning = like_ours
    link.symlink_to(elsewhere)
    file.write_text("kept")
    strange.mkdir()
    (strange / "kept").write_text("kept")
    beginning.mkdir()  # by a page that starts at this moment
    (temporary / "metaprior-app").mkdir()
    before = set(temporary.iterdir())
    running, _ = start("--no-browser")
    assert before < set(temporary.iterdir())
    assert list(elsewhere.rglob("patients.csv"))
    assert (strange / "kept").exists()
    running.terminate()
    running.communicate(timeout=10)
    assert set(temporary.iterdir()) == before


def test_links_inside_a_folder_that_was_left_are_not_followed(start, tmp_path):
    killed, _ = start("--no-browser")
    killed.kill()
    killed.communicate(timeout=10)
    (left,) = (tmp_path / "temporary").iterdir()
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("kept")
    (left / "link").symlink_to(kept)
    start("--no-browser")
    assert not left.exists()
    assert (kept / "file").exists()


def upload(address, path):
    request = urllib.request.Request(f"{address}api/table?name={path.name}", data=path.read_bytes())
    request.add_header("Content-Type", "application/octet-stream")
    with urllib.request.urlopen(request, timeout=20) as response:
        assert response.status == 200


def children(parent):
    """Processes whose parent this is; threads that start them are not the main one."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(status.parent.name)
    return found


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_prior_is_opened_and_a_browser_called(start, prior_file, tmp_path):
    called = tmp_path / "called"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {called}\n')
    browser.chmod(0o755)
    process, address = start(prior_file("numbers"), BROWSER=f"{browser} %s")
    assert '"output":"y"' in ask(address, "api/state")
    wait_until(lambda: called.exists() and called.read_text().strip())
    assert called.read_text().strip() == address
    process.terminate()
    assert process.wait(10) == 143


def test_without_a_browser_the_address_is_printed_and_the_page_goes_on(start):
    process, address = start(BROWSER="/nonexistent/browser", PATH="/nonexistent", DISPLAY="")
    assert "metaprior" in ask(address, "")
    process.terminate()
    _, said = process.communicate(timeout=10)
    assert "copy the address" in " ".join(said.split())


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("nothing.csv", None, "does not exist"),
        ("empty.csv", b"", "empty"),
        ("text.docx", b"x", "text.docx"),
        ("prior.safetensors", b"damaged", "damaged"),
    ],
)
def test_files_that_cannot_be_opened_end_the_command_in_one_line(tmp_path, name, content, said):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    message = refused(path)
    assert said in message
    assert message.count("\n") == 1


def test_a_folder_is_refused(tmp_path):
    assert refused(tmp_path).count("\n") == 1


def test_a_given_port_in_use_is_refused_in_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = refused("--port", port)
    assert f"--port {port} is in use" in message
    assert message.count("\n") == 1


def test_a_refused_command_leaves_no_folder(tmp_path):
    before = set(Path(tempfile.gettempdir()).glob(".metaprior-app*"))
    refused(tmp_path / "nothing.csv")
    assert set(Path(tempfile.gettempdir()).glob(".metaprior-app*")) <= before
