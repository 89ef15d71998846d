"""Generate from contexts of 2,000 to 100,000 tokens, with long-term memory and with full attention: memory and time.

    python benchmarks/long_context.py [--tokens 2000 10000 100000] [--generated 64]

Two decoders of the same sizes with new weights, one with attention within segments and a bank of slots, one a Llama,
are served by an engine. It gets one request, whose prompt is random tokens. Each point is a process of its own. What
counts is the most memory that the process has held, beyond what it held once the engine was ready, and the tokens a
second of reading and of writing. Memory does not depend on what else the machine does; times do, and a busy machine
makes them longer.

Writes docs/results/long_context.MACHINE.json; benchmarks/results.py makes the table.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from circumstances import circumstances
from context_tables import context_lines

import whet
from whet.files import write_whole
from whet.measure.machine import describe
from whet.measure.memory import peak_rss_bytes, reset_peak_rss
from whet.models.families import FAMILIES

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SIZES: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}
BANK: dict[str, Any] = {"attention_block_size": 512, "memory_slots": 64}
LONGEST = 2**17


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2000, 10_000, 100_000])
    parser.add_argument("--generated", type=int, default=64)
    parser.add_argument("--point", nargs=2, metavar=("DIR", "TOKENS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.point:
        print(json.dumps(_point(arguments.point[0], int(arguments.point[1]), arguments.generated)))
        return
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for name, directory in _written(Path(temporary)).items():
            for num_tokens in arguments.tokens:
                command = [sys.executable, __file__, "--generated", str(arguments.generated)]
                command += ["--point", str(directory), str(num_tokens)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                rows.append({"model": name, "tokens": num_tokens, **json.loads(done.stdout)})
                print(rows[-1], flush=True)
    given = " ".join(map(str, arguments.tokens))
    report = {
        **circumstances(f"python benchmarks/long_context.py --tokens {given} --generated {arguments.generated}"),
        "sizes": SIZES,
        "bank": BANK,
        "generated": arguments.generated,
        "rows": rows,
    }
    print("\n".join(context_lines(report)))
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_whole(RESULTS / f"long_context.{describe().fingerprint}.json", json.dumps(report, indent=1) + "\n")


def _written(directory: Path) -> dict[str, Path]:
    """Write both models, and return their directories by name."""
    models = {
        "segments and a bank": {"model_type": "ltm", **SIZES, **BANK},
        "full attention (Llama)": {"model_type": "llama", **SIZES, "max_position_embeddings": LONGEST},
    }
    places = {}
    for name, given in models.items():
        trains = FAMILIES[given["model_type"]].trains
        assert trains is not None
        config = trains.config.model_validate(given)
        places[name] = directory / given["model_type"]
        places[name].mkdir()
        weights = trains.fresh(config, torch.Generator().manual_seed(0)).state_dict()
        trains.write(config, places[name], given, weights, {})
    return places


def _point(directory: str, num_tokens: int, num_generated: int) -> dict[str, Any]:
    """Serve one request in this process, and return the memory and the times that it took."""
    prompt = torch.randint(0, SIZES["vocab_size"], (num_tokens,), generator=torch.Generator().manual_seed(1)).tolist()
    options = whet.EngineOptions(weights="int8", speculation="off", max_num_seqs=1, max_model_len=LONGEST)
    params = whet.SamplingParams(temperature=0.0, max_tokens=num_generated, ignore_eos=True)
    with whet.Engine(directory, options) as engine:
        engine.generate([prompt[:600]], params)  # the work that every length needs once
        reset_peak_rss()
        before = peak_rss_bytes()
        began = time.perf_counter()
        (completion,) = engine.generate([[*reversed(prompt)]], params)
        seconds = time.perf_counter() - began
    assert completion.ttft_s is not None
    first_s = completion.ttft_s
    return {
        "bytes": peak_rss_bytes() - before,
        "read_per_s": num_tokens / first_s,
        "written_per_s": (num_generated - 1) / (seconds - first_s),
        "state_bytes": engine.model.bytes_per_state,
    }


if __name__ == "__main__":
    main()
