"""The files of a script: what it imports of its own, and nothing of others."""

from pathlib import Path

import pytest

from whet.errors import TargetError
from whet.scripts.audit_measure.sources import script_files


def test_follows_imports_of_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "pack" / "deep").mkdir(parents=True)
    for name, text in {
        "train.py": "import torch, json\nfrom pack import model\nimport pack.deep.data as data\n",
        "pack/__init__.py": "",
        "pack/model.py": "from . import losses\nfrom .deep import missing\n",
        "pack/losses.py": "",
        "pack/deep/__init__.py": "from ..model import *\n",
        "pack/deep/data.py": "",
        "other.py": "",
    }.items():
        (tmp_path / name).write_text(text)
    names = {Path(file.path).resolve().relative_to(tmp_path).as_posix() for file in script_files(tmp_path / "train.py")}
    assert names == {
        "train.py",
        "pack/__init__.py",
        "pack/model.py",
        "pack/losses.py",
        "pack/deep/__init__.py",
        "pack/deep/data.py",
    }


def test_what_does_not_parse_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def broken(:\n")
    with pytest.raises(TargetError, match="does not parse"):
        script_files(tmp_path / "train.py")
