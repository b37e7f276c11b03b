"""Files are written completely or not at all, through links and to devices, and errors name the path that was given."""

import errno
import os
import stat

import pytest

from metaprior.files import check_writable, name_in_errors, reserve, write_atomically


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_link_is_followed_and_stays(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "target", tmp_path / "link"
    link.symlink_to(target)
    for content in (b"first", b"second"):  # the first time it leads nowhere
        write_atomically(link, content)
        assert link.is_symlink()
        assert target.read_bytes() == content
    assert names(tmp_path) == ["elsewhere", "link"]
    assert names(tmp_path / "elsewhere") == ["target"]


def test_a_chain_of_links_and_a_relative_one(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "middle").symlink_to("real")
    (tmp_path / "link").symlink_to("middle")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "real").read_bytes() == b"new"
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "middle").is_symlink()


@pytest.mark.parametrize(
    ("place", "number"),
    [("missing/file", errno.ENOENT), ("file/below", errno.ENOTDIR), ("folder", errno.EISDIR), ("lost", errno.ENOENT)],
)
def test_an_error_names_the_path_that_was_given(tmp_path, place, number):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere" / "target")
    before = names(tmp_path)
    for write in (lambda path: write_atomically(path, b"content"), check_writable):
        with pytest.raises(OSError, match=rf"Errno {number}\] .*: '{tmp_path / place}'"):
            write(tmp_path / place)
    assert names(tmp_path) == before


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "file"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
def test_devices_and_pipes_are_written_to_and_not_replaced(tmp_path):
    write_atomically("/dev/null", b"content")
    check_writable("/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_atomically("/dev/full", b"content")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(tmp_path / "pipe", b"content")
    assert os.read(reader, 100) == b"content"
    os.close(reader)
    assert names(tmp_path) == ["pipe"]


def test_folders_are_made_if_asked_for(tmp_path):
    write_atomically(tmp_path / "a" / "b" / "file", b"content", make_folders=True)
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"content"
    write_atomically(tmp_path / ("x" * 250), b"a name of nearly the longest length")


def test_errors_about_other_files_keep_their_name(tmp_path):
    with pytest.raises(FileNotFoundError, match="/somewhere/else"), name_in_errors(tmp_path / "out"):
        raise FileNotFoundError(errno.ENOENT, "No such file", "/somewhere/else")


def test_space_is_reserved(tmp_path):
    path = tmp_path / "sparse"
    with open(path, "wb") as file:
        file.truncate(100_000)
    reserve(path)
    assert path.stat().st_size == 100_000
    assert not hasattr(os, "posix_fallocate") or path.stat().st_blocks * 512 >= 100_000
