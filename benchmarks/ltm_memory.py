"""What a training step of a long-term-memory decoder takes in memory, and what adaptive compression saves.

    python benchmarks/ltm_memory.py [--lengths 2048 8192 32768] [--segment 64]

Training: each point is a process of its own, which makes two steps on one row of so many tokens, and reads the peak of
its resident memory above what it held before the first step. The loss is chunked, so that logits are no part of it. The
exponent of a granularity is the slope of log(peak) over log(length).

Compression: a model reads texts that repeat after 1, 16 and 256 tokens, and a random one, with and without
use_adaptive_compression. The table shows the slots that are left, the bytes of the banks, and how far the logits after
the last token are from those without compression, relative to their norm.
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from whet.models.memory_bank import Ltm, LtmConfig
from whet.techniques.mechanisms.chunked_cross_entropy import chunked_cross_entropy

SIZES = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
BANK = {"num_attention_heads": 4, "memory_slots": 32, "min_memory_slots": 2}
GRANULARITIES = ("none", "layer", "block")


def step(model: Ltm, text: Tensor) -> None:
    """Make forward and backward of the loss of one row."""
    hidden = model.hidden(text[:, :-1])[0]
    loss = chunked_cross_entropy(
        hidden, model.lm_head.weight, None, text[0, 1:], ignore_index=-100, dtype=torch.float32, scale=1 / len(hidden)
    )
    loss.backward()


def point(granularity: str, length: int, segment: int) -> dict[str, float]:
    """Return the peak in bytes above the start, and the seconds of the second step."""
    torch.manual_seed(0)
    config = LtmConfig(**SIZES, **BANK, attention_block_size=segment, gradient_checkpointing_granularity=granularity)
    model, text = Ltm(config), torch.randint(0, SIZES["vocab_size"], (1, length + 1))
    step(model, text[:, : segment + 1])  # libraries take their memory
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step(model, text)
    begin = time.perf_counter()
    step(model, text)
    seconds = time.perf_counter() - begin
    return {"peak": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024, "seconds": seconds}


def training(lengths: list[int], segment: int) -> Table:
    """Measure all points, and return their table."""
    table = Table("recomputed", *(f"{length:,} tokens" for length in lengths), "exponent", title="peak of a step")
    for granularity in GRANULARITIES:
        found = []
        for length in lengths:
            command = [sys.executable, __file__, "--point", granularity, str(length), str(segment)]
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=dict(os.environ))
            found.append(json.loads(done.stdout))
        cells = [f"{one['peak'] / 1e6:.1f} MB, {one['seconds']:.2f} s" for one in found]
        rise = math.log(found[-1]["peak"] / found[0]["peak"]) / math.log(lengths[-1] / lengths[0])
        table.add_row(granularity, *cells, f"{rise:.2f}")
    return table


def compression(segment: int) -> Table:
    """Measure what adaptive compression leaves, and return the table."""
    table = Table("text repeats after", "slots", "bytes of banks", "change of logits", title="adaptive compression")
    for tolerance in (0.05, 0.2, 0.5):
        for period in (1, 16, 256, 0):
            torch.manual_seed(0)
            keys = {**SIZES, **BANK, "attention_block_size": segment}
            plain = Ltm(LtmConfig(**keys)).eval()
            adaptive = Ltm(LtmConfig(**keys, use_adaptive_compression=True, compression_tolerance=tolerance)).eval()
            adaptive.load_state_dict(plain.state_dict())
            text = torch.randint(0, SIZES["vocab_size"], (1, period or 64 * segment)).repeat(1, 64 * segment)
            text = text[:, : 64 * segment]
            states = plain.new_state(), adaptive.new_state()
            wanted, found = (model.step(text, state) for model, state in zip((plain, adaptive), states, strict=True))
            before, after = (plain.get_memory_stats(state) for state in states)
            change = float((found - wanted).norm() / wanted.norm())
            name = f"{period or 'never'}, tolerance {tolerance}"
            sizes = f"{before['bytes']:,} -> {after['bytes']:,}"
            table.add_row(name, f"{before['slots']:.0f} -> {after['slots']:.1f}", sizes, f"{change:.2%}")
    return table


def main() -> None:
    """Print both tables, or measure one point for them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192, 32768])
    parser.add_argument("--segment", type=int, default=64)
    parser.add_argument("--point", nargs=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.point:
        print(json.dumps(point(options.point[0], int(options.point[1]), int(options.point[2]))))
        return
    console = Console()
    console.print(training(options.lengths, options.segment))
    console.print(compression(options.segment))


if __name__ == "__main__":
    main()
