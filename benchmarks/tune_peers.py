"""whet's winner beside its peers used directly by their own documented calls, in one run, paired.

    python benchmarks/tune_peers.py [--budget 240] [--sets 3] [--models bert-base,vit-base,resnet-50]
    python benchmarks/tune_peers.py --builtin [--budget 240] [--sets 3] [--models digits-cnn,docs-encoder,docs-gpt]

For each model, a Hugging Face directory with weights at random or a built-in workload: `whet tune` finds a recipe; then
every contender lives in a process of its own, idle but for its turn, and is asked for a short burst of calls in random
order, round after round. A set is one such group of processes; the whole is repeated with fresh ones. A pair is two
contenders' bursts in one round. Ratios are geometric means over the rounds of all sets, with their 95 % interval; what
differs from process to process is in it only as far as there are sets, so take three or more where it matters.

Writes docs/results/peers.MACHINE.json (peers-builtin, -torch-only) and prints the table; `benchmarks/results.py` puts
it into docs/results.md.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from circumstances import circumstances, with_others
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

from contenders import answer, bursts_in_turns, serve_bursts, started
from peers import PEERS, make_hf_directories, named_inputs
from quietly import quiet_machine

from whet.comparison.claim import claim_of
from whet.files import write_whole
from whet.measure.machine import describe
from whet.tuner.tuning import tune
from whet.workloads import BUILTIN

MODELS = {"bert-base": "BERT-base, 1 x 128 tokens", "vit-base": "ViT-base, 1 image", "resnet-50": "ResNet-50, 1 image"}
WHET = "whet"
RESULTS = Path(__file__).parents[1] / "docs" / "results"
EXTERNAL = ("torch.compile", "openvino int8", "onnxruntime int8")  # what the winner must not be slower than


def main() -> None:
    arguments = _arguments()
    if arguments.worker:
        _serve(arguments.worker, arguments.target)
        return
    rows = []
    with tempfile.TemporaryDirectory(prefix="whet-peers-") as scratch:
        if arguments.builtin:
            targets = {name: name for name in BUILTIN}
        else:
            directories = make_hf_directories(Path(scratch) / "models")
            targets = {name: f"hf:{directory}" for name, directory in directories.items()}
        for name in arguments.models.split(",") if arguments.models else targets:
            rows.append(_one_model(name, targets[name], Path(scratch), arguments))
            _write(rows, arguments)
            _show(rows)


def _write(rows: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Write what is measured so far, so that a run cut off keeps its finished models."""
    machine = describe()
    report = {
        **circumstances(
            f"python benchmarks/tune_peers.py --budget {arguments.budget:g} --sets {arguments.sets}"
            + (" --builtin" if arguments.builtin else "")
            + ("" if arguments.extras else " --no-extras")
        ),
        "extras": arguments.extras,
        "builtin": arguments.builtin,
        "models": rows,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    kind = ("-builtin" if arguments.builtin else "") + ("" if arguments.extras else "-torch-only")
    path = RESULTS / f"peers{kind}.{machine.fingerprint}.json"
    report["models"] = with_others(path, report)
    write_whole(path, json.dumps(report, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=240.0, help="seconds for whet tune, each model")
    parser.add_argument("--sets", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--builtin", action="store_true", help="the built-in workloads")
    parser.add_argument("--models", help="some of them, as a list with commas")
    parser.add_argument("--no-extras", dest="extras", action="store_false", help="tune with torch alone")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--target", help=argparse.SUPPRESS)
    return parser.parse_args()


def _one_model(name: str, target: str, scratch: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    out = scratch / f"tuned-{name}"
    exclude = () if arguments.extras else ("openvino", "onnxruntime")
    result = tune(target, budget_s=arguments.budget, out=out, exclude=exclude)
    contenders = [p for p in PEERS if arguments.extras or not p.startswith(("openvino", "onnx"))] + [WHET]
    bursts: dict[str, list[float]] = {c: [] for c in contenders}
    for number in range(arguments.sets):
        with quiet_machine():
            one_set = _one_set(contenders, target, out, arguments.rounds, number)
        for contender, times in one_set.items():
            bursts[contender] += times
    present = [c for c in contenders if bursts[c]]
    best_peer = min((c for c in present if c in EXTERNAL), key=lambda c: statistics.median(bursts[c]))
    return {
        "name": name,
        "what": MODELS.get(name, name),
        "recipe": str(result.recipe),
        "verdict": result.verdict,
        "tuning_s": round(result.seconds, 1),
        "quality": None
        if result.baseline.quality is None
        else {"name": result.quality_name, "before": result.baseline.quality, "after": result.best.quality},
        "agreement": None if result.best.agreement is None else result.best.agreement.model_dump(),
        "size_bytes": [result.baseline.size_bytes, result.best.size_bytes],
        "latency_ms": {c: statistics.median(bursts[c]) for c in present},
        "best_peer": best_peer,
        "over_best_peer": _ratio(bursts[best_peer], bursts[WHET]),
        "over_eager": _ratio(bursts["eager"], bursts[WHET]),
        "failed": [c for c in contenders if not bursts[c]],
    }


def _ratio(theirs: list[float], ours: list[float]) -> dict[str, Any]:
    comparison = claim_of(theirs, ours)
    return {"ratio": comparison.ratio, "ci95": list(comparison.ci95), "num_rounds": comparison.num_pairs}


def _one_set(contenders: list[str], target: str, out: Path, rounds: int, seed: int) -> dict[str, list[float]]:
    """Start a process for each contender, one after the other, then ask them in turn."""
    order = random.Random(seed)
    workers = {}
    for contender in order.sample(contenders, len(contenders)):
        address = str(out / "model") if contender == WHET else target
        worker = started(__file__, "--worker", contender, "--target", f"{address}|{target}")
        if answer(worker) == "ready":
            workers[contender] = worker
    return bursts_in_turns(workers, rounds, order)


def _serve(contender: str, addresses: str) -> None:
    """A worker: build the contender, then time a burst whenever asked."""
    address, target = addresses.split("|")
    call = _contender_call(contender, address, target)
    call()
    serve_bursts(call, "ready")


def _contender_call(contender: str, address: str, target: str) -> Any:
    from whet.core.signature import split
    from whet.workloads import resolve

    workload = resolve(target)
    args, kwargs = split(workload.inputs[0])
    if contender != WHET:
        return PEERS[contender](workload.model, named_inputs(workload.model, args, kwargs))
    import whet

    artefact = whet.load(address)
    return lambda: artefact(*args, **kwargs)


def _show(rows: list[dict[str, Any]]) -> None:
    """A line for each contender, a column for each model: fits 80 columns."""
    table = Table(title="median latency, ms", title_justify="left")
    table.add_column("")
    for row in rows:
        table.add_column(row["name"], justify="right")
    for name in rows[0]["latency_ms"]:
        table.add_row(name, *(_cell(row["latency_ms"].get(name)) for row in rows))
    table.add_section()
    table.add_row("whet over the best peer", *(_interval(row["over_best_peer"]) for row in rows))
    table.add_row("whet over eager", *(_interval(row["over_eager"]) for row in rows))
    Console().print(table)


def _cell(latency_ms: float | None) -> str:
    return "-" if latency_ms is None else f"{latency_ms:.2f}"


def _interval(ratio: dict[str, Any]) -> str:
    low, high = ratio["ci95"]
    return f"{ratio['ratio']:.2f} ({low:.2f}-{high:.2f})"


if __name__ == "__main__":
    main()
