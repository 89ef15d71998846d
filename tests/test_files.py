"""Files and directories that appear whole or not at all."""

import os
from pathlib import Path

import pytest

from whet import files
from whet.errors import OutputError, TargetError
from whet.files import (
    check_file,
    read_object,
    replace_directory,
    size_bytes,
    usable_directory,
    writable_parent,
    write_whole,
)


def names(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir())


def fail_to_sync(descriptor: int) -> None:
    raise OSError(28, "No space left on device")


def interrupt(descriptor: int) -> None:
    raise KeyboardInterrupt


def test_text_and_bytes_are_written(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", "täxt\n")
    assert (tmp_path / "a").read_bytes() == "täxt\n".encode()
    write_whole(tmp_path / "a", b"\0new")
    assert (tmp_path / "a").read_bytes() == b"\0new"
    assert names(tmp_path) == ["a"]


def test_a_failure_leaves_the_old_content_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "a", "old")
    monkeypatch.setattr(files.os, "fsync", fail_to_sync)
    with pytest.raises(OutputError, match=r"cannot write .*a: No space left on device"):
        write_whole(tmp_path / "a", "new")
    with pytest.raises(OutputError):
        write_whole(tmp_path / "b", "new")
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_an_interruption_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole(tmp_path / "a", "old")
    monkeypatch.setattr(files.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_the_content_is_on_disk_before_it_takes_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "a", "old")
    seen = []
    monkeypatch.setattr(files.os, "fsync", lambda descriptor: seen.append((tmp_path / "a").read_text()))
    write_whole(tmp_path / "a", "new")
    assert seen == ["old"]
    assert (tmp_path / "a").read_text() == "new"


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "directory" / "inside").mkdir(parents=True)
    for path in (tmp_path / "missing" / "a", tmp_path / "file" / "a", tmp_path / "directory"):
        with pytest.raises(OutputError, match="cannot write"):
            write_whole(path, "text")
    assert names(tmp_path) == ["directory", "file"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_directory_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(OutputError, match="Permission denied"):
            write_whole(tmp_path / "a", "text")
    finally:
        tmp_path.chmod(0o700)


def directory(path: Path, content: str) -> Path:
    path.mkdir()
    (path / "content").write_text(content)
    return path


def test_a_directory_takes_its_place(tmp_path: Path) -> None:
    replace_directory(directory(tmp_path / "partial", "new"), tmp_path / "final")
    assert (tmp_path / "final" / "content").read_text() == "new"
    assert names(tmp_path) == ["final"]


def test_a_directory_takes_anothers_place(tmp_path: Path) -> None:
    directory(tmp_path / "final", "old")
    replace_directory(directory(tmp_path / "partial", "new"), tmp_path / "final")
    assert (tmp_path / "final" / "content").read_text() == "new"
    assert names(tmp_path) == ["final"]


def test_the_old_directory_stays_where_the_new_one_cannot_come(tmp_path: Path) -> None:
    directory(tmp_path / "final", "old")
    with pytest.raises(OutputError, match="cannot write"):
        replace_directory(tmp_path / "missing", tmp_path / "final")
    assert (tmp_path / "final" / "content").read_text() == "old"
    assert names(tmp_path) == ["final"]


def test_a_file_is_not_replaced_by_a_directory(tmp_path: Path) -> None:
    (tmp_path / "final").write_text("a file")
    with pytest.raises(OutputError, match="cannot write"):
        replace_directory(directory(tmp_path / "partial", "new"), tmp_path / "final")
    assert (tmp_path / "final").read_text() == "a file"
    assert (tmp_path / "partial" / "content").read_text() == "new"


def test_sizes_are_of_all_files_below(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(100))
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "b" / "c" / "d").write_bytes(bytes(23))
    assert size_bytes(tmp_path / "a") == 100
    assert size_bytes(tmp_path) == 123


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("missing/report.json", "there is no directory"),
        ("", "is a directory; name a file"),
        ("x" * 250, "File name too long"),
        ("/proc/report.json", "/proc/report.json cannot be written"),  # which root's permissions do not tell
    ],
)
def test_a_file_that_could_not_be_written_is_told_before_the_work(tmp_path: Path, path: str, why: str) -> None:
    with pytest.raises(OutputError, match=why):
        check_file(tmp_path / path)
    assert list(tmp_path.iterdir()) == []


def test_checking_a_file_leaves_it_as_it_is(tmp_path: Path) -> None:
    check_file(None)
    check_file(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old").write_text("mine")
    check_file(tmp_path / "old")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("old", "mine")]


def test_a_directory_for_results_is_made_or_told(tmp_path: Path) -> None:
    assert usable_directory(tmp_path / "a" / "b").is_dir()
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot make the directory"):
        usable_directory(tmp_path / "file")
    with pytest.raises(OutputError, match="cannot write into the directory /proc"):
        usable_directory(Path("/proc"))
    with pytest.raises(OutputError, match=r"/proc/out cannot be written: .* in /proc; choose another --out"):
        writable_parent(Path("/proc/out"))


def test_objects_in_json_files(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    assert read_object(path, required=False) == {}
    with pytest.raises(TargetError, match=r"config\.json cannot be read: .*No such file"):
        read_object(path)
    path.write_text('{"size": 3, "name": "ä"}', encoding="utf-8")
    assert read_object(path) == read_object(path, required=False) == {"size": 3, "name": "ä"}
    for content in (b"{", b"\xff", b"[" * 100_000, b"[]", b"3"):
        path.write_bytes(content)
        with pytest.raises(TargetError, match=r"config\.json cannot be read: .+"):
            read_object(path, required=False)
