"""A run on several processes says what they send and what compression changes; what it remembers is in checkpoints."""

import re
from pathlib import Path

from many import on_ranks
from runs_together import compressed_and_stopped
from tiny_run import config, tables

from whet.parallel.compression import Sample
from whet.trainer.communication import warning
from whet.trainer.setup import set_up


def test_a_run_says_what_it_sends_and_goes_on_with_what_it_has_not_sent(tmp_path: Path) -> None:
    tables(tmp_path)  # writes the text, once
    parameters = sum(p.numel() for p in set_up(config(tmp_path), lambda line: None).model.module.parameters())
    for found in on_ranks(compressed_and_stopped, 2, tmp_path):
        sent, changed = found["notes"][-2:]
        kilobytes, exposed, step = re.fullmatch(  # type: ignore[union-attr]
            r"communication: ([\d.]+) kB a step on the wire from each process \(all_reduce .+\), ([\d.]+ [mµ]?s) of "
            r"([\d.]+ [mµ]?s) exposed",
            sent,
        ).groups()
        assert abs(float(kilobytes) * 1e3 / (2 * parameters) - 1) < 0.01  # bf16 over a ring of two
        assert 0 < _milliseconds(exposed) < _milliseconds(step)
        assert re.match(r"compression bf16: the gradient differs from the exact one by at most 0\.00[1-7]", changed)
        straight, resumed = found["losses"]
        assert found["went on"]
        assert straight == resumed


def _milliseconds(text: str) -> float:
    value, unit = text.split()
    return float(value) * {"µs": 1e-3, "ms": 1, "s": 1e3}[unit]


def test_a_step_that_lost_too_much_is_told() -> None:
    told = warning("fp16", Sample(100, 0.5, 0.9), 2.0**-10)
    assert told.startswith(
        "parallel.compression fp16 changes the gradient of step 100 by 0.500 of its norm, more than 0.000977: the "
        "gradients are below fp16's range"
    )
    assert warning("powersgd", Sample(3, 1.6, 0.1), 1.5).endswith("raise parallel.powersgd_rank, or leave it out")
