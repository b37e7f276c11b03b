"""A full or closed standard output: a command completes its work, and its exit code tells."""

import io
import os
import subprocess
import sys

import pytest

from metaprior.cli.console import CLOSED, Stream, exit_with

needs_dev_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")


@pytest.fixture
def print_to(monkeypatch):
    """A function that makes a descriptor the standard output and prints more than a buffer holds."""
    opened = []

    def use(descriptor):
        opened.append(io.TextIOWrapper(io.BufferedWriter(stream := Stream(descriptor, "w"))))
        monkeypatch.setattr(sys, "stdout", opened[-1])
        print("some", "lines" * 10_000)
        print("and more")
        return stream

    yield use
    for text in opened:
        text.close()


@needs_dev_full
def test_a_full_output(print_to, capsys):
    stream = print_to(os.open("/dev/full", os.O_WRONLY))
    with pytest.raises(SystemExit) as ended:
        exit_with(0, stream)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "standard output: No space left on device\n"


def test_a_closed_pipe_is_no_error(print_to, capsys):
    reader, writer = os.pipe()
    os.close(reader)
    stream = print_to(writer)
    with pytest.raises(SystemExit) as ended:
        exit_with(0, stream)
    assert ended.value.code == CLOSED == 141
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("code", [0, 1, 2])
def test_other_exit_codes_stay(code, print_to, tmp_path):
    stream = print_to(os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT))
    with pytest.raises(SystemExit) as ended:
        exit_with(code, stream)
    assert ended.value.code == code
    assert (tmp_path / "out").read_text().endswith("and more\n")


@needs_dev_full
def test_in_a_shell():
    """All at once, because most of the time is that of imports."""
    metaprior = f"{sys.executable} -m metaprior"
    endings = {
        f"{metaprior} fit --help > /dev/full": (2, "standard output: No space left on device\n"),
        f"{{ {metaprior} fit --help; echo $? >&2; }} | head -1 > /dev/null": (0, "141\n"),
        f"{metaprior} nothing 2> /dev/full": (2, ""),
        f"{metaprior} fit --help >&-": (2, "standard output: Bad file descriptor\n"),
        f"{metaprior} fit --help >&- 2>&-": (2, ""),
        f"{metaprior} fit --help > /dev/null 2>&-": (0, ""),
        f"{metaprior} nothing >&- 2> /dev/null": (2, ""),
    }
    shells = [subprocess.Popen(command, shell=True, stderr=subprocess.PIPE, text=True) for command in endings]
    for shell, expected in zip(shells, endings.values(), strict=True):
        _, error = shell.communicate()
        assert (shell.returncode, error) == expected, shell.args
