"""`whet tune` says how to put a model on the GPU where the machine has one that the model does not use."""

from dataclasses import replace
from io import StringIO

import pytest
from fake_search import facts
from rich.console import Console

from whet.cli.tuning_progress import TuningProgress
from whet.measure.machine import Limits, describe


@pytest.mark.parametrize(
    ("gpu", "device", "target", "hint"),
    [
        ("H100 (sm_90)", "cpu", "docs-gpt", "whet tune 'docs-gpt?device=cuda'"),
        ("H100 (sm_90)", "cpu", "hf:m?batch=2", "whet tune 'hf:m?batch=2&device=cuda'"),
        ("H100 (sm_90)", "cuda", "docs-gpt?device=cuda", ""),
        ("H100 (sm_90)", "cpu", "docs-gpt?device=cpu", ""),
        ("", "cpu", "docs-gpt", ""),
    ],
)
def test_the_gpu_is_pointed_out(gpu: str, device: str, target: str, hint: str) -> None:
    shown = StringIO()
    found = facts(machine=replace(describe(), gpu=gpu), limits=Limits(1e10, device=device), score=None)
    with TuningProgress(Console(file=shown, width=200), target, 1.0) as live:
        live.looked(found)
    assert hint in shown.getvalue()
    assert ("this model is on the CPU" in shown.getvalue()) == bool(hint)
