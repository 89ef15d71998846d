"""What memory processes take that serve one model, known before any of them loads it."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest
from written_models import write_model

from whet.errors import OptionError
from whet.measure.isolate import run_isolated
from whet.models.families import open_model, outline_of
from whet.server import footprint as module
from whet.server.footprint import PROGRAM_BYTES, Footprint, footprint, footprint_in_child, memory_for
from whet.server.options import EngineOptions


def test_weights_count_once_if_they_are_shared(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "model", "llama")
    options = EngineOptions(memory=10**6, max_num_seqs=4, num_draft_tokens=3)
    weights = outline_of(directory, options).weight_bytes
    assert weights >= open_model(directory).weight_bytes  # type: ignore[attr-defined]
    private = PROGRAM_BYTES + 10**6 + 4 * 4 * (1 + 3) * 97
    alone = footprint(directory, options, num_processes=3)
    assert alone == Footprint(0, private + weights, 3)
    shared = footprint(directory, EngineOptions(**asdict(options) | {"shared_weights": tmp_path}), num_processes=3)
    assert shared == Footprint(weights, private, 3)
    assert alone.total_bytes - shared.total_bytes == 2 * weights
    both = footprint(directory, options, draft=write_model(tmp_path / "draft", "mamba"))
    assert both.private_bytes > private + weights


def test_processes_share_the_default_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "default_memory", lambda: 4_000)
    assert memory_for(EngineOptions(), 4) == 1_000
    assert memory_for(EngineOptions(memory=3_000), 4) == 3_000


def test_too_many_are_refused_with_the_number_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "free_bytes", lambda: 10_000_000_000)
    Footprint(8_000_000_000, 1_000_000_000, 2).check_fits()
    with pytest.raises(OptionError) as refused:
        Footprint(8_000_000_000, 1_000_000_000, 3).check_fits()
    line = (
        "3 processes need 11.0 GB of memory (8.00 GB once and 1.00 GB each), and 10.0 GB are free: take at most 2, or "
        "give each less memory for sequences (memory)"
    )
    assert str(refused.value) == line
    with pytest.raises(OptionError, match=re.escape("(11.0 GB each)")):
        Footprint(0, 11_000_000_000, 1).check_fits()


def test_a_process_without_torch_can_ask_a_child(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "model", "llama")
    options = EngineOptions(memory=10**6, weights="int8", shared_weights=tmp_path)
    given = {
        "directory": str(directory),
        "options": {**asdict(options), "shared_weights": str(tmp_path)},
        "draft": None,
        "num_processes": 2,
    }
    outcome = run_isolated(footprint_in_child, given, tmp_path / "child", time_limit_s=60)
    assert outcome.value == asdict(footprint(directory, options, num_processes=2))
