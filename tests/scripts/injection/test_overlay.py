"""Copies that leave the original alone."""

from pathlib import Path

import pytest

from whet.scripts.injection import overlay
from whet.scripts.injection.overlay import make_overlay


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    (root / "package").mkdir(parents=True)
    (root / "package" / "model.py").write_text("SIZE = 1\n")
    (root / "train.py").write_text("import package.model\n")
    (root / "data.bin").write_bytes(b"0" * 100)
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("[core]\n")
    (root / "link.py").symlink_to(root / "train.py")
    return root


def test_changed_files_are_new_and_the_original_stays(source: Path, tmp_path: Path) -> None:
    changed = {source / "package" / "model.py": "SIZE = 2\n"}
    copy = make_overlay(source, tmp_path / "copy", changed)
    assert (copy / "package" / "model.py").read_text() == "SIZE = 2\n"
    assert (source / "package" / "model.py").read_text() == "SIZE = 1\n"
    assert (copy / "train.py").read_text() == "import package.model\n"


def test_what_is_written_in_the_copy_is_not_in_the_original(source: Path, tmp_path: Path) -> None:
    copy = make_overlay(source, tmp_path / "copy", {})
    (copy / "train.py").write_text("changed")
    (copy / "data.bin").write_bytes(b"1")
    (copy / "new.pt").write_bytes(b"2")
    assert (source / "train.py").read_text() == "import package.model\n"
    assert (source / "data.bin").read_bytes() == b"0" * 100
    assert not (source / "new.pt").exists()


def test_large_files_and_histories_are_links(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay, "_COPIED_BYTES", 50)
    copy = make_overlay(source, tmp_path / "copy", {})
    assert (copy / "data.bin").is_symlink()
    assert (copy / ".git").is_symlink()
    assert not (copy / "package").is_symlink()


def test_a_copy_inside_the_source_does_not_copy_itself(source: Path) -> None:
    copy = make_overlay(source, source / "scratch" / "original" / "copy", {})
    assert (copy / "train.py").is_file()
    assert not (copy / "scratch").exists()


def test_a_changed_file_that_would_be_a_link_is_a_file(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlay, "_COPIED_BYTES", 5)
    monkeypatch.setattr(overlay, "_MOST_FILES", 0)
    copy = make_overlay(source, tmp_path / "copy", {source / "package" / "model.py": "SIZE = 3\n"})
    assert (copy / "package" / "model.py").read_text() == "SIZE = 3\n"
    assert (source / "package" / "model.py").read_text() == "SIZE = 1\n"


def test_files_beyond_the_total_are_links(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay, "_MOST_BYTES", 0)
    copy = make_overlay(source, tmp_path / "copy", {})
    assert (copy / "data.bin").is_symlink()
