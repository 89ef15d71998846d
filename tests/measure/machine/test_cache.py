"""Where files of whet and of PyTorch's compiler go."""

from pathlib import Path

import pytest

from whet.measure.machine.cache import compiler_directory


def test_the_compiler_keeps_its_files_where_pytorch_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "me:and|you")
    assert compiler_directory(tmp_path) == Path(default_cache_dir())
