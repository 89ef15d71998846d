"""Feed a million tokens to a state-space model, and look at the memory that it takes meanwhile.

    python benchmarks/million_tokens.py [--tokens 1000000]

A small Mamba with new weights reads tokens at random in parts of 4,096: once through `model.step`, and once as the
engine's native model with the same weights in float32. The resident memory of the process is noted after every tenth of
the tokens. At the end the two states are compared, number by number: they differ by rounding alone.

Writes docs/results/million_tokens.MACHINE.json; benchmarks/results.py makes the table.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from circumstances import circumstances
from scan_tables import million_lines
from torch import Tensor

from whet.files import write_whole
from whet.kernels.build import library
from whet.kernels.linear.packed import Kind
from whet.measure.machine import describe
from whet.models.selective import Selective, SelectiveConfig, SelectiveState
from whet.models.selective.native import NativeSelective
from whet.models.step import Allocation, StepBatch

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SHAPE: dict[str, Any] = {"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 4}
_PART = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = Selective(SelectiveConfig.model_validate(SHAPE)).eval()
    state = model.new_state()
    rows = [_read("model.step", lambda part, _: model.step(part[None], state), arguments.tokens)]
    rows[0]["state_bytes"] = state.num_bytes
    weights = {key: value.detach() for key, value in model.state_dict().items()}
    native = NativeSelective(model.config, weights, library(), kind=Kind.F32)
    native.allocate(Allocation(num_states=1))
    rows.append(
        _read("the engine's native model", lambda part, place: native.step(_batch(part, place)), arguments.tokens)
    )
    rows[1]["state_bytes"] = native.bytes_per_state
    report = {
        **circumstances(f"python benchmarks/million_tokens.py --tokens {arguments.tokens}"),
        "build": library().isa,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "tokens": arguments.tokens,
        "rows": rows,
        "states_differ_by": _difference(state, native.read_state(0, arguments.tokens)),
    }
    print("\n".join(million_lines(report)))
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_whole(RESULTS / f"million_tokens.{describe().fingerprint}.json", json.dumps(report, indent=1) + "\n")


def _read(name: str, step: Callable[[Tensor, int], object], num_tokens: int) -> dict[str, Any]:
    """Feed the tokens in parts, and note the resident memory at every tenth."""
    process, noted, place = psutil.Process(), [], 0
    began = time.perf_counter()
    for part in _parts(num_tokens):
        step(part, place)
        place += len(part)
        if place * 10 // num_tokens > len(noted):
            noted.append({"tokens": place, "resident_bytes": process.memory_info().rss})
    return {"way": name, "seconds": time.perf_counter() - began, "noted": noted}


def _parts(num_tokens: int) -> Iterator[Tensor]:
    """Yield the same tokens at random for each model, a part at a time."""
    draw = np.random.default_rng(0)
    for begin in range(0, num_tokens, _PART):
        yield torch.from_numpy(draw.integers(0, SHAPE["vocab_size"], min(_PART, num_tokens - begin)))


def _batch(part: Tensor, place: int) -> StepBatch:
    count = len(part)
    return StepBatch(
        token_ids=part.numpy().astype(np.int32),
        positions=np.arange(place, place + count, dtype=np.int32),
        query_start=np.array([0, count], np.int32),
        context_len=np.array([place + count], np.int32),
        settled_len=np.array([place + count], np.int32),
        block_tables=np.zeros((1, 0), np.int32),
        state_rows=np.zeros(1, np.int32),
        logit_rows=np.array([count - 1], np.int32),
    )


def _difference(one: SelectiveState, other: SelectiveState) -> float:
    """Return the largest difference of two states, of the largest number in them."""
    pairs = [(a.scan, b.scan) for a, b in zip(one.layers, other.layers, strict=True)]
    largest = max(float(a.abs().max()) for a, _ in pairs)
    return max(float((a - b).abs().max()) for a, b in pairs) / largest


if __name__ == "__main__":
    main()
