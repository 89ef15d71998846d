"""Time what weights in a shared file cost a step, and measure what memory they save two processes.

    python benchmarks/shared_weights.py [--repeats 60] [--trial]

The model is a decoder of half a billion random weights, in int8. In one process, each way of keeping the weights makes
a step of one token in turn: private memory in large pages; a file in memory (tmpfs) whose pages were joined to large
ones, and one whose pages were not; a file on the disk. Then loading is timed, by who packs and by who finds the packed
file; and two processes load the model with weights of their own, and with shared ones.

Writes docs/results/shared_weights.MACHINE.json; benchmarks/results.py makes the table. --trial asks for no quiet
machine, takes a small model, and writes nothing.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from circumstances import circumstances
from kept_pages import keep_pages
from quietly import quiet_machine
from safetensors.torch import save_file
from serving_tables import SERVING

from whet.files import write_whole
from whet.kernels.build import library
from whet.measure.machine import describe
from whet.measure.machine.cache import cache_dir
from whet.measure.stats import paired_ratio
from whet.models.decoder.config import DecoderConfig
from whet.models.decoder.files import weight_shapes
from whet.models.families import open_model
from whet.models.shared_weights import opening
from whet.models.step import Allocation, StepBatch
from whet.server.weights_directory import weights_directory

RESULTS = Path(__file__).parents[1] / "docs" / "results"
MODEL = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 1536,
    "intermediate_size": 4096,
    "num_hidden_layers": 16,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 2048,
}
SMALL = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "num_attention_heads": 8}
PRIVATE, LARGE, JOINED_NOT, DISK = "private, large pages", "tmpfs, large pages", "tmpfs, small pages", "disk"

_LOADED = """
import sys, time
from pathlib import Path
import whet
from whet.models.families import open_model
from whet.models.step import Allocation
shared = Path(sys.argv[2]) if sys.argv[2] else None
began = time.perf_counter()
model = open_model(sys.argv[1], weights="int8", shared_weights=shared)
print(time.perf_counter() - began, flush=True)
for layer in model._weights._matrices:
    layer.data.sum()  # all pages are read once, as by steps
for line in sys.stdin:
    text = Path("/proc/self/smaps_rollup").read_text()
    print(next(int(l.split()[1]) * 1024 for l in text.splitlines() if l.startswith("Pss:")), flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--trial", action="store_true", help="try the script on a busy machine; write nothing")
    arguments = parser.parse_args()
    keep_pages()
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        directory = _written(Path(scratch) / "model", {**MODEL, **(SMALL if arguments.trial else {})})
        stack.enter_context(contextlib.nullcontext() if arguments.trial else quiet_machine())
        found = _steps(directory, arguments.repeats)
        loads, memory = _processes(directory)
    report = {
        **circumstances(f"python benchmarks/shared_weights.py --repeats {arguments.repeats}"),
        "build": library().isa,
        **found,
        "load_s": loads,
        "two_processes_bytes": memory,
    }
    print("\n".join(SERVING["shared_weights"](report)))
    if not arguments.trial:
        write_whole(RESULTS / f"shared_weights.{describe().fingerprint}.json", json.dumps(report, indent=1) + "\n")


def _written(directory: Path, given: dict[str, Any]) -> Path:
    config = DecoderConfig.model_validate(given)
    draw = torch.Generator().manual_seed(0)
    shapes = weight_shapes(config).items()
    weights = {name: (0.02 * torch.randn(shape, generator=draw)).bfloat16() for name, shape in shapes}
    directory.mkdir()
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(given), encoding="utf-8")
    return directory


def _steps(directory: Path, repeats: int) -> dict[str, Any]:
    """Time steps of one token, in turns, of models whose weights lie in different memory."""
    with contextlib.ExitStack() as stack:
        in_memory = [stack.enter_context(weights_directory(2**30)) for _ in range(2)]
        on_disk = stack.enter_context(weights_directory(0, cache_dir() / "shared-on-disk"))
        join = opening.join_pages
        models = {PRIVATE: open_model(directory, weights="int8")}
        models[LARGE] = open_model(directory, weights="int8", shared_weights=in_memory[0])
        opening.join_pages = lambda memory: None
        models[JOINED_NOT] = open_model(directory, weights="int8", shared_weights=in_memory[1])
        opening.join_pages = join
        models[DISK] = open_model(directory, weights="int8", shared_weights=on_disk)
        for model in models.values():
            model.allocate(Allocation(num_blocks=(repeats + 5) // 16 + 1))
        pages = _huge_pages()
        times: dict[str, list[float]] = {name: [] for name in models}
        names = list(models)
        for i in range(repeats + 5):
            for name in names[i % len(names) :] + names[: i % len(names)]:  # each is first as often as the others
                batch = _batch(i)
                times[name].append(_seconds(lambda name=name, batch=batch: models[name].step(batch)))  # type: ignore[misc]
        weights = models[PRIVATE].weight_bytes  # type: ignore[attr-defined]
    kept = {name: found[5:] for name, found in times.items()}
    rows = []
    for name, found in kept.items():
        ratio, interval = paired_ratio(kept[PRIVATE], found)
        rows.append({"name": name, "ms": 1e3 * statistics.median(found), "ratio": ratio, "ci95": list(interval)})
    return {"weight_bytes": weights, "in_large_pages_bytes": pages, "rows": rows}


def _huge_pages() -> int:
    """Return the bytes of this process's shared memory that it maps in pages of 2 MiB."""
    text = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8")
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("ShmemPmdMapped:"))


def _batch(position: int) -> StepBatch:
    one = np.array([position + 1], np.int32)
    return StepBatch(
        token_ids=np.array([17 * position % 1000], np.int32),
        positions=one - 1,
        query_start=np.array([0, 1], np.int32),
        context_len=one,
        settled_len=one,
        block_tables=np.arange(position // 16 + 1, dtype=np.int32)[None],
        state_rows=np.zeros(1, np.int32),
        logit_rows=np.zeros(1, np.int32),
    )


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _processes(directory: Path) -> tuple[dict[str, float], dict[str, int]]:
    """Return the seconds that loading takes, and the bytes (PSS) that two processes hold, with and without sharing."""
    loads, memory = {}, {}
    with weights_directory(2**30) as shared:
        for way, where in (("private", ""), ("shared", str(shared))):
            both = []
            for order in ("first", "second"):  # one after the other: neither waits for the other's lock
                words = [sys.executable, "-c", _LOADED, str(directory), where]
                both.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
                loads[f"{way}, {order}"] = float(_line(both[-1]))
            memory[way] = sum(int(_line(one, "memory\n")) for one in both)
            for one in both:
                one.communicate()
    return loads, memory


def _line(process: "subprocess.Popen[str]", asked: str = "") -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(asked)
    process.stdin.flush()
    return process.stdout.readline()


if __name__ == "__main__":
    main()
