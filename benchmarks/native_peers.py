"""whet's own kernels beside the dedicated runtimes: int8 of a whole model, each from its own saved files, paired.

    python benchmarks/native_peers.py [--sets 3] [--rounds 8] [--models A,B] [--peers A,B] [--work DIR] [--try]

`whet apply` writes the model with native(precision=int8); NNCF and OpenVINO, and ONNX Runtime's quantiser, write theirs
by their own documented calls (peers.py). Then each contender is loaded from its files by a fresh process, which is idle
but for its turn, and is asked for a short burst of calls in random order, round after round. A set is one such group of
processes. Ratios are geometric means over the rounds of all sets, with their 95 % interval.

Beside the ratio: the worst row's cosine to the float32 outputs, the time to load the files and answer once (imports
are not counted), the peak of the process's memory, and the size of the files. --work keeps the contenders' files, and
takes those that are there. --try runs on a busy machine too and writes nothing.
"""

import argparse
import json
import random
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from circumstances import circumstances, with_others
from contenders import answer, bursts_in_turns, serve_bursts, started
from peers import named_inputs, onnxruntime_int8_file, openvino_int8_model
from quietly import quiet_machine
from safetensors.torch import load_file, save_file
from torch import Tensor

from whet.comparison.claim import claim_of
from whet.core.recipe import Recipe, Step
from whet.core.signature import split
from whet.files import write_whole
from whet.measure.machine import describe
from whet.tuner.apply import apply_recipe
from whet.workloads import resolve

_TARGETS = f"{Path(__file__).parent / 'native_models.py'}:"
MODELS = {
    "bert-1x128": ("BERT-base, 1 x 128 tokens", f"{_TARGETS}bert_1x128", 1.15),
    "bert-8x128": ("BERT-base, 8 x 128 tokens", f"{_TARGETS}bert_8x128", 1.15),
    "bert-16-texts": ("BERT-base, 16 texts of 5 to 128 tokens, padded", f"{_TARGETS}bert_16_texts", 1.6),
    "vit-1": ("ViT-base, 1 image", f"{_TARGETS}vit_1", 1.25),
    "minilm-1x16": ("MiniLM, 1 x 16 tokens", f"{_TARGETS}minilm_1x16", 1.5),
    "docs-gpt": ("docs-gpt", "docs-gpt", 1.2),
    "resnet-1": ("ResNet-50, 1 image", f"{_TARGETS}resnet_1", 1.0),
}
"""What each is, the target, and the ratio over the best peer that is aimed at where the CPU has AVX-512 VNNI."""
WHET, OPENVINO, ONNXRUNTIME = "whet native int8", "openvino int8", "onnxruntime int8"
RESULTS = Path(__file__).parents[1] / "docs" / "results"
_RECIPE = Recipe(steps=(Step(technique="native", options={"precision": "int8"}),))
_INPUTS, _OUTPUTS, _FAILED = "inputs.safetensors", "outputs.safetensors", "failed.json"

Call = Callable[[], Sequence[Tensor]]


def main() -> None:
    arguments = _arguments()
    if arguments.worker:
        _serve(arguments.worker, arguments.directory)
        return
    rows = []
    with tempfile.TemporaryDirectory(prefix="whet-native-") as scratch:
        for name in arguments.models.split(","):
            rows.append(_one_model(name, (arguments.work or Path(scratch)) / name, arguments))
            print(json.dumps(rows[-1]), flush=True)
            if not arguments.is_trial:
                _write(rows, arguments)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--models", default=",".join(MODELS), help="some of them, as a list with commas")
    parser.add_argument("--peers", default=f"{OPENVINO},{ONNXRUNTIME}", help="some of them; a slow one takes long")
    parser.add_argument("--work", type=Path, help="a directory for the contenders' files")
    parser.add_argument("--try", dest="is_trial", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _write(rows: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Write what is measured so far, so that a run cut off keeps its finished models."""
    command = f"python benchmarks/native_peers.py --sets {arguments.sets} --rounds {arguments.rounds}"
    report = {**circumstances(command), "models": rows}
    path = RESULTS / f"native_peers.{describe().fingerprint}.json"
    report["models"] = with_others(path, report)
    write_whole(path, json.dumps(report, indent=1) + "\n")


def _one_model(name: str, directory: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    what, target, goal = MODELS[name]
    failed = _prepared(target, directory)
    contenders = [c for c in (WHET, *arguments.peers.split(",")) if c not in failed]
    bursts: dict[str, list[float]] = {c: [] for c in contenders}
    facts: dict[str, list[dict[str, float]]] = {c: [] for c in contenders}
    for number in range(arguments.sets):
        with nullcontext() if arguments.is_trial else quiet_machine():
            _one_set(directory, bursts, facts, arguments.rounds, number)
    peers = [c for c in contenders if c != WHET and bursts[c]]
    best_peer = min(peers, key=lambda c: statistics.median(bursts[c]))
    row = {
        "name": name,
        "what": what,
        "goal": goal,
        "best_peer": best_peer,
        "failed": failed,
        "contenders": {
            c: {"latency_ms": statistics.median(bursts[c]), "size_bytes": _size(directory / c), **_medians(facts[c])}
            for c in contenders
        },
    }
    if WHET in bursts:
        claim = claim_of(bursts[best_peer], bursts[WHET])
        row["over_best_peer"] = {
            "ratio": claim.ratio,
            "ci95": list(claim.ci95 or (0.0, float("inf"))),
            "num_rounds": claim.num_pairs,
        }
    return row


def _prepared(target: str, directory: Path) -> dict[str, str]:
    """Return why a contender could not write its files, which are written where they are not there yet."""
    if not (directory / _FAILED).exists():
        shutil.rmtree(directory, ignore_errors=True)
        write_whole(directory / _FAILED, json.dumps(_prepare(target, directory)))
    failed: dict[str, str] = json.loads((directory / _FAILED).read_text(encoding="utf-8"))
    return failed


def _prepare(target: str, directory: Path) -> dict[str, str]:
    """Write inputs, the float32 outputs and each contender's files; return why a contender could not write its own."""
    workload = resolve(target)
    args, kwargs = split(workload.inputs[0])
    with torch.no_grad():
        outputs = _tensors(workload.model(*args, **kwargs))
    directory.mkdir(parents=True)
    named = named_inputs(workload.model, args, kwargs)
    save_file({name: x.contiguous() for name, x in named.items()}, directory / _INPUTS)
    save_file({str(i): x.contiguous() for i, x in enumerate(outputs)}, directory / _OUTPUTS)
    (directory / "names.json").write_text(json.dumps({"args": len(args), "names": list(named)}))
    failed = {}
    writers: dict[str, Callable[[Path], object]] = {
        WHET: lambda out: apply_recipe(_RECIPE, target, out),
        OPENVINO: lambda out: openvino_int8_model(workload.model, named, out),
        ONNXRUNTIME: lambda out: onnxruntime_int8_file(workload.model, named, out),
    }
    for contender, write in writers.items():
        try:
            write(directory / contender)
        except Exception as error:  # noqa: BLE001 - what a converter cannot take is a fact of the table
            failed[contender] = f"{type(error).__name__}: {error}"[:300]
    return failed


def _tensors(outputs: Any) -> list[Tensor]:
    if isinstance(outputs, Tensor):
        return [outputs]
    values = outputs.values() if isinstance(outputs, Mapping) else outputs
    return [x for value in values for x in _tensors(value)]


def _one_set(
    directory: Path,
    bursts: dict[str, list[float]],
    facts: dict[str, list[dict[str, float]]],
    rounds: int,
    seed: int,
) -> None:
    """Start a process for each contender, one after the other, then ask them in turn."""
    order = random.Random(seed)
    workers = {}
    for contender in order.sample(list(bursts), len(bursts)):
        worker = started(__file__, "--worker", contender, "--directory", str(directory))
        said = answer(worker)
        if said is None:
            raise SystemExit("a contender's process ended; its message stands above")
        facts[contender].append(json.loads(said))
        workers[contender] = worker
    for contender, times in bursts_in_turns(workers, rounds, order).items():
        bursts[contender] += times


def _serve(contender: str, directory: Path) -> None:
    """A worker: load the contender's files, say what that took, then time a burst whenever asked."""
    inputs = load_file(directory / _INPUTS)
    shape = json.loads((directory / "names.json").read_text())
    load = {WHET: _load_whet, OPENVINO: _load_openvino, ONNXRUNTIME: _load_onnxruntime}[contender]
    ready = load(directory / contender, inputs, shape)
    began_s = time.perf_counter()
    call = ready()
    outputs = call()
    facts = {"load_s": time.perf_counter() - began_s, "cosine": _worst_cosine(outputs, directory)}
    facts["peak_bytes"] = _peak_bytes()
    serve_bursts(call, json.dumps(facts))


def _peak_bytes() -> float:
    """Of this program alone: what getrusage says counts the parent before the exec, too."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024.0 * int(found[1])


def _load_whet(path: Path, inputs: dict[str, Tensor], shape: dict[str, Any]) -> Callable[[], Call]:
    import whet

    ordered = [inputs[name] for name in shape["names"]]
    args, kwargs = ordered[: shape["args"]], dict(zip(shape["names"], ordered, strict=True))
    for name in shape["names"][: shape["args"]]:
        del kwargs[name]

    def ready() -> Call:
        artefact = whet.load(path)
        return lambda: _tensors(artefact(*args, **kwargs))

    return ready


def _load_openvino(path: Path, inputs: dict[str, Tensor], shape: dict[str, Any]) -> Callable[[], Call]:
    from whet.core.artefact.openvino import import_openvino

    openvino = import_openvino()  # without telemetry
    arrays = {name: inputs[name].numpy() for name in shape["names"]}

    def ready() -> Call:
        model = openvino.Core().compile_model(path / "model.xml", "CPU")
        return lambda: [torch.from_numpy(x) for x in model(arrays).values()]

    return ready


def _load_onnxruntime(path: Path, inputs: dict[str, Tensor], shape: dict[str, Any]) -> Callable[[], Call]:
    import onnxruntime

    def ready() -> Call:
        session = onnxruntime.InferenceSession(path / "model.onnx", providers=["CPUExecutionProvider"])
        feeds = {i.name: inputs[name].numpy() for i, name in zip(session.get_inputs(), shape["names"], strict=True)}
        return lambda: [torch.from_numpy(x) for x in session.run(None, feeds)]

    return ready


def _worst_cosine(outputs: Sequence[Tensor], directory: Path) -> float:
    """Of any row of any output with the float32 model's. Images count as a whole."""
    expected = load_file(directory / _OUTPUTS)
    return min(
        float(torch.nn.functional.cosine_similarity(_rows(found), _rows(expected[str(i)])).min())
        for i, found in enumerate(outputs)
    )


def _rows(x: Tensor) -> Tensor:
    return (x.flatten(1) if x.ndim == 4 else x.flatten(0, -2)).double()


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _medians(facts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: statistics.median(fact[key] for fact in facts) for key in facts[0]}


if __name__ == "__main__":
    main()
