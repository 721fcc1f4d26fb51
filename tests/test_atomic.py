"""Files that are written as a whole or not at all."""

import errno
import os
import resource
import threading
from pathlib import Path

import pytest
from commands import names_in

from dualnet import atomic


@pytest.mark.parametrize("data", [b"\x00\xff", "gr\u00fc\u00dfe\n", b""])
def test_what_is_written_is_read(data: bytes | str, tmp_path: Path) -> None:
    atomic.write(tmp_path / "file", data)
    assert (tmp_path / "file").read_bytes() == (data.encode() if isinstance(data, str) else data)
    assert names_in(tmp_path) == ["file"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(call: str, tmp_path: Path, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    file = tmp_path / "file"
    atomic.write(file, "old")
    monkeypatch.setattr(*((os, "fsync") if call == "fsync" else (Path, "replace")), fail)
    with pytest.raises(OSError, match="broken"):
        atomic.write(file, "new")
    assert file.read_text() == "old"
    assert names_in(tmp_path) == ["file"]


def test_the_file_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch) -> None:
    """And the folder after it: otherwise a power cut can leave an empty file under the name."""
    calls = []
    fsync, replace = os.fsync, Path.replace

    def watched(handle: int) -> None:
        calls.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    monkeypatch.setattr(Path, "replace", lambda old, new: (calls.append("rename"), replace(old, new)))
    atomic.write(tmp_path / "file", "new")
    assert calls == [f"{tmp_path}/file.{os.getpid()}.tmp", "rename", str(tmp_path)]


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """The system does not say which file it has no room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            atomic.write(tmp_path / "file", bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.filename == str(tmp_path / "file")
    assert names_in(tmp_path) == []


def test_a_missing_folder_keeps_its_own_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        atomic.write(tmp_path / "missing" / "file", "new")
    assert "missing" in caught.value.filename


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    reader.start()
    atomic.write(pipe, "text")
    reader.join(timeout=10)
    assert received == [b"text"] and pipe.is_fifo() and names_in(tmp_path) == ["pipe"]


def test_an_open_file_is_written_to_under_its_number(tmp_path: Path) -> None:
    """As `--csv /dev/stdout` where standard output is redirected to a file."""
    with (tmp_path / "file").open("w") as file:
        print("first", file=file, flush=True)
        atomic.write(Path(f"/dev/fd/{file.fileno()}"), "second")
    assert (tmp_path / "file").read_text() == "first\nsecond"
