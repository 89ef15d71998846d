"""A checkpoint that is not whole is found, and the one before it is taken."""

import hashlib
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from small_states import check_step, saved

from whet.errors import CheckpointError, OutputError
from whet.trainer.checkpoints import Checkpoints
from whet.trainer.checkpoints.manifest import marker_of

FILES = [
    "complete",
    "manifest.json",
    "model.safetensors",
    "optimizer.safetensors",
    "random.safetensors",
    "state.json",
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whole")
    saved(directory, 1, 2)
    assert sorted(path.name for path in (directory / "step-00000002").iterdir()) == FILES
    return directory


@pytest.fixture
def directory(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def check_skipped(directory: Path, reason: str) -> None:
    newest = directory / "step-00000002"
    checkpoints = Checkpoints(directory)
    found = checkpoints.newest()
    assert found is not None
    assert (found.path, found.step) == (directory / "step-00000001", 1)
    ((path, why),) = found.skipped
    assert path == newest
    assert reason in why
    check_step(checkpoints.load(found.path), 1)
    with pytest.raises(CheckpointError, match=f"{newest} is not a whole checkpoint: .*; load another one"):
        checkpoints.load(newest)


@pytest.mark.parametrize("name", FILES)
def test_flipped_bits_are_found(directory: Path, name: str) -> None:
    file = directory / "step-00000002" / name
    content = file.read_bytes()
    checkpoints = Checkpoints(directory)
    for index in {*range(0, len(content), max(1, len(content) // 60)), len(content) - 1}:
        for bit in (0x01, 0x20, 0x80):
            changed = bytearray(content)
            changed[index] ^= bit
            file.write_bytes(changed)
            found = checkpoints.newest()
            assert found is not None and found.step == 1, (index, bit)
            assert [path.name for path, _ in found.skipped] == ["step-00000002"]
    check_skipped(directory, "manifest.json" if name in ("complete", "manifest.json") else name)


@pytest.mark.parametrize("name", FILES)
def test_missing_truncated_and_longer_files_are_found(directory: Path, name: str) -> None:
    file = directory / "step-00000002" / name
    content = file.read_bytes()
    culprit = "manifest.json" if name == "complete" else name
    for changed in (content[:-1], content[: len(content) // 2], b"", content + b"\n", bytes(len(content))):
        file.write_bytes(changed)
        check_skipped(directory, culprit)
    file.unlink()
    check_skipped(directory, f"{name} is missing")
    file.mkdir()
    check_skipped(directory, f"{name} is missing")


def test_a_marker_without_data_is_found(directory: Path) -> None:
    for name in FILES:
        if name != "complete":
            (directory / "step-00000002" / name).unlink()
    check_skipped(directory, "manifest.json is missing")


def test_what_is_no_directory_is_found(directory: Path) -> None:
    shutil.rmtree(directory / "step-00000002")
    (directory / "step-00000002").touch()
    check_skipped(directory, "it is not a directory")


def test_damage_after_it_was_verified_is_found(directory: Path) -> None:
    checkpoints = Checkpoints(directory)
    found = checkpoints.newest()
    assert found is not None and found.step == 2
    file = found.path / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged: its checksum differs"):
        checkpoints.load(found.path)


def test_an_older_damaged_one_does_not_matter(directory: Path) -> None:
    (directory / "step-00000001" / "complete").unlink()
    found = Checkpoints(directory).newest()
    assert found is not None
    assert (found.step, found.skipped) == (2, ())


def test_where_none_is_whole_nothing_begins_anew_by_itself(directory: Path) -> None:
    (directory / "step-00000001" / "complete").unlink()
    (directory / "step-00000002" / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"none of the checkpoints in .* is whole \(step-00000001: complete is"):
        Checkpoints(directory).newest()
    assert Checkpoints(directory).all() == []
    assert Checkpoints(directory / "nothing").newest() is None


def rewritten(path: Path, **changes: Any) -> None:
    manifest = {**json.loads((path / "manifest.json").read_text()), **changes}
    content = json.dumps(manifest).encode()
    (path / "manifest.json").write_bytes(content)
    (path / "complete").write_text(marker_of(content))


def test_a_newer_format_is_refused(directory: Path) -> None:
    rewritten(directory / "step-00000002", version=3, files="elsewhere")
    checkpoints = Checkpoints(directory)
    with pytest.raises(CheckpointError, match="is a checkpoint of format 3, and this whet reads formats up to 2"):
        checkpoints.newest()
    with pytest.raises(CheckpointError, match="format 3"):
        checkpoints.load(directory / "step-00000002")
    check_step(checkpoints.load(directory / "step-00000001"), 1)


def test_a_manifest_that_names_files_elsewhere_is_refused(directory: Path) -> None:
    newest = directory / "step-00000002"
    files = json.loads((newest / "manifest.json").read_text())["files"]
    for name in ("../step-00000001/model.safetensors", "/etc/passwd", "..", ""):
        rewritten(newest, files=[{**files[0], "name": name}])
        check_skipped(directory, "manifest.json is no manifest")
    rewritten(newest, format="another")
    check_skipped(directory, "manifest.json is no manifest")


def test_no_pickle_is_loaded(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint from outside may be whole by its own checksums."""
    newest = directory / "step-00000002"
    monkeypatch.setattr(pickle, "loads", None)
    monkeypatch.setattr(pickle, "load", None)
    monkeypatch.setattr(pickle, "Unpickler", None)
    monkeypatch.setattr(torch, "load", None)
    check_step(Checkpoints(directory).load(newest), 2)
    content = pickle.dumps({"model": [1, 2, 3]})
    (newest / "model.safetensors").write_bytes(content)
    files = json.loads((newest / "manifest.json").read_text())["files"]
    changed = {**files[0], "size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert changed["name"] == "model.safetensors"
    rewritten(newest, files=[changed, *files[1:]])
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        Checkpoints(directory).load(newest)


def test_a_directory_that_cannot_be_read(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "file").touch()
    with pytest.raises(OutputError, match="is a file"):
        Checkpoints(directory / "file").newest()

    def refuse(self: Path) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)  # root may read everything
    with pytest.raises(OutputError, match=r"cannot be used: Permission denied"):
        Checkpoints(directory).newest()
    monkeypatch.undo()
    read = Path.read_bytes

    def refuse_newest(self: Path) -> bytes:
        if self.parent.name == "step-00000002":
            raise PermissionError(13, "Permission denied")
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", refuse_newest)
    check_skipped(directory, "complete cannot be read: Permission denied")
