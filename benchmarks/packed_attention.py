"""Time attention of packed rows, forward and backward: the dense mask beside each document by itself.

    python benchmarks/packed_attention.py [--cases float32-2048-16 ...] [--sets 2] [--rounds 8] [--trial]

A case is the dtype, the tokens of a row and the documents in it, whose lengths are drawn. A step is a batch of one row:
its mask is copied, as each batch has one of its own, and four layers compute attention with 8 heads of 64 numbers,
forward and backward. So the search for documents in the mask is paid once a step.

The contenders call scaled_dot_product_attention with the mask: as it is, inside whet's `document_attention`, and in
bfloat16 inside `product_attention` and inside both. They take turns in one process: in each round, each makes a burst
of steps, in random order. A pair is two contenders' bursts in one round; ratios are judged by whet's comparison. A set
has documents of its own.

Writes docs/results/packed_attention.MACHINE.json; benchmarks/results.py makes the table. --trial asks for no quiet
machine, and writes nothing.
"""

import argparse
import contextlib
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from circumstances import circumstances
from quietly import quiet_machine
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from whet.comparison.claim import claim_of
from whet.files import write_whole
from whet.measure.machine import describe
from whet.techniques.mechanisms.module_class import extend
from whet.techniques.mechanisms.packing.document_masking import AttentionWithinDocuments
from whet.techniques.mechanisms.packing.packed_attention import Documents
from whet.techniques.mechanisms.packing.unfused_attention import AttentionByProducts

RESULTS = Path(__file__).parents[1] / "docs" / "results"
CASES = [f"{dtype}-{T}-{n}" for dtype in ("float32", "bfloat16") for T in (1024, 2048) for n in (4, 16)]
NUM_HEADS, WIDTH, NUM_LAYERS = 8, 64, 4
DENSE, WHET = "dense mask", "document_attention"
CONTENDERS: dict[str, tuple[type, ...]] = {
    DENSE: (),
    WHET: (AttentionWithinDocuments,),
    "product_attention": (AttentionByProducts,),
    "both": (AttentionWithinDocuments, AttentionByProducts),
}
_BURST_S = 0.25


class Layers(nn.Module):
    """Compute attention several times with one mask."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        for _ in range(NUM_LAYERS):
            q = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return q


def main() -> None:
    arguments = _arguments()
    rows = []
    for case in arguments.cases:
        rows.append(_one_case(case, arguments))
        _show(rows)
        if not arguments.trial:
            _write(rows, arguments)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--sets", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--trial", action="store_true", help="try the script on a busy machine; write nothing")
    return parser.parse_args()


def _one_case(case: str, arguments: argparse.Namespace) -> dict[str, Any]:
    kind, num_tokens, num_documents = case.split("-")
    names = [name for name in CONTENDERS if kind == "bfloat16" or AttentionByProducts not in CONTENDERS[name]]
    bursts: dict[str, list[float]] = {name: [] for name in names}
    shares = []
    for number in range(arguments.sets):
        draw = random.Random(number)
        documents = _documents(int(num_tokens), int(num_documents), draw)
        shares.append(documents.num_products / int(num_tokens) ** 2)
        with contextlib.nullcontext() if arguments.trial else quiet_machine():
            _one_set(documents, getattr(torch, kind), arguments.rounds, draw, bursts)
    return {
        "case": case,
        "share": statistics.mean(shares),
        "ms": {name: 1e3 * statistics.median(times) for name, times in bursts.items()},
        "over": {name: _ratio(bursts[DENSE], bursts[name]) for name in names if name != DENSE},
    }


def _documents(num_tokens: int, num_documents: int, draw: random.Random) -> Documents:
    """Return a row of documents whose ends are drawn."""
    ends = sorted(draw.sample(range(1, num_tokens), num_documents - 1))
    lengths = torch.tensor([ends[0], *(b - a for a, b in zip(ends, [*ends[1:], num_tokens], strict=True))])
    return Documents(torch.repeat_interleave(torch.arange(num_documents), lengths)[None])


def _one_set(
    documents: Documents, dtype: torch.dtype, num_rounds: int, draw: random.Random, bursts: dict[str, list[float]]
) -> None:
    """Let each contender make a burst of steps in each round, in random order."""
    torch.manual_seed(0)
    shape = (1, documents.numbers.shape[1], NUM_HEADS, WIDTH)
    qkv = [torch.randn(shape, dtype=dtype).transpose(1, 2).requires_grad_() for _ in range(3)]
    modules = {}
    for name in bursts:
        modules[name] = Layers()
        for kind in CONTENDERS[name]:
            extend(modules[name], kind)
        _step(modules[name], qkv, documents.mask)  # the first call of an operator takes longer
    for _ in range(num_rounds):
        for name in draw.sample(list(modules), len(modules)):
            times: list[float] = []
            while sum(times) < _BURST_S:
                began = time.perf_counter()
                _step(modules[name], qkv, documents.mask)
                times.append(time.perf_counter() - began)
            bursts[name].append(statistics.median(times))


def _step(module: nn.Module, qkv: list[Tensor], mask: Tensor) -> None:
    torch.autograd.grad(module(*qkv, mask.clone()).sum(), qkv)


def _ratio(theirs: list[float], ours: list[float]) -> dict[str, Any]:
    claim = claim_of(theirs, ours)
    return {"ratio": claim.ratio, "ci95": list(claim.ci95 or ()), "num_rounds": claim.num_pairs}


def _write(rows: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Write what is measured so far, beside the other cases in a file of this machine and these versions."""
    named = "" if arguments.cases == CASES else f" --cases {' '.join(arguments.cases)}"
    command = f"python benchmarks/packed_attention.py --sets {arguments.sets} --rounds {arguments.rounds}{named}"
    report = {**circumstances(command), "heads": NUM_HEADS, "width": WIDTH, "layers": NUM_LAYERS, "cases": rows}
    path = RESULTS / f"packed_attention.{describe().fingerprint}.json"
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if all(old.get(key) == report[key] for key in ("machine", "versions", "heads", "width", "layers")):
        found = {row["case"]: row for row in [*old["cases"], *rows]}
        report["cases"] = sorted(found.values(), key=lambda row: CASES.index(row["case"]))
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(report, indent=1) + "\n")


def _show(rows: list[dict[str, Any]]) -> None:
    table = Table("case", "share of the products", "contender", "ms a step", "over the dense mask")
    for row in rows:
        for name, ms in row["ms"].items():
            over = row["over"].get(name)
            ratio = "" if over is None else f"{over['ratio']:.2f}x ({over['ci95'][0]:.2f}-{over['ci95'][1]:.2f})"
            table.add_row(row["case"], f"{row['share']:.1%}", name, f"{ms:,.1f}", ratio)
        table.add_section()
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
