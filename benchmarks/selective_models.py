"""Time steps of Mamba and Mamba-2 of 130 million parameters: whet's native model beside transformers.

    python benchmarks/selective_models.py [--repeats 15] [--trial]

Weights are random. A decode step reads one token of one sequence, or of eight; a prefill reads 512 tokens of one. A
step has to read the packed weights, and to read and write the states of its sequences; the limit is the time of that
at the machine's read bandwidth. transformers runs in PyTorch, in float32 and in bfloat16, with its cache.

Writes docs/results/selective_models.MACHINE.json; benchmarks/results.py makes the table. --trial asks for no quiet
machine, and writes nothing.
"""

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from circumstances import circumstances
from kept_pages import keep_pages
from quietly import quiet_machine
from scan_tables import model_lines

from whet.files import write_whole
from whet.kernels.build import library
from whet.kernels.linear.packed import Kind
from whet.measure.machine import describe, load_limits
from whet.models.selective import SelectiveConfig
from whet.models.selective.files import weight_shapes
from whet.models.selective.native import NativeSelective
from whet.models.step import Allocation, StepBatch

RESULTS = Path(__file__).parents[1] / "docs" / "results"
MODELS: dict[str, dict[str, Any]] = {
    "mamba-130m": {"model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 24, "vocab_size": 50280},
    "mamba2-130m": {
        "model_type": "mamba2",
        "hidden_size": 768,
        "num_hidden_layers": 24,
        "vocab_size": 50288,
        "num_heads": 24,
        "head_dim": 64,
        "n_groups": 1,
        "tie_word_embeddings": True,
    },
}
KINDS = {"bf16": Kind.BF16, "int8": Kind.S8, "int4": Kind.S4}
STEPS = {"decode, 1 sequence": (1, 1), "decode, 8 sequences": (8, 1), "prefill of 512": (1, 512)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--trial", action="store_true", help="try the script on a busy machine; write nothing")
    arguments = parser.parse_args()
    keep_pages()
    bandwidth = load_limits(describe()).read_bandwidth
    rows = []
    with contextlib.nullcontext() if arguments.trial else quiet_machine():
        for name, given in MODELS.items():
            rows += [_native(name, bits, given, bandwidth, arguments.repeats) for bits in KINDS]
            rows += [_transformers(name, given, dtype) for dtype in (torch.float32, torch.bfloat16)]
    command = f"python benchmarks/selective_models.py --repeats {arguments.repeats}"
    report = {
        **circumstances(command),
        "build": library().isa,
        "read_gb_s": bandwidth / 1e9,
        "steps": list(STEPS),
        "rows": rows,
    }
    print("\n".join(model_lines(report)))
    if not arguments.trial:
        RESULTS.mkdir(parents=True, exist_ok=True)
        write_whole(RESULTS / f"selective_models.{describe().fingerprint}.json", json.dumps(report, indent=1) + "\n")


def _native(name: str, bits: str, given: dict[str, Any], bandwidth: float, repeats: int) -> dict[str, Any]:
    config = SelectiveConfig.model_validate(given)
    generator = torch.Generator().manual_seed(0)
    weights = {key: 0.02 * torch.randn(shape, generator=generator) for key, shape in weight_shapes(config).items()}
    model = NativeSelective(config, weights, library(), kind=KINDS[bits])
    model.allocate(Allocation(num_states=8))
    per_second, of_limit = {}, {}
    for step, (num_seqs, num_tokens) in STEPS.items():
        model.step(_batch(num_seqs, num_tokens, 0))
        timed = repeats if num_tokens == 1 else 3
        following = iter([_batch(num_seqs, num_tokens, num_tokens * (1 + i)) for i in range(1 + timed)])
        seconds = _median(lambda following=following: model.step(next(following)), timed)  # type: ignore[misc]
        per_second[step] = num_seqs * num_tokens / seconds
        if num_tokens == 1:
            of_limit[step] = (model.weight_bytes + 2 * num_seqs * model.bytes_per_state) / bandwidth / seconds
    return {
        "model": name,
        "way": f"whet {bits}",
        "weight_bytes": model.weight_bytes,
        "state_bytes": model.bytes_per_state,
        "per_second": per_second,
        "of_limit": of_limit,
    }


def _batch(num_seqs: int, num_tokens: int, begin: int) -> StepBatch:
    draw = np.random.default_rng(0)
    places = np.arange(begin, begin + num_tokens)
    return StepBatch(
        token_ids=draw.integers(0, 50_000, num_seqs * num_tokens, dtype=np.int32),
        positions=np.tile(places, num_seqs).astype(np.int32),
        query_start=(np.arange(num_seqs + 1) * num_tokens).astype(np.int32),
        context_len=np.full(num_seqs, begin + num_tokens, np.int32),
        settled_len=np.full(num_seqs, begin + num_tokens, np.int32),
        block_tables=np.zeros((num_seqs, 0), np.int32),
        state_rows=np.arange(num_seqs, dtype=np.int32),
        logit_rows=(np.arange(1, num_seqs + 1) * num_tokens - 1).astype(np.int32),
    )


def _transformers(name: str, given: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    import transformers

    family = {"mamba": "Mamba", "mamba2": "Mamba2"}[given["model_type"]]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{"state_size": 128 if family == "Mamba2" else 16, **given})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval().to(dtype)
    per_second = {}
    with torch.inference_mode():
        for step, (num_seqs, num_tokens) in STEPS.items():
            ids = torch.randint(0, 50_000, (num_seqs, num_tokens))
            if num_tokens > 1:
                seconds = _median(lambda ids=ids: model(ids, use_cache=True, logits_to_keep=1), 1)  # type: ignore[misc]
            else:
                cache = model(ids, use_cache=True).cache

                def decode(ids: torch.Tensor = ids, cache: Any = cache) -> object:
                    return model(ids, cache=cache, use_cache=True)

                seconds = _median(decode, 5)
            per_second[step] = num_seqs * num_tokens / seconds
    return {
        "model": name,
        "way": f"transformers, {str(dtype).removeprefix('torch.')}",
        "per_second": per_second,
        "of_limit": {},
    }


def _median(call: Callable[[], object], repeats: int) -> float:
    """Return the median of the seconds of calls, after one that does not count."""
    call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


if __name__ == "__main__":
    main()
